// Transfers: small copies of one queue come together, so that the link's latency is paid once for
// all of them.
//
//   1. Walk the program with, for each copy queue, the transfer that is open. A small copy joins it
//      where all that it must come after was submitted before the transfer, and its bytes still
//      fit. Which of them join is tried in two ways: those that would have nothing to wait for
//      there but what the transfer waits for itself; and also those that it has to wait for.
//   2. The copies that join move up to the transfer.
//   3. Nobody sees a part of a transfer: it waits at its beginning for what any of its copies waits
//      for, and who needs one of them waits for its end (order_transfers). So neither waits nor
//      records come between its copies, and what runs the program finds them side by side.
// Whether that takes less time than copies by themselves, the caller finds out by simulating the
// whole.

#include <algorithm>

#include "graph/plan/passes.h"

namespace hetero::graph {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

class Walk {
 public:
  Walk(const Graph& graph, const Plan& plan, const Scratch& scratch, Joining joining)
      : graph_(graph), plan_(plan), scratch_(scratch), joining_(joining) {}

  // Per instruction, the first copy of the transfer that it joins, or kNone. Returns how many join.
  uint32_t run(std::vector<uint32_t>& joins) {
    uint32_t count = 0;
    joins.assign(plan_.program.size(), kNone);
    for (uint32_t i = 0; i < plan_.program.size(); ++i) {
      const Instruction& instruction = plan_.program[i];
      if (!instruction.is_copy()) continue;
      const uint64_t bytes = graph_.buffers[instruction.index].bytes;
      const uint64_t most = plan_.transfer_bytes[instruction.to];
      if (bytes > most) continue;
      Open& open = open_[instruction.queue];
      const bool same_way = open.first != kNone && plan_.program[open.first].from == instruction.from;
      if (same_way && open.bytes + bytes <= most && may_join(i, open.first)) {
        joins[i] = open.first;
        open.bytes += bytes;
        ++count;
      } else {
        open = {i, bytes};
      }
    }
    return count;
  }

 private:
  struct Open {
    uint32_t first = kNone;
    uint64_t bytes = 0;
  };

  bool may_join(uint32_t i, uint32_t first) const {
    // Until bytes come back, users of those that were there before them come first; these are not
    // among what the copy must come after.
    if (plan_.program[i].stay != 0) return false;
    const Clock& requirement = scratch_.requirements[i];
    const Clock& known = scratch_.clocks[first];
    for (QueueId queue = 0; queue < queue_count(plan_.device_count); ++queue) {
      if (requirement[queue] > first) return false;
      if (joining_ == Joining::kReady && queue != plan_.program[i].queue && requirement[queue] > known[queue]) {
        return false;
      }
    }
    return true;
  }

  const Graph& graph_;
  const Plan& plan_;
  const Scratch& scratch_;
  const Joining joining_;
  Open open_[kMaxQueues];
};

}  // namespace

bool join_copies(const Graph& graph, Joining joining, Plan& plan, Scratch& scratch) {
  std::vector<uint32_t>& joins = scratch.joins;
  if (Walk(graph, plan, scratch, joining).run(joins) == 0) return false;
  // Per copy, the next one of its transfer.
  scratch.next_copy.assign(joins.size(), kNone);
  for (uint32_t i = static_cast<uint32_t>(joins.size()); i-- > 0;) {
    if (joins[i] == kNone) continue;
    scratch.next_copy[i] = scratch.next_copy[joins[i]];
    scratch.next_copy[joins[i]] = i;
  }
  scratch.program.clear();
  scratch.joined.clear();
  for (uint32_t i = 0; i < joins.size(); ++i) {
    if (joins[i] != kNone) continue;
    for (uint32_t copy = i; copy != kNone; copy = scratch.next_copy[copy]) {
      scratch.program.push_back(plan.program[copy]);
      scratch.joined.push_back(copy != i);
    }
  }
  plan.program.swap(scratch.program);
  return true;
}

uint32_t end_of_joined(const Scratch& scratch, uint32_t first) {
  uint32_t end = first + 1;
  while (end < scratch.joined.size() && scratch.joined[end] != 0) ++end;
  return end;
}

void order_transfers(const Plan& plan, Scratch& scratch) {
  if (scratch.joined.empty()) return;
  const auto size = static_cast<uint32_t>(plan.program.size());
  // Per number of instructions of a queue's order: the same, or that of the whole transfer.
  std::vector<uint32_t>& whole = scratch.whole;
  whole.resize(size + 1);
  whole[0] = 0;
  for (uint32_t first = 0, end = 0; first < size; first = end) {
    end = end_of_joined(scratch, first);
    for (uint32_t i = first; i < end; ++i) whole[i + 1] = end;
    for (uint32_t i = first + 1; i < end; ++i) {
      merge(scratch.requirements[first], scratch.requirements[i]);
      scratch.requirements[i] = {};
    }
    if (end > first + 1) scratch.requirements[first][plan.program[first].queue] = 0;
  }
  for (Clock& requirement : scratch.requirements) {
    for (uint32_t& before : requirement) before = whole[before];
  }
}

}  // namespace hetero::graph
