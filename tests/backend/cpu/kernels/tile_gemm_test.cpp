// Products on the tile unit against sums in double. Without the unit nothing runs, and a count says
// so.

#include "backend/cpu/kernels/tile_gemm.h"

#include <array>
#include <cstdlib>
#include <limits>
#include <memory>
#include <vector>

#include "tests/backend/cpu/kernels/limits_check.h"
#include "tests/backend/cpu/kernels/matvec_case.h"
#include "tests/backend/cpu/kernels/plain_gemm.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

constexpr Element kTileElements[] = {Element::kFloat32, Element::kBfloat16};

// Whether a test can run; tells if it cannot.
bool have_tiles() {
  if (!has_tiles()) WARN("1 test skipped: this processor has no tile unit, or the system does not let it be used");
  return has_tiles();
}

int64_t plain_products = 0;
int64_t plain_rows = 0;
// As a BLAS, it demands whole rows even of one, and may use the tile unit for itself.
void counted_sgemm(const Gemm& call) {
  ++plain_products;
  plain_rows += call.m;
  REQUIRE(call.lda >= (call.a_transposed ? call.m : call.k));
  REQUIRE(call.ldb >= (call.b_transposed ? call.k : call.n));
  REQUIRE(call.ldc >= call.n);
  plain_sgemm(call);
#if defined(__x86_64__)
  asm volatile(".byte 0xc4, 0xe2, 0x78, 0x49, 0xc0");  // tilerelease
#endif
}

PackedMemory memory_for(const Matvec& call) { return packed_memory(tile_weight_bytes(call.element, call.n, call.k)); }

// Packs the weight before, or leaves that to the call.
void multiply(Matvec call, bool packed) {
  const PackedMemory memory = memory_for(call);
  if (packed) {
    REQUIRE(pack_tile_weight(call, memory.get()));
    call.packed = memory.get();
  }
  tile_gemm(call, &counted_sgemm);
}

bool is_right(const Case& c, bool packed) {
  const int64_t before = plain_products;
  const bool right = product_is_right(c, [&](const Matvec& call) { multiply(call, packed); });
  return right && plain_products == before;
}

