// 1. Add a run's transfers in their order. One that continues a group, with the same blocks and the
//    next layers, joins it; another begins a group, which is noted at each of its blocks. None
//    joins a group behind which the run has a writer of one of the blocks: uses of a block are in
//    the order of writers.
// 2. A group looks up once who else is at its blocks; neighbours mostly have the same history.
// 3. A transfer goes through each history from the newest use on, with the layers that no writer
//    has covered so far. Whoever shares these layers comes before it, if one of the two writes.

#include "graph/transfer/block_hazards.h"

#include <algorithm>
#include <array>
#include <utility>

namespace hetero::graph {
namespace {

uint64_t place_of(Tier tier, int64_t block) {
  return static_cast<uint64_t>(block) * kTiers + static_cast<uint64_t>(tier);
}

template <typename Visit>
void for_each_place(Tier tier, const BlockExtents& blocks, const Visit& visit) {
  for (const BlockExtent& extent : blocks) {
    for (int64_t i = 0; i < extent.count; ++i) visit(place_of(tier, extent.first + i));
  }
}

}  // namespace

struct BlockHazards::Group {
  TransferRun* run;
  Tier tier;
  bool writes;
  const BlockExtents* blocks;  // of its first transfer
  Layers layers{};             // of all its transfers
  std::vector<Member> members{};
  // Of its blocks, without repetition of neighbours. Empty if they have no use of another run.
  std::vector<History> histories{};
  uint64_t writers = 0;  // of its run in this tier that are known not to be behind it
};

BlockHazards::BlockHazards() = default;
BlockHazards::~BlockHazards() = default;

BlockHazards::Layers BlockHazards::layers_of(const TransferOp& op) {
  if (op.layer_granularity == 0) return kAllLayers;
  return {op.layer_id, int64_t{op.layer_id} + op.layer_granularity};
}

BlockHazards::Layers BlockHazards::alive(const Use& use) {
  return {std::max(use.layers.first, use.group->layers.first), std::min(use.layers.end, use.group->layers.end)};
}

void BlockHazards::subtract(std::vector<Layers>& ranges, const Layers& gone) {
  for (size_t i = ranges.size(); i-- > 0;) {
    const Layers range = ranges[i];
    if (range.end <= gone.first || gone.end <= range.first) continue;
    ranges.erase(ranges.begin() + static_cast<ptrdiff_t>(i));
    if (range.first < gone.first) ranges.push_back({range.first, gone.first});
    if (gone.end < range.end) ranges.push_back({gone.end, range.end});
  }
}

void BlockHazards::add(const std::vector<TransferOp>& ops, TransferRun& run, Before before) {
  std::vector<std::unique_ptr<Group>>& groups = groups_[&run];
  std::array<uint64_t, kTiers> writers{};
  // The last group with some layers, by its first block and what it does there.
  std::unordered_map<uint64_t, Group*> open;
  for (const TransferOp& op : ops) {
    const Layers layers = layers_of(op);
    for (const bool writes : {false, true}) {
      const BlockExtents& blocks = writes ? op.destination : op.source;
      if (blocks.empty()) continue;
      const Tier tier = writes ? destination_tier(op.type) : source_tier(op.type);
      uint64_t& made = writers[static_cast<size_t>(tier)];
      Group* group = nullptr;
      Group** last = nullptr;
      if (op.layer_granularity != 0) {
        last = &open[2 * place_of(tier, blocks.front().first) + (writes ? 1 : 0)];
        if (*last != nullptr && (*last)->layers.end == layers.first && *(*last)->blocks == blocks &&
            ((*last)->writers == made || !is_written_behind(**last))) {
          group = *last;
        }
      }
      if (group == nullptr) {
        groups.push_back(std::make_unique<Group>(Group{&run, tier, writes, &blocks, {layers.first, layers.first}}));
        group = groups.back().get();
        if (last != nullptr) *last = group;
        made += writes ? 1 : 0;
        look_up(*group);
        for_each_place(tier, blocks, [&](uint64_t place) {
          const Use use{group, kAllLayers};
          const auto [found, is_new] = uses_.try_emplace(place, Uses{use, {}});
          if (!is_new) found->second.older.push_back(std::exchange(found->second.newest, use));
        });
      }
      group->writers = made;
      if (!group->histories.empty()) tell(*group, op, layers, before);
      group->layers.end = layers.end;
      group->members.push_back({op.op_id, layers});
    }
  }
  for (const std::unique_ptr<Group>& group : groups) group->histories = {};
}

// Whether its run has a writer of one of its blocks that came after it.
bool BlockHazards::is_written_behind(const Group& group) const {
  bool found = false;
  for_each_place(group.tier, *group.blocks, [&](uint64_t place) {
    const Uses& uses = uses_.find(place)->second;
    const Use* use = &uses.newest;
    for (size_t i = uses.older.size(); use->group != &group; use = &uses.older[--i]) found |= use->group->writes;
  });
  return found;
}

void BlockHazards::look_up(Group& group) {
  group.histories.clear();
  bool has_others = false;
  History history;
  for_each_place(group.tier, *group.blocks, [&](uint64_t place) {
    const auto found = uses_.find(place);
    if (found == uses_.end()) return;
    history.clear();
    // False behind a writer of all layers, which waits for those before it.
    const auto note = [&](const Use& use) {
      if (!use.group->writes && !group.writes) return true;
      history.push_back(use);
      has_others |= use.group->run != group.run;
      return !use.group->writes || alive(use) != kAllLayers;
    };
    bool goes_on = note(found->second.newest);
    for (size_t i = found->second.older.size(); goes_on && i-- > 0;) goes_on = note(found->second.older[i]);
    if (history.empty() || (!group.histories.empty() && group.histories.back() == history)) return;
    group.histories.push_back(history);
  });
  if (!has_others) group.histories.clear();
}

void BlockHazards::tell(const Group& group, const TransferOp& op, const Layers& layers, Before before) {
  ++asked_;
  std::vector<Layers> open;
  for (const History& history : group.histories) {
    open.assign(1, layers);
    for (const Use& use : history) {
      const Layers known = alive(use);
      if (use.group->run != group.run) {
        const bool carries_data = use.group->writes && !group.writes;
        const uint64_t told = 2 * asked_ + (carries_data ? 1 : 0);
        for (const Layers& range : open) {
          const Layers shared{std::max(range.first, known.first), std::min(range.end, known.end)};
          if (shared.first >= shared.end) continue;
          std::vector<Member>& members = use.group->members;
          auto member =
              std::ranges::upper_bound(members, shared.first, {}, [](const Member& m) { return m.layers.end; });
          for (; member != members.end() && member->layers.first < shared.end; ++member) {
            if (member->told >= told) continue;
            member->told = told;
            before(*use.group->run, member->op, op.op_id, carries_data);
          }
        }
      }
      // A writer waits for all that came before.
      if (use.group->writes) subtract(open, known);
      if (open.empty()) break;
    }
  }
}

void BlockHazards::remove(const TransferRun& run) {
  const auto found = groups_.find(&run);
  if (found == groups_.end()) return;
  for (const std::unique_ptr<Group>& group : found->second) {
    for_each_place(group->tier, *group->blocks, [&](uint64_t place) { remove_from(place, run); });
  }
  groups_.erase(found);
}

void BlockHazards::remove_from(uint64_t place, const TransferRun& run) {
  const auto found = uses_.find(place);
  if (found == uses_.end()) return;
  Uses& uses = found->second;
  const auto is_own = [&](const Use& use) { return use.group->run == &run; };
  if (uses.older.empty()) {
    if (is_own(uses.newest)) uses_.erase(found);
    return;
  }
  std::vector<Use> all = std::exchange(uses.older, {});
  all.push_back(uses.newest);
  const auto first = std::ranges::find_if(all, is_own);
  std::vector<Use> kept;
  for (auto use = all.begin(); use != all.end(); ++use) {
    if (is_own(*use)) continue;
    std::vector<Layers> left{use->layers};
    // What it wrote over has ended, and is no data for later readers.
    if (use < first && first != all.end()) {
      left = {alive(*use)};
      for (auto own = first; own != all.end(); ++own) {
        if (is_own(*own) && own->group->writes) subtract(left, alive(*own));
      }
    }
    for (const Layers& layers : left) kept.push_back({use->group, layers});
  }
  if (kept.empty()) {
    uses_.erase(found);
    return;
  }
  uses.newest = kept.back();
  kept.pop_back();
  uses.older = std::move(kept);
}

}  // namespace hetero::graph
