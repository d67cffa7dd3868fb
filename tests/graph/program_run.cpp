// The part of Program that checks what it makes: plans and runs, which throw where something is not legal.

#include <cstring>
#include <stdexcept>
#include <string>

#include "graph/verify.h"
#include "tests/graph/program.h"

namespace hetero::graph::testing {

using backend::Block;
using backend::kAccelerator;
using backend::kCpu;
using backend::QueueKind;

namespace {

void check(bool holds, const std::string& what) {
  if (!holds) throw std::logic_error(what);
}

}  // namespace

void Program::read_values(Results& results, const Devices& devices) const {
  results.values.resize(graph.buffers.size());
  for (BufferId b = 0; b < graph.buffers.size(); ++b) {
    const Binding& binding = results.bindings[b];
    const size_t bytes = graph.buffers[b].bytes;
    if (binding.valid_on == 0) continue;
    std::vector<float> values(bytes / sizeof(float));
    if (binding.valid_on >> kCpu & 1) {
      check(static_cast<bool>(binding.blocks[kCpu]), "valid on the CPU, and not there");
      if (bytes > 0) std::memcpy(values.data(), binding.blocks[kCpu].data(), bytes);
    }
    if (binding.valid_on >> kAccelerator & 1) {
      check(static_cast<bool>(binding.blocks[kAccelerator]), "valid on the accelerator, and not there");
      Block host = allocate(*devices[kCpu], bytes);
      copy(*devices[kAccelerator], QueueKind::kDeviceToHost, host.data(), binding.blocks[kAccelerator].data(), bytes);
      // Where both devices claim to have the bytes, they are the same bytes.
      if (binding.valid_on >> kCpu & 1 && bytes > 0) {
        check(std::memcmp(host.data(), values.data(), bytes) == 0, "valid on both devices, with different bytes");
      }
      if (bytes > 0) std::memcpy(values.data(), host.data(), bytes);
    }
    results.values[b] = std::move(values);
  }
}

Plan Program::plan(const PlanOptions& options) const {
  const Status legal_graph = verify_graph(graph);
  if (!legal_graph.ok()) throw std::logic_error(legal_graph.message() + "\n" + to_string(graph));
  Plan plan;
  make_plan(graph, options, plan);
  const Status legal_plan = verify_plan(graph, plan, options);
  if (!legal_plan.ok()) throw std::logic_error(legal_plan.message() + "\n" + to_string(graph) + to_string(plan));
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
