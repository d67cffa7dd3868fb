// Plan and Program: the outcome of planning a Graph, and the executor's input. Both are data,
// print, and parse back.
//
// A Plan says for each node whether it runs, where and why, and for each (buffer, device) where its
// bytes are. A Program is the plan's instructions in the order of submission, each tagged with its
// queue. The same text gives the same program, so tests can store, compare and mutate plans.
//
// Thread safety: immutable once built; shared freely.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/base/status.h"
#include "backend/device/device.h"
#include "graph/ir/instruction.h"

namespace hetero::graph {

// The reason for a node's placement.
enum class Reason : uint8_t {
  kOnlyDevice,   // there is no accelerator
  kRequested,    // the user's placement
  kUnsupported,  // the accelerator has no kernel for it
  kFaster,       // it is faster there
  // It would be faster elsewhere, but copies would take more than that, or the other device is
  // busy.
  kSavesTime,
  kNoMemory,   // the accelerator's memory does not suffice
  kThreshold,  // a time ratio (PlanOptions::thresholds)
};
const char* to_string(Reason reason);

// For a node with a tail in a group: the device of its body.
struct Placement {
  backend::DeviceIndex device = backend::kCpu;
  Reason reason = Reason::kOnlyDevice;
  // Of the node there; of a member of a group, save for tails, an equal share.
  float predicted_seconds = 0;
  // The same on the device that was compared with; 0 where there is none.
  float elsewhere_seconds = 0;
  // Where tasks of the accelerator run beside each other: the share of it that the node's task
  // keeps busy meanwhile.
  float utilization = 1;
  // What both are by the device's own figures, whatever was measured. A device that simulates time
  // goes by them: what it showed must not become what it does.
  float modelled_seconds = 0;
  float modelled_utilization = 1;

  bool operator==(const Placement&) const = default;
};

// The place of one buffer's bytes on one device while the program runs.
enum class Home : uint8_t {
  kNone,   // never on this device
  kBound,  // the storage's own block, made before or kept after the program
  kArena,  // a slice of the device's arena, for the program only
  // The kernel that defines it brings the memory; an escaping buffer's becomes the storage's block.
  kBrought,
  kOwned,  // a block of its own from the first touch to the last: large temporaries on the CPU
};

struct Residence {
  Home home = Home::kNone;
  uint64_t offset = 0;  // in the arena
  // Positions in the program: the instructions that first and last touch the bytes.
  uint32_t first = 0;
  uint32_t last = 0;

  // Whether the memory is the buffer's at this position. Before and after, it may be another's.
  bool has_memory(uint32_t position) const { return home != Home::kNone && first <= position && position <= last; }

  bool operator==(const Residence&) const = default;
};

// The bytes of a buffer that return to a device, in other memory than before.
struct Return {
  BufferId buffer = 0;
  backend::DeviceIndex device = 0;
  Residence residence;

  bool operator==(const Return&) const = default;
};

// Seconds since the program began.
struct Span {
  double begin = 0;
  double end = 0;
};

// What a run asks of the buffers, so that a plan that runs often is not looked through each time:
// note_buffers().
struct BufferNotes {
  std::vector<BufferId> placed;   // have a home on some device
  std::vector<BufferId> written;  // some node writes them; may have a buffer twice
  std::vector<BufferId> taking;   // take another's block
  bool empty() const { return placed.empty() && written.empty(); }

  bool operator==(const BufferNotes&) const = default;
};

struct Plan : Instructions {
  std::vector<uint8_t> live;          // per node: it runs
  std::vector<Placement> placements;  // per node
  std::vector<FusionNote> fusion;     // per node; empty where nothing was to be fused
  // Of the machine that it was made for.
  backend::DeviceIndex device_count = 1;
  std::vector<Residence> residences;  // per buffer * device_count + device: the first stay there
  std::vector<Return> returns;        // the later ones
  uint64_t arena_bytes[backend::kMostDevices] = {};
  uint64_t arena_lower_bound[backend::kMostDevices] = {};  // the most bytes live at once
  // Copies that follow each other in the program, on one queue and between the same devices, are
  // one transfer as far as they have no more bytes together; 0: each is by itself. By destination.
  // See end_of_transfer().
  uint64_t transfer_bytes[backend::kMostDevices] = {};
  uint32_t event_count = 0;
  uint32_t dead_nodes = 0;
  // Per buffer: the devices on which its bytes are valid after the program.
  std::vector<backend::DeviceSet> valid_after;
  BufferNotes notes;  // empty where the plan is to run once

  bool operator==(const Plan&) const = default;
  size_t place_of(BufferId buffer, backend::DeviceIndex device) const { return size_t{buffer} * device_count + device; }
  // Nothing lies on a device that the plan does not know.
  const Residence& residence(BufferId buffer, backend::DeviceIndex device) const {
    static constexpr Residence kNowhere;
    return device < device_count ? residences[place_of(buffer, device)] : kNowhere;
  }
  // REQUIRES: the plan knows the device.
  Residence& residence(BufferId buffer, backend::DeviceIndex device) { return residences[place_of(buffer, device)]; }
};

// Whether all its instructions run on the host's own queue.
bool uses_host_only(const Plan& plan);
// Whether all of them run on queues of the CPU.
bool uses_cpu_only(const Plan& plan);
// Whether tasks run beside each other on some accelerator.
bool has_side_queues(const Plan& plan);
// Whether host tasks run on the CPU's worker queue.
bool uses_worker(const Plan& plan);

// The position behind the copies that are one transfer with the one at `position`. REQUIRES: that
// one is a copy, and the first of its transfer.
uint32_t end_of_transfer(const Graph& graph, const Plan& plan, uint32_t position);

void note_buffers(const Graph& graph, const Plan& plan, BufferNotes& notes);

// The device of a group.
inline const Placement& placement_of(const Plan& plan, const FusedGroup& group) {
  return plan.placements[group.members.back()];
}

// Of the task that an instruction runs on the accelerator: Placement::modelled_utilization.
double modelled_utilization(const Plan& plan, const Instruction& instruction);
// The predicted time of a run, a body, a batch or a fused group.
double predicted_seconds(const Graph& graph, const Plan& plan, const Instruction& instruction);
double modelled_seconds(const Graph& graph, const Plan& plan, const Instruction& instruction);

std::string to_string(const Plan& plan);
Result<Plan> parse_plan(std::string_view text);

}  // namespace hetero::graph
