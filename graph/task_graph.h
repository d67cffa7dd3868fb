// TaskGraph: a graph as placement sees it: tasks with what they take on each device, and values with what moving them takes.
//
// A Task is a live node. Its Uses are its operands by buffer: several operands on one buffer are one use. Order between tasks is that of buffers: who
// writes one comes after all that touched it before, who reads it after the last that wrote it. That is coarser than conflicts(), which looks
// at windows, and it is what the queues' order (passes/order.cpp) keeps.
//
// Thread safety: a TaskGraph belongs to one planning thread; it keeps its memory from call to call.

#pragma once

#include <cstdint>
#include <vector>

#include "graph/cost.h"
#include "graph/graph.h"
#include "graph/plan.h"

namespace hetero::graph {

struct Use {
  BufferId buffer;
  bool reads;   // bytes that were there before; also where a part is written
  bool writes;  // afterwards only the task's device has the bytes
};

struct Task {
  uint32_t node;
  uint32_t first_use;
  uint32_t use_count;
  uint8_t allowed;                       // devices that may run it, as bits
  Reason reason;                         // why, where that is only one
  double seconds[backend::kMaxDevices];  // what it takes there
};

struct Value {
  uint64_t bytes;
  uint8_t valid_on;                           // before the first task
  double copy_seconds[backend::kMaxDevices];  // to the device
};

class TaskGraph {
 public:
  // REQUIRES: `live` says of each node of `graph` whether it runs.
  void build(const Graph& graph, const std::vector<uint8_t>& live, const PlanOptions& options);

  std::vector<Task> tasks;  // in the order of the graph
  std::vector<Use> uses;
  std::vector<Value> values;  // per buffer

  const Use* begin(const Task& task) const { return uses.data() + task.first_use; }
  const Use* end(const Task& task) const { return uses.data() + task.first_use + task.use_count; }
  size_t size() const { return tasks.size(); }

  // Per task: the device, or the other one where that is all that may run it.
  std::vector<backend::DeviceIndex> all_on(backend::DeviceIndex device) const;
  // Tasks by decreasing rank: how long, on the average of devices and with copies, everything takes from a task to the end (HEFT's upward rank;
  // H. Topcuoglu et al., 2002). An order that the buffers allow.
  void order_by_rank(std::vector<uint32_t>& order);

 private:
  void add_uses(const Graph& graph, const Node& node);

  std::vector<double> rank_;
  std::vector<double> after_write_;  // per buffer: the largest rank of those that come after a write of it
  std::vector<double> after_read_;   // of those that come after a read of it
};

// How often a copy of bytes that nobody changes, and that stay, is expected to pay.
inline constexpr double kAmortized = 16;

}  // namespace hetero::graph
