// Random operations on a KV cache against a simple model: every sequence is a vector of tokens, and
// what a page holds follows from them.

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/graph/kv/kv_fixture.h"

namespace hetero::graph::testing {
namespace {

struct Case {
  const char* name;
  const char* offload;
  std::vector<size_t> pages;  // by memory
  int groups = 1;
  AttentionSpan span = {};
  int rounds = 0;  // how long a move takes
  double failures = 0;
};

constexpr int kOperations = 12000;

struct Model {
  SequenceId id = 0;
  std::vector<int32_t> tokens;
  int64_t written = 0;
  bool preempted = false;
};

class Driver {
 public:
  Driver(const Case& how, uint64_t seed)
      : how_(how), random_(seed), memories_(how.pages), mover_(how.rounds, how.failures, seed) {
    KvOptions options = small_options(how.groups);
    options.offload = how.offload;
    options.span = how.span;
    options.figures = {.offload_bandwidth = 64e3, .return_bandwidth = 64e3, .prefill_rate = 1800};
    cache_ = make_cache(std::move(options), memories_, mover_);
  }

  void run() {
    for (int i = 0; i < kOperations; ++i) {
      operate();
      REQUIRE(same_as_model());
      if (i % 8 == 0) {
        const Status status = cache_->check();
        INFO((status.ok() ? std::string() : status.message()));
        REQUIRE(status.ok());
      }
    }
    REQUIRE_FALSE(mover_.source_changed);
    finish();
  }

  const KvCache& cache() const { return *cache_; }
  int64_t errors = 0;
  int64_t operations = 0;
  int64_t skipped = 0;

 private:
  size_t below(size_t count) { return random_() % count; }
  Model& any() { return models_[below(models_.size())]; }

  // Few different ones, so that prefixes meet.
  std::vector<int32_t> some_tokens(size_t most) {
    std::vector<int32_t> tokens(1 + below(most));
    for (int32_t& token : tokens) token = below(8) == 0 ? 1 : 0;
    return tokens;
  }

  // An operation may fail for want of pages, or because the mover fails: nothing has changed then.
  bool took(const Status& status) {
    ++operations;
    if (status.ok()) return true;
    ++errors;
    const bool expected = status.error_class() == ErrorClass::kResource ||
                          (how_.failures > 0 && status.error_class() == ErrorClass::kDevice);
    INFO(status.message());
    REQUIRE(expected);
    REQUIRE(status.message().find('\n') == std::string::npos);
    return false;
  }

  void operate() {
    const size_t choice = models_.empty() ? 0 : below(100);
    if (choice < 8) return allocate();
    Model& model = any();
    if (choice < 14) return free(model);
    if (choice < 20) return fork(model);
    if (choice < 26) return preempt(model);
    if (choice < 40) return resume(model);
    if (model.preempted) return refuses_while_preempted(model);
    if (choice < 65) return extend(model);
    if (choice < 85) return write(model);
    if (choice < 92) return truncate(model);
    if (choice < 95) {
      ++operations;
      const Status status = cache_->prefetch(model.id, static_cast<int>(below(static_cast<size_t>(how_.groups))));
      if (how_.failures == 0) REQUIRE(status.ok());
      return;
    }
    read(model);
  }

  void allocate() {
    if (models_.size() >= 12) return;
    const std::vector<int32_t> tokens = some_tokens(24);
    const int64_t matched = cache_->match(tokens);
    Model model;
    model.id = cache_->allocate(tokens);
    ++operations;
    REQUIRE(cache_->length(model.id) == matched);
    REQUIRE(matched % kPageTokens == 0);
    model.tokens.assign(tokens.begin(), tokens.begin() + matched);
    model.written = matched;
    models_.push_back(model);
    if (took(cache_->extend(model.id, std::span(tokens).subspan(static_cast<size_t>(matched))))) {
      models_.back().tokens = tokens;
    }
  }

  void free(Model& model) {
    REQUIRE(cache_->free(model.id).ok());
    ++operations;
    std::swap(model, models_.back());
    models_.pop_back();
  }

  void fork(const Model& model) {
    if (models_.size() >= 12) return;
    const Result<SequenceId> made = cache_->fork(model.id);
    ++operations;
    if (model.preempted) {
      REQUIRE_FALSE(made.ok());
      return;
    }
    REQUIRE(made.ok());
    Model copy = model;
    copy.id = made.value();
    models_.push_back(std::move(copy));
  }

  void extend(Model& model) {
    if (model.tokens.size() > 60) return;
    const std::vector<int32_t> tokens = some_tokens(6);
    if (!took(cache_->extend(model.id, tokens))) return;
    model.tokens.insert(model.tokens.end(), tokens.begin(), tokens.end());
  }

  void write(Model& model) {
    if (took(write_tokens(*cache_, model.id))) model.written = std::ssize(model.tokens);
  }

