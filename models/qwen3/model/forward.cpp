#include "qwen3/model/forward.h"

#include <string>
#include <utility>
#include <vector>

#include "ops/program/compute_graph.h"
#include "qwen3/checkpoint/rope.h"

namespace hetero::qwen3 {
namespace {

using Value = ComputeGraph::Value;
using Arguments = ComputeGraph::Arguments;
using Attributes = ComputeGraph::Attributes;

// Builds nodes until the first error, which it keeps.
class Builder {
 public:
  Builder(const Qwen3Config& config, std::shared_ptr<const Weights> weights, std::string dtype)
      : config_(config), weights_(std::move(weights)), dtype_(std::move(dtype)) {}

  Result<std::shared_ptr<Model>> build(const ForwardOptions& options);

 private:
  template <typename T>
  T take(Result<T> result) {
    if (result.ok()) return std::move(result.value());
    if (status_.ok()) status_ = result.status();
    return T();
  }
  void take(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  Value add(const char* op, Arguments arguments, Attributes attributes = {}) {
    return status_.ok() ? take(graph_.add(op, std::move(arguments), std::move(attributes))) : Value();
  }
  Value input(const char* name, const char* dtype, const GraphSizes& sizes) {
    return status_.ok() ? take(graph_.input(name, dtype, sizes)) : Value();
  }

  Value constant(const std::string& name, const TensorView& view) {
    return status_.ok() ? take(graph_.constant(name, view, weights_)) : Value();
  }
  Value weight(const std::string& name);
  Value to(Value x, const std::string& dtype) { return add("aten::_to_copy", {x}, {{"dtype", dtype}}); }
  Value linear(Value x, const std::string& name);
  Value quantized_linear(Value x, const std::string& name, const QuantizedLayer& layer);
  Value rms_norm(Value x, const std::string& name);

  void declare_inputs(const ForwardOptions& options);
  void find_pages(const ForwardOptions& options);
  void find_rotation();
  Value rotate(Value x);
  Value attention(Value x, int64_t layer);
  Value mlp(Value x, const std::string& name);
  Value experts(Value x, Value chosen, Value weights, const std::string& name);
  Value mixture(Value x, const std::string& name);
  Value block(Value x, int64_t layer);

  const Qwen3Config& config_;
  const std::shared_ptr<const Weights> weights_;
  const std::string dtype_;
  ComputeGraph graph_;
  Status status_;
  GraphSize tokens_;
  Value ids_, positions_, slots_, starts_, lengths_, table_, rows_, inverse_;
  Value pages_;   // [P, 2 * layers, kv_heads, page_tokens, head_dim]
  Value scales_;  // [P, 2 * layers, kv_heads, page_tokens]
  bool has_scales_ = false;
  Value cos_, sin_;   // [T, 1, head_dim]
  Value no_numbers_;  // u8[0]
};

Value Builder::weight(const std::string& name) {
  if (!status_.ok()) return {};
  return constant(name, take(weights_->checkpoint().tensor(name)));
}

Value Builder::linear(Value x, const std::string& name) {
  if (const QuantizedLayer* layer = weights_->quantized(name)) return quantized_linear(x, name, *layer);
  Arguments arguments{x, weight(name + ".weight")};
  if (weights_->checkpoint().has(name + ".bias")) arguments.emplace_back(weight(name + ".bias"));
  return add("aten::linear", std::move(arguments));
}

Value Builder::quantized_linear(Value x, const std::string& name, const QuantizedLayer& layer) {
  if (layer.order.data != nullptr) x = add("aten::index_select", {x, -1, constant(name + ".order", layer.order)});
  Arguments arguments{x, constant(name + ".packed", layer.packed), constant(name + ".scales", layer.scales)};
  arguments.emplace_back(layer.zeros.data == nullptr ? ComputeGraph::Argument()
                                                     : constant(name + ".zeros", layer.zeros));
  arguments.emplace_back(weights_->checkpoint().has(name + ".bias") ? weight(name + ".bias")
                                                                    : ComputeGraph::Argument());
  for (const int64_t number : {int64_t{layer.shape.bits}, layer.shape.group, layer.shape.n}) {
    arguments.emplace_back(number);
  }
  return add("hetero::quantized_linear", std::move(arguments));
}

// In float32, rounded before it is multiplied by the weight, as transformers does.
Value Builder::rms_norm(Value x, const std::string& name) {
  const Value wide = dtype_ == "f32" ? x : to(x, "f32");
  const Value mean = add("aten::mean.dim", {add("aten::pow.Tensor_Scalar", {wide, 2}), std::vector<int64_t>{-1}, true});
  const Value scale = add("aten::rsqrt", {add("aten::add.Scalar", {mean, config_.rms_norm_eps})});
  const Value normed = add("aten::mul.Tensor", {wide, scale});
  return add("aten::mul.Tensor", {weight(name + ".weight"), dtype_ == "f32" ? normed : to(normed, dtype_)});
}

void Builder::declare_inputs(const ForwardOptions& options) {
  tokens_ = take(graph_.dimension("tokens", 1, options.most_tokens));
  const GraphSize sequences = take(graph_.dimension("sequences", 1, options.most_sequences));
  const GraphSize width = take(graph_.dimension("width", 1));
  const GraphSize rows = take(graph_.dimension("rows", 1, options.most_tokens));
  ids_ = input("tokens", "i64", {tokens_});
  positions_ = input("positions", "i64", {tokens_});
  slots_ = input("slots", "i64", {tokens_});
  starts_ = input("starts", "i32", {sequences + 1});
  lengths_ = input("lengths", "i32", {sequences});
  table_ = input("table", "i32", {sequences, width});
  rows_ = input("rows", "i64", {rows});
  find_pages(options);
}

void Builder::find_pages(const ForwardOptions& options) {
  const graph::PageLayout& layout = options.pages;
  const int64_t planes = 2 * layout.layers;
  const GraphSizes sizes{options.page_count, planes, layout.kv_heads, layout.page_tokens, layout.head_size};
  has_scales_ = backend::has_scales(layout.element);
  if (!has_scales_) {
    pages_ = input("pages", page_dtype(layout.element), sizes);
    return;
  }
  const Value bytes =
      input("pages", page_dtype(layout.element), {options.page_count, static_cast<int64_t>(layout.bytes())});
  const int64_t end = layout.key_scales(0), scales_end = end + planes * layout.scale_plane();
  pages_ = add("aten::view", {add("aten::slice.Tensor", {bytes, 1, 0, end}), sizes});
  const Value scales = add("aten::slice.Tensor", {bytes, 1, end, scales_end});
  scales_ = add("aten::view", {add("aten::view.dtype", {scales, "f32"}),
                               GraphSizes{options.page_count, planes, layout.kv_heads, layout.page_tokens}});
}

void Builder::find_rotation() {
  RotaryFrequencies frequencies = rotary_frequencies(config_, config_.max_position_embeddings);
  const int64_t half = config_.head_dim / 2;
  if (depends_on_length(config_)) {
    inverse_ = input("inverse", "f32", {tokens_, half});
  } else if (status_.ok()) {
    inverse_ = take(graph_.constant("inverse", TensorView::row_major(frequencies.inverse.data(), "f32", {half})));
  }
  const Value places = add("aten::unsqueeze", {to(positions_, "f32"), 1});
  const Value angles = add("aten::mul.Tensor", {places, inverse_});
  const Value both = add("aten::cat", {std::vector<Value>{angles, angles}, 1});
  const auto scaled = [&](const char* op) {
    const Value wide = add("aten::mul.Scalar", {add(op, {both}), double{frequencies.attention_factor}});
    return add("aten::unsqueeze", {dtype_ == "f32" ? wide : to(wide, dtype_), 1});
  };
  cos_ = scaled("aten::cos");
  sin_ = scaled("aten::sin");
}

// x: [T, heads, head_dim]
Value Builder::rotate(Value x) {
  const int64_t half = config_.head_dim / 2;
  const Value first = add("aten::slice.Tensor", {x, -1, 0, half});
  const Value second = add("aten::slice.Tensor", {x, -1, half, config_.head_dim});
  const Value turned = add("aten::cat", {std::vector<Value>{add("aten::neg", {second}), first}, -1});
  return add("aten::add.Tensor", {add("aten::mul.Tensor", {x, cos_}), add("aten::mul.Tensor", {turned, sin_})});
}

Value Builder::attention(Value x, int64_t layer) {
  const std::string name = "model.layers." + std::to_string(layer) + ".self_attn.";
  const auto heads = [&](const char* part, int64_t count) {
    return add("aten::view", {linear(x, name + part), GraphSizes{tokens_, count, config_.head_dim}});
  };
  const Value query = rotate(rms_norm(heads("q_proj", config_.num_attention_heads), name + "q_norm"));
  const Value key = rotate(rms_norm(heads("k_proj", config_.num_key_value_heads), name + "k_norm"));
  const Value value = heads("v_proj", config_.num_key_value_heads);
  const auto plane = [&](Value of, int64_t number) { return add("aten::select.int", {of, 1, number}); };
  const Value keys = plane(pages_, 2 * layer), values = plane(pages_, 2 * layer + 1);
  Attributes scales;
  if (has_scales_) {
    scales = {{"key_scales", plane(scales_, 2 * layer)}, {"value_scales", plane(scales_, 2 * layer + 1)}};
  }
  add("hetero::paged_append_", {keys, values, key, value, slots_}, scales);
  scales.emplace_back("query_starts", starts_);
  scales.emplace_back("window", config_.layer_windows[static_cast<size_t>(layer)]);
  const Value mixed = add("hetero::paged_attention", {query, keys, values, table_, lengths_}, std::move(scales));
  return linear(add("aten::view", {mixed, GraphSizes{tokens_, config_.query_size()}}), name + "o_proj");
}

Value Builder::mlp(Value x, const std::string& name) {
  const Value gate = add("aten::silu", {linear(x, name + "gate_proj")});
  return linear(add("aten::mul.Tensor", {gate, linear(x, name + "up_proj")}), name + "down_proj");
}

Value Builder::experts(Value x, Value chosen, Value weights, const std::string& name) {
  std::vector<Value> lists[3];
  const char* const parts[] = {"gate_proj", "up_proj", "down_proj"};
  const QuantizedLayer* first = weights_->quantized(name + "experts.0." + parts[0]);
  for (int64_t e = 0; e < config_.num_experts && status_.ok(); ++e) {
    for (int i = 0; i < 3; ++i) {
      const std::string layer = name + "experts." + std::to_string(e) + '.' + parts[i];
      const QuantizedLayer* quantized = weights_->quantized(layer);
      if ((quantized == nullptr) != (first == nullptr)) {
        take(Status(ErrorClass::kStorage, "the experts of " + name + " are quantized in part; all or none must be"));
      } else if (quantized == nullptr) {
        lists[i].push_back(weight(layer + ".weight"));
      } else if (quantized->order.data != nullptr) {
        take(Status(ErrorClass::kStorage, "the layer " + layer +
                                              " has its columns in the order of their importance "
                                              "(desc_act), which is not supported for experts"));
      } else {
        lists[i].push_back(constant(layer + ".packed", quantized->packed));
        lists[i].push_back(constant(layer + ".scales", quantized->scales));
        const bool symmetric = quantized->zeros.data == nullptr;
        lists[i].push_back(symmetric ? no_numbers_ : constant(layer + ".zeros", quantized->zeros));
      }
    }
  }
  Arguments arguments{x, chosen, weights, lists[0], lists[1], lists[2]};
  if (first == nullptr) return add("hetero::routed_mlp", std::move(arguments));
  for (const int64_t number : {int64_t{first->shape.bits}, first->shape.group, first->shape.n}) {
    arguments.emplace_back(number);
  }
  return add("hetero::routed_quantized_mlp", std::move(arguments));
}

// Each token goes through the experts that its router chose, whose results are weighted by their
// probabilities.
Value Builder::mixture(Value x, const std::string& name) {
  const Value logits = add("aten::linear", {x, weight(name + "gate.weight")});
  const Value probabilities = add("aten::softmax.int", {logits, -1}, {{"dtype", "f32"}});
  const Value shares = add("aten::topk", {probabilities, config_.num_experts_per_tok, -1});
  Value weights = shares;
  if (config_.norm_topk_prob) {
    weights = add("aten::div.Tensor", {shares, add("aten::sum.dim_IntList", {shares, std::vector<int64_t>{-1}, true})});
  }
  if (dtype_ != "f32") weights = to(weights, dtype_);
  return experts(x, shares.result(1), weights, name);
}

Value Builder::block(Value x, int64_t layer) {
  const std::string name = "model.layers." + std::to_string(layer) + '.';
  x = add("aten::add.Tensor", {x, attention(rms_norm(x, name + "input_layernorm"), layer)});
  const Value normed = rms_norm(x, name + "post_attention_layernorm");
  const bool sparse = config_.layer_is_sparse[static_cast<size_t>(layer)];
  return add("aten::add.Tensor", {x, sparse ? mixture(normed, name + "mlp.") : mlp(normed, name + "mlp.")});
}

Result<std::shared_ptr<Model>> Builder::build(const ForwardOptions& options) {
  declare_inputs(options);
  find_rotation();
  no_numbers_ = take(graph_.constant("no_numbers", TensorView::row_major(nullptr, "u8", {0})));
  const Value embeddings = weight("model.embed_tokens.weight");
  Value x = add("aten::embedding", {embeddings, ids_});
  for (int64_t layer = 0; layer < config_.num_hidden_layers && status_.ok(); ++layer) x = block(x, layer);
  x = rms_norm(add("aten::index_select", {x, 0, rows_}), "model.norm");
  if (config_.tie_word_embeddings && weights_->quantized("lm_head") == nullptr) {
    x = add("aten::linear", {x, embeddings});  // a checkpoint may have it twice
  } else {
    x = linear(x, "lm_head");
  }
  take(graph_.output("logits", dtype_ == "f32" ? x : to(x, "f32")));
  if (options.accelerator_bytes != 0) graph_.set_memory_budget(options.accelerator_bytes);
  return status_.ok() ? graph_.model() : Result<std::shared_ptr<Model>>(status_);
}

}  // namespace

Result<std::string> compute_dtype(const Checkpoint& checkpoint) {
  std::string dtype;
  for (const std::string& name : checkpoint.names()) {
    const std::string& other = checkpoint.find(name)->dtype;
    // Of a quantized layer.
    if (other == "i32" || name.ends_with(".scales")) continue;
    if (!dtype.empty() && other != dtype) {
      return Status(ErrorClass::kStorage, "the checkpoint has weights in " + dtype + " and in " + other + " ('" + name +
                                              "'); it must have one dtype");
    }
    dtype = other;
  }
  return dtype;
}

const char* page_dtype(backend::CacheElement element) {
  switch (element) {
    case backend::CacheElement::kFloat32:
      return "f32";
    case backend::CacheElement::kBfloat16:
      return "bf16";
    case backend::CacheElement::kFloat16:
      return "f16";
    case backend::CacheElement::kInt8:
      return "i8";
    case backend::CacheElement::kFloat8:
      return "f8e4m3fn";
  }
  return "";
}

Result<std::shared_ptr<Model>> build_forward(const Qwen3Config& config, std::shared_ptr<const Weights> weights,
                                             const ForwardOptions& options) {
  const Result<std::string> dtype = compute_dtype(weights->checkpoint());
  if (!dtype.ok()) return dtype.status();
  return Builder(config, std::move(weights), dtype.value()).build(options);
}

}  // namespace hetero::qwen3
