#include "qwen3/checkpoint/fingerprint.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <span>

#include "backend/tier/block_key.h"

namespace hetero::qwen3 {
namespace {

// Of each tensor: so many parts, spread evenly, of so many bytes.
constexpr size_t kParts = 4;
constexpr size_t kPartBytes = 1024;

class Description {
 public:
  void add(const std::string& name, const std::string& value) {
    text_.append(name).append(" ").append(value).append("\n");
  }
  void add(const std::string& name, int64_t value) { add(name, std::to_string(value)); }
  void add(const std::string& name, double value) {
    char digits[64];
    const std::to_chars_result end = std::to_chars(std::begin(digits), std::end(digits), value);
    add(name, std::string(digits, end.ptr));
  }
  void add(const std::string& name, std::optional<double> value) {
    if (value.has_value()) add(name, *value);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void describe(const RopeScaling& rope, Description& description) {
  description.add("rope_kind", static_cast<int64_t>(rope.kind));
  description.add("rope_factor", rope.factor);
  description.add("rope_original", rope.original_max_position_embeddings);
  description.add("rope_attention_factor", rope.attention_factor);
  description.add("rope_mscale", rope.mscale);
  description.add("rope_mscale_all_dim", rope.mscale_all_dim);
  description.add("rope_beta_fast", rope.beta_fast);
  description.add("rope_beta_slow", rope.beta_slow);
  description.add("rope_truncate", int64_t{rope.truncate});
  description.add("rope_low_freq_factor", rope.low_freq_factor);
  description.add("rope_high_freq_factor", rope.high_freq_factor);
}

void describe(const Qwen3Config& config, Description& description) {
  description.add("is_moe", int64_t{config.is_moe});
  description.add("hidden_size", config.hidden_size);
  description.add("num_attention_heads", config.num_attention_heads);
  description.add("num_key_value_heads", config.num_key_value_heads);
  description.add("head_dim", config.head_dim);
  description.add("max_position_embeddings", config.max_position_embeddings);
  description.add("rms_norm_eps", config.rms_norm_eps);
  description.add("rope_theta", config.rope_theta);
  describe(config.rope_scaling, description);
  for (const int64_t window : config.layer_windows) description.add("window", window);
  description.add("num_experts_per_tok", config.num_experts_per_tok);
  description.add("norm_topk_prob", int64_t{config.norm_topk_prob});
  for (const bool is_sparse : config.layer_is_sparse) description.add("is_sparse", int64_t{is_sparse});
  description.add("quantization", config.quantization.method);
  description.add("quantization_bits", config.quantization.bits);
  description.add("quantization_group", config.quantization.group);
}

void describe(const std::string& name, const SafetensorsFile::Tensor& tensor, Description& description) {
  description.add(name, tensor.dtype);
  for (const int64_t size : tensor.sizes) description.add("size", size);
  const std::span<const std::byte> data = tensor.data;
  const size_t bytes = std::min(kPartBytes, data.size());
  for (size_t part = 0; part < kParts; ++part) {
    const size_t first = (data.size() - bytes) / (kParts - 1) * part;
    const uint64_t sum = backend::checksum(data.data() + first, bytes);
    description.add("bytes", std::to_string(sum));
  }
}

}  // namespace

std::string fingerprint_of(const Qwen3Config& config, const Checkpoint& checkpoint) {
  Description description;
  describe(config, description);
  for (const std::string& name : checkpoint.names()) describe(name, *checkpoint.find(name), description);
  return to_string(backend::hash_text(description.text()));
}

}  // namespace hetero::qwen3
