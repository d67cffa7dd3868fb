// The verifier replays a program on paper. It follows what memory would hold, what each queue would
// know, and who would be using which bytes, and compares that with what the graph says. It includes
// nothing with graph/plan/, so that a wrong idea in a pass is not repeated here.

#include "graph/verify/verify.h"

#include <algorithm>
#include <optional>
#include <string>

#include "graph/fusion/footprint.h"
#include "graph/verify/usage.h"

namespace hetero::graph {
namespace {

using backend::DeviceIndex;
using backend::kCpu;
using Kind = Instruction::Kind;

// The bytes that an operand may touch. An empty buffer counts as one that everybody touches: its
// values have an order too.
ByteRange range_of(const Graph& graph, const Operand& operand) {
  const Buffer& buffer = graph.buffers[operand.buffer];
  if (buffer.bytes == 0 || overwrites(*graph.windows, operand, buffer)) return {0, INT64_MAX};
  const Window& window = (*graph.windows)[operand.window];
  return {window.first_byte, window.last_byte};
}

class PlanVerifier {
 public:
  PlanVerifier(const Graph& graph, const Plan& plan, const PlanOptions& options)
      : graph_(graph), plan_(plan), options_(options), usage_{graph, plan} {}

  Status run() {
    using Check = Status (PlanVerifier::*)();
    constexpr Check kChecks[] = {
        &PlanVerifier::check_sizes,      &PlanVerifier::check_placements, &PlanVerifier::check_program,
        &PlanVerifier::check_dead_nodes, &PlanVerifier::check_events,     &PlanVerifier::check_contents,
        &PlanVerifier::check_hazards,    &PlanVerifier::check_memory,     &PlanVerifier::check_groups};
    for (const Check check : kChecks) {
      if (Status status = (this->*check)(); !status.ok()) return status;
    }
    return Status();
  }

 private:
  struct Write {
    uint32_t node;
    ByteRange range;
    WindowId window;
    bool whole;
    bool dense;  // leaves no byte of the range as it was
  };
  // What the bytes of a residence are made of: the writes applied since the last whole one. What a
  // body has written is not what its node writes: see body().
  struct Contents {
    bool known = false;
    std::vector<uint32_t> writes;
  };
  // In Contents::writes, what the body of a node has written, until its tail makes the node's write
  // of it.
  static uint32_t body(uint32_t node) { return ~node; }

  const OpTraits& traits_of(uint32_t node) const { return op_table()[graph_.nodes[node].op]; }

  Status check_sizes() {
    if (plan_.device_count == 0 || plan_.device_count > backend::kMostDevices) {
      return violation("the plan is for a number of devices that cannot be");
    }
    const size_t nodes = graph_.nodes.size();
    const size_t buffers = graph_.buffers.size();
    if (plan_.live.size() != nodes || plan_.placements.size() != nodes || plan_.valid_after.size() != buffers ||
        plan_.residences.size() != buffers * plan_.device_count) {
      return violation("the plan is of another graph");
    }
    if (!plan_.fusion.empty() && plan_.fusion.size() != nodes)
      return violation("the plan's notes are of another graph");
    if (plan_.event_count > plan_.program.size()) return violation("the plan has more events than instructions");
    return Status();
  }

  Status check_placements() {
    for (uint32_t n = 0; n < graph_.nodes.size(); ++n) {
      const DeviceIndex device = plan_.placements[n].device;
      if (!plan_.live[n] || device == kCpu) continue;
      if (device >= plan_.device_count || !options_.machine.has(device)) {
        return violation(name("n", n) + " is placed on a device that is not there");
      }
      if (!runs_on(traits_of(n), options_, device)) {
        return violation(name("n", n) + " is placed on the accelerator, which cannot run it");
      }
    }
    return Status();
  }

