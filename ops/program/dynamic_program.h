// Makes saved programs with dimensions from captures of one model for several sizes.
//
// Thread safety: the executor lock, which it takes.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "graph/program/saved_program.h"
#include "ops/program/compiled.h"

namespace hetero::ops {

// A program that CompiledProgram::save() made for these sizes of the dimensions.
struct SizedCapture {
  std::unique_ptr<graph::SavedProgram> program;  // null: it could not be captured
  std::vector<int64_t> sizes;
};

struct SizesOfModel {
  // Dimensions and variables, in lines of sizes.txt (graph/program/dynamic_sizes.h).
  std::string variables;
  std::vector<std::string> factors;   // sums of these, of which sizes are made
  std::vector<SizedCapture> samples;  // the first is what is saved
  // One for each dimension in turn, with size 1 or another special size. If that is another
  // program, the dimension begins with 2.
  std::vector<SizedCapture> least;
};

// Raises a ValueError if the captures are not one program whose sizes follow from those of its
// inputs.
std::unique_ptr<graph::SavedProgram> dynamic_program(SizesOfModel model);

}  // namespace hetero::ops
