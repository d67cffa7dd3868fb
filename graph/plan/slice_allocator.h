// SliceAllocator: hands out offsets of an arena that exists only in the plan.
//
// It is a two-level segregated fit. Free slices are in lists by size class (a power of two in eight
// steps). Bitmaps find the first class that fits, and neighbours merge when freed. Both calls take
// constant time. The arena grows at its end if nothing fits; the program must allocate its largest
// size.
// Source: M. Masmano et al., "TLSF", ECRTS 2004.
//
// With several queues a free slice still carries a Clock: the instructions that touched it last. An
// instruction after these may reuse it at once. Any other would have to wait for them. A bounded
// arena may require that; free neighbours then stay apart until one of them is taken. Slices whose
// users finish first are taken first, so slots that are filled in turn are used in turn, whatever
// their sizes. That takes time in proportion to the number of slices.
//
// Thread safety: none.

#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "graph/ir/plan.h"

namespace hetero::graph {

// Per queue, a position + 1 in the program; 0 for none.
using Clock = std::array<uint32_t, kMaxQueues>;

inline bool covers(const Clock& known, const Clock& required) {
  for (int q = 0; q < kMaxQueues; ++q) {
    if (required[q] > known[q]) return false;
  }
  return true;
}
inline void merge(Clock& clock, const Clock& other) {
  for (int q = 0; q < kMaxQueues; ++q) clock[q] = clock[q] > other[q] ? clock[q] : other[q];
}

class SliceAllocator {
 public:
  static constexpr uint64_t kAlignment = 64;
  static uint64_t round_up(uint64_t bytes) {
    return bytes == 0 ? kAlignment : (bytes + kAlignment - 1) & ~(kAlignment - 1);
  }

  // Forgets everything. The arena grows beyond `soft_limit` only where waiting does not help
  // either.
  void reset(bool with_clocks, uint64_t soft_limit);

  // Allocates a slice of at least `bytes`. `known` has run before its first use. If other
  // instructions still use the slice, they are merged into `required`. Both may be null without
  // clocks.
  uint32_t allocate(uint64_t bytes, const Clock* known, Clock* required);
  // `users` are the instructions that touched the slice last; null without clocks.
  void free(uint32_t slice, const Clock* users);

  uint64_t offset(uint32_t slice) const { return slices_[slice].offset; }
  uint64_t size(uint32_t slice) const { return slices_[slice].size; }
  // The bytes that the arena must have.
  uint64_t high_water() const { return high_water_; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr int kSteps = 8;  // size classes in a power of two
  static constexpr int kPowers = 60;

  struct Slice {
    uint64_t offset;
    uint64_t size;
    uint32_t before, after;   // neighbours in the arena
    uint32_t previous, next;  // in the list of its size class, while free
    bool is_free;
  };

  static int class_of(uint64_t size);
  uint32_t find(uint64_t size, const Clock* known) const;
  uint32_t allocate_bounded(uint64_t size, const Clock& known, Clock& required);
  // REQUIRES: the slice and its neighbour behind it are in no list.
  void absorb_next(uint32_t slice);
  uint32_t find_in_class(int size_class, uint64_t size, const Clock* known) const;
  uint32_t take(uint32_t slice, uint64_t size);
  uint32_t grow(uint64_t size, const Clock* known);
  uint32_t new_slice(const Slice& slice);
  void recycle(uint32_t slice);
  void link(uint32_t slice);
  void unlink(uint32_t slice);

  std::vector<Slice> slices_;
  std::vector<Clock> clocks_;     // per slice, with clocks
  std::vector<uint32_t> unused_;  // entries of slices_ without a meaning
  std::array<uint32_t, kPowers * kSteps> heads_{};
  std::array<uint8_t, kPowers> steps_{};  // bit s: class (power, s) has slices
  uint64_t powers_ = 0;                   // bit p: steps_[p] != 0
  uint32_t last_ = kNone;
  uint64_t end_ = 0;
  uint64_t high_water_ = 0;
  uint64_t soft_limit_ = 0;
  bool with_clocks_ = false;
};

}  // namespace hetero::graph
