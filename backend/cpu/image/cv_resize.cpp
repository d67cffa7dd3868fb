// 1. Find the method: kLinear by exactly 1/2 is an average of four; kArea that enlarges is bilinear
//    with other weights.
// 2. Rows of results are divided in bands. A band computes its rows one after the other.
// 3. Methods with weights make each row of the source narrower or wider once, keep the last few,
//    and add those by weights.
//
// The order of operations on floats is OpenCV's, and nothing is contracted (backend/CMakeLists.txt
// sets the flags).

#include "backend/cpu/image/cv_resize.h"

#include <array>
#include <cassert>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "backend/base/rounding.h"
#include "backend/cpu/image/row_kernels.h"
#include "backend/cpu/vector/scratch.h"

namespace hetero::backend {
namespace {

constexpr int kWeightBits = 11;
constexpr float kWeightScale = 1 << kWeightBits;
constexpr int64_t kMostTaps = 8;

int32_t round_even(float value) { return static_cast<int32_t>(std::lrintf(value)); }

// ---- where results come from

struct Axis {
  int64_t source = 0;
  int64_t target = 0;
  double inverse = 0;
  double scale = 0;

  Axis() = default;
  Axis(int64_t from, int64_t to)
      : source(from), target(to), inverse(static_cast<double>(to) / static_cast<double>(from)), scale(1 / inverse) {}
  bool operator==(const Axis& other) const { return source == other.source && target == other.target; }
  int64_t whole_scale() const { return std::lrint(scale); }
  bool is_whole() const { return std::fabs(scale - static_cast<double>(whole_scale())) < DBL_EPSILON; }
  int64_t clip(int64_t i) const { return std::clamp<int64_t>(i, 0, source - 1); }

