// The passes of make_plan, in the order in which pipeline.cpp calls them, and the memory they
// share.
//
// Each pass reads the graph and what earlier passes wrote into the plan, and writes its own part of
// the plan. Up to insert_events the program holds only runs, fused groups and copies, and positions count those.
//
// Thread safety: a Scratch belongs to one planning thread.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "graph/group_builder.h"
#include "graph/interval_packing.h"
#include "graph/passes/slice_allocator.h"
#include "graph/plan.h"

namespace hetero::graph {

// What order_queues knows of the bytes of one buffer on one device.
struct Touches {
  Clock any{};    // per queue: the last instruction that touches them
  Clock write{};  // of these, the last that writes
};

// What fusion keeps of one group while it walks the nodes.
struct OpenGroup {
  GroupBuilder builder;
  bool open = false;
  uint32_t last = 0;    // its last member, at whose place it runs
  uint32_t number = 0;  // in the plan
};

// A group that touches a buffer, in the list of those that do.
struct GroupLink {
  uint32_t group;
  uint32_t next;
};

struct FusionScratch {
  Lowering lowering;
  Lowering merged_lowering;
  Footprint footprint;
  Footprint merged_footprint;
  std::vector<std::unique_ptr<OpenGroup>> groups;  // the first group_count are in use
  uint32_t group_count = 0;
  std::vector<uint32_t> group_of;  // per node
  std::vector<GroupLink> links;
  std::vector<uint32_t> writers;      // per buffer: the first link of the groups that write it
  std::vector<uint32_t> readers;      // per buffer: the first link of the groups that only read it
  std::vector<uint32_t> last_writer;  // per buffer: a node
  std::vector<uint32_t> touched;      // groups that the node at hand conflicts with
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
  FusionScratch fusion;
  std::vector<uint8_t> taken;    // per instruction: it is part of a batch (batches)
  std::vector<uint8_t> partial;  // per buffer: some write covers a part of it (resize)
  SliceAllocator arenas[backend::kMaxDevices];
  IntervalPacking packing;          // these: the arena of plans for the CPU alone (memory_plan)
  std::vector<Interval> intervals;  // per packed buffer
  std::vector<BufferId> packed;
  std::vector<uint32_t> first_use;  // per buffer: nodes
  std::vector<uint32_t> last_use;
  std::vector<int64_t> deltas;                       // per position: bytes that come and go
  std::vector<std::pair<uint32_t, uint32_t>> waits;  // instruction, and which it waits for (events)
  std::vector<uint32_t> positions;                   // per instruction: where it is in the final program (events)
  std::vector<uint32_t> event_of;                    // per instruction: the event recorded after it + 1 (events)
  std::vector<Instruction> program;                  // the final program (events)
};

Scratch& thread_scratch();

// How many bytes placement may put on the accelerator.
inline constexpr uint64_t kAnyBytes = UINT64_MAX;

void drop_dead_values(const Graph& graph, Plan& plan, Scratch& scratch);
void place_nodes(const Graph& graph, const PlanOptions& options, uint64_t accelerator_bytes, Plan& plan,
                 Scratch& scratch);
void insert_copies(const Graph& graph, Plan& plan, Scratch& scratch);
// Replaces runs of the program by fused groups. REQUIRES: the program has runs on the CPU only.
void fuse_nodes(const Graph& graph, Plan& plan, Scratch& scratch);
// Makes batches of calls that read the same operand. REQUIRES: the same.
void join_calls(const Graph& graph, Plan& plan, Scratch& scratch);
// Whether join_calls() could have made the plan's batches, as far as sizes tell.
bool are_batches_small(const Graph& graph, const Plan& plan);
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
