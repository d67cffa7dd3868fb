#include "qwen3/checkpoint/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace hetero::qwen3 {
namespace {

// In float where transformers has tensors, in double where it has Python's numbers.
std::vector<float> plain(double base, int64_t dim) {
  std::vector<float> inverse(static_cast<size_t>(dim / 2));
  for (size_t i = 0; i < inverse.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    inverse[i] = 1.0F / std::pow(static_cast<float>(base), exponent);
  }
  return inverse;
}

double mscale_of(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

// The dimension that turns `rotations` times over the original context.
double correction_dim(double rotations, const Qwen3Config& config) {
  const auto original = static_cast<double>(config.rope_scaling.original_max_position_embeddings);
  return static_cast<double>(config.head_dim) * std::log(original / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(config.rope_theta));
}

RotaryFrequencies yarn(const Qwen3Config& config) {
  const RopeScaling& rope = config.rope_scaling;
  double low = correction_dim(rope.beta_fast, config);
  double high = correction_dim(rope.beta_slow, config);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(config.head_dim - 1));
  if (low == high) high += 0.001;
  RotaryFrequencies result;
  result.inverse = plain(config.rope_theta, config.head_dim);
  for (size_t i = 0; i < result.inverse.size(); ++i) {
    const auto ramp = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float interpolated = std::clamp(ramp, 0.0F, 1.0F);
    const float extrapolation = result.inverse[i];
    const float interpolation = extrapolation / static_cast<float>(rope.factor);
    result.inverse[i] = interpolation * interpolated + extrapolation * (1 - interpolated);
  }
  if (rope.attention_factor) {
    result.attention_factor = static_cast<float>(*rope.attention_factor);
  } else if (rope.mscale.value_or(0) != 0 && rope.mscale_all_dim.value_or(0) != 0) {
    result.attention_factor =
        static_cast<float>(mscale_of(rope.factor, *rope.mscale) / mscale_of(rope.factor, *rope.mscale_all_dim));
  } else {
    result.attention_factor = static_cast<float>(mscale_of(rope.factor, 1));
  }
  return result;
}

std::vector<float> llama3(const Qwen3Config& config) {
  const RopeScaling& rope = config.rope_scaling;
  const auto context = static_cast<float>(rope.original_max_position_embeddings);
  const auto low = static_cast<float>(rope.low_freq_factor);
  const auto high = static_cast<float>(rope.high_freq_factor);
  const auto factor = static_cast<float>(rope.factor);
  std::vector<float> inverse = plain(config.rope_theta, config.head_dim);
  for (float& frequency : inverse) {
    const float wave = static_cast<float>(2 * std::numbers::pi) / frequency;
    if (wave > context / low) {
      frequency /= factor;
    } else if (wave >= context / high) {
      const float smooth = (context / wave - low) / (high - low);
      frequency = (1 - smooth) * frequency / factor + smooth * frequency;
    }
  }
  return inverse;
}

}  // namespace

bool depends_on_length(const Qwen3Config& config) { return config.rope_scaling.kind == RopeScaling::Kind::kDynamic; }

int64_t context_length(const Qwen3Config& config) {
  using enum RopeScaling::Kind;
  const RopeScaling& rope = config.rope_scaling;
  const int64_t most = config.max_position_embeddings;
  if (rope.kind == kDefault || rope.kind == kLlama3) return most;
  const int64_t scaled = rope.kind == kYarn ? rope.original_max_position_embeddings : most;
  const double length = rope.factor * static_cast<double>(scaled);
  return std::max(most, static_cast<int64_t>(std::min(length, static_cast<double>(int64_t{1} << 40))));
}

RotaryFrequencies rotary_frequencies(const Qwen3Config& config, int64_t length) {
  const RopeScaling& rope = config.rope_scaling;
  RotaryFrequencies result;
  switch (rope.kind) {
    case RopeScaling::Kind::kDefault:
      result.inverse = plain(config.rope_theta, config.head_dim);
      break;
    case RopeScaling::Kind::kLinear:
      result.inverse = plain(config.rope_theta, config.head_dim);
      for (float& frequency : result.inverse) frequency /= static_cast<float>(rope.factor);
      break;
    case RopeScaling::Kind::kDynamic: {
      const auto most = static_cast<double>(config.max_position_embeddings);
      const double ratio = rope.factor * std::max(static_cast<double>(length), most) / most - (rope.factor - 1);
      const auto dim = static_cast<double>(config.head_dim);
      result.inverse = plain(config.rope_theta * std::pow(ratio, dim / (dim - 2)), config.head_dim);
      break;
    }
    case RopeScaling::Kind::kYarn:
      return yarn(config);
    case RopeScaling::Kind::kLlama3:
      result.inverse = llama3(config);
      break;
  }
  return result;
}

}  // namespace hetero::qwen3
