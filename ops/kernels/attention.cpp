#include "ops/kernels/attention.h"

#include <cmath>
#include <optional>

#include "backend/cpu/kernels/attention.h"
#include "ops/kernels/kernel.h"
#include "ops/kernels/own_kernel.h"
#include "ops/record/call.h"

namespace hetero::ops {
namespace {

using backend::Attention;
using backend::AttentionBackward;
using backend::AttentionOperand;
using backend::Element;

constexpr int64_t kMostKeysPerQuery = 64;

// The operands of a call, one after another, in the order of its schema.
class Operands {
 public:
  explicit Operands(const graph::Invocation& invocation) : invocation_(invocation) {}

  const graph::Window& window(int i) const { return (*invocation_.windows)[invocation_.operands[i].window]; }
  std::byte* address(int i, int64_t item) const {
    return static_cast<std::byte*>(invocation_.data[i]) + window(i).offset * item;
  }
  bool plain(int i) const { return invocation_.operands[i].bits == 0 && invocation_.data[i] != nullptr; }

  // [batches, heads, rows, head_size] of the call's element type.
  bool matrix(int i, const Attention& call, int64_t heads, int64_t rows, AttentionOperand& operand) const {
    const graph::Window& w = window(i);
    if (!plain(i) || w.rank != 4 || element_of(w.dtype) != call.element) return false;
    const auto sizes = w.sizes(), strides = w.strides();
    if (sizes[0] != call.batches || sizes[1] != heads || sizes[2] != rows || sizes[3] != call.head_size) {
      return false;
    }
    if (strides[3] != 1 && sizes[3] != 1) return false;
    operand = {address(i, element_bytes(call.element)), strides[0], strides[1], strides[2]};
    return true;
  }

  bool queries(int i, const Attention& call, AttentionOperand& operand) const {
    return matrix(i, call, call.heads, call.queries, operand);
  }
  bool keys(int i, const Attention& call, AttentionOperand& operand) const {
    return matrix(i, call, call.kv_heads, call.keys, operand);
  }

  // [batches, heads, queries] of float32.
  bool logsumexp(int i, Attention& call) const {
    const graph::Window& w = window(i);
    if (!plain(i) || w.rank != 3 || element_of(w.dtype) != Element::kFloat32) return false;
    const auto sizes = w.sizes(), strides = w.strides();
    if (sizes[0] != call.batches || sizes[1] != call.heads || sizes[2] != call.queries) return false;
    call.logsumexp = {address(i, sizeof(float)), strides[0], strides[1], strides[2]};
    return true;
  }

  // [queries, keys] or [batches, heads, queries, keys], where each size may be 1.
  bool mask(int i, Attention& call) const {
    const graph::Window& w = window(i);
    const std::optional<Element> element = element_of(w.dtype);
    if (!plain(i) || !element || (w.rank != 2 && w.rank != 4)) return false;
    const int64_t wanted[4] = {call.batches, call.heads, call.queries, call.keys};
    int64_t strides[4] = {};
    for (int d = 0; d < w.rank; ++d) {
      const int dimension = 4 - w.rank + d;
      const int64_t size = w.sizes()[d];
      if (size == 1) continue;
      if (size != wanted[dimension]) return false;
      strides[dimension] = w.strides()[d];
    }
    if (strides[3] > 1) return false;
    call.mask = {*element, address(i, element_bytes(*element)), strides[0], strides[1], strides[2], strides[3]};
    return true;
  }

