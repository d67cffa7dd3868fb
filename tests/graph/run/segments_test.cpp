// Segments of static programs: launches that follow each other are recorded and launched as one,
// with the same values, and never with an address that is no longer the slot's.

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <thread>

#include "backend/fault/fault_device.h"
#include "backend/sim/sim_device.h"
#include "graph/ir/kernel_settings.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/static_program.h"

namespace hetero::graph::testing {
namespace {

using backend::FaultDevice;
using backend::FaultDuration;
using backend::FaultKind;
using backend::kAccelerator;
using backend::kCpu;
using backend::QueueKind;

constexpr double kLaunch = 1e-3;
constexpr int kSettledRuns = 3;  // launched one by one, before addresses count as settled
constexpr int64_t kFloats = 16;

// A machine of its own on which a kernel takes its launch, and nothing beside that. `wrap` may put
// another device before the simulated one.
struct Machine {
  explicit Machine(uint64_t schedule_seed = 0) {
    auto made = backend::SimDevice::create({.flops = 1e18,
                                            .memory_bandwidth = 1e18,
                                            .launch_latency = kLaunch,
                                            .h2d_bandwidth = 1e18,
                                            .d2h_bandwidth = 1e18,
                                            .schedule_seed = schedule_seed});
    REQUIRE(made.ok());
    sim = std::move(made.value());
    devices = {test_devices()[kCpu], sim.get()};
  }
  PlanOptions plan(Policy policy = Policy::kAccelerator, bool fusion = false) const {
    PlanOptions options = options_for(devices);
    options.policy = policy;
    options.fusion = fusion;
    return options;
  }
  std::unique_ptr<GraphExecutor> executor(std::unique_ptr<SavedProgram> program, bool segments = true) const {
    return executor(std::move(program), plan(), segments);
  }
  std::unique_ptr<GraphExecutor> executor(std::unique_ptr<SavedProgram> program, const PlanOptions& plan,
                                          bool segments = true) const {
    Result<std::shared_ptr<Model>> model = Model::create(std::move(program));
    INFO((model.ok() ? "" : model.status().message()));
    REQUIRE(model.ok());
    GraphExecutor::Options options = executor_options(plan, devices);
    options.segments = segments;
    Result<std::unique_ptr<GraphExecutor>> executor = GraphExecutor::Init(model.value(), std::move(options));
    INFO((executor.ok() ? "" : executor.status().message()));
    REQUIRE(executor.ok());
    return std::move(executor.value());
  }

  std::unique_ptr<backend::SimDevice> sim;
  Devices devices;
};

void run(GraphExecutor& executor, size_t slot = 0) {
  require(executor.Run(slot));
  require(executor.Wait(slot));
}

// y = f(f(... f(x))), `length` times.
struct Chain {
  explicit Chain(int length, OpId op = test_ops().pointwise) {
    x = program.input(kFloats);
    y = x;
    for (int i = 0; i < length; ++i) y = program.define(op, kFloats, {program.read(y)});
    program.escape(y);
  }
  Program program;
  BufferId x, y;
};

std::vector<float> numbers(int seed) {
  std::vector<float> values(kFloats);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(seed) + 0.25f * static_cast<float>(i);
  return values;
}

// What a program computes of an input, on the CPU.
class Reference {
 public:
  explicit Reference(std::unique_ptr<SavedProgram> program) {
    auto model = Model::create(std::move(program));
    REQUIRE(model.ok());
    auto executor = GraphExecutor::Init(model.value(), executor_options(cpu_options()));
    REQUIRE(executor.ok());
    executor_ = std::move(executor.value());
  }
  std::vector<float> operator()(std::vector<float> x) {
    std::vector<float> y(x.size());
    require(executor_->SetInput(0, view_of(x)));
    require(executor_->Run());
    require(executor_->GetOutput(0, view_of(y)));
    return y;
  }

