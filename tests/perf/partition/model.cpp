#include "tests/perf/partition/model.h"

#include <algorithm>
#include <array>

#include "graph/plan/pipeline.h"
#include "graph/plan/slice_allocator.h"

namespace hetero::graph::testing {
namespace {

using backend::kAccelerator;
using backend::kCpu;

constexpr int64_t kItem = 2;

struct ModelOps {
  OpId pointwise, norm, product, attention, store;
};

const ModelOps& model_ops() {
  static const ModelOps ops = [] {
    const auto add = [](const char* name, OpClass op_class) {
      return op_table().add({.name = name, .op_class = op_class, .kernel = [](const Invocation&) {}});
    };
    return ModelOps{add("model::pointwise", OpClass::kPointwise), add("model::norm", OpClass::kNormalization),
                    add("model::product", OpClass::kMatmul), add("model::attention", OpClass::kAttention),
                    add("model::store", OpClass::kIndexing)};
  }();
  return ops;
}

}  // namespace

Model::Model(const ModelShape& shape, int64_t tokens, int64_t context) : tokens_(tokens) {
  graph.windows = &windows;
  BufferId x = matrix(tokens, shape.hidden, true, false);
  for (int i = 0; i < shape.layers; ++i) x = add_layer(shape, x, context);
  graph.buffers[x].escapes = true;
}

BufferId Model::add_layer(const ModelShape& shape, BufferId x, int64_t context) {
  const ModelOps& ops = model_ops();
  layers.emplace_back();
  const BufferId normed = define(ops.norm, shape.hidden, {x});
  const BufferId query = define(ops.pointwise, shape.query, {product(normed, shape.query)});
  const BufferId key = define(ops.pointwise, shape.key, {product(normed, shape.key)});
  const BufferId value = product(normed, shape.key);
  const BufferId keys = matrix(context, shape.key, true, false);
  const BufferId values = matrix(context, shape.key, true, false);
  for (const BufferId cache : {keys, values}) graph.buffers[cache].escapes = true;
  store(key, keys);
  store(value, values);
  const BufferId attended = define(ops.attention, shape.query, {query, keys, values});
  const BufferId middle = define(ops.pointwise, shape.hidden, {product(attended, shape.hidden), x});
  const BufferId again = define(ops.norm, shape.hidden, {middle});
  const BufferId gate = product(again, shape.inner);
  const BufferId up = product(again, shape.inner);
  const BufferId inner = define(ops.pointwise, shape.inner, {gate, up});
  return define(ops.pointwise, shape.hidden, {product(inner, shape.hidden), middle});
}

BufferId Model::product(BufferId x, int64_t columns) {
  const int64_t rows = windows[whole_[x]].sizes()[1];
  const BufferId weight = matrix(rows, columns, true, true);
  layers.back().weights.push_back(weight);
  return define(model_ops().product, columns, {x, weight});
}

BufferId Model::matrix(int64_t rows, int64_t columns, bool there, bool weight) {
  graph.buffers.push_back({.bytes = static_cast<uint64_t>(rows * columns * kItem),
                           .valid_on = static_cast<uint8_t>(there ? 1u << kCpu : 0),
                           .escapes = weight,
                           .steady = weight});
  const std::array<int64_t, 2> sizes{rows, columns};
  whole_.push_back(windows.intern_contiguous(parse_dtype("bf16"), sizes));
  return static_cast<BufferId>(graph.buffers.size() - 1);
}

Operand Model::whole(BufferId buffer, Access access) {
  return {.buffer = buffer, .window = whole_[buffer], .access = access, .bits = 0};
}

BufferId Model::define(OpId op, int64_t columns, std::vector<BufferId> inputs) {
  const BufferId output = matrix(tokens_, columns, false, false);
  std::vector<Operand> operands;
  for (const BufferId input : inputs) operands.push_back(whole(input, Access::kRead));
  operands.push_back(whole(output, Access::kDefine));
  add_node(op, operands);
  return output;
}

// The last rows of the cache are this step's.
void Model::store(BufferId rows, BufferId cache) {
  const Window& window = windows[whole_[cache]];
  const int64_t columns = window.sizes()[1];
  const std::array<int64_t, 2> sizes{tokens_, columns};
  const std::array<int64_t, 2> strides{columns, 1};
  const WindowId part = windows.intern(window.dtype, sizes, strides, (window.sizes()[0] - tokens_) * columns);
  add_node(model_ops().store,
           {whole(rows, Access::kRead), {.buffer = cache, .window = part, .access = Access::kWrite, .bits = 0}});
}

void Model::add_node(OpId op, const std::vector<Operand>& operands) {
  Node node{};
  node.op = op;
  node.first_operand = static_cast<uint32_t>(graph.operands.size());
  node.operand_count = static_cast<uint16_t>(operands.size());
  node.output_count = operands.back().access == Access::kDefine ? 1 : 0;
  node.sequence = static_cast<uint32_t>(graph.nodes.size());
  graph.operands.insert(graph.operands.end(), operands.begin(), operands.end());
  graph.nodes.push_back(node);
}

uint64_t Model::weight_bytes() const {
  uint64_t bytes = 0;
  for (const Buffer& buffer : graph.buffers) bytes += buffer.steady ? buffer.bytes : 0;
  return bytes;
}

uint64_t Model::largest_weight() const {
  uint64_t bytes = 0;
  for (const Buffer& buffer : graph.buffers) bytes = std::max(bytes, buffer.steady ? buffer.bytes : 0);
  return bytes;
}

uint64_t Model::other_bytes() const {
  uint64_t bytes = 0;
  for (const Buffer& buffer : graph.buffers) {
    if (!buffer.steady && (buffer.escapes || buffer.valid_on != 0)) bytes += SliceAllocator::round_up(buffer.bytes);
  }
  return bytes;
}

uint64_t budget_for(Model& model, double share, const PlanOptions& options) {
  PlanOptions unlimited = options;
  unlimited.policy = Policy::kAccelerator;
  unlimited.machine[1].bytes = 0;
  unlimited.candidates = nullptr;
  Plan plan;
  make_plan(model.graph, unlimited, plan);
  const double temporaries = static_cast<double>(plan.arena_bytes[kAccelerator] + model.other_bytes());
  const double needed = share * static_cast<double>(model.weight_bytes()) +
                        3 * static_cast<double>(model.largest_weight()) + temporaries + 4096;
  return static_cast<uint64_t>(needed * 16 / 15);
}

}  // namespace hetero::graph::testing