  // Instructions mean something, and every live node runs once. Collects who touches what.
  Status check_program() {
    std::vector<uint8_t> runs(graph_.nodes.size());
    std::vector<uint8_t> group_runs(plan_.groups.size());
    bodies_.resize(graph_.nodes.size());
    usage_.touches.resize(plan_.residences.size() + plan_.returns.size());
    usage_.accesses.resize(plan_.residences.size() + plan_.returns.size());
    places_.resize(plan_.residences.size());
    for (size_t r = 0; r < places_.size(); ++r) places_[r] = r;
    const bool one_queue = std::ranges::all_of(
        plan_.program, [](const Instruction& instruction) { return instruction.queue == kHostQueue; });
    for (uint32_t p = 0; p < plan_.program.size(); ++p) {
      const Instruction& instruction = plan_.program[p];
      if (instruction.queue >= queue_count(plan_.device_count)) return violation(name("p", p) + ": no such queue");
      // The executor makes batches only where the CPU runs everything.
      if (!one_queue && instruction.kind == Kind::kBatch) {
        return violation(name("p", p) + " joins calls in a program of several queues");
      }
      Status status;
      if (instruction.kind == Kind::kRun) {
        status = check_run(p, instruction, runs);
      } else if (instruction.kind == Kind::kBatch) {
        status = check_batch(p, instruction, runs);
      } else if (instruction.kind == Kind::kBody) {
        status = check_body(p, instruction, runs);
      } else if (instruction.kind == Kind::kCopy) {
        status = check_copy(p, instruction);
      } else if (instruction.kind == Kind::kFused) {
        status = check_fused(p, instruction, runs, group_runs);
      }
      if (!status.ok()) return status;
    }
    for (uint32_t n = 0; n < runs.size(); ++n) {
      if (plan_.live[n] && !runs[n]) return violation(name("n", n) + " lives but never runs");
    }
    return Status();
  }

  // Its calls may run in any order.
  Status check_batch(uint32_t p, const Instruction& instruction, std::vector<uint8_t>& runs) {
    if (instruction.index >= plan_.batches.size()) return violation(name("p", p) + " runs a batch that is not there");
    const std::vector<Instruction>& calls = plan_.batches[instruction.index];
    if (instruction.queue != kHostQueue || calls.empty() || calls.size() > kMaxBatch) {
      return violation(name("p", p) + " runs a batch that cannot run");
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      if (calls[i].queue != kHostQueue || (calls[i].kind != Kind::kRun && calls[i].kind != Kind::kBody)) {
        return violation(name("t", instruction.index) + " has a call that is none");
      }
      const Status status = calls[i].kind == Kind::kRun ? check_run(p, calls[i], runs) : check_body(p, calls[i], runs);
      if (!status.ok()) return status;
      for (size_t j = 0; j < i; ++j) {
        if (Status s = check_pair(graph_.nodes[calls[i].index], graph_.nodes[calls[j].index]); !s.ok()) return s;
      }
    }
    return Status();
  }

  Status check_pair(const Node& a, const Node& b) const {
    const OpTraits &of_a = op_table()[a.op], &of_b = op_table()[b.op];
    if (of_a.run_together == nullptr || of_a.run_together != of_b.run_together)
      return violation("calls of a batch that cannot run together");
    for (int i = 0; i < a.operand_count; ++i) {
      for (int j = 0; j < b.operand_count; ++j) {
        if (conflicts(*graph_.windows, graph_.operands_of(a)[i], graph_.operands_of(b)[j])) {
          return violation("a call of a batch must come before another");
        }
      }
    }
    if (of_a.shared_operand >= a.operand_count || of_b.shared_operand >= b.operand_count) {
      return violation("calls of a batch that share no operand");
    }
    const Operand& x = graph_.operands_of(a)[of_a.shared_operand];
    const Operand& y = graph_.operands_of(b)[of_b.shared_operand];
    if (x.buffer != y.buffer || x.window != y.window) return violation("calls of a batch that share no operand");
    return Status();
  }

  // The first part of a node whose tail runs later, as a member of a group.
  Status check_body(uint32_t p, const Instruction& instruction, std::vector<uint8_t>& runs) {
    const uint32_t n = instruction.index;
    if (Status status = check_run(p, instruction, runs); !status.ok()) return status;
    if (!traits_of(n).has_tail) return violation(name("n", n) + " runs in parts but has no tail");
    runs[n] = 0;
    bodies_[n] = 1;
    return Status();
  }

  Status check_run(uint32_t p, const Instruction& instruction, std::vector<uint8_t>& runs) {
    const uint32_t n = instruction.index;
    if (Status status = check_node(p, instruction, n, runs); !status.ok()) return status;
    const size_t device = device_of(instruction.queue);
    const Node& node = graph_.nodes[n];
    for (int i = 0; i < node.operand_count; ++i) {
      const Operand& operand = graph_.operands_of(node)[i];
      usage_.touches[place_of(operand.buffer, device)].push_back(touch_of(p, instruction.queue, n, operand));
    }
    return Status();
  }

