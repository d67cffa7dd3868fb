// 1. Weights along each dimension, as doubles, then as whole numbers (Resample.c of Pillow).
// 2. For a band of results: filter the columns of the rows that it needs, four rows at a time, to
//    bytes in memory of the thread. Then filter these rows.
// 3. Or the other way round, where Pillow does so (rows_first).
//
// Either pass is left out where it would change nothing.

#include "backend/cpu/image/pil_resize.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "backend/base/rounding.h"
#include "backend/cpu/image/row_kernels.h"
#include "backend/cpu/vector/scratch.h"

namespace hetero::backend {
namespace {

// ---- weights

double sinc(double x) {
  if (x == 0.0) return 1.0;
  x *= M_PI;
  return std::sin(x) / x;
}

double weight_at(PilFilter filter, double x) {
  switch (filter) {
    case PilFilter::kBox:
      return x > -0.5 && x <= 0.5 ? 1.0 : 0.0;
    case PilFilter::kBilinear:
      x = std::fabs(x);
      return x < 1.0 ? 1.0 - x : 0.0;
    case PilFilter::kHamming:
      x = std::fabs(x);
      if (x == 0.0) return 1.0;
      if (x >= 1.0) return 0.0;
      x *= M_PI;
      return std::sin(x) / x * (0.54f + 0.46f * std::cos(x));
    case PilFilter::kBicubic: {
      constexpr double kA = -0.5;
      x = std::fabs(x);
      if (x < 1.0) return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1;
      if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * kA;
      return 0.0;
    }
    case PilFilter::kLanczos:
      return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0;
    case PilFilter::kNearest:
      break;
  }
  return 0.0;
}

double support_of(PilFilter filter) {
  switch (filter) {
    case PilFilter::kBox:
      return 0.5;
    case PilFilter::kBilinear:
    case PilFilter::kHamming:
      return 1.0;
    case PilFilter::kBicubic:
      return 2.0;
    case PilFilter::kLanczos:
      return 3.0;
    case PilFilter::kNearest:
      break;
  }
  return 0.0;
}

// A part of one dimension of an image that becomes `target` pixels.
struct Axis {
  int64_t source = 0;
  int64_t target = 0;
  float begin = 0;
  float end = 0;
  bool operator==(const Axis&) const = default;

  bool is_same() const { return source == target && begin == 0 && end == static_cast<float>(target); }
  double scale() const { return static_cast<double>(end - begin) / static_cast<double>(target); }
};

struct Weights {
  int64_t taps = 0;
  std::vector<int32_t> first;    // [target]: the first source pixel
  std::vector<int32_t> count;    // [target]: the pixels that it is made of
  std::vector<int32_t> weights;  // [target][taps]
  bool has_parts = false;        // whether each fits in two parts of 16 bits

  void make(PilFilter filter, const Axis& axis);
};

int16_t lower_part(int32_t weight) {
  constexpr int32_t kHalf = 1 << (kLowerBits - 1);
  return static_cast<int16_t>(((weight + kHalf) & ((1 << kLowerBits) - 1)) - kHalf);
}
int32_t upper_part(int32_t weight) { return (weight - lower_part(weight)) >> kLowerBits; }

void Weights::make(PilFilter filter, const Axis& axis) {
  const double scale = axis.scale(), filter_scale = std::max(scale, 1.0), inverse = 1.0 / filter_scale;
  const double support = support_of(filter) * filter_scale;
  taps = 2 * static_cast<int64_t>(std::ceil(support)) + 1;
  first.resize(static_cast<size_t>(axis.target));
  count.resize(static_cast<size_t>(axis.target));
  weights.assign(static_cast<size_t>(axis.target * taps), 0);
  has_parts = true;
  std::vector<double> exact(static_cast<size_t>(taps));
  for (int64_t i = 0; i < axis.target; ++i) {
    const double center = static_cast<double>(axis.begin) + (static_cast<double>(i) + 0.5) * scale;
    const auto from = std::max<int64_t>(0, static_cast<int64_t>(center - support + 0.5));
    const auto to = std::min(axis.source, static_cast<int64_t>(center + support + 0.5));
    const int64_t n = std::max<int64_t>(0, to - from);
    double sum = 0.0;
    for (int64_t k = 0; k < n; ++k) {
      exact[k] = weight_at(filter, (static_cast<double>(k + from) - center + 0.5) * inverse);
      sum += exact[k];
    }
    for (int64_t k = 0; k < n; ++k) {
      const double share = sum != 0.0 ? exact[k] / sum : exact[k];
      const int32_t weight = static_cast<int32_t>((share < 0 ? -0.5 : 0.5) + share * (1 << kFilterBits));
      weights[i * taps + k] = weight;
      has_parts = has_parts && std::abs(upper_part(weight)) <= INT16_MAX;
    }
    first[i] = static_cast<int32_t>(from);
    count[i] = static_cast<int32_t>(n);
  }
}

// ---- columns

struct Columns {
  Weights weights;
  std::vector<int32_t> first;     // elements
  std::vector<int16_t> repeated;  // as FilterColumns has them
  int64_t steps = 0;

