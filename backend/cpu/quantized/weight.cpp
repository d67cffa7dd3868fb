#include "backend/cpu/quantized/weight.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>

#include "backend/base/parallel.h"
#include "backend/cpu/vector/half.h"
#include "backend/cpu/vector/scratch.h"

namespace hetero::backend {
namespace {

// Elements that are worth another thread.
constexpr int64_t kElementsPerThread = 32 << 10;

int64_t panel_grain(const QuantizedShape& shape) {
  return std::max<int64_t>(1, kElementsPerThread / std::max<int64_t>(1, shape.padded_k() * kQuantizedPanel));
}

// Where the number of an output of a panel is: its byte, and whether it is the upper half.
struct Place {
  int64_t byte;
  bool upper;
};
Place place_of(const QuantizedShape& shape, int64_t output, int64_t i) {
  const int64_t in_line = output * 4 + i % 4;
  if (shape.bits == 8) return {i / 4 * 64 + in_line, false};
  return {i / 8 * 64 + in_line, i / 4 % 2 == 1};
}

// Writes the numbers of a row into a panel. REQUIRES: padded_k numbers.
void place_row(const QuantizedShape& shape, int64_t output, const uint8_t* q, uint8_t* panel) {
  uint8_t* to = panel + output * 4;
  if (shape.bits == 8) {
    for (int64_t i = 0; i < shape.padded_k(); i += 4, to += 64) std::memcpy(to, q + i, 4);
    return;
  }
  for (int64_t i = 0; i < shape.padded_k(); i += 8, to += 64) {
    uint32_t lower, upper;
    std::memcpy(&lower, q + i, 4);
    std::memcpy(&upper, q + i + 4, 4);
    const uint32_t both = lower | upper << 4;  // no byte is above 15
    std::memcpy(to, &both, 4);
  }
}

// The bfloat16 that is no smaller.
uint16_t round_up_to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0xffff) >> 16);
}

// The nearest whole number, ties to even; quick. REQUIRES: a magnitude of at most 2^22.
int nearest(float value) {
  constexpr float kMagic = 3 << 22;
  return std::bit_cast<int32_t>(value + kMagic) - std::bit_cast<int32_t>(kMagic);
}

struct Quantized {
  uint16_t scale;
  uint8_t zero;
};

// Quantizes a group of numbers.
Quantized quantize_group(const QuantizedShape& shape, bool symmetric, const float* w, int64_t count, uint8_t* q) {
  float least = 0, most = 0;
  for (int64_t i = 0; i < count; ++i) {
    least = std::min(least, w[i]);
    most = std::max(most, w[i]);
  }
  const int largest = shape.largest();
  // Halves first: the difference of two floats may be infinite.
  const float steps = static_cast<float>(symmetric ? shape.middle() - 1 : largest);
  const float wanted = symmetric ? std::max(-least, most) / steps : (most / steps - least / steps);
  // Rounding up may pass the largest bfloat16.
  const uint16_t bits = std::min<uint16_t>(round_up_to_bfloat16(wanted), 0x7f7f);
  const float scale = bfloat16_to_float(bits);
  if (scale == 0) {
    std::fill(q, q + count, static_cast<uint8_t>(symmetric ? shape.middle() : 0));
    return {0, static_cast<uint8_t>(symmetric ? shape.middle() : 0)};
  }
  const int zero = symmetric ? shape.middle() : std::clamp(nearest(-least / scale), 0, largest);
  for (int64_t i = 0; i < count; ++i) {
    const int number = nearest(w[i] / scale) + zero;
    q[i] = static_cast<uint8_t>(std::clamp(number, symmetric ? 1 : 0, largest));
  }
  return {bits, static_cast<uint8_t>(zero)};
}

}  // namespace

