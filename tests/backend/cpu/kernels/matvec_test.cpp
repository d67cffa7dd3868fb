// Products of a few rows with a matrix against sums in double, for every instruction set of this
// processor.

#include "backend/cpu/kernels/matvec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/base/parallel.h"
#include "backend/cpu/vector/half.h"
#include "tests/backend/cpu/kernels/matvec_case.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> sets;
  for (int set = 0; set <= static_cast<int>(instruction_set()); ++set) sets.push_back(static_cast<InstructionSet>(set));
  return sets;
}

bool is_right(const Case& c, InstructionSet set) {
  return product_is_right(c, [&](const Matvec& call) { matvec(call, set); });
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

TEST_CASE("a weight larger than the second-level cache gives the bits of its parts, which fit") {
  for (const InstructionSet set : instruction_sets()) {
    for (const Element element : kElements) {
      Group whole(element, false, 1, 1100, {1024});
      const auto expected = whole.outputs([&] {
        for (int64_t first = 0; first < 1024; first += 128) {
          Matvec part = whole.calls[0];
          part.n = 128;
          part.w = element_at(part.w, first * part.w_stride, element);
          part.bias = part.bias == nullptr ? nullptr : element_at(part.bias, first, element);
          part.y = static_cast<std::byte*>(part.y) + first * element_bytes(element);
          matvec(part, set);
        }
      });
      REQUIRE(whole.outputs([&] { matvec(whole.calls, set); }) == expected);
    }
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

// ---- several products of one x

TEST_CASE("products of one x have the bits of the products one by one, on any number of threads") {
  for (const InstructionSet set : instruction_sets()) {
    for (const Element element : kElements) {
      for (const bool columns : {false, true}) {
        for (int64_t m = 1; m <= kMaxMatvecRows; ++m) {
          for (const int64_t k : {0, 77}) {
            Group group(element, columns, m, k, {130, 0, 1, 64, 200, 1100});
            const auto expected = group.outputs([&] {
              for (const Matvec& call : group.calls) matvec(call, set);
            });
            for (const ParallelPool* pool : kPools) {
              set_parallel_pool(pool);
              const auto outputs = group.outputs([&] { matvec(group.calls, set); });
              set_parallel_pool(nullptr);
              INFO(to_string(set) << ": " << text({element, columns, m, 0, k, 0, false}));
              REQUIRE(outputs == expected);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a thread computes its part of the outputs and no more") {
  static const ParallelPool kFirstHalf = {
      [](int64_t begin, int64_t end, int64_t, RangeFunction body) { body(begin, begin + (end - begin) / 2); },
      [] { return int64_t{2}; }};
  Group group(Element::kBfloat16, false, 2, 512, {64, 256, 128, 64});
  const auto untouched = group.outputs([] {});
  const auto all = group.outputs([&] { matvec(group.calls); });
  set_parallel_pool(&kFirstHalf);
  const auto half = group.outputs([&] { matvec(group.calls); });
  set_parallel_pool(nullptr);
  REQUIRE(half[0] == all[0]);
  REQUIRE(half[1] != untouched[1]);
  REQUIRE(half[1] != all[1]);
  REQUIRE(half[2] == untouched[2]);
  REQUIRE(half[3] == untouched[3]);
}

TEST_CASE("products of one x start the threads once") {
  static int64_t starts = 0;
  static const ParallelPool kCounting = {[](int64_t begin, int64_t end, int64_t, RangeFunction body) {
                                           ++starts;
                                           body(begin, end);
                                         },
                                         [] { return int64_t{2}; }};
  Group few(Element::kBfloat16, false, 2, 512, {256, 64, 128});
  starts = 0;
  set_parallel_pool(&kCounting);
  few.outputs([&] { matvec(few.calls); });
  set_parallel_pool(nullptr);
  REQUIRE(starts == 1);
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
