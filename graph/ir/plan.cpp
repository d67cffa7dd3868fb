// The text of a plan. One line a fact, in five groups:
//
//   plan: 3 nodes, 2 buffers, 2 events            ", 4 devices" where there are not two
//   arena cpu: 128 bytes, lower bound 128
//   n0: cpu, faster, 1.5e-06 s, elsewhere 5e-06 s
//   n1: dead
//   n2: cpu, only device, 0 s, elsewhere 0 s, fusion: joined
//   n3: accelerator, faster, 3e-06 s, elsewhere 5e-05 s, fills 0.25
//   n4: accelerator, faster, 3e-06 s, elsewhere 5e-05 s, modelled 2e-06 s, fills 1
//   g0: n2 n3; load b0 by o4; load store b1 by o6
//   b0: valid after on cpu; on cpu bound from 0 to 3; on accelerator arena 64 from 1 to 2
//   r0: b0 on accelerator arena 128 from 9 to 12
//   p0: accelerator compute: run n0
//   p1: accelerator h2d: copy b0 from cpu to accelerator
//   p2: accelerator h2d: record e0
//   p3: accelerator compute: wait e0
//   p4: cpu compute: fused g0
//
// "by o4": as operand 4 of the graph addresses it. "modelled": what the device's own figures say,
// where something else was measured.

#include "graph/ir/plan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "graph/ir/text.h"

namespace hetero::graph {
namespace {

using backend::DeviceIndex;

// Of a plan whose text does not say.
constexpr DeviceIndex kDevicesUnsaid = 2;

constexpr const char* kHomeWords[] = {"none", "bound", "arena", "brought", "owned"};
constexpr int kHomes = static_cast<int>(std::size(kHomeWords));
constexpr Reason kReasons[] = {Reason::kOnlyDevice, Reason::kRequested, Reason::kUnsupported, Reason::kFaster,
                               Reason::kSavesTime,  Reason::kNoMemory,  Reason::kThreshold};

constexpr FusionNote kNotes[] = {FusionNote::kJoined,      FusionNote::kTailJoined, FusionNote::kAlone,
                                 FusionNote::kNoLowering,  FusionNote::kOtherShape, FusionNote::kOtherRow,
                                 FusionNote::kNotTrailing, FusionNote::kOverlap,    FusionNote::kTooLarge,
                                 FusionNote::kClosed,      FusionNote::kOtherDevice};

void append_nodes(std::string& text, const Plan& plan) {
  for (size_t n = 0; n < plan.live.size(); ++n) {
    text += 'n' + std::to_string(n) + ": ";
    if (!plan.live[n]) {
      text += "dead\n";
      continue;
    }
    const Placement& placement = plan.placements[n];
    const auto number = [](float value) {
      char digits[32];
      std::snprintf(digits, sizeof(digits), "%.9g", static_cast<double>(value));
      return std::string(digits);
    };
    text += std::string(device_word(placement.device)) + ", " + to_string(placement.reason) + ", " +
            number(placement.predicted_seconds) + " s, elsewhere " + number(placement.elsewhere_seconds) + " s";
    if (placement.utilization != 1) text += ", fills " + number(placement.utilization);
    if (placement.modelled_seconds != placement.predicted_seconds ||
        placement.modelled_utilization != placement.utilization) {
      text +=
          ", modelled " + number(placement.modelled_seconds) + " s, fills " + number(placement.modelled_utilization);
    }
    if (!plan.fusion.empty()) text += std::string(", fusion: ") + to_string(plan.fusion[n]);
    text += '\n';
  }
}

void append_groups(std::string& text, const Plan& plan) {
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    text += 'g';
    text += std::to_string(g);
    text += ':';
    for (const uint32_t member : plan.groups[g].members) text += " n" + std::to_string(member);
    for (const GroupOperand& operand : plan.groups[g].operands) {
      text += ';';
      if (operand.loads) text += " load";
      if (operand.stores) text += " store";
      text += " b" + std::to_string(operand.buffer) + " by o" + std::to_string(operand.operand);
    }
    text += '\n';
  }
}

void append_batches(std::string& text, const Plan& plan) {
  for (size_t b = 0; b < plan.batches.size(); ++b) {
    text += 't' + std::to_string(b) + ':';
    for (const Instruction& call : plan.batches[b]) {
      text += ' ' + to_string(call);
    }
    text += '\n';
  }
}

void append_buffers(std::string& text, const Plan& plan) {
  for (BufferId b = 0; b < plan.valid_after.size(); ++b) {
    std::string line;
    if (plan.valid_after[b] != 0) line = "; valid after on " + devices_text(plan.valid_after[b]);
    for (DeviceIndex d = 0; d < plan.device_count; ++d) {
      const Residence& residence = plan.residence(b, d);
      if (residence.home == Home::kNone) continue;
      line += std::string("; on ") + device_word(d) + ' ' + kHomeWords[static_cast<int>(residence.home)];
      if (residence.home == Home::kArena) line += ' ' + std::to_string(residence.offset);
      line += " from " + std::to_string(residence.first) + " to " + std::to_string(residence.last);
    }
    text += 'b' + std::to_string(b) + ':' + (line.empty() ? " unused" : line.substr(1)) + '\n';
  }
}

void append_returns(std::string& text, const Plan& plan) {
  for (size_t r = 0; r < plan.returns.size(); ++r) {
    const auto& [buffer, device, residence] = plan.returns[r];
    text += 'r' + std::to_string(r) + ": b" + std::to_string(buffer) + " on " + device_word(device) + ' ' +
            kHomeWords[static_cast<int>(residence.home)] + ' ' + std::to_string(residence.offset) + " from " +
            std::to_string(residence.first) + " to " + std::to_string(residence.last) + '\n';
  }
}

void append_program(std::string& text, const Plan& plan) {
  for (size_t p = 0; p < plan.program.size(); ++p) {
    const Instruction& instruction = plan.program[p];
    text += 'p' + std::to_string(p) + ": " + queue_word(instruction.queue) + ": " + to_string(instruction);
    text += '\n';
  }
}

class PlanParser {
 public:
  explicit PlanParser(std::string_view text) : reader_(text) {}

