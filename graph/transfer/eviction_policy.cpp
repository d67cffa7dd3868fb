#include "graph/transfer/eviction_policy.h"

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "graph/transfer/slot_table.h"

namespace hetero::graph {

NodeId EvictionPolicy::oldest(int queue) {
  for (;;) {
    const NodeId node = queues_.oldest(queue);
    if (node == kNoNode) return kNoNode;
    look_ahead(node);
    if (view_.may_go(node)) return node;
    queues_.park(node);
  }
}

void EvictionPolicy::look_ahead(NodeId victim) const {
  const NodeId next = queues_.newer(victim);
  if (next == kNoNode) return;
  const NodeId after = queues_.newer(next);
  if (after == kNoNode) return;
  queues_.prefetch(after);
  view_.prefetch(next, after);
}

namespace {

// Keys of the blocks that were evicted last.
class EvictedKeys {
 public:
  // Forgets the oldest ones above `most`.
  void add(uint64_t key, int64_t most) {
    keys_.push_back(key);
    numbers_.add(hash_of(key), (first_ + static_cast<uint32_t>(keys_.size()) - 1) & kNumbers);
    // Keys that were taken stay in the queue until their turn comes.
    const auto longest = static_cast<size_t>(2 * most + 64);
    while (size() > most || keys_.size() > longest) {
      numbers_.remove(hash_of(keys_.front()), first_);
      keys_.pop_front();
      first_ = (first_ + 1) & kNumbers;
    }
  }
  // Whether the key was there.
  bool take(uint64_t key) {
    const uint32_t hash = hash_of(key);
    const uint32_t number = numbers_.find(hash, [&](uint32_t i) { return keys_[(i - first_) & kNumbers] == key; });
    return number != SlotTable::kNone && numbers_.remove(hash, number);
  }
  int64_t size() const { return static_cast<int64_t>(numbers_.size()); }

 private:
  static uint32_t hash_of(uint64_t key) { return static_cast<uint32_t>(key); }

  static constexpr uint32_t kNumbers = UINT32_MAX >> 1;  // they wrap around

  std::deque<uint64_t> keys_;  // numbered from first_ on
  uint32_t first_ = 0;
  SlotTable numbers_;
};

class Lru final : public EvictionPolicy {
 public:
  Lru(const EvictionView& view, int64_t) : EvictionPolicy(view, 1) {}
  void insert(NodeId node, NodeId parent) override { queues_.push_new(node, parent, 0); }
  void touch(NodeId node) override { queues_.push(node, 0); }
  NodeId evict() override {
    const NodeId node = oldest(0);
    if (node != kNoNode) queues_.erase(node);
    return node;
  }
};

// A queue for each number of uses.
class Lfu final : public EvictionPolicy {
 public:
  Lfu(const EvictionView& view, int64_t) : EvictionPolicy(view, EvictionQueues::kMostQueues) {}
  void insert(NodeId node, NodeId parent) override { queues_.push_new(node, parent, 0); }
  void touch(NodeId node) override {
    queues_.push(node, std::min(queues_.queue(node) + 1, EvictionQueues::kMostQueues - 1));
  }
  NodeId evict() override {
    for (int uses = 0; uses < EvictionQueues::kMostQueues; ++uses) {
      const NodeId node = oldest(uses);
      if (node == kNoNode) continue;
      queues_.erase(node);
      return node;
    }
    return kNoNode;
  }
};

// A policy with queues of a share of the tier.
class SizedPolicy : public EvictionPolicy {
 public:
  SizedPolicy(const EvictionView& view, int64_t capacity) : EvictionPolicy(view, 2), capacity_(capacity) {}

 protected:
  int64_t capacity() {
    if (capacity_ > 0) return capacity_;
    most_ = std::max(most_, queues_.size());
    return most_;
  }

 private:
  int64_t capacity_;
  int64_t most_ = 0;
};

class Slru final : public SizedPolicy {
 public:
  using SizedPolicy::SizedPolicy;
  void insert(NodeId node, NodeId parent) override { queues_.push_new(node, parent, kProbation); }
  void touch(NodeId node) override {
    queues_.push(node, kProtected);
    // A block that may not go stays protected, and does not count against the others.
    if (queues_.size(kProtected) <= capacity() * 8 / 10) return;
    const NodeId least = oldest(kProtected);
    if (least != kNoNode) queues_.push(least, kProbation);
  }
  NodeId evict() override {
    NodeId node = oldest(kProbation);
    if (node == kNoNode) node = oldest(kProtected);
    if (node != kNoNode) queues_.erase(node);
    return node;
  }

