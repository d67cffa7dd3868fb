// The passes of make_plan, in the order in which pipeline.cpp calls them, and the memory that they
// share.
//
// Each pass reads the graph and what earlier passes wrote into the plan, and writes its own part.
// Before insert_events, the program holds only runs, bodies, fused groups and copies, and positions
// count those.
//
// Thread safety: a Scratch belongs to one planning thread.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "graph/cost/simulate.h"
#include "graph/fusion/group_builder.h"
#include "graph/ir/graph.h"
#include "graph/ir/plan.h"
#include "graph/ir/plan_options.h"
#include "graph/placement/placement.h"
#include "graph/placement/task_graph.h"
#include "graph/plan/interval_packing.h"
#include "graph/plan/slice_allocator.h"

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
  bool scalars = false;            // all members have one point, and touch small buffers only
  int chains = 0;                  // scalars that joined without a conflict
  backend::DeviceSet devices = 0;  // on which its members may run
  uint32_t last = 0;               // its last member, at whose place it runs
  uint32_t number = 0;             // in the plan
};

// A group that touches a buffer, in the list of those that do.
struct GroupLink {
  uint32_t group;
  uint32_t next;
};

struct FusionScratch {
  Lowering lowering;
  Footprint footprint;
  std::vector<std::unique_ptr<OpenGroup>> groups;  // the first group_count are in use
  uint32_t group_count = 0;
  std::vector<uint32_t> group_of;  // per node
  std::vector<GroupLink> links;
  std::vector<uint32_t> writers;      // per buffer: the first link of the groups that write it
  std::vector<uint32_t> readers;      // per buffer: the first link of the groups that only read it
  std::vector<uint32_t> last_writer;  // per buffer: a node
  std::vector<uint32_t> touched;      // groups that the node at hand conflicts with
  std::vector<uint8_t> refused;       // per node: it was in a group that cannot run everywhere
};

// What insert_copies knows of a buffer at a point of the program.
struct BufferState {
  backend::DeviceSet valid_on = 0;
  bool made = false;                // by a task
  backend::DeviceSet stays = 0;     // there for the whole program; these are of accelerators
  backend::DeviceSet present = 0;   // has memory there
  backend::DeviceSet has_left = 0;  // had memory there, and may come back
  uint32_t last_use = UINT32_MAX;   // anywhere: a position in the order
};

// What each accelerator may hold.
using Limits = std::array<uint64_t, backend::kMostDevices>;

// Vectors that keep their memory from plan to plan, so that planning allocates nothing in the long
// run.
struct Scratch {
  // Per buffer: a live node or the caller reads it (dead_values).
  std::vector<uint8_t> needed;
  std::vector<backend::DeviceSet> valid;  // per buffer: devices with valid bytes (copies)
  TaskGraph tasks;                        // (placement, residency)
  std::vector<uint32_t> order;            // tasks, as they are to be submitted (placement)
  // Per buffer: accelerators on which it has its place throughout (residency).
  std::vector<backend::DeviceSet> resident;
  std::vector<BufferState> states;  // per buffer (copies)
  // Per use and device, a position in the order; per buffer and device, at a point of the program
  // (copies).
  std::vector<uint32_t> next_use;
  std::vector<uint32_t> next_use_of;
  std::vector<BufferId> present[backend::kMostDevices];  // there, and may leave (copies)
  // The most that each accelerator was to hold (copies).
  uint64_t peak_bytes[backend::kMostDevices] = {};
  std::vector<Touches> touches;  // per residence (order)
  // Per instruction: what must run before (order, memory_plan).
  std::vector<Clock> requirements;
  // Per instruction: what has run before (order, events).
  std::vector<Clock> clocks;
  // Per residence: its slice of the arena + 1 (memory_plan).
  std::vector<uint32_t> slices;
  // Per residence: the last instructions that touched its slice (memory_plan).
  std::vector<Clock> users;
  std::vector<uint32_t> stay;  // per residence: the return that it is in + 1 (memory_plan, order)
  FusionScratch fusion;
  std::vector<uint8_t> taken;    // per instruction: it is part of a batch (batches)
  std::vector<uint8_t> partial;  // per buffer: some write covers a part of it (resize)
  SliceAllocator arenas[backend::kMostDevices];
  IntervalPacking packing;          // these: the arena of plans for the CPU alone (memory_plan)
  std::vector<Interval> intervals;  // per packed buffer
  std::vector<BufferId> packed;
  std::vector<uint32_t> first_use;  // per buffer: nodes
  std::vector<uint32_t> last_use;
  std::vector<int64_t> deltas;                       // per position: bytes that come and go
  std::vector<std::pair<uint32_t, uint32_t>> waits;  // instruction, and which it waits for (events)
  // Per instruction: where it is in the final program (events).
  std::vector<uint32_t> positions;
  // Per instruction: the event recorded after it + 1 (events).
  std::vector<uint32_t> event_of;
  std::vector<Instruction> program;  // the final program (events)
  std::vector<Instruction> serial;   // the program with one compute queue (streams)
  Simulation simulation;             // (streams, transfers)
  // Per instruction: it is one transfer with the copy before it. Empty where there are no transfers
  // of several copies.
  std::vector<uint8_t> joined;
  std::vector<uint32_t> joins;  // per instruction: these (transfers)
  std::vector<uint32_t> next_copy;
  std::vector<uint32_t> whole;
};

