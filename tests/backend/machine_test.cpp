#include "backend/machine.h"

#include <cstring>
#include <string>
#include <vector>

#include "backend/fault/fault_device.h"
#include "backend/registry/registry.h"
#include "backend/sim/sim_device.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

using SimMachine = std::vector<std::unique_ptr<SimDevice>>;

SimMachine make(const SimOptions& options, size_t count) {
  Result<SimMachine> made = SimDevice::create_machine(options, count);
  REQUIRE(made.ok());
  return std::move(made.value());
}

constexpr size_t kBytes = 1024;

// A block with these bytes, written by the device itself.
Block filled(SimDevice& device, unsigned char value) {
  Result<Block> block = device.allocate(kBytes);
  REQUIRE(block.ok());
  const std::vector<unsigned char> bytes(kBytes, value);
  REQUIRE(device.queue(QueueKind::kHostToDevice).copy(block.value().data(), bytes.data(), kBytes).ok());
  REQUIRE(device.synchronize().ok());
  return std::move(block.value());
}

std::vector<unsigned char> read(SimDevice& device, const Block& block) {
  std::vector<unsigned char> bytes(block.bytes());
  REQUIRE(device.queue(QueueKind::kDeviceToHost).copy(bytes.data(), block.data(), bytes.size()).ok());
  REQUIRE(device.synchronize().ok());
  return bytes;
}

TEST_CASE("machine: it is the CPU alone at first") {
  Machine machine;
  CHECK(machine.size() == 1);
  CHECK_FALSE(machine.has_accelerator());
  CHECK_FALSE(machine.link(kCpu, kCpu).has_value());
  CHECK_FALSE(machine.link(kCpu, 1).has_value());
}

TEST_CASE("machine: a link says how fast it is and which queue carries its copies") {
  Machine machine;
  const DeviceIndex first =
      machine.add({.rates = {.copy_bandwidth = 20, .readback_bandwidth = 10, .copy_latency = 0.5}});
  const DeviceIndex second = machine.add({.rates = {.copy_bandwidth = 30}});
  machine.connect(first, second, {.bandwidth = 100, .latency = 0.25});

  const auto in = machine.link(kCpu, first);
  REQUIRE(in.has_value());
  CHECK(in->bandwidth == 20);
  CHECK(in->latency == 0.5);
  CHECK(in->owner == first);
  CHECK(in->queue == QueueKind::kHostToDevice);
  CHECK(in->urgent == QueueKind::kUrgentToDevice);

  const auto out = machine.link(first, kCpu);
  REQUIRE(out.has_value());
  CHECK(out->bandwidth == 10);
  CHECK(out->queue == QueueKind::kDeviceToHost);
  CHECK(machine.link(second, kCpu)->bandwidth == 30);

  const auto across = machine.link(first, second);
  REQUIRE(across.has_value());
  CHECK(across->bandwidth == 100);
  CHECK(across->latency == 0.25);
  CHECK(across->owner == second);
  CHECK(across->queue == QueueKind::kFromPeer);
  CHECK_FALSE(machine.link(second, first).has_value());

  CHECK(machine.fastest_link(only(kCpu) | only(first), second)->from == first);
  CHECK(machine.fastest_link(only(kCpu), second)->from == kCpu);
  CHECK_FALSE(machine.fastest_link(only(second), first).has_value());
}

TEST_CASE("sim: accelerators of one machine copy straight from each other where there is a link") {
  SimMachine sims = make({.links = {{.from = 0, .to = 1, .link = {.bandwidth = 1024, .latency = 0.5}}}}, 3);
  const Block source = filled(*sims[0], 7);
  const Block target = filled(*sims[1], 1);
  for (const auto& sim : sims) sim->reset_clock();

  CHECK(sims[1]->queue(QueueKind::kFromPeer).copy(target.data(), source.data(), kBytes).ok());
  REQUIRE(sims[1]->synchronize().ok());
  CHECK(sims[1]->queue_seconds(QueueKind::kFromPeer) == 0.5 + 1);
  CHECK(read(*sims[1], target) == std::vector<unsigned char>(kBytes, 7));
  CHECK(sims[1]->counters().copies_from_peers == 1);
  CHECK(sims[1]->counters().bytes_from_peers == kBytes);
  CHECK(sims[0]->counters().copies_from_peers == 0);

  // Not the other way, not by another device's queue, and not where there is no link.
  CHECK_FALSE(sims[0]->queue(QueueKind::kFromPeer).copy(source.data(), target.data(), kBytes).ok());
  CHECK_FALSE(sims[0]->queue(QueueKind::kFromPeer).copy(target.data(), source.data(), kBytes).ok());
  const Block third = filled(*sims[2], 2);
  CHECK_FALSE(sims[2]->queue(QueueKind::kFromPeer).copy(third.data(), source.data(), kBytes).ok());
  CHECK(read(*sims[2], third) == std::vector<unsigned char>(kBytes, 2));
}

