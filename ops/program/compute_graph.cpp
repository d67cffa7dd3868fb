#include "ops/program/compute_graph.h"

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <optional>
#include <set>

#include "graph/cost/cost.h"
#include "graph/ir/text.h"
#include "graph/program/archive.h"
#include "graph/serve/static_plan.h"
#include "ops/process/start.h"
#include "ops/program/compiled.h"
#include "ops/program/schema_call.h"
#include "ops/program/static_call.h"
#include "ops/record/call.h"
#include "ops/record/recorder.h"
#include "ops/settings/parallel.h"
#include "ops/tensor/storage.h"

namespace hetero {
namespace {

using backend::DeviceIndex;
using backend::kCpu;
using ops::CompiledProgram;
using ops::SchemaCall;
using Value = ComputeGraph::Value;

const c10::Device kDevice(ops::kHetero, 0);

Status usage(std::string message) { return Status(ErrorClass::kUsage, std::move(message)); }

// What the call raises, as a Status.
template <typename Call>
Status caught(const Call& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return Status(ErrorClass::kUsage, error.what_without_backtrace(), std::current_exception());
  } catch (const std::bad_alloc&) {
    return Status(ErrorClass::kResource, "there is not enough memory", std::current_exception());
  } catch (const std::exception& error) {
    return Status(ErrorClass::kUsage, error.what(), std::current_exception());
  }
  return Status();
}

// As in inference, whatever the thread does otherwise.
struct Inference {
  const at::NoGradGuard no_gradients{};
  const c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

// Ends a capture that is not kept, however the scope is left.
struct CancelledCapture {
  CompiledProgram& program;
  ~CancelledCapture() { program.cancel_capture(); }
};

std::vector<at::Tensor> tensors_of(const std::vector<c10::IValue>& values) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : values) tensors.push_back(value.toTensor());
  return tensors;
}

// Another look at the same bytes: operators that change how a tensor looks, such as aten::t_, leave
// the value's own alone.
at::Tensor another_look(const at::Tensor& tensor) { return tensor.variable_data(); }

at::Tensor view_like(const c10::Storage& storage, const at::Tensor& tensor) {
  at::Tensor view = another_look(tensor);
  view.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  return view;
}

// What PyTorch says of the call on the CPU, with zeros; nothing where it takes it.
std::optional<Status> find_error(const SchemaCall& call, const std::vector<at::Tensor>& operands) {
  const Status status = caught([&] {
    std::vector<at::Tensor> zeros;
    for (const at::Tensor& operand : operands) {
      const at::Tensor empty = at::detail::empty_strided_cpu(operand.sizes(), operand.strides(), operand.scalar_type());
      zeros.push_back(empty.zero_());
    }
    (void)call(zeros, at::kCPU);
  });
  return status.ok() ? std::nullopt : std::optional<Status>(status);
}

// What the results look like: tensors without bytes, over the operands' storages where they are
// views. Raises.
std::vector<at::Tensor> infer(const SchemaCall& call, const std::vector<at::Tensor>& operands) {
  CompiledProgram program({});
  const std::vector<c10::IValue> arguments(operands.begin(), operands.end());
  const std::vector<at::Tensor> stand_ins = tensors_of(program.begin_capture(arguments));
  std::vector<at::Tensor> results;
  {
    const CancelledCapture cancelled{program};
    results = call(stand_ins, kDevice);
  }
  for (at::Tensor& result : results) {
    if (!result.defined()) continue;
    TORCH_CHECK(ops::is_hetero(result), "hetero: ", call.name(), " gives a tensor on ", result.device());
    for (size_t i = 0; i < stand_ins.size(); ++i) {
      if (!result.storage().is_alias_of(stand_ins[i].storage())) continue;
      result = view_like(operands[i].storage(), result);
      break;
    }
  }
  return results;
}

at::Tensor without_bytes(graph::DType dtype, const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  graph::fill_row_major(sizes, strides.data());
  return ops::make_strided(static_cast<at::ScalarType>(dtype), sizes, strides);
}

