#include "graph/cost/device_timer.h"

#include <algorithm>

namespace hetero::graph {

void DeviceTimer::begin(backend::Device& device) {
  if (device_ != &device) events_.clear();
  device_ = &device;
  used_ = 0;
  timed_.clear();
}

void DeviceTimer::before(uint32_t position, backend::Queue& queue) {
  timed_.push_back({position, record(queue), kNone});
}

void DeviceTimer::after(backend::Queue& queue) { timed_.back().end = record(queue); }

void DeviceTimer::read(std::vector<Span>& spans) const {
  if (used_ == 0) return;
  const backend::Event& origin = *events_.front();
  for (const Timed& it : timed_) {
    if (it.begin == kNone || it.end == kNone) continue;
    const Result<double> begin = device_->seconds_between(origin, *events_[it.begin]);
    const Result<double> length = device_->seconds_between(*events_[it.begin], *events_[it.end]);
    if (!begin.ok() || !length.ok()) continue;
    Span& span = spans[it.position];
    span.begin = std::max(begin.value(), 0.0);
    span.end = span.begin + std::max(length.value(), 0.0);
  }
}

size_t DeviceTimer::record(backend::Queue& queue) {
  if (used_ == events_.size()) events_.push_back(device_->create_timed_event());
  backend::Event* const event = events_[used_].get();
  return event != nullptr && queue.record(*event).ok() ? used_++ : kNone;
}

}  // namespace hetero::graph
