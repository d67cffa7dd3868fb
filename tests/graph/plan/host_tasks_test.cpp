// Host tasks: the CPU's worker queue runs them while other work goes on, in the right order, and what fails there reaches only its dependents.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "backend/base/parallel.h"
#include "backend/cpu/cpu_device.h"
#include "backend/fault/fault_device.h"
#include "backend/sim/sim_device.h"
#include "graph/cost/simulate.h"
#include "graph/plan/resize.h"
#include "graph/verify/verify.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"
#include "tests/graph/fixtures/static_program.h"
#include "tests/graph/verify/damage.h"

namespace hetero::graph::testing {
namespace {

using backend::FaultDevice;
using backend::FaultKind;
using backend::kAccelerator;
using backend::kCpu;
using Kind = Instruction::Kind;

constexpr int64_t kFloats = 300;
// Of a host task of so many floats where the CPU computes kSlow operations in a second.
constexpr double kSlow = 1e6;
constexpr double kTask = 800 * static_cast<double>(kFloats) / kSlow;

PlanOptions slow_cpu(PlanOptions options = cpu_options()) {
  options.machine.cpu().rates.flops = kSlow;
  return options;
}

Devices cpu_alone() { return {test_devices()[kCpu], nullptr}; }

int64_t on_worker(const Plan& plan, Kind kind) {
  return std::ranges::count_if(plan.program, [kind](const Instruction& instruction) {
    return instruction.queue == kWorkerQueue && instruction.kind == kind;
  });
}

double predicted(const Program& program, const Plan& plan, const PlanOptions& options) {
  return simulated_seconds(program.graph, plan, options);
}

// A task beside a chain of other work that takes about as long, and what needs both.
struct Beside {
  explicit Beside(OpId task) {
    const BufferId file = program.input(kFloats);
    decoded = program.define(task, kFloats, {program.read(file)});
    BufferId value = program.input(kFloats);
    for (int i = 0; i < 20; ++i) {
      value = program.define(test_ops().matmul, kFloats, {program.read(value), program.read(value)});
    }
    apart = value;
    joined = program.define(test_ops().pointwise, kFloats, {program.read(decoded), program.read(value)});
    for (const BufferId b : {decoded, apart, joined}) program.escape(b);
  }
  Program program;
  BufferId decoded = 0;
  BufferId apart = 0;   // needs no host task
  BufferId joined = 0;  // needs it
};

// Images that are decoded, and then used by an accelerator.
struct Images {
  explicit Images(int count) {
    for (int i = 0; i < count; ++i) {
      const BufferId pixels = program.define(test_ops().host_task, kFloats, {program.read(program.input(kFloats))});
      program.escape(program.define(test_ops().matmul, kFloats, {program.read(pixels), program.read(pixels)},
                                    prefer(kAccelerator)));
    }
  }
  Program program;
};

struct Simulated {
  std::unique_ptr<backend::SimDevice> sim;
  Devices devices;
  PlanOptions options;

  explicit Simulated(double launch_latency, uint64_t schedule_seed = 0) {
    sim = std::move(backend::SimDevice::create({.flops = 1e18,
                                                .memory_bandwidth = 1e18,
                                                .launch_latency = launch_latency,
                                                .h2d_bandwidth = 1e15,
                                                .d2h_bandwidth = 1e15,
                                                .schedule_seed = schedule_seed})
                        .value());
    devices = {test_devices()[kCpu], sim.get()};
    options = slow_cpu(options_for(devices));
    options.compute_queues = 1;
  }
};

// Makes some nodes of a random program host tasks.
void add_host_tasks(Program& program, std::mt19937& random) {
  for (Node& node : program.graph.nodes) {
    const OpTraits& traits = op_table()[node.op];
    if (traits.lower != nullptr || random() % 3 != 0) continue;
    node.op = traits.brings_memory ? test_ops().host_brings : test_ops().host_task;
  }
}

// Two kernels that end only while both run: one as a host task, one on the submitting thread.
struct Meeting {
  std::mutex mutex;
  std::condition_variable came;
  int here = 0;