  // The kernel touches the group's operands; its members' operands keep their order with other
  // instructions, but for bytes that they need not read.
  Status check_fused(uint32_t p, const Instruction& instruction, std::vector<uint8_t>& runs,
                     std::vector<uint8_t>& group_runs) {
    if (instruction.index >= plan_.groups.size()) return violation(name("p", p) + " runs a group that is not there");
    if (group_runs[instruction.index]++) return violation(name("g", instruction.index) + " runs twice");
    const FusedGroup& group = plan_.groups[instruction.index];
    if (group.members.empty()) return violation(name("g", instruction.index) + " has no members");
    for (const GroupOperand& operand : group.operands) {
      if (operand.operand >= graph_.operands.size() || graph_.operands[operand.operand].buffer != operand.buffer) {
        return violation(name("g", instruction.index) + " has an operand that is not there");
      }
    }
    const uint32_t last = group.members.back();
    if (last >= graph_.nodes.size() || traits_of(last).has_tail) {
      return violation(name("g", instruction.index) + " ends with a tail, which says nothing of where it runs");
    }
    if (Status status = check_device(p, instruction, group); !status.ok()) return status;
    for (const uint32_t n : group.members) {
      if (n < graph_.nodes.size() && traits_of(n).has_tail && bodies_[n] != 1) {
        return violation(name("n", n) + " has its tail before its body");
      }
      if (Status status = check_node(p, instruction, n, runs); !status.ok()) return status;
      if (traits_of(n).side_effects) return violation(name("n", n) + " has effects and is fused");
    }
    for (const GroupOperand& operand : group.operands) {
      usage_.touches[place_of(operand.buffer, device_of(instruction.queue))].push_back(
          {.position = p,
           .queue = instruction.queue,
           .writes = operand.stores,
           .range = range_of(graph_, graph_.operands[operand.operand]),
           .node = group.members.back(),
           .brings = false});
    }
    return Status();
  }

  // The accelerator runs the group's kernel, and has kernels for its tails.
  Status check_device(uint32_t p, const Instruction& instruction, const FusedGroup& group) const {
    const DeviceIndex there = device_of(instruction.queue);
    if (there == kCpu) return Status();
    if (!options_.machine.has(there)) return violation(name("p", p) + " runs on a device that is not there");
    const backend::Device* const device = options_.machine[there].device;
    if (!group.prepared || (device != nullptr && !device->can_fuse(group.kernel))) {
      return violation(name("p", p) + " runs a group that the accelerator cannot run");
    }
    for (const uint32_t n : group.members) {
      if (n < graph_.nodes.size() && !runs_on(traits_of(n), options_, there)) {
        return violation(name("n", n) + " runs on the accelerator, which cannot run it");
      }
    }
    return Status();
  }

  // That the node may run here, and that it runs once. Collects who touches what.
  Status check_node(uint32_t p, const Instruction& instruction, uint32_t n, std::vector<uint8_t>& runs) {
    if (n >= graph_.nodes.size()) return violation(name("p", p) + " runs a node that is not there");
    if (!plan_.live[n]) return violation(name("p", p) + " runs the dead node " + name("n", n));
    if (runs[n]++) return violation(name("n", n) + " runs twice");
    const bool grouped = instruction.kind == Kind::kFused;
    const bool is_tail = grouped && traits_of(n).has_tail;
    const DeviceIndex device =
        is_tail ? placement_of(plan_, plan_.groups[instruction.index]).device : plan_.placements[n].device;
    if (device_of(instruction.queue) != device || !backend::is_compute(kind_of(instruction.queue))) {
      return violation(name("n", n) + " runs on another queue than its placement says");
    }
    if (instruction.queue == kWorkerQueue && (instruction.kind != Kind::kRun || !traits_of(n).host_task)) {
      return violation(name("n", n) + " runs on the CPU's worker queue and is no host task");
    }
    const Node& node = graph_.nodes[n];
    for (int i = 0; i < node.operand_count; ++i) {
      const Operand& operand = graph_.operands_of(node)[i];
      if (is_tail && !in_tail(graph_, node, i)) continue;
      const bool unread =
          grouped && !operand.writes() && !touches_any(plan_.groups[instruction.index], operand, &GroupOperand::loads);
      if (unread) continue;
      usage_.accesses[place_of(operand.buffer, device)].push_back(touch_of(p, instruction.queue, n, operand));
    }
    return Status();
  }

