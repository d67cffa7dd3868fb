// The forward pass of Qwen3 as one program, for every step of generation.
//
// A step takes the new tokens of some sequences, one after another: all tokens of a prompt, a part
// of them, or one token of each sequence that is being generated. So prefill, chunked prefill and
// decoding are one program with other sizes, share weights and caches, and may be in one step.
//
// Keys and values are in pages of the caller (graph/kv/kv_cache.h), an input that the program
// writes in place. The program is planned for each set of sizes that it meets; GraphExecutor keeps
// the latest.
//
//   auto model = build_forward(config, weights, options);
//   auto executor = GraphExecutor::Init(model.value(), {...});
//
// Thread safety: as ComputeGraph.
// Ownership: the model holds the weights, which are used where they lie.

#pragma once

#include <cstdint>
#include <memory>

#include "backend/base/status.h"
#include "graph/kv/page_layout.h"
#include "graph/serve/model.h"
#include "qwen3/checkpoint/config.h"
#include "qwen3/checkpoint/weights.h"

namespace hetero::qwen3 {

// Inputs by name. T new tokens of S sequences, in their order; logits are wanted for R of the
// tokens.
//   tokens     i64[T]       ids
//   positions  i64[T]       of each in its sequence
//   slots      i64[T]       where its keys and values go: page * page_tokens + place
//   starts     i32[S+1]     the first of each sequence's tokens, and T
//   lengths    i32[S]       of each sequence with its new tokens
//   table      i32[S, W]    pages of each sequence, in their order
//   rows       i64[R]       of which tokens the logits are wanted
//   pages      [P, 2 * layers, kv_heads, page_tokens, head_dim]   keys and values of all layers; in
//              int8 as bytes, i8[P, bytes of a page], with scales behind them (page_layout.h)
//   inverse    f32[T, head_dim / 2]   rotary frequencies, if they depend on the length
// Output:
//   logits     f32[R, vocab]
struct ForwardOptions {
  graph::PageLayout pages;
  int64_t page_count = 1;         // P
  int64_t most_tokens = 8192;     // of a step
  int64_t most_sequences = 1024;  // of a step
  // Bytes of an accelerator's memory; 0 for all that it has.
  uint64_t accelerator_bytes = 0;
};

// The dtype in which the model computes: that of its weights that are not quantized, by its short
// name. Errors: kStorage if there are several.
Result<std::string> compute_dtype(const Checkpoint& checkpoint);

// Of elements of pages, by its short name.
const char* page_dtype(backend::CacheElement element);

// Errors: those of ComputeGraph.
Result<std::shared_ptr<Model>> build_forward(const Qwen3Config& config, std::shared_ptr<const Weights> weights,
                                             const ForwardOptions& options);

}  // namespace hetero::qwen3
