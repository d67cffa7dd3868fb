#include "graph/ir/compare.h"

#include <algorithm>
#include <cstring>

namespace hetero::graph {

bool same_arguments(const Graph& a, const Node& x, const Graph& b, const Node& y) {
  return x.attribute_bytes == y.attribute_bytes &&
         std::memcmp(a.attributes.data() + x.attribute_offset, b.attributes.data() + y.attribute_offset,
                     x.attribute_bytes) == 0;
}

Difference compare(const Graph& a, const Graph& b, bool (*same_window)(const Window&, const Window&),
                   const std::function<bool(const Node&, const Node&)>& same_arguments) {
  using Kind = Difference::Kind;
  const auto same_operand = [&](const Operand& x, const Operand& y) {
    return same_but_window(x, y) && same_window((*a.windows)[x.window], (*b.windows)[y.window]);
  };
  for (uint32_t n = 0; n < std::min(a.nodes.size(), b.nodes.size()); ++n) {
    const Node& x = a.nodes[n];
    const Node& y = b.nodes[n];
    if (!same_call(x, y)) return {Kind::kCall, n};
    const Operand* const first = a.operands_of(x);
    if (!std::equal(first, first + x.operand_count, b.operands_of(y), same_operand)) return {Kind::kOperands, n};
    if (same_arguments && !same_arguments(x, y)) return {Kind::kArguments, n};
  }
  if (a.nodes.size() != b.nodes.size()) return {Kind::kCount};
  if (!std::ranges::equal(a.buffers, b.buffers, same_but_bytes)) return {Kind::kBuffers};
  return {};
}

}  // namespace hetero::graph
