#include "ops/program/compute_graph_impl.h"

#include <algorithm>

namespace hetero {
namespace {

using backend::kCpu;
using ops::caught;
using ops::Inference;
using ops::SchemaCall;
using ops::usage;
using Value = ComputeGraph::Value;

}  // namespace

Status ComputeGraph::Impl::check_new(Kind kind, const std::string& name) const {
  const bool taken =
      std::ranges::any_of(nodes, [&](const Node& node) { return node.kind == kind && node.name == name; });
  return taken ? usage("there is '" + name + "' already; give it another name") : Status();
}

Status ComputeGraph::Impl::check(Value value) const {
  if (value.node >= nodes.size()) return usage("the value is not of this graph");
  const Node& node = nodes[value.node];
  if (node.open) return usage(title(value.node) + " is given to an operator before it has its own arguments");
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

Result<GraphSize> ComputeGraph::dimension(const std::string& name, int64_t least, int64_t most, int64_t example) {
  if (!impl_->started.ok()) return impl_->started;
  auto& [variables, examples] = impl_->dimensions;
  const graph::SizeVariable made{.name = name, .least = least, .most = most};
  const std::string text = ops::lines_of({made});
  if (least < 0 || most < least) return usage("'" + name + "' has no size between its bounds");
  if (!graph::parse_sizes(text).ok()) return usage("'" + name + "' cannot name a dimension: letters, digits and _ can");
  if (std::ranges::find(variables, name, &graph::SizeVariable::name) != variables.end()) {
    return usage("there is '" + name + "' already; give it another name");
  }
  if (variables.size() == graph::kMostSizeVariables) return usage("a graph has fewer dimensions");
  if (example != 0 && (example < least || example > most)) {
    return usage("the example of '" + name + "' is not between its bounds");
  }
  if (least == most) return GraphSize(least);  // nothing to choose
  variables.push_back(made);
  examples.push_back(example != 0 ? example : ops::example_size(made, variables.size() - 1));
  impl_->change();
  return GraphSize::of_dimension(static_cast<uint16_t>(variables.size() - 1));
}

Result<Value> ComputeGraph::input(const std::string& name, std::string_view dtype, const GraphSizes& sizes) {
  Status status = impl_->started;
  const graph::DType number = graph::parse_dtype(dtype);
  std::vector<int64_t> examples;
  if (status.ok()) status = caught([&] { examples = ops::sizes_at(sizes, impl_->dimensions.example); });
  if (status.ok()) status = ops::check_sizes(name, number, examples);
  if (status.ok()) status = impl_->check_new(Impl::Kind::kInput, name);
  Impl::Node node{.kind = Impl::Kind::kInput, .name = name, .sizes = sizes};
  if (status.ok()) status = caught([&] { node.results = {ops::without_bytes(number, examples)}; });
  if (!status.ok()) return status;
  return impl_->append(std::move(node));
}

Result<Value> ComputeGraph::constant(const std::string& name, const TensorView& tensor) {
  return impl_->add_constant(name, tensor, nullptr);
}

Result<Value> ComputeGraph::constant(const std::string& name, const TensorView& tensor,
                                     std::shared_ptr<const void> owner) {
  return impl_->add_constant(name, tensor, std::move(owner));
}

Result<Value> ComputeGraph::Impl::add_constant(const std::string& name, const TensorView& tensor,
                                               std::shared_ptr<const void> owner) {
  Status status = started;
  if (status.ok()) status = ops::check_sizes(name, tensor.dtype, tensor.sizes);
  if (status.ok()) status = check_new(Kind::kConstant, name);
  if (status.ok()) status = graph::check_shape(tensor.dtype, tensor.sizes, tensor, "the constant '" + name + "'");
  if (status.ok() && tensor.device != kCpu)
    status = usage("the constant '" + name + "' is in the host's memory, and was given on a device");
  Node node{.kind = Kind::kConstant, .name = name};
  const bool borrows = owner != nullptr && ops::can_borrow(tensor);
  if (status.ok()) {
    status = caught([&] { node.results = {borrows ? ops::borrowed(tensor, std::move(owner)) : ops::copied(tensor)}; });
  }
  if (!status.ok()) return status;
  return append(std::move(node));
}

Status ComputeGraph::Impl::call(Node& node, std::string_view op, const Arguments& arguments,
                                const Attributes& attributes) const {
  Status status = caught([&] {
    const std::vector<int64_t>& sizes = dimensions.example;
    node.call.emplace(op, ops::arguments_at(arguments, sizes), ops::attributes_at(attributes, sizes));
  });
  if (!status.ok()) return status;
  std::vector<at::Tensor> operands;
  for (const Value value : node.call->tensors()) {
    if (status = check(value); !status.ok()) return status;
    operands.push_back(tensor(value));
  }
  const Inference inference;
  status = caught([&] { node.results = ops::infer(*node.call, operands); });
  // The device's reason may hide PyTorch's.
  if (!status.ok()) return ops::find_error(*node.call, operands).value_or(status);
  if (node.results.empty() && !node.call->writes()) return usage(node.call->name() + " gives no tensor");
  const auto depends = [](const auto& attribute) { return ops::has_dimension(attribute.second); };
  if (std::ranges::any_of(arguments, &ops::has_dimension) || std::ranges::any_of(attributes, depends)) {
    node.arguments = arguments;
    node.attributes = attributes;
  }
  return Status();
}

Result<Value> ComputeGraph::add(std::string_view op, Arguments arguments, Attributes attributes) {
  if (!impl_->started.ok()) return impl_->started;
  for (const Argument& argument : arguments) {
    if (Status status = impl_->close(argument); !status.ok()) return status;
  }
  for (const auto& [name, argument] : attributes) {
    if (Status status = impl_->close(argument); !status.ok()) return status;
  }
  Impl::Node node{.name = std::string(op)};
  if (Status status = impl_->call(node, op, arguments, attributes); !status.ok()) return status;
  return impl_->append(std::move(node));
}

Result<Value> ComputeGraph::add_node(std::string_view op, Attributes attributes) {
  if (!impl_->started.ok()) return impl_->started;
  return impl_->append({.name = std::string(op), .attributes = std::move(attributes), .open = true});
}

Status ComputeGraph::add_edge(Value from, Value to, uint32_t output, uint32_t input) {
  if (from.node >= impl_->nodes.size() || to.node >= impl_->nodes.size())
    return usage("the value is not of this graph");
  Impl::Node& node = impl_->nodes[to.node];
  if (!node.open) return usage(impl_->title(to.node) + " has its arguments already, so no edge can lead to it");
  constexpr uint32_t kMostArguments = 256;
  if (input >= kMostArguments)
    return usage("an operator takes fewer than " + std::to_string(kMostArguments) + " arguments");
  node.edges[input].push_back({from.node, output});
  impl_->change();
  return Status();
}

Status ComputeGraph::Impl::close(uint32_t node, std::vector<uint32_t>& path) {
  if (node >= nodes.size() || !nodes[node].open) return Status();
  if (std::ranges::find(path, node) != path.end()) {
    return usage(title(node) + " needs its own result: the edges make a circle");
  }
  path.push_back(node);
  for (const auto& [input, values] : nodes[node].edges) {
    for (const Value value : values) {
      if (Status status = close(value.node, path); !status.ok()) return status;
    }
  }
  path.pop_back();
  Node& closed = nodes[node];
  const Attributes attributes = std::exchange(closed.attributes, {});
  // Several edges to one argument are a list; one edge may be a list of one.
  Status status;
  for (const bool lists : {false, true}) {
    Arguments arguments(closed.edges.empty() ? 0 : closed.edges.rbegin()->first + 1);
    for (const auto& [input, values] : closed.edges) {
      arguments[input] = values.size() == 1 && !lists ? Argument(values[0]) : Argument(values);
    }
    const Status tried = call(closed, closed.name, arguments, attributes);
    if (tried.ok()) {
      closed.open = false;
      closed.edges.clear();
      order.push_back(node);
      return Status();
    }
    if (!lists) status = tried;
  }
  closed.attributes = attributes;
  return Status(status.error_class(), title(node) + ": " + status.message(), status.cause());
}

Status ComputeGraph::Impl::close(Value value) {
  std::vector<uint32_t> path;
  return close(value.node, path);
}

Status ComputeGraph::Impl::close(const Argument& argument) {
  if (const auto* value = std::get_if<Value>(&argument.kind())) return close(*value);
  const auto* values = std::get_if<std::vector<Value>>(&argument.kind());
  for (size_t i = 0; values != nullptr && i < values->size(); ++i) {
    if (Status status = close((*values)[i]); !status.ok()) return status;
  }
  return Status();
}

size_t ComputeGraph::results(Value node) const {
  (void)impl_->close(node);
  return node.node < impl_->nodes.size() ? impl_->nodes[node.node].results.size() : 0;
}

Result<TensorView> ComputeGraph::look(Value value) const {
  if (Status status = impl_->close(value); !status.ok()) return status;
  if (Status status = impl_->check(value); !status.ok()) return status;
  return ops::look_of(impl_->tensor(value));
}

Status ComputeGraph::output(const std::string& name, Value value) {
  if (Status status = impl_->close(value); !status.ok()) return status;
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

void ComputeGraph::set_policy(graph::Policy policy, graph::Thresholds thresholds) {
  impl_->policy = policy;
  impl_->thresholds = thresholds;
  impl_->change();
}

Status ComputeGraph::set_precision(std::string_view dtype) {
  const auto type = static_cast<at::ScalarType>(graph::parse_dtype(dtype));
  if (type != at::kFloat && type != at::kBFloat16 && type != at::kHalf) {
    return usage("a precision is 'f32', 'bf16' or 'f16', and not '" + std::string(dtype) + "'");
  }
  impl_->precision = type;
  impl_->change();
  return Status();
}

void ComputeGraph::set_memory_budget(uint64_t bytes) {
  impl_->budget = bytes;
  impl_->change();
}

}  // namespace hetero
