// The index of blocks against a model of maps, and what must not be slow or wrong.

#include "graph/transfer/block_index.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/catch/catch.h"

namespace hetero::graph {
namespace {

using Tokens = std::vector<int32_t>;

constexpr std::array kTiersOfIndex = {Tier::kHost, Tier::kDisk, Tier::kRemote};

size_t slot_of(Tier tier) { return static_cast<size_t>(tier) - 1; }

uint64_t equal_hash(NodeId, std::span<const int32_t>) { return 42; }

// The index by its words: prefixes in a map, every question answered by looking at all of them.
class Model {
 public:
  struct Copy {
    BlockState state = BlockState::kAbsent;
    int64_t place = 0;
    int pins = 0;
    uint64_t time = 0;  // of the last use or filling
    int uses = 0;       // since it was filled
  };
  struct Node {
    NodeId id = BlockIndex::kNone;
    int64_t hits = 0;
    std::array<Copy, 3> copies;
  };

  explicit Model(size_t block_tokens) : block_tokens_(block_tokens) {}

  std::map<Tokens, Node> nodes;

  Copy& copy(const Tokens& prefix, Tier tier) { return nodes.at(prefix).copies[slot_of(tier)]; }
  Tokens parent(const Tokens& prefix) const {
    return {prefix.begin(), prefix.end() - static_cast<ptrdiff_t>(block_tokens_)};
  }
  bool is_child(const Tokens& child, const Tokens& of) const {
    return child.size() == of.size() + block_tokens_ && std::equal(of.begin(), of.end(), child.begin());
  }
  // The nodes behind `prefix` are next to it in the map's order.
  template <typename Test>
  bool any_child(const Tokens& prefix, const Test& test) const {
    for (auto it = nodes.upper_bound(prefix); it != nodes.end(); ++it) {
      if (it->first.size() <= prefix.size() || !std::equal(prefix.begin(), prefix.end(), it->first.begin())) break;
      if (is_child(it->first, prefix) && test(it->second)) return true;
    }
    return false;
  }
  bool may_go(const Tokens& prefix, Tier tier) const {
    const Copy& copy = nodes.at(prefix).copies[slot_of(tier)];
    return copy.state == BlockState::kReady && copy.pins == 0 && !any_child(prefix, [&](const Node& child) {
             const BlockState state = child.copies[slot_of(tier)].state;
             return state == BlockState::kReady || state == BlockState::kFilling;
           });
  }
  std::vector<Tokens> candidates(Tier tier) const {
    std::vector<Tokens> list;
    for (const auto& [prefix, node] : nodes) {
      if (may_go(prefix, tier)) list.push_back(prefix);
    }
    return list;
  }
  void forget(Tokens prefix) {
    while (!prefix.empty()) {
      const Node& node = nodes.at(prefix);
      if (any_child(prefix, [](const Node&) { return true; })) return;
      for (const Copy& copy : node.copies) {
        if (copy.pins > 0 || copy.state != BlockState::kAbsent) return;
      }
      nodes.erase(prefix);
      prefix = parent(prefix);
    }
  }
  std::vector<NodeId> path(const Tokens& prefix) const {
    std::vector<NodeId> path;
    for (size_t size = block_tokens_; size <= prefix.size(); size += block_tokens_) {
      const auto it = nodes.find({prefix.begin(), prefix.begin() + static_cast<ptrdiff_t>(size)});
      if (it == nodes.end()) break;
      path.push_back(it->second.id);
    }
    return path;
  }
  TierCounts counts(Tier tier) const {
    TierCounts counts;
    for (const auto& [prefix, node] : nodes) {
      const Copy& copy = node.copies[slot_of(tier)];
      counts.filling += copy.state == BlockState::kFilling;
      counts.ready += copy.state == BlockState::kReady;
      counts.evicting += copy.state == BlockState::kEvicting;
      counts.pinned += copy.pins > 0;
    }
    return counts;
  }
  // A tier's pushes into queues so far.
  uint64_t time(Tier tier) const { return times_[slot_of(tier)]; }
  uint64_t next_time(Tier tier) { return ++times_[slot_of(tier)]; }

