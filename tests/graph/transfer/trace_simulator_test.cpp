// Traces as they are read and generated, and what the simulator says of them.

#include "graph/transfer/trace_simulator.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <list>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "graph/transfer/eviction_policy.h"
#include "tests/catch/catch.h"

namespace hetero::graph {
namespace {

constexpr const char* kLine = R"({"timestamp": 1500, "input_length": 700, "output_length": 52, "hash_ids": [4, 9]})";

Result<std::vector<TraceRequest>> read(const std::string& text) {
  std::istringstream stream(text);
  return read_mooncake_trace(stream);
}

std::string error_of(const std::string& line) {
  const auto trace = read(std::string(kLine) + "\n\n" + line + "\n" + kLine);
  REQUIRE(!trace.ok());
  REQUIRE(trace.status().error_class() == ErrorClass::kStorage);
  return trace.status().message();
}

TraceRequest request(std::vector<int64_t> blocks) { return {.time = 0, .blocks = std::move(blocks), .new_tokens = 0}; }

TEST_CASE("a trace in Mooncake's format is read line by line", "[trace]") {
  const auto trace = read(std::string("\n  \r\n") + kLine + "\r\n" +
                          R"({"hash_ids": [], "timestamp": 2e3, "input_length": 0, "output_length": 0, "more": {}})");
  REQUIRE(trace.ok());
  REQUIRE(trace.value().size() == 2);
  REQUIRE(trace.value()[0].time == 1.5);
  REQUIRE(trace.value()[0].blocks == std::vector<int64_t>{4, 9});
  REQUIRE(trace.value()[0].new_tokens == 52);
  REQUIRE(trace.value()[1].time == 2);
  REQUIRE(trace.value()[1].blocks.empty());
  REQUIRE(read("").value().empty());
}

TEST_CASE("what is wrong with a trace is said with the line's number", "[trace]") {
  REQUIRE(error_of("{") == "line 3 of the trace is not JSON");
  REQUIRE(error_of("{} {}") == "line 3 of the trace is not JSON");
  REQUIRE(error_of("\xff\xfe") == "line 3 of the trace is not JSON");
  REQUIRE(error_of(std::string("\0", 1)) == "line 3 of the trace is not JSON");
  REQUIRE(error_of(std::string(200000, '[')) == "line 3 of the trace is not JSON");
  REQUIRE(error_of("[1, 2]") == "line 3 of the trace is not an object of JSON");
  REQUIRE(error_of("{}") == "line 3 of the trace has no number \"timestamp\"");
  REQUIRE(error_of(R"({"timestamp": "1"})") == "line 3 of the trace has no number \"timestamp\"");
  REQUIRE(error_of(R"({"timestamp": -1})") == "line 3 of the trace has a \"timestamp\" that is no time");
  REQUIRE(error_of(R"({"timestamp": 1})") == "line 3 of the trace has no count \"input_length\"");
  REQUIRE(error_of(R"({"timestamp": 1, "input_length": 1.5})") == "line 3 of the trace has no count \"input_length\"");
  REQUIRE(error_of(R"({"timestamp": 1, "input_length": 1, "output_length": -1})") ==
          "line 3 of the trace has no count \"output_length\"");
  const std::string begin = R"({"timestamp": 1, "input_length": 1, "output_length": 1)";
  REQUIRE(error_of(begin + "}") == "line 3 of the trace has no list \"hash_ids\"");
  REQUIRE(error_of(begin + R"(, "hash_ids": {"1": 2}})") == "line 3 of the trace has no list \"hash_ids\"");
  for (const char* id : {"\"1\"", "null", "1.0", "[1]", "9223372036854775808", "1e3", "99999999999999999999999"}) {
    REQUIRE(error_of(begin + R"(, "hash_ids": [1, )" + id + "]}") ==
            "line 3 of the trace has a hash id that is no integer of 64 bits");
  }
  REQUIRE(read(begin + R"(, "hash_ids": [9223372036854775807, -9223372036854775808]})").ok());
}

TEST_CASE("damaged traces give errors or requests, but nothing else", "[trace]") {
  std::mt19937 random(3);
  for (int i = 0; i < 3000; ++i) {
    std::string text(kLine);
    text.append("\n").append(kLine);
    for (uint32_t change = random() % 4; change-- > 0;) text[random() % text.size()] = static_cast<char>(random());
    text.resize(random() % (text.size() + 1));
    const auto trace = read(text);
    if (trace.ok())
      REQUIRE(trace.value().size() <= 10);
    else
      REQUIRE(trace.status().message().starts_with("line "));
  }
}

TEST_CASE("a trace is read from a file, and a missing file is named", "[trace]") {
  const std::string path = (std::filesystem::temp_directory_path() / "hetero_trace_test.jsonl").string();
  std::ofstream(path) << kLine << '\n';
  REQUIRE(read_mooncake_trace(path).value().size() == 1);
  std::filesystem::remove(path);
  REQUIRE(read_mooncake_trace(path).status().message() == "cannot open the trace " + path);
}

TEST_CASE("a seed gives a trace, and another seed another", "[trace]") {
  const SyntheticTraceOptions options = {.requests = 500};
  const std::vector<TraceRequest> trace = generate_trace(options);
  REQUIRE(trace.size() == 500);
  REQUIRE(std::ranges::is_sorted(trace, {}, &TraceRequest::time));
  for (const TraceRequest& each : trace) REQUIRE(!each.blocks.empty());
  const auto is_equal = [](const TraceRequest& a, const TraceRequest& b) {
    return a.time == b.time && a.blocks == b.blocks && a.new_tokens == b.new_tokens;
  };
  REQUIRE(std::ranges::equal(trace, generate_trace(options), is_equal));
  SyntheticTraceOptions other = options;
  other.seed = 2;
  REQUIRE(!std::ranges::equal(trace, generate_trace(other), is_equal));
}

TEST_CASE("hits are the blocks at the beginning that are there", "[trace]") {
  const std::vector<TraceRequest> trace = {request({1, 2, 3}), request({1, 2, 4}), request({2, 3}), request({1, 2, 3})};
  for (const std::string_view policy : eviction_policies()) {
    const SimulatedTrace result = simulate_trace(trace, {.capacity = 100, .policy = std::string(policy)});
    REQUIRE(result.requests == 4);
    REQUIRE(result.blocks == 11);
    REQUIRE(result.hits == 5);
    REQUIRE(result.evictions == 0);
    REQUIRE(result.hit_rate() == 5.0 / 11);
  }
}

TEST_CASE("of a request that is larger than the tier the beginning is kept", "[trace]") {
  const std::vector<TraceRequest> trace = {request({7}), request({1, 2, 3, 4}), request({1, 2, 3, 4})};
  for (const std::string_view policy : eviction_policies()) {
    const SimulatedTrace result = simulate_trace(trace, {.capacity = 2, .policy = std::string(policy)});
    REQUIRE(result.hits == 2);
    REQUIRE(result.evictions == 1);
    REQUIRE(simulate_trace(trace, {.capacity = 0, .policy = std::string(policy)}).hits == 0);
  }
  REQUIRE(simulate_optimum(trace, 0).hits == 0);
  REQUIRE(simulate_optimum({}, 5).hit_rate() == 0);
}

// The policies do what their papers say where all blocks may go: requests of one block.
std::vector<TraceRequest> single_blocks(std::initializer_list<int64_t> ids) {
  std::vector<TraceRequest> trace;
  for (const int64_t id : ids) trace.push_back(request({id}));
  return trace;
}

int64_t hits(std::string_view policy, int64_t capacity, std::initializer_list<int64_t> ids) {
  return simulate_trace(single_blocks(ids), {.capacity = capacity, .policy = std::string(policy)}).hits;
}

TEST_CASE("lru keeps what was used last, lfu what was used most", "[trace]") {
  REQUIRE(hits("lru", 2, {1, 1, 2, 3, 1}) == 1);
  REQUIRE(hits("lfu", 2, {1, 1, 2, 3, 1}) == 2);
  REQUIRE(hits("lru", 2, {1, 1, 2, 3, 2}) == 2);
  REQUIRE(hits("lfu", 2, {1, 1, 2, 3, 2}) == 1);
}

TEST_CASE("blocks that were used twice survive many that are used once", "[trace]") {
  std::vector<TraceRequest> trace = single_blocks({1, 2, 1, 2, 1, 2});
  for (int64_t id = 100; id < 200; ++id) trace.push_back(request({id}));
  trace.push_back(request({1}));
  trace.push_back(request({2}));
  for (const char* policy : {"lfu", "slru", "s3fifo", "arc"}) {
    REQUIRE(simulate_trace(trace, {.capacity = 10, .policy = policy}).hits == 6);
  }
  REQUIRE(simulate_trace(trace, {.capacity = 10, .policy = "lru"}).hits == 4);
}

// Least recently used prefixes with lists and maps: a block goes after those behind it.
int64_t naive_lru_hits(const std::vector<TraceRequest>& trace, size_t capacity) {
  using Prefix = std::vector<int64_t>;
  std::list<Prefix> order;  // most recent first
  int64_t hits = 0;
  for (const TraceRequest& request : trace) {
    std::vector<Prefix> prefixes;
    for (size_t n = 1; n <= request.blocks.size(); ++n) {
      prefixes.emplace_back(request.blocks.begin(), request.blocks.begin() + static_cast<ptrdiff_t>(n));
    }
    size_t known = 0;
    while (known < prefixes.size() && std::ranges::find(order, prefixes[known]) != order.end()) ++known;
    hits += static_cast<int64_t>(known);
    for (size_t i = known; i-- > 0;) order.splice(order.begin(), order, std::ranges::find(order, prefixes[i]));
    auto place = known > 0 ? std::ranges::find(order, prefixes[known - 1]) : order.end();
    for (size_t i = known; i < prefixes.size(); ++i) {
      if (order.size() >= capacity) {
        if (std::ranges::find(prefixes, order.back()) != prefixes.end()) break;
        order.pop_back();
      }
      place = order.insert(place == order.end() ? order.begin() : std::next(place), prefixes[i]);
    }
  }
  return hits;
}

TEST_CASE("a simulation with lru hits what a naive one hits", "[trace]") {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const std::vector<TraceRequest> trace = generate_trace({.seed = seed,
                                                            .requests = 300,
                                                            .system_prompts = 5,
                                                            .system_blocks = 4,
                                                            .active = 10,
                                                            .turn_blocks = 3,
                                                            .prompt_blocks = 6});
    for (const int64_t capacity : {20, 60, 150}) {
      REQUIRE(simulate_trace(trace, {.capacity = capacity, .policy = "lru"}).hits ==
              naive_lru_hits(trace, static_cast<size_t>(capacity)));
    }
  }
}

// The other policies as their papers say, for single blocks, with lists of which the front is new.
class Naive {
 public:
  explicit Naive(size_t capacity) : capacity_(capacity) {}
  virtual ~Naive() = default;
  int64_t run(const std::vector<TraceRequest>& trace) {
    int64_t hits = 0;
    for (const TraceRequest& request : trace) {
      const int64_t id = request.blocks.front();
      if (has(first_, id) || has(second_, id)) {
        ++hits;
        touch(id);
        continue;
      }
      if (first_.size() + second_.size() >= capacity_) evict();
      insert(id);
    }
    return hits;
  }

