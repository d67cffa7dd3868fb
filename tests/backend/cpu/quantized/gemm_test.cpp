// Quantized weights, and products with them against sums in double, for every set of integer
// instructions of this processor.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/base/parallel.h"
#include "backend/cpu/quantized/gemm.h"
#include "backend/cpu/quantized/kernel.h"
#include "backend/cpu/quantized/weight.h"
#include "backend/cpu/vector/half.h"
#include "tests/backend/cpu/kernels/matvec_case.h"
#include "tests/backend/cpu/quantized/emulated_tiles.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

std::vector<IntegerSet> integer_sets() {
  std::vector<IntegerSet> sets;
  for (const IntegerSet set :
       {IntegerSet::kPortable, IntegerSet::kAvx2, IntegerSet::kAvx512, IntegerSet::kVnni, IntegerSet::kTiles}) {
    if (has_integer_set(set)) sets.push_back(set);
  }
  return sets;
}

std::string text(const QuantizedShape& shape) {
  return std::to_string(shape.bits) + " bits, n " + std::to_string(shape.n) + ", k " + std::to_string(shape.k) +
         ", group " + std::to_string(shape.group);
}

// A quantized weight with its memory, which ends where it has to.
class Weight {
 public:
  Weight(const QuantizedShape& shape, bool symmetric, Element element = Element::kFloat32, uint64_t seed = 3)
      : shape(shape), original(element, shape.n, shape.k, shape.k + 2, seed) {
    packed_.resize(static_cast<size_t>(shape.packed_bytes()));
    scales_.resize(static_cast<size_t>(shape.scale_count()));
    if (!symmetric) zeros_.resize(static_cast<size_t>(shape.scale_count()));
    finite = quantize_weight(shape, element, original.data(), original.stride, packed_.data(), scales_.data(),
                             symmetric ? nullptr : zeros_.data());
    values.resize(static_cast<size_t>(shape.n * shape.k));
    dequantize_weight(weight(), Element::kFloat32, values.data());
  }
  QuantizedWeight weight() const {
    return {shape, packed_.data(), Element::kBfloat16, scales_.data(), zeros_.empty() ? nullptr : zeros_.data()};
  }
  double at(int64_t output, int64_t i) const { return values[static_cast<size_t>(output * shape.k + i)]; }
  float scale(int64_t output, int64_t i) const {
    return bfloat16_to_float(scales_[static_cast<size_t>(shape.scale_index(output, i / shape.group_size()))]);
  }

  const QuantizedShape shape;
  Matrix original;
  std::vector<float> values;  // of the quantized weight
  bool finite = false;

 private:
  std::vector<uint8_t> packed_, zeros_;
  std::vector<uint16_t> scales_;
};

struct Activation {
  ActivationBits bits;
  double step;  // of an element of x, of the largest of its unit
};
constexpr Activation kActivations[] = {{ActivationBits::kEight, 1 / 127.0}, {ActivationBits::kSixteen, 1 / 32639.0}};

// Rounding moves an element of x by half a step. The rest of the error is that of float32 sums, as
// product_is_right says, and of rounding y.
void require_right(const Weight& weight, Element element, const Activation& activation, int64_t m, IntegerSet set) {
  const QuantizedShape& shape = weight.shape;
  Matrix x(element, m, shape.k, shape.k + 1, 11);
  Matrix bias(element, 1, shape.n, shape.n, 12);
  Matrix y(element, m, 0, shape.n + 3);
  quantized_gemm(QuantizedProduct{.element = element,
                                  .activation = activation.bits,
                                  .m = m,
                                  .x = x.data(),
                                  .x_stride = x.stride,
                                  .weight = weight.weight(),
                                  .bias = m % 2 == 0 ? bias.data() : nullptr,
                                  .y = y.data(),
                                  .y_stride = y.stride},
                 set);
  y.read_back();
  const double unit = element == Element::kFloat32 ? 0x1p-24 : element == Element::kBfloat16 ? 0x1p-8 : 0x1p-11;
  for (int64_t row = 0; row < m; ++row) {
    double largest = 0;
    for (int64_t i = 0; i < shape.k; ++i) largest = std::max(largest, std::abs(x.at(row, i)));
    for (int64_t output = 0; output < shape.n; ++output) {
      double sum = m % 2 == 0 ? bias.at(0, output) : 0, magnitudes = std::abs(sum), weights = 0;
      for (int64_t i = 0; i < shape.k; ++i) {
        sum += x.at(row, i) * weight.at(output, i);
        magnitudes += std::abs(x.at(row, i) * weight.at(output, i));
        weights += std::abs(weight.at(output, i));
      }
      const double error = std::abs(y.at(row, output) - sum);
      const double allowed =
          0.501 * activation.step * largest * weights + 1e-6 * magnitudes + unit * std::abs(sum) + 1e-7;
      INFO(to_string(set) << ", " << text(shape) << ", m " << m << ", row " << row << ", output " << output);
      REQUIRE(error <= allowed);
    }
  }
  REQUIRE(y.gap_is_untouched(m, shape.n));
}