  int64_t nearest(int64_t i) const {
    return std::min(static_cast<int64_t>(std::floor(static_cast<double>(i) * scale)), source - 1);
  }
  int64_t nearest_exact(int64_t i) const {
    const int64_t step = ((source << 16) + target / 2) / target;
    return std::min((step * i + step / 2 - source % 2) >> 16, source - 1);
  }
};

enum class Method : uint8_t {
  kNearest,
  kNearestExact,
  kLinear,
  kEnlargedArea,
  kCubic,
  kLanczos4,
  kLinearExact,
  kBlocks,
  kArea,
};

Method method_of(CvInterpolation interpolation, const Axis& x, const Axis& y, int64_t channels) {
  const bool blocks = x.is_whole() && y.is_whole();
  const bool halves = blocks && x.whole_scale() == 2 && y.whole_scale() == 2;
  switch (interpolation) {
    case CvInterpolation::kNearest:
      return Method::kNearest;
    case CvInterpolation::kNearestExact:
      return Method::kNearestExact;
    case CvInterpolation::kLinearExact:
      return halves && channels > 4 ? Method::kBlocks : Method::kLinearExact;
    case CvInterpolation::kCubic:
      return Method::kCubic;
    case CvInterpolation::kLanczos4:
      return Method::kLanczos4;
    case CvInterpolation::kLinear:
      return halves ? Method::kBlocks : Method::kLinear;
    case CvInterpolation::kArea:
      break;
  }
  if (x.scale < 1 || y.scale < 1) return Method::kEnlargedArea;
  return blocks ? Method::kBlocks : Method::kArea;
}

int64_t taps_of(Method method) { return method == Method::kCubic ? 4 : method == Method::kLanczos4 ? 8 : 2; }

struct Tap {
  int64_t index;  // of the pixel at or before the place
  float fraction;
};

Tap tap_of(Method method, const Axis& axis, int64_t i) {
  if (method == Method::kEnlargedArea) {
    const auto index = static_cast<int64_t>(std::floor(static_cast<double>(i) * axis.scale));
    const auto fraction =
        static_cast<float>(static_cast<double>(i + 1) - static_cast<double>(index + 1) * axis.inverse);
    return {index, fraction <= 0 ? 0.0f : fraction - std::floor(fraction)};
  }
  const auto place = static_cast<float>((static_cast<double>(i) + 0.5) * axis.scale - 0.5);
  const auto index = static_cast<int64_t>(std::floor(place));
  return {index, place - static_cast<float>(index)};
}

// Beyond the first and the last column there is no second pixel; rows keep their weights.
Tap column_tap(Method method, const Axis& axis, int64_t i) {
  const Tap tap = tap_of(method, axis, i);
  if (taps_of(method) > 2) return tap;
  if (tap.index < 0) return {0, 0.0f};
  if (tap.index >= axis.source - 1) return {axis.source - 1, 0.0f};
  return tap;
}

void cubic_weights(float x, float* weights) {
  constexpr float kA = -0.75f;
  weights[0] = ((kA * (x + 1) - 5 * kA) * (x + 1) + 8 * kA) * (x + 1) - 4 * kA;
  weights[1] = ((kA + 2) * x - (kA + 3)) * x * x + 1;
  weights[2] = ((kA + 2) * (1 - x) - (kA + 3)) * (1 - x) * (1 - x) + 1;
  weights[3] = 1.0f - weights[0] - weights[1] - weights[2];
}

void lanczos4_weights(float x, float* weights) {
  constexpr double kHalfRoot = 0.70710678118654752440084436210485;
  constexpr double kTurns[8][2] = {{1, 0},  {-kHalfRoot, -kHalfRoot}, {0, 1},  {kHalfRoot, -kHalfRoot},
                                   {-1, 0}, {kHalfRoot, kHalfRoot},   {0, -1}, {-kHalfRoot, kHalfRoot}};
  constexpr double kQuarter = M_PI * 0.25;
  const double start = static_cast<double>(-(x + 3)) * M_PI * 0.25;
  const double sine = std::sin(start), cosine = std::cos(start);
  float sum = 0;
  for (int i = 0; i < 8; ++i) {
    const float distance = x + 3 - static_cast<float>(i);
    if (std::fabs(distance) >= 1e-6f) {
      const double angle = -static_cast<double>(distance) * kQuarter;
      weights[i] = static_cast<float>((kTurns[i][0] * sine + kTurns[i][1] * cosine) / (angle * angle));
    } else {
      weights[i] = 1e30f;
    }
    sum += weights[i];
  }
  const float inverse = 1.0f / sum;
  for (int i = 0; i < 8; ++i) weights[i] *= inverse;
}

void weights_of(Method method, float fraction, float* weights) {
  if (method == Method::kCubic) return cubic_weights(fraction, weights);
  if (method == Method::kLanczos4) return lanczos4_weights(fraction, weights);
  weights[0] = 1.0f - fraction;
  weights[1] = fraction;
}

// Bytes have whole weights.
void weights_of(Method method, float fraction, int32_t* weights) {
  float floats[kMostTaps];
  weights_of(method, fraction, floats);
  for (int64_t k = 0; k < taps_of(method); ++k) {
    weights[k] = std::clamp(round_even(floats[k] * kWeightScale), -32768, 32767);
  }
}

// What a thread computed for the columns of the last image: the next is often of the same size.
struct ColumnKey {
  Axis axis;
  int64_t channels = 0;
  Method method = Method::kNearest;
  bool operator==(const ColumnKey&) const = default;
};

template <typename Columns, typename Make>
const Columns& cached_columns(ColumnKey key, Make make) {
  static thread_local Columns columns;
  static thread_local ColumnKey last;
  if (!(last == key)) {
    last = {};
    make(columns);
    last = key;
  }
  return columns;
}

template <typename T>
struct Band {
  Image<const T> from;
  Image<T> to;
  Axis x, y;
  Method method;
  int64_t begin, end;  // rows of `to`

