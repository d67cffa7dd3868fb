#include "graph/placement/task_graph.h"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace hetero::graph {
namespace {

using backend::DeviceIndex;
using backend::DeviceSet;
using backend::kCpu;
using backend::only;

Allowed only_on(DeviceIndex device, Reason reason) { return {only(device), reason}; }

// Whether the node, or each member of the group, has a kernel there.
bool runs_whole(const Graph& graph, const Plan& plan, const Task& task, const PlanOptions& options,
                DeviceIndex device) {
  if (device == kCpu) return true;
  const auto runs = [&](uint32_t n) { return runs_on(op_table()[graph.nodes[n].op], options, device); };
  if (task.group == Task::kNoGroup) return runs(task.node);
  const FusedGroup& group = plan.groups[task.group];
  const backend::Device* const there = options.machine[device].device;
  return std::ranges::all_of(group.members, runs) && (there == nullptr || there->can_fuse(group.kernel));
}

// A device of the whole machine, by Fibonacci hashing of the position in the program.
DeviceIndex mixed_device(const Graph& graph, const Plan& plan, const Task& task, const PlanOptions& options) {
  const uint64_t hash = (uint64_t{task.node} + 1) * 0x9E3779B97F4A7C15u;
  const auto device = static_cast<DeviceIndex>((hash >> 32) * options.machine.size() >> 32);
  return runs_whole(graph, plan, task, options, device) ? device : kCpu;
}

// Where the task may run, and why. `uses`: its own.
Allowed find_allowed(const Graph& graph, const Plan& plan, const Task& task, std::span<const Use> uses,
                     const PlanOptions& options) {
  Allowed allowed = allowed_devices(graph.nodes[task.node], options);
  if (allowed.reason == Reason::kUnsupported) return allowed;
  const bool free = std::popcount(allowed.devices) > 1;
  if (free && options.policy == Policy::kMixed) {
    allowed = only_on(mixed_device(graph, plan, task, options), Reason::kRequested);
  }
  const uint64_t bytes = bytes_in_memory(graph, uses);
  for (DeviceIndex d = 1; d < options.machine.size(); ++d) {
    // Leaves an eighth for what an arena wastes between its slices.
    const uint64_t most = options.machine[d].bytes - options.machine[d].bytes / 8;
    if (backend::contains(allowed.devices, d) && most != 0 && bytes > most) return only_on(kCpu, Reason::kNoMemory);
  }
  if (!free) return allowed;
  if (options.policy == Policy::kCpu) return only_on(kCpu, Reason::kRequested);
  if (options.policy == Policy::kAccelerator) return only_on(options.searched, Reason::kRequested);
  return allowed;
}

// Without a history nothing else was said before.
void note_modelled(const Graph& graph, const Plan& plan, const Instruction& instruction, const PlanOptions& options,
                   const CostModel& costs, Task& task) {
  if (options.history == nullptr) return static_cast<void>(std::ranges::copy(task.seconds, task.modelled));
  const Work work = work_of(graph, plan, instruction);
  for (DeviceIndex d = 0; d < options.machine.size(); ++d) task.modelled[d] = costs.run_seconds(work, d);
}

}  // namespace

uint64_t bytes_in_memory(const Graph& graph, std::span<const Use> uses) {
  uint64_t bytes = 0;
  for (const Use& use : uses) bytes += use.in_memory() ? graph.buffers[use.buffer].bytes : 0;
  return bytes;
}

Allowed allowed_devices(const Node& node, const PlanOptions& options) {
  const OpTraits& traits = op_table()[node.op];
  Preference preference = node.preference;
  if (preference == Preference::kAuto && options.preferences != nullptr && node.op < options.preferences->size()) {
    preference = (*options.preferences)[node.op];
  }
  const bool elsewhere = preference != Preference::kAuto && preference != prefer(kCpu);
  const DeviceIndex there = elsewhere ? device_of(preference) : options.searched;
  if (!runs_on(traits, options, there)) return only_on(kCpu, Reason::kUnsupported);
  if (preference != Preference::kAuto) return only_on(device_of(preference), Reason::kRequested);
  return {static_cast<DeviceSet>(only(kCpu) | only(there)), Reason::kFaster};
}

