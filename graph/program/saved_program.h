// SavedProgram: a graph that is known ahead of time, with everything needed to run it: inputs,
// outputs, weights, and the plan of the machine that made it.
//
// ops/ makes it from a capture or from ComputeGraph (compute_graph.h). archive.h writes and reads
// it. GraphExecutor (graph_executor.h) runs it. It is data: it contains no code, and loading one
// runs nothing.
//
// Each buffer of the graph is an input, a constant, an output, several of these, or a temporary
// that only the program sees. Graph::buffers says valid_on == 1 (the CPU) for inputs and constants,
// and escapes for outputs and for inputs that the graph writes.
//
// Thread safety: immutable once made, except by its one owner.
// Ownership: the program owns its windows and the memory of its constants; blocks may be parts of a
// mapped file.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "backend/base/status.h"
#include "backend/device/device.h"
#include "graph/ir/graph.h"
#include "graph/ir/window.h"
#include "graph/program/dynamic_sizes.h"

namespace hetero::graph {

// An input or an output: a buffer, as whoever calls the program sees it.
struct ProgramValue {
  std::string name;
  BufferId buffer = kNoBuffer;
  WindowId window = kNoWindow;
  uint8_t bits = 0;  // OperandBits
};

// A weight, or a state, which the graph writes: each executor has its own. Several may look at one
// buffer: the first of them in the program owns the bytes, the block of the others is empty.
struct ProgramConstant {
  std::string name;
  BufferId buffer = kNoBuffer;
  WindowId window = kNoWindow;
  backend::Block bytes;  // of the whole buffer
  bool mapped = false;   // a part of a file on a disk
};

struct SavedProgram {
  SavedProgram() { graph.windows = &windows; }
  SavedProgram(const SavedProgram&) = delete;
  SavedProgram& operator=(const SavedProgram&) = delete;

  WindowTable windows;
  Graph graph;
  std::vector<ProgramValue> inputs;
  std::vector<ProgramValue> outputs;
  std::vector<ProgramConstant> constants;
  // Where in Graph::attributes the states of random operators are: a seed and an offset, eight
  // bytes each, which every run draws anew.
  std::vector<uint64_t> draws;
  // A hash of what was computed while the program was recorded, because the model looked at it. Not
  // in the file.
  uint64_t looked_at = 0;
  // How the graph's sizes follow from those of the inputs; without dimensions where it is for the
  // sizes that it has.
  DynamicSizes dynamic;
  // Text for whoever made the program: what Python needs to call it as the model was called, for
  // example.
  std::map<std::string, std::string> metadata;
  // A plan as text, and for which machine and settings it was made; empty where there is none.
  std::string plan;
  std::string plan_machine;
};

}  // namespace hetero::graph
