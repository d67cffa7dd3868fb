#include "qwen3/checkpoint/config.h"

#include <algorithm>
#include <array>
#include <utility>

#include "qwen3/checkpoint/json.h"

namespace hetero::qwen3 {
namespace {

constexpr uint64_t kMostBytes = uint64_t{16} << 20;  // of a config file

// Bounds that no published model comes near. Products of any three of them fit into 63 bits, so the
// sizes of weights cannot overflow.
constexpr int64_t kMostVocabulary = int64_t{1} << 24;
constexpr int64_t kMostHidden = int64_t{1} << 20;
constexpr int64_t kMostLayers = 4096;
constexpr int64_t kMostHeads = 4096;
constexpr int64_t kMostHeadDim = 4096;
constexpr int64_t kMostExperts = 65536;
constexpr int64_t kMostExpertsOfModel = int64_t{1} << 18;  // each has three tensors with names
constexpr int64_t kMostPositions = int64_t{1} << 32;

void read_architecture(JsonFields& fields, Qwen3Config& config) {
  std::string name;
  const Json& list = fields.at("architectures");
  if (list.is_array() && list.size() == 1 && list[0].is_string()) {
    name = list[0].get<std::string>();
  } else if (!list.is_null()) {
    fields.fail("architectures must be a list of one name");
  } else {
    std::string type;
    fields.require("model_type").read("model_type", type);
    name = type == "qwen3" ? "Qwen3ForCausalLM" : type == "qwen3_moe" ? "Qwen3MoeForCausalLM" : type;
  }
  if (name != "Qwen3ForCausalLM" && name != "Qwen3MoeForCausalLM") {
    fields.fail("the architecture " + in_quotes(name) + " is neither Qwen3ForCausalLM nor Qwen3MoeForCausalLM");
  }
  config.is_moe = name == "Qwen3MoeForCausalLM";
  std::string activation = "silu";
  fields.read("hidden_act", activation);
  if (activation != "silu") fields.fail("hidden_act " + in_quotes(activation) + " is not supported, only \"silu\"");
}

void read_sizes(JsonFields& fields, Qwen3Config& config) {
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    fields.require(key);
  }
  fields.read("vocab_size", config.vocab_size, 1, kMostVocabulary)
      .read("hidden_size", config.hidden_size, 1, kMostHidden)
      .read("intermediate_size", config.intermediate_size, 1, kMostHidden)
      .read("num_hidden_layers", config.num_hidden_layers, 1, kMostLayers)
      .read("num_attention_heads", config.num_attention_heads, 1, kMostHeads);
  if (!fields.status().ok()) return;
  config.num_key_value_heads = config.is_moe ? 4 : config.num_attention_heads;
  config.head_dim = config.is_moe ? config.hidden_size / config.num_attention_heads : 128;
  fields.read("num_key_value_heads", config.num_key_value_heads, 1, kMostHeads)
      .read("head_dim", config.head_dim, 1, kMostHeadDim)
      .read("max_position_embeddings", config.max_position_embeddings, 1, kMostPositions)
      .read("rms_norm_eps", config.rms_norm_eps, 0, 1)
      .read("tie_word_embeddings", config.tie_word_embeddings)
      .read("attention_bias", config.attention_bias);
  if (!fields.status().ok()) return;
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    fields.fail("num_attention_heads is " + std::to_string(config.num_attention_heads) +
                ", which is no multiple of num_key_value_heads, " + std::to_string(config.num_key_value_heads));
  }
  if (config.head_dim < 2 || config.head_dim % 2 != 0) {
    fields.fail("head_dim must be even for rotary embeddings, and is " + std::to_string(config.head_dim));
  }
}

RopeScaling::Kind kind_of(const std::string& name, JsonFields& fields) {
  constexpr std::array<std::pair<const char*, RopeScaling::Kind>, 5> kKinds{{
      {"default", RopeScaling::Kind::kDefault},
      {"linear", RopeScaling::Kind::kLinear},
      {"dynamic", RopeScaling::Kind::kDynamic},
      {"yarn", RopeScaling::Kind::kYarn},
      {"llama3", RopeScaling::Kind::kLlama3},
  }};
  const auto* found = std::ranges::find_if(kKinds, [&](const auto& kind) { return name == kind.first; });
  if (found != kKinds.end()) return found->second;
  fields.fail("the rope type " + in_quotes(name) + " is not supported, only default, linear, dynamic, yarn and llama3");
  return RopeScaling::Kind::kDefault;
}

