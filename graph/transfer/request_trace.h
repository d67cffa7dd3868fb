// Request traces: which blocks of tokens a server's requests had, in time. They are read from files
// or generated.
//
// Files are in the format of Mooncake's public traces (Qin et al., "Mooncake: trading more storage
// for less computation", FAST 2025; github.com/kvcache-ai/Mooncake, FAST25-release/traces). Each
// line is a request:
//
//   {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48]}
//
// A time is in milliseconds. A hash id stands for 512 tokens and all that is before them.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "backend/base/status.h"

namespace hetero::graph {

struct TraceRequest {
  double time = 0;              // seconds
  std::vector<int64_t> blocks;  // ids of blocks, from the beginning of the prompt
  int64_t new_tokens = 0;       // that the request generates
};

// Requests in the order of the lines. Empty lines do not count, nor do other keys.
// Errors: kStorage with the line's number and what is wrong with it; or if the file cannot be read.
Result<std::vector<TraceRequest>> read_mooncake_trace(std::istream& text);
Result<std::vector<TraceRequest>> read_mooncake_trace(const std::string& path);

struct SyntheticTraceOptions {
  uint64_t seed = 1;
  int64_t requests = 20000;
  double requests_per_second = 10;
  // Conversations begin with a system prompt; some are used much more often than others: the k-th
  // with a weight of 1 / k^zipf.
  int64_t system_prompts = 200;
  double zipf = 1.0;
  int64_t system_blocks = 32;  // at most
  // A request begins a conversation, goes on with one, or is a prompt that never comes again.
  double one_off = 0.3;        // share of the requests
  double turns = 5;            // of a conversation, on average
  int64_t active = 200;        // conversations at a time
  int64_t turn_blocks = 8;     // at most, question and answer
  int64_t prompt_blocks = 64;  // at most, of a prompt that never comes again
};
// The same options give the same trace on every machine. REQUIRES: counts of at least 1.
std::vector<TraceRequest> generate_trace(const SyntheticTraceOptions& options);

}  // namespace hetero::graph