TEST_CASE("a product of tiles is as exact as a chain of sums in float32, with any number of rows, outputs and terms") {
  if (!have_tiles()) return;
  for (const Element element : kTileElements) {
    for (const bool columns : {false, true}) {
      for (const bool packed : {false, true}) {
        for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{{1, 1, 1},
                                                                         {3, 33, 31},
                                                                         {15, 16, 32},
                                                                         {16, 17, 33},
                                                                         {17, 31, 64},
                                                                         {31, 32, 65},
                                                                         {32, 40, 2},
                                                                         {33, 70, 100},
                                                                         {65, 64, 160}}) {
          for (const int64_t gap : {0, 3}) {
            for (const bool x_columns : {false, true}) {
              const Case c{element, columns, m, n, k, gap, m % 2 == 1, x_columns};
              INFO(text(c) << ", packed " << packed);
              REQUIRE(is_right(c, packed));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("every end of a tile is handled") {
  if (!have_tiles()) return;
  for (const Element element : kTileElements) {
    for (const bool columns : {false, true}) {
      for (int64_t length = 1; length <= 70; ++length) {
        for (const Case& c :
             {Case{element, columns, 3, 5, length, 1, true}, Case{element, columns, 2, length, 9, 1, false},
              Case{element, columns, length, 3, 7, 2, true}, Case{element, columns, 3, 5, length, 1, true, true},
              Case{element, columns, length, 3, 7, 2, true, true}}) {
          INFO(text(c));
          REQUIRE(is_right(c, true));
        }
      }
    }
  }
}

TEST_CASE("sums of many terms are cut, and blocks of many rows, without a difference") {
  if (!have_tiles()) return;
  for (const Element element : kTileElements) {
    for (const int64_t m : {5, 40, 600}) {
      for (const bool x_columns : {false, true}) {
        const Case c{element, false, m, 35, element == Element::kFloat32 ? 4100 : 12100, 1, true, x_columns};
        INFO(text(c));
        REQUIRE(is_right(c, m != 40));
      }
    }
  }
}

TEST_CASE("a product of tiles without rows, outputs or terms is empty, or the bias") {
  if (!have_tiles()) return;
  for (const Element element : kTileElements) {
    for (const bool columns : {false, true}) {
      for (const bool packed : {false, true}) {
        REQUIRE(is_right({element, columns, 0, 5, 4, 0, false}, packed));
        REQUIRE(is_right({element, columns, 2, 0, 4, 1, true}, packed));
        REQUIRE(is_right({element, columns, 2, 5, 0, 1, false}, packed));
        REQUIRE(is_right({element, columns, 600, 5, 0, 1, true}, packed));
        REQUIRE(is_right({element, columns, 600, 5, 0, 1, true, true}, packed));
        REQUIRE(is_right({element, columns, 1200, 5, 3, 1, true, true}, packed));
      }
    }
  }
}

TEST_CASE("neither threads nor other rows nor packing before change the bits of a product of tiles") {
  if (!have_tiles()) return;
  for (const Element element : kTileElements) {
    for (const int64_t m : {7, 600, 1600}) {
      require_same_bits(
          Group(element, false, m, 96, {130, 0, 1, 64, 200}),
          [](Matvec& call) {
            PackedMemory memory = memory_for(call);
            if (pack_tile_weight(call, memory.get())) call.packed = memory.get();
            return memory;
          },
          [](std::span<const Matvec> calls) { tile_gemm(calls, &counted_sgemm); });
    }
  }
}

// ---- float32 beyond what planes have

// y[m, n] = x[m, k] * w^T, all dense.
Matvec dense(int64_t m, int64_t n, int64_t k, const float* x, const float* w, float* y) {
  return {.m = m, .n = n, .k = k, .x = x, .x_stride = k, .w = w, .w_stride = k, .y = y, .y_stride = n};
}

// One row and one output of a product in which x and w have one value each that is not 1.
float product_of(float x_value, float w_value, int64_t m = 1) {
  constexpr int64_t kDepth = 40;
  std::vector<float> x(static_cast<size_t>(m * kDepth), 1.0f), w(kDepth, 1.0f), y(static_cast<size_t>(m));
  x[3] = x_value;
  w[7] = w_value;
  tile_gemm(dense(m, 1, kDepth, x.data(), w.data(), y.data()), &counted_sgemm);
  for (int64_t i = 1; i < m; ++i) REQUIRE(y[static_cast<size_t>(i)] == 39 + w_value);
  return y[0];
}

TEST_CASE("infinite values, missing numbers and overflow are those of a float32 product") {
  if (!have_tiles()) return;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kLargest = std::numeric_limits<float>::max();
  const int64_t before = plain_products;
  CHECK(product_of(kInfinity, 1) == kInfinity);
  CHECK(product_of(-kInfinity, 1) == -kInfinity);
  CHECK(product_of(1, kInfinity) == kInfinity);
  CHECK(std::isnan(product_of(kInfinity, -kInfinity)));
  CHECK(std::isnan(product_of(std::numeric_limits<float>::quiet_NaN(), 1)));
  CHECK(product_of(kLargest, 1) == kLargest);
  CHECK(product_of(1, kLargest) == kLargest);
  CHECK(product_of(kLargest, kLargest) == kInfinity);
  CHECK(product_of(-kLargest, -kLargest) == -kInfinity);
  CHECK(plain_products == before + 9);
}

TEST_CASE("rows that tiles cannot have go to the float32 product, with those of their block") {
  if (!have_tiles()) return;
  const int64_t before = plain_products, rows_before = plain_rows;
  CHECK(product_of(std::numeric_limits<float>::infinity(), 1, 1200) == std::numeric_limits<float>::infinity());
  CHECK(plain_products == before + 1);
  CHECK(plain_rows <= rows_before + 512);
  CHECK(product_of(5, 2, 1200) == 38 + 5 + 2);
  CHECK(plain_products == before + 1);
}

TEST_CASE("a product of tiles limits what it stores, and what the float32 product computes for it") {
  if (!have_tiles()) return;
  // The last one is cut into parts of k, whose sums are not limited.
  for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{{5, 7, 3}, {33, 64, 96}, {70, 48, 9000}}) {
    for (const bool is_plain : {false, true}) {
      Matrix x(Element::kFloat32, m, k, k), w(Element::kFloat32, n, k, k, 8);
      if (is_plain) x.set(0, 1, std::numeric_limits<float>::quiet_NaN());
      Matvec call{.m = m, .n = n, .k = k, .x = x.data(), .x_stride = k, .w = w.data(), .w_stride = k, .y_stride = n};
      const int64_t before = plain_products;
      check_limits(m * n, [&](float* y, const Limits& limits) {
        call.y = y;
        call.limits = limits;
        multiply(call, true);
      });
      CHECK((plain_products > before) == is_plain);
    }
  }
}

TEST_CASE("what tiles cannot have is found in a transposed x too") {
  if (!have_tiles()) return;
  constexpr int64_t kRows = 700, kDepth = 40;
  std::vector<float> x(kRows * kDepth, 1.0f), w(kDepth, 1.0f), y(kRows);
  x[3 * kRows + 650] = std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < kDepth; ++i) x[i * kRows + 12] = 0x1p-120f;
  const int64_t before = plain_products;
  tile_gemm({.m = kRows,
             .n = 1,
             .k = kDepth,
             .x = x.data(),
             .x_stride = kRows,
             .x_columns = true,
             .w = w.data(),
             .w_stride = kDepth,
             .y = y.data(),
             .y_stride = 1},
            &counted_sgemm);
  CHECK(plain_products > before);
  CHECK(y[650] == std::numeric_limits<float>::infinity());
  CHECK(y[12] == kDepth * 0x1p-120f);
  CHECK(y[13] == kDepth);
}

TEST_CASE("products of very small numbers keep the bits that float32 has") {
  if (!have_tiles()) return;
  for (const float scale : {0x1p-60f, 0x1p-80f, 0x1p-100f, 0x1p-120f, 0x1p-140f}) {
    for (const float other : {1.0f, 0x1p-40f, 0x1p20f}) {
      constexpr int64_t kDepth = 64;
      std::vector<float> x(kDepth), w(kDepth);
      double sum = 0;
      for (int64_t i = 0; i < kDepth; ++i) {
        x[static_cast<size_t>(i)] = scale * (1 + static_cast<float>(i) / 77);
        w[static_cast<size_t>(i)] = other * (1 + static_cast<float>(i) / 91);
        sum += static_cast<double>(x[static_cast<size_t>(i)]) * static_cast<double>(w[static_cast<size_t>(i)]);
      }
      float y = -1;
      multiply(dense(1, 1, kDepth, x.data(), w.data(), &y), false);
      INFO("x about " << scale << ", w about " << other);
      REQUIRE(std::abs(y - sum) <= kDepth * 0x1p-24 * sum + kDepth * 0x1p-149);
    }
  }
}

TEST_CASE("rows and outputs of very small numbers keep their bits beside large ones") {
  if (!have_tiles()) return;
  constexpr int64_t kDepth = 40;
  for (const bool columns : {false, true}) {
    std::vector<float> x(2 * kDepth, 1.0f / 3), w(2 * kDepth, 1.0f / 7), y(4);
    for (size_t i = 0; i < kDepth; ++i) {
      x[i] *= 0x1p-110f;
      w[columns ? 2 * i : i] *= 0x1p-112f;
    }
    tile_gemm({.columns = columns,
               .m = 2,
               .n = 2,
               .k = kDepth,
               .x = x.data(),
               .x_stride = kDepth,
               .w = w.data(),
               .w_stride = columns ? 2 : kDepth,
               .y = y.data(),
               .y_stride = 2},
              &counted_sgemm);
    CHECK(y[1] == Approx(kDepth / 21.0 * 0x1p-110).epsilon(1e-6));
    CHECK(y[2] == Approx(kDepth / 21.0 * 0x1p-112).epsilon(1e-6));
    CHECK(y[3] == Approx(kDepth / 21.0).epsilon(1e-6));
  }
}

TEST_CASE("one large value does not cost the others their accuracy") {
  if (!have_tiles()) return;
  constexpr int64_t kDepth = 64;
  std::vector<float> x(kDepth, 1.0f / 3), w(kDepth, 1.0f / 7);
  x[5] = 1e12f;  // and no weight
  w[5] = 0;
  float y = 0;
  tile_gemm(dense(1, 1, kDepth, x.data(), w.data(), &y), &counted_sgemm);
  CHECK(y == Approx(63.0 / 21).epsilon(1e-6));
}

TEST_CASE("a single row may have any stride, in a product that tiles cannot have too") {
  if (!have_tiles()) return;
  for (const bool columns : {false, true}) {
    std::vector<float> x(40, 1.0f), w(40 * 32, 1.0f), y(32);
    x[0] = std::numeric_limits<float>::infinity();
    tile_gemm({.columns = columns,
               .m = 1,
               .n = 32,
               .k = 40,
               .x = x.data(),
               .x_stride = 1,
               .w = w.data(),
               .w_stride = columns ? 32 : 40,
               .y = y.data(),
               .y_stride = 1},
              &counted_sgemm);
    for (const float result : y) REQUIRE(result == std::numeric_limits<float>::infinity());
  }
}

TEST_CASE("a small element beside a large one loses nothing that shows") {
  if (!have_tiles()) return;
  for (const int e : {20, 60, 90, 100, 110, 118, 120}) {
    const float x[2] = {std::ldexp(1 + 0x1p-9f + 0x1p-17f, -e), 1};
    const float w[2] = {std::ldexp(1.0f, e), 0};
    float y = 0;
    tile_gemm(dense(1, 1, 2, x, w, &y), &counted_sgemm);
    INFO(e);
    CHECK(y == 1 + 0x1p-9f + 0x1p-17f);
  }
}

TEST_CASE("a weight that tiles cannot have is not packed") {
  if (!have_tiles()) return;
  std::vector<float> w(64 * 40, 0.5f);
  const Matvec call{.n = 64, .k = 40, .w = w.data(), .w_stride = 40};
  const PackedMemory memory = memory_for(call);
  CHECK(pack_tile_weight(call, memory.get()));
  w[1000] = std::numeric_limits<float>::infinity();
  CHECK_FALSE(pack_tile_weight(call, memory.get()));
  w[1000] = 3e38f;
  CHECK_FALSE(pack_tile_weight(call, memory.get()));
  w.assign(w.size(), 0);
  CHECK(pack_tile_weight(call, memory.get()));
}

}  // namespace
}  // namespace hetero::backend
