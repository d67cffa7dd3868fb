// Products as matvec.h describes them, with operands and an oracle: what every implementation is
// tested by.

#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "backend/base/parallel.h"
#include "backend/cpu/kernels/matvec.h"
#include "backend/cpu/vector/half.h"
#include "tests/catch/catch.h"

namespace hetero::backend {

inline constexpr Element kElements[] = {Element::kFloat32, Element::kBfloat16, Element::kFloat16};

// A [rows, columns] matrix with a row stride. Between the rows are NaNs, so that reading or writing
// there shows.
class Matrix {
 public:
  Matrix(Element element, int64_t rows, int64_t columns, int64_t stride, uint64_t seed = 7)
      : stride(stride), element_(element), bits_(static_cast<size_t>(rows * stride + 1)), seed_(seed) {
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
  const std::vector<uint8_t>& bytes() const { return bytes_; }
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
  uint64_t seed_;
};

struct Case {
  Element element;
  bool columns;
  int64_t m, n, k;
  int64_t gap;  // between the rows of every matrix
  bool bias;
  bool x_columns = false;
};

// A float32 sum of k products in any order is off by at most k * 2^-24 of the sum of their
// magnitudes; rounding the result adds half a unit of the element type, relative to the result, or
// half of its smallest subnormal.
template <typename Product>
bool product_is_right(const Case& c, const Product& product) {
  Matrix x(c.element, c.x_columns ? c.k : c.m, c.x_columns ? c.m : c.k, (c.x_columns ? c.m : c.k) + c.gap);
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
              .x_columns = c.x_columns,
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
        const double product = (c.x_columns ? x.at(l, i) : x.at(i, l)) * (c.columns ? w.at(l, j) : w.at(j, l));
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

inline std::string text(const Case& c) {
  return "element " + std::to_string(static_cast<int>(c.element)) + (c.columns ? ", columns" : ", rows") +
         (c.x_columns ? ", x across" : "") + ", m " + std::to_string(c.m) + ", n " + std::to_string(c.n) + ", k " +
         std::to_string(c.k);
}

// Calls the body on `threads` parts, each on a thread of its own.
template <int threads>
inline const ParallelPool kThreads = {[](int64_t begin, int64_t end, int64_t, RangeFunction body) {
                                        std::vector<std::thread> others;
                                        const int64_t part = (end - begin + threads - 1) / threads;
                                        for (int64_t at = begin; at < end; at += part) {
                                          others.emplace_back([=] { body(at, std::min(end, at + part)); });
                                        }
                                        for (std::thread& other : others) other.join();
                                      },
                                      [] { return int64_t{threads}; }};
inline const ParallelPool* const kPools[] = {nullptr, &kThreads<2>, &kThreads<3>};

// Calls that share x. Every second one has a bias.
class Group {
 public:
  Group(Element element, bool columns, int64_t m, int64_t k, const std::vector<int64_t>& outputs)
      : x_(element, m, k, k + 3) {
    const void* const x = x_.data();
    for (size_t i = 0; i < outputs.size(); ++i) {
      const int64_t n = outputs[i];
      const auto gap = static_cast<int64_t>(i);
      w_.emplace_back(element, columns ? k : n, columns ? n : k, (columns ? n : k) + gap, 2 * i);
      bias_.emplace_back(element, 1, n, n, 2 * i + 1);
      y_.emplace_back(element, m, 0, n + gap);
      calls.push_back({.element = element,
                       .columns = columns,
                       .m = m,
                       .n = n,
                       .k = k,
                       .x = x,
                       .x_stride = x_.stride,
                       .w = w_.back().data(),
                       .w_stride = w_.back().stride,
                       .bias = i % 2 == 1 ? bias_.back().data() : nullptr,
                       .y_stride = y_.back().stride});
    }
  }

  // The bits of all outputs, and of what lies between them.
  template <typename Run>
  std::vector<std::vector<uint8_t>> outputs(Run run) {
    for (size_t i = 0; i < calls.size(); ++i) calls[i].y = y_[i].data();
    run();
    std::vector<std::vector<uint8_t>> all;
    for (const Matrix& y : y_) all.push_back(y.bytes());
    return all;
  }

  std::vector<Matvec> calls;

 private:
  Matrix x_;
  std::vector<Matrix> w_, bias_, y_;
};

struct FreeAligned {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using PackedMemory = std::unique_ptr<std::byte, FreeAligned>;
inline PackedMemory packed_memory(int64_t bytes) {
  return PackedMemory(static_cast<std::byte*>(std::aligned_alloc(64, (static_cast<size_t>(bytes) + 63) / 64 * 64)));
}

// Neither threads nor other rows nor packing before change the bits of the products that run(calls)
// makes. pack(call) sets the call's packed weight, and returns its memory.
template <typename Pack, typename Run>
void require_same_bits(Group group, Pack pack, Run run) {
  std::vector<std::vector<uint8_t>> expected;
  for (const ParallelPool* pool : kPools) {
    set_parallel_pool(pool);
    for (const bool packed : {false, true}) {
      std::vector<PackedMemory> memory;
      for (Matvec& call : group.calls) {
        call.packed = nullptr;
        if (packed) memory.push_back(pack(call));
      }
      const auto all = group.outputs([&] { run(std::span<const Matvec>(group.calls)); });
      if (expected.empty()) expected = all;
      REQUIRE((all == expected));
      const auto first_rows = group.outputs([&] {
        for (Matvec call : group.calls) {
          call.m = 1;
          run(std::span<const Matvec>(&call, 1));
        }
      });
      for (size_t i = 0; i < first_rows.size(); ++i) {
        const auto bytes = static_cast<std::ptrdiff_t>(group.calls[i].n * element_bytes(group.calls[i].element));
        REQUIRE(std::equal(first_rows[i].begin(), first_rows[i].begin() + bytes, expected[i].begin()));
      }
    }
    set_parallel_pool(nullptr);
  }
}

}  // namespace hetero::backend
