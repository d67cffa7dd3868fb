// Dead values: which nodes need not run.
//
// Classical liveness, one sweep from the last node to the first, with a bit per buffer for "what it
// holds here is needed":
//   1. After the last node, exactly the escaping buffers are needed.
//   2. A node lives if it has side effects or writes a needed buffer.
//   3. A live node that overwrites a buffer completely without reading it ends the need for what
//      was there before.
//   4. A live node needs what it reads. A dead node needs nothing.
// A partial write keeps the need: the other bytes still come from before.

#include "graph/ir/liveness.h"
#include "graph/plan/passes.h"

namespace hetero::graph {

uint32_t find_live(const Graph& graph, std::vector<uint8_t>& needed, std::vector<uint8_t>& live) {
  uint32_t dead_nodes = 0;
  const OpTable& ops = op_table();
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    const Operand* const first = graph.operands_of(node);
    const Operand* const end = first + node.operand_count;
    if (live[n] == 0) {
      bool wanted = ops[node.op].side_effects;
      for (const Operand* o = first; o != end; ++o) wanted |= o->writes() && needed[o->buffer];
      if (!wanted) {
        ++dead_nodes;
        continue;
      }
      live[n] = 1;
    }
    for (const Operand* o = first; o != end; ++o) {
      if (o->writes() && overwrites(*graph.windows, *o, graph.buffers[o->buffer])) {
        needed[o->buffer] = 0;
      }
    }
    for (const Operand* o = first; o != end; ++o) {
      if (o->reads()) needed[o->buffer] = 1;
    }
  }
  return dead_nodes;
}

void drop_dead_values(const Graph& graph, Plan& plan, Scratch& scratch) {
  std::vector<uint8_t>& needed = scratch.needed;
  needed.resize(graph.buffers.size());
  for (size_t b = 0; b < needed.size(); ++b) needed[b] = graph.buffers[b].escapes;
  plan.live.assign(graph.nodes.size(), 0);
  plan.dead_nodes = find_live(graph, needed, plan.live);
}

}  // namespace hetero::graph
