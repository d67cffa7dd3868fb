#include "ops/plan_cache.h"

#include <algorithm>
#include <cstring>

#include "ops/recorder.h"

namespace hetero::ops {
namespace {

enum class Fit : uint8_t { kNone, kSimilar, kExact };

Fit fit(const CachedPlan& known, const Cut& cut) {
  const graph::Graph& a = known.graph;
  const graph::Graph& b = cut.graph;
  if (a.nodes.size() != b.nodes.size() || a.buffers.size() != b.buffers.size() ||
      a.operands.size() != b.operands.size() || known.selection != cut.selection) {
    return Fit::kNone;
  }
  bool same_sizes = true;
  for (size_t i = 0; i < a.buffers.size(); ++i) {
    if (a.buffers[i].valid_on != b.buffers[i].valid_on || a.buffers[i].escapes != b.buffers[i].escapes ||
        (known.bound[i] != 0) != (cut.bindings[i] != nullptr)) {
      return Fit::kNone;
    }
    same_sizes &= a.buffers[i].bytes == b.buffers[i].bytes;
  }
  same_sizes =
      same_sizes && std::memcmp(a.operands.data(), b.operands.data(), a.operands.size() * sizeof(graph::Operand)) == 0;
  return same_sizes ? Fit::kExact : Fit::kSimilar;
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

}  // namespace

size_t PlanSet::total_bytes_ = 0;

size_t CachedPlan::bytes() const {
  return sizeof(CachedPlan) + bytes_of(selection) + bytes_of(bound) + bytes_of(graph.buffers) + bytes_of(graph.nodes) +
         bytes_of(graph.operands) + bytes_of(graph.attributes) + bytes_of(plan.live) + bytes_of(plan.placements) +
         bytes_of(plan.residences) + bytes_of(plan.program) + bytes_of(plan.valid_after) + group_bytes(plan);
}

std::array<std::atomic<int64_t>, kFusionNotes>& fusion_notes() {
  static std::array<std::atomic<int64_t>, kFusionNotes> notes{};
  return notes;
}

PlanSet::~PlanSet() { total_bytes_ -= bytes_; }

CachedPlan* PlanSet::find(const Cut& cut, CachedPlan*& similar) {
  similar = nullptr;
  for (size_t i = 0; i < plans_.size(); ++i) {
    const Fit how = fit(*plans_[i], cut);
    if (how == Fit::kExact) {
      std::rotate(plans_.begin(), plans_.begin() + static_cast<std::ptrdiff_t>(i),
                  plans_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      return plans_.front().get();
    }
    if (how == Fit::kSimilar && similar == nullptr) similar = plans_[i].get();
  }
  return nullptr;
}

void CachedPlan::keep(const Cut& cut) {
  selection = cut.selection;
  graph = cut.graph;
  bound.resize(cut.bindings.size());
  for (size_t i = 0; i < cut.bindings.size(); ++i) bound[i] = cut.bindings[i] != nullptr;
}

bool PlanSet::full() const { return plans_.size() >= kMostPlans; }

void PlanSet::drop(CachedPlan* plan) {
  std::erase_if(plans_, [&](const auto& kept) { return kept.get() == plan; });
}

CachedPlan& PlanSet::add(const Cut& cut) {
  std::unique_ptr<CachedPlan> plan;
  if (plans_.size() >= kMostPlans) {
    plan = std::move(plans_.back());
    plans_.pop_back();
  } else {
    plan = std::make_unique<CachedPlan>();
  }
  plan->keep(cut);
  plans_.insert(plans_.begin(), std::move(plan));
  return *plans_.front();
}

void PlanSet::measure() {
  size_t bytes = 0;
  for (const auto& plan : plans_) bytes += plan->bytes();
  total_bytes_ += bytes - bytes_;
  bytes_ = bytes;
}

}  // namespace hetero::ops
