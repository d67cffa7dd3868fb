#include "graph/fusion/group_builder.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

namespace hetero::graph {
namespace {

using backend::Extent;
using backend::FusedStep;
using backend::FusedValue;
using backend::kMaxFusedRank;
using ValueKind = Lowering::Value::Kind;
using StepKind = FusedStep::Kind;

// The strides over `from`, as strides over the finer sizes to[0..to_rank).
void cut(const Dims& from, const int64_t* strides, const int64_t* to, int to_rank, int64_t* result) {
  int t = to_rank;
  for (int f = from.rank; f-- > 0;) {
    int64_t stride = strides[f];
    for (int64_t left = from.sizes[f]; left > 1; left /= to[t]) {
      --t;
      result[t] = stride;
      stride *= to[t];
    }
  }
}

// The coarsest sizes that both a[0..a_rank) and b[0..b_rank), of equal product, can be cut into.
// False where there are none.
bool cut_both(const int64_t* a, int a_rank, const int64_t* b, int b_rank, Dims& result) {
  int64_t reversed[kMaxFusedRank];
  int count = 0;
  int i = a_rank;
  int j = b_rank;
  int64_t left_a = 1;
  int64_t left_b = 1;
  while (true) {
    if (left_a == 1 && i > 0) left_a = a[--i];
    if (left_b == 1 && j > 0) left_b = b[--j];
    if (left_a == 1 && left_b == 1) break;
    const int64_t size = std::min(left_a, left_b);
    if (count == kMaxFusedRank || size <= 1 || left_a % size != 0 || left_b % size != 0) return false;
    reversed[count++] = size;
    left_a /= size;
    left_b /= size;
  }
  result.rank = count;
  std::reverse_copy(reversed, reversed + count, result.sizes);
  return true;
}

bool equal_strides(const int64_t* a, const int64_t* b, int rank) { return std::equal(a, a + rank, b); }

// Whether `distance` is that of two points of a space with these strides, sorted from the largest;
// also where that takes too long to find out.
bool is_distance(int64_t distance, const std::pair<int64_t, int64_t>* sizes, const std::pair<int64_t, int64_t>* end,
                 int& patience) {
  int64_t reach = 0;
  for (const auto* it = sizes; it != end; ++it) reach += (it->second - 1) * it->first;
  if (std::abs(distance) > reach) return false;
  if (sizes == end || --patience < 0) return true;
  const auto [stride, size] = *sizes;
  for (int64_t k = distance / stride - 1; k <= distance / stride + 1; ++k) {
    if (std::abs(k) < size && is_distance(distance - k * stride, sizes + 1, end, patience)) return true;
  }
  return false;
}

// Memory of what is tried and may be undone, kept from try to try.
struct Spare {
  GroupBuilder tried;
  GroupBuilder before_pieces;
  GroupBuilder before_taking;
  Lowering part;  // of one piece
  Footprint piece;
  Footprint split;
  std::vector<Lowering::Ref> renamed;
  Lowering taken;  // of one member
  Footprint taken_footprint;
};
Spare& spare() {
  // On the heap: a shared library has little room for thread-local objects.
  thread_local const auto own = std::make_unique<Spare>();
  return *own;
}

// So many maps are computed again for a picked entry.
constexpr int kMaxPickSteps = 8;

StepKind step_kind(ValueKind kind) {
  switch (kind) {
    case ValueKind::kNumber:
      return StepKind::kFill;
    case ValueKind::kReduce:
    case ValueKind::kTotal:
      return StepKind::kReduce;
    case ValueKind::kLookUp:
      return StepKind::kLookUp;
    case ValueKind::kOneHot:
      return StepKind::kOneHot;
    default:
      return StepKind::kMap;
  }
}

}  // namespace

void GroupBuilder::begin(const Graph& graph) {
  graph_ = &graph;
  dims_.rank = 0;
  numel_ = 1;
  row_ = 0;
  operand_count_ = 0;
  members_.clear();
  accesses_.clear();
  buffers_.clear();
  values_.clear();
  steps_.clear();
  reads_.clear();
  writes_.clear();
  checks_.clear();
  numbers_.clear();
}

int GroupBuilder::row_rank(int64_t row) const {
  int rank = 0;
  for (int64_t points = 1; row > 0 && points < row; ++rank) points *= dims_.sizes[dims_.rank - 1 - rank];
  return rank;
}

bool GroupBuilder::repeats_along_row(const int64_t* strides, int64_t row) const {
  return row != 0 && is_row_strides(strides, dims_.rank, row_rank(row));
}

// How the node's space and the group's go together; `row` is the group's row afterwards.
FusionNote GroupBuilder::take_space(const Footprint& footprint, bool& as_row, Dims& refined, int64_t& row) const {
  as_row = false;
  row = row_;
  if (members_.empty()) {
    refined = footprint.dims;
    row = footprint.row;
    return FusionNote::kJoined;
  }
  if (footprint.numel == numel_) {
    if (footprint.row != 0 && row_ != 0 && footprint.row != row_) return FusionNote::kOtherRow;
    if (footprint.row != 0) row = footprint.row;
    if (footprint.dims == dims_) {
      refined = dims_;
      return FusionNote::kJoined;
    }
    const bool agree = cut_both(dims_.sizes, dims_.rank, footprint.dims.sizes, footprint.dims.rank, refined);
    return agree ? FusionNote::kJoined : FusionNote::kOtherShape;
  }
  if (row_ == 0 || footprint.row != 0 || footprint.numel != numel_ / row_) return FusionNote::kOtherShape;
  as_row = true;
  const int inner = row_rank(row_);
  if (!cut_both(dims_.sizes, dims_.rank - inner, footprint.dims.sizes, footprint.dims.rank, refined) ||
      refined.rank + inner > kMaxFusedRank) {
    return FusionNote::kOtherShape;
  }
  std::copy_n(dims_.sizes + dims_.rank - inner, inner, refined.sizes + refined.rank);
  refined.rank += inner;
  return FusionNote::kJoined;
}

void GroupBuilder::refine(const Dims& refined) {
  if (refined == dims_) return;
  int64_t strides[kMaxFusedRank];
  for (AccessState& access : accesses_) {
    cut(dims_, access.strides, refined.sizes, refined.rank, strides);
    std::copy_n(strides, refined.rank, access.strides);
  }
  dims_ = refined;
}

// Whether two points of the window can be the same bytes; "yes" where it is not plain.
bool GroupBuilder::overlaps_itself(const Window& window) const {
  if (window.dense) return false;
  int64_t sizes[kMaxFusedRank];
  int64_t strides[kMaxFusedRank];
  int count = 0;
  for (int d = 0; d < window.rank; ++d) {
    if (window.dims[d] == 1) continue;
    int k = count++;
    for (; k > 0 && strides[k - 1] > window.dims[window.rank + d]; --k) {
      sizes[k] = sizes[k - 1];
      strides[k] = strides[k - 1];
    }
    sizes[k] = window.dims[d];
    strides[k] = window.dims[window.rank + d];
  }
  int64_t reach = 0;  // the largest distance of two points so far
  for (int k = 0; k < count; ++k) {
    if (strides[k] <= reach) return true;
    reach += (sizes[k] - 1) * strides[k];
  }
  return false;
}

// Whether an operand at `offset` with these strides can touch a byte of the access.
bool GroupBuilder::may_meet(const AccessState& access, const Window& seen, int64_t offset, const int64_t* strides,
                            const Window& window) const {
  if (seen.disjoint(window)) return false;
  if (access.dtype != window.dtype || access.table_rows != 0 || !equal_strides(access.strides, strides, dims_.rank)) {
    return true;
  }
  std::pair<int64_t, int64_t> sizes[kMaxFusedRank];
  int count = 0;
  for (int d = 0; d < dims_.rank; ++d) {
    if (strides[d] == 0) continue;
    int k = count++;
    for (; k > 0 && sizes[k - 1].first < strides[d]; --k) sizes[k] = sizes[k - 1];
    sizes[k] = {strides[d], dims_.sizes[d]};
  }
  int patience = 64;
  return is_distance(offset - access.offset, sizes, sizes + count, patience);
}

// Finds for each entry of the node the access that it is, or none where it is new.
FusionNote GroupBuilder::match(const Node& node, const Footprint& footprint, bool as_row) {
  const Operand* const operands = graph_->operands_of(node);
  const WindowTable& windows = *graph_->windows;
  const int outer = dims_.rank - (as_row ? row_rank(row_) : 0);
  for (int i = 0; i < footprint.entry_count; ++i) {
    const Footprint::Entry& entry = footprint.entries[i];
    const Operand& operand = operands[entry.operand];
    const Window& window = windows[operand.window];
    Match& found = matches_[i];
    found.access = -1;
    if (entry.writes && overlaps_itself(window)) return FusionNote::kOverlap;
    cut(footprint.dims, entry.strides, dims_.sizes, outer, found.strides);
    std::fill(found.strides + outer, found.strides + dims_.rank, 0);
    for (size_t a = 0; a < buffers_.size(); ++a) {
      if (buffers_[a] != operand.buffer) continue;
      const AccessState& access = accesses_[a];
      const int64_t offset = window.offset + entry.shift;
      if (access.dtype == window.dtype && access.offset == offset && access.table_rows == entry.table_rows &&
          access.table_stride == entry.table_stride && equal_strides(access.strides, found.strides, dims_.rank)) {
        found.access = static_cast<int32_t>(a);
      } else if ((entry.writes || access.written) &&
                 may_meet(access, windows[graph_->operands[access.operand].window], offset, found.strides, window)) {
        return FusionNote::kOverlap;
      }
    }
    for (int j = 0; j < i; ++j) {
      const Operand& other = operands[footprint.entries[j].operand];
      if (other.buffer != operand.buffer) continue;
      const Window& seen = windows[other.window];
      const Footprint::Entry& earlier = footprint.entries[j];
      if (seen.dtype == window.dtype && seen.offset + earlier.shift == window.offset + entry.shift &&
          earlier.table_rows == entry.table_rows && earlier.table_stride == entry.table_stride &&
          equal_strides(matches_[j].strides, found.strides, dims_.rank)) {
        if (entry.writes && footprint.entries[j].writes) return FusionNote::kOverlap;
        if (found.access < 0) found.access = matches_[j].access < -1 ? matches_[j].access : -2 - j;
        if (matches_[j].access >= 0) found.access = matches_[j].access;
      } else if ((entry.writes || footprint.entries[j].writes) && !seen.disjoint(window)) {
        return FusionNote::kOverlap;
      }
    }
  }
  return FusionNote::kJoined;
}

// Whether an output would be, unchanged, a row value that a member has computed: there is no step
// that repeats it along the row.
bool GroupBuilder::passes_row_through(const Lowering& lowering, const Footprint& footprint, int64_t row) const {
  if (footprint.row != 0) return false;
  for (const Lowering::Output& output : lowering.outputs) {
    const Lowering::Value& value = lowering.values[static_cast<size_t>(output.value)];
    if (value.kind != ValueKind::kOperand) continue;
    const Match& match = matches_[find_entry(footprint, value.operand)];
    if (match.access < 0 || !accesses_[static_cast<size_t>(match.access)].written) continue;
    if (repeats_along_row(match.strides, row)) return true;
  }
  return false;
}

// Nobody in the group can read a total: it is there when all else is done.
bool GroupBuilder::reads_total(const Footprint& footprint) const {
  for (int i = 0; i < footprint.entry_count; ++i) {
    if (!footprint.entries[i].reads || matches_[i].access < 0) continue;
    const int32_t value = accesses_[static_cast<size_t>(matches_[i].access)].value;
    if (value >= 0 && values_[static_cast<size_t>(value)].extent == Extent::kTotal) return true;
  }
  return false;
}

// Whether the value is computed by maps from row values that are loaded or filled.
bool GroupBuilder::comes_from_rows(uint16_t value) {
  needed_.assign(value + size_t{1}, 0);
  needed_[value] = 1;
  for (size_t v = needed_.size(); v-- > 0;) {
    if (needed_[v] == 0) continue;
    const FusedStep& step = steps_[v];
    const bool is_source = step.kind == StepKind::kLoad || step.kind == StepKind::kFill;
    if (values_[v].extent != Extent::kRow || (step.kind != StepKind::kMap && !is_source)) return false;
    if (is_source) continue;
    for (int i = 0; i < step.input_count; ++i) needed_[step.inputs[i]] = 1;
  }
  return true;
}

// What is checked must be known before the group runs.
bool GroupBuilder::can_check(const Lowering& lowering, const Footprint& footprint) {
  if (lowering.checks.empty()) return true;
  checked_.assign(lowering.values.size(), 0);
  for (const Lowering::Ref checked : lowering.checks) checked_[static_cast<size_t>(checked)] = 1;
  for (size_t v = lowering.values.size(); v-- > 0;) {
    if (checked_[v] == 0) continue;
    const Lowering::Value& value = lowering.values[v];
    for (int i = 0; i < value.input_count; ++i) checked_[static_cast<size_t>(value.inputs[i])] = 1;
    if (value.kind != ValueKind::kOperand && value.kind != ValueKind::kRowOperand) continue;
    const Match& match = matches_[find_entry(footprint, value.operand)];
    if (match.access < 0) continue;
    const AccessState& access = accesses_[static_cast<size_t>(match.access)];
    if (access.written && access.value >= 0 && !comes_from_rows(static_cast<uint16_t>(access.value))) return false;
  }
  return true;
}

FusionNote GroupBuilder::check(uint32_t index, const Lowering& lowering, const Footprint& footprint) {
  if (lowering.pieces == 1 && pieces_of(footprint) == 0) return check_one(index, lowering, footprint);
  GroupBuilder& copy = spare().tried;
  copy = *this;
  return copy.add(index, lowering, footprint);
}

FusionNote GroupBuilder::check_one(uint32_t index, const Lowering& lowering, const Footprint& footprint) {
  const Node& node = graph_->nodes[index];
  bool& as_row = as_row_;
  int64_t& row = next_row_;
  Dims refined;
  if (const FusionNote note = take_space(footprint, as_row, refined, row); note != FusionNote::kJoined) return note;
  if (members_.empty()) {
    dims_ = footprint.dims;
    numel_ = footprint.numel;
    row_ = row;
  } else {
    refine(refined);
  }
  if (const FusionNote note = match(node, footprint, as_row); note != FusionNote::kJoined) return note;
  if (!as_row && passes_row_through(lowering, footprint, row)) return FusionNote::kOtherShape;
  if (reads_total(footprint) || !can_check(lowering, footprint)) return FusionNote::kOtherShape;

  size_t operands = operand_count_;
  size_t accesses = accesses_.size();
  for (int i = 0; i < footprint.entry_count; ++i) {
    if (matches_[i].access >= 0) continue;
    ++accesses;
    const Buffer& buffer = graph_->buffers[graph_->operands_of(node)[footprint.entries[i].operand].buffer];
    operands += footprint.entries[i].reads || buffer.escapes;
  }
  if (!members_.empty() &&
      (operands > kMaxOperands || accesses > kMaxAccesses || steps_.size() + lowering.values.size() > kMaxSteps)) {
    return FusionNote::kTooLarge;
  }
  if (accesses > UINT16_MAX || numbers_.size() + lowering.numbers.size() > UINT16_MAX) return FusionNote::kTooLarge;
  next_operand_count_ = operands;
  return FusionNote::kJoined;
}

FusionNote GroupBuilder::add(uint32_t index, const Lowering& lowering, const Footprint& footprint) {
  if (lowering.pieces > 1) return add_pieces(index, lowering, footprint, footprint.cut, lowering.pieces);
  const FusionNote note = check_one(index, lowering, footprint);
  if (note == FusionNote::kJoined) add_one(index, lowering, footprint, true);
  return note == FusionNote::kOtherShape ? add_wide(index, lowering, footprint) : note;
}

// REQUIRES: check_one() has said kJoined.
void GroupBuilder::add_one(uint32_t index, const Lowering& lowering, const Footprint& footprint, bool first_piece) {
  operand_count_ = next_operand_count_;
  row_ = next_row_;
  commit(index, lowering, footprint, as_row_, first_piece);
}

// Into how many pieces of the group's size the node can be cut; 0 for none.
int GroupBuilder::pieces_of(const Footprint& footprint) const {
  if (members_.empty() || row_ != 0 || footprint.row != 0 || footprint.numel % numel_ != 0) return 0;
  const int64_t pieces = footprint.numel / numel_;
  return pieces < 2 || pieces > kMaxPieces ? 0 : static_cast<int>(pieces);
}

// Cuts the node where its pieces are what the group knows already.
FusionNote GroupBuilder::add_wide(uint32_t index, const Lowering& lowering, const Footprint& footprint) {
  const int pieces = pieces_of(footprint);
  FusionNote note = FusionNote::kOtherShape;
  for (int cut = footprint.dims.rank; cut-- > 0 && pieces != 0 && note != FusionNote::kJoined;) {
    if (footprint.dims.sizes[cut] % pieces != 0) continue;
    note = add_pieces(index, lowering, footprint, cut, pieces);
    // Pieces that alternate.
    if (note != FusionNote::kJoined && split_dimension(footprint, cut, pieces, spare().split)) {
      note = add_pieces(index, lowering, spare().split, cut + 1, pieces);
    }
  }
  return note;
}

FusionNote GroupBuilder::add_pieces(uint32_t index, const Lowering& lowering, const Footprint& footprint, int cut,
                                    int pieces) {
  if (!members_.empty() && (row_ != 0 || footprint.numel != numel_ * pieces)) return FusionNote::kOtherShape;
  GroupBuilder& before = spare().before_pieces;
  before = *this;
  const bool known = lowering.pieces > 1;
  Lowering& own_part = spare().part;
  Footprint& piece = spare().piece;
  for (int p = 0; p < pieces; ++p) {
    if (known) take_piece(lowering, p, spare().renamed, own_part);
    const Lowering& part = known ? own_part : lowering;
    take_piece(footprint, part, cut, pieces, p, piece);
    FusionNote note = check_one(index, part, piece);
    const bool fits = known || std::any_of(matches_, matches_ + piece.entry_count,
                                           [](const Match& match) { return match.access >= 0; });
    if (note == FusionNote::kJoined && !fits) note = FusionNote::kOtherShape;
    if (note != FusionNote::kJoined) {
      *this = before;
      return note;
    }
    add_one(index, part, piece, p == 0);
  }
  return FusionNote::kJoined;
}

bool GroupBuilder::take_over(const GroupBuilder& other) {
  GroupBuilder& before = spare().before_taking;
  before = *this;
  Lowering& lowering = spare().taken;
  Footprint& footprint = spare().taken_footprint;
  for (const uint32_t n : other.members_) {
    const Node& node = graph_->nodes[n];
    if (!lower_node(*graph_, node, lowering) || measure(*graph_, node, lowering, footprint) != FusionNote::kJoined ||
        add(n, lowering, footprint) != FusionNote::kJoined) {
      *this = before;
      return false;
    }
  }
  return true;
}

void GroupBuilder::mark_reads(std::span<uint8_t> needed) const {
  for (const uint16_t access : reads_) needed[buffers_[access]] = 1;
}

uint16_t GroupBuilder::new_value(uint8_t bytes, Extent extent) {
  values_.push_back({.bytes = bytes, .extent = extent});
  return static_cast<uint16_t>(values_.size() - 1);
}

uint16_t GroupBuilder::add_step(FusedStep step, uint8_t bytes, Extent extent) {
  step.value = new_value(bytes, extent);
  steps_.push_back(step);
  return step.value;
}

// The row's entry of a value. An entry of what maps give is what they give for the inputs' entries:
// where few steps lead to it, only these entries are computed, and the whole row of `value` only if
// somebody else needs it.
uint16_t GroupBuilder::pick(uint16_t value, uint16_t index, int& steps) {
  const FusedValue from = values_[value];
  if (from.extent == Extent::kRow) return value;
  for (const auto& [known, entry] : picked_) {
    if (known == value) return entry;
  }
  FusedStep step = steps_[value];
  if (step.kind == StepKind::kMap && steps > 0) {
    --steps;
    for (int i = 0; i < step.input_count; ++i) step.inputs[i] = pick(step.inputs[i], index, steps);
  } else if (step.kind != StepKind::kFill) {
    step = {.kind = StepKind::kReduce, .input_count = 2, .reducer = &backend::pick_reducer(from.bytes)};
    step.inputs[0] = value;
    step.inputs[1] = index;
  }
  const uint16_t entry = add_step(step, from.bytes, Extent::kRow);
  picked_.emplace_back(value, entry);
  return entry;
}

// The current value of an access, loaded now where there is none yet, or none of the wanted extent.
uint16_t GroupBuilder::value_of(uint16_t index, bool as_row, bool as_element) {
  AccessState& access = accesses_[index];
  if (access.value >= 0) {
    const auto value = static_cast<uint16_t>(access.value);
    const Extent extent = values_[value].extent;
    if ((!as_row || extent == Extent::kRow) && (!as_element || extent == Extent::kElement)) return value;
  }
  const bool per_row = as_row || (!as_element && repeats_along_row(access.strides, row_));
  const uint16_t value =
      new_value(static_cast<uint8_t>(dtype_bytes(access.dtype)), per_row ? Extent::kRow : Extent::kElement);
  steps_.push_back({.kind = StepKind::kLoad, .value = value, .operand = index});
  if (access.value < 0 || per_row) access.value = value;
  return value;
}

void GroupBuilder::commit(uint32_t index, const Lowering& lowering, const Footprint& footprint, bool as_row,
                          bool first_piece) {
  const Node& node = graph_->nodes[index];
  const Operand* const operands = graph_->operands_of(node);
  if (first_piece) {
    members_.push_back(index);
    first_number_ = static_cast<uint16_t>(numbers_.size());
    numbers_.insert(numbers_.end(), lowering.numbers.begin(), lowering.numbers.end());
  }
  for (int i = 0; i < footprint.entry_count; ++i) {
    Match& match = matches_[i];
    if (match.access < -1) match.access = matches_[-2 - match.access].access;
    const Footprint::Entry& entry = footprint.entries[i];
    const bool reads = entry.reads || operands[entry.operand].reads();
    if (match.access >= 0) {
      const auto known = static_cast<uint16_t>(match.access);
      if (reads && !accesses_[known].written) reads_.push_back(known);
      continue;
    }
    const Window& window = (*graph_->windows)[operands[entry.operand].window];
    match.access = static_cast<int32_t>(accesses_.size());
    AccessState& access = accesses_.emplace_back(AccessState{.operand = node.first_operand + entry.operand,
                                                             .dtype = window.dtype,
                                                             .written = false,
                                                             .value = -1,
                                                             .written_at = 0,
                                                             .offset = window.offset + entry.shift,
                                                             .table_rows = entry.table_rows,
                                                             .table_stride = entry.table_stride,
                                                             .strides = {}});
    std::copy_n(match.strides, dims_.rank, access.strides);
    buffers_.push_back(operands[entry.operand].buffer);
    if (reads) reads_.push_back(static_cast<uint16_t>(match.access));
  }

  const auto access_of = [&](int operand) {
    return static_cast<uint16_t>(matches_[find_entry(footprint, operand)].access);
  };
  refs_.resize(lowering.values.size());
  for (size_t v = 0; v < lowering.values.size(); ++v) {
    const Lowering::Value& value = lowering.values[v];
    const bool per_row = as_row || (footprint.row != 0 && footprint.extents[v] == Extent::kRow);
    if (value.kind == ValueKind::kOperand || value.kind == ValueKind::kRowOperand) {
      const bool is_output = !per_row && std::ranges::any_of(lowering.outputs, [v](const Lowering::Output& output) {
        return output.value == static_cast<Lowering::Ref>(v);
      });
      refs_[v] = value_of(access_of(value.operand), per_row, is_output);
      continue;
    }
    if (value.kind == ValueKind::kPick) {
      int steps = kMaxPickSteps;
      picked_.clear();
      refs_[v] = pick(refs_[static_cast<size_t>(value.inputs[0])], refs_[static_cast<size_t>(value.inputs[1])], steps);
      continue;
    }
    FusedStep step{
        .kind = step_kind(value.kind),
        .input_count = value.input_count,
        .operand = value.kind == ValueKind::kLookUp ? access_of(value.operand) : uint16_t{0},
        .first_number = static_cast<uint16_t>(value.number_count > 0 ? first_number_ + value.first_number : 0),
        .map = value.map,
        .row_map = value.row_map,
        .reducer = value.reducer};
    for (int i = 0; i < value.input_count; ++i) step.inputs[i] = refs_[static_cast<size_t>(value.inputs[i])];
    const Extent extent = per_row ? Extent::kRow : footprint.row != 0 ? footprint.extents[v] : Extent::kElement;
    refs_[v] = add_step(step, static_cast<uint8_t>(dtype_bytes(value.dtype)), extent);
  }
  for (const Lowering::Ref checked : lowering.checks) checks_.push_back(refs_[static_cast<size_t>(checked)]);
  for (const Lowering::Output& output : lowering.outputs) {
    const uint16_t a = access_of(output.operand);
    AccessState& access = accesses_[a];
    access.value = refs_[static_cast<size_t>(output.value)];
    access.written = true;
    access.written_at = static_cast<uint32_t>(steps_.size());
    writes_.push_back({a, access.written_at});
  }
}

bool GroupBuilder::conflicts(const Operand& operand) const {
  for (size_t a = 0; a < buffers_.size(); ++a) {
    if (buffers_[a] != operand.buffer) continue;
    const AccessState& access = accesses_[a];
    if (!operand.writes() && !access.written) continue;
    Operand member = graph_->operands[access.operand];
    if (member.access != Access::kDefine) member.access = access.written ? Access::kUpdate : Access::kRead;
    if (graph::conflicts(*graph_->windows, member, operand)) return true;
  }
  return false;
}

bool GroupBuilder::fits(const GroupBuilder& other) const {
  return dims_ == other.dims_ && (row_ == 0 || other.row_ == 0 || row_ == other.row_) &&
         operand_count_ + other.operand_count_ <= kMaxOperands &&
         accesses_.size() + other.accesses_.size() <= kMaxAccesses && steps_.size() + other.steps_.size() <= kMaxSteps;
}

void GroupBuilder::finish(std::span<const uint8_t> needed, FusedGroup& group) {
  group.operands.clear();
  group.kernel.values.clear();
  group.kernel.steps.clear();
  // Backwards: which steps the stored values need.
  needed_values_.assign(values_.size(), 0);
  const auto is_stored = [&](size_t a) { return accesses_[a].written && needed[buffers_[a]] != 0; };
  for (size_t a = 0; a < accesses_.size(); ++a) {
    if (is_stored(a)) needed_values_[static_cast<size_t>(accesses_[a].value)] = 1;
  }
  for (const uint16_t checked : checks_) needed_values_[checked] = 1;
  for (size_t s = steps_.size(); s-- > 0;) {
    const FusedStep& step = steps_[s];
    if (!needed_values_[step.value]) continue;
    for (int i = 0; i < step.input_count; ++i) needed_values_[step.inputs[i]] = 1;
  }

  // Forwards: these steps, with dense numbers for values and operands, and the stores between them.
  backend::FusedKernel& kernel = group.kernel;
  renamed_.resize(values_.size());
  operand_of_.assign(accesses_.size(), -1);
  bool has_rows = false;
  const auto operand_of = [&](size_t access) -> uint16_t {
    if (operand_of_[access] < 0) {
      operand_of_[access] = static_cast<int32_t>(group.operands.size());
      group.operands.push_back({.buffer = buffers_[access], .operand = accesses_[access].operand});
    }
    return static_cast<uint16_t>(operand_of_[access]);
  };
  auto write = writes_.begin();
  for (uint32_t s = 0; s <= steps_.size(); ++s) {
    for (; write != writes_.end() && write->at == s; ++write) {
      const AccessState& access = accesses_[write->access];
      if (access.written_at != s || !is_stored(write->access)) continue;
      const uint16_t operand = operand_of(write->access);
      if (group.operands[operand].stores) continue;
      group.operands[operand].stores = true;
      kernel.steps.push_back(
          {.kind = StepKind::kStore, .value = renamed_[static_cast<size_t>(access.value)], .operand = operand});
    }
    if (s == steps_.size()) break;
    FusedStep step = steps_[s];
    if (!needed_values_[step.value]) continue;
    has_rows |= values_[step.value].extent == Extent::kRow;
    renamed_[step.value] = static_cast<uint16_t>(kernel.values.size());
    kernel.values.push_back(values_[step.value]);
    step.value = renamed_[step.value];
    for (int i = 0; i < step.input_count; ++i) step.inputs[i] = renamed_[step.inputs[i]];
    if (step.kind == StepKind::kLoad || step.kind == StepKind::kLookUp) {
      step.operand = operand_of(step.operand);
      group.operands[step.operand].loads = true;
    }
    kernel.steps.push_back(step);
  }
  for (const uint16_t checked : checks_) {
    kernel.steps.push_back({.kind = StepKind::kCheck, .value = renamed_[checked]});
  }
  kernel.operand_count = static_cast<uint16_t>(group.operands.size());
  kernel.number_count = static_cast<uint16_t>(numbers_.size());
  group.numbers = numbers_;

  backend::FusedSpace& space = group.space;
  space.rank = std::max(dims_.rank, 1);
  space.sizes[0] = 1;
  std::copy_n(dims_.sizes, dims_.rank, space.sizes);
  space.row_rank = has_rows ? row_rank(row_) : 0;
  space.operands.resize(group.operands.size());
  for (size_t a = 0; a < accesses_.size(); ++a) {
    if (operand_of_[a] < 0) continue;
    backend::FusedOperand& operand = space.operands[static_cast<size_t>(operand_of_[a])];
    operand.bytes = dtype_bytes(accesses_[a].dtype);
    operand.offset = accesses_[a].offset * operand.bytes;
    operand.table_rows = accesses_[a].table_rows;
    operand.table_stride = accesses_[a].table_stride * operand.bytes;
    std::fill_n(operand.strides, kMaxFusedRank, 0);
    for (int d = 0; d < dims_.rank; ++d) operand.strides[d] = accesses_[a].strides[d] * operand.bytes;
  }
}

}  // namespace hetero::graph
