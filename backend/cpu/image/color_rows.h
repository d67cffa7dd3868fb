// Rows of pixels between BGR and YCrCb, HSV and HLS; for cv_color.cpp.
//
// Pixels are worked on in blocks of planes, in loops without branches, which compilers make vectors
// of. HSV and HLS of floats are computed in two ways: as OpenCV's vectors do, and as its loop over
// what is left does. Where the processor can, products and sums are rounded together.
//
// S is a type of the including file's unnamed namespace. It has float fused(a, b, c), a * b + c,
// split(pixels, planes) and join(planes, pixels) for whole blocks. color_rows_fma.cpp is compiled
// with its own flags. So everything here is a template over S, and this header includes nothing of
// the standard library that has code.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>

namespace hetero::backend {

struct ColorRow {
  const uint8_t* from;  // three channels
  uint8_t* to;
  int64_t count;
  int64_t lanes;         // of OpenCV's vectors of floats
  bool swapped;          // whether red comes before blue
  const int32_t* hues;   // [256]: a hue's reciprocals; see cv_color.cpp
  const int32_t* parts;  // [256]: a saturation's reciprocals
  int32_t hue_range;
};

using ColorRowFunction = void (*)(const ColorRow& row);
struct ColorRows {
  ColorRowFunction to_ycrcb, from_ycrcb, to_hsv, from_hsv, to_hls;
};
const ColorRows& color_rows_fma();

inline constexpr int kColorBlock = 64;

struct ColorPlanes {
  alignas(64) uint8_t channel[3][kColorBlock];
};

template <typename S>
struct BlockColors {
  static constexpr float kByte = 1.0f / 255.0f;
  static constexpr int kLumaBits = 14;
  static constexpr int kHsvBits = 12;
  static constexpr int32_t kMiddle = 128;

  // value / 2^bits, rounded; half rounds up.
  static int32_t scaled_down(int32_t value, int bits) { return (value + (1 << (bits - 1))) >> bits; }
  static uint8_t saturate(int32_t value) { return static_cast<uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value); }
  // REQUIRES: 0 <= value < 2^22.
  static uint8_t round_even(float value) {
    constexpr float kWhole = 12582912.0f;  // its unit is 1
    return static_cast<uint8_t>(static_cast<int32_t>((value + kWhole) - kWhole));
  }

  static void ycrcb_block(const ColorRow& row, int, const ColorPlanes& in, ColorPlanes& out) {
    const uint8_t* const blues = in.channel[row.swapped ? 2 : 0];
    const uint8_t* const reds = in.channel[row.swapped ? 0 : 2];
    for (int i = 0; i < kColorBlock; ++i) {
      const int32_t blue = blues[i], green = in.channel[1][i], red = reds[i];
      const int32_t luma = scaled_down(blue * 1868 + green * 9617 + red * 4899, kLumaBits);
      out.channel[0][i] = static_cast<uint8_t>(luma);
      out.channel[1][i] = saturate(scaled_down((red - luma) * 11682 + (kMiddle << kLumaBits), kLumaBits));
      out.channel[2][i] = saturate(scaled_down((blue - luma) * 9241 + (kMiddle << kLumaBits), kLumaBits));
    }
  }

  static void from_ycrcb_block(const ColorRow& row, int, const ColorPlanes& in, ColorPlanes& out) {
    uint8_t* const blues = out.channel[row.swapped ? 2 : 0];
    uint8_t* const reds = out.channel[row.swapped ? 0 : 2];
    for (int i = 0; i < kColorBlock; ++i) {
      const int32_t luma = in.channel[0][i], cr = in.channel[1][i] - kMiddle, cb = in.channel[2][i] - kMiddle;
      blues[i] = saturate(luma + scaled_down(cb * 29049, kLumaBits));
      out.channel[1][i] = saturate(luma + scaled_down(cb * -5636 + cr * -11698, kLumaBits));
      reds[i] = saturate(luma + scaled_down(cr * 22987, kLumaBits));
    }
  }