  void meet() {
    std::unique_lock lock(mutex);
    ++here;
    came.notify_all();
    if (!came.wait_for(lock, std::chrono::seconds(10), [this] { return here >= 2; })) {
      throw std::runtime_error("the other kernel did not run at the same time");
    }
  }
};
Meeting meeting;

OpId meets(const char* name, bool host_task) {
  return op_table().add({.name = name,
                         .op_class = OpClass::kOther,
                         .on_accelerator = false,
                         .host_task = host_task,
                         .kernel = [](const Invocation& call) {
                           meeting.meet();
                           const size_t last = call.node->operand_count - 1u;
                           const Window& window = (*call.windows)[call.operands[last].window];
                           std::memset(call.data[last], 0, static_cast<size_t>(window.last_byte));
                         }});
}

// Two threads: each takes half of a range.
class TwoThreads {
 public:
  TwoThreads() { backend::set_parallel_pool(&kPool); }
  ~TwoThreads() { backend::set_parallel_pool(nullptr); }
  TwoThreads(const TwoThreads&) = delete;

 private:
  static constexpr backend::ParallelPool kPool{[](int64_t begin, int64_t end, int64_t, backend::RangeFunction body) {
                                                 const int64_t middle = (begin + end) / 2;
                                                 std::thread other([&] { body(begin, middle); });
                                                 body(middle, end);
                                                 other.join();
                                               },
                                               [] { return int64_t{2}; }};
};

}  // namespace

TEST_CASE("host tasks: one that has independent work beside it runs on the worker queue and overlaps") {
  Beside beside(test_ops().host_task);
  const PlanOptions options = slow_cpu();
  const Plan plan = beside.program.plan(options);
  INFO(to_string(plan));
  REQUIRE(uses_worker(plan));
  CHECK(on_worker(plan, Kind::kRun) == 1);
  // The join waits for it, and nothing else waits.
  CHECK(std::ranges::count(plan.program, Kind::kWait, &Instruction::kind) == 1);
  const int64_t launches = test_devices()[kCpu]->counters().launches;
  const Results results = beside.program.run_plan(plan, cpu_alone());
  REQUIRE(results.status.ok());
  CHECK(same_values(beside.program, results, beside.program.interpret()));
  CHECK(results.counts.host_tasks == 1);
  CHECK(results.counts.kernels[kCpu] == 22);
  CHECK(test_devices()[kCpu]->counters().launches == launches + 1);
  CHECK(predicted(beside.program, plan, options) == Approx(kTask).epsilon(0.2));
}

TEST_CASE("host tasks: the worker and the submitting thread run at the same time") {
  Program program;
  static const OpId on_worker_queue = meets("test::meets_on_worker", true);
  static const OpId on_host = meets("test::meets_on_host", false);
  const BufferId a = program.define(on_worker_queue, kFloats, {program.read(program.input(kFloats))});
  const BufferId b = program.define(on_host, kFloats, {program.read(program.input(kFloats))});
  program.escape(a);
  program.escape(b);
  PlanOptions options = slow_cpu();
  // The other one takes its time too.
  options.machine.cpu().rates.memory_bandwidth = 1e4;
  const Plan plan = program.plan(options);
  INFO(to_string(plan));
  REQUIRE(uses_worker(plan));
  meeting.here = 0;
  const Results results = program.run_plan(plan, cpu_alone());
  CHECK(results.status.ok());
  CHECK(results.counts.host_tasks == 1);
}

TEST_CASE("host tasks: one that nothing can run beside stays on the submitting thread") {
  Program program;
  BufferId value = program.input(kFloats);
  value = program.define(test_ops().pointwise, kFloats, {program.read(value)});
  value = program.define(test_ops().host_task, kFloats, {program.read(value)});
  value = program.define(test_ops().host_task, kFloats, {program.read(value)});
  program.escape(program.define(test_ops().pointwise, kFloats, {program.read(value)}));
  CHECK(uses_host_only(program.plan(slow_cpu())));
}

TEST_CASE("host tasks: those in a row run at the same time on the CPU's threads, and the rest waits for them") {
  static const OpId meets_another = meets("test::meets_another", true);
  Program program;
  std::vector<BufferId> made;
  for (int i = 0; i < 2; ++i) {
    made.push_back(program.define(meets_another, kFloats, {program.read(program.input(kFloats))}));
  }
  program.escape(program.define(test_ops().pointwise, kFloats, {program.read(made[0]), program.read(made[1])}));
  const TwoThreads threads;
  const Plan plan = program.plan(slow_cpu());
  REQUIRE(uses_host_only(plan));
  meeting.here = 0;
  const Results results = program.run_plan(plan, cpu_alone());
  CHECK(results.status.ok());
  CHECK(results.counts.parallel_tasks == 2);
  CHECK(results.counts.kernels[kCpu] == 3);
}

TEST_CASE("host tasks: those that need each other do not run at the same time") {
  Program program;
  BufferId value = program.input(kFloats);
  for (int i = 0; i < 4; ++i) value = program.define(test_ops().host_task, kFloats, {program.read(value)});
  program.escape(value);
  const TwoThreads threads;
  const Results results = program.run_plan(program.plan(slow_cpu()), cpu_alone());
  CHECK(results.counts.parallel_tasks == 0);
  CHECK(same_values(program, results, program.interpret()));
}

TEST_CASE("host tasks: random programs on two threads have the interpreter's bits") {
  std::mt19937 random(11);
  const TwoThreads threads;
  int64_t together = 0;
  for (int round = 0; round < 120; ++round) {
    Program program;
    make_random(program, random, 40, false);
    for (Node& node : program.graph.nodes) {
      const OpTraits& traits = op_table()[node.op];
      if (traits.lower != nullptr || random() % 4 == 0) continue;
      node.op = traits.brings_memory ? test_ops().host_brings : test_ops().host_task;
    }
    const Plan plan = program.plan(round % 2 == 0 ? fused_options() : cpu_options());
    INFO(to_string(program.graph));
    INFO(to_string(plan));
    const Results results = program.run_plan(plan, cpu_alone());
    together += results.counts.parallel_tasks;
    REQUIRE(same_values(program, results, program.interpret()));
  }
  CHECK(together > 100);
}

TEST_CASE("host tasks: one of several that throws poisons what depends on it, and nothing else") {
  Program program;
  std::vector<BufferId> made;
  for (const OpId op : {test_ops().host_task, test_ops().host_throws, test_ops().host_task}) {
    made.push_back(program.define(op, kFloats, {program.read(program.input(kFloats))}));
  }
  const BufferId joined = program.define(test_ops().pointwise, kFloats, {program.read(made[0]), program.read(made[1])});
  for (const BufferId b : {made[0], made[1], made[2], joined}) program.escape(b);
  const TwoThreads threads;
  const Results results = program.run_plan(program.plan(cpu_options()), cpu_alone());
  CHECK(results.status.message().find("broken kernel") != std::string::npos);
  CHECK(results.counts.parallel_tasks == 3);
  CHECK(results.bindings[made[0]].error.ok());
  CHECK_FALSE(results.bindings[made[1]].error.ok());
  CHECK(results.bindings[made[2]].error.ok());
  CHECK_FALSE(results.bindings[joined].error.ok());
}

TEST_CASE("host tasks: one that takes no longer than a hand-over stays on the submitting thread") {
  Beside beside(test_ops().host_task);
  PlanOptions options = cpu_options();
  options.machine.cpu().rates.flops = 1e12;
  CHECK(uses_host_only(beside.program.plan(options)));
}

TEST_CASE("host tasks: programs without any are planned as before") {
  Beside beside(test_ops().cpu_only);
  CHECK(uses_host_only(beside.program.plan(slow_cpu())));
}

TEST_CASE("host tasks: decoding overlaps with the accelerator, in virtual time as predicted") {
  constexpr int kImages = 6;
  Images images(kImages);
  Simulated machine(kTask);
  const Plan plan = images.program.plan(machine.options);
  INFO(to_string(plan));
  CHECK(on_worker(plan, Kind::kRun) == kImages);
  RunTimes times;
  const Results results = images.program.run_plan(plan, machine.devices, &times);
  REQUIRE(results.status.ok());
  CHECK(same_values(images.program, results, images.program.interpret()));
  CHECK(results.counts.host_tasks == kImages);
  CHECK(results.counts.kernels[kAccelerator] == kImages);
  // A kernel takes as long as decoding an image: all but the first run while the next is decoded.
  CHECK(times.seconds == Approx((kImages + 1) * kTask).epsilon(0.01));
  CHECK(predicted(images.program, plan, machine.options) == Approx(times.seconds).epsilon(1e-5));
  for (size_t p = 0, task = 0; p < plan.program.size(); ++p) {
    if (plan.program[p].queue != kWorkerQueue || plan.program[p].kind != Kind::kRun) continue;
    CHECK(times.spans[p].begin == Approx(static_cast<double>(task++) * kTask).margin(1e-3));
  }
}

TEST_CASE("host tasks: queues that stall give the same bits") {
  Images images(8);
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    Simulated machine(1e-6, seed);
    const Results results = images.program.run(machine.options, machine.devices);
    REQUIRE(results.status.ok());
    REQUIRE(results.counts.host_tasks == 8);
    REQUIRE(same_values(images.program, results, images.program.interpret()));
  }
}

