// StaticPlan: the plan of a saved program, made once, including all its memory.
//
// A lazy program starts with bytes wherever the previous program left them. A static program
// decides that itself: its inputs are brought to the device that reads them before it runs, and its
// weights stay where a first run would have left them. So it is planned again until nothing would
// move any more. The graph of a StaticPlan then says where the bytes are (Buffer::valid_on).
//
// Thread safety: pure functions.

#pragma once

#include <span>
#include <string>

#include "graph/ir/plan.h"
#include "graph/ir/plan_options.h"
#include "graph/program/saved_program.h"

namespace hetero::graph {

struct StaticPlan {
  Graph graph;  // the program's, with its windows
  Plan plan;
  std::string origin;  // "saved with the program", "resized", or why it was made anew
};

// Per buffer: the accelerators where its bytes are already, and stay: weights that an executor has
// brought there for other sizes. Empty: none.
using BytesThere = std::span<const backend::DeviceSet>;

// Uses the plan that the program brings, if `use_saved` and it was made for a machine and settings
// like these. Errors: kInternal for a plan that is not legal.
Status plan_program(const SavedProgram& program, const PlanOptions& options, bool use_saved, StaticPlan& plan,
                    BytesThere there = {});
// The plan for a program that is another one's for other sizes (program_at), out of the plan `like`
// of that: resized where that can be, made anew otherwise. Errors: as plan_program.
Status plan_resized(const SavedProgram& program, const PlanOptions& options, const StaticPlan& like, BytesThere there,
                    StaticPlan& plan);
// Puts the plan into the program, for the file.
void keep_plan(const StaticPlan& plan, const PlanOptions& options, SavedProgram& program);

// What a plan depends on: processor, threads, accelerator, budget, settings.
std::string plan_machine(const PlanOptions& options);

}  // namespace hetero::graph