 protected:
  using Ids = std::list<int64_t>;
  static bool has(const Ids& ids, int64_t id) { return std::ranges::find(ids, id) != ids.end(); }
  void move(int64_t id, Ids& to) {
    first_.remove(id);
    second_.remove(id);
    to.push_front(id);
  }
  static int64_t take_last(Ids& ids) {
    const int64_t id = ids.back();
    ids.pop_back();
    return id;
  }
  static void keep(Ids& ids, size_t most) {
    while (ids.size() > most) ids.pop_back();
  }
  virtual void touch(int64_t id) = 0;
  virtual void evict() = 0;
  virtual void insert(int64_t id) { first_.push_front(id); }

  size_t capacity_;
  Ids first_, second_;
};

class NaiveSlru final : public Naive {
 public:
  using Naive::Naive;
  void touch(int64_t id) override {
    move(id, second_);
    if (second_.size() > capacity_ * 8 / 10) first_.push_front(take_last(second_));
  }
  void evict() override { take_last(first_.empty() ? second_ : first_); }
};

class NaiveS3Fifo final : public Naive {
 public:
  using Naive::Naive;
  void touch(int64_t id) override { uses_[id] = std::min(uses_[id] + 1, 3); }
  void insert(int64_t id) override {
    uses_[id] = 0;
    (has(ghosts_, id) ? second_ : first_).push_front(id);
    ghosts_.remove(id);
  }
  void evict() override {
    if (first_.size() * 10 >= capacity_ && evict_small()) return;
    if (evict_main() || evict_small()) return;
    evict_main();
  }

