// Quantized weights: a matrix [n, k] in 8 or 4 bits, with a scale for each group of a row.
//
// w[output, i] = scale * (q - zero), with a whole number q in 8 or 4 bits. The scale, and zero if
// the weight is asymmetric, belong to the group of i: `group` neighbours of one row, or all of it.
// A symmetric weight has zero 128 or 8 everywhere, and stores none.
//
// A weight is packed once, in the order in which every kernel of gemm.h reads it, so
// files of packed weights fit all processors:
//
//   packed: [n / 16][k / 4][16][4] bytes for 8 bits. Sixteen outputs are a panel, a step of k is
//           four elements, and a step of a panel is one line of 64 bytes.
//           [n / 16][k / 8][16][4] for 4 bits: two steps are one line, the first in the lower
//           halves of the bytes.
//   scales: [n / 16][groups][16], float32, float16 or bfloat16
//   zeros:  [n / 16][groups][16] bytes, or none
//
// n is rounded up to 16 outputs and k to 32 elements. Added elements are 0, and so are the scales
// of added outputs.
//
// Thread safety: any thread; functions share nothing. The result does not depend on the number of
// threads.

#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/base/rounding.h"
#include "backend/cpu/kernels/matvec.h"

namespace hetero::backend {

inline constexpr int64_t kQuantizedPanel = 16;  // outputs
inline constexpr int64_t kQuantizedDepth = 32;  // k is rounded up to this

// The shape of a weight. REQUIRES: bits is 4 or 8; group is 0 for whole rows, or a multiple of 32.
struct QuantizedShape {
  int bits = 8;
  int64_t n = 0;
  int64_t k = 0;
  int64_t group = 0;

  int64_t panels() const { return divide_up(n, kQuantizedPanel); }
  int64_t padded_k() const { return round_up(k, kQuantizedDepth); }
  // Elements of a row that share a scale.
  int64_t group_size() const { return group == 0 || group > padded_k() ? padded_k() : group; }
  int64_t groups() const { return k == 0 ? 1 : divide_up(padded_k(), group_size()); }
  int64_t panel_bytes() const { return padded_k() * kQuantizedPanel * bits / 8; }
  int64_t packed_bytes() const { return panels() * panel_bytes(); }
  int64_t scale_count() const { return panels() * groups() * kQuantizedPanel; }
  // Where the scale and the zero of a group of an output are.
  int64_t scale_index(int64_t output, int64_t group_index) const {
    return (output / kQuantizedPanel * groups() + group_index) * kQuantizedPanel + output % kQuantizedPanel;
  }
  int largest() const { return bits == 8 ? 255 : 15; }
  int middle() const { return bits == 8 ? 128 : 8; }  // the zero of symmetric weights
};

// A packed weight that the caller keeps.
struct QuantizedWeight {
  QuantizedShape shape;
  const uint8_t* packed = nullptr;
  Element scale_element = Element::kFloat32;
  const void* scales = nullptr;
  const uint8_t* zeros = nullptr;  // null: symmetric
};

// Quantizes w ([n, k], a row each `stride` elements) into memory of the sizes above. Scales are
// bfloat16, rounded up and then used for rounding w, so their few bits cost no accuracy worth
// mention. `zeros` null: symmetric, the largest magnitude of a group becomes 127 or 7. Otherwise
// the range of the group, with 0 in it, becomes 0 to 255 or 0 to 15.
// Returns false if w has values that are not finite; the memory is then useless.
bool quantize_weight(const QuantizedShape& shape, Element element, const void* w, int64_t stride, uint8_t* packed,
                     uint16_t* scales, uint8_t* zeros);

// Packs whole numbers q ([n, k], row-major, at most `largest()`) that were quantized elsewhere.
void pack_quantized(const QuantizedShape& shape, const uint8_t* q, uint8_t* packed);
// The reverse, into [n, k].
void unpack_quantized(const QuantizedShape& shape, const uint8_t* packed, uint8_t* q);

// Writes the weight as numbers, [n, k] row-major.
void dequantize_weight(const QuantizedWeight& weight, Element element, void* to);

}  // namespace hetero::backend
