// Cache rows: how the keys and values of a KV cache are stored, and their conversion from and to
// floats.
//
// A row is the key or the value of one token and head. Int8 rows have one scale each: a number is
// its integer times the scale, and the largest magnitude of the row becomes 127. Float8 rows have
// none, so numbers beyond 448 become 448.
//
//   quantize_rows(CacheElement::kInt8, floats, 8, 128, bytes, scales);
//
// Error of a row, with `largest` its largest magnitude: int8 at most largest / 254 for each number;
// float8 at most 1/16 of the number, or 2^-10 for a number below 2^-6.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "backend/cpu/kernels/matvec.h"

namespace hetero::backend {

enum class CacheElement : uint8_t { kFloat32, kBfloat16, kFloat16, kInt8, kFloat8 };
inline constexpr int kCacheElements = 5;

const char* to_string(CacheElement element);
// "float32", "bfloat16", "float16", "int8", "float8_e4m3".
std::optional<CacheElement> cache_element_of(std::string_view name);

constexpr int64_t cache_element_bytes(CacheElement element) {
  return element == CacheElement::kFloat32 ? 4 : element <= CacheElement::kFloat16 ? 2 : 1;
}
constexpr bool has_scales(CacheElement element) { return element == CacheElement::kInt8; }
// The cache's element that holds an element as it is.
constexpr CacheElement cache_element(Element element) { return static_cast<CacheElement>(element); }

// Converts `rows` rows of `size` numbers, which are dense. Writes a scale for each row if the
// element has scales.
void quantize_rows(CacheElement element, const float* from, int64_t rows, int64_t size, void* to, float* scales);
void dequantize_rows(CacheElement element, const void* from, const float* scales, int64_t rows, int64_t size,
                     float* to);

}  // namespace hetero::backend