  // Where the bytes are at this point of the program: a residence, or a return behind them.
  size_t residence_of(BufferId buffer, size_t device) const { return size_t{buffer} * plan_.device_count + device; }
  size_t place_of(BufferId buffer, size_t device) const { return places_[residence_of(buffer, device)]; }

  Touch touch_of(uint32_t p, QueueId queue, uint32_t n, const Operand& operand) const {
    return {.position = p,
            .queue = queue,
            .writes = operand.writes(),
            .range = range_of(graph_, operand),
            .node = n,
            .brings = queue == kHostQueue && operand.access == Access::kDefine && traits_of(n).brings_memory};
  }

  Status check_copy(uint32_t p, const Instruction& instruction) {
    if (instruction.index >= graph_.buffers.size() || instruction.from >= plan_.device_count ||
        instruction.to >= plan_.device_count || instruction.from == instruction.to) {
      return violation(name("p", p) + " is no copy of a buffer between devices");
    }
    const std::optional<backend::Link> link = options_.machine.link(instruction.from, instruction.to);
    if (!link) return violation(name("p", p) + " copies where there is no link");
    const backend::QueueKind kind = kind_of(instruction.queue);
    if (device_of(instruction.queue) != link->owner || (kind != link->queue && kind != link->urgent)) {
      return violation(name("p", p) + " copies on the wrong queue");
    }
    if (instruction.stay != 0) {
      const size_t r = instruction.stay - 1;
      if (r >= plan_.returns.size() || plan_.returns[r].buffer != instruction.index ||
          plan_.returns[r].device != instruction.to || !usage_.touches[plan_.residences.size() + r].empty()) {
        return violation(name("p", p) + " begins a return that is not its own");
      }
    }
    for (const DeviceIndex device : {instruction.from, instruction.to}) {
      if (device == instruction.to && instruction.stay != 0) {
        places_[residence_of(instruction.index, device)] = plan_.residences.size() + instruction.stay - 1;
      }
      const Touch touch{.position = p,
                        .queue = instruction.queue,
                        .writes = device == instruction.to,
                        .range = {0, INT64_MAX},
                        .node = kNoNode,
                        .brings = false};
      usage_.touches[place_of(instruction.index, device)].push_back(touch);
      usage_.accesses[place_of(instruction.index, device)].push_back(touch);
    }
    return Status();
  }

  // A dead node must not have written anything that a live node or the caller sees.
  Status check_dead_nodes() {
    collect_writes();
    uint32_t dead = 0;
    for (uint32_t n = 0; n < graph_.nodes.size(); ++n) {
      if (!plan_.live[n]) {
        ++dead;
        if (traits_of(n).side_effects) return violation(name("n", n) + " is dead but has effects");
        continue;
      }
      const Node& node = graph_.nodes[n];
      for (int i = 0; i < node.operand_count; ++i) {
        const Operand& operand = graph_.operands_of(node)[i];
        if (!operand.reads()) continue;
        if (Status s = check_seen(operand.buffer, n, range_of(graph_, operand)); !s.ok()) return s;
      }
    }
    for (BufferId b = 0; b < graph_.buffers.size(); ++b) {
      if (!graph_.buffers[b].escapes) continue;
      if (Status s = check_seen(b, kNoNode, {0, INT64_MAX}); !s.ok()) return s;
    }
    if (dead != plan_.dead_nodes) return violation("the count of dead nodes is wrong");
    return Status();
  }

  void collect_writes() {
    writes_.resize(graph_.buffers.size());
    for (uint32_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      for (int i = 0; i < node.operand_count; ++i) {
        const Operand& operand = graph_.operands_of(node)[i];
        if (!operand.writes()) continue;
        const bool whole = overwrites(*graph_.windows, operand, graph_.buffers[operand.buffer]);
        const bool dense = whole || (*graph_.windows)[operand.window].dense;
        writes_[operand.buffer].push_back({n, range_of(graph_, operand), operand.window, whole, dense});
      }
    }
  }