 private:
  const graph::Invocation& invocation_;
};

// What the attributes say beside the operands.
struct Attributes {
  bool causal = false;
  bool mask = false;  // the operand after the other inputs
  std::optional<double> scale;
};

// The arguments: `tensors` of them, dropout_p, is_causal, attn_mask, scale.
bool read(const graph::Invocation& invocation, int tensors, Attributes& attributes) {
  Decoder decoder(invocation.attributes, invocation.node->attribute_bytes);
  for (int i = 0; i < tensors; ++i) {
    if (decoder.next() != Tag::kTensor) return false;
  }
  const Tag dropout = decoder.next();
  if ((dropout != Tag::kReal && dropout != Tag::kShapeReal) || decoder.real(dropout) != 0) return false;
  if (decoder.next() != Tag::kBoolean) return false;
  attributes.causal = decoder.get<uint8_t>() != 0;
  const Tag mask = decoder.next();
  // Autograd gives an undefined tensor for none.
  if (mask != Tag::kTensor && mask != Tag::kNone && mask != Tag::kUndefined) return false;
  attributes.mask = mask == Tag::kTensor;
  const Tag scale = decoder.next();
  if (scale == Tag::kNone) return true;
  if (scale != Tag::kReal && scale != Tag::kShapeReal) return false;
  attributes.scale = decoder.real(scale);
  return true;
}

// The sizes of a call whose query and key are these operands.
bool read_sizes(const Operands& operands, int query, int key, const Attributes& attributes, Attention& call) {
  const graph::Window &q = operands.window(query), &k = operands.window(key);
  const std::optional<Element> element = element_of(q.dtype);
  if (!element || q.rank != 4 || k.rank != 4 || q.numel == 0 || k.numel == 0) return false;
  call.element = *element;
  call.causal = attributes.causal;
  call.batches = q.sizes()[0];
  call.heads = q.sizes()[1];
  call.kv_heads = k.sizes()[1];
  call.queries = q.sizes()[2];
  call.head_size = q.sizes()[3];
  call.keys = k.sizes()[2];
  if (call.heads % call.kv_heads != 0) return false;
  call.scale = static_cast<float>(attributes.scale.value_or(1 / std::sqrt(static_cast<double>(call.head_size))));
  return true;
}

// forward(query, key, value, [mask]) -> (out, logsumexp)
bool recognize(const graph::Invocation& invocation, Attention& call) {
  Attributes attributes;
  if (!read(invocation, 3, attributes)) return false;
  const int inputs = attributes.mask ? 4 : 3;
  if (invocation.node->operand_count != inputs + 2 || invocation.node->output_count != 2) return false;
  const Operands operands(invocation);
  return read_sizes(operands, 0, 1, attributes, call) && operands.queries(0, call, call.q) &&
         operands.keys(1, call, call.k) && operands.keys(2, call, call.v) &&
         (!attributes.mask || operands.mask(3, call)) && operands.queries(inputs, call, call.out) &&
         operands.logsumexp(inputs + 1, call);
}

// backward(grad_out, query, key, value, out, logsumexp, [mask]) -> (grad_query, grad_key,
// grad_value)
bool recognize(const graph::Invocation& invocation, AttentionBackward& backward) {
  Attributes attributes;
  if (!read(invocation, 6, attributes)) return false;
  const int inputs = attributes.mask ? 7 : 6;
  if (invocation.node->operand_count != inputs + 3 || invocation.node->output_count != 3) return false;
  const Operands operands(invocation);
  Attention& call = backward.call;
  if (!read_sizes(operands, 1, 2, attributes, call)) return false;
  // Packing many keys for few queries costs more than it gains, save for 2-byte floats, which ATen
  // rounds and packs more often.
  const int64_t queries = call.queries * (call.heads / call.kv_heads);
  if (call.element == Element::kFloat32 && call.keys > kMostKeysPerQuery * queries) return false;
  return operands.queries(0, call, backward.grad_out) && operands.queries(1, call, call.q) &&
         operands.keys(2, call, call.k) && operands.keys(3, call, call.v) && operands.queries(4, call, call.out) &&
         operands.logsumexp(5, call) && (!attributes.mask || operands.mask(6, call)) &&
         operands.queries(inputs, call, backward.grad_q) && operands.keys(inputs + 1, call, backward.grad_k) &&
         operands.keys(inputs + 2, call, backward.grad_v);
}

}  // namespace

bool run_attention(const graph::Invocation& invocation) {
  Attention call;
  if (!last_bits_may_differ() || !recognize(invocation, call)) return false;
  Isolated isolated(Isolated::Threads::kOurs);
  call.tiles = config().tiles.load(std::memory_order_relaxed);
  run_as_operator(OwnKernel::kAttention, invocation, [&] { backend::attention_forward(call); });
  return true;
}

bool run_attention_backward(const graph::Invocation& invocation) {
  AttentionBackward backward;
  if (!last_bits_may_differ() || !recognize(invocation, backward)) return false;
  Isolated isolated(Isolated::Threads::kOurs);
  run_as_operator(OwnKernel::kAttentionBackward, invocation, [&] { backend::attention_backward(backward); });
  return true;
}

AttentionCounts attention_counts() {
  const auto runs = [](OwnKernel kernel) { return counters().own_kernels[static_cast<size_t>(kernel)].load(); };
  return {runs(OwnKernel::kAttention), runs(OwnKernel::kAttentionBackward)};
}

}  // namespace hetero::ops
