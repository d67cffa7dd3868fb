// The file of a saved program: a ZIP file with stored entries, so every ZIP tool looks inside.
//
//   version               the format's version, "1.1"
//   weights.safetensors   the constants; mapped into memory, never copied
//   graph.txt             the graph, as to_string() prints it
//   sizes.txt             how the graph's sizes follow from those of the inputs, if they do
//                         (dynamic_sizes.h)
//   program.json          inputs, outputs, constants, draws, metadata, and for which machine the
//                         plan is
//   plan.txt              the plan, if there is one, as to_string() prints it
//
// docs/format.md describes the format. A file is data: reading one runs nothing of it. Whatever
// bytes it holds, the outcome is a program for which verify_program() holds, or one error. The plan
// remains text until its user parses it, restores its groups and calls verify_plan().
//
// Thread safety: any thread. If two save to one path at the same time, the file of one of them
// remains.

#pragma once

#include <memory>
#include <string>

#include "backend/base/status.h"
#include "graph/program/saved_program.h"

namespace hetero::graph {

// Writes a new file and renames it, so that the old file or the new one exists whatever happens.
// Errors: kUsage for a program that verify_program() refuses, kStorage if the system refuses.
Status save_program(const SavedProgram& program, const std::string& path);

struct LoadOptions {
  // Compares the weights' checksum, for which all of them are read. The rest is always checked.
  bool check_weights = true;
};

// The constants' blocks are parts of the mapped file, which lives as long as the last of them.
// Errors: kStorage for what cannot be read, is no saved program, is damaged or newer than this
// reader; kUsage for a program that is not legal.
Result<std::unique_ptr<SavedProgram>> load_program(const std::string& path, LoadOptions options = {});

// Replaces the plan in the file, or removes it if `plan` is empty. The weights are not read. They
// are not copied if the file system can share them between the two files. Loaded programs keep what
// they have. Errors: as for both above.
Status replace_plan(const std::string& path, const std::string& plan, const std::string& machine);

}  // namespace hetero::graph
