// Order: what each instruction must come after, on other queues than its own.
//
//   1. Walk the program with, for the bytes of each buffer on each device, the last instruction of
//      every queue that touched and that wrote them. A reader requires the last writers; a writer
//      requires everyone. Queues are in order, so one position per queue says it all.
//   2. Walk again with a vector clock per queue (Fidge/Mattern 1988): what every queue is known to
//      have run. A requirement that the clock does not cover costs a wait, after which the clock
//      also knows what the awaited instruction knew.
// The host submits in program order and runs its own queue while submitting, so every instruction
// is after all earlier ones of the host's queue, and after whatever these waited for.

#include <algorithm>

#include "graph/passes/passes.h"

namespace hetero::graph {
namespace {

void touch(Touches& touches, bool writes, QueueId queue, uint32_t position, Clock& requirement) {
  merge(requirement, writes ? touches.any : touches.write);
  touches.any[queue] = position + 1;
  if (writes) touches.write[queue] = position + 1;
}

}  // namespace

void order_queues(const Graph& graph, const Plan& plan, Scratch& scratch) {
  scratch.touches.assign(graph.buffers.size() * backend::kMaxDevices, {});
  scratch.requirements.assign(plan.program.size(), {});
  const auto bytes_of = [&scratch](BufferId buffer, backend::DeviceIndex device) -> Touches& {
    return scratch.touches[buffer * backend::kMaxDevices + device];
  };
  for (uint32_t i = 0; i < plan.program.size(); ++i) {
    const Instruction& instruction = plan.program[i];
    const QueueId queue = instruction.queue;
    Clock& requirement = scratch.requirements[i];
    if (instruction.kind == Instruction::Kind::kCopy) {
      touch(bytes_of(instruction.index, instruction.from), false, queue, i, requirement);
      touch(bytes_of(instruction.index, instruction.to), true, queue, i, requirement);
      continue;
    }
    const Node& node = graph.nodes[instruction.index];
    const Operand* operands = graph.operands_of(node);
    for (int k = 0; k < node.operand_count; ++k) {
      Touches& touches = bytes_of(operands[k].buffer, device_of(queue));
      touch(touches, operands[k].writes(), queue, i, requirement);
    }
    // Two operands of one node on one buffer must not make it wait for itself.
    requirement[queue] = 0;
  }
  compute_clocks(plan, scratch);
}

void compute_clocks(const Plan& plan, Scratch& scratch) {
  std::array<Clock, kMaxQueues> known{};  // per queue: what its next instruction is after
  Clock host{};
  scratch.clocks.resize(plan.program.size());
  scratch.waits.clear();
  for (uint32_t i = 0; i < plan.program.size(); ++i) {
    const QueueId queue = plan.program[i].queue;
    const Clock& requirement = scratch.requirements[i];
    Clock now = known[queue];
    merge(now, host);
    now[kHostQueue] = i;
    while (true) {
      // The latest first: it is the likeliest to cover the others.
      uint32_t latest = 0;
      for (int q = 0; q < kMaxQueues; ++q) {
        if (q != queue && requirement[q] > now[q]) latest = std::max(latest, requirement[q]);
      }
      if (latest == 0) break;
      const uint32_t producer = latest - 1;
      scratch.waits.emplace_back(i, producer);
      merge(now, scratch.clocks[producer]);
      now[plan.program[producer].queue] = latest;
    }
    scratch.clocks[i] = now;
    now[queue] = i + 1;
    known[queue] = now;
    if (queue == kHostQueue) host = now;
  }
}

}  // namespace hetero::graph
