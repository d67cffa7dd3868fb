// Streams: which of an accelerator's compute queues runs each of its tasks.
//
//   1. Walk the program in the order of submission by the rules of graph/cost/simulate.h, with one
//      compute queue: what it takes so.
//   2. Walk it again with several. Each task goes where it ends first, as HEFT chooses a processor
//      (H. Topcuoglu et al., 2002), with what runs beside it taking its share of the device.
//      Another queue than that of the input which was written last costs an event, which has to be
//      made up for.
//   3. Where that takes a fiftieth less, the tasks keep their queues.
// What depends on what is known by buffer and device, as in order.cpp. The order of submission
// stays, and the order of the queues follows from it: events and memory are the business of the
// passes behind this one. Memory may make tasks wait that this walk lets run, so the caller
// simulates the whole.

#include <algorithm>
#include <span>

#include "backend/device/compute_engine.h"
#include "graph/plan/passes.h"

namespace hetero::graph {
namespace {

using backend::DeviceIndex;

// Of a launch's latency: what an event between two queues takes, which the simulator leaves out.
constexpr double kEvent = 0.25;

class Walk {
 public:
  Walk(const Graph& graph, const PlanOptions& options, const Plan& plan, const Scratch& scratch)
      : graph_(graph),
        costs_(options),
        plan_(plan),
        scratch_(scratch),
        tasks_(scratch.tasks),
        engines_(plan.device_count),
        slowness_(costs_.slowness()) {}

  // Seconds with so many compute queues.
  double run(int queues) {
    queues_ = queues;
    bytes_.assign(graph_.buffers.size() * plan_.device_count, {});
    std::ranges::fill(free_, 0.0);
    for (backend::ComputeEngine& engine : engines_) engine.reset();
    chosen_.resize(plan_.program.size());
    for (uint32_t i = 0, end = 0; i < plan_.program.size(); i = end) {
      end = end_of_joined(scratch_, i);
      for (uint32_t k = i; k < end; ++k) chosen_[k] = plan_.program[k].queue;
      if (plan_.program[i].is_copy()) {
        copy({&plan_.program[i], end - i});
      } else {
        run_task(i);
      }
    }
    return *std::ranges::max_element(free_);
  }

  // Per instruction, its queue in the last walk.
  const std::vector<QueueId>& chosen() const { return chosen_; }

 private:
  // Of one buffer on one device.
  struct Bytes {
    double written = 0;  // when the last write is done
    double touched = 0;  // and the last touch
    QueueId writer = kHostQueue;
  };

  Bytes& bytes_of(BufferId buffer, DeviceIndex device) { return bytes_[plan_.place_of(buffer, device)]; }

  // One transfer.
  void copy(std::span<const Instruction> copies) {
    const QueueId queue = copies.front().queue;
    double begin = std::max(free_[queue], free_[kHostQueue]);
    double moved = 0;
    for (const Instruction& copy : copies) {
      Bytes& to = bytes_of(copy.index, copy.to);
      if (copy.stay != 0) to = {};
      begin = std::max({begin, bytes_of(copy.index, copy.from).written, to.touched});
      moved += static_cast<double>(graph_.buffers[copy.index].bytes);
    }
    const double seconds = costs_.copy_seconds(moved, copies.front().from, copies.front().to);
    const double end = begin + seconds;
    free_[queue] = end;
    const QueueId yields = queue_id(device_of(queue), backend::yielding(kind_of(queue)));
    if (yields != queue && free_[yields] > begin) free_[yields] += seconds;
    for (const Instruction& copy : copies) {
      Bytes& from = bytes_of(copy.index, copy.from);
      from.touched = std::max(from.touched, end);
      bytes_of(copy.index, copy.to) = {.written = end, .touched = end};
    }
  }

