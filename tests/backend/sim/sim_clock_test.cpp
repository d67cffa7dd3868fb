// The virtual clock of SimDevice. Figures are sums of powers of two, so that equality is exact.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/base/parallel.h"
#include "backend/cpu/cpu_device.h"
#include "backend/device/piece_copies.h"
#include "backend/fault/fault_device.h"
#include "backend/sim/sim_device.h"
#include "tests/backend/sim/sim_fixture.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

using namespace testing;

constexpr SimOptions kClockOptions = {.capacity_bytes = kMiB,
                                      .memory_bandwidth = 4096,
                                      .h2d_bandwidth = 1024,
                                      .d2h_bandwidth = 512,
                                      .copy_latency = 0.25};

Task lasting(double seconds) {
  return {[](void*) {}, nullptr, seconds};
}

// A SimDevice whose queues take tasks and copies by their durations alone.
struct ClockedDevice {
  explicit ClockedDevice(const SimOptions& options = kClockOptions)
      : device(make_sim(options)), written(take(*device, 4096)), read(take(*device, 4096)) {}
  ~ClockedDevice() { static_cast<void>(device->synchronize()); }

  void run(QueueKind kind, double seconds) { REQUIRE(device->queue(kind).launch(lasting(seconds)).ok()); }
  void run(double seconds) { run(QueueKind::kCompute, seconds); }
  void copy_in(size_t bytes) {
    REQUIRE(device->queue(QueueKind::kHostToDevice).copy(written.data(), host.data(), bytes).ok());
  }
  void copy_out(size_t bytes) {
    REQUIRE(device->queue(QueueKind::kDeviceToHost).copy(result.data(), read.data(), bytes).ok());
  }
  std::unique_ptr<Event> record(QueueKind kind) {
    auto event = device->create_event();
    REQUIRE(device->queue(kind).record(*event).ok());
    return event;
  }
  void wait(QueueKind kind, Event& event) { REQUIRE(device->queue(kind).wait(event).ok()); }
  // Of the queues that are not urgent, and of the host.
  std::array<double, 4> clocks() const {
    return {device->queue_seconds(QueueKind::kCompute), device->queue_seconds(QueueKind::kHostToDevice),
            device->queue_seconds(QueueKind::kDeviceToHost), device->host_seconds()};
  }

  std::unique_ptr<SimDevice> device;
  Block written;  // copies in and out use other bytes, because most tests do not order them
  Block read;
  std::array<char, 4096> host = {};
  std::array<char, 4096> result = {};
};

using Clocks = std::array<double, 4>;
constexpr QueueKind kIn = QueueKind::kHostToDevice;
constexpr QueueKind kOut = QueueKind::kDeviceToHost;
constexpr QueueKind kCompute = QueueKind::kCompute;

TEST_CASE("copies and compute overlap in virtual time, each at its own rate") {
  ClockedDevice sim;
  sim.run(2);
  sim.copy_in(1024);
  sim.copy_out(1024);
  sim.run(0.5);
  REQUIRE(sim.clocks() == Clocks{2.5, 1.25, 2.25, 0});
  REQUIRE(sim.device->synchronize().ok());
  REQUIRE(sim.clocks() == Clocks{2.5, 1.25, 2.25, 2.5});
}

TEST_CASE("a batch of copies pays the link's latency once, and is one span") {
  ClockedDevice sim;
  sim.device->record_spans(true);
  auto* const to = static_cast<char*>(sim.written.data());
  const CopyRange ranges[] = {{to, sim.host.data(), 256},
                              {to + 1024, sim.host.data() + 512, 0},
                              {to + 1024, sim.host.data() + 1024, 512},
                              {to + 2048, sim.host.data() + 2048, 256}};
  for (size_t i = 0; i < sim.host.size(); ++i) sim.host[i] = static_cast<char>(i / 256);
  REQUIRE(sim.device->queue(kIn).copy_batch(ranges).ok());
  REQUIRE(sim.device->queue_seconds(kIn) == 0.25 + 1);
  REQUIRE(sim.device->spans() == std::vector<SimSpan>{{kIn, true, 0, 1.25, 1024}});
  REQUIRE(sim.device->counters().copies_in == 3);
  REQUIRE(sim.device->counters().copy_batches == 1);
  REQUIRE(sim.device->counters().bytes_in == 1024);
  REQUIRE(sim.device->synchronize().ok());
  for (const CopyRange& range : ranges) {
    const auto first = static_cast<unsigned char>(*static_cast<const char*>(range.source));
    if (range.bytes != 0) REQUIRE(byte_at(*sim.device, range.destination) == first);
  }
}

