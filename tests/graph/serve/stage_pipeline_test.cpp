// Cutting a program into stages, and running them at the same time.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "backend/sim/sim_device.h"
#include "graph/cost/cost.h"
#include "graph/optimize/cut_program.h"
#include "graph/program/verify_program.h"
#include "graph/serve/stage_pipeline.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/patience.h"
#include "tests/graph/fixtures/static_program.h"

namespace hetero::graph::testing {
namespace {

using Floats = std::vector<std::vector<float>>;  // per input or output

std::unique_ptr<StagePipeline> pipeline_of(std::shared_ptr<Model> model, StagePipeline::Options options,
                                           const PlanOptions& plan = cpu_options()) {
  options.devices = test_devices();
  options.plans.assign(options.stages, plan);
  Result<std::unique_ptr<StagePipeline>> pipeline = StagePipeline::create(std::move(model), std::move(options));
  require(pipeline.status());
  return std::move(pipeline.value());
}

// Numbers that depend on the request.
Floats inputs_of(const SavedProgram& program, int request) {
  Floats all;
  for (const ProgramValue& input : program.inputs) {
    std::vector<float>& values = all.emplace_back(program.graph.buffers[input.buffer].bytes / sizeof(float));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] =
          static_cast<float>(request) + 0.25f * static_cast<float>(all.size()) + 0.125f * static_cast<float>(i % 31);
    }
  }
  return all;
}

Floats outputs_of(const SavedProgram& program) {
  Floats all;
  for (const ProgramValue& output : program.outputs) {
    all.emplace_back(program.graph.buffers[output.buffer].bytes / sizeof(float));
  }
  return all;
}

std::vector<TensorView> views_of(Floats& all) {
  std::vector<TensorView> views;
  for (std::vector<float>& values : all) views.push_back(view_of(values));
  return views;
}

bool same_bits(const Floats& a, const Floats& b) {
  return std::ranges::equal(a, b, [](const std::vector<float>& x, const std::vector<float>& y) {
    return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0);
  });
}

struct Sent {
  Floats outputs;
  std::shared_ptr<StageRequest> request;
};

Sent send(StagePipeline& pipeline, const SavedProgram& program, int request) {
  Sent sent{outputs_of(program), nullptr};
  Floats inputs = inputs_of(program, request);
  Result<std::shared_ptr<StageRequest>> submitted = pipeline.submit(views_of(inputs), views_of(sent.outputs));
  require(submitted.status());
  sent.request = submitted.value();
  return sent;
}

// What the program computes when it is not cut, of requests one after the other.
std::vector<Floats> run_whole(const std::shared_ptr<Model>& model, const PlanOptions& plan, int requests) {
  const auto made = executor_of(model, executor_options(plan));
  GraphExecutor& executor = *made;
  std::vector<Floats> results;
  for (int r = 0; r < requests; ++r) {
    Floats inputs = inputs_of(model->program(), r);
    for (size_t i = 0; i < inputs.size(); ++i) require(executor.SetInput(i, view_of(inputs[i])));
    require(executor.Run());
    Floats& outputs = results.emplace_back(outputs_of(model->program()));
    for (size_t i = 0; i < outputs.size(); ++i) require(executor.GetOutput(i, view_of(outputs[i])));
  }
  return results;
}

void check_pipeline(const std::shared_ptr<Model>& model, size_t stages, const PlanOptions& plan) {
  constexpr int kRequests = 5;
  const std::vector<Floats> expected = run_whole(model, plan, kRequests);
  auto pipeline = pipeline_of(model, {.stages = stages}, plan);
  std::vector<Sent> sent;
  for (int r = 0; r < kRequests; ++r) sent.push_back(send(*pipeline, model->program(), r));
  for (int r = 0; r < kRequests; ++r) {
    require(sent[static_cast<size_t>(r)].request->wait());
    CHECK(same_bits(sent[static_cast<size_t>(r)].outputs, expected[static_cast<size_t>(r)]));
  }
  CHECK(pipeline->counts().completed == kRequests);
  for (size_t s = 0; s < stages; ++s) CHECK(pipeline->executor(s).counts().runs == kRequests);
}

bool can_be_cut(const std::shared_ptr<Model>& model, size_t stages) {
  const std::shared_ptr<const SavedProgram> program(model, &model->program());
  return cut_program(program, std::vector<PlanOptions>(stages, cpu_options())).ok();
}

