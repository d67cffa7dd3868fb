// Compiled for AVX2 and FMA; called only where the processor has them. See color_rows.h.

#include "backend/cpu/image/color_rows.h"

namespace hetero::backend {
namespace {

struct Fused {
  static float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
};

}  // namespace

const ColorRows& color_rows_fma() {
  static constexpr ColorRows kRows{FloatColors<Fused>::from_hsv, FloatColors<Fused>::to_hls};
  return kRows;
}

}  // namespace hetero::backend