  static void hsv_block(const ColorRow& row, int, const ColorPlanes& in, ColorPlanes& out) {
    const uint8_t* const blues = in.channel[row.swapped ? 2 : 0];
    const uint8_t* const reds = in.channel[row.swapped ? 0 : 2];
    const int32_t* const hues = row.hues;
    const int32_t* const parts = row.parts;
    const int32_t range = row.hue_range;
    for (int i = 0; i < kColorBlock; ++i) {
      const int32_t blue = blues[i], green = in.channel[1][i], red = reds[i];
      const int32_t high = blue > green ? blue : green, low = blue < green ? blue : green;
      const int32_t value = high > red ? high : red, difference = value - (low < red ? low : red);
      const int32_t from_red = green - blue, from_green = blue - red + 2 * difference;
      const int32_t from_blue = red - green + 4 * difference;
      const int32_t part = value == red ? from_red : value == green ? from_green : from_blue;
      const int32_t hue = scaled_down(part * hues[difference], kHsvBits);
      out.channel[0][i] = saturate(hue + (hue < 0 ? range : 0));
      out.channel[1][i] = static_cast<uint8_t>(scaled_down(difference * parts[value], kHsvBits));
      out.channel[2][i] = static_cast<uint8_t>(value);
    }
  }

  // The first `in_vectors` pixels are in OpenCV's vectors, which cut off.
  static void from_hsv_block(const ColorRow& row, int in_vectors, const ColorPlanes& in, ColorPlanes& out) {
    uint8_t* const blues = out.channel[row.swapped ? 2 : 0];
    uint8_t* const reds = out.channel[row.swapped ? 0 : 2];
    for (int i = 0; i < kColorBlock; ++i) {
      const float saturation = static_cast<float>(in.channel[1][i]) * kByte;
      const float value = static_cast<float>(in.channel[2][i]) * kByte;
      float hue = static_cast<float>(in.channel[0][i]) * (6.0f / 180.0f);
      hue -= hue >= 6.0f ? 6.0f : 0.0f;
      const auto sector = static_cast<int32_t>(hue);
      hue -= static_cast<float>(sector);
      const float low = value * (1.0f - saturation), down = value * S::fused(-saturation, hue, 1.0f);
      const float up = value * S::fused(-saturation, 1.0f - hue, 1.0f);
      // One choice after the other, so that each is a blend of vectors.
      float blue = down, green = low, red = value;
      blue = sector < 5 ? value : blue;
      blue = sector < 3 ? up : blue;
      blue = sector < 2 ? low : blue;
      green = sector < 4 ? down : green;
      green = sector < 3 ? value : green;
      green = sector < 1 ? up : green;
      red = sector < 5 ? up : red;
      red = sector < 4 ? low : red;
      red = sector < 2 ? down : red;
      red = sector < 1 ? value : red;
      const bool cut = i < in_vectors;
      blues[i] = cut_or_round(blue * 255.0f, cut);
      out.channel[1][i] = cut_or_round(green * 255.0f, cut);
      reds[i] = cut_or_round(red * 255.0f, cut);
    }
  }
  static uint8_t cut_or_round(float value, bool cut) {
    const auto down = static_cast<uint8_t>(static_cast<int32_t>(value));
    const uint8_t near = round_even(value);
    return cut ? down : near;
  }