 private:
  static constexpr int kProbation = 0, kProtected = 1;
};

class S3Fifo final : public SizedPolicy {
 public:
  using SizedPolicy::SizedPolicy;
  void insert(NodeId node, NodeId parent) override {
    queues_.push_new(node, parent, evicted_.take(view_.key(node)) ? kMain : kSmall);
  }
  void touch(NodeId node) override { queues_.set_note(node, std::min(queues_.note(node) + 1, 3)); }
  NodeId evict() override {
    const bool small_first = queues_.size(kSmall) * 10 >= capacity();
    NodeId node = small_first ? kNoNode : evict_main();
    if (node == kNoNode) node = evict_small();
    if (node == kNoNode) node = evict_main();  // of those that came from the small queue
    return node;
  }

 private:
  static constexpr int kSmall = 0, kMain = 1;

  NodeId evict_small() {
    for (NodeId node; (node = queues_.oldest(kSmall)) != kNoNode;) {
      if (queues_.note(node) > 1) {
        queues_.push(node, kMain);
        queues_.set_note(node, 0);
      } else if (view_.may_go(node)) {
        evicted_.add(view_.key(node), capacity() * 9 / 10);
        queues_.erase(node);
        return node;
      } else {
        queues_.park(node);
      }
    }
    return kNoNode;
  }
  NodeId evict_main() {
    for (NodeId node; (node = oldest(kMain)) != kNoNode;) {
      if (queues_.note(node) == 0) {
        queues_.erase(node);
        return node;
      }
      const int uses = queues_.note(node);
      queues_.push(node, kMain);
      queues_.set_note(node, uses - 1);
    }
    return kNoNode;
  }

  EvictedKeys evicted_;
};

class Arc final : public SizedPolicy {
 public:
  using SizedPolicy::SizedPolicy;
  void insert(NodeId node, NodeId parent) override {
    const uint64_t key = view_.key(node);
    const double once = static_cast<double>(evicted_once_.size());
    const double often = static_cast<double>(evicted_often_.size());
    int queue = kOften;
    if (evicted_once_.take(key)) {
      share_ = std::min(static_cast<double>(capacity()), share_ + std::max(1.0, often / once));
    } else if (evicted_often_.take(key)) {
      share_ = std::max(0.0, share_ - std::max(1.0, once / often));
    } else {
      queue = kOnce;
    }
    queues_.push_new(node, parent, queue);
  }
  void touch(NodeId node) override { queues_.push(node, kOften); }
  NodeId evict() override {
    const int64_t once = queues_.size(kOnce);
    const bool once_first = once > 0 && static_cast<double>(once) > share_;
    NodeId node = evict_from(once_first ? kOnce : kOften);
    if (node == kNoNode) node = evict_from(once_first ? kOften : kOnce);
    return node;
  }

 private:
  static constexpr int kOnce = 0, kOften = 1;  // the paper's T1 and T2

  NodeId evict_from(int queue) {
    const NodeId node = oldest(queue);
    if (node == kNoNode) return kNoNode;
    // The paper keeps at most `capacity` blocks and keys of T1 and B1, and twice that in all.
    const int64_t most = capacity();
    const int64_t once = queues_.size(kOnce) - (queue == kOnce ? 1 : 0);
    queues_.erase(node);
    if (queue == kOnce) {
      evicted_once_.add(view_.key(node), std::max<int64_t>(0, most - once));
    } else {
      evicted_often_.add(view_.key(node), std::max<int64_t>(0, 2 * most - queues_.size() - evicted_once_.size()));
    }
    return node;
  }

  double share_ = 0;                          // the paper's p: the size that kOnce should have
  EvictedKeys evicted_once_, evicted_often_;  // B1 and B2
};

template <typename Policy>
std::unique_ptr<EvictionPolicy> make(const EvictionView& view, int64_t capacity) {
  return std::make_unique<Policy>(view, capacity);
}

constexpr std::array<std::string_view, 5> kNames = {"lru", "lfu", "slru", "s3fifo", "arc"};
constexpr std::array kMakers = {&make<Lru>, &make<Lfu>, &make<Slru>, &make<S3Fifo>, &make<Arc>};

}  // namespace

std::span<const std::string_view> eviction_policies() { return kNames; }

std::unique_ptr<EvictionPolicy> make_eviction_policy(std::string_view name, const EvictionView& view,
                                                     int64_t capacity) {
  const auto it = std::ranges::find(kNames, name);
  if (it == kNames.end()) return nullptr;
  capacity = std::clamp<int64_t>(capacity, 0, int64_t{1} << 40);  // sums of a few do not overflow
  return kMakers[static_cast<size_t>(it - kNames.begin())](view, capacity);
}

}  // namespace hetero::graph