TEST_CASE("many small pieces are one launch that crosses the link, each way") {
  SimOptions options = kClockOptions;
  options.launch_latency = 0.5;
  ClockedDevice sim(options);
  constexpr size_t kCount = 32, kBytes = 16;  // 512 bytes in all
  auto* const there = static_cast<char*>(sim.written.data());
  std::vector<char> back(kCount * kBytes);
  std::vector<CopyRange> in, out;
  for (size_t i = 0; i < sim.host.size(); ++i) sim.host[i] = static_cast<char>(i);
  for (size_t i = 0; i < kCount; ++i) {
    char* const place = there + (i * 5 % kCount) * 32;
    in.push_back({place, sim.host.data() + i * kBytes, kBytes});
    out.push_back({back.data() + i * kBytes, place, kBytes});
  }
  REQUIRE(copy_scattered(sim.device->queue(kIn), in).value());
  REQUIRE(sim.device->queue(kIn).synchronize().ok());
  CHECK(sim.device->queue_seconds(kIn) == 0.5 + 0.5);  // the launch, and 512 bytes of the link
  CHECK(sim.device->counters().launches == 1);
  CHECK(sim.device->counters().copies_in == kCount);
  CHECK(sim.device->counters().copy_batches == 1);
  CHECK(sim.device->counters().bytes_in == 512);
  REQUIRE(copy_scattered(sim.device->queue(kOut), out).value());
  REQUIRE(sim.device->queue(kOut).synchronize().ok());
  CHECK(sim.device->counters().launches == 2);
  CHECK(std::equal(back.begin(), back.end(), sim.host.begin()));
}

TEST_CASE("what is no work for a kernel between the host and the device is a batch of copies") {
  ClockedDevice sim;
  auto* const there = static_cast<char*>(sim.written.data());
  std::vector<CopyRange> few, within, both;
  for (size_t i = 0; i < kLeastPieces; ++i) {
    if (i > 0) few.push_back({there + i * 32, sim.host.data() + i * 16, 16});
    within.push_back({there + i * 32 + 16, there + i * 32, 16});
    both.push_back(i % 2 == 0 ? CopyRange{there + i * 32, sim.host.data() + i * 16, 16}
                              : CopyRange{sim.result.data() + i * 16, there + i * 32, 16});
  }
  Queue& queue = sim.device->queue(kIn);
  CHECK_FALSE(copy_scattered(queue, few).value());
  CHECK_FALSE(copy_scattered(queue, within).value());
  CHECK_FALSE(copy_scattered(queue, {}).value());
  CHECK(copy_scattered(queue, both).status().error_class() == ErrorClass::kUsage);
  REQUIRE(queue.synchronize().ok());
  CHECK(sim.device->counters().launches == 0);
  // One that is large makes them large on average.
  few.push_back({there, sim.host.data(), 16});
  CHECK(is_scattered(few));
  few.back().bytes = kMostPieceBytes * kLeastPieces + 1;
  CHECK_FALSE(is_scattered(few));
}

TEST_CASE("a batch of copies that go different ways is refused, and nothing of it is copied") {
  ClockedDevice sim;
  const CopyRange ranges[] = {{sim.written.data(), sim.host.data(), 64}, {sim.result.data(), sim.read.data(), 64}};
  REQUIRE(sim.device->queue(kIn).copy_batch(ranges).error_class() == ErrorClass::kUsage);
  REQUIRE(sim.device->counters().copies_in == 0);
  REQUIRE(sim.device->queue_seconds(kIn) == 0);
}

