#include "backend/tier/block_key.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdio>

namespace hetero::backend {

std::string to_string(const BlockKey& key) {
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(key.high),
                static_cast<unsigned long long>(key.low));
  return text;
}

BlockKey chain_key(const BlockKey& before, std::span<const int32_t> tokens) {
  // The key before goes in as the seed and as the last of the input, so that all its bits count.
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_128bits_reset_withSeed(&state, before.low);
  XXH3_128bits_update(&state, tokens.data(), tokens.size_bytes());
  XXH3_128bits_update(&state, &before, sizeof(before));
  const XXH128_hash_t hash = XXH3_128bits_digest(&state);
  return {hash.high64, hash.low64};
}

BlockKey hash_text(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {hash.high64, hash.low64};
}

}  // namespace hetero::backend
