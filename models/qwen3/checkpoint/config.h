// Qwen3Config: what config.json and generation_config.json of a Qwen3 checkpoint say.
//
// It covers dense models (Qwen3ForCausalLM) and mixtures of experts (Qwen3MoeForCausalLM). Fields
// have the names of config.json. Absent ones have the defaults of transformers. read() checks all
// of them once: what it returns is consistent, and later code needs no check of its own.
//
// Thread safety: a value.

#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/base/status.h"
#include "backend/cpu/quantized/checkpoint.h"

namespace hetero::qwen3 {

// How rotary embeddings are stretched beyond the context that the model was trained with.
// `rope_scaling` in older files, `rope_parameters` in newer ones.
struct RopeScaling {
  enum class Kind : uint8_t { kDefault, kLinear, kDynamic, kYarn, kLlama3 };
  Kind kind = Kind::kDefault;
  double factor = 1;
  int64_t original_max_position_embeddings = 0;  // kYarn, kLlama3
  std::optional<double> attention_factor{};      // kYarn; absent: from the factor
  std::optional<double> mscale{};                // kYarn
  std::optional<double> mscale_all_dim{};        // kYarn
  double beta_fast = 32;                         // kYarn
  double beta_slow = 1;                          // kYarn
  bool truncate = true;                          // kYarn: bounds of the ramp are integers
  double low_freq_factor = 1;                    // kLlama3
  double high_freq_factor = 4;                   // kLlama3
};

// What generation_config.json suggests. Absent fields are left to the caller.
struct GenerationDefaults {
  std::optional<bool> do_sample{};
  std::optional<double> temperature{};
  std::optional<int64_t> top_k{};
  std::optional<double> top_p{};
  std::optional<double> min_p{};
  std::optional<double> repetition_penalty{};
};

// Matrices that the checkpoint has in 8 or 4 bits (`quantization_config`).
struct QuantizationConfig {
  // "gptq", "awq"; check_tensors refuses others; empty for plain weights.
  std::string method;
  backend::CheckpointLayout layout = backend::CheckpointLayout::kGptq;
  int64_t bits = 0;
  int64_t group = 0;  // columns that share a scale; 0 for whole rows
};

struct Qwen3Config {
  bool is_moe = false;

  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;  // of dense layers
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 32768;
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  bool attention_bias = false;

  double rope_theta = 10000;
  RopeScaling rope_scaling;

  // One entry for each layer: tokens that a token sees, itself included; 0 means all before it.
  std::vector<int64_t> layer_windows;

  // Mixture of experts. num_experts is 0 without one.
  int64_t num_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t moe_intermediate_size = 0;
  bool norm_topk_prob = false;
  // One entry for each layer: whether its MLP is a mixture of experts.
  std::vector<bool> layer_is_sparse;

  // Short name of the dtype that the file says the weights have ("bf16"); empty if it says nothing.
  std::string dtype;
  QuantizationConfig quantization;

  std::vector<int64_t> eos_token_ids;
  std::optional<int64_t> pad_token_id{};
  GenerationDefaults generation;

  // Reads config.json of the folder, and generation_config.json if there is one; its eos ids
  // replace those of config.json. Errors: kStorage, one sentence that names the file and the field.
  static Result<Qwen3Config> read(const std::filesystem::path& folder);
  // From the texts of the two files. An empty `generation` means that there is none.
  static Result<Qwen3Config> parse(std::string_view config, std::string_view generation = {});

  int64_t query_size() const { return num_attention_heads * head_dim; }
  int64_t key_value_size() const { return num_key_value_heads * head_dim; }
};

}  // namespace hetero::qwen3
