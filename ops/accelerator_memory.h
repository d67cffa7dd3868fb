// AcceleratorMemory: which storages have bytes on the accelerator, and how they make room for a program.
//
// What a plan may use of the accelerator is its budget less what storages hold there that the plan's graph does not touch. Where that is not enough,
// those leave that were used longest ago: their bytes are copied to the host if the host's are stale, and their memory is freed. Storages that the
// graph touches are left alone; placement decides about them.
//
// Thread safety: the executor's lock, unless said otherwise.

#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_set>

#include "backend/status.h"
#include "graph/plan.h"
#include "ops/recorder.h"

namespace hetero::ops {

// Brings the bytes of a settled storage to the host, where they are not valid there.
Status bring_to_host(HeteroStorage* storage);

// Of the accelerator's memory, in bytes; 0 for unlimited.
uint64_t accelerator_budget();
// What the plan of the cut may hold there.
uint64_t room_for(const Cut& cut);
// Lets storages leave that the cut does not touch, until the cut's plan may hold `bytes`, or there are no more.
void make_room(const Cut& cut, uint64_t bytes);
// The most bytes that the plan of a graph ever holds there: its arena, and its buffers with memory of their own.
uint64_t accelerator_need(const graph::Graph& graph, const graph::Plan& plan);

// Notes which storages of the cut have bytes there, after a run.
void track_accelerator(const Cut& cut);
// Called by a storage with accelerator memory when it dies, on any thread.
void untrack_accelerator(HeteroStorage* storage);
// Every tracked storage's bytes go to the host; none is tracked any more.
void leave_accelerator();

// The lock of the set of storages, for fork.
std::mutex& tracking_mutex();

}  // namespace hetero::ops
