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

// The window is broadcast to one piece of the space, which is cut along `cut`; as strides over the
// whole space.
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

// Says for each value of a reduction's program whether it has an entry per point or per row. False
// where a step reduces what is no element value.
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

// The window is broadcast to what the space has without `lacked`, which are its last dimensions.
bool align_to_rows(const FullSpace& space, uint64_t lacked, const Window& window, int64_t* strides, const Dims& dims) {
  FullSpace rows = space;
  for (int k = dims.rank; rows.rank > 0 && (lacked >> (rows.rank - 1) & 1) != 0; --rows.rank) {
    if (space.sizes[rows.rank - 1] != 1) strides[--k] = 0;
  }
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

namespace {

// Measures one node. Each step says kJoined, or why the node can be a member of no group.
//
//   1. what the program reads                 an entry for each operand
//   2. what it writes
//   3. whether that is all the node touches
//   4. the space, its row, and its pieces
//   5. each entry's strides over the space
class Measurement {
 public:
  Measurement(const Graph& graph, const Node& node, const Lowering& lowering, Footprint& footprint)
      : node_(node),
        lowering_(lowering),
        footprint_(footprint),
        operands_(graph.operands_of(node)),
        windows_(*graph.windows),
        has_tail_(op_table()[node.op].has_tail) {}

  FusionNote run() {
    footprint_.entry_count = 0;
    if (!note_reads() || !note_writes() || !touches_all()) return FusionNote::kNoLowering;
    if (const FusionNote note = find_space(); note != FusionNote::kJoined) return note;
    return find_pieces() && find_strides() && find_extents_of_outputs() ? FusionNote::kJoined : FusionNote::kNoLowering;
  }

 private:
  const Window& window_of(int operand) const { return windows_[operands_[operand].window]; }

  bool note_reads() {
    for (const Lowering::Value& value : lowering_.values) {
      const bool is_table = value.kind == ValueKind::kLookUp;
      const bool of_piece = value.kind == ValueKind::kPieceOperand;
      if (value.kind != ValueKind::kOperand && value.kind != ValueKind::kRowOperand && !of_piece && !is_table) continue;
      if (value.operand >= node_.operand_count || window_of(value.operand).dtype != value.dtype) return false;
      Footprint::Entry* entry = entry_of(footprint_, value.operand);
      if (entry == nullptr || !(has_tail_ || operands_[value.operand].reads())) return false;
      if (entry->reads && (is_table != (entry->table_rows != 0) || of_piece != entry->of_piece)) return false;
      entry->of_piece = of_piece;
      entry->reads = true;
      entry->table_rows = is_table;
      entry->by_row = value.kind == ValueKind::kRowOperand;
    }
    return true;
  }

  bool note_writes() {
    for (const Lowering::Output& output : lowering_.outputs) {
      Footprint::Entry* entry = entry_of(footprint_, output.operand);
      if (entry == nullptr || !operands_[output.operand].writes()) return false;
      // Each piece is written once.
      if (entry->writes && output.piece == 0) return false;
      entry->writes = true;
    }
    return true;
  }

  // What the program leaves out is touched by the node all the same, for all that others know; by
  // the body, where there is one.
  bool touches_all() const {
    int empty = 0;
    for (int i = node_.operand_count - node_.output_count; i < node_.operand_count; ++i) {
      empty += window_of(i).numel == 0 && find_entry(footprint_, i) < 0;
    }
    if (lowering_.outputs.empty() || (footprint_.entry_count + empty != node_.operand_count && !has_tail_))
      return false;
    return std::all_of(footprint_.entries, footprint_.entries + footprint_.entry_count, [&](const auto& entry) {
      const Operand& operand = operands_[entry.operand];
      return operand.writes() == entry.writes && (operand.bits & (kConjugate | kNegative)) == 0;
    });
  }

  FusionNote find_space() {
    shape_ = &window_of(lowering_.reduced == 0 ? lowering_.outputs[0].operand : lowering_.space);
    if (shape_->numel == 0 || shape_->rank > 64) return FusionNote::kNoLowering;
    space_ = {.rank = shape_->rank, .sizes = shape_->dims, .reduced = lowering_.reduced};
    Dims& dims = footprint_.dims;
    dims.rank = 0;
    footprint_.numel = shape_->numel;
    footprint_.row = 0;
    footprint_.row_rank = 0;
    for (int d = 0; d < space_.rank; ++d) {
      if (space_.sizes[d] == 1) continue;
      if (dims.rank == kMaxFusedRank) return FusionNote::kNoLowering;
      dims.sizes[dims.rank++] = space_.sizes[d];
      if ((space_.reduced >> d & 1) != 0) {
        footprint_.row = std::max<int64_t>(footprint_.row, 1) * space_.sizes[d];
        ++footprint_.row_rank;
      } else if (footprint_.row_rank != 0) {
        return FusionNote::kNotTrailing;
      }
    }
    // A row of one entry is none.
    return lowering_.reduced != 0 && footprint_.row == 0 ? FusionNote::kNoLowering : FusionNote::kJoined;
  }

  bool find_pieces() {
    if (lowering_.pieces <= 1) return true;
    if (lowering_.reduced != 0 || lowering_.pieces > kMaxPieces || lowering_.cut >= space_.rank ||
        space_.sizes[lowering_.cut] % lowering_.pieces != 0) {
      return false;
    }
    footprint_.cut = static_cast<int>(
        std::count_if(space_.sizes, space_.sizes + lowering_.cut, [](int64_t size) { return size != 1; }));
    return true;
  }

  bool find_strides() {
    return std::all_of(footprint_.entries, footprint_.entries + footprint_.entry_count,
                       [&](Footprint::Entry& entry) { return find_strides(entry); });
  }

  bool find_strides(Footprint::Entry& entry) const {
    const Window& window = window_of(entry.operand);
    if (entry.table_rows != 0) {
      if (entry.writes || !align_to_table(window, footprint_.dims, footprint_.row_rank, entry)) return false;
    } else if (entry.of_piece) {
      if (entry.writes || !broadcast_to_piece(space_, lowering_.cut, lowering_.pieces, window, entry.strides)) {
        return false;
      }
    } else if (entry.by_row) {
      if (!align_to_rows(space_, lowering_.lacked(), window, entry.strides, footprint_.dims)) return false;
    } else if (entry.reads && !broadcast(space_, window, entry.strides)) {
      return false;
    }
    if (!entry.reads && lowering_.reduced == 0 &&
        (window.numel != shape_->numel || !broadcast(space_, window, entry.strides))) {
      return false;
    }
    return !entry.reads || !entry.writes || window.numel == shape_->numel;
  }

  // Outputs of a reduction have one entry for each point, each row, or the whole space.
  bool find_extents_of_outputs() {
    if (lowering_.reduced != 0 && !find_extents(lowering_, footprint_)) return false;
    for (const Lowering::Output& output : lowering_.outputs) {
      const Lowering::Value& value = lowering_.values[static_cast<size_t>(output.value)];
      const Window& window = window_of(output.operand);
      if (window.dtype != value.dtype) return false;
      if (lowering_.reduced == 0) continue;
      const Extent extent = footprint_.extents[static_cast<size_t>(output.value)];
      const int count = extent == Extent::kElement ? footprint_.dims.rank
                        : extent == Extent::kRow   ? footprint_.dims.rank - footprint_.row_rank
                                                   : 0;
      if (!align(footprint_.dims, count, window, entry_of(footprint_, output.operand)->strides)) return false;
    }
    return true;
  }

  const Node& node_;
  const Lowering& lowering_;
  Footprint& footprint_;
  const Operand* const operands_;
  const WindowTable& windows_;
  const bool has_tail_;
  const Window* shape_ = nullptr;  // of what the space is taken from
  FullSpace space_{};
};

}  // namespace

FusionNote measure(const Graph& graph, const Node& node, const Lowering& lowering, Footprint& footprint) {
  return Measurement(graph, node, lowering, footprint).run();
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
