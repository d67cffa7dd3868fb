// Products of a few rows with a matrix against sums in double, for every instruction set of this processor.

#include "backend/cpu/matvec.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "backend/cpu/half.h"
#include "backend/cpu/wide_gemm.h"
#include "backend/parallel.h"
#include "tests/backend/catch.h"
#include "tests/backend/plain_gemm.h"

namespace hetero::backend {
namespace {

constexpr Element kElements[] = {Element::kFloat32, Element::kBfloat16, Element::kFloat16};

std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> sets;
  for (int set = 0; set <= static_cast<int>(instruction_set()); ++set) sets.push_back(static_cast<InstructionSet>(set));
  return sets;
}

// A [rows, columns] matrix with a row stride. Between the rows are NaNs, so that reading or writing there shows.
class Matrix {
 public:
  Matrix(Element element, int64_t rows, int64_t columns, int64_t stride)
      : stride(stride), element_(element), bits_(static_cast<size_t>(rows * stride + 1)) {
    for (size_t i = 0; i < bits_.size(); ++i) put(i, std::numeric_limits<float>::quiet_NaN());
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) put(index(row, column), next());
    }
  }
  double at(int64_t row, int64_t column) const { return get(index(row, column)); }
  void set(int64_t row, int64_t column, float value) { put(index(row, column), value); }
  bool gap_is_untouched(int64_t rows, int64_t columns) const {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = columns; column < stride; ++column) {
        if (!std::isnan(get(index(row, column)))) return false;
      }
    }
    return std::isnan(get(bits_.size() - 1));
  }
  // Packed, as the element type has it.
  void* data() {
    bytes_.resize(bits_.size() * 4);
    for (size_t i = 0; i < bits_.size(); ++i) {
      if (element_ == Element::kFloat32) {
        std::memcpy(bytes_.data() + 4 * i, &bits_[i], 4);
      } else {
        std::memcpy(bytes_.data() + 2 * i, &bits_[i], 2);
      }
    }
    return bytes_.data();
  }
  void read_back() {
    for (size_t i = 0; i < bits_.size(); ++i) {
      bits_[i] = 0;
      std::memcpy(&bits_[i], bytes_.data() + (element_ == Element::kFloat32 ? 4 : 2) * i,
                  element_ == Element::kFloat32 ? 4 : 2);
    }
  }

  const int64_t stride;

 private:
  size_t index(int64_t row, int64_t column) const { return static_cast<size_t>(row * stride + column); }
  void put(size_t i, float value) {
    bits_[i] = element_ == Element::kFloat32    ? std::bit_cast<uint32_t>(value)
               : element_ == Element::kBfloat16 ? float_to_bfloat16(value)
                                                : float_to_float16(value);
  }
  float get(size_t i) const {
    return element_ == Element::kFloat32    ? std::bit_cast<float>(bits_[i])
           : element_ == Element::kBfloat16 ? bfloat16_to_float(static_cast<uint16_t>(bits_[i]))
                                            : float16_to_float(static_cast<uint16_t>(bits_[i]));
  }
  float next() {
    seed_ = seed_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<float>(static_cast<int32_t>(seed_ >> 32)) * 0x1p-31f;
  }

  Element element_;
  std::vector<uint32_t> bits_;
  std::vector<uint8_t> bytes_;
  uint64_t seed_ = 7;
};

struct Case {
  Element element;
  bool columns;
  int64_t m, n, k;
  int64_t gap;  // between the rows of every matrix
  bool bias;
};

// A float32 sum of k products in any order is off by at most k * 2^-24 of the sum of their magnitudes; rounding the result adds half a unit
// of the element type, relative to the result, or half of its smallest subnormal.
template <typename Product>
bool product_is_right(const Case& c, const Product& product) {
  Matrix x(c.element, c.m, c.k, c.k + c.gap);
  Matrix w(c.element, c.columns ? c.k : c.n, c.columns ? c.n : c.k, (c.columns ? c.n : c.k) + c.gap);
  Matrix bias(c.element, 1, c.n, c.n);
  Matrix y(c.element, c.m, 0, c.n + c.gap);
  Matvec call{.element = c.element,
              .columns = c.columns,
              .m = c.m,
              .n = c.n,
              .k = c.k,
              .x = x.data(),
              .x_stride = x.stride,
              .w = w.data(),
              .w_stride = w.stride,
              .bias = c.bias ? bias.data() : nullptr,
              .y = y.data(),
              .y_stride = y.stride};
  product(call);
  y.read_back();
  const double unit = c.element == Element::kFloat32 ? 0x1p-24 : c.element == Element::kBfloat16 ? 0x1p-8 : 0x1p-11;
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      double sum = c.bias ? bias.at(0, j) : 0;
      double magnitude = std::abs(sum);
      for (int64_t l = 0; l < c.k; ++l) {
        const double product = x.at(i, l) * (c.columns ? w.at(l, j) : w.at(j, l));
        sum += product;
        magnitude += std::abs(product);
      }
      const double error = std::abs(y.at(i, j) - sum);
      if (!(error <= static_cast<double>(c.k + 2) * 0x1p-24 * magnitude + unit * std::abs(sum) + 0x1p-25)) {
        UNSCOPED_INFO("y[" << i << "," << j << "] is " << y.at(i, j) << ", not " << sum);
        return false;
      }
    }
  }
  return y.gap_is_untouched(c.m, c.n);
}

