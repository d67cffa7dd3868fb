// Executors of the tests' programs, saved as save() does (saved.h).
//
// Thread safety: none.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "graph/serve/graph_executor.h"
#include "tests/graph/program.h"
#include "tests/graph/saved.h"

namespace hetero::graph::testing {

// Requires success, and shows the message otherwise.
void require(const Status& status);
// Whether it is an error with these words.
bool contains(const Status& status, const std::string& words);

std::shared_ptr<Model> model_of(std::unique_ptr<SavedProgram> program);
std::unique_ptr<GraphExecutor> executor_of(std::shared_ptr<Model> model, GraphExecutor::Options options);

// A buffer's floats as a tensor.
TensorView view_of(std::vector<float>& values);

// Options for the tests' devices, `plan` made fit for a static program.
GraphExecutor::Options executor_options(PlanOptions plan, const Devices& devices = test_devices());

// Gives the slot the numbers of Program::bind(), save for the constants.
void set_inputs(GraphExecutor& executor, Program& program, size_t slot = 0);
// Whether the slot's outputs are those of Program::interpret().
bool has_values(GraphExecutor& executor, const Results& expected, size_t slot = 0);
// The outputs of a program that was saved, by an executor on the CPU.
std::vector<std::vector<float>> outputs_of(std::unique_ptr<SavedProgram> saved, Program& program);

}  // namespace hetero::graph::testing
