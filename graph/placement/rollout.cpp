#include "graph/placement/rollout.h"

#include <algorithm>

namespace hetero::graph {

using backend::DeviceIndex;

double Rollout::run(std::span<const DeviceIndex> devices, std::span<const uint32_t> order) {
  begin();
  for (size_t b = 0; b < states_.size(); ++b) {
    const Value& value = tasks_.values[b];
    if (value.updated_by == Value::kNoTask) continue;
    const DeviceIndex device = devices[value.updated_by];
    states_[b].valid_on = tasks_.begins_on(value, devices);
    if ((value.valid_on & states_[b].valid_on) == 0) shares_ += value.copy_seconds[device] / kAmortized;
  }
  for (const uint32_t t : order) place(t, devices[t]);
  return seconds();
}

void Rollout::begin() {
  states_.resize(tasks_.values.size());
  for (size_t b = 0; b < states_.size(); ++b) {
    const Value& value = tasks_.values[b];
    states_[b] = {value.updated_by == Value::kNoTask ? value.valid_on : backend::DeviceSet{0}, false};
  }
  times_.assign(states_.size() * tasks_.device_count, {});
  std::ranges::fill(device_, 0.0);
  std::ranges::fill(link_, 0.0);
  std::ranges::fill(urgent_, 0.0);
  last_ = 0;
  shares_ = 0;
}

double Rollout::finish(uint32_t t, DeviceIndex device) const {
  const Task& task = tasks_.tasks[t];
  double begin = device_[device];
  double shares = 0;
  double links[] = {link_[device], urgent_[device]};
  for (const Use* use = tasks_.begin(task); use != tasks_.end(task); ++use) {
    const State& state = states_[use->buffer];
    const Times& here = times_of(use->buffer, device);
    const bool copied = use->reads && state.valid_on != 0 && !backend::contains(state.valid_on, device);
    if (copied && is_amortized(*use, device)) {
      shares += tasks_.values[use->buffer].copy_seconds[device];
    } else if (copied) {
      double& link = links[is_urgent(*use)];
      link = std::max({link, times_of(use->buffer, backend::first_of(state.valid_on)).written, here.touched}) +
             tasks_.values[use->buffer].copy_seconds[device];
      begin = std::max(begin, link);
    } else {
      begin = std::max(begin, use->writes ? here.touched : here.written);
    }
  }
  return begin + task.seconds[device] + shares;
}

void Rollout::place(uint32_t t, DeviceIndex device) {
  const Task& task = tasks_.tasks[t];
  const backend::DeviceSet here = backend::only(device);
  double begin = device_[device];
  const Use* const first = tasks_.begin(task);
  const Use* const end = tasks_.end(task);
  for (const Use* use = first; use != end; ++use) {
    State& state = states_[use->buffer];
    Times& times = times_of(use->buffer, device);
    if (use->reads && (state.valid_on & here) == 0) {
      if (is_amortized(*use, device)) {
        shares_ += tasks_.values[use->buffer].copy_seconds[device];
      } else if (state.valid_on != 0) {
        const bool urgent = is_urgent(*use);
        double& link = urgent ? urgent_[device] : link_[device];
        const double seconds = tasks_.values[use->buffer].copy_seconds[device];
        Times& source = times_of(use->buffer, backend::first_of(state.valid_on));
        const double start = std::max({link, source.written, times.touched});
        link = start + seconds;
        if (urgent && link_[device] > start) link_[device] += seconds;
        times.written = times.touched = link;
        source.touched = std::max(source.touched, link);
        last_ = std::max({last_, link, link_[device]});
      }
      state.valid_on |= here;
    }
    begin = std::max(begin, use->writes ? times.touched : times.written);
  }
  const double done = begin + task.seconds[device];
  device_[device] = done;
  last_ = std::max(last_, done);
  for (const Use* use = first; use != end; ++use) {
    State& state = states_[use->buffer];
    Times& times = times_of(use->buffer, device);
    times.touched = done;
    if (!use->writes) continue;
    times.written = done;
    state.valid_on = here;
    state.made = true;
  }
}

}  // namespace hetero::graph
