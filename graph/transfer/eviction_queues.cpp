#include "graph/transfer/eviction_queues.h"

namespace hetero::graph {

void EvictionQueues::make_room_for(NodeId node) {
  for (; made_ <= node; ++made_) {
    entries_.make_room_for(made_);
    entries_[made_] = {};
  }
}

void EvictionQueues::push(NodeId node, int queue) {
  make_room_for(node);
  Entry& entry = entries_[node];
  if (entry.where != kNowhere) {
    detach(node);
    --queue_of(node).size;
  } else {
    entry.note = 0;
    ++size_;
  }
  entries_[node].time = ++time_;
  link(node, queue, kNoNode, queues_[static_cast<size_t>(queue)].newest);
}

void EvictionQueues::push_new(NodeId node, NodeId parent, int queue) {
  const bool follows = parent < made_ && entries_[parent].where != kNowhere && this->queue(parent) == queue;
  if (!follows || time_ - entries_[parent].time > static_cast<uint64_t>(size(queue)) / 8) return push(node, queue);
  make_room_for(node);
  entries_[node].note = 0;
  entries_[node].time = entries_[parent].time;
  ++size_;
  if (entries_[parent].where == kListed) return link(node, queue, parent, entries_[parent].older);
  entries_[node].queue = entries_[parent].queue;
  entries_[node].where = kParked;
  ++queues_[static_cast<size_t>(queue)].size;
  unpark(node);
}

void EvictionQueues::link(NodeId node, int queue, NodeId newer, NodeId older) {
  Queue& to = queues_[static_cast<size_t>(queue)];
  Entry& entry = entries_[node];
  entry.queue = static_cast<unsigned>(queue) & 63U;
  entry.where = kListed;
  entry.newer = newer;
  entry.older = older;
  (newer != kNoNode ? entries_[newer].older : to.newest) = node;
  (older != kNoNode ? entries_[older].newer : to.oldest) = node;
  ++to.size;
}

// Takes a block from the list or the set it is in.
void EvictionQueues::detach(NodeId node) {
  const Entry& entry = entries_[node];
  Queue& from = queue_of(node);
  if (entry.where == kListed) {
    (entry.newer != kNoNode ? entries_[entry.newer].older : from.newest) = entry.older;
    (entry.older != kNoNode ? entries_[entry.older].newer : from.oldest) = entry.newer;
  } else if (entry.where == kReturned) {
    from.returned.erase({entry.time, node});
  }
}

void EvictionQueues::erase(NodeId node) {
  detach(node);
  --queue_of(node).size;
  --size_;
  entries_[node].where = kNowhere;
}

NodeId EvictionQueues::oldest(int queue) const {
  const Queue& from = queues_[static_cast<size_t>(queue)];
  if (from.returned.empty()) return from.oldest;
  const auto& [time, node] = *from.returned.begin();
  return from.oldest == kNoNode || time < entries_[from.oldest].time ? node : from.oldest;
}

void EvictionQueues::park(NodeId node) {
  detach(node);
  entries_[node].where = kParked;
}

void EvictionQueues::unpark(NodeId node) {
  Entry& entry = entries_[node];
  if (entry.where != kParked) return;
  entry.where = kReturned;
  queue_of(node).returned.emplace(uint64_t{entry.time}, node);
}

}  // namespace hetero::graph