at::Tensor copied(const TensorView& view) {
  const at::Tensor host = at::detail::empty_cpu(view.sizes, static_cast<at::ScalarType>(view.dtype), {}, {}, {}, {});
  graph::WindowTable windows;
  graph::copy_in(view, windows[windows.intern_contiguous(view.dtype, view.sizes)], host.mutable_data_ptr());
  return host.to(kDevice);
}

Status check_sizes(const std::string& name, graph::DType dtype, const std::vector<int64_t>& sizes) {
  if (name.empty()) return usage("inputs, constants and outputs have names");
  if (dtype < 0 || graph::dtype_bytes(dtype) == 0) return usage("'" + name + "' has a dtype that there is not");
  const bool negative = std::ranges::any_of(sizes, [](int64_t size) { return size < 0; });
  return negative ? usage("'" + name + "' has a negative size") : Status();
}

TensorView look_of(const at::Tensor& tensor) {
  return {.data = nullptr,
          .dtype = static_cast<graph::DType>(tensor.scalar_type()),
          .sizes = tensor.sizes().vec(),
          .strides = tensor.strides().vec()};
}

// What the node is predicted to take where it was placed; in a group, its share. Of a node with its
// tail there, the body's.
double seconds_of(const graph::StaticPlan& plan, const graph::PlanOptions& options, size_t node) {
  const graph::CostModel costs(options);
  const DeviceIndex device = plan.plan.placements[node].device;
  const auto tail = [&](uint32_t n) { return is_tail(plan.graph, n); };
  graph::Part part = graph::Part::kWhole;
  for (const graph::FusedGroup& group : plan.plan.groups) {
    if (std::ranges::find(group.members, node) == group.members.end()) continue;
    const auto shares = group.members.size() - static_cast<size_t>(std::ranges::count_if(group.members, tail));
    if (!tail(static_cast<uint32_t>(node))) {
      return costs.group_seconds(plan.graph, group, device) / static_cast<double>(shares);
    }
    part = graph::Part::kBody;
  }
  return costs.node_seconds(plan.graph, plan.graph.nodes[node], device, part);
}

size_t recorded_nodes() {
  ops::Locked lock(ops::recorder().mutex());
  return ops::recorder().pending_nodes();
}

// The nodes of this thread prefer a device, for a scope.
class Preferring {
 public:
  explicit Preferring(graph::Preference preference) : before_(ops::thread_preference()) {
    if (preference != before_) ops::prefer(preference);
  }
  ~Preferring() {
    if (ops::thread_preference() != before_) ops::prefer(before_);
  }
  Preferring(const Preferring&) = delete;

 private:
  const graph::Preference before_;
};

}  // namespace

struct ComputeGraph::Impl {
  enum class Kind : uint8_t { kInput, kConstant, kOperator };
  struct Node {
    Kind kind = Kind::kOperator;
    std::string name;
    std::optional<SchemaCall> call = {};
    std::vector<at::Tensor> results = {};  // of a constant: with its bytes; all others have none
    graph::Preference preference = graph::Preference::kAuto;
    std::pair<size_t, size_t> recorded = {};  // the nodes of the plan's graph, after optimize()
  };
  struct Output {
    std::string name;
    Value value;
  };

  const Status started = start();
  std::vector<Node> nodes;
  std::vector<Output> outputs;
  uint64_t budget = 0;

  // Of optimize(); none where something was changed since.
  std::shared_ptr<Model> model;
  graph::StaticPlan plan;
  std::unique_ptr<graph::PlanOptions> options;
  std::vector<size_t> updated;  // inputs that are written
  // Made when it is first used. After a change it is still that of before, which has the states.
  std::unique_ptr<GraphExecutor> executor;

  void change() { model.reset(); }
  Value append(Node node) {
    nodes.push_back(std::move(node));
    change();
    return {static_cast<uint32_t>(nodes.size() - 1), 0};
  }
  Status check_new(Kind kind, const std::string& name) const;
  Status check(Value value) const;
  const at::Tensor& tensor(Value value) const { return nodes[value.node].results[value.index]; }
  std::vector<size_t> inputs() const;

