// The checksum of bytes that leave memory: XXH3 with 64 bits (xxHash).
//
// Thread safety: pure functions; a Checksum belongs to one thread.

#pragma once

#include <cstddef>
#include <cstdint>

namespace hetero::backend {

uint64_t checksum(const void* data, size_t bytes);

// The same, of bytes that come in pieces.
class Checksum {
 public:
  Checksum();
  void update(const void* data, size_t bytes);
  uint64_t value() const;

 private:
  alignas(64) std::byte state_[576];
};

}  // namespace hetero::backend
