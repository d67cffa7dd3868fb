#include "ops/memory/storage_memory.h"

#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "backend/memory/host_ranges.h"
#include "backend/registry/registry.h"
#include "ops/record/running.h"
#include "ops/settings/config.h"
#include "ops/settings/counters.h"

namespace hetero::ops {
namespace {

using backend::kAccelerator;
using backend::kCpu;

constexpr uint8_t kOnCpu = 1u << kCpu;

// Holds them weakly: only so a storage that dies on another thread at this moment can be asked
// whether it lives.
struct Tracked {
  std::mutex mutex;
  std::unordered_map<HeteroStorage*, StorageHold> storages;
};
Tracked& tracked() {
  static auto* instance = new Tracked;
  return *instance;
}

// When a tracked storage dies, on any thread.
void untrack_storage(HeteroStorage* storage) {
  std::unordered_map<HeteroStorage*, StorageHold>::node_type node;  // goes after the lock
  std::lock_guard guard(tracked().mutex);
  node = tracked().storages.extract(storage);
  storage->tracked = false;
}

[[maybe_unused]] const bool installed = [] {
  HeteroStorage::on_tracked_end = &untrack_storage;
  return true;
}();

// Keeps them alive.
std::vector<StorageHold> hold_tracked() {
  std::vector<StorageHold> holds;
  {
    std::lock_guard guard(tracked().mutex);
    holds.reserve(tracked().storages.size());
    for (const auto& [storage, weak] : tracked().storages) holds.emplace_back(storage, false);
  }
  // Without the lock, which a storage that goes with its hold takes.
  std::erase_if(holds, [](StorageHold& hold) { return !hold.lock(); });
  return holds;
}

// As allocators count them.
uint64_t counted(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

uint64_t bytes_of(const TraceSlice& slice) {
  uint64_t bytes = 0;
  for (const graph::Binding* binding : slice.bindings) {
    if (binding == nullptr) continue;
    if (const backend::Block& there = std::as_const(*binding).blocks[kAccelerator]) bytes += counted(there.bytes());
  }
  return bytes;
}

// Smaller ones never leave: files give back no less.
constexpr size_t kLeastSpill = 4 << 10;

// Those of the tracked with memory on the device that no running slice touches, the one used
// longest ago first. Plans and kernels count on the bytes of the others where they are.
std::vector<StorageHold> others_by_age(backend::DeviceIndex device) {
  std::vector<StorageHold> holds = hold_tracked();
  std::unordered_set<const graph::Binding*> touched;
  for (const TraceSlice* slice : running_slices()) touched.insert(slice->bindings.begin(), slice->bindings.end());
  std::erase_if(holds, [&](const StorageHold& hold) {
    const graph::Binding& binding = hold.storage()->binding;
    return !binding.blocks[device] || touched.contains(&binding);
  });
  std::ranges::stable_sort(holds, {}, [](const StorageHold& hold) { return hold.storage()->last_used; });
  return holds;
}

// Frees the host's copy of the bytes. False where that cannot be.
bool leave_host(HeteroStorage* storage) {
  graph::Binding& binding = storage->binding;
  backend::Block& block = binding.blocks[kCpu];
  // Storages that others may read at any time: those with a reader of the block, those of a flight.
  if (!block || block.bytes() < kLeastSpill || !binding.error.ok() || binding.sharers ||
      storage->host_readers.load() != 0 || storage->flights != 0 || (binding.valid_on & kOnCpu) == 0) {
    return false;
  }
  if (binding.valid_on == kOnCpu) {
    auto written = backend::SpilledBytes::write(config().spill.load(), block.data(), block.bytes());
    if (!written.ok()) return false;
    binding.spilled = std::move(written.value());
    has_spilled = true;
    count(counters().bytes_spilled, static_cast<int64_t>(block.bytes()));
  } else {
    binding.valid_on &= static_cast<uint8_t>(~kOnCpu);
  }
  binding.derived.reset();
  block.reset();
  count(counters().storages_spilled);
  return true;
}

// The bytes of the storage are only on the host from now on. False, and nothing has changed, where
// they cannot be brought there.
bool leave(HeteroStorage* storage) {
  graph::Binding& binding = storage->binding;
  if (binding.error.ok() && !bring_to_host(storage).ok()) return false;
  binding.blocks.reset_accelerators();
  binding.valid_on &= kOnCpu;
  return true;
}

// The same; where the bytes cannot be brought, they are lost.
void come_home(HeteroStorage* storage) {
  graph::Binding& binding = storage->binding;
  if (!binding.blocks.on_accelerator() || leave(storage)) return;
  binding.error = bring_to_host(storage);
  binding.blocks.reset_accelerators();
  binding.valid_on &= kOnCpu;
}

}  // namespace

Result<backend::Block> allocate_on_host(size_t bytes) {
  Result<backend::Block> block = backend::cpu_device().allocate(bytes);
  if (block.ok() || !spills()) return block;
  make_host_room(bytes);
  return backend::cpu_device().allocate(bytes);
}

namespace {

// malloc maps memory beyond this by itself, so that it shares no page with others.
constexpr size_t kMappedBytes = size_t{32} << 20;

}  // namespace

backend::Block adopt_cpu_storage(c10::Storage storage) {
  c10::StorageImpl* impl = storage.unsafeReleaseStorageImpl();
  void* data = impl->_mutable_data_ptr_no_checks().get();
  const size_t bytes = impl->nbytes();
  if (data == nullptr) {
    // An empty CPU storage has no pointer, but a block must have one.
    c10::raw::intrusive_ptr::decref(impl);
    static char nothing[64];
    return backend::Block::adopt(nothing, 0, nullptr, nullptr);
  }
  Status status = backend::cpu_device().account_external(static_cast<int64_t>(bytes));
  if (!status.ok() && spills()) {
    make_host_room(bytes);
    status = backend::cpu_device().account_external(static_cast<int64_t>(bytes));
  }
  if (!status.ok()) {
    c10::raw::intrusive_ptr::decref(impl);
    TORCH_CHECK_WITH(OutOfMemoryError, false, status.message());
  }
  if (bytes >= kMappedBytes) backend::host_ranges().add(data, bytes);
  return backend::Block::adopt(
      data, bytes,
      [](void* context, void* memory, size_t size) {
        (void)backend::cpu_device().account_external(-static_cast<int64_t>(size));
        if (size >= kMappedBytes) backend::host_ranges().remove(memory, size);
        c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(context));
      },
      impl);
}

Status bring_to_host(HeteroStorage* storage) {
  graph::Binding& binding = storage->binding;
  if (!binding.error.ok()) return binding.error;
  if ((binding.valid_on & kOnCpu) != 0 && binding.spilled == nullptr) return Status();
  if (!binding.blocks[kCpu]) {
    const size_t bytes = binding.spilled != nullptr ? binding.spilled->bytes() : storage->nbytes();
    Result<backend::Block> block = allocate_on_host(bytes);
    if (!block.ok()) return block.status();
    binding.blocks[kCpu] = std::move(block.value());
  }
  if (binding.spilled != nullptr) {
    const Status status = binding.spilled->read(binding.blocks[kCpu].data());
    if (!status.ok()) {
      // The file still has them.
      binding.blocks[kCpu].reset();
      return status;
    }
    binding.spilled.reset();
    return Status();
  }
  if (binding.valid_on != 0) {
    const backend::DeviceIndex from = backend::first_of(binding.valid_on);
    backend::Queue& queue = backend::device_at(from)->queue(backend::QueueKind::kDeviceToHost);
    Status status = queue.copy(binding.blocks[kCpu].data(), binding.blocks[from].data(), storage->nbytes());
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

uint64_t room_for(const TraceSlice& slice) {
  const backend::MemoryStats stats = backend::accelerator()->memory_stats();
  if (stats.limit_bytes == 0) return 0;
  const int64_t others = stats.allocated_bytes - static_cast<int64_t>(bytes_of(slice));
  // No room at all is not the same as no limit.
  return static_cast<uint64_t>(std::max<int64_t>(1, stats.limit_bytes - others));
}

void make_room(const TraceSlice& slice, uint64_t bytes) {
  if (room_for(slice) == 0 || room_for(slice) >= bytes) return;
  for (StorageHold& hold : others_by_age(kAccelerator)) {
    if (room_for(slice) >= bytes) return;
    if (!leave(hold.storage())) continue;
    hold.storage()->binding.evicted();
    count(counters().storages_evicted);
  }
}

uint64_t accelerator_need(const graph::Graph& graph, const graph::Plan& plan) {
  uint64_t bytes = counted(plan.arena_bytes[kAccelerator]);
  for (graph::BufferId b = 0; b < graph.buffers.size(); ++b) {
    const bool there = backend::contains(graph.buffers[b].valid_on, kAccelerator);
    if (there || plan.residence(b, kAccelerator).home == graph::Home::kBound) {
      bytes += counted(std::max<uint64_t>(1, graph.buffers[b].bytes));
    }
  }
  return bytes;
}

constinit std::atomic<bool> may_spill{false};
constinit std::atomic<bool> has_spilled{false};

bool spills_below_limit() { return backend::cpu_device().memory_stats().limit_bytes > 0; }

void make_host_room(uint64_t bytes) {
  if (!spills()) return;
  const std::lock_guard lock(executor_mutex());
  const auto enough = [bytes](int64_t ahead) {
    const backend::MemoryStats stats = backend::cpu_device().memory_stats();
    return stats.allocated_bytes + static_cast<int64_t>(bytes) + ahead <= stats.limit_bytes;
  };
  if (enough(0)) return;
  std::vector<StorageHold> holds = others_by_age(kCpu);
  const auto small = std::ranges::stable_partition(
      holds, [](const StorageHold& hold) { return hold.storage()->binding.blocks[kCpu].bytes() >= kLargeStorage; });
  for (auto hold = holds.begin(); hold != small.begin(); ++hold) {
    if (enough(0)) return;
    (void)leave_host(hold->storage());
  }
  if (enough(0)) return;
  // There may be very many small ones, so that to find the oldest is more work than to write it:
  // several leave at a time.
  const int64_t ahead = backend::cpu_device().memory_stats().limit_bytes / 16;
  for (StorageHold& hold : small) {
    if (enough(ahead)) return;
    (void)leave_host(hold.storage());
  }
}

void bring_back(const TraceSlice& slice) {
  for (size_t b = 0; b < slice.bindings.size(); ++b) {
    if (slice.bindings[b] == nullptr || slice.bindings[b]->spilled == nullptr) continue;
    if (Status status = bring_to_host(slice.holds[b].storage()); !status.ok()) {
      slice.holds[b].storage()->binding.error = std::move(status);
    }
  }
}

uint64_t host_need(const TraceSlice& slice, const graph::Graph& graph, const graph::Plan& plan) {
  uint64_t bytes = plan.arena_bytes[kCpu];
  for (graph::BufferId b = 0; b < graph.buffers.size(); ++b) {
    const graph::Home home = plan.residence(b, kCpu).home;
    const bool there = slice.bindings[b] != nullptr && slice.bindings[b]->blocks[kCpu];
    if (home != graph::Home::kNone && home != graph::Home::kArena && !there) bytes += graph.buffers[b].bytes;
  }
  return bytes;
}

namespace {

uint64_t runs = 0;  // guarded by the executor's lock

// Of blocks on the host.
size_t least_tracked() { return spills() ? kLeastSpill : kLargeStorage; }

void track(HeteroStorage* storage, size_t least) {
  const graph::Binding& binding = storage->binding;
  if (binding.blocks[kCpu].bytes() < least && !binding.blocks.on_accelerator() && binding.spilled == nullptr) return;
  storage->last_used = runs;
  if (storage->tracked) return;
  storage->tracked = true;
  std::lock_guard guard(tracked().mutex);
  tracked().storages.try_emplace(storage, storage, false);
}

}  // namespace

void track_storages(const TraceSlice& slice) {
  ++runs;
  const size_t least = least_tracked();
  for (size_t b = 0; b < slice.bindings.size(); ++b) {
    graph::Binding* const binding = slice.bindings[b];
    if (binding == nullptr) continue;
    if (binding->spilled != nullptr) {
      // The file still has the bytes.
      binding->error = Status();
      binding->valid_on = kOnCpu;
    }
    HeteroStorage* const storage = slice.holds[b].storage();
    // Who sees the host's bytes reads and writes them, and tells nobody. What a GPU's tensor lends
    // stays where it is.
    if (binding->sharers && storage->host_readers.load() != 0) come_home(storage);
    track(storage, least);
  }
}

void track_storage(HeteroStorage* storage) { track(storage, least_tracked()); }

void leave_accelerator() {
  for (StorageHold& hold : hold_tracked()) come_home(hold.storage());
}

std::mutex& tracking_mutex() { return tracked().mutex; }

}  // namespace hetero::ops
