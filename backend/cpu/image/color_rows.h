// Rows of pixels from HSV and to HLS, in floats; for cv_color.cpp.
//
// Each is computed in two ways: as OpenCV's vectors do, and as its loop over what is left does.
// Where the processor can, products and sums are rounded together: A is a type of the including
// file's unnamed namespace with float fused(a, b, c), a * b + c. color_rows_fma.cpp is compiled
// with its own flags. So everything here is a template over A, and this header includes nothing of
// the standard library that has code.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>

namespace hetero::backend {

struct ColorRow {
  const uint8_t* from;  // three channels
  uint8_t* to;          // three channels
  int64_t count;
  int64_t lanes;  // of OpenCV's vectors of floats
  int blue;       // the channel of blue: 0 or 2
};

struct ColorRows {
  void (*from_hsv)(const ColorRow& row);
  void (*to_hls)(const ColorRow& row);
};
const ColorRows& color_rows_fma();

template <typename A>
struct FloatColors {
  static constexpr float kByte = 1.0f / 255.0f;
  static constexpr float kHues = 180.0f;

  // REQUIRES: 0 <= value < 2^22.
  static uint8_t round_even(float value) {
    constexpr float kWhole = 12582912.0f;  // its unit is 1
    return static_cast<uint8_t>(static_cast<int32_t>((value + kWhole) - kWhole));
  }

  struct Blend {
    int sector;
    float tab[4];

    float at(int c) const {
      constexpr int kSectors[6][3] = {{1, 3, 0}, {1, 0, 2}, {3, 0, 1}, {0, 2, 1}, {0, 1, 3}, {2, 1, 0}};
      return tab[kSectors[sector][c]];
    }
  };

  static Blend blend(const uint8_t* pixel) {
    const float saturation = static_cast<float>(pixel[1]) * kByte, value = static_cast<float>(pixel[2]) * kByte;
    float hue = static_cast<float>(pixel[0]) * (6.0f / kHues);
    hue = hue >= 6.0f ? hue - 6.0f : hue;
    const int sector = static_cast<int>(hue);
    hue -= static_cast<float>(sector);
    return {sector,
            {value, value * (1.0f - saturation), value * A::fused(-saturation, hue, 1.0f),
             value * A::fused(-saturation, 1.0f - hue, 1.0f)}};
  }

  static void from_hsv(const ColorRow& row) {
    const int64_t block = 4 * row.lanes, in_vectors = row.count / block * block;
    const uint8_t* from = row.from;
    uint8_t* to = row.to;
    for (int64_t i = 0; i < row.count; ++i, from += 3, to += 3) {
      const Blend colors = blend(from);
      for (int c = 0; c < 3; ++c) {
        const float value = colors.at(c) * 255.0f;
        to[c == 1   ? 1
           : c == 0 ? row.blue
                    : 2 - row.blue] =
            i < in_vectors ? static_cast<uint8_t>(static_cast<int32_t>(value)) : round_even(value);
      }
    }
  }

  static void to_hls(const ColorRow& row) {
    constexpr int64_t kBlock = 256;
    constexpr float kSmallest = 0x1p-23f;
    const uint8_t* from = row.from;
    uint8_t* to = row.to;
    for (int64_t first = 0; first < row.count; first += kBlock) {
      const int64_t count = row.count - first < kBlock ? row.count - first : kBlock;
      const int64_t in_vectors = count / row.lanes * row.lanes;
      for (int64_t i = 0; i < count; ++i, from += 3, to += 3) {
        const float blue = static_cast<float>(from[row.blue]) * kByte, green = static_cast<float>(from[1]) * kByte;
        const float red = static_cast<float>(from[2 - row.blue]) * kByte;
        const float red_green = red > green ? red : green, low_red_green = red < green ? red : green;
        const float most = red_green > blue ? red_green : blue, least = low_red_green < blue ? low_red_green : blue;
        const float difference = most - least, sum = most + least, lightness = sum * 0.5f;
        float hue = 0.0f, saturation = 0.0f;
        if (difference > kSmallest) {
          const float rest = i < in_vectors ? 2.0f - sum : 2.0f - most - least;
          saturation = difference / (lightness < 0.5f ? sum : rest);
          const float scale = 60.0f / difference;
          if (most == red) {
            // Below 0, the loop multiplies and adds in two steps.
            hue = i < in_vectors ? A::fused(green - blue, scale, green < blue ? 360.0f : 0.0f)
                                 : below_zero(green - blue, scale);
          } else if (most == green) {
            hue = A::fused(blue - red, scale, 120.0f);
          } else {
            hue = A::fused(red - green, scale, 240.0f);
          }
        }
        to[0] = round_even(hue * (kHues / 360.0f));
        to[1] = round_even(lightness * 255.0f);
        to[2] = round_even(saturation * 255.0f);
      }
    }
  }

  static float below_zero(float a, float b) {
    const float hue = a * b;
    return hue < 0.0f ? hue + 360.0f : hue;
  }
};

}  // namespace hetero::backend
