// KvSpec: what computed keys and values, and how blocks of them are laid out.
//
// Two stores share blocks only if every field is equal: all of them are in the fingerprint, to
// which the keys of blocks are chained.
//
// Thread safety: a value.

#pragma once

#include <cstdint>
#include <string>

#include "backend/base/status.h"
#include "backend/tier/block_geometry.h"
#include "backend/tier/block_key.h"

namespace hetero::graph {

struct KvSpec {
  std::string model;
  std::string revision;            // of the weights
  std::string dtype = "bfloat16";  // of keys and values
  int64_t element_bytes = 2;
  int64_t layers = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t block_tokens = 16;
  // Of the keys of a layer, and of its values: "heads, tokens, size" or "tokens, heads, size".
  std::string layout = "heads, tokens, size";
  int64_t tensor_parallel_rank = 0;
  int64_t tensor_parallel_size = 1;
  std::string adapter;     // LoRA
  std::string name_space;  // of a tenant

  // Errors: kUsage for a size that is not positive, or blocks of more than 2^40 bytes.
  Status check() const;
  backend::BlockGeometry geometry() const;
  // All fields, one a line: what is hashed, and shown to people.
  std::string describe() const;
  backend::BlockKey fingerprint() const { return backend::hash_text(describe()); }
};

}  // namespace hetero::graph
