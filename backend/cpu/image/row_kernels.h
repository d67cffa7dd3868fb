// RowKernels: the inner loops of this folder that are written for an instruction set.
//
// They compute whole numbers, or doubles in a given order, so all sets give the same bits. The
// portable loops take any number of channels; the others take 1 to 4 and leave the rest of a row to
// the portable ones. row_kernels_avx2.cpp is compiled with its own flags, so this header has no
// inline code.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>

namespace hetero::backend {

// Columns of a bilinear row: output x is the weighted sum of two neighbouring pixels.
struct LinearColumns {
  int64_t count;
  int64_t channels;
  int64_t second;           // elements from the first pixel to the second; 0 if there is one column
  const int32_t* first;     // [count]: the element at which the first pixel begins, ascending
  const int16_t* weights;   // [count][2]
  const int16_t* repeated;  // [count, rounded up to 4][8]: in fours, in the order 0 2 1 3
};

// Columns of a filtered row: output x is the weighted sum of `taps` pixels or fewer.
struct FilterColumns {
  int64_t count;
  int64_t channels;
  int64_t taps;
  const int32_t* first;     // [count]: the element at which the first pixel begins
  const int32_t* taps_of;   // [count]
  const int32_t* weights;   // [count][taps]
  int64_t steps;            // of filter_step(channels) taps each
  const int16_t* repeated;  // [count][steps][2][16]: upper and lower parts; null if they do not fit
};

// An image whose pixels are looked up at places in 1/32 of a pixel.
struct PixelSource {
  const uint8_t* data;
  int64_t bytes;  // from the first pixel to the last
  int64_t stride;
  int32_t height;
  int32_t width;
  int64_t channels;
};
// The pixels that are looked up at once.
inline constexpr int64_t kPixelGroup = 4;

// The bits of a weight and of its lower part, which has a sign.
inline constexpr int kFilterBits = 22;
inline constexpr int kLowerBits = 12;
// The bytes that a step of filter_rows reads.
inline constexpr int64_t kStepBytes = 16;
constexpr int64_t filter_step(int64_t channels) { return channels == 1 ? 16 : channels == 2 ? 8 : 4; }
inline constexpr int64_t kRowsAtOnce = 4;

struct RowKernels {
  // Columns [0, n) of a bilinear row, in 16 bits: the sums without their lowest 4 bits. Returns n.
  // Reads 8 bytes at each first pixel, up to `readable` bytes of the row. `out` has 8 elements more
  // than the row. Null if there is none.
  int64_t (*linear_columns)(const uint8_t* row, int64_t readable, const LinearColumns& columns, int16_t* out);
  // Two such rows to bytes. Returns how many of `count` were written.
  int64_t (*linear_rows)(const int16_t* upper, const int16_t* lower, int weight, int lower_weight, int64_t count,
                         uint8_t* out);
  // All columns of kRowsAtOnce rows. Reads kStepBytes at each step of a column. Rows of `out` have
  // 4 bytes more. REQUIRES: columns.repeated. Null if there is none.
  void (*filter_columns)(const uint8_t* const* rows, const FilterColumns& columns, uint8_t* const* out);
  // The weighted sum of `taps` rows, an even number; weights [taps] in upper and lower parts.
  // Returns how many of `count` bytes were written.
  int64_t (*filter_rows)(const uint8_t* const* rows, const int16_t* upper, const int16_t* lower, int64_t taps,
                         int64_t count, uint8_t* out);
  // Bilinear pixels at places (x, y), as long as whole groups have their neighbours inside of the
  // source, and those bytes may be read. Returns how many were written, at most `count`. Null if
  // there is none.
  int64_t (*bilinear_pixels)(const PixelSource& source, const int32_t* x, const int32_t* y, int64_t count,
                             uint8_t* out);
  // Places ((start[0] + matrix[0] * i) * s, (start[1] + matrix[3] * i) * s) of i from 0, where s is
  // scale / (start[2] + matrix[6] * i), rounded. Returns how many of `count` were written. Null if
  // there is none.
  int64_t (*perspective_places)(const double* matrix, const double* start, double scale, int64_t count, int32_t* x,
                                int32_t* y);
  // Pixels at places, as pil_affine.h filters them, as long as their neighbours are inside of the
  // source and may be read. Return how many were written, at most `count`. Null if there are none.
  int64_t (*double_bilinear)(const PixelSource& source, const double* x, const double* y, int64_t count, uint8_t* out);
  int64_t (*double_bicubic)(const PixelSource& source, const double* x, const double* y, int64_t count, uint8_t* out);
  // The weighted sums of three channels, divided by 2^bits and rounded. Returns how many of `count`
  // were written. Null if there is none.
  int64_t (*weighted_channels)(const uint8_t* pixels, const int16_t* weights, int bits, int64_t count, uint8_t* out);
  // Sums of `taps` bytes that are `distance` apart, by weights of up to 256 that add up to 256.
  // Returns how many of `count` were written. Null if there is none.
  int64_t (*weigh_bytes)(const uint8_t* row, const int32_t* weights, int64_t taps, int64_t distance, int64_t count,
                         uint16_t* out);
  // Sums of rows by such weights, divided by 2^16 and rounded. Likewise.
  int64_t (*weigh_words)(const uint16_t* const* rows, const int32_t* weights, int64_t taps, int64_t count,
                         uint8_t* out);
  // Medians of squares of `size` rows and columns, at most 15. Likewise.
  int64_t (*median_bytes)(const uint8_t* const* rows, int64_t size, int64_t distance, int64_t count, uint8_t* out);
  // Pillow's grey of pixels with three channels. Likewise, of pixels.
  int64_t (*grey_pixels)(const uint8_t* pixels, int64_t count, uint8_t* out);
  // other + factor * (byte - other) in floats, cut off at 0 and 255, without fractions; `other` is
  // one byte for all, or one for each pixel of three channels. Return how many bytes, or pixels, of
  // `count` were written. Null if there are none.
  int64_t (*blend_constant)(uint8_t other, const uint8_t* bytes, float factor, int64_t count, uint8_t* out);
  int64_t (*blend_grey)(const uint8_t* others, const uint8_t* pixels, float factor, int64_t count, uint8_t* out);
};

// The best for this processor; without members where there are only the portable loops.
const RowKernels& row_kernels();
const RowKernels& row_kernels_avx2();
// For tests: only the portable loops are used.
void use_portable_rows(bool portable);

}  // namespace hetero::backend
