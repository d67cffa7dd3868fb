// Groups on an accelerator: where they and their tails run, and what is lost there.

#include <algorithm>
#include <random>
#include <stdexcept>

#include "backend/fault/fault_device.h"
#include "backend/sim/sim_device.h"
#include "graph/fusion/fusion.h"
#include "graph/ir/lowering.h"
#include "graph/verify/verify.h"
#include "tests/graph/fusion/fusable.h"

namespace hetero::graph::testing {

namespace {

// What can runs on the accelerator, fused.
PlanOptions fused_remote_options() {
  PlanOptions options = remote_options();
  options.fusion = true;
  return options;
}

// An accelerator that has kernels of its own only, as a GPU has.
class WithoutHostKernels : public backend::FaultDevice {
 public:
  using FaultDevice::FaultDevice;
  bool runs_host_kernels() const override { return false; }
};

// An accelerator that cannot run fused kernels of more than so many steps.
class Picky : public backend::FaultDevice {
 public:
  Picky(backend::Device& device, size_t most) : FaultDevice(device), most_(most) {}
  bool can_fuse(const backend::FusedKernel& kernel) const override { return kernel.steps.size() <= most_; }

 private:
  const size_t most_;
};

}  // namespace

TEST_CASE("fusion: the accelerator runs groups, each as one kernel") {
  Fusable p;
  const BufferId x = p.input(24), row = p.input(6);
  const BufferId a = p.map_matrix({p.matrix(x, Access::kRead), p.row(row)});
  const BufferId b = p.map_matrix({p.matrix(a, Access::kRead), p.column(p.digest(a), Access::kRead)});
  const BufferId c = p.matmul(b);
  const BufferId d = p.map({p.read(c), p.read(b)});
  p.escape(p.map({p.read(d)}));
  const Plan plan = p.plan(fused_remote_options());
  REQUIRE(plan.groups.size() == 2);
  CHECK_FALSE(uses_host_only(plan));
  for (const Placement& placement : plan.placements) CHECK(placement.device == backend::kAccelerator);
  for (const BufferId inner : {a, d}) {
    CHECK(plan.residence(inner, backend::kAccelerator).home == Home::kNone);
    CHECK(plan.residence(inner, backend::kCpu).home == Home::kNone);
  }
  const Results results = p.run_plan(plan);
  CHECK(same_values(p, results, p.interpret()));
  CHECK(results.counts.kernels[backend::kAccelerator] == 3);
  CHECK(results.counts.kernels[backend::kCpu] == 0);
  CHECK(results.counts.fused_groups == 2);
  CHECK(results.counts.fused_nodes == 5);
}

TEST_CASE("fusion: nodes that may not run on the same devices do not join") {
  Fusable p;
  const BufferId x = p.input(24);
  const BufferId a = p.map({p.read(x)});
  const BufferId b = p.define(test_ops().map, 24, {p.read(a)}, Preference::kCpu);
  const BufferId c = p.define(test_ops().map, 24, {p.read(b)}, Preference::kCpu);
  const BufferId d = p.map({p.read(c)});
  p.escape(d);
  const Plan plan = p.plan(fused_remote_options());
  REQUIRE(plan.groups.size() == 3);
  CHECK(plan.groups[1].members == Members{1, 2});
  CHECK(plan.fusion[3] == FusionNote::kOtherDevice);
  CHECK(plan.placements[0].device == backend::kAccelerator);
  CHECK(plan.placements[2].device == backend::kCpu);
  CHECK(plan.placements[2].reason == Reason::kRequested);
  CHECK(same_values(p, p.run_plan(plan), p.interpret()));
}

namespace {

PlanOptions fused_mixed_options() {
  PlanOptions options = fused_remote_options();
  options.policy = Policy::kMixed;
  return options;
}

// A product whose tail is in a group, each on one of the devices: all four ways, over programs with other nodes before them.
struct Tailed {
  BufferId product;  // nobody reads it but the group
  BufferId result;
  uint32_t node;  // of the product
};
Tailed make_tailed(Fusable& p, int before) {
  const BufferId x = p.input(24), bias = p.input(6);
  for (int i = 0; i < before; ++i) p.escape(p.matmul(x));
  const auto node = static_cast<uint32_t>(p.graph.nodes.size());
  const BufferId product = p.product(bias, x);
  const BufferId result = p.map_matrix({p.matrix(product, Access::kRead), p.matrix(x, Access::kRead)});
  p.escape(result);
  return {product, result, node};
}

const Instruction* find_body(const Plan& plan) {
  const auto found = std::ranges::find(plan.program, Kind::kBody, &Instruction::kind);
  return found == plan.program.end() ? nullptr : &*found;
}

// A product whose body fails.
OpId broken_product() {
  static const OpId op = [] {
    OpTraits traits = op_table()[test_ops().product];
    traits.name = "test::broken_product";
    traits.kernel = [](const Invocation&) { throw std::runtime_error("broken kernel"); };
    return op_table().add(traits);
  }();
  return op;
}

int ways_of(const Plan& plan) {
  return plan.placements[find_body(plan)->index].device * 2 + placement_of(plan, plan.groups.back()).device;
}

}  // namespace

TEST_CASE("fusion: a body and the group with its tail run each where it is placed") {
  int seen[4] = {};
  for (int before = 0; before < 16; ++before) {
    Fusable p;
    const Tailed made = make_tailed(p, before);
    const Plan plan = p.plan(fused_mixed_options());
    INFO(to_string(plan));
    REQUIRE(plan.groups.size() == 1);
    CHECK(plan.groups[0].members == Members{made.node, made.node + 1});
    CHECK(plan.fusion[made.node] == FusionNote::kTailJoined);
    const Instruction* const body = find_body(plan);
    REQUIRE(body != nullptr);
    CHECK(device_of(body->queue) == plan.placements[made.node].device);
    const auto copied = std::ranges::count_if(plan.program, [&](const Instruction& instruction) {
      return instruction.kind == Kind::kCopy && instruction.index == made.product;
    });
    const int way = ways_of(plan);
    ++seen[way];
    CHECK(copied == (way == 1 || way == 2));
    const Results results = p.run_plan(plan);
    CHECK(same_values(p, results, p.interpret()));
    CHECK(results.counts.fused_groups == 1);
    CHECK(results.counts.fused_nodes == 2);
    CHECK(results.counts.kernels[0] + results.counts.kernels[1] == before + 2);
    // The shares of a group's members are those of its own time.
    const Instruction group{.kind = Kind::kFused, .queue = 0, .index = 0};
    CHECK(predicted_seconds(p.graph, plan, group) ==
          static_cast<double>(plan.placements[made.node + 1].predicted_seconds));
    CHECK(parse_plan(to_string(plan)).value() == plan);
  }
  for (const int times : seen) CHECK(times > 0);
}

TEST_CASE("fusion: groups are the same wherever they are placed") {
  std::mt19937 random(57);
  int tails = 0;
  for (int round = 0; round < 60; ++round) {
    Program program;
    make_fusable(program, random, 40);
    const Plan on_cpu = program.plan(fused_options());
    for (const Policy policy : {Policy::kAuto, Policy::kCpu, Policy::kAccelerator, Policy::kMixed}) {
      PlanOptions options = fused_remote_options();
      options.policy = policy;
      const Plan plan = program.plan(options);
      REQUIRE(plan.groups == on_cpu.groups);
      REQUIRE(plan.fusion == on_cpu.fusion);
      tails += policy == Policy::kAccelerator && find_body(plan) != nullptr;
      INFO(to_string(program.graph));
      INFO(to_string(plan));
      REQUIRE(same_values(program, program.run_plan(plan), program.interpret()));
    }
  }
  CHECK(tails > 20);
}

TEST_CASE("fusion: a body that fails on one device loses what its tail would have written on another") {
  int seen[4] = {};
  for (int before = 0; before < 16; ++before) {
    Fusable p;
    const Tailed made = make_tailed(p, before);
    const BufferId other = p.map_matrix({p.matrix(made.result, Access::kRead)});
    p.escape(other);
    const BufferId healthy = p.map_matrix({p.matrix(0, Access::kRead)});
    p.escape(healthy);
    const Plan plan = p.plan(fused_mixed_options());
    const Results expected = p.interpret();
    ++seen[ways_of(plan)];
    p.graph.nodes[made.node].op = broken_product();
    const Results got = p.run_plan(plan);
    INFO(to_string(plan));
    CHECK(got.status.message() == "test::broken_product: broken kernel");
    CHECK_FALSE(got.bindings[made.result].error.ok());
    CHECK_FALSE(got.bindings[other].error.ok());
    CHECK(got.bindings[healthy].error.ok());
    CHECK(got.values[healthy] == expected.values[healthy]);
  }
  for (const int times : seen) CHECK(times > 0);
}

TEST_CASE("fusion: random programs with failing nodes end on two devices as the interpreter does") {
  std::mt19937 random(58);
  int poisoned = 0;
  int bodies = 0;
  for (int round = 0; round < 150; ++round) {
    Program program;
    make_fusable(program, random, 40);
    const Plan plan = program.plan(round % 2 == 0 ? fused_mixed_options() : fused_remote_options());
    bool lost_product = false;
    for (Node& node : program.graph.nodes) {
      if (random() % 8 != 0 || (node.op != test_ops().product && node.op != test_ops().matmul)) continue;
      lost_product |= node.op == test_ops().product;
      node.op = node.op == test_ops().product ? broken_product() : test_ops().throws;
    }
    bodies += lost_product;
    poisoned += lost_as_interpreted(program, plan);
  }
  CHECK(poisoned > 50);
  CHECK(bodies > 10);
}

namespace {

// x [4,6] and a limit for each row -> the map of both. Limits above one are an error.
void run_guarded(const Invocation& call) {
  const auto* const x = static_cast<const float*>(call.data[0]);
  const auto* const limits = static_cast<const float*>(call.data[1]);
  auto* const out = static_cast<float*>(call.data[2]);
  for (int row = 0; row < 4; ++row) {
    if (limits[row] > 1) throw std::runtime_error("limit out of range");
  }
  for (int i = 0; i < 24; ++i) out[i] = 0.5f * x[i] + limits[i / 6];
}

void guarded_block(void* out, const void* const* in, const backend::Number*, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    static_cast<float*>(out)[i] = 0.5f * static_cast<const float*>(in[0])[i] + static_cast<const float*>(in[1])[i];
  }
}

void allowed_block(void* out, const void* const* in, const backend::Number*, int64_t n) {
  for (int64_t i = 0; i < n; ++i) static_cast<bool*>(out)[i] = !(static_cast<const float*>(in[0])[i] > 1);
}

bool lower_guarded(const LowerRequest&, Lowering& lowering) {
  const DType f32 = parse_dtype("f32");
  lowering.reduced = 2;
  const Lowering::Ref x = lowering.operand(0, f32);
  const Lowering::Ref limit = lowering.row_operand(1, f32);
  lowering.check(lowering.map(allowed_block, parse_dtype("bool"), {limit}));
  lowering.output(2, lowering.map(guarded_block, f32, {x, limit}));
  return true;
}

OpId guarded_op() {
  static const OpId op = op_table().add(
      {.name = "test::guarded", .op_class = OpClass::kNormalization, .kernel = run_guarded, .lower = lower_guarded});
  return op;
}

// map(x) -> guarded -> map, and what does not depend on the one that may fail.
struct Guarded {
  BufferId limits;
  BufferId before;
  BufferId result;
  BufferId beside;
};
Guarded make_guarded(Fusable& p) {
  const BufferId x = p.input(24), limits = p.input(4);
  const BufferId before = p.map_matrix({p.matrix(x, Access::kRead)});
  const BufferId middle = p.empty(24);
  p.add(guarded_op(), {p.matrix(before, Access::kRead), p.operand(limits, Access::kRead, {4}, {1}, 0),
                       p.matrix(middle, Access::kDefine)});
  const BufferId inner = p.map_matrix({p.matrix(before, Access::kRead)});
  const BufferId beside = p.map_matrix({p.matrix(inner, Access::kRead)});
  const BufferId result = p.map_matrix({p.matrix(middle, Access::kRead), p.matrix(inner, Access::kRead)});
  for (const BufferId b : {before, beside, result}) p.escape(b);
  return {limits, before, result, beside};
}

Results run_with_limits(Fusable& p, const Plan& plan, BufferId limits, float value) {
  Results results;
  results.bindings = p.bind(test_devices());
  auto* const bytes = static_cast<float*>(results.bindings[limits].blocks[backend::kCpu].data());
  for (int row = 0; row < 4; ++row) bytes[row] = row == 2 ? value : 0.25f;
  Executor executor(test_devices());
  results.status = executor.run(p.graph, plan, p.pointers(results.bindings), results.counts);
  p.read_values(results, test_devices());
  return results;
}

}  // namespace