  Status check_seen(BufferId buffer, uint32_t reader, const ByteRange& range) const {
    const std::vector<Write>& writes = writes_[buffer];
    for (auto write = writes.rbegin(); write != writes.rend(); ++write) {
      if (write->node >= reader || !write->range.overlaps(range)) continue;
      if (!plan_.live[write->node]) {
        return violation(name("n", write->node) + " is dead, but what it writes to " + name("b", buffer) + " is read");
      }
      if (write->whole) break;
    }
    return Status();
  }

  // Every wait has an earlier record. Fills usage_.clocks: what has run when an instruction starts.
  Status check_events() {
    std::vector<uint8_t> recorded(plan_.event_count);
    std::vector<Clock> at_record(plan_.event_count);
    std::array<Clock, kMaxQueues> knows{};
    usage_.clocks.resize(plan_.program.size());
    uint32_t transfer_end = 0;
    uint32_t before_transfer = 0;  // what had run of its queue
    for (uint32_t p = 0; p < plan_.program.size(); ++p) {
      const Instruction& instruction = plan_.program[p];
      Clock& mine = knows[instruction.queue];
      // Submitted by the host, after all that the host has run and waited for.
      learn(mine, knows[kHostQueue]);
      const bool event = instruction.kind == Kind::kRecord || instruction.kind == Kind::kWait;
      if (event && instruction.index >= plan_.event_count) {
        return violation(name("p", p) + ": no such event");
      }
      if (instruction.kind == Kind::kRecord) {
        if (recorded[instruction.index]++) return violation(name("e", instruction.index) + " is recorded twice");
        at_record[instruction.index] = mine;
      } else if (instruction.kind == Kind::kWait) {
        if (!recorded[instruction.index]) {
          return violation(name("p", p) + " waits for an event that is not recorded yet");
        }
        learn(mine, at_record[instruction.index]);
      }
      usage_.clocks[p] = mine;
      if (instruction.kind == Kind::kCopy) {
        // The copies of a transfer run in any order.
        if (p >= transfer_end) {
          transfer_end = end_of_transfer(graph_, plan_, p);
          before_transfer = mine[instruction.queue];
        }
        usage_.clocks[p][instruction.queue] = before_transfer;
      }
      mine[instruction.queue] = p + 1;
    }
    return Status();
  }

  static void learn(Clock& clock, const Clock& other) {
    for (int q = 0; q < kMaxQueues; ++q) clock[q] = std::max(clock[q], other[q]);
  }

  bool happens_before(uint32_t position, QueueId queue, uint32_t later) const {
    return usage_.clocks[later][queue] > position;
  }

  // Every read finds the bytes that program order says, and so does the caller.
  Status check_contents() {
    contents_.resize(plan_.residences.size());
    for (BufferId b = 0; b < graph_.buffers.size(); ++b) {
      const backend::DeviceSet valid = graph_.buffers[b].valid_on;
      for (DeviceIndex d = 0; d < plan_.device_count; ++d) {
        Contents& contents = contents_[residence_of(b, d)];
        contents.known = valid == 0 || backend::contains(valid, d);
      }
    }
    for (uint32_t p = 0; p < plan_.program.size(); ++p) {
      const Instruction& instruction = plan_.program[p];
      if (instruction.kind == Kind::kCopy) {
        contents_[residence_of(instruction.index, instruction.to)] =
            contents_[residence_of(instruction.index, instruction.from)];
      } else if (instruction.kind == Kind::kRun || instruction.kind == Kind::kBody) {
        if (Status status = replay_call(instruction, device_of(instruction.queue)); !status.ok()) return status;
      } else if (instruction.kind == Kind::kBatch) {
        for (const Instruction& call : plan_.batches[instruction.index]) {
          if (Status status = replay_call(call, kCpu); !status.ok()) return status;
        }
      } else if (instruction.kind == Kind::kFused) {
        const DeviceIndex device = device_of(instruction.queue);
        if (Status status = replay_group(plan_.groups[instruction.index], device); !status.ok()) return status;
      }
    }
    return check_results();
  }

  Status replay_call(const Instruction& call, DeviceIndex device) {
    if (Status status = replay(call.index, device); !status.ok() || call.kind != Kind::kBody) return status;
    for_writes(call.index, device,
               [&](Contents& contents) { std::ranges::replace(contents.writes, call.index, body(call.index)); });
    return Status();
  }

