// ChunkedArray: an array that grows without moving its elements, so references to them stay valid.
//
// Memory is made in chunks of 2 MiB, or of one element if that is larger, on lines of the cache.
// Elements are not initialized.
//
// Thread safety: that of an array.

#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

namespace hetero::graph {

template <typename T>
class ChunkedArray {
  static_assert(std::is_trivially_destructible_v<T> && std::is_trivially_copyable_v<T>);

 public:
  // An element is `width` neighbouring values.
  explicit ChunkedArray(size_t width = 1)
      : width_(width), shift_(std::bit_width(std::max<size_t>(1, kChunkBytes / (width * sizeof(T)))) - 1) {}

  T* at(size_t i) { return chunks_[i >> shift_].get() + (i & mask()) * width_; }
  const T* at(size_t i) const { return chunks_[i >> shift_].get() + (i & mask()) * width_; }
  T& operator[](size_t i) { return *at(i); }
  const T& operator[](size_t i) const { return *at(i); }
  // The number of elements there is memory for.
  size_t capacity() const { return chunks_.size() << shift_; }
  // REQUIRES: i <= capacity().
  void make_room_for(size_t i) {
    if (i < capacity()) return;
    const size_t bytes = (width_ * sizeof(T)) << shift_;
    chunks_.emplace_back(static_cast<T*>(::operator new(bytes, kAlignment)));
  }

 private:
  static constexpr size_t kChunkBytes = size_t{2} << 20;
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(T* chunk) const { ::operator delete(chunk, kAlignment); }
  };

  size_t mask() const { return (size_t{1} << shift_) - 1; }

  size_t width_;
  int shift_;  // a chunk has 2^shift_ elements
  std::vector<std::unique_ptr<T, Free>> chunks_;
};

}  // namespace hetero::graph
