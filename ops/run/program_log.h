// The log of programs: what the latest runs did, for torch.hetero.explain(), report() and trace().
// It is kept while config().keep_plans is set.
//
// Thread safety: any thread; log_program() under the executor's lock.

#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "graph/ir/plan.h"
#include "graph/ir/plan_options.h"
#include "graph/run/run_data.h"

namespace hetero::ops {

struct ProgramLog {
  std::string plan_text;             // of the last run, to be read
  std::deque<std::string> programs;  // as JSON (graph/report/describe.h), the oldest first
  int64_t flushes = 0;               // of all, also those that are not there any more
  int64_t saved_runs = 0;            // of saved programs, likewise
};

// REQUIRES: the executor lock.
ProgramLog& program_log();

// Graph, plan and predicted times, for people.
std::string plan_text(const graph::Graph& graph, const graph::Plan& plan, const graph::PlanOptions& options);

struct LoggedRun {
  const graph::Graph& graph;
  const graph::Plan& plan;
  const graph::PlanOptions& options;  // for which it was planned
  const graph::RunTimes* times;       // null where nobody looked
  std::vector<graph::Candidate> candidates;
};
void log_program(ProgramLog& log, const LoggedRun& run, std::string name);

}  // namespace hetero::ops
