// What recording hands on when a part of the trace is cut out of it.
//
//   TraceSlice    to running: the nodes, and the storages that their buffers stand for
//   PlanRequest   to planning: where kept plans for such a slice are found, and what they must fit
//   TraceTimes    to overlap.h: how long recording took
//
// Planning answers with a PlannedSlice.
//
// Thread safety: filled in under the recorder's lock. After that it belongs to the thread that runs
// it, under the executor's lock.

#pragma once

#include <c10/core/ScalarType.h>

#include <chrono>
#include <vector>

#include "graph/ir/binding.h"
#include "graph/ir/graph.h"
#include "ops/record/bytes.h"
#include "ops/record/node_note.h"
#include "ops/tensor/storage_hold.h"

namespace hetero::ops {

struct CachedPlan;
class PlanSet;
class TrieNode;

struct TraceSlice {
  // Without its nodes where a kept plan stands for them (PlanRequest::kept).
  graph::Graph graph;
  // What was recorded, without buffers, where the graph is another one now (rewrite_slice.h).
  graph::Graph recorded;
  std::vector<uint8_t> selection;         // per node of the trace: it is in the slice; empty: all
  std::vector<StorageHold> holds;         // per buffer
  std::vector<graph::Binding*> bindings;  // per buffer; null for temporaries
  // Buffers whose blocks have gaps that must go before the run.
  std::vector<graph::BufferId> to_close;
  NodeNotes notes;  // of its nodes, and maybe of others
  at::ScalarType default_dtype = at::kFloat;
  int threads = 0;  // at::get_num_threads() of the recording thread

  void clear();
};

struct PlanRequest {
  bool keeps = false;  // plans may be kept for the slice, and taken from those kept
  // Stands for the nodes of the slice: they are its graph's, with other numbers (`values`).
  CachedPlan* kept = nullptr;
  Bytes values;  // of a whole trace, in the order of its nodes
  // Where the trace ended; null where its plans cannot be kept. The nodes of the path are of this
  // version of the trie at most.
  TrieNode* end = nullptr;
  uint64_t version = 0;
  // Of a compiled program (compiled.h): its own plans in place of those at `end`, and where it has
  // none yet, one for other sizes.
  PlanSet* own_plans = nullptr;
  const CachedPlan* similar = nullptr;
  graph::WindowTable* own_windows = nullptr;
  int effort = 1;  // of planning, see graph::PlanOptions

  void clear();
};

struct TraceTimes {
  std::chrono::steady_clock::time_point begun;  // when the first node of the trace was recorded
  size_t recorded_nodes = 0;                    // of the trace, since then
  // Of the last piece of a divided trace: where it was divided, and when the first piece was begun.
  TrieNode* mark = nullptr;
  std::chrono::steady_clock::time_point divided_begun;
};

struct Cut {
  TraceSlice slice;
  PlanRequest request;
  TraceTimes times;

  void clear();
};

}  // namespace hetero::ops
