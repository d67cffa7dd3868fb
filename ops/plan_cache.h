// PlanSet: the plans of one recorded trace, kept at the trie node where the trace ends.
//
// One trace can need several plans: which of its nodes a sync point needs (`selection`), which storages have bytes before and which
// escape after, may differ from one run to the next. A plan fits exactly when all that and every size are equal; then it is run again as it is.
// It fits but for its sizes when only those differ.
//
// Thread safety: the executor's lock.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "graph/graph.h"
#include "graph/plan.h"

namespace hetero::ops {

struct Cut;

struct CachedPlan {
  std::vector<uint8_t> selection;  // per node of the trace: it was cut; empty: all
  std::vector<uint8_t> bound;      // per buffer: it has a binding
  graph::Graph graph;              // what was planned
  graph::Plan plan;
  bool fusion = false;  // what it was planned with
  bool jit = false;

  // Notes that the plan is for this cut now.
  void keep(const Cut& cut);
  size_t bytes() const;
};

class PlanSet {
 public:
  PlanSet() = default;
  ~PlanSet();
  PlanSet(const PlanSet&) = delete;

  // The plan that fits the cut exactly; else null, and `similar` is one that fits but for sizes, or null.
  CachedPlan* find(const Cut& cut, CachedPlan*& similar);
  // A place for a new plan of the cut, the least recently used one where there are many. The caller fills in `plan`, and calls measure().
  CachedPlan& add(const Cut& cut);
  bool full() const;
  void drop(CachedPlan* plan);
  // Takes note of the sizes of its plans.
  void measure();

  size_t bytes() const { return bytes_; }
  // Of all sets of the process.
  static size_t total_bytes() { return total_bytes_; }

  uint32_t sightings = 0;  // how often a trace ended here

 private:
  static constexpr size_t kMostPlans = 4;
  static size_t total_bytes_;

  std::vector<std::unique_ptr<CachedPlan>> plans_;  // the one used last comes first
  size_t bytes_ = 0;
};

// What fusion has made of the nodes of all plans that were made, by FusionNote.
inline constexpr size_t kFusionNotes = static_cast<size_t>(graph::FusionNote::kClosed) + 1;
std::array<std::atomic<int64_t>, kFusionNotes>& fusion_notes();

}  // namespace hetero::ops
