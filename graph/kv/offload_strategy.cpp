#include "graph/kv/offload_strategy.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>

namespace hetero::graph {
namespace {

class None final : public OffloadStrategy {
 public:
  const char* name() const override { return "none"; }
  void choose(std::vector<OffloadCandidate>& candidates) const override { candidates.clear(); }
};

// Of one use, the pages nearest to the end of a sequence leave last: they are the ones that are
// needed whatever the window is.
auto least_recent(const OffloadCandidate& candidate) {
  return std::tuple(!candidate.idle, candidate.last_use, candidate.first_token, candidate.group, candidate.page);
}

class ByPressure final : public OffloadStrategy {
 public:
  const char* name() const override { return "by_pressure"; }
  void choose(std::vector<OffloadCandidate>& candidates) const override {
    std::ranges::sort(candidates, {}, least_recent);
  }
};

class SlidingWindow final : public OffloadStrategy {
 public:
  explicit SlidingWindow(AttentionSpan span) : span_(span) {}
  const char* name() const override { return "sliding_window"; }
  void choose(std::vector<OffloadCandidate>& candidates) const override {
    std::erase_if(candidates, [&](const OffloadCandidate& candidate) {
      if (candidate.idle) return false;
      return candidate.first_token < span_.sinks || candidate.tokens_after < span_.window;
    });
    std::ranges::sort(candidates, {}, least_recent);
  }

 private:
  AttentionSpan span_;
};

class OldestLayerFirst final : public OffloadStrategy {
 public:
  const char* name() const override { return "oldest_layer_first"; }
  void choose(std::vector<OffloadCandidate>& candidates) const override {
    std::unordered_map<int32_t, uint64_t> last_use;  // of a group
    for (const OffloadCandidate& candidate : candidates) {
      if (candidate.idle) continue;
      uint64_t& latest = last_use[candidate.group];
      latest = std::max(latest, candidate.last_use);
    }
    std::ranges::sort(candidates, {}, [&](const OffloadCandidate& candidate) {
      const auto found = last_use.find(candidate.group);
      const uint64_t layer_use = candidate.idle || found == last_use.end() ? 0 : found->second;
      return std::tuple(!candidate.idle, layer_use, candidate.group, candidate.last_use, candidate.first_token,
                        candidate.page);
    });
  }
};

}  // namespace

Result<std::unique_ptr<OffloadStrategy>> make_offload_strategy(std::string_view name, AttentionSpan span) {
  using Made = std::unique_ptr<OffloadStrategy>;
  if (name == "none") return Made(std::make_unique<None>());
  if (name == "by_pressure") return Made(std::make_unique<ByPressure>());
  if (name == "oldest_layer_first") return Made(std::make_unique<OldestLayerFirst>());
  if (name == "sliding_window") {
    if (span.window > 0) return Made(std::make_unique<SlidingWindow>(span));
    return Status(ErrorClass::kUsage, "the offload strategy sliding_window needs a window of tokens");
  }
  return Status(ErrorClass::kUsage, "there is no offload strategy '" + std::string(name) +
                                        "'; there are none, by_pressure, sliding_window and oldest_layer_first");
}

}  // namespace hetero::graph
