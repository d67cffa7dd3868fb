// OpenCV's constants and tables. Conversions that are vectors of whole numbers or floats are in
// color_rows.h.

#include "backend/cpu/image/cv_color.h"

#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstdlib>

#include "backend/cpu/image/color_rows.h"
#include "backend/cpu/image/row_kernels.h"
#include "backend/cpu/vector/instruction_set.h"

namespace hetero::backend {
namespace {

// value / 2^bits, rounded; half rounds up.
int32_t scaled_down(int32_t value, int bits) { return (value + (1 << (bits - 1))) >> bits; }

bool has_red_first(CvColor code) {
  switch (code) {
    case CvColor::kRgbToGray:
    case CvColor::kRgbToYCrCb:
    case CvColor::kYCrCbToRgb:
    case CvColor::kRgbToHsv:
    case CvColor::kRgbToLab:
    case CvColor::kRgbToHls:
    case CvColor::kHsvToRgb:
    case CvColor::kRgbToHsvFull:
      return true;
    default:
      return false;
  }
}

// ---- grey

constexpr int kGrayBits = 15;
constexpr int32_t kBlueGray = 3735, kGreenGray = 19235, kRedGray = 9798;

void to_gray(const ColorRow& row) {
  auto* const kernel = row_kernels().weighted_channels;
  const int16_t weights[3] = {static_cast<int16_t>(row.swapped ? kRedGray : kBlueGray), kGreenGray,
                              static_cast<int16_t>(row.swapped ? kBlueGray : kRedGray)};
  int64_t i = kernel == nullptr ? 0 : kernel(row.from, weights, kGrayBits, row.count, row.to);
  for (; i < row.count; ++i) {
    const uint8_t* const pixel = row.from + 3 * i;
    const int32_t sum = pixel[0] * weights[0] + pixel[1] * weights[1] + pixel[2] * weights[2];
    row.to[i] = static_cast<uint8_t>(scaled_down(sum, kGrayBits));
  }
}

// ---- HSV

constexpr int kHsvBits = 12;

// [n]: range * 2^12 / (steps * n), rounded; 0 for 0.
std::array<int32_t, 256> reciprocals(int32_t range, double steps) {
  std::array<int32_t, 256> table{};
  for (size_t n = 1; n < table.size(); ++n) {
    table[n] = static_cast<int32_t>(std::lrint((range << kHsvBits) / (steps * static_cast<double>(n))));
  }
  return table;
}

// ---- Lab

constexpr int32_t kMiddle = 128;
constexpr int kLabBits = 12;
constexpr int kGammaBits = 3;
constexpr int kRootBits = kLabBits + kGammaBits;

// OpenCV's cube root of a float, whose last bits are cut off.
float cube_root(float value) {
  constexpr int kBits = 23, kBias = 127;
  constexpr uint32_t kFraction = (1u << kBits) - 1;
  const auto bits = std::bit_cast<uint32_t>(value);
  const int exponent = static_cast<int>(bits >> kBits) - kBias;
  int shift = exponent % 3;
  shift -= shift >= 0 ? 3 : 0;
  const double x = std::bit_cast<float>((bits & kFraction) | (static_cast<uint32_t>(shift + kBias) << kBits));
  const double upper =
      (((45.2548339756803022511987494 * x + 192.2798368355061050458134625) * x + 119.1654824285581628956914143) * x +
       13.43250139086239872172837314) *
          x +
      0.1636161226585754240958355063;
  const double lower =
      (((14.80884093219134573786480845 * x + 151.9714051044435648658557668) * x + 168.5254414101568283957668343) * x +
       33.9905941350215598754191872) *
          x +
      1.0;
  constexpr uint64_t kCutOff = (uint64_t{1} << (52 - kBits)) - 1;
  const double root = std::bit_cast<double>(std::bit_cast<uint64_t>(upper / lower) & ~kCutOff);
  return std::ldexp(static_cast<float>(root), (exponent - shift) / 3);
}

struct LabTables {
  std::array<uint16_t, 256> linear;  // of sRGB
  std::array<uint16_t, (256 * 3 / 2) << kGammaBits> roots;
  int32_t weights[3][3];  // of X, Y and Z: blue, green, red

  LabTables() {
    for (size_t i = 0; i < linear.size(); ++i) {
      const double x = static_cast<double>(i) / 255.0;
      const double value = x <= 0.04045 ? x / 12.92 : std::pow((x + 0.055) / 1.055, 2.4);
      linear[i] = static_cast<uint16_t>(std::lrint(255.0 * (1 << kGammaBits) * value));
    }
    for (size_t i = 0; i < roots.size(); ++i) {
      const float x = static_cast<float>(i) / (255 << kGammaBits);
      // Near 0 the root is replaced by a line.
      const float root = x < 216.0f / 24389.0f
                             ? static_cast<float>(static_cast<double>(x) * static_cast<double>(841.0f / 108.0f) +
                                                  static_cast<double>(16.0f / 116.0f))
                             : cube_root(x);
      roots[i] = static_cast<uint16_t>(std::lrint((1 << kRootBits) * root));
    }
    constexpr double kToXyz[3][3] = {
        {0.180423, 0.357580, 0.412453}, {0.072169, 0.715160, 0.212671}, {0.950227, 0.119193, 0.019334}};
    constexpr double kWhite[3] = {0.950456, 1.0, 1.088754};
    for (int i = 0; i < 3; ++i) {
      for (int c = 0; c < 3; ++c) {
        weights[i][c] = static_cast<int32_t>(std::lrint((1 << kLabBits) * kToXyz[i][c] / kWhite[i]));
      }
    }
  }

