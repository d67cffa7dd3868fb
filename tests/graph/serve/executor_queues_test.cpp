// GraphExecutor: executors that share an accelerator, each on compute queues of its own, and runs that overlap.

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "backend/base/parallel.h"
#include "backend/sim/sim_device.h"
#include "graph/serve/graph_executor.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/static_program.h"

namespace hetero::graph::testing {
namespace {

using backend::kCpu;

void run(GraphExecutor& executor, size_t slot = 0) { require(executor.Run(slot)); }

// An accelerator on which a launch of a small task takes a millisecond and next to nothing of the device. Its clock begins when it is asked to, with spans.
constexpr double kLaunch = 1e-3;
struct SharedAccelerator {
  SharedAccelerator() {
    auto made = backend::SimDevice::create({.flops = 1e18, .launch_latency = kLaunch, .schedule_seed = 3});
    require(made.status());
    sim = std::move(made.value());
    devices = {test_devices()[kCpu], sim.get()};
  }
  GraphExecutor::Options options(std::vector<backend::QueueKind> queues) const {
    PlanOptions plan = options_for(devices);
    plan.policy = Policy::kAccelerator;
    GraphExecutor::Options chosen = executor_options(plan, devices);
    chosen.compute_queues = std::move(queues);
    chosen.segments = false;  // each launch takes its time
    return chosen;
  }
  void begin() const {
    sim->reset_clock();
    sim->record_spans(true);
  }
  // From the first begin of a task to the last end, and how many there were, by compute queue.
  struct Use {
    int64_t tasks = 0;
    double begin = 1e9;
    double end = 0;
  };
  std::array<Use, backend::kComputeQueues> uses() const {
    std::array<Use, backend::kComputeQueues> all;
    for (const backend::SimSpan& span : sim->spans()) {
      if (!backend::is_compute(span.queue)) continue;
      Use& use = all[static_cast<size_t>(backend::compute_queue_number(span.queue))];
      ++use.tasks;
      use.begin = std::min(use.begin, span.begin);
      use.end = std::max(use.end, span.end);
    }
    return all;
  }
  std::unique_ptr<backend::SimDevice> sim;
  Devices devices;
};

// Towers of launches from one input, joined at the end.
struct Towers {
  Towers(int count, int height) {
    const BufferId x = p.input(64);
    std::vector<Operand> ends;
    for (int tower = 0; tower < count; ++tower) {
      BufferId value = x;
      for (int i = 0; i < height; ++i) value = p.define(test_ops().pointwise, 64, {p.read(value)});
      ends.push_back(p.read(value));
    }
    p.escape(p.define(test_ops().pointwise, 64, ends));
  }
  Program p;
};

}  // namespace

TEST_CASE("executors with compute queues of their own run beside each other on one accelerator") {
  using enum backend::QueueKind;
  const SharedAccelerator shared;
  Towers towers(2, 10);
  const Results expected = towers.p.interpret();
  const auto model = model_of(save(towers.p));
  const auto left = executor_of(model, shared.options({kCompute, kCompute2}));
  const auto right = executor_of(model, shared.options({kCompute3, kCompute4}));
  CHECK(left->plan().origin == right->plan().origin);
  for (GraphExecutor* executor : {left.get(), right.get()}) set_inputs(*executor, towers.p);
  shared.begin();
  for (GraphExecutor* executor : {left.get(), right.get()}) run(*executor);
  for (GraphExecutor* executor : {left.get(), right.get()}) CHECK(has_values(*executor, expected));
  // Each on both of its own queues, in the time of one tower and the join.
  const auto uses = shared.uses();
  CHECK(uses[0].tasks + uses[1].tasks == 21);
  CHECK(uses[2].tasks + uses[3].tasks == 21);
  for (const SharedAccelerator::Use& use : uses) {
    CHECK(use.tasks >= 10);
    CHECK(use.begin < kLaunch);
    CHECK(use.end < 12 * kLaunch);
  }
}

TEST_CASE("executors on the same compute queue run one after the other, and on one they need no other") {
  const SharedAccelerator shared;
  Towers towers(2, 10);
  const Results expected = towers.p.interpret();
  const auto model = model_of(save(towers.p));
  const auto left = executor_of(model, shared.options({backend::QueueKind::kCompute2}));
  const auto right = executor_of(model, shared.options({backend::QueueKind::kCompute2}));
  for (GraphExecutor* executor : {left.get(), right.get()}) set_inputs(*executor, towers.p);
  shared.begin();
  for (GraphExecutor* executor : {left.get(), right.get()}) run(*executor);
  for (GraphExecutor* executor : {left.get(), right.get()}) CHECK(has_values(*executor, expected));
  const auto uses = shared.uses();
  CHECK(uses[1].tasks == 42);
  CHECK(uses[0].tasks + uses[2].tasks + uses[3].tasks == 0);
  CHECK(uses[1].end >= Approx(42 * kLaunch));
}

TEST_CASE("an executor has the compute queues of its group, and all where the group names none") {
  using enum backend::QueueKind;
  const SharedAccelerator shared;
  Towers towers(4, 5);
  const Results expected = towers.p.interpret();
  const auto model = model_of(save(towers.p));
  for (const bool names_two : {true, false}) {
    backend::CoreGroup::Options described{.name = "test", .threads = 1};
    if (names_two) described.compute_queues = {kCompute2, kCompute4};
    auto group = backend::CoreGroup::create(std::move(described));
    REQUIRE(group.ok());
    GraphExecutor::Options options = shared.options({});
    options.group = group.value().get();
    const auto executor = executor_of(model, std::move(options));
    set_inputs(*executor, towers.p);
    shared.begin();
    require(executor->RunAsync().status());
    CHECK(has_values(*executor, expected));
    const auto uses = shared.uses();
    for (size_t queue = 0; queue < uses.size(); ++queue)
      CHECK((uses[queue].tasks > 0) == (!names_two || queue % 2 == 1));
  }
  GraphExecutor::Options wrong = shared.options({kCompute, kDeviceToHost});
  CHECK(contains(GraphExecutor::Init(model, std::move(wrong)).status(), "the queue d2h computes nothing"));
}

TEST_CASE("uploads, kernels and downloads of neighbouring requests overlap") {
  // A link and a device on which the three take equally long.
  backend::SimOptions sim_options;
  sim_options.h2d_bandwidth = sim_options.d2h_bandwidth = 1e9;
  sim_options.memory_bandwidth = 2e9;
  sim_options.flops = 1e15;
  sim_options.launch_latency = 0;
  auto made = backend::SimDevice::create(sim_options);
  REQUIRE(made.ok());
  backend::SimDevice& sim = *made.value();
  const Devices devices{test_devices()[kCpu], &sim};
  Program p;
  constexpr int64_t kCount = 1 << 16;
  const BufferId x = p.input(kCount);
  p.escape(p.define(test_ops().pointwise, kCount, {p.read(x)}, Preference::kAccelerator));
  GraphExecutor::Options options = executor_options(options_for(devices), devices);
  options.slots = 3;
  auto executor = executor_of(model_of(save(p)), std::move(options));
  std::vector<float> values(kCount, 1.0f);
  std::vector<std::vector<float>> results(3, std::vector<float>(kCount));
  sim.reset_clock();
  constexpr int kRequests = 200;
  Pending pending[3];
  for (size_t r = 0; r < kRequests; ++r) {
    const size_t slot = r % 3;
    if (r >= 3) REQUIRE(pending[slot].wait().ok());
    REQUIRE(executor->SetInput(0, view_of(values), slot).ok());
    run(*executor, slot);
    Result<Pending> copy = executor->GetOutputAsync(0, view_of(results[slot]), slot);
    REQUIRE(copy.ok());
    pending[slot] = copy.value();
  }
  for (Pending& last : pending) REQUIRE(last.wait().ok());
  const double copy_seconds = kCount * sizeof(float) / 1e9;
  const double run_seconds = static_cast<double>(executor->plan().plan.placements[0].predicted_seconds);
  const double bound = kRequests * std::max(copy_seconds, run_seconds);
  INFO(bound / sim.host_seconds());
  CHECK(bound / sim.host_seconds() >= 0.98);
  CHECK(sim.host_seconds() < 0.4 * kRequests * (2 * copy_seconds + run_seconds));
  CHECK(executor->counts().host_waits == 0);
  executor.reset();
}

}  // namespace hetero::graph::testing
