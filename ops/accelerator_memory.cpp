#include "ops/accelerator_memory.h"

#include <algorithm>
#include <vector>

#include "backend/registry.h"
#include "ops/counters.h"

namespace hetero::ops {
namespace {

using backend::kAccelerator;
using backend::kCpu;

constexpr uint8_t kOnCpu = 1u << kCpu;

struct Tracked {
  std::mutex mutex;
  std::unordered_set<HeteroStorage*> storages;
};
Tracked& tracked() {
  static auto* instance = new Tracked;
  return *instance;
}

// Keeps them alive.
std::vector<StorageHold> hold_tracked() {
  std::vector<StorageHold> holds;
  std::lock_guard guard(tracked().mutex);
  for (HeteroStorage* storage : tracked().storages) {
    StorageHold hold(storage, false);
    if (hold.lock()) holds.push_back(std::move(hold));
  }
  return holds;
}

// As allocators count it.
uint64_t held_bytes(const graph::Binding& binding) { return (binding.blocks[kAccelerator].bytes() + 63) / 64 * 64; }

uint64_t bytes_of(const Cut& cut) {
  uint64_t bytes = 0;
  for (const graph::Binding* binding : cut.bindings) {
    if (binding != nullptr && binding->blocks[kAccelerator]) bytes += held_bytes(*binding);
  }
  return bytes;
}

// The bytes of the storage are only on the host from now on. False, and nothing has changed, where they cannot be brought there.
bool leave(HeteroStorage* storage) {
  graph::Binding& binding = storage->binding;
  if (binding.error.ok() && !bring_to_host(storage).ok()) return false;
  binding.blocks[kAccelerator].reset();
  binding.valid_on &= kOnCpu;
  return true;
}

}  // namespace

Status bring_to_host(HeteroStorage* storage) {
  graph::Binding& binding = storage->binding;
  if (!binding.error.ok()) return binding.error;
  if ((binding.valid_on & kOnCpu) != 0) return Status();
  if (!binding.blocks[kCpu]) {
    Result<backend::Block> block = backend::cpu_device().allocate(storage->nbytes());
    if (!block.ok()) return block.status();
    binding.blocks[kCpu] = std::move(block.value());
  }
  if (binding.valid_on != 0) {
    backend::Queue& queue = backend::accelerator()->queue(backend::QueueKind::kDeviceToHost);
    Status status = queue.copy(binding.blocks[kCpu].data(), binding.blocks[kAccelerator].data(), storage->nbytes());
    if (status.ok()) status = queue.synchronize();
    if (!status.ok()) return status;
    count(counters().copies_to_cpu);
    count(counters().bytes_to_cpu, static_cast<int64_t>(storage->nbytes()));
  }
  binding.valid_on |= kOnCpu;
  return Status();
}

uint64_t accelerator_budget() {
  const backend::Device* const accelerator = backend::accelerator();
  return accelerator == nullptr ? 0 : static_cast<uint64_t>(accelerator->memory_stats().limit_bytes);
}

uint64_t room_for(const Cut& cut) {
  const backend::MemoryStats stats = backend::accelerator()->memory_stats();
  if (stats.limit_bytes == 0) return 0;
  const int64_t others = stats.allocated_bytes - static_cast<int64_t>(bytes_of(cut));
  // No room at all is not the same as no limit.
  return static_cast<uint64_t>(std::max<int64_t>(1, stats.limit_bytes - others));
}

void make_room(const Cut& cut, uint64_t bytes) {
  if (room_for(cut) == 0 || room_for(cut) >= bytes) return;
  std::vector<StorageHold> holds = hold_tracked();
  std::erase_if(holds, [&](const StorageHold& hold) {
    const graph::Binding* const binding = &hold.storage()->binding;
    return !binding->blocks[kAccelerator] || std::ranges::find(cut.bindings, binding) != cut.bindings.end();
  });
  std::ranges::sort(holds, {}, [](const StorageHold& hold) { return hold.storage()->last_used; });
  for (StorageHold& hold : holds) {
    if (room_for(cut) >= bytes) return;
    if (!leave(hold.storage())) continue;
    count(counters().storages_evicted);
    untrack_accelerator(hold.storage());
  }
}

uint64_t accelerator_need(const graph::Graph& graph, const graph::Plan& plan) {
  uint64_t bytes = (plan.arena_bytes[kAccelerator] + 63) / 64 * 64;
  for (graph::BufferId b = 0; b < graph.buffers.size(); ++b) {
    const bool there = (graph.buffers[b].valid_on >> kAccelerator & 1) != 0;
    if (there || plan.residence(b, kAccelerator).home == graph::Home::kBound) {
      bytes += (std::max<uint64_t>(1, graph.buffers[b].bytes) + 63) / 64 * 64;
    }
  }
  return bytes;
}

void track_accelerator(const Cut& cut) {
  static uint64_t runs = 0;  // guarded by the executor's lock
  ++runs;
  std::lock_guard guard(tracked().mutex);
  for (size_t b = 0; b < cut.bindings.size(); ++b) {
    if (cut.bindings[b] == nullptr || !cut.bindings[b]->blocks[kAccelerator]) continue;
    HeteroStorage* const storage = cut.holds[b].storage();
    storage->last_used = runs;
    storage->tracked = true;
    tracked().storages.insert(storage);
  }
}

void untrack_accelerator(HeteroStorage* storage) {
  std::lock_guard guard(tracked().mutex);
  tracked().storages.erase(storage);
  storage->tracked = false;
}

void leave_accelerator() {
  for (StorageHold& hold : hold_tracked()) {
    HeteroStorage* const storage = hold.storage();
    if (!leave(storage) && storage->binding.error.ok()) storage->binding.error = bring_to_host(storage);
    storage->binding.blocks[kAccelerator].reset();
    storage->binding.valid_on &= kOnCpu;
    untrack_accelerator(storage);
  }
}

std::mutex& tracking_mutex() { return tracked().mutex; }

}  // namespace hetero::ops
