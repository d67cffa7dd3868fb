#include "ops/run/profile.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <utility>

#include "backend/memory/memory_observer.h"
#include "graph/report/describe.h"
#include "ops/settings/memory_stats.h"
#include "ops/tensor/storage.h"

namespace hetero::ops {
namespace {

// For the "[memory]" events of threads whose profiler wants them.
void report_memory(const void* data, int64_t bytes) {
  if (bytes == 0 || !c10::memoryProfilingEnabled()) return;
  const backend::MemoryStats stats = memory_stats();
  c10::reportMemoryUsageToProfiler(const_cast<void*>(data), bytes, static_cast<size_t>(stats.allocated_bytes),
                                   static_cast<size_t>(stats.reserved_bytes), c10::Device(kHetero, 0));
}

// How many nodes an instruction computes, and the first one's note. What was recorded while no
// profiler was on, and what a compiled program runs, is a part of the operator that is running it.
uint64_t find_nodes(const graph::Graph& graph, const graph::Plan& plan, const graph::Instruction& instruction,
                    const NodeNotes& notes, const NodeNote& runner, NodeNote& note) {
  uint64_t count = 0;
  note = runner;
  graph::for_each_node(plan, instruction, [&](uint32_t n) {
    const auto found = notes.find(graph.nodes[n].sequence);
    if (count++ == 0 && found != notes.end() && found->second.operation != 0) note = found->second;
  });
  return count;
}

}  // namespace

Profile& profile() {
  static auto* instance = new Profile;
  return *instance;
}

void Profile::start() {
  const std::lock_guard guard(mutex_);
  spans_.clear();
  runs_ = last_end_ = 0;
  set_profiles(true);
  backend::memory_observer.store(&report_memory, std::memory_order_relaxed);
}

std::vector<ProfiledSpan> Profile::stop() {
  const std::lock_guard guard(mutex_);
  set_profiles(false);
  backend::memory_observer.store(nullptr, std::memory_order_relaxed);
  return std::exchange(spans_, {});
}

void Profile::add_run(const graph::Graph& graph, const graph::Plan& plan, const graph::RunTimes& times,
                      const NodeNotes& notes, int64_t begun, const char* reason) {
  NodeNote runner = note_operation();
  runner.nanoseconds = begun;
  const std::lock_guard guard(mutex_);
  const int64_t base = std::max(begun, last_end_);
  const auto at = [&](double seconds) { return base + static_cast<int64_t>(seconds * 1e9); };
  ++runs_;
  last_end_ = at(times.seconds);
  for (size_t p = 0; p < plan.program.size(); ++p) {
    const graph::Instruction& instruction = plan.program[p];
    if (row_of(instruction).reported.empty()) continue;
    ProfiledSpan span{.queue = instruction.queue,
                      .begin = at(times.spans[p].begin),
                      .end = at(times.spans[p].end),
                      .name = graph::label_of(graph, plan, instruction),
                      .run = runs_};
    if (instruction.is_copy()) {
      span.kind = ProfiledSpan::Kind::kCopy;
      span.bytes = graph.buffers[instruction.index].bytes;
      span.nodes = 0;
      span.note = runner;
    } else {
      span.nodes = find_nodes(graph, plan, instruction, notes, runner, span.note);
    }
    last_end_ = std::max(last_end_, span.end);
    spans_.push_back(std::move(span));
  }
  spans_.push_back({.kind = ProfiledSpan::Kind::kRun,
                    .begin = base,
                    .end = last_end_,
                    .name = "run " + std::to_string(runs_) + ": " + reason,
                    .nodes = graph.nodes.size(),
                    .run = runs_});
}

void Profile::add_call(std::string name, int64_t begun) {
  const NodeNote note = note_operation();
  const std::lock_guard guard(mutex_);
  spans_.push_back({.begin = begun, .end = note.nanoseconds, .name = std::move(name), .note = note});
}

}  // namespace hetero::ops