TEST_CASE("fusion: where a check fails on the accelerator, the operator raises and the other members run") {
  Fusable p;
  const Guarded made = make_guarded(p);
  const Plan plan = p.plan(fused_remote_options());
  REQUIRE(plan.groups.size() == 1);
  REQUIRE(plan.groups[0].members.size() == 5);
  REQUIRE(plan.groups[0].has_checks());
  CHECK(plan.groups == p.plan(fused_options()).groups);
  const Plan unfused = p.plan(cpu_options());
  for (const float limit : {0.5f, 2.0f}) {
    const Results expected = run_with_limits(p, unfused, made.limits, limit);
    const Results got = run_with_limits(p, plan, made.limits, limit);
    CHECK(got.status.ok() == (limit < 1));
    CHECK(got.status.ok() == expected.status.ok());
    CHECK(got.counts.kernels[backend::kCpu] == 0);
    CHECK(got.counts.kernels[backend::kAccelerator] == (limit < 1 ? 1 : 4));
    CHECK(got.counts.fused_groups == (limit < 1 ? 1 : 0));
    CHECK(got.counts.skipped == (limit < 1 ? 0 : 1));
    if (!got.status.ok()) {
      CHECK(got.status.message() == "test::guarded: limit out of range");
      CHECK(got.status.message() == expected.status.message());
    }
    for (const BufferId b : {made.before, made.beside, made.result}) {
      CHECK(got.bindings[b].error.ok() == expected.bindings[b].error.ok());
      if (expected.bindings[b].error.ok()) CHECK(got.values[b] == expected.values[b]);
    }
  }
}

