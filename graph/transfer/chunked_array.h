// ChunkedArray: an array that grows without moving its elements, so references to them stay valid.
//
// Memory is made in chunks of 32,768 elements, on lines of the cache. Elements are not initialized.
//
// Thread safety: that of an array.

#pragma once

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
  explicit ChunkedArray(size_t width = 1) : width_(width) {}

  T* at(size_t i) { return chunks_[i / kChunk].get() + i % kChunk * width_; }
  const T* at(size_t i) const { return chunks_[i / kChunk].get() + i % kChunk * width_; }
  T& operator[](size_t i) { return *at(i); }
  const T& operator[](size_t i) const { return *at(i); }
  // The number of elements there is memory for.
  size_t capacity() const { return chunks_.size() * kChunk; }
  // REQUIRES: i <= capacity().
  void make_room_for(size_t i) {
    if (i < capacity()) return;
    const size_t bytes = kChunk * width_ * sizeof(T);
    chunks_.emplace_back(static_cast<T*>(::operator new(bytes, kAlignment)));
  }

 private:
  static constexpr size_t kChunk = size_t{1} << 15;
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(T* chunk) const { ::operator delete(chunk, kAlignment); }
  };

  size_t width_;
  std::vector<std::unique_ptr<T, Free>> chunks_;
};

}  // namespace hetero::graph
