#include "graph/fusion/footprint.h"

#include <algorithm>
#include <numeric>

namespace hetero::graph {
namespace {

using backend::Extent;
using backend::kMaxFusedRank;
using ValueKind = Lowering::Value::Kind;

// Over the space with all its dimensions.
struct FullSpace {
  int rank = 0;
  const int64_t* sizes = nullptr;
  uint64_t reduced = 0;
};

// The strides of a window that is broadcast to the space from the right.
bool broadcast(const FullSpace& space, const Window& window, int64_t* strides) {
  const int missing = space.rank - window.rank;
  for (int d = 0; d < -missing; ++d) {
    if (window.dims[d] != 1) return false;
  }
  int k = 0;
  for (int d = 0; d < space.rank; ++d) {
    if (space.sizes[d] == 1) {
      if (d >= missing && window.dims[d - missing] != 1) return false;
      continue;
    }
    const int64_t size = d < missing ? 1 : window.dims[d - missing];
    if (size != 1 && size != space.sizes[d]) return false;
    strides[k++] = size == 1 ? 0 : window.dims[window.rank + d - missing];
  }
  return true;
}

// The strides of a window whose dimensions, but those of size 1, are the first `count` of `dims`.
bool align(const Dims& dims, int count, const Window& window, int64_t* strides) {
  int k = 0;
  for (int d = 0; d < window.rank; ++d) {
    if (window.dims[d] == 1) continue;
    if (k == count || window.dims[d] != dims.sizes[k]) return false;
    strides[k++] = window.dims[window.rank + d];
  }
  if (k != count) return false;
  std::fill(strides + count, strides + dims.rank, 0);
  return true;
}

// The window is broadcast to one piece of the space, which is cut along `cut`; as strides over the whole space.
bool broadcast_to_piece(const FullSpace& space, int cut, int pieces, const Window& window, int64_t* strides) {
  if (space.rank > kMaxFusedRank) return false;
  const int64_t length = space.sizes[cut] / pieces;
  int64_t sizes[kMaxFusedRank];
  std::copy_n(space.sizes, space.rank, sizes);
  sizes[cut] = length;
  FullSpace piece{.rank = space.rank, .sizes = sizes};
  if (length == 1 && window.rank == space.rank - 1) {
    std::copy(sizes + cut + 1, sizes + space.rank, sizes + cut);
    --piece.rank;
  }
  if (!broadcast(piece, window, strides)) return false;
  if (length != 1) return true;
  const auto before = std::count_if(space.sizes, space.sizes + cut, [](int64_t size) { return size != 1; });
  const auto count = std::count_if(sizes, sizes + piece.rank, [](int64_t size) { return size != 1; });
  std::copy_backward(strides + before, strides + count, strides + count + 1);
  strides[before] = 0;
  return true;
}

Footprint::Entry* entry_of(Footprint& footprint, int operand) {
  if (const int i = find_entry(footprint, operand); i >= 0) return &footprint.entries[i];
  if (footprint.entry_count == Footprint::kMaxEntries) return nullptr;
  Footprint::Entry& entry = footprint.entries[footprint.entry_count++];
  entry = {.operand = static_cast<uint16_t>(operand)};
  return &entry;
}

// Says for each value of a reduction's program whether it has an entry per point or per row. False where a step reduces what is no element
// value.
bool find_extents(const Lowering& lowering, Footprint& footprint) {
  footprint.extents.clear();
  for (const Lowering::Value& value : lowering.values) {
    Extent extent = Extent::kRow;
    const auto input = [&](int i) { return footprint.extents[static_cast<size_t>(value.inputs[i])]; };
    switch (value.kind) {
      case ValueKind::kOperand:
      case ValueKind::kPieceOperand:
      case ValueKind::kRowOperand: {
        const int entry = find_entry(footprint, value.operand);
        if (!is_row_strides(footprint.entries[entry].strides, footprint.dims.rank, footprint.row_rank)) {
          extent = Extent::kElement;
        }
        break;
      }
      case ValueKind::kNumber:
        break;
      case ValueKind::kMap: {
        int totals = 0;
        for (int i = 0; i < value.input_count; ++i) {
          if (input(i) == Extent::kElement) extent = Extent::kElement;
          totals += input(i) == Extent::kTotal;
        }
        if (totals != 0 && totals != value.input_count) return false;
        if (totals != 0) extent = Extent::kTotal;
        break;
      }
      case ValueKind::kReduce:
        if (input(0) != Extent::kElement || (value.input_count > 1 && input(1) != Extent::kRow)) return false;
        break;
      case ValueKind::kPick:
        if (input(0) == Extent::kTotal || input(1) != Extent::kRow) return false;
        break;
      case ValueKind::kLookUp:
        if (input(0) != Extent::kRow) return false;
        extent = Extent::kElement;
        break;
      case ValueKind::kOneHot:
        if (input(0) != Extent::kRow || input(1) != Extent::kRow) return false;
        extent = Extent::kElement;
        break;
      case ValueKind::kTotal:
        if (input(0) != Extent::kRow) return false;
        extent = Extent::kTotal;
        break;
    }
    footprint.extents.push_back(extent);
  }
  return true;
}

// The window is broadcast to what is left of the space; the reduced dimensions are its last.
bool align_to_rows(const FullSpace& space, const Window& window, int64_t* strides, const Dims& dims, int row_rank) {
  FullSpace rows = space;
  while (rows.rank > 0 && (space.reduced >> (rows.rank - 1) & 1) != 0) --rows.rank;
  std::fill(strides + dims.rank - row_rank, strides + dims.rank, 0);
  return window.rank <= rows.rank && broadcast(rows, window, strides);
}

// The window is a table of rows as the space has them.
bool align_to_table(const Window& window, const Dims& dims, int row_rank, Footprint::Entry& entry) {
  if (window.rank != 2 || row_rank != 1 || window.dims[0] < 1 || window.dims[1] != dims.sizes[dims.rank - 1])
    return false;
  std::fill(entry.strides, entry.strides + dims.rank, 0);
  entry.strides[dims.rank - 1] = window.dims[3];
  entry.table_rows = window.dims[0];
  entry.table_stride = window.dims[2];
  return true;
}

}  // namespace

int64_t Dims::numel() const {
  return std::accumulate(sizes, sizes + rank, int64_t{1}, [](int64_t a, int64_t b) { return a * b; });
}
bool Dims::operator==(const Dims& other) const {
  return rank == other.rank && std::equal(sizes, sizes + rank, other.sizes);
}

int find_entry(const Footprint& footprint, int operand) {
  for (int i = 0; i < footprint.entry_count; ++i) {
    if (footprint.entries[i].operand == operand) return i;
  }
  return -1;
}

bool is_row_strides(const int64_t* strides, int rank, int row_rank) {
  return std::all_of(strides + rank - row_rank, strides + rank, [](int64_t stride) { return stride == 0; });
}

bool lower_node(const Graph& graph, const Node& node, Lowering& lowering) {
  const LowerRequest request = request_of(graph, node);
  if (request.traits->lower == nullptr) return false;
  lowering.clear();
  return request.traits->lower(request, lowering);
}

bool in_tail(const Graph& graph, const Node& node, int operand) {
  const LowerRequest request = request_of(graph, node);
  Lowering lowering;
  return !request.traits->lower(request, lowering) || lowering.touches(operand);
}

FusionNote measure(const Graph& graph, const Node& node, const Lowering& lowering, Footprint& footprint) {
  const Operand* const operands = graph.operands_of(node);
  const WindowTable& windows = *graph.windows;
  const bool tail = op_table()[node.op].has_tail;
  footprint.entry_count = 0;
  for (const Lowering::Value& value : lowering.values) {
    const bool is_table = value.kind == ValueKind::kLookUp;
    const bool of_piece = value.kind == ValueKind::kPieceOperand;
    if (value.kind != ValueKind::kOperand && value.kind != ValueKind::kRowOperand && !of_piece && !is_table) continue;
    if (value.operand >= node.operand_count || windows[operands[value.operand].window].dtype != value.dtype) {
      return FusionNote::kNoLowering;
    }
    Footprint::Entry* entry = entry_of(footprint, value.operand);
    if (entry == nullptr || !(tail || operands[value.operand].reads())) return FusionNote::kNoLowering;
    if (entry->reads && (is_table != (entry->table_rows != 0) || of_piece != entry->of_piece)) {
      return FusionNote::kNoLowering;
    }
    entry->of_piece = of_piece;
    entry->reads = true;
    entry->table_rows = is_table;
    entry->by_row = value.kind == ValueKind::kRowOperand;
  }
  for (const Lowering::Output& output : lowering.outputs) {
    Footprint::Entry* entry = entry_of(footprint, output.operand);
    if (entry == nullptr || !operands[output.operand].writes()) return FusionNote::kNoLowering;
    // Each piece is written once.
    if (entry->writes && output.piece == 0) return FusionNote::kNoLowering;
    entry->writes = true;
  }
  // What the program leaves out is touched by the node all the same, for all that others know; by the body, where there is one.
  int empty = 0;
  for (int i = node.operand_count - node.output_count; i < node.operand_count; ++i) {
    empty += windows[operands[i].window].numel == 0 && find_entry(footprint, i) < 0;
  }
  if (lowering.outputs.empty() || (footprint.entry_count + empty != node.operand_count && !tail)) {
    return FusionNote::kNoLowering;
  }
  for (int i = 0; i < footprint.entry_count; ++i) {
    const Operand& operand = operands[footprint.entries[i].operand];
    if (operand.writes() != footprint.entries[i].writes) return FusionNote::kNoLowering;
    if ((operand.bits & (kConjugate | kNegative)) != 0) return FusionNote::kNoLowering;
  }

  const Window& shape = windows[operands[lowering.reduced == 0 ? lowering.outputs[0].operand : lowering.space].window];
  if (shape.numel == 0 || shape.rank > 64) return FusionNote::kNoLowering;
  const FullSpace space{.rank = shape.rank, .sizes = shape.dims, .reduced = lowering.reduced};
  Dims& dims = footprint.dims;
  dims.rank = 0;
  footprint.numel = shape.numel;
  footprint.row = 0;
  footprint.row_rank = 0;
  for (int d = 0; d < space.rank; ++d) {
    if (space.sizes[d] == 1) continue;
    if (dims.rank == kMaxFusedRank) return FusionNote::kNoLowering;
    dims.sizes[dims.rank++] = space.sizes[d];
    if ((space.reduced >> d & 1) != 0) {
      footprint.row = std::max<int64_t>(footprint.row, 1) * space.sizes[d];
      ++footprint.row_rank;
    } else if (footprint.row_rank != 0) {
      return FusionNote::kNotTrailing;
    }
  }
  // A row of one entry is none.
  if (lowering.reduced != 0 && footprint.row == 0) return FusionNote::kNoLowering;
  if (lowering.pieces > 1) {
    if (lowering.reduced != 0 || lowering.pieces > kMaxPieces || lowering.cut >= space.rank ||
        space.sizes[lowering.cut] % lowering.pieces != 0) {
      return FusionNote::kNoLowering;
    }
    footprint.cut = static_cast<int>(
        std::count_if(space.sizes, space.sizes + lowering.cut, [](int64_t size) { return size != 1; }));
  }

  for (int i = 0; i < footprint.entry_count; ++i) {
    Footprint::Entry& entry = footprint.entries[i];
    const Window& window = windows[operands[entry.operand].window];
    if (entry.table_rows != 0) {
      if (entry.writes || !align_to_table(window, dims, footprint.row_rank, entry)) return FusionNote::kNoLowering;
    } else if (entry.of_piece) {
      if (entry.writes || !broadcast_to_piece(space, lowering.cut, lowering.pieces, window, entry.strides)) {
        return FusionNote::kNoLowering;
      }
    } else if (entry.by_row) {
      if (!align_to_rows(space, window, entry.strides, dims, footprint.row_rank)) return FusionNote::kNoLowering;
    } else if (entry.reads && !broadcast(space, window, entry.strides)) {
      return FusionNote::kNoLowering;
    }
    if (!entry.reads && lowering.reduced == 0 &&
        (window.numel != shape.numel || !broadcast(space, window, entry.strides))) {
      return FusionNote::kNoLowering;
    }
    if (entry.reads && entry.writes && window.numel != shape.numel) return FusionNote::kNoLowering;
  }
  if (lowering.reduced != 0 && !find_extents(lowering, footprint)) return FusionNote::kNoLowering;
  for (const Lowering::Output& output : lowering.outputs) {
    const Lowering::Value& value = lowering.values[static_cast<size_t>(output.value)];
    Footprint::Entry& entry = *entry_of(footprint, output.operand);
    const Window& window = windows[operands[output.operand].window];
    if (window.dtype != value.dtype) return FusionNote::kNoLowering;
    if (lowering.reduced == 0) continue;
    const Extent extent = footprint.extents[static_cast<size_t>(output.value)];
    const int count = extent == Extent::kElement ? dims.rank
                      : extent == Extent::kRow   ? dims.rank - footprint.row_rank
                                                 : 0;
    if (!align(dims, count, window, entry.strides)) return FusionNote::kNoLowering;
  }
  return FusionNote::kJoined;
}

void take_piece(const Lowering& whole, int piece, std::vector<Lowering::Ref>& renamed, Lowering& part) {
  part.clear();
  part.numbers = whole.numbers;
  renamed.assign(whole.values.size(), -1);
  for (const Lowering::Output& output : whole.outputs) {
    if (output.piece == piece) renamed[static_cast<size_t>(output.value)] = 0;
  }
  for (size_t v = whole.values.size(); v-- > 0;) {
    const Lowering::Value& value = whole.values[v];
    for (int i = 0; i < value.input_count && renamed[v] == 0; ++i) renamed[static_cast<size_t>(value.inputs[i])] = 0;
  }
  for (size_t v = 0; v < whole.values.size(); ++v) {
    if (renamed[v] < 0) continue;
    renamed[v] = static_cast<Lowering::Ref>(part.values.size());
    Lowering::Value& value = part.values.emplace_back(whole.values[v]);
    if (value.kind == ValueKind::kPieceOperand) value.kind = ValueKind::kOperand;
    for (int i = 0; i < value.input_count; ++i) value.inputs[i] = renamed[static_cast<size_t>(value.inputs[i])];
  }
  for (const Lowering::Output& output : whole.outputs) {
    if (output.piece == piece) part.output(output.operand, renamed[static_cast<size_t>(output.value)]);
  }
}

void take_piece(const Footprint& whole, const Lowering& part, int cut, int pieces, int piece, Footprint& result) {
  const int64_t length = whole.dims.sizes[cut] / pieces;
  const auto drop = [&](int64_t* entries) { std::copy(entries + cut + 1, entries + whole.dims.rank, entries + cut); };
  result.dims = whole.dims;
  result.dims.sizes[cut] = length;
  if (length == 1) {
    drop(result.dims.sizes);
    --result.dims.rank;
  }
  result.numel = whole.numel / pieces;
  result.row = 0;
  result.row_rank = 0;
  result.entry_count = 0;
  for (int i = 0; i < whole.entry_count; ++i) {
    if (!part.touches(whole.entries[i].operand)) continue;
    Footprint::Entry& entry = result.entries[result.entry_count++];
    entry = whole.entries[i];
    if (!entry.of_piece) entry.shift = piece * length * entry.strides[cut];
    if (length == 1) drop(entry.strides);
  }
}

bool split_dimension(const Footprint& whole, int cut, int pieces, Footprint& result) {
  if (whole.dims.rank == kMaxFusedRank || whole.dims.sizes[cut] == pieces) return false;
  const int rank = whole.dims.rank;
  result = whole;
  std::copy_backward(whole.dims.sizes + cut + 1, whole.dims.sizes + rank, result.dims.sizes + rank + 1);
  result.dims.rank = rank + 1;
  result.dims.sizes[cut] /= pieces;
  result.dims.sizes[cut + 1] = pieces;
  for (int i = 0; i < whole.entry_count; ++i) {
    const int64_t* const from = whole.entries[i].strides;
    int64_t* const to = result.entries[i].strides;
    std::copy_backward(from + cut + 1, from + rank, to + rank + 1);
    to[cut] = from[cut] * pieces;
    to[cut + 1] = from[cut];
  }
  return true;
}

}  // namespace hetero::graph