  Result<Plan> parse() {
    reader_.skip_empty_lines();
    if (Status status = parse_header(); !status.ok()) return status;
    for (reader_.skip_empty_lines(); !reader_.at_end(); reader_.skip_empty_lines()) {
      uint32_t id = 0;
      Status status;
      if (reader_.accept("arena")) {
        status = parse_arena();
      } else if (reader_.accept("transfers to")) {
        status = parse_transfers();
      } else if (reader_.accept_id("n", id)) {
        status = parse_node(id);
      } else if (reader_.accept_id("g", id)) {
        status = parse_group(id);
      } else if (reader_.accept_id("t", id)) {
        status = parse_batch(id);
      } else if (reader_.accept_id("b", id)) {
        status = parse_buffer(id);
      } else if (reader_.accept_id("r", id)) {
        status = parse_return(id);
      } else if (reader_.accept_id("p", id)) {
        status = parse_instruction(id);
      } else {
        status = reader_.error("an arena, transfers, a node, a group, a batch, a buffer, a return or an instruction");
      }
      if (!status.ok()) return status;
      if (!reader_.accept_line_end()) return reader_.error("the end of the line");
    }
    return std::move(plan_);
  }

 private:
  Status parse_header() {
    size_t nodes = 0;
    size_t buffers = 0;
    if (!reader_.accept("plan:") || !reader_.accept_number(nodes) || !reader_.accept("nodes,") ||
        !reader_.accept_number(buffers) || !reader_.accept("buffers,") || !reader_.accept_number(plan_.event_count) ||
        !reader_.accept("events")) {
      return reader_.error("'plan: N nodes, N buffers, N events'");
    }
    unsigned devices = kDevicesUnsaid;
    if (reader_.accept(",") && (!reader_.accept_number(devices) || !reader_.accept("devices"))) {
      return reader_.error("', N devices'");
    }
    if (!reader_.accept_line_end()) return reader_.error("the end of the line");
    if (devices == 0 || devices > backend::kMostDevices) return reader_.error("a number of devices that can be");
    plan_.device_count = static_cast<DeviceIndex>(devices);
    // Every node, every buffer and the record of every event has a line of its own, so larger
    // counts cannot be true. What is allocated for them is then a few times the text.
    constexpr size_t kNodeLine = sizeof("n0: dead");
    constexpr size_t kBufferLine = sizeof("b0: unused");
    if (nodes > reader_.size() / kNodeLine || buffers > reader_.size() / kBufferLine ||
        plan_.event_count > reader_.size()) {
      return reader_.error("a true count");
    }
    plan_.live.resize(nodes);
    plan_.placements.resize(nodes);
    plan_.residences.resize(buffers * plan_.device_count);
    plan_.valid_after.resize(buffers);
    return Status();
  }

