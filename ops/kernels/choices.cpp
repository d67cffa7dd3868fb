#include "ops/kernels/choices.h"

#include <fcntl.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "backend/cpu/vector/instruction_set.h"
#include "backend/base/fnv.h"

namespace hetero::ops {
namespace {

// The first line of the file. What it names decides which choices are right.
std::string header(const char* kind) { return std::string("hetero ") + kind + ", " + machine_text(); }

}  // namespace

const std::string& machine_text() {
  static const auto* machine =
      new std::string("torch " TORCH_VERSION ", " + std::string(to_string(backend::instruction_set())) + "," +
                      backend::processor_model());
  return *machine;
}

std::string ChoiceFile::default_path(const char* kind) {
  namespace fs = std::filesystem;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  fs::path folder;
  if (cache != nullptr && *cache != '\0') {
    folder = cache;
  } else if (home != nullptr && *home != '\0') {
    folder = fs::path(home) / ".cache";
  } else {
    return "";
  }
  std::string name = kind;
  std::replace(name.begin(), name.end(), ' ', '-');
  std::ostringstream file;
  file << name << '-' << std::hex << backend::fnv(header(kind)) << ".txt";
  return (folder / "hetero" / file.str()).string();
}

std::vector<std::string> ChoiceFile::read() {
  std::vector<std::string> lines;
  if (path_.empty()) return lines;
  std::ifstream file(path_);
  std::string line;
  if (!std::getline(file, line)) return lines;
  if (line != header(kind_)) {
    // What is learned now would be lost behind that first line.
    path_.clear();
    return lines;
  }
  while (std::getline(file, line)) lines.push_back(line);
  return lines;
}

void ChoiceFile::append(const std::string& line) const {
  if (path_.empty()) return;
  std::error_code ignored;
  const std::filesystem::path file(path_);
  std::filesystem::create_directories(file.parent_path(), ignored);
  // Whole lines in one write each: processes that share the file do not mix theirs.
  const int descriptor = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor < 0) return;
  const std::string text = ::lseek(descriptor, 0, SEEK_END) == 0 ? header(kind_) + "\n" + line + "\n" : line + "\n";
  // A write that fails costs the next process a measurement.
  if (::write(descriptor, text.data(), text.size()) < 0) {
  }
  ::close(descriptor);
}

}  // namespace hetero::ops
