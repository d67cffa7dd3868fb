#include "backend/cpu/paged/cache_rows.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "backend/cpu/vector/float8.h"

namespace hetero::backend {
namespace {

constexpr std::array<const char*, kCacheElements> kNames = {"float32", "bfloat16", "float16", "int8", "float8_e4m3"};
constexpr float kMostInt8 = 127.0f;

// A row with an infinity or a NaN has no useful scale: what is finite in it becomes 0, and a NaN
// scale makes the row NaN, which is what its products would have been.
float quantize_row(const float* from, int64_t size, int8_t* to) {
  float largest = 0;
  bool finite = true;
  for (int64_t i = 0; i < size; ++i) {
    largest = std::max(largest, std::fabs(from[i]));
    finite &= std::isfinite(from[i]);
  }
  if (!finite || largest == 0) {
    std::fill_n(to, size, int8_t{0});
    return finite ? 0.0f : std::nanf("");
  }
  const float scale = largest / kMostInt8;
  const float inverse = kMostInt8 / largest;
  if (!std::isfinite(inverse)) {  // a denormal row
    std::fill_n(to, size, int8_t{0});
    return 0.0f;
  }
  for (int64_t i = 0; i < size; ++i) to[i] = static_cast<int8_t>(std::lrintf(from[i] * inverse));
  return scale;
}

}  // namespace

const char* to_string(CacheElement element) { return kNames[static_cast<size_t>(element)]; }

std::optional<CacheElement> cache_element_of(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<CacheElement>(found - kNames.begin());
}

void quantize_rows(CacheElement element, const float* from, int64_t rows, int64_t size, void* to, float* scales) {
  switch (element) {
    case CacheElement::kInt8:
      for (int64_t row = 0; row < rows; ++row) {
        scales[row] = quantize_row(from + row * size, size, static_cast<int8_t*>(to) + row * size);
      }
      return;
    case CacheElement::kFloat8:
      std::transform(from, from + rows * size, static_cast<uint8_t*>(to), float_to_float8);
      return;
    default:
      narrow(static_cast<Element>(element), from, rows * size, to);
  }
}

void dequantize_rows(CacheElement element, const void* from, const float* scales, int64_t rows, int64_t size,
                     float* to) {
  switch (element) {
    case CacheElement::kInt8:
      for (int64_t row = 0; row < rows; ++row) {
        const int8_t* const numbers = static_cast<const int8_t*>(from) + row * size;
        for (int64_t i = 0; i < size; ++i) to[row * size + i] = scales[row] * static_cast<float>(numbers[i]);
      }
      return;
    case CacheElement::kFloat8:
      std::transform(static_cast<const uint8_t*>(from), static_cast<const uint8_t*>(from) + rows * size, to,
                     float8_to_float);
      return;
    default:
      widen(static_cast<Element>(element), from, rows * size, to);
  }
}

}  // namespace hetero::backend