  void make(PilFilter filter, const Axis& axis, int64_t channels);
  FilterColumns columns(const Axis& axis, int64_t channels) const {
    return {.count = axis.target,
            .channels = channels,
            .taps = weights.taps,
            .first = first.data(),
            .taps_of = weights.count.data(),
            .weights = weights.weights.data(),
            .steps = steps,
            .repeated = repeated.empty() ? nullptr : repeated.data()};
  }
  // The bytes of a row that its steps read.
  int64_t reach(int64_t channels) const {
    return first.back() + (steps - 1) * filter_step(channels) * channels + kStepBytes;
  }
};

void Columns::make(PilFilter filter, const Axis& axis, int64_t channels) {
  weights.make(filter, axis);
  first.resize(weights.first.size());
  for (size_t i = 0; i < first.size(); ++i) first[i] = static_cast<int32_t>(weights.first[i] * channels);
  repeated.clear();
  if (!weights.has_parts || channels > 4) return;
  const int64_t step = filter_step(channels);
  const int64_t most = *std::max_element(weights.count.begin(), weights.count.end());
  steps = std::max<int64_t>(1, (most + step - 1) / step);
  repeated.assign(static_cast<size_t>(axis.target * steps * 32), 0);
  for (int64_t i = 0; i < axis.target; ++i) {
    for (int64_t k = 0; k < weights.count[i]; ++k) {
      const int32_t weight = weights.weights[i * weights.taps + k];
      // A lane has half of a step's taps: pairs of taps, and of each the channels.
      const int64_t in_step = k % step, lane = in_step / (step / 2), in_lane = in_step % (step / 2);
      int16_t* const both = &repeated[static_cast<size_t>((i * steps + k / step) * 32 + 8 * lane)];
      const int64_t copies = std::min<int64_t>(channels, 4);
      for (int64_t c = 0; c < copies; ++c) {
        const int64_t place = 2 * (in_lane / 2 * copies + c) + in_lane % 2;
        both[place] = static_cast<int16_t>(upper_part(weight));
        both[place + 16] = lower_part(weight);
      }
    }
  }
}

void filter_row(const uint8_t* row, const FilterColumns& columns, uint8_t* out) {
  for (int64_t x = 0; x < columns.count; ++x) {
    const int32_t* const weights = columns.weights + x * columns.taps;
    const uint8_t* const pixels = row + columns.first[x];
    for (int64_t c = 0; c < columns.channels; ++c) {
      uint32_t sum = 1u << (kFilterBits - 1);
      for (int64_t k = 0; k < columns.taps_of[x]; ++k) {
        sum += static_cast<uint32_t>(pixels[k * columns.channels + c]) * static_cast<uint32_t>(weights[k]);
      }
      *out++ = saturate_to_byte(static_cast<int32_t>(sum) >> kFilterBits);
    }
  }
}

// ---- a band

struct Band {
  Image<const uint8_t> from;
  Image<uint8_t> to;
  Axis x, y;
  PilFilter filter;
  int64_t begin, end;  // rows of `to`
};

// What a thread computed for the last image: the next is often of the same size.
struct Cache {
  PilFilter filter = PilFilter::kNearest;
  Axis x, y;
  int64_t channels = 0;
  Columns columns;
  Weights rows;
};

Cache& cache_of(const Band& band) {
  static thread_local Cache cache;
  const bool same_filter = cache.filter == band.filter;
  if (!same_filter || !(cache.x == band.x) || cache.channels != band.from.channels) {
    cache.x = {};
    cache.columns.make(band.filter, band.x, band.from.channels);
  }
  if (!same_filter || !(cache.y == band.y)) {
    cache.y = {};
    cache.rows.make(band.filter, band.y);
  }
  cache.filter = band.filter;
  cache.x = band.x;
  cache.y = band.y;
  cache.channels = band.from.channels;
  return cache;
}

// Filters the columns of up to kRowsAtOnce rows at a time, into memory of the thread.
class ColumnFilter {
 public:
  ColumnFilter(const Columns& tables, const Axis& axis, int64_t channels)
      : columns_(tables.columns(axis, channels)),
        kernel_(columns_.repeated == nullptr ? nullptr : row_kernels().filter_columns),
        bytes_(axis.source * channels),
        reach_(kernel_ == nullptr ? bytes_ : tables.reach(channels)),
        stride_(round_up(axis.target * channels + 4, 32)) {}

