// Segments: launches of an accelerator that follow each other are recorded, and from then on launched as one.
//
// 1. When the program is bound, its *runs* are found: the longest sequences of launches of one compute queue between which this queue does nothing else and the
//    host computes nothing. A segment submits all of them where the first one stands. Other queues cannot tell: they are ordered with this one by events, which it
//    neither records nor waits for in between. Launches whose numbers are drawn anew, or that have side effects, belong to no run.
// 2. A slot's steps are launched one by one until its addresses have stayed the same for kSettledRuns runs. Then each part of a run whose steps do not move is recorded,
//    with the addresses as they are.
// 3. Who gives a step another address discards the recording that the step belongs to, and the slot has to settle again. A step whose addresses change again and again
//    moves, and is launched alone from then on: so a caller who lends other memory for every request pays for a few recordings once, and for the launches of
//    those few steps that touch it.
// 4. Other settings of kernels (graph/ir/kernel_settings.h) discard all of a slot's recordings.
// 5. What cannot be recorded or launched as one is launched one by one, for good. What the device is still preparing is asked for again after twice as many runs.
//
// The idea of replaying what was captured is that of CUDA graphs; that captured addresses go stale when inputs are rebound is the trap of TVM's
// graph_executor_cuda_graph, which froze the pointers of its zero-copy inputs.

#include <algorithm>

#include "graph/ir/kernel_settings.h"
#include "graph/run/bound_program.h"
#include "graph/run/bound_slot.h"

