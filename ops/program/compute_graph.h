// ComputeGraph: a program built node by node in C++ from PyTorch's operators, and run by
// GraphExecutor.
//
//   ComputeGraph graph;
//   auto x = graph.input("x", "f32", {8, 64}).value();
//   auto w = graph.constant("w", TensorView::row_major(weights, "f32", {10, 64})).value();
//   auto y = graph.add("aten::linear", {x, w}).value();
//   auto z = graph.add("aten::softmax", {y}, {{"dim", -1}}).value();
//   graph.output("z", z);
//   graph.optimize();  // fuse, place, plan memory
//   graph.execute({TensorView::row_major(in, "f32", {8, 64})},
//                 {TensorView::row_major(out, "f32", {8, 10})});
//
// Handles connect outputs to inputs. Attributes have their names in the operator's schema, or come
// in its order.
//
// Operators are PyTorch's, all of them, by the names of its dispatcher: "aten::add.Tensor", or
// without the overload, the first whose schema takes the arguments. A composed operator becomes its
// parts; a view becomes no node. add() asks PyTorch what the results look like, so a wrong call is
// an error there, in PyTorch's words. Operators that depend on values, such as aten::nonzero, are
// refused.
//
// A size may be left to the caller. dimension() names it, and inputs and arguments are written with
// it; execute() finds it in the inputs that it is given:
//
//   const GraphSize tokens = graph.dimension("tokens", 1, 4096).value();
//   auto x = graph.input("x", "f32", {tokens, 64}).value();
//   auto heads = graph.add("aten::view", {x, GraphSizes{tokens, 4, 16}}).value();
//
// optimize() captures the operators (compiled.h) into a SavedProgram, as torch.hetero.compile does
// with a model, and plans it. A later change requires another one. execute() and save() optimize if
// needed.
//
// Errors are Status values, and none leaves the graph changed: kUsage for a wrong call, kKernel for
// a failing run.
//
// Thread safety: one thread at a time; graphs are independent of each other. add() and optimize()
// wait for running programs of the device, and run what other threads have recorded. If another
// thread records during optimize(), that is an error, and optimize() may be called again.
// Ownership: the graph copies constants. TensorViews are read before a function returns.

#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/base/status.h"
#include "backend/device/device.h"
#include "graph/ir/graph.h"
#include "graph/ir/plan.h"
#include "graph/ir/plan_options.h"
#include "graph/program/tensor_view.h"
#include "graph/serve/graph_executor.h"
#include "graph/serve/model.h"
#include "ops/program/graph_argument.h"

namespace hetero {

class ComputeGraph {
 public:
  using Value = GraphValue;
  using Argument = GraphArgument;
  using Arguments = std::vector<Argument>;
  using Attributes = std::vector<std::pair<std::string, Argument>>;

  ComputeGraph();
  ~ComputeGraph();
  ComputeGraph(ComputeGraph&&) noexcept;
  ComputeGraph& operator=(ComputeGraph&&) noexcept;

  // ---- building ----

  // A size that each execute() may choose, from `least` to `most`; some input must have it alone as
  // a size. What add() returns has an example of it, `example` or a small prime. optimize() records
  // the graph for several sizes, and fails if these are other programs; size 1 is left out then. A
  // dimension with one size only is that integer. Errors: kUsage for a name that is taken, or
  // bounds without a size.
  Result<GraphSize> dimension(const std::string& name, int64_t least = 1,
                              int64_t most = std::numeric_limits<int64_t>::max(), int64_t example = 0);
  // A tensor that execute() is given; `dtype` by its short name ("f32", "i64"). Names of inputs are
  // unique, as are those of constants and of outputs. An input that a node writes is written in the
  // caller's memory: state that the caller keeps and may exchange, such as the cache of a request.
  Result<Value> input(const std::string& name, std::string_view dtype, const GraphSizes& sizes);
  // A weight, copied. One that a node writes is a state, which stays from one execute() to the
  // next.
  Result<Value> constant(const std::string& name, const TensorView& tensor);
  // A weight that is used where it lies, in a mapped file for example, and must not change; `owner`
  // is held for as long. Copied if its address is no multiple of its elements' size, or if it is
  // not row-major. REQUIRES: `owner` is not null.
  Result<Value> constant(const std::string& name, const TensorView& tensor, std::shared_ptr<const void> owner);
  // A node; its first result, if it has any: some operators only write their arguments. Arguments
  // in the order of the schema, then attributes by name; the rest has the schema's defaults.
  // Errors: kUsage for an unknown operator, for arguments that none of its schemas takes, and for
  // what PyTorch itself says.
  Result<Value> add(std::string_view op, Arguments arguments, Attributes attributes = {});
  // The same for graphs that come from elsewhere as nodes and edges, in any order. A node is called
  // when one of its results is used or asked for, by optimize() at the latest, so errors of the
  // call are those of that function, and name the node.
  Result<Value> add_node(std::string_view op, Attributes attributes = {});
  // Gives result `output` of `from` to `to`, which add_node() made, as argument `input` of its
  // schema. Several edges to one argument are a list, in this order. Errors: kUsage if the node was
  // called already.
  Status add_edge(Value from, Value to, uint32_t output = 0, uint32_t input = 0);
  // How many results the node has, and what one looks like: a view without data.
  size_t results(Value node) const;
  Result<TensorView> look(Value value) const;
  // Makes the value a result of the graph.
  Status output(const std::string& name, Value value);
  // Where the node shall run; kAuto leaves it to planning.
  Status prefer(Value node, graph::Preference device);
  // What the accelerator's memory may hold; 0: all that the device has or configuration allows.
  void set_memory_budget(uint64_t bytes);
  // Who decides where nodes without a preference run: the planner by predicted time, kAuto, or by
  // `thresholds`, kThresholds; or one device for all. Not called: config.placement, which is kAuto
  // by default.
  void set_policy(graph::Policy policy, graph::Thresholds thresholds = {});
  // Products, convolutions and attention of f32 run in "bf16" or "f16", as with torch.autocast;
  // weights are cast once, by optimize(). Results have the dtypes that look() says. "f32", the
  // default, has the graph's dtypes; convolutions get the batch norms behind them in their filters,
  // and images between operators another layout (docs/kernels.md). Errors: kUsage for another
  // dtype; optimize() fails where an operator refuses what another has made.
  Status set_precision(std::string_view dtype);
  // From now on optimize() looks for chains of these operators, by their full names, and calls `op`
  // for each, an operator of a TORCH_LIBRARY of the caller's for example. In a chain each result is
  // the first argument of the next operator, and no other node and no output uses it. `op` takes
  // what the operators take, one after the other, without these results; defaults count:
  //
  //   graph.register_fusion({"aten::linear", "aten::silu"}, "mylib::linear_silu");
  //   // linear_silu(Tensor input, Tensor weight, Tensor? bias) -> Tensor
  //
  // The first pattern that fits is taken. With config.fusion off, none is. Errors: kUsage where the
  // schemas do not fit; where `op` makes another tensor than the chain, optimize() fails.
  Status register_fusion(std::vector<std::string> chain, std::string op);