void TaskGraph::build(const Graph& graph, const Plan& plan, const PlanOptions& options) {
  const CostModel costs(options);
  device_count = options.machine.size();
  accelerator = options.machine.has(options.searched) ? options.searched : kCpu;
  tasks.clear();
  uses.clear();
  nodes_.clear();
  task_of_node_.resize(graph.nodes.size());
  task_of_group_.resize(plan.groups.size());
  values.resize(graph.buffers.size());
  for (size_t b = 0; b < values.size(); ++b) {
    const Buffer& buffer = graph.buffers[b];
    values[b] = {
        .bytes = buffer.bytes, .valid_on = buffer.valid_on, .small = buffer.bytes <= kUrgentBytes, .copy_seconds = {}};
    for (DeviceIndex d = 0; d < device_count; ++d) {
      const DeviceIndex from = d == kCpu ? accelerator : kCpu;
      values[b].copy_seconds[d] = costs.copy_seconds(static_cast<double>(buffer.bytes), from, d);
    }
  }
  std::vector<uint8_t> written(graph.buffers.size());
  for (const Instruction& instruction : plan.program) {
    const auto number = static_cast<uint32_t>(tasks.size());
    Task& task = tasks.emplace_back();
    task.first_use = static_cast<uint32_t>(uses.size());
    task.first_node = static_cast<uint32_t>(nodes_.size());
    task.node = node_of(plan, instruction);
    for_each_placed(graph, plan, instruction, [&](uint32_t n) { nodes_.push_back(n); });
    for (DeviceIndex d = 0; d < device_count; ++d) task.seconds[d] = costs.seconds_of(graph, plan, instruction, d);
    note_modelled(graph, plan, instruction, options, costs, task);
    if (instruction.is_group()) {
      task.group = instruction.index;
      task_of_group_[instruction.index] = number;
      add_uses(graph, plan.groups[instruction.index]);
    } else {
      task.is_body = instruction.is_body();
      task_of_node_[instruction.index] = number;
      add_uses(graph, graph.nodes[instruction.index]);
    }
    task.node_count = static_cast<uint32_t>(nodes_.size()) - task.first_node;
    task.use_count = static_cast<uint32_t>(uses.size()) - task.first_use;
    for (const Use* use = begin(task); use != end(task); ++use) {
      if (!use->writes) continue;
      written[use->buffer] = 1;
      const Buffer& buffer = graph.buffers[use->buffer];
      if (buffer.valid_on != 0 && buffer.escapes) values[use->buffer].updated_by = number;
    }
    const Allowed allowed = find_allowed(graph, plan, task, {begin(task), task.use_count}, options);
    task.allowed = allowed.devices;
    task.reason = allowed.reason;
  }
  for (BufferId b = 0; b < graph.buffers.size(); ++b) {
    if (!graph.buffers[b].fetched) continue;
    const auto first = static_cast<uint32_t>(uses.size());
    uses.push_back({.buffer = b, .reads = true, .writes = false});
    tasks.push_back({.node = Task::kNoNode,
                     .first_use = first,
                     .use_count = 1,
                     .allowed = only(kCpu),
                     .reason = Reason::kRequested,
                     .seconds = {}});
  }
  avoided_.clear();
  if (options.instead_of != nullptr && options.instead_of->size() == graph.nodes.size()) {
    for (const Task& task : tasks) avoided_.push_back(task.is_fetch() ? kCpu : (*options.instead_of)[task.node]);
  }
  for (size_t b = 0; b < values.size(); ++b) {
    if (!graph.buffers[b].steady || written[b]) continue;
    values[b].amortized = true;
    for (DeviceIndex d = 1; d < device_count; ++d) values[b].copy_seconds[d] /= kAmortized;
  }
}

void TaskGraph::add_uses(const Graph& graph, const Node& node) {
  const size_t first = uses.size();
  for (const Operand *o = graph.operands_of(node), *last = o + node.operand_count; o != last; ++o) {
    const bool whole = o->writes() && overwrites(*graph.windows, *o, graph.buffers[o->buffer]);
    Use& use = use_of(first, o->buffer);
    use.reads |= !whole;
    use.writes |= o->writes();
  }
}