// y = x + ..., so many times.
struct Chain {
  explicit Chain(const std::vector<OpId>& ops, const std::vector<int64_t>& counts = {}) {
    BufferId last = p.input(16);
    for (size_t i = 0; i < ops.size(); ++i) {
      last = p.define(ops[i], i < counts.size() ? counts[i] : 16, {p.read(last)}, Preference::kAuto,
                      static_cast<float>(i));
    }
    p.escape(last);
  }
  std::shared_ptr<Model> model() { return model_of(save(p)); }
  Program p;
};

}  // namespace

TEST_CASE("stages compute the bits of the program that was not cut") {
  std::mt19937 random(41);
  int cut = 0;
  for (int i = 0; i < 24; ++i) {
    Program p;
    i % 2 == 0 ? make_random(p, random, 4 + i, false) : make_fusable(p, random, 4 + i);
    // Some are read only, some are states.
    const std::set<BufferId> constants = i % 3 == 0 ? std::set<BufferId>{1} : std::set<BufferId>{};
    auto model = model_of(save(p, constants));
    for (size_t stages = 1; stages <= 4; ++stages) {
      if (!can_be_cut(model, stages)) continue;
      check_pipeline(model, stages, i % 2 == 0 ? cpu_options() : fused_options());
      ++cut;
    }
  }
  CHECK(cut > 70);
}

TEST_CASE("stages may use an accelerator", "[accelerator]") {
  if (is_accelerator_missing()) return;
  std::mt19937 random(42);
  for (int i = 0; i < 8; ++i) {
    Program p;
    make_random(p, random, 12, false);
    auto model = model_of(save(p));
    for (const PlanOptions& plan : {mixed_options(), remote_options()}) {
      if (can_be_cut(model, 3)) check_pipeline(model, 3, plan);
    }
  }
}

TEST_CASE("one stage may run on the CPU and the next on the accelerator", "[accelerator]") {
  if (is_accelerator_missing(true)) return;
  Program p;
  BufferId last = p.input(64);
  for (int i = 0; i < 8; ++i) last = p.define(test_ops().matmul, 64, {p.read(last), p.read(last)});
  p.escape(last);
  auto model = model_of(save(p));
  const std::vector<Floats> expected = run_whole(model, cpu_options(), 4);
  StagePipeline::Options options;
  options.devices = test_devices();
  options.plans = {cpu_options(), remote_options()};
  Result<std::unique_ptr<StagePipeline>> pipeline = StagePipeline::create(model, std::move(options));
  require(pipeline.status());
  CHECK(uses_host_only(pipeline.value()->executor(0).plan().plan));
  CHECK_FALSE(uses_host_only(pipeline.value()->executor(1).plan().plan));
  std::vector<Sent> sent;
  for (int r = 0; r < 4; ++r) sent.push_back(send(*pipeline.value(), model->program(), r));
  for (size_t r = 0; r < 4; ++r) {
    require(sent[r].request->wait());
    CHECK(same_bits(sent[r].outputs, expected[r]));
  }
}

TEST_CASE("a cut is a legal program, sees only what crosses, and shares the weights' bytes") {
  Program p;
  const BufferId x = p.input(16);
  const BufferId w = p.input(16);
  const BufferId early = p.define(test_ops().pointwise, 16, {p.read(x), p.read(w)});
  BufferId last = early;
  for (int i = 0; i < 4; ++i) last = p.define(test_ops().pointwise, 16, {p.read(last)});
  const BufferId z = p.define(test_ops().pointwise, 16, {p.read(last), p.read(early), p.read(w)});
  p.escape(z);
  auto model = model_of(save(p, {w}));
  std::shared_ptr<const SavedProgram> program(model, &model->program());
  Result<std::vector<ProgramStage>> cut = cut_program(program, std::vector<PlanOptions>(3, cpu_options()));
  require(cut.status());
  const void* const bytes = program->constants[0].bytes.data();
  size_t nodes = 0;
  for (const ProgramStage& stage : cut.value()) {
    require(verify_program(*stage.program));
    nodes += stage.program->graph.nodes.size();
    for (const ProgramConstant& constant : stage.program->constants) CHECK(constant.bytes.data() == bytes);
  }
  CHECK(nodes == p.graph.nodes.size());
  const auto names = [](const std::vector<ProgramValue>& values) {
    std::vector<std::string> all;
    for (const ProgramValue& value : values) all.push_back(value.name);
    return all;
  };
  const auto& stages = cut.value();
  CHECK(names(stages[0].program->inputs) == std::vector{name_of(x)});
  CHECK(names(stages[0].program->outputs).front() == name_of(early));
  // It passes by the stage between.
  CHECK(std::ranges::count(names(stages[1].program->inputs), name_of(early)) == 0);
  CHECK(std::ranges::count(names(stages[2].program->inputs), name_of(early)) == 1);
  CHECK(names(stages[2].program->outputs) == std::vector{name_of(z)});
  CHECK(stages[0].program->constants.size() == 1);
  CHECK(stages[1].program->constants.empty());
  CHECK(stages[2].program->constants.size() == 1);
  // The weights live as long as a stage that uses them.
  const float first = *static_cast<const float*>(bytes);
  std::vector<ProgramStage> kept = std::move(cut.value());
  const std::weak_ptr<Model> watched = model;
  program.reset();
  model.reset();
  CHECK_FALSE(watched.expired());
  CHECK(*static_cast<const float*>(kept[2].program->constants[0].bytes.data()) == first);
  kept.clear();
  CHECK(watched.expired());
}

