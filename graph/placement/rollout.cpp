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
    states_[b] = {value.updated_by == Value::kNoTask ? value.valid_on : uint8_t{0}, false, {}, {}};
  }
  std::ranges::fill(device_, 0.0);
  std::ranges::fill(link_, 0.0);
  std::ranges::fill(urgent_, 0.0);
  last_ = 0;
  shares_ = 0;
}

double Rollout::finish(uint32_t t, DeviceIndex device) const {
  const Task& task = tasks_.tasks[t];
  const DeviceIndex other = device ^ 1;
  double begin = device_[device];
  double shares = 0;
  double links[] = {link_[device], urgent_[device]};
  for (const Use* use = tasks_.begin(task); use != tasks_.end(task); ++use) {
    const State& state = states_[use->buffer];
    const bool copied = use->reads && state.valid_on != 0 && (state.valid_on >> device & 1) == 0;
    if (copied && is_amortized(*use, device)) {
      shares += tasks_.values[use->buffer].copy_seconds[device];
    } else if (copied) {
      double& link = links[is_urgent(*use)];
      link = std::max({link, state.written[other], state.touched[device]}) +
             tasks_.values[use->buffer].copy_seconds[device];
      begin = std::max(begin, link);
    } else {
      begin = std::max(begin, use->writes ? state.touched[device] : state.written[device]);
    }
  }
  return begin + task.seconds[device] + shares;
}

void Rollout::place(uint32_t t, DeviceIndex device) {
  const Task& task = tasks_.tasks[t];
  const DeviceIndex other = device ^ 1;
  const auto here = static_cast<uint8_t>(1u << device);
  double begin = device_[device];
  const Use* const first = tasks_.begin(task);
  const Use* const end = tasks_.end(task);
  for (const Use* use = first; use != end; ++use) {
    State& state = states_[use->buffer];
    if (use->reads && (state.valid_on & here) == 0) {
      if (is_amortized(*use, device)) {
        shares_ += tasks_.values[use->buffer].copy_seconds[device];
      } else if (state.valid_on != 0) {
        const bool urgent = is_urgent(*use);
        double& link = urgent ? urgent_[device] : link_[device];
        const double seconds = tasks_.values[use->buffer].copy_seconds[device];
        const double start = std::max({link, state.written[other], state.touched[device]});
        link = start + seconds;
        if (urgent && link_[device] > start) link_[device] += seconds;
        state.written[device] = state.touched[device] = link;
        state.touched[other] = std::max(state.touched[other], link);
        last_ = std::max({last_, link, link_[device]});
      }
      state.valid_on |= here;
    }
    begin = std::max(begin, use->writes ? state.touched[device] : state.written[device]);
  }
  const double done = begin + task.seconds[device];
  device_[device] = done;
  last_ = std::max(last_, done);
  for (const Use* use = first; use != end; ++use) {
    State& state = states_[use->buffer];
    state.touched[device] = done;
    if (!use->writes) continue;
    state.written[device] = done;
    state.valid_on = here;
    state.made = true;
  }
}

}  // namespace hetero::graph
