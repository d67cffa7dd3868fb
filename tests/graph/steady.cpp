#include "tests/graph/steady.h"

#include <stdexcept>

#include "graph/verify.h"

namespace hetero::graph::testing {
namespace {

constexpr int kMostRounds = 4;

// Whether something that is there before and after the program lies elsewhere now.
bool move_on(Graph& graph, const Plan& plan) {
  bool moved = false;
  for (BufferId b = 0; b < graph.buffers.size(); ++b) {
    Buffer& buffer = graph.buffers[b];
    if (!buffer.escapes || buffer.valid_on == 0 || plan.valid_after[b] == 0) continue;
    moved |= buffer.valid_on != plan.valid_after[b];
    buffer.valid_on = plan.valid_after[b];
  }
  return moved;
}

}  // namespace

Steady plan_until_steady(Graph& graph, const PlanOptions& options) {
  Steady steady;
  for (int round = 0; round < kMostRounds; ++round) {
    make_plan(graph, options, steady.plan);
    if (round + 1 < kMostRounds && move_on(graph, steady.plan)) continue;
    break;
  }
  if (const Status legal = verify_plan(graph, steady.plan, options); !legal.ok()) {
    throw std::logic_error(legal.message());
  }
  simulate(graph, steady.plan, CostModel(options), steady.simulation);
  std::vector<uint8_t> counted(graph.buffers.size());
  for (const Instruction& instruction : steady.plan.program) {
    if (instruction.kind != Instruction::Kind::kCopy || instruction.to != backend::kAccelerator) continue;
    const Buffer& buffer = graph.buffers[instruction.index];
    if (!buffer.steady || counted[instruction.index]++ != 0) continue;
    steady.streamed_bytes += buffer.bytes;
  }
  return steady;
}

}  // namespace hetero::graph::testing
