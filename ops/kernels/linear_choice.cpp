#include "ops/kernels/linear_choice.h"

#include <algorithm>
#include <bit>
#include <sstream>

namespace hetero::ops {
namespace {

constexpr const char* kNames[kLinearImplementations] = {"stock",         "matvec",       "panels",     "tiles",
                                                        "packed_panels", "packed_tiles", "packed_blas"};
constexpr const char* kUntried = "untried";

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
  line << kElementNames[static_cast<int>(shape.element)] << (shape.x_columns ? " columns" : " rows")
       << (shape.columns ? " columns" : " rows") << (shape.bias ? " bias" : " plain")
       << (shape.tiles ? " tiles " : " vectors ") << shape.m << ' ' << shape.n << ' ' << shape.k << ' ' << shape.threads
       << (shape.leads ? " leads " : " alone ") << to_string(choice.plain) << ' '
       << (choice.packed ? to_string(*choice.packed) : kUntried);
  return line.str();
}

bool parse_line(const std::string& line, LinearShape& shape, LinearChoice& choice) {
  std::istringstream in(line);
  std::string element, x_layout, layout, bias, unit, place, plain, packed;
  in >> element >> x_layout >> layout >> bias >> unit >> shape.m >> shape.n >> shape.k >> shape.threads >> place >>
      plain >> packed;
  if (!in) return false;
  const int element_index = position(kElementNames, element);
  const int plain_index = position(kNames, plain);
  const int packed_index = position(kNames, packed);
  if (element_index < 0 || plain_index < 0 || (packed_index < 0 && packed != kUntried)) return false;
  shape.element = static_cast<backend::Element>(element_index);
  shape.x_columns = x_layout == "columns";
  shape.columns = layout == "columns";
  shape.bias = bias == "bias";
  shape.tiles = unit == "tiles";
  shape.leads = place == "leads";
  choice = {.plain = static_cast<LinearImplementation>(plain_index)};
  if (packed_index >= 0) choice.packed = static_cast<LinearImplementation>(packed_index);
  return true;
}

LinearChoices& linear_choices() { return choices_of_process<LinearChoices>(LinearShape::kKind); }

}  // namespace hetero::ops
