#include "graph/transfer/block_tree.h"

#include <cstring>
#include <utility>

namespace hetero::graph {

uint64_t hash_block(NodeId parent, std::span<const int32_t> tokens) {
  // Fibonacci hashing; its upper half depends on all bits of the sum.
  const uint64_t sum = backend::checksum(tokens.data(), tokens.size_bytes()) + uint64_t{parent} * 0xD6E8FEB86659FD93;
  return (sum * 0x9E3779B97F4A7C15) >> 32;
}

BlockTree::BlockTree(int64_t block_tokens, const backend::BlockKey& root, BlockHash hash)
    : block_tokens_(static_cast<size_t>(block_tokens)), hash_(hash), tokens_(block_tokens_) {
  keys_[take_number()] = root;
}

bool BlockTree::has_tokens(NodeId node, const int32_t* tokens) const {
  return std::memcmp(tokens_.at(node), tokens, block_tokens_ * sizeof(int32_t)) == 0;
}

void BlockTree::match(std::span<const int32_t> tokens, std::vector<NodeId>& path) const {
  NodeId node = kRoot;
  for (size_t i = 0; i + block_tokens_ <= tokens.size(); i += block_tokens_) {
    const NodeId ahead = links_[node].ahead;
    prefetch(ahead);
    __builtin_prefetch(tokens_.at(ahead));
    node = find(node, tokens.data() + i);
    if (node == kNoNode) return;
    path.push_back(node);
  }
}

NodeId BlockTree::find(NodeId parent, const int32_t* tokens) const {
  const Links& links = links_[parent];
  if (links.is_wide) return find_in_table(parent, tokens);
  for (NodeId child = links.first_child; child != kNoNode; child = links_[child].next) {
    prefetch(child);
    if (has_tokens(child, tokens)) return child;
  }
  return kNoNode;
}

NodeId BlockTree::insert(NodeId parent, std::span<const int32_t> tokens) {
  const NodeId node = take_number();
  std::memcpy(tokens_.at(node), tokens.data(), tokens.size_bytes());
  keys_[node] = backend::chain_key(keys_[parent], tokens);
  Links& above = links_[parent];
  links_[node].parent = parent;
  links_[node].next = above.first_child;
  if (above.first_child != kNoNode) links_[above.first_child].previous = node;
  above.first_child = node;
  ++above.children;
  ++size_;
  NodeId before = parent;
  for (int i = 1; i < kAhead && before != kRoot; ++i) before = links_[before].parent;
  links_[before].ahead = node;
  if (above.is_wide) {
    add_to_table(node);
  } else if (above.children > kNarrow) {
    above.is_wide = true;
    for (NodeId child = node; child != kNoNode; child = links_[child].next) add_to_table(child);
  }
  return node;
}

NodeId BlockTree::take_number() {
  NodeId node = removed_;
  if (node != kNoNode) {
    removed_ = links_[node].first_child;
  } else {
    node = used_numbers_++;
    links_.make_room_for(node);
    tokens_.make_room_for(node);
    keys_.make_room_for(node);
  }
  links_[node] = {};
  return node;
}

void BlockTree::remove(NodeId node) {
  Links& links = links_[node];
  Links& above = links_[links.parent];
  if (above.is_wide) by_hash_.remove(links.hash, node);
  if (links.next != kNoNode) links_[links.next].previous = links.previous;
  (links.previous != kNoNode ? links_[links.previous].next : above.first_child) = links.next;
  if (--above.children == 0) above.is_wide = false;
  links = {.first_child = std::exchange(removed_, node)};
  --size_;
}

NodeId BlockTree::next(NodeId node) const {
  if (links_[node].first_child != kNoNode) return links_[node].first_child;
  while (node != kRoot) {
    if (links_[node].next != kNoNode) return links_[node].next;
    node = links_[node].parent;
  }
  return kNoNode;
}

uint32_t BlockTree::hash_of(NodeId parent, const int32_t* tokens) const {
  return static_cast<uint32_t>(hash_(parent, {tokens, block_tokens_}));
}

NodeId BlockTree::find_in_table(NodeId parent, const int32_t* tokens) const {
  return by_hash_.find(hash_of(parent, tokens), [&](NodeId node) {
    prefetch(node);
    return has_tokens(node, tokens) && links_[node].parent == parent;
  });
}

void BlockTree::add_to_table(NodeId node) {
  by_hash_.add(links_[node].hash = hash_of(links_[node].parent, tokens_.at(node)), node);
}

}  // namespace hetero::graph