TEST_CASE("an urgent copy begins at once, and puts off the other copies of its direction") {
  ClockedDevice sim;
  sim.copy_in(1024);
  sim.copy_out(1024);
  std::array<char, 256> small = {};
  std::array<char, 256> small_result = {};
  Block other = take(*sim.device, 4096);
  sim.device->record_spans(true);
  REQUIRE(sim.device->queue(QueueKind::kUrgentToDevice).copy(other.data(), small.data(), 256).ok());
  REQUIRE(sim.device->queue_seconds(QueueKind::kUrgentToDevice) == 0.5);
  REQUIRE(sim.clocks() == Clocks{0, 1.75, 2.25, 0});
  REQUIRE(sim.device->queue(QueueKind::kUrgentToHost).copy(small_result.data(), sim.read.data(), 256).ok());
  REQUIRE(sim.device->queue_seconds(QueueKind::kUrgentToHost) == 0.75);
  REQUIRE(sim.clocks() == Clocks{0, 1.75, 3, 0});
  // There is nothing to put off any more.
  sim.device->advance_host(4);
  REQUIRE(sim.device->queue(QueueKind::kUrgentToDevice).copy(other.data(), small.data(), 256).ok());
  REQUIRE(sim.device->queue_seconds(QueueKind::kUrgentToDevice) == 4.5);
  REQUIRE(sim.device->queue_seconds(kIn) == 1.75);
  REQUIRE(sim.device->spans().size() == 3);
  REQUIRE(sim.device->synchronize().ok());
}

TEST_CASE("small tasks of several compute queues share the device, and large ones take turns") {
  ClockedDevice sim;
  const auto run = [&](QueueKind kind, double seconds, double utilization) {
    Task task = lasting(seconds);
    task.utilization = utilization;
    REQUIRE(sim.device->queue(kind).launch(task).ok());
  };
  const auto done = [&](QueueKind kind) { return sim.device->queue_seconds(kind); };
  run(kCompute, 4, 0.25);
  run(QueueKind::kCompute2, 4, 0.5);
  REQUIRE(done(kCompute) == 4);
  REQUIRE(done(QueueKind::kCompute2) == 4);
  // A quarter is left for it, and then everything.
  run(QueueKind::kCompute3, 2, 1);
  REQUIRE(done(QueueKind::kCompute3) == 5);
  // Behind that.
  run(kCompute, 1, 0.5);
  REQUIRE(done(kCompute) == 6);
  // What does not say how much it needs needs everything.
  sim.device->advance_host(8);
  sim.run(1);
  sim.run(QueueKind::kCompute4, 1);
  REQUIRE(done(kCompute) == 9);
  REQUIRE(done(QueueKind::kCompute4) == 10);
  REQUIRE(sim.device->synchronize().ok());
  REQUIRE(sim.device->host_seconds() == 10);
}

TEST_CASE("a segment runs its tasks in order, as often as it is launched, for one launch's latency") {
  constexpr double kLaunch = 1e-3;
  auto device = make_sim({.capacity_bytes = 64 * kMiB, .launch_latency = kLaunch});
  std::vector<int> order;
  const auto note = [&](int n) { return [&order, n] { order.push_back(n); }; };
  auto first = note(1), second = note(2), third = note(3);
  std::vector<Task> tasks{task_of(first), task_of(second), task_of(third)};
  for (Task& task : tasks) task.seconds = 3 * kLaunch;
  tasks.back().seconds = kLaunch / 2;  // less than a launch
  Queue& compute = device->queue(QueueKind::kCompute);
  Result<std::unique_ptr<Segment>> segment = compute.record_segment(tasks);
  REQUIRE(segment.ok());
  REQUIRE(compute.synchronize().ok());
  REQUIRE(order.empty());
  REQUIRE(device->queue_seconds(QueueKind::kCompute) == 0);
  for (int i = 0; i < 2; ++i) REQUIRE(compute.launch_segment(*segment.value()).ok());
  REQUIRE(compute.synchronize().ok());
  REQUIRE(order == std::vector<int>{1, 2, 3, 1, 2, 3});
  REQUIRE(device->queue_seconds(QueueKind::kCompute) == Approx(2 * (3 + 2) * kLaunch));
  REQUIRE(device->counters().launches == 2);
  const Status elsewhere = device->queue(QueueKind::kCompute2).launch_segment(*segment.value());
  REQUIRE(elsewhere.error_class() == ErrorClass::kUsage);
  REQUIRE(elsewhere.message() == "sim: a queue can launch only segments that it recorded");
}