TEST_CASE("fusion: an accelerator that cannot check runs what checks alone, and the rest in groups") {
  class NoChecks : public backend::FaultDevice {
   public:
    explicit NoChecks(backend::Device& device) : FaultDevice(device) {}
    bool can_fuse(const backend::FusedKernel& kernel) const override {
      return std::ranges::none_of(
          kernel.steps, [](const backend::FusedStep& step) { return step.kind == backend::FusedStep::Kind::kCheck; });
    }
  };
  Fusable p;
  make_guarded(p);
  const NoChecks device(*test_devices()[backend::kAccelerator]);
  PlanOptions options = fused_remote_options();
  options.machine[1].device = &device;
  const Plan plan = p.plan(options);
  for (const FusedGroup& group : plan.groups) CHECK_FALSE(group.has_checks());
  CHECK(plan.groups.size() == 2);
  CHECK(plan.fusion[1] == FusionNote::kNoLowering);
  Plan damaged = p.plan(fused_remote_options());
  CHECK_FALSE(verify_plan(p.graph, damaged, options).ok());
  // On the CPU alone nothing stands in the way.
  options.policy = Policy::kCpu;
  CHECK(p.plan(options).groups.size() == 1);
}

TEST_CASE("fusion: what the accelerator cannot run as a group it runs node by node") {
  Fusable p;
  const BufferId x = p.input(24), y = p.input(24);
  BufferId a = x;
  for (int i = 0; i < 6; ++i) a = p.map({p.read(a)});
  p.escape(a);
  p.escape(p.map({p.read(p.map({p.read(p.matmul(y))}))}));
  const Picky picky(*test_devices()[backend::kAccelerator], 5);
  PlanOptions options = fused_remote_options();
  options.machine[1].device = &picky;
  const Plan plan = p.plan(options);
  REQUIRE(plan.groups.size() == 1);
  CHECK(plan.groups[0].members == Members{7, 8});
  const Results results = p.run_plan(plan);
  CHECK(same_values(p, results, p.interpret()));
  CHECK(results.counts.kernels[backend::kAccelerator] == 8);
}

