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
  Queue& to = queues_[static_cast<size_t>(queue)];
  entry.queue = static_cast<unsigned>(queue) & 63U;
  entry.where = kListed;
  entry.time = ++time_;
  entry.newer = kNoNode;
  entry.older = to.newest;
  (to.newest != kNoNode ? entries_[to.newest].newer : to.oldest) = node;
  to.newest = node;
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
