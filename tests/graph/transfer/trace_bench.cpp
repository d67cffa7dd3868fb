// hetero_trace_bench: what share of a trace's blocks each policy of eviction finds, by the size of
// the tier.
//
//   hetero_trace_bench                 a synthetic trace
//   hetero_trace_bench trace.jsonl     a trace in Mooncake's format
//
// Thread safety: one thread.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <unordered_set>
#include <vector>

#include "graph/transfer/eviction_policy.h"
#include "graph/transfer/trace_simulator.h"

namespace hetero::graph {
namespace {

void print(const char* name, const std::vector<TraceRequest>& trace) {
  const SimulatedTrace all = simulate_optimum(trace, INT64_MAX);
  const int64_t distinct = all.blocks - all.hits;
  std::printf("%s: %lld requests, %lld blocks, %lld of them different\n", name, static_cast<long long>(all.requests),
              static_cast<long long>(all.blocks), static_cast<long long>(distinct));
  std::printf("%10s", "capacity");
  for (const std::string_view policy : eviction_policies()) std::printf("%10s", std::string(policy).c_str());
  std::printf("%10s%14s\n", "optimum", "lru, ns/block");
  for (const double share : {0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0}) {
    const auto capacity = std::max<int64_t>(1, static_cast<int64_t>(share * static_cast<double>(distinct)));
    std::printf("%10lld", static_cast<long long>(capacity));
    double seconds = 0;
    for (const std::string_view policy : eviction_policies()) {
      const SimulatedTrace result = simulate_trace(trace, {.capacity = capacity, .policy = std::string(policy)});
      if (policy == "lru") seconds = result.seconds;
      std::printf("%9.2f%%", 100 * result.hit_rate());
    }
    const SimulatedTrace best = simulate_optimum(trace, capacity);
    std::printf("%9.2f%%%14.0f\n", 100 * best.hit_rate(), seconds * 1e9 / static_cast<double>(all.blocks));
  }
}

}  // namespace
}  // namespace hetero::graph

int main(int argc, char** argv) {
  using namespace hetero::graph;
  if (argc == 1) print("synthetic", generate_trace({}));
  for (int i = 1; i < argc; ++i) {
    const auto trace = read_mooncake_trace(std::string(argv[i]));
    if (!trace.ok()) {
      std::fprintf(stderr, "%s: %s\n", argv[i], trace.status().message().c_str());
      return 1;
    }
    print(argv[i], trace.value());
  }
}