 private:
  std::unique_ptr<GraphExecutor> executor_;
};

std::vector<float> output(GraphExecutor& executor, size_t slot = 0) {
  std::vector<float> values(kFloats);
  require(executor.GetOutput(0, view_of(values), slot));
  return values;
}

}  // namespace

TEST_CASE("segments: a static program computes what the interpreter does, before and after it is recorded") {
  std::mt19937 random(11);
  const Machine machine(5);
  int64_t segments = 0;
  for (int i = 0; i < 30; ++i) {
    for (const Policy policy : {Policy::kAccelerator, Policy::kMixed, Policy::kAuto, Policy::kCpu}) {
      for (const bool fusion : {false, true}) {
        Program p;
        if (fusion) {
          make_fusable(p, random, 2 + i);
        } else {
          make_random(p, random, 2 + i, false);
        }
        auto saved = save(p);
        for (Buffer& buffer : p.graph.buffers) buffer.escapes |= buffer.valid_on != 0;
        const Results expected = p.interpret();
        auto executor = machine.executor(std::move(saved), machine.plan(policy, fusion));
        for (int r = 0; r < 2 * (kSettledRuns + 2); ++r) {
          const size_t slot = static_cast<size_t>(r) % 2;
          set_inputs(*executor, p, slot);
          require(executor->Run(slot));
          CHECK(has_values(*executor, expected, slot));
        }
        segments += executor->counts().segments;
      }
    }
  }
  CHECK(segments > 100);
}

TEST_CASE("segments: a run takes one launch's latency where it took one for each kernel") {
  constexpr int kLength = 20;
  const Machine machine;
  for (const bool segments : {false, true}) {
    Chain chain(kLength);
    auto executor = machine.executor(save(chain.program), segments);
    set_inputs(*executor, chain.program);
    for (int r = 0; r < kSettledRuns; ++r) run(*executor);
    CHECK(executor->counts().recordings == 0);
    const double before = machine.sim->host_seconds();
    const int64_t launches = machine.sim->counters().launches;
    constexpr int kRuns = 5;
    for (int r = 0; r < kRuns; ++r) run(*executor);
    const int each = segments ? 1 : kLength;
    CHECK(machine.sim->host_seconds() - before == Approx(kRuns * each * kLaunch).epsilon(1e-6));
    CHECK(machine.sim->counters().launches - launches == kRuns * each);
    const BoundCounts counts = executor->counts();
    CHECK(counts.kernels == (kSettledRuns + kRuns) * kLength);
    CHECK(counts.recordings == (segments ? 1 : 0));
    CHECK(counts.segments == (segments ? kRuns : 0));
    CHECK(has_values(*executor, chain.program.interpret()));
  }
}

TEST_CASE("segments: each compute queue has its own, and they run beside each other") {
  constexpr int kBranches = 4;
  const Machine machine(3);
  Program p;
  const BufferId x = p.input(kFloats);
  std::vector<Operand> ends;
  for (int branch = 0; branch < kBranches; ++branch) {
    BufferId value = x;
    for (int i = 0; i < 10; ++i) value = p.define(test_ops().pointwise, kFloats, {p.read(value)});
    ends.push_back(p.read(value));
  }
  p.escape(p.define(test_ops().pointwise, kFloats, ends));
  const Results expected = p.interpret();
  auto executor = machine.executor(save(p));
  set_inputs(*executor, p);
  for (int r = 0; r < kSettledRuns; ++r) run(*executor);
  const double before = machine.sim->host_seconds();
  constexpr int kRuns = 20;
  for (int r = 0; r < kRuns; ++r) {
    run(*executor);
    REQUIRE(has_values(*executor, expected));
  }
  CHECK(executor->counts().recordings == kBranches);
  CHECK(executor->counts().segments == kRuns * kBranches);
  // A launch for all branches and one for the join, not ten and one.
  CHECK(machine.sim->host_seconds() - before == Approx(kRuns * 2 * kLaunch).epsilon(1e-3));
}

TEST_CASE("segments: rebound inputs and outputs are read and written where they are now") {
  constexpr size_t kSlots = 2;
  constexpr size_t kBlocks = 3;
  const size_t bytes = kFloats * sizeof(float);
  const Machine machine(7);
  backend::SimDevice& sim = *machine.sim;
  Chain chain(8);
  // The input is read in the middle too.
  const BufferId joined =
      chain.program.define(test_ops().pointwise, kFloats, {chain.program.read(chain.y), chain.program.read(chain.x)});
  chain.program.graph.buffers[chain.y].escapes = false;
  BufferId y = joined;
  for (int i = 0; i < 8; ++i) y = chain.program.define(test_ops().pointwise, kFloats, {chain.program.read(y)});
  chain.program.escape(y);
  Reference reference(save(chain.program));
  std::array<std::array<backend::Block, kBlocks>, kSlots> inputs;
  std::array<std::array<backend::Block, kBlocks>, kSlots> outputs;
  for (size_t s = 0; s < kSlots; ++s) {
    for (size_t b = 0; b < kBlocks; ++b) {
      inputs[s][b] = allocate(sim, bytes);
      outputs[s][b] = allocate(sim, bytes);
    }
  }
  // It dies before the memory that its last run may still use.
  auto executor = machine.executor(save(chain.program));
  const auto lent = [](void* data) {
    TensorView view = TensorView::row_major(data, "f32", {kFloats});
    view.device = kAccelerator;
    return view;
  };
  struct State {
    size_t input = kBlocks;  // none is lent
    size_t output = kBlocks;
    std::vector<float> x;
  };
  std::array<State, kSlots> states;
  std::mt19937 random(13);
  const auto one_in = [&](unsigned n) { return random() % n == 0; };
  for (int r = 0; r < 600; ++r) {
    const size_t slot = random() % kSlots;
    State& at = states[slot];
    // Sometimes often, sometimes rarely, so that all that was recorded goes stale and is recorded
    // again.
    const unsigned often = r % 200 < 100 ? 2 : 20;
    const std::vector<float> x = numbers(r);
    if (at.x.empty() || one_in(often)) {
      at.input = random() % (kBlocks + 1);
      if (at.input < kBlocks) {
        void* const data = inputs[slot][at.input].data();
        require(executor->SetInputZeroCopy(0, lent(data), slot));
      }
    }
    if (one_in(often)) {
      at.output = random() % kBlocks;
      require(executor->SetOutputZeroCopy(0, lent(outputs[slot][at.output].data()), slot));
    }
    require(executor->Wait(slot));
    if (at.input < kBlocks) {
      copy(sim, QueueKind::kHostToDevice, inputs[slot][at.input].data(), x.data(), bytes);
    } else {
      std::vector<float> copied = x;
      require(executor->SetInput(0, view_of(copied), slot));
    }
    at.x = x;
    require(executor->Run(slot));
    // One slot's addresses are changed while the other's run may go on.
    if (one_in(2)) continue;
    const size_t other = 1 - slot;
    for (const size_t s : {slot, other}) {
      if (states[s].x.empty()) continue;
      require(executor->Wait(s));
      std::vector<float> found(kFloats);
      if (states[s].output < kBlocks) {
        copy(sim, QueueKind::kDeviceToHost, found.data(), outputs[s][states[s].output].data(), bytes);
      } else {
        found = output(*executor, s);
      }
      REQUIRE(found == reference(states[s].x));
    }
  }
  const BoundCounts counts = executor->counts();
  CHECK(counts.segments > counts.runs);
  // Each of the three steps that touch an input or an output discards a recording at most twice, in
  // each slot.
  CHECK(counts.recordings > static_cast<int64_t>(kSlots));
  CHECK(counts.recordings < static_cast<int64_t>(kSlots) * 3 * 3 * 2);
}

TEST_CASE("segments: kernels with other settings are recorded anew, while the last run may still go on") {
  static uint64_t settings = 1;
  struct Set {
    Set() {
      set_kernel_settings([] { return settings; });
    }
    ~Set() { set_kernel_settings(nullptr); }
  };
  const Set set;
  const Machine machine(5);
  Chain chain(12);
  Reference reference(save(chain.program));
  auto executor = machine.executor(save(chain.program));
  int64_t segments = 0;
  for (int r = 0; r < 60; ++r) {
    std::vector<float> x = numbers(r);
    require(executor->SetInput(0, view_of(x)));
    require(executor->Run());
    // Nobody waits for the last run with the settings of before.
    if (r % 10 != 9) REQUIRE(output(*executor) == reference(x));
    if (r % 10 == 9) ++settings;
    // Ten runs have the same settings, and the first three of them are launched one by one.
    segments += r % 10 >= kSettledRuns ? 1 : 0;
    REQUIRE(executor->counts().segments == segments);
    REQUIRE(executor->counts().recordings == r / 10 + (r % 10 >= kSettledRuns ? 1 : 0));
  }
}

TEST_CASE("segments: who lends other memory for every request pays for recording once") {
  const Machine machine;
  Chain chain(12);
  Reference reference(save(chain.program));
  auto executor = machine.executor(save(chain.program));
  std::array<backend::Block, 2> blocks;
  for (backend::Block& block : blocks) block = allocate(*machine.sim, kFloats * sizeof(float));
  const auto request = [&](int r) {
    const std::vector<float> x = numbers(r);
    void* const data = blocks[static_cast<size_t>(r) % 2].data();
    copy(*machine.sim, QueueKind::kHostToDevice, data, x.data(), kFloats * sizeof(float));
    TensorView view = TensorView::row_major(data, "f32", {kFloats});
    view.device = kAccelerator;
    require(executor->SetInputZeroCopy(0, view));
    require(executor->Run());
    CHECK(output(*executor) == reference(x));
  };
  for (int r = 0; r < 10; ++r) request(r);
  CHECK(executor->counts().recordings == 1);
  const int64_t launches = machine.sim->counters().launches;
  const int64_t segments = executor->counts().segments;
  for (int r = 10; r < 60; ++r) request(r);
  // The step that reads the input, and all others as one.
  CHECK(machine.sim->counters().launches - launches == 50 * 2);
  CHECK(executor->counts().segments - segments == 50);
  CHECK(executor->counts().recordings == 1);
}

TEST_CASE("segments: two addresses of a launch that change at once are one change") {
  const Machine machine;
  Program p;
  const BufferId a = p.input(kFloats);
  const BufferId b = p.input(kFloats);
  BufferId y = p.define(test_ops().pointwise, kFloats, {p.read(a), p.read(b), p.read(a)});
  for (int i = 0; i < 4; ++i) y = p.define(test_ops().pointwise, kFloats, {p.read(y)});
  p.escape(y);
  auto executor = machine.executor(save(p));
  set_inputs(*executor, p);
  for (int r = 0; r < kSettledRuns + 1; ++r) run(*executor);
  CHECK(executor->counts().recordings == 1);
  const std::vector<float> expected = output(*executor);
  std::array<backend::Block, 2> blocks;
  for (size_t i = 0; i < 2; ++i) {
    blocks[i] = allocate(*machine.sim, kFloats * sizeof(float));
    const std::vector<float> x = numbers(static_cast<int>(i));
    copy(*machine.sim, QueueKind::kHostToDevice, blocks[i].data(), x.data(), kFloats * sizeof(float));
    TensorView view = TensorView::row_major(blocks[i].data(), "f32", {kFloats});
    view.device = kAccelerator;
    require(executor->SetInputZeroCopy(i, view));
  }
  for (int r = 0; r < kSettledRuns + 1; ++r) run(*executor);
  CHECK(executor->counts().recordings == 2);
  // All five are one segment again.
  CHECK(executor->counts().segments == 2);
  CHECK(machine.sim->counters().launches == kSettledRuns * 5 + 1 + kSettledRuns * 5 + 1);
  CHECK(output(*executor) != expected);
}

TEST_CASE("segments: the same memory lent again discards nothing") {
  const Machine machine;
  Chain chain(6);
  auto executor = machine.executor(save(chain.program));
  const backend::Block block = allocate(*machine.sim, kFloats * sizeof(float));
  TensorView view = TensorView::row_major(block.data(), "f32", {kFloats});
  view.device = kAccelerator;
  for (int r = 0; r < 20; ++r) {
    require(executor->SetInputZeroCopy(0, view));
    run(*executor);
  }
  CHECK(executor->counts().recordings == 1);
  CHECK(executor->counts().segments == 20 - kSettledRuns);
}

TEST_CASE("segments: random numbers are drawn anew by every run, between segments and in none") {
  Program p;
  const BufferId x = p.input(kFloats);
  const auto chain = [&](BufferId from) {
    for (int i = 0; i < 3; ++i) from = p.define(test_ops().pointwise, kFloats, {p.read(from)});
    return from;
  };
  const BufferId noise = p.empty(kFloats);
  p.add(test_ops().random, {p.operand(noise, Access::kDefine)});
  p.graph.attributes.resize(p.graph.nodes.back().attribute_offset + 16);
  p.graph.nodes.back().attribute_bytes = 16;
  const BufferId before = chain(x);
  const BufferId sum = p.define(test_ops().pointwise, kFloats, {p.read(before), p.read(noise)});
  p.escape(chain(sum));
  const auto saved = [&] {
    auto program = save(p);
    program->draws = {program->graph.nodes[0].attribute_offset};
    return program;
  };
  const Machine machine;
  PlanOptions plan = machine.plan();
  plan.compute_queues = 1;
  auto executor = machine.executor(saved(), plan);
  Reference reference(saved());
  std::vector<float> last;
  constexpr int kRuns = 12;
  for (int r = 0; r < kRuns; ++r) {
    std::vector<float> values = numbers(1);
    require(executor->SetInput(0, view_of(values)));
    require(executor->Run());
    const std::vector<float> found = output(*executor);
    CHECK(found == reference(values));  // it draws the same
    CHECK(found != last);
    last = found;
  }
  // The drawing node alone, what comes before it or after it as one.
  const int64_t recordings = executor->counts().recordings;
  CHECK(recordings >= 1);
  CHECK(recordings <= 2);
  CHECK(executor->counts().segments == (kRuns - kSettledRuns) * recordings);
  CHECK(machine.sim->counters().launches == kSettledRuns * 8 + (kRuns - kSettledRuns) * (1 + recordings));
}

TEST_CASE("segments: a recording that fails is not tried again, and launches go on one by one") {
  Machine machine;
  FaultDevice fault(*machine.sim);
  machine.devices[kAccelerator] = &fault;
  fault.fail(FaultKind::kSegmentRecord, 1, FaultDuration::kForEver);
  Chain chain(6);
  auto executor = machine.executor(save(chain.program));
  set_inputs(*executor, chain.program);
  for (int r = 0; r < 20; ++r) {
    run(*executor);
    CHECK(has_values(*executor, chain.program.interpret()));
  }
  CHECK(fault.calls(FaultKind::kSegmentRecord) == 1);
  CHECK(executor->counts().segments == 0);
  CHECK(executor->counts().kernels == 20 * 6);
  CHECK(machine.sim->counters().launches == 20 * 6);
}

TEST_CASE("segments: one that cannot be launched is launched one by one, in that run and from then on") {
  Machine machine;
  FaultDevice fault(*machine.sim);
  machine.devices[kAccelerator] = &fault;
  Chain chain(6);
  auto executor = machine.executor(save(chain.program));
  set_inputs(*executor, chain.program);
  for (int r = 0; r < kSettledRuns + 2; ++r) run(*executor);
  REQUIRE(executor->counts().segments == 2);
  fault.fail(FaultKind::kLaunch, 1);
  for (int r = 0; r < 5; ++r) {
    std::vector<float> other = numbers(r);
    require(executor->SetInput(0, view_of(other)));
    run(*executor);
    CHECK(output(*executor) == Reference(save(chain.program))(other));
  }
  CHECK(executor->counts().segments == 2);
  CHECK(executor->counts().recordings == 1);
  CHECK(executor->counts().kernels == (kSettledRuns + 7) * 6);
}

TEST_CASE("segments: whatever call of a device fails, a run tells it or has the right values") {
  for (const FaultKind kind : {FaultKind::kLaunch, FaultKind::kSegmentRecord}) {
    for (int nth = 1; nth <= 40; ++nth) {
      for (const FaultDuration duration : {FaultDuration::kOnce, FaultDuration::kForEver}) {
        Machine machine;
        FaultDevice fault(*machine.sim);
        machine.devices[kAccelerator] = &fault;
        Chain chain(6);
        const Results expected = chain.program.interpret();
        auto executor = machine.executor(save(chain.program));
        set_inputs(*executor, chain.program);
        fault.fail(kind, nth, duration);
        const auto attempt = [&] {
          Status status = executor->Run();
          const Status waited = executor->Wait();
          return status.ok() ? waited : status;
        };
        for (int r = 0; r < 8; ++r) {
          const Status status = attempt();
          if (status.ok()) {
            CHECK(has_values(*executor, expected));
          } else {
            CHECK(kind == FaultKind::kLaunch);
            CHECK(status.message().find("injected failure of a launch") != std::string::npos);
          }
        }
        fault.heal();
        require(attempt());
        CHECK(has_values(*executor, expected));
      }
    }
  }
}

TEST_CASE("segments: what a kernel throws in one is told with the operator's name, and the next run works") {
  static std::atomic<bool> broken{false};
  const OpId op = op_table().add({.name = "test::in_segment", .kernel = [](const Invocation& call) {
                                    if (broken) throw std::runtime_error("not in this run");
                                    const auto* const from = static_cast<const float*>(call.data[0]);
                                    std::copy(from, from + kFloats, static_cast<float*>(call.data[1]));
                                  }});
  broken = false;
  const Machine machine;
  Program p;
  const BufferId x = p.input(kFloats);
  const BufferId y = p.define(test_ops().pointwise, kFloats, {p.read(x)});
  const BufferId z = p.define(op, kFloats, {p.read(y)});
  p.escape(p.define(test_ops().pointwise, kFloats, {p.read(z)}));
  auto executor = machine.executor(save(p));
  set_inputs(*executor, p);
  for (int r = 0; r < kSettledRuns + 1; ++r) run(*executor);
  const std::vector<float> expected = output(*executor);
  REQUIRE(executor->counts().segments == 1);
  broken = true;
  require(executor->Run());
  const Status status = executor->Wait();
  CHECK(status.error_class() == ErrorClass::kKernel);
  CHECK(status.message() == "test::in_segment: not in this run");
  broken = false;
  run(*executor);
  CHECK(output(*executor) == expected);
  CHECK(executor->counts().segments == 3);
  CHECK(executor->counts().recordings == 1);
}

TEST_CASE("segments: an executor that is destroyed while a segment runs waits for it") {
  static std::atomic<bool> go{true};
  static std::atomic<int> ended{0};
  const OpId op = op_table().add({.name = "test::held_in_segment", .kernel = [](const Invocation&) {
                                    go.wait(false);
                                    ++ended;
                                  }});
  const Machine machine;
  Chain chain(4, op);
  auto executor = machine.executor(save(chain.program));
  set_inputs(*executor, chain.program);
  for (int r = 0; r < kSettledRuns + 1; ++r) run(*executor);
  REQUIRE(executor->counts().segments == 1);
  go = false;
  ended = 0;
  require(executor->Run(0));
  require(executor->Run(0));
  std::thread later([] {
    go = true;
    go.notify_all();
  });
  executor.reset();
  CHECK(ended == 2 * 4);
  later.join();
}

TEST_CASE("segments: a cancelled run submits no further one") {
  static std::atomic<int32_t> stop{0};
  static std::atomic<bool> stops{false};
  const OpId op = op_table().add({.name = "test::stops", .on_accelerator = false, .kernel = [](const Invocation& call) {
                                    if (stops) stop = 1;
                                    const auto* const from = static_cast<const float*>(call.data[0]);
                                    std::copy(from, from + kFloats, static_cast<float*>(call.data[1]));
                                  }});
  stop = 0;
  stops = false;
  const Machine machine;
  Program p;
  const BufferId x = p.input(kFloats);
  const auto chain = [&](BufferId from) {
    for (int i = 0; i < 3; ++i) from = p.define(test_ops().pointwise, kFloats, {p.read(from)});
    return from;
  };
  p.escape(chain(p.define(op, kFloats, {p.read(chain(x))})));
  auto executor = machine.executor(save(p));
  set_inputs(*executor, p);
  for (int r = 0; r < kSettledRuns + 1; ++r) run(*executor);
  REQUIRE(executor->counts().segments == 2);
  const std::vector<float> expected = output(*executor);
  stops = true;
  CHECK(executor->Run(0, &stop).error_class() == ErrorClass::kCancelled);
  CHECK(executor->counts().segments == 3);
  CHECK(executor->Wait().error_class() == ErrorClass::kCancelled);
  stops = false;
  run(*executor);
  CHECK(output(*executor) == expected);
  CHECK(executor->counts().segments == 5);
}

namespace {

// As CUDA records: it calls the tasks, here and now. The first `early` times something is not ready
// yet.
class CapturingQueue final : public backend::Queue {
 public:
  backend::Queue* inner = nullptr;
  int early = 0;
  int asked = 0;