  int64_t stride() const { return stride_; }
  // The bytes that a row must have for its columns to be filtered.
  int64_t reach() const { return std::max(reach_, bytes_); }

  // Row r of the results is made of source row rows[r], for r < count, of which readable[r] bytes
  // may be read. There is memory for kRowsAtOnce results.
  void run(const uint8_t* const* rows, const int64_t* readable, int64_t count, uint8_t* results) const {
    static thread_local Scratch copies;
    if (kernel_ == nullptr) {
      for (int64_t r = 0; r < count; ++r) filter_row(rows[r], columns_, results + r * stride_);
      return;
    }
    const uint8_t* from[kRowsAtOnce];
    uint8_t* to[kRowsAtOnce];
    for (int64_t r = 0; r < kRowsAtOnce; ++r) {
      to[r] = results + r * stride_;
      from[r] = r < count ? rows[r] : from[r - 1];
      if (r >= count || readable[r] >= reach_) continue;
      uint8_t* const copy = copies.get<uint8_t>(kRowsAtOnce * reach()) + r * reach();
      std::memcpy(copy, rows[r], static_cast<size_t>(bytes_));
      std::memset(copy + bytes_, 0, static_cast<size_t>(reach() - bytes_));
      from[r] = copy;
    }
    kernel_(from, columns_, to);
  }

