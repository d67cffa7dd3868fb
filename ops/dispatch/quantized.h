// Operators on weights in 8 and 4 bits, in the library `hetero`:
//
//   quantize_weight(Tensor weight, int bits, int group, bool symmetric) -> (packed, scales, zeros)
//   dequantize_weight(Tensor packed, Tensor scales, Tensor? zeros, int bits, int group,
//                     int out_features, int in_features, ScalarType? dtype) -> Tensor
//   quantized_linear(Tensor input, Tensor packed, Tensor scales, Tensor? zeros, Tensor? bias,
//                    int bits, int group, int out_features, int activation_bits=16) -> Tensor
//   import_quantized(Tensor qweight, Tensor qzeros, Tensor scales, Tensor? g_idx, str layout,
//                    int bits, int group) -> (packed, scales, zeros, order)
//
// Shapes: weight [out, in]; packed [panels, bytes], uint8; scales [panels, groups, 16]; zeros like
// scales, uint8; panels of 16 outputs. `zeros` is empty where a weight is symmetric, and None means
// the same. group 0 means whole rows. backend/cpu/quantized/weight.h has the layout and
// backend/cpu/quantized/gemm.h says what activation_bits does.
//
// The first three are recorded on hetero by their Meta kernels, so programs may have them. The last
// reads what a checkpoint of GPTQ or AWQ has, on the CPU, at once. No one has a derivative.
//
// Thread safety: as any kernel.

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "backend/cpu/quantized/weight.h"
#include "graph/ir/op.h"

namespace hetero::ops {

// Runs a node of quantized_linear in given memory. False, and nothing is done, if an operand is not
// dense.
bool run_quantized_linear(const graph::Invocation& invocation);
// Several with the same input, which is quantized once.
void run_quantized_linears(const graph::Invocation* calls, size_t count);

// For other operators on such weights.
struct PackedWeight {
  const at::Tensor& packed;
  const at::Tensor& scales;
  const at::Tensor& zeros;  // empty: symmetric
};
// Both raise what quantized_linear does for such a weight.
backend::QuantizedShape packed_shape(int64_t bits, int64_t n, int64_t k, int64_t group);
void check_packed(const backend::QuantizedShape& shape, const PackedWeight& weight);
// y = x * w^T of each weight, on the CPU; x is [m, k] and is quantized once, to 16 bits.
// REQUIRES: check_packed().
std::vector<at::Tensor> packed_products(const at::Tensor& x, const backend::QuantizedShape& shape,
                                        std::initializer_list<PackedWeight> weights);

}  // namespace hetero::ops
