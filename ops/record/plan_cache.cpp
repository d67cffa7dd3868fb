#include "ops/record/plan_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "graph/cost/history.h"
#include "graph/ir/compare.h"
#include "graph/plan/resize.h"
#include "ops/record/trace_slice.h"

namespace hetero::ops {
namespace {

enum class Fit : uint8_t { kNone, kSimilar, kExact };

// As far as the buffers say.
Fit fit_of_buffers(const CachedPlan& known, const TraceSlice& slice) {
  const std::vector<graph::Buffer>& a = known.graph.buffers;
  const std::vector<graph::Buffer>& b = slice.graph.buffers;
  if (a.size() != b.size() || known.selection != slice.selection) return Fit::kNone;
  for (size_t i = 0; i < a.size(); ++i) {
    if ((known.bound[i] != 0) != (slice.bindings[i] != nullptr)) return Fit::kNone;
  }
  if (std::memcmp(a.data(), b.data(), a.size() * sizeof(graph::Buffer)) == 0) return Fit::kExact;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!graph::same_but_bytes(a[i], b[i])) return Fit::kNone;
    // What decides where things run.
    if (known.settings.accelerator != nullptr && (a[i].steady != b[i].steady || a[i].fetched != b[i].fetched)) {
      return Fit::kNone;
    }
  }
  return Fit::kSimilar;
}

Fit fit(const CachedPlan& known, const TraceSlice& slice) {
  const graph::Graph& a = known.graph;
  const graph::Graph& b = slice.graph;
  if (a.nodes.size() != b.nodes.size() || a.operands.size() != b.operands.size()) return Fit::kNone;
  const Fit how = fit_of_buffers(known, slice);
  if (how != Fit::kExact) return how;
  const bool same = std::memcmp(a.operands.data(), b.operands.data(), a.operands.size() * sizeof(graph::Operand)) == 0;
  return same ? Fit::kExact : Fit::kSimilar;
}

template <typename T>
size_t bytes_of(const std::vector<T>& vector) {
  return vector.capacity() * sizeof(T);
}

size_t group_bytes(const graph::Plan& plan) {
  size_t bytes = bytes_of(plan.groups) + bytes_of(plan.fusion);
  for (const graph::FusedGroup& group : plan.groups) {
    // A launch holds the kernel's steps about twice.
    bytes += bytes_of(group.members) + bytes_of(group.operands) + bytes_of(group.kernel.values) +
             3 * bytes_of(group.kernel.steps) + bytes_of(group.space.operands) + bytes_of(group.numbers);
  }
  return bytes;
}

constexpr double kNever = std::numeric_limits<double>::infinity();

// Whether one is more than so many times the other.
bool differs(double a, double b, double times) { return a > b * times || b > a * times; }

size_t batch_bytes(const graph::Plan& plan) {
  size_t bytes = bytes_of(plan.batches);
  for (const auto& calls : plan.batches) bytes += bytes_of(calls);
  return bytes;
}

}  // namespace

void PlacementTrial::note(double seconds, double predicted, const graph::Plan& plan) {
  // The first run of a plan also moves what stays.
  if (runs > 0) {
    if (stage == Stage::kWatch) watched = std::min(watched, seconds);
    if (stage == Stage::kTry) tried = std::min(tried, seconds);
    lately = std::min(lately, seconds / predicted);
  }
  if (++runs < kRuns) return;
  runs = 0;
  const double ratio = std::exchange(lately, kNever);
  switch (stage) {
    case Stage::kWatch:
      settled = ratio;
      stage = ratio > kSurprise ? Stage::kTry : Stage::kSettled;
      if (stage == Stage::kTry) {
        for (const graph::Placement& placement : plan.placements) instead_of.push_back(placement.device);
      }
      break;
    case Stage::kTry:
      stage = Stage::kSettled;
      if (tried < watched) {
        settled = ratio;
      } else {
        instead_of.clear();
      }
      break;
    case Stage::kSettled:
      if (ratio > kSurprise * settled) *this = PlacementTrial(settings);
      break;
  }
}

bool IsolatedProfiling::note(double seconds, double predicted, bool beside) {
  static_assert(kRuns == graph::CostHistory::kToRelearn);
  if (stage == Stage::kIsolated) {
    if (++runs == kRuns) *this = IsolatedProfiling{.stage = Stage::kKnown};
    return false;
  }
  const double now = seconds / predicted;
  const bool judged = stage == Stage::kKnown || !beside || !differs(now, 1, kDoubt);
  if (!beside) return judged;
  // The first run of a plan also moves what stays.
  if (runs > 0) lately = std::min(lately, now);
  if (++runs < PlacementTrial::kRuns) return judged;
  runs = 0;
  const double ratio = std::exchange(lately, kNever);
  if (stage == Stage::kWatch) {
    if (differs(ratio, 1, kDoubt)) stage = Stage::kIsolated;
  } else if (known == 0) {
    known = ratio;
  } else if (differs(ratio, known, PlacementTrial::kSurprise)) {
    *this = IsolatedProfiling();
  }
  return judged;
}

