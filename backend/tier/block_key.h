// BlockKey: the 128-bit name of a block of tokens.
//
// A key is the XXH3 hash of a block's tokens and of the key of the block before it. So equal keys
// mean equal prefixes. The first block's key is chained to the fingerprint of what computed the
// keys and values (kv_spec.h in graph/transfer/). Keys find candidates; whoever has the tokens
// compares them too.
//
// Thread safety: pure functions.

#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "backend/base/checksum.h"

namespace hetero::backend {

struct BlockKey {
  uint64_t high = 0;
  uint64_t low = 0;
  auto operator<=>(const BlockKey&) const = default;
};

// 32 hexadecimal digits.
std::string to_string(const BlockKey& key);

BlockKey chain_key(const BlockKey& before, std::span<const int32_t> tokens);
BlockKey hash_text(std::string_view text);

struct BlockKeyHash {
  size_t operator()(const BlockKey& key) const { return static_cast<size_t>(key.low); }
};

}  // namespace hetero::backend