 private:
  size_t block_tokens_;
  std::array<uint64_t, 3> times_{};
};

// Random calls, the same ones to the index and to the model.
class RandomCalls {
 public:
  RandomCalls(const BlockIndex::Options& options, uint32_t seed, int alphabet)
      : options_(options),
        block_tokens_(static_cast<size_t>(options.block_tokens)),
        index_(options),
        model_(block_tokens_),
        random_(seed),
        alphabet_(alphabet) {}

  void run(int calls) {
    for (int i = 0; i < calls; ++i) {
      call();
      if (i % 50 == 0) check_all();
    }
    check_all();
    drain();
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  Tier any_tier() { return kTiersOfIndex[static_cast<size_t>(below(3))]; }
  Tokens random_block() {
    Tokens block(block_tokens_);
    for (int32_t& token : block) token = below(alphabet_) - 1;  // the tokens may be any integers
    return block;
  }
  // A known prefix; the root if there is none or by chance.
  Tokens any_prefix() {
    if (model_.nodes.empty() || below(12) == 0) return {};
    return std::next(model_.nodes.begin(), below(static_cast<int>(model_.nodes.size())))->first;
  }
  NodeId id(const Tokens& prefix) { return prefix.empty() ? BlockIndex::kRoot : model_.nodes.at(prefix).id; }

  void call() {
    switch (below(19)) {
      case 0:
      case 1:
        return insert();
      case 2:
        return pin();
      case 3:
        return unpin();
      case 4:
        return touch();
      case 5:
        return evict();
      case 6:
        return remove();
      case 7:
        return match();
      case 8:
        return set_evicting();
      default:
        return fill();
    }
  }

  void insert() {
    if (model_.nodes.size() > 150) return;
    Tokens prefix = any_prefix();
    const NodeId parent = id(prefix);
    const Tokens block = random_block();
    const NodeId known = index_.find(parent, block);
    const NodeId node = index_.insert(parent, block);
    prefix.insert(prefix.end(), block.begin(), block.end());
    const auto it = model_.nodes.find(prefix);
    if (it != model_.nodes.end()) {
      REQUIRE(node == it->second.id);
      REQUIRE(known == node);
    } else {
      REQUIRE(known == BlockIndex::kNone);
      REQUIRE(node != BlockIndex::kRoot);
      for (const auto& [other, there] : model_.nodes) REQUIRE(there.id != node);
      model_.nodes[prefix].id = node;
    }
  }

  void fill() {
    Tokens prefix = any_prefix();
    const Tier tier = any_tier();
    const auto is_done = [&] { return prefix.empty() || model_.copy(prefix, tier).state >= BlockState::kReady; };
    for (int tries = 0; tries < 4 && is_done(); ++tries) prefix = any_prefix();
    if (is_done()) return;
    Model::Copy& copy = model_.copy(prefix, tier);
    if (copy.state == BlockState::kAbsent) {
      copy.state = BlockState::kFilling;
      copy.place = below(1000000);
      index_.begin_fill(id(prefix), tier, copy.place);
    } else {
      copy.state = BlockState::kReady;
      copy.uses = 0;
      copy.time = time_of_new(prefix, tier);
      index_.finish_fill(id(prefix), tier);
    }
  }

  // A new block takes the time of the one before it if that is recent and, in lfu, not used yet.
  uint64_t time_of_new(const Tokens& prefix, Tier tier) {
    const Tokens before = model_.parent(prefix);
    if (before.empty()) return model_.next_time(tier);
    uint64_t size = 0;
    const auto counts = [&](const Model::Copy& copy) {
      return copy.state == BlockState::kReady && (options_.policy == "lru" || copy.uses == 0);
    };
    for (const auto& [other, node] : model_.nodes) size += other != prefix && counts(node.copies[slot_of(tier)]);
    const Model::Copy& copy = model_.copy(before, tier);
    const bool recent = counts(copy) && model_.time(tier) - copy.time <= size / 8;
    return recent ? copy.time : model_.next_time(tier);
  }

  void remove() {
    const Tokens prefix = any_prefix();
    const Tier tier = any_tier();
    if (prefix.empty() || model_.copy(prefix, tier).pins > 0) return;
    index_.remove(id(prefix), tier);
    model_.copy(prefix, tier).state = BlockState::kAbsent;
    model_.forget(prefix);
  }

  void set_evicting() {
    const Tokens prefix = any_prefix();
    if (prefix.empty()) return;
    const Tier tier = any_tier();
    Model::Copy& copy = model_.copy(prefix, tier);
    if (copy.state != BlockState::kFilling && copy.state != BlockState::kReady) return;
    index_.set_evicting(id(prefix), tier);
    copy.state = BlockState::kEvicting;
  }

  void pin() {
    const Tokens prefix = any_prefix();
    if (prefix.empty()) return;
    const Tier tier = any_tier();
    index_.pin(id(prefix), tier);
    ++model_.copy(prefix, tier).pins;
  }

  void unpin() {
    for (int tries = 0; tries < 20; ++tries) {
      const Tokens prefix = any_prefix();
      const Tier tier = any_tier();
      if (prefix.empty() || model_.copy(prefix, tier).pins == 0) continue;
      index_.unpin(id(prefix), tier);
      --model_.copy(prefix, tier).pins;
      return model_.forget(prefix);
    }
  }

  void touch() {
    Tokens prefix = any_prefix();
    index_.touch(model_.path(prefix));
    for (; !prefix.empty(); prefix = model_.parent(prefix)) {
      ++model_.nodes.at(prefix).hits;
      for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
        Model::Copy& copy = model_.copy(prefix, tier);
        if (copy.state != BlockState::kReady) continue;
        copy.time = model_.next_time(tier);
        ++copy.uses;
      }
    }
  }

