// Planning and running on the CPU take no memory from the heap once their vectors have grown. The
// test counts calls of operator new; sanitizers bring their own, so there it is left out.

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#include <atomic>
#include <cstdlib>
#include <new>

#include "graph/serve/scheduler.h"
#include "graph/serve/stage_pipeline.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"
#include "tests/graph/fixtures/static_program.h"

namespace {
thread_local long heap_allocations = 0;
}  // namespace

void* operator new(size_t bytes) {
  ++heap_allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
// Not inlined: g++ 12 takes an inlined free() of a pointer from operator new for a mistake.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace hetero::graph::testing {

TEST_CASE("planning and running on the CPU allocate nothing in the long run") {
  std::mt19937 random(31);
  Program p;
  make_random(p, random, 300, false);
  // Inputs are bound for run after run.
  for (BufferId b = 0; b < p.graph.buffers.size(); ++b) {
    if (p.graph.buffers[b].valid_on != 0) p.escape(b);
  }
  PlanOptions options = cpu_options();
  options.thorough = false;  // the search for a smaller arena allocates
  Plan plan;
  Executor executor({test_devices()[0], nullptr});
  std::vector<Binding> bindings = p.bind(test_devices());
  const std::vector<Binding*> pointers = p.pointers(bindings);
  const OpId empty = op_table().add({.name = "test::empty", .kernel = [](const Invocation&) {}});
  // The tests' own kernels allocate; without them what is left is ours.
  for (Node& node : p.graph.nodes) node.op = empty;
  RunCounts counts;
  long last = 0;
  for (int round = 0; round < 4; ++round) {
    const long before = heap_allocations;
    make_plan(p.graph, options, plan);
    const Status status = executor.run(p.graph, plan, pointers, counts);
    last = heap_allocations - before;
    REQUIRE(status.ok());
  }
  CHECK(plan.program.size() > 50);
  CHECK(last == 0);
}

TEST_CASE("planning and running fused groups allocate nothing in the long run") {
  Program p;
  const BufferId x = p.input(64);
  p.escape(x);
  BufferId value = x;
  for (int i = 0; i < 50; ++i) {
    value = p.define(test_ops().map, 64, {p.read(value), p.read(x)});
    p.add(test_ops().map, {p.operand(value, Access::kUpdate, {32}, {1}, 0)});
  }
  p.escape(value);
  const PlanOptions options = fused_options();
  Plan plan;
  Executor executor({test_devices()[0], nullptr});
  std::vector<Binding> bindings = p.bind(test_devices());
  const std::vector<Binding*> pointers = p.pointers(bindings);
  RunCounts counts;
  long last = 0;
  for (int round = 0; round < 4; ++round) {
    const long before = heap_allocations;
    make_plan(p.graph, options, plan);
    const Status status = executor.run(p.graph, plan, pointers, counts);
    last = heap_allocations - before;
    REQUIRE(status.ok());
  }
  CHECK(counts.fused_groups > 50);
  CHECK(last == 0);
}

namespace {

// The bytes move as they will; each run gets them where the plan expects them.
long allocations_of_the_last_run(Program& p, const Plan& plan, int runs, RunCounts& counts) {
  Executor executor(test_devices());
  long last = 0;
  for (int run = 0; run < runs; ++run) {
    std::vector<Binding> bindings = p.bind(test_devices());
    const std::vector<Binding*> pointers = p.pointers(bindings);
    const long before = heap_allocations;
    const Status status = executor.run(p.graph, plan, pointers, counts);
    last = heap_allocations - before;
    REQUIRE(status.ok());
  }
  return last;
}

}  // namespace

TEST_CASE("running on two devices allocates nothing in the long run") {
  std::mt19937 random(33);
  Program p;
  make_random(p, random, 200, false);
  for (BufferId b = 0; b < p.graph.buffers.size(); ++b) {
    if (p.graph.buffers[b].valid_on != 0) p.escape(b);
  }
  const OpId empty = op_table().add({.name = "test::empty_anywhere", .kernel = [](const Invocation&) {}});
  for (Node& node : p.graph.nodes) node.op = empty;
  Plan plan;
  make_plan(p.graph, mixed_options(), plan);
  // As from the second run on.
  for (BufferId b = 0; b < p.graph.buffers.size(); ++b) {
    if (p.graph.buffers[b].valid_on != 0) p.graph.buffers[b].valid_on = plan.valid_after[b];
  }
  make_plan(p.graph, mixed_options(), plan);
  note_buffers(p.graph, plan, plan.notes);
  RunCounts counts;
  const long last = allocations_of_the_last_run(p, plan, 30, counts);
  CHECK(counts.copies > 30);
  CHECK(counts.waits > 30);
  CHECK(last == 0);
}

TEST_CASE("running fused groups on two devices allocates nothing in the long run") {
  Program p;
  const BufferId x = p.input(64);
  p.escape(x);
  BufferId value = x;
  for (int i = 0; i < 50; ++i) {
    value = p.define(test_ops().map, 64, {p.read(value), p.read(x)});
    p.add(test_ops().map, {p.operand(value, Access::kUpdate, {32}, {1}, 0)});
  }
  p.escape(value);
  PlanOptions options = mixed_options();
  options.fusion = true;
  Plan plan;
  make_plan(p.graph, options, plan);
  p.graph.buffers[x].valid_on = plan.valid_after[x];
  make_plan(p.graph, options, plan);
  note_buffers(p.graph, plan, plan.notes);
  REQUIRE_FALSE(uses_host_only(plan));
  RunCounts counts;
  const long last = allocations_of_the_last_run(p, plan, 10, counts);
  CHECK(counts.fused_groups > 100);
  CHECK(last == 0);
}

TEST_CASE("static programs run without allocating, and on an accelerator without waiting for it") {
  const OpId empty = op_table().add({.name = "test::empty_static", .kernel = [](const Invocation&) {}});
  for (const PlanOptions& plan : {cpu_options(), fused_options(), remote_options()}) {
    Program p;
    const BufferId x = p.input(64);
    BufferId value = x;
    for (int i = 0; i < 50; ++i) {
      value = p.define(i % 5 == 0 ? empty : test_ops().map, 64, {p.read(value), p.read(x)});
    }
    p.escape(value);
    // The tests' own kernels allocate; where they run as they are, without them what is left is ours.
    if (!plan.fusion) {
      for (Node& node : p.graph.nodes) node.op = empty;
    }
    const auto executor = executor_of(model_of(save(p)), executor_options(plan));
    set_inputs(*executor, p);
    long last = -1;
    for (int run = 0; run < 10; ++run) {
      const long before = heap_allocations;
      const Status status = executor->Run();
      last = heap_allocations - before;
      REQUIRE(status.ok());
      REQUIRE(executor->Wait().ok());
    }
    CHECK(last == 0);
    CHECK(executor->counts().allocations == 0);
    CHECK(executor->counts().host_waits == 0);
    // The last runs are of what was recorded.
    CHECK(executor->counts().segments == (plan.machine.has_accelerator() ? 7 : 0));
  }
}

TEST_CASE("requests are submitted, run and waited for without allocating in the long run") {
  constexpr size_t kLanes = 2;
  constexpr size_t kRequests = 40;
  std::vector<std::unique_ptr<backend::CoreGroup>> groups;
  std::vector<backend::CoreGroup*> lanes;
  for (size_t i = 0; i < kLanes; ++i) {
    auto group = backend::CoreGroup::create({.name = "lane"});
    REQUIRE(group.ok());
    groups.push_back(std::move(group.value()));
    lanes.push_back(groups.back().get());
    // Which lane serves which request differs from round to round, so both are warmed up.
    REQUIRE(lanes.back()->submit({[](void*) {}, nullptr}).ok());
    REQUIRE(lanes.back()->wait_idle().ok());
  }
  // What a lane's thread has allocated when it begins a request; -1 before its first.
  long by_lane[kLanes] = {-1, -1};
  auto created = Scheduler::create(lanes, {.capacity = 10}, [&](size_t lane, Request&) {
    by_lane[lane] = heap_allocations;
    return Status();
  });
  REQUIRE(created.ok());
  Scheduler& scheduler = *created.value();
  std::vector<std::shared_ptr<Request>> requests;
  for (size_t i = 0; i < kRequests; ++i) requests.push_back(std::make_shared<Request>());
  long last = 0;
  bool ok = true;
  for (int round = 0; round < 4; ++round) {
    const long before = heap_allocations;
    const long before_by_lane[] = {by_lane[0], by_lane[1]};
    const RequestOptions options{.deadline = Request::Clock::now() + std::chrono::hours(1)};
    for (const auto& request : requests) ok = scheduler.submit(request, options).ok() && ok;
    for (const auto& request : requests) ok = request->wait().ok() && ok;
    scheduler.wait_idle();
    last = heap_allocations - before;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      if (before_by_lane[lane] >= 0) last += by_lane[lane] - before_by_lane[lane];
    }
  }
  CHECK(ok);
  CHECK(scheduler.counters().completed == 4 * kRequests);
  CHECK(last == 0);
}

