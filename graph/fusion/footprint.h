// Footprint: the bytes that one node touches, over its own space, and the pieces that a node may be
// cut into.
//
// The space is the node's iteration space without dimensions of size 1. Each operand has a stride
// for every dimension, 0 where it is broadcast. GroupBuilder combines nodes by these.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>
#include <vector>

#include "graph/ir/fused_group.h"
#include "graph/ir/lowering.h"

namespace hetero::graph {

// Into so many pieces a node may be cut.
inline constexpr int kMaxPieces = 4;

// A list of sizes, none of them 1.
struct Dims {
  int rank = 0;
  int64_t sizes[backend::kMaxFusedRank];

  int64_t numel() const;
  bool operator==(const Dims& other) const;
};

// What one node touches, over its own space.
struct Footprint {
  static constexpr int kMaxEntries = 24;
  struct Entry {
    uint16_t operand = 0;  // of the node
    bool reads = false;
    bool writes = false;
    bool by_row = false;     // read along the dimensions that are not reduced
    bool of_piece = false;   // read along the dimensions of one piece
    int64_t shift = 0;       // of a piece: from the window's offset, in elements
    int64_t table_rows = 0;  // of a table, whose strides are those along a row; else 0
    int64_t table_stride = 0;
    int64_t strides[backend::kMaxFusedRank] = {};  // in elements; 0 along the row for row values
  };

  Dims dims;
  int64_t numel = 1;
  int64_t row = 0;  // points in a row of a reduction; 0 for a pointwise node
  int row_rank = 0;
  int cut = 0;  // of a node of pieces: which of `dims`
  int entry_count = 0;
  Entry entries[kMaxEntries];
  std::vector<backend::Extent> extents;  // per value of the lowering; of a reduction only
};

// Fills `footprint`; kJoined where the node can be a member of some group.
FusionNote measure(const Graph& graph, const Node& node, const Lowering& lowering, Footprint& footprint);

// Asks the operator for the node's program. False where it has none.
bool lower_node(const Graph& graph, const Node& node, Lowering& lowering);

// Whether the tail of a node reads or writes its operand. REQUIRES: OpTraits::has_tail.
bool in_tail(const Graph& graph, const Node& node, int operand);

// Where `operand` of the node is among the entries; -1 where it is not.
int find_entry(const Footprint& footprint, int operand);
// Whether an operand with these strides has one entry for each row.
bool is_row_strides(const int64_t* strides, int rank, int row_rank);

// The part of a node's program that computes one of its pieces. `renamed` is scratch memory.
void take_piece(const Lowering& whole, int piece, std::vector<Lowering::Ref>& renamed, Lowering& part);
// What this part touches, over the piece: one of `pieces` along dimension `cut` of the node's
// space.
void take_piece(const Footprint& whole, const Lowering& part, int cut, int pieces, int piece, Footprint& result);
// The footprint with dimension `cut` as two, of which the inner one has `pieces` entries. False
// where there is no room for it.
bool split_dimension(const Footprint& whole, int cut, int pieces, Footprint& result);

}  // namespace hetero::graph
