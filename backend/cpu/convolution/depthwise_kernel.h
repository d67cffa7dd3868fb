// The kernels of depthwise.h and pixel_gradients.h, templates over a vector of floats and loaders
// of elements (vector/).
//
// Each of depthwise.cpp, depthwise_avx2.cpp and depthwise_avx512.cpp includes it, compiled for
// other instructions. Everything is in an unnamed namespace, so that the linker does not take one
// file's functions for another's.

#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "backend/cpu/vector/instruction_set.h"
#include "backend/cpu/vector/limits.h"
#include "backend/cpu/vector/times.h"

namespace hetero::backend {

inline constexpr int kDepthwiseBlock = 6;

// Neighbouring outputs of a row, of all channels. Distances count elements.
struct DepthwiseBlock {
  const void* input;  // that the first tap meets, of the first output
  int64_t input_row;  // from what a tap meets to what the one below it meets
  int64_t input_tap;  // and the one beside it
  int64_t step;       // and the same tap of the next output
  const float* taps;  // the first one that meets the image
  int64_t taps_row;
  int64_t taps_step;  // from a tap to the one beside it
  int rows, columns;  // of taps that meet the image
  const void* bias;   // or null
  void* output;
  int64_t output_step;  // from output to output
  int64_t channels;
  const Limits* limits;  // of the outputs, or null
};

// Neighbouring outputs of a row, by kernels of few columns that are not dilated: each pixel is
// loaded once for all outputs that it meets, and pixels beside the image are left out.
inline constexpr int kDepthwiseRow = 8;
struct DepthwiseRow {
  const void* input;  // the image's first pixel of the row that the first tap meets
  int64_t input_row;  // from a row to the one below it, in elements
  int64_t width;      // of the image
  int64_t left;       // the column that the first tap of the first output meets
  const float* taps;  // the first row of them that meets the image
  int rows;           // of taps that meet the image
  const void* bias;   // or null
  void* output;
  int64_t channels;      // a whole vector of them at least
  const Limits* limits;  // of the outputs, or null
};

// What taps of one row of the kernel have met at outputs that are neighbours in a row, times these
// outputs' gradients: sums[tap][channel] are added to.
struct DepthwiseSums {
  const float* gradients;  // of the first output; others follow
  const float* input;      // that the first tap meets there
  int64_t input_tap;       // from what a tap meets to what the one beside it meets
  int64_t step;            // and the same tap of the next output
  int64_t outputs;
  int taps;
  int64_t channels;
  float* sums;
};

struct DepthwiseKernels {
  // By the element, and the number of outputs, less one.
  std::array<std::array<void (*)(const DepthwiseBlock&), kDepthwiseBlock>, 3> block;
  // By the element, the stride, the number of columns of the kernel (3, 5 or 7), and that of
  // outputs, less one; null where there are none. There are none for 3 columns and a stride of 2,
  // where each pixel meets few outputs.
  using Rows = std::array<void (*)(const DepthwiseRow&), kDepthwiseRow>;
  std::array<std::array<std::array<Rows, 3>, 2>, 3> row;
  int64_t row_channels;  // as many at least
  void (*sums)(const DepthwiseSums&);
};
const DepthwiseKernels& depthwise_kernels(InstructionSet set);
const DepthwiseKernels& depthwise_avx2();
const DepthwiseKernels& depthwise_avx512();

namespace {

// kPairs pairs of vectors of channels, or the first `channels` of one pair. E loads elements in
// their order, and Floats those of the taps.
template <typename Vector, typename Floats, typename E, int kOutputs, int kPairs, bool whole>
inline __attribute__((always_inline)) void depthwise_vectors(const DepthwiseBlock& block, int64_t channel,
                                                             int channels) {
  using Stored = typename E::Stored;
  constexpr int kPair = 2 * Vector::kWidth;
  const auto load = [&]<typename Loader>(Loader, const auto* p, Vector& low, Vector& high) {
    if constexpr (whole) {
      Loader::load(p, low, high);
    } else {
      Loader::load_part(p, channels, low, high);
    }
  };
  Vector sums[kOutputs][2 * kPairs];
#pragma GCC unroll 2
  for (int v = 0; v < kPairs; ++v) {
    Vector low = Vector::zero(), high = Vector::zero();
    if (block.bias != nullptr) load(E(), static_cast<const Stored*>(block.bias) + channel + v * kPair, low, high);
#pragma GCC unroll 8
    for (int i = 0; i < kOutputs; ++i) {
      sums[i][2 * v] = low;
      sums[i][2 * v + 1] = high;
    }
  }
  const int64_t step = block.step, input_tap = block.input_tap, taps_step = block.taps_step;
  const int columns = block.columns;
  const float* taps = block.taps + channel;
  const Stored* input = static_cast<const Stored*>(block.input) + channel;
  for (int y = block.rows; y > 0; --y, taps += block.taps_row, input += block.input_row) {
    const float* tap = taps;
    const Stored* met[kOutputs];
#pragma GCC unroll 8
    for (int i = 0; i < kOutputs; ++i) met[i] = input + i * step;
    int64_t at = 0;
    for (int x = columns; x > 0; --x, tap += taps_step, at += input_tap) {
#pragma GCC unroll 2
      for (int v = 0; v < kPairs; ++v) {
        Vector weights[2];
        load(Floats(), tap + v * kPair, weights[0], weights[1]);
#pragma GCC unroll 8
        for (int i = 0; i < kOutputs; ++i) {
          Vector values[2];
          load(E(), met[i] + at + v * kPair, values[0], values[1]);
          sums[i][2 * v] = Vector::fma(values[0], weights[0], sums[i][2 * v]);
          sums[i][2 * v + 1] = Vector::fma(values[1], weights[1], sums[i][2 * v + 1]);
        }
      }
    }
  }
  if (block.limits != nullptr) {
    const Limits limits = *block.limits;
#pragma GCC unroll 8
    for (int i = 0; i < kOutputs; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < 2 * kPairs; ++v) sums[i][v] = limits(sums[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kOutputs; ++i) {
    Stored* const to = static_cast<Stored*>(block.output) + i * block.output_step + channel;
#pragma GCC unroll 2
    for (int v = 0; v < kPairs; ++v) {
      if constexpr (whole) {
        E::narrow(sums[i][2 * v], sums[i][2 * v + 1], to + v * kPair);
      } else {
        Stored made[kPair];
        E::narrow(sums[i][0], sums[i][1], made);
        std::memcpy(to, made, static_cast<size_t>(channels) * sizeof(Stored));
      }
    }
  }
}

template <typename Vector, typename Floats, typename E, int kOutputs>
void depthwise_block(const DepthwiseBlock& block) {
  constexpr int kPairs = Vector::kRegisters >= 32 ? 2 : 1;
  constexpr int64_t kPair = 2 * Vector::kWidth;
  int64_t channel = 0;
  for (; channel + kPairs * kPair <= block.channels; channel += kPairs * kPair) {
    depthwise_vectors<Vector, Floats, E, kOutputs, kPairs, true>(block, channel, 0);
  }
  if (kPairs > 1 && channel + kPair <= block.channels) {
    depthwise_vectors<Vector, Floats, E, kOutputs, 1, true>(block, channel, 0);
    channel += kPair;
  }
  if (channel == block.channels) return;
  if (block.channels >= kPair) {  // some once more
    depthwise_vectors<Vector, Floats, E, kOutputs, 1, true>(block, block.channels - kPair, 0);
  } else {
    depthwise_vectors<Vector, Floats, E, kOutputs, 1, false>(block, 0, static_cast<int>(block.channels));
  }
}

// A vector of channels. Taps beside the image add nothing, so each sum has the order of
// depthwise_vectors.
template <typename Vector, typename E, int kColumns, int kStride, int kOutputs, bool whole>
inline __attribute__((always_inline)) void depthwise_row_vector(const DepthwiseRow& call, int64_t channel) {
  using Stored = typename E::Stored;
  const int64_t channels = call.channels;
  Vector sums[kOutputs];
  const Vector bias =
      call.bias == nullptr ? Vector::zero() : E::load_one(static_cast<const Stored*>(call.bias) + channel);
  times<kOutputs>([&](auto i) __attribute__((always_inline)) { sums[i] = bias; });
  const float* taps = call.taps + channel;
  const Stored* input = static_cast<const Stored*>(call.input) + channel;
  const int64_t left = call.left * channels;
  for (int y = call.rows; y > 0; --y, taps += kColumns * channels, input += call.input_row) {
    Vector weights[kColumns];
    times<kColumns>([&](auto x) __attribute__((always_inline)) { weights[x] = Vector::load(taps + x * channels); });
    int64_t at = left;
    times<(kOutputs - 1) * kStride + kColumns>([&](auto p) __attribute__((always_inline)) {
      if (whole || static_cast<uint64_t>(call.left + p) < static_cast<uint64_t>(call.width)) {
        const Vector met = E::load_one(input + at);
        times<kOutputs>([&](auto i) __attribute__((always_inline)) {
          constexpr int x = p - i * kStride;
          if constexpr (x >= 0 && x < kColumns) sums[i] = Vector::fma(met, weights[x], sums[i]);
        });
      }
      at += channels;
      asm("" : "+r"(at));  // otherwise all of them are computed ahead, and spilled
    });
  }
  if (call.limits != nullptr) {
    const Limits limits = *call.limits;
    times<kOutputs>([&](auto i) __attribute__((always_inline)) { sums[i] = limits(sums[i]); });
  }
  Stored* const output = static_cast<Stored*>(call.output) + channel;
  times<kOutputs>([&](auto i) __attribute__((always_inline)) { E::narrow_one(sums[i], output + i * channels); });
}

template <typename Vector, typename E, int kColumns, int kStride, int kOutputs>
void depthwise_row(const DepthwiseRow& call) {
  const auto all = [&](auto whole) __attribute__((always_inline)) {
    int64_t channel = 0;
    for (; channel + Vector::kWidth <= call.channels; channel += Vector::kWidth) {
      depthwise_row_vector<Vector, E, kColumns, kStride, kOutputs, whole>(call, channel);
    }
    if (channel == call.channels) return;
    // Some of them once more.
    depthwise_row_vector<Vector, E, kColumns, kStride, kOutputs, whole>(call, call.channels - Vector::kWidth);
  };
  // Of few outputs there are few calls.
  if constexpr (kOutputs > kDepthwiseRow / 2) {
    if (call.left >= 0 && call.left + (kOutputs - 1) * kStride + kColumns <= call.width) return all(std::true_type());
  }
  all(std::false_type());
}

// kTaps taps, kPairs pairs of vectors of channels, or the first `channels` of one pair.
template <typename Vector, typename Floats, int kTaps, int kPairs, bool whole>
inline __attribute__((always_inline)) void depthwise_tap_sums(const DepthwiseSums& call, int64_t channel,
                                                              int channels) {
  constexpr int kPair = 2 * Vector::kWidth;
  const auto load = [&](const float* p, Vector& low, Vector& high) {
    if constexpr (whole) {
      Floats::load(p, low, high);
    } else {
      Floats::load_part(p, channels, low, high);
    }
  };
  Vector sums[kTaps][2 * kPairs];
#pragma GCC unroll 8
  for (int t = 0; t < kTaps; ++t) {
#pragma GCC unroll 4
    for (int v = 0; v < 2 * kPairs; ++v) sums[t][v] = Vector::zero();
  }
  const float* gradients = call.gradients + channel;
  const float* input = call.input + channel;
  const int64_t input_tap = call.input_tap;
  for (int64_t i = call.outputs; i > 0; --i, gradients += call.channels, input += call.step) {
#pragma GCC unroll 2
    for (int v = 0; v < kPairs; ++v) {
      Vector gradient[2];
      load(gradients + v * kPair, gradient[0], gradient[1]);
#pragma GCC unroll 8
      for (int t = 0; t < kTaps; ++t) {
        Vector met[2];
        load(input + t * input_tap + v * kPair, met[0], met[1]);
        sums[t][2 * v] = Vector::fma(gradient[0], met[0], sums[t][2 * v]);
        sums[t][2 * v + 1] = Vector::fma(gradient[1], met[1], sums[t][2 * v + 1]);
      }
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < kTaps; ++t) {
    float* const to = call.sums + t * call.channels + channel;
#pragma GCC unroll 2
    for (int v = 0; v < kPairs; ++v) {
      Vector low, high;
      load(to + v * kPair, low, high);
      low = Vector::add(low, sums[t][2 * v]);
      high = Vector::add(high, sums[t][2 * v + 1]);
      if constexpr (whole) {
        low.store(to + v * kPair);
        high.store(to + v * kPair + Vector::kWidth);
      } else {
        float made[kPair];
        low.store(made);
        high.store(made + Vector::kWidth);
        std::memcpy(to, made, static_cast<size_t>(channels) * sizeof(float));
      }
    }
  }
}

template <typename Vector, typename Floats, int kTaps>
void depthwise_some_taps(const DepthwiseSums& call) {
  // As many sums as there are registers for.
  constexpr int kPairs = Vector::kRegisters >= 32 ? 2 : 1;
  constexpr int64_t kPair = 2 * Vector::kWidth;
  int64_t channel = 0;
  for (; channel + kPairs * kPair <= call.channels; channel += kPairs * kPair) {
    depthwise_tap_sums<Vector, Floats, kTaps, kPairs, true>(call, channel, 0);
  }
  if (kPairs > 1 && channel + kPair <= call.channels) {
    depthwise_tap_sums<Vector, Floats, kTaps, 1, true>(call, channel, 0);
    channel += kPair;
  }
  if (channel < call.channels) {
    depthwise_tap_sums<Vector, Floats, kTaps, 1, false>(call, channel, static_cast<int>(call.channels - channel));
  }
}

// Any number of taps, up to five at a time.
template <typename Vector, typename Floats>
void depthwise_sums(const DepthwiseSums& call) {
  DepthwiseSums some = call;
  for (int left = call.taps; left > 0; left -= some.taps) {
    some.taps = left < 5 ? left : 5;
    switch (some.taps) {
      case 1:
        depthwise_some_taps<Vector, Floats, 1>(some);
        break;
      case 2:
        depthwise_some_taps<Vector, Floats, 2>(some);
        break;
      case 3:
        depthwise_some_taps<Vector, Floats, 3>(some);
        break;
      case 4:
        depthwise_some_taps<Vector, Floats, 4>(some);
        break;
      default:
        depthwise_some_taps<Vector, Floats, 5>(some);
        break;
    }
    some.input += some.taps * some.input_tap;
    some.sums += some.taps * some.channels;
  }
}

// Of loaders for float32, bfloat16 and float16; without rows.
template <typename Vector, typename Floats, typename... E>
constexpr DepthwiseKernels make_depthwise_kernels() {
  const auto of = []<typename One, int... i>(One, std::integer_sequence<int, i...>) {
    using Blocks = decltype(DepthwiseKernels::block)::value_type;
    return Blocks{&depthwise_block<Vector, Floats, One, i + 1>...};
  };
  return {.block = {of(Floats(), std::make_integer_sequence<int, kDepthwiseBlock>()),
                    of(E(), std::make_integer_sequence<int, kDepthwiseBlock>())...},
          .row = {},
          .row_channels = Vector::kWidth,
          .sums = &depthwise_sums<Vector, Floats>};
}

// Adds rows of the first elements, as many as there are loaders. Those of one take a quarter of a
// minute to compile, and a whole one under AddressSanitizer.
template <typename Vector, typename... E>
constexpr DepthwiseKernels with_rows(DepthwiseKernels kernels) {
  const auto rows = []<typename One>(One) {
    const auto some =
        []<int columns, int stride, int... i>(Index<columns>, Index<stride>, std::integer_sequence<int, i...>) {
      return DepthwiseKernels::Rows{&depthwise_row<Vector, One, columns, stride, i + 1>...};
    };
    constexpr auto kRows = std::make_integer_sequence<int, kDepthwiseRow>();
    using Strides = decltype(DepthwiseKernels::row)::value_type;
    return Strides{
        {{some(Index<3>(), Index<1>(), kRows), some(Index<5>(), Index<1>(), kRows),
          some(Index<7>(), Index<1>(), kRows)},
         {DepthwiseKernels::Rows{}, some(Index<5>(), Index<2>(), kRows), some(Index<7>(), Index<2>(), kRows)}}};
  };
  kernels.row = {rows(E())...};
  return kernels;
}

}  // namespace
}  // namespace hetero::backend
