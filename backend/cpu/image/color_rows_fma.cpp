// Compiled for AVX2 and FMA; called only where the processor has them. See color_rows.h.

#include "backend/cpu/image/color_rows.h"

#include <immintrin.h>

namespace hetero::backend {
namespace {

// Masks that take every third byte of 48 into a plane, and planes into every third byte.
struct Masks {
  alignas(16) int8_t split[3][3][16];  // [channel][16 bytes of pixels]
  alignas(16) int8_t join[3][3][16];   // [16 bytes of pixels][channel]

  Masks() {
    for (int channel = 0; channel < 3; ++channel) {
      for (int part = 0; part < 3; ++part) {
        for (int i = 0; i < 16; ++i) {
          const int from = 3 * i + channel - 16 * part, place = 16 * part + i;
          split[channel][part][i] = static_cast<int8_t>(from >= 0 && from < 16 ? from : -1);
          join[part][channel][i] = static_cast<int8_t>(place % 3 == channel ? place / 3 : -1);
        }
      }
    }
  }
};

__m128i load(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

__m128i gather(const int8_t (*masks)[16], __m128i a, __m128i b, __m128i c) {
  return _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(a, load(masks[0])), _mm_shuffle_epi8(b, load(masks[1]))),
                      _mm_shuffle_epi8(c, load(masks[2])));
}

struct Fused {
  static float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
  static const Masks& masks() {
    static const Masks masks;
    return masks;
  }
  static void split(const uint8_t* pixels, ColorPlanes& planes) {
    const Masks& all = masks();
    for (int i = 0; i < kColorBlock; i += 16, pixels += 48) {
      const __m128i a = load(pixels), b = load(pixels + 16), c = load(pixels + 32);
      for (int channel = 0; channel < 3; ++channel) {
        _mm_store_si128(reinterpret_cast<__m128i*>(planes.channel[channel] + i), gather(all.split[channel], a, b, c));
      }
    }
  }
  static void join(const ColorPlanes& planes, uint8_t* pixels) {
    const Masks& all = masks();
    for (int i = 0; i < kColorBlock; i += 16, pixels += 48) {
      const __m128i a = load(planes.channel[0] + i), b = load(planes.channel[1] + i), c = load(planes.channel[2] + i);
      for (int part = 0; part < 3; ++part) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(pixels + 16 * part), gather(all.join[part], a, b, c));
      }
    }
  }
};

}  // namespace

const ColorRows& color_rows_fma() { return BlockColors<Fused>::kRows; }

}  // namespace hetero::backend
