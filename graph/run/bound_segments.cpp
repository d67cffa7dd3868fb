// Segments of a bound program (segment_recorder.h). A slot's addresses are known in advance:
// rebind() tells of those that change. So a run need not compare launches. Its schedule has a
// segment at the place of its first launch, and leaves out the others. Segments are recorded before
// a run, when earlier ones may still go on.

#include "graph/run/bound_program.h"
#include "graph/run/bound_slot.h"

namespace hetero::graph {

void BoundSlot::run_launch(uint32_t position, void* const* addresses) { program.execute(*this, position, addresses); }

std::span<void* const> BoundSlot::addresses_of(uint32_t position) const {
  const BoundStep& step = program.steps_[position];
  return std::span(table).subspan(step.entry, step.entries);
}

// What fails while it is recorded may not fail when it is launched alone; if it does, it says so
// there.
Result<std::unique_ptr<backend::Segment>> BoundSlot::record(QueueId queue, std::span<Launch> launches) {
  Status failure;
  BoundProgram::recorded_failure_ = &failure;
  Result<std::unique_ptr<backend::Segment>> segment =
      record_tasks(program.graph_, program.plan_, launches, program.queue(queue));
  BoundProgram::recorded_failure_ = nullptr;
  return failure.ok() ? std::move(segment) : failure;
}

// Before a run of the slot.
void BoundProgram::keep_segments(Slot& slot) {
  SegmentRecorder& segments = *slot.segments;
  if (!segments.is_current()) {
    // The last run may still use them. What it met, wait() tells.
    (void)synchronize(slot);
    segments.forget();
  }
  segments.begin_run();
  segments.record_if_settled();
  segments.count_run();
  if (segments.has_changed()) make_schedule(slot);
}

void BoundProgram::make_schedule(Slot& slot) {
  slot.schedule.clear();
  for (uint32_t s = 0; s < steps_.size(); ++s) {
    const SegmentRecorder::Recording* const recording = slot.segments ? slot.segments->at(s) : nullptr;
    if (recording == nullptr || recording->positions.front() == s) slot.schedule.push_back({&steps_[s], recording});
  }
}

Status BoundProgram::submit_segment(const SegmentRecorder::Recording& recording, Slot& slot) {
  const auto kernels = static_cast<int64_t>(recording.positions.size());
  // As a task does that is called for each run.
  const bool skipped = slot.failed.load(std::memory_order_acquire);
  if (skipped || queue(recording.queue).launch_segment(*recording.segment).ok()) {
    counts_.kernels += kernels;
    counts_.segments += skipped ? 0 : 1;
    return Status();
  }
  // Where launching fails altogether, the first step says so.
  slot.segments->refuse(recording);
  for (const uint32_t position : recording.positions) {
    if (Status status = submit(steps_[position], slot); !status.ok()) return status;
  }
  return Status();
}

}  // namespace hetero::graph
