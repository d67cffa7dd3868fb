#include "qwen3/model/forward.h"

#include <algorithm>
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
  Builder(const Qwen3Config& config, std::shared_ptr<const Checkpoint> checkpoint, std::string dtype)
      : config_(config), checkpoint_(std::move(checkpoint)), dtype_(std::move(dtype)) {}

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

  void on_host(Value node) {
    if (status_.ok()) take(graph_.prefer(node, graph::Preference::kCpu));
  }

  Value weight(const std::string& name);
  Value to(Value x, const std::string& dtype) { return add("aten::_to_copy", {x}, {{"dtype", dtype}}); }
  Value linear(Value x, const std::string& name);
  Value rms_norm(Value x, const std::string& name);

  void declare_inputs(const ForwardOptions& options);
  void find_rotation();
  Value rotate(Value x);
  Value attention(Value x, int64_t layer);
  Value mlp(Value x, const std::string& name);
  Value mixture(Value x, const std::string& name);
  Value block(Value x, int64_t layer);

  const Qwen3Config& config_;
  const std::shared_ptr<const Checkpoint> checkpoint_;
  const std::string dtype_;
  ComputeGraph graph_;
  Status status_;
  GraphSize tokens_;
  Value ids_, positions_, slots_, starts_, lengths_, table_, rows_, pages_, inverse_;
  Value cos_, sin_;  // [T, 1, head_dim]
};

Value Builder::weight(const std::string& name) {
  if (!status_.ok()) return {};
  const TensorView view = take(checkpoint_->tensor(name));
  return status_.ok() ? take(graph_.constant(name, view, checkpoint_)) : Value();
}

Value Builder::linear(Value x, const std::string& name) {
  Arguments arguments{x, weight(name + ".weight")};
  if (checkpoint_->has(name + ".bias")) arguments.emplace_back(weight(name + ".bias"));
  return add("aten::linear", std::move(arguments));
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
  // Logits of all sequences that may be would need more memory than most steps do.
  constexpr int64_t kUsualRows = 16;
  const auto example = [&](int64_t usual) { return options.plans_for_most ? usual : 0; };
  tokens_ = take(graph_.dimension("tokens", 1, options.most_tokens, example(options.most_tokens)));
  const GraphSize sequences = take(graph_.dimension("sequences", 1, options.most_sequences));
  const GraphSize width = take(graph_.dimension("width", 1));
  const GraphSize rows =
      take(graph_.dimension("rows", 1, options.most_tokens, example(std::min(kUsualRows, options.most_tokens))));
  ids_ = input("tokens", "i64", {tokens_});
  positions_ = input("positions", "i64", {tokens_});
  slots_ = input("slots", "i64", {tokens_});
  starts_ = input("starts", "i32", {sequences + 1});
  lengths_ = input("lengths", "i32", {sequences});
  table_ = input("table", "i32", {sequences, width});
  rows_ = input("rows", "i64", {rows});
  pages_ = input("pages", dtype_.c_str(),
                 {options.page_count, 2 * config_.num_hidden_layers, config_.num_key_value_heads, options.page_tokens,
                  config_.head_dim});
}

void Builder::find_rotation() {
  RotaryFrequencies frequencies = rotary_frequencies(config_, config_.max_position_embeddings);
  const int64_t half = config_.head_dim / 2;
  if (depends_on_length(config_)) {
    inverse_ = input("inverse", "f32", {half});
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
  const Value keys = add("aten::select.int", {pages_, 1, 2 * layer});
  const Value values = add("aten::select.int", {pages_, 1, 2 * layer + 1});
  // Where the pages are.
  on_host(add("hetero::paged_append_", {keys, values, key, value, slots_}));
  const Value mixed = add("hetero::paged_attention", {query, keys, values, table_, lengths_},
                          {{"query_starts", starts_}, {"window", config_.layer_windows[static_cast<size_t>(layer)]}});
  on_host(mixed);
  return linear(add("aten::view", {mixed, GraphSizes{tokens_, config_.query_size()}}), name + "o_proj");
}

Value Builder::mlp(Value x, const std::string& name) {
  const Value gate = add("aten::silu", {linear(x, name + "gate_proj")});
  return linear(add("aten::mul.Tensor", {gate, linear(x, name + "up_proj")}), name + "down_proj");
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
  std::vector<Value> gate, up, down;
  for (int64_t e = 0; e < config_.num_experts; ++e) {
    const std::string expert = name + "experts." + std::to_string(e) + '.';
    gate.push_back(weight(expert + "gate_proj.weight"));
    up.push_back(weight(expert + "up_proj.weight"));
    down.push_back(weight(expert + "down_proj.weight"));
  }
  return add("hetero::routed_mlp", {x, shares.result(1), weights, gate, up, down});
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
  const Value embeddings = weight("model.embed_tokens.weight");
  Value x = add("aten::embedding", {embeddings, ids_});
  for (int64_t layer = 0; layer < config_.num_hidden_layers && status_.ok(); ++layer) x = block(x, layer);
  x = rms_norm(add("aten::index_select", {x, 0, rows_}), "model.norm");
  // A checkpoint of tied embeddings may have the weight twice.
  const Value head = config_.tie_word_embeddings ? embeddings : weight("lm_head.weight");
  x = add("aten::linear", {x, head});
  take(graph_.output("logits", dtype_ == "f32" ? x : to(x, "f32")));
  graph_.set_memory_budget(options.accelerator_bytes);
  return status_.ok() ? graph_.model() : Result<std::shared_ptr<Model>>(status_);
}

}  // namespace

Result<std::string> compute_dtype(const Checkpoint& checkpoint) {
  std::string dtype;
  for (const std::string& name : checkpoint.names()) {
    const std::string& other = checkpoint.find(name)->dtype;
    if (!dtype.empty() && other != dtype) {
      return Status(ErrorClass::kStorage, "the checkpoint has weights in " + dtype + " and in " + other + " ('" + name +
                                              "'); it must have one dtype");
    }
    dtype = other;
  }
  return dtype;
}

Result<std::shared_ptr<Model>> build_forward(const Qwen3Config& config, std::shared_ptr<const Checkpoint> checkpoint,
                                             const ForwardOptions& options) {
  if (Status status = check_tensors(*checkpoint, config); !status.ok()) return status;
  const Result<std::string> dtype = compute_dtype(*checkpoint);
  if (!dtype.ok()) return dtype.status();
  return Builder(config, std::move(checkpoint), dtype.value()).build(options);
}

}  // namespace hetero::qwen3
