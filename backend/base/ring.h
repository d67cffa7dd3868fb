// Ring: a first-in, first-out queue that keeps its memory, so steady work does not allocate.
//
// Thread safety: one thread at a time.

#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace hetero::backend {

template <typename Entry>
class Ring {
 public:
  bool empty() const { return count_ == 0; }
  void push_back(Entry entry) {
    if (count_ == entries_.size()) grow();
    entries_[(first_ + count_++) % entries_.size()] = std::move(entry);
  }
  // REQUIRES: not empty.
  Entry pop_front() {
    Entry entry = std::move(entries_[first_]);
    first_ = (first_ + 1) % entries_.size();
    --count_;
    return entry;
  }

 private:
  void grow() {
    std::vector<Entry> larger(std::max<size_t>(16, 2 * count_));
    for (size_t i = 0; i < count_; ++i) larger[i] = std::move(entries_[(first_ + i) % count_]);
    entries_.swap(larger);
    first_ = 0;
  }

  std::vector<Entry> entries_;
  size_t first_ = 0;
  size_t count_ = 0;
};

}  // namespace hetero::backend
