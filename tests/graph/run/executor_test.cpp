// What a run promises when something fails: what depends on the failure is poisoned, everything
// else is computed, nothing hangs or leaks. Each promise on the CPU and across both devices.

#include <stdexcept>

#include "backend/fault/fault_device.h"
#include "backend/registry/registry.h"
#include "graph/verify/verify.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"

namespace hetero::graph::testing {

using backend::FaultDevice;
using backend::FaultDuration;
using backend::FaultKind;
using backend::kAccelerator;
using backend::kCpu;

namespace {

constexpr Preference kPreferences[] = {Preference::kCpu, Preference::kAccelerator};

Plan plan_for(Program& program, Preference preference) {
  for (Node& node : program.graph.nodes) node.preference = preference;
  return program.plan(mixed_options());
}

void check_kernel_error(const Status& status) {
  REQUIRE_FALSE(status.ok());
  CHECK(status.error_class() == ErrorClass::kKernel);
  CHECK(status.message().ends_with(": broken kernel"));
  REQUIRE(status.cause() != nullptr);
  CHECK_THROWS_AS(std::rethrow_exception(status.cause()), std::runtime_error);
}

// A FaultDevice around each of the test's devices.
struct FaultyDevices {
  FaultDevice cpu{*test_devices()[kCpu]};
  FaultDevice accelerator{*test_devices()[kAccelerator]};
  Devices devices{&cpu, &accelerator};
};

// Runs on faulty devices that are healthy while inputs are bound and results are read.
Results run_with_fault(Program& program, const Plan& plan, FaultyDevices& faulty, FaultDevice& device, FaultKind kind,
                       int64_t nth, FaultDuration duration = FaultDuration::kOnce) {
  Results results;
  results.bindings = program.bind(test_devices());
  Executor executor(faulty.devices);
  device.fail(kind, nth, duration);
  results.status = executor.run(program.graph, plan, program.pointers(results.bindings), results.counts);
  faulty.cpu.heal();
  faulty.accelerator.heal();
  program.read_values(results, test_devices());
  return results;
}

}  // namespace

TEST_CASE("a kernel that throws poisons what depends on it, and nothing else") {
  for (const Preference preference : kPreferences) {
    Program p;
    const BufferId x = p.input(16);
    const BufferId broken = p.define(test_ops().throws, 16, {p.read(x)});
    const BufferId after = p.define(test_ops().matmul, 16, {p.read(broken)});
    const BufferId last = p.define(test_ops().matmul, 16, {p.read(x), p.read(after)});
    const BufferId healthy = p.define(test_ops().matmul, 16, {p.read(x)});
    for (const BufferId b : {broken, after, last, healthy}) p.escape(b);
    Results results = p.run_plan(plan_for(p, preference));
    check_kernel_error(results.status);
    for (const BufferId b : {broken, after, last}) {
      check_kernel_error(results.bindings[b].error);
      CHECK(results.bindings[b].valid_on == 0);
    }
    CHECK(results.bindings[healthy].error.ok());
    CHECK(results.values[healthy] == p.interpret().values[healthy]);
    CHECK(results.counts.skipped == 2);
    CHECK(results.bindings[x].error.ok());
  }
}

TEST_CASE("the first error in the program is returned, and reaches what it poisons") {
  for (const Preference preference : kPreferences) {
    Program p;
    const BufferId x = p.input(16);
    const BufferId lost = p.input(16);
    const BufferId a = p.define(test_ops().throws, 16, {p.read(x)});
    const BufferId b = p.define(test_ops().matmul, 16, {p.read(lost), p.read(a)});
    p.escape(b);
    const Plan plan = plan_for(p, preference);
    Results results;
    results.bindings = p.bind(test_devices());
    results.bindings[lost].error = Status(ErrorClass::kResource, "lost before");
    Executor executor(test_devices());
    const Status status = executor.run(p.graph, plan, p.pointers(results.bindings), results.counts);
    REQUIRE_FALSE(status.ok());
    CHECK(status.message() == "lost before");
    CHECK(results.bindings[b].error.message() == "lost before");
    CHECK(results.bindings[lost].error.message() == "lost before");
  }
}

TEST_CASE("a lost buffer is no error where it is overwritten before it is read") {
  for (const Preference preference : kPreferences) {
    Program p;
    const BufferId x = p.input(16);
    const BufferId lost = p.input(16);
    p.escape(lost);
    p.add(test_ops().matmul, {p.read(x), p.write(lost)});
    const Plan plan = plan_for(p, preference);
    Results results;
    results.bindings = p.bind(test_devices());
    results.bindings[lost].error = Status(ErrorClass::kResource, "lost before");
    Executor executor(test_devices());
    CHECK(executor.run(p.graph, plan, p.pointers(results.bindings), results.counts).ok());
    CHECK(results.bindings[lost].error.ok());
    p.read_values(results, test_devices());
    CHECK(results.values[lost] == p.interpret().values[lost]);
  }
}

TEST_CASE("what a failed or skipped node was to change keeps its bytes, and what nodes have done to them") {
  for (const Preference preference : kPreferences) {
    Program p;
    const BufferId x = p.input(16);
    const BufferId kept = p.input(16);
    const BufferId torn = p.input(16);
    const BufferId changed = p.input(16);
    for (const BufferId b : {kept, torn, changed}) p.escape(b);
    const BufferId broken = p.define(test_ops().throws, 16, {p.read(x)});
    p.add(test_ops().matmul, {p.read(broken), p.update(kept)});
    p.add(test_ops().half_throws, {p.update(torn)});
    p.add(test_ops().matmul, {p.read(x), p.update(changed)});
    p.add(test_ops().matmul, {p.read(broken), p.update(changed)});
    Results results = p.run_plan(plan_for(p, preference));
    for (const BufferId b : {kept, torn, changed}) check_kernel_error(results.bindings[b].error);
    CHECK((results.bindings[kept].valid_on & 1) == 1);
    const uint8_t where = preference == Preference::kCpu ? 1 : 2;
    CHECK(results.bindings[torn].valid_on == where);
    CHECK(results.bindings[changed].valid_on == where);
    CHECK(results.values[kept]->at(3) == static_cast<float>(kept) + 0.375f);
  }
}

TEST_CASE("a whole overwrite heals, a partial one does not") {
  for (const Preference preference : kPreferences) {
    Program p;
    const BufferId x = p.input(16);
    const BufferId whole = p.input(16);
    const BufferId part = p.input(16);
    p.escape(whole);
    p.escape(part);
    p.add(test_ops().half_throws, {p.update(whole)});
    p.define(test_ops().effect, 4, {p.read(whole)});  // keeps the node above alive
    p.add(test_ops().half_throws, {p.update(part)});
    p.add(test_ops().matmul, {p.read(x), p.write(whole)});
    p.add(test_ops().matmul, {p.read(x), p.operand(part, Access::kWrite, {8}, {1}, 0)});
    Results results = p.run_plan(plan_for(p, preference));
    check_kernel_error(results.status);
    CHECK(results.bindings[whole].error.ok());
    CHECK(results.values[whole] == p.interpret().values[whole]);
    check_kernel_error(results.bindings[part].error);
    CHECK(results.counts.skipped == 1);
  }
}

TEST_CASE("a value read by a task keeps its health while the next value of the buffer fails") {
  // The accelerator may still read the old x when the CPU already fails to write the new one.
  for (int round = 0; round < 50; ++round) {
    Program p;
    const BufferId x = p.input(512);
    p.escape(x);
    BufferId result = x;
    for (int i = 0; i < 8; ++i) {
      result = p.define(test_ops().matmul, 512, {p.read(x), p.read(result)}, Preference::kAccelerator);
    }
    p.escape(result);
    p.add(test_ops().half_throws, {p.update(x)}, Preference::kCpu);
    Results results = p.run(mixed_options());
    REQUIRE(results.bindings[result].error.ok());
    REQUIRE(results.values[result] == p.interpret().values[result]);
    check_kernel_error(results.bindings[x].error);
  }
}

TEST_CASE("the interpreter poisons as the executor does") {
  std::mt19937 random(21);
  for (int round = 0; round < 100; ++round) {
    Program p;
    make_random(p, random, 40, false);
    for (int i = 0; i < 3; ++i) {
      Node& node = p.graph.nodes[random() % p.graph.nodes.size()];
      node.op = test_ops().throws;
    }
    // Dead nodes do not run in a plan; here everything is seen.
    for (Buffer& buffer : p.graph.buffers) buffer.escapes = true;
    const Results expected = p.interpret();
    for (const bool both : {false, true}) {
      const Results got = p.run(both ? mixed_options() : cpu_options());
      for (BufferId b = 0; b < p.graph.buffers.size(); ++b) {
        // A node that the plan drops as overwritten cannot fail there.
        if (!got.bindings[b].error.ok()) REQUIRE_FALSE(expected.bindings[b].error.ok());
        if (!got.bindings[b].error.ok() || !expected.bindings[b].error.ok()) continue;
        REQUIRE(got.values[b] == expected.values[b]);
      }
    }
  }
}

TEST_CASE("memory that cannot be had fails the nodes that need it") {
  for (const Preference preference : kPreferences) {
    Program p;
    const BufferId x = p.input(16);
    const BufferId first = p.define(test_ops().matmul, 16, {p.read(x)});
    const BufferId second = p.define(test_ops().matmul, 16, {p.read(x)});
    p.escape(first);
    p.escape(second);
    const Plan plan = plan_for(p, preference);
    FaultyDevices faulty;
    FaultDevice& device = preference == Preference::kCpu ? faulty.cpu : faulty.accelerator;
    // On the accelerator, the first allocation is for the copy of x.
    const int64_t nth = preference == Preference::kCpu ? 1 : 2;
    Results results = run_with_fault(p, plan, faulty, device, FaultKind::kAllocation, nth);
    REQUIRE_FALSE(results.status.ok());
    CHECK(results.status.error_class() == ErrorClass::kResource);
    CHECK(results.bindings[first].error.error_class() == ErrorClass::kResource);
    CHECK(results.bindings[second].error.ok());
    CHECK(results.values[second] == p.interpret().values[second]);
  }
}

TEST_CASE("a copy that cannot be had fails its readers, and the original stays") {
  Program p;
  const BufferId x = p.input(16);
  p.escape(x);
  const BufferId remote = p.define(test_ops().matmul, 16, {p.read(x)}, Preference::kAccelerator);
  const BufferId local = p.define(test_ops().matmul, 16, {p.read(x)}, Preference::kCpu);
  p.escape(remote);
  p.escape(local);
  const Plan plan = p.plan(mixed_options());
  FaultyDevices faulty;
  const Results results = run_with_fault(p, plan, faulty, faulty.accelerator, FaultKind::kCopy, 1);
  CHECK(results.status.error_class() == ErrorClass::kDevice);
  CHECK(results.bindings[remote].error.error_class() == ErrorClass::kDevice);
  CHECK(results.bindings[local].error.ok());
  CHECK(results.bindings[x].error.ok());
  CHECK(results.bindings[x].valid_on == 1u << kCpu);
  CHECK(results.values[local] == p.interpret().values[local]);
}

TEST_CASE("without events the host keeps the order") {
  std::mt19937 random(22);
  for (int round = 0; round < 40; ++round) {
    Program p;
    make_random(p, random, 40, true);
    const Plan plan = p.plan(mixed_options());
    FaultyDevices faulty;
    const FaultKind kind = round % 2 == 0 ? FaultKind::kEventRecord : FaultKind::kEventWait;
    faulty.cpu.fail(kind, 1, FaultDuration::kForEver);
    const Results results = run_with_fault(p, plan, faulty, faulty.accelerator, kind, 1, FaultDuration::kForEver);
    REQUIRE(results.status.ok());
    REQUIRE(same_values(p, results, p.interpret()));
  }
}

TEST_CASE("whatever fails, at whatever call: no crash, no hang, no wrong value, no leak") {
  std::mt19937 random(23);
  constexpr FaultKind kKinds[] = {FaultKind::kAllocation, FaultKind::kCopy, FaultKind::kLaunch, FaultKind::kEventRecord,
                                  FaultKind::kEventWait};
  int failed = 0;
  for (int round = 0; round < 400; ++round) {
    int64_t before[kTestDevices];
    for (int d = 0; d < kTestDevices; ++d) {
      before[d] = test_devices()[d]->memory_stats().allocated_bytes;
    }
    {
      Program p;
      make_random(p, random, 40, true);
      const Plan plan = p.plan(mixed_options());
      const Results expected = p.interpret();
      FaultyDevices faulty;
      FaultDevice& device = round % 2 == 0 ? faulty.cpu : faulty.accelerator;
      const auto duration = round % 3 == 0 ? FaultDuration::kForEver : FaultDuration::kOnce;
      const Results results =
          run_with_fault(p, plan, faulty, device, kKinds[round % 5], 1 + static_cast<int64_t>(random() % 12), duration);
      failed += !results.status.ok();
      for (BufferId b = 0; b < p.graph.buffers.size(); ++b) {
        if (!p.graph.buffers[b].escapes || !results.bindings[b].error.ok()) continue;
        REQUIRE(results.values[b] == expected.values[b]);
      }
    }
    for (int d = 0; d < kTestDevices; ++d) {
      REQUIRE(test_devices()[d]->memory_stats().allocated_bytes == before[d]);
    }
  }
  CHECK(failed > 20);
}

TEST_CASE("a buffer that is bound as valid without a block is refused") {
  Program p;
  const BufferId x = p.input(16);
  p.escape(p.define(test_ops().pointwise, 16, {p.read(x)}));
  const Plan plan = p.plan(cpu_options());
  std::vector<Binding> bindings(p.graph.buffers.size());
  bindings[x].valid_on = 1;
  Executor executor({test_devices()[kCpu], nullptr});
  RunCounts counts;
  const Status status = executor.run(p.graph, plan, p.pointers(bindings), counts);
  REQUIRE_FALSE(status.ok());
  CHECK(status.error_class() == ErrorClass::kInternal);
}

TEST_CASE("memory that was never written is handed out, and stays what it was") {
  Program p;
  const BufferId empty = p.empty(16);
  p.escape(empty);
  p.add(test_ops().pointwise, {p.operand(empty, Access::kWrite, {4}, {1}, 0)}, Preference::kCpu);
  p.add(test_ops().matmul, {p.operand(empty, Access::kUpdate, {4}, {1}, 4)}, Preference::kAccelerator);
  p.add(test_ops().matmul, {p.operand(empty, Access::kWrite, {4}, {1}, 8)}, Preference::kCpu);
  const Results results = p.run(mixed_options());
  REQUIRE(results.status.ok());
  REQUIRE(results.values[empty].has_value());
  CHECK(results.values[empty]->at(0) == 1.0f);
  CHECK(results.values[empty]->at(9) == 1.0f);
}

TEST_CASE("escaping memory is taken when it is first used, temporaries are freed after the last") {
  backend::Device& cpu = *test_devices()[kCpu];
  Program p;
  const BufferId x = p.input(16);
  BufferId value = x;
  for (int i = 0; i < 50; ++i) value = p.define(test_ops().brings, 4096, {p.read(value)});
  for (int i = 0; i < 50; ++i) value = p.define(test_ops().pointwise, 4096, {p.read(value)});
  p.escape(value);
  const Plan plan = p.plan(cpu_options());
  cpu.empty_cache();
  cpu.reset_peak();
  const int64_t before = cpu.memory_stats().allocated_bytes;
  {
    const Results results = p.run_plan(plan, {&cpu, nullptr});
    REQUIRE(results.status.ok());
    // Two temporaries at a time, and the result.
    CHECK(cpu.memory_stats().peak_bytes - before <= 3 * 4096 * 4 + 4096);
  }
  CHECK(cpu.memory_stats().allocated_bytes == before);
}

TEST_CASE("an input that nobody else holds is freed after its last use") {
  backend::Device& cpu = *test_devices()[kCpu];
  Program p;
  const BufferId kept = p.input(4096);
  p.escape(kept);
  BufferId value = kept;
  for (int i = 0; i < 8; ++i) {
    const BufferId dying = p.input(4096);
    value = p.define(test_ops().pointwise, 4096, {p.read(value), p.read(dying)});
    p.escape(value);
  }
  const Plan plan = p.plan(cpu_options());
  std::vector<Binding> bindings = p.bind({&cpu, nullptr});
  cpu.reset_peak();
  const int64_t before = cpu.memory_stats().allocated_bytes;
  RunCounts counts;
  Executor executor({&cpu, nullptr});
  REQUIRE(executor.run(p.graph, plan, p.pointers(bindings), counts).ok());
  // As a result comes, an input goes.
  CHECK(cpu.memory_stats().peak_bytes - before <= 4096 * 4 + 4096);
  CHECK(bindings[kept].valid_on != 0);
  CHECK(bindings[kept + 1].valid_on == 0);
  CHECK(bindings[value].valid_on != 0);
}

TEST_CASE("an executor runs plan after plan, on the registry's devices") {
  Executor executor;
  std::mt19937 random(24);
  for (int round = 0; round < 20; ++round) {
    Program p;
    make_random(p, random, 20, false);
    const Plan plan = p.plan(cpu_options());
    Results results;
    results.bindings = p.bind({&backend::cpu_device(), nullptr});
    REQUIRE(executor.run(p.graph, plan, p.pointers(results.bindings), results.counts).ok());
    p.read_values(results, test_devices());
    REQUIRE(same_values(p, results, p.interpret()));
  }
}

}  // namespace hetero::graph::testing
