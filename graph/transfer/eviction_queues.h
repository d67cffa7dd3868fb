// EvictionQueues: blocks in numbered queues, in the order in which they were put there. What the
// policies of eviction_policy.h are made of.
//
// A block may be blocked: pinned, or before others that are still there. A policy asks for the
// oldest block of a queue. If it is blocked, the policy parks it, so that it is not met again. A
// parked block that is unblocked returns to its place in the order. So the oldest block that may
// go is found exactly, and each time that a block is put into a queue it is parked at most once
// before it is unblocked.
//
// A queue is a list. The blocks that returned from parking are in an ordered set, which is empty
// or small most of the time. All operations take constant time, except that a return and what ends
// it take a logarithm of the blocks that have returned.
//
// 16 bytes a block. Thread safety: none; the store's lock.

#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "graph/transfer/chunked_array.h"

namespace hetero::graph {

using NodeId = uint32_t;
inline constexpr NodeId kNoNode = UINT32_MAX;

class EvictionQueues {
 public:
  static constexpr int kMostQueues = 64;

  explicit EvictionQueues(int queues) : queues_(static_cast<size_t>(queues)) {}

  // Puts a block into a queue as its newest, from wherever it is.
  void push(NodeId node, int queue);
  // Puts a block that is in no queue right behind its parent, on the older side and with its time,
  // if the parent is in this queue and recent: there were at most as many pushes since as an eighth
  // of the queue's blocks. Otherwise the block is the newest.
  void push_new(NodeId node, NodeId parent, int queue);
  // REQUIRES: in a queue.
  void erase(NodeId node);
  // The oldest block that is not parked, or kNoNode.
  NodeId oldest(int queue) const;
  // REQUIRES: the oldest of its queue.
  void park(NodeId node);
  // A parked block returns; others stay where they are. REQUIRES: in a queue.
  void unpark(NodeId node);

  // REQUIRES: in a queue, here and below.
  int queue(NodeId node) const { return entries_[node].queue; }
  // A small number for the policy, below 64; 0 after a block's first push.
  int note(NodeId node) const { return entries_[node].note; }
  void set_note(NodeId node, int note) { entries_[node].note = static_cast<unsigned>(note) & 63U; }
  // The block that was put into the list next, or kNoNode.
  NodeId newer(NodeId node) const { return entries_[node].where == kListed ? entries_[node].newer : kNoNode; }
  void prefetch(NodeId node) const {
    if (node < made_) __builtin_prefetch(entries_.at(node));
  }
  // Parked ones count.
  int64_t size(int queue) const { return queues_[static_cast<size_t>(queue)].size; }
  int64_t size() const { return size_; }

 private:
  enum Where : unsigned { kNowhere, kListed, kParked, kReturned };

  struct Entry {
    NodeId newer = kNoNode;
    NodeId older = kNoNode;
    uint64_t time : 50 = 0;  // of the last push, counted in pushes
    unsigned queue : 6 = 0;
    unsigned note : 6 = 0;
    unsigned where : 2 = kNowhere;
  };
  static_assert(sizeof(Entry) == 16);
  struct Queue {
    NodeId newest = kNoNode;
    NodeId oldest = kNoNode;
    int64_t size = 0;
    std::set<std::pair<uint64_t, NodeId>> returned;
  };

  Queue& queue_of(NodeId node) { return queues_[entries_[node].queue]; }
  void detach(NodeId node);
  void make_room_for(NodeId node);
  // Between two neighbours of the list.
  void link(NodeId node, int queue, NodeId newer, NodeId older);

  ChunkedArray<Entry> entries_;
  size_t made_ = 0;  // entries that are initialized
  std::vector<Queue> queues_;
  uint64_t time_ = 0;
  int64_t size_ = 0;
};

}  // namespace hetero::graph