TEST_CASE("the slowest stage of a cut is as fast as that of the best of all cuts") {
  std::mt19937 random(43);
  const PlanOptions options = cpu_options();
  const CostModel costs(options);
  for (int round = 0; round < 40; ++round) {
    const size_t nodes = 3 + random() % 6;
    std::vector<OpId> ops(nodes);
    std::vector<int64_t> counts(nodes);
    for (size_t n = 0; n < nodes; ++n) {
      ops[n] = random() % 2 == 0 ? test_ops().pointwise : test_ops().matmul;
      counts[n] = 1 + static_cast<int64_t>(random() % (1u << (random() % 20)));
    }
    Chain chain(ops, counts);
    auto model = chain.model();
    const std::shared_ptr<const SavedProgram> program(model, &model->program());
    const Graph& graph = program->graph;
    // Node n reads buffer n and makes buffer n + 1.
    const auto seconds_of = [&](size_t begin, size_t end) {
      double seconds = 0;
      for (size_t n = begin; n < end; ++n) seconds += costs.node_seconds(graph, graph.nodes[n], backend::kCpu);
      const auto bytes = [&](size_t b) { return static_cast<double>(graph.buffers[b].bytes); };
      if (begin > 0) seconds += costs.copy_seconds(bytes(begin), backend::kCpu, backend::kAccelerator);
      if (end < nodes) seconds += costs.copy_seconds(bytes(end), backend::kAccelerator, backend::kCpu);
      return seconds;
    };
    for (size_t a = 1; a < nodes; ++a) REQUIRE(graph.operands_of(graph.nodes[a])[0].buffer == a);
    double best = 1e9;
    for (size_t a = 1; a < nodes; ++a) {
      for (size_t b = a + 1; b < nodes; ++b) {
        best = std::min(best, std::max({seconds_of(0, a), seconds_of(a, b), seconds_of(b, nodes)}));
      }
    }
    Result<std::vector<ProgramStage>> cut = cut_program(program, std::vector<PlanOptions>(3, options));
    require(cut.status());
    double slowest = 0;
    size_t begin = 0;
    for (const ProgramStage& stage : cut.value()) {
      const size_t end = begin + stage.program->graph.nodes.size();
      CHECK(stage.seconds == Approx(seconds_of(begin, end)));
      slowest = std::max(slowest, stage.seconds);
      begin = end;
    }
    CHECK(slowest == Approx(best));
  }
}

TEST_CASE("a program that has too few nodes for the stages is refused, and so are stages without a number") {
  Chain chain({test_ops().pointwise, test_ops().pointwise});
  auto model = chain.model();
  const std::shared_ptr<const SavedProgram> program(model, &model->program());
  CHECK(contains(cut_program(program, std::vector<PlanOptions>(3, cpu_options())).status(), "it has 2 nodes"));
  CHECK(contains(cut_program(program, {}).status(), "one stage at least"));
  StagePipeline::Options options;
  options.devices = test_devices();
  options.plans.assign(2, cpu_options());
  options.groups = {nullptr, nullptr};
  CHECK(contains(StagePipeline::create(model, std::move(options)).status(), "a core group for each stage"));
}

