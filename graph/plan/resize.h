// resize_plan: takes a plan over to a graph of the same structure, with other sizes or numbers.
//
// Thread safety: each thread has memory of its own for planning.

#pragma once

#include <cstdint>
#include <vector>

#include "graph/ir/graph.h"
#include "graph/ir/plan.h"
#include "graph/ir/plan_options.h"

namespace hetero::graph {

// Takes a plan of `before` over to `now`. REQUIRES: the graphs differ in windows, of equal
// Window::kind, in sizes of buffers, and in attributes' numbers and sizes only, have one table of
// windows, and have bytes on the same devices; the options are those of the plan, save for the
// accelerator's memory. What runs where stays as it is. False where that is not possible, or does
// not fit; the plan is then unusable.
bool resize_plan(const Graph& before, const Graph& now, const PlanOptions& options, Plan& plan);
// The same where only numbers differ, those of the nodes that `changed` marks.
bool renew_numbers(const Graph& graph, const std::vector<uint8_t>& changed, Plan& plan);
// For each node whether its attributes differ. REQUIRES: as for resize_plan.
void find_changed_attributes(const Graph& before, const Graph& now, std::vector<uint8_t>& changed);

}  // namespace hetero::graph
