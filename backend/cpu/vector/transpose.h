// transpose_rows: some rows of floats become columns of a panel.
//
// It is a template over a vector type of the including file's unnamed namespace, as the kernels
// that use it are (attention_kernel.h, panel_kernel.h). Bits are moved as they are, so anything of
// 4 bytes may take the place of a float.
//
// Thread safety: a pure function.

#pragma once

#include <cstdint>

namespace hetero::backend {

// Up to a vector of rows become columns of a panel, four columns at a time: pieces of four floats,
// transposed among each other.
template <typename V>
inline void transpose_rows(const float* from, int64_t stride, int64_t rows, int64_t columns, float* to, int64_t width) {
  int64_t column = 0;
  if (rows >= V::kWidth) {
    for (; column + 4 <= columns; column += 4) {
      V a = V::quads(from + column, stride);
      V b = V::quads(from + column + stride, stride);
      V c = V::quads(from + column + 2 * stride, stride);
      V d = V::quads(from + column + 3 * stride, stride);
      V::transpose(a, b, c, d);
      a.store(to + column * width);
      b.store(to + (column + 1) * width);
      c.store(to + (column + 2) * width);
      d.store(to + (column + 3) * width);
    }
  }
  for (; column < columns; ++column) {
    for (int64_t i = 0; i < V::kWidth; ++i) to[column * width + i] = i < rows ? from[i * stride + column] : 0.0f;
  }
}

}  // namespace hetero::backend
