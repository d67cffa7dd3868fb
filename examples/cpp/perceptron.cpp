// A perceptron of two layers, built operator by operator: what ComputeGraph is for.
//
//   perceptron           prints the probabilities for one input, and what each node costs
//   perceptron FILE      also writes the program to a file, for GraphExecutor::Init

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "ops/program/compute_graph.h"

using hetero::ComputeGraph;
using hetero::TensorView;

namespace {

constexpr int64_t kBatch = 2, kIn = 8, kHidden = 16, kOut = 3;

// Ends the program with the error, if there is one.
void check(const hetero::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "perceptron: %s\n", status.message().c_str());
  std::exit(1);
}

template <typename T>
T check(hetero::Result<T> result) {
  check(result.status());
  return std::move(result.value());
}

// Stands for weights that somebody has trained.
std::vector<float> weights(int64_t count, float phase) {
  std::vector<float> numbers(static_cast<size_t>(count));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = 0.3f * std::sin(phase + 0.7f * static_cast<float>(i));
  return numbers;
}

ComputeGraph::Value constant(ComputeGraph& graph, const std::string& name, std::vector<int64_t> sizes, float phase) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  std::vector<float> numbers = weights(count, phase);
  return check(graph.constant(name, TensorView::row_major(numbers.data(), "f32", std::move(sizes))));  // copied
}

}  // namespace

int main(int argc, char** argv) {
  ComputeGraph graph;
  const auto x = check(graph.input("x", "f32", {kBatch, kIn}));

  // Two layers. Operators are PyTorch's; a call takes handles of what was made before.
  const auto hidden = check(graph.add(
      "aten::linear", {x, constant(graph, "w1", {kHidden, kIn}, 0.1f), constant(graph, "b1", {kHidden}, 0.2f)}));
  const auto active = check(graph.add("aten::relu", {hidden}));
  const auto scores = check(graph.add(
      "aten::linear", {active, constant(graph, "w2", {kOut, kHidden}, 0.3f), constant(graph, "b2", {kOut}, 0.4f)}));
  const auto probabilities = check(graph.add("aten::softmax", {scores}, {{"dim", -1}}));
  check(graph.output("probabilities", probabilities));

  // What does not fit is an error where it is added, and the graph is as it was.
  const hetero::Result<ComputeGraph::Value> wrong = graph.add("aten::mm", {x, scores});
  std::printf("refused: %s\n", wrong.status().message().c_str());

  // With an accelerator: the second layer there if planning likes it, the first on the CPU in any
  // case, all in 64 MiB of its memory.
  check(graph.prefer(hidden, hetero::graph::Preference::kCpu));
  graph.set_memory_budget(uint64_t{64} << 20);
  check(graph.optimize());

  std::vector<float> in = weights(kBatch * kIn, 0.5f);
  std::vector<float> out(kBatch * kOut);
  check(graph.execute({TensorView::row_major(in.data(), "f32", {kBatch, kIn})},
                      {TensorView::row_major(out.data(), "f32", {kBatch, kOut})}));
  for (int64_t row = 0; row < kBatch; ++row) {
    std::printf("probabilities:");
    for (int64_t i = 0; i < kOut; ++i) std::printf(" %.7f", out[static_cast<size_t>(row * kOut + i)]);
    std::printf("\n");
  }

  // What was decided, and what it is predicted to take.
  const ComputeGraph::Memory memory = check(graph.memory());
  std::printf("weights take %zu bytes, temporaries %zu (%zu at least)\n", static_cast<size_t>(memory.constants),
              static_cast<size_t>(memory.temporaries), static_cast<size_t>(memory.at_least));
  std::printf("%s", graph.describe().c_str());
  if (argc > 1) check(graph.save(argv[1]));
  return 0;
}