TEST_CASE("tasks of a segment keep the device as busy as they do alone") {
  constexpr double kLaunch = 1e-3;
  auto device = make_sim({.capacity_bytes = 64 * kMiB, .launch_latency = kLaunch});
  const auto nothing = [](void*) {};
  // Each has work for all of the device for as long as a launch takes.
  const std::vector<Task> tasks(4, Task{nothing, nullptr, 2 * kLaunch, 0.5});
  std::vector<std::unique_ptr<Segment>> segments;
  for (int n = 0; n < 2; ++n) {
    Result<std::unique_ptr<Segment>> segment = device->queue(compute_queue(n)).record_segment(tasks);
    REQUIRE(segment.ok());
    segments.push_back(std::move(segment.value()));
    REQUIRE(device->queue(compute_queue(n)).launch_segment(*segments.back()).ok());
  }
  // The first goes first: its launch, spread over the first task, and the work of four. The second
  // has what that left, and then all.
  REQUIRE(device->queue_seconds(QueueKind::kCompute) == Approx(5 * kLaunch));
  REQUIRE(device->queue_seconds(QueueKind::kCompute2) == Approx(8 * kLaunch));
  REQUIRE(device->synchronize().ok());
}

TEST_CASE("a copy within the device takes its time from the memory bandwidth") {
  ClockedDevice sim;
  Block other = take(*sim.device, 4096);
  REQUIRE(sim.device->queue(kCompute).copy(other.data(), sim.read.data(), 4096).ok());
  REQUIRE(sim.device->queue_seconds(kCompute) == 2.25);
  REQUIRE(sim.device->synchronize().ok());
}

TEST_CASE("a bandwidth of 0 leaves only the latency") {
  ClockedDevice sim({.capacity_bytes = kMiB, .h2d_bandwidth = 0, .copy_latency = 0.5});
  sim.copy_in(4096);
  REQUIRE(sim.device->queue_seconds(kIn) == 0.5);
}

TEST_CASE("a wait raises a queue's virtual time to that of the record, and not beyond") {
  ClockedDevice sim;
  sim.copy_in(1024);
  const auto copied = sim.record(kIn);
  sim.copy_in(1024);  // after the record, so not waited for
  sim.wait(kCompute, *copied);
  sim.run(1);
  REQUIRE(sim.device->queue_seconds(kCompute) == 2.25);
  sim.wait(kCompute, *copied);  // in the past by now
  REQUIRE(sim.device->queue_seconds(kCompute) == 2.25);
}

TEST_CASE("a wait for a record that is really done counts like any other, and asking moves no clock") {
  ClockedDevice sim;
  sim.copy_in(1024);
  const auto copied = sim.record(kIn);
  while (!copied->query()) std::this_thread::yield();
  REQUIRE(sim.device->host_seconds() == 0);
  sim.wait(kCompute, *copied);
  sim.run(1);
  REQUIRE(sim.device->queue_seconds(kCompute) == 2.25);
}

TEST_CASE("a virtual wait captures the last record at the time of the call") {
  ClockedDevice sim;
  const auto event = sim.device->create_event();
  sim.wait(kOut, *event);  // never recorded
  sim.run(1);
  REQUIRE(sim.device->queue(kCompute).record(*event).ok());
  sim.wait(kIn, *event);
  sim.run(4);
  REQUIRE(sim.device->queue(kCompute).record(*event).ok());
  sim.wait(kOut, *event);
  REQUIRE(sim.clocks() == Clocks{5, 1, 5, 0});
}