  using Results = std::vector<std::vector<at::Tensor>>;  // per node
  std::unique_ptr<graph::SavedProgram> capture(std::vector<std::pair<size_t, size_t>>& recorded);
  void replay(Results& results, std::vector<std::pair<size_t, size_t>>& recorded) const;
  Status make_executor();
  Status keep_states();
  Status check_optimized() const {
    return model != nullptr ? Status() : usage("the graph was not optimized, or was changed since; call optimize()");
  }
};

Status ComputeGraph::Impl::check_new(Kind kind, const std::string& name) const {
  const bool taken =
      std::ranges::any_of(nodes, [&](const Node& node) { return node.kind == kind && node.name == name; });
  return taken ? usage("there is '" + name + "' already; give it another name") : Status();
}

Status ComputeGraph::Impl::check(Value value) const {
  if (value.node >= nodes.size()) return usage("the value is not of this graph");
  const Node& node = nodes[value.node];
  if (value.index >= node.results.size()) {
    return usage(node.name + " has " + std::to_string(node.results.size()) + " results, and there is no number " +
                 std::to_string(value.index));
  }
  return tensor(value).defined() ? Status()
                                 : usage(node.name + " leaves out its result " + std::to_string(value.index));
}

std::vector<size_t> ComputeGraph::Impl::inputs() const {
  std::vector<size_t> found;
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (nodes[n].kind == Kind::kInput) found.push_back(n);
  }
  return found;
}

ComputeGraph::ComputeGraph() : impl_(std::make_unique<Impl>()) {}
ComputeGraph::~ComputeGraph() = default;
ComputeGraph::ComputeGraph(ComputeGraph&&) noexcept = default;
ComputeGraph& ComputeGraph::operator=(ComputeGraph&&) noexcept = default;

// ---- building

Result<Value> ComputeGraph::input(const std::string& name, std::string_view dtype, std::vector<int64_t> sizes) {
  Status status = impl_->started;
  const graph::DType number = graph::parse_dtype(dtype);
  if (status.ok()) status = check_sizes(name, number, sizes);
  if (status.ok()) status = impl_->check_new(Impl::Kind::kInput, name);
  Impl::Node node{.kind = Impl::Kind::kInput, .name = name};
  if (status.ok()) status = caught([&] { node.results = {without_bytes(number, sizes)}; });
  if (!status.ok()) return status;
  return impl_->append(std::move(node));
}

Result<Value> ComputeGraph::constant(const std::string& name, const TensorView& tensor) {
  Status status = impl_->started;
  if (status.ok()) status = check_sizes(name, tensor.dtype, tensor.sizes);
  if (status.ok()) status = impl_->check_new(Impl::Kind::kConstant, name);
  if (status.ok()) status = graph::check_shape(tensor.dtype, tensor.sizes, tensor, "the constant '" + name + "'");
  if (status.ok() && tensor.device != kCpu)
    status = usage("the constant '" + name + "' is copied from the host's memory");
  Impl::Node node{.kind = Impl::Kind::kConstant, .name = name};
  if (status.ok()) status = caught([&] { node.results = {copied(tensor)}; });
  if (!status.ok()) return status;
  return impl_->append(std::move(node));
}

Result<Value> ComputeGraph::add(std::string_view op, Arguments arguments, Attributes attributes) {
  if (!impl_->started.ok()) return impl_->started;
  Impl::Node node{.name = std::string(op)};
  Status status = caught([&] { node.call.emplace(op, arguments, attributes); });
  if (!status.ok()) return status;
  std::vector<at::Tensor> operands;
  for (const Value value : node.call->tensors()) {
    if (status = impl_->check(value); !status.ok()) return status;
    operands.push_back(impl_->tensor(value));
  }
  const Inference inference;
  status = caught([&] { node.results = infer(*node.call, operands); });
  // The device's reason may hide PyTorch's.
  if (!status.ok()) return find_error(*node.call, operands).value_or(status);
  if (node.results.empty()) return usage(node.call->name() + " gives no tensor");
  return impl_->append(std::move(node));
}

