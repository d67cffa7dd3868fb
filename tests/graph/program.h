// Program: a graph under construction, with its windows, and what is needed to run it and look at
// the results.
//
//   Program p;
//   BufferId x = p.input(16);
//   BufferId y = p.define(test_ops().pointwise, 16, {p.read(x)});
//   p.escape(y);
//   Results results = p.run(cpu_options());
//   results.values[y]
//
// `run` verifies the graph and the plan, and throws where they are not legal. It and whatever else checks is in program_run.cpp. Nothing here needs Catch2, so
// that benchmarks build and run the same programs.

#pragma once

#include <optional>
#include <random>
#include <vector>

#include "backend/device.h"
#include "graph/executor.h"
#include "graph/graph.h"
#include "graph/plan.h"
#include "tests/graph/test_ops.h"

namespace hetero::graph::testing {

using Devices = std::array<backend::Device*, backend::kMaxDevices>;

// The devices of the tests: the CPU, with its own counters, and the accelerator that the environment's HETERO_ACCELERATOR names: sim, a simulated one with its own counters, where
// it names none; none; or cuda. What needs virtual time, or asks the simulated accelerator for other things of its own, makes one for itself. Tests with the tag
// [accelerator] run with any of them. Never destroyed.
const Devices& test_devices();
// Whether HETERO_ACCELERATOR names one that this machine, or this build, does not have, or none where the test needs one. A test that asks is not to run then: so many are printed
// when the program ends.
bool is_accelerator_missing(bool needs_one = false);

// What make_plan may use of `devices`. A null accelerator is none.
PlanOptions options_for(const Devices& devices);
PlanOptions cpu_options();
PlanOptions both_options();
PlanOptions mixed_options();   // each node on a device of its own choice
PlanOptions remote_options();  // what can runs on the accelerator
PlanOptions fused_options();   // of the CPU

// These throw where the device refuses.
backend::Block allocate(backend::Device& device, size_t bytes);
// And waits for it.
void copy(backend::Device& accelerator, backend::QueueKind direction, void* to, const void* from, size_t bytes);

struct Results {
  Status status;
  RunCounts counts;
  std::vector<Binding> bindings;
  // Per buffer that survives and is valid somewhere: its floats.
  std::vector<std::optional<std::vector<float>>> values;
};

class Program {
 public:
  Program() { graph.windows = &windows; }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Buffers of `count` floats.
  BufferId input(int64_t count, uint8_t valid_on = 1u << backend::kCpu);
  BufferId empty(int64_t count);
  void escape(BufferId buffer) { graph.buffers[buffer].escapes = true; }

  // Operands. Without sizes they are the whole buffer.
  Operand operand(BufferId buffer, Access access);
  Operand operand(BufferId buffer, Access access, std::vector<int64_t> sizes, std::vector<int64_t> strides,
                  int64_t offset);
  Operand read(BufferId buffer) { return operand(buffer, Access::kRead); }
  Operand update(BufferId buffer) { return operand(buffer, Access::kUpdate); }
  Operand write(BufferId buffer) { return operand(buffer, Access::kWrite); }

  // Nodes.
  void add(OpId op, std::vector<Operand> operands, Preference preference = Preference::kAuto, float constant = 1.0f);
  BufferId define(OpId op, int64_t count, std::vector<Operand> inputs, Preference preference = Preference::kAuto,
                  float constant = 1.0f);

  // Runs the program by a plan, or by the interpreter. Inputs hold numbers that depend on their id
  // only.
  Results run(const PlanOptions& options, const Devices& devices = test_devices());
  Results run_plan(const Plan& plan, const Devices& devices = test_devices(), RunTimes* times = nullptr);
  Results interpret();
  Plan plan(const PlanOptions& options) const;

  std::vector<Binding> bind(const Devices& devices) const;
  std::vector<Binding*> pointers(std::vector<Binding>& bindings) const;
  void read_values(Results& results, const Devices& devices) const;

  WindowTable windows;
  Graph graph;
};

// A random program: in-place operators, partial and strided windows, dead values, escaping and
// dying inputs, all kinds of operators and preferences. With `on_accelerator`, some inputs lie
// there.
void make_random(Program& program, std::mt19937& random, int nodes, bool on_accelerator);

// A random program of operators that can be fused, and some others between them: views, broadcasts, rows, in-place operators.
void make_fusable(Program& program, std::mt19937& random, int nodes);

// True when both hold the same bits for every buffer that escapes.
bool same_values(const Program& program, const Results& a, const Results& b);

}  // namespace hetero::graph::testing