TEST_CASE("the host's own work delays what it submits later, and waiting raises its clock") {
  ClockedDevice sim;
  sim.run(1);
  sim.device->advance_host(3);
  sim.run(1);  // begins at 3
  const auto ran = sim.record(kCompute);
  sim.run(8);
  sim.copy_in(1024);  // begins at 3 too
  REQUIRE(sim.clocks() == Clocks{12, 4.25, 0, 3});
  REQUIRE(ran->synchronize().ok());
  REQUIRE(sim.device->host_seconds() == 4);
  REQUIRE(sim.device->queue(kIn).synchronize().ok());
  REQUIRE(sim.device->host_seconds() == 4.25);
  sim.copy_out(512);  // begins when the host comes to it
  REQUIRE(sim.device->queue_seconds(kOut) == 5.5);
  REQUIRE(ran->synchronize().ok());  // in the past
  REQUIRE(sim.device->host_seconds() == 4.25);
}

TEST_CASE("another device's queue that waits for an event takes the host's time along") {
  ClockedDevice sim;
  CpuDevice cpu;
  sim.run(2);
  const auto ran = sim.record(kCompute);
  REQUIRE(cpu.queue(kCompute).wait(*ran).ok());
  REQUIRE(sim.device->host_seconds() == 2);
}

TEST_CASE("fork and join end with the longer branch, and spans tell all of it") {
  ClockedDevice sim;
  sim.device->record_spans(true);
  sim.run(1);
  const auto forked = sim.record(kCompute);
  sim.wait(kIn, *forked);
  sim.wait(kOut, *forked);
  sim.copy_in(1024);
  sim.run(kOut, 4);
  const auto short_branch = sim.record(kIn);
  const auto long_branch = sim.record(kOut);
  sim.wait(kCompute, *short_branch);
  sim.wait(kCompute, *long_branch);
  sim.run(0);  // no duration, no span
  sim.run(0.5);
  const std::vector<SimSpan> expected = {
      {kCompute, false, 0, 1, 0}, {kIn, true, 1, 2.25, 1024}, {kOut, false, 1, 5, 0}, {kCompute, false, 5, 5.5, 0}};
  REQUIRE(sim.device->spans() == expected);
  sim.device->record_spans(false);
  sim.run(1);
  REQUIRE(sim.device->spans() == expected);
}

TEST_CASE("the oldest spans are dropped beyond the bound") {
  VirtualClock clock;
  clock.run(kCompute, 1);
  clock.record_spans(true);
  for (size_t i = 0; i < VirtualClock::kMostSpans + 3; ++i) clock.run(kCompute, 1);
  const std::vector<SimSpan> spans = clock.spans();
  REQUIRE(spans.size() == VirtualClock::kMostSpans);
  REQUIRE(spans.front().begin == 4);
  REQUIRE(spans.back().end == static_cast<double>(VirtualClock::kMostSpans) + 4);
}

TEST_CASE("the time between two events is that between their last records") {
  ClockedDevice sim;
  const auto begin = sim.record(kCompute);
  sim.run(2);
  const auto middle = sim.record(kCompute);
  sim.copy_in(1024);
  const auto copied = sim.record(kIn);
  REQUIRE(sim.device->seconds_between(*begin, *middle).value() == 2);
  REQUIRE(sim.device->seconds_between(*middle, *copied).value() == -0.75);
  sim.run(1);
  REQUIRE(sim.device->queue(kCompute).record(*middle).ok());
  REQUIRE(sim.device->seconds_between(*begin, *middle).value() == 3);
}

TEST_CASE("events without a time on this clock are refused") {
  ClockedDevice sim;
  ClockedDevice elsewhere;
  CpuDevice cpu;
  const auto recorded = sim.record(kCompute);
  const auto refused = [&](const Event& event) {
    const Result<double> seconds = sim.device->seconds_between(*recorded, event);
    return !seconds.ok() && seconds.status().error_class() == ErrorClass::kUsage;
  };
  REQUIRE(refused(*sim.device->create_event()));
  REQUIRE(refused(*elsewhere.record(kCompute)));
  REQUIRE(refused(*cpu.create_event()));
  const auto before_reset = sim.record(kCompute);
  sim.device->reset_clock();
  REQUIRE(refused(*before_reset));
}

