#include "graph/cost/history.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <vector>

#include "backend/base/fnv.h"

namespace hetero::graph {
uint64_t cost_key(const Graph& graph, const Node& node, backend::DeviceIndex device, Part part) {
  backend::Fnv hash;
  hash.add(op_table()[node.op].name);
  hash.add(device);
  if (part != Part::kWhole) hash.add(static_cast<int64_t>(part));
  for (const Operand *o = graph.operands_of(node), *end = o + node.operand_count; o != end; ++o) {
    const Window& window = (*graph.windows)[o->window];
    hash.add(static_cast<int64_t>(window.dtype) * 256 + window.rank);
    for (int d = 0; d < window.rank; ++d) {
      hash.add(window.sizes()[d]);
      hash.add(window.strides()[d]);
    }
  }
  return hash.value();
}

uint64_t cost_key(const Graph& graph, const FusedGroup& group, backend::DeviceIndex device) {
  backend::Fnv hash;
  hash.add("fused");
  for (const uint32_t member : group.members) hash.add(cost_key(graph, graph.nodes[member], device));
  for (const GroupOperand& operand : group.operands) hash.add(operand.loads * 2 + operand.stores);
  return hash.value();
}

uint64_t cost_key(const Graph& graph, const Plan& plan, const Instruction& task, backend::DeviceIndex device) {
  if (task.is_group()) return cost_key(graph, plan.groups[task.index], device);
  return cost_key(graph, graph.nodes[task.index], device, task.part());
}

CopyClass::CopyClass(double size, backend::DeviceIndex from, backend::DeviceIndex to)
    : bytes(1.5 * std::exp2(std::ilogb(std::max(1.0, size)))) {
  backend::Fnv hash;
  hash.add("copy");
  hash.add(to);
  // Between the host and the first accelerator, the destination says it all.
  if (from > 1 || to > 1) hash.add(from);
  hash.add(static_cast<int64_t>(bytes));
  key = hash.value();
}

void CostHistory::add(uint64_t key, double seconds) {
  if (!(seconds > 0) || !std::isfinite(seconds)) return;
  const std::lock_guard lock(mutex_);
  auto found = entries_.find(key);
  if (found == entries_.end()) {
    if (entries_.size() >= kMost) return;
    found = entries_.emplace(key, Entry()).first;
  }
  Entry& entry = found->second;
  if (entry.count >= kEnough) {
    const double deviation = std::sqrt(entry.squares / entry.count);
    if (std::abs(seconds - entry.mean) > 4 * std::max(deviation, 0.1 * entry.mean)) {
      if (++entry.outliers < kOutliers) return;
      const double reported = entry.reported;
      entry = Entry();
      entry.reported = reported;
    }
  }
  entry.outliers = 0;
  ++entry.count;
  const double difference = seconds - entry.mean;
  entry.mean += difference / entry.count;
  entry.squares += difference * (seconds - entry.mean);
  if (entry.count < kEnough) return;
  if (entry.reported == 0 || std::abs(entry.mean - entry.reported) > entry.reported / 4) {
    entry.reported = entry.mean;
    ++version_;
  }
}

double CostHistory::find(uint64_t key) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  return found == entries_.end() || found->second.count < kEnough ? 0 : found->second.mean;
}

size_t CostHistory::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

uint64_t CostHistory::version() const {
  const std::lock_guard lock(mutex_);
  return version_;
}

Status CostHistory::save(const backend::CacheFile& file) const {
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, entry] : entries_) {
      if (entry.count < kEnough) continue;
      char line[128];
      std::snprintf(line, sizeof(line), "%016" PRIx64 " %" PRIu32 " %.17g %.17g\n", key, entry.count, entry.mean,
                    entry.squares);
      text += line;
    }
  }
  return file.write(text);
}

Status CostHistory::load(const backend::CacheFile& file) {
  const Result<std::string> text = file.read();
  if (!text.ok()) return text.status();
  std::vector<std::pair<uint64_t, Entry>> read;
  std::istringstream lines(text.value());
  for (std::string line; std::getline(lines, line);) {
    uint64_t key = 0;
    Entry entry;
    if (std::sscanf(line.c_str(), "%" SCNx64 " %" SCNu32 " %lf %lf", &key, &entry.count, &entry.mean, &entry.squares) !=
            4 ||
        entry.count < kEnough || !(entry.mean > 0) || !(entry.squares >= 0)) {
      return Status(ErrorClass::kStorage, file.path() + " has a line that is no cost");
    }
    // A few new measurements may outweigh what an older run has seen.
    const uint32_t count = std::min(entry.count, 4 * kEnough);
    entry.squares *= static_cast<double>(count) / entry.count;
    entry.count = count;
    entry.reported = entry.mean;
    read.emplace_back(key, entry);
  }
  const std::lock_guard lock(mutex_);
  for (const auto& [key, entry] : read) entries_.try_emplace(key, entry);
  ++version_;
  return Status();
}

}  // namespace hetero::graph