size_t ComputeGraph::results(Value node) const {
  return node.node < impl_->nodes.size() ? impl_->nodes[node.node].results.size() : 0;
}

Result<TensorView> ComputeGraph::look(Value value) const {
  if (Status status = impl_->check(value); !status.ok()) return status;
  return look_of(impl_->tensor(value));
}

Status ComputeGraph::output(const std::string& name, Value value) {
  if (Status status = impl_->check(value); !status.ok()) return status;
  if (name.empty()) return usage("inputs, constants and outputs have names");
  if (std::ranges::any_of(impl_->outputs, [&](const Impl::Output& other) { return other.name == name; })) {
    return usage("there is '" + name + "' already; give it another name");
  }
  impl_->outputs.push_back({name, value});
  impl_->change();
  return Status();
}

Status ComputeGraph::prefer(Value node, graph::Preference device) {
  if (node.node >= impl_->nodes.size()) return usage("the value is not of this graph");
  Impl::Node& chosen = impl_->nodes[node.node];
  if (chosen.kind != Impl::Kind::kOperator) return usage("'" + chosen.name + "' is no operator, so it runs nowhere");
  chosen.preference = device;
  impl_->change();
  return Status();
}

void ComputeGraph::set_memory_budget(uint64_t bytes) {
  impl_->budget = bytes;
  impl_->change();
}

// ---- running

// Calls the operators, on what `results` has of inputs and constants.
void ComputeGraph::Impl::replay(Results& results, std::vector<std::pair<size_t, size_t>>& recorded) const {
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (nodes[n].kind != Kind::kOperator) continue;
    const Preferring preferring(nodes[n].preference);
    std::vector<at::Tensor> operands;
    for (const Value value : nodes[n].call->tensors())
      operands.push_back(another_look(results[value.node][value.index]));
    recorded[n].first = recorded_nodes();
    results[n] = (*nodes[n].call)(operands, kDevice);
    recorded[n].second = recorded_nodes();
  }
}

std::unique_ptr<graph::SavedProgram> ComputeGraph::Impl::capture(std::vector<std::pair<size_t, size_t>>& recorded) {
  CompiledProgram program({});
  ops::ProgramNames names;
  std::vector<c10::IValue> arguments;
  for (const size_t n : inputs()) {
    names.inputs.push_back(nodes[n].name);
    arguments.emplace_back(nodes[n].results[0]);
  }
  Results results(nodes.size());
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (nodes[n].kind != Kind::kConstant) continue;
    results[n] = nodes[n].results;
    names.constants.emplace_back(nodes[n].name, nodes[n].results[0]);
  }
  const CancelledCapture cancelled{program};  // does nothing where it has ended
  const std::vector<c10::IValue> stand_ins = program.begin_capture(arguments);
  for (size_t i = 0; i < stand_ins.size(); ++i) results[inputs()[i]] = {stand_ins[i].toTensor()};
  replay(results, recorded);
  std::vector<c10::IValue> given;
  for (const Output& output : outputs) {
    names.outputs.push_back(output.name);
    given.emplace_back(results[output.value.node][output.value.index]);
  }
  const std::vector<c10::DeviceType> devices(given.size(), ops::kHetero);
  program.end_capture(std::move(given), devices);
  updated = program.updated_arguments();
  for (const size_t input : updated) names.outputs.push_back(names.inputs[input] + ".updated");
  return program.save(names);
}

// The constants are from here on what the program of before made of them.
Status ComputeGraph::Impl::keep_states() {
  if (executor == nullptr) return Status();
  const Model& of = executor->model();
  for (const graph::ProgramConstant& state : of.program().constants) {
    const auto node = std::ranges::find_if(
        nodes, [&](const Node& other) { return other.kind == Kind::kConstant && other.name == state.name; });
    if (!of.is_written(state.buffer) || node == nodes.end()) continue;
    TensorView look = look_of(node->results[0]);
    Status status = caught([&] {
      const at::Tensor host =
          at::detail::empty_strided_cpu(look.sizes, look.strides, static_cast<at::ScalarType>(look.dtype));
      look.data = host.mutable_data_ptr();
      const Status copy = executor->GetState(state.name, look);
      TORCH_CHECK(copy.ok(), copy.message());
      node->results = {copied(look)};
    });
    if (!status.ok()) return status;
  }
  executor.reset();
  return Status();
}