TEST_CASE("a quantized weight is within half a step of the weight, and its dequantized form is what kernels use") {
  for (const int bits : {8, 4}) {
    for (const bool symmetric : {true, false}) {
      for (const Element element : kElements) {
        for (const int64_t group : {0, 32, 64, 128}) {
          const Weight weight({bits, 35, 130, group}, symmetric, element);
          REQUIRE(weight.finite);
          for (int64_t output = 0; output < weight.shape.n; ++output) {
            for (int64_t i = 0; i < weight.shape.k; ++i) {
              INFO(text(weight.shape) << ", output " << output << ", column " << i);
              // An asymmetric group's ends may each lose half a step to the rounding of its zero.
              const double steps = symmetric ? 0.5 : 1.0;
              REQUIRE(std::abs(weight.at(output, i) - weight.original.at(output, i)) <=
                      steps * weight.scale(output, i) * (1 + 1e-6));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("zeros stay exactly zero") {
  for (const int bits : {8, 4}) {
    for (const bool symmetric : {true, false}) {
      const QuantizedShape shape{bits, 3, 64, 32};
      std::vector<float> w(3 * 64);
      for (size_t i = 64; i < w.size(); ++i) w[i] = i % 3 == 0 ? 0.0f : std::sin(static_cast<float>(i)) + 0.5f;
      std::vector<uint8_t> packed(static_cast<size_t>(shape.packed_bytes())),
          zeros(static_cast<size_t>(shape.scale_count()));
      std::vector<uint16_t> scales(static_cast<size_t>(shape.scale_count()));
      REQUIRE(quantize_weight(shape, Element::kFloat32, w.data(), 64, packed.data(), scales.data(),
                              symmetric ? nullptr : zeros.data()));
      std::vector<float> back(w.size());
      dequantize_weight({shape, packed.data(), Element::kBfloat16, scales.data(), symmetric ? nullptr : zeros.data()},
                        Element::kFloat32, back.data());
      for (size_t i = 0; i < w.size(); ++i) {
        if (w[i] == 0) REQUIRE(back[i] == 0);
      }
    }
  }
}

TEST_CASE("a weight whose values are not finite is refused, and huge and tiny ones stay finite") {
  const QuantizedShape shape{4, 2, 32, 32};
  std::vector<uint8_t> packed(static_cast<size_t>(shape.packed_bytes())),
      zeros(static_cast<size_t>(shape.scale_count()));
  std::vector<uint16_t> scales(static_cast<size_t>(shape.scale_count()));
  for (const float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> w(64, 1);
    w[40] = value;
    REQUIRE_FALSE(quantize_weight(shape, Element::kFloat32, w.data(), 32, packed.data(), scales.data(), zeros.data()));
  }
  for (const float value : {3e38f, 1e-38f, 1e-45f}) {
    std::vector<float> w(64, value);
    w[1] = -value;
    for (const bool symmetric : {true, false}) {
      uint8_t* const z = symmetric ? nullptr : zeros.data();
      REQUIRE(quantize_weight(shape, Element::kFloat32, w.data(), 32, packed.data(), scales.data(), z));
      std::vector<float> back(64);
      dequantize_weight({shape, packed.data(), Element::kBfloat16, scales.data(), z}, Element::kFloat32, back.data());
      for (const float number : back) REQUIRE(std::isfinite(number));
    }
  }
}

TEST_CASE("packing and unpacking are inverse") {
  std::mt19937 random(5);
  for (const int bits : {8, 4}) {
    for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {16, 32}, {17, 33}, {40, 100}}) {
      const QuantizedShape shape{bits, n, k, 32};
      std::vector<uint8_t> q(static_cast<size_t>(n * k)), back(q.size());
      for (uint8_t& number : q) number = static_cast<uint8_t>(random() % static_cast<unsigned>(shape.largest() + 1));
      std::vector<uint8_t> packed(static_cast<size_t>(shape.packed_bytes()));
      pack_quantized(shape, q.data(), packed.data());
      unpack_quantized(shape, packed.data(), back.data());
      REQUIRE(back == q);
    }
  }
}

TEST_CASE("a quantized product is right for every instruction set, width, group, and number of rows") {
  for (const IntegerSet set : integer_sets()) {
    for (const int bits : {8, 4}) {
      for (const bool symmetric : {true, false}) {
        for (const int64_t group : {0, 32, 96, 128}) {
          const Weight weight({bits, 83, 200, group}, symmetric);
          for (const Activation& activation : kActivations) {
            for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 29}) {
              require_right(weight, Element::kFloat32, activation, m, set);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("every element type of x, and every length of a row and number of outputs, is right") {
  for (const IntegerSet set : integer_sets()) {
    for (const Element element : kElements) {
      for (int64_t length = 1; length <= 70; length += 3) {
        for (const Activation& activation : kActivations) {
          require_right(Weight({4, 9, length, 32}, false), element, activation, 3, set);
          require_right(Weight({8, length, 40, 0}, true), element, activation, 2, set);
        }
      }
    }
  }
}

TEST_CASE("rows that are longer than a sum of 32 bits holds are cut") {
  // The largest weights by the largest x, all of one sign.
  for (const int64_t k : {300, 70000, 140001}) {
    const QuantizedShape shape{8, 1, k, 0};
    std::vector<uint8_t> q(static_cast<size_t>(k), 255), zeros(16, 0),
        packed(static_cast<size_t>(shape.packed_bytes()));
    pack_quantized(shape, q.data(), packed.data());
    std::vector<float> scales(16, 1), x(static_cast<size_t>(k), 1);
    for (const IntegerSet set : integer_sets()) {
      for (const Activation& activation : kActivations) {
        float y = 0;
        quantized_gemm(
            QuantizedProduct{.activation = activation.bits,
                             .m = 1,
                             .x = x.data(),
                             .x_stride = k,
                             .weight = {shape, packed.data(), Element::kFloat32, scales.data(), zeros.data()},
                             .y = &y,
                             .y_stride = 1},
            set);
        REQUIRE(std::abs(y - 255.0 * static_cast<double>(k)) <= 1e-5 * 255 * static_cast<double>(k));
      }
    }
  }
}

TEST_CASE("scales of all element types are read") {
  const QuantizedShape shape{4, 20, 64, 32};
  std::vector<uint8_t> q(20 * 64, 9), packed(static_cast<size_t>(shape.packed_bytes()));
  pack_quantized(shape, q.data(), packed.data());
  const std::vector<float> scales(static_cast<size_t>(shape.scale_count()), 0.5f);
  std::vector<float> x(64, 1), y(20);
  for (const IntegerSet set : integer_sets()) {
    for (const Element element : kElements) {
      std::vector<float> stored(scales.size());
      narrow(element, scales.data(), static_cast<int64_t>(scales.size()), stored.data());
      quantized_gemm(QuantizedProduct{.m = 1,
                                      .x = x.data(),
                                      .x_stride = 64,
                                      .weight = {shape, packed.data(), element, stored.data(), nullptr},
                                      .y = y.data(),
                                      .y_stride = 20},
                     set);
      for (const float value : y) REQUIRE(value == 32.0f);
    }
  }
}

TEST_CASE("threads, other rows and other products of the same x change no bit") {
  for (const IntegerSet set : integer_sets()) {
    for (const Activation& activation : kActivations) {
      for (const int bits : {8, 4}) {
        const Weight first({bits, 130, 257, 64}, true), second({bits, 67, 257, 64}, false);
        for (const int64_t m : {1, 7, 40}) {
          Matrix x(Element::kBfloat16, m, 257, 257);
          const auto run = [&](int64_t rows, bool together) {
            std::vector<std::vector<uint16_t>> y{std::vector<uint16_t>(static_cast<size_t>(m * 130)),
                                                 std::vector<uint16_t>(static_cast<size_t>(m * 67))};
            std::vector<QuantizedProduct> calls;
            for (const Weight* weight : {&first, &second}) {
              calls.push_back({.element = Element::kBfloat16,
                               .activation = activation.bits,
                               .m = rows,
                               .x = x.data(),
                               .x_stride = 257,
                               .weight = weight->weight(),
                               .y = y[calls.size()].data(),
                               .y_stride = weight->shape.n});
            }
            if (together) {
              quantized_gemm(calls, set);
            } else {
              for (const QuantizedProduct& call : calls) quantized_gemm(call, set);
            }
            return y;
          };
          const auto expected = run(m, false);
          for (const ParallelPool* pool : kPools) {
            set_parallel_pool(pool);
            REQUIRE(run(m, true) == expected);
            REQUIRE(run(m, false) == expected);
            const auto one = run(1, true);
            set_parallel_pool(nullptr);
            for (size_t i = 0; i < 2; ++i) {
              REQUIRE(std::equal(one[i].begin(), one[i].begin() + (i == 0 ? 130 : 67), expected[i].begin()));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a row with a value that is not finite makes NaN, and its neighbours stay right") {
  const Weight weight({8, 20, 64, 32}, true);
  for (const IntegerSet set : integer_sets()) {
    for (const Activation& activation : kActivations) {
      for (const float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<float> x(3 * 64, 1), y(3 * 20);
        x[64 + 40] = value;
        quantized_gemm(QuantizedProduct{.activation = activation.bits,
                                        .m = 3,
                                        .x = x.data(),
                                        .x_stride = 64,
                                        .weight = weight.weight(),
                                        .y = y.data(),
                                        .y_stride = 20},
                       set);
        for (size_t i = 0; i < y.size(); ++i) REQUIRE(std::isnan(y[i]) == (i / 20 == 1));
      }
    }
  }
}

TEST_CASE("x of zeros or of the smallest numbers makes zeros, and the largest numbers stay finite") {
  const Weight weight({4, 20, 64, 32}, false);
  for (const IntegerSet set : integer_sets()) {
    for (const Activation& activation : kActivations) {
      for (const float value : {0.0f, 1e-45f, 1e-36f, 1e30f}) {
        std::vector<float> x(64, value), y(20);
        quantized_gemm(QuantizedProduct{.activation = activation.bits,
                                        .m = 1,
                                        .x = x.data(),
                                        .x_stride = 64,
                                        .weight = weight.weight(),
                                        .y = y.data(),
                                        .y_stride = 20},
                       set);
        for (const float number : y) {
          REQUIRE(std::isfinite(number));
          if (value <= 1e-36f) REQUIRE(std::abs(number) <= 1e-34f);
        }
      }
    }
  }
}

TEST_CASE("without rows or outputs nothing is written, and an empty sum is the bias") {
  for (const IntegerSet set : integer_sets()) {
    for (const int bits : {8, 4}) {
      require_right(Weight({bits, 5, 0, 32}, true), Element::kFloat32, kActivations[1], 2, set);
      require_right(Weight({bits, 0, 40, 32}, true), Element::kFloat32, kActivations[1], 2, set);
      require_right(Weight({bits, 5, 40, 32}, true), Element::kFloat32, kActivations[1], 0, set);
    }
  }
}

TEST_CASE("instruction sets with fused multiply-adds give the same bits") {
  const Weight weight({4, 70, 300, 64}, false);
  Matrix x(Element::kFloat32, 37, 300, 300);
  std::vector<float> expected;
  for (const IntegerSet set : integer_sets()) {
    if (set == IntegerSet::kPortable) continue;
    std::vector<float> y(37 * 70);
    quantized_gemm(
        QuantizedProduct{
            .m = 37, .x = x.data(), .x_stride = 300, .weight = weight.weight(), .y = y.data(), .y_stride = 70},
        set);
    if (expected.empty()) expected = y;
    REQUIRE(y == expected);
  }
}

#if defined(__x86_64__)

// What a kernel makes of a block of rows and four panels, or fewer.
std::vector<float> block_by(const QuantizedKernels& kernels, const Weight& weight, int64_t rows, int planes,
                            int64_t unit) {
  const QuantizedWeight w = weight.weight();
  const QuantizedShape& shape = w.shape;
  const int64_t units = divide_up(shape.padded_k(), unit), entries = rows * planes;
  std::vector<int8_t> x(static_cast<size_t>(entries * round_up(shape.padded_k(), kQuantizedTile)));
  std::vector<float> x_scales(static_cast<size_t>(units * rows)), line(static_cast<size_t>(shape.padded_k()));
  std::vector<int32_t> x_sums(x_scales.size());
  std::mt19937 random(9);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < shape.k; ++i) {
      line[static_cast<size_t>(i)] = static_cast<float>(static_cast<int32_t>(random())) * 0x1p-31f;
    }
    kernels.quantize[planes - 1]({.x = line.data(),
                                  .k = shape.k,
                                  .padded_k = shape.padded_k(),
                                  .unit = unit,
                                  .to = x.data() + row * planes * kQuantizedTile,
                                  .tile_bytes = entries * kQuantizedTile,
                                  .scales = x_scales.data() + row,
                                  .sums = x_sums.data() + row,
                                  .stride = rows});
  }
  const int64_t elements_of_line = shape.bits == 8 ? 4 : 8;
  std::vector<float> out(static_cast<size_t>(rows * 64));
  const int at_once = kernels.panels(static_cast<int>(entries));
  for (int64_t panel = 0; panel < shape.panels(); panel += at_once) {
    const int64_t index = panel * shape.groups() * 16;
    kernels.multiply[shape.bits == 8][planes - 1][entries - 1](
        {.x = x.data(),
         .x_scales = x_scales.data(),
         .x_sums = x_sums.data(),
         .w = w.packed + panel * shape.panel_bytes(),
         .w_stride = shape.panel_bytes(),
         .scale_element = static_cast<int>(w.scale_element),
         .scales = element_at(w.scales, index, w.scale_element),
         .zeros = w.zeros == nullptr ? nullptr : w.zeros + index,
         .middle = shape.middle(),
         .groups = shape.groups(),
         .units = units,
         .units_of_group = shape.groups() == 1 ? units : shape.group_size() / unit,
         .unit_lines = unit / elements_of_line,
         .lines = shape.padded_k() / elements_of_line,
         .panels = std::min<int64_t>(at_once, shape.panels() - panel),
         .entries = static_cast<int>(entries),
         .out = out.data() + panel * 16,
         .out_stride = 64});
  }
  return out;
}

TEST_CASE("the kernels of the tile unit, emulated, give the bits of vector instructions") {
  if (!has_integer_set(IntegerSet::kVnni)) {
    WARN("this processor has no VNNI to compare with");
    return;
  }
  for (const int bits : {8, 4}) {
    for (const bool symmetric : {true, false}) {
      for (const int64_t n : {16, 33, 64}) {
        for (const auto& [k, group, unit] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
                 {256, 128, 128}, {200, 32, 32}, {300, 96, 96}, {224, 0, 256}, {160, 64, 64}, {480, 192, 96}}) {
          const Weight weight({bits, n, k, group}, symmetric);
          for (const int planes : {1, 2}) {
            for (const int64_t rows : {1, 3, 6}) {
              INFO(text(weight.shape) << ", unit " << unit << ", rows " << rows << ", planes " << planes);
              REQUIRE(block_by(emulated_tile_kernels(), weight, rows, planes, unit) ==
                      block_by(quantized_kernels_vnni(), weight, rows, planes, unit));
              REQUIRE(broken_tile_rules() == 0);
              REQUIRE(tiles_are_released());
            }
          }
        }
      }
    }
  }
}

#endif

}  // namespace
}  // namespace hetero::backend
