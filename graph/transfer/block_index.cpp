#include "graph/transfer/block_index.h"

#include <algorithm>
#include <array>
#include <cassert>

#include "graph/transfer/block_tree.h"

namespace hetero::graph {
namespace {

constexpr int kTierSlots = BlockIndex::kIndexedTiers;
constexpr int kBoundedTiers = 2;  // host and disk are the first slots
static_assert(static_cast<int>(Tier::kHost) == 1 && static_cast<int>(Tier::kDisk) == 2 &&
              static_cast<int>(Tier::kRemote) == 3);

bool is_indexed(Tier tier) { return tier >= Tier::kHost && tier <= Tier::kRemote; }

size_t slot_of(Tier tier) {
  assert(is_indexed(tier));
  return static_cast<size_t>(tier) - 1;
}

}  // namespace

class BlockIndex::Impl {
 public:
  explicit Impl(const Options& options)
      : options_(options),
        tree_(options.block_tokens, options.fingerprint, options.hash ? options.hash : &hash_block),
        views_{View(*this, 0), View(*this, 1)} {
    const std::array<int64_t, kBoundedTiers> capacities = {options.host_blocks, options.disk_blocks};
    for (size_t i = 0; i < kBoundedTiers; ++i) {
      policies_[i] = make_eviction_policy(options.policy, views_[i], capacities[i]);
      assert(policies_[i] != nullptr && "an unknown policy");
      if (policies_[i] == nullptr) policies_[i] = make_eviction_policy("lru", views_[i], capacities[i]);
    }
    make_block(kRoot);
  }

  const Options& options() const { return options_; }
  const BlockTree& tree() const { return tree_; }
  const TierCounts& counts(size_t slot) const { return counts_[slot]; }

  NodeId insert(NodeId parent, std::span<const int32_t> tokens) {
    const NodeId known = tree_.find(parent, tokens);
    if (known != kNoNode) return known;
    const NodeId node = tree_.insert(parent, tokens);
    make_block(node);
    return node;
  }

  BlockState state(NodeId node, size_t slot) const { return blocks_[node][slot].state(); }
  int64_t place(NodeId node, size_t slot) const { return blocks_[node][slot].place; }

  void begin_fill(NodeId node, size_t slot, int64_t place) {
    Copy& copy = blocks_[node][slot];
    assert(copy.state() == BlockState::kAbsent);
    copy.place = place;
    copy.set(BlockState::kFilling);
    ++counts_[slot].filling;
    ++blocks_[tree_.parent(node)][slot].children;
  }

  void finish_fill(NodeId node, size_t slot) {
    Copy& copy = blocks_[node][slot];
    assert(copy.state() == BlockState::kFilling);
    copy.set(BlockState::kReady);
    --counts_[slot].filling;
    ++counts_[slot].ready;
    if (slot < kBoundedTiers) policies_[slot]->insert(node, tree_.parent(node));
  }

  void remove(NodeId node, size_t slot) {
    Copy& copy = blocks_[node][slot];
    assert(copy.pins == 0);
    const BlockState before = copy.state();
    copy.set(BlockState::kAbsent);
    switch (before) {
      case BlockState::kAbsent:
        break;
      case BlockState::kFilling:
        --counts_[slot].filling;
        lose_child(tree_.parent(node), slot);
        break;
      case BlockState::kReady:
        --counts_[slot].ready;
        if (slot < kBoundedTiers) policies_[slot]->erase(node);
        lose_child(tree_.parent(node), slot);
        break;
      case BlockState::kEvicting:
        --counts_[slot].evicting;
        break;
    }
    forget(node);
  }

  void pin(NodeId node, size_t slot) {
    if (blocks_[node][slot].pins++ == 0) ++counts_[slot].pinned;
  }

  void unpin(NodeId node, size_t slot) {
    Copy& copy = blocks_[node][slot];
    assert(copy.pins > 0);
    if (--copy.pins > 0) return;
    --counts_[slot].pinned;
    tell_if_unblocked(node, slot);
    forget(node);
  }

  void touch(std::span<const NodeId> path) {
    for (size_t i = path.size(); i-- > 0;) {
      if (i >= kPrefetch) prefetch(path[i - kPrefetch]);
      const NodeId node = path[i];
      uint32_t& uses = tree_.uses(node);
      uses += uses != UINT32_MAX ? 1 : 0;
      for (size_t slot = 0; slot < kBoundedTiers; ++slot) {
        if (state(node, slot) == BlockState::kReady) policies_[slot]->touch(node);
      }
    }
  }

  NodeId evict(size_t slot) {
    if (slot >= kBoundedTiers) return kNone;
    const NodeId node = policies_[slot]->evict();
    if (node == kNoNode) return kNone;
    leave(node, slot);
    return node;
  }

  void set_evicting(NodeId node, size_t slot) {
    if (state(node, slot) == BlockState::kReady && slot < kBoundedTiers) policies_[slot]->erase(node);
    leave(node, slot);
  }

  int64_t pins(NodeId node, size_t slot) const { return blocks_[node][slot].pins; }

 private:
  static constexpr size_t kPrefetch = 8;

  // A block in a tier.
  struct Copy {
    int64_t place : 62 = 0;
    uint64_t state_bits : 2 = 0;
    uint32_t pins = 0;
    uint32_t children = 0;  // of the node, that are ready or filling in the tier

    BlockState state() const { return static_cast<BlockState>(state_bits); }
    void set(BlockState state) { state_bits = static_cast<uint64_t>(state) & 3U; }
    bool may_go() const { return pins == 0 && children == 0; }
  };
  static_assert(sizeof(Copy) == 16);
  using Block = std::array<Copy, kTierSlots>;