  // ---- running ----

  Status optimize();
  // Inputs and outputs in the order in which they were declared. An input that some node writes is
  // written. With dimensions, the inputs' sizes say what they are, and outputs have what follows.
  // Tensors of the accelerator (TensorView::device) are used where they are; this is an error where
  // the plan has them elsewhere.
  Status execute(const std::vector<TensorView>& inputs, const std::vector<TensorView>& outputs);
  // The same in the order of a CUDA stream of the caller, a cudaStream_t: the run starts after what
  // the stream has been given, and the stream goes on after the run. Returns when results on the
  // host are there; results on the accelerator may not be, until the stream gets there. Tensors on
  // the host are read at once. Errors: kUsage where the accelerator is not "cuda".
  Status execute(const std::vector<TensorView>& inputs, const std::vector<TensorView>& outputs, void* stream);
  // Writes the program with weights and plan to a file, for GraphExecutor::Init (archive.h).
  Status save(const std::string& path);
  // The program, for executors of one's own (GraphExecutor::Init). Optimizes where that was not
  // done.
  Result<std::shared_ptr<Model>> model();

  // ---- asking; all of it REQUIRES optimize(), and is an error of kUsage before ----

  // What became of a part of a node: an operator that was recorded for it.
  struct Part {
    std::string op;
    bool runs = true;  // false: nobody needs it
    backend::DeviceIndex device = backend::kCpu;
    graph::Reason reason = graph::Reason::kOnlyDevice;
    double seconds = 0;  // predicted; in a fused kernel a share of it
    uint64_t bytes = 0;  // of what it makes
  };
  struct Cost {
    double seconds = 0;       // predicted
    uint64_t bytes = 0;       // of what it makes
    std::vector<Part> parts;  // none for a view, and where a fusion's last node has them
  };
  Result<Cost> cost(Value node) const;

  struct Memory {
    uint64_t constants = 0;    // on the host
    uint64_t inputs = 0;       // and outputs, of one slot
    uint64_t temporaries = 0;  // the arena as it was planned
    // The most bytes of temporaries that are needed at once: what no plan goes below.
    uint64_t at_least = 0;
    uint64_t budget = 0;  // of the device; 0: not limited

    // The share of the budget that is used while the graph runs; 0 without one.
    double pressure() const {
      const auto used = static_cast<double>(constants + inputs + temporaries);
      return budget == 0 ? 0 : used / static_cast<double>(budget);
    }
  };
  // Of the plan, on a device; `constants` of those that lie there.
  Result<Memory> memory(backend::DeviceIndex device = backend::kCpu) const;

  // Where the bytes of a value, or those that it is a view of, lie on a device.
  struct Storage {
    // kNone: nowhere there, as what a fused kernel keeps to itself.
    graph::Home home = graph::Home::kNone;
    uint64_t offset = 0;  // in the arena
    uint64_t bytes = 0;
    uint32_t first = 0;  // its lifetime: the instructions of the plan that touch it first and last
    uint32_t last = 0;
  };
  Result<Storage> storage(Value value, backend::DeviceIndex device = backend::kCpu) const;

  // What a device does in a run, as planned.
  struct Statistics {
    size_t nodes = 0;
    std::map<graph::Reason, size_t> reasons;  // why they are there
    double seconds = 0;                       // predicted, of all nodes
    size_t copies = 0;                        // to the device
    uint64_t copied_bytes = 0;
    size_t waits = 0;  // of its queues for others
  };
  Result<Statistics> statistics(backend::DeviceIndex device) const;

  // What was registered, and how often optimize() found it.
  struct Fusion {
    std::vector<std::string> chain;
    std::string op;
    size_t uses = 0;
  };
  const std::vector<Fusion>& fusions() const;

  // Nodes with results, placement and cost; the plan where there is one.
  std::string describe() const;

 private:
  struct Impl;
  // An executor of the program, for so many tensors.
  Status prepare(size_t inputs, size_t outputs);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hetero