TEST_CASE("sim: accelerators of one machine have one host, and events of one order queues of another") {
  SimMachine sims = make({}, 2);
  sims[0]->advance_host(1);
  CHECK(sims[1]->host_seconds() == 1);
  const auto nothing = [](void*) {};
  REQUIRE(sims[0]->queue(QueueKind::kCompute).launch({.run = nothing, .context = nullptr, .seconds = 2}).ok());
  const std::unique_ptr<Event> done = sims[0]->create_event();
  REQUIRE(sims[0]->queue(QueueKind::kCompute).record(*done).ok());
  // Each computes by itself; only what waits comes after.
  REQUIRE(sims[1]->queue(QueueKind::kCompute).launch({.run = nothing, .context = nullptr, .seconds = 1}).ok());
  CHECK(sims[1]->queue_seconds(QueueKind::kCompute) == 2);
  REQUIRE(sims[1]->queue(QueueKind::kFromPeer).wait(*done).ok());
  CHECK(sims[1]->queue_seconds(QueueKind::kFromPeer) == 3);
  REQUIRE(sims[1]->synchronize().ok());
  CHECK(sims[0]->host_seconds() == 3);
}

TEST_CASE("sim: links that make no sense are refused") {
  CHECK_FALSE(SimDevice::create_machine({.links = {{.from = 1, .to = 1, .link = {}}}}, 2).ok());
  CHECK_FALSE(SimDevice::create_machine({.links = {{.from = 0, .to = 1, .link = {.bandwidth = -1}}}}, 2).ok());
}

TEST_CASE("registry: \"sim:3\" is three accelerators, and a machine describes them with their links") {
  set_sim_options({.capacity_bytes = size_t{1} << 20});
  REQUIRE(choose_accelerator("sim:3").ok());
  const Devices devices = all_devices();
  for (DeviceIndex d = 1; d <= 3; ++d) {
    REQUIRE(devices[d] != nullptr);
    CHECK(devices[d]->name() == "sim:" + std::to_string(d - 1));
    CHECK(device_at(d) == devices[d]);
  }
  CHECK(devices[4] == nullptr);
  CHECK(accelerator() == devices[1]);

  const Machine machine = describe(devices);
  CHECK(machine.size() == 4);
  CHECK(machine[2].bytes == 1 << 20);
  CHECK(machine[2].device == devices[2]);
  CHECK(machine.link(1, 2)->bandwidth == SimOptions::kNeighbourBandwidth);
  CHECK(machine.link(3, 2).has_value());
  CHECK_FALSE(machine.link(1, 3).has_value());

  // The same ones again, with faults before one of them.
  REQUIRE(choose_accelerator("none").ok());
  CHECK(describe(all_devices()).size() == 1);
  REQUIRE(choose_accelerator("sim:3").ok());
  CHECK(all_devices() == devices);
  FaultDevice* const faulty = interpose_faults(2);
  CHECK(device_at(2) == faulty);
  CHECK(describe(all_devices()).link(1, 2).has_value());
  CHECK(describe(all_devices()).link(2, 1).has_value());
  remove_faults();
  CHECK(device_at(2) == devices[2]);

  for (const char* const name : {"sim:0", "sim:8", "sim:", "sim:x", "sim:2x", "cuda:2x"}) {
    CHECK(choose_accelerator(name).error_class() == ErrorClass::kUsage);
  }
  set_sim_options({});
  REQUIRE(choose_accelerator("none").ok());
}

}  // namespace
}  // namespace hetero::backend
