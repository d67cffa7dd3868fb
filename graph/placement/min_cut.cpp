#include "graph/placement/min_cut.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>

namespace hetero::graph {
namespace {

using backend::DeviceIndex;
using backend::DeviceSet;
using backend::kCpu;

// Picoseconds, so that sums are exact and the search for paths ends.
using Capacity = int64_t;
constexpr Capacity kForever = INT64_MAX / 4;

Capacity capacity_of(double seconds) {
  return static_cast<Capacity>(std::min(std::round(seconds * 1e12), static_cast<double>(kForever / 1024)));
}

class Network {
 public:
  explicit Network(size_t nodes) : first_(nodes, kNone) {}

  uint32_t add_node() {
    first_.push_back(kNone);
    return static_cast<uint32_t>(first_.size() - 1);
  }

  void add_arc(uint32_t from, uint32_t to, Capacity capacity) {
    arcs_.push_back({to, first_[from], capacity});
    first_[from] = static_cast<uint32_t>(arcs_.size() - 1);
    arcs_.push_back({from, first_[to], 0});
    first_[to] = static_cast<uint32_t>(arcs_.size() - 1);
  }

  // Afterwards reached() says of a node whether it is on the source's side of a minimum cut.
  void cut(uint32_t source, uint32_t sink) {
    while (find_levels(source, sink)) {
      next_ = first_;
      while (push(source, sink)) {
      }
    }
  }
  bool reached(uint32_t node) const { return level_[node] >= 0; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Arc {
    uint32_t to;
    uint32_t next;
    Capacity left;
  };

  bool find_levels(uint32_t source, uint32_t sink) {
    level_.assign(first_.size(), -1);
    level_[source] = 0;
    queue_.assign(1, source);
    while (!queue_.empty()) {
      const uint32_t node = queue_.front();
      queue_.pop_front();
      for (uint32_t a = first_[node]; a != kNone; a = arcs_[a].next) {
        if (arcs_[a].left == 0 || level_[arcs_[a].to] >= 0) continue;
        level_[arcs_[a].to] = level_[node] + 1;
        queue_.push_back(arcs_[a].to);
      }
    }
    return level_[sink] >= 0;
  }

  // Pushes along one path, found without recursion: programs may be long. False where there is none
  // any more.
  bool push(uint32_t source, uint32_t sink) {
    path_.clear();
    uint32_t node = source;
    while (node != sink) {
      uint32_t& a = next_[node];
      while (a != kNone && (arcs_[a].left == 0 || level_[arcs_[a].to] != level_[node] + 1)) a = arcs_[a].next;
      if (a != kNone) {
        path_.push_back(a);
        node = arcs_[a].to;
        continue;
      }
      if (path_.empty()) return false;
      // A dead end: step back, and do not come here again.
      level_[node] = -1;
      node = arcs_[path_.back() ^ 1].to;
      path_.pop_back();
    }
    Capacity least = kForever;
    for (const uint32_t a : path_) least = std::min(least, arcs_[a].left);
    for (const uint32_t a : path_) {
      arcs_[a].left -= least;
      arcs_[a ^ 1].left += least;
    }
    return true;
  }

  std::vector<uint32_t> first_;
  std::vector<uint32_t> next_;
  std::vector<Arc> arcs_;
  std::vector<int> level_;
  std::deque<uint32_t> queue_;
  std::vector<uint32_t> path_;
};

class Builder {
 public:
  explicit Builder(const TaskGraph& tasks) : tasks_(tasks), network_(tasks.size() + 2) {}

  std::vector<DeviceIndex> solve() {
    current_.resize(tasks_.values.size());
    for (size_t b = 0; b < current_.size(); ++b) {
      const Value& value = tasks_.values[b];
      if (value.updated_by != Value::kNoTask) {
        current_[b].maker = value.updated_by;
      } else if (value.valid_on == backend::only(kCpu)) {
        current_[b].maker = cpu();
      } else if (value.valid_on == backend::only(tasks_.accelerator)) {
        current_[b].maker = accelerator();
      }
    }
    for (uint32_t t = 0; t < tasks_.size(); ++t) add_task(t);
    network_.cut(cpu(), accelerator());
    std::vector<DeviceIndex> devices(tasks_.size());
    for (uint32_t t = 0; t < tasks_.size(); ++t) {
      const DeviceSet allowed = tasks_.tasks[t].allowed;
      const DeviceIndex side = network_.reached(t) ? kCpu : tasks_.accelerator;
      devices[t] = backend::contains(allowed, side) ? side : backend::first_of(allowed);
    }
    return devices;
  }

 private:
  static constexpr uint32_t kNowhere = UINT32_MAX;  // or everywhere
  struct Current {
    uint32_t maker = kNowhere;
    uint32_t to_accelerator = kNowhere;  // the nodes that stand for its copies
    uint32_t to_cpu = kNowhere;
  };

  uint32_t cpu() const { return static_cast<uint32_t>(tasks_.size()); }
  uint32_t accelerator() const { return cpu() + 1; }

  void add_task(uint32_t t) {
    const Task& task = tasks_.tasks[t];
    // What runs on neither side has no part in the cut, and neither has what it makes.
    if ((task.allowed & (backend::only(kCpu) | backend::only(tasks_.accelerator))) == 0) {
      for (const Use* use = tasks_.begin(task); use != tasks_.end(task); ++use) {
        if (use->writes) current_[use->buffer] = {};
      }
      return;
    }
    const auto seconds = [&](DeviceIndex d) {
      return backend::contains(task.allowed, d) ? capacity_of(task.seconds[d]) : kForever;
    };
    network_.add_arc(t, accelerator(), seconds(kCpu));
    network_.add_arc(cpu(), t, seconds(tasks_.accelerator));
    for (const Use* use = tasks_.begin(task); use != tasks_.end(task); ++use) {
      Current& current = current_[use->buffer];
      if (use->reads && current.maker != kNowhere && current.maker != t) add_reader(t, use->buffer, current);
    }
    for (const Use* use = tasks_.begin(task); use != tasks_.end(task); ++use) {
      if (use->writes) current_[use->buffer] = {.maker = t};
    }
  }

  void add_reader(uint32_t t, BufferId buffer, Current& current) {
    const double* const seconds = tasks_.values[buffer].copy_seconds;
    if (current.maker != accelerator()) {
      if (current.to_accelerator == kNowhere) {
        current.to_accelerator = network_.add_node();
        network_.add_arc(current.maker, current.to_accelerator, capacity_of(seconds[tasks_.accelerator]));
      }
      network_.add_arc(current.to_accelerator, t, kForever);
    }
    if (current.maker != cpu()) {
      if (current.to_cpu == kNowhere) {
        current.to_cpu = network_.add_node();
        network_.add_arc(current.to_cpu, current.maker, capacity_of(seconds[kCpu]));
      }
      network_.add_arc(t, current.to_cpu, kForever);
    }
  }

  const TaskGraph& tasks_;
  Network network_;
  std::vector<Current> current_;  // per buffer: the value that it holds
};

}  // namespace

std::vector<DeviceIndex> min_cut(const TaskGraph& tasks) { return Builder(tasks).solve(); }

}  // namespace hetero::graph
