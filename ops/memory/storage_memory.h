// Storage memory: which storages have bytes where, and how storages that a program does not touch
// make room for it.
//
// - A plan may use the accelerator's budget minus the bytes of storages there that its graph does
//   not touch. If that is not enough, the least recently used of those leave: their bytes are
//   copied to the host if the host's are stale, and their memory is freed.
// - If the host's memory is limited (config().memory_limit) and there is a spill folder
//   (config().spill), the least recently used storages leave the host's memory in the same way.
//   They stay on the accelerator if it has the bytes, and go to a file without a name otherwise
//   (backend/memory/spill_file.h). They come back before anything reads them. Small ones leave only
//   if no larger one can.
// - A set tracks the storages that may have to leave: those with memory on the accelerator, and on
//   the host large ones, or all but tiny ones while spilling is configured. So the options may be
//   set when storages already exist.
//
// Storages that the graph touches are left alone; placement decides about them.
//
// Thread safety: the executor's lock, unless stated otherwise.

#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "backend/base/status.h"
#include "graph/ir/plan.h"
#include "ops/record/trace_slice.h"

namespace hetero::ops {

// Keeps a storage's bytes in the host's memory, for a scope in which others may have to leave it.
class HostPin {
 public:
  explicit HostPin(const HeteroStorage* storage) : readers_(const_cast<HeteroStorage*>(storage)->host_readers) {
    ++readers_;
  }
  ~HostPin() { --readers_; }
  HostPin(const HostPin&) = delete;

 private:
  std::atomic<int32_t>& readers_;
};

// Allocates a block of the host's memory; others make room for it if there is none.
Result<backend::Block> allocate_on_host(size_t bytes);
// Takes the bytes of a CPU storage into a block without copying; the storage lives as long as the
// block.
backend::Block adopt_cpu_storage(c10::Storage storage);
// Brings the bytes of a settled storage to the host's memory, where they are not there.
Status bring_to_host(HeteroStorage* storage);

// The budget of the accelerator's memory, in bytes; 0 for unlimited.
uint64_t accelerator_budget();
// What the plan of the slice may hold there.
uint64_t room_for(const TraceSlice& slice);
// Evicts storages that no running slice touches, until the slice's plan may hold `bytes` or there
// are no more.
void make_room(const TraceSlice& slice, uint64_t bytes);
// The most bytes that the plan of a graph holds there at any time: its arena, and buffers with
// memory of their own.
uint64_t accelerator_need(const graph::Graph& graph, const graph::Plan& plan);

// Smaller storages leave the host's memory only if no larger one can. They are tracked even while
// none may leave, because an option may allow it later, and tracking costs little compared with
// making them.
inline constexpr size_t kLargeStorage = 64 << 10;
// Whether storages may leave the host's memory. Every run asks.
extern std::atomic<bool> may_spill;  // there is a folder
bool spills_below_limit();
inline bool spills() { return may_spill.load(std::memory_order_relaxed) && spills_below_limit(); }
// Whether some storage ever did, so that its bytes may be in a file.
extern std::atomic<bool> has_spilled;
// Evicts storages that no running slice touches from the host's memory, until there are `bytes`
// below the limit or there are no more. Takes the executor's lock if the caller does not have it.
void make_host_room(uint64_t bytes);
// Brings back what the slice touches. A storage whose bytes cannot be read has that error until
// track_storages().
void bring_back(const TraceSlice& slice);
// Additional host memory that running the plan may allocate.
uint64_t host_need(const TraceSlice& slice, const graph::Graph& graph, const graph::Plan& plan);

// To be called after a run: notes which storages of the slice have bytes that may be evicted. What
// could not be brought back for it is as before. Bytes that somebody outside sees are on the host
// only.
void track_storages(const TraceSlice& slice);
// The same of one that got bytes without a run.
void track_storage(HeteroStorage* storage);
// Every tracked storage's bytes go to the host.
void leave_accelerator();

// The lock of the set of storages, for fork.
std::mutex& tracking_mutex();

}  // namespace hetero::ops