TEST_CASE("a state stays in one stage, and goes on from request to request in their order", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const PlanOptions plan = GENERATE(false, true) ? remote_options() : cpu_options();
  Program p;
  const BufferId x = p.input(8);
  const BufferId state = p.input(8);
  BufferId last = p.define(test_ops().pointwise, 8, {p.read(x)});
  p.add(test_ops().pointwise, {p.read(last), p.update(state)});
  for (int i = 0; i < 3; ++i) last = p.define(test_ops().pointwise, 8, {p.read(last), p.read(state)});
  last = p.define(test_ops().pointwise, 8, {p.read(last)});
  p.escape(last);
  p.escape(state);
  auto model = model_of(save(p, {state}));
  const std::shared_ptr<const SavedProgram> program(model, &model->program());
  CHECK_FALSE(can_be_cut(model, 4));
  Result<std::vector<ProgramStage>> cut = cut_program(program, std::vector<PlanOptions>(3, cpu_options()));
  require(cut.status());
  int with_state = 0;
  for (const ProgramStage& stage : cut.value()) with_state += !stage.program->constants.empty();
  CHECK(with_state == 1);
  check_pipeline(model, 3, plan);
}

TEST_CASE("what a later stage updates in place is passed on", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const PlanOptions plan = GENERATE(false, true) ? remote_options() : cpu_options();
  Program p;
  const BufferId x = p.input(8);
  const BufferId y = p.define(test_ops().pointwise, 8, {p.read(x)});
  for (int i = 0; i < 4; ++i) p.add(test_ops().pointwise, {p.read(x), p.update(y)});
  p.add(test_ops().pointwise, {p.read(y), p.update(x)});
  p.escape(y);
  p.escape(x);
  auto model = model_of(save(p));
  for (size_t stages = 1; stages <= 4; ++stages) check_pipeline(model, stages, plan);
}

TEST_CASE("random numbers are those that the program draws when it is not cut", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const PlanOptions plan = GENERATE(false, true) ? remote_options() : cpu_options();
  Program p;
  const BufferId x = p.input(8);
  const auto noise = [&] {
    const BufferId made = p.empty(8);
    p.add(test_ops().random, {p.operand(made, Access::kDefine)});
    Node& node = p.graph.nodes.back();
    p.graph.attributes.resize(node.attribute_offset + 16);
    node.attribute_bytes = 16;
    return made;
  };
  const BufferId a = noise();
  const BufferId y = p.define(test_ops().pointwise, 8, {p.read(x), p.read(a)});
  const BufferId b = noise();
  const BufferId z = p.define(test_ops().pointwise, 8, {p.read(y), p.read(b)});
  p.escape(z);
  auto saved = save(p);
  // The later is drawn first.
  saved->draws = {saved->graph.nodes[2].attribute_offset, saved->graph.nodes[0].attribute_offset};
  auto model = model_of(std::move(saved));
  for (size_t stages = 1; stages <= 4; ++stages) check_pipeline(model, stages, plan);
}

TEST_CASE("values are lent to the stages where they are, and only what is updated is copied") {
  Chain chain(std::vector<OpId>(6, test_ops().pointwise));
  auto pipeline = pipeline_of(chain.model(), {.stages = 3});
  CHECK(pipeline->counts().lent == 6);
  CHECK(pipeline->counts().copied == 0);
}

