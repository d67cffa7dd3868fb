#include "graph/task_graph.h"

#include <algorithm>
#include <numeric>

namespace hetero::graph {
namespace {

using backend::kAccelerator;
using backend::kCpu;
using backend::kMaxDevices;

constexpr uint8_t kBoth = 1u << kCpu | 1u << kAccelerator;

// Where the node may run, and why.
void find_allowed(const Graph& graph, uint32_t n, const PlanOptions& options, Task& task) {
  const Node& node = graph.nodes[n];
  const OpTraits& traits = op_table()[node.op];
  const auto only = [&task](backend::DeviceIndex device, Reason reason) {
    task.allowed = static_cast<uint8_t>(1u << device);
    task.reason = reason;
  };
  task.allowed = kBoth;
  task.reason = Reason::kFaster;
  if (!traits.on_accelerator) return only(kCpu, Reason::kUnsupported);
  uint64_t bytes = 0;
  for (const Operand *o = graph.operands_of(node), *end = o + node.operand_count; o != end; ++o) {
    bytes += graph.buffers[o->buffer].bytes;
  }
  // Leaves an eighth for what an arena wastes between its slices.
  if (options.accelerator_bytes != 0 && bytes > options.accelerator_bytes - options.accelerator_bytes / 8) {
    return only(kCpu, Reason::kNoMemory);
  }
  Preference preference = node.preference;
  if (preference == Preference::kAuto && options.preferences != nullptr && node.op < options.preferences->size()) {
    preference = (*options.preferences)[node.op];
  }
  if (preference == Preference::kCpu) return only(kCpu, Reason::kRequested);
  if (preference == Preference::kAccelerator) return only(kAccelerator, Reason::kRequested);
  switch (options.policy) {
    case Policy::kAuto:
      return;
    case Policy::kCpu:
      return only(kCpu, Reason::kRequested);
    case Policy::kAccelerator:
      return only(kAccelerator, Reason::kRequested);
    case Policy::kMixed:
      // Fibonacci hashing of the position in the program.
      return only((uint64_t{n} + 1) * 0x9E3779B97F4A7C15u >> 63 != 0 ? kAccelerator : kCpu, Reason::kRequested);
  }
}

}  // namespace

void TaskGraph::build(const Graph& graph, const std::vector<uint8_t>& live, const PlanOptions& options) {
  const CostModel costs(options);
  tasks.clear();
  uses.clear();
  values.resize(graph.buffers.size());
  for (size_t b = 0; b < values.size(); ++b) {
    const Buffer& buffer = graph.buffers[b];
    values[b] = {.bytes = buffer.bytes, .valid_on = buffer.valid_on, .copy_seconds = {}};
    for (backend::DeviceIndex d = 0; d < kMaxDevices; ++d) {
      values[b].copy_seconds[d] = costs.copy_seconds(static_cast<double>(buffer.bytes), d);
    }
  }
  std::vector<uint8_t> written(graph.buffers.size());
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    if (!live[n]) continue;
    const Node& node = graph.nodes[n];
    Task& task = tasks.emplace_back();
    task.node = n;
    task.first_use = static_cast<uint32_t>(uses.size());
    add_uses(graph, node);
    task.use_count = static_cast<uint32_t>(uses.size()) - task.first_use;
    for (const Use* use = begin(task); use != end(task); ++use) written[use->buffer] |= use->writes;
    find_allowed(graph, n, options, task);
    for (backend::DeviceIndex d = 0; d < kMaxDevices; ++d) task.seconds[d] = costs.node_seconds(graph, node, d);
  }
  for (size_t b = 0; b < values.size(); ++b) {
    if (graph.buffers[b].steady && !written[b]) values[b].copy_seconds[kAccelerator] /= kAmortized;
  }
}

void TaskGraph::add_uses(const Graph& graph, const Node& node) {
  const size_t first = uses.size();
  for (const Operand *o = graph.operands_of(node), *last = o + node.operand_count; o != last; ++o) {
    const bool whole = o->writes() && overwrites(*graph.windows, *o, graph.buffers[o->buffer]);
    const auto known = std::find_if(uses.begin() + static_cast<long>(first), uses.end(),
                                    [&](const Use& use) { return use.buffer == o->buffer; });
    if (known == uses.end()) {
      uses.push_back({o->buffer, !whole, o->writes()});
    } else {
      known->reads |= !whole;
      known->writes |= o->writes();
    }
  }
}

std::vector<backend::DeviceIndex> TaskGraph::all_on(backend::DeviceIndex device) const {
  std::vector<backend::DeviceIndex> devices(tasks.size(), device);
  for (size_t t = 0; t < devices.size(); ++t) {
    if ((tasks[t].allowed >> device & 1) == 0) devices[t] = device ^ 1;
  }
  return devices;
}

void TaskGraph::order_by_rank(std::vector<uint32_t>& order) {
  rank_.resize(tasks.size());
  after_write_.assign(values.size(), 0);
  after_read_.assign(values.size(), 0);
  for (size_t t = tasks.size(); t-- > 0;) {
    const Task& task = tasks[t];
    double later = 0;
    for (const Use* use = begin(task); use != end(task); ++use) {
      const double moved = std::accumulate(std::begin(values[use->buffer].copy_seconds),
                                           std::end(values[use->buffer].copy_seconds), 0.0) /
                           (2 * kMaxDevices);
      later = std::max(later, after_read_[use->buffer]);
      if (use->writes) later = std::max(later, after_write_[use->buffer] + moved);
    }
    double seconds = 0;
    int devices = 0;
    for (int d = 0; d < kMaxDevices; ++d) {
      if ((task.allowed >> d & 1) == 0) continue;
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