Status ComputeGraph::optimize() {
  Impl& impl = *impl_;
  impl.change();
  if (!impl.started.ok()) return impl.started;
  if (impl.outputs.empty()) return usage("the graph has no outputs; name them by output()");
  if (Status status = impl.keep_states(); !status.ok()) return status;
  const Inference inference;
  std::vector<std::pair<size_t, size_t>> recorded(impl.nodes.size());
  std::unique_ptr<graph::SavedProgram> program;
  Status status = caught([&] {
    program = impl.capture(recorded);
    impl.options = std::make_unique<graph::PlanOptions>(ops::static_plan_options());
  });
  if (!status.ok()) return status;
  if (impl.budget != 0) impl.options->machine[impl.options->searched].bytes = impl.budget;
  if (status = graph::plan_program(*program, *impl.options, false, impl.plan); !status.ok()) return status;
  graph::keep_plan(impl.plan, *impl.options, *program);
  Result<std::shared_ptr<Model>> model = Model::create(std::move(program));
  if (!model.ok()) return model.status();
  // The windows that the plan's graph points to have moved with the program, which the model keeps.
  impl.model = std::move(model.value());
  for (size_t n = 0; n < impl.nodes.size(); ++n) impl.nodes[n].recorded = recorded[n];
  return Status();
}

Status ComputeGraph::Impl::make_executor() {
  if (executor != nullptr) return Status();
  GraphExecutor::Options settings = ops::executor_options(*options);
  settings.slots = 1;
  Result<std::unique_ptr<GraphExecutor>> made = GraphExecutor::Init(model, std::move(settings));
  if (!made.ok()) return made.status();
  executor = std::move(made.value());
  return Status();
}

Status ComputeGraph::execute(const std::vector<TensorView>& inputs, const std::vector<TensorView>& outputs) {
  Impl& impl = *impl_;
  Status status = impl.model != nullptr ? Status() : optimize();
  if (status.ok()) status = impl.make_executor();
  if (!status.ok()) return status;
  if (inputs.size() != impl.executor->inputs().size() || outputs.size() != impl.outputs.size()) {
    return usage("the graph has " + std::to_string(impl.executor->inputs().size()) + " inputs and " +
                 std::to_string(impl.outputs.size()) + " outputs, and was given " + std::to_string(inputs.size()) +
                 " and " + std::to_string(outputs.size()));
  }
  GraphExecutor& executor = *impl.executor;
  for (size_t i = 0; i < inputs.size() && status.ok(); ++i) status = executor.SetInput(i, inputs[i]);
  if (status.ok()) {
    const ops::KernelScope scope;
    ops::choose_thread_count();
    status = executor.Run();
  }
  for (size_t o = 0; o < outputs.size() && status.ok(); ++o) status = executor.GetOutput(o, outputs[o]);
  for (size_t u = 0; u < impl.updated.size() && status.ok(); ++u) {
    status = executor.GetOutput(outputs.size() + u, inputs[impl.updated[u]]);
  }
  return status;
}

Status ComputeGraph::save(const std::string& path) {
  const Result<std::shared_ptr<Model>> ready = model();
  return ready.ok() ? graph::save_program(ready.value()->program(), path) : ready.status();
}

Result<std::shared_ptr<Model>> ComputeGraph::model() {
  if (impl_->model == nullptr) {
    if (Status status = optimize(); !status.ok()) return status;
  }
  return impl_->model;
}

// ---- asking

