// Submitting: what lazy runs (queue_run.h) and bound runs (bound_program.h) do alike with a
// device's queues, and how a node becomes a call of its kernel.
//
// A launch is a call or a fused group that a queue runs later. Both kinds of runs give queues the
// same task: it leads back to the runner by the launch's position in the program. What is recorded
// as a segment (segment_recorder.h) is made of the same tasks.
//
// Thread safety: pure functions. A Launch lives until its task has run.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/device/device.h"
#include "backend/fused/call.h"
#include "graph/ir/graph.h"
#include "graph/ir/plan.h"

namespace hetero::graph {

// What runs a program.
class Launcher {
 public:
  // Does what the instruction at `position` computes, on the thread of its queue. `addresses` are
  // those of its Launch.
  virtual void run_launch(uint32_t position, void* const* addresses) = 0;

 protected:
  ~Launcher() = default;
};

struct Launch {
  Launcher* launcher;
  uint32_t position;
  void* const* addresses = nullptr;  // null where the launcher finds them itself
};

// The task of a launch, with its time by the device's own figures.
inline backend::Task task_of(const Graph& graph, const Plan& plan, Launch& launch) {
  const Instruction& instruction = plan.program[launch.position];
  return {[](void* context) {
            const auto& submitted = *static_cast<const Launch*>(context);
            submitted.launcher->run_launch(submitted.position, submitted.addresses);
          },
          &launch, modelled_seconds(graph, plan, instruction), modelled_utilization(plan, instruction)};
}

// Records the launches' tasks as one segment of the queue.
inline Result<std::unique_ptr<backend::Segment>> record_tasks(const Graph& graph, const Plan& plan,
                                                              std::span<Launch> launches, backend::Queue& queue) {
  std::vector<backend::Task> tasks;
  for (Launch& launch : launches) tasks.push_back(task_of(graph, plan, launch));
  return queue.record_segment(tasks);
}

// Submits the copies of one transfer. REQUIRES: there is one.
inline Status submit_copies(backend::Queue& queue, std::span<const backend::CopyRange> ranges) {
  if (ranges.size() > 1) return queue.copy_batch(ranges);
  return queue.copy(ranges[0].destination, ranges[0].source, ranges[0].bytes);
}

// A call of the node's kernel on the CPU. The caller adds addresses and bindings.
inline Invocation call_of(const Graph& graph, const Node& node, Part part) {
  return {.node = &node,
          .operands = graph.operands_of(node),
          .data = nullptr,
          .brought = nullptr,
          .attributes = graph.attributes.data() + node.attribute_offset,
          .windows = graph.windows,
          .traits = &op_table()[node.op],
          .part = part};
}

// Whether calls there are for OpTraits::device_kernel.
inline bool is_by_device(backend::DeviceIndex index, const backend::Device& device) {
  return index != backend::kCpu && !device.runs_host_kernels();
}

// Translates addresses to those that the device's kernels use. `data` may be `addresses`.
inline void translate(backend::Device& device, std::span<void* const> addresses, void** data) {
  for (size_t i = 0; i < addresses.size(); ++i) data[i] = device.kernel_address(addresses[i]);
}

// Runs a group as one kernel, with addresses as kernels use them. False where its members have to
// run one by one.
inline Result<bool> run_as_one(const FusedGroup& group, backend::Device& device, void* const* data) {
  if (!group.prepared) return false;
  return device.run_fused({group.kernel, group.space, group.launch, data, group.numbers.data()});
}

}  // namespace hetero::graph
