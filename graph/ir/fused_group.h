// FusedGroup: nodes that run as one fused kernel, and what fusion says of each node. Data of a
// plan.
//
// The fusion pass (plan/fusion.cpp) decides which nodes form a group. Everything else about it
// follows from the graph (fusion/fusion.h):
//
//   structure   members, operands, kernel     the plan's; the same for all sizes with which the
//                                             members fit together alike
//   space       sizes and strides             rebuilt when sizes change
//   numbers     scalars of the members        gathered again when attributes change
//
// Thread safety: a group is immutable while it may be run.

#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/fused/launch.h"
#include "backend/fused/kernel.h"
#include "graph/ir/graph.h"

namespace hetero::graph {

// What fusion has made of a live node, and what kept it from joining the group it depends on or
// shares an input with.
enum class FusionNote : uint8_t {
  kJoined,       // in a group with others
  kTailJoined,   // its tail is in a group with others
  kAlone,        // there was no group to join
  kNoLowering,   // the operator, or this call of it, cannot be fused
  kOtherShape,   // the iteration spaces do not agree
  kNotTrailing,  // a reduction over other dimensions than the last ones
  kOtherRow,     // a reduction over another row than the group's
  kOverlap,      // touches bytes of the group through another window
  kTooLarge,     // the group has reached a limit
  kClosed,       // the group it depends on had to run before
  kOtherDevice,  // the group it depends on may run on other devices
};
const char* to_string(FusionNote note);

// An operand of a group's kernel: bytes that it loads, stores, or both.
struct GroupOperand {
  BufferId buffer;
  uint32_t operand;  // of the graph: one that addresses these bytes
  bool loads = false;
  bool stores = false;

  bool operator==(const GroupOperand&) const = default;
};

// Of a member with a tail (OpTraits::has_tail) only the tail is in the group: its body runs before,
// as an instruction of its own. The last member has none.
struct FusedGroup {
  std::vector<uint32_t> members;       // nodes, in an order that keeps their dependences
  std::vector<GroupOperand> operands;  // of the kernel
  backend::FusedKernel kernel;
  backend::FusedSpace space;
  backend::FusedLaunch launch;
  bool prepared = false;  // otherwise the engine has refused it, and the members run one by one
  std::vector<backend::Number> numbers;

  // Whether the kernel checks what it reads. Where a check fails, the members run one by one.
  bool has_checks() const;

  // The rest follows from the graph.
  bool operator==(const FusedGroup& other) const { return members == other.members && operands == other.operands; }
};

// Whether only the tail of a member is in its group.
inline bool is_tail(const Graph& graph, uint32_t member) { return op_table()[graph.nodes[member].op].has_tail; }

}  // namespace hetero::graph
