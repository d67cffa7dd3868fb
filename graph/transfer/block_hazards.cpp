#include "graph/transfer/block_hazards.h"

namespace hetero::graph {
namespace {

uint64_t place_of(Tier tier, int64_t block) {
  return static_cast<uint64_t>(block) * kTiers + static_cast<uint64_t>(tier);
}

// Whether `a` touches all layers that `b` does.
bool covers_layers(const TransferOp& a, const TransferOp& b) {
  if (a.layer_granularity == 0) return true;
  return b.layer_granularity != 0 && a.layer_id <= b.layer_id &&
         b.layer_id + b.layer_granularity <= a.layer_id + a.layer_granularity;
}

}  // namespace

void BlockHazards::add(const TransferOp& op, void* node, const void* run, Before before) {
  const void* last = nullptr;
  bool last_carries = false;
  for_each_block(op, [&](Tier tier, int64_t block, bool writes) {
    std::vector<Use>& uses = uses_[place_of(tier, block)];
    for (size_t i = uses.size(); i-- > 0;) {
      const Use& use = uses[i];
      if ((!use.writes && !writes) || !share_layers(*use.op, op)) continue;
      const bool carries = use.writes && !writes;
      // Neighbouring blocks mostly have the same users.
      if (use.run != run && (use.node != last || (carries && !last_carries))) {
        last = use.node;
        last_carries = carries;
        before(use.node, carries);
      }
      // It waits for all that came before.
      if (use.writes && covers_layers(*use.op, op)) break;
    }
    uses.push_back({&op, node, run, writes});
  });
}

void BlockHazards::remove(const std::vector<TransferOp>& ops, const void* run) {
  for (const TransferOp& op : ops) {
    for_each_block(op, [&](Tier tier, int64_t block, bool) {
      const auto found = uses_.find(place_of(tier, block));
      if (found == uses_.end()) return;
      std::vector<Use>& uses = found->second;
      size_t last_write = 0;
      for (size_t i = 0; i < uses.size(); ++i) {
        if (uses[i].run == run && uses[i].writes) last_write = i;
      }
      // What it wrote over has ended, and is no data for later readers.
      for (size_t i = 0; i < last_write; ++i) {
        if (covers_layers(*uses[last_write].op, *uses[i].op)) uses[i].run = run;
      }
      std::erase_if(uses, [&](const Use& use) { return use.run == run; });
      if (uses.empty()) uses_.erase(found);
    });
  }
}

}  // namespace hetero::graph
