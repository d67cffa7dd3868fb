// Configurations: what is read from those that are right, and the sentences for those that are not.

#include "qwen3/checkpoint/config.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "qwen3/checkpoint/rope.h"
#include "tests/catch/catch.h"
#include "tests/models/qwen3/small_files.h"

namespace hetero::qwen3 {
namespace {

using Json = nlohmann::json;

// The sentence with which the changed configuration is refused; empty if it is read.
std::string refusal(Json config, const std::function<void(Json&)>& change) {
  change(config);
  const auto result = Qwen3Config::parse(config.dump());
  return result.ok() ? "" : result.status().message();
}

Qwen3Config read(
    Json config, const std::function<void(Json&)>& change = [](Json&) {}) {
  change(config);
  auto result = Qwen3Config::parse(config.dump());
  INFO((result.status().ok() ? "" : result.status().message()));
  REQUIRE(result.ok());
  return std::move(result.value());
}

}  // namespace

TEST_CASE("a dense configuration is read with the defaults of transformers") {
  const Qwen3Config config = read(small_config());
  CHECK(!config.is_moe);
  CHECK(config.vocab_size == 32);
  CHECK(config.query_size() == 24);
  CHECK(config.key_value_size() == 12);
  CHECK(config.rms_norm_eps == 1e-6);
  CHECK(config.rope_theta == 1e6);
  CHECK(config.dtype == "bf16");
  CHECK(config.eos_token_ids == std::vector<int64_t>{3});
  CHECK(config.layer_windows == std::vector<int64_t>{0, 0});
  CHECK(config.layer_is_sparse == std::vector<bool>{false, false});
  CHECK(read(small_config(), [](Json& json) { json.erase("head_dim"); }).head_dim == 128);
  CHECK(read(small_config(), [](Json& json) { json.erase("architectures"); }).is_moe == false);
}

TEST_CASE("a mixture of experts has them where the step and the list of dense layers say") {
  CHECK(read(small_moe_config()).layer_is_sparse == std::vector<bool>{false, true});
  CHECK(read(small_moe_config(), [](Json& json) { json["decoder_sparse_step"] = 1; }).layer_is_sparse ==
        std::vector<bool>{true, true});
  CHECK(read(small_moe_config(), [](Json& json) {
          json["decoder_sparse_step"] = 1;
          json["mlp_only_layers"] = {0};
        }).layer_is_sparse == std::vector<bool>{false, true});
  CHECK(read(small_moe_config(), [](Json& json) { json.erase("head_dim"); }).head_dim == 2);
  CHECK(read(small_moe_config(), [](Json& json) {
          json["num_local_experts"] = 5;
          json.erase("num_experts");
        }).num_experts == 5);
}

TEST_CASE("windows come from max_window_layers or from layer_types") {
  const auto windows = [](const std::function<void(Json&)>& change) {
    return read(small_config(),
                [&](Json& json) {
                  json["use_sliding_window"] = true;
                  json["sliding_window"] = 16;
                  change(json);
                })
        .layer_windows;
  };
  using Windows = std::vector<int64_t>;
  CHECK(windows([](Json&) {}) == Windows{0, 0});  // the first 28 layers see all
  CHECK(windows([](Json& json) { json["max_window_layers"] = 1; }) == Windows{0, 16});
  CHECK(windows([](Json& json) { json["layer_types"] = {"sliding_attention", "full_attention"}; }) == Windows{16, 0});
  CHECK(windows([](Json& json) {
          json["max_window_layers"] = 0;
          json["use_sliding_window"] = false;
        }) == Windows{0, 0});
  CHECK(windows([](Json& json) {
          json["max_window_layers"] = 0;
          json["sliding_window"] = nullptr;
        }) == Windows{0, 0});
  CHECK(windows([](Json& json) {
          json["max_window_layers"] = 0;
          json.erase("sliding_window");
        }) == Windows{4096, 4096});
}

TEST_CASE("rope scaling is read in both spellings") {
  const auto scaling = [](const char* key, const Json& value) {
    return read(small_config(), [&](Json& json) { json[key] = value; }).rope_scaling;
  };
  using Kind = RopeScaling::Kind;
  CHECK(scaling("rope_scaling", nullptr).kind == Kind::kDefault);
  CHECK(scaling("rope_scaling", {{"type", "linear"}, {"factor", 2}}).kind == Kind::kLinear);
  const RopeScaling yarn = scaling(
      "rope_parameters",
      {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}, {"rope_theta", 500.0}});
  CHECK(yarn.kind == Kind::kYarn);
  CHECK(yarn.original_max_position_embeddings == 32);
  CHECK(scaling("rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}).original_max_position_embeddings == 128);
  CHECK(read(small_config(), [](Json& json) {
          json.erase("rope_theta");
          json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 77.0}};
        }).rope_theta == 77);
}