 private:
  bool evict_small() {
    while (!first_.empty()) {
      const int64_t id = take_last(first_);
      if (uses_[id] > 1) {
        uses_[id] = 0;
        second_.push_front(id);
        continue;
      }
      ghosts_.push_front(id);
      keep(ghosts_, capacity_ * 9 / 10);
      return true;
    }
    return false;
  }
  bool evict_main() {
    while (!second_.empty()) {
      const int64_t id = take_last(second_);
      if (uses_[id] == 0) return true;
      --uses_[id];
      second_.push_front(id);
    }
    return false;
  }

  std::map<int64_t, int> uses_;
  Ids ghosts_;
};

class NaiveArc final : public Naive {
 public:
  using Naive::Naive;
  void touch(int64_t id) override { move(id, second_); }
  void insert(int64_t id) override {
    const auto b1 = static_cast<double>(evicted_first_.size()), b2 = static_cast<double>(evicted_second_.size());
    if (has(evicted_first_, id)) {
      share_ = std::min(static_cast<double>(capacity_), share_ + std::max(1.0, b2 / b1));
      evicted_first_.remove(id);
      second_.push_front(id);
    } else if (has(evicted_second_, id)) {
      share_ = std::max(0.0, share_ - std::max(1.0, b1 / b2));
      evicted_second_.remove(id);
      second_.push_front(id);
    } else {
      first_.push_front(id);
    }
  }
  void evict() override {
    if (!first_.empty() && (static_cast<double>(first_.size()) > share_ || second_.empty())) {
      evicted_first_.push_front(take_last(first_));
      keep(evicted_first_, capacity_ - first_.size());
    } else {
      evicted_second_.push_front(take_last(second_));
      keep(evicted_second_, 2 * capacity_ - first_.size() - second_.size() - evicted_first_.size());
    }
  }