TEST_CASE("fusion: a poisoned input of a group on a queue reaches what depends on it, and nothing else") {
  const Devices& host = test_devices();
  WithoutHostKernels gpu(*host[backend::kAccelerator]);
  for (const Devices& devices : {host, Devices{host[backend::kCpu], &gpu}}) {
    for (const bool remote : {false, true}) {
      Fusable p;
      const BufferId x = p.input(24);
      const BufferId broken = p.define(test_ops().throws, 24, {p.read(x)});
      const BufferId healthy = p.map({p.read(x)});
      const BufferId sum = p.map({p.read(healthy), p.read(broken)});
      const BufferId after = p.map({p.read(sum)});
      const BufferId other = p.map({p.read(healthy)});
      for (const BufferId b : {healthy, sum, after, other}) p.escape(b);
      if (!remote) {
        for (Node& node : p.graph.nodes) node.preference = Preference::kCpu;
        // Something that makes a program of two devices of it.
        p.escape(p.define(test_ops().matmul, 24, {p.read(x)}, Preference::kAccelerator));
      }
      const Plan plan = p.plan(fused_remote_options());
      REQUIRE(plan.groups.size() == 1);
      REQUIRE(plan.groups[0].members.size() == 4);
      REQUIRE_FALSE(uses_host_only(plan));
      const Results results = p.run_plan(plan, devices);
      CHECK_FALSE(results.status.ok());
      CHECK_FALSE(results.bindings[sum].error.ok());
      CHECK_FALSE(results.bindings[after].error.ok());
      const Results expected = p.interpret();
      for (const BufferId b : {healthy, other}) {
        CHECK(results.bindings[b].error.ok());
        CHECK(results.values[b] == expected.values[b]);
      }
      CHECK(results.counts.skipped == 2);
      // What has the CPU's kernels runs what is healthy by itself.
      const bool by_itself = !remote || devices[backend::kAccelerator]->runs_host_kernels();
      CHECK(results.counts.fused_groups == (by_itself ? 0 : 1));
    }
  }
}