TEST_CASE("dynamic frequencies depend on the length beyond the context only") {
  const Qwen3Config config = read(small_config(), [](Json& json) {
    json["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.0}};
  });
  CHECK(depends_on_length(config));
  CHECK(rotary_frequencies(config, 1).inverse == rotary_frequencies(config, 128).inverse);
  CHECK(rotary_frequencies(config, 129).inverse != rotary_frequencies(config, 128).inverse);
}

TEST_CASE("generation_config.json replaces the eos ids and suggests sampling") {
  const std::string generation =
      R"({"eos_token_id": [3, 5, 3], "temperature": 0.6, "top_k": 20, "top_p": 0.95, "do_sample": true})";
  const auto config = Qwen3Config::parse(small_config().dump(), generation);
  REQUIRE(config.ok());
  CHECK(config.value().eos_token_ids == std::vector<int64_t>{3, 5});
  CHECK(config.value().generation.temperature == 0.6);
  CHECK(config.value().generation.top_k == 20);
  CHECK(config.value().generation.do_sample == true);
  CHECK(!config.value().generation.min_p.has_value());
  CHECK(!Qwen3Config::parse(small_config().dump(), R"({"temperature": -1})").ok());
  CHECK(!Qwen3Config::parse(small_config().dump(), R"({"eos_token_id": 32})").ok());
  CHECK(!Qwen3Config::parse(small_config().dump(), "[]").ok());
}

TEST_CASE("what does not fit is refused in a sentence that names the field") {
  struct Case {
    const char* key;
    Json value;
    const char* named;
  };
  const std::vector<Case> cases = {
      {"architectures", {"LlamaForCausalLM"}, "LlamaForCausalLM"},
      {"architectures", "Qwen3ForCausalLM", "architectures"},
      {"hidden_act", "gelu", "hidden_act"},
      {"hidden_size", 0, "hidden_size"},
      {"hidden_size", -8, "hidden_size"},
      {"hidden_size", 8.5, "hidden_size"},
      {"hidden_size", "8", "hidden_size"},
      {"hidden_size", nullptr, "hidden_size is missing"},
      {"hidden_size", uint64_t{1} << 63, "hidden_size"},
      {"vocab_size", int64_t{1} << 40, "vocab_size"},
      {"num_hidden_layers", 100000, "num_hidden_layers"},
      {"num_key_value_heads", 3, "no multiple"},
      {"head_dim", 5, "even"},
      {"rms_norm_eps", "x", "rms_norm_eps"},
      {"rms_norm_eps", 2, "rms_norm_eps"},
      {"tie_word_embeddings", 1, "tie_word_embeddings"},
      {"rope_theta", 0, "rope_theta"},
      {"rope_scaling", {{"type", "longrope"}, {"factor", 2}}, "longrope"},
      {"rope_scaling", {{"type", "linear"}}, "factor is missing"},
      {"rope_scaling", {{"type", "linear"}, {"factor", 0.5}}, "factor"},
      {"rope_scaling", {{"type", 3}}, "type"},
      {"rope_scaling", {1}, "rope_scaling"},
      {"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}, "type of layer"},
      {"rope_scaling",
       {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 1}},
       "high_freq_factor"},
      {"rope_scaling", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}, "partial_rotary_factor"},
      {"layer_types", {"full_attention"}, "layer_types"},
      {"layer_types", {"full_attention", "linear_attention"}, "layer_types[1]"},
      {"layer_types", {"full_attention", "sliding_attention"}, "no window"},
      {"torch_dtype", "int8", "int8"},
      {"quantization_config", {{"bits", 4}}, "quant_method"},
      {"quantization_config", {{"quant_method", "gptq"}, {"bits", 4}}, "group_size"},
      {"quantization_config", {{"quant_method", "gptq"}, {"bits", 3}, {"group_size", 32}}, "3 bits"},
      {"quantization_config", {{"quant_method", "awq"}, {"bits", 8}, {"group_size", 32}}, "8 bits"},
      {"quantization_config", {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 48}}, "multiple of 32"},
      {"quantization_config",
       {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 32}, {"version", "gemv"}},
       "\"gemv\""},
      {"eos_token_id", 32, "eos_token_id"},
      {"eos_token_id", {1, -1}, "eos_token_id"},
      {"eos_token_id", "x", "eos_token_id"},
  };
  for (const Case& bad : cases) {
    const std::string sentence = refusal(small_config(), [&](Json& json) { json[bad.key] = bad.value; });
    INFO(bad.key << " = " << bad.value.dump() << ": " << sentence);
    CHECK(sentence.find(bad.named) != std::string::npos);
    CHECK(sentence.starts_with("config.json"));
  }
  for (const auto& [key, value] : std::vector<std::pair<const char*, Json>>{{"num_experts_per_tok", 5},
                                                                            {"num_experts", 65537},
                                                                            {"mlp_only_layers", {2}},
                                                                            {"mlp_only_layers", 1},
                                                                            {"decoder_sparse_step", 0}}) {
    INFO(key);
    CHECK(!refusal(small_moe_config(), [&, key = key, value = value](Json& json) { json[key] = value; }).empty());
  }
}

TEST_CASE("texts that are no configuration are refused") {
  for (const char* text : {"", "{", "[]", "null", "{\"hidden_size\": 1e999}", "\xFF", "{} {}"}) {
    INFO(text);
    CHECK(!Qwen3Config::parse(text).ok());
  }
  const auto twice = Qwen3Config::parse(R"({"hidden_size": 8, "hidden_size": 16})");
  REQUIRE(!twice.ok());
  CHECK(twice.status().message().find("twice") != std::string::npos);
  const auto deep = Qwen3Config::parse(std::string(1000000, '['));
  CHECK(!deep.ok());
}

}  // namespace hetero::qwen3
