// PlanSet: the plans of one recorded trace, kept at the trie node where the trace ends.
//
// One trace can need several plans. Runs may differ in the nodes that a sync point needs
// (`selection`), in the storages that have bytes before, and in those that escape. A plan fits
// exactly if all that and every size are equal. It then runs again as it is. It fits except for
// sizes if only these differ.
//
// If the nodes of the trie are as they were when the plan was made, that is known without writing
// the trace down. The plan's copy of the graph then stands for it.
//
// Thread safety: the executor's lock.

#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "graph/ir/graph.h"
#include "graph/ir/plan.h"
#include "graph/ir/plan_options.h"
#include "graph/plan/sized_plans.h"
#include "graph/run/segments.h"
#include "ops/record/call.h"

namespace hetero::ops {

struct PlanRequest;
struct TraceSlice;

// What a plan depends on beside its graph.
struct PlanSettings {
  bool fusion = false;
  bool rewrites = false;  // rewrite_slice.h
  bool jit = false;
  int threads = 0;  // eager's own, whose loops decide which calls fuse to the same bits
  const void* accelerator = nullptr;
  graph::Policy policy = graph::Policy::kAuto;
  bool second_best = false;    // PlacementTrial::instead_of
  int64_t compute_queues = 0;  // 1 in IsolatedProfiling::Stage::kIsolated
  bool join_copies = false;
  float pressure = 0;        // the share of it that a program may claim
  uint64_t budget = 0;       // of the accelerator's memory
  uint64_t preferences = 0;  // PlacementRules::version
  uint64_t history = 0;      // CostHistory::version
  double slowness = 0;       // IsolatedProfiling::slowness

  bool operator==(const PlanSettings&) const = default;
};

// Tells whether the placement that is predicted to be the best is the best. If it takes much longer
// than predicted, the best different one is tried, and the faster of the two stays. If that one
// later takes much longer than it did, the machine has changed, and all begins again. So it does if
// another machine or another way to plan is configured.
struct PlacementTrial {
  static constexpr int kRuns = 4;           // of each
  static constexpr double kSurprise = 1.5;  // measured over predicted, or over what it was
  enum class Stage : uint8_t { kWatch, kTry, kSettled };

  explicit PlacementTrial(const PlanSettings& configured = {}) : settings(configured) {}
  // After a run of the plan that took so long.
  void note(double seconds, double predicted, const graph::Plan& plan);

  PlanSettings settings;  // of what is watched
  Stage stage = Stage::kWatch;
  int runs = 0;
  double watched = std::numeric_limits<double>::infinity();  // the least
  double tried = std::numeric_limits<double>::infinity();
  // Over what was predicted, since sizes may change: what stayed, and since then.
  double settled = std::numeric_limits<double>::infinity();
  double lately = std::numeric_limits<double>::infinity();
  std::vector<backend::DeviceIndex>
      instead_of;  // as in PlanOptions, where another placement is tried or stays; else empty
};

// Tells whether kernels that run beside each other must be measured alone. Until it is known what
// each takes alone, runs of them side by side teach nothing (learn_costs), so a wrong guess would
// stay. If the prediction is wrong, the program runs on one compute queue until each kernel is
// known. This happens once, as long as the machine stays the same. What is wrong then is for the
// placement's trial.
struct IsolatedProfiling {
  static constexpr double kDoubt = 1.1;  // measured over predicted, or the other way round
  static constexpr int kRuns = 5;        // CostHistory::kToRelearn
  enum class Stage : uint8_t { kWatch, kIsolated, kKnown };

  // After a run of the plan that took so long. `beside`: some of its kernels ran beside others.
  // Returns whether the time tells something about the placement.
  bool note(double seconds, double predicted, bool beside);