namespace {

// Kernels that tests stop and look at. Each call has a number, of its operator.
struct Gate {
  std::atomic<int> calls{0};
  std::atomic<int> open{1 << 30};  // calls below this one go on
  void pass() {
    const int call = calls.fetch_add(1);
    wait_until([&] { return call < open.load(); });
  }
  void close_at(int call) { open.store(call); }
  void open_until(int call) { open.store(call); }
  void wait_for(int count) {
    wait_until([&] { return calls.load() >= count; });
  }
  void reset() {
    calls.store(0);
    open.store(1 << 30);
  }
};
Gate gates[2];
std::atomic<int> failing_call{-1};
std::atomic<int> meetings{0};

template <int which>
void pass_gate(const Invocation& call) {
  gates[which].pass();
  op_table()[test_ops().pointwise].kernel(call);
}

// The n-th call of the second stage meets the call n + 1 of the first: neither returns before both are in.
constexpr int kMeetings = 8;
void meet_first(const Invocation& call) {
  const int number = gates[0].calls.load();
  gates[0].pass();
  if (number > 0) gates[1].wait_for(number);
  op_table()[test_ops().pointwise].kernel(call);
}
void meet_second(const Invocation& call) {
  const int number = gates[1].calls.load();
  gates[1].pass();
  if (number + 1 < kMeetings) {
    gates[0].wait_for(number + 2);
    ++meetings;
  }
  op_table()[test_ops().pointwise].kernel(call);
}

void fail_once(const Invocation& call) {
  const int number = gates[0].calls.load();
  gates[0].pass();
  if (number == failing_call.load()) throw std::runtime_error("this request fails");
  op_table()[test_ops().pointwise].kernel(call);
}

OpId add_op(const char* name, KernelFunction kernel) {
  return op_table().add({.name = name, .op_class = OpClass::kPointwise, .kernel = kernel});
}

struct Gated {
  Gated() : chain({add_op("test::gate0", pass_gate<0>), add_op("test::gate1", pass_gate<1>)}), model(chain.model()) {
    for (Gate& gate : gates) gate.reset();
  }
  const SavedProgram& program() const { return model->program(); }
  Chain chain;
  std::shared_ptr<Model> model;
};

}  // namespace

TEST_CASE("stages work at the same time") {
  for (Gate& gate : gates) gate.reset();
  meetings = 0;
  Chain chain({add_op("test::meet_first", meet_first), add_op("test::meet_second", meet_second)});
  auto model = chain.model();
  auto pipeline = pipeline_of(model, {.stages = 2});
  std::vector<Sent> sent;
  for (int r = 0; r < kMeetings; ++r) sent.push_back(send(*pipeline, model->program(), r));
  for (Sent& one : sent) require(one.request->wait());
  CHECK(meetings == kMeetings - 1);
}

TEST_CASE("stages on one accelerator have compute queues of their own") {
  auto made = backend::SimDevice::create();
  require(made.status());
  backend::SimDevice& sim = *made.value();
  Chain chain(std::vector<OpId>(9, test_ops().pointwise));
  StagePipeline::Options options{.stages = 2};
  options.devices = {test_devices()[backend::kCpu], &sim};
  options.plans.assign(2, options_for(options.devices));
  for (PlanOptions& plan : options.plans) plan.policy = Policy::kAccelerator;
  Result<std::unique_ptr<StagePipeline>> pipeline = StagePipeline::create(chain.model(), std::move(options));
  require(pipeline.status());
  sim.record_spans(true);
  // Too few for a segment, whose tasks leave no spans.
  constexpr int kRequests = 2;
  const std::shared_ptr<Model> model = chain.model();
  for (int r = 0; r < kRequests; ++r) require(send(*pipeline.value(), model->program(), r).request->wait());
  std::array<size_t, backend::kComputeQueues> tasks{};
  for (const backend::SimSpan& span : sim.spans()) {
    if (backend::is_compute(span.queue)) ++tasks[static_cast<size_t>(backend::compute_queue_number(span.queue))];
  }
  for (size_t stage = 0; stage < 2; ++stage) {
    CHECK(tasks[2 * stage] == kRequests * pipeline.value()->executor(stage).plan().graph.nodes.size());
    CHECK(tasks[2 * stage + 1] == 0);
  }
}

TEST_CASE("requests end in their order, and the earlier have ended when a later one has", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const PlanOptions plan = GENERATE(false, true) ? remote_options() : cpu_options();
  std::mt19937 random(44);
  Program p;
  make_random(p, random, 20, false);
  auto model = model_of(save(p));
  auto group = backend::CoreGroup::create({.name = "all", .threads = 1});
  REQUIRE(group.ok());
  for (const bool own : {true, false}) {
    StagePipeline::Options options{.stages = 3, .depth = 4};
    if (!own) options.groups = {group.value().get()};
    auto pipeline = pipeline_of(model, std::move(options), plan);
    std::vector<Sent> sent;
    for (int r = 0; r < 30; ++r) sent.push_back(send(*pipeline, model->program(), r));
    for (size_t r = sent.size(); r-- > 0;) {
      require(sent[r].request->wait());
      CHECK(std::all_of(sent.begin(), sent.begin() + static_cast<ptrdiff_t>(r),
                        [](const Sent& earlier) { return earlier.request->has_ended(); }));
    }
    CHECK(pipeline->counts().most_in_flight <= 4);
    CHECK(pipeline->counts().in_flight == 0);
  }
}

