// Host tasks: which of them run on the CPU's worker queue.
//
// A host task (OpTraits::host_task) keeps the submitting thread from everything else. On the worker
// queue it overlaps with other work, for the price of a hand-over to another thread and back.
//
//   1. A host task that is expected to take longer than its hand-over is a candidate.
//   2. It moves if something can run beside it: an instruction that is no candidate, does not
//      depend on it, and is not needed by it. Walk from the task to the end of the program, and
//      collect what depends on it; walk to the beginning, and collect what it needs. The first
//      instruction that is in neither set decides.
// Dependence is known by buffer and device, as in order.cpp. The order of the program stays, and
// so does what each task reads. Memory and events are the business of the passes behind this one.

#include <algorithm>

#include "graph/plan/passes.h"

namespace hetero::graph {
namespace {

// What it costs to wake a thread and to wait for it.
constexpr double kHandOver = 20e-6;

class HostTasks {
 public:
  HostTasks(const Graph& graph, Plan& plan, Scratch& scratch) : graph_(graph), plan_(plan), scratch_(scratch) {}

  bool run() {
    candidates_.assign(plan_.program.size(), 0);
    std::vector<uint32_t> found;
    for (uint32_t i = 0; i < plan_.program.size(); ++i) {
      if (!is_candidate(plan_.program[i])) continue;
      candidates_[i] = 1;
      found.push_back(i);
    }
    bool moved = false;
    for (const uint32_t i : found) {
      if (!overlaps(i)) continue;
      plan_.program[i].queue = kWorkerQueue;
      moved = true;
    }
    return moved;
  }

 private:
  // Of the instructions that depend on a task, or that it needs: what they do with one residence.
  struct Marks {
    bool touched = false;
    bool written = false;
  };

  bool is_candidate(const Instruction& instruction) const {
    return instruction.queue == kHostQueue && instruction.is_call() && !instruction.is_body() &&
           op_table()[graph_.nodes[instruction.index].op].host_task &&
           scratch_.tasks.task_of(instruction).seconds[backend::kCpu] > kHandOver;
  }

  template <typename Function>
  void for_each_use(const Instruction& instruction, Function function) const {
    if (!instruction.computes()) {
      for_each_touch(graph_, plan_, instruction, [&](const TouchedBytes& bytes) {
        function(plan_.place_of(bytes.buffer, bytes.device), bytes.writes);
      });
      return;
    }
    for (const Use& use : scratch_.tasks.uses_of(instruction)) {
      function(plan_.place_of(use.buffer, device_of(instruction.queue)), use.writes);
    }
  }

  void mark(const Instruction& instruction) {
    for_each_use(instruction, [this](size_t place, bool writes) {
      marks_[place].touched = true;
      marks_[place].written |= writes;
    });
  }

  bool is_tied(const Instruction& instruction) const {
    bool tied = false;
    for_each_use(instruction,
                 [&](size_t place, bool writes) { tied |= writes ? marks_[place].touched : marks_[place].written; });
    return tied;
  }

  bool overlaps(uint32_t task) {
    const auto finds = [&](uint32_t i) {
      if (!is_tied(plan_.program[i])) return candidates_[i] == 0;
      mark(plan_.program[i]);
      return false;
    };
    begin(task);
    for (uint32_t i = task + 1; i < plan_.program.size(); ++i) {
      if (finds(i)) return true;
    }
    begin(task);
    for (uint32_t i = task; i-- > 0;) {
      if (finds(i)) return true;
    }
    return false;
  }

  void begin(uint32_t task) {
    marks_.assign(graph_.buffers.size() * plan_.device_count, {});
    mark(plan_.program[task]);
  }

  const Graph& graph_;
  Plan& plan_;
  const Scratch& scratch_;
  std::vector<uint8_t> candidates_;  // per instruction
  std::vector<Marks> marks_;         // per residence
};

}  // namespace

bool has_host_tasks(const Graph& graph, const Plan& plan) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (plan.live[n] && op_table()[graph.nodes[n].op].host_task) return true;
  }
  return false;
}

bool move_host_tasks(const Graph& graph, Plan& plan, Scratch& scratch) {
  return has_host_tasks(graph, plan) && HostTasks(graph, plan, scratch).run();
}

}  // namespace hetero::graph