  Status parse_arena() {
    DeviceIndex device = 0;
    if (!accept_device(reader_, device) || !reader_.accept(":") || !reader_.accept_number(plan_.arena_bytes[device]) ||
        !reader_.accept("bytes, lower bound") || !reader_.accept_number(plan_.arena_lower_bound[device])) {
      return reader_.error("'arena DEVICE: N bytes, lower bound N'");
    }
    return Status();
  }

  Status parse_transfers() {
    DeviceIndex device = 0;
    if (!accept_device(reader_, device) || !reader_.accept(":") ||
        !reader_.accept_number(plan_.transfer_bytes[device]) || !reader_.accept("bytes")) {
      return reader_.error("'transfers to DEVICE: N bytes'");
    }
    return Status();
  }

  Status parse_node(uint32_t id) {
    if (id >= plan_.live.size() || !reader_.accept(":")) return reader_.error("a node of the plan");
    if (reader_.accept("dead")) {
      ++plan_.dead_nodes;
      return Status();
    }
    plan_.live[id] = 1;
    Placement& placement = plan_.placements[id];
    if (!accept_device(reader_, placement.device) || !reader_.accept(",")) {
      return reader_.error("'DEVICE,'");
    }
    bool known = false;
    for (const Reason reason : kReasons) {
      if (known || !reader_.accept(to_string(reason))) continue;
      placement.reason = reason;
      known = true;
    }
    if (!known) return reader_.error("a reason");
    if (!reader_.accept(",") || !reader_.accept_number(placement.predicted_seconds) ||
        !reader_.accept("s, elsewhere") || !reader_.accept_number(placement.elsewhere_seconds) ||
        !reader_.accept("s") || !is_duration(placement.predicted_seconds) ||
        !is_duration(placement.elsewhere_seconds)) {
      return reader_.error("', SECONDS s, elsewhere SECONDS s'");
    }
    if (reader_.accept(", fills") && !accept_share(placement.utilization)) return reader_.error("a share from 0 to 1");
    placement.modelled_seconds = placement.predicted_seconds;
    placement.modelled_utilization = placement.utilization;
    if (reader_.accept(", modelled")) {
      if (!reader_.accept_number(placement.modelled_seconds) || !is_duration(placement.modelled_seconds) ||
          !reader_.accept("s, fills") || !accept_share(placement.modelled_utilization)) {
        return reader_.error("', modelled SECONDS s, fills SHARE'");
      }
    }
    return reader_.accept(", fusion:") ? parse_note(id) : Status();
  }

  bool accept_share(float& share) { return reader_.accept_number(share) && share >= 0 && share <= 1; }
  static bool is_duration(float seconds) { return std::isfinite(seconds) && seconds >= 0; }

  Status parse_note(uint32_t id) {
    plan_.fusion.resize(plan_.live.size(), FusionNote::kAlone);
    for (const FusionNote note : kNotes) {
      if (!reader_.accept(to_string(note))) continue;
      plan_.fusion[id] = note;
      return Status();
    }
    return reader_.error("what fusion made of the node");
  }

  Status parse_group(uint32_t id) {
    if (id != plan_.groups.size() || !reader_.accept(":")) return reader_.error("groups numbered from g0");
    FusedGroup& group = plan_.groups.emplace_back();
    uint32_t member = 0;
    while (reader_.accept_id("n", member)) group.members.push_back(member);
    if (group.members.empty()) return reader_.error("a member");
    while (reader_.accept(";")) {
      GroupOperand operand{};
      operand.loads = reader_.accept("load");
      operand.stores = reader_.accept("store");
      if (!reader_.accept_id("b", operand.buffer) || !reader_.accept("by") ||
          !reader_.accept_id("o", operand.operand)) {
        return reader_.error("'load bN by oN' or 'store bN by oN'");
      }
      group.operands.push_back(operand);
    }
    return Status();
  }