  int64_t row_elements() const { return to.row_elements(); }
};

// ---- nearest

template <typename Pixel>
void pick_pixels(const std::byte* row, const int32_t* offsets, int64_t count, std::byte* out) {
  for (int64_t x = 0; x < count; ++x) {
    Pixel pixel;
    std::memcpy(&pixel, row + offsets[x], sizeof(pixel));
    std::memcpy(out + x * static_cast<int64_t>(sizeof(pixel)), &pixel, sizeof(pixel));
  }
}

void pick_any_pixels(const std::byte* row, const int32_t* offsets, int64_t count, int64_t bytes, std::byte* out) {
  using Three = std::array<std::byte, 3>;
  using Twelve = std::array<std::byte, 12>;
  using Sixteen = std::array<std::byte, 16>;
  switch (bytes) {
    case 1:
      return pick_pixels<uint8_t>(row, offsets, count, out);
    case 2:
      return pick_pixels<uint16_t>(row, offsets, count, out);
    case 3:
      return pick_pixels<Three>(row, offsets, count, out);
    case 4:
      return pick_pixels<uint32_t>(row, offsets, count, out);
    case 12:
      return pick_pixels<Twelve>(row, offsets, count, out);
    case 16:
      return pick_pixels<Sixteen>(row, offsets, count, out);
    default:
      for (int64_t x = 0; x < count; ++x) {
        std::memcpy(out + x * bytes, row + offsets[x], static_cast<size_t>(bytes));
      }
  }
}

template <typename T>
void resize_nearest(const Band<T>& band) {
  const bool exact = band.method == Method::kNearestExact;
  const int64_t bytes = band.from.channels * static_cast<int64_t>(sizeof(T));
  const auto& offsets =
      cached_columns<std::vector<int32_t>>({band.x, bytes, band.method}, [&](std::vector<int32_t>& columns) {
        columns.resize(static_cast<size_t>(band.x.target));
        for (int64_t i = 0; i < band.x.target; ++i) {
          columns[i] = static_cast<int32_t>((exact ? band.x.nearest_exact(i) : band.x.nearest(i)) * bytes);
        }
      });
  for (int64_t y = band.begin; y < band.end; ++y) {
    const int64_t source = exact ? band.y.nearest_exact(y) : band.y.nearest(y);
    pick_any_pixels(reinterpret_cast<const std::byte*>(band.from.row(source)), offsets.data(), band.x.target, bytes,
                    reinterpret_cast<std::byte*>(band.to.row(y)));
  }
}

// ---- rows that were made the result's width, of which the last few are kept

template <typename T>
class KeptRows {
 public:
  // REQUIRES: `rows` consecutive source rows are wanted at a time.
  KeptRows(int64_t rows, int64_t elements) : rows_(rows), elements_(round_up(elements + 8, 16)) {
    static thread_local Scratch scratch;
    memory_ = scratch.get<T>(rows_ * elements_);
    held_.fill(-1);
  }
  template <typename Make>
  const T* get(int64_t source, const Make& make) {
    const int64_t slot = source % rows_;
    T* const row = memory_ + slot * elements_;
    if (held_[slot] != source) {
      held_[slot] = source;
      make(row);
    }
    return row;
  }

 private:
  const int64_t rows_, elements_;
  T* memory_;
  std::array<int64_t, kMostTaps> held_;
};

// ---- bilinear, 8 bits

struct LinearTables {
  std::vector<int32_t> first;
  std::vector<int16_t> weights, repeated;