TEST_CASE("after a reset everything begins at 0 again") {
  ClockedDevice sim;
  sim.device->record_spans(true);
  sim.run(4);
  const auto old = sim.record(kCompute);
  REQUIRE(sim.device->synchronize().ok());
  sim.device->reset_clock();
  REQUIRE(sim.clocks() == Clocks{});
  REQUIRE(sim.device->spans().empty());
  sim.wait(kIn, *old);
  REQUIRE(old->synchronize().ok());
  REQUIRE(sim.clocks() == Clocks{});
  sim.run(1);
  REQUIRE(sim.clocks() == Clocks{1, 0, 0, 0});
  REQUIRE(sim.device->spans().size() == 1);
}

// What 300 tasks of a second each take on two queues by turns.
std::vector<double> spread_durations(SimDevice& device) {
  device.record_spans(true);
  for (int i = 0; i < 300; ++i) REQUIRE(device.queue(i % 2 == 0 ? kCompute : kIn).launch(lasting(1)).ok());
  std::vector<double> durations;
  for (const SimSpan& span : device.spans()) durations.push_back(span.end - span.begin);
  return durations;
}

TEST_CASE("durations spread within their bounds, to the same values for the same seed") {
  SimOptions options = {.capacity_bytes = kMiB, .schedule_seed = 11, .duration_spread = 0.5};
  const auto device = make_sim(options);
  const std::vector<double> durations = spread_durations(*device);
  REQUIRE(durations.size() == 300);
  const auto [least, most] = std::minmax_element(durations.begin(), durations.end());
  constexpr double kRounding = 1e-12;  // begin and end are sums
  REQUIRE(*least >= 0.5 - kRounding);
  REQUIRE(*most <= 1.5 + kRounding);
  REQUIRE(*least < 0.6);  // the range is used
  REQUIRE(*most > 1.4);
  REQUIRE(spread_durations(*make_sim(options)) == durations);
  device->reset_clock();
  REQUIRE(spread_durations(*device) == durations);
  options.schedule_seed = 12;
  REQUIRE(spread_durations(*make_sim(options)) != durations);
  options.duration_spread = 0;
  REQUIRE(spread_durations(*make_sim(options)) == std::vector<double>(300, 1));
}

TEST_CASE("what one queue is given does not change the durations of another") {
  const SimOptions options = {.capacity_bytes = kMiB, .schedule_seed = 3, .duration_spread = 0.9};
  ClockedDevice alone(options);
  ClockedDevice beside(options);
  for (int i = 0; i < 10; ++i) {
    alone.run(1);
    beside.run(1);
    beside.run(kIn, 1);
  }
  REQUIRE(alone.device->queue_seconds(kCompute) == beside.device->queue_seconds(kCompute));
  REQUIRE(beside.device->queue_seconds(kCompute) != beside.device->queue_seconds(kIn));
}

// The clocks and spans after a pseudo-random program of tasks, copies, events and host work.
std::pair<Clocks, std::vector<SimSpan>> run_random_program(const SimOptions& options) {
  ClockedDevice sim(options);
  sim.device->record_spans(true);
  std::vector<std::unique_ptr<Event>> events;
  uint32_t random = 99;
  const auto below = [&](uint32_t bound) {
    random = random * 1664525u + 1013904223u;
    return (random >> 8) % bound;
  };
  for (int step = 0; step < 150; ++step) {
    const auto kind = static_cast<QueueKind>(below(kQueueKinds));
    switch (below(8)) {
      case 0:
        sim.copy_in(1 + below(4096));
        break;
      case 1:
        sim.copy_out(1 + below(4096));
        break;
      case 2:
        events.push_back(sim.record(kind));
        break;
      case 3:
        if (!events.empty()) sim.wait(kind, *events[below(static_cast<uint32_t>(events.size()))]);
        break;
      case 4:
        sim.device->advance_host(below(100) / 64.0);
        break;
      case 5:
        if (!events.empty() && below(4) == 0) REQUIRE(events.back()->synchronize().ok());
        break;
      default: {
        Task task = lasting(below(1000) / 64.0);
        task.utilization = below(5) / 4.0;
        REQUIRE(sim.device->queue(kind).launch(task).ok());
      }
    }
  }
  return {sim.clocks(), sim.device->spans()};
}