  void evict() {
    const Tier tier = below(2) == 0 ? Tier::kHost : Tier::kDisk;
    const std::vector<Tokens> candidates = model_.candidates(tier);
    const NodeId victim = index_.evict(tier);
    if (candidates.empty()) {
      REQUIRE(victim == BlockIndex::kNone);
      return;
    }
    const auto it = std::ranges::find(candidates, victim, [&](const Tokens& prefix) { return id(prefix); });
    REQUIRE(it != candidates.end());
    check_choice(candidates, *it, tier);
    model_.copy(*it, tier).state = BlockState::kEvicting;
    REQUIRE(index_.state(victim, tier) == BlockState::kEvicting);
    if (below(3) == 0) return;
    if (model_.copy(*it, tier).pins > 0) return;
    index_.remove(victim, tier);
    model_.copy(*it, tier).state = BlockState::kAbsent;
    model_.forget(*it);
  }

  // lru and lfu are exact.
  void check_choice(const std::vector<Tokens>& candidates, const Tokens& chosen, Tier tier) {
    const Model::Copy& copy = model_.copy(chosen, tier);
    for (const Tokens& other : candidates) {
      const Model::Copy& candidate = model_.copy(other, tier);
      if (options_.policy == "lru") REQUIRE(copy.time <= candidate.time);
      if (options_.policy == "lfu") {
        REQUIRE(std::pair(std::min(copy.uses, 63), copy.time) <=
                std::pair(std::min(candidate.uses, 63), candidate.time));
      }
    }
  }

  void match() {
    Tokens tokens = any_prefix();
    for (int i = below(3); i > 0; --i) {
      const Tokens block = random_block();
      tokens.insert(tokens.end(), block.begin(), block.end());
    }
    if (below(2) == 0) tokens.push_back(0);  // not a whole block
    std::vector<NodeId> path = {7};
    index_.match(tokens, path);
    std::vector<NodeId> expected = model_.path(tokens);
    expected.insert(expected.begin(), 7);
    REQUIRE(path == expected);
  }