  Result<std::unique_ptr<backend::Segment>> record_segment(std::span<const backend::Task> tasks) override {
    for (const backend::Task& task : tasks) task.run(task.context);
    if (asked++ < early) return std::unique_ptr<backend::Segment>();
    return inner->record_segment(tasks);
  }
  Status launch_segment(backend::Segment& segment) override { return inner->launch_segment(segment); }
  Status launch(backend::Task task) override { return inner->launch(task); }
  Status copy(void* to, const void* from, size_t bytes) override { return inner->copy(to, from, bytes); }
  Status record(backend::Event& event) override { return inner->record(event); }
  Status wait(backend::Event& event) override { return inner->wait(event); }
  Status synchronize() override { return inner->synchronize(); }
};

class CapturingDevice final : public FaultDevice {
 public:
  explicit CapturingDevice(backend::Device& device) : FaultDevice(device) {
    compute.inner = &device.queue(QueueKind::kCompute);
  }
  backend::Queue& queue(QueueKind kind) override {
    return kind == QueueKind::kCompute ? compute : FaultDevice::queue(kind);
  }
  CapturingQueue compute;
};

}  // namespace

TEST_CASE("segments: a device that is not ready to record is asked again, less and less often") {
  Machine machine;
  CapturingDevice device(*machine.sim);
  machine.devices[kAccelerator] = &device;
  device.compute.early = 3;
  Chain chain(5);
  auto executor = machine.executor(save(chain.program));
  set_inputs(*executor, chain.program);
  std::vector<int> asked_at;
  for (int r = 0; r < 60; ++r) {
    const int before = device.compute.asked;
    run(*executor);
    CHECK(has_values(*executor, chain.program.interpret()));
    if (device.compute.asked != before) asked_at.push_back(r);
  }
  CHECK(asked_at == std::vector<int>{3, 8, 18, 38});
  CHECK(executor->counts().recordings == 1);
  CHECK(executor->counts().segments == 60 - 38);
}

TEST_CASE("segments: what fails while it is recorded is no error of the program") {
  static std::atomic<std::thread::id> recording_thread;
  const OpId op = op_table().add({.name = "test::not_recordable", .kernel = [](const Invocation& call) {
                                    if (std::this_thread::get_id() == recording_thread.load()) {
                                      throw std::runtime_error("not allowed while the stream is capturing");
                                    }
                                    const auto* const from = static_cast<const float*>(call.data[0]);
                                    std::copy(from, from + kFloats, static_cast<float*>(call.data[1]));
                                  }});
  recording_thread = std::this_thread::get_id();
  Machine machine;
  CapturingDevice device(*machine.sim);
  machine.devices[kAccelerator] = &device;
  Chain chain(5, op);
  auto executor = machine.executor(save(chain.program));
  std::vector<float> x = numbers(3);
  require(executor->SetInput(0, view_of(x)));
  for (int r = 0; r < 10; ++r) {
    run(*executor);
    CHECK(output(*executor) == x);
  }
  CHECK(device.compute.asked == 1);
  CHECK(executor->counts().segments == 0);
}

}  // namespace hetero::graph::testing
