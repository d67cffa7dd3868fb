// BlockTree: the prefixes of the block index as a tree. A node is a block of tokens behind its
// parent's.
//
// A match walks from parent to child and compares tokens. It hashes only where a parent has many
// children: those of wide nodes are also in a hash table of (parent, hash of the tokens). Tokens
// decide there too, so equal hashes cost time and nothing else.
//
// A match reads two lines of the cache for each node, and learns which ones from the node before.
// So a node also knows one that is some steps behind it, to be prefetched. Numbers of removed nodes
// are given to new ones, the last removed first: a chain that was removed from its end becomes
// neighbours in memory again.
//
// A node costs 112 bytes with blocks of 16 tokens, and 13 to 26 more if its parent is wide.
//
// Thread safety: none; the store's lock.

#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/tier/block_key.h"
#include "graph/transfer/chunked_array.h"
#include "graph/transfer/eviction_policy.h"
#include "graph/transfer/slot_table.h"

namespace hetero::graph {

// Of a block's parent and its tokens; the lower half counts.
using BlockHash = uint64_t (*)(NodeId parent, std::span<const int32_t> tokens);
uint64_t hash_block(NodeId parent, std::span<const int32_t> tokens);

class BlockTree {
 public:
  static constexpr NodeId kRoot = 0;

  // `root`: the key of the root.
  BlockTree(int64_t block_tokens, const backend::BlockKey& root, BlockHash hash);

  // Appends the known blocks at the beginning of `tokens`.
  void match(std::span<const int32_t> tokens, std::vector<NodeId>& path) const;
  // The child with these tokens, or kNoNode. REQUIRES: as many as a block has.
  NodeId find(NodeId parent, std::span<const int32_t> tokens) const { return find(parent, tokens.data()); }
  // Makes a child. REQUIRES: find() has none.
  NodeId insert(NodeId parent, std::span<const int32_t> tokens);
  // REQUIRES: a leaf, not the root.
  void remove(NodeId node);

  NodeId parent(NodeId node) const { return links_[node].parent; }
  bool is_leaf(NodeId node) const { return links_[node].children == 0; }
  const backend::BlockKey& key(NodeId node) const { return keys_[node]; }
  std::span<const int32_t> tokens(NodeId node) const { return {tokens_.at(node), block_tokens_}; }
  // A count for the owner; 0 in a new node.
  uint32_t& uses(NodeId node) { return links_[node].uses; }
  uint32_t uses(NodeId node) const { return links_[node].uses; }
  void prefetch(NodeId node) const { __builtin_prefetch(links_.at(node)); }
  // The node after `node` if parents come first; kNoNode at the end. Starts at the root.
  NodeId next(NodeId node) const;
  // Nodes without the root.
  int64_t size() const { return size_; }

 private:
  // More children make a node wide, until it has none.
  static constexpr uint32_t kNarrow = 4;
  static constexpr int kAhead = 8;

  struct Links {
    NodeId parent = kNoNode;
    NodeId first_child = kNoNode;  // of a removed node: the one removed before it
    NodeId next = kNoNode;         // sibling
    NodeId previous = kNoNode;
    uint32_t children = 0;
    uint32_t hash = 0;  // valid if the parent is wide
    uint32_t uses = 0;
    // A node that was the kAhead-th behind this one, to prefetch; it may have been removed since.
    NodeId ahead : 31 = kRoot;
    NodeId is_wide : 1 = false;
  };
  static_assert(sizeof(Links) == 32);
  NodeId find(NodeId parent, const int32_t* tokens) const;
  NodeId find_in_table(NodeId parent, const int32_t* tokens) const;
  uint32_t hash_of(NodeId parent, const int32_t* tokens) const;
  bool has_tokens(NodeId node, const int32_t* tokens) const;
  NodeId take_number();
  void add_to_table(NodeId node);

  size_t block_tokens_;
  BlockHash hash_;
  ChunkedArray<Links> links_;
  ChunkedArray<int32_t> tokens_;
  ChunkedArray<backend::BlockKey> keys_;
  NodeId used_numbers_ = 0;
  NodeId removed_ = kNoNode;  // the last removed node
  int64_t size_ = 0;
  SlotTable by_hash_;  // children of wide nodes
};

}  // namespace hetero::graph
