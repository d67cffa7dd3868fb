#include "backend/cpu/paged/cache_rows.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "backend/cpu/vector/float8.h"
#include "tests/catch/catch.h"

namespace hetero::backend::testing {
namespace {

constexpr int64_t kRows = 64, kSize = 128;

std::vector<float> normal_rows() {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> rows(kRows * kSize);
  for (float& number : rows) number = normal(random);
  return rows;
}

struct Error {
  double relative;  // root mean square, of that of the numbers
  double worst;     // of a number, of the largest of its row
};

Error error_of(CacheElement element, const std::vector<float>& rows) {
  std::vector<std::byte> bytes(static_cast<size_t>(kRows * kSize * cache_element_bytes(element)));
  std::vector<float> scales(kRows), back(rows.size());
  quantize_rows(element, rows.data(), kRows, kSize, bytes.data(), scales.data());
  dequantize_rows(element, bytes.data(), scales.data(), kRows, kSize, back.data());
  double squares = 0, all = 0, worst = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    double largest = 0, difference = 0;
    for (int64_t i = row * kSize; i < (row + 1) * kSize; ++i) {
      const double d = back[static_cast<size_t>(i)] - rows[static_cast<size_t>(i)];
      squares += d * d;
      all += static_cast<double>(rows[static_cast<size_t>(i)]) * rows[static_cast<size_t>(i)];
      difference = std::max(difference, std::abs(d));
      largest = std::max<double>(largest, std::abs(rows[static_cast<size_t>(i)]));
    }
    worst = std::max(worst, difference / largest);
  }
  return {std::sqrt(squares / all), worst};
}

}  // namespace

TEST_CASE("stored rows come back within the error of their format") {
  const auto rows = normal_rows();
  CHECK(error_of(CacheElement::kFloat32, rows).relative == 0);
  const Error bfloat16 = error_of(CacheElement::kBfloat16, rows), float16 = error_of(CacheElement::kFloat16, rows);
  const Error int8 = error_of(CacheElement::kInt8, rows), float8 = error_of(CacheElement::kFloat8, rows);
  CHECK(bfloat16.relative < 0.002);
  CHECK(float16.relative < 0.0003);
  CHECK(int8.relative < 0.0075);
  CHECK(int8.worst <= 1.0 / 254 * 1.0001);
  CHECK(float8.relative < 0.027);
  CHECK(float8.worst <= 1.0 / 16);
  // They are not better than they can be, so the formats are what they say.
  CHECK(bfloat16.relative > 0.001);
  CHECK(int8.relative > 0.004);
  CHECK(float8.relative > 0.02);
}

TEST_CASE("every float8 number comes back, and floats go to the nearest") {
  for (int bits = 0; bits < 256; ++bits) {
    const float value = float8_to_float(static_cast<uint8_t>(bits));
    if ((bits & 0x7f) == 0x7f) {
      CHECK(std::isnan(value));
      continue;
    }
    CHECK(float_to_float8(value) == bits);
    if ((bits & 0x7f) == 0x7e) continue;
    const float next = float8_to_float(static_cast<uint8_t>(bits + 1));
    const float middle = (value + next) / 2;
    CHECK(float_to_float8(std::nextafterf(middle, value)) == bits);
    CHECK(float_to_float8(std::nextafterf(middle, next)) == bits + 1);
    CHECK(float_to_float8(middle) == (bits & 1 ? bits + 1 : bits));  // ties to even
  }
  CHECK(float8_to_float(0x7e) == 448.0f);
  CHECK(float8_to_float(0x01) == 0x1p-9f);
  CHECK(float_to_float8(1e30f) == 0x7e);
  CHECK(float_to_float8(-std::numeric_limits<float>::infinity()) == 0xfe);
  CHECK(float_to_float8(std::nanf("")) == 0x7f);
}

TEST_CASE("rows of zeros, of one number and with a NaN are stored as int8") {
  std::vector<float> rows(4 * 16, 0.0f);
  rows[16] = -3.0f;
  rows[2 * 16 + 5] = std::nanf("");
  for (int i = 0; i < 16; ++i) rows[static_cast<size_t>(3 * 16 + i)] = 1e-40f;
  std::vector<int8_t> bytes(rows.size());
  std::vector<float> scales(4), back(rows.size());
  quantize_rows(CacheElement::kInt8, rows.data(), 4, 16, bytes.data(), scales.data());
  dequantize_rows(CacheElement::kInt8, bytes.data(), scales.data(), 4, 16, back.data());
  CHECK(scales[0] == 0.0f);
  CHECK(back[16] == -3.0f);
  CHECK(back[17] == 0.0f);
  CHECK(std::isnan(back[2 * 16]));
  CHECK(std::abs(back[3 * 16]) <= 1e-40f);
}

TEST_CASE("formats have names") {
  for (int i = 0; i < kCacheElements; ++i) {
    const auto element = static_cast<CacheElement>(i);
    CHECK(cache_element_of(to_string(element)) == element);
  }
  CHECK_FALSE(cache_element_of("float64"));
}

}  // namespace hetero::backend::testing
