// Bytes: a byte vector whose growth is out of line, so that putting a number into it is a few
// instructions.
//
// Thread safety: none.

#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

namespace hetero::ops {

// Eight bytes behind its end may be read.
class Bytes {
 public:
  void clear() { size_ = 0; }
  size_t size() const { return size_; }
  // REQUIRES: size <= size().
  void shrink(size_t size) { size_ = size; }
  const std::byte* data() const { return data_.data(); }
  template <typename T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (size_ + sizeof(T) + 8 > data_.size()) grow(sizeof(T));
    std::memcpy(data_.data() + size_, &value, sizeof(T));
    size_ += sizeof(T);
  }
  void put_bytes(const void* bytes, size_t count) {
    if (size_ + count + 8 > data_.size()) grow(count);
    if (count != 0) std::memcpy(data_.data() + size_, bytes, count);
    size_ += count;
  }

 private:
  void grow(size_t more) { data_.resize((size_ + more) * 2 + 256); }
  std::vector<std::byte> data_ = std::vector<std::byte>(256);
  size_t size_ = 0;
};

}  // namespace hetero::ops
