// The erf of gelu in float32: one polynomial, without a division or exp. Generated code
// (codegen.cpp) and its interpreter (ops/fused/) share it.
//
//   erf(x / sqrt 2) = x * p(min(2 (x / 5.4)^2, 2) - 1), limited to +-1; from |x| = 5.4 on it is +-1
//
// p has degree 14. It was fitted to the error of x * p by iteratively reweighted least squares on
// Chebyshev's points. With fused multiply-adds, gelu(x) = fma(x / 2, erf, x / 2) is off by at most
// 2.6 * 2^-24 of max(1, |x|), and x or 0 for |x| >= 5.4.

#pragma once

namespace hetero::backend {

inline constexpr float kGeluScale = 2.0f / (5.4f * 5.4f);
// Coefficients, highest power first.
inline constexpr float kGeluCoefficients[] = {
    0x1.9bf06cp-11f, -0x1.0d9496p-9f, 0x1.cab8f2p-10f, -0x1.3702e2p-9f, 0x1.df94a2p-8f,
    -0x1.b8189ep-7f, 0x1.3c402ap-6f,  -0x1.c98cd6p-6f, 0x1.41ddb2p-5f,  -0x1.a5d478p-5f,
    0x1.071962p-4f,  -0x1.412ea6p-4f, 0x1.8d4f04p-4f,  -0x1.0b956ep-3f, 0x1.0c240ap-2f,
};

}  // namespace hetero::backend
