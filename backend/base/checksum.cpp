#include "backend/base/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <new>

namespace hetero::backend {
namespace {

static_assert(sizeof(XXH3_state_t) <= 576 && alignof(XXH3_state_t) <= 64);

}  // namespace

uint64_t checksum(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

Checksum::Checksum() {
  auto* const state = new (state_) XXH3_state_t;
  XXH3_INITSTATE(state);
  XXH3_64bits_reset(state);
}

void Checksum::update(const void* data, size_t bytes) {
  XXH3_64bits_update(std::launder(reinterpret_cast<XXH3_state_t*>(state_)), data, bytes);
}

uint64_t Checksum::value() const {
  return XXH3_64bits_digest(std::launder(reinterpret_cast<const XXH3_state_t*>(state_)));
}

}  // namespace hetero::backend
