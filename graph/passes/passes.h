// The passes of make_plan, in the order in which pipeline.cpp calls them, and the memory they
// share.
//
// Each pass reads the graph and what earlier passes wrote into the plan, and writes its own part of
// the plan. Up to insert_events the program holds only runs and copies, and positions count those.
//
// Thread safety: a Scratch belongs to one planning thread.

#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "graph/passes/slice_allocator.h"
#include "graph/plan.h"

namespace hetero::graph {

// What order_queues knows of the bytes of one buffer on one device.
struct Touches {
  Clock any{};    // per queue: the last instruction that touches them
  Clock write{};  // of these, the last that writes
};

// Vectors that keep their memory from plan to plan, so that planning allocates nothing in the long
// run.
struct Scratch {
  std::vector<uint8_t> needed;      // per buffer: a live node or the caller reads it (dead_values)
  std::vector<uint8_t> valid;       // per buffer: devices with valid bytes (placement, copies)
  std::vector<uint8_t> charged;     // per buffer: counted against the byte budget (placement)
  std::vector<Touches> touches;     // per residence (order)
  std::vector<Clock> requirements;  // per instruction: what must run before (order, memory_plan)
  std::vector<Clock> clocks;        // per instruction: what has run before (order, events)
  std::vector<uint32_t> slices;     // per residence: its slice of the arena + 1 (memory_plan)
  SliceAllocator arenas[backend::kMaxDevices];
  std::vector<std::pair<uint32_t, uint32_t>> waits;  // instruction, and which it waits for (events)
  std::vector<uint32_t> positions;                   // per instruction: where it is in the final program (events)
  std::vector<uint32_t> event_of;                    // per instruction: the event recorded after it + 1 (events)
  std::vector<Instruction> program;                  // the final program (events)
};

// How many bytes placement may put on the accelerator.
inline constexpr uint64_t kAnyBytes = UINT64_MAX;

void drop_dead_values(const Graph& graph, Plan& plan, Scratch& scratch);
void place_nodes(const Graph& graph, const PlanOptions& options, uint64_t accelerator_bytes, Plan& plan,
                 Scratch& scratch);
void insert_copies(const Graph& graph, Plan& plan, Scratch& scratch);
void order_queues(const Graph& graph, const Plan& plan, Scratch& scratch);
// True when what lies on the accelerator fits into options.accelerator_bytes.
bool plan_memory(const Graph& graph, const PlanOptions& options, Plan& plan, Scratch& scratch);
void insert_events(Plan& plan, Scratch& scratch);

// Fills scratch.clocks: what has run before each instruction when every requirement is met by as
// few waits as possible. The waits go to scratch.waits.
void compute_clocks(const Plan& plan, Scratch& scratch);

// True when the program uses only the host's own queue, where program order is all the order there
// is.
inline bool host_only(const PlanOptions& options) { return !options.has_accelerator; }

}  // namespace hetero::graph