namespace hetero::graph {
namespace {

constexpr uint64_t kSettledRuns = 3;
constexpr uint8_t kMovingRebinds = 2;
constexpr size_t kShortest = 2;  // steps that are worth a segment
constexpr uint64_t kNever = UINT64_MAX;

}  // namespace

bool BoundProgram::is_recordable(const Step& step, std::span<const uint8_t> draws) const {
  const auto is_plain = [&](uint32_t node) {
    return !op_table()[graph_.nodes[node].op].side_effects && (draws.empty() || draws[node] == 0);
  };
  const Instruction& instruction = plan_.program[step.position];
  switch (step.kind) {
    case Instruction::Kind::kRun:
    case Instruction::Kind::kBody:
      return is_plain(instruction.index);
    case Instruction::Kind::kFused:
      return std::ranges::all_of(plan_.groups[instruction.index].members, is_plain);
    default:
      return false;
  }
}

void BoundProgram::find_runs(std::span<const uint8_t> draws) {
  std::array<std::vector<uint32_t>, kMaxQueues> open;
  const auto close = [&](QueueId queue) {
    if (open[queue].size() >= kShortest) runs_.push_back(open[queue]);
    open[queue].clear();
  };
  for (uint32_t s = 0; s < steps_.size(); ++s) {
    const Step& step = steps_[s];
    if (step.queue == kHostQueue) {
      // What is submitted later comes after it, without an event.
      for (QueueId queue = 0; queue < kMaxQueues; ++queue) close(queue);
    } else if (is_recordable(step, draws)) {
      open[step.queue].push_back(s);
    } else {
      close(step.queue);
    }
  }
  for (QueueId queue = 0; queue < kMaxQueues; ++queue) close(queue);
  for (const std::vector<uint32_t>& run : runs_) {
    for (const uint32_t s : run) steps_[s].in_run = true;
  }
}

void BoundProgram::start_segments(Slot& slot) {
  slot.record_at = kSettledRuns;
  make_schedule(slot);
}

// Before a run of the slot.
void BoundProgram::keep_segments(Slot& slot) {
  if (const uint64_t settings = kernel_settings(); settings != slot.settings) use_settings(slot, settings);
  ++slot.runs;
  if (slot.settled_runs++ == slot.record_at) record_segments(slot);
  if (slot.changed) make_schedule(slot);
}

void BoundProgram::use_settings(Slot& slot, uint64_t settings) {
  slot.settings = settings;
  if (slot.runs == 0) return;
  // The last run may still use them. What it met, wait() tells.
  if (!slot.recordings.empty()) (void)synchronize(slot);
  slot.recordings.clear();
  slot.changed = true;
  slot.settled_runs = 0;
  slot.record_at = kSettledRuns;
}

void BoundProgram::record_segments(Slot& slot) {
  for (const std::vector<uint32_t>& run : runs_) {
    std::vector<uint32_t> steps;
    const auto close = [&] {
      if (steps.size() >= kShortest && !has_recording(slot, steps)) add_recording(slot, steps);
      steps.clear();
    };
    for (const uint32_t s : run) {
      if (slot.rebinds[s].count == kMovingRebinds) {
        close();
      } else {
        steps.push_back(s);
      }
    }
    close();
  }
  slot.record_at = kNever;
  for (const auto& recording : slot.recordings) {
    if (recording->state == Recording::State::kWaiting) record(*recording);
    if (recording->state == Recording::State::kWaiting) slot.record_at = 2 * slot.settled_runs;
  }
  slot.changed = true;
}

bool BoundProgram::has_recording(const Slot& slot, const std::vector<uint32_t>& steps) {
  return std::ranges::any_of(slot.recordings, [&](const auto& recording) { return recording->steps == steps; });
}

void BoundProgram::add_recording(Slot& slot, const std::vector<uint32_t>& steps) {
  Recording& recording = *slot.recordings.emplace_back(std::make_unique<Recording>());
  recording.steps = steps;
  for (const uint32_t s : steps) {
    const auto begin = slot.table.begin() + steps_[s].entry;
    recording.addresses.insert(recording.addresses.end(), begin, begin + steps_[s].entries);
  }
  void* const* addresses = recording.addresses.data();
  for (const uint32_t s : steps) {
    recording.tasks.push_back({this, &slot, &steps_[s], addresses});
    addresses += steps_[s].entries;
  }
  for (Task& task : recording.tasks) recording.launches.push_back(launch_of(task));
}

void BoundProgram::record(Recording& recording) {
  Status failure;
  recorded_failure_ = &failure;
  Result<std::unique_ptr<backend::Segment>> segment =
      queue(steps_[recording.steps.front()].queue).record_segment(recording.launches);
  recorded_failure_ = nullptr;
  // What fails while it is recorded may not fail when it is launched alone; if it does, it says so there.
  if (!segment.ok() || !failure.ok()) {
    recording.state = Recording::State::kRefused;
  } else if (segment.value() != nullptr) {
    recording.state = Recording::State::kRecorded;
    recording.segment = std::move(segment.value());
    ++counts_.recordings;
  }
}

void BoundProgram::make_schedule(Slot& slot) {
  std::vector<Recording*> recording_of(steps_.size(), nullptr);
  for (const auto& recording : slot.recordings) {
    if (recording->state != Recording::State::kRecorded) continue;
    for (const uint32_t s : recording->steps) recording_of[s] = recording.get();
  }
  slot.schedule.clear();
  for (uint32_t s = 0; s < steps_.size(); ++s) {
    Recording* const recording = recording_of[s];
    if (recording == nullptr || recording->steps.front() == s) slot.schedule.push_back({&steps_[s], recording});
  }
  slot.changed = false;
}

Status BoundProgram::submit_segment(Recording& recording, Slot& slot) {
  const auto kernels = static_cast<int64_t>(recording.steps.size());
  // As a task does that is called for each run.
  if (slot.failed.load(std::memory_order_acquire)) {
    counts_.kernels += kernels;
    return Status();
  }
  if (queue(steps_[recording.steps.front()].queue).launch_segment(*recording.segment).ok()) {
    counts_.kernels += kernels;
    ++counts_.segments;
    return Status();
  }
  // Where launching fails altogether, the first step says so. The segment may still run since the last time, so it stays.
  recording.state = Recording::State::kRefused;
  slot.changed = true;
  for (const uint32_t s : recording.steps) {
    if (Status status = submit(steps_[s], slot); !status.ok()) return status;
  }
  return Status();
}

// The step has another address. REQUIRES: the slot does not run.
void BoundProgram::forget_address(Slot& slot, uint32_t step) {
  Slot::Rebinds& rebinds = slot.rebinds[step];
  // A step that moves is no part of a recording; before the first run there is none; several addresses at a time are one change.
  if (!steps_[step].in_run || slot.runs == 0 || rebinds.count == kMovingRebinds || rebinds.after == slot.runs) return;
  rebinds = {slot.runs, static_cast<uint8_t>(rebinds.count + 1)};
  const auto holds = [step](const auto& recording) { return std::ranges::binary_search(recording->steps, step); };
  slot.changed = std::erase_if(slot.recordings, holds) != 0 || slot.changed;
  slot.settled_runs = 0;
  slot.record_at = kSettledRuns;
}

}  // namespace hetero::graph
