// Whether two graphs are the same program for other sizes.
//
// They are when each call of one is the same call in the other: the same operator with the same
// operands and arguments, where only windows, the bytes of buffers and some numbers differ. A plan
// for one can then become a plan for the other (resize_plan), and numbers that differ can be fitted
// to the sizes (fit_sizes). What may differ in a window and in the arguments depends on who asks.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>
#include <functional>

#include "graph/ir/graph.h"

namespace hetero::graph {

// Everything but where its operands and attributes lie in the graph.
inline bool same_call(const Node& a, const Node& b) {
  return a.op == b.op && a.operand_count == b.operand_count && a.output_count == b.output_count &&
         a.preference == b.preference && a.attribute_bytes == b.attribute_bytes;
}
// Everything but the window.
inline bool same_but_window(const Operand& a, const Operand& b) {
  return a.buffer == b.buffer && a.access == b.access && a.bits == b.bits;
}
// Everything that a plan depends on but bytes: what is valid where, what is seen afterwards, how it
// is laid out.
inline bool same_but_bytes(const Buffer& a, const Buffer& b) {
  return a.valid_on == b.valid_on && a.escapes == b.escapes && a.takes == b.takes &&
         a.layout.has_gaps() == b.layout.has_gaps();
}
// All arguments, byte by byte.
bool same_arguments(const Graph& a, const Node& x, const Graph& b, const Node& y);

// The same kind: dtype, rank, and which dimensions are of size 1 or of stride 0 or 1.
inline bool same_kind(const Window& a, const Window& b) { return a.kind == b.kind; }
inline bool same_rank(const Window& a, const Window& b) { return a.dtype == b.dtype && a.rank == b.rank; }

struct Difference {
  enum class Kind : uint8_t { kNone, kCall, kOperands, kArguments, kCount, kBuffers };
  Kind kind = Kind::kNone;
  uint32_t node = 0;  // the first of which it is true, where it is one of a node
};

// The first difference that is none of sizes. `same_arguments(x, y)` compares the arguments of two
// nodes of the same operator and as many bytes of arguments; none: they are not compared.
Difference compare(const Graph& a, const Graph& b, bool (*same_window)(const Window&, const Window&),
                   const std::function<bool(const Node&, const Node&)>& same_arguments);

}  // namespace hetero::graph