  class View final : public EvictionView {
   public:
    View(const Impl& index, size_t slot) : index_(index), slot_(slot) {}
    bool may_go(NodeId node) const override { return index_.blocks_[node][slot_].may_go(); }
    uint64_t key(NodeId node) const override { return index_.tree_.key(node).low; }
    void prefetch(NodeId next, NodeId after) const override {
      index_.tree_.prefetch(after);
      __builtin_prefetch(index_.blocks_.at(after));
      const NodeId parent = index_.tree_.parent(next);
      __builtin_prefetch(index_.blocks_.at(parent));
      index_.policies_[slot_]->prefetch(parent);
    }

   private:
    const Impl& index_;
    size_t slot_;
  };

  void make_block(NodeId node) {
    blocks_.make_room_for(node);
    blocks_[node] = {};
  }

  void prefetch(NodeId node) const {
    tree_.prefetch(node);
    __builtin_prefetch(blocks_.at(node));
    for (const auto& policy : policies_) policy->prefetch(node);
  }

  // From filling or ready to evicting.
  void leave(NodeId node, size_t slot) {
    Copy& copy = blocks_[node][slot];
    assert(copy.state() == BlockState::kFilling || copy.state() == BlockState::kReady);
    --(copy.state() == BlockState::kReady ? counts_[slot].ready : counts_[slot].filling);
    ++counts_[slot].evicting;
    copy.set(BlockState::kEvicting);
    lose_child(tree_.parent(node), slot);
  }

  void lose_child(NodeId parent, size_t slot) {
    if (--blocks_[parent][slot].children == 0) tell_if_unblocked(parent, slot);
  }

  void tell_if_unblocked(NodeId node, size_t slot) {
    const Copy& copy = blocks_[node][slot];
    if (slot < kBoundedTiers && copy.state() == BlockState::kReady && copy.may_go()) policies_[slot]->unblock(node);
  }

  // Forgets a node if nothing keeps it, then perhaps the nodes before it.
  void forget(NodeId node) {
    while (node != kRoot && tree_.is_leaf(node) && std::ranges::all_of(blocks_[node], [](const Copy& copy) {
             return copy.pins == 0 && copy.state() == BlockState::kAbsent;
           })) {
      const NodeId parent = tree_.parent(node);
      tree_.remove(node);
      node = parent;
    }
  }

  Options options_;
  BlockTree tree_;
  ChunkedArray<Block> blocks_;
  std::array<TierCounts, kTierSlots> counts_;
  std::array<View, kBoundedTiers> views_;
  std::array<std::unique_ptr<EvictionPolicy>, kBoundedTiers> policies_;
};

BlockIndex::BlockIndex(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
BlockIndex::~BlockIndex() = default;

void BlockIndex::match(std::span<const int32_t> tokens, std::vector<NodeId>& path) const {
  impl_->tree().match(tokens, path);
}
NodeId BlockIndex::insert(NodeId parent, std::span<const int32_t> tokens) { return impl_->insert(parent, tokens); }
NodeId BlockIndex::find(NodeId parent, std::span<const int32_t> tokens) const {
  return impl_->tree().find(parent, tokens);
}
NodeId BlockIndex::parent(NodeId node) const { return impl_->tree().parent(node); }
const BlockKey& BlockIndex::key(NodeId node) const { return impl_->tree().key(node); }
std::span<const int32_t> BlockIndex::tokens(NodeId node) const { return impl_->tree().tokens(node); }
BlockState BlockIndex::state(NodeId node, Tier tier) const {
  return is_indexed(tier) ? impl_->state(node, slot_of(tier)) : BlockState::kAbsent;
}
int64_t BlockIndex::place(NodeId node, Tier tier) const { return impl_->place(node, slot_of(tier)); }
int64_t BlockIndex::hits(NodeId node) const { return impl_->tree().uses(node); }
void BlockIndex::begin_fill(NodeId node, Tier tier, int64_t place) { impl_->begin_fill(node, slot_of(tier), place); }
void BlockIndex::finish_fill(NodeId node, Tier tier) { impl_->finish_fill(node, slot_of(tier)); }
void BlockIndex::set_evicting(NodeId node, Tier tier) { impl_->set_evicting(node, slot_of(tier)); }
int64_t BlockIndex::pins(NodeId node, Tier tier) const { return impl_->pins(node, slot_of(tier)); }
void BlockIndex::remove(NodeId node, Tier tier) { impl_->remove(node, slot_of(tier)); }
void BlockIndex::pin(NodeId node, Tier tier) { impl_->pin(node, slot_of(tier)); }
void BlockIndex::unpin(NodeId node, Tier tier) { impl_->unpin(node, slot_of(tier)); }
void BlockIndex::touch(std::span<const NodeId> path) { impl_->touch(path); }
NodeId BlockIndex::evict(Tier tier) { return impl_->evict(slot_of(tier)); }
TierCounts BlockIndex::counts(Tier tier) const { return impl_->counts(slot_of(tier)); }
int64_t BlockIndex::size() const { return impl_->tree().size(); }

void BlockIndex::for_each(const backend::FunctionRef<void(NodeId)>& visit) const {
  for (NodeId node = impl_->tree().next(kRoot); node != kNone; node = impl_->tree().next(node)) visit(node);
}

void BlockIndex::clear() { impl_ = std::make_unique<Impl>(impl_->options()); }

}  // namespace hetero::graph
