// ComputeGraph: chains of nodes for which an operator of the caller's is called.
//
//   1. From each node backwards, in the order of the patterns, its chain: operators by name, each
//      the first argument of the next and of no other node, with one preference.
//   2. No node in between writes: the whole chain runs where its last node stands.
//   3. The caller's operator must make what the last node makes.

#include <algorithm>

#include "ops/program/compute_graph_impl.h"
#include "ops/program/operator_fusion.h"

namespace hetero {
namespace {

using ops::caught;
using ops::SchemaCall;
using ops::usage;

std::string name_of(const ComputeGraph::Fusion& fusion) {
  std::string text;
  for (const std::string& op : fusion.chain) text += (text.empty() ? "" : ", ") + op;
  return fusion.op + " for " + text;
}

}  // namespace

Status ComputeGraph::register_fusion(std::vector<std::string> chain, std::string op) {
  if (!impl_->started.ok()) return impl_->started;
  if (Status status = caught([&] { ops::check_fusion(chain, op); }); !status.ok()) return status;
  impl_->fusions.push_back({.chain = std::move(chain), .op = std::move(op)});
  impl_->change();
  return Status();
}

const std::vector<ComputeGraph::Fusion>& ComputeGraph::fusions() const { return impl_->fusions; }

// Per node: how often nodes and outputs read what it makes.
std::vector<uint32_t> ComputeGraph::Impl::count_reads() const {
  std::vector<uint32_t> reads(nodes.size());
  for (const Node& node : nodes) {
    if (!node.call.has_value()) continue;
    for (const Value value : node.call->tensors()) ++reads[value.node];
  }
  for (const Output& output : outputs) ++reads[output.value.node];
  return reads;
}

// The nodes of the chain that ends there, the first one first; empty where there is none.
std::vector<uint32_t> ComputeGraph::Impl::find_chain(const Fusion& fusion, uint32_t last,
                                                     const std::vector<uint32_t>& reads) const {
  std::vector<uint32_t> chain;
  uint32_t at = last;
  for (size_t i = fusion.chain.size(); i-- > 0;) {
    const Node& node = nodes[at];
    const bool is_free = node.call.has_value() && node.chain.empty() && !node.fused_into.has_value();
    if (!is_free || node.call->name() != fusion.chain[i] || node.preference != nodes[last].preference) return {};
    if (at != last && reads[at] != 1) return {};
    chain.insert(chain.begin(), at);
    if (i == 0) break;
    if (node.call->first() == nullptr) return {};
    at = node.call->first()->node;
  }
  const auto begin = std::ranges::find(order, chain.front());
  const auto writes = [&](uint32_t n) { return nodes[n].call.has_value() && nodes[n].call->writes(); };
  return std::any_of(begin, std::find(begin, order.end(), last), writes) ? std::vector<uint32_t>() : chain;
}

// Whether the caller's operator makes what the chain does.
Status ComputeGraph::Impl::check_chain(const Fusion& fusion, uint32_t last) const {
  std::vector<at::Tensor> made;
  const Status status = caught([&] {
    const SchemaCall call = *other_call(last, dimensions.example);
    std::vector<at::Tensor> operands;
    for (const Value value : call.tensors()) operands.push_back(tensor(value));
    made = ops::infer(call, operands);
  });
  if (!status.ok()) return Status(status.error_class(), name_of(fusion) + ": " + status.message(), status.cause());
  const TensorView is = ops::look_of(made.at(0));
  const TensorView was = ops::look_of(nodes[last].results.at(0));
  if (is.dtype == was.dtype && is.sizes == was.sizes && is.strides == was.strides) return Status();
  return usage(name_of(fusion) + " gives " + to_string(is) + (is.sizes == was.sizes ? " in another layout" : "") +
               " instead of " + to_string(was) + " at " + title(last));
}

Status ComputeGraph::Impl::find_fusions(bool allowed) {
  for (Fusion& fusion : fusions) fusion.uses = 0;
  for (Node& node : nodes) {
    node.chain.clear();
    node.fused_into.reset();
  }
  if (fusions.empty() || !allowed) return Status();
  const std::vector<uint32_t> reads = count_reads();
  for (size_t f = 0; f < fusions.size(); ++f) {
    for (const uint32_t last : order) {
      const std::vector<uint32_t> chain = find_chain(fusions[f], last, reads);
      if (chain.empty()) continue;
      nodes[last].chain = chain;
      nodes[last].fusion = f;
      for (const uint32_t n : chain) {
        if (n != last) nodes[n].fused_into = last;
      }
      ++fusions[f].uses;
      if (Status status = check_chain(fusions[f], last); !status.ok()) return status;
    }
  }
  return Status();
}

// What is called for a node with these sizes, where that is another call than its own.
std::optional<SchemaCall> ComputeGraph::Impl::other_call(uint32_t n, const std::vector<int64_t>& sizes) const {
  const Node& node = nodes[n];
  const auto depends = [](const Node& of) { return !of.arguments.empty() || !of.attributes.empty(); };
  const auto own = [&](const Node& of) {
    return depends(of) ? SchemaCall(of.call->name(), ops::arguments_at(of.arguments, sizes),
                                    ops::attributes_at(of.attributes, sizes))
                       : *of.call;
  };
  if (node.chain.empty()) {
    return depends(node) ? std::optional(own(node)) : std::nullopt;
  }
  std::vector<SchemaCall> calls;
  for (const uint32_t part : node.chain) calls.push_back(own(nodes[part]));
  return SchemaCall::joined(fusions[node.fusion].op, calls);
}

}  // namespace hetero
