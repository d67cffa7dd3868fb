#include "ops/run/rewrite_slice.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "graph/optimize/channels_last.h"
#include "graph/optimize/rewrite.h"
#include "ops/convolution/convolution.h"
#include "ops/memory/packed_weights.h"
#include "ops/record/call.h"
#include "ops/record/recorder.h"
#include "ops/record/windows.h"
#include "ops/settings/config.h"

namespace hetero::ops {
namespace {

using graph::Node;
using graph::Operand;

// The parts of a node's arguments (call.h).
struct Parts {
  std::span<const std::byte> structure, sizes, values;

  Parts(const graph::Graph& graph, const Node& node) {
    const std::byte* const begin = graph.attributes.data() + node.attribute_offset;
    AttributeHeader header;
    std::memcpy(&header, begin, sizeof(header));
    structure = {begin + sizeof(header), header.structure_bytes};
    sizes = {structure.data() + structure.size(), header.size_bytes};
    const std::byte* const behind = sizes.data() + sizes.size();
    values = {behind, static_cast<size_t>(begin + node.attribute_bytes - behind)};
  }
};

class NormFolder {
 public:
  explicit NormFolder(TraceSlice& slice) : slice_(slice), graph_(slice.graph) {}

  bool run() {
    // a name: what takes a norm
    static const graph::OpId convolution = graph::op_table().resolve("aten::convolution");
    // a name: what is taken
    static const graph::OpId norm = graph::op_table().resolve("aten::native_batch_norm");
    // a name: what both become
    static const graph::OpId both = graph::op_table().resolve("hetero::convolution_norm");
    const auto is_norm = [](const Node& node) { return node.op == norm; };
    if (std::ranges::none_of(graph_.nodes, is_norm) || !norms_may_be_folded()) return false;
    uses_ = graph::find_uses(graph_);
    bool changed = false;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (graph_.nodes[n].op != norm || !is_inference(graph_.nodes[n])) continue;
      const std::optional<size_t> before = convolution_before(n, convolution);
      if (!before || !may_be_packed(graph_.nodes[*before]) || !stays(*before, n)) continue;
      if (!keeps_weights(graph_.nodes[*before]) || !keeps_weights(graph_.nodes[n])) continue;
      if (!has_room(graph_.nodes[*before])) continue;
      join(*before, n, both);
      changed = true;
    }
    return changed;
  }

 private:
  const Operand& operand(const Node& node, int i) const { return graph_.operands[node.first_operand + i]; }
  const graph::Window& window_of(const Operand& operand) const { return (*graph_.windows)[operand.window]; }
  static int first_output(const Node& node) { return node.operand_count - node.output_count; }
  bool is_temporary(graph::BufferId buffer) const {
    return slice_.bindings[buffer] == nullptr && graph_.buffers[buffer].valid_on == 0;
  }
  Decoder decoder_of(const Node& node) const {
    return {graph_.attributes.data() + node.attribute_offset, node.attribute_bytes};
  }
  static bool is_float(const graph::Window& window) { return window.dtype == static_cast<graph::DType>(at::kFloat); }

  // Whether the norm is of float32, by given statistics, and gives nothing but its result.
  bool is_inference(const Node& norm) const {
    Decoder decoder = decoder_of(norm);
    for (int i = 0; i < 5; ++i) {
      const Tag tag = decoder.next();
      if (tag == Tag::kTensor) (void)decoder.operand();
      const bool needed = i == 0 || i > 2;
      if (tag != Tag::kTensor && (needed || (tag != Tag::kNone && tag != Tag::kUndefined))) return false;
    }
    if (decoder.next() != Tag::kBoolean || decoder.get<uint8_t>() != 0) return false;
    const int result = first_output(norm);
    for (int i = 0; i < norm.operand_count; ++i) {
      const Operand& it = operand(norm, i);
      const graph::Window& window = window_of(it);
      if (i > result) {
        if (window.numel != 0 || !is_temporary(it.buffer) || uses_[it.buffer].reads != 0) return false;
      } else if (it.bits != 0 || !is_float(window) || !window.contiguous ||
                 it.access != (i == result ? graph::Access::kDefine : graph::Access::kRead)) {
        return false;
      }
    }
    return true;
  }

  // The node whose whole result the norm reads, and nothing else does.
  std::optional<size_t> convolution_before(size_t n, graph::OpId convolution) const {
    const Operand& input = operand(graph_.nodes[n], 0);
    const graph::BufferUses& uses = uses_[input.buffer];
    if (!is_temporary(input.buffer) || uses.reads != 1 || uses.writes != 1 || uses.first_write > n) return std::nullopt;
    const Node& before = graph_.nodes[uses.first_write];
    if (before.op != convolution || before.output_count != 1 || before.preference != graph_.nodes[n].preference) {
      return std::nullopt;
    }
    const Operand& output = operand(before, first_output(before));
    const bool whole = output.buffer == input.buffer && output.window == input.window && output.bits == 0;
    return whole ? std::optional(uses.first_write) : std::nullopt;
  }

