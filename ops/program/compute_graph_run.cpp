// ComputeGraph: how it is captured, planned and run, and what it tells about the plan.

#include <algorithm>
#include <cstdio>
#include <set>

#include "graph/cost/cost.h"
#include "graph/ir/text.h"
#include "graph/program/archive.h"
#include "ops/program/compute_graph_impl.h"
#include "ops/program/dynamic_program.h"
#include "ops/program/static_call.h"
#include "ops/record/recorder.h"
#include "ops/settings/parallel.h"

namespace hetero {
namespace {

using backend::DeviceIndex;
using ops::caught;
using ops::CompiledProgram;
using ops::SchemaCall;
using ops::usage;
using Value = ComputeGraph::Value;

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

// ---- running

// Calls the operators, on what `results` has of inputs and constants.
void ComputeGraph::Impl::replay(const std::vector<int64_t>& sizes, Results& results, Recorded& recorded) const {
  for (const uint32_t n : order) {
    if (nodes[n].kind != Kind::kOperator) continue;
    const Preferring preferring(nodes[n].preference);
    std::vector<at::Tensor> operands;
    for (const Value value : nodes[n].call->tensors())
      operands.push_back(ops::another_look(results[value.node][value.index]));
    std::optional<SchemaCall> other;
    if (!nodes[n].arguments.empty() || !nodes[n].attributes.empty()) {
      other.emplace(nodes[n].call->name(), ops::arguments_at(nodes[n].arguments, sizes),
                    ops::attributes_at(nodes[n].attributes, sizes));
    }
    recorded[n].first = recorded_nodes();
    results[n] = (other.has_value() ? *other : *nodes[n].call)(operands, ops::kGraphDevice);
    recorded[n].second = recorded_nodes();
  }
}

// The graph as a program for one set of sizes.
std::unique_ptr<graph::SavedProgram> ComputeGraph::Impl::capture(const std::vector<int64_t>& sizes,
                                                                 Recorded& recorded) {
  CompiledProgram program({});
  ops::ProgramNames names;
  std::vector<c10::IValue> arguments;
  for (const size_t n : inputs()) {
    names.inputs.push_back(nodes[n].name);
    const auto dtype = static_cast<graph::DType>(nodes[n].results[0].scalar_type());
    arguments.emplace_back(ops::without_bytes(dtype, ops::sizes_at(nodes[n].sizes, sizes)));
  }
  Results results(nodes.size());
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (nodes[n].kind != Kind::kConstant) continue;
    results[n] = nodes[n].results;
    names.constants.emplace_back(nodes[n].name, nodes[n].results[0]);
  }
  const ops::CancelledCapture cancelled{program};  // does nothing where it has ended
  const std::vector<c10::IValue> stand_ins = program.begin_capture(arguments);
  for (size_t i = 0; i < stand_ins.size(); ++i) results[inputs()[i]] = {stand_ins[i].toTensor()};
  replay(sizes, results, recorded);
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

// The graph as a program for all sizes of its dimensions.
std::unique_ptr<graph::SavedProgram> ComputeGraph::Impl::capture_all(Recorded& recorded) {
  const std::vector<int64_t>& own = dimensions.example;
  std::unique_ptr<graph::SavedProgram> program = capture(own, recorded);
  if (own.empty()) return program;
  Recorded others(nodes.size());
  ops::SizesOfModel model;
  model.variables = ops::lines_of(dimensions.variables);
  model.samples.push_back({std::move(program), own});
  for (std::vector<int64_t>& sizes : ops::sizes_to_record(dimensions)) {
    std::unique_ptr<graph::SavedProgram> other = capture(sizes, others);
    model.samples.push_back({std::move(other), std::move(sizes)});
  }
  for (size_t d = 0; d < own.size(); ++d) {
    std::vector<int64_t> sizes = own;
    sizes[d] = dimensions.variables[d].least;
    ops::SizedCapture least{.program = nullptr, .sizes = sizes};
    // With a size of 1 or 0 the graph may be impossible.
    (void)caught([&] { least.program = capture(sizes, others); });
    model.least.push_back(std::move(least));
  }
  ops::SizeFactors factors(dimensions);
  for (const Node& node : nodes) {
    for (const GraphSize& size : node.sizes.list()) factors.add(size);
    for (const GraphArgument& argument : node.arguments) factors.add(argument);
    for (const auto& [name, argument] : node.attributes) factors.add(argument);
  }
  model.factors = factors.texts();
  return ops::dynamic_program(std::move(model));
}

// The constants are from here on what the program of before made of them.
Status ComputeGraph::Impl::keep_states() {
  if (executor == nullptr) return Status();
  const Model& of = executor->model();
  for (const graph::ProgramConstant& state : of.program().constants) {
    const auto node = std::ranges::find_if(
        nodes, [&](const Node& other) { return other.kind == Kind::kConstant && other.name == state.name; });
    if (!of.is_written(state.buffer) || node == nodes.end()) continue;
    TensorView look = ops::look_of(node->results[0]);
    Status status = caught([&] {
      const at::Tensor host =
          at::detail::empty_strided_cpu(look.sizes, look.strides, static_cast<at::ScalarType>(look.dtype));
      look.data = host.mutable_data_ptr();
      const Status copy = executor->GetState(state.name, look);
      TORCH_CHECK(copy.ok(), copy.message());
      node->results = {ops::copied(look)};
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
  for (uint32_t n = 0; n < impl.nodes.size(); ++n) {
    if (Status status = impl.close(Value{n, 0}); !status.ok()) return status;
  }
  if (Status status = impl.keep_states(); !status.ok()) return status;
  const ops::Inference inference;
  Impl::Recorded recorded(impl.nodes.size());
  std::unique_ptr<graph::SavedProgram> program;
  Status status = caught([&] {
    program = impl.capture_all(recorded);
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
  if (!executor.dimensions().empty()) status = executor.SetSizesOf(inputs);
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
      text += ' ' + (result.defined() ? to_string(ops::look_of(result)) : std::string("nothing"));
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
