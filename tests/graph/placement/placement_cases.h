// Small graphs of tasks for which the best placement can be found by trying all: what tests and
// benchmarks of placement compare with.
//
// The tasks exist in numbers only: no kernels, no windows. Thread safety: functions without state.

#pragma once

#include <array>
#include <random>
#include <vector>

#include "graph/placement/task_graph.h"

namespace hetero::graph::testing {

struct Tasks {
  TaskGraph graph;
  // What each task takes on the CPU and on the accelerator.
  explicit Tasks(const std::vector<std::array<double, 2>>& seconds);
  // Task t makes value t. `reads` says of which earlier tasks each reads the values.
  void finish(const std::vector<std::vector<uint32_t>>& reads);
};

enum class Shape { kChain, kForkJoin, kRandom };
inline constexpr Shape kShapes[] = {Shape::kChain, Shape::kForkJoin, Shape::kRandom};
const char* to_string(Shape shape);

// Copies to work (CCR), and how many graphs of each shape and ratio: 225 in all.
inline constexpr double kCopyRatios[] = {0.1, 0.5, 2.0};
inline constexpr unsigned kGraphsOfEach = 25;

// Eleven tasks: their times differ by a factor of 16 at most, the devices by 8; `ratio` is that of
// copies to work.
Tasks make_tasks(Shape shape, double ratio, std::mt19937& random);

// The least over all 2^11 placements in the two orders that the search has.
double best_of_all(TaskGraph& tasks);

// In the order of the graph.
double seconds_of(TaskGraph& tasks, const std::vector<backend::DeviceIndex>& devices);

}  // namespace hetero::graph::testing