TEST_CASE("virtual times do not depend on when the workers run") {
  const auto expected = run_random_program(kClockOptions);
  REQUIRE(expected.second.size() > 50);
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SimOptions options = kClockOptions;
    options.schedule_seed = seed;  // other pauses each time
    REQUIRE(run_random_program(options) == expected);
  }
}

TEST_CASE("what two threads submit is added up, command by command") {
  ClockedDevice sim;
  sim.device->record_spans(true);
  constexpr int kCommands = 500;
  const auto submit = [&] {
    const auto event = sim.device->create_event();
    for (int i = 0; i < kCommands; ++i) {
      bool ok = sim.device->queue(kCompute).launch(lasting(0.5)).ok();
      ok = sim.device->queue(kIn).launch(lasting(0.25)).ok() && ok;
      ok = sim.device->queue(kIn).record(*event).ok() && ok;
      ok = sim.device->queue(kOut).wait(*event).ok() && ok;
      if (!ok || sim.device->host_seconds() != 0) return;  // found by the sums below
    }
  };
  std::thread other(submit);
  submit();
  other.join();
  REQUIRE(sim.clocks() == Clocks{kCommands, kCommands / 2, kCommands / 2, 0});
  std::array<double, kQueueKinds> free = {};
  const std::vector<SimSpan> spans = sim.device->spans();
  REQUIRE(spans.size() == 4 * kCommands);
  for (const SimSpan& span : spans) {
    double& end = free[static_cast<size_t>(span.queue)];
    REQUIRE(span.begin == end);
    end = span.end;
  }
}

TEST_CASE("a paced device keeps to its virtual times in real time") {
  SimOptions options = kClockOptions;
  options.pace = 0.02;
  ClockedDevice sim(options);
  const auto begin = std::chrono::steady_clock::now();
  sim.run(1);
  sim.copy_in(1024);  // beside it
  const auto copied = sim.record(kIn);
  sim.wait(kCompute, *copied);
  sim.run(1);
  REQUIRE(sim.device->synchronize().ok());
  const std::chrono::duration<double> real = std::chrono::steady_clock::now() - begin;
  REQUIRE(sim.device->host_seconds() == 2.25);
  REQUIRE(real.count() >= 2 * options.pace);
}

TEST_CASE("a wrapped device keeps its clock, and the cpu has none") {
  ClockedDevice sim;
  FaultDevice wrapped(*sim.device);
  REQUIRE(wrapped.has_virtual_clock());
  wrapped.advance_host(1);
  REQUIRE(wrapped.queue(kCompute).launch(lasting(2)).ok());
  REQUIRE(wrapped.synchronize().ok());
  REQUIRE(wrapped.host_seconds() == 3);
  REQUIRE(sim.device->host_seconds() == 3);
  CpuDevice cpu;
  cpu.advance_host(1);
  REQUIRE_FALSE(cpu.has_virtual_clock());
  REQUIRE(cpu.host_seconds() == 0);
}

TEST_CASE("a task without a duration, a negative one and an empty copy take no virtual time") {
  ClockedDevice sim;
  sim.run(0);
  sim.run(-1);
  sim.copy_in(0);
  sim.device->advance_host(-1);
  REQUIRE(sim.clocks() == Clocks{});
}

TEST_CASE("options out of range are refused") {
  for (const SimOptions& options :
       {SimOptions{.h2d_bandwidth = -1}, SimOptions{.copy_latency = -1}, SimOptions{.duration_spread = 0.95},
        SimOptions{.duration_spread = -0.1}, SimOptions{.pace = -1}}) {
    const auto device = SimDevice::create(options);
    REQUIRE_FALSE(device.ok());
    REQUIRE(device.status().error_class() == ErrorClass::kUsage);
  }
}

}  // namespace
}  // namespace hetero::backend
