// BlockHazards: which running transfers touch a block, so that transfers of other graphs wait for
// them.
//
// Transfers of one graph are ordered by its dependencies. For transfers of two graphs the order is
// that of submission: a reader waits for the writer before it, and takes its data, so a block that
// is still being filled is not read twice or too early; a writer waits for the readers and the
// writer before it. Transfers of different layers of a block do not wait for each other.
//
//   hazards.add(op, node, run, [&](void* before, bool carries_data) { ... });
//   hazards.remove(ops, run);   // when all its transfers have ended
//
// Thread safety: none; the scheduler's lock.

#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "backend/base/function_ref.h"
#include "graph/transfer/transfer_graph.h"

namespace hetero::graph {

class BlockHazards {
 public:
  // A transfer of a run, by the scheduler's own names for them.
  struct Use {
    const TransferOp* op;
    void* node;
    const void* run;
    bool writes;
  };
  using Before = backend::FunctionRef<void(void* node, bool carries_data)>;

  // Calls `before` for each transfer of another run that this one must wait for, perhaps more than
  // once for the same one, and then notes this one. `carries_data`: it reads what that one writes.
  // Transfers for which such a one waits itself may be left out.
  void add(const TransferOp& op, void* node, const void* run, Before before);
  // Forgets the transfers of a run. REQUIRES: `ops` are those that were added for it.
  void remove(const std::vector<TransferOp>& ops, const void* run);
  // Blocks in use.
  size_t size() const { return uses_.size(); }

 private:
  std::unordered_map<uint64_t, std::vector<Use>> uses_;
};

}  // namespace hetero::graph
