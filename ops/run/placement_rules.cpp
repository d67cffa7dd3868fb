#include "ops/run/placement_rules.h"

#include <fnmatch.h>

#include "graph/ir/op.h"
#include "ops/run/cut_run.h"
#include "ops/run/sync.h"

namespace hetero::ops {

void PlacementRules::set(std::vector<Rule> rules) {
  rules_ = std::move(rules);
  by_op_.clear();
  ++version_;
}

const std::vector<graph::Preference>& PlacementRules::by_op() {
  if (rules_.empty()) return by_op_;
  const graph::OpTable& ops = graph::op_table();
  for (size_t op = by_op_.size(); op < ops.size(); ++op) {
    graph::Preference preference = graph::Preference::kAuto;
    for (const auto& [pattern, wanted] : rules_) {
      if (fnmatch(pattern.c_str(), ops[static_cast<graph::OpId>(op)].name.c_str(), 0) != 0) continue;
      preference = wanted;
      break;
    }
    by_op_.push_back(preference);
  }
  return by_op_;
}

PlacementRules& placement_rules() {
  static auto* instance = new PlacementRules;
  return *instance;
}

void set_placement_rules(std::vector<PlacementRules::Rule> rules) {
  flush_all(SyncReason::kSettings);
  const std::lock_guard lock(executor_state().mutex);
  placement_rules().set(std::move(rules));
}

}  // namespace hetero::ops
