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
#include "tests/graph/catch.h"

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
    std::string text = std::string(kLine) + "\n" + kLine;
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
