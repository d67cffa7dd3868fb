// Model: the graph of one step of a decoder-only transformer, in bf16, with kernels that do nothing.
//
// A layer has seven weights, attention over a cache that it writes, and pointwise nodes between them: 17 nodes. What a weight is used for takes its
// own time on each device by the cost model; that is all that planning and the virtual clock need.
//
// Thread safety: a Model belongs to one thread.

#pragma once

#include <cstdint>
#include <vector>

#include "graph/ir/graph.h"
#include "graph/ir/plan.h"
#include "graph/ir/plan_options.h"

namespace hetero::graph::testing {

struct ModelShape {
  int layers = 64;
  int64_t hidden = 5120;
  int64_t query = 8192;  // all heads together
  int64_t key = 1024;    // all heads of keys together
  int64_t inner = 25600;
};

// Of a layer's seven weights those of attention are a tenth to a third of the others: Qwen3-32B's sizes. 62 GB.
inline constexpr ModelShape kUneven{};
// Qwen3-14B's sizes, without embeddings. 26 GB.
inline constexpr ModelShape kQwen14{.layers = 40, .hidden = 5120, .query = 5120, .key = 1024, .inner = 17408};
// Seven weights of one size.
inline constexpr ModelShape kEqual{.layers = 64, .hidden = 8192, .query = 8192, .key = 8192, .inner = 8192};

class Model {
 public:
  // `tokens` go through; the cache has room for `context`. REQUIRES: tokens <= context.
  Model(const ModelShape& shape, int64_t tokens, int64_t context);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  struct Layer {
    std::vector<BufferId> weights;  // in the order of their use
  };

  WindowTable windows;
  Graph graph;
  std::vector<Layer> layers;

  uint64_t weight_bytes() const;
  uint64_t largest_weight() const;
  // Bytes of what is there before or after the step and is no weight.
  uint64_t other_bytes() const;

 private:
  BufferId matrix(int64_t rows, int64_t columns, bool there, bool weight);
  Operand whole(BufferId buffer, Access access);
  // The node's result, of `columns`.
  BufferId define(OpId op, int64_t columns, std::vector<BufferId> inputs);
  void store(BufferId rows, BufferId cache);
  void add_node(OpId op, const std::vector<Operand>& operands);
  BufferId product(BufferId x, int64_t columns);
  BufferId add_layer(const ModelShape& shape, BufferId x, int64_t context);

  const int64_t tokens_;
  std::vector<WindowId> whole_;  // per buffer
};

// The least budget, with what arenas waste, that leaves `share` of the weights on the accelerator throughout, and room for three more of the largest.
uint64_t budget_for(Model& model, double share, const PlanOptions& options);

}  // namespace hetero::graph::testing
