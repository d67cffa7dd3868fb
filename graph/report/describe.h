// describe: a planned program and its measured run as JSON. torch_hetero/report/program.py
// describes each field.
//
// Thread safety: pure function.

#pragma once

#include <string>
#include <vector>

#include "graph/cost/simulate.h"
#include "graph/ir/plan_options.h"
#include "graph/run/run_data.h"

namespace hetero::graph {

struct Description {
  std::string name;           // which flush it was, and why
  std::string profile;        // the devices
  uint64_t budget_bytes = 0;  // of the accelerator; 0 for none
  std::vector<Candidate> candidates = {};
};

// What an instruction is called: the operator of a node, "group 3: mul, add, gelu" (the first of
// its operators, without namespaces and overloads), "4 x aten::mm", "b7 to cpu".
std::string label_of(const Graph& graph, const Plan& plan, const Instruction& instruction);

// `times` may be null: it was not run, or nobody looked.
std::string describe(const Graph& graph, const Plan& plan, const Simulation& predicted, const RunTimes* times,
                     const Description& about);

}  // namespace hetero::graph
