// exp of a float32 in generated code (codegen.cpp): the operations of Sleef's expf of 1 ulp
// (Shibata and Petrogalli, "SLEEF: A Portable Vectorized Library of C Standard Mathematical
// Functions", 2020), in their order, so it has the bits of PyTorch's vectors.
//
//   exp(x) = 2^n * (1 + r + r^2 * p(r)),  n the integer nearest to x / log 2,  r = x - n log 2
//
// log 2 is subtracted in two parts. Where Sleef chooses 0 or infinity, x is limited before, to
// where the result is the same. Results below the smallest normal number may differ in the last
// bit; 1 is added to each.

#pragma once

namespace hetero::backend {

inline constexpr float kExpLowest = -120, kExpHighest = 150;
inline constexpr float kExpScale = 0x1.715476p+0f;                                 // 1 / log 2
inline constexpr float kExpStep = 0x1.62e400p-1f, kExpStepRest = 0x1.7f7d1cp-20f;  // log 2
// Coefficients of p, highest power first.
inline constexpr float kExpCoefficients[] = {0.000198527617612853646278381f, 0.00139304355252534151077271f,
                                             0.00833336077630519866943359f,  0.0416664853692054748535156f,
                                             0.166666671633720397949219f,    0.5f};

}  // namespace hetero::backend
