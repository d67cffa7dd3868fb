#include "ops/linear_choice.h"

#include <algorithm>
#include <bit>
#include <sstream>

namespace hetero::ops {
namespace {

constexpr const char* kElementNames[] = {"float32", "bfloat16", "float16"};
constexpr const char* kNames[kLinearImplementations] = {"stock", "matvec", "wide", "packed"};
constexpr const char* kPackings[] = {"untried", "worse", "better"};

}  // namespace

const char* to_string(LinearImplementation implementation) { return kNames[static_cast<int>(implementation)]; }

LinearShape LinearShape::rounded() const {
  constexpr int64_t kExact = 16;
  constexpr int64_t kMost = 512;
  LinearShape shape = *this;
  if (m > kExact) shape.m = std::min(kMost, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(m))));
  return shape;
}

std::string line_of(const LinearShape& shape, const LinearChoice& choice) {
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
  return true;
}

LinearChoices& linear_choices() { return choices_of_process<LinearChoices>(LinearShape::kKind); }

}  // namespace hetero::ops
