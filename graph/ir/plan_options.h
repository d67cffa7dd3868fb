// PlanOptions: what planning may use and what it is asked for; and what it tells of the placements
// it looked at.
//
// Thread safety: plain data.

#pragma once

#include <cstdint>
#include <vector>

#include "backend/device/device.h"
#include "backend/machine.h"
#include "graph/ir/graph.h"

namespace hetero::graph {

// Who decides where nodes run for which the user has no preference.
enum class Policy : uint8_t {
  kAuto,         // planning, by cost
  kCpu,          // the CPU
  kAccelerator,  // the accelerator, where it has a kernel and the memory
  kMixed,        // a pseudo-random device for each: for tests
  kThresholds,   // planning, by the rules of Thresholds
};
const char* to_string(Policy policy);

// Policy::kThresholds: going through the program in its order, a task that has a choice runs on the
// accelerator, except where one of these rules sends it to the CPU.
struct Thresholds {
  // The accelerator would hold more than this part of its memory.
  double pressure = 0.8;
  // The CPU takes less than so many times as long.
  double time_ratio = 2.0;
};

class CostHistory;

// A placement that was looked at.
struct Candidate {
  const char* name;
  double seconds;  // predicted
  bool chosen = false;
};

// What planning may use.
struct PlanOptions {
  // Nodes may run as fused kernels.
  bool fusion = false;
  // The program will run often: time may be spent on a smaller arena.
  bool thorough = true;
  // The search for placements, and where `thorough` the one for a smaller arena, may take so many
  // times as long as usual. At least 1.
  int effort = 1;
  // The machine to plan for: rates, memory and links of each device.
  backend::Machine machine;
  // Where there is a choice, placement is between the CPU and this accelerator; nodes that ask for
  // another one run there.
  backend::DeviceIndex searched = backend::kCpu + 1;
  Policy policy = Policy::kAuto;
  Thresholds thresholds = {};
  // Where not null: per OpId, what is preferred for nodes without a preference of their own;
  // operators behind its end have none.
  const std::vector<Preference>* preferences = nullptr;
  // What was measured, where not null; what it does not know is guessed.
  const CostHistory* history = nullptr;
  // CostModel::slowness() of this program; 0: that of the device.
  double slowness = 0;
  // Per node the device that it ran on: planning takes the best placement that is another one,
  // where there is a choice; see TaskGraph::differs. Where not null; of another number of nodes it
  // says nothing.
  const std::vector<backend::DeviceIndex>* instead_of = nullptr;
  // Where not null, the placements that were looked at go there.
  std::vector<Candidate>* candidates = nullptr;
  // Where an arena beside the results would take more memory than op-by-op execution, temporaries
  // of at least this size on the CPU get a block of their own instead of a slice of the arena;
  // where even that takes more, those of at least the second size.
  uint64_t own_block_bytes = 4096;
  uint64_t least_own_block_bytes = 1;
  // On so many of its compute queues the accelerator may run what does not depend on each other; 1
  // to kComputeQueues.
  int compute_queues = backend::kComputeQueues;
  // Programs of others run on the rest of its compute queues meanwhile: the plan says of each task
  // what share of the accelerator it keeps busy.
  bool shares_accelerator = false;
  // Small copies that can be one transfer are, where that takes less time.
  bool join_copies = true;
  // All temporaries lie in arenas: the program takes no memory while it runs, not even by a kernel
  // that could bring it.
  bool fixed_memory = false;
};

// Whether the device is there and has a kernel for the operator.
bool runs_on(const OpTraits& traits, const PlanOptions& options, backend::DeviceIndex device);

}  // namespace hetero::graph
