// cut_program: a saved program cut into stages that run one after the other, each a saved program of its own.
//
// A stage is a range of the program's nodes, in program order, without those that nobody needs. What crosses a cut is an output of the stage that writes it and an
// input of each later stage that touches it; a stage between them does not see it. All stages touch one memory, so what a later stage
// updates in place is its input and its output. These values are whole buffers of bytes, called "b<number>" by their buffer in the whole program. Weights go to the stages that
// read them and share their bytes with the whole. A state, which the program writes, is never cut apart: all nodes that touch it are in one stage.
//
// The cut is the one whose slowest stage takes the least time, as predicted by CostModel (cost.h): of its nodes, and of copying what crosses into the stage and out of it.
//
// Thread safety: a pure function. Ownership: the stages share the whole program, whose weights they use.

#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/base/status.h"
#include "graph/ir/plan.h"
#include "graph/program/saved_program.h"

namespace hetero::graph {

struct ProgramStage {
  std::unique_ptr<SavedProgram> program;  // without a plan
  double seconds = 0;                     // predicted
  std::vector<BufferId> buffers;          // per buffer: which one it is of the whole program
  std::vector<size_t> draws;              // per draw: which one it is of the whole program
};

// So many stages as there are options, the n-th planned by the n-th. Errors: kUsage for no stages, and where there are fewer nodes than stages, or states keep too
// many together. REQUIRES: verify_program().
Result<std::vector<ProgramStage>> cut_program(const std::shared_ptr<const SavedProgram>& program,
                                              std::span<const PlanOptions> stages);

}  // namespace hetero::graph
