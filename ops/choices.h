// Which implementation of an operator is the fastest on this machine: remembered for each shape, and on disk from process to process.
//
// Each kind of operator has a file, ~/.cache/hetero/KIND-HASH.txt (or below $XDG_CACHE_HOME). It belongs to one processor model and one version of
// torch, which its first line names; another line for each choice follows, the last one for a shape counts. Lines that do not parse are passed over,
// and a file that cannot be read or written is as if there were none: nothing ever fails because of it.
//
//   struct Shape {
//     static constexpr const char* kKind = "linear 1";  // with the version of the lines
//     bool operator==(const Shape&) const = default;
//     Shape rounded() const;                            // the shape that stands for all similar ones
//     std::array<int64_t, N> numbers() const;           // all that is compared
//   };
//   struct Choice { ...; bool sure = true; };           // false: guessed, since the machine was too busy to measure
//   std::string line_of(const Shape&, const Choice&);
//   bool parse_line(const std::string&, Shape&, Choice&);  // what it understands wrongly is found by line_of
//
// Thread safety: any thread.

#pragma once

#include <bit>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hetero::ops {

// The processor and the versions that measurements belong to.
const std::string& machine_text();

// Lines of text below a first line that says what they are of.
class ChoiceFile {
 public:
  // "" for none.
  ChoiceFile(const char* kind, std::string path) : kind_(kind), path_(std::move(path)) {}

  // The lines below the first. A file with another first line is not ours, or damaged: it is left alone from now on.
  std::vector<std::string> read();
  void append(const std::string& line) const;

  // Where the choices of this kind are kept; "" where there is no such place.
  static std::string default_path(const char* kind);

 private:
  const char* kind_;
  std::string path_;
};

template <typename Shape, typename Choice>
class Choices {
 public:
  explicit Choices(std::string path) : file_(Shape::kKind, std::move(path)) {}

  // What is known of shape.rounded(). A guess is forgotten at the 2nd, 4th, ... 64th look, so that the caller measures again.
  std::optional<Choice> find(const Shape& shape) {
    const std::lock_guard lock(mutex_);
    if (!loaded_) load();
    const auto found = known_.find(shape.rounded());
    if (found == known_.end()) return std::nullopt;
    constexpr uint32_t kLastLook = 64;
    Known& known = found->second;
    if (!known.choice.sure && known.looks < kLastLook && std::has_single_bit(++known.looks)) return std::nullopt;
    return known.choice;
  }

  // Guesses are not written to the file.
  void learn(const Shape& shape, const Choice& choice) {
    const std::lock_guard lock(mutex_);
    if (!loaded_) load();
    known_[shape.rounded()].choice = choice;
    if (choice.sure) file_.append(line_of(shape.rounded(), choice));
  }

  // Forgets everything, and uses another file from now on.
  void restart(std::string path) {
    const std::lock_guard lock(mutex_);
    known_.clear();
    file_ = ChoiceFile(Shape::kKind, std::move(path));
    loaded_ = false;
  }

 private:
  struct Known {
    Choice choice;
    uint32_t looks = 1;
  };
  struct Hash {
    size_t operator()(const Shape& shape) const {
      uint64_t hash = 0;
      for (const int64_t number : shape.numbers()) {
        hash = (hash ^ static_cast<uint64_t>(number)) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
      }
      return hash;
    }
  };

  void load() {  // at the first look
    loaded_ = true;
    for (const std::string& line : file_.read()) {
      Shape shape{};
      Choice choice{};
      if (parse_line(line, shape, choice) && line_of(shape, choice) == line) known_[shape].choice = choice;
    }
  }

  std::mutex mutex_;
  ChoiceFile file_;
  bool loaded_ = false;
  std::unordered_map<Shape, Known, Hash> known_;
};

// Choices that are kept where those of this kind belong. Leaked on purpose: kernels may run while the process exits.
template <typename Kept>
Kept& choices_of_process(const char* kind) {
  static auto* choices = new Kept(ChoiceFile::default_path(kind));
  return *choices;
}

// The position of `word` in `names`, or -1.
template <size_t N>
int position(const char* const (&names)[N], const std::string& word) {
  for (size_t i = 0; i < N; ++i) {
    if (word == names[i]) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace hetero::ops