  Status parse_batch(uint32_t id) {
    if (id != plan_.batches.size() || !reader_.accept(":")) return reader_.error("batches numbered from t0");
    std::vector<Instruction>& calls = plan_.batches.emplace_back();
    while (true) {
      Instruction call;
      Result<bool> read = accept_instruction(reader_, call);
      if (!read.ok()) return read.status();
      if (!read.value()) break;
      if (!call.is_call()) return reader_.error("'run nN' or 'body of nN'");
      calls.push_back(call);
    }
    return calls.empty() ? reader_.error("'run nN' or 'body of nN'") : Status();
  }

  Status parse_buffer(BufferId id) {
    if (id >= plan_.valid_after.size() || !reader_.accept(":")) {
      return reader_.error("a buffer of the plan");
    }
    if (reader_.accept("unused")) return Status();
    do {
      if (reader_.accept("valid after on")) {
        if (!accept_devices(reader_, plan_.valid_after[id])) return reader_.error("devices");
      } else if (Status status = parse_residence(id); !status.ok()) {
        return status;
      }
    } while (reader_.accept(";"));
    return Status();
  }

  Status parse_residence(BufferId id) {
    DeviceIndex device = 0;
    if (!reader_.accept("on") || !accept_device(reader_, device)) return reader_.error("'on DEVICE'");
    return parse_stay(plan_.residence(id, device));
  }

  Status parse_return(uint32_t id) {
    if (id != plan_.returns.size() || !reader_.accept(":")) return reader_.error("returns numbered from r0");
    Return& entry = plan_.returns.emplace_back();
    if (!reader_.accept_id("b", entry.buffer) || entry.buffer >= plan_.valid_after.size() || !reader_.accept("on") ||
        !accept_device(reader_, entry.device)) {
      return reader_.error("'bN on DEVICE'");
    }
    return parse_stay(entry.residence);
  }

  Status parse_stay(Residence& residence) {
    for (int home = 1; home < kHomes && residence.home == Home::kNone; ++home) {
      if (reader_.accept(kHomeWords[home])) residence.home = static_cast<Home>(home);
    }
    if (residence.home == Home::kNone) return reader_.error("a home");
    if (residence.home == Home::kArena && !reader_.accept_number(residence.offset)) {
      return reader_.error("an offset");
    }
    if (!reader_.accept("from") || !reader_.accept_number(residence.first) || !reader_.accept("to") ||
        !reader_.accept_number(residence.last)) {
      return reader_.error("'from POSITION to POSITION'");
    }
    return Status();
  }

  bool accept_queue(DeviceIndex device, QueueId& queue) {
    if (device == backend::kCpu) {
      queue = reader_.accept("worker") ? kWorkerQueue : kHostQueue;
      return queue == kWorkerQueue || reader_.accept(to_string(backend::QueueKind::kCompute));
    }
    // The last first: "compute 2" begins as "compute" does.
    int kind = backend::kQueueKinds - 1;
    while (kind >= 0 && !reader_.accept(to_string(static_cast<backend::QueueKind>(kind)))) --kind;
    queue = queue_id(device, static_cast<backend::QueueKind>(std::max(kind, 0)));
    return kind >= 0;
  }

  Status parse_instruction(uint32_t id) {
    if (id != plan_.program.size()) return reader_.error("instructions numbered from p0");
    Instruction instruction;
    DeviceIndex device = 0;
    if (!reader_.accept(":") || !accept_device(reader_, device)) return reader_.error("a device");
    if (!accept_queue(device, instruction.queue) || !reader_.accept(":")) return reader_.error("a queue");
    Result<bool> read = accept_instruction(reader_, instruction);
    if (!read.ok()) return read.status();
    if (!read.value()) return reader_.error("an instruction");
    plan_.program.push_back(instruction);
    return Status();
  }

  TextReader reader_;
  Plan plan_;
};

}  // namespace

const char* to_string(Reason reason) {
  switch (reason) {
    case Reason::kOnlyDevice:
      return "only device";
    case Reason::kRequested:
      return "requested";
    case Reason::kUnsupported:
      return "unsupported";
    case Reason::kFaster:
      return "faster";
    case Reason::kSavesTime:
      return "saves time";
    case Reason::kNoMemory:
      return "no memory";
    case Reason::kThreshold:
      return "threshold";
  }
  return "?";
}

