// quantized_gemm: products with a quantized weight, y = x * w^T + bias, for any number of rows.
//
// x is quantized too, row by row and group by group, in one pass through the first-level cache.
// Whole numbers are multiplied and added exactly. Only at the end of a group are they scaled and
// added as floats, so the weight is never made floats in memory.
//
//   kSixteen: x has 16 bits, as two planes of 8, the upper and the lower byte. A group of x errs by
//             2^-16 of its largest element, less than bfloat16 does. This is the product of the
//             dequantized weight within the rounding of bfloat16, at the speed of memory for few
//             rows.
//   kEight:   x has 8 bits and one scale for each row or group of the weight: half the
//             multiplications. A row of x errs by 2^-8 of its largest element.
//
// A row of x with a value that is not finite makes NaN.
//
// A result depends neither on the number of threads nor on the other rows. It has the same bits by
// all instruction sets but the portable one, which has no fused multiply-add.
//
// Each thread keeps its memory from call to call: about 1 MiB.
//
// Thread safety: any thread; calls share nothing.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/kernels/matvec.h"
#include "backend/cpu/quantized/weight.h"

namespace hetero::backend {

// The instructions that multiply whole numbers, in the order of preference. kAvx2 and kAvx512
// multiply pairs of 16 bits, kVnni fours of 8 bits (AVX512-VNNI). kTiles multiplies many rows on
// the tile unit (AMX) and few as kVnni does.
enum class IntegerSet : uint8_t { kPortable, kAvx2, kAvx512, kVnni, kTiles };
const char* to_string(IntegerSet set);
// Whether this processor has the instructions.
bool has_integer_set(IntegerSet set);
// The best that this processor has.
IntegerSet integer_set();

enum class ActivationBits : uint8_t { kEight, kSixteen };

// x is [m, k], y is [m, n], bias is [n]; of one element type, dense along their last dimension.
// Strides count elements.
struct QuantizedProduct {
  Element element = Element::kFloat32;
  ActivationBits activation = ActivationBits::kSixteen;
  int64_t m = 0;
  const void* x = nullptr;
  int64_t x_stride = 0;
  QuantizedWeight weight;
  const void* bias = nullptr;  // null for none
  void* y = nullptr;
  int64_t y_stride = 0;
};

// Writes the y of each call, with the bits of separate calls. x is quantized once.
// REQUIRES: equal element, activation, m, x, x_stride, and k and group of the weights;
// has_integer_set(set); no y overlaps an input or another y.
void quantized_gemm(std::span<const QuantizedProduct> calls, IntegerSet set = integer_set());
inline void quantized_gemm(const QuantizedProduct& call, IntegerSet set = integer_set()) {
  quantized_gemm(std::span(&call, 1), set);
}

}  // namespace hetero::backend