  Stage stage = Stage::kWatch;
  int runs = 0;
  // The least measured over predicted: of these runs, and of the first ones when all was known.
  double lately = std::numeric_limits<double>::infinity();
  double known = 0;
  // If each is known, they tell how much kernels slow each other down: PlanOptions::slowness. The
  // first ones that know better come half way each.
  static constexpr int kFits = 8;
  void learn(double fitted);
  double slowness = 0;  // 0: nothing
  int fits = 0;
};

// Puts other numbers, those of all its nodes, into a graph; `changed` says for each node whether it
// has other ones now.
void put_numbers(std::span<const std::byte> numbers, graph::Graph& graph, std::vector<uint8_t>& changed);

struct CachedPlan {
  std::vector<uint8_t> selection;  // per node of the trace: it was cut; empty: all
  std::vector<uint8_t> bound;      // per buffer: it has a binding
  uint64_t largest_bound = 0;      // bytes of the largest that has one
  graph::Graph graph;              // what was planned
  graph::Graph recorded;           // what it was made of, as TraceSlice::recorded
  std::vector<std::byte> values;   // of all nodes of a whole trace
  // The trace's path is the graph's as long as none of its nodes has a later version; 0: never.
  uint64_t version = 0;
  graph::Plan plan;
  PlanSettings settings;
  // With an accelerator:
  uint64_t accelerator_need = 0;  // bytes that it must have for the plan
  double predicted_seconds = 0;
  double placed_seconds = 0;  // what was predicted when it was decided what runs where
  int measured = 0;           // runs whose times were looked at
  uint32_t unmeasured = 0;    // those since that were not
  bool reconsidered = false;  // made when all of another one's costs were known
  IsolatedProfiling alone;    // of its kernels; goes over to the plan that is made in its stead
  std::vector<graph::Candidate> candidates;
  std::unique_ptr<graph::Segments> segments;  // of the plan as it is

  // Notes that the plan is for this slice now.
  void keep(const TraceSlice& slice, const PlanRequest& request);
  // Takes over the numbers of a cut that this plan stands for, into `graph` and into the plan.
  // Returns false if the plan cannot have them; the graph has them in any case.
  bool renew(const Bytes& numbers);
  size_t bytes() const;
};

class PlanSet {
 public:
  // `bounded`: its bytes count among total_bytes(), which the recorder keeps within
  // config().cache_bytes. Those of a program that somebody owns do not.
  explicit PlanSet(bool bounded = true) : bounded_(bounded) {}
  ~PlanSet();
  PlanSet(const PlanSet&) = delete;

  // The plan that fits the slice exactly; else null, and `similar` is one that fits but for sizes,
  // or null.
  CachedPlan* find(const TraceSlice& slice, const CachedPlan*& similar);
  // One that may fit but for sizes, as far as buffers and the number of nodes say; null for none.
  const CachedPlan* find_similar(const TraceSlice& slice);
  // The plan of the whole trace, if it is known to fit without looking at the graph: no node of the
  // path has a later version than `version`.
  CachedPlan* find_unchanged(const TraceSlice& slice, uint64_t version);
  // Whether the buffers' bytes need every node of the trace, as far as that was learned since the
  // path changed.
  bool needs_all(std::span<const graph::BufferId> buffers, bool readers, uint64_t version) const;
  void learn_needs_all(std::span<const graph::BufferId> buffers, bool readers, uint64_t version);
  // A place for a new plan; the least recently used one if there are many. The caller fills in
  // `plan` and calls measure().
  CachedPlan& add(const TraceSlice& slice, const PlanRequest& request);
  bool full() const;
  // The plan used last, or null.
  const CachedPlan* latest() const { return plans_.empty() ? nullptr : plans_.entries().front().get(); }
  // The same plan, to be changed, if it is one of this set; else null.
  CachedPlan* own(const CachedPlan* plan);
  void drop(const CachedPlan* plan) { plans_.erase(plan); }
  // Takes note of the sizes of its plans.
  void measure();
  // To be called before planning, with what is configured, not with what depends on the trial or
  // was learned. What was seen under other settings says nothing.
  void belong_to(const PlanSettings& configured);

  size_t bytes() const { return bytes_; }
  // Of all bounded sets of the process.
  static size_t total_bytes() { return total_bytes_; }

  uint32_t sightings = 0;  // how often a trace ended here
  PlacementTrial trial;
  // Of overlap.h.
  int overlap_votes = 0;
  int pieces = 0;  // in how many the next trace that ends here is to be divided; 0: it is not
  // The least that the trace took, undivided.
  std::chrono::nanoseconds whole = std::chrono::nanoseconds::max();
  // Of a mark: the same in pieces.
  std::chrono::nanoseconds divided = std::chrono::nanoseconds::max();
  // Of a mark: how often it was used.
  int trials = 0;

 private:
  static size_t total_bytes_;

  const bool bounded_;
  graph::SizedPlans<CachedPlan> plans_;
  size_t bytes_ = 0;
  // What learn_needs_all() was told last.
  std::vector<graph::BufferId> all_for_;
  bool all_for_readers_ = false;
  uint64_t all_version_ = 0;
};

}  // namespace hetero::ops
