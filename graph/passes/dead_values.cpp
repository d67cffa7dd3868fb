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

#include "graph/passes/passes.h"

namespace hetero::graph {

void drop_dead_values(const Graph& graph, Plan& plan, Scratch& scratch) {
  std::vector<uint8_t>& needed = scratch.needed;
  needed.resize(graph.buffers.size());
  for (size_t b = 0; b < needed.size(); ++b) needed[b] = graph.buffers[b].escapes;
  plan.live.resize(graph.nodes.size());
  plan.dead_nodes = 0;

  const OpTable& ops = op_table();
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    const Operand* const first = graph.operands_of(node);
    const Operand* const end = first + node.operand_count;
    bool live = false;
    for (const Operand* o = first; o != end; ++o) live |= o->writes() && needed[o->buffer];
    live = live || ops[node.op].side_effects;
    plan.live[n] = live;
    if (!live) {
      ++plan.dead_nodes;
      continue;
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
}

}  // namespace hetero::graph