  int32_t root(const int32_t* w, int32_t blue, int32_t green, int32_t red) const {
    return roots[static_cast<size_t>(scaled_down(blue * w[0] + green * w[1] + red * w[2], kLabBits))];
  }
};

void to_lab(const ColorRow& row) {
  static const LabTables tables;
  constexpr int32_t kScale = (116 * 255 + 50) / 100, kShift = -((16 * 255 * (1 << kRootBits) + 50) / 100);
  const int blue_at = row.swapped ? 2 : 0;
  for (int64_t i = 0; i < row.count; ++i) {
    const uint8_t* const pixel = row.from + 3 * i;
    const int32_t blue = tables.linear[pixel[blue_at]], green = tables.linear[pixel[1]];
    const int32_t red = tables.linear[pixel[2 - blue_at]];
    const int32_t x = tables.root(tables.weights[0], blue, green, red);
    const int32_t y = tables.root(tables.weights[1], blue, green, red);
    const int32_t z = tables.root(tables.weights[2], blue, green, red);
    uint8_t* const to = row.to + 3 * i;
    to[0] = saturate_to_byte(scaled_down(kScale * y + kShift, kRootBits));
    to[1] = saturate_to_byte(scaled_down(500 * (x - y) + (kMiddle << kRootBits), kRootBits));
    to[2] = saturate_to_byte(scaled_down(200 * (y - z) + (kMiddle << kRootBits), kRootBits));
  }
}

// ---- blocks

struct Separate {
  static float fused(float a, float b, float c) { return a * b + c; }
  static void split(const uint8_t* pixels, ColorPlanes& planes) {
    for (int i = 0; i < kColorBlock; ++i) {
      for (int c = 0; c < 3; ++c) planes.channel[c][i] = pixels[3 * i + c];
    }
  }
  static void join(const ColorPlanes& planes, uint8_t* pixels) {
    for (int i = 0; i < kColorBlock; ++i) {
      for (int c = 0; c < 3; ++c) pixels[3 * i + c] = planes.channel[c][i];
    }
  }
};

const ColorRows& block_rows() {
#if defined(__x86_64__)
  if (instruction_set() >= InstructionSet::kAvx2) return color_rows_fma();
#endif
  return BlockColors<Separate>::kRows;
}

int64_t lanes_of(InstructionSet set) {
  return set == InstructionSet::kAvx512 ? 16 : set == InstructionSet::kAvx2 ? 8 : 4;
}

ColorRowFunction function_of(CvColor code) {
  const ColorRows& rows = block_rows();
  switch (code) {
    case CvColor::kBgrToGray:
    case CvColor::kRgbToGray:
      return to_gray;
    case CvColor::kBgrToYCrCb:
    case CvColor::kRgbToYCrCb:
      return rows.to_ycrcb;
    case CvColor::kYCrCbToBgr:
    case CvColor::kYCrCbToRgb:
      return rows.from_ycrcb;
    case CvColor::kBgrToHsv:
    case CvColor::kRgbToHsv:
    case CvColor::kBgrToHsvFull:
    case CvColor::kRgbToHsvFull:
      return rows.to_hsv;
    case CvColor::kBgrToLab:
    case CvColor::kRgbToLab:
      return to_lab;
    case CvColor::kBgrToHls:
    case CvColor::kRgbToHls:
      return rows.to_hls;
    case CvColor::kHsvToBgr:
    case CvColor::kHsvToRgb:
      return rows.from_hsv;
  }
  return nullptr;
}

}  // namespace

bool is_color_code(int64_t code) {
  return code >= 0 && code <= UINT8_MAX && function_of(static_cast<CvColor>(code)) != nullptr;
}

int64_t color_channels(CvColor code) { return code == CvColor::kBgrToGray || code == CvColor::kRgbToGray ? 1 : 3; }

void cv_color(const ImageBatch<const uint8_t>& images, const ImageBatch<uint8_t>& results, CvColor code) {
  static const std::array<int32_t, 256> parts = reciprocals(255, 1);
  static const std::array<int32_t, 256> hues = reciprocals(180, 6), full_hues = reciprocals(256, 6);
  const ColorRowFunction function = function_of(code);
  assert(function != nullptr);
  const bool full = code == CvColor::kBgrToHsvFull || code == CvColor::kRgbToHsvFull;
  const ColorRow row{.from = nullptr,
                     .to = nullptr,
                     .count = images.width,
                     .lanes = lanes_of(instruction_set()),
                     .swapped = has_red_first(code),
                     .hues = (full ? full_hues : hues).data(),
                     .parts = parts.data(),
                     .hue_range = full ? 256 : 180};
  for_row_bands(images.count, images.height, 4 * images.width, [&](int64_t i, int64_t begin, int64_t end) {
    const Image<const uint8_t> from = images.at(i);
    const Image<uint8_t> to = results.at(i);
    for (int64_t y = begin; y < end; ++y) {
      ColorRow one = row;
      one.from = from.row(y);
      one.to = to.row(y);
      function(one);
    }
  });
}

}  // namespace hetero::backend
