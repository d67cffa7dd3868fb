// A saved program for other sizes than those of the example with which it was made.
//
// program_at() is the program for these sizes: the same nodes and buffers with other integers
// (dynamic_sizes.h). The sums are data of a file and not trusted, so the result of program_at() is
// verified like a program that was just loaded.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/base/status.h"
#include "graph/program/saved_program.h"
#include "graph/program/tensor_view.h"

namespace hetero::graph {

// One of the program's inputs or outputs: "f32[batch,384]", or its window where its sizes are
// always the same.
std::string shape_text(const SavedProgram& program, const std::vector<ProgramValue>& values, size_t index);

// Whether all that is named is in the program, each dimension is known by the inputs, and what
// follows for the sizes of the example is the program's own graph. Errors: kUsage, with the first
// violation in words.
Status verify_sizes(const SavedProgram& program);

// The dimensions for which the inputs are tensors of these sizes, one for each. Errors: kUsage
// where there are none, with the input that has another size than the program expects, or where a
// requirement is not met.
Result<std::vector<int64_t>> find_sizes(const SavedProgram& program, std::span<const TensorView> inputs);
// Those for which the program itself is made.
std::vector<int64_t> example_sizes(const SavedProgram& program);

// What the inputs and the outputs are for these sizes. Errors: kUsage for sizes that the program
// cannot have.
Result<std::vector<TensorShape>> input_shapes(const SavedProgram& program, std::span<const int64_t> sizes);
Result<std::vector<TensorShape>> output_shapes(const SavedProgram& program, std::span<const int64_t> sizes);

// The program for these sizes; it has no dimensions, no plan and no metadata, and window ids of
// `program` are windows of it too. Its constants look at the bytes of `program`'s, which has to
// outlive it. Errors: kUsage for sizes that the program cannot have.
Result<std::unique_ptr<SavedProgram>> program_at(const SavedProgram& program, std::span<const int64_t> sizes);

}  // namespace hetero::graph
