// Rotary frequencies of a config, with its scaling: what transformers' modeling_rope_utils
// computes.
//
// A pair of elements (i, i + head_dim / 2) of a query or key at position p is rotated by the angle
// p * inverse[i]; cosines and sines are then multiplied by attention_factor.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>
#include <vector>

#include "qwen3/checkpoint/config.h"

namespace hetero::qwen3 {

struct RotaryFrequencies {
  std::vector<float> inverse;  // head_dim / 2 entries
  float attention_factor = 1;
};

// `length` is that of the whole sequence, which only dynamic scaling asks for; its frequencies
// change beyond max_position_embeddings.
RotaryFrequencies rotary_frequencies(const Qwen3Config& config, int64_t length);

// Whether rotary_frequencies() depends on `length`.
bool depends_on_length(const Qwen3Config& config);

// How many tokens a sequence may have: max_position_embeddings, and `factor` times as many where
// positions are scaled for that. Source: vLLM's max_model_len.
int64_t context_length(const Qwen3Config& config);

}  // namespace hetero::qwen3