TEST_CASE("fusion: a tail that could not be submitted is an error, also where its body runs later") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Fusable p;
    const BufferId x = p.input(24, 1u << backend::kAccelerator);
    const BufferId product = p.product(p.input(6, 1u << backend::kAccelerator), x);
    const BufferId after = p.map({p.read(product)});
    for (const BufferId b : {product, after}) p.escape(b);
    const Plan plan = p.plan(fused_remote_options());
    REQUIRE(plan.groups.size() == 1);
    REQUIRE(std::ranges::count(plan.program, Instruction::Kind::kBody, &Instruction::kind) == 1);
    // Pauses before what it runs.
    const auto sim = backend::SimDevice::create({.schedule_seed = seed});
    REQUIRE(sim.ok());
    backend::FaultDevice faulty(*sim.value());
    faulty.fail(backend::FaultKind::kLaunch, 2);
    const Results results = p.run_plan(plan, {test_devices()[backend::kCpu], &faulty});
    CHECK_FALSE(results.status.ok());
    CHECK_FALSE(results.bindings[product].error.ok());
    CHECK_FALSE(results.bindings[after].error.ok());
  }
}

TEST_CASE("fusion: what a poisoned group on a queue was to change is as it was before") {
  const Devices& host = test_devices();
  WithoutHostKernels gpu(*host[backend::kAccelerator]);
  const Devices devices{host[backend::kCpu], GENERATE(false, true) ? &gpu : host[backend::kAccelerator]};
  Fusable p;
  const BufferId x = p.input(24);
  const BufferId state = p.input(24, 1u << backend::kAccelerator);
  p.escape(state);
  const BufferId broken = p.define(test_ops().throws, 24, {p.read(x)});
  const BufferId healthy = p.map({p.read(x)});
  const BufferId sum = p.map({p.read(healthy), p.read(broken)});
  p.add(test_ops().map, {p.read(sum), p.write(state)});
  for (const BufferId b : {healthy, sum}) p.escape(b);
  const Plan plan = p.plan(fused_remote_options());
  REQUIRE(plan.groups.size() == 1);
  REQUIRE(plan.groups[0].members.size() == 3);
  Results before;
  before.bindings = p.bind(devices);
  p.read_values(before, devices);
  const Results results = p.run_plan(plan, devices);
  CHECK_FALSE(results.bindings[state].error.ok());
  CHECK(results.values[state] == before.values[state]);
  // What is healthy needs a kernel of its own.
  const bool by_itself = devices[backend::kAccelerator]->runs_host_kernels();
  CHECK(results.bindings[healthy].error.ok() == by_itself);
  if (by_itself) CHECK(results.values[healthy] == p.interpret().values[healthy]);
}

TEST_CASE("fusion: a group that would not fit into the accelerator's memory runs on the CPU") {
  Fusable p;
  std::vector<BufferId> inputs;
  for (int i = 0; i < 6; ++i) inputs.push_back(p.input(256));
  BufferId sum = inputs[0];
  for (int i = 1; i < 6; ++i) sum = p.map({p.read(sum), p.read(inputs[static_cast<size_t>(i)])}, 256);
  const BufferId small = p.map({p.read(p.matmul(p.input(24)))});
  p.escape(sum);
  p.escape(small);
  PlanOptions options = fused_remote_options();
  options.machine[1].bytes = 4096;
  const Plan plan = p.plan(options);
  CHECK(plan.placements[0].device == backend::kCpu);
  CHECK(plan.placements[0].reason == Reason::kNoMemory);
  CHECK(plan.placements.back().device == backend::kAccelerator);
  CHECK(same_values(p, p.run_plan(plan), p.interpret()));
}

}  // namespace hetero::graph::testing
