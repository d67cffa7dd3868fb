// GroupBuilder: the fused kernel of a growing set of nodes.
//
// Nodes are added one after the other. Each is accepted, or leaves the builder unchanged. A node
// comes with its footprint: its iteration space without dimensions of size 1, and each operand's
// stride for every dimension. The group's space is the coarsest that all members' spaces can be cut
// into ([6,4] and [2,12] give [2,3,4]). So an operand's strides over it say which bytes belong to
// each point, whatever the view. Two operands with the same strides, offset, dtype and buffer are
// one *access*, and have one value at a time.
//
//   element member: its space has the points of the group's
//   row member:     its space has one point for each row of the group's; only after a reduction has
//                   defined the row
//   wide member:    a pointwise node whose space is cut along one dimension into a few pieces, each
//                   with the points of the group's. A concatenation of equal parts is one, and so
//                   is a node that reads or writes the whole of its result
//
// Thread safety: none. A builder keeps its memory from group to group.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/fusion/footprint.h"
#include "graph/ir/fused_group.h"
#include "graph/ir/lowering.h"

namespace hetero::graph {

class GroupBuilder {
 public:
  void begin(const Graph& graph);

  // Makes `node` a member; kJoined where it did, otherwise the reason why not.
  FusionNote add(uint32_t node, const Lowering& lowering, const Footprint& footprint);
  // What add() would return.
  FusionNote check(uint32_t node, const Lowering& lowering, const Footprint& footprint);

  // Whether a node outside that touches `operand` must keep its place with regard to the members.
  bool conflicts(const Operand& operand) const;
  // Whether the members of `other` can be added, as far as spaces and limits tell.
  bool fits(const GroupBuilder& other) const;
  // Makes the members of `other` members as well, where that is possible.
  bool take_over(const GroupBuilder& other);

  // Writes the kernel, its operands, space and numbers. The kernel has no steps where nothing is to
  // be stored: what a later node writes has taken the place of it before anybody read it.
  void finish(std::span<const uint8_t> needed, FusedGroup& group);

  // Marks the buffers of which members read what was there before the group.
  void mark_reads(std::span<uint8_t> needed) const;

  const std::vector<uint32_t>& members() const { return members_; }
  int64_t numel() const { return numel_; }

  // What a group holds at most.
  static constexpr size_t kMaxOperands = 64;  // that are known to be loaded or stored
  static constexpr size_t kMaxAccesses = 256;
  static constexpr size_t kMaxSteps = 768;

 private:
  struct AccessState {
    uint32_t operand;  // of the graph
    DType dtype;
    bool written;         // a member has written it
    int32_t value;        // the current one; -1 before the first load
    uint32_t written_at;  // the step before which its current value is stored
    int64_t offset;       // in elements
    int64_t table_rows;   // as in Footprint
    int64_t table_stride;
    int64_t strides[backend::kMaxFusedRank];
  };
  struct Match {
    int32_t access;  // -1 for a new one
    int64_t strides[backend::kMaxFusedRank];
  };

  FusionNote check_one(uint32_t node, const Lowering& lowering, const Footprint& footprint);
  void add_one(uint32_t node, const Lowering& lowering, const Footprint& footprint, bool first_piece);
  int pieces_of(const Footprint& footprint) const;
  FusionNote add_wide(uint32_t node, const Lowering& lowering, const Footprint& footprint);
  FusionNote add_pieces(uint32_t node, const Lowering& lowering, const Footprint& footprint, int cut, int pieces);
  bool may_meet(const AccessState& access, const Window& seen, int64_t offset, const int64_t* strides,
                const Window& window) const;
  FusionNote take_space(const Footprint& footprint, bool& as_row, Dims& refined, int64_t& row) const;
  void refine(const Dims& refined);
  FusionNote match(const Node& node, const Footprint& footprint, bool as_row);
  bool passes_row_through(const Lowering& lowering, const Footprint& footprint, int64_t row) const;
  void commit(uint32_t node, const Lowering& lowering, const Footprint& footprint, bool as_row, bool first_piece);
  uint16_t value_of(uint16_t access, bool as_row, bool as_element);
  uint16_t new_value(uint8_t bytes, backend::Extent extent);
  uint16_t add_step(backend::FusedStep step, uint8_t bytes, backend::Extent extent);
  uint16_t pick(uint16_t value, uint16_t index, int& steps);
  bool reads_total(const Footprint& footprint) const;
  bool can_check(const Lowering& lowering, const Footprint& footprint);
  bool comes_from_rows(uint16_t value);
  bool repeats_along_row(const int64_t* strides, int64_t row) const;
  int row_rank(int64_t row) const;
  bool overlaps_itself(const Window& window) const;

  const Graph* graph_ = nullptr;
  Dims dims_;
  int64_t numel_ = 1;
  int64_t row_ = 0;
  std::vector<uint32_t> members_;
  std::vector<AccessState> accesses_;
  std::vector<BufferId> buffers_;  // of the accesses
  size_t operand_count_ = 0;       // accesses that are known to be operands
  std::vector<backend::FusedValue> values_;
  // What makes values_[i]; `operand` of a load is an access.
  std::vector<backend::FusedStep> steps_;
  std::vector<uint16_t> reads_;  // accesses that a member reads before any writes them
  struct Write {
    uint16_t access;
    uint32_t at;  // before this step
  };
  std::vector<Write> writes_;     // in the order of the members
  std::vector<uint16_t> checks_;  // values
  std::vector<backend::Number> numbers_;
  // Of one check().
  bool as_row_ = false;
  int64_t next_row_ = 0;
  size_t next_operand_count_ = 0;
  uint16_t first_number_ = 0;  // of the member at hand
  Match matches_[Footprint::kMaxEntries];
  std::vector<uint16_t> refs_;    // per value of the lowering
  std::vector<uint8_t> checked_;  // the same
  std::vector<uint8_t> needed_;   // per step
  // Of one pick: values, and what they are at its index.
  std::vector<std::pair<uint16_t, uint16_t>> picked_;
  // Of finish().
  std::vector<uint8_t> needed_values_;
  std::vector<uint16_t> renamed_;
  std::vector<int32_t> operand_of_;  // per access
};

}  // namespace hetero::graph