bool is_right(const Case& c, InstructionSet set) {
  return product_is_right(c, [&](const Matvec& call) { matvec(call, set); });
}

std::string text(const Case& c) {
  return "element " + std::to_string(static_cast<int>(c.element)) + (c.columns ? ", columns" : ", rows") + ", m " +
         std::to_string(c.m) + ", n " + std::to_string(c.n) + ", k " + std::to_string(c.k);
}

TEST_CASE("a product of one to eight rows is right for every element type and layout") {
  for (const InstructionSet set : instruction_sets()) {
    for (const Element element : kElements) {
      for (const bool columns : {false, true}) {
        for (int64_t m = 1; m <= kMaxMatvecRows; ++m) {
          const Case c{element, columns, m, 83, 160, 3, m % 2 == 0};
          INFO(to_string(set) << ": " << text(c));
          REQUIRE(is_right(c, set));
        }
      }
    }
  }
}

TEST_CASE("every length of row and every number of outputs has its end handled") {
  for (const InstructionSet set : instruction_sets()) {
    for (const Element element : kElements) {
      for (const bool columns : {false, true}) {
        for (int64_t length = 1; length <= 70; ++length) {
          for (const Case& c :
               {Case{element, columns, 3, 9, length, 0, true}, Case{element, columns, 2, length, 9, 1, false}}) {
            INFO(to_string(set) << ": " << text(c));
            REQUIRE(is_right(c, set));
          }
        }
      }
    }
  }
}

TEST_CASE("outputs beyond one tile are computed too") {
  for (const bool columns : {false, true}) {
    REQUIRE(is_right({Element::kBfloat16, columns, 1, 8192 + 65, 5, 0, true}, instruction_set()));
    REQUIRE(is_right({Element::kFloat32, columns, 8, 2 * 1024 + 1, 33, 2, false}, instruction_set()));
  }
}

TEST_CASE("without outputs nothing is written, and an empty sum is the bias") {
  for (const InstructionSet set : instruction_sets()) {
    for (const bool columns : {false, true}) {
      REQUIRE(is_right({Element::kFloat32, columns, 0, 5, 4, 0, false}, set));
      REQUIRE(is_right({Element::kFloat32, columns, 2, 0, 4, 1, false}, set));
      REQUIRE(is_right({Element::kFloat32, columns, 2, 5, 0, 1, false}, set));
      REQUIRE(is_right({Element::kBfloat16, columns, 2, 5, 0, 1, true}, set));
    }
  }
}

TEST_CASE("what is not finite stays where it is") {
  for (const InstructionSet set : instruction_sets()) {
    for (const bool columns : {false, true}) {
      Matrix x(Element::kBfloat16, 1, 35, 35);
      Matrix w(Element::kBfloat16, columns ? 35 : 3, columns ? 3 : 35, columns ? 3 : 35);
      Matrix y(Element::kBfloat16, 1, 0, 3);
      x.set(0, 34, 1);
      for (int64_t j = 0; j < 3; ++j) {
        const float special[] = {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1};
        columns ? w.set(34, j, special[j]) : w.set(j, 34, special[j]);
      }
      matvec({.element = Element::kBfloat16,
              .columns = columns,
              .m = 1,
              .n = 3,
              .k = 35,
              .x = x.data(),
              .x_stride = 35,
              .w = w.data(),
              .w_stride = w.stride,
              .y = y.data(),
              .y_stride = 3},
             set);
      y.read_back();
      REQUIRE(std::isinf(y.at(0, 0)));
      REQUIRE(std::isnan(y.at(0, 1)));
      REQUIRE(std::isfinite(y.at(0, 2)));
    }
  }
}

