// cut_program: cuts a saved program into stages that run one after the other, each a saved program
// of its own.
//
// A stage is a range of the program's live nodes, in program order. A value that crosses a cut is
// an output of the stage that writes it and an input of each later stage that touches it; a stage
// between them does not see it. All stages touch one memory, so a value that a later stage updates
// in place is its input and its output. These values are whole buffers of bytes, named "b<number>"
// after their buffer in the whole program. Weights go to the stages that read them and share their
// bytes with the whole. All nodes that touch a state, which the program writes, are in one stage.
//
// The slowest stage of the cut takes the least possible time by CostModel (cost.h): its nodes, and
// the copies into and out of it.
//
// Thread safety: a pure function. Ownership: the stages share the whole program, whose weights they
// use.

#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/base/status.h"
#include "graph/ir/plan.h"
#include "graph/ir/plan_options.h"
#include "graph/program/saved_program.h"

namespace hetero::graph {

struct ProgramStage {
  std::unique_ptr<SavedProgram> program;  // without a plan
  double seconds = 0;                     // predicted
  std::vector<BufferId> buffers;          // per buffer: which one it is of the whole program
  std::vector<size_t> draws;              // per draw: which one it is of the whole program
};

// So many stages as there are options, the n-th planned by the n-th. Errors: kUsage for no stages,
// and where there are fewer nodes than stages, or states keep too many together. REQUIRES:
// verify_program().
Result<std::vector<ProgramStage>> cut_program(const std::shared_ptr<const SavedProgram>& program,
                                              std::span<const PlanOptions> stages);

}  // namespace hetero::graph