// Fields of one object, `rope_scaling` or `rope_parameters`.
void read_scaling(JsonFields& scaling, Qwen3Config& config) {
  constexpr double kMost = 1e6;
  using Kind = RopeScaling::Kind;
  RopeScaling& rope = config.rope_scaling;
  if (scaling.has("full_attention") || scaling.has("sliding_attention")) {
    scaling.fail("parameters that differ by the type of layer are not supported");
  }
  std::string name = "default";
  scaling.read("type", name).read("rope_type", name);
  rope.kind = kind_of(name, scaling);
  scaling.read("rope_theta", config.rope_theta, 1, 1e15);
  double rotary = 1;
  scaling.read("partial_rotary_factor", rotary, 1, 1);
  if (rope.kind == Kind::kDefault) return;
  const bool has_original = rope.kind == Kind::kYarn || rope.kind == Kind::kLlama3;
  // transformers infers a factor of null from the two lengths, for yarn only.
  const bool infers_factor = rope.kind == Kind::kYarn && scaling.has("original_max_position_embeddings");
  if (!infers_factor) scaling.require("factor");
  rope.original_max_position_embeddings = has_original ? config.max_position_embeddings : 0;
  if (has_original) {
    scaling.read("original_max_position_embeddings", rope.original_max_position_embeddings, 1, kMostPositions);
  }
  if (infers_factor) {
    rope.factor = static_cast<double>(config.max_position_embeddings) /
                  static_cast<double>(rope.original_max_position_embeddings);
  }
  scaling.read("factor", rope.factor, 1, kMost);
  if (rope.kind == Kind::kYarn) {
    scaling.read("attention_factor", rope.attention_factor, 0, kMost)
        .read("mscale", rope.mscale, 0, kMost)
        .read("mscale_all_dim", rope.mscale_all_dim, 0, kMost)
        .read("beta_fast", rope.beta_fast, 1e-6, kMost)
        .read("beta_slow", rope.beta_slow, 1e-6, kMost)
        .read("truncate", rope.truncate);
    if (config.rope_theta <= 1) scaling.fail("yarn needs a rope_theta above 1");
  }
  if (rope.kind == Kind::kLlama3) {
    scaling.require("low_freq_factor").require("high_freq_factor");
    scaling.read("low_freq_factor", rope.low_freq_factor, 1e-6, kMost)
        .read("high_freq_factor", rope.high_freq_factor, 1e-6, kMost);
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      scaling.fail("high_freq_factor must be greater than low_freq_factor");
    }
  }
  if (rope.kind == Kind::kDynamic && config.head_dim <= 2) scaling.fail("dynamic scaling needs a head_dim above 2");
}

// As transformers: `rope_scaling`, if it says anything, goes before `rope_parameters`.
void read_rope(JsonFields& fields, Qwen3Config& config) {
  fields.read("rope_theta", config.rope_theta, 1, 1e15);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!fields.has(key) || fields.at(key).empty()) continue;
    JsonFields scaling(fields.at(key), std::string("config.json: ") + key);
    read_scaling(scaling, config);
    if (!scaling.status().ok()) fields.fail(scaling.status().message().substr(sizeof "config.json: " - 1));
    return;
  }
}