bool has_side_queues(const Plan& plan) {
  return std::ranges::any_of(plan.program, [](const Instruction& instruction) {
    return runs_kernels(instruction.queue) && backend::is_side_compute(kind_of(instruction.queue));
  });
}

bool uses_cpu_only(const Plan& plan) {
  return std::ranges::all_of(
      plan.program, [](const Instruction& instruction) { return device_of(instruction.queue) == backend::kCpu; });
}

bool uses_worker(const Plan& plan) {
  return std::ranges::any_of(plan.program,
                             [](const Instruction& instruction) { return instruction.queue == kWorkerQueue; });
}

bool uses_host_only(const Plan& plan) {
  for (const Instruction& instruction : plan.program) {
    if (instruction.queue != kHostQueue) return false;
  }
  return true;
}

namespace {

double seconds_of(const Graph& graph, const Plan& plan, const Instruction& instruction, float Placement::*taken) {
  double seconds = 0;
  for_each_placed(graph, plan, instruction,
                  [&](uint32_t n) { seconds += static_cast<double>(plan.placements[n].*taken); });
  return seconds;
}

}  // namespace

double modelled_utilization(const Plan& plan, const Instruction& instruction) {
  if (!instruction.is_task()) return 0;
  return static_cast<double>(plan.placements[node_of(plan, instruction)].modelled_utilization);
}

double predicted_seconds(const Graph& graph, const Plan& plan, const Instruction& instruction) {
  return seconds_of(graph, plan, instruction, &Placement::predicted_seconds);
}

double modelled_seconds(const Graph& graph, const Plan& plan, const Instruction& instruction) {
  return seconds_of(graph, plan, instruction, &Placement::modelled_seconds);
}

uint32_t end_of_transfer(const Graph& graph, const Plan& plan, uint32_t position) {
  const Instruction& first = plan.program[position];
  const uint64_t most = plan.transfer_bytes[first.to];
  uint64_t bytes = graph.buffers[first.index].bytes;
  for (++position; position < plan.program.size(); ++position) {
    const Instruction& next = plan.program[position];
    // What comes back begins a transfer: until then the bytes that were there before may be used.
    if (!next.is_copy() || next.queue != first.queue || next.from != first.from || next.stay != 0) break;
    bytes += graph.buffers[next.index].bytes;
    if (bytes > most) break;
  }
  return position;
}

void note_buffers(const Graph& graph, const Plan& plan, BufferNotes& notes) {
  notes.placed.clear();
  notes.written.clear();
  notes.taking.clear();
  for (BufferId b = 0; b < graph.buffers.size(); ++b) {
    bool placed = false;
    for (DeviceIndex d = 0; d < plan.device_count; ++d) placed |= plan.residence(b, d).home != Home::kNone;
    if (placed) notes.placed.push_back(b);
    if (graph.buffers[b].takes != kNoBuffer) notes.taking.push_back(b);
  }
  for (const Operand& operand : graph.operands) {
    if (operand.writes()) notes.written.push_back(operand.buffer);
  }
}

std::string to_string(const Plan& plan) {
  std::string text = "plan: " + std::to_string(plan.live.size()) + " nodes, " +
                     std::to_string(plan.valid_after.size()) + " buffers, " + std::to_string(plan.event_count) +
                     " events";
  if (plan.device_count != kDevicesUnsaid) text += ", " + std::to_string(plan.device_count) + " devices";
  text += '\n';
  for (DeviceIndex d = 0; d < plan.device_count; ++d) {
    text += "arena " + device_word(d) + ": " + std::to_string(plan.arena_bytes[d]) + " bytes, lower bound " +
            std::to_string(plan.arena_lower_bound[d]) + '\n';
  }
  for (DeviceIndex d = 0; d < plan.device_count; ++d) {
    if (plan.transfer_bytes[d] == 0) continue;
    text += std::string("transfers to ") + device_word(d) + ": " + std::to_string(plan.transfer_bytes[d]) + " bytes\n";
  }
  append_nodes(text, plan);
  append_groups(text, plan);
  append_batches(text, plan);
  append_buffers(text, plan);
  append_returns(text, plan);
  append_program(text, plan);
  return text;
}

Result<Plan> parse_plan(std::string_view text) { return PlanParser(text).parse(); }

}  // namespace hetero::graph
