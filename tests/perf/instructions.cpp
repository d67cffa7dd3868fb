// What callgrind counts the instructions of: recording an operator, replaying a small plan, and building a plan.
//
// Under callgrind, started with --instr-atstart=no --collect-atstart=no, it dumps one profile for each of them; its name is the
// profile's description. Standard output says how many operations each profile holds, and which compiler built this:
//
//   compiler 12.2.0
//   record 1000
//
// instructions.py divides. Run alone, the program does the same work and nothing is counted. One thread; no Python.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>
#include <valgrind/callgrind.h>

#include <cstdio>

#include "backend/registry/registry.h"
#include "graph/ir/op.h"
#include "graph/ir/plan.h"
#include "graph/plan/pipeline.h"
#include "ops/run/sync.h"
#include "ops/settings/config.h"
#include "tests/ops/start_device.h"

namespace hetero::ops {
namespace {

constexpr int kWarmup = 20;

at::Tensor on_device(at::IntArrayRef sizes) {
  return at::randn(sizes, at::detail::createCPUGenerator(1)).to(c10::Device(kHetero, 0));
}

// Counts what its lifetime runs on this thread.
class Collecting {
 public:
  Collecting() { CALLGRIND_TOGGLE_COLLECT; }
  ~Collecting() { CALLGRIND_TOGGLE_COLLECT; }
  Collecting(const Collecting&) = delete;
};

// Ends the profile of what was collected since the last one.
void report(const char* name, int operations) {
  CALLGRIND_DUMP_STATS_AT(name);
  std::printf("%s %d\n", name, operations);
}

// Dispatch, the node, and making and dropping the result's handle; flushed without being counted.
void record() {
  constexpr int kRounds = 10, kNodes = 100;
  const at::Tensor x = on_device({16}), y = on_device({16});
  const auto nodes = [&] {
    for (int i = 0; i < kNodes; ++i) at::add(x, y);
  };
  for (int i = 0; i < kWarmup; ++i) {
    nodes();
    flush_all(SyncReason::kFlush);
  }
  for (int round = 0; round < kRounds; ++round) {
    {
      Collecting collecting;
      nodes();
    }
    flush_all(SyncReason::kFlush);
  }
  report("record", kRounds * kNodes);
}

// The flush of a plan of 16 nodes that has run often: everything but recording, kernels included.
void replay() {
  constexpr int kReplays = 100, kNodes = 16;
  const at::Tensor x = on_device({16}), y = on_device({16});
  const auto chain = [&] {
    at::Tensor value = x;
    for (int i = 0; i < kNodes; i += 2) value = at::mul(at::add(value, y), 0.5);
    return value;
  };
  for (int i = 0; i < kWarmup; ++i) {
    const at::Tensor value = chain();
    flush_all(SyncReason::kFlush);
  }
  for (int i = 0; i < kReplays; ++i) {
    const at::Tensor value = chain();
    Collecting collecting;
    flush_all(SyncReason::kFlush);
  }
  report("replay", kReplays);
}

// `count` floats that exist before the graph, or are made in it.
graph::BufferId add_buffer(graph::Graph& graph, uint64_t count, bool exists) {
  graph.buffers.push_back({count * sizeof(float), static_cast<uint8_t>(exists ? 1u << backend::kCpu : 0), exists});
  return static_cast<graph::BufferId>(graph.buffers.size() - 1);
}

// A chain of products and sums, in which each sum has the value from two steps before as its other operand.
void add_nodes(graph::Graph& graph, graph::WindowId window, uint64_t count, int nodes) {
  const graph::OpTable& table = graph::op_table();
  const graph::OpId add = table.find("aten::add.Tensor"), mul = table.find("aten::mul.Tensor");
  TORCH_CHECK(add < table.size() && mul < table.size());
  graph::BufferId older = add_buffer(graph, count, true), newer = add_buffer(graph, count, true);
  for (int i = 0; i < nodes; ++i) {
    const graph::BufferId result = add_buffer(graph, count, false);
    graph::Node node{};
    node.op = i % 2 == 0 ? mul : add;
    node.first_operand = static_cast<uint32_t>(graph.operands.size());
    node.operand_count = 3;
    node.output_count = 1;
    node.sequence = static_cast<uint32_t>(i);
    graph.operands.push_back({newer, window, graph::Access::kRead, 0});
    graph.operands.push_back({older, window, graph::Access::kRead, 0});
    graph.operands.push_back({result, window, graph::Access::kDefine, 0});
    graph.nodes.push_back(node);
    older = newer;
    newer = result;
  }
  graph.buffers[newer].escapes = true;
}

// All passes over a graph of 64 nodes; nothing is recorded and nothing runs.
void plan() {
  constexpr int kPlans = 50, kNodes = 64;
  constexpr uint64_t kCount = 1024;
  graph::WindowTable windows;
  graph::Graph graph;
  graph.windows = &windows;
  const int64_t sizes[] = {kCount};
  add_nodes(graph, windows.intern_contiguous(static_cast<graph::DType>(at::kFloat), sizes), kCount, kNodes);
  graph::PlanOptions options;
  options.machine.cpu().rates = backend::cpu_device().capabilities();
  graph::Plan plan;
  for (int i = 0; i < kWarmup; ++i) graph::make_plan(graph, options, plan);
  for (int i = 0; i < kPlans; ++i) {
    Collecting collecting;
    graph::make_plan(graph, options, plan);
  }
  report("plan", kPlans);
}

}  // namespace
}  // namespace hetero::ops

int main() {
  hetero::ops::testing::start_device();
  at::set_num_threads(1);
  hetero::ops::config().pending_nodes = int64_t{1} << 30;
  c10::InferenceMode mode;
  std::printf("compiler %s\n", __VERSION__);
  CALLGRIND_START_INSTRUMENTATION;
  hetero::ops::record();
  hetero::ops::replay();
  hetero::ops::plan();
  return 0;
}