void read_windows(JsonFields& fields, Qwen3Config& config) {
  bool uses = false;
  int64_t window = 4096;
  int64_t first = 28;
  fields.read("use_sliding_window", uses)
      .read("sliding_window", window, 1, kMostPositions)
      .read("max_window_layers", first, 0, INT64_MAX);
  const bool is_null = fields.mentions("sliding_window") && !fields.has("sliding_window");
  if (!fields.status().ok()) return;
  const auto layers = static_cast<size_t>(config.num_hidden_layers);
  config.layer_windows.assign(layers, 0);
  const Json& types = fields.at("layer_types");
  // A mixture of experts has one kind of attention in all layers.
  if (types.is_null() || config.is_moe) {
    if (!uses || is_null) return;
    const size_t from = config.is_moe ? 0 : static_cast<size_t>(std::min(first, config.num_hidden_layers));
    std::fill(config.layer_windows.begin() + static_cast<ptrdiff_t>(from), config.layer_windows.end(), window);
    return;
  }
  if (!types.is_array() || types.size() != layers) {
    return fields.fail("layer_types must be a list with an entry for each of the " + std::to_string(layers) +
                       " layers");
  }
  for (size_t layer = 0; layer < layers; ++layer) {
    if (types[layer] == "full_attention") continue;
    if (types[layer] != "sliding_attention") {
      return fields.fail("layer_types[" + std::to_string(layer) +
                         "] is neither \"full_attention\" nor \"sliding_attention\"");
    }
    if (!uses || is_null) {
      return fields.fail(
          "layer_types names sliding_attention, but use_sliding_window and sliding_window give no window");
    }
    config.layer_windows[layer] = window;
  }
}

void read_experts(JsonFields& fields, Qwen3Config& config) {
  config.layer_is_sparse.assign(static_cast<size_t>(config.num_hidden_layers), false);
  if (!config.is_moe) return;
  config.num_experts = 128;
  config.num_experts_per_tok = 8;
  config.moe_intermediate_size = 768;
  int64_t step = 1;
  fields.read("num_local_experts", config.num_experts, 0, kMostExperts)
      .read("num_experts", config.num_experts, 0, kMostExperts)
      .read("num_experts_per_tok", config.num_experts_per_tok, 1, kMostExperts)
      .read("moe_intermediate_size", config.moe_intermediate_size, 1, kMostHidden)
      .read("norm_topk_prob", config.norm_topk_prob)
      .read("decoder_sparse_step", step, 1, INT64_MAX);
  if (!fields.status().ok()) return;
  if (config.num_experts > 0 && config.num_experts_per_tok > config.num_experts) {
    return fields.fail("num_experts_per_tok is " + std::to_string(config.num_experts_per_tok) + ", but there are " +
                       std::to_string(config.num_experts) + " experts");
  }
  if (config.num_hidden_layers * config.num_experts > kMostExpertsOfModel) {
    return fields.fail("there are more than " + std::to_string(kMostExpertsOfModel) +
                       " experts in all layers together");
  }
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    config.layer_is_sparse[static_cast<size_t>(layer)] = config.num_experts > 0 && (layer + 1) % step == 0;
  }
  const Json& dense = fields.at("mlp_only_layers");
  if (dense.is_null()) return;
  if (!dense.is_array()) return fields.fail("mlp_only_layers must be a list of layers");
  for (const Json& layer : dense) {
    if (!layer.is_number_unsigned() || layer.get<uint64_t>() >= config.layer_is_sparse.size()) {
      return fields.fail("mlp_only_layers must be a list of layers below " + std::to_string(config.num_hidden_layers));
    }
    config.layer_is_sparse[layer.get<uint64_t>()] = false;
  }
}

void read_dtype(JsonFields& fields, Qwen3Config& config) {
  constexpr std::array<std::pair<const char*, const char*>, 4> kNames{
      {{"float32", "f32"}, {"bfloat16", "bf16"}, {"float16", "f16"}, {"float64", "f64"}}};
  std::string name;
  fields.read("torch_dtype", name).read("dtype", name);
  if (name.starts_with("torch.")) name = name.substr(6);
  const auto* found = std::ranges::find_if(kNames, [&](const auto& pair) { return name == pair.first; });
  if (found != kNames.end()) {
    config.dtype = found->second;
  } else if (!name.empty() && name != "auto") {
    fields.fail("the dtype " + in_quotes(name) + " is not supported");
  }
}