// What the kernel loads and stores, what the members write that is not stored, and what the bodies
// of its tails have written, needed or not: they come before.
void TaskGraph::add_uses(const Graph& graph, const FusedGroup& group) {
  const size_t first = uses.size();
  for (const GroupOperand& o : group.operands) {
    Operand written = graph.operands[o.operand];
    written.access = Access::kWrite;
    const bool whole = !o.loads && overwrites(*graph.windows, written, graph.buffers[o.buffer]);
    Use& use = use_of(first, o.buffer);
    use.reads |= !whole;
    use.writes |= o.stores;
  }
  for (const uint32_t n : group.members) {
    const Node& node = graph.nodes[n];
    for (const Operand *o = graph.operands_of(node), *last = o + node.operand_count; o != last; ++o) {
      if (!o->writes()) continue;
      Use& use = use_of(first, o->buffer);
      use.reads |= is_tail(graph, n);
      // What the kernel stores is known as written.
      if (use.writes) continue;
      use.writes = true;
      use.stores = false;
    }
  }
}

// Of the uses from `first` on, that of the buffer: a new one where there is none.
Use& TaskGraph::use_of(size_t first, BufferId buffer) {
  const auto known = std::find_if(uses.begin() + static_cast<long>(first), uses.end(),
                                  [&](const Use& use) { return use.buffer == buffer; });
  if (known != uses.end()) return *known;
  return uses.emplace_back(Use{.buffer = buffer, .reads = false, .writes = false});
}

bool TaskGraph::differs(std::span<const backend::DeviceIndex> devices) const {
  constexpr double kShare = 0.25;
  if (avoided_.empty()) return true;
  double all = 0;
  double moved = 0;
  for (size_t t = 0; t < tasks.size(); ++t) {
    if (!tasks[t].has_choice()) continue;
    const double seconds = tasks[t].seconds[avoided_[t]];
    all += seconds;
    if (devices[t] != avoided_[t]) moved += seconds;
  }
  return moved >= kShare * all;
}

std::vector<backend::DeviceIndex> TaskGraph::all_on(backend::DeviceIndex device) const {
  std::vector<backend::DeviceIndex> devices(tasks.size(), device);
  for (size_t t = 0; t < devices.size(); ++t) {
    if (!backend::contains(tasks[t].allowed, device)) devices[t] = backend::first_of(tasks[t].allowed);
  }
  return devices;
}

const char* TaskGraph::name_of_all_on(backend::DeviceIndex device) const {
  bool has_choice = false;
  DeviceSet used = 0;
  for (const Task& task : tasks) {
    if (task.is_fetch()) continue;
    has_choice = has_choice || task.has_choice();
    used |= only(backend::contains(task.allowed, device) ? device : backend::first_of(task.allowed));
  }
  if ((used & ~only(kCpu)) == 0) return "all on the CPU";
  if (used == only(accelerator)) return "all on the accelerator";
  if (!has_choice) return "each on the only device that it may run on";
  return device == kCpu ? "on the CPU wherever there is a choice" : "on the accelerator wherever there is a choice";
}

void TaskGraph::order_by_rank(std::vector<uint32_t>& order) {
  rank_.resize(tasks.size());
  after_write_.assign(values.size(), 0);
  after_read_.assign(values.size(), 0);
  for (size_t t = tasks.size(); t-- > 0;) {
    const Task& task = tasks[t];
    double later = 0;
    for (const Use* use = begin(task); use != end(task); ++use) {
      // Half of the copies, at the mean of both directions.
      const double moved = (values[use->buffer].copy_seconds[kCpu] + values[use->buffer].copy_seconds[accelerator]) / 4;
      later = std::max(later, after_read_[use->buffer]);
      if (use->writes) later = std::max(later, after_write_[use->buffer] + moved);
    }
    double seconds = 0;
    int devices = 0;
    for (DeviceIndex d = 0; d < device_count; ++d) {
      if (!backend::contains(task.allowed, d)) continue;
      seconds += task.seconds[d];
      ++devices;
    }
    // Nothing takes no time, or tasks could change places with what they depend on.
    rank_[t] = later + std::max(seconds / devices, 1e-12);
    for (const Use* use = begin(task); use != end(task); ++use) {
      if (use->writes) {
        after_read_[use->buffer] = rank_[t];
        after_write_[use->buffer] = rank_[t];
      } else {
        after_write_[use->buffer] = std::max(after_write_[use->buffer], rank_[t]);
      }
    }
  }
  order.resize(tasks.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [this](uint32_t a, uint32_t b) { return rank_[a] > rank_[b]; });
}

}  // namespace hetero::graph