  // Calls `function` with the contents of what the node writes.
  template <typename Function>
  void for_writes(uint32_t n, DeviceIndex device, Function function) {
    const Node& node = graph_.nodes[n];
    for (int i = 0; i < node.operand_count; ++i) {
      const Operand& operand = graph_.operands_of(node)[i];
      if (operand.writes()) function(contents_[residence_of(operand.buffer, device)]);
    }
  }

  Status replay_group(const FusedGroup& group, DeviceIndex device) {
    std::vector<uint32_t> members = group.members;
    std::ranges::sort(members);
    for (const uint32_t n : members) {
      if (Status status = traits_of(n).has_tail ? replay_tail(n, device, group) : replay(n, device, &group);
          !status.ok())
        return status;
    }
    // What is not stored is gone.
    for (const uint32_t n : members) {
      const Node& node = graph_.nodes[n];
      for (int i = 0; i < node.operand_count; ++i) {
        const Operand& operand = graph_.operands_of(node)[i];
        if (operand.writes() && !is_stored(group, operand)) contents_[residence_of(operand.buffer, device)] = {};
      }
    }
    return Status();
  }

  // What the body has written is still there, and so is what the tail reads beside.
  Status replay_tail(uint32_t n, DeviceIndex device, const FusedGroup& group) {
    const Node& node = graph_.nodes[n];
    for_writes(n, device, [n](Contents& contents) { std::ranges::replace(contents.writes, body(n), n); });
    for (int i = 0; i < node.operand_count; ++i) {
      const Operand& operand = graph_.operands_of(node)[i];
      if (!in_tail(graph_, node, i) || !touches_any(group, operand, &GroupOperand::loads)) continue;
      if (!holds(operand, device, operand.writes() ? n + 1 : n)) {
        return violation("the tail of " + name("n", n) + " reads " + name("b", operand.buffer) +
                         " where its bytes are not valid");
      }
    }
    return Status();
  }

  bool is_stored(const FusedGroup& group, const Operand& written) const {
    return touches_any(group, written, &GroupOperand::stores);
  }
  bool touches_any(const FusedGroup& group, const Operand& bytes, bool GroupOperand::*how) const {
    const ByteRange range = range_of(graph_, bytes);
    return std::ranges::any_of(group.operands, [&](const GroupOperand& operand) {
      return operand.*how && operand.buffer == bytes.buffer &&
             range_of(graph_, graph_.operands[operand.operand]).overlaps(range);
    });
  }

  // Whether the kernel stores all bytes of a buffer and loads none.
  bool replaces(const FusedGroup& group, BufferId buffer) const {
    bool all = false;
    for (const GroupOperand& operand : group.operands) {
      if (operand.buffer != buffer) continue;
      if (operand.loads) return false;
      Operand written = graph_.operands[operand.operand];
      written.access = Access::kWrite;
      all |= operand.stores && overwrites(*graph_.windows, written, graph_.buffers[buffer]);
    }
    return all;
  }

  // `group`: that the node is a member of. A member of which nothing is needed reads nothing;
  // verify_group() knows which.
  Status replay(uint32_t n, DeviceIndex device, const FusedGroup* group = nullptr) {
    const Node& node = graph_.nodes[n];
    const Operand* const operands = graph_.operands_of(node);
    for (int i = 0; i < node.operand_count; ++i) {
      const bool loads = group == nullptr || touches_any(*group, operands[i], &GroupOperand::loads);
      if (operands[i].reads() && loads && !holds(operands[i], device, n)) {
        return violation(name("n", n) + " reads " + name("b", operands[i].buffer) + " where its bytes are not valid");
      }
    }
    for (int i = 0; i < node.operand_count; ++i) {
      if (!operands[i].writes()) continue;
      const BufferId b = operands[i].buffer;
      Contents& contents = contents_[residence_of(b, device)];
      // To a kernel that does not load it, what was there before is as good as what should have
      // been.
      if (group != nullptr && replaces(*group, b)) {
        contents.known = true;
        contents.writes.clear();
        for (const Write& write : writes_[b]) {
          if (write.node < n && plan_.live[write.node]) contents.writes.push_back(write.node);
        }
      }
      if (overwrites(*graph_.windows, operands[i], graph_.buffers[b])) {
        contents.known = true;
        contents.writes.clear();
      }
      contents.writes.push_back(n);
    }
    return Status();
  }