TEST_CASE("host tasks: random programs on the CPU alone have the interpreter's bits, also when they are resized") {
  std::mt19937 random(7);
  int with_worker = 0;
  for (int round = 0; round < 120; ++round) {
    Program program;
    if (round % 4 == 0) {
      make_fusable(program, random, 40);
    } else {
      make_random(program, random, 40, false);
    }
    add_host_tasks(program, random);
    PlanOptions options = slow_cpu(round % 2 == 0 ? fused_options() : cpu_options());
    // Other work is no shorter than host tasks.
    options.machine.cpu().rates.memory_bandwidth = 2e4;
    Plan plan = program.plan(options);
    with_worker += uses_worker(plan);
    INFO(to_string(program.graph));
    INFO(to_string(plan));
    const Results expected = program.interpret();
    REQUIRE(same_values(program, program.run_plan(plan, cpu_alone()), expected));
    REQUIRE(resize_plan(program.graph, program.graph, options, plan));
    const Status legal = verify_plan(program.graph, plan, options);
    INFO((legal.ok() ? std::string() : legal.message()));
    REQUIRE(legal.ok());
    REQUIRE(same_values(program, program.run_plan(plan, cpu_alone()), expected));
  }
  CHECK(with_worker > 40);
}

TEST_CASE("host tasks: one that throws poisons what depends on it, and nothing else") {
  Beside beside(test_ops().host_throws);
  const Plan plan = beside.program.plan(slow_cpu());
  REQUIRE(uses_worker(plan));
  const Results results = beside.program.run_plan(plan, cpu_alone());
  CHECK(results.status.message().find("broken kernel") != std::string::npos);
  CHECK_FALSE(results.bindings[beside.decoded].error.ok());
  CHECK_FALSE(results.bindings[beside.joined].error.ok());
  CHECK(results.bindings[beside.apart].error.ok());
  CHECK(results.counts.skipped == 1);
  CHECK(results.counts.host_tasks == 0);
}

