#include "ops/record/layouts.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "backend/registry/registry.h"
#include "graph/ir/op.h"
#include "ops/record/windows.h"
#include "ops/settings/config.h"

namespace hetero::ops {
namespace {

using graph::Buffer;
using graph::BufferId;
using graph::Graph;
using graph::Layout;
using graph::Node;
using graph::Operand;
using graph::Window;
using graph::WindowId;
using graph::WindowTable;

constexpr uint64_t kLeastBytes = 256 * 1024;  // below, a copy takes no time
// What is added is at most this part of a row; so is the least room, in additions, and the room of
// large rows.
constexpr uint64_t kLeastSteps = 32;
constexpr uint64_t kLeastRoom = 4;
constexpr uint64_t kRoomShare = 64;

// A concatenation that adds a little to a tensor.
struct Addition {
  BufferId from;
  BufferId to;
  uint64_t row_before;  // bytes
  uint64_t row_after;
};

// The dimension in which the sizes differ, if it is one.
std::optional<int> grown_dimension(const Window& before, const Window& after) {
  if (before.rank != after.rank) return std::nullopt;
  std::optional<int> grown;
  for (int d = 0; d < before.rank; ++d) {
    if (before.sizes()[d] == after.sizes()[d]) continue;
    if (grown) return std::nullopt;
    grown = d;
  }
  return grown;
}

std::optional<Addition> addition_of(const TraceSlice& slice, const WindowTable& windows, const Node& node) {
  const Operand* const operands = slice.graph.operands_of(node);
  const Operand& first = operands[0];
  const Operand& result = operands[node.operand_count - 1];
  const Window& before = windows[first.window];
  const Window& after = windows[result.window];
  const auto whole = [&](BufferId b, const Window& window) {
    return window.contiguous && window.offset == 0 &&
           static_cast<uint64_t>(window.last_byte) == slice.holds[b].storage()->nbytes();
  };
  if (first.bits != 0 || after.last_byte < static_cast<int64_t>(kLeastBytes) || before.dtype != after.dtype ||
      !slice.graph.buffers[result.buffer].escapes ||
      slice.graph.buffers[first.buffer].valid_on != 1u << backend::kCpu || !whole(first.buffer, before) ||
      !whole(result.buffer, after)) {
    return std::nullopt;
  }
  const std::optional<int> dimension = grown_dimension(before, after);
  if (!dimension || before.numel == 0) return std::nullopt;
  uint64_t rows = 1;
  for (int d = 0; d < *dimension; ++d) rows *= static_cast<uint64_t>(after.sizes()[d]);
  const Addition addition{first.buffer, result.buffer, static_cast<uint64_t>(before.last_byte) / rows,
                          static_cast<uint64_t>(after.last_byte) / rows};
  if ((addition.row_after - addition.row_before) * kLeastSteps > addition.row_after) return std::nullopt;
  return addition;
}

class LayOut {
 public:
  LayOut(TraceSlice& slice, WindowTable& windows) : slice_(slice), graph_(slice.graph), windows_(windows) {}

  void run() {
    const bool allowed = last_bits_may_vary() && backend::accelerator() == nullptr;
    if (allowed) find_additions();
    if (additions_.empty() &&
        std::ranges::none_of(graph_.buffers, [](const Buffer& b) { return b.layout.has_gaps(); })) {
      return;
    }
    before_ = graph_.buffers;
    taken_.assign(graph_.buffers.size(), 0);
    for (const Addition& addition : additions_) choose_layout(addition);
    refused_.assign(graph_.buffers.size(), allowed ? 0 : 1);
    place_operands();
    for (BufferId b = 0; b < graph_.buffers.size(); ++b) settle(b);
    for (size_t i = 0; i < graph_.operands.size(); ++i) {
      Operand& operand = graph_.operands[i];
      if (graph_.buffers[operand.buffer].layout.has_gaps()) operand.window = placed_[i];
    }
  }

 private:
  HeteroStorage* storage(BufferId b) const { return slice_.holds[b].storage(); }

  void find_additions() {
    for (const Node& node : graph_.nodes) {
      if (!graph::op_table()[node.op].grows || node.operand_count < 3) continue;
      if (const auto addition = addition_of(slice_, windows_, node)) additions_.push_back(*addition);
    }
  }

  // As if all windows could be placed.
  void choose_layout(const Addition& addition) {
    const Growth growth = storage(addition.from)->growth;
    storage(addition.to)->growth = growth == Growth::kNotApart ? growth : Growth::kGrown;
    const Buffer& from = before_[addition.from];
    Buffer& to = graph_.buffers[addition.to];
    const bool fits = from.layout.row_bytes == addition.row_before && from.layout.pitch_bytes >= addition.row_after;
    if (fits && !from.escapes && taken_[addition.from] == 0) {
      taken_[addition.from] = 1;
      to.takes = addition.from;
    }
    if (to.takes == graph::kNoBuffer && growth != Growth::kGrown) return;
    const uint64_t added = addition.row_after - addition.row_before;
    const uint64_t room = added * std::max(kLeastRoom, addition.row_after / kRoomShare / added);
    const uint64_t pitch = to.takes != graph::kNoBuffer ? from.layout.pitch_bytes : addition.row_after + room;
    to.layout = graph::rows_apart(addition.row_after, pitch);
  }

  // Fills placed_, counts writers, and refuses buffers that some node cannot see with gaps.
  void place_operands() {
    placed_.resize(graph_.operands.size());
    writers_.assign(graph_.buffers.size(), 0);
    for (const Node& node : graph_.nodes) {
      // Other operators may expect a tensor that is contiguous to be so.
      const bool takes_strides = graph::op_table()[node.op].op_class != graph::OpClass::kOther;
      for (uint32_t i = node.first_operand; i < node.first_operand + node.operand_count; ++i) {
        const Operand& operand = graph_.operands[i];
        writers_[operand.buffer] += operand.writes();
        const Layout& layout = graph_.buffers[operand.buffer].layout;
        if (!layout.has_gaps()) continue;
        placed_[i] = takes_strides ? graph::place(windows_, operand.window, layout) : graph::kNoWindow;
        refused_[operand.buffer] |= placed_[i] == graph::kNoWindow;
      }
    }
  }

  void settle(BufferId b) {
    Buffer& buffer = graph_.buffers[b];
    if (refused_[b] != 0 && buffer.layout.has_gaps()) {
      if (before_[b].layout.has_gaps()) slice_.to_close.push_back(b);
      storage(b)->growth = Growth::kNotApart;
      buffer.layout = Layout();
    }
    if (buffer.takes != graph::kNoBuffer) {
      const bool seen =
          refused_[b] != 0 || refused_[buffer.takes] != 0 || writers_[buffer.takes] != 0 || writers_[b] != 1;
      if (seen) buffer.takes = graph::kNoBuffer;
    }
    if (buffer.layout == before_[b].layout && buffer.takes == graph::kNoBuffer) return;
    // What is taken may have become full, and still be longer than its bytes.
    buffer.bytes = buffer.layout.block_bytes(storage(b)->nbytes());
    storage(b)->layout_later = buffer.layout;
  }

  TraceSlice& slice_;
  Graph& graph_;
  WindowTable& windows_;
  std::vector<Addition> additions_;
  std::vector<Buffer> before_;
  std::vector<uint8_t> taken_;
  std::vector<uint8_t> refused_;
  std::vector<uint32_t> writers_;
  std::vector<WindowId> placed_;
};

}  // namespace

void lay_out(TraceSlice& slice) { LayOut(slice, window_table()).run(); }

}  // namespace hetero::ops
