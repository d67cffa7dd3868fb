// The simulator of traces: what share of a trace's blocks a tier of some size finds, for each
// policy of eviction.
//
// Each request is matched, its known blocks count as hits and are touched, and the others are
// added. If there is no room, a victim goes. A request's own blocks are no victims, so of a request
// that is larger than the tier only the beginning is kept.
//
//   auto trace = read_mooncake_trace("conversation_trace.jsonl");
//   const SimulatedTrace lru = simulate_trace(trace.value(), {.capacity = 10000, .policy = "lru"});
//   const SimulatedTrace best = simulate_optimum(trace.value(), 10000);
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "graph/transfer/request_trace.h"

namespace hetero::graph {

struct TraceOptions {
  int64_t capacity = 1000;  // blocks
  std::string policy = "lru";
};

struct SimulatedTrace {
  int64_t requests = 0;
  int64_t blocks = 0;  // asked for
  int64_t hits = 0;
  int64_t evictions = 0;
  double seconds = 0;  // that the simulation took

  double hit_rate() const { return blocks > 0 ? static_cast<double>(hits) / static_cast<double>(blocks) : 0; }
};

SimulatedTrace simulate_trace(std::span<const TraceRequest> requests, const TraceOptions& options);

// An upper bound for every policy, by looking ahead: the block whose next use is farthest goes, or
// does not come in (Belady, "A study of replacement algorithms for a virtual-storage computer", IBM
// Systems Journal 1966).
SimulatedTrace simulate_optimum(std::span<const TraceRequest> requests, int64_t capacity);

}  // namespace hetero::graph
