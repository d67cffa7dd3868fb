// Saved programs for the tests of their files.

#pragma once

#include <memory>
#include <random>
#include <string>

#include "graph/serve/saved_program.h"
#include "tests/graph/program.h"

namespace hetero::graph::testing {

// Of a program's graph: what is there before becomes an input or, where `random` says so and nobody writes it, a constant, with values; what escapes becomes an
// output. Without a plan.
std::unique_ptr<SavedProgram> to_saved(const Program& program, std::mt19937& random);

// A random one, with a random operator whose state is drawn, metadata, and mostly with a plan.
std::unique_ptr<SavedProgram> make_saved(std::mt19937& random, int nodes);

// A block of these bytes.
backend::Block block_of(const std::string& bytes);

// Everything in it as text: equal for equal programs, whatever their windows' ids.
std::string describe(const SavedProgram& program);

// A folder of its own in the system's, removed with all in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  std::string path(const std::string& name) const { return path_ + '/' + name; }
  size_t files() const;

 private:
  std::string path_;
};

std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& bytes);

}  // namespace hetero::graph::testing