TEST_CASE("any threads may submit, and each gets its own results", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const PlanOptions plan = GENERATE(false, true) ? remote_options() : cpu_options();
  Chain chain(std::vector<OpId>(6, test_ops().pointwise));
  auto model = chain.model();
  const std::vector<Floats> expected = run_whole(model, cpu_options(), 10);
  auto pipeline = pipeline_of(model, {.stages = 3, .depth = 3}, plan);
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int r = 0; r < 10; ++r) {
        Floats inputs = inputs_of(model->program(), r);
        Floats outputs = outputs_of(model->program());
        auto request = pipeline->submit(views_of(inputs), views_of(outputs));
        if (request.ok() && request.value()->wait().ok()) right += same_bits(outputs, expected[static_cast<size_t>(r)]);
      }
    });
  }
  // Depth changes under way.
  for (const size_t depth : {1u, 5u, 2u, 8u, 3u}) require(pipeline->set_depth(depth));
  for (std::thread& thread : threads) thread.join();
  CHECK(right == 40);
  CHECK(pipeline->counts().completed == 40);
  CHECK(pipeline->counts().frames == 3);
}

TEST_CASE("so many requests are in flight as the depth says, and it is changed while they are", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const PlanOptions plan = GENERATE(false, true) ? remote_options() : cpu_options();
  Gated gated;
  auto pipeline =
      pipeline_of(gated.model, {.stages = 2, .depth = 2, .when_full = StagePipeline::WhenFull::kRefuse}, plan);
  gates[1].close_at(0);
  std::vector<Sent> sent;
  for (int r = 0; r < 2; ++r) sent.push_back(send(*pipeline, gated.program(), r));
  Floats inputs = inputs_of(gated.program(), 2);
  Floats outputs = outputs_of(gated.program());
  const auto refused = [&] {
    return contains(pipeline->submit(views_of(inputs), views_of(outputs)).status(), "no room");
  };
  CHECK(refused());
  require(pipeline->set_depth(3));
  sent.push_back(send(*pipeline, gated.program(), 2));
  CHECK(refused());
  require(pipeline->set_depth(1));
  CHECK(pipeline->depth() == 1);
  CHECK(pipeline->counts().in_flight == 3);
  CHECK(pipeline->counts().frames == 3);
  gates[1].open_until(2);
  require(sent[1].request->wait());
  CHECK(refused());  // the third is still in flight
  CHECK(pipeline->counts().frames == 1);
  gates[1].open_until(1 << 30);
  require(sent[2].request->wait());
  sent.push_back(send(*pipeline, gated.program(), 3));
  require(sent[3].request->wait());
  CHECK(contains(pipeline->set_depth(0), "a depth of one at least"));
  CHECK(pipeline->counts().most_in_flight == 3);
}

TEST_CASE("a request that waits for room goes on when another has ended, or when the depth grows", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const PlanOptions plan = GENERATE(false, true) ? remote_options() : cpu_options();
  Gated gated;
  auto pipeline = pipeline_of(gated.model, {.stages = 2, .depth = 1}, plan);
  for (const bool grows : {false, true}) {
    for (Gate& gate : gates) gate.reset();
    gates[0].close_at(0);
    Sent first = send(*pipeline, gated.program(), 0);
    gates[0].wait_for(1);
    Floats inputs = inputs_of(gated.program(), 1);
    Floats outputs = outputs_of(gated.program());
    Status second_status(ErrorClass::kInternal, "never submitted");
    std::thread second([&] {
      auto request = pipeline->submit(views_of(inputs), views_of(outputs));
      second_status = request.ok() ? request.value()->wait() : request.status();
    });
    if (grows) {
      require(pipeline->set_depth(2));
      wait_until([&] { return pipeline->counts().in_flight == 2; });
    }
    gates[0].open_until(1 << 30);
    second.join();
    require(first.request->wait());
    require(second_status);
  }
}

