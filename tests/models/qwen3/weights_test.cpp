// Layers in 8 and 4 bits: quantized while loading, and read from GPTQ and AWQ checkpoints.

#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "qwen3/checkpoint/checkpoint.h"
#include "qwen3/checkpoint/config.h"
#include "qwen3/checkpoint/weights.h"
#include "tests/catch/catch.h"
#include "tests/models/qwen3/small_files.h"

namespace hetero::qwen3 {
namespace {

using Json = nlohmann::json;
using Tensors = std::map<std::string, FileTensor>;

// Products have whole words of packed numbers.
Json packable(Json config) {
  config["hidden_size"] = 32;
  config["intermediate_size"] = 64;
  config["head_dim"] = 8;
  if (config.contains("moe_intermediate_size")) config["moe_intermediate_size"] = 32;
  return config;
}

float value_of(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// bf16 numbers around 1, with either sign.
Tensors tensors_of(const Qwen3Config& config) {
  Tensors tensors;
  uint32_t state = 1;
  for (const ExpectedTensor& expected : expected_tensors(config)) {
    int64_t count = 1;
    for (const int64_t size : expected.sizes) count *= size;
    std::string data;
    for (int64_t i = 0; i < count; ++i) {
      state = state * 1664525u + 1013904223u;
      const auto number = static_cast<uint16_t>(0x3f80 + (state >> 26) + (state & 0x8000));
      data.append(reinterpret_cast<const char*>(&number), 2);
    }
    tensors[expected.name] = {"BF16", expected.sizes, data};
  }
  return tensors;
}

Result<std::shared_ptr<const Weights>> weights_of(const TemporaryFolder& folder, const Tensors& tensors,
                                                  const Qwen3Config& config, const WeightOptions& options = {}) {
  folder.write("model.safetensors", safetensors(tensors));
  auto checkpoint = Checkpoint::open(folder.path());
  REQUIRE(checkpoint.ok());
  return Weights::make(config, std::shared_ptr<const Checkpoint>(std::move(checkpoint.value())), options);
}

std::vector<float> numbers_of(const QuantizedLayer& layer, backend::Element scales) {
  std::vector<float> numbers(static_cast<size_t>(layer.shape.n * layer.shape.k));
  backend::dequantize_weight({.shape = layer.shape,
                              .packed = static_cast<const uint8_t*>(layer.packed.data),
                              .scale_element = scales,
                              .scales = layer.scales.data,
                              .zeros = static_cast<const uint8_t*>(layer.zeros.data)},
                             backend::Element::kFloat32, numbers.data());
  return numbers;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("linear layers, experts and a tied head are quantized, and nothing else is") {
  for (Json json : {packable(small_config()), packable(small_moe_config())}) {
    json["tie_word_embeddings"] = true;
    const Qwen3Config config = Qwen3Config::parse(json.dump()).value();
    Tensors tensors = tensors_of(config);
    tensors.erase("lm_head.weight");
    for (const WeightOptions& options : {WeightOptions{.bits = 8}, WeightOptions{.bits = 4, .symmetric = false},
                                         WeightOptions{.bits = 4, .group = 0}}) {
      const TemporaryFolder folder;
      double last = -1;
      WeightOptions watched = options;
      watched.progress = [&](double share) {
        CHECK((share >= last && share < 1));
        last = share;
      };
      const auto weights = weights_of(folder, tensors, config, watched);
      REQUIRE(weights.ok());
      CHECK(last > 0.5);
      size_t count = 0;
      for (const ExpectedTensor& tensor : expected_tensors(config)) {
        const QuantizedLayer* layer =
            weights.value()->quantized(tensor.name.substr(0, tensor.name.size() - std::strlen(".weight")));
        CHECK((layer != nullptr) == tensor.is_linear);
        if (layer == nullptr) continue;
        ++count;
        CHECK(reinterpret_cast<uintptr_t>(layer->packed.data) % 64 == 0);
        CHECK((layer->zeros.data == nullptr) == options.symmetric);
        const std::string& data =
            tensors[tensor.name == "lm_head.weight" ? "model.embed_tokens.weight" : tensor.name].data;
        const std::vector<float> numbers = numbers_of(*layer, backend::Element::kBfloat16);
        // A step is the range, 2 to 4, in 2^bits parts.
        const float step = 4.2F / static_cast<float>(1 << options.bits);
        for (size_t i = 0; i < numbers.size(); ++i) {
          uint16_t bits = 0;
          std::memcpy(&bits, data.data() + 2 * i, 2);
          REQUIRE(std::fabs(numbers[i] - value_of(bits)) <= 0.51F * step);
        }
      }
      CHECK(count > 14);
    }
  }
}

TEST_CASE("options and weights that cannot be quantized are one sentence") {
  const Qwen3Config config = Qwen3Config::parse(packable(small_config()).dump()).value();
  Tensors tensors = tensors_of(config);
  const TemporaryFolder folder;
  const auto refusal = [&](const WeightOptions& options) {
    const auto weights = weights_of(folder, tensors, config, options);
    return weights.ok() ? "" : weights.status().message();
  };
  CHECK(refusal({}).empty());
  CHECK(contains(refusal({.bits = 3}), "8 or 4 bits, not to 3"));
  CHECK(contains(refusal({.bits = 4, .group = 31}), "multiple of 32, not 31"));
  CHECK(contains(refusal({.bits = 4, .group = -2}), "not -2"));
  std::string& data = tensors["model.layers.1.mlp.up_proj.weight"].data;
  data[8] = static_cast<char>(0x80);
  data[9] = 0x7f;  // an infinity
  CHECK(contains(refusal({.bits = 8}), "\"model.layers.1.mlp.up_proj.weight\" has values that are not finite"));
}

TEST_CASE("layers of GPTQ and AWQ have the numbers of the checkpoint, and what does not fit is named") {
  for (const bool awq : {false, true}) {
    Json json = packable(small_config());
    json["quantization_config"] = {{"quant_method", awq ? "awq" : "gptq"}, {"bits", 4}, {"group_size", 32}};
    const Qwen3Config config = Qwen3Config::parse(json.dump()).value();
    Tensors tensors = tensors_of(config);
    const std::string layer = "model.layers.0.mlp.down_proj";  // [32, 64]
    tensors.erase(layer + ".weight");
    const auto words = [](size_t count, uint32_t word) {
      std::string text;
      for (size_t i = 0; i < count; ++i) text.append(reinterpret_cast<const char*>(&word), 4);
      return text;
    };
    std::string ones;
    for (int i = 0; i < 64; ++i) ones.append("\x00\x3c", 2);  // 1 in float16
    // All numbers are 5; zeros are 3, which GPTQ stores as 2.
    const std::vector<int64_t> sizes = awq ? std::vector<int64_t>{64, 4} : std::vector<int64_t>{8, 32};
    tensors[layer + ".qweight"] = {"I32", sizes, words(256, 0x55555555)};
    tensors[layer + ".qzeros"] = {"I32", {2, 4}, words(8, awq ? 0x33333333 : 0x22222222)};
    tensors[layer + ".scales"] = {"F16", {2, 32}, ones};
    const TemporaryFolder folder;
    const auto weights = weights_of(folder, tensors, config);
    REQUIRE(weights.ok());
    REQUIRE(weights.value()->quantized(layer) != nullptr);
    CHECK(weights.value()->quantized("model.layers.1.mlp.down_proj") == nullptr);
    for (const float number : numbers_of(*weights.value()->quantized(layer), backend::Element::kFloat16)) {
      REQUIRE(number == 2);
    }
    const auto refusal = [&](const Tensors& other, const WeightOptions& options = {}) {
      const auto made = weights_of(folder, other, config, options);
      return made.ok() ? "" : made.status().message();
    };
    CHECK(contains(refusal(tensors, {.bits = 4}), "quantized already"));
    Tensors other = tensors;
    other.erase(layer + ".qzeros");
    CHECK(contains(refusal(other), "lacks the tensor \"" + layer + ".qzeros\""));
    other = tensors;
    other[layer + ".scales"] = {"F16", {4, 16}, ones};
    CHECK(contains(refusal(other), ".scales\" has the shape"));
    other[layer + ".scales"] = {"I16", {2, 32}, ones};
    CHECK(contains(refusal(other), "scales must be f16 or bf16"));
    if (awq) continue;
    other = tensors;
    other[layer + ".g_idx"] = {"I32", {64}, words(64, 7)};
    CHECK(contains(refusal(other), "in group 7, but there are 2 groups"));
  }
}

}  // namespace hetero::qwen3
