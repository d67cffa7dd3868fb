// Saved programs out of the tests' programs, and the files of such.
//
// Thread safety: none.

#pragma once

#include <memory>
#include <random>
#include <set>
#include <string>

#include "graph/serve/saved_program.h"
#include "tests/graph/program.h"

namespace hetero::graph::testing {

// Inputs are the buffers that exist before, outputs those that survive, each called "b<number>". `constants` are saved instead of being inputs, with the
// numbers that Program::bind() gives them. Without a plan.
std::unique_ptr<SavedProgram> save(const Program& program, const std::set<BufferId>& constants = {});

inline std::string name_of(BufferId buffer) { return "b" + std::to_string(buffer); }

// A random one: some inputs that nobody writes are constants of random bytes, some of these have two names; with a random operator whose state is drawn, metadata,
// and mostly with a plan.
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