  Status check_results() const {
    for (BufferId b = 0; b < graph_.buffers.size(); ++b) {
      const backend::DeviceSet claimed = plan_.valid_after[b];
      if (claimed >> plan_.device_count != 0) return violation(name("b", b) + ": no such device");
      for (DeviceIndex d = 0; d < plan_.device_count; ++d) {
        if ((claimed >> d & 1) != 0 && !holds(b, d, kNoNode, {0, INT64_MAX}, kNoWindow)) {
          return violation(name("b", b) + " is not valid after the program where the plan says");
        }
        const bool touched = !usage_.touches[residence_of(b, d)].empty();
        if ((claimed >> d & 1) != 0 && touched && usage_.stay_at(place_of(b, d)).home == Home::kArena) {
          return violation(name("b", b) + " is said to be valid after the program in an arena");
        }
      }
      const bool written =
          std::ranges::any_of(writes_[b], [this](const Write& write) { return plan_.live[write.node] != 0; });
      const bool has_value = graph_.buffers[b].valid_on != 0 || written;
      if (claimed == 0 && graph_.buffers[b].escapes && has_value) {
        return violation(name("b", b) + " escapes but is valid nowhere after the program");
      }
    }
    return Status();
  }

  bool holds(const Operand& operand, DeviceIndex device, uint32_t reader) const {
    return holds(operand.buffer, device, reader, range_of(graph_, operand), operand.window);
  }

  // True when a residence holds, within `range`, just the live writes that come before `reader` in
  // the graph. What is seen of the range is `window`; kNoWindow for every byte.
  bool holds(BufferId buffer, DeviceIndex device, uint32_t reader, const ByteRange& range, WindowId window) const {
    const Contents& contents = contents_[residence_of(buffer, device)];
    std::vector<uint32_t> expected;
    std::vector<uint32_t> overlapping;
    bool whole = false;
    for (const Write& write : writes_[buffer]) {
      const bool overlaps = write.range.overlaps(range);
      // What was there before does not matter.
      const bool covers = write.whole || write.window == window || (write.dense && write.range.holds(range));
      for (const uint32_t written : {write.node, body(write.node)}) {
        if (!overlaps || std::ranges::count(contents.writes, written) == 0) continue;
        if (covers) overlapping.clear();
        overlapping.push_back(written);
      }
      if (write.node >= reader || !plan_.live[write.node]) continue;
      if (covers) {
        whole = true;
        expected.clear();
      }
      if (overlaps) expected.push_back(write.node);
    }
    return (contents.known || whole) && expected == overlapping;
  }

  // Conflicting touches of the same bytes happen one after the other, in the order of the graph.
  Status check_hazards() {
    for (size_t place = 0; place < usage_.accesses.size(); ++place) {
      const std::vector<Touch>& touches = usage_.accesses[place];
      for (size_t j = 0; j < touches.size(); ++j) {
        for (size_t i = 0; i < j; ++i) {
          const Touch& a = touches[i];
          const Touch& b = touches[j];
          if (a.position == b.position || !(a.writes || b.writes) || !a.range.overlaps(b.range)) {
            continue;
          }
          const bool swapped = a.node != kNoNode && b.node != kNoNode && a.node > b.node;
          if (swapped || !happens_before(a.position, a.queue, b.position)) {
            return violation(name("p", a.position) + " and " + name("p", b.position) + " both touch " +
                             name("b", usage_.buffer_at(place)) + " and are not in order");
          }
        }
      }
    }
    return Status();
  }

  Status check_memory() { return verify_memory(usage_, options_); }

  Status check_groups() {
    for (size_t g = 0; g < plan_.groups.size(); ++g) {
      const Status status = verify_group(graph_, plan_.groups[g]);
      if (!status.ok()) return violation(name("g", g) + ": " + status.message());
    }
    return Status();
  }

  const Graph& graph_;
  const Plan& plan_;
  const PlanOptions& options_;
  Usage usage_;
  std::vector<size_t> places_;              // per residence: where it is at this point of the walk
  std::vector<std::vector<Write>> writes_;  // per buffer, in graph order
  std::vector<uint8_t> bodies_;             // per node: its body has run
  std::vector<Contents> contents_;          // per residence
};

}  // namespace

Status verify_plan(const Graph& graph, const Plan& plan, const PlanOptions& options) {
  return PlanVerifier(graph, plan, options).run();
}

}  // namespace hetero::graph
