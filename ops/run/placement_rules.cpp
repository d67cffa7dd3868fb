#include "ops/run/placement_rules.h"

#include <fnmatch.h>

#include "graph/ir/op.h"

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

}  // namespace hetero::ops
