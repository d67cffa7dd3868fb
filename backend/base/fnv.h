// Fnv: the 64-bit hash FNV-1a (G. Fowler, L. Noll, K.-P. Vo).
//
// It is the same in every process, so it names files and checks their contents.
//
// Thread safety: a value.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hetero::backend {

class Fnv {
 public:
  void add(const void* data, size_t bytes) {
    const auto* const from = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < bytes; ++i) value_ = (value_ ^ from[i]) * 0x100000001B3u;
  }
  void add(int64_t number) { add(&number, sizeof(number)); }
  void add(std::string_view text) { add(text.data(), text.size()); }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xCBF29CE484222325u;
};

inline uint64_t fnv(std::string_view text) {
  Fnv hash;
  hash.add(text);
  return hash.value();
}

}  // namespace hetero::backend
