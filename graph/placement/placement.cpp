// Placement: which device runs each node, in which order, and why.
//
// No single method is good for all graphs: a minimum cut is the optimum of a chain and knows
// nothing of working side by side, HEFT knows that and misjudges what it has not come to yet. So
// there are several candidates, each judged by a rollout (graph/placement/rollout.h) and improved
// step by step:
//
//   1. Candidates: everything that may be on the CPU; everything that may be on the accelerator;
//      the minimum cut; HEFT (H. Topcuoglu et al., 2002): tasks by rank, each on the device that
//      has it done first, with links reserved; each task where it alone is fastest.
//   2. Orders: that of the graph, and that of the ranks.
//   3. Local search from each of them: a task, two or three close ones, or a run of them change the
//      device; what makes the whole faster stays. Effort is counted, not timed, so the same graph
//      gives the same placement everywhere. While effort is left, the best is shaken, three tasks
//      at a time, and improved again (iterated local search).
//   4. What uses the accelerator must gain a fiftieth over the CPU alone.
//   5. Where a placement is doubted (PlanOptions::instead_of), the best of those that differ from
//      it is taken.
//
// Where nothing is left to decide, as for one device or by thresholds (thresholds.h), none of that
// is done.

#include "graph/placement/placement.h"

#include <algorithm>
#include <numeric>

#include "graph/placement/min_cut.h"
#include "graph/placement/rollout.h"
#include "graph/placement/thresholds.h"

namespace hetero::graph {
namespace {

using backend::DeviceIndex;
using backend::kCpu;
using Devices = std::vector<DeviceIndex>;

constexpr int kShakes = 16;  // with the usual effort
// Steps of the search with the usual effort: uses of tasks that rollouts look at.
constexpr int64_t kEffort = 1'500'000;
// As many tasks may change places at random; more get the cheaper moves only.
constexpr size_t kSmall = 24;

class Search {
 public:
  Search(TaskGraph& tasks, int effort)
      : tasks_(tasks), rollout_(tasks), effort_(kEffort * effort), shakes_(kShakes * effort) {
    orders_[0].resize(tasks.size());
    std::iota(orders_[0].begin(), orders_[0].end(), 0);
    tasks.order_by_rank(orders_[1]);
    for (uint32_t t = 0; t < tasks.size(); ++t) {
      if (tasks.tasks[t].has_choice()) free_.push_back(t);
    }
  }

  void run(std::vector<Candidate>* candidates) {
    const size_t cpu = consider(tasks_.name_of_all_on(kCpu), tasks_.all_on(kCpu));
    if (!free_.empty()) {
      consider(tasks_.name_of_all_on(there_), tasks_.all_on(there_));
      consider("minimum cut", min_cut(tasks_));
      consider("earliest finish", earliest_finish());
      consider("fastest device", fastest_device());
      improve();
    }
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < found_.size(); ++i) {
      const bool better = best == SIZE_MAX || found_[i].seconds < found_[best].seconds;
      if (better && tasks_.differs(found_[i].devices)) best = i;
    }
    if (best == SIZE_MAX) best = cpu;
    // Only where the CPU alone is a choice.
    const bool any_forced =
        std::ranges::any_of(tasks_.tasks, [](const Task& t) { return !backend::contains(t.allowed, kCpu); });
    const bool may_be_cpu = !any_forced && tasks_.differs(found_[cpu].devices);
    if (may_be_cpu && found_[best].seconds > kWorthIt * found_[cpu].seconds) best = cpu;
    best_ = best;
    if (candidates == nullptr) return;
    for (size_t i = 0; i < found_.size(); ++i) {
      candidates->push_back({found_[i].name, found_[i].seconds, i == best});
    }
  }

  double seconds() const { return found_[best_].seconds; }
  const Devices& devices() const { return found_[best_].devices; }
  const std::vector<uint32_t>& order() const { return orders_[found_[best_].order]; }

 private:
  struct Found {
    const char* name;
    Devices devices;
    int order;
    double seconds;
  };

  Devices fastest_device() const {
    Devices devices = tasks_.all_on(kCpu);
    for (const uint32_t t : free_) {
      const double* const seconds = tasks_.tasks[t].seconds;
      devices[t] = seconds[there_] < seconds[kCpu] ? there_ : kCpu;
    }
    return devices;
  }

  Devices earliest_finish() {
    Devices devices = tasks_.all_on(kCpu);
    rollout_.begin();
    for (const uint32_t t : orders_[1]) {
      if (tasks_.tasks[t].has_choice()) {
        devices[t] = rollout_.finish(t, there_) < rollout_.finish(t, kCpu) ? there_ : kCpu;
      }
      rollout_.place(t, devices[t]);
    }
    return devices;
  }

  double seconds_of(const Devices& devices, int order) {
    effort_ -= static_cast<int64_t>(tasks_.uses.size());
    return rollout_.run(devices, orders_[order]);
  }

  size_t consider(const char* name, Devices devices) {
    const double in_order = seconds_of(devices, 0);
    const double by_rank = seconds_of(devices, 1);
    const int order = by_rank < in_order ? 1 : 0;
    found_.push_back({name, std::move(devices), order, std::min(in_order, by_rank)});
    return found_.size() - 1;
  }

