// TaskGraph: a graph as placement sees it: tasks with their time on each device, and values with
// their time to move.
//
// A Task runs as one: a live node, a node's body, or a fused group. Last come the host's reads of
// buffers that it fetches. Its Uses are its operands by buffer: several operands on one buffer are
// one use. Order between tasks is by buffer. A writer comes after all that touched the buffer
// before, a reader after the last writer. That is coarser than conflicts(), which looks at windows.
// The queues' order (plan/order.cpp) keeps the same order.
//
// Thread safety: a TaskGraph belongs to one planning thread; it keeps its memory from call to call.

#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "graph/cost/cost.h"
#include "graph/ir/graph.h"
#include "graph/ir/plan.h"
#include "graph/ir/plan_options.h"

namespace hetero::graph {

struct Use {
  BufferId buffer;
  bool reads;          // bytes that were there before; also where a part is written
  bool writes;         // afterwards only the task's device has the bytes
  bool stores = true;  // otherwise nobody needs what is written, and nobody has it

  bool in_memory() const { return reads || stores; }
};

// What a task with these uses needs beside each other.
uint64_t bytes_in_memory(const Graph& graph, std::span<const Use> uses);

struct Task {
  static constexpr uint32_t kNoGroup = UINT32_MAX;
  static constexpr uint32_t kNoNode = UINT32_MAX;

  uint32_t node;  // of a group: the last member; kNoNode: the host reads

  uint32_t group = kNoGroup;  // of the plan
  bool is_body = false;       // of the node, whose tail is a member of a group
  uint32_t first_node = 0;    // see TaskGraph::nodes_of()
  uint32_t node_count = 0;
  uint32_t first_use;
  uint32_t use_count;
  backend::DeviceSet allowed;                   // devices that may run it
  Reason reason;                                // why, where that is only one
  double seconds[backend::kMostDevices];        // what it takes there
  double modelled[backend::kMostDevices] = {};  // the same by the device's own figures

  Instruction instruction(QueueId queue) const {
    if (group != kNoGroup) return Instruction::fused(queue, group);
    return is_body ? Instruction::body(queue, node) : Instruction::run(queue, node);
  }
  bool has_choice() const { return std::popcount(allowed) > 1; }
  bool is_fetch() const { return node == kNoNode; }
  backend::DeviceIndex device_in(const Plan& plan) const {
    return is_fetch() ? backend::kCpu : plan.placements[node].device;
  }
};

struct Value {
  static constexpr uint32_t kNoTask = UINT32_MAX;

  uint64_t bytes;
  backend::DeviceSet valid_on;  // before the first task
  bool small = false;           // its copies may be urgent
  // It is copied to the accelerator once for many runs; copy_seconds is a run's share.
  bool amortized = false;
  // To an accelerator from the CPU; to the CPU from the accelerator of the search.
  double copy_seconds[backend::kMostDevices];
  // Of what was there before and stays: the last task that writes it, as parameters and the state
  // of an optimizer are written by each step. When the program runs again it begins where that task
  // has left it, so the copy that brings it there is one for many runs.
  uint32_t updated_by = kNoTask;
};

class TaskGraph {
 public:
  // REQUIRES: the program of `plan` has runs, bodies and fused groups only.
  void build(const Graph& graph, const Plan& plan, const PlanOptions& options);

  backend::DeviceIndex device_count = 1;
  // That of the search: the only one on which tasks with a choice may run. The CPU where there is
  // no accelerator.
  backend::DeviceIndex accelerator = backend::kCpu;
  std::vector<Task> tasks;  // in the order of the plan's program, then those of the host
  std::vector<Use> uses;
  std::vector<Value> values;  // per buffer

  // The nodes that are placed where it is: what it runs, save for tails, which are where their
  // bodies are.
  std::span<const uint32_t> nodes_of(const Task& task) const {
    return {nodes_.data() + task.first_node, task.node_count};
  }
  // What a device is compared with.
  backend::DeviceIndex other_than(backend::DeviceIndex device) const {
    return device == backend::kCpu ? accelerator : backend::kCpu;
  }
  // Notes what it takes there and on the other device, in equal shares.
  void predict(const Task& task, backend::DeviceIndex device, Plan& plan) const {
    const auto share = [&](backend::DeviceIndex d) {
      return static_cast<float>(task.seconds[d] / static_cast<double>(task.node_count));
    };
    const double modelled = task.modelled[device] / static_cast<double>(task.node_count);
    for (const uint32_t n : nodes_of(task)) {
      plan.placements[n].predicted_seconds = share(device);
      plan.placements[n].elsewhere_seconds = device_count > 1 ? share(other_than(device)) : 0;
      plan.placements[n].modelled_seconds = static_cast<float>(modelled);
    }
  }

  const Use* begin(const Task& task) const { return uses.data() + task.first_use; }
  const Use* end(const Task& task) const { return uses.data() + task.first_use + task.use_count; }
  size_t size() const { return tasks.size(); }
  // Of a run, a body or a fused group.
  const Task& task_of(const Instruction& instruction) const {
    const auto& numbers = instruction.is_group() ? task_of_group_ : task_of_node_;
    return tasks[numbers[instruction.index]];
  }
  // What it touches.
  std::span<const Use> uses_of(const Instruction& instruction) const {
    const Task& task = task_of(instruction);
    return {begin(task), task.use_count};
  }

  // Where the value's bytes are when the program, with tasks on these devices, begins for the
  // second time and later, as bits of devices.
  backend::DeviceSet begins_on(const Value& value, std::span<const backend::DeviceIndex> devices) const {
    return value.updated_by == Value::kNoTask ? value.valid_on : backend::only(devices[value.updated_by]);
  }

  // Whether a placement is another one than PlanOptions::instead_of: of the time that tasks with a
  // choice were to take there, it puts a quarter elsewhere at least. True where nothing is to be
  // avoided, or no task has a choice.
  bool differs(std::span<const backend::DeviceIndex> devices) const;

  // Per task: the device, or another one where the task may not run there.
  std::vector<backend::DeviceIndex> all_on(backend::DeviceIndex device) const;
  // What that is, in words: "all on the CPU" and "all on the accelerator" only where nothing that
  // runs is elsewhere.
  const char* name_of_all_on(backend::DeviceIndex device) const;
  // Tasks by decreasing rank: how long, on the average of devices and with copies, everything takes
  // from a task to the end (HEFT's upward rank; H. Topcuoglu et al., 2002). An order that the
  // buffers allow.
  void order_by_rank(std::vector<uint32_t>& order);

 private:
  void add_uses(const Graph& graph, const Node& node);
  void add_uses(const Graph& graph, const FusedGroup& group);
  Use& use_of(size_t first, BufferId buffer);

  std::vector<backend::DeviceIndex> avoided_;  // per task: PlanOptions::instead_of; empty without
  std::vector<uint32_t> nodes_;                // of the tasks
  std::vector<uint32_t> task_of_node_;
  std::vector<uint32_t> task_of_group_;
  std::vector<double> rank_;
  // Per buffer: the largest rank of those that come after a write of it.
  std::vector<double> after_write_;
  std::vector<double> after_read_;  // of those that come after a read of it
};

// Where a node may run.
struct Allowed {
  backend::DeviceSet devices;
  Reason reason;  // why, where that is only one
};
// What the operator, the user and the rules allow, whatever the memory and the policy are.
Allowed allowed_devices(const Node& node, const PlanOptions& options);

// How often a copy of bytes that stay is expected to pay.
inline constexpr double kAmortized = 16;

}  // namespace hetero::graph
