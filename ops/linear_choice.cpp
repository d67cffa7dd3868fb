#include "ops/linear_choice.h"

#include <fcntl.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

namespace hetero::ops {
namespace {

constexpr const char* kElementNames[] = {"float32", "bfloat16", "float16"};
constexpr const char* kNames[kLinearImplementations] = {"stock", "matvec", "wide", "packed"};
constexpr const char* kPackings[] = {"untried", "worse", "better"};

// The position of `word` in `names`, or -1.
template <size_t N>
int position(const char* const (&names)[N], const std::string& word) {
  for (size_t i = 0; i < N; ++i) {
    if (word == names[i]) return static_cast<int>(i);
  }
  return -1;
}

std::string processor_model() {
  std::ifstream file("/proc/cpuinfo");
  std::string text;
  std::string line;
  // Of the first processor: vendor, family, model, name, stepping. A virtual machine's name alone says little.
  while (std::getline(file, line) && !line.empty()) {
    const std::string word = line.substr(0, line.find_first_of("\t:"));
    if (word == "vendor_id" || word == "cpu family" || word == "model" || word == "model name" || word == "stepping") {
      text += line.substr(line.find(':') + 1);
    }
  }
  return text;
}

// The first line of the file. What it names decides which choices are right.
const std::string& header() {
  static const auto* text =
      new std::string("hetero linear 1, torch " TORCH_VERSION ", " +
                      std::string(to_string(backend::instruction_set())) + "," + processor_model());
  return *text;
}

std::string default_path() {
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
  // FNV-1a: the same in every process.
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : header()) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  std::ostringstream name;
  name << "linear-1-" << std::hex << hash << ".txt";
  return (folder / "hetero" / name.str()).string();
}

std::string line_of(const LinearShape& shape, LinearChoice choice) {
  std::ostringstream line;
  line << kElementNames[static_cast<int>(shape.element)] << (shape.columns ? " columns" : " rows")
       << (shape.bias ? " bias " : " plain ") << shape.m << ' ' << shape.n << ' ' << shape.k << ' ' << shape.threads
       << ' ' << to_string(choice.plain) << ' ' << kPackings[static_cast<int>(choice.packing)];
  return line.str();
}

bool parse_line(const std::string& line, LinearShape& shape, LinearChoice& choice) {
  std::istringstream in(line);
  std::string element, layout, bias, implementation, packing;
  in >> element >> layout >> bias >> shape.m >> shape.n >> shape.k >> shape.threads >> implementation >> packing;
  if (!in) return false;
  const int element_index = position(kElementNames, element);
  const int implementation_index = position(kNames, implementation);
  const int packing_index = position(kPackings, packing);
  if (element_index < 0 || implementation_index < 0 || packing_index < 0) return false;
  shape.element = static_cast<backend::Element>(element_index);
  shape.columns = layout == "columns";
  shape.bias = bias == "bias";
  choice = {static_cast<LinearImplementation>(implementation_index), static_cast<Packing>(packing_index)};
  // Reading back what was understood must give the same line.
  return line_of(shape, choice) == line;
}

void append(const std::string& path, const std::string& line) {
  std::error_code ignored;
  const std::filesystem::path file(path);
  std::filesystem::create_directories(file.parent_path(), ignored);
  // Whole lines in one write each: processes that share the file do not mix theirs.
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor < 0) return;
  const std::string text = ::lseek(descriptor, 0, SEEK_END) == 0 ? header() + "\n" + line + "\n" : line + "\n";
  // A write that fails costs the next process a measurement.
  if (::write(descriptor, text.data(), text.size()) < 0) {
  }
  ::close(descriptor);
}

}  // namespace

const char* to_string(LinearImplementation implementation) { return kNames[static_cast<int>(implementation)]; }

LinearShape LinearShape::rounded() const {
  constexpr int64_t kExact = 16;
  constexpr int64_t kMost = 512;
  LinearShape shape = *this;
  if (m > kExact) shape.m = std::min(kMost, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(m))));
  return shape;
}

size_t LinearChoices::Hash::operator()(const LinearShape& shape) const {
  uint64_t hash = static_cast<uint64_t>(shape.element) * 4 + (shape.columns ? 2 : 0) + (shape.bias ? 1 : 0);
  for (const int64_t number : {shape.m, shape.n, shape.k, shape.threads}) {
    hash = (hash ^ static_cast<uint64_t>(number)) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return hash;
}

std::optional<LinearChoice> LinearChoices::find(const LinearShape& shape) {
  const std::lock_guard lock(mutex_);
  if (!loaded_) load();
  const auto found = known_.find(shape.rounded());
  if (found == known_.end()) return std::nullopt;
  constexpr uint32_t kLastLook = 64;
  Known& known = found->second;
  if (!known.choice.sure && known.looks < kLastLook && std::has_single_bit(++known.looks)) return std::nullopt;
  return known.choice;
}

void LinearChoices::learn(const LinearShape& shape, LinearChoice choice) {
  const std::lock_guard lock(mutex_);
  if (!loaded_) load();
  known_[shape.rounded()].choice = choice;
  if (!path_.empty() && choice.sure) append(path_, line_of(shape.rounded(), choice));
}

void LinearChoices::restart(std::string path) {
  const std::lock_guard lock(mutex_);
  known_.clear();
  path_ = std::move(path);
  loaded_ = false;
}

void LinearChoices::load() {
  loaded_ = true;
  if (path_.empty()) return;
  std::ifstream file(path_);
  std::string line;
  if (!std::getline(file, line)) return;
  if (line != header()) {
    // Not ours, or damaged: what is learned now would be lost behind that first line.
    path_.clear();
    return;
  }
  LinearShape shape;
  LinearChoice choice;
  while (std::getline(file, line)) {
    if (parse_line(line, shape, choice)) known_[shape].choice = choice;
  }
}

LinearChoices& linear_choices() {
  // Leaked on purpose: kernels may run while the process exits.
  static auto* choices = new LinearChoices(default_path());
  return *choices;
}

}  // namespace hetero::ops