  // From each candidate in each order, the best first, with half of the effort that is left for
  // each.
  void improve() {
    std::vector<Found> starts;
    for (const Found& found : found_) {
      if (std::ranges::any_of(starts, [&](const Found& start) { return start.devices == found.devices; })) continue;
      starts.push_back(found);
      starts.push_back({found.name, found.devices, found.order ^ 1, seconds_of(found.devices, found.order ^ 1)});
    }
    std::ranges::stable_sort(starts, {}, &Found::seconds);
    for (const Found& start : starts) climb(start, effort_ / 2);
    uint64_t random = 1;
    for (int i = 0; i < shakes_ && free_.size() > 3; ++i) {
      Found shaken = *std::ranges::min_element(found_, {}, &Found::seconds);
      for (int k = 0; k < 3; ++k) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        flip(shaken, free_[(random >> 33) % free_.size()]);
      }
      shaken.seconds = seconds_of(shaken.devices, shaken.order);
      climb(std::move(shaken), effort_ / 2);
    }
  }

  // Until nothing is better or only `left` of the effort is.
  void climb(Found from, int64_t left) {
    from.name = "local search";
    bool better = true;
    while (better && effort_ > left) {
      better = false;
      for (size_t i = 0; i < free_.size() && effort_ > left; ++i) better |= try_flip(from, {free_[i]});
      better |= move_runs(from, left);
      const size_t reach = free_.size() <= kSmall ? free_.size() : 4;
      for (size_t i = 0; i < free_.size() && effort_ > left; ++i) {
        for (size_t j = i + 1; j < std::min(i + reach, free_.size()) && effort_ > left; ++j) {
          better |= try_flip(from, {free_[i], free_[j]});
          for (size_t k = j + 1; k < std::min(i + reach, free_.size()) && effort_ > left; ++k) {
            better |= try_flip(from, {free_[i], free_[j], free_[k]});
          }
        }
      }
    }
    // One of them is enough.
    if (!found_.empty() && std::ranges::any_of(found_, [&](const Found& f) { return f.seconds <= from.seconds; }))
      return;
    found_.push_back(std::move(from));
  }

  // Runs of 2, 4, 8, ... free tasks go to one device.
  bool move_runs(Found& from, int64_t left) {
    bool better = false;
    for (size_t length = 2; length < free_.size(); length *= 2) {
      for (size_t i = 0; i + length <= free_.size(); i += std::max<size_t>(1, length / 4)) {
        if (effort_ <= left) return better;
        for (const DeviceIndex device : {kCpu, there_}) {
          moved_.clear();
          for (size_t k = i; k < i + length; ++k) {
            if (from.devices[free_[k]] != device) moved_.push_back(free_[k]);
          }
          if (moved_.size() > 1) better |= try_flip(from, moved_);
        }
      }
    }
    return better;
  }

  bool try_flip(Found& from, std::span<const uint32_t> tasks) {
    for (const uint32_t t : tasks) flip(from, t);
    const double seconds = seconds_of(from.devices, from.order);
    if (seconds < from.seconds * (1 - 1e-9)) {
      from.seconds = seconds;
      return true;
    }
    for (const uint32_t t : tasks) flip(from, t);
    return false;
  }
  void flip(Found& found, uint32_t task) const { found.devices[task] = tasks_.other_than(found.devices[task]); }
  bool try_flip(Found& from, std::initializer_list<uint32_t> tasks) {
    return try_flip(from, std::span<const uint32_t>(tasks.begin(), tasks.size()));
  }

  TaskGraph& tasks_;
  const DeviceIndex there_ = tasks_.accelerator;
  Rollout rollout_;
  int64_t effort_;
  const int shakes_;
  std::vector<uint32_t> orders_[2];
  std::vector<uint32_t> free_;  // tasks that may run anywhere
  std::vector<uint32_t> moved_;
  std::vector<Found> found_;
  size_t best_ = 0;
};

}  // namespace

double search_seconds(TaskGraph& tasks, std::vector<Candidate>* candidates) {
  Search search(tasks, 1);
  search.run(candidates);
  return search.seconds();
}

void write_placements(const TaskGraph& tasks, std::span<const DeviceIndex> devices, Plan& plan) {
  for (uint32_t t = 0; t < tasks.size(); ++t) {
    const Task& task = tasks.tasks[t];
    if (task.is_fetch()) continue;
    const DeviceIndex device = devices[t];
    const bool faster = task.seconds[device] <= task.seconds[tasks.other_than(device)];
    const Reason reason = !backend::contains(task.allowed, device) ? Reason::kNoMemory
                          : !task.has_choice()                     ? task.reason
                          : faster                                 ? Reason::kFaster
                                                                   : Reason::kSavesTime;
    for (const uint32_t n : tasks.nodes_of(task)) plan.placements[n] = {.device = device, .reason = reason};
    tasks.predict(task, device, plan);
  }
}

void place_nodes(const Graph& graph, const PlanOptions& options, Plan& plan, TaskGraph& tasks,
                 std::vector<uint32_t>& order) {
  tasks.build(graph, plan, options);
  if (options.policy == Policy::kThresholds) decide_by_thresholds(graph, options, tasks);
  Search search(tasks, options.effort);
  search.run(options.candidates);
  plan.placements.assign(graph.nodes.size(), Placement{});
  write_placements(tasks, search.devices(), plan);
  order = search.order();
}

}  // namespace hetero::graph
