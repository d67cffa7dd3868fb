#include "ops/kernels/in_place.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cmath>

#include "backend/cpu/convolution/image_layout.h"
#include "ops/kernels/kernel.h"
#include "ops/kernels/own_kernel.h"
#include "ops/record/call.h"

namespace hetero::ops {

bool grow_in_place(const graph::Invocation& invocation) {
  const int result = invocation.node->operand_count - 1;
  if (invocation.data[0] != invocation.data[result]) return false;
  run_as_operator(OwnKernel::kGrowth, invocation, [&] {
    const Isolated isolated;
    KernelTensors tensors(invocation);
    const at::Tensor& grown = tensors.operand(result);
    const at::Tensor& first = tensors.operand(0);
    int64_t dimension = 0;
    while (first.size(dimension) == grown.size(dimension)) ++dimension;
    int64_t at = first.size(dimension);
    for (int i = 1; i < result; ++i) {
      const at::Tensor& added = tensors.operand(i);
      if (added.numel() == 0) continue;  // [0] may be any rank
      grown.narrow(dimension, at, added.size(dimension)).copy_(added);
      at += added.size(dimension);
    }
  });
  return true;
}

std::optional<int64_t> row_of(const graph::Window& part, const graph::Window& whole, int along) {
  if (!part.dense || !whole.dense) return {};
  const auto sizes = whole.sizes(), strides = whole.strides();
  const int64_t inner = strides[along], row = sizes[along] * inner, own_row = part.sizes()[along] * inner;
  for (int d = 0; d < whole.rank; ++d) {
    if (part.sizes()[d] == 1) continue;
    const bool within = d == along || strides[d] < row;
    if (!within && strides[d] % row != 0) return {};
    if (part.strides()[d] != (within ? strides[d] : strides[d] / row * own_row)) return {};
  }
  return own_row;
}

namespace {

// By zeros, of which a few calls of the C library are faster than views and copies. False where
// rows of the result are not rows of what is padded.
bool pad_rows(const graph::Invocation& invocation, at::IntArrayRef pads) {
  constexpr int64_t kMostBytes = 1 << 20;  // of few rows; more are worth several threads
  constexpr int64_t kFewRows = 16;
  const graph::Window& from = (*invocation.windows)[invocation.operands[0].window];
  const graph::Window& to = (*invocation.windows)[invocation.operands[1].window];
  if (invocation.operands[0].bits != 0 || invocation.operands[1].bits != 0 || from.numel == 0) return false;
  int along = -1;
  for (size_t i = 0; i + 1 < pads.size(); i += 2) {
    if (pads[i] < 0 || pads[i + 1] < 0) return false;
    if (pads[i] == 0 && pads[i + 1] == 0) continue;
    if (along >= 0) return false;
    along = to.rank - 1 - static_cast<int>(i / 2);
  }
  const std::optional<int64_t> row = along < 0 ? std::nullopt : row_of(from, to, along);
  if (!row) return false;
  const int64_t item = graph::dtype_bytes(to.dtype), inner = to.strides()[along] * item;
  const size_t first = 2 * static_cast<size_t>(to.rank - 1 - along);
  const int64_t rows = to.numel * item / (to.sizes()[along] * inner);
  if (rows < kFewRows && to.numel * item > kMostBytes) return false;
  const backend::RowPiece pieces[] = {
      {nullptr, pads[first] * inner},
      {static_cast<const std::byte*>(invocation.data[0]) + from.offset * item, *row * item},
      {nullptr, pads[first + 1] * inner}};
  backend::concatenate_rows(pieces, rows, static_cast<std::byte*>(invocation.data[1]) + to.offset * item);
  return true;
}

}  // namespace

bool pad_in_place(const graph::Invocation& invocation) {
  const graph::Node& node = *invocation.node;
  const int result = node.operand_count - 1;
  if (result != 1 || invocation.data[result] == nullptr) return false;
  Decoder decoder(invocation.attributes, node.attribute_bytes);
  if (decoder.next() != Tag::kTensor || decoder.operand() != 0) return false;
  // Of the last dimension first: before, behind.
  c10::SmallVector<int64_t, 10> pads;
  const Tag list = decoder.next();
  if (list != Tag::kSizes && list != Tag::kIntegers) return false;
  for (auto left = decoder.get<uint32_t>(); left > 0; --left) {
    pads.push_back(list == Tag::kSizes ? decoder.get_size<int64_t>() : decoder.get<int64_t>());
  }
  const Tag tag = decoder.next();
  if (tag != Tag::kScalar && tag != Tag::kShapeScalar) return false;
  const at::Scalar value = decoder.scalar(tag);
  run_as_operator(OwnKernel::kPad, invocation, [&] {
    const bool negative = value.isFloatingPoint() && std::signbit(value.toDouble());
    if (!negative && value.equal(0) && pad_rows(invocation, pads)) return;
    const Isolated isolated;
    KernelTensors tensors(invocation);
    at::Tensor from = tensors.operand(0), to = tensors.operand(result);
    for (size_t i = 0; i + 1 < pads.size(); i += 2) {
      const int64_t dimension = to.dim() - 1 - static_cast<int64_t>(i / 2);
      const int64_t before = pads[i], behind = pads[i + 1];
      // Of what the dimensions so far leave: what is beside them is filled.
      if (before > 0) to.narrow(dimension, 0, before).fill_(value);
      if (behind > 0) to.narrow(dimension, to.size(dimension) - behind, behind).fill_(value);
      const int64_t cut = std::max<int64_t>(0, -before);
      from = from.narrow(dimension, cut, from.size(dimension) - cut - std::max<int64_t>(0, -behind));
      to = to.narrow(dimension, std::max<int64_t>(0, before), from.size(dimension));
    }
    to.copy_(from);
  });
  return true;
}

}  // namespace hetero::ops
