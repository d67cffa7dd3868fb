// OperatorRow: what the op table (op_table.def) says of an operator, as data.
//
// Recording, shape inference and the checks of saved programs ask here, by name, for what no schema
// says. What only code can say, own kernels and lowerings, stands in the same rows; the rooms that
// have the code read it there.
//
// Thread safety: any thread. Rows live for ever.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "graph/ir/op.h"

namespace hetero::ops {

enum class ShapeRule : uint8_t {
  kNone,
  kBroadcast,  // all tensor arguments, broadcast
  kSame,       // the first tensor's sizes
  kSameTwice,  // two results of the first tensor's sizes
  kMatmul,     // the product of the last two tensors
  // The first tensor without the dimensions of the first list or number; a flag keeps them.
  kReduce,
  kConcatenate,
  kEmbedding,
  kLayerNorm,
  kAttention,
  kAttentionBackward,
  kConvolution,          // of row-major tensors, and of those with channels last
  kConvolutionBackward,  // of row-major tensors
};

// What the arguments of a call must be to mean something, where neither the CPU's kernel nor the
// Meta kernel looks.
enum class ArgumentMeaning : uint8_t {
  kAny,
  kEmbeddingBag,  // a mode that there is
  kFft,           // dimensions that there are, each once
  kFftOfReals,    // and at least one of them
  kFftToReals,    // and as many elements as the input has
  kHeads,         // at least one head
};

// Arguments, as a set.
struct ArgumentSet {
  uint32_t bits = 0;
  constexpr bool has(size_t argument) const { return argument < 32 && (bits >> argument & 1) != 0; }
  constexpr bool empty() const { return bits == 0; }
};
template <typename... I>
constexpr ArgumentSet arguments_at(I... index) {
  return {((1u << index) | ... | 0u)};
}

// Arguments that an operator writes although its schema does not say so, where the flag among its
// arguments is set.
struct HiddenWrites {
  uint32_t flag = 0;
  ArgumentSet arguments;
  constexpr bool some() const { return !arguments.empty(); }
};

struct OperatorRow {
  static constexpr size_t kNoRow = SIZE_MAX;

  std::string name;       // "aten::add.Tensor"
  size_t index = kNoRow;  // in the table
  graph::OpClass op_class = graph::OpClass::kOther;
  ShapeRule shape_rule = ShapeRule::kNone;
  ArgumentMeaning meaning = ArgumentMeaning::kAny;
  HiddenWrites hidden_writes;
  ArgumentSet statistics;  // see STATISTICS in op_table.def
  int result_sizes = -1;
  // As the words of op_table.def say.
  bool tail = false;
  bool grows = false;
  bool host_task = false;
  bool keeps_layout = false;
  bool leads = false;
  bool overwrites = false;
  bool recorded = false;
  bool whole = false;
  bool dynamic_shape = false;
  bool cpu_tensors = false;
  bool cpu_indices = false;
  bool takes_by_mask = false;
  bool any_numbers = false;
  bool layout_by_size = false;
  bool takes_pivots = false;
  bool checks_arguments = false;
  bool checks_numbers = false;
  bool no_device_out = false;
};

// Whether it is an operator of PyTorch's core, by the namespace of its name.
inline bool is_aten(std::string_view name) { return name.starts_with("aten::"); }

// What the table says of an operator: its row, and what holds for its families.
OperatorRow describe_operator(std::string_view name);

}  // namespace hetero::ops
