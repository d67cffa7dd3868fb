#include "ops/run/cost_history.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend/file/cache_file.h"
#include "backend/registry/device_model.h"
#include "backend/registry/registry.h"
#include "graph/cost/cost.h"
#include "graph/cost/simulate.h"
#include "ops/kernels/choices.h"
#include "ops/record/running.h"

namespace hetero::ops {
namespace {

// Additions until the file is written again.
constexpr int kSaveEvery = 256;

struct Entry {
  graph::CostHistory history;
  backend::CacheFile file{"", "", ""};  // none where the clock is not real
  int unsaved = 0;
  uint64_t saved_version = 0;
};

// Of the accelerators that were used, kept for ever: what runs at the end of the process still
// finds them.
std::map<const backend::Device*, std::unique_ptr<Entry>>& entries() {
  static auto& made = *new std::map<const backend::Device*, std::unique_ptr<Entry>>;
  return made;
}

void save(Entry& entry) {
  entry.unsaved = 0;
  const uint64_t version = entry.history.version();
  if (entry.file.path().empty() || version == entry.saved_version) return;
  entry.saved_version = version;
  // Without a file the next process measures again.
  (void)entry.history.save(entry.file);
}

// At the end of the process. Whoever holds the lock then will not give it back any more, and has
// learned next to nothing since the last time.
void save_all() {
  const std::unique_lock lock(executor_mutex(), std::try_to_lock);
  if (!lock.owns_lock()) return;
  for (const auto& [device, entry] : entries()) save(*entry);
}

void open(const backend::Device& accelerator, Entry& entry) {
  const std::string kind = graph::CostHistory::kKind;
  const std::string machine = machine_text() + ", " + accelerator.name() + ", " + backend::model_of(accelerator);
  entry.file = {backend::CacheFile::default_path(kind, machine), kind, machine};
  if (entry.history.load(entry.file).ok()) entry.saved_version = entry.history.version();
  [[maybe_unused]] static const bool saved_at_exit = std::atexit(&save_all) == 0;
}

Entry& entry() {
  backend::Device* const accelerator = backend::accelerator();
  std::unique_ptr<Entry>& found = entries()[accelerator];
  if (found != nullptr) return *found;
  found = std::make_unique<Entry>();
  if (accelerator != nullptr && !accelerator->has_virtual_clock()) open(*accelerator, *found);
  return *found;
}

// Per instruction: a kernel of the accelerator that ran beside another on a side queue, so what it
// took is not what it takes alone.
std::vector<uint8_t> find_shared(const graph::Plan& plan, const graph::RunTimes& times) {
  std::vector<uint8_t> shared(plan.program.size());
  if (!graph::has_side_queues(plan)) return shared;
  std::vector<size_t> kernels;
  for (size_t p = 0; p < plan.program.size(); ++p) {
    const graph::Instruction& instruction = plan.program[p];
    if (!instruction.is_task() || !graph::runs_kernels(instruction.queue)) continue;
    kernels.push_back(p);
  }
  if (kernels.empty()) return shared;
  std::ranges::sort(kernels, {}, [&times](size_t p) { return times.spans[p].begin; });
  size_t longest = kernels.front();  // of those that have begun, what ends last
  for (size_t i = 1; i < kernels.size(); ++i) {
    const size_t p = kernels[i];
    if (times.spans[p].begin < times.spans[longest].end) shared[p] = shared[longest] = 1;
    if (times.spans[p].end > times.spans[longest].end) longest = p;
  }
  return shared;
}

// Returns it where it is another one than was assumed; else 0.
double learn_slowness(const graph::Graph& graph, const graph::Plan& plan, const graph::CostModel& costs,
                      const graph::RunTimes& times, graph::CostHistory& history) {
  const std::optional<double> fitted = graph::fit_slowness(graph, plan, costs, times.spans);
  if (!fitted.has_value()) return 0;
  // Where what is assumed of a device of which nothing was learned is right, nothing has to be
  // learned.
  const uint64_t key = graph::CostModel::slowness_key();
  if (*fitted != 1 || history.find(key) > 0) history.add(key, *fitted);
  return *fitted == costs.slowness() ? 0 : *fitted;
}

}  // namespace

graph::CostHistory& cost_history() { return entry().history; }

Learned learn_costs(const graph::Graph& graph, const graph::Plan& plan, const graph::PlanOptions& options,
                    const graph::RunTimes& times) {
  const backend::Device* const accelerator = backend::accelerator();
  if (accelerator == nullptr) return {};
  Entry& known = entry();
  const std::vector<uint8_t> shared = find_shared(plan, times);
  const graph::CostModel costs(options);
  bool known_alone = true;  // what each kernel takes that ran beside others
  for (uint32_t p = 0; p < plan.program.size(); ++p) {
    const graph::Instruction& instruction = plan.program[p];
    if (instruction.is_copy()) {
      // The first of a transfer has taken the time of all.
      if (!(times.spans[p].end > times.spans[p].begin)) continue;
      const double bytes = graph::bytes_of(graph, plan, p, graph::end_of_transfer(graph, plan, p));
      costs.learn_copy(bytes, instruction.from, instruction.to, times.spans[p].end - times.spans[p].begin,
                       known.history);
      ++known.unsaved;
      continue;
    }
    if (!instruction.is_task()) continue;
    const backend::DeviceIndex device = graph::device_of(instruction.queue);
    const double seconds = times.spans[p].end - times.spans[p].begin;
    // A virtual clock knows nothing new of the host.
    const bool seen = device != backend::kCpu || !accelerator->has_virtual_clock();
    if (!seen || !(seconds > 0)) continue;
    const uint64_t key = graph::cost_key(graph, plan, instruction, device);
    if (shared[p] != 0) {
      known_alone = known_alone && known.history.find(key) > 0;
      continue;
    }
    known.history.add(key, seconds);
    ++known.unsaved;
  }
  const bool beside = std::ranges::count(shared, 1) != 0;
  const bool tells = beside && known_alone;
  const double slowness = tells ? learn_slowness(graph, plan, costs, times, known.history) : 0;
  if (known.unsaved >= kSaveEvery) save(known);
  return {beside, slowness};
}

}  // namespace hetero::ops
