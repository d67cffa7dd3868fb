// OffloadStrategy: which pages leave the first memory when room is needed, by name.
//
//   none                nothing leaves; caches that no sequence uses are evicted
//   by_pressure         the pages whose last use is longest ago
//   sliding_window      pages that attention with a window no longer reads: they lie behind the
//                       sinks and before the window of every sequence that has them
//   oldest_layer_first  pages of the layers whose last use is longest ago: while layers run in
//                       order, theirs is the next use that is furthest away
//
// Pages of caches that no sequence uses go first in all of them. A strategy only puts candidates in
// order and removes those that must stay; the manager decides how many leave, and when.
//
// Thread safety: strategies have no state; any thread.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/base/status.h"
#include "graph/kv/page_store.h"

namespace hetero::graph {

// A resident page that is not pinned.
struct OffloadCandidate {
  PageId page = 0;
  int32_t group = 0;        // of layers
  uint64_t last_use = 0;    // larger is later
  int64_t first_token = 0;  // its place in the sequences that have it
  // From its last token to the end of the shortest sequence that has it; of no interest if idle.
  int64_t tokens_after = 0;
  bool idle = false;  // no sequence has it
};

// What attention reads: the first `sinks` tokens and the last `window` ones; everything if the
// window is 0.
struct AttentionSpan {
  int64_t window = 0;
  int64_t sinks = 0;
};

class OffloadStrategy {
 public:
  virtual ~OffloadStrategy() = default;
  virtual const char* name() const = 0;
  // Leaves those that may leave, the first to leave first.
  virtual void choose(std::vector<OffloadCandidate>& candidates) const = 0;
};

// Errors: kUsage for a name that there is not, and for sliding_window without a window.
Result<std::unique_ptr<OffloadStrategy>> make_offload_strategy(std::string_view name, AttentionSpan span);

}  // namespace hetero::graph
