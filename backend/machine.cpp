#include "backend/machine.h"

namespace hetero::backend {

std::optional<Link> Machine::link(DeviceIndex from, DeviceIndex to) const {
  if (from == to || !has(from) || !has(to)) return std::nullopt;
  if (from == kCpu) {
    const Capabilities& rates = devices_[to].rates;
    return Link{.from = from,
                .to = to,
                .bandwidth = rates.copy_bandwidth,
                .latency = rates.copy_latency,
                .owner = to,
                .queue = QueueKind::kHostToDevice,
                .urgent = QueueKind::kUrgentToDevice};
  }
  if (to == kCpu) {
    const Capabilities& rates = devices_[from].rates;
    return Link{.from = from,
                .to = to,
                .bandwidth = rates.readback_bandwidth > 0 ? rates.readback_bandwidth : rates.copy_bandwidth,
                .latency = rates.copy_latency,
                .owner = from,
                .queue = QueueKind::kDeviceToHost,
                .urgent = QueueKind::kUrgentToHost};
  }
  for (const Peers& peers : peers_) {
    if (peers.from != from || peers.to != to) continue;
    return Link{.from = from,
                .to = to,
                .bandwidth = peers.link.bandwidth,
                .latency = peers.link.latency,
                .owner = to,
                .queue = QueueKind::kFromPeer,
                .urgent = QueueKind::kFromPeer};
  }
  return std::nullopt;
}

std::optional<Link> Machine::fastest_link(DeviceSet from, DeviceIndex to) const {
  std::optional<Link> fastest;
  for (DeviceIndex source = 0; source < size(); ++source) {
    if (!contains(from, source)) continue;
    const std::optional<Link> found = link(source, to);
    if (found && (!fastest || found->bandwidth > fastest->bandwidth)) fastest = found;
  }
  return fastest;
}

Machine describe(const Devices& devices) {
  Machine machine;
  machine.cpu() = {.rates = devices[kCpu]->capabilities(), .device = devices[kCpu]};
  for (DeviceIndex d = 1; d < kMostDevices && devices[d] != nullptr; ++d) {
    const auto limit = static_cast<uint64_t>(devices[d]->memory_stats().limit_bytes);
    machine.add({.rates = devices[d]->capabilities(), .bytes = limit, .device = devices[d]});
  }
  for (DeviceIndex from = 1; from < machine.size(); ++from) {
    for (DeviceIndex to = 1; to < machine.size(); ++to) {
      if (from == to) continue;
      if (const auto link = devices[to]->link_from(*devices[from])) machine.connect(from, to, *link);
    }
  }
  return machine;
}

}  // namespace hetero::backend
