// Saved programs out of the tests' programs: inputs are the buffers that exist before, outputs those that survive, each called "b<number>".
//
// Thread safety: none.

#pragma once

#include <memory>
#include <set>
#include <vector>

#include "graph/serve/graph_executor.h"
#include "graph/serve/saved_program.h"
#include "tests/graph/program.h"

namespace hetero::graph::testing {

// `constants` are saved with the numbers that Program::bind() gives them; the other buffers that exist before are inputs.
std::unique_ptr<SavedProgram> save(Program& program, const std::set<BufferId>& constants = {});

inline std::string name_of(BufferId buffer) { return "b" + std::to_string(buffer); }

// A buffer's floats as a tensor.
TensorView view_of(std::vector<float>& values);

// Options for the tests' devices, `plan` made fit for a static program.
GraphExecutor::Options executor_options(PlanOptions plan, const Devices& devices = test_devices());

// Gives the slot the numbers of Program::bind(), save for the constants.
void set_inputs(GraphExecutor& executor, Program& program, size_t slot = 0);
// Whether the slot's outputs are those of Program::interpret().
bool has_values(GraphExecutor& executor, const Results& expected, size_t slot = 0);

}  // namespace hetero::graph::testing