TEST_CASE("an error ends its request and no other, in order", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const PlanOptions plan = GENERATE(false, true) ? remote_options() : cpu_options();
  for (const bool early : {true, false}) {
    gates[0].reset();
    const OpId fails = add_op("test::fail_once", fail_once);
    std::vector<OpId> ops(4, test_ops().pointwise);
    (early ? ops.front() : ops.back()) = fails;
    Chain chain(ops);
    auto model = chain.model();
    failing_call = -1;
    const std::vector<Floats> expected = run_whole(model, cpu_options(), 6);
    gates[0].reset();
    failing_call = 2;
    auto pipeline = pipeline_of(model, {.stages = 3}, plan);
    std::vector<Sent> sent;
    for (int r = 0; r < 6; ++r) sent.push_back(send(*pipeline, model->program(), r));
    for (size_t r = 0; r < 6; ++r) {
      const Status status = sent[r].request->wait();
      CHECK(status.ok() == (r != 2));
      if (r == 2) {
        CHECK(contains(status, "this request fails"));
        CHECK(contains(status, "test::fail_once"));
        CHECK(sent[0].request->has_ended());
        CHECK(sent[1].request->has_ended());
      } else {
        CHECK(same_bits(sent[r].outputs, expected[r]));
      }
    }
    CHECK(pipeline->counts().failed == 1);
    // The stages behind let it pass.
    CHECK(pipeline->executor(2).counts().runs == (early ? 5 : 6));
  }
}

TEST_CASE("wrong tensors are refused in words, and take no place", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const PlanOptions plan = GENERATE(false, true) ? remote_options() : cpu_options();
  Chain chain(std::vector<OpId>(2, test_ops().pointwise));
  auto model = chain.model();
  auto pipeline = pipeline_of(model, {.stages = 2, .depth = 1}, plan);
  Floats inputs = inputs_of(model->program(), 0);
  Floats outputs = outputs_of(model->program());
  std::vector<TensorView> views = views_of(inputs);
  CHECK(contains(pipeline->submit({}, views_of(outputs)).status(), "has 1 inputs, and the request brings 0"));
  CHECK(contains(pipeline->submit(views, {}).status(), "has 1 outputs, and the request brings 0"));
  views[0].sizes = {4, 4};
  CHECK(contains(pipeline->submit(views, views_of(outputs)).status(), "input 'b0' is f32[16]"));
  views = views_of(inputs);
  views[0].device = backend::kAccelerator;
  CHECK(contains(pipeline->submit(views, views_of(outputs)).status(), "in the host's memory"));
  require(send(*pipeline, model->program(), 0).request->wait());
  CHECK(pipeline->counts().submitted == 1);
}

TEST_CASE("what is in flight when a pipeline stops ends as cancelled, and who waits for room is told",
          "[accelerator]") {
  if (is_accelerator_missing()) return;
  const PlanOptions plan = GENERATE(false, true) ? remote_options() : cpu_options();
  Gated gated;
  auto pipeline = pipeline_of(gated.model, {.stages = 2, .depth = 2}, plan);
  gates[0].close_at(0);
  std::vector<Sent> sent;
  for (int r = 0; r < 2; ++r) sent.push_back(send(*pipeline, gated.program(), r));
  gates[0].wait_for(1);
  Floats inputs = inputs_of(gated.program(), 2);
  Floats outputs = outputs_of(gated.program());
  Status refusal;
  std::thread waits([&] { refusal = pipeline->submit(views_of(inputs), views_of(outputs)).status(); });
  pipeline->stop();
  waits.join();
  CHECK((!refusal.ok() && refusal.error_class() == ErrorClass::kCancelled));
  gates[0].open_until(1 << 30);
  for (Sent& one : sent) {
    const Status status = one.request->wait();
    CHECK((!status.ok() && status.error_class() == ErrorClass::kCancelled));
  }
  CHECK(gates[1].calls == 0);
  require(pipeline->wait_idle());
  CHECK(contains(pipeline->submit(views_of(inputs), views_of(outputs)).status(), "was stopped"));
  CHECK(pipeline->counts().failed == 2);
}

TEST_CASE("a pipeline that is destroyed while it runs ends its requests first", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const PlanOptions plan = GENERATE(false, true) ? remote_options() : cpu_options();
  Chain chain(std::vector<OpId>(6, test_ops().pointwise));
  auto model = chain.model();
  for (int round = 0; round < 20; ++round) {
    std::vector<Sent> sent;
    {
      auto pipeline = pipeline_of(model, {.stages = 3}, plan);
      for (int r = 0; r < 6; ++r) sent.push_back(send(*pipeline, model->program(), r));
    }
    for (const Sent& one : sent) {
      CHECK(one.request->has_ended());
      const Status status = one.request->wait();
      CHECK((status.ok() || status.error_class() == ErrorClass::kCancelled));
    }
  }
}

}  // namespace hetero::graph::testing