bool quantize_weight(const QuantizedShape& shape, Element element, const void* w, int64_t stride, uint8_t* packed,
                     uint16_t* scales, uint8_t* zeros) {
  const bool symmetric = zeros == nullptr;
  std::atomic<bool> finite{true};
  parallel_for(0, shape.panels(), panel_grain(shape), [&](int64_t begin, int64_t end) {
    static thread_local Scratch floats_memory, numbers_memory;
    auto* const floats = floats_memory.get<float>(shape.padded_k());
    auto* const numbers = numbers_memory.get<uint8_t>(shape.padded_k());
    for (int64_t panel = begin; panel < end; ++panel) {
      uint8_t* const to = packed + panel * shape.panel_bytes();
      for (int64_t i = 0; i < kQuantizedPanel; ++i) {
        const int64_t output = panel * kQuantizedPanel + i;
        if (output < shape.n) {
          widen(element, element_at(w, output * stride, element), shape.k, floats);
          if (!std::all_of(floats, floats + shape.k, [](float value) { return std::isfinite(value); })) finite = false;
        } else {
          std::fill(floats, floats + shape.k, 0.0f);
        }
        std::fill(floats + shape.k, floats + shape.padded_k(), 0.0f);
        for (int64_t group = 0; group < shape.groups(); ++group) {
          const int64_t first = group * shape.group_size();
          const int64_t count = std::min(shape.group_size(), shape.padded_k() - first);
          const Quantized made = quantize_group(shape, symmetric, floats + first, count, numbers + first);
          scales[shape.scale_index(output, group)] = made.scale;
          if (!symmetric) zeros[shape.scale_index(output, group)] = made.zero;
        }
        place_row(shape, i, numbers, to);
      }
    }
  });
  return finite;
}

void pack_quantized(const QuantizedShape& shape, const uint8_t* q, uint8_t* packed) {
  parallel_for(0, shape.panels(), panel_grain(shape), [&](int64_t begin, int64_t end) {
    static thread_local Scratch memory;
    auto* const numbers = memory.get<uint8_t>(shape.padded_k());
    for (int64_t output = begin * kQuantizedPanel; output < end * kQuantizedPanel; ++output) {
      const int64_t count = output < shape.n ? shape.k : 0;
      std::copy_n(q + std::min(output, shape.n) * shape.k, count, numbers);
      std::fill(numbers + count, numbers + shape.padded_k(), uint8_t{0});
      place_row(shape, output % kQuantizedPanel, numbers, packed + output / kQuantizedPanel * shape.panel_bytes());
    }
  });
}

void unpack_quantized(const QuantizedShape& shape, const uint8_t* packed, uint8_t* q) {
  parallel_for(0, shape.panels(), panel_grain(shape), [&](int64_t begin, int64_t end) {
    for (int64_t output = begin * kQuantizedPanel; output < std::min(shape.n, end * kQuantizedPanel); ++output) {
      const uint8_t* const panel = packed + output / kQuantizedPanel * shape.panel_bytes();
      for (int64_t i = 0; i < shape.k; ++i) {
        const Place place = place_of(shape, output % kQuantizedPanel, i);
        const uint8_t byte = panel[place.byte];
        q[output * shape.k + i] = shape.bits == 8 ? byte : place.upper ? byte >> 4 : byte & 15;
      }
    }
  });
}

void dequantize_weight(const QuantizedWeight& weight, Element element, void* to) {
  const QuantizedShape& shape = weight.shape;
  parallel_for(0, shape.panels(), panel_grain(shape), [&](int64_t begin, int64_t end) {
    static thread_local Scratch memory;
    auto* const floats = memory.get<float>(shape.k + 1);
    for (int64_t output = begin * kQuantizedPanel; output < std::min(shape.n, end * kQuantizedPanel); ++output) {
      const uint8_t* const panel = weight.packed + output / kQuantizedPanel * shape.panel_bytes();
      for (int64_t i = 0; i < shape.k; ++i) {
        const Place place = place_of(shape, output % kQuantizedPanel, i);
        const uint8_t byte = panel[place.byte];
        const int number = shape.bits == 8 ? byte : place.upper ? byte >> 4 : byte & 15;
        const int64_t index = shape.scale_index(output, i / shape.group_size());
        float scale;
        widen(weight.scale_element, element_at(weight.scales, index, weight.scale_element), 1, &scale);
        const int zero = weight.zeros == nullptr ? shape.middle() : weight.zeros[index];
        floats[i] = scale * static_cast<float>(number - zero);
      }
      narrow(element, floats, shape.k, static_cast<std::byte*>(to) + output * shape.k * element_bytes(element));
    }
  });
}

}  // namespace hetero::backend
