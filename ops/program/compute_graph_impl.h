// What a ComputeGraph is made of. compute_graph_impl.cpp builds it, compute_graph_fusion.cpp finds
// the caller's fusions, compute_graph_run.cpp runs it and tells about it.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/ir/plan_options.h"
#include "graph/program/saved_program.h"
#include "graph/serve/static_plan.h"
#include "ops/process/start.h"
#include "ops/program/compute_graph.h"
#include "ops/program/graph_sizes.h"
#include "ops/program/graph_tensors.h"
#include "ops/program/schema_call.h"

namespace hetero {

struct ComputeGraph::Impl {
  enum class Kind : uint8_t { kInput, kConstant, kOperator };
  // What became of a node in the graph that is planned.
  struct Recorded {
    size_t first = 0;                           // of its nodes
    size_t last = 0;                            // behind them
    std::vector<graph::BufferId> buffers = {};  // per result
  };
  struct Node {
    Kind kind = Kind::kOperator;
    std::string name;
    std::optional<ops::SchemaCall> call = {};  // for the example's sizes
    GraphSizes sizes = {};                     // of an input
    // Where some have a dimension: what is called for others.
    ops::SchemaCall::Arguments arguments = {};
    ops::SchemaCall::Attributes attributes = {};
    std::vector<at::Tensor> results = {};  // of a constant: with its bytes; all others have none
    graph::Preference preference = graph::Preference::kAuto;
    // Of add_node(): what is given to which argument, until the node is called.
    std::map<uint32_t, std::vector<Value>> edges = {};
    bool open = false;
    // Of optimize(): the nodes for which a fusion's operator is called here, itself the last; and
    // the last of them for the others.
    std::vector<uint32_t> chain = {};
    size_t fusion = 0;
    std::optional<uint32_t> fused_into = {};
    Recorded recorded = {};
  };
  struct Output {
    std::string name;
    Value value;
  };

  const Status started = start();
  ops::GraphDimensions dimensions;
  std::vector<Node> nodes;
  std::vector<uint32_t> order;  // of the nodes that were called or need not be: operands come first
  std::vector<Output> outputs;
  std::vector<Fusion> fusions;
  uint64_t budget = 0;
  std::optional<graph::Policy> policy;  // none: as configured
  graph::Thresholds thresholds;
  at::ScalarType precision = at::kFloat;

  // Of optimize(); none where something was changed since.
  std::shared_ptr<Model> model;
  graph::StaticPlan plan;
  std::unique_ptr<graph::PlanOptions> options;
  std::vector<size_t> updated;  // inputs that are written
  // Made when it is first used. After a change it is still that of before, which has the states.
  std::unique_ptr<GraphExecutor> executor;
  std::vector<uint8_t> lent;  // per output of it: the last run wrote it in the caller's memory

  void change() { model.reset(); }
  Value append(Node node) {
    if (!node.open) order.push_back(static_cast<uint32_t>(nodes.size()));
    nodes.push_back(std::move(node));
    change();
    return {static_cast<uint32_t>(nodes.size() - 1), 0};
  }
  // Calls the operator on the node's operands, for what the results look like.
  Status call(Node& node, std::string_view op, const Arguments& arguments, const Attributes& attributes) const;
  // Calls an open node, those that it needs before it. `path`: the nodes for which it is needed.
  Status close(uint32_t node, std::vector<uint32_t>& path);
  Status close(Value value);
  Status close(const Argument& argument);
  std::string title(uint32_t node) const { return "node " + std::to_string(node) + " (" + nodes[node].name + ')'; }
  Status check_new(Kind kind, const std::string& name) const;
  Status check(Value value) const;
  const at::Tensor& tensor(Value value) const { return nodes[value.node].results[value.index]; }
  std::vector<size_t> inputs() const;

  std::vector<uint32_t> count_reads() const;
  std::vector<uint32_t> find_chain(const Fusion& fusion, uint32_t last, const std::vector<uint32_t>& reads) const;
  Status check_chain(const Fusion& fusion, uint32_t last) const;
  Status find_fusions(bool allowed);
  std::optional<ops::SchemaCall> other_call(uint32_t node, const std::vector<int64_t>& sizes) const;

  // Per node.
  using Results = std::vector<std::vector<at::Tensor>>;
  using AllRecorded = std::vector<Recorded>;
  std::unique_ptr<graph::SavedProgram> capture(const std::vector<int64_t>& sizes, AllRecorded& recorded);
  void replay(const std::vector<int64_t>& sizes, Results& results, AllRecorded& recorded) const;
  std::unique_ptr<graph::SavedProgram> capture_all(AllRecorded& recorded);
  Status improve(graph::SavedProgram& program, AllRecorded& recorded) const;
  Result<Value> add_constant(const std::string& name, const TensorView& tensor, std::shared_ptr<const void> owner);
  Status make_executor();
  // Lends what lies on the accelerator, and copies what lies on the host.
  Status set_input(size_t input, const TensorView& tensor);
  Status set_output(size_t output, const TensorView& tensor);
  Status run(const std::vector<TensorView>& inputs, const std::vector<TensorView>& outputs);
  Status keep_states();
  Status check_optimized() const {
    return model != nullptr ? Status()
                            : ops::usage("the graph was not optimized, or was changed since; call optimize()");
  }
};

}  // namespace hetero
