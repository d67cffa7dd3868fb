#include "graph/cost/simulate.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "backend/device/compute_engine.h"

namespace hetero::graph {
namespace {

// Of the instructions from `position` to before `end`, which are one or a transfer.
double seconds_of(const Graph& graph, const Plan& plan, const CostModel& costs, size_t position, size_t end) {
  const Instruction& instruction = plan.program[position];
  if (!instruction.is_copy()) return costs.seconds_of(graph, plan, instruction, device_of(instruction.queue));
  return costs.copy_seconds(bytes_of(graph, plan, position, end), instruction.from, instruction.to);
}

}  // namespace

void simulate(const Graph& graph, const Plan& plan, const CostModel& costs, Simulation& simulation) {
  std::array<double, kMaxQueues> free{};  // when the queue is done with what was submitted
  std::array<double, kMaxQueues> first{};
  std::array<bool, kMaxQueues> used{};
  std::vector<double> recorded(plan.event_count);
  std::vector<backend::ComputeEngine> engines(plan.device_count);
  const bool shares = has_side_queues(plan);
  const double slowness = shares ? costs.slowness() : 1;
  simulation.spans.resize(plan.program.size());
  simulation.busy.fill(0);
  simulation.waited.fill(0);
  for (uint32_t p = 0, end = 0; p < plan.program.size(); p = end) {
    const Instruction& instruction = plan.program[p];
    end = instruction.is_copy() ? end_of_transfer(graph, plan, p) : p + 1;
    const QueueId queue = instruction.queue;
    // Nothing begins before the host submits it, and the host is done with its own queue then.
    double begin = std::max(free[queue], free[kHostQueue]);
    if (instruction.is_wait()) begin = std::max(begin, recorded[instruction.index]);
    const double alone = seconds_of(graph, plan, costs, p, end);
    if (alone > 0 && !used[queue]) {
      used[queue] = true;
      first[queue] = begin;
    }
    free[queue] = begin + alone;
    if (shares && runs_kernels(instruction.queue)) {
      const backend::DeviceIndex device = device_of(queue);
      const double share = costs.utilization(work_of(graph, plan, instruction), alone, device, slowness);
      free[queue] = engines[device].run(begin, alone, share);
    }
    const double seconds = free[queue] - begin;
    const QueueId yields = queue_id(device_of(queue), backend::yielding(kind_of(queue)));
    if (yields != queue && free[yields] > begin) free[yields] += seconds;
    simulation.busy[queue] += seconds;
    simulation.spans[p] = {begin, free[queue]};
    for (uint32_t other = p + 1; other < end; ++other) simulation.spans[other] = {free[queue], free[queue]};
    if (instruction.is_record()) recorded[instruction.index] = free[queue];
  }
  simulation.seconds = *std::max_element(free.begin(), free.end());
  for (size_t q = 0; q < free.size(); ++q) {
    // Sums differ in their last bits.
    if (used[q]) simulation.waited[q] = std::max(0.0, free[q] - first[q] - simulation.busy[q]);
  }
}

double simulated_seconds(const Graph& graph, const Plan& plan, const PlanOptions& options) {
  Simulation simulation;
  simulate(graph, plan, CostModel(options), simulation);
  return simulation.seconds;
}

std::optional<double> fit_slowness(const Graph& graph, const Plan& plan, const CostModel& costs,
                                   std::span<const Span> spans) {
  struct Kernel {
    double begin, end, alone;
    Work work;
    backend::DeviceIndex device;
  };
  std::vector<Kernel> kernels;
  double measured = 0;
  for (size_t p = 0; p < plan.program.size(); ++p) {
    const Instruction& instruction = plan.program[p];
    const double alone = runs_kernels(instruction.queue) ? seconds_of(graph, plan, costs, p, p + 1) : 0;
    if (!(alone > 0)) continue;
    kernels.push_back(
        {spans[p].begin, spans[p].end, alone, work_of(graph, plan, instruction), device_of(instruction.queue)});
    measured += spans[p].end - spans[p].begin;
  }
  std::vector<backend::ComputeEngine> engines(plan.device_count);
  // By how much the kernels would have ended earlier or later.
  const auto error = [&](double slowness) {
    for (backend::ComputeEngine& engine : engines) engine.reset();
    double sum = 0;
    for (const Kernel& kernel : kernels) {
      const double share = costs.utilization(kernel.work, kernel.alone, kernel.device, slowness);
      sum += std::abs(engines[kernel.device].run(kernel.begin, kernel.alone, share) - kernel.end);
    }
    return sum;
  };
  constexpr double kMost = 32;         // or its inverse
  constexpr double kStep = 1.0905;     // 2^(1/8)
  constexpr double kTolerance = 0.02;  // of the sum: no reason to change it
  constexpr double kUnlike = 0.1;      // of the sum: no explanation
  double best = costs.slowness();
  double least = error(best);
  if (least <= kTolerance * measured) return best;
  const auto look_around = [&](double middle, double reach, double step) {
    for (double slowness = middle / reach; slowness <= middle * reach; slowness *= step) {
      if (const double here = error(slowness); here < least) {
        best = slowness;
        least = here;
      }
    }
  };
  look_around(1, kMost, kStep);
  look_around(best, kStep, 1 + (kStep - 1) / 8);
  return least <= kUnlike * measured ? std::optional(best) : std::nullopt;
}

bool keeps_placement(double seconds_then, double seconds_now) {
  constexpr double kMost = 2;
  return seconds_now < kMost * seconds_then && seconds_then < kMost * seconds_now;
}

std::string to_string(const Simulation& simulation) {
  char line[160];
  std::snprintf(line, sizeof(line), "predicted: %.3g s", simulation.seconds);
  std::string text = line;
  for (QueueId queue = 0; queue < kMaxQueues; ++queue) {
    if (simulation.busy[queue] == 0) continue;
    std::snprintf(line, sizeof(line), "; %s: busy %.3g s, waits %.3g s", queue_word(queue).c_str(),
                  simulation.busy[queue], simulation.waited[queue]);
    text += line;
  }
  return text + '\n';
}

}  // namespace hetero::graph