TEST_CASE("host tasks: a launch, a record or a wait that fails is made good or an error, and the next run is right") {
  Beside beside(test_ops().host_task);
  const Plan plan = beside.program.plan(slow_cpu());
  const Results expected = beside.program.interpret();
  for (const FaultKind kind : {FaultKind::kLaunch, FaultKind::kEventRecord, FaultKind::kEventWait}) {
    FaultDevice faulty(*test_devices()[kCpu]);
    const Devices devices{&faulty, nullptr};
    faulty.fail(kind, 1);
    Results results = beside.program.run_plan(plan, devices);
    CHECK(faulty.failures(kind) == 1);
    CHECK(results.status.ok() == (kind != FaultKind::kLaunch));
    CHECK(results.bindings[beside.apart].error.ok());
    if (results.status.ok()) CHECK(same_values(beside.program, results, expected));
    results = beside.program.run_plan(plan, devices);
    CHECK(results.status.ok());
    CHECK(same_values(beside.program, results, expected));
  }
}

TEST_CASE("host tasks: the verifier finds a missing wait or record, and what may not run on the worker queue") {
  std::mt19937 random(3);
  int tried = 0;
  for (int round = 0; round < 30; ++round) {
    Program program;
    make_random(program, random, 30, true);
    add_host_tasks(program, random);
    const PlanOptions options = slow_cpu(mixed_options());
    const Plan plan = program.plan(options);
    std::vector<bool> of_worker(plan.event_count);
    for (const Instruction& instruction : plan.program) {
      if (instruction.is_event() && instruction.queue == kWorkerQueue) of_worker[instruction.index] = true;
    }
    for (size_t p = 0; p < plan.program.size(); ++p) {
      const Instruction& instruction = plan.program[p];
      INFO(to_string(plan));
      INFO("p" << p);
      if (instruction.is_event() && of_worker[instruction.index]) {
        ++tried;
        REQUIRE_FALSE(verify_plan(program.graph, without(plan, p), options).ok());
      }
      if (instruction.kind != Kind::kRun || instruction.queue != kHostQueue) continue;
      if (op_table()[program.graph.nodes[instruction.index].op].host_task) continue;
      Plan moved = plan;
      moved.program[p].queue = kWorkerQueue;
      REQUIRE_FALSE(verify_plan(program.graph, moved, options).ok());
    }
  }
  CHECK(tried > 100);
}

