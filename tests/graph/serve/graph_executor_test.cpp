// GraphExecutor: the four phases, what they refuse, and that nothing happens in one that belongs to another.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "backend/base/parallel.h"
#include "backend/sim/sim_device.h"
#include "graph/serve/graph_executor.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/static_program.h"

namespace hetero::graph::testing {
namespace {

using backend::kAccelerator;
using backend::kCpu;

std::unique_ptr<backend::CoreGroup> group_of_one() {
  Result<std::unique_ptr<backend::CoreGroup>> group = backend::CoreGroup::create({.name = "test", .threads = 1});
  REQUIRE(group.ok());
  return std::move(group.value());
}

void run(GraphExecutor& executor, size_t slot = 0) { require(executor.Run(slot)); }

// y = x + 1, w a weight: z = f(y, w).
struct Small {
  Small() {
    x = p.input(16);
    w = p.input(16);
    y = p.define(test_ops().pointwise, 16, {p.read(x)});
    z = p.define(test_ops().pointwise, 16, {p.read(y), p.read(w)}, Preference::kAuto, 3.0f);
    p.escape(z);
  }
  std::shared_ptr<Model> model() { return model_of(save(p, {w})); }
  Program p;
  BufferId x, w, y, z;
};

void check_program(Program& p, const PlanOptions& plan, const std::set<BufferId>& constants = {}) {
  auto saved = save(p, constants);
  // Static inputs outlive the program.
  for (Buffer& buffer : p.graph.buffers) buffer.escapes |= buffer.valid_on != 0;
  const Results expected = p.interpret();
  auto executor = executor_of(model_of(std::move(saved)), executor_options(plan));
  for (size_t slot = 0; slot < executor->slots(); ++slot) {
    set_inputs(*executor, p, slot);
    run(*executor, slot);
    CHECK(has_values(*executor, expected, slot));
  }
  // What was updated begins anew.
  set_inputs(*executor, p, 1);
  run(*executor, 1);
  CHECK(has_values(*executor, expected, 1));
  CHECK(executor->counts().allocations == 0);
}

}  // namespace

TEST_CASE("a static program computes what the interpreter does, on whatever devices", "[accelerator]") {
  if (is_accelerator_missing()) return;
  std::mt19937 random(7);
  for (int i = 0; i < 40; ++i) {
    for (const PlanOptions& plan :
         {cpu_options(), fused_options(), both_options(), mixed_options(), remote_options()}) {
      Program p;
      make_random(p, random, 2 + i, false);
      check_program(p, plan);
    }
  }
}

namespace {

struct PreparedCalls {
  int prepared = 0;
  int bound = 0;  // operands that had a binding then
  int runs = 0;
} prepared_calls;

void count_run(const Invocation&) { ++prepared_calls.runs; }
void count_preparation(const Invocation& invocation) {
  ++prepared_calls.prepared;
  for (int i = 0; i < invocation.node->operand_count; ++i) {
    CHECK(invocation.data[i] != nullptr);
    if (invocation.bindings[invocation.operands[i].buffer] != nullptr) ++prepared_calls.bound;
  }
}
void run_unprepared(const Invocation&) { ++prepared_calls.runs; }
void fail_to_prepare(const Invocation&) { throw std::runtime_error("not now"); }

}  // namespace

TEST_CASE("kernels are prepared in Init, with addresses and weights, and never in a run") {
  const OpId prepared = op_table().add({.name = "test::prepared", .kernel = &count_run, .prepare = &count_preparation});
  const OpId failing =
      op_table().add({.name = "test::unprepared", .kernel = &run_unprepared, .prepare = &fail_to_prepare});
  prepared_calls = {};
  Program p;
  const BufferId x = p.input(16), w = p.input(16);
  const BufferId y = p.define(prepared, 16, {p.read(x), p.read(w)});
  p.escape(p.define(failing, 16, {p.read(y)}));
  const auto executor = executor_of(model_of(save(p, {w})), executor_options(cpu_options()));
  CHECK(prepared_calls.prepared == 1);
  CHECK(prepared_calls.bound == 1);
  CHECK(prepared_calls.runs == 0);
  CHECK(executor->counts().prepared == 1);
  for (size_t slot = 0; slot < executor->slots(); ++slot) {
    set_inputs(*executor, p, slot);
    run(*executor, slot);
  }
  CHECK(prepared_calls.runs == 4);
  CHECK(prepared_calls.prepared == 1);
}

TEST_CASE("a static program of fused groups computes what the interpreter does", "[accelerator]") {
  if (is_accelerator_missing()) return;
  std::mt19937 random(8);
  PlanOptions remote = remote_options();
  remote.fusion = true;
  for (int i = 0; i < 40; ++i) {
    for (const PlanOptions& plan : {fused_options(), remote}) {
      Program p;
      make_fusable(p, random, 2 + i);
      check_program(p, plan);
    }
  }
}

TEST_CASE("a static program runs independent branches on several compute queues, again and again") {
  constexpr double kLaunch = 1e-3;
  auto made = backend::SimDevice::create({.flops = 1e18, .launch_latency = kLaunch, .schedule_seed = 3});
  REQUIRE(made.ok());
  const Devices devices{test_devices()[kCpu], made.value().get()};
  Program p;
  const BufferId x = p.input(64);
  std::vector<Operand> ends;
  for (int branch = 0; branch < 4; ++branch) {
    BufferId value = x;
    for (int i = 0; i < 10; ++i) value = p.define(test_ops().pointwise, 64, {p.read(value)});
    ends.push_back(p.read(value));
  }
  p.escape(p.define(test_ops().pointwise, 64, ends));
  const Results expected = p.interpret();
  PlanOptions options = options_for(devices);
  options.policy = Policy::kAccelerator;
  GraphExecutor::Options executor_settings = executor_options(options, devices);
  executor_settings.segments = false;  // each launch takes its time
  auto executor = executor_of(model_of(save(p)), std::move(executor_settings));
  constexpr int kRuns = 20;
  made.value()->reset_clock();
  for (int r = 0; r < kRuns; ++r) {
    set_inputs(*executor, p);
    run(*executor);
    REQUIRE(has_values(*executor, expected));
  }
  // Ten launches and the join, not forty and the join; and copies, which take next to nothing.
  CHECK(made.value()->host_seconds() >= kRuns * 11 * kLaunch);
  CHECK(made.value()->host_seconds() < kRuns * 12 * kLaunch);
  executor.reset();
}

TEST_CASE("an input is uploaded before a kernel of the CPU changes it") {
  auto made = backend::SimDevice::create({.schedule_seed = 3});
  REQUIRE(made.ok());
  const Devices devices{test_devices()[kCpu], made.value().get()};
  Program p;
  const BufferId x = p.input(16);
  p.escape(p.define(test_ops().matmul, 16, {p.read(x)}, Preference::kAccelerator));
  p.add(test_ops().cpu_only, {p.update(x)}, Preference::kCpu);
  p.escape(p.define(test_ops().matmul, 16, {p.read(x)}, Preference::kAccelerator));
  auto saved = save(p);
  p.escape(x);
  const Results expected = p.interpret();
  auto executor = executor_of(model_of(std::move(saved)), executor_options(options_for(devices), devices));
  for (int r = 0; r < 100; ++r) {
    set_inputs(*executor, p);
    run(*executor);
    REQUIRE(has_values(*executor, expected));
  }
  executor.reset();
}

TEST_CASE("inputs and outputs are found by name and by index, and a wrong one is told what there is", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const bool away = GENERATE(false, true);
  Small small;
  auto executor = executor_of(small.model(), executor_options(away ? remote_options() : cpu_options()));
  std::vector<float> x(16, 2.0f);
  std::vector<float> z(16);
  REQUIRE(executor->SetInput(0, view_of(x)).ok());
  REQUIRE(executor->SetInput("b0", view_of(x)).ok());
  run(*executor);
  REQUIRE(executor->GetOutput(0, view_of(z)).ok());
  std::vector<float> again(16);
  REQUIRE(executor->GetOutput("b3", view_of(again)).ok());
  CHECK(z == again);
  CHECK(contains(executor->SetInput("b1", view_of(x)), "no input called 'b1'; the program has b0"));
  CHECK(contains(executor->SetInput(3, view_of(x)), "no input number 3; the program has b0"));
  CHECK(contains(executor->GetOutput("x", view_of(z)), "no output called 'x'; the program has b3"));
  CHECK(contains(executor->SetInput(0, view_of(x), 2), "no slot 2; the executor has 2"));
}

TEST_CASE(
    "wrong shapes, dtypes and devices, and inputs that were not set, are refused in words, and the next run works",
    "[accelerator]") {
  if (is_accelerator_missing()) return;
  const bool away = GENERATE(false, true);
  Small small;
  auto executor = executor_of(small.model(), executor_options(away ? remote_options() : cpu_options()));
  std::vector<float> x(16, 2.0f);
  CHECK(contains(executor->Run(), "input 'b0' of slot 0 was not set"));
  CHECK(contains(executor->SetInput(0, TensorView::row_major(x.data(), "f32", {4, 4})),
                 "f32[16] in this program, not f32[4,4]"));
  CHECK(contains(executor->SetInput(0, TensorView::row_major(x.data(), "i32", {16})), "not i32[16]"));
  CHECK(contains(executor->SetInput(0, TensorView::row_major(x.data(), "float", {16})), "an unknown dtype"));
  CHECK(contains(executor->SetInput(0, TensorView::row_major(nullptr, "f32", {16})), "has no memory"));
  TensorView two_strides = view_of(x);
  two_strides.strides = {1, 1};
  CHECK(contains(executor->SetInput(0, two_strides), "has 1 dimensions, and was given 2 strides"));
  TensorView remote = view_of(x);
  remote.device = kAccelerator;
  CHECK(contains(executor->SetInput(0, remote), "the host's memory"));
  // Memory can be lent where the program uses it.
  const bool is_there = away && test_devices()[kAccelerator] != nullptr;
  const auto refused = [&](const TensorView& given, const std::string& words) {
    CHECK(contains(executor->SetInputZeroCopy(0, given), words));
    CHECK(contains(executor->SetOutputZeroCopy(0, given), words));
  };
  refused(is_there ? view_of(x) : remote, "cannot be lent");
  refused(TensorView::row_major(x.data(), "i32", {16}), "f32[16] in this program, not i32[16]");
  refused(TensorView::row_major(x.data(), "f64", {16}), "f32[16] in this program, not f64[16]");
  refused(TensorView::row_major(x.data(), "f32", {15}), "f32[16] in this program, not f32[15]");
  refused(TensorView::row_major(x.data(), "f32", {4, 4}), "f32[16] in this program, not f32[4,4]");
  refused(TensorView::row_major(nullptr, "f32", {16}), "has no memory");
  CHECK(contains(executor->RunAsync().status(), "needs a core group"));
  CHECK_FALSE(GraphExecutor::Init("/nowhere/at.all", {}).ok());
  REQUIRE(executor->SetInput(0, view_of(x)).ok());
  run(*executor);
}

TEST_CASE("there are no outputs before a run, in any slot", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const bool away = GENERATE(false, true);
  Small small;
  auto executor = executor_of(small.model(), executor_options(away ? remote_options() : cpu_options()));
  std::vector<float> x(16, 2.0f);
  CHECK(contains(executor->GetOutput(0, view_of(x)), "output 'b3' has no value: slot 0 has not run"));
  CHECK(contains(executor->GetOutputView(0).status(), "has not run"));
  CHECK(contains(executor->GetOutputAsync(0, view_of(x)).status(), "has not run"));
  REQUIRE(executor->SetInput(0, view_of(x)).ok());
  run(*executor);
  CHECK(executor->GetOutput(0, view_of(x)).ok());
  CHECK(contains(executor->GetOutput(0, view_of(x), 1), "slot 1 has not run"));
}

TEST_CASE("what was made of nothing is an error, or done") {
  CHECK(contains(GraphExecutor::Init(std::shared_ptr<Model>(), {}).status(), "needs a model"));
  Pending nothing;
  CHECK(nothing.done());
  CHECK(nothing.wait().ok());
}

TEST_CASE("a state is read by its name", "[accelerator]") {
  if (is_accelerator_missing()) return;
  for (const PlanOptions& plan : {cpu_options(), remote_options()}) {
    Program p;
    const BufferId x = p.input(4);
    const BufferId state = p.input(4);
    const BufferId weight = p.input(4);
    p.add(test_ops().pointwise, {p.read(x), p.read(weight), p.update(state)}, Preference::kAuto, 1.0f);
    const BufferId y = p.define(test_ops().pointwise, 4, {p.read(state)});
    p.escape(y);
    auto executor = executor_of(model_of(save(p, {state, weight})), executor_options(plan));
    const std::string name = executor->program().constants[0].name;
    std::vector<float> before(4), after(4), given(4, 2.0f), wrong(5);
    require(executor->GetState(name, view_of(before)));
    REQUIRE(executor->SetInput(0, view_of(given)).ok());
    run(*executor);
    require(executor->GetState(name, view_of(after)));
    CHECK(before != after);
    std::vector<float> again(4);
    run(*executor);
    require(executor->GetState(name, view_of(again)));
    CHECK(after != again);
    CHECK(contains(executor->GetState(name, view_of(wrong)), "not f32[5]"));
    CHECK(contains(executor->GetState("nothing", view_of(after)), "no state called 'nothing'"));
    CHECK(contains(executor->GetState(executor->program().constants[1].name, view_of(after)), "no state"));
  }
}

TEST_CASE("a state and a weight may be outputs, wherever they are", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const PlanOptions plan = GENERATE(false, true) ? remote_options() : cpu_options();
  Program p;
  const BufferId x = p.input(8);
  const BufferId state = p.input(8);
  const BufferId weight = p.input(8);
  p.add(test_ops().pointwise, {p.read(x), p.read(weight), p.update(state)}, Preference::kAuto, 1.0f);
  p.escape(state);
  p.escape(weight);
  auto executor = executor_of(model_of(save(p, {state, weight})), executor_options(plan));
  const std::string name = executor->program().constants[0].name;
  const auto output_of = [&](BufferId buffer) {
    return static_cast<size_t>(std::ranges::find(executor->program().outputs, buffer, &ProgramValue::buffer) -
                               executor->program().outputs.begin());
  };
  std::vector<float> given(8, 2.0f), last(8), seen(8), held(8), first_weight(8);
  for (size_t slot = 0; slot < executor->slots(); ++slot) {
    REQUIRE(executor->SetInput(0, view_of(given), slot).ok());
  }
  for (int i = 0; i < 6; ++i) {
    const size_t slot = static_cast<size_t>(i) % executor->slots();
    run(*executor, slot);
    Result<Pending> copy = executor->GetOutputAsync(output_of(state), view_of(seen), slot);
    require(copy.status());
    require(copy.value().wait());
    require(executor->GetState(name, view_of(held)));
    CHECK(seen == held);
    CHECK(seen != last);
    last = seen;
    require(executor->GetOutput(output_of(weight), view_of(seen), slot));
    if (i == 0) first_weight = seen;
    CHECK(seen == first_weight);
  }
}

TEST_CASE("inputs may have any strides, and outputs go to any", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const bool away = GENERATE(false, true);
  Program p;
  const BufferId x = p.input(6);
  const BufferId y = p.define(test_ops().pointwise, 6, {p.read(x)}, Preference::kAuto, 0.0f);
  p.escape(y);
  auto executor = executor_of(model_of(save(p)), executor_options(away ? remote_options() : cpu_options()));
  std::vector<float> wide(18, -1.0f);
  for (int i = 0; i < 6; ++i) wide[static_cast<size_t>(3 * i)] = static_cast<float>(i);
  const TensorView strided{.data = wide.data(), .dtype = parse_dtype("f32"), .sizes = {6}, .strides = {3}};
  REQUIRE(executor->SetInput(0, strided).ok());
  run(*executor);
  REQUIRE(executor->GetOutput(0, strided).ok());
  for (int i = 0; i < 6; ++i) {
    CHECK(wide[static_cast<size_t>(3 * i)] == 0.5f * static_cast<float>(i));
    CHECK(wide[static_cast<size_t>(3 * i + 1)] == -1.0f);
  }
}

TEST_CASE("lent memory is read and written where it is, and is checked before") {
  Small small;
  auto executor = executor_of(small.model(), executor_options(cpu_options()));
  auto x = std::make_shared<std::vector<float>>(16, 2.0f);
  std::vector<float> z(16);
  std::vector<float> expected(16);
  REQUIRE(executor->SetInput(0, view_of(*x)).ok());
  run(*executor);
  REQUIRE(executor->GetOutput(0, view_of(expected)).ok());

  REQUIRE(executor->SetInputZeroCopy(0, view_of(*x), 0, x).ok());
  REQUIRE(executor->SetOutputZeroCopy(0, view_of(z)).ok());
  CHECK(x.use_count() == 2);
  run(*executor);
  CHECK(z == expected);
  Result<TensorView> view = executor->GetOutputView(0);
  REQUIRE(view.ok());
  CHECK(view.value().data == z.data());
  (*x)[0] = 100.0f;
  run(*executor);
  CHECK(z[0] != expected[0]);
  CHECK(std::equal(z.begin() + 1, z.end(), expected.begin() + 1));
  // A copied input takes the place of the lent one.
  std::vector<float> own(16, 2.0f);
  REQUIRE(executor->SetInput(0, view_of(own)).ok());
  CHECK(x.use_count() == 1);
  run(*executor);
  CHECK(z == expected);

  std::vector<float> wide(32);
  const TensorView strided{.data = wide.data(), .dtype = parse_dtype("f32"), .sizes = {16}, .strides = {2}};
  CHECK(contains(executor->SetInputZeroCopy(0, strided), "other strides"));
  CHECK(contains(executor->SetOutputZeroCopy(0, strided), "other strides"));
  const auto refused = [&](const TensorView& given, const std::string& words) {
    CHECK(contains(executor->SetInputZeroCopy(0, given), words));
    CHECK(contains(executor->SetOutputZeroCopy(0, given), words));
  };
  TensorView askew = view_of(own);
  askew.data = reinterpret_cast<char*>(wide.data()) + 2;
  refused(askew, "not aligned");
  // What was refused has changed nothing.
  run(*executor);
  CHECK(z == expected);
}

TEST_CASE("an input that is also an output cannot be lent", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const bool away = GENERATE(false, true);
  Program p;
  const BufferId x = p.input(8);
  p.add(test_ops().pointwise, {p.update(x)});
  p.escape(x);
  auto executor = executor_of(model_of(save(p)), executor_options(away ? remote_options() : cpu_options()));
  std::vector<float> values(8);
  CHECK(contains(executor->SetInputZeroCopy(0, view_of(values)), "shares its memory"));
}

TEST_CASE("a state that is lent is written where it is") {
  Program p;
  const BufferId x = p.input(8);
  p.add(test_ops().pointwise, {p.update(x)});
  p.escape(x);
  auto executor = executor_of(model_of(save(p)), executor_options(cpu_options()));
  std::vector<float> mine(8, 1), copied(8, 1), other(8, 3), result(8);
  for (int run = 0; run < 3; ++run) {
    REQUIRE(executor->SetInput(0, view_of(copied)).ok());
    REQUIRE(executor->Run().ok());
    REQUIRE(executor->GetOutput(0, view_of(copied)).ok());
  }
  REQUIRE(executor->SetStateZeroCopy(0, view_of(mine)).ok());
  for (int run = 0; run < 3; ++run) REQUIRE(executor->Run().ok());
  CHECK(mine == copied);
  REQUIRE(executor->GetOutput(0, view_of(result)).ok());
  CHECK(result == mine);
  REQUIRE(executor->SetStateZeroCopy(0, view_of(other)).ok());
  REQUIRE(executor->Run().ok());
  CHECK(mine == copied);
  CHECK(other != std::vector<float>(8, 3));
}

TEST_CASE("a kernel's exception is the run's error with the operator's name, and the executor goes on",
          "[accelerator]") {
  if (is_accelerator_missing()) return;
  static std::atomic<bool> broken{true};
  const OpId op = op_table().add({.name = "test::sometimes", .kernel = [](const Invocation& call) {
                                    if (broken) throw std::runtime_error("today not");
                                    static_cast<float*>(call.data[1])[0] = static_cast<float*>(call.data[0])[0];
                                  }});
  for (const PlanOptions& plan : {cpu_options(), remote_options()}) {
    broken = true;
    Program p;
    const BufferId x = p.input(1);
    const BufferId y = p.define(op, 1, {p.read(x)});
    const BufferId z = p.define(test_ops().pointwise, 1, {p.read(y)});
    p.escape(z);
    auto executor = executor_of(model_of(save(p)), executor_options(plan));
    std::vector<float> values(1, 4.0f);
    REQUIRE(executor->SetInput(0, view_of(values)).ok());
    (void)executor->Run();
    CHECK(contains(executor->GetOutput(0, view_of(values)), "test::sometimes: today not"));
    CHECK(contains(executor->Wait(), "today not"));
    broken = false;
    run(*executor);
    REQUIRE(executor->GetOutput(0, view_of(values)).ok());
    CHECK(values[0] == 3.0f);
  }
}

TEST_CASE("an error stays with its slot, and is over when that slot runs again", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const OpId op = op_table().add({.name = "test::takes_no_minus", .kernel = [](const Invocation& call) {
                                    const float value = static_cast<float*>(call.data[0])[0];
                                    if (value < 0) throw std::runtime_error("a minus");
                                    static_cast<float*>(call.data[1])[0] = value;
                                  }});
  for (const bool random : {false, true}) {
    for (const PlanOptions& plan : {cpu_options(), remote_options()}) {
      Program p;
      const BufferId x = p.input(1);
      const BufferId noise = p.empty(1);
      p.add(test_ops().random, {p.operand(noise, Access::kDefine)});
      p.graph.attributes.resize(p.graph.nodes.back().attribute_offset + 16);
      p.graph.nodes.back().attribute_bytes = 16;
      const BufferId y = p.define(op, 1, {p.read(x)});
      p.escape(y);
      p.escape(noise);
      auto saved = save(p);
      // New numbers are drawn when all slots have come to rest.
      if (random) saved->draws = {saved->graph.nodes[0].attribute_offset};
      auto executor = executor_of(model_of(std::move(saved)), executor_options(plan));
      const size_t output = executor->program().outputs[0].buffer == y ? 0 : 1;
      const auto set = [&](float value, size_t slot) {
        std::vector<float> values(1, value);
        require(executor->SetInput(0, view_of(values), slot));
      };
      const auto get = [&](size_t slot) {
        std::vector<float> values(1);
        const Status status = executor->GetOutput(output, view_of(values), slot);
        return status.ok() ? std::to_string(static_cast<int>(values[0])) : status.message();
      };
      set(-1, 0);
      set(2, 1);
      std::atomic<int32_t> stop{1};
      CHECK(executor->Run(0, &stop).error_class() == ErrorClass::kCancelled);
      run(*executor, 1);
      CHECK(get(1) == "2");
      (void)executor->Run(0);
      run(*executor, 1);
      CHECK(get(1) == "2");
      CHECK(get(0) == "test::takes_no_minus: a minus");
      set(3, 0);
      run(*executor, 0);
      CHECK(get(0) == "3");
      CHECK(get(1) == "2");
    }
  }
}

TEST_CASE("a run that is told to stop ends as cancelled between two kernels", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const bool away = GENERATE(false, true);
  static std::atomic<int32_t> stop{0};
  const OpId op = op_table().add({.name = "test::stops", .kernel = [](const Invocation&) { stop = 1; }});
  Program p;
  const BufferId x = p.input(1);
  const BufferId y = p.define(op, 1, {p.read(x)});
  const BufferId z = p.define(test_ops().effect, 1, {p.read(y)});
  p.escape(z);
  auto executor = executor_of(model_of(save(p)), executor_options(away ? remote_options() : cpu_options()));
  std::vector<float> values(1);
  REQUIRE(executor->SetInput(0, view_of(values)).ok());
  const int before = effect_count();
  const Status status = executor->Run(0, &stop);
  REQUIRE_FALSE(status.ok());
  CHECK(status.error_class() == ErrorClass::kCancelled);
  CHECK(effect_count() == before);
  run(*executor);
  require(executor->Wait());
  CHECK(effect_count() == before + 1);
}

TEST_CASE("runs on a core group come one after the other, and one slot is not used by two", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const bool away = GENERATE(false, true);
  static std::atomic<bool> go{false};
  const OpId op = op_table().add({.name = "test::doubles", .kernel = [](const Invocation& call) {
                                    static_cast<float*>(call.data[1])[0] = 2 * static_cast<float*>(call.data[0])[0];
                                  }});
  Program p;
  const BufferId x = p.input(1);
  p.escape(p.define(op, 1, {p.read(x)}));
  const auto group = group_of_one();
  // Holds the group's core. A kernel could not: on an accelerator a run ends before its kernels do.
  const auto hold = [&group] {
    go = false;
    REQUIRE(group->submit({[](void*) { go.wait(false); }, nullptr}).ok());
  };
  std::vector<float> a(1, 1.0f);
  std::vector<float> b(1, 2.0f);
  {
    GraphExecutor::Options options = executor_options(away ? remote_options() : cpu_options());
    options.group = group.get();
    auto executor = executor_of(model_of(save(p)), std::move(options));
    REQUIRE(executor->SetInput(0, view_of(a), 0).ok());
    REQUIRE(executor->SetInput(0, view_of(b), 1).ok());
    hold();
    Result<Pending> first = executor->RunAsync(0);
    Result<Pending> second = executor->RunAsync(1);
    REQUIRE((first.ok() && second.ok()));
    CHECK_FALSE(first.value().done());
    CHECK(contains(executor->Run(0), "slot 0 is running"));
    CHECK(contains(executor->RunAsync(1).status(), "slot 1 is running"));
    CHECK(contains(executor->SetInput(0, view_of(a), 0), "slot 0 is running"));
    go = true;
    go.notify_all();
    CHECK(first.value().wait().ok());
    CHECK(second.value().wait().ok());
    CHECK(second.value().done());
    REQUIRE(executor->GetOutput(0, view_of(a), 0).ok());
    REQUIRE(executor->GetOutput(0, view_of(b), 1).ok());
    CHECK((a[0] == 2.0f && b[0] == 4.0f));
    hold();
    REQUIRE(executor->RunAsync(0).ok());
    std::thread later([] {
      go = true;
      go.notify_all();
    });
    executor.reset();  // waits
    later.join();
  }
}

TEST_CASE("executors of one model share its weights, and have states of their own", "[accelerator]") {
  if (is_accelerator_missing()) return;
  Program p;
  const BufferId x = p.input(64);
  const BufferId weight = p.input(64);
  const BufferId state = p.input(64);
  p.add(test_ops().pointwise, {p.update(state), p.read(x)}, Preference::kAuto, 0.0f);
  p.escape(state);
  p.escape(p.define(test_ops().pointwise, 64, {p.read(weight), p.read(state)}));
  for (const PlanOptions& plan : {cpu_options(), remote_options()}) {
    auto saved = save(p, {weight, state});
    const void* const bytes = saved->constants[0].bytes.data();
    const auto model = model_of(std::move(saved));
    auto first = executor_of(model, executor_options(plan));
    auto second = executor_of(model, executor_options(plan));
    CHECK(model->host_bytes(weight) == bytes);
    set_inputs(*first, p);
    set_inputs(*second, p);
    run(*second);
    std::vector<float> once(64);
    std::vector<float> found(64);
    const size_t output = first->outputs().size() - 1;
    REQUIRE(second->GetOutput(output, view_of(once)).ok());
    run(*first);
    REQUIRE(first->GetOutput(output, view_of(found)).ok());
    CHECK(found == once);
    run(*second);
    REQUIRE(second->GetOutput(output, view_of(found)).ok());
    CHECK(found != once);
  }
}

TEST_CASE("weights are on the accelerator once, however many executors there are, and are not copied again",
          "[accelerator]") {
  if (is_accelerator_missing(true)) return;
  Program p;
  const BufferId x = p.input(64);
  const BufferId weight = p.input(1 << 16);
  p.escape(p.define(test_ops().matmul, 64, {p.read(x), p.read(weight)}, Preference::kAccelerator));
  const auto model = model_of(save(p, {weight}));
  backend::Device& sim = *test_devices()[kAccelerator];
  const int64_t before = sim.memory_stats().allocated_bytes;
  auto first = executor_of(model, executor_options(remote_options()));
  const int64_t with_one = sim.memory_stats().allocated_bytes - before;
  auto second = executor_of(model, executor_options(remote_options()));
  CHECK(with_one >= (1 << 18));
  CHECK(sim.memory_stats().allocated_bytes - before < with_one + (1 << 17));
  set_inputs(*first, p);
  const int64_t copied = sim.counters().bytes_in;
  for (int i = 0; i < 3; ++i) run(*first);
  REQUIRE(first->Wait().ok());
  CHECK(sim.counters().bytes_in == copied);
  CHECK(first->counts().host_waits == 0);
}

TEST_CASE("a plan is kept for the machine it was made for, and made anew for another") {
  Small small;
  PlanOptions plan = fused_options();
  plan.fixed_memory = true;
  auto saved = save(small.p, {small.w});
  StaticPlan made;
  REQUIRE(plan_program(*saved, plan, true, made).ok());
  CHECK(made.origin == "made anew: the program was saved without a plan");
  keep_plan(made, plan, *saved);
  StaticPlan read;
  REQUIRE(plan_program(*saved, plan, true, read).ok());
  CHECK(read.origin == "saved with the program");
  CHECK(read.plan == made.plan);
  PlanOptions other = remote_options();
  other.fixed_memory = true;
  REQUIRE(plan_program(*saved, other, true, read).ok());
  CHECK(read.origin == "made anew: the saved plan is for another machine or other settings");
  // What the costs come from, how much memory there is and how it is used are of the machine, too.
  keep_plan(made, plan, *saved);
  const auto is_made_anew = [&](const PlanOptions& now) {
    REQUIRE(plan_program(*saved, now, true, read).ok());
    return read.origin == "made anew: the saved plan is for another machine or other settings";
  };
  REQUIRE(plan_program(*saved, other, true, made).ok());
  keep_plan(made, other, *saved);
  CHECK_FALSE(is_made_anew(other));
  PlanOptions slower = other;
  slower.machine[1].rates.copy_bandwidth /= 2;
  CHECK(is_made_anew(slower));
  PlanOptions smaller = other;
  smaller.machine[1].bytes = uint64_t{1} << 20;
  CHECK(is_made_anew(smaller));
  PlanOptions narrower = other;
  narrower.compute_queues = 1;
  CHECK(is_made_anew(narrower));
  static constexpr backend::ParallelPool kTwoThreads = {
      [](int64_t begin, int64_t end, int64_t, backend::RangeFunction body) { body(begin, end); },
      [] { return int64_t{2}; }};
  backend::set_parallel_pool(&kTwoThreads);
  CHECK(is_made_anew(other));
  backend::set_parallel_pool(nullptr);
  CHECK_FALSE(is_made_anew(other));
  REQUIRE(plan_program(*saved, plan, false, made).ok());
  keep_plan(made, plan, *saved);
  saved->plan = "plan: 1 nodes";
  REQUIRE(plan_program(*saved, plan, true, read).ok());
  CHECK(read.origin.starts_with("made anew: line 1"));
  CHECK(read.plan == made.plan);
}

}  // namespace hetero::graph::testing
