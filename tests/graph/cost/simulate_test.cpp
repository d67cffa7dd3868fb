// When instructions begin and end, by the cost model: queues in order, events between them, and the host's own work in between.

#include "graph/cost/simulate.h"

#include <optional>

#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"

namespace hetero::graph::testing {
namespace {

using backend::kAccelerator;
using backend::kCpu;

constexpr int64_t kCount = 1 << 20;
constexpr double kBytes = 4.0 * kCount;

// Numbers that are easily added: a pass over an operand takes the CPU 1 s, the accelerator 0.25 s and a copy 0.5 s.
PlanOptions plain_options() {
  PlanOptions options = mixed_options();
  options.machine.cpu().rates = {.flops = 1e30, .memory_bandwidth = kBytes};
  options.machine[1].rates = {
      .flops = 1e30, .memory_bandwidth = 4 * kBytes, .copy_bandwidth = 2 * kBytes, .launch_latency = 1e-9};
  return options;
}

Simulation simulated(const Program& program, const PlanOptions& options) {
  Simulation simulation;
  const Plan plan = program.plan(options);
  INFO(to_string(plan));
  simulate(program.graph, plan, CostModel(options), simulation);
  REQUIRE(simulation.spans.size() == plan.program.size());
  return simulation;
}

double busy(const Simulation& simulation, QueueId queue) { return simulation.busy[queue]; }

// The run of the last node before that of position p that writes what `read` reads.
std::optional<size_t> last_write(const Program& program, const Plan& plan, size_t p, const Operand& read) {
  std::optional<size_t> last;
  for (size_t q = 0; q < plan.program.size(); ++q) {
    const Instruction& instruction = plan.program[q];
    if (instruction.kind != Instruction::Kind::kRun || instruction.index >= plan.program[p].index) continue;
    if (last && instruction.index < plan.program[*last].index) continue;
    const Node& node = program.graph.nodes[instruction.index];
    for (int i = 0; i < node.operand_count; ++i) {
      const Operand& operand = program.graph.operands_of(node)[i];
      if (operand.writes() && conflicts(program.windows, operand, read)) last = q;
    }
  }
  return last;
}

const QueueId kRemote = queue_id(kAccelerator, backend::QueueKind::kCompute);
const QueueId kIn = queue_id(kAccelerator, backend::QueueKind::kHostToDevice);

}  // namespace

TEST_CASE("simulate: the host's work is one after the other") {
  Program program;
  const BufferId x = program.input(kCount);
  const BufferId y = program.define(test_ops().copy, kCount, {program.read(x)});
  program.escape(program.define(test_ops().copy, kCount, {program.read(y)}));
  PlanOptions options = plain_options();
  const backend::DeviceDescription cpu = options.machine.cpu();
  options.machine = {};
  options.machine.cpu() = cpu;
  const Simulation simulation = simulated(program, options);
  CHECK(simulation.seconds == Approx(4));
  CHECK(busy(simulation, kHostQueue) == Approx(4));
  CHECK(simulation.waited[kHostQueue] == Approx(0));
}

TEST_CASE("simulate: work waits for its copy, and copies run beside work") {
  Program program;
  std::vector<BufferId> inputs;
  for (int i = 0; i < 4; ++i) inputs.push_back(program.input(kCount));
  for (const BufferId x : inputs) {
    program.escape(program.define(test_ops().pointwise, kCount, {program.read(x)}, Preference::kAccelerator));
  }
  const Simulation simulation = simulated(program, plain_options());
  // Four copies of 0.5 s; each node, of 0.5 s, begins when its own is there.
  CHECK(busy(simulation, kIn) == Approx(2));
  CHECK(busy(simulation, kRemote) == Approx(2));
  CHECK(simulation.seconds == Approx(2.5));
}

TEST_CASE("simulate: the accelerator works while the host does") {
  Program program;
  const BufferId x = program.input(kCount);
  const BufferId there = program.input(kCount, 1u << kAccelerator);
  program.escape(program.define(test_ops().pointwise, kCount, {program.read(there)}, Preference::kAccelerator));
  program.escape(program.define(test_ops().pointwise, kCount, {program.read(x)}, Preference::kCpu));
  // Its place in the program is after the host's work; it is submitted before.
  program.escape(program.define(test_ops().pointwise, kCount, {program.read(there)}, Preference::kAccelerator));
  const Simulation simulation = simulated(program, plain_options());
  CHECK(busy(simulation, kHostQueue) == Approx(2));
  CHECK(simulation.seconds == Approx(2));
  CHECK(simulation.waited[kRemote] == Approx(0).margin(1e-6));
}

TEST_CASE("simulate: spans keep the order of queues and of what depends on what") {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    Program program;
    make_random(program, random, 30, true);
    const PlanOptions options = mixed_options();
    const Plan plan = program.plan(options);
    Simulation simulation;
    simulate(program.graph, plan, CostModel(options), simulation);
    double last[kMaxQueues] = {};
    for (size_t p = 0; p < plan.program.size(); ++p) {
      const Span& span = simulation.spans[p];
      REQUIRE(span.begin <= span.end);
      REQUIRE(span.begin >= last[plan.program[p].queue]);
      last[plan.program[p].queue] = span.end;
      REQUIRE(span.end <= simulation.seconds);
    }
    // What reads begins after what has written it last.
    for (size_t p = 0; p < plan.program.size(); ++p) {
      if (plan.program[p].kind != Instruction::Kind::kRun) continue;
      const Node& reader = program.graph.nodes[plan.program[p].index];
      for (int k = 0; k < reader.operand_count; ++k) {
        const Operand& read = program.graph.operands_of(reader)[k];
        if (!read.reads() || program.graph.buffers[read.buffer].bytes == 0) continue;
        if (const auto q = last_write(program, plan, p, read)) {
          REQUIRE(simulation.spans[*q].end <= simulation.spans[p].begin);
        }
      }
    }
  }
}

}  // namespace hetero::graph::testing