 private:
  double share_ = 0;
  Ids evicted_first_, evicted_second_;
};

// Popular blocks among ones that are scanned once or in turns.
std::vector<TraceRequest> mixed_single_blocks(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TraceRequest> trace;
  int64_t scanned = 1000;
  while (trace.size() < 4000) {
    const uint32_t kind = random() % 10;
    if (kind < 7) trace.push_back(request({static_cast<int64_t>(random() % 200 * (random() % 200) / 200)}));
    if (kind == 7) trace.push_back(request({scanned++}));
    if (kind == 8) trace.push_back(request({static_cast<int64_t>(500 + trace.size() / 500 * 20 + random() % 40)}));
    if (kind == 9 && random() % 20 == 0) {
      for (int64_t i = 0; i < 60; ++i) trace.push_back(request({700 + i}));
    }
  }
  return trace;
}

TEST_CASE("slru, s3fifo and arc hit what naive ones hit", "[trace]") {
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    const std::vector<TraceRequest> trace = mixed_single_blocks(seed);
    for (const size_t capacity : {1, 7, 20, 50, 120}) {
      const auto hits = [&](const char* policy) {
        return simulate_trace(trace, {.capacity = static_cast<int64_t>(capacity), .policy = policy}).hits;
      };
      INFO("seed " << seed << ", capacity " << capacity);
      CHECK(hits("slru") == NaiveSlru(capacity).run(trace));
      CHECK(hits("s3fifo") == NaiveS3Fifo(capacity).run(trace));
      CHECK(hits("arc") == NaiveArc(capacity).run(trace));
    }
  }
}

TEST_CASE("no policy hits more than the optimum, and all hit the same where everything fits", "[trace]") {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const std::vector<TraceRequest> trace = generate_trace({.seed = seed, .requests = 1000, .system_prompts = 20});
    for (const int64_t capacity : {10, 100, 1000, 1000000}) {
      const SimulatedTrace best = simulate_optimum(trace, capacity);
      for (const std::string_view policy : eviction_policies()) {
        const SimulatedTrace result = simulate_trace(trace, {.capacity = capacity, .policy = std::string(policy)});
        REQUIRE(result.blocks == best.blocks);
        REQUIRE(result.hits <= best.hits);
        if (capacity == 1000000) REQUIRE(result.hits == best.hits);
      }
    }
  }
}

}  // namespace
}  // namespace hetero::graph
