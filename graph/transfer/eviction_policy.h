// EvictionPolicy: in which order the blocks of a tier go.
//
// The index tells a policy which blocks are ready in its tier and which are used. A policy never
// chooses a block that may not go: one that is pinned, or before others that are still there. Among
// the others it chooses:
//
//   lru     the one whose last use, or filling, is longest ago. Exact, with the rule below.
//   lfu     the one with the fewest uses, then as lru. Exact up to 63 uses; more count as 63.
//           Shah, Mitra and Matani, "An O(1) algorithm for implementing the LFU cache
//           eviction scheme", 2010.
//   slru    a block that was used again is protected, for at most 80 % of the tier. The least
//           recently used block that is not protected goes. Karedla, Love and Wherry, "Caching
//           strategies to improve disk system performance", IEEE Computer, March 1994.
//   s3fifo  new blocks are in a small queue of 10 % of the tier, and move to the main queue if
//           they are used again. Both are in the order of arrival. Yang et al., "FIFO queues are
//           all you need for cache eviction", SOSP 2023.
//   arc     a list for blocks used once and one for more, and the share of each is learned from
//           what was evicted and came back. Megiddo and Modha, "ARC: a self-tuning, low overhead
//           replacement cache", FAST 2003.
//
// A new block is as recent as the one before it, if that is recent and in the same queue. That way
// the blocks of a prompt, which are filled from the first to the last, stand in the order in which
// they can go. See EvictionQueues::push_new().
//
// The papers know no blocks that may not go. If a queue has only such blocks, the next queue's turn
// comes. In s3fifo a block whose time comes while it may not go stays oldest in its queue. Keys of
// evicted blocks (s3fifo, arc) are 64 bits of the block's, so a rare new block is taken for an old
// one; that changes an order and nothing else. ARC adapts before it chooses a victim for a block,
// but a tier makes room first; here the learned share counts from the next victim on.
//
// A victim takes constant time, amortized over the calls that put blocks into queues.
//
// Thread safety: none; the store's lock.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "graph/transfer/eviction_queues.h"

namespace hetero::graph {

// What a policy may ask about the blocks that it was told of.
class EvictionView {
 public:
  virtual ~EvictionView() = default;
  virtual bool may_go(NodeId node) const = 0;
  virtual uint64_t key(NodeId node) const = 0;
  // The policy will probably choose `next`, then `after`: brings what that needs into the caches.
  virtual void prefetch(NodeId next, NodeId after) const = 0;
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // A block is there now. `parent`: the one before it, there or not.
  virtual void insert(NodeId node, NodeId parent) = 0;
  // REQUIRES: there, here and below.
  virtual void touch(NodeId node) = 0;
  // It is gone for another reason than evict().
  void erase(NodeId node) { queues_.erase(node); }
  // A block that could not go may go now.
  void unblock(NodeId node) { queues_.unpark(node); }
  void prefetch(NodeId node) const { queues_.prefetch(node); }
  // Chooses a block that may go; it is no longer there. kNoNode if there is none.
  virtual NodeId evict() = 0;

 protected:
  EvictionPolicy(const EvictionView& view, int queues) : view_(view), queues_(queues) {}
  // The oldest block of a queue that may go, or kNoNode.
  NodeId oldest(int queue);
  // Prefetches the victims after this one.
  void look_ahead(NodeId victim) const;

  const EvictionView& view_;
  EvictionQueues queues_;
};

std::span<const std::string_view> eviction_policies();

// `capacity`: the blocks of the tier, or 0: as many as there were at most. Null if there is no
// policy of this name. The view must outlive the policy.
std::unique_ptr<EvictionPolicy> make_eviction_policy(std::string_view name, const EvictionView& view, int64_t capacity);

}  // namespace hetero::graph