void read_quantization(JsonFields& fields, QuantizationConfig& config) {
  using backend::CheckpointLayout;
  if (!fields.has("quantization_config")) return;
  JsonFields quantization(fields.at("quantization_config"), "quantization_config");
  quantization.require("quant_method").read("quant_method", config.method);
  const bool gptq = config.method == "gptq";
  if (gptq || config.method == "awq") {
    std::string format = gptq ? "gptq" : "gemm";
    quantization.require("bits")
        .require("group_size")
        .read("bits", config.bits, 1, 64)
        .read("group_size", config.group, -1, kMostHidden)
        .read(gptq ? "checkpoint_format" : "version", format);
    config.group = std::max<int64_t>(config.group, 0);
    if (format == "gptq_v2") {
      config.layout = CheckpointLayout::kGptqV2;
    } else if (format != "gptq" && format != "gemm" && format != "GEMM") {
      quantization.fail("the format " + in_quotes(format) + " of quantized weights is not supported");
    } else {
      config.layout = gptq ? CheckpointLayout::kGptq : CheckpointLayout::kAwq;
    }
    if (config.bits != 4 && !(gptq && config.bits == 8)) {
      quantization.fail("weights of " + std::to_string(config.bits) + " bits are not supported, only 4" +
                        (gptq ? " and 8" : ""));
    }
    if (config.group % backend::kQuantizedDepth != 0) {
      quantization.fail("group_size must be -1 or a multiple of 32, not " + std::to_string(config.group));
    }
  }
  if (!quantization.status().ok()) fields.fail(quantization.status().message());
}

// One id or a list of ids.
void read_eos(JsonFields& fields, Qwen3Config& config) {
  const Json& ids = fields.at("eos_token_id");
  if (ids.is_null()) return;
  const Json list = ids.is_array() ? ids : Json::array({ids});
  config.eos_token_ids.clear();
  for (const Json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(config.vocab_size)) {
      return fields.fail("eos_token_id must have token ids below vocab_size, " + std::to_string(config.vocab_size));
    }
    const auto number = id.get<int64_t>();
    if (std::ranges::find(config.eos_token_ids, number) == config.eos_token_ids.end()) {
      config.eos_token_ids.push_back(number);
    }
  }
}

Status read_generation(const Json& json, Qwen3Config& config) {
  JsonFields fields(json, "generation_config.json");
  read_eos(fields, config);
  GenerationDefaults& generation = config.generation;
  bool do_sample = false;
  fields.read("do_sample", do_sample);
  if (fields.has("do_sample")) generation.do_sample = do_sample;
  int64_t top_k = 0;
  fields.read("top_k", top_k, 0, INT32_MAX);
  if (fields.has("top_k")) generation.top_k = top_k;
  fields.read("temperature", generation.temperature, 0, 1e6)
      .read("top_p", generation.top_p, 0, 1)
      .read("min_p", generation.min_p, 0, 1)
      .read("repetition_penalty", generation.repetition_penalty, 1e-6, 1e6);
  return fields.status();
}

}  // namespace

Result<Qwen3Config> Qwen3Config::parse(std::string_view config_text, std::string_view generation_text) {
  auto json = parse_json(config_text, "config.json");
  if (!json.ok()) return json.status();
  Qwen3Config config;
  JsonFields fields(json.value(), "config.json");
  for (const auto read : {read_architecture, read_sizes, read_rope, read_windows, read_experts, read_dtype, read_eos}) {
    if (fields.status().ok()) read(fields, config);
  }
  if (fields.status().ok()) read_quantization(fields, config.quantization);
  if (fields.status().ok() && fields.has("pad_token_id")) {
    int64_t pad = 0;
    fields.read("pad_token_id", pad, -1, config.vocab_size - 1);
    if (pad >= 0) config.pad_token_id = pad;
  }
  if (!fields.status().ok()) return fields.status();
  if (generation_text.empty()) return config;
  auto generation = parse_json(generation_text, "generation_config.json");
  if (!generation.ok()) return generation.status();
  if (Status status = read_generation(generation.value(), config); !status.ok()) return status;
  return config;
}

Result<Qwen3Config> Qwen3Config::read(const std::filesystem::path& folder) {
  auto text = read_text(folder / "config.json", kMostBytes);
  if (!text.ok()) return text.status();
  std::string generation;
  if (std::error_code error; std::filesystem::exists(folder / "generation_config.json", error)) {
    auto found = read_text(folder / "generation_config.json", kMostBytes);
    if (!found.ok()) return found.status();
    generation = std::move(found.value());
    if (generation.empty()) return Status(ErrorClass::kStorage, "generation_config.json is empty");
  }
  return parse(text.value(), generation);
}

}  // namespace hetero::qwen3