  LinearColumns columns(int64_t channels, const Axis& x) const {
    return {.count = x.target,
            .channels = channels,
            .second = x.source > 1 ? channels : 0,
            .first = first.data(),
            .weights = weights.data(),
            .repeated = repeated.data()};
  }
  void make(Method method, const Axis& x, int64_t channels) {
    first.resize(static_cast<size_t>(x.target));
    weights.resize(static_cast<size_t>(2 * x.target));
    repeated.assign(static_cast<size_t>(8 * round_up(x.target, 4)), 0);
    for (int64_t i = 0; i < x.target; ++i) {
      const Tap tap = column_tap(method, x, i);
      int32_t pair[2];
      weights_of(method, tap.fraction, pair);
      // The last pixel becomes the second of a pair.
      const bool is_last = x.source > 1 && tap.index == x.source - 1;
      if (is_last) std::swap(pair[0], pair[1]);
      first[i] = static_cast<int32_t>((tap.index - (is_last ? 1 : 0)) * channels);
      constexpr int64_t kPlaces[4] = {0, 2, 1, 3};
      int16_t* const eight = &repeated[static_cast<size_t>(8 * (i / 4 * 4 + kPlaces[i % 4]))];
      for (int64_t k = 0; k < 2; ++k) {
        weights[2 * i + k] = static_cast<int16_t>(pair[k]);
        for (int64_t c = 0; c < 4; ++c) eight[2 * c + k] = static_cast<int16_t>(pair[k]);
      }
    }
  }
};

void linear_row(const uint8_t* row, int64_t readable, const LinearColumns& columns, int16_t* out) {
  auto* const kernel = row_kernels().linear_columns;
  for (int64_t x = kernel == nullptr ? 0 : kernel(row, readable, columns, out); x < columns.count; ++x) {
    const uint8_t* const pixel = row + columns.first[x];
    for (int64_t c = 0; c < columns.channels; ++c) {
      const int32_t sum = pixel[c] * columns.weights[2 * x] + pixel[columns.second + c] * columns.weights[2 * x + 1];
      out[x * columns.channels + c] = static_cast<int16_t>(sum >> 4);
    }
  }
}

void add_linear_rows(const int16_t* upper, const int16_t* lower, const int32_t* weights, int64_t count, uint8_t* out) {
  auto* const kernel = row_kernels().linear_rows;
  int64_t i = kernel == nullptr ? 0 : kernel(upper, lower, weights[0], weights[1], count, out);
  for (; i < count; ++i) {
    const int32_t sum = ((upper[i] * weights[0]) >> 16) + ((lower[i] * weights[1]) >> 16);
    out[i] = static_cast<uint8_t>((sum + 2) >> 2);
  }
}

void resize_linear_bytes(const Band<uint8_t>& band) {
  const int64_t channels = band.from.channels;
  const LinearColumns columns =
      cached_columns<LinearTables>({band.x, channels, band.method}, [&](LinearTables& tables) {
        tables.make(band.method, band.x, channels);
      }).columns(channels, band.x);
  KeptRows<int16_t> kept(2, band.row_elements());
  const auto row_of = [&](int64_t source) {
    return kept.get(source, [&](int16_t* out) {
      const uint8_t* const row = band.from.row(source);
      linear_row(row, band.from.end() - row, columns, out);
    });
  };
  for (int64_t y = band.begin; y < band.end; ++y) {
    const Tap tap = tap_of(band.method, band.y, y);
    int32_t weights[2];
    weights_of(band.method, tap.fraction, weights);
    const int16_t* const upper = row_of(band.y.clip(tap.index));
    const int16_t* const lower = row_of(band.y.clip(tap.index + 1));
    add_linear_rows(upper, lower, weights, band.row_elements(), band.to.row(y));
  }
}

// ---- weights along both dimensions, in general

template <typename Sum>
struct TapTables {
  std::vector<int32_t> elements;  // [target][taps]: where each tap's pixel begins
  std::vector<Sum> weights;       // [target][taps]
};

// The sums of cubic rows are floats where OpenCV has vectors of eight.
void add_rows(const int32_t* const* rows, const int32_t* weights, int64_t taps, int64_t count, uint8_t* out) {
  constexpr int kBits = 2 * kWeightBits;
  int64_t i = 0;
  if (taps == 4) {
    constexpr float kScale = 1.0f / (kWeightScale * kWeightScale);
    float w[4];
    for (int k = 0; k < 4; ++k) w[k] = static_cast<float>(weights[k]) * kScale;
    for (; i < count / 8 * 8; ++i) {
      const float low = static_cast<float>(rows[2][i]) * w[2] + static_cast<float>(rows[3][i]) * w[3];
      const float sum = static_cast<float>(rows[0][i]) * w[0] + (static_cast<float>(rows[1][i]) * w[1] + low);
      out[i] = saturate_to_byte(round_even(sum));
    }
  }
  for (; i < count; ++i) {
    int32_t sum = 1 << (kBits - 1);
    for (int64_t k = 0; k < taps; ++k) sum += weights[k] * rows[k][i];
    out[i] = saturate_to_byte(sum >> kBits);
  }
}

void add_rows(const float* const* rows, const float* weights, int64_t taps, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    float sum = rows[0][i] * weights[0];
    for (int64_t k = 1; k < taps; ++k) sum += rows[k][i] * weights[k];
    out[i] = sum;
  }
}

template <typename T, typename Sum>
void weighted_row(const T* row, const TapTables<Sum>& tables, int64_t taps, int64_t count, int64_t channels, Sum* out) {
  for (int64_t x = 0; x < count; ++x) {
    const int32_t* const elements = &tables.elements[static_cast<size_t>(x * taps)];
    const Sum* const weights = &tables.weights[static_cast<size_t>(x * taps)];
    for (int64_t c = 0; c < channels; ++c) {
      Sum sum = static_cast<Sum>(row[elements[0] + c]) * weights[0];
      for (int64_t k = 1; k < taps; ++k) sum += static_cast<Sum>(row[elements[k] + c]) * weights[k];
      out[x * channels + c] = sum;
    }
  }
}

template <typename T>
void resize_weighted(const Band<T>& band) {
  using Sum = std::conditional_t<std::is_same_v<T, float>, float, int32_t>;
  const int64_t taps = taps_of(band.method), before = taps / 2 - 1, channels = band.from.channels;
  const auto& tables = cached_columns<TapTables<Sum>>({band.x, channels, band.method}, [&](TapTables<Sum>& columns) {
    columns.elements.resize(static_cast<size_t>(band.x.target * taps));
    columns.weights.resize(static_cast<size_t>(band.x.target * taps));
    for (int64_t i = 0; i < band.x.target; ++i) {
      const Tap tap = column_tap(band.method, band.x, i);
      weights_of(band.method, tap.fraction, &columns.weights[static_cast<size_t>(i * taps)]);
      for (int64_t k = 0; k < taps; ++k) {
        columns.elements[i * taps + k] = static_cast<int32_t>(band.x.clip(tap.index - before + k) * channels);
      }
    }
  });
  KeptRows<Sum> kept(taps, band.row_elements());
  for (int64_t y = band.begin; y < band.end; ++y) {
    const Tap tap = tap_of(band.method, band.y, y);
    Sum weights[kMostTaps];
    weights_of(band.method, tap.fraction, weights);
    const Sum* rows[kMostTaps];
    for (int64_t k = 0; k < taps; ++k) {
      const int64_t source = band.y.clip(tap.index - before + k);
      rows[k] = kept.get(
          source, [&](Sum* out) { weighted_row(band.from.row(source), tables, taps, band.x.target, channels, out); });
    }
    add_rows(rows, weights, taps, band.row_elements(), band.to.row(y));
  }
}

// ---- kLinearExact: weights of 8 bits; beyond the border a single pixel counts

constexpr int kExactBits = 8;

struct ExactTap {
  int64_t index;
  uint32_t weight;  // of the next pixel
};

ExactTap exact_tap(const Axis& axis, int64_t i) {
  const double place = axis.scale * (static_cast<double>(i) + 0.5) - 0.5;
  const auto index = static_cast<int64_t>(std::floor(place));
  if (index < 0) return {0, 0};
  if (index >= axis.source - 1) return {axis.source - 1, 0};
  return {index, static_cast<uint32_t>(std::lrint((place - static_cast<double>(index)) * (1 << kExactBits)))};
}

void resize_linear_exact(const Band<uint8_t>& band) {
  const int64_t channels = band.from.channels, count = band.row_elements();
  const auto& taps =
      cached_columns<std::vector<ExactTap>>({band.x, channels, band.method}, [&](std::vector<ExactTap>& columns) {
        columns.resize(static_cast<size_t>(band.x.target));
        for (int64_t i = 0; i < band.x.target; ++i) columns[i] = exact_tap(band.x, i);
      });
  KeptRows<uint16_t> kept(2, count);
  const auto row_of = [&](int64_t source) {
    return kept.get(source, [&](uint16_t* out) {
      const uint8_t* const row = band.from.row(source);
      for (int64_t x = 0; x < band.x.target; ++x) {
        const ExactTap tap = taps[x];
        const uint8_t* const pixel = row + tap.index * channels;
        const int64_t next = tap.weight == 0 ? 0 : channels;
        for (int64_t c = 0; c < channels; ++c) {
          const uint32_t sum = ((1u << kExactBits) - tap.weight) * pixel[c] + tap.weight * pixel[next + c];
          out[x * channels + c] = static_cast<uint16_t>(sum);
        }
      }
    });
  };
  for (int64_t y = band.begin; y < band.end; ++y) {
    const ExactTap tap = exact_tap(band.y, y);
    const uint16_t* const upper = row_of(tap.index);
    const uint16_t* const lower = tap.weight == 0 ? upper : row_of(tap.index + 1);
    uint8_t* const out = band.to.row(y);
    const uint32_t weight = tap.weight, rest = (1u << kExactBits) - weight;
    for (int64_t i = 0; i < count; ++i) {
      out[i] = static_cast<uint8_t>((rest * upper[i] + weight * lower[i] + (1u << (2 * kExactBits - 1))) >>
                                    (2 * kExactBits));
    }
  }
}

// ---- kArea with whole scales: averages of blocks

uint8_t average(uint32_t sum, float scale) { return saturate_to_byte(round_even(static_cast<float>(sum) * scale)); }
float average(float sum, float scale) { return sum * scale; }

template <typename T>
void resize_blocks(const Band<T>& band) {
  using Sum = std::conditional_t<std::is_same_v<T, float>, float, uint32_t>;
  static thread_local Scratch scratch;
  const int64_t wide = band.x.whole_scale(), high = band.y.whole_scale(), channels = band.from.channels;
  const int64_t count = band.from.row_elements();
  const float scale = 1.0f / static_cast<float>(wide * high);
  // OpenCV's vectors for these channels round the average of four up; others round half to even.
  const bool rounds_up = wide == 2 && high == 2 && (channels == 1 || channels == 3 || channels == 4);
  Sum* const sums = scratch.get<Sum>(count);
  for (int64_t y = band.begin; y < band.end; ++y) {
    const T* const first = band.from.row(y * high);
    for (int64_t i = 0; i < count; ++i) sums[i] = static_cast<Sum>(first[i]);
    for (int64_t k = 1; k < high; ++k) {
      const T* const row = band.from.row(y * high + k);
      for (int64_t i = 0; i < count; ++i) sums[i] += static_cast<Sum>(row[i]);
    }
    T* out = band.to.row(y);
    for (int64_t x = 0; x < band.x.target; ++x) {
      const Sum* const block = sums + x * wide * channels;
      for (int64_t c = 0; c < channels; ++c) {
        Sum sum = block[c];
        for (int64_t k = 1; k < wide; ++k) sum += block[k * channels + c];
        if constexpr (std::is_same_v<T, uint8_t>) {
          *out++ = rounds_up ? static_cast<uint8_t>((sum + 2) >> 2) : average(sum, scale);
        } else {
          *out++ = average(sum, scale);
        }
      }
    }
  }
}

// ---- kArea with other scales: pixels weigh what they cover

struct Cover {
  int32_t index;
  float weight;
};

// Calls add(index, weight) for each source pixel that result i covers, in ascending order.
template <typename Add>
void covered_by(const Axis& axis, int64_t i, const Add& add) {
  const double begin = static_cast<double>(i) * axis.scale, end = begin + axis.scale;
  const double width = std::min(axis.scale, static_cast<double>(axis.source) - begin);
  const int64_t last = std::min(static_cast<int64_t>(std::floor(end)), axis.source - 1);
  const int64_t first = std::min(static_cast<int64_t>(std::ceil(begin)), last);
  if (static_cast<double>(first) - begin > 1e-3) {
    add(first - 1, static_cast<float>((static_cast<double>(first) - begin) / width));
  }
  for (int64_t k = first; k < last; ++k) add(k, static_cast<float>(1.0 / width));
  if (end - static_cast<double>(last) > 1e-3) {
    add(last, static_cast<float>(std::min(std::min(end - static_cast<double>(last), 1.0), width) / width));
  }
}

struct CoverTable {
  std::vector<Cover> covers;
  std::vector<int32_t> ends;  // of each result's covers
};

using Four = float __attribute__((vector_size(16)));

Four load_four(const float* p) {
  Four four;
  __builtin_memcpy(&four, p, sizeof(four));
  return four;
}

// `row` and `out` have 4 elements more than they need.
void cover_row(const float* row, const CoverTable& table, int64_t channels, float* out) {
  const Cover* cover = table.covers.data();
  for (const int32_t end : table.ends) {
    const Cover* const last = table.covers.data() + end;
    if (channels == 3 || channels == 4) {
      Four sum{};
      for (; cover != last; ++cover) sum += load_four(row + cover->index) * cover->weight;
      __builtin_memcpy(out, &sum, sizeof(sum));
    } else {
      for (int64_t c = 0; c < channels; ++c) {
        float sum = 0;
        for (const Cover* k = cover; k != last; ++k) sum += row[k->index + c] * k->weight;
        out[c] = sum;
      }
      cover = last;
    }
    out += channels;
  }
}

uint8_t area_value(float sum, uint8_t) { return saturate_to_byte(round_even(sum)); }
float area_value(float sum, float) { return sum; }

template <typename T>
void resize_area(const Band<T>& band) {
  static thread_local Scratch source_memory, sum_memory;
  const int64_t channels = band.from.channels, count = band.row_elements();
  const auto& table = cached_columns<CoverTable>({band.x, channels, band.method}, [&](CoverTable& columns) {
    columns.covers.clear();
    columns.ends.clear();
    for (int64_t i = 0; i < band.x.target; ++i) {
      covered_by(band.x, i, [&](int64_t index, float weight) {
        columns.covers.push_back({static_cast<int32_t>(index * channels), weight});
      });
      columns.ends.push_back(static_cast<int32_t>(columns.covers.size()));
    }
  });
  const int64_t source_count = band.from.row_elements();
  float* const floats = source_memory.get<float>(source_count + 4);
  std::fill(floats + source_count, floats + source_count + 4, 0.0f);
  float* const sums = sum_memory.get<float>(count);
  // Neighbouring results share a row.
  KeptRows<float> kept(1, count);
  for (int64_t y = band.begin; y < band.end; ++y) {
    bool is_first = true;
    covered_by(band.y, y, [&](int64_t source, float weight) {
      const float* const row = kept.get(source, [&](float* out) {
        const T* const pixels = band.from.row(source);
        for (int64_t i = 0; i < source_count; ++i) floats[i] = static_cast<float>(pixels[i]);
        cover_row(floats, table, channels, out);
      });
      if (is_first) {
        for (int64_t i = 0; i < count; ++i) sums[i] = weight * row[i];
      } else {
        for (int64_t i = 0; i < count; ++i) sums[i] += weight * row[i];
      }
      is_first = false;
    });
    T* const out = band.to.row(y);
    for (int64_t i = 0; i < count; ++i) out[i] = area_value(sums[i], T());
  }
}

// ---- all

template <typename T>
void resize_band(const Band<T>& band) {
  switch (band.method) {
    case Method::kNearest:
    case Method::kNearestExact:
      return resize_nearest(band);
    case Method::kBlocks:
      return resize_blocks(band);
    case Method::kArea:
      return resize_area(band);
    case Method::kCubic:
    case Method::kLanczos4:
      return resize_weighted(band);
    case Method::kLinear:
    case Method::kEnlargedArea:
      if constexpr (std::is_same_v<T, uint8_t>) {
        return resize_linear_bytes(band);
      } else {
        return resize_weighted(band);
      }
    case Method::kLinearExact:
      if constexpr (std::is_same_v<T, uint8_t>) return resize_linear_exact(band);
      assert(false);
  }
}

template <typename T>
void resize_all(std::span<const Image<const T>> images, const ImageBatch<T>& results, CvInterpolation interpolation) {
  if (results.height == 0 || results.width == 0) return;
  int64_t work = 0;
  for (const auto& image : images) work = std::max(work, image.height * image.row_elements() / results.height);
  for_row_bands(
      results.count, results.height, work + results.width * results.channels,
      [&](int64_t i, int64_t begin, int64_t end) {
        const Image<const T>& from = images[static_cast<size_t>(i)];
        const Axis x(from.width, results.width), y(from.height, results.height);
        resize_band<T>({from, results.at(i), x, y, method_of(interpolation, x, y, from.channels), begin, end});
      });
}

}  // namespace

void cv_resize(std::span<const Image<const uint8_t>> images, const ImageBatch<uint8_t>& results,
               CvInterpolation interpolation) {
  resize_all(images, results, interpolation);
}

void cv_resize(std::span<const Image<const float>> images, const ImageBatch<float>& results,
               CvInterpolation interpolation) {
  resize_all(images, results, interpolation);
}

}  // namespace hetero::backend