Result<ComputeGraph::Cost> ComputeGraph::cost(Value node) const {
  if (Status status = impl_->check_optimized(); !status.ok()) return status;
  if (node.node >= impl_->nodes.size()) return usage("the value is not of this graph");
  const graph::Graph& graph = impl_->plan.graph;
  const graph::Plan& plan = impl_->plan.plan;
  Cost cost;
  const auto [first, last] = impl_->nodes[node.node].recorded;
  for (size_t n = first; n < last; ++n) {
    const graph::Node& recorded = graph.nodes[n];
    Part part{.op = graph::op_table()[recorded.op].name,
              .runs = plan.live[n] != 0,
              .device = plan.placements[n].device,
              .reason = plan.placements[n].reason};
    for (int i = recorded.operand_count - recorded.output_count; i < recorded.operand_count; ++i) {
      part.bytes += graph.buffers[graph.operands_of(recorded)[i].buffer].bytes;
    }
    if (part.runs) part.seconds = seconds_of(impl_->plan, *impl_->options, n);
    cost.seconds += part.seconds;
    cost.bytes += part.bytes;
    cost.parts.push_back(std::move(part));
  }
  return cost;
}

Result<ComputeGraph::Memory> ComputeGraph::memory(DeviceIndex device) const {
  if (Status status = impl_->check_optimized(); !status.ok()) return status;
  if (device >= backend::kMostDevices) return usage("there is no device " + std::to_string(device));
  const graph::SavedProgram& program = impl_->model->program();
  const graph::StaticPlan& plan = impl_->plan;
  Memory memory{.temporaries = plan.plan.arena_bytes[device], .at_least = plan.plan.arena_lower_bound[device]};
  std::set<graph::BufferId> counted;
  const auto bytes_of = [&](graph::BufferId buffer) {
    const bool there = backend::contains(plan.graph.buffers[buffer].valid_on, device) ||
                       plan.plan.residence(buffer, device).home != graph::Home::kNone;
    return there && counted.insert(buffer).second ? plan.graph.buffers[buffer].bytes : 0;
  };
  for (const graph::ProgramConstant& constant : program.constants) memory.constants += bytes_of(constant.buffer);
  for (const graph::ProgramValue& input : program.inputs) memory.inputs += bytes_of(input.buffer);
  for (const graph::ProgramValue& output : program.outputs) memory.inputs += bytes_of(output.buffer);
  return memory;
}

std::string ComputeGraph::describe() const {
  std::string text;
  for (uint32_t n = 0; n < impl_->nodes.size(); ++n) {
    const Impl::Node& node = impl_->nodes[n];
    text += std::to_string(n) + ' ';
    if (node.kind != Impl::Kind::kOperator) text += node.kind == Impl::Kind::kInput ? "input " : "constant ";
    text += node.call.has_value() ? node.call->name() : node.name;
    if (node.call.has_value()) {
      text += '(';
      const std::vector<Value>& tensors = node.call->tensors();
      for (size_t i = 0; i < tensors.size(); ++i) {
        text += (i == 0 ? "" : ", ") + std::to_string(tensors[i].node);
        if (tensors[i].index != 0) text += '.' + std::to_string(tensors[i].index);
      }
      text += ')';
    }
    for (const at::Tensor& result : node.results) {
      text += ' ' + (result.defined() ? to_string(look_of(result)) : std::string("nothing"));
    }
    text += '\n';
    const Result<Cost> cost = this->cost({n, 0});
    if (!cost.ok()) continue;
    for (const Part& part : cost.value().parts) {
      char seconds[32];
      std::snprintf(seconds, sizeof(seconds), "%.3g", part.seconds * 1e6);
      text += "    " + part.op + ": " +
              (part.runs ? graph::device_word(part.device) + ", " + to_string(part.reason) + ", " + seconds +
                               " us predicted, "
                         : std::string("not needed, ")) +
              std::to_string(part.bytes) + " bytes\n";
    }
  }
  for (const Impl::Output& output : impl_->outputs) {
    text += "output " + output.name + " = " + std::to_string(output.value.node);
    if (output.value.index != 0) text += '.' + std::to_string(output.value.index);
    text += '\n';
  }
  if (impl_->model != nullptr) text += '\n' + to_string(impl_->plan.plan);
  return text;
}

}  // namespace hetero
