#include "tests/graph/placement/placement_cases.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "graph/placement/rollout.h"

namespace hetero::graph::testing {

using backend::DeviceIndex;
using backend::kAccelerator;
using backend::kCpu;

Tasks::Tasks(const std::vector<std::array<double, 2>>& seconds) {
  graph.device_count = 2;
  graph.accelerator = backend::kAccelerator;
  for (uint32_t t = 0; t < seconds.size(); ++t) {
    graph.tasks.push_back({.node = t,
                           .first_use = 0,
                           .use_count = 0,
                           .allowed = 3,
                           .reason = Reason::kFaster,
                           .seconds = {seconds[t][0], seconds[t][1]}});
    graph.values.push_back({.bytes = 64, .valid_on = 0, .copy_seconds = {}});
  }
}

void Tasks::finish(const std::vector<std::vector<uint32_t>>& reads) {
  for (uint32_t t = 0; t < graph.tasks.size(); ++t) {
    Task& task = graph.tasks[t];
    task.first_use = static_cast<uint32_t>(graph.uses.size());
    for (const uint32_t from : reads[t]) graph.uses.push_back({from, true, false});
    graph.uses.push_back({t, false, true});
    task.use_count = static_cast<uint32_t>(graph.uses.size()) - task.first_use;
  }
}

const char* to_string(Shape shape) {
  switch (shape) {
    case Shape::kChain:
      return "chains";
    case Shape::kForkJoin:
      return "fork-join";
    case Shape::kRandom:
      return "random";
  }
  return "?";
}

Tasks make_tasks(Shape shape, double ratio, std::mt19937& random) {
  constexpr uint32_t kTasks = 11;
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  std::vector<std::array<double, 2>> seconds(kTasks);
  double mean = 0;
  for (auto& [cpu, accelerator] : seconds) {
    cpu = std::exp2(uniform(0, 4));
    accelerator = cpu * std::exp2(uniform(-3, 1));
    mean += (cpu + accelerator) / (2 * kTasks);
  }
  Tasks tasks(seconds);
  std::vector<std::vector<uint32_t>> reads(kTasks);
  for (uint32_t t = 1; t < kTasks; ++t) {
    if (shape == Shape::kChain) {
      reads[t] = {t - 1};
    } else if (shape == Shape::kForkJoin) {
      // Three branches of three between the first and the last.
      reads[t] = t == kTasks - 1 ? std::vector<uint32_t>{3, 6, 9} : std::vector<uint32_t>{t % 3 == 1 ? 0 : t - 1};
    } else {
      for (uint32_t from = 0; from < t; ++from) {
        if (random() % 10 < 3) reads[t].push_back(from);
      }
    }
  }
  for (Value& value : tasks.graph.values) {
    value.copy_seconds[kCpu] = value.copy_seconds[kAccelerator] = ratio * mean * uniform(0.5, 1.5);
  }
  tasks.finish(reads);
  return tasks;
}

double best_of_all(TaskGraph& tasks) {
  std::vector<uint32_t> orders[2];
  orders[0].resize(tasks.size());
  std::iota(orders[0].begin(), orders[0].end(), 0);
  tasks.order_by_rank(orders[1]);
  Rollout rollout(tasks);
  double best = 1e300;
  std::vector<DeviceIndex> devices(tasks.size());
  for (uint32_t bits = 0; bits < 1u << tasks.size(); ++bits) {
    for (size_t t = 0; t < tasks.size(); ++t) devices[t] = static_cast<DeviceIndex>(bits >> t & 1);
    for (const auto& order : orders) best = std::min(best, rollout.run(devices, order));
  }
  return best;
}

double seconds_of(TaskGraph& tasks, const std::vector<DeviceIndex>& devices) {
  std::vector<uint32_t> order(tasks.size());
  std::iota(order.begin(), order.end(), 0);
  return Rollout(tasks).run(devices, order);
}

}  // namespace hetero::graph::testing
