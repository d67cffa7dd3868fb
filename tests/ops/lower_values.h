// Values for tests of lowerings, special ones among them, and how results differ (lower_test.cpp).

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "tests/ops/fixture.h"

namespace hetero::ops::testing {

template <typename T>
void fill_floats(T* data, int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform(-12, 12);
  const double special[] = {0.0,   -0.0,   INFINITY, -INFINITY, NAN,    1.0,     -1.0, 0.5,    -0.5, 2.0,
                            1e-40, -1e-40, 1e-310,   65504.0,   3.4e38, -3.4e38, 1e30, -1e-30, 0.1,  20.0};
  for (int64_t i = 0; i < n; ++i) {
    switch (random() % 8) {
      case 0: {  // any bits
        const uint64_t bits = random();
        std::memcpy(&data[i], &bits, sizeof(T));
        break;
      }
      case 1:
        data[i] = static_cast<T>(special[random() % std::size(special)]);
        break;
      case 2:
      case 3:
        data[i] = static_cast<T>(static_cast<float>(uniform(random)));
        break;
      case 4:
        data[i] = static_cast<T>(static_cast<float>(std::floor(uniform(random))));
        break;
      default:
        data[i] = static_cast<T>(static_cast<float>(normal(random)));
    }
  }
}

inline at::Tensor values_of(at::ScalarType dtype, int64_t n, uint64_t seed) {
  at::Tensor tensor = at::empty({n}, at::TensorOptions(dtype));
  std::mt19937_64 random(seed);
  const auto fill = [&](auto* data) {
    for (int64_t i = 0; i < n; ++i) {
      data[i] = static_cast<std::decay_t<decltype(*data)>>(random() % 2 == 0 ? random() : random() % 21 - 10);
    }
  };
  switch (dtype) {
    case at::kFloat:
      fill_floats(tensor.mutable_data_ptr<float>(), n, seed);
      break;
    case at::kDouble:
      fill_floats(tensor.mutable_data_ptr<double>(), n, seed);
      break;
    case at::kHalf:
      fill_floats(tensor.mutable_data_ptr<c10::Half>(), n, seed);
      break;
    case at::kBFloat16:
      fill_floats(tensor.mutable_data_ptr<c10::BFloat16>(), n, seed);
      break;
    case at::kByte:
      fill(tensor.mutable_data_ptr<uint8_t>());
      break;
    case at::kChar:
      fill(tensor.mutable_data_ptr<int8_t>());
      break;
    case at::kShort:
      fill(tensor.mutable_data_ptr<int16_t>());
      break;
    case at::kInt:
      fill(tensor.mutable_data_ptr<int32_t>());
      break;
    case at::kLong:
      fill(tensor.mutable_data_ptr<int64_t>());
      break;
    default:
      for (int64_t i = 0; i < n; ++i) tensor.mutable_data_ptr<bool>()[i] = random() % 2 == 0;
  }
  return tensor;
}

// Three tensors of the dtype and a mask.
inline Tensors operands_of(at::ScalarType dtype, int64_t n) {
  return {values_of(dtype, n, 1), values_of(dtype, n, 2), values_of(dtype, n, 3), values_of(at::kBool, n, 4)};
}

struct Difference {
  int64_t count = 0;
  int64_t first = -1;
  double largest = 0;  // in roundings of max(|expected|, 1)
};

template <typename T>
Difference difference_of_floats(const at::Tensor& actual, const at::Tensor& expected, bool bitwise) {
  const T* a = static_cast<const T*>(actual.const_data_ptr());
  const T* e = static_cast<const T*>(expected.const_data_ptr());
  Difference difference;
  for (int64_t i = 0; i < actual.numel(); ++i) {
    if (std::memcmp(&a[i], &e[i], sizeof(T)) == 0 || (a[i] != a[i] && e[i] != e[i])) continue;
    if (!bitwise && a[i] == e[i]) continue;
    if (difference.count++ == 0) difference.first = i;
    const auto got = static_cast<double>(a[i]), wanted = static_cast<double>(e[i]);
    const double unit = static_cast<double>(std::numeric_limits<T>::epsilon()) * std::max(std::abs(wanted), 1.0);
    const double error = std::abs(got - wanted) / unit;
    difference.largest = std::max(difference.largest, error == error ? error : INFINITY);
  }
  return difference;
}

inline Difference difference_of(const at::Tensor& actual, const at::Tensor& expected, bool bitwise = true) {
  const at::Tensor a = actual.contiguous(), e = expected.contiguous();
  switch (a.scalar_type()) {
    case at::kFloat:
      return difference_of_floats<float>(a, e, bitwise);
    case at::kDouble:
      return difference_of_floats<double>(a, e, bitwise);
    case at::kHalf:
      return difference_of_floats<c10::Half>(a, e, bitwise);
    case at::kBFloat16:
      return difference_of_floats<c10::BFloat16>(a, e, bitwise);
    default: {
      Difference difference;
      const auto* x = static_cast<const char*>(a.const_data_ptr());
      const auto* y = static_cast<const char*>(e.const_data_ptr());
      const auto bytes = static_cast<int64_t>(a.element_size());
      for (int64_t i = 0; i < a.numel(); ++i) {
        if (std::memcmp(x + i * bytes, y + i * bytes, bytes) != 0 && difference.count++ == 0) difference.first = i;
      }
      if (difference.count != 0) difference.largest = INFINITY;
      return difference;
    }
  }
}

}  // namespace hetero::ops::testing
