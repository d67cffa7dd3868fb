#include "graph/run/segments.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

namespace hetero::graph {
namespace {

constexpr int kNever = std::numeric_limits<int>::max();

bool equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

bool is_launch(const Graph& graph, const Plan& plan, const Instruction& instruction) {
  const auto is_plain = [&](uint32_t node) { return !op_table()[graph.nodes[node].op].side_effects; };
  bool plain = instruction.is_task();
  for_each_node(plan, instruction, [&](uint32_t node) { plain = plain && is_plain(node); });
  return plain;
}

}  // namespace

// Steps first .. end of steps_, all of one run.
struct Segments::Recording {
  struct Call {
    Owner* owner;
    uint32_t position;
  };
  uint32_t first, end;
  std::vector<Call> calls = {};
  std::vector<backend::Task> tasks = {};
  std::unique_ptr<backend::Segment> segment = nullptr;
};

Segments::Segments(const Graph& graph, const Plan& plan, Owner& owner) : owner_(owner) { find_runs(graph, plan); }

Segments::~Segments() = default;

void Segments::find_runs(const Graph& graph, const Plan& plan) {
  step_of_.assign(plan.program.size(), 0);
  std::array<std::vector<uint32_t>, kMaxQueues> open;
  const auto close = [&](QueueId queue) {
    if (open[queue].size() >= kShortest) {
      const auto first = static_cast<uint32_t>(steps_.size());
      for (const uint32_t position : open[queue]) {
        steps_.push_back({.position = position, .queue = queue});
        step_of_[position] = static_cast<uint32_t>(steps_.size());
      }
      runs_.push_back({first, static_cast<uint32_t>(steps_.size())});
    }
    open[queue].clear();
  };
  for (uint32_t position = 0; position < plan.program.size(); ++position) {
    const Instruction& instruction = plan.program[position];
    if (instruction.queue == kHostQueue) {
      // What is submitted later comes after it, without an event.
      for (QueueId queue = 0; queue < kMaxQueues; ++queue) close(queue);
    } else if (is_launch(graph, plan, instruction)) {
      open[instruction.queue].push_back(position);
    } else {
      close(instruction.queue);
    }
  }
  for (QueueId queue = 0; queue < kMaxQueues; ++queue) close(queue);
}

void Segments::begin_run() {
  launched_.clear();
  launches_ = 0;
  changed_ = false;
}

// Notes what the launch is given.
bool Segments::is_same(Step& step, std::span<void* const> addresses, std::span<const std::byte> numbers) {
  const std::span<const std::byte> given = std::as_bytes(addresses);
  const bool same = step.seen && step.given.size() == given.size() + numbers.size() &&
                    equal(given, std::span(step.given).first(given.size())) &&
                    equal(numbers, std::span(step.given).subspan(given.size()));
  if (same) return true;
  step.given.assign(given.begin(), given.end());
  step.given.insert(step.given.end(), numbers.begin(), numbers.end());
  if (step.seen && !step.alone) {
    changed_ = true;
    step.alone = ++step.changes == kMostChanges;
  }
  step.seen = true;
  return false;
}

void Segments::launch(uint32_t position, std::span<void* const> addresses, std::span<const std::byte> numbers) {
  const uint32_t index = step_of_[position];
  if (index == 0) return owner_.launch_alone(position);
  Step& step = steps_[index - 1];
  const bool same = is_same(step, addresses, numbers);
  if (step.recording == nullptr) return owner_.launch_alone(position);
  Held& held = held_[step.queue];
  held.recording = step.recording;
  held.changed |= !same;
  ++held.count;
  if (index == step.recording->end) release(held);
}

// Launches what was held back.
void Segments::release(Held& held) {
  const Held all = std::exchange(held, {});
  Recording* const recording = all.recording;
  const uint32_t first = recording->first;
  const bool whole = all.count == recording->end - first;
  if (whole && !all.changed && !owner_.has_failed()) {
    if (owner_.queue_of(steps_[first].queue).launch_segment(*recording->segment).ok()) {
      ++launches_;
      for (uint32_t s = first; s < recording->end; ++s) launched_.push_back(steps_[s].position);
      return;
    }
    for (uint32_t s = first; s < recording->end; ++s) steps_[s].alone = true;
  }
  if (all.changed || steps_[first].alone) drop(recording);
  for (uint32_t s = first; s < first + all.count; ++s) owner_.launch_alone(steps_[s].position);
}

void Segments::finish_launches() {
  for (Held& held : held_) {
    if (held.recording != nullptr) release(held);
  }
}

// REQUIRES: nothing of it runs; earlier runs are over, and in this one it was not launched.
void Segments::drop(Recording* recording) {
  for (uint32_t s = recording->first; s < recording->end; ++s) steps_[s].recording = nullptr;
  std::erase_if(recorded_, [recording](const auto& kept) { return kept.get() == recording; });
}

void Segments::end_run(bool succeeded) {
  if (!succeeded) return;
  if (changed_) {
    settled_ = 0;
    record_at_ = kSettledRuns;
    return;
  }
  if (++settled_ == record_at_) record_parts();
}

void Segments::record_parts() {
  record_at_ = kNever;
  for (const Run& run : runs_) {
    uint32_t first = run.first;
    for (uint32_t s = run.first; s <= run.end; ++s) {
      if (s < run.end && !steps_[s].alone && steps_[s].recording == nullptr) continue;
      record(first, s);
      first = s + 1;
    }
  }
}

void Segments::record(uint32_t first, uint32_t end) {
  if (end < first + kShortest) return;
  auto recording = std::make_unique<Recording>(Recording{.first = first, .end = end});
  for (uint32_t s = first; s < end; ++s) recording->calls.push_back({&owner_, steps_[s].position});
  for (Recording::Call& call : recording->calls) {
    backend::Task& task = recording->tasks.emplace_back(owner_.prediction_of(call.position));
    task.run = [](void* context) {
      const auto& recorded = *static_cast<const Recording::Call*>(context);
      recorded.owner->replay(recorded.position);
    };
    task.context = &call;
  }
  Result<std::unique_ptr<backend::Segment>> segment = owner_.record(steps_[first].queue, recording->tasks);
  if (segment.ok()) {
    if (segment.value() == nullptr) {
      record_at_ = 2 * settled_;
      return;
    }
    recording->segment = std::move(segment.value());
    for (uint32_t s = first; s < end; ++s) steps_[s].recording = recording.get();
    recorded_.push_back(std::move(recording));
    ++recordings_;
    return;
  }
  const uint32_t middle = first + (end - first) / 2;
  if (end - first < 2 * kShortest) {
    for (uint32_t s = first; s < end; ++s) steps_[s].alone = true;
    return;
  }
  record(first, middle);
  record(middle, end);
}

}  // namespace hetero::graph
