#include "graph/cost/cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/base/fnv.h"
#include "graph/cost/history.h"

namespace hetero::graph {
namespace {

// An element that a host task makes: 8 ns on a CPU of which nothing is known. libjpeg-turbo takes 5
// to 10 for a byte.
constexpr double kHostTaskFlops = 800;

double known_or(double value, double guess) { return value > 0 ? value : guess; }

// Of attention over pages (docs/kv_cache.md): the table of each sequence's pages. Null for others.
const Window* page_table_of(const Graph& graph, const Node& node) {
  constexpr int kTable = 3;
  if (op_table()[node.op].op_class != OpClass::kAttention || node.operand_count <= kTable) return nullptr;
  const Operand* const operands = graph.operands_of(node);
  const Window& key = (*graph.windows)[operands[1].window];
  const Window& table = (*graph.windows)[operands[kTable].window];
  static const DType kIndex = parse_dtype("i32");
  return table.dtype == kIndex && table.rank == 2 && key.rank == 4 ? &table : nullptr;
}

// The most bytes of one operand that the node may touch: kernels that look things up, or write rows
// to their places, touch no more of a table than they move.
double most_touched(const Graph& graph, const Node& node) {
  if (op_table()[node.op].op_class != OpClass::kIndexing) return std::numeric_limits<double>::infinity();
  double defined = 0;
  double read = 0;
  const Operand* const operands = graph.operands_of(node);
  for (int i = 0; i < node.operand_count; ++i) {
    const double bytes = bytes_seen((*graph.windows)[operands[i].window]);
    if (operands[i].access == Access::kDefine) defined = std::max(defined, bytes);
    if (!operands[i].writes()) read = std::max(read, bytes);
  }
  return defined > 0 ? defined : read;
}

double flops_of(OpClass op_class, const Window& written, const Window* const* read, int reads, const Window* table) {
  const auto size = [](const Window& w) { return static_cast<double>(w.numel); };
  const double out = size(written);
  switch (op_class) {
    case OpClass::kMatmul: {
      // With A of m*k, B of k*n and C of m*n elements, |A||B|/|C| is k squared. A bias comes first.
      const double a = size(*read[reads - 2]);
      const double b = size(*read[reads - 1]);
      return out > 0 ? 2 * out * std::sqrt(a * b / out) : 0;
    }
    case OpClass::kConvolution: {
      const Window& weight = *read[1];
      return weight.rank > 0 && weight.dims[0] > 0 ? 2 * out * size(weight) / static_cast<double>(weight.dims[0]) : out;
    }
    case OpClass::kAttention: {
      const Window& key = *read[1];
      if (table != nullptr) return 4 * out * static_cast<double>(table->dims[1] * key.dims[2]);
      return key.rank >= 2 ? 4 * out * static_cast<double>(key.dims[key.rank - 2]) : out;
    }
    case OpClass::kNormalization:
      return 8 * out;
    default:
      return out;
  }
}

}  // namespace

double bytes_seen(const Window& window) { return static_cast<double>(window.numel) * dtype_bytes(window.dtype); }

Work work_of(const Graph& graph, const Node& node) {
  Work work;
  const Window* read[3] = {};
  int reads = 0;
  const Window* written = nullptr;
  const Operand* const operands = graph.operands_of(node);
  const Window* const table = page_table_of(graph, node);
  const double most = most_touched(graph, node);
  for (int i = 0; i < node.operand_count; ++i) {
    const Window& window = (*graph.windows)[operands[i].window];
    const bool in_pages = table != nullptr && (i == 1 || i == 2) && window.dims[0] > table->numel;
    const double share = in_pages ? static_cast<double>(table->numel) / static_cast<double>(window.dims[0]) : 1;
    work.bytes += std::min(share * bytes_seen(window), most);
    work.elements = std::max(work.elements, static_cast<double>(window.numel));
    if (operands[i].reads() && reads < 3) read[reads++] = &window;
    if (operands[i].writes() && written == nullptr) written = &window;
  }
  const OpTraits& traits = op_table()[node.op];
  const OpClass op_class = traits.op_class;
  work.half = written != nullptr && dtype_bytes(written->dtype) == 2;
  work.flops = written != nullptr && reads >= 2 ? flops_of(op_class, *written, read, reads, table) : work.bytes / 4;
  if (traits.host_task) work.flops = std::max(work.flops, kHostTaskFlops * work.elements);
  return work;
}

Work work_of(const Graph& graph, const Plan& plan, const Instruction& task) {
  if (task.is_group()) return work_of(graph, plan.groups[task.index]);
  return task.is_call() ? work_of(graph, graph.nodes[task.index]) : Work();
}

Work work_of(const Graph& graph, const FusedGroup& group) {
  Work work;
  for (const uint32_t member : group.members) {
    // The work of a node with a tail is its body's, which runs by itself; the tail is next to
    // nothing.
    if (!is_tail(graph, member)) work.flops += work_of(graph, graph.nodes[member]).flops;
  }
  for (const GroupOperand& operand : group.operands) {
    const Window& window = (*graph.windows)[graph.operands[operand.operand].window];
    work.bytes += bytes_seen(window) * (operand.loads + operand.stores);
    work.elements = std::max(work.elements, static_cast<double>(window.numel));
  }
  return work;
}

double bytes_of(const Graph& graph, const Plan& plan, size_t position, size_t end) {
  double bytes = 0;
  for (; position < end; ++position) bytes += static_cast<double>(graph.buffers[plan.program[position].index].bytes);
  return bytes;
}

double CostModel::latency(backend::DeviceIndex device) const {
  return known_or(machine_[device].rates.launch_latency, device == backend::kCpu ? 1e-6 : 5e-6);
}

double CostModel::run_seconds(const Work& work, backend::DeviceIndex device) const {
  return full_rate_seconds(work, device) + latency(device);
}

double CostModel::full_rate_seconds(const Work& work, backend::DeviceIndex device) const {
  const bool on_cpu = device == backend::kCpu;
  const backend::Capabilities& rates = machine_[device].rates;
  double flops = known_or(rates.flops, on_cpu ? 1e11 : 1e13);
  if (work.half) flops = known_or(rates.flops_half, flops);
  const double arithmetic = work.flops / flops;
  const double traffic = work.bytes / known_or(rates.memory_bandwidth, on_cpu ? 2e10 : 1e12);
  return std::max(arithmetic, traffic);
}

double CostModel::utilization(const Work& work, double seconds, backend::DeviceIndex device, double slowness) const {
  if (!(seconds > 0)) return 1;
  const double filled = std::min(1.0, work.elements / known_or(machine_[device].rates.parallelism, 1 << 17));
  const double running = std::max(0.0, seconds - slowness * latency(device));
  return std::min(1.0, std::max(slowness * full_rate_seconds(work, device), filled * running) / seconds);
}

uint64_t CostModel::slowness_key() {
  backend::Fnv hash;
  hash.add("slowness");
  return hash.value();
}

double CostModel::slowness() const {
  if (slowness_ > 0) return slowness_;
  const double learned = history_ == nullptr ? 0 : history_->find(slowness_key());
  return learned > 0 ? learned : 1;
}

double CostModel::node_seconds(const Graph& graph, const Node& node, backend::DeviceIndex device, Part part) const {
  const double measured = history_ == nullptr ? 0 : history_->find(cost_key(graph, node, device, part));
  return measured > 0 ? measured : run_seconds(work_of(graph, node), device);
}

double CostModel::group_seconds(const Graph& graph, const FusedGroup& group, backend::DeviceIndex device) const {
  const double measured = history_ == nullptr ? 0 : history_->find(cost_key(graph, group, device));
  return measured > 0 ? measured : run_seconds(work_of(graph, group), device);
}

double CostModel::seconds_of(const Graph& graph, const Plan& plan, const Instruction& instruction,
                             backend::DeviceIndex device) const {
  if (instruction.is_group()) return group_seconds(graph, plan.groups[instruction.index], device);
  double seconds = 0;
  for_each_call(plan, instruction, [&](const Instruction& call) {
    seconds += node_seconds(graph, graph.nodes[call.index], device, call.part());
  });
  return seconds;
}

double CostModel::copy_bandwidth(backend::DeviceIndex from, backend::DeviceIndex to) const {
  const std::optional<backend::Link> link = machine_.link(from, to);
  return known_or(link ? link->bandwidth : 0, 1e10);
}

double CostModel::copy_latency(backend::DeviceIndex from, backend::DeviceIndex to) const {
  const std::optional<backend::Link> link = machine_.link(from, to);
  return link ? link->latency : 0;
}

double CostModel::guessed_copy_seconds(double bytes, backend::DeviceIndex from, backend::DeviceIndex to) const {
  return copy_latency(from, to) + bytes / copy_bandwidth(from, to);
}

double CostModel::copy_seconds(double bytes, backend::DeviceIndex from, backend::DeviceIndex to) const {
  if (bytes == 0) return 0;
  if (from != backend::kCpu && to != backend::kCpu && !machine_.link(from, to)) {
    return copy_seconds(bytes, from, backend::kCpu) + copy_seconds(bytes, backend::kCpu, to);
  }
  const double guess = guessed_copy_seconds(bytes, from, to);
  if (history_ == nullptr) return guess;
  const CopyClass known(bytes, from, to);
  const double measured = history_->find(known.key);
  return measured > 0 ? measured * guess / guessed_copy_seconds(known.bytes, from, to) : guess;
}

void CostModel::learn_copy(double bytes, backend::DeviceIndex from, backend::DeviceIndex to, double seconds,
                           CostHistory& history) const {
  const CopyClass known(bytes, from, to);
  history.add(known.key, seconds * guessed_copy_seconds(known.bytes, from, to) / guessed_copy_seconds(bytes, from, to));
}

uint64_t CostModel::transfer_bytes(backend::DeviceIndex from, backend::DeviceIndex to) const {
  // More than a gigabyte is not small, whatever a profile says.
  constexpr double kMost = 1 << 30;
  return static_cast<uint64_t>(std::min(kMost, copy_latency(from, to) * copy_bandwidth(from, to)));
}

uint64_t CostModel::transfer_bytes(backend::DeviceIndex to) const {
  if (to != backend::kCpu) return transfer_bytes(backend::kCpu, to);
  uint64_t least = UINT64_MAX;
  for (backend::DeviceIndex from = 1; from < machine_.size(); ++from) {
    least = std::min(least, transfer_bytes(from, to));
  }
  return machine_.has_accelerator() ? least : 0;
}

}  // namespace hetero::graph
