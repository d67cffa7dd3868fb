// decode_jpeg: the pixels of a JPEG file, by libjpeg-turbo.
//
// Baseline and progressive files, grey ones and all subsamplings of colours. The inverse DCT is the
// exact one (islow) and subsampled colours are interpolated (fancy upsampling), as Pillow and
// OpenCV choose it, so the pixels are theirs. Pixels lie as the file has them: EXIF's orientation
// is not applied.
//
// A file whose data ends early is an error, as Pillow has it. So is one with data that does not
// decode, unless damage is allowed: then pixels are what libjpeg makes of it, as Pillow and OpenCV
// have it. Files of four components (CMYK) are refused.
//
// Thread safety: pure functions, on the calling thread alone.

#pragma once

#include <cstdint>
#include <span>

#include "backend/base/status.h"

namespace hetero::backend {

// What the pixels are: one byte each, or three. Of a colour file, grey is its luminance (Y), as
// OpenCV reads it.
enum class PixelOrder : uint8_t { kGrey, kRgb, kBgr };
constexpr int64_t channels_of(PixelOrder order) { return order == PixelOrder::kGrey ? 1 : 3; }

enum class Damage : uint8_t { kRefused, kAllowed };

struct JpegSize {
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;  // in the file: 1 for grey, 3 for colours, 4 for CMYK
};

// Whether this build and this machine have libjpeg-turbo. Without it the functions below fail with
// kUsage.
bool has_jpeg_decoder();

// Reads the file's header. Errors: kUsage if it is none.
Result<JpegSize> read_jpeg_size(std::span<const uint8_t> file);

// Writes height * width * channels_of(order) bytes, row by row. Errors: kUsage, and then some of
// the rows may have been written.
Status decode_jpeg(std::span<const uint8_t> file, PixelOrder order, int64_t height, int64_t width, uint8_t* pixels,
                   Damage damage = Damage::kRefused);

}  // namespace hetero::backend