 private:
  const FilterColumns columns_;
  decltype(RowKernels::filter_columns) const kernel_;
  const int64_t bytes_, reach_, stride_;
};

// Row i of the result. `from` begins with the source's row `first`.
void filter_rows(const Image<const uint8_t>& from, int64_t first, const Weights& weights, int64_t i, uint8_t* out) {
  static thread_local std::vector<const uint8_t*> rows;
  static thread_local std::vector<int16_t> parts;
  const int64_t taps = weights.count[i], even = taps + taps % 2, count = from.row_elements();
  const int32_t* const whole = &weights.weights[static_cast<size_t>(i * weights.taps)];
  rows.resize(static_cast<size_t>(even));
  parts.assign(static_cast<size_t>(2 * even), 0);
  for (int64_t k = 0; k < even; ++k) rows[k] = from.row(weights.first[i] - first + std::min(k, taps - 1));
  int64_t done = 0;
  if (auto* const kernel = row_kernels().filter_rows; kernel != nullptr && weights.has_parts && taps > 0) {
    for (int64_t k = 0; k < taps; ++k) {
      parts[k] = static_cast<int16_t>(upper_part(whole[k]));
      parts[even + k] = lower_part(whole[k]);
    }
    done = kernel(rows.data(), parts.data(), parts.data() + even, even, count, out);
  }
  for (; done < count; ++done) {
    uint32_t sum = 1u << (kFilterBits - 1);
    for (int64_t k = 0; k < taps; ++k) sum += static_cast<uint32_t>(rows[k][done]) * static_cast<uint32_t>(whole[k]);
    out[done] = saturate_to_byte(static_cast<int32_t>(sum) >> kFilterBits);
  }
}

void copy_rows(const Image<const uint8_t>& from, int64_t first, const Band& band) {
  for (int64_t y = band.begin; y < band.end; ++y) {
    std::memcpy(band.to.row(y), from.row(y - first), static_cast<size_t>(band.to.row_elements()));
  }
}

// Whether Pillow filters rows before columns. It compares whole images, whatever the box.
bool rows_first(const Band& band) {
  const int64_t columns = band.x.source - band.x.target, rows = band.y.source - band.y.target;
  return rows > 0 && 2 * columns < rows;
}

void filter_columns_first(const Band& band, const Cache& cache, bool filter_y) {
  static thread_local Scratch memory;
  const Weights& rows = cache.rows;
  const int64_t first = filter_y ? rows.first[band.begin] : band.begin;
  const int64_t last = filter_y ? rows.first[band.end - 1] + rows.count[band.end - 1] : band.end;
  const ColumnFilter filter(cache.columns, band.x, band.from.channels);
  uint8_t* const made = memory.get<uint8_t>((last - first + kRowsAtOnce) * filter.stride());
  for (int64_t i = first; i < last; i += kRowsAtOnce) {
    const uint8_t* from[kRowsAtOnce];
    int64_t readable[kRowsAtOnce];
    const int64_t count = std::min(kRowsAtOnce, last - i);
    for (int64_t r = 0; r < count; ++r) {
      from[r] = band.from.row(i + r);
      readable[r] = band.from.end() - from[r];
    }
    filter.run(from, readable, count, made + (i - first) * filter.stride());
  }
  const Image<const uint8_t> narrowed{made, last - first, band.x.target, band.from.channels, filter.stride()};
  if (!filter_y) return copy_rows(narrowed, first, band);
  for (int64_t y = band.begin; y < band.end; ++y) filter_rows(narrowed, first, rows, y, band.to.row(y));
}

void filter_rows_first(const Band& band, const Cache& cache) {
  static thread_local Scratch memory;
  const ColumnFilter filter(cache.columns, band.x, band.from.channels);
  const int64_t stride = round_up(filter.reach(), 32), bytes = band.from.row_elements();
  uint8_t* const lowered = memory.get<uint8_t>(kRowsAtOnce * (stride + filter.stride()));
  uint8_t* const made = lowered + kRowsAtOnce * stride;
  for (int64_t r = 0; r < kRowsAtOnce; ++r) {
    std::memset(lowered + r * stride + bytes, 0, static_cast<size_t>(stride - bytes));
  }
  for (int64_t y = band.begin; y < band.end; y += kRowsAtOnce) {
    const uint8_t* from[kRowsAtOnce];
    int64_t readable[kRowsAtOnce];
    const int64_t count = std::min(kRowsAtOnce, band.end - y);
    for (int64_t r = 0; r < count; ++r) {
      filter_rows(band.from, 0, cache.rows, y + r, lowered + r * stride);
      from[r] = lowered + r * stride;
      readable[r] = stride;
    }
    filter.run(from, readable, count, made);
    for (int64_t r = 0; r < count; ++r) {
      std::memcpy(band.to.row(y + r), made + r * filter.stride(), static_cast<size_t>(band.to.row_elements()));
    }
  }
}

void resize_filtered(const Band& band) {
  const bool filter_x = !band.x.is_same(), filter_y = !band.y.is_same();
  if (!filter_x && !filter_y) return copy_rows(band.from, 0, band);
  const Cache& cache = cache_of(band);
  if (!filter_x) {
    for (int64_t y = band.begin; y < band.end; ++y) filter_rows(band.from, 0, cache.rows, y, band.to.row(y));
  } else if (filter_y && rows_first(band)) {
    filter_rows_first(band, cache);
  } else {
    filter_columns_first(band, cache, filter_y);
  }
}

// Pillow adds the scale for each pixel and cuts off. -1 is outside of the image.
void nearest_places(const Axis& axis, std::vector<int64_t>& places) {
  places.resize(static_cast<size_t>(axis.target));
  const double scale = axis.scale();
  double place = static_cast<double>(axis.begin) + scale * 0.5;
  for (int64_t& at : places) {
    at = place < 0.0 || static_cast<int64_t>(place) >= axis.source ? -1 : static_cast<int64_t>(place);
    place += scale;
  }
}

void resize_nearest(const Band& band) {
  static thread_local std::vector<int64_t> columns, rows;
  nearest_places(band.x, columns);
  nearest_places(band.y, rows);
  const int64_t channels = band.from.channels;
  for (int64_t y = band.begin; y < band.end; ++y) {
    uint8_t* out = band.to.row(y);
    if (rows[y] < 0) {
      std::memset(out, 0, static_cast<size_t>(band.to.row_elements()));
      continue;
    }
    const uint8_t* const row = band.from.row(rows[y]);
    for (const int64_t x : columns) {
      for (int64_t c = 0; c < channels; ++c) *out++ = x < 0 ? 0 : row[x * channels + c];
    }
  }
}

}  // namespace

void pil_resize(std::span<const Image<const uint8_t>> images, std::span<const PilBox> boxes,
                const ImageBatch<uint8_t>& results, PilFilter filter) {
  if (results.height == 0 || results.width == 0) return;
  int64_t work = 0;
  for (const auto& image : images) work = std::max(work, 4 * image.height * image.row_elements() / results.height);
  for_row_bands(results.count, results.height, work + results.width * results.channels,
                [&](int64_t i, int64_t begin, int64_t end) {
                  const Image<const uint8_t>& from = images[static_cast<size_t>(i)];
                  const PilBox& box = boxes[static_cast<size_t>(i)];
                  const Band band{.from = from,
                                  .to = results.at(i),
                                  .x = {from.width, results.width, box.left, box.right},
                                  .y = {from.height, results.height, box.upper, box.lower},
                                  .filter = filter,
                                  .begin = begin,
                                  .end = end};
                  const bool is_copy = band.x.is_same() && band.y.is_same();
                  filter == PilFilter::kNearest && !is_copy ? resize_nearest(band) : resize_filtered(band);
                });
}

}  // namespace hetero::backend
