// BlockIndex: which blocks of tokens are in which tiers, by what they and everything before them
// say.
//
// A tree: a node is a block of tokens behind its parent's. Tokens are compared, so equal hashes
// cannot be taken for equal prefixes. A node has a state for each tier that is indexed:
//
//   absent -> filling (a transfer writes it) -> ready -> evicting (it goes when no one reads it)
//
// A block that is pinned in a tier is not evicted from it. In each tier a block is evicted after
// the blocks that follow it, so what is left is always a prefix that can be used.
//
//   std::vector<NodeId> path;
//   index.match(tokens, path);                        // the known blocks of a prefix
//   NodeId node = index.insert(path.back(), block);   // the next one
//   index.begin_fill(node, Tier::kHost, place);
//   index.finish_fill(node, Tier::kHost);
//   NodeId victim = index.evict(Tier::kHost);         // in constant time
//
// A node that nothing keeps is forgotten, and its number may become another block's. Kept is a node
// that is not absent in some tier, is pinned in some tier, or has a child. Whoever holds numbers
// over calls that forget (remove, unpin) pins the last of them.
//
// With blocks of 16 tokens a node costs about 200 bytes. tests/graph/transfer/index_bench.cpp
// measures the time of matches, insertions and evictions.
//
// Thread safety: none; the store's lock.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/base/function_ref.h"
#include "backend/tier/block_key.h"
#include "graph/transfer/eviction_policy.h"
#include "graph/transfer/transfer_graph.h"

namespace hetero::graph {

using backend::BlockKey;

enum class BlockState : uint8_t { kAbsent, kFilling, kReady, kEvicting };

// What an index knows of the blocks in a tier.
struct TierCounts {
  int64_t filling = 0, ready = 0, evicting = 0, pinned = 0;
};

class BlockIndex {
 public:
  static constexpr NodeId kRoot = 0;
  static constexpr NodeId kNone = kNoNode;
  // Host, disk and remote.
  static constexpr int kIndexedTiers = 3;

  struct Options {
    int64_t block_tokens = 16;
    BlockKey fingerprint{};  // the key of the root
    // One of eviction_policies(). With arc a tier finds more than with lru on average over sizes
    // of 1 to 20 % of the blocks: 19.4 instead of 19.0 % of Mooncake's conversation trace, 19.1
    // instead of 18.6 % of its synthetic trace, 51.3 instead of 47.9 % of hetero_trace_bench's. It
    // loses at most 2.5 points at any of these sizes, lru up to 8.5.
    std::string policy = "arc";
    // Blocks of a tier that policies with queues of a share of it take as its size; host, disk.
    // 0: as many as are ready at most.
    int64_t host_blocks = 0, disk_blocks = 0;
    // For tests; null: hash_block() of block_tree.h.
    uint64_t (*hash)(NodeId parent, std::span<const int32_t> tokens) = nullptr;
  };
  explicit BlockIndex(const Options& options);
  ~BlockIndex();
  BlockIndex(const BlockIndex&) = delete;

  // Appends the known blocks at the beginning of `tokens`, in order. Tokens behind the last whole
  // block do not count.
  void match(std::span<const int32_t> tokens, std::vector<NodeId>& path) const;
  // The child with these tokens, known or made. REQUIRES: block_tokens of them.
  NodeId insert(NodeId parent, std::span<const int32_t> tokens);
  // A child if it is known, else kNone.
  NodeId find(NodeId parent, std::span<const int32_t> tokens) const;

  NodeId parent(NodeId node) const;  // REQUIRES: not the root
  // These references stay valid until the node is forgotten.
  const BlockKey& key(NodeId node) const;
  std::span<const int32_t> tokens(NodeId node) const;
  BlockState state(NodeId node, Tier tier) const;  // absent in tiers that are not indexed
  int64_t place(NodeId node, Tier tier) const;     // REQUIRES: not absent
  int64_t hits(NodeId node) const;                 // how often it was touched

  // Tiers are indexed ones and nodes not the root, here and below.
  //
  // REQUIRES: absent. Places are below 2^61.
  void begin_fill(NodeId node, Tier tier, int64_t place);
  // A new block is as recent as a used one. REQUIRES: filling.
  void finish_fill(NodeId node, Tier tier);
  // Only those who hold the block may use it from now on. REQUIRES: filling or ready.
  void set_evicting(NodeId node, Tier tier);
  // To absent, from any state. Then forgets the node if nothing keeps it, and so on towards the
  // root. REQUIRES: not pinned in the tier.
  void remove(NodeId node, Tier tier);

  // Pins are counted. A pin also keeps the node itself, whatever its state. The last unpin()
  // forgets it as remove() does.
  void pin(NodeId node, Tier tier);
  void unpin(NodeId node, Tier tier);
  int64_t pins(NodeId node, Tier tier) const;

  // A path from the root was used: all its blocks are recent, the first ones most. Policies count
  // it as a use in the host and on disk, where a block is ready.
  void touch(std::span<const NodeId> path);

  // Chooses a block that is ready, not pinned, and has no child that is ready or filling in the
  // tier, and makes it evicting. kNone if there is none, and always in the remote tier: its store
  // makes its own room.
  NodeId evict(Tier tier);

  // `pinned` counts blocks, not pins.
  TierCounts counts(Tier tier) const;
  int64_t size() const;  // nodes, without the root
  // Calls visit(node) for each node, parents first. REQUIRES: visit forgets and inserts none.
  void for_each(const backend::FunctionRef<void(NodeId)>& visit) const;
  // Forgets everything. REQUIRES: no pins.
  void clear();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hetero::graph
