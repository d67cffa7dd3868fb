// What independent branches gain by several compute queues: the time with all of them over that with one, and over what no order could better.

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "graph/cost/simulate.h"
#include "graph/plan/pipeline.h"
#include "tests/graph/fixtures/program.h"
#include "tests/perf/partition/rows.h"

namespace hetero::graph::testing {
namespace {

using backend::kAccelerator;

// Where tasks fill the accelerator only together, what was submitted first goes first, and others end late.
constexpr double kBlocksBar = 1.1;
constexpr double kHeadsBar = 1.5;

struct BlockOps {
  OpId convolution, product, pointwise;
};

const BlockOps& block_ops() {
  static const BlockOps ops = [] {
    const auto add = [](const char* name, OpClass op_class) {
      return op_table().add({.name = name, .op_class = op_class, .kernel = [](const Invocation&) {}});
    };
    return BlockOps{add("block::convolution", OpClass::kConvolution), add("block::product", OpClass::kMatmul),
                    add("block::pointwise", OpClass::kPointwise)};
  }();
  return ops;
}

// A program on the accelerator, in float32; what comes in and the weights lie there.
class Blocks {
 public:
  struct Value {
    BufferId buffer;
    std::vector<int64_t> sizes;
  };

  Value input(const std::vector<int64_t>& sizes) {
    const BufferId buffer = program.input(elements(sizes), 1u << kAccelerator);
    program.escape(buffer);
    return {buffer, sizes};
  }
  Value apply(OpId op, const std::vector<int64_t>& sizes, const std::vector<Value>& from) {
    const Value made{program.empty(elements(sizes)), sizes};
    std::vector<Operand> operands;
    for (const Value& value : from) operands.push_back(operand(value, Access::kRead));
    operands.push_back(operand(made, Access::kDefine));
    program.add(op, operands);
    return made;
  }
  // Of an image of `x`'s size, with its normalization and activation behind it.
  Value convolution(const Value& x, int64_t channels, int64_t kernel) {
    const Value weight = input({channels, x.sizes[1], kernel, kernel});
    const std::vector<int64_t> sizes{x.sizes[0], channels, x.sizes[2], x.sizes[3]};
    return apply(block_ops().pointwise, sizes, {apply(block_ops().convolution, sizes, {x, weight})});
  }
  Value linear(const Value& x, int64_t columns) {
    const std::vector<int64_t> sizes{x.sizes[0], columns};
    const Value weight = input({x.sizes[1], columns});
    return apply(block_ops().pointwise, sizes, {apply(block_ops().product, sizes, {x, weight})});
  }

  Program program;

 private:
  static int64_t elements(const std::vector<int64_t>& sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
  }
  Operand operand(const Value& value, Access access) {
    std::vector<int64_t> strides(value.sizes.size(), 1);
    for (size_t d = strides.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * value.sizes[d + 1];
    return program.operand(value.buffer, access, value.sizes, strides, 0);
  }
};

// The first blocks of Inception v3 (C. Szegedy et al., 2015), one image: 35 x 35, 192 to 288 channels.
void add_inception(Blocks& blocks) {
  Blocks::Value x = blocks.input({1, 192, 35, 35});
  for (const int64_t pooled : {32, 64, 64}) {
    const auto one = blocks.convolution(x, 64, 1);
    const auto five = blocks.convolution(blocks.convolution(x, 48, 1), 64, 5);
    const auto three = blocks.convolution(blocks.convolution(blocks.convolution(x, 64, 1), 96, 3), 96, 3);
    const auto pool = blocks.convolution(blocks.apply(block_ops().pointwise, x.sizes, {x}), pooled, 1);
    x = blocks.apply(block_ops().pointwise, {1, 64 + 64 + 96 + pooled, 35, 35}, {one, five, three, pool});
  }
  blocks.program.escape(x.buffer);
}

// Heads of a trunk, as of a model with several tasks: three layers each, 32 rows of 512.
void add_heads(Blocks& blocks) {
  const Blocks::Value trunk = blocks.input({32, 512});
  for (int head = 0; head < 8; ++head) {
    blocks.program.escape(blocks.linear(blocks.linear(blocks.linear(trunk, 512), 256), 16).buffer);
  }
}

struct Spread {
  double seconds;
  double bound;  // the longest path; what the device must do; what each queue has to run at least
};

Spread simulated(const Graph& graph, const PlanOptions& options) {
  Plan plan;
  make_plan(graph, options, plan);
  const CostModel costs(options);
  Simulation simulation;
  simulate(graph, plan, costs, simulation);
  double work = 0;
  double all = 0;
  double longest = 0;
  std::map<BufferId, double> made;
  for (const Node& node : graph.nodes) {
    const double seconds = costs.node_seconds(graph, node, kAccelerator);
    double begin = 0;
    for (const Operand *o = graph.operands_of(node), *end = o + node.operand_count; o != end; ++o) {
      begin = std::max(begin, made[o->buffer]);
    }
    for (const Operand *o = graph.operands_of(node), *end = o + node.operand_count; o != end; ++o) {
      if (o->writes()) made[o->buffer] = begin + seconds;
    }
    longest = std::max(longest, begin + seconds);
    work += seconds * costs.utilization(work_of(graph, node), seconds, kAccelerator, 1);
    all += seconds;
  }
  return {simulation.seconds, std::max({longest, work, all / options.compute_queues})};
}

void add_rows(Table& table, const Machines& machines, const char* what, const Graph& graph, double bar) {
  std::string faster;
  std::string over;
  double worst = 0;
  for (const Machine& machine : machines) {
    PlanOptions options = machine.options();
    options.policy = Policy::kAccelerator;
    const Spread spread = simulated(graph, options);
    options.compute_queues = 1;
    const double serial = simulated(graph, options).seconds;
    const char* const comma = faster.empty() ? "" : ", ";
    faster += comma + text("%.2f (%.0f us, not %.0f)", serial / spread.seconds, 1e6 * spread.seconds, 1e6 * serial);
    over += comma + text("%.3f", spread.seconds / spread.bound);
    worst = std::max(worst, spread.seconds / spread.bound);
  }
  table.note(text("times as fast on four compute queues as on one, %s, each machine", what), faster);
  table.at_most("&nbsp; time over the largest of longest path, work of the device, and an even share of each queue",
                over, worst, bar);
}

}  // namespace

void stream_rows(Table& table, const Machines& machines) {
  Blocks inception;
  add_inception(inception);
  add_rows(table, machines, "three Inception blocks", inception.program.graph, kBlocksBar);
  Blocks heads;
  add_heads(heads);
  add_rows(table, machines, "eight heads of one trunk", heads.program.graph, kHeadsBar);
}

}  // namespace hetero::graph::testing
