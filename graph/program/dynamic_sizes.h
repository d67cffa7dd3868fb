// DynamicSizes: how a saved program's sizes and numbers follow from the sizes of its inputs, so
// that one program serves many.
//
// A program's graph has the integers of the example with which it was made. A program with
// *dimensions* ("batch", "tokens") also says which of these integers depend on them, each as a sum
// of products:
//
//   dimension batch 1..4096
//   dimension tokens 1..512
//   let halved = floor(tokens-1,2)
//   b3: 1536*batch*tokens bytes
//   n4.1: f32[batch,tokens,384]{384*tokens,384,1}
//   n4 number at 24: tokens
//   input 0: i64[batch,tokens]{tokens,1}
//   require 2*halved = tokens-1
//
// `let` names a value that sums and products cannot express. "n4.1" is operand 1 of node n4; " at
// ..." may follow, its offset. "n4 number at 24" is eight bytes of the node's attributes, with
// "real" as a double. `require` says what else must hold of the sizes, with =, != or <=.
//
// program_sizes.h has the program for other sizes. fit_sizes.h finds the sums.
//
// Thread safety: immutable once made; pure functions.

#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/base/status.h"
#include "graph/ir/graph.h"

namespace hetero::graph {

// factor * product of variables, which are sorted.
struct SizeTerm {
  int64_t factor = 0;
  std::vector<uint16_t> variables;
  bool operator==(const SizeTerm&) const = default;
};
using SizeSum = std::vector<SizeTerm>;
// The product of two sums, terms of equal variables added up.
SizeSum multiplied(const SizeSum& a, const SizeSum& b);
// Adds `factor` times the other sum.
void add(SizeSum& sum, int64_t factor, const SizeSum& other);

struct SizeVariable {
  enum class Kind : uint8_t { kDimension, kFloor, kMax, kMin };
  Kind kind = Kind::kDimension;
  std::string name;
  // kDimension: what it may be.
  int64_t least = 1;
  int64_t most = std::numeric_limits<int64_t>::max();
  // Of others: of what, by variables before this one. floor(a, b) is the largest integer that is
  // not above a / b.
  SizeSum a{};
  SizeSum b{};
  bool operator==(const SizeVariable&) const = default;
};

// What the model's course depends on beside the bounds: that a size is a multiple of another, say.
struct SizeRequirement {
  enum class Kind : uint8_t { kEqual, kUnequal, kAtMost };
  Kind kind = Kind::kEqual;
  SizeSum a{};
  SizeSum b{};
  bool operator==(const SizeRequirement&) const = default;
};

struct DynamicWindow {
  DType dtype = 0;
  std::vector<SizeSum> sizes;
  std::vector<SizeSum> strides;
  SizeSum offset;
  bool operator==(const DynamicWindow&) const = default;
};

struct DynamicSizes {
  struct Bytes {
    BufferId buffer;
    SizeSum bytes;
    bool operator==(const Bytes&) const = default;
  };
  struct OperandWindow {
    uint32_t node;
    uint32_t operand;  // of the node
    DynamicWindow window;
    bool operator==(const OperandWindow&) const = default;
  };
  struct Number {
    uint32_t node;
    uint32_t place;  // in the node's attributes; eight bytes
    bool real;       // a double, not an int64
    SizeSum value;
    bool operator==(const Number&) const = default;
  };
  struct ValueWindow {
    uint32_t index;  // of the input or output
    DynamicWindow window;
    bool operator==(const ValueWindow&) const = default;
  };

  std::vector<SizeVariable> variables;  // dimensions first
  std::vector<SizeRequirement> requirements;
  std::vector<Bytes> buffers;
  std::vector<OperandWindow> operands;
  std::vector<Number> numbers;
  std::vector<ValueWindow> inputs;
  std::vector<ValueWindow> outputs;

  bool operator==(const DynamicSizes&) const = default;
  // None of a program that has one set of sizes.
  std::span<const SizeVariable> dimensions() const;
};

// More than any program needs; a file cannot make its reader work for longer.
inline constexpr size_t kMostSizeVariables = 1024;
inline constexpr size_t kMostSizeTerms = 64;
inline constexpr size_t kMostSizeFactors = 16;

// Evaluates sums of known variables. Where the value of one does not fit 64 bits, fits() says so
// from then on.
class SizeEvaluation {
 public:
  explicit SizeEvaluation(std::span<const int64_t> variables) : variables_(variables) {}

  int64_t operator()(const SizeSum& sum);
  bool fits() const { return fits_; }

 private:
  const std::span<const int64_t> variables_;
  bool fits_ = true;
};
// What follows of an evaluation that does not fit.
Status sizes_too_large();

// The numbers of all variables where the dimensions are `sizes`. Errors: kUsage for a dimension
// outside its bounds, an overflow or a division by zero.
Result<std::vector<int64_t>> values_of(std::span<const SizeVariable> variables, std::span<const int64_t> sizes);
// The same. Errors: also the first requirement that is not met.
Result<std::vector<int64_t>> possible_values(const DynamicSizes& dynamic, std::span<const int64_t> sizes);
// Errors: kUsage for an overflow. REQUIRES: verify_sizes(), or variables that are there.
Result<int64_t> value_of(const SizeSum& sum, std::span<const int64_t> variables);

// "batch 8, tokens 32".
std::string sizes_text(const DynamicSizes& dynamic, std::span<const int64_t> sizes);

// The text above; empty where there are no dimensions.
std::string to_string(const DynamicSizes& dynamic);
std::string to_string(const SizeSum& sum, std::span<const SizeVariable> variables);
// With commas between them.
std::string to_string(const std::vector<SizeSum>& sums, std::span<const SizeVariable> variables);
Result<DynamicSizes> parse_sizes(std::string_view text);
// One sum, of these variables.
Result<SizeSum> parse_sum(std::string_view text, std::span<const SizeVariable> variables);

}  // namespace hetero::graph
