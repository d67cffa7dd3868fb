// BlockHazards: which running transfers touch a block, so that transfers of other graphs wait for
// them.
//
// Transfers of one graph are ordered by its dependencies. For transfers of two graphs the order is
// that of submission: a reader waits for the writer before it, and takes its data, so a block that
// is still being filled is not read twice or too early; a writer waits for the readers and the
// writer before it. Transfers of different layers of a block do not wait for each other.
//
// Requests move the same blocks layer by layer. So transfers of a graph that touch the same blocks,
// and layers that follow each other, are one group, and a block knows groups with a range of
// layers. What was there before is looked up once for a group.
//
//   hazards.add(ops, run, [&](TransferRun& other, uint32_t before, uint32_t op, bool carries) {});
//   hazards.remove(run);   // when all its transfers have ended
//
// Thread safety: none; the scheduler's lock. Ownership: runs and their ops live until remove().

#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "backend/base/function_ref.h"
#include "graph/transfer/transfer_graph.h"

namespace hetero::graph {

class TransferRun;

class BlockHazards {
 public:
  using Before =
      backend::FunctionRef<void(TransferRun& other, uint32_t before_op, uint32_t after_op, bool carries_data)>;

  BlockHazards();
  ~BlockHazards();

  // Notes the transfers of a run. Calls `before` for each transfer of another run that one of them
  // must wait for, perhaps twice for the same one. `carries_data`: it reads what that one writes.
  // Transfers for which such a one waits itself are left out. REQUIRES: ops are in an order in
  // which they may run one after the other where they touch the same blocks.
  void add(const std::vector<TransferOp>& ops, TransferRun& run, Before before);
  // Forgets the transfers of a run.
  void remove(const TransferRun& run);
  // Blocks in use.
  size_t size() const { return uses_.size(); }

 private:
  // From the first to before the end.
  struct Layers {
    int64_t first = 0;
    int64_t end = 0;
    bool operator==(const Layers&) const = default;
  };
  static constexpr Layers kAllLayers{0, INT64_MAX};
  struct Member {
    uint32_t op;
    Layers layers;
    uint64_t told = 0;  // to whom, so that it is not told again
  };
  struct Group;
  // A group at a block, with the layers that no later run has written over and ended.
  struct Use {
    Group* group;
    Layers layers;
    bool operator==(const Use&) const = default;
  };
  // The newest first.
  using History = std::vector<Use>;
  struct Uses {
    Use newest;
    std::vector<Use> older;  // the oldest first
  };

  static Layers layers_of(const TransferOp& op);
  static Layers alive(const Use& use);
  static void subtract(std::vector<Layers>& ranges, const Layers& gone);
  bool is_written_behind(const Group& group) const;
  void look_up(Group& group);
  void tell(const Group& group, const TransferOp& op, const Layers& layers, Before before);
  void remove_from(uint64_t place, const TransferRun& run);

  std::unordered_map<uint64_t, Uses> uses_;
  std::unordered_map<const TransferRun*, std::vector<std::unique_ptr<Group>>> groups_;
  uint64_t asked_ = 0;  // sides of transfers so far
};

}  // namespace hetero::graph
