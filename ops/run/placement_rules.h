// PlacementRules: the user's choice of device for operators, by name.
//
// A rule is a shell pattern (fnmatch) over names such as "aten::mm" or "aten::mm.out", and a
// preference. The first rule that matches holds, for operators that were recorded outside a
// placement() block.
//
// Thread safety: the executor's lock.

#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "graph/ir/graph.h"

namespace hetero::ops {

class PlacementRules {
 public:
  using Rule = std::pair<std::string, graph::Preference>;

  void set(std::vector<Rule> rules);
  const std::vector<Rule>& rules() const { return rules_; }
  // Per OpId, of all operators that are registered now.
  const std::vector<graph::Preference>& by_op();
  // Changes with the rules.
  uint64_t version() const { return version_; }

 private:
  std::vector<Rule> rules_;
  std::vector<graph::Preference> by_op_;
  uint64_t version_ = 0;
};

PlacementRules& placement_rules();

}  // namespace hetero::ops
