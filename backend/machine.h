// Machine: the devices, memories and links of a machine, as data.
//
// Planning, simulating and verifying loop over a Machine and never count devices themselves. It
// describes the devices of this process (`describe`) or any others: a plan can be made for a
// machine that does not exist.
//
//   Machine machine;                                  // the CPU alone
//   const DeviceIndex first = machine.add({.rates = rates, .bytes = 1 << 30});
//   const DeviceIndex second = machine.add({.rates = rates});
//   machine.connect(first, second, {.bandwidth = 50e9});
//   machine.link(first, second)->queue;               // which queue carries copies that go that
//                                                     way
//   machine.link(kCpu, second);                       // every accelerator has links with the host
//
// Invariant: device 0 is the CPU. Each device has one memory.
// Thread safety: plain data.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "backend/device/device.h"

namespace hetero::backend {

struct DeviceDescription {
  Capabilities rates;
  // The bytes of a program's buffers that its memory may hold, including those that are there
  // already; 0 for unlimited.
  uint64_t bytes = 0;
  // If not null, it says which kernels it can run.
  const Device* device = nullptr;
};

// One way from one memory to another.
struct Link {
  DeviceIndex from = kCpu;
  DeviceIndex to = kCpu;
  double bandwidth = 0;  // bytes per second; 0 when unknown
  double latency = 0;    // seconds for each copy
  // Copies in this direction are submitted to these queues of this device: one for large copies,
  // one for those that the caller waits for. They are the same if the link has no urgent queue.
  DeviceIndex owner = kCpu;
  QueueKind queue = QueueKind::kCompute;
  QueueKind urgent = QueueKind::kCompute;
};

class Machine {
 public:
  DeviceIndex size() const { return size_; }
  bool has(DeviceIndex device) const { return device < size_; }
  bool has_accelerator() const { return size_ > 1; }
  DeviceDescription& operator[](DeviceIndex device) { return devices_[device]; }
  const DeviceDescription& operator[](DeviceIndex device) const { return devices_[device]; }
  DeviceDescription& cpu() { return devices_[kCpu]; }
  const DeviceDescription& cpu() const { return devices_[kCpu]; }

  // REQUIRES: size() < kMostDevices.
  DeviceIndex add(DeviceDescription device) {
    devices_[size_] = device;
    return size_++;
  }
  // Copies go straight from one accelerator to the other, one way.
  void connect(DeviceIndex from, DeviceIndex to, PeerLink link) { peers_.push_back({from, to, link}); }

  // None where bytes that go that way have to go by way of the host.
  std::optional<Link> link(DeviceIndex from, DeviceIndex to) const;
  // The fastest link to a device from one of these; none where no link leads there.
  std::optional<Link> fastest_link(DeviceSet from, DeviceIndex to) const;

 private:
  struct Peers {
    DeviceIndex from;
    DeviceIndex to;
    PeerLink link;
  };

  DeviceIndex size_ = 1;
  // In place: machines are copied for each plan.
  std::array<DeviceDescription, kMostDevices> devices_;
  std::vector<Peers> peers_;
};

// The machine that these devices make: their rates, caps and links.
Machine describe(const Devices& devices);

}  // namespace hetero::backend
