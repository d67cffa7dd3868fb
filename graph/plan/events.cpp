// Events: the waits that the order needs become records and waits in the program.
//
// 1. Take the waits that compute_clocks could not do without, for whole transfers (transfers.cpp).
// 2. Each instruction that is waited for gets one event, recorded right after it; several waits
//    share the record.
// 3. Rewrite the program: before each instruction its waits, after it its record. Move the
//    lifetimes along.

#include "graph/plan/passes.h"

namespace hetero::graph {

void insert_events(Plan& plan, Scratch& scratch) {
  order_transfers(plan, scratch);
  compute_clocks(plan, scratch);
  scratch.event_of.assign(plan.program.size(), 0);
  for (const auto& [waiter, producer] : scratch.waits) scratch.event_of[producer] = 1;

  scratch.program.clear();
  scratch.positions.resize(plan.program.size());
  plan.event_count = 0;
  auto wait = scratch.waits.begin();
  for (uint32_t i = 0; i < plan.program.size(); ++i) {
    const Instruction& instruction = plan.program[i];
    for (; wait != scratch.waits.end() && wait->first == i; ++wait) {
      scratch.program.push_back(Instruction::wait(instruction.queue, scratch.event_of[wait->second] - 1));
    }
    scratch.positions[i] = static_cast<uint32_t>(scratch.program.size());
    scratch.program.push_back(instruction);
    if (scratch.event_of[i] == 0) continue;
    scratch.program.push_back(Instruction::record(instruction.queue, plan.event_count));
    scratch.event_of[i] = ++plan.event_count;
  }
  plan.program.swap(scratch.program);
  const auto move = [&scratch](Residence& residence) {
    residence.first = scratch.positions[residence.first];
    residence.last = scratch.positions[residence.last];
  };
  for (Residence& residence : plan.residences) {
    if (residence.home != Home::kNone) move(residence);
  }
  for (Return& entry : plan.returns) move(entry.residence);
}

}  // namespace hetero::graph