TEST_CASE("two threads compute the bits of one") {
  static int runs = 0;
  static const ParallelPool kTwoThreads = {[](int64_t begin, int64_t end, int64_t, RangeFunction body) {
                                             ++runs;
                                             const int64_t middle = begin + (end - begin) / 2;
                                             std::thread other([&] { body(begin, middle); });
                                             body(middle, end);
                                             other.join();
                                           },
                                           [] { return int64_t{2}; }};
  for (const Element element : kElements) {
    for (const bool columns : {false, true}) {
      Matrix x(element, 3, 320, 320);
      Matrix w(element, columns ? 320 : 611, columns ? 611 : 320, columns ? 611 : 320);
      std::vector<uint8_t> results[2];
      for (int threads = 0; threads < 2; ++threads) {
        set_parallel_pool(threads == 0 ? nullptr : &kTwoThreads);
        const int before = runs;
        results[threads].resize(3 * 611 * 4);
        matvec({.element = element,
                .columns = columns,
                .m = 3,
                .n = 611,
                .k = 320,
                .x = x.data(),
                .x_stride = 320,
                .w = w.data(),
                .w_stride = w.stride,
                .y = results[threads].data(),
                .y_stride = 611});
        set_parallel_pool(nullptr);
        REQUIRE(runs == before + threads);
      }
      REQUIRE(results[0] == results[1]);
    }
  }
}

TEST_CASE("a product by way of float32 is right in every block") {
  for (const Element element : {Element::kBfloat16, Element::kFloat16}) {
    for (const Case& c : {Case{element, false, 17, 300, 70, 3, true}, Case{element, false, 3, 40, 1030, 0, false},
                          Case{element, false, 513, 5, 33, 1, true}, Case{element, false, 4, 7, 0, 0, true},
                          Case{element, false, 0, 7, 5, 0, false}, Case{element, false, 4, 0, 5, 0, false}}) {
      INFO(text(c));
      REQUIRE(product_is_right(c, [](const Matvec& call) { wide_gemm(call, plain_sgemm); }));
    }
  }
}

TEST_CASE("rows are narrowed as single numbers are") {
  std::vector<float> floats;
  for (uint32_t bits = 0; bits < 0xffff0000u; bits += 0x3fff5) floats.push_back(std::bit_cast<float>(bits));
  const float tie = 1 + 0x1p-8f;
  floats.insert(floats.begin(), {tie, -tie, 1 + 0x1p-11f, 65520, 0x1p-25f});
  const auto count = static_cast<int64_t>(floats.size());
  for (const InstructionSet set : instruction_sets()) {
    for (const Element element : {Element::kBfloat16, Element::kFloat16}) {
      std::vector<uint16_t> narrowed(floats.size());
      narrow(element, floats.data(), count, narrowed.data(), set);
      std::vector<float> widened(floats.size());
      widen(element, narrowed.data(), count, widened.data(), set);
      for (size_t i = 0; i < floats.size(); ++i) {
        const uint16_t expected =
            element == Element::kBfloat16 ? float_to_bfloat16(floats[i]) : float_to_float16(floats[i]);
        INFO(to_string(set) << ": " << floats[i]);
        if (std::isnan(floats[i])) {
          REQUIRE(std::isnan(widened[i]));
        } else {
          REQUIRE(narrowed[i] == expected);
        }
      }
    }
  }
}

TEST_CASE("half-width numbers survive the way to float and back") {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    if (std::isnan(bfloat16_to_float(half))) {
      REQUIRE(std::isnan(bfloat16_to_float(float_to_bfloat16(bfloat16_to_float(half)))));
    } else {
      REQUIRE(float_to_bfloat16(bfloat16_to_float(half)) == half);
    }
    if (std::isnan(float16_to_float(half))) {
      REQUIRE(std::isnan(float16_to_float(float_to_float16(float16_to_float(half)))));
    } else {
      REQUIRE(float_to_float16(float16_to_float(half)) == half);
    }
  }
}

TEST_CASE("rounding to half-width numbers goes to the nearest, ties to the even one") {
  REQUIRE(float_to_bfloat16(1 + 0x1p-8f) == float_to_bfloat16(1));
  REQUIRE(float_to_bfloat16(1 + 3 * 0x1p-8f) == float_to_bfloat16(1 + 0x1p-6f));
  REQUIRE(float_to_bfloat16(1 + 0x1.1p-8f) == float_to_bfloat16(1 + 0x1p-7f));
  REQUIRE(float_to_float16(1 + 0x1p-11f) == float_to_float16(1));
  REQUIRE(float_to_float16(1 + 3 * 0x1p-11f) == float_to_float16(1 + 0x1p-9f));
  REQUIRE(float_to_float16(0x1p-25f) == 0);
  REQUIRE(float_to_float16(3 * 0x1p-25f) == 2);
  REQUIRE(float_to_float16(65519) == 0x7bff);
  REQUIRE(float_to_float16(65520) == 0x7c00);
  REQUIRE(float_to_float16(-1e9f) == 0xfc00);
}

}  // namespace
}  // namespace hetero::backend