  void run_task(uint32_t i) {
    const Instruction& instruction = plan_.program[i];
    const DeviceIndex device = device_of(instruction.queue);
    double ready = free_[kHostQueue];
    double last_write = 0;
    QueueId writer = kHostQueue;
    for (const Use& use : tasks_.uses_of(instruction)) {
      const Bytes& bytes = bytes_of(use.buffer, device);
      ready = std::max(ready, use.writes ? bytes.touched : bytes.written);
      if (bytes.written <= last_write) continue;
      last_write = bytes.written;
      writer = bytes.writer;
    }
    const double seconds = tasks_.task_of(instruction).seconds[device];
    double end = 0;
    if (device != backend::kCpu && queues_ > 1) {
      const double share = costs_.utilization(work_of(graph_, plan_, instruction), seconds, device, slowness_);
      chosen_[i] = best_queue(device, ready, seconds, share, writer);
      end = engines_[device].run(std::max(ready, free_[chosen_[i]]), seconds, share);
    } else {
      end = std::max(ready, free_[chosen_[i]]) + seconds;
    }
    free_[chosen_[i]] = end;
    for (const Use& use : tasks_.uses_of(instruction)) {
      Bytes& bytes = bytes_of(use.buffer, device);
      bytes.touched = std::max(bytes.touched, end);
      if (!use.writes) continue;
      bytes.written = end;
      bytes.writer = chosen_[i];
    }
  }

  // `writer`: of the input that was written last; kHostQueue where no task of the accelerator did.
  QueueId best_queue(DeviceIndex device, double ready, double seconds, double share, QueueId writer) const {
    QueueId best = kHostQueue;
    double least = 0;
    const double event_seconds = kEvent * costs_.run_seconds({}, device);
    for (int n = 0; n < queues_; ++n) {
      const QueueId queue = queue_id(device, backend::compute_queue(n));
      const double event = writer == kHostQueue || writer == queue ? 0 : event_seconds;
      const double end = engines_[device].end_of(std::max(ready, free_[queue]), seconds, share) + event;
      if (best != kHostQueue && end >= least) continue;
      best = queue;
      least = end;
    }
    return best;
  }

  const Graph& graph_;
  const CostModel costs_;
  const Plan& plan_;
  const Scratch& scratch_;
  const TaskGraph& tasks_;
  std::vector<backend::ComputeEngine> engines_;  // per device
  const double slowness_;
  int queues_ = 1;
  std::vector<Bytes> bytes_;  // per residence
  double free_[kMaxQueues] = {};
  std::vector<QueueId> chosen_;
};

}  // namespace

double spread_tasks(const Graph& graph, const PlanOptions& options, Plan& plan, Scratch& scratch) {
  const auto on_accelerator = [](const Instruction& instruction) {
    return instruction.queue != kHostQueue && kind_of(instruction.queue) == backend::QueueKind::kCompute;
  };
  if (options.compute_queues < 2 || std::ranges::count_if(plan.program, on_accelerator) < 2) return 0;
  Walk walk(graph, options, plan, scratch);
  const double serial = walk.run(1);
  const double spread = walk.run(std::min(options.compute_queues, backend::kComputeQueues));
  if (spread >= kWorthIt * serial) return 0;
  note_utilizations(graph, options, plan);
  for (size_t i = 0; i < plan.program.size(); ++i) {
    if (on_accelerator(plan.program[i])) plan.program[i].queue = walk.chosen()[i];
  }
  return serial;
}

void note_utilizations(const Graph& graph, const PlanOptions& options, Plan& plan) {
  const CostModel costs(options);
  const double slowness = costs.slowness();
  for (const Instruction& instruction : plan.program) {
    const DeviceIndex device = device_of(instruction.queue);
    if (device == backend::kCpu || !instruction.is_task()) continue;
    const Work work = work_of(graph, plan, instruction);
    const double share = costs.utilization(work, predicted_seconds(graph, plan, instruction), device, slowness);
    const double modelled = costs.utilization(work, modelled_seconds(graph, plan, instruction), device, 1);
    for_each_placed(graph, plan, instruction, [&](uint32_t n) {
      plan.placements[n].utilization = static_cast<float>(share);
      plan.placements[n].modelled_utilization = static_cast<float>(modelled);
    });
  }
}

}  // namespace hetero::graph
