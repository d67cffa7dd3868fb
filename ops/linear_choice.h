// Which implementation of a matrix product is the fastest on this machine: remembered for each shape, and on disk from process to process.
//
// The file, ~/.cache/hetero/linear-1-HASH.txt (or below $XDG_CACHE_HOME), belongs to one processor model and one version of torch, which its first
// line names; another line for each choice follows, the last one for a shape counts. Lines that do not parse are passed over, and a file that
// cannot be read or written is as if there were none: nothing ever fails because of it.
//
// Thread safety: any thread.

#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "backend/cpu/matvec.h"

namespace hetero::ops {

enum class LinearImplementation : uint8_t {
  kStock,   // ATen's kernel
  kMatvec,  // backend/cpu/matvec.h
  kWide,    // backend/cpu/wide_gemm.h
  kPacked,  // oneDNN, with a copy of the weight in a layout of its own
};
inline constexpr int kLinearImplementations = 4;
const char* to_string(LinearImplementation implementation);

// What the choice depends on: y[m, n] = x[m, k] * w.
struct LinearShape {
  backend::Element element;
  bool columns;  // w is [k, n]
  bool bias;
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t threads;

  bool operator==(const LinearShape&) const = default;
  // The shape that stands for all with a similar m.
  LinearShape rounded() const;
};

enum class Packing : uint8_t { kUntried, kWorse, kBetter };

struct LinearChoice {
  LinearImplementation plain = LinearImplementation::kStock;  // the best that needs nothing but the operands
  Packing packing = Packing::kUntried;                        // whether kPacked is better still
  bool sure = true;  // false: guessed, since the machine was too busy to measure

  bool operator==(const LinearChoice&) const = default;
};

class LinearChoices {
 public:
  // Keeps the choices in this file; "" for none.
  explicit LinearChoices(std::string path) : path_(std::move(path)) {}

  // What is known of shape.rounded(). A guess is forgotten at the 2nd, 4th, ... 64th look, so that the caller measures again.
  std::optional<LinearChoice> find(const LinearShape& shape);
  // Guesses are not written to the file.
  void learn(const LinearShape& shape, LinearChoice choice);
  // Forgets everything, and uses another file from now on.
  void restart(std::string path);

 private:
  struct Known {
    LinearChoice choice;
    uint32_t looks = 1;
  };
  struct Hash {
    size_t operator()(const LinearShape& shape) const;
  };
  void load();  // at the first look

  std::mutex mutex_;
  std::string path_;
  bool loaded_ = false;
  std::unordered_map<LinearShape, Known, Hash> known_;
};

// Those of this process.
LinearChoices& linear_choices();

}  // namespace hetero::ops