  // Whether the convolution is one that has packed filters.
  bool may_be_packed(const Node& convolution) const {
    const graph::Window& input = window_of(operand(convolution, 0));
    if (!Parts(graph_, convolution).values.empty() || input.rank < 3 || input.rank > 5) return false;
    Decoder decoder = decoder_of(convolution);
    for (int i = 0; i < 3; ++i) {
      if (decoder.next() == Tag::kTensor) (void)decoder.operand();
    }
    for (int i = 0; i < 3; ++i) decoder.skip_list();
    return decoder.next() == Tag::kBoolean && decoder.get<uint8_t>() == 0;  // transposed
  }

  // Whether what the convolution reads is the same where the norm is.
  bool stays(size_t convolution, size_t norm) const {
    const Node& moved = graph_.nodes[convolution];
    for (size_t n = convolution + 1; n < norm; ++n) {
      const Node& between = graph_.nodes[n];
      for (int i = 0; i < between.operand_count; ++i) {
        if (!operand(between, i).writes()) continue;
        for (int k = 0; k < first_output(moved); ++k) {
          if (operand(moved, k).buffer == operand(between, i).buffer) return false;
        }
      }
    }
    return true;
  }

  // Whether something can be derived of the node's weights, all inputs but the first.
  bool keeps_weights(const Node& node) const {
    for (int i = 1; i < first_output(node); ++i) {
      const Operand& it = operand(node, i);
      const graph::Binding* const binding = slice_.bindings[it.buffer];
      if (binding == nullptr || binding->valid_on == 0 || binding->sharers || uses_[it.buffer].writes != 0 ||
          it.bits != 0 || !is_float(window_of(it))) {
        return false;
      }
    }
    return operand(node, 0).bits == 0 && is_float(window_of(operand(node, 0)));
  }

  // Whether the filter is packed with a norm, or there is room for it beside those that will be.
  bool has_room(const Node& convolution) {
    const Operand& filter = operand(convolution, 1);
    const auto* const packed = dynamic_cast<const PackedWeights*>(slice_.bindings[filter.buffer]->derived.get());
    if (packed != nullptr && packed->has_one_of_several()) return true;
    const graph::Window& window = window_of(filter);
    const int64_t bytes = promised_ + window.last_byte - window.first_byte;
    if (!has_room_to_pack(bytes)) return false;
    promised_ = bytes;
    return true;
  }

  // The norm's node computes both from now on.
  void join(size_t convolution, size_t norm, graph::OpId both) {
    Node& node = graph_.nodes[norm];
    const Node& before = graph_.nodes[convolution];
    std::vector<Operand> operands;
    for (int i = 0; i < first_output(before); ++i) operands.push_back(operand(before, i));
    for (int i = 1; i <= first_output(node); ++i) operands.push_back(operand(node, i));
    const Parts first(graph_, before), second(graph_, node);
    const std::span<const std::byte> tags = second.structure.subspan(1);  // without the input's
    const AttributeHeader header{static_cast<uint32_t>(first.structure.size() + tags.size()),
                                 static_cast<uint32_t>(first.sizes.size() + second.sizes.size())};
    std::vector<std::byte> attributes(sizeof(header));
    std::memcpy(attributes.data(), &header, sizeof(header));
    for (const auto part : {first.structure, tags, first.sizes, second.sizes, second.values}) {
      attributes.insert(attributes.end(), part.begin(), part.end());
    }
    // The convolution's result has no reader left.
    uses_[operand(node, 0).buffer].reads = 0;
    node.op = both;
    node.first_operand = static_cast<uint32_t>(graph_.operands.size());
    node.operand_count = static_cast<uint16_t>(operands.size());
    node.output_count = 1;
    node.attribute_offset = static_cast<uint32_t>(graph_.attributes.size());
    node.attribute_bytes = static_cast<uint32_t>(attributes.size());
    graph_.operands.insert(graph_.operands.end(), operands.begin(), operands.end());
    graph_.attributes.insert(graph_.attributes.end(), attributes.begin(), attributes.end());
  }

  TraceSlice& slice_;
  graph::Graph& graph_;
  std::vector<graph::BufferUses> uses_;  // per buffer
  int64_t promised_ = 0;                 // bytes of filters that are not packed yet
};

bool put_channels_last(TraceSlice& slice, graph::WindowTable& windows) {
  std::vector<uint8_t> temporary;
  for (size_t b = 0; b < slice.bindings.size(); ++b) {
    temporary.push_back(slice.bindings[b] == nullptr && slice.graph.buffers[b].valid_on == 0);
  }
  return graph::use_channels_last(slice.graph, windows, temporary) > 0;
}

}  // namespace

void rewrite_slice(TraceSlice& slice, graph::WindowTable* windows) {
  graph::Graph& graph = slice.graph;
  const auto convolves = [](const Node& node) {
    return graph::op_table()[node.op].op_class == graph::OpClass::kConvolution;
  };
  if (std::ranges::none_of(graph.nodes, convolves)) return;
  graph::Graph before;
  before.nodes = graph.nodes;
  before.operands = graph.operands;
  before.attributes = graph.attributes;
  before.windows = graph.windows;
  bool changed = NormFolder(slice).run();
  if (windows != nullptr) {
    changed = put_channels_last(slice, *windows) || changed;
  } else {
    const Locked lock(recorder().mutex());
    changed = put_channels_last(slice, window_table()) || changed;
  }
  if (changed) slice.recorded = std::move(before);
}

}  // namespace hetero::ops
