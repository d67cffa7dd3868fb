#include "graph/transfer/trace_simulator.h"

#include <chrono>
#include <set>
#include <utility>
#include <vector>

#include "graph/transfer/block_index.h"

namespace hetero::graph {
namespace {

using Clock = std::chrono::steady_clock;

// An id stands for a block's tokens: its two halves.
constexpr int64_t kBlockTokens = 2;

std::vector<int32_t> tokens_of(const TraceRequest& request) {
  std::vector<int32_t> tokens;
  tokens.reserve(request.blocks.size() * kBlockTokens);
  for (const int64_t id : request.blocks) {
    tokens.push_back(static_cast<int32_t>(static_cast<uint64_t>(id) >> 32));
    tokens.push_back(static_cast<int32_t>(static_cast<uint64_t>(id) & UINT32_MAX));
  }
  return tokens;
}

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

class Simulation {
 public:
  explicit Simulation(const TraceOptions& options)
      : capacity_(options.capacity),
        index_({.block_tokens = kBlockTokens, .policy = options.policy, .host_blocks = options.capacity}) {}

  void run(const TraceRequest& request) {
    const std::vector<int32_t> tokens = tokens_of(request);
    path_.clear();
    index_.match(tokens, path_);
    index_.touch(path_);
    ++result_.requests;
    result_.blocks += static_cast<int64_t>(request.blocks.size());
    result_.hits += static_cast<int64_t>(path_.size());
    // A pin of the last block keeps those before it.
    NodeId last = BlockIndex::kRoot;
    const auto move_pin = [&](NodeId node) {
      if (node != BlockIndex::kRoot) index_.pin(node, Tier::kHost);
      if (last != BlockIndex::kRoot) index_.unpin(last, Tier::kHost);
      last = node;
    };
    if (!path_.empty()) move_pin(path_.back());
    for (size_t i = path_.size(); i < request.blocks.size(); ++i) {
      if (!make_room()) break;
      const NodeId node = index_.insert(last, std::span(tokens).subspan(i * kBlockTokens, kBlockTokens));
      index_.begin_fill(node, Tier::kHost, 0);
      index_.finish_fill(node, Tier::kHost);
      move_pin(node);
    }
    move_pin(BlockIndex::kRoot);
  }

  const SimulatedTrace& result() const { return result_; }

 private:
  bool make_room() {
    if (index_.size() < capacity_) return true;
    const NodeId victim = index_.evict(Tier::kHost);
    if (victim == BlockIndex::kNone) return false;
    index_.remove(victim, Tier::kHost);
    ++result_.evictions;
    return true;
  }

  int64_t capacity_;
  BlockIndex index_;
  std::vector<NodeId> path_;
  SimulatedTrace result_;
};

}  // namespace

SimulatedTrace simulate_trace(std::span<const TraceRequest> requests, const TraceOptions& options) {
  const auto begin = Clock::now();
  Simulation simulation(options);
  for (const TraceRequest& request : requests) simulation.run(request);
  SimulatedTrace result = simulation.result();
  result.seconds = seconds_since(begin);
  return result;
}

SimulatedTrace simulate_optimum(std::span<const TraceRequest> requests, int64_t capacity) {
  const auto begin = Clock::now();
  // Numbers of the prefixes, as an index without bounds gives them.
  BlockIndex index({.block_tokens = kBlockTokens});
  std::vector<NodeId> uses;
  SimulatedTrace result;
  for (const TraceRequest& request : requests) {
    const std::vector<int32_t> tokens = tokens_of(request);
    NodeId node = BlockIndex::kRoot;
    for (size_t i = 0; i < tokens.size(); i += kBlockTokens) {
      uses.push_back(node = index.insert(node, std::span(tokens).subspan(i, kBlockTokens)));
    }
    ++result.requests;
  }
  result.blocks = static_cast<int64_t>(uses.size());

  const size_t never = uses.size();
  std::vector<size_t> next_use(uses.size()), next_of_node(static_cast<size_t>(index.size()) + 1, never);
  for (size_t i = uses.size(); i-- > 0;) next_use[i] = std::exchange(next_of_node[uses[i]], i);

  std::set<size_t> kept;  // the next uses of the blocks in the tier
  for (size_t i = 0; i < uses.size(); ++i) {
    if (kept.erase(i) > 0) ++result.hits;
    if (next_use[i] != never) kept.insert(next_use[i]);
    if (static_cast<int64_t>(kept.size()) <= capacity) continue;
    kept.erase(std::prev(kept.end()));
    ++result.evictions;
  }
  result.seconds = seconds_since(begin);
  return result;
}

}  // namespace hetero::graph
