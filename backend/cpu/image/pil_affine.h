// pil_affine: Pillow's Image.transform(size, AFFINE, ...), which Image.rotate uses too.
//
// Bytes are equal to those of Pillow 13.0.0, for channels that it treats alike: modes L, RGB, CMYK
// and, with alpha multiplied before (mode RGBa), RGBA.
//
// Thread safety: any thread; calls share nothing. Each thread keeps its memory from call to call.

#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "backend/cpu/image/image.h"

namespace hetero::backend {

// The numbers are Pillow's.
enum class PilTransformFilter : uint8_t { kNearest = 0, kBilinear = 2, kBicubic = 3 };

// (a, b, c, d, e, f): the middle (x, y) of a result's pixel comes from (ax + by + c, dx + ey + f).
using PilAffine = std::array<double, 6>;

// Writes all of `results`; pixels from outside of an image are `fill`. REQUIRES: results.count
// images and coefficients; images have a pixel and the channels of the results; fill has as many.
void pil_affine(std::span<const Image<const uint8_t>> images, std::span<const PilAffine> coefficients,
                const ImageBatch<uint8_t>& results, PilTransformFilter filter, std::span<const uint8_t> fill);

}  // namespace hetero::backend