  void check_all() {
    REQUIRE(index_.size() == static_cast<int64_t>(model_.nodes.size()));
    for (const Tier tier : kTiersOfIndex) {
      const TierCounts counts = index_.counts(tier), expected = model_.counts(tier);
      REQUIRE(counts.filling == expected.filling);
      REQUIRE(counts.ready == expected.ready);
      REQUIRE(counts.evicting == expected.evicting);
      REQUIRE(counts.pinned == expected.pinned);
    }
    for (const auto& [prefix, node] : model_.nodes) {
      const Tokens before = model_.parent(prefix);
      REQUIRE(index_.parent(node.id) == id(before));
      REQUIRE(index_.key(node.id) == backend::chain_key(index_.key(id(before)), std::span(prefix).last(block_tokens_)));
      REQUIRE(std::ranges::equal(index_.tokens(node.id), std::span(prefix).last(block_tokens_)));
      REQUIRE(index_.hits(node.id) == node.hits);
      for (const Tier tier : kTiersOfIndex) {
        const Model::Copy& copy = node.copies[slot_of(tier)];
        REQUIRE(index_.state(node.id, tier) == copy.state);
        REQUIRE(index_.pins(node.id, tier) == copy.pins);
        if (copy.state != BlockState::kAbsent) REQUIRE(index_.place(node.id, tier) == copy.place);
      }
    }
    std::set<NodeId> visited = {BlockIndex::kRoot};
    index_.for_each([&](NodeId node) {
      REQUIRE(visited.contains(index_.parent(node)));
      REQUIRE(visited.insert(node).second);
    });
    REQUIRE(visited.size() == model_.nodes.size() + 1);
  }

  // Without pins and transfers everything can go, and then nothing is left.
  void drain() {
    const std::map<Tokens, Model::Node> nodes = model_.nodes;
    for (const auto& [prefix, node] : nodes) {
      for (const Tier tier : kTiersOfIndex) {
        while (model_.nodes.contains(prefix) && model_.copy(prefix, tier).pins > 0) {
          --model_.copy(prefix, tier).pins;
          index_.unpin(node.id, tier);
          model_.forget(prefix);
        }
      }
    }
    for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
      for (NodeId victim; (victim = index_.evict(tier)) != BlockIndex::kNone;) index_.remove(victim, tier);
    }
    std::vector<NodeId> left;
    index_.for_each([&](NodeId node) { left.push_back(node); });
    for (const NodeId node : left) index_.pin(node, Tier::kHost);
    for (const NodeId node : left) {
      index_.remove(node, Tier::kDisk);
      index_.remove(node, Tier::kRemote);
      index_.unpin(node, Tier::kHost);
    }
    std::vector<NodeId> filling;
    index_.for_each([&](NodeId node) { filling.push_back(node); });
    std::ranges::reverse(filling);  // children first, so that no number is used twice
    for (const NodeId node : filling) {
      if (index_.state(node, Tier::kHost) != BlockState::kAbsent) index_.remove(node, Tier::kHost);
    }
    REQUIRE(index_.size() == 0);
    for (const Tier tier : kTiersOfIndex) {
      const TierCounts counts = index_.counts(tier);
      REQUIRE(counts.filling + counts.ready + counts.evicting + counts.pinned == 0);
    }
  }