  void truncate(Model& model) {
    const auto length = static_cast<int64_t>(below(model.tokens.size() + 1));
    REQUIRE(cache_->truncate(model.id, length).ok());
    ++operations;
    model.tokens.resize(static_cast<size_t>(length));
    model.written = std::min(model.written, length);
  }

  void preempt(Model& model) {
    if (model.preempted) return;
    const size_t how = below(3);
    const Result<Preemption> done =
        how == 0 ? cache_->preempt(model.id)
                 : cache_->preempt(model.id, how == 1 ? Preemption::kOffload : Preemption::kRecompute);
    if (took(done.status())) model.preempted = true;
  }

  void resume(Model& model) {
    if (!model.preempted) return;
    const Result<int64_t> missing = cache_->resume(model.id);
    if (!took(missing.status())) return;
    model.preempted = false;
    // Recomputed tokens are to be written again; others may have computed some of them.
    if (missing.value() > 0) model.written = std::ssize(model.tokens) - missing.value();
    model.written = cache_->written_length(model.id);
  }

  void refuses_while_preempted(const Model& model) {
    const std::vector<int32_t> token = {0};
    ++operations;
    REQUIRE(cache_->extend(model.id, token).error_class() == ErrorClass::kUsage);
    REQUIRE(cache_->acquire(model.id, 0).error_class() == ErrorClass::kUsage);
  }

  void read(const Model& model) { took(check_content(*cache_, model.id, &skipped)); }

  bool same_as_model() const {
    return std::ranges::all_of(models_, [&](const Model& model) {
      return std::ranges::equal(cache_->tokens(model.id), model.tokens) &&
             cache_->written_length(model.id) == model.written && cache_->preempted(model.id) == model.preempted;
    });
  }

  // Without failures every sequence can be read again, alone; then nothing is left.
  void finish() {
    mover_.set_failures(0);
    while (!models_.empty()) {
      Model& model = models_.back();
      if (model.preempted && cache_->resume(model.id).ok()) model.preempted = false;
      if (!model.preempted) {
        const Status status = check_content(*cache_, model.id);
        REQUIRE((status.ok() || status.error_class() != ErrorClass::kInternal));
      }
      REQUIRE(cache_->free(model.id).ok());
      models_.pop_back();
    }
    REQUIRE(cache_->check().ok());
    // All that is left is cached.
    int64_t taken = 0;
    for (int memory = 0; memory < cache_->pages().memories(); ++memory) taken += cache_->pages().pool(memory).used();
    const int64_t cached = static_cast<int64_t>(cache_->cached_blocks()) * how_.groups;
    REQUIRE(taken == cached + cache_->pages().moving());
  }

  Case how_;
  std::mt19937_64 random_;
  KvMemories memories_;
  SlowMover mover_;
  std::unique_ptr<KvCache> cache_;
  std::vector<Model> models_;
};

}  // namespace

TEST_CASE("random operations on a KV cache do what they do to vectors of tokens", "[kv]") {
  const AttentionSpan window{.window = 12, .sinks = 4};
  const std::vector<Case> cases = {
      {.name = "one memory", .offload = "none", .pages = {40}},
      {.name = "one page", .offload = "none", .pages = {1}},
      {.name = "hardly any pages", .offload = "none", .pages = {7}, .failures = 0.1},
      {.name = "by pressure", .offload = "by_pressure", .pages = {14, 20}},
      {.name = "by pressure, slowly", .offload = "by_pressure", .pages = {20, 16, 16}, .rounds = 3},
      {.name = "by pressure, failing", .offload = "by_pressure", .pages = {20, 40}, .rounds = 2, .failures = 0.2},
      {.name = "layers", .offload = "oldest_layer_first", .pages = {60, 40}, .groups = 3, .rounds = 1},
      {.name = "layers, failing", .offload = "oldest_layer_first", .pages = {50, 60}, .groups = 3, .failures = 0.1},
      {.name = "window", .offload = "sliding_window", .pages = {24, 40}, .span = window, .rounds = 1},
      {.name = "window, failing", .offload = "sliding_window", .pages = {24, 40}, .span = window, .failures = 0.2},
      {.name = "window of pressed pages", .offload = "by_pressure", .pages = {24, 40}, .groups = 2, .span = window},
  };
  int64_t operations = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    INFO(cases[i].name);
    Driver driver(cases[i], 1000 + i);
    driver.run();
    operations += driver.operations;
    const KvCounters counters = driver.cache().counters();
    CHECK(driver.errors > 0);
    CHECK(driver.errors < driver.operations / 2);
    CHECK(counters.evicted > 0);
    CHECK(counters.shared > 0);
    if (cases[i].pages.size() > 1) {
      CHECK(counters.copied > 0);
      CHECK(counters.offloaded > 0);
      CHECK(counters.brought_back > 0);
      CHECK(counters.recomputed > 0);
    }
    if (cases[i].failures > 0) CHECK(counters.failed_moves > 0);
    CHECK((driver.skipped > 0) == (cases[i].span.window > 0 && counters.offloaded > 0));
  }
  CHECK(operations > 100000);
}

}  // namespace hetero::graph::testing
