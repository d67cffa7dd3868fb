#include "graph/kv/prefix_index.h"

#include <algorithm>

#include "backend/base/fnv.h"

namespace hetero::graph {

uint64_t PrefixIndex::fnv(uint64_t before, std::span<const int32_t> tokens) {
  backend::Fnv hash;
  hash.add(static_cast<int64_t>(before));
  hash.add(tokens.data(), tokens.size_bytes());
  return hash.value();
}

BlockId PrefixIndex::find(BlockId parent, std::span<const int32_t> tokens) const {
  const auto [first, last] = by_hash_.equal_range(hash_of(parent, tokens));
  for (auto it = first; it != last; ++it) {
    const BlockId block = it->second;
    if (entries_[static_cast<size_t>(block)].parent != parent) continue;
    if (std::ranges::equal(tokens_of(block), tokens)) return block;
  }
  return kNone;
}

void PrefixIndex::insert(BlockId block, BlockId parent, std::span<const int32_t> tokens) {
  const auto i = static_cast<size_t>(block);
  if (i >= entries_.size()) {
    entries_.resize(i + 1);
    tokens_.resize((i + 1) * block_tokens_);
  }
  const uint64_t hash = hash_of(parent, tokens);
  entries_[i] = {.known = true, .parent = parent, .hash = hash};
  std::ranges::copy(tokens, tokens_.begin() + static_cast<std::ptrdiff_t>(i * block_tokens_));
  by_hash_.emplace(hash, block);
  if (parent == kRoot) return;
  ++entries_[static_cast<size_t>(parent)].children;
  update_leaf(parent);
}

void PrefixIndex::remove(BlockId block) {
  Entry& entry = entries_[static_cast<size_t>(block)];
  if (entry.idle) leaves_.erase({entry.last_use, block});
  const auto [first, last] = by_hash_.equal_range(entry.hash);
  by_hash_.erase(std::find_if(first, last, [&](const auto& item) { return item.second == block; }));
  const BlockId parent = entry.parent;
  entry = {};
  if (parent == kRoot) return;
  --entries_[static_cast<size_t>(parent)].children;
  update_leaf(parent);
}

void PrefixIndex::update_leaf(BlockId block) {
  const Entry& entry = entries_[static_cast<size_t>(block)];
  if (entry.idle && entry.children == 0) {
    leaves_.insert({entry.last_use, block});
  } else {
    leaves_.erase({entry.last_use, block});
  }
}

void PrefixIndex::set_idle(BlockId block, uint64_t last_use) {
  Entry& entry = entries_[static_cast<size_t>(block)];
  entry.idle = true;
  entry.last_use = last_use;
  update_leaf(block);
}

void PrefixIndex::set_used(BlockId block) {
  Entry& entry = entries_[static_cast<size_t>(block)];
  entry.idle = false;
  update_leaf(block);
}

}  // namespace hetero::graph
