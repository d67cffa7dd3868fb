// ComputeGraph: how it is captured, planned and run, and what it tells about the plan.

#include <algorithm>
#include <cstdio>
#include <set>

#include "graph/cost/cost.h"
#include "graph/ir/text.h"
#include "graph/program/archive.h"
#include "ops/program/caller_stream.h"
#include "ops/program/compute_graph_impl.h"
#include "ops/program/dynamic_program.h"
#include "ops/program/fold_norms.h"
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

std::string text_of(const ComputeGraph::Fusion& fusion) {
  std::string text = "fusion " + fusion.op + " for";
  for (const std::string& op : fusion.chain) text += ' ' + op;
  return text + ": " + std::to_string(fusion.uses) + " times\n";
}

std::string text_of(const ComputeGraph::Statistics& statistics) {
  std::string text = ": " + std::to_string(statistics.nodes) + " nodes";
  for (const auto& [reason, nodes] : statistics.reasons) text += ", " + std::to_string(nodes) + ' ' + to_string(reason);
  return text + "; " + std::to_string(statistics.copies) + " copies to it of " +
         std::to_string(statistics.copied_bytes) + " bytes\n";
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
void ComputeGraph::Impl::replay(const std::vector<int64_t>& sizes, Results& results, AllRecorded& recorded) const {
  for (const uint32_t n : order) {
    if (nodes[n].kind != Kind::kOperator || nodes[n].fused_into.has_value()) continue;
    const Preferring preferring(nodes[n].preference);
    const std::optional<SchemaCall> other = other_call(n, sizes);
    const SchemaCall& call = other.has_value() ? *other : *nodes[n].call;
    std::vector<at::Tensor> operands;
    for (const Value value : call.tensors()) operands.push_back(ops::another_look(results[value.node][value.index]));
    recorded[n].first = recorded_nodes();
    results[n] = call(operands, ops::kGraphDevice);
    recorded[n].last = recorded_nodes();
  }
}

// The graph as a program for one set of sizes.
std::unique_ptr<graph::SavedProgram> ComputeGraph::Impl::capture(const std::vector<int64_t>& sizes,
                                                                 AllRecorded& recorded) {
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
  {
    const ops::Autocast autocast(precision);
    replay(sizes, results, recorded);
  }
  std::vector<c10::IValue> given;
  for (const Output& output : outputs) {
    names.outputs.push_back(output.name);
    // Does nothing where it has that dtype.
    given.emplace_back(results[output.value.node][output.value.index].to(tensor(output.value).scalar_type()));
  }
  const std::vector<c10::DeviceType> devices(given.size(), ops::kHetero);
  program.end_capture(std::move(given), devices);
  for (size_t n = 0; n < nodes.size(); ++n) {
    recorded[n].buffers.clear();
    for (const at::Tensor& result : results[n]) {
      recorded[n].buffers.push_back(result.defined() ? program.buffer_of(result) : graph::kNoBuffer);
    }
  }
  updated = program.updated_arguments();
  for (const size_t input : updated) names.outputs.push_back(names.inputs[input] + ".updated");
  return program.save(names);
}

// The graph as a program for all sizes of its dimensions.
std::unique_ptr<graph::SavedProgram> ComputeGraph::Impl::capture_all(AllRecorded& recorded) {
  const std::vector<int64_t>& own = dimensions.example;
  std::unique_ptr<graph::SavedProgram> program = capture(own, recorded);
  if (own.empty()) return program;
  AllRecorded others(nodes.size());
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

// Prepares convolutions. With casts, folds these now, and computes what several nodes read once in
// a run. Keeps what is said of the nodes that stay.
Status ComputeGraph::Impl::improve(graph::SavedProgram& program, AllRecorded& recorded) const {
  const std::vector<graph::Node> before = program.graph.nodes;
  const bool casts = precision != at::kFloat;
  Status status = casts ? ops::optimize_program(program) : ops::prepare_convolutions(program);
  if (!status.ok()) return status;
  const std::vector<graph::Node>& after = program.graph.nodes;
  std::vector<size_t> left(before.size() + 1);  // of the nodes before each
  for (size_t n = 0; n < before.size(); ++n) {
    const bool stays = left[n] < after.size() && after[left[n]].sequence == before[n].sequence;
    left[n + 1] = left[n] + (stays ? 1 : 0);
  }
  for (Recorded& of_node : recorded) {
    of_node.first = left[of_node.first];
    of_node.last = left[of_node.last];
  }
  return Status();
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
  Status status = caught([&] { impl.options = std::make_unique<graph::PlanOptions>(ops::static_plan_options()); });
  if (status.ok()) status = impl.find_fusions(impl.options->fusion);
  if (!status.ok()) return status;
  Impl::AllRecorded recorded(impl.nodes.size());
  std::unique_ptr<graph::SavedProgram> program;
  status = caught([&] { program = impl.capture_all(recorded); });
  if (status.ok()) status = impl.improve(*program, recorded);
  if (!status.ok()) return status;
  if (impl.budget != 0) impl.options->machine[impl.options->searched].bytes = impl.budget;
  impl.options->policy = impl.policy.value_or(impl.options->policy);
  impl.options->thresholds = impl.thresholds;
  if (status = graph::plan_program(*program, *impl.options, false, impl.plan); !status.ok()) return status;
  graph::keep_plan(impl.plan, *impl.options, *program);
  Result<std::shared_ptr<Model>> model = Model::create(std::move(program));
  if (!model.ok()) return model.status();
  // The windows that the plan's graph points to have moved with the program, which the model keeps.
  impl.model = std::move(model.value());
  for (size_t n = 0; n < impl.nodes.size(); ++n) impl.nodes[n].recorded = std::move(recorded[n]);
  return Status();
}

Status ComputeGraph::Impl::make_executor() {
  if (executor != nullptr) return Status();
  lent.assign(outputs.size(), 0);
  GraphExecutor::Options settings = ops::executor_options(*options);
  settings.slots = 1;
  Result<std::unique_ptr<GraphExecutor>> made = GraphExecutor::Init(model, std::move(settings));
  if (!made.ok()) return made.status();
  executor = std::move(made.value());
  return Status();
}

Status ComputeGraph::Impl::set_input(size_t input, const TensorView& tensor) {
  if (tensor.device == backend::kCpu) return executor->SetInput(input, tensor);
  const bool is_updated = std::ranges::find(updated, input) != updated.end();
  return is_updated ? executor->SetStateZeroCopy(input, tensor) : executor->SetInputZeroCopy(input, tensor);
}

Status ComputeGraph::Impl::set_output(size_t output, const TensorView& tensor) {
  if (tensor.device != backend::kCpu) {
    const Status status = executor->SetOutputZeroCopy(output, tensor);
    if (status.ok()) lent[output] = 1;
    return status;
  }
  if (lent[output] == 0) return Status();  // it is copied after the run
  // The executor takes its own memory again, except where it can write to the caller's.
  const Result<bool> offered = executor->OfferOutput(output, tensor);
  if (offered.ok()) lent[output] = offered.value();
  return offered.status();
}

// Submits all of it; what is on the host is there when it returns.
Status ComputeGraph::Impl::run(const std::vector<TensorView>& inputs, const std::vector<TensorView>& results) {
  Status status;
  if (!executor->dimensions().empty()) status = executor->SetSizesOf(inputs);
  for (size_t i = 0; i < inputs.size() && status.ok(); ++i) status = set_input(i, inputs[i]);
  for (size_t o = 0; o < results.size() && status.ok(); ++o) status = set_output(o, results[o]);
  if (status.ok()) {
    const ops::KernelScope scope;
    ops::choose_thread_count();
    status = executor->Run();
  }
  for (size_t o = 0; o < results.size() && status.ok(); ++o) {
    if (results[o].device == backend::kCpu) {
      status = lent[o] != 0 ? executor->Wait() : executor->GetOutput(o, results[o]);
    }
  }
  for (size_t u = 0; u < updated.size() && status.ok(); ++u) {
    const TensorView& input = inputs[updated[u]];
    if (input.device == backend::kCpu) status = executor->GetOutput(results.size() + u, input);
  }
  return status;
}

Status ComputeGraph::prepare(size_t inputs, size_t results) {
  Impl& impl = *impl_;
  Status status = impl.model != nullptr ? Status() : optimize();
  if (status.ok()) status = impl.make_executor();
  if (!status.ok()) return status;
  const size_t given = impl.executor->inputs().size();
  if (inputs == given && results == impl.outputs.size()) return Status();
  return usage("the graph has " + std::to_string(given) + " inputs and " + std::to_string(impl.outputs.size()) +
               " outputs, and was given " + std::to_string(inputs) + " and " + std::to_string(results));
}

Status ComputeGraph::execute(const std::vector<TensorView>& inputs, const std::vector<TensorView>& outputs) {
  Status status = prepare(inputs.size(), outputs.size());
  if (status.ok()) status = impl_->run(inputs, outputs);
  return status.ok() ? impl_->executor->Wait() : status;
}

Status ComputeGraph::execute(const std::vector<TensorView>& inputs, const std::vector<TensorView>& outputs,
                             void* stream) {
  Status status = prepare(inputs.size(), outputs.size());
  if (status.ok()) status = ops::wait_for_stream(stream);
  if (!status.ok()) return status;
  status = impl_->run(inputs, outputs);
  // After an error too: the caller's memory may still be in use.
  const Status followed = ops::let_stream_wait(stream);
  return status.ok() ? followed : status;
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
  const Impl::Recorded& nodes = impl_->nodes[node.node].recorded;
  for (size_t n = nodes.first; n < nodes.last; ++n) {
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
  if (device < impl_->options->machine.size()) memory.budget = impl_->options->machine[device].bytes;
  std::set<graph::BufferId> counted;
  const auto bytes_of = [&](graph::BufferId buffer) {
    // What is streamed has its place in the arena.
    const graph::Home home = plan.plan.residence(buffer, device).home;
    const bool there = backend::contains(plan.graph.buffers[buffer].valid_on, device) ||
                       (home != graph::Home::kNone && home != graph::Home::kArena);
    return there && counted.insert(buffer).second ? plan.graph.buffers[buffer].bytes : 0;
  };
  for (const graph::ProgramConstant& constant : program.constants) memory.constants += bytes_of(constant.buffer);
  for (const graph::ProgramValue& input : program.inputs) memory.inputs += bytes_of(input.buffer);
  for (const graph::ProgramValue& output : program.outputs) memory.inputs += bytes_of(output.buffer);
  return memory;
}

Result<ComputeGraph::Storage> ComputeGraph::storage(Value value, DeviceIndex device) const {
  if (Status status = impl_->check_optimized(); !status.ok()) return status;
  if (Status status = impl_->check(value); !status.ok()) return status;
  if (device >= backend::kMostDevices) return usage("there is no device " + std::to_string(device));
  const std::vector<graph::BufferId>& buffers = impl_->nodes[value.node].recorded.buffers;
  if (value.index >= buffers.size() || buffers[value.index] == graph::kNoBuffer) return Storage();
  const graph::BufferId buffer = buffers[value.index];
  const graph::Plan& plan = impl_->plan.plan;
  const graph::Residence& residence = plan.residence(buffer, device);
  return Storage{.home = residence.home,
                 .offset = residence.offset,
                 .bytes = impl_->plan.graph.buffers[buffer].bytes,
                 .first = residence.first,
                 .last = residence.last};
}

Result<ComputeGraph::Statistics> ComputeGraph::statistics(DeviceIndex device) const {
  if (Status status = impl_->check_optimized(); !status.ok()) return status;
  if (device >= backend::kMostDevices) return usage("there is no device " + std::to_string(device));
  const graph::Graph& graph = impl_->plan.graph;
  const graph::Plan& plan = impl_->plan.plan;
  Statistics statistics;
  for (size_t n = 0; n < plan.placements.size(); ++n) {
    if (plan.live[n] == 0 || plan.placements[n].device != device) continue;
    ++statistics.nodes;
    ++statistics.reasons[plan.placements[n].reason];
    statistics.seconds += seconds_of(impl_->plan, *impl_->options, n);
  }
  for (const graph::Instruction& instruction : plan.program) {
    if (instruction.is_wait() && graph::device_of(instruction.queue) == device) ++statistics.waits;
    if (!instruction.is_copy() || instruction.to != device) continue;
    ++statistics.copies;
    statistics.copied_bytes += graph.buffers[instruction.index].bytes;
  }
  return statistics;
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
    if (impl_->model != nullptr && node.fused_into.has_value())
      text += "    fused into " + std::to_string(*node.fused_into) + '\n';
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
  for (const Fusion& fusion : impl_->fusions) text += text_of(fusion);
  for (DeviceIndex d = 0; impl_->model != nullptr && d < impl_->options->machine.size(); ++d) {
    text += graph::device_word(d) + text_of(statistics(d).value());
  }
  if (impl_->model != nullptr) text += '\n' + to_string(impl_->plan.plan);
  return text;
}

}  // namespace hetero
