#include "graph/run/segments.h"

#include <cstring>

namespace hetero::graph {
namespace {

bool equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

}  // namespace

void Segments::begin_run() {
  recorder_.begin_run();
  launched_.clear();
  launches_ = 0;
  changed_ = false;
}

bool Segments::Given::is_same(std::span<const std::byte> addresses, std::span<const std::byte> numbers) {
  if (seen && bytes.size() == addresses.size() + numbers.size() &&
      equal(addresses, std::span(bytes).first(addresses.size())) &&
      equal(numbers, std::span(bytes).subspan(addresses.size()))) {
    return true;
  }
  const bool first = !seen;
  bytes.assign(addresses.begin(), addresses.end());
  bytes.insert(bytes.end(), numbers.begin(), numbers.end());
  seen = true;
  return first;
}

void Segments::launch(uint32_t position, std::span<void* const> addresses, std::span<const std::byte> numbers) {
  const LaunchRun* const run = recorder_.run_of(position);
  if (run == nullptr) return owner_.launch_alone(position);
  if (!given_[position].is_same(std::as_bytes(addresses), numbers)) {
    // The recording goes; what was held back of it comes first.
    release(run->queue);
    changed_ |= recorder_.note_change(position);
  }
  const SegmentRecorder::Recording* const recording = recorder_.at(position);
  if (recording == nullptr) return owner_.launch_alone(position);
  held_[run->queue].push_back(position);
  if (position == recording->positions.back()) release(run->queue);
}

// Launches what was held back.
void Segments::release(QueueId queue) {
  std::vector<uint32_t>& held = held_[queue];
  if (held.empty()) return;
  const SegmentRecorder::Recording& recording = *recorder_.at(held.front());
  if (held.size() == recording.positions.size() && !owner_.has_failed()) {
    if (owner_.queue_of(queue).launch_segment(*recording.segment).ok()) {
      ++launches_;
      launched_.insert(launched_.end(), held.begin(), held.end());
      held.clear();
      return;
    }
    recorder_.refuse(recording);
  }
  for (const uint32_t position : held) owner_.launch_alone(position);
  held.clear();
}

void Segments::end_run(bool succeeded) {
  if (!succeeded || changed_) return;
  recorder_.count_run();
  recorder_.record_if_settled();
}

}  // namespace hetero::graph
