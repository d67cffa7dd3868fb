#include "ops/memory/arrivals.h"

#include <algorithm>
#include <deque>

#include "backend/registry/registry.h"
#include "ops/settings/config.h"

namespace hetero::ops {
namespace {

using backend::kAccelerator;
using backend::kCpu;

// Those that wait, the oldest first. More than a batch or two has in tensors need not be looked at.
constexpr size_t kMost = 32;
std::deque<StorageHold>& arrivals() {
  static auto* const instance = new std::deque<StorageHold>;
  return *instance;
}

bool is_whole_on_host(const HeteroStorage& storage) {
  const graph::Binding& binding = storage.binding;
  return binding.error.ok() && binding.valid_on == 1u << kCpu && binding.blocks[kCpu] && !binding.sharers &&
         !binding.layout.has_gaps() && storage.host_readers == 0;
}

// The sizes of the arrivals that the slice takes to the accelerator.
std::vector<size_t> take_arrivals(const TraceSlice& slice, const graph::Plan& plan) {
  std::vector<size_t> sizes;
  for (graph::BufferId b = 0; b < slice.bindings.size(); ++b) {
    if (slice.bindings[b] == nullptr) continue;
    HeteroStorage* const storage = slice.holds[b].storage();
    if (!storage->arrived) continue;
    storage->arrived = false;
    if (plan.residence(b, kAccelerator).home != graph::Home::kNone) sizes.push_back(storage->nbytes());
  }
  std::erase_if(arrivals(), [](const StorageHold& hold) { return !hold.alive() || !hold.storage()->arrived; });
  return sizes;
}

// What the accelerator may hold before it counts as full.
uint64_t most_bytes() {
  const auto limit = static_cast<double>(backend::accelerator()->memory_stats().limit_bytes);
  if (limit == 0) return UINT64_MAX;
  return static_cast<uint64_t>(limit * config().memory_pressure.load(std::memory_order_relaxed));
}

}  // namespace

void note_arrival(HeteroStorage* storage) {
  if (backend::accelerator() == nullptr || storage->arrived) return;
  std::deque<StorageHold>& waiting = arrivals();
  if (waiting.size() == kMost) {
    waiting.front().storage()->arrived = false;
    waiting.pop_front();
  }
  storage->arrived = true;
  waiting.emplace_back(storage, false);
}

void find_uploads(const TraceSlice& slice, const graph::Plan& plan, graph::Uploads& uploads,
                  std::vector<StorageHold>& holds) {
  if (arrivals().empty()) return;
  std::vector<size_t> sizes = take_arrivals(slice, plan);
  uploads.to = kAccelerator;
  uploads.most_bytes = most_bytes();
  for (const StorageHold& waiting : arrivals()) {
    HeteroStorage* const storage = waiting.storage();
    const auto size = std::ranges::find(sizes, storage->nbytes());
    if (size == sizes.end()) continue;
    StorageHold hold(storage, false);
    if (!hold.lock() || !is_whole_on_host(*storage)) continue;
    sizes.erase(size);
    uploads.entries.push_back({&storage->binding, storage->nbytes()});
    holds.push_back(std::move(hold));
  }
}

}  // namespace hetero::ops
