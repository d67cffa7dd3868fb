#include "ops/settings/fusion_counts.h"

#include <mutex>
#include <utility>

#include "graph/fusion/footprint.h"
#include "graph/ir/op.h"

namespace hetero::ops {
namespace {

struct Counts {
  std::mutex mutex;
  std::array<int64_t, kFusionNotes> notes{};
  // Reasons are literals.
  std::map<std::pair<graph::OpId, const char*>, int64_t> unfused;
};
// Leaked on purpose: plans may be made while the process exits.
Counts& counts() {
  static auto* const made = new Counts;
  return *made;
}

const char* reason_of(const graph::Graph& graph, const graph::Node& node, graph::FusionNote note) {
  if (note == graph::FusionNote::kNoLowering) {
    thread_local graph::Lowering lowering;
    lowering.refusal = nullptr;
    if (!graph::lower_node(graph, node, lowering) && lowering.refusal != nullptr) return lowering.refusal;
  }
  return to_string(note);
}

}  // namespace

void count_fusion(const graph::Graph& graph, const graph::Plan& plan) {
  using graph::FusionNote;
  Counts& all = counts();
  const std::lock_guard lock(all.mutex);
  for (size_t n = 0; n < plan.fusion.size(); ++n) {
    if (plan.live[n] == 0) continue;
    const FusionNote note = plan.fusion[n];
    ++all.notes[static_cast<size_t>(note)];
    if (note == FusionNote::kJoined || note == FusionNote::kTailJoined) continue;
    ++all.unfused[{graph.nodes[n].op, reason_of(graph, graph.nodes[n], note)}];
  }
}

std::array<int64_t, kFusionNotes> fusion_notes() {
  const std::lock_guard lock(counts().mutex);
  return counts().notes;
}

std::map<std::string, int64_t> unfused_operators() {
  const std::lock_guard lock(counts().mutex);
  std::map<std::string, int64_t> result;
  for (const auto& [what, count] : counts().unfused) {
    result[graph::op_table()[what.first].name + ": " + what.second] += count;
  }
  return result;
}

void reset_fusion_counts() {
  const std::lock_guard lock(counts().mutex);
  counts().notes = {};
  counts().unfused.clear();
}

}  // namespace hetero::ops