TEST_CASE("host tasks: plans and predictions name the worker queue, and plans parse back") {
  Beside beside(test_ops().host_task);
  const PlanOptions options = slow_cpu();
  Plan plan = beside.program.plan(options);
  plan.notes = {};
  const std::string text = to_string(plan);
  CHECK(text.find(": cpu worker: run n0") != std::string::npos);
  const Result<Plan> parsed = parse_plan(text);
  REQUIRE(parsed.ok());
  CHECK(parsed.value() == plan);
  Simulation simulation;
  simulate(beside.program.graph, plan, CostModel(options), simulation);
  CHECK(to_string(simulation).find("cpu worker: busy 0.24 s") != std::string::npos);
  CHECK(queue_id(kCpu, backend::kCpuWorker) == kWorkerQueue);
  CHECK(kind_of(kWorkerQueue) == backend::kCpuWorker);
  CHECK(device_of(kWorkerQueue) == kCpu);
}

TEST_CASE("host tasks: executors of saved programs run them on the worker queue, slot by slot") {
  const bool with_accelerator = GENERATE(false, true);
  Simulated machine(1e-6, 3);
  Beside beside(test_ops().host_task);
  Images images(4);
  Program& program = with_accelerator ? images.program : beside.program;
  const Devices devices = with_accelerator ? machine.devices : cpu_alone();
  const auto executor =
      executor_of(model_of(save(program)), executor_options(with_accelerator ? machine.options : slow_cpu(), devices));
  REQUIRE(uses_worker(executor->plan().plan));
  const Results expected = program.interpret();
  const int64_t launches = devices[kCpu]->counters().launches;
  for (int round = 0; round < 4; ++round) {
    for (size_t slot = 0; slot < executor->slots(); ++slot) {
      set_inputs(*executor, program, slot);
      require(executor->Run(slot));
    }
    for (size_t slot = 0; slot < executor->slots(); ++slot) CHECK(has_values(*executor, expected, slot));
  }
  const int64_t tasks = 4 * static_cast<int64_t>(executor->slots()) * (with_accelerator ? 4 : 1);
  CHECK(devices[kCpu]->counters().launches == launches + tasks);
}

TEST_CASE("host tasks: an executor whose host task throws says so, each time") {
  Beside beside(test_ops().host_throws);
  const auto executor = executor_of(model_of(save(beside.program)), executor_options(slow_cpu(), cpu_alone()));
  REQUIRE(uses_worker(executor->plan().plan));
  for (int round = 0; round < 2; ++round) {
    set_inputs(*executor, beside.program);
    Status status = executor->Run();
    std::vector<float> found(kFloats);
    if (status.ok()) status = executor->GetOutput("b" + std::to_string(beside.joined), view_of(found));
    CHECK(contains(status, "broken kernel"));
  }
}

}  // namespace hetero::graph::testing