void IsolatedProfiling::learn(double fitted) {
  if (fits == kFits) return;
  ++fits;
  slowness = fits == 1 ? fitted : std::sqrt(slowness * fitted);
}

size_t PlanSet::total_bytes_ = 0;

size_t CachedPlan::bytes() const {
  return sizeof(CachedPlan) + bytes_of(selection) + bytes_of(bound) + bytes_of(graph.buffers) + bytes_of(graph.nodes) +
         bytes_of(graph.operands) + bytes_of(graph.attributes) + bytes_of(recorded.nodes) +
         bytes_of(recorded.operands) + bytes_of(recorded.attributes) + bytes_of(values) + bytes_of(plan.live) +
         bytes_of(plan.placements) + bytes_of(plan.residences) + bytes_of(plan.program) + bytes_of(plan.valid_after) +
         bytes_of(plan.notes.placed) + bytes_of(plan.notes.written) + group_bytes(plan) + batch_bytes(plan);
}

PlanSet::~PlanSet() {
  if (bounded_) total_bytes_ -= bytes_;
}

CachedPlan* PlanSet::find(const TraceSlice& slice, const CachedPlan*& similar) {
  similar = nullptr;
  return plans_.find([&](const CachedPlan& plan) {
    const Fit how = fit(plan, slice);
    if (how == Fit::kSimilar && similar == nullptr) similar = &plan;
    return how == Fit::kExact;
  });
}

const CachedPlan* PlanSet::find_similar(const TraceSlice& slice) {
  return plans_.find([&](const CachedPlan& plan) {
    return plan.graph.nodes.size() == slice.graph.nodes.size() && fit_of_buffers(plan, slice) != Fit::kNone;
  });
}

CachedPlan* PlanSet::find_unchanged(const TraceSlice& slice, uint64_t version) {
  return plans_.find(
      [&](const CachedPlan& plan) { return plan.version >= version && fit_of_buffers(plan, slice) == Fit::kExact; });
}

void PlanSet::belong_to(const PlanSettings& configured) {
  if (configured == trial.settings) return;
  trial = PlacementTrial(configured);
  for (const auto& plan : plans_.entries()) plan->alone = IsolatedProfiling();
}

bool PlanSet::needs_all(std::span<const graph::BufferId> buffers, bool readers, uint64_t version) const {
  return all_version_ >= version && all_for_readers_ == readers && std::ranges::equal(all_for_, buffers);
}

void PlanSet::learn_needs_all(std::span<const graph::BufferId> buffers, bool readers, uint64_t version) {
  all_for_.assign(buffers.begin(), buffers.end());
  all_for_readers_ = readers;
  all_version_ = version;
}

void CachedPlan::keep(const TraceSlice& slice, const PlanRequest& request) {
  selection = slice.selection;
  graph = slice.graph;
  recorded = slice.recorded;
  values.assign(request.values.data(), request.values.data() + request.values.size());
  version = request.version;
  bound.resize(slice.bindings.size());
  largest_bound = 0;
  for (size_t i = 0; i < slice.bindings.size(); ++i) {
    bound[i] = slice.bindings[i] != nullptr;
    if (bound[i] != 0) largest_bound = std::max(largest_bound, graph.buffers[i].bytes);
  }
}

void put_numbers(std::span<const std::byte> numbers, graph::Graph& graph, std::vector<uint8_t>& changed) {
  changed.assign(graph.nodes.size(), 0);
  const std::byte* from = numbers.data();
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const graph::Node& node = graph.nodes[i];
    std::byte* const attributes = graph.attributes.data() + node.attribute_offset;
    const size_t before = values_offset(attributes);
    const size_t count = node.attribute_bytes - before;
    if (count == 0) continue;
    changed[i] = std::memcmp(attributes + before, from, count) != 0;
    std::memcpy(attributes + before, from, count);
    from += count;
  }
}

bool CachedPlan::renew(const Bytes& numbers) {
  if (numbers.size() == values.size() && std::memcmp(numbers.data(), values.data(), values.size()) == 0) return true;
  values.assign(numbers.data(), numbers.data() + numbers.size());
  std::vector<uint8_t> changed;
  put_numbers(values, graph, changed);
  return graph::renew_numbers(graph, changed, plan);
}

bool PlanSet::full() const { return plans_.size() >= plans_.kMost; }

CachedPlan* PlanSet::own(const CachedPlan* plan) {
  const auto found = std::ranges::find(plans_.entries(), plan, &std::unique_ptr<CachedPlan>::get);
  return found == plans_.entries().end() ? nullptr : found->get();
}

CachedPlan& PlanSet::add(const TraceSlice& slice, const PlanRequest& request) {
  std::unique_ptr<CachedPlan> plan = plans_.take_oldest(plans_.kMost - 1);
  if (plan == nullptr) plan = std::make_unique<CachedPlan>();
  plan->keep(slice, request);
  return plans_.add(std::move(plan));
}

void PlanSet::measure() {
  size_t bytes = 0;
  for (const auto& plan : plans_.entries()) bytes += plan->bytes();
  if (bounded_) total_bytes_ += bytes - bytes_;
  bytes_ = bytes;
}

}  // namespace hetero::ops
