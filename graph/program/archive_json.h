// The JSON of a saved program's file: program.json, and the header of weights.safetensors.
//
// Readers return kStorage, with a sentence that names the missing or wrong field. Writers return
// kUsage.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "backend/base/status.h"
#include "graph/program/saved_program.h"

namespace hetero::graph {

// All of a program but the graph, the weights' bytes and the plan.
Result<std::string> write_program_json(const SavedProgram& program);
// Windows go into the program's table. Nothing is compared with the graph.
Status read_program_json(std::string_view text, SavedProgram& program);
// The text of program.json for another plan.
Result<std::string> with_plan_machine(std::string_view text, const std::string& machine);

// A tensor in weights.safetensors; places count bytes from the end of the header.
struct WeightEntry {
  std::string name;
  std::string dtype;  // as safetensors calls it
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

// The header with its length before it, as long as a multiple of 64.
Result<std::string> write_weights_header(const std::vector<WeightEntry>& entries);

struct Weights {
  uint64_t data = 0;  // where in the file the header ends
  std::map<std::string, WeightEntry> entries;
};
// Places are within the file.
Result<Weights> read_weights_header(std::string_view file);

}  // namespace hetero::graph
