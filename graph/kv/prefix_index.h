// PrefixIndex: which full blocks of tokens are at hand, by what they and everything before them
// say.
//
// A block is found by the hash of its tokens and of the hash of the block before it, so a chain of
// lookups walks a prefix. A hash only finds candidates: the tokens and the block before must be
// equal.
//
//   block  = index.find(PrefixIndex::kRoot, tokens)         // the first page_tokens tokens
//   second = index.find(block, next_tokens)
//
// Blocks that no sequence uses are idle. They are evicted in the order of their last use, but only
// leaves: a block stays as long as a longer prefix builds on it.
//
// Invariant: a block that is in use has only blocks in use before it. So every idle block can be
// evicted, leaves first.
//
// Thread safety: none; the manager's.

#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hetero::graph {

using BlockId = int32_t;

class PrefixIndex {
 public:
  static constexpr BlockId kRoot = -1;
  static constexpr BlockId kNone = -2;

  // Of the hash of the block before, 0 for the root, and of the block's tokens.
  using Hash = uint64_t (*)(uint64_t before, std::span<const int32_t> tokens);
  static uint64_t fnv(uint64_t before, std::span<const int32_t> tokens);

  explicit PrefixIndex(int64_t block_tokens, Hash hash = &fnv)
      : block_tokens_(static_cast<size_t>(block_tokens)), hash_(hash) {}

  bool has(BlockId block) const {
    const auto i = static_cast<size_t>(block);
    return block >= 0 && i < entries_.size() && entries_[i].known;
  }
  // The block with these tokens after `parent`, or kNone. REQUIRES: as many tokens as a block has;
  // the parent is known, or the root.
  BlockId find(BlockId parent, std::span<const int32_t> tokens) const;
  // REQUIRES: find() has none; the block is not known.
  void insert(BlockId block, BlockId parent, std::span<const int32_t> tokens);
  // REQUIRES: known, no longer prefix builds on it.
  void remove(BlockId block);
  bool is_leaf(BlockId block) const { return entries_[static_cast<size_t>(block)].children == 0; }

  // A block is in use until it is said to be idle. REQUIRES: known.
  void set_idle(BlockId block, uint64_t last_use);
  void set_used(BlockId block);
  // The idle leaf whose last use is longest ago, or kNone.
  BlockId oldest() const { return leaves_.empty() ? kNone : leaves_.begin()->second; }
  size_t size() const { return by_hash_.size(); }

 private:
  struct Entry {
    bool known = false;
    bool idle = false;
    BlockId parent = kRoot;
    int32_t children = 0;
    uint64_t hash = 0;
    uint64_t last_use = 0;
  };

  uint64_t hash_of(BlockId parent, std::span<const int32_t> tokens) const {
    return hash_(parent == kRoot ? 0 : entries_[static_cast<size_t>(parent)].hash, tokens);
  }
  std::span<const int32_t> tokens_of(BlockId block) const {
    return std::span(tokens_).subspan(static_cast<size_t>(block) * block_tokens_, block_tokens_);
  }
  void update_leaf(BlockId block);

  size_t block_tokens_;
  Hash hash_;
  std::vector<Entry> entries_;
  std::vector<int32_t> tokens_;
  std::unordered_multimap<uint64_t, BlockId> by_hash_;
  std::set<std::pair<uint64_t, BlockId>> leaves_;  // idle ones
};

}  // namespace hetero::graph
