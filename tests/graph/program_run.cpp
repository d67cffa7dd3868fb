// The part of Program that checks what it makes: plans and runs that fail the test where something is not legal.

#include <cstring>

#include "graph/verify.h"
#include "tests/graph/catch.h"
#include "tests/graph/program.h"

namespace hetero::graph::testing {

using backend::Block;
using backend::kAccelerator;
using backend::kCpu;
using backend::QueueKind;

void Program::read_values(Results& results, const Devices& devices) const {
  results.values.resize(graph.buffers.size());
  for (BufferId b = 0; b < graph.buffers.size(); ++b) {
    const Binding& binding = results.bindings[b];
    const size_t bytes = graph.buffers[b].bytes;
    if (binding.valid_on == 0) continue;
    std::vector<float> values(bytes / sizeof(float));
    if (binding.valid_on >> kCpu & 1) {
      REQUIRE(binding.blocks[kCpu]);
      if (bytes > 0) std::memcpy(values.data(), binding.blocks[kCpu].data(), bytes);
    }
    if (binding.valid_on >> kAccelerator & 1) {
      REQUIRE(binding.blocks[kAccelerator]);
      Block host = allocate(*devices[kCpu], bytes);
      copy(*devices[kAccelerator], QueueKind::kDeviceToHost, host.data(), binding.blocks[kAccelerator].data(), bytes);
      // Where both devices claim to have the bytes, they are the same bytes.
      if (binding.valid_on >> kCpu & 1 && bytes > 0) {
        REQUIRE(std::memcmp(host.data(), values.data(), bytes) == 0);
      }
      if (bytes > 0) std::memcpy(values.data(), host.data(), bytes);
    }
    results.values[b] = std::move(values);
  }
}

Plan Program::plan(const PlanOptions& options) const {
  const Status legal_graph = verify_graph(graph);
  INFO(to_string(graph));
  INFO((legal_graph.ok() ? "" : legal_graph.message()));
  REQUIRE(legal_graph.ok());
  Plan plan;
  make_plan(graph, options, plan);
  const Status legal_plan = verify_plan(graph, plan, options);
  INFO(to_string(plan));
  INFO((legal_plan.ok() ? "" : legal_plan.message()));
  REQUIRE(legal_plan.ok());
  return plan;
}

Results Program::run(const PlanOptions& options, const Devices& devices) { return run_plan(plan(options), devices); }

Results Program::run_plan(const Plan& plan, const Devices& devices, RunTimes* times) {
  Results results;
  results.bindings = bind(devices);
  Executor executor(devices);
  const std::vector<Binding*> bound = pointers(results.bindings);
  executor.begin(graph, plan, bound, results.counts, times);
  executor.go_on(nullptr);
  results.status = executor.end();
  read_values(results, devices);
  return results;
}

Results Program::interpret() {
  Results results;
  Graph on_cpu = graph;
  for (Buffer& buffer : on_cpu.buffers) buffer.valid_on = buffer.valid_on == 0 ? 0 : 1u << kCpu;
  std::swap(on_cpu, graph);
  const Devices devices{test_devices()[kCpu], nullptr};
  results.bindings = bind(devices);
  results.status = graph::interpret(graph, pointers(results.bindings));
  read_values(results, devices);
  std::swap(on_cpu, graph);
  return results;
}

}  // namespace hetero::graph::testing