Scratch& thread_scratch();

// Whether a storage has the bytes before or after the program.
inline bool survives(const Buffer& buffer) { return buffer.escapes || buffer.valid_on != 0; }

// No bound of what an accelerator may hold.
inline constexpr uint64_t kAnyBytes = UINT64_MAX;
// Bytes come and go, but never for lack of room.
inline constexpr uint64_t kNoLimit = kAnyBytes - 1;
// The same for all accelerators. Limits are kAnyBytes for all of them, or for none.
inline Limits limits_of(uint64_t bytes) {
  Limits limits;
  limits.fill(bytes);
  return limits;
}
inline bool is_bounded(const Limits& limits) { return limits[backend::kCpu] != kAnyBytes; }

void drop_dead_values(const Graph& graph, Plan& plan, Scratch& scratch);
// The program of a plan for the CPU alone, node by node.
void run_in_order(const Graph& graph, Plan& plan, Scratch& scratch);
// Chooses what has its place on each accelerator within the limits. `keeps_large`: also the few
// that are much larger than all others, as far as there seems to be room; the result says whether
// there are any. REQUIRES: placements, scratch.tasks and scratch.order.
bool choose_residents(const Graph& graph, const PlanOptions& options, const Limits& limits, bool keeps_large,
                      Plan& plan, Scratch& scratch);
// Makes the program of scratch.tasks in scratch.order. False where an accelerator cannot hold what
// a task needs within its limit.
bool insert_copies(const Graph& graph, const backend::Machine& machine, const Limits& limits, Plan& plan,
                   Scratch& scratch);
// Replaces runs of the program by bodies and fused groups; `placed`, where not null, says what may
// run where. REQUIRES: the program has runs on the CPU only.
void fuse_nodes(const Graph& graph, const PlanOptions* placed, Plan& plan, Scratch& scratch);
// Makes batches of calls that read the same operand. REQUIRES: the same.
void join_calls(const Graph& graph, Plan& plan, Scratch& scratch);
// Whether join_calls() could have made the plan's batches, as far as sizes tell.
bool are_batches_small(const Graph& graph, const Plan& plan);
// Whether live nodes are host tasks.
bool has_host_tasks(const Graph& graph, const Plan& plan);
// Moves host tasks to the CPU's worker queue where something can run beside them. False where none
// moves. REQUIRES: the program has its copies; scratch.tasks.
bool move_host_tasks(const Graph& graph, Plan& plan, Scratch& scratch);
void order_queues(const Graph& graph, const Plan& plan, Scratch& scratch);
// Moves what runs elsewhere before the host's own work where nothing forbids it. REQUIRES:
// order_queues; it is needed again afterwards.
void submit_early(const Graph& graph, const Limits& limits, Plan& plan, Scratch& scratch);
// Moves tasks of an accelerator that do not depend on each other to its other compute queues, where
// that takes less time. Returns the seconds that one queue takes, or 0 where nothing has moved.
// order_queues is needed again afterwards.
double spread_tasks(const Graph& graph, const PlanOptions& options, Plan& plan, Scratch& scratch);
// Says of the accelerators' tasks what share of them they keep busy. REQUIRES: placements and
// groups are final.
void note_utilizations(const Graph& graph, const PlanOptions& options, Plan& plan);
// Which copies join a transfer.
enum class Joining : uint8_t { kReady, kWaiting };
// Makes transfers of several copies, of plan.transfer_bytes at most. False where there are none.
// REQUIRES: order_queues, with scratch.joined empty; it is needed again afterwards.
bool join_copies(const Graph& graph, Joining joining, Plan& plan, Scratch& scratch);
// The position behind the transfer that begins with this instruction, which is by itself where it
// is no copy.
uint32_t end_of_joined(const Scratch& scratch, uint32_t first);
// Makes scratch.requirements those of whole transfers.
void order_transfers(const Plan& plan, Scratch& scratch);
// Where everything runs on the CPU.
void plan_host_memory(const Graph& graph, const PlanOptions& options, Plan& plan, Scratch& scratch);
// True when what lies on each accelerator fits into its memory. Survivors stay there if `keep` or
// scratch.resident says so.
bool plan_memory(const Graph& graph, const PlanOptions& options, bool keep, Plan& plan, Scratch& scratch);
void insert_events(Plan& plan, Scratch& scratch);

// Fills scratch.clocks: what has run before each instruction when every requirement is met by as
// few waits as possible. The waits go to scratch.waits.
void compute_clocks(const Plan& plan, Scratch& scratch);

}  // namespace hetero::graph
