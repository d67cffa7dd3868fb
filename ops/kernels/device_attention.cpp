#include "ops/kernels/device_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_ops.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>
#include <utility>

#include "ops/kernels/boxed.h"
#include "ops/kernels/kernel.h"

namespace hetero::ops {
namespace {

// What both operators are given. Sizes: query [b, h, q, d], key and value [b, g, k, d] with h a
// multiple of g.
struct Attention {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  bool causal = false;  // query i sees keys 0 to i
  std::optional<at::Tensor> mask;
  double scale = 1;

  int64_t group() const { return query.size(1) / key.size(1); }
  // One for each head of queries.
  at::Tensor repeated(const at::Tensor& tensor) const {
    return group() == 1 ? tensor : tensor.repeat_interleave(group(), 1);
  }
  at::Tensor scores() const {
    at::Tensor scores = at::matmul(query.to(at::kFloat) * scale, repeated(key).to(at::kFloat).transpose(-2, -1));
    if (causal) {
      const at::Tensor seen = at::ones({query.size(2), key.size(2)}, query.options().dtype(at::kBool)).tril();
      scores = scores.masked_fill(seen.logical_not(), -std::numeric_limits<float>::infinity());
    }
    if (mask.has_value() && mask->scalar_type() == at::kBool) {
      scores = scores.masked_fill(mask->logical_not(), -std::numeric_limits<float>::infinity());
    } else if (mask.has_value()) {
      scores = scores + mask->to(at::kFloat);
    }
    return scores;
  }
};

// exp(scores - logsumexp), and 0 for queries that see nothing.
at::Tensor probabilities(const at::Tensor& scores, const at::Tensor& logsumexp) {
  const at::Tensor total = logsumexp.to(at::kFloat).unsqueeze(-1);
  return at::where(total == -std::numeric_limits<float>::infinity(), 0.0, (scores - total).exp());
}

double scale_of(const c10::IValue& given, const at::Tensor& query) {
  return given.isNone() ? 1.0 / std::sqrt(static_cast<double>(query.size(-1))) : given.toDouble();
}

std::optional<at::Tensor> optional_tensor(const c10::IValue& given) {
  if (given.isNone() || !given.toTensor().defined()) return std::nullopt;
  return given.toTensor();
}

// In double nothing would be gained, and bits lost.
void check_call(const at::Tensor& query, double dropout) {
  TORCH_CHECK_NOT_IMPLEMENTED(query.scalar_type() != at::kDouble && dropout == 0,
                              "hetero: attention of doubles, or with dropout, has no kernel on the accelerator");
}

using Results = std::pair<at::Tensor, at::Tensor>;  // output, logsumexp

// By PyTorch's kernels for CUDA; nothing where they refuse. They need rows of 16 bytes, and see
// causal attention otherwise where there are more keys.
std::optional<Results> by_library(const Attention& a) {
  const int64_t row = a.query.size(-1) * static_cast<int64_t>(a.query.element_size());
  const bool square = a.query.size(2) == a.key.size(2);
  if (!a.query.is_cuda() || a.mask.has_value() || row % 16 != 0 || a.value.size(-1) != a.query.size(-1) ||
      a.query.numel() == 0 || a.key.numel() == 0 || (a.causal && !square)) {
    return std::nullopt;
  }
  const at::Tensor key = a.repeated(a.key);
  const at::Tensor value = a.repeated(a.value);
  try {
    if (a.query.element_size() == 2 && a.query.size(-1) <= 256) {
      auto made = at::_scaled_dot_product_flash_attention(a.query, key, value, 0, a.causal, false, a.scale);
      return Results(std::get<0>(made), std::get<1>(made));
    }
    auto made =
        at::_scaled_dot_product_efficient_attention(a.query, key, value, std::nullopt, true, 0, a.causal, a.scale);
    return Results(std::get<0>(made), std::get<1>(made).slice(2, 0, a.query.size(2)));
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error&) {
    return std::nullopt;  // of an older GPU, say
  }
}

Results by_products(const Attention& a) {
  const at::Tensor scores = a.scores();
  const at::Tensor logsumexp = at::logsumexp(scores, -1);
  const at::Tensor output = at::matmul(probabilities(scores, logsumexp), a.repeated(a.value).to(at::kFloat));
  return {output.to(a.query.scalar_type()), logsumexp};
}

// The arguments of a call of `Op`: three of them are query, key and value, from `first` on, and
// four dropout_p, is_causal, attn_mask and scale, from `options` on.
template <typename Op>
class AttentionCall {
 public:
  AttentionCall(const graph::Invocation& invocation, size_t first, size_t options)
      : tensors_(invocation),
        decoder_(invocation.attributes, invocation.node->attribute_bytes),
        given_(arguments_of(schema(), decoder_, tensors_)),
        attention{.query = given_[first].toTensor(),
                  .key = given_[first + 1].toTensor(),
                  .value = given_[first + 2].toTensor(),
                  .causal = given_[options + 1].toBool(),
                  .mask = optional_tensor(given_[options + 2]),
                  .scale = scale_of(given_[options + 3], given_[first].toTensor())} {
    check_call(attention.query, given_[options].toDouble());
  }

  at::Tensor tensor(size_t argument) const { return given_[argument].toTensor(); }
  void deliver(std::initializer_list<at::Tensor> results) {
    int output = tensors_.first_output();
    for (const at::Tensor& result : results) tensors_.deliver(output++, result);
  }

 private:
  static const c10::FunctionSchema& schema() {
    static const c10::OperatorHandle handle =
        c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    return handle.schema();
  }

  const Isolated isolated_;
  KernelTensors tensors_;
  Decoder decoder_;
  const torch::jit::Stack given_;

 public:
  const Attention attention;
};

}  // namespace

// (query, key, value, dropout_p, is_causal, *, attn_mask, scale) -> (output, logsumexp)
void attention_on_device(const graph::Invocation& invocation) {
  AttentionCall<at::_ops::_scaled_dot_product_flash_attention_for_cpu> call(invocation, 0, 3);
  std::optional<Results> results = by_library(call.attention);
  if (!results.has_value()) results = by_products(call.attention);
  call.deliver({results->first, results->second});
}

// (grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, *, attn_mask, scale) ->
// (grad_query, grad_key, grad_value)
void attention_backward_on_device(const graph::Invocation& invocation) {
  AttentionCall<at::_ops::_scaled_dot_product_flash_attention_for_cpu_backward> call(invocation, 1, 6);
  const Attention& a = call.attention;
  const at::Tensor gradient = call.tensor(0).to(at::kFloat);
  const at::Tensor p = probabilities(a.scores(), call.tensor(5));
  const at::Tensor of_p = at::matmul(gradient, a.repeated(a.value).to(at::kFloat).transpose(-2, -1));
  const at::Tensor sums = (gradient * call.tensor(4).to(at::kFloat)).sum(-1, true);
  const at::Tensor of_scores = p * (of_p - sums) * a.scale;
  // Heads of queries share one of keys.
  const auto gathered = [&](const at::Tensor& of_heads, const at::Tensor& like) {
    at::Tensor sum = of_heads;
    if (a.group() != 1) sum = of_heads.unflatten(1, {like.size(1), a.group()}).sum(2);
    return sum.to(like.scalar_type());
  };
  call.deliver({at::matmul(of_scores, a.repeated(a.key).to(at::kFloat)).to(a.query.scalar_type()),
                gathered(at::matmul(of_scores.transpose(-2, -1), a.query.to(at::kFloat)), a.key),
                gathered(at::matmul(p.transpose(-2, -1), gradient), a.value)});
}

}  // namespace hetero::ops
