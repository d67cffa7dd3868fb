#include "graph/run/segment_recorder.h"

#include <algorithm>
#include <array>
#include <utility>

namespace hetero::graph {
namespace {

constexpr uint64_t kNever = UINT64_MAX;

}  // namespace

LaunchRuns find_launch_runs(const Graph& graph, const Plan& plan, std::span<const uint8_t> draws) {
  LaunchRuns runs;
  std::array<std::vector<uint32_t>, kMaxQueues> open;
  const auto close = [&](QueueId queue) {
    if (open[queue].size() >= SegmentRecorder::kShortest) runs.push_back({queue, open[queue]});
    open[queue].clear();
  };
  const auto is_launch = [&](const Instruction& instruction) {
    bool plain = instruction.is_task();
    for_each_node(plan, instruction, [&](uint32_t n) {
      plain = plain && !op_table()[graph.nodes[n].op].side_effects && (draws.empty() || draws[n] == 0);
    });
    return plain;
  };
  for (uint32_t position = 0; position < plan.program.size(); ++position) {
    const Instruction& instruction = plan.program[position];
    if (instruction.queue == kHostQueue) {
      // What is submitted later comes after it, without an event.
      for (QueueId queue = 0; queue < kMaxQueues; ++queue) close(queue);
    } else if (runs_kernels(instruction.queue) && is_launch(instruction)) {
      open[instruction.queue].push_back(position);
    } else {
      close(instruction.queue);
    }
  }
  for (QueueId queue = 0; queue < kMaxQueues; ++queue) close(queue);
  return runs;
}

SegmentRecorder::SegmentRecorder(size_t instructions, const LaunchRuns& runs, Owner& owner, Policy policy)
    : launch_runs_(runs), owner_(owner), policy_(policy), step_of_(instructions, 0) {
  for (const LaunchRun& run : runs) {
    for (const uint32_t position : run.positions) {
      steps_.push_back({.run = &run});
      step_of_[position] = static_cast<uint32_t>(steps_.size());
    }
  }
}

bool SegmentRecorder::note_change(uint32_t position) {
  Step& step = step_at(position);
  if (is_alone(step)) return false;
  // Before the first run there is nothing to change.
  if (runs_ == 0 || step.changed_after == runs_) return true;
  step.changed_after = runs_;
  ++step.changes;
  settle_again();
  if (const Recording* const stale = step.recording; stale != nullptr) {
    for (const uint32_t other : stale->positions) step_at(other).recording = nullptr;
    std::erase_if(recorded_, [stale](const auto& kept) { return kept.get() == stale; });
    changed_ = true;
  }
  return true;
}

void SegmentRecorder::settle_again() {
  settled_ = 0;
  record_at_ = kSettledRuns;
}

void SegmentRecorder::refuse(const Recording& recording) {
  for (const uint32_t position : recording.positions) {
    step_at(position).recording = nullptr;
    step_at(position).refused = true;
  }
  changed_ = true;
}

void SegmentRecorder::forget() {
  settings_ = kernel_settings();
  recorded_.clear();
  for (Step& step : steps_) {
    step.recording = nullptr;
    step.refused = false;
  }
  changed_ = true;
  settle_again();
}

void SegmentRecorder::record_parts() {
  record_at_ = kNever;
  for (const auto& [queue, positions] : launch_runs_) {
    size_t first = 0;
    for (size_t i = 0; i <= positions.size(); ++i) {
      const Step* const step = i < positions.size() ? &step_at(positions[i]) : nullptr;
      if (step != nullptr && !is_alone(*step) && step->recording == nullptr) continue;
      record(queue, std::span(positions).subspan(first, i - first));
      first = i + 1;
    }
  }
}

void SegmentRecorder::record(QueueId queue, std::span<const uint32_t> positions) {
  if (positions.size() < kShortest) return;
  auto recording = std::make_unique<Recording>(Recording{.queue = queue, .positions = positions});
  for (const uint32_t position : positions) {
    const std::span<void* const> addresses = owner_.addresses_of(position);
    recording->addresses.insert(recording->addresses.end(), addresses.begin(), addresses.end());
  }
  void* const* addresses = recording->addresses.data();
  for (const uint32_t position : positions) {
    recording->launches.push_back({&owner_, position, addresses});
    addresses += owner_.addresses_of(position).size();
  }
  Result<std::unique_ptr<backend::Segment>> segment = owner_.record(queue, recording->launches);
  if (segment.ok()) {
    if (segment.value() == nullptr) {
      record_at_ = 2 * (settled_ + 1);
      return;
    }
    recording->segment = std::move(segment.value());
    for (const uint32_t position : positions) step_at(position).recording = recording.get();
    recorded_.push_back(std::move(recording));
    changed_ = true;
    ++recordings_;
  } else if (policy_.divides && positions.size() >= 2 * kShortest) {
    const size_t half = positions.size() / 2;
    record(queue, positions.first(half));
    record(queue, positions.subspan(half));
  } else {
    refuse(*recording);
  }
}

}  // namespace hetero::graph
