#include "ops/cost_history.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/registry.h"
#include "graph/cost.h"
#include "ops/choices.h"

namespace hetero::ops {
namespace {

// Additions until the file is written again.
constexpr int kSaveEvery = 256;

struct Entry {
  graph::CostHistory history;
  std::string path;  // "": of a clock that is not real
  int unsaved = 0;
  uint64_t saved_version = 0;
};

std::string machine_of(const backend::Device& accelerator) { return machine_text() + ", " + accelerator.name(); }

Entry& entry() {
  static auto& entries = *new std::map<const backend::Device*, std::unique_ptr<Entry>>;
  backend::Device* const accelerator = backend::accelerator();
  std::unique_ptr<Entry>& found = entries[accelerator];
  if (found != nullptr) return *found;
  found = std::make_unique<Entry>();
  if (accelerator == nullptr || accelerator->has_virtual_clock()) return *found;
  found->path = ChoiceFile::default_path("costs");
  if (!found->path.empty()) (void)found->history.load(found->path, machine_of(*accelerator));
  return *found;
}

void save(Entry& entry) {
  entry.unsaved = 0;
  if (entry.history.version() == entry.saved_version) return;
  entry.saved_version = entry.history.version();
  if (entry.path.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(entry.path).parent_path(), ignored);
  // Without a file the next process measures again.
  (void)entry.history.save(entry.path, machine_of(*backend::accelerator()));
}

// Whether what it takes is that of a node, the body of one, or a group.
bool is_task(const graph::Instruction& instruction) {
  using Kind = graph::Instruction::Kind;
  return instruction.kind == Kind::kRun || instruction.kind == Kind::kBody || instruction.kind == Kind::kFused;
}

// Per instruction: a kernel of the accelerator that ran beside another on a side queue, so what it took is not what it takes alone.
std::vector<uint8_t> find_shared(const graph::Plan& plan, const graph::RunTimes& times) {
  std::vector<uint8_t> shared(plan.program.size());
  std::vector<size_t> kernels;
  bool side = false;
  for (size_t p = 0; p < plan.program.size(); ++p) {
    const graph::Instruction& instruction = plan.program[p];
    if (!is_task(instruction) || instruction.queue == graph::kHostQueue) continue;
    side |= backend::is_side_compute(graph::kind_of(instruction.queue));
    kernels.push_back(p);
  }
  if (!side) return shared;
  std::ranges::sort(kernels, {}, [&times](size_t p) { return times.spans[p].begin; });
  size_t longest = kernels.front();  // of those that have begun, what ends last
  for (size_t i = 1; i < kernels.size(); ++i) {
    const size_t p = kernels[i];
    if (times.spans[p].begin < times.spans[longest].end) shared[p] = shared[longest] = 1;
    if (times.spans[p].end > times.spans[longest].end) longest = p;
  }
  return shared;
}

}  // namespace

graph::CostHistory& cost_history() { return entry().history; }

void learn_costs(const graph::Graph& graph, const graph::Plan& plan, const graph::PlanOptions& options,
                 const graph::RunTimes& times) {
  const backend::Device* const accelerator = backend::accelerator();
  if (accelerator == nullptr) return;
  Entry& known = entry();
  const std::vector<uint8_t> shared = find_shared(plan, times);
  const graph::CostModel costs(options);
  for (uint32_t p = 0; p < plan.program.size(); ++p) {
    const graph::Instruction& instruction = plan.program[p];
    if (instruction.kind == graph::Instruction::Kind::kCopy) {
      // The first of a transfer has taken the time of all.
      if (!(times.spans[p].end > times.spans[p].begin)) continue;
      double bytes = 0;
      for (uint32_t i = p; i < graph::end_of_transfer(graph, plan, p); ++i) {
        bytes += static_cast<double>(graph.buffers[plan.program[i].index].bytes);
      }
      costs.learn_copy(bytes, instruction.to, times.spans[p].end - times.spans[p].begin, known.history);
      ++known.unsaved;
      continue;
    }
    if (!is_task(instruction)) continue;
    const bool fused = instruction.kind == graph::Instruction::Kind::kFused;
    const backend::DeviceIndex device = graph::device_of(instruction.queue);
    const double seconds = times.spans[p].end - times.spans[p].begin;
    // A virtual clock knows nothing new of the host.
    const bool seen = device == backend::kAccelerator || !accelerator->has_virtual_clock();
    if (!seen || !(seconds > 0) || shared[p] != 0) continue;
    const uint64_t key = fused ? graph::cost_key(graph, plan.groups[instruction.index], device)
                               : graph::cost_key(graph, graph.nodes[instruction.index], device, part_of(instruction));
    known.history.add(key, seconds);
    ++known.unsaved;
  }
  if (known.unsaved >= kSaveEvery) save(known);
}

}  // namespace hetero::ops
