// SlotTable: numbers by hash, in one flat array: open addressing with linear probing, 8 bytes a
// slot, at most half full. The numbers name something that the owner compares.
//
// Thread safety: none; the owner's.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace hetero::graph {

class SlotTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;  // no number

  // The number that was added with this hash and for which is_it(number), or kNone.
  template <typename IsIt>
  uint32_t find(uint32_t hash, const IsIt& is_it) const {
    if (slots_.empty()) return kNone;
    for (size_t i = hash & mask();; i = (i + 1) & mask()) {
      if (slots_[i].number == kNone) return kNone;
      if (slots_[i].hash == hash && is_it(slots_[i].number)) return slots_[i].number;
    }
  }

  void add(uint32_t hash, uint32_t number) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    put({hash, number});
    ++size_;
  }

  // False if it is not there.
  bool remove(uint32_t hash, uint32_t number) {
    if (slots_.empty()) return false;
    size_t gap = hash & mask();
    for (; slots_[gap].number != number || slots_[gap].hash != hash; gap = (gap + 1) & mask()) {
      if (slots_[gap].number == kNone) return false;
    }
    // A later slot moves into the gap unless its search begins behind the gap.
    for (size_t i = (gap + 1) & mask(); slots_[i].number != kNone; i = (i + 1) & mask()) {
      if (((i - slots_[i].hash) & mask()) < ((i - gap) & mask())) continue;
      slots_[gap] = slots_[i];
      gap = i;
    }
    slots_[gap] = {};
    --size_;
    return true;
  }

  size_t size() const { return size_; }

 private:
  struct Slot {
    uint32_t hash = 0;
    uint32_t number = kNone;
  };

  size_t mask() const { return slots_.size() - 1; }

  void put(const Slot& slot) {
    size_t i = slot.hash & mask();
    while (slots_[i].number != kNone) i = (i + 1) & mask();
    slots_[i] = slot;
  }

  void grow() {
    const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(std::max<size_t>(64, 2 * slots_.size())));
    for (const Slot& slot : old) {
      if (slot.number != kNone) put(slot);
    }
  }

  std::vector<Slot> slots_;  // their number is a power of two
  size_t size_ = 0;
};

}  // namespace hetero::graph