namespace {

// What a stage's thread has allocated when its kernel is called, first and latest; the first calls warm it up.
struct StageAllocations {
  std::atomic<int> calls{0};
  std::atomic<long> warm{0};
  std::atomic<long> latest{0};
};
StageAllocations of_stage[2];

template <int stage>
void note_allocations(const Invocation&) {
  constexpr int kWarm = 10;
  if (++of_stage[stage].calls == kWarm) of_stage[stage].warm = heap_allocations;
  of_stage[stage].latest = heap_allocations;
}

}  // namespace

TEST_CASE("a request through stages allocates itself and nothing else in the long run") {
  Program p;
  const BufferId x = p.input(64);
  const auto add = [](const char* name, KernelFunction kernel) {
    return op_table().add({.name = name, .kernel = kernel});
  };
  const BufferId y = p.define(add("test::stage0", note_allocations<0>), 64, {p.read(x)});
  // Copied into the stage and out of it, where other values are lent.
  p.add(add("test::stage1", note_allocations<1>), {p.update(y)});
  p.escape(y);
  StagePipeline::Options options;
  options.devices = test_devices();
  options.plans.assign(2, cpu_options());
  auto pipeline = StagePipeline::create(model_of(save(p)), std::move(options));
  REQUIRE(pipeline.ok());
  REQUIRE(pipeline.value()->counts().copied == 2);
  std::vector<float> values(64);
  const std::vector<TensorView> views = {view_of(values)};
  long last = 0;
  bool ok = true;
  for (int r = 0; r < 100; ++r) {
    const long before = heap_allocations;
    auto request = pipeline.value()->submit(views, views);
    ok = request.ok() && request.value()->wait().ok() && ok;
    last = heap_allocations - before;
  }
  CHECK(ok);
  CHECK(last == 1);
  for (const StageAllocations& stage : of_stage) {
    CHECK(stage.calls == 100);
    CHECK(stage.latest == stage.warm);
  }
}

}  // namespace hetero::graph::testing

#endif