  BlockIndex::Options options_;
  size_t block_tokens_;
  BlockIndex index_;
  Model model_;
  std::mt19937 random_;
  int alphabet_;
};

BlockIndex::Options options_for(std::string_view policy, int64_t block_tokens = 2) {
  return {.block_tokens = block_tokens, .policy = std::string(policy), .host_blocks = 40, .disk_blocks = 80};
}

void run_random_calls(int seeds, int calls) {
  for (const std::string_view policy : eviction_policies()) {
    for (int seed = 0; seed < seeds; ++seed) {
      INFO("policy " << policy << ", seed " << seed);
      BlockIndex::Options options = options_for(policy, 1 + seed % 3);
      if (seed % 2 == 1) options.host_blocks = options.disk_blocks = 0;
      if (seed % 3 == 2) options.hash = &equal_hash;
      // Few tokens make narrow, deep trees, many make wide ones.
      RandomCalls(options, static_cast<uint32_t>(seed), seed % 5 < 3 ? 3 : 60).run(calls);
    }
  }
}

TEST_CASE("random calls give what a model of maps says, for each policy", "[block_index]") {
  run_random_calls(12, 2500);
}
TEST_CASE("many random calls give what a model of maps says", "[.long]") { run_random_calls(60, 10000); }

NodeId add(BlockIndex& index, NodeId parent, int32_t token, Tier tier = Tier::kHost) {
  const Tokens tokens(2, token);
  const NodeId node = index.insert(parent, tokens);
  index.begin_fill(node, tier, token);
  index.finish_fill(node, tier);
  return node;
}

TEST_CASE("the least recently used block goes first, but after those behind it", "[block_index]") {
  BlockIndex index(options_for("lru"));
  const NodeId a = add(index, BlockIndex::kRoot, 1), b = add(index, a, 2);
  const NodeId c = add(index, BlockIndex::kRoot, 3), d = add(index, c, 4);
  index.touch(std::vector{a, b});
  REQUIRE(index.evict(Tier::kHost) == d);
  REQUIRE(index.evict(Tier::kHost) == c);
  index.pin(b, Tier::kHost);
  REQUIRE(index.evict(Tier::kHost) == BlockIndex::kNone);
  index.unpin(b, Tier::kHost);
  REQUIRE(index.evict(Tier::kHost) == b);
  REQUIRE(index.evict(Tier::kHost) == a);
  REQUIRE(index.evict(Tier::kHost) == BlockIndex::kNone);
}

TEST_CASE("a block stays while the one behind it is filled, and may go when that fails", "[block_index]") {
  for (const std::string_view policy : eviction_policies()) {
    BlockIndex index(options_for(policy));
    const NodeId a = add(index, BlockIndex::kRoot, 1);
    const NodeId b = index.insert(a, Tokens{2, 2});
    index.begin_fill(b, Tier::kHost, 5);
    REQUIRE(index.evict(Tier::kHost) == BlockIndex::kNone);
    index.remove(b, Tier::kHost);
    REQUIRE(index.evict(Tier::kHost) == a);
  }
}

TEST_CASE("a tier's blocks do not keep those of another tier", "[block_index]") {
  BlockIndex index(options_for("lru"));
  const NodeId a = add(index, BlockIndex::kRoot, 1);
  const NodeId b = add(index, a, 2, Tier::kDisk);
  index.pin(a, Tier::kDisk);
  REQUIRE(index.evict(Tier::kHost) == a);
  REQUIRE(index.evict(Tier::kDisk) == b);
  REQUIRE(index.evict(Tier::kRemote) == BlockIndex::kNone);
  REQUIRE(index.state(a, Tier::kDevice) == BlockState::kAbsent);
}

TEST_CASE("nodes are forgotten from the end, and their numbers are used again", "[block_index]") {
  BlockIndex index(options_for("lru"));
  const NodeId a = index.insert(BlockIndex::kRoot, Tokens{1, 1});
  const NodeId b = index.insert(a, Tokens{2, 2});
  const NodeId c = add(index, b, 3);
  index.pin(a, Tier::kDisk);
  index.remove(c, Tier::kHost);
  REQUIRE(index.size() == 1);
  REQUIRE(index.find(BlockIndex::kRoot, Tokens{1, 1}) == a);
  REQUIRE(index.insert(a, Tokens{4, 4}) == b);
  REQUIRE(index.hits(b) == 0);
  index.unpin(a, Tier::kDisk);
  REQUIRE(index.size() == 2);
  index.remove(b, Tier::kRemote);
  REQUIRE(index.size() == 0);
}

TEST_CASE("a cleared index is as a new one", "[block_index]") {
  BlockIndex::Options options = options_for("arc");
  options.fingerprint = {1, 2};
  BlockIndex index(options);
  for (int32_t i = 0; i < 100; ++i) add(index, i % 3 == 0 ? BlockIndex::kRoot : static_cast<NodeId>(i), i);
  index.clear();
  REQUIRE(index.size() == 0);
  REQUIRE(index.counts(Tier::kHost).ready == 0);
  REQUIRE(index.evict(Tier::kHost) == BlockIndex::kNone);
  REQUIRE(index.key(BlockIndex::kRoot) == BlockKey{1, 2});
  REQUIRE(index.find(BlockIndex::kRoot, Tokens{0, 0}) == BlockIndex::kNone);
}

TEST_CASE("references to keys and tokens stay valid while the index grows", "[block_index]") {
  BlockIndex index(options_for("lru"));
  const NodeId first = add(index, BlockIndex::kRoot, 1);
  const BlockKey& key = index.key(first);
  const std::span<const int32_t> tokens = index.tokens(first);
  for (int32_t i = 0; i < 100000; ++i) index.insert(BlockIndex::kRoot, Tokens{i, -2});
  REQUIRE(&key == &index.key(first));
  REQUIRE(tokens.data() == index.tokens(first).data());
}

// The worst cases are linear: each of these takes a second at most; quadratic ones would take hours.
constexpr int32_t kMany = 1 << 20;

NodeId make_chain(BlockIndex& index) {
  NodeId node = BlockIndex::kRoot;
  for (int32_t i = 0; i < kMany / 4; ++i) node = add(index, node, i);
  return node;
}

TEST_CASE("a chain of many blocks goes from its end", "[block_index]") {
  for (const std::string_view policy : eviction_policies()) {
    BlockIndex index(options_for(policy));
    NodeId expected = make_chain(index);
    while (expected != BlockIndex::kRoot) {
      const NodeId victim = index.evict(Tier::kHost);
      if (victim != expected) FAIL("another block than the last of the chain");
      expected = index.parent(victim);
      index.remove(victim, Tier::kHost);
    }
    REQUIRE(index.size() == 0);
  }
}

TEST_CASE("a chain that only its last block keeps is forgotten at once", "[block_index]") {
  BlockIndex index(options_for("lru"));
  NodeId node = BlockIndex::kRoot;
  for (int32_t i = 0; i < kMany; ++i) node = index.insert(node, Tokens{i, i});
  REQUIRE(index.size() == kMany);
  index.remove(node, Tier::kHost);
  REQUIRE(index.size() == 0);
}

TEST_CASE("a root with many children finds and forgets each of them", "[block_index]") {
  BlockIndex index(options_for("lru"));
  for (int32_t i = 0; i < kMany; ++i) add(index, BlockIndex::kRoot, i);
  for (int32_t i = 0; i < kMany; ++i) {
    const NodeId node = index.find(BlockIndex::kRoot, Tokens{i, i});
    if (node == BlockIndex::kNone || index.place(node, Tier::kHost) != i) FAIL("not found");
    if (i % 2 == 0) index.remove(node, Tier::kHost);
  }
  for (int32_t i = 0; i < kMany; ++i) {
    if ((index.find(BlockIndex::kRoot, Tokens{i, i}) == BlockIndex::kNone) != (i % 2 == 0)) FAIL("wrong");
  }
  for (int32_t i = 1; i < kMany; i += 2) {
    const NodeId victim = index.evict(Tier::kHost);
    if (index.place(victim, Tier::kHost) != i) FAIL("not the oldest");
    index.remove(victim, Tier::kHost);
  }
  REQUIRE(index.size() == 0);
}

TEST_CASE("victims are found at once where pins block nearly all", "[block_index]") {
  for (const std::string_view policy : eviction_policies()) {
    BlockIndex index(options_for(policy));
    const NodeId last = make_chain(index);
    index.pin(last, Tier::kHost);
    for (int i = 0; i < 100000; ++i) {
      if (index.evict(Tier::kHost) != BlockIndex::kNone) FAIL("a block before a pinned one");
      const NodeId other = add(index, BlockIndex::kRoot, -1);
      if (index.evict(Tier::kHost) != other) FAIL("not the only one that may go");
      index.remove(other, Tier::kHost);
      index.unpin(last, Tier::kHost);
      index.pin(last, Tier::kHost);
    }
    index.unpin(last, Tier::kHost);
    REQUIRE(index.evict(Tier::kHost) == last);
  }
}

TEST_CASE("pinning and unpinning everything in turns costs no more than the calls", "[block_index]") {
  for (const std::string_view policy : eviction_policies()) {
    BlockIndex index(options_for(policy));
    std::vector<NodeId> nodes;
    for (int32_t i = 0; i < kMany / 16; ++i) nodes.push_back(add(index, BlockIndex::kRoot, i));
    for (int round = 0; round < 3; ++round) {
      for (const NodeId node : nodes) index.pin(node, Tier::kHost);
      for (int i = 0; i < 1000; ++i) {
        if (index.evict(Tier::kHost) != BlockIndex::kNone) FAIL("a pinned block");
      }
      for (const NodeId node : nodes) index.unpin(node, Tier::kHost);
      for (const NodeId node : nodes) {
        index.unpin((index.pin(node, Tier::kHost), node), Tier::kHost);
      }
    }
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (index.evict(Tier::kHost) == BlockIndex::kNone) FAIL("one that may go");
    }
    REQUIRE(index.evict(Tier::kHost) == BlockIndex::kNone);
  }
}

}  // namespace
}  // namespace hetero::graph