  static void hls_block(const ColorRow& row, int in_vectors, const ColorPlanes& in, ColorPlanes& out) {
    constexpr float kSmallest = 0x1p-23f;
    const uint8_t* const blues = in.channel[row.swapped ? 2 : 0];
    const uint8_t* const reds = in.channel[row.swapped ? 0 : 2];
    for (int i = 0; i < kColorBlock; ++i) {
      const float blue = static_cast<float>(blues[i]) * kByte, green = static_cast<float>(in.channel[1][i]) * kByte;
      const float red = static_cast<float>(reds[i]) * kByte;
      const float high = red > green ? red : green, low = red < green ? red : green;
      const float most = high > blue ? high : blue, least = low < blue ? low : blue;
      const float difference = most - least, sum = most + least, lightness = sum * 0.5f;
      const bool vector = i<in_vectors, colored = difference> kSmallest;
      const float rest = vector ? 2.0f - sum : 2.0f - most - least;
      const float divisor = colored ? difference : 1.0f;
      const float saturation = difference / (colored ? (lightness < 0.5f ? sum : rest) : 1.0f);
      const float scale = 60.0f / divisor;
      const float from_red = green - blue;
      // Below 0, the loop multiplies and adds in two steps.
      const float product = from_red * scale;
      const float fused_red = S::fused(from_red, scale, green < blue ? 360.0f : 0.0f);
      const float added_red = product < 0.0f ? product + 360.0f : product;
      const float by_red = vector ? fused_red : added_red;
      const float by_green = S::fused(blue - red, scale, 120.0f), by_blue = S::fused(red - green, scale, 240.0f);
      const float hue = most == red ? by_red : most == green ? by_green : by_blue;
      out.channel[0][i] = round_even((colored ? hue : 0.0f) * (180.0f / 360.0f));
      out.channel[1][i] = round_even(lightness * 255.0f);
      out.channel[2][i] = round_even((colored ? saturation : 0.0f) * 255.0f);
    }
  }

  using Block = void (*)(const ColorRow& row, int in_vectors, const ColorPlanes& in, ColorPlanes& out);

  // in_vectors(i): how many pixels from i on are in OpenCV's vectors.
  template <Block kBlock, typename InVectors>
  static void convert(const ColorRow& row, const InVectors& in_vectors) {
    ColorPlanes in, out;
    int64_t i = 0;
    for (; i + kColorBlock <= row.count; i += kColorBlock) {
      S::split(row.from + 3 * i, in);
      kBlock(row, in_vectors(i), in, out);
      S::join(out, row.to + 3 * i);
    }
    if (i == row.count) return;
    uint8_t last[3 * kColorBlock] = {};
    const auto bytes = static_cast<unsigned long>(3 * (row.count - i));
    __builtin_memcpy(last, row.from + 3 * i, bytes);
    S::split(last, in);
    kBlock(row, in_vectors(i), in, out);
    S::join(out, last);
    __builtin_memcpy(row.to + 3 * i, last, bytes);
  }

  static int at_most_a_block(int64_t count) {
    return static_cast<int>(count < 0 ? 0 : count > kColorBlock ? kColorBlock : count);
  }

  static void to_ycrcb(const ColorRow& row) {
    convert<ycrcb_block>(row, [](int64_t) { return 0; });
  }
  static void from_ycrcb(const ColorRow& row) {
    convert<from_ycrcb_block>(row, [](int64_t) { return 0; });
  }
  static void to_hsv(const ColorRow& row) {
    convert<hsv_block>(row, [](int64_t) { return 0; });
  }
  static void from_hsv(const ColorRow& row) {
    const int64_t end = row.count / (4 * row.lanes) * (4 * row.lanes);
    convert<from_hsv_block>(row, [&](int64_t i) { return at_most_a_block(end - i); });
  }
  // OpenCV works on 256 pixels at a time, in vectors as far as possible.
  static void to_hls(const ColorRow& row) {
    constexpr int64_t kPart = 256;
    convert<hls_block>(row, [&](int64_t i) {
      const int64_t part = i / kPart * kPart, count = row.count - part < kPart ? row.count - part : kPart;
      return at_most_a_block(part + count / row.lanes * row.lanes - i);
    });
  }

  static constexpr ColorRows kRows{to_ycrcb, from_ycrcb, to_hsv, from_hsv, to_hls};
};

}  // namespace hetero::backend
