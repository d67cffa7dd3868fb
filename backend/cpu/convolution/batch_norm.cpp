// Both layouts are matrices of dense rows to the kernels (image_kernel.h), whose columns come in
// whole vectors:
//
//   channels last   as many pixels are a row as make whole vectors of channels: a column belongs to
//                   one channel
//   row-major       a plane is cut into rows: all its columns belong to its channel
//
// What is left of the pixels, or of a plane, is computed entry by entry.

#include "backend/cpu/convolution/batch_norm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "backend/base/parallel.h"
#include "backend/base/rounding.h"
#include "backend/cpu/convolution/image_kernels.h"
#include "backend/cpu/vector/scratch.h"

namespace hetero::backend {
namespace {

constexpr int64_t kLane = kNormVector;
constexpr int64_t kBlockRows = 128;  // with kNormColumns columns 32 KiB
constexpr int64_t kElementsPerThread = 16 << 10;

// Two numbers for each part of the images and each channel, that parts of the images give.
struct Parts {
  int64_t count = 0;
  float* first = nullptr;
  float* second = nullptr;
  int64_t* entries = nullptr;  // of each part

  Parts(int64_t parts, int64_t channels) : count(parts) {
    static thread_local Scratch memory, entry_memory;
    first = memory.get<float>(2 * parts * channels);
    second = first + parts * channels;
    entries = entry_memory.get<int64_t>(parts);
  }
};

// Images with their channels last, as a matrix.
struct Pixels {
  int64_t channels, folded, columns, rows, blocks, groups, left;

  explicit Pixels(const NormedImages& images)
      : channels(images.channels),
        folded(kLane / std::gcd(kLane, channels)),
        columns(folded * channels),
        rows(images.images * images.pixels / folded),
        blocks(divide_up(rows, kBlockRows)),
        groups(divide_up(columns, kNormColumns)),
        left(images.images * images.pixels % folded) {}

  // Each row of a block has `folded` parts, and each of the pixels that are left is one.
  int64_t parts() const { return blocks * folded + left; }
  int64_t first_left() const { return rows * columns; }

  // Calls visit(block, column, rows), whose `rows` are these of the block, from the column on.
  template <typename Visit>
  void for_blocks(Visit&& visit) const {
    const int64_t elements = std::min(rows, kBlockRows) * std::min(columns, kNormColumns);
    const int64_t grain = std::max<int64_t>(1, kElementsPerThread / std::max<int64_t>(1, elements));
    parallel_for(0, blocks * groups, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t block = i / groups, column = i % groups * kNormColumns;
        NormRows call{};
        call.rows = std::min(kBlockRows, rows - block * kBlockRows);
        call.stride = columns;
        call.vectors = std::min(kNormColumns, columns - column) / kLane;
        visit(block, column, call);
      }
    });
  }
  int64_t place(int64_t block, int64_t column) const { return block * kBlockRows * columns + column; }
};

// A plane of a row-major image, as a matrix, and whole vectors behind it as a row of their own.
struct Plane {
  int64_t pixels, columns, rows, vectors, left;

  explicit Plane(int64_t size)
      : pixels(size),
        columns(std::min(kNormColumns, size / kLane * kLane)),
        rows(columns == 0 ? 0 : size / columns),
        vectors((size - rows * columns) / kLane),
        left(size % kLane) {}

  // Calls visit(first, rows).
  template <typename Visit>
  void for_blocks(Visit&& visit) const {
    NormRows call{};
    call.stride = columns;
    call.vectors = columns / kLane;
    for (int64_t row = 0; row < rows; row += kBlockRows) {
      call.rows = std::min(kBlockRows, rows - row);
      visit(row * columns, call);
    }
    if (vectors == 0) return;
    call.rows = 1;
    call.vectors = vectors;
    visit(rows * columns, call);
  }
};

template <typename Visit>
void for_planes(const NormedImages& images, Visit&& visit) {
  const int64_t grain = std::max<int64_t>(1, kElementsPerThread / images.pixels);
  parallel_for(0, images.images * images.channels, grain, [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) visit(plane, plane % images.channels);
  });
}

using Columns = std::array<float, kNormColumns>;

// ---- statistics ---------------------------------------------------------------------------------

// The mean and the squared distances from it of some numbers.
struct Moment {
  double count = 0, mean = 0, squares = 0;

  void add(const Moment& other) {
    const double all = count + other.count, distance = other.mean - mean;
    if (all == 0) return;
    squares += other.squares + distance * distance * count * other.count / all;
    mean += distance * other.count / all;
    count = all;
  }
};

// Of so many columns, of which each has `rows` numbers.
Moment moment_of(const float* means, const float* squares, int64_t rows, int64_t columns) {
  Moment all{static_cast<double>(rows * columns), 0, 0};
  for (int64_t i = 0; i < columns; ++i) all.mean += means[i];
  all.mean /= static_cast<double>(columns);
  for (int64_t i = 0; i < columns; ++i) {
    const double distance = means[i] - all.mean;
    all.squares += squares[i] + static_cast<double>(rows) * distance * distance;
  }
  return all;
}

Moment moment_of(const Plane& plane, const float* values, const ImageKernels& kernels) {
  static constexpr Columns kZeros{};
  Moment all;
  Columns means, squares;
  plane.for_blocks([&](int64_t first, NormRows& call) {
    call.input = values + first;
    call.results[0] = means.data();
    call.results[1] = squares.data();
    kernels.moments(call);
    all.add(moment_of(means.data(), squares.data(), call.rows, call.vectors * kLane));
  });
  if (plane.left > 0) all.add(moment_of(values + plane.pixels - plane.left, kZeros.data(), 1, plane.left));
  return all;
}

// The mean and the squared distances of each part of the images.
Parts parts_of(const NormedImages& images, const float* input, const ImageKernels& kernels) {
  if (!images.channels_last) {
    Parts parts(images.images, images.channels);
    std::fill_n(parts.entries, parts.count, images.pixels);
    const Plane plane(images.pixels);
    for_planes(images, [&](int64_t index, int64_t) {
      const Moment moment = moment_of(plane, input + index * images.pixels, kernels);
      parts.first[index] = static_cast<float>(moment.mean);
      parts.second[index] = static_cast<float>(moment.squares);
    });
    return parts;
  }
  const Pixels pixels(images);
  Parts parts(pixels.parts(), images.channels);
  for (int64_t part = 0; part < pixels.blocks * pixels.folded; ++part) {
    parts.entries[part] = std::min(kBlockRows, pixels.rows - part / pixels.folded * kBlockRows);
  }
  pixels.for_blocks([&](int64_t block, int64_t column, NormRows& call) {
    call.input = input + pixels.place(block, column);
    call.results[0] = parts.first + block * pixels.columns + column;
    call.results[1] = parts.second + block * pixels.columns + column;
    kernels.moments(call);
  });
  const int64_t left = pixels.left * images.channels, place = pixels.blocks * pixels.columns;
  std::copy_n(input + pixels.first_left(), left, parts.first + place);
  std::fill_n(parts.second + place, left, 0.0f);
  std::fill_n(parts.entries + pixels.blocks * pixels.folded, pixels.left, 1);
  return parts;
}

// Calls finish(channel, first, second) with two sums over the parts of what add() makes of them.
template <typename Add, typename Finish>
void add_up(const Parts& parts, int64_t channels, const Add& add, const Finish& finish) {
  const int64_t grain = std::max<int64_t>(kLane, kElementsPerThread / std::max<int64_t>(1, parts.count));
  parallel_for(0, channels, grain, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kLane) {
      const int64_t count = std::min(kLane, end - first);
      std::array<double, kLane> sums{}, others{};
      add(first, count, sums, others);
      for (int64_t i = 0; i < count; ++i)
        finish(first + i, sums[static_cast<size_t>(i)], others[static_cast<size_t>(i)]);
    }
  });
}

// The mean and the sum of squared distances of each channel.
template <typename Finish>
void add_up_moments(const Parts& parts, int64_t channels, const Finish& finish) {
  const double entries = static_cast<double>(std::accumulate(parts.entries, parts.entries + parts.count, int64_t{0}));
  add_up(
      parts, channels,
      [&](int64_t first, int64_t count, std::array<double, kLane>& means, std::array<double, kLane>& squares) {
        for (int64_t part = 0; part < parts.count; ++part) {
          const float* const from = parts.first + part * channels + first;
          const double share = static_cast<double>(parts.entries[part]) / entries;
          for (int64_t i = 0; i < count; ++i) means[static_cast<size_t>(i)] += share * from[i];
        }
        for (int64_t part = 0; part < parts.count; ++part) {
          const float* const from = parts.first + part * channels + first;
          const float* const of_part = parts.second + part * channels + first;
          const auto weight = static_cast<double>(parts.entries[part]);
          for (int64_t i = 0; i < count; ++i) {
            const double distance = from[i] - means[static_cast<size_t>(i)];
            squares[static_cast<size_t>(i)] += of_part[i] + weight * distance * distance;
          }
        }
      },
      finish);
}

// ---- what runs over the images ------------------------------------------------------------------

// Numbers of each channel, in the order of a matrix's columns.
template <size_t kCount>
class ColumnNumbers {
 public:
  explicit ColumnNumbers(int64_t columns) : columns_(columns) {
    static thread_local Scratch memory;
    numbers_ = memory.get<float>(static_cast<int64_t>(kCount) * columns);
  }
  float* operator[](size_t i) { return numbers_ + static_cast<int64_t>(i) * columns_; }
  // Those of the channels once more for each of the pixels that are a row.
  void repeat(size_t i, int64_t channels) {
    for (int64_t at = channels; at < columns_; at += channels) std::copy_n((*this)[i], channels, (*this)[i] + at);
  }

 private:
  int64_t columns_;
  float* numbers_;
};

// Runs `kernel` over images whose channels have these numbers, and `entry(place, numbers)` for each
// entry that is left; numbers of a column begin at `column`.
template <size_t kCount, typename Kernel, typename Entry>
void run_over(const NormedImages& images, ColumnNumbers<kCount>& numbers, const Kernel& kernel, const Entry& entry) {
  if (images.channels_last) {
    const Pixels pixels(images);
    for (size_t i = 0; i < kCount; ++i) numbers.repeat(i, images.channels);
    pixels.for_blocks([&](int64_t block, int64_t column, NormRows& call) {
      for (size_t i = 0; i < kCount; ++i) call.numbers[i] = numbers[i] + column;
      kernel(pixels.place(block, column), call);
    });
    const int64_t first = pixels.first_left();
    for (int64_t i = 0; i < pixels.left * images.channels; ++i) entry(first + i, i % images.channels);
    return;
  }
  const Plane plane(images.pixels);
  for_planes(images, [&](int64_t index, int64_t channel) {
    std::array<Columns, kCount> same;
    for (size_t i = 0; i < kCount; ++i) std::fill_n(same[i].begin(), plane.columns, numbers[i][channel]);
    const int64_t at = index * images.pixels;
    plane.for_blocks([&](int64_t first, NormRows& call) {
      for (size_t i = 0; i < kCount; ++i) call.numbers[i] = same[i].data();
      kernel(at + first, call);
    });
    for (int64_t i = images.pixels - plane.left; i < images.pixels; ++i) entry(at + i, channel);
  });
}

int64_t columns_of(const NormedImages& images) {
  return images.channels_last ? Pixels(images).columns : images.channels;
}

// Of each part of the images, the sums of the gradients and of their products with input - mean, of
// which `numbers` begin with the mean.
Parts gradient_parts(const BatchNormGradients& call, ColumnNumbers<4>& numbers, const ImageKernels& kernels) {
  const NormedImages& images = call.images;
  if (!images.channels_last) {
    const Plane plane(images.pixels);
    Parts parts(images.images, images.channels);
    for_planes(images, [&](int64_t index, int64_t channel) {
      const float* const gradient = call.grad_output + index * plane.pixels;
      const float* const input = call.input + index * plane.pixels;
      Columns mean, sums, products;
      std::fill_n(mean.begin(), plane.columns, call.mean[channel]);
      double sum = 0, product = 0;
      plane.for_blocks([&](int64_t first, NormRows& rows) {
        rows.input = input + first;
        rows.gradient = gradient + first;
        rows.numbers[0] = mean.data();
        rows.results[0] = sums.data();
        rows.results[1] = products.data();
        kernels.gradient_sums(rows);
        sum += std::accumulate(sums.begin(), sums.begin() + rows.vectors * kLane, 0.0);
        product += std::accumulate(products.begin(), products.begin() + rows.vectors * kLane, 0.0);
      });
      for (int64_t i = plane.pixels - plane.left; i < plane.pixels; ++i) {
        sum += gradient[i];
        product += double{gradient[i]} * (input[i] - call.mean[channel]);
      }
      parts.first[index] = static_cast<float>(sum);
      parts.second[index] = static_cast<float>(product);
    });
    return parts;
  }
  const Pixels pixels(images);
  Parts parts(pixels.parts(), images.channels);
  numbers.repeat(0, images.channels);
  pixels.for_blocks([&](int64_t block, int64_t column, NormRows& rows) {
    rows.input = call.input + pixels.place(block, column);
    rows.gradient = call.grad_output + pixels.place(block, column);
    rows.numbers[0] = numbers[0] + column;
    rows.results[0] = parts.first + block * pixels.columns + column;
    rows.results[1] = parts.second + block * pixels.columns + column;
    kernels.gradient_sums(rows);
  });
  const int64_t first = pixels.first_left(), place = pixels.blocks * pixels.columns;
  for (int64_t i = 0; i < pixels.left * images.channels; ++i) {
    const float gradient = call.grad_output[first + i];
    parts.first[place + i] = gradient;
    parts.second[place + i] = gradient * (call.input[first + i] - call.mean[i % images.channels]);
  }
  return parts;
}

// Of a batch norm or a group norm, the mean, a and b of (input - mean) * a + b.
template <typename Call>
void set_numbers(ColumnNumbers<3>& numbers, const Call& call, int64_t channel, double mean, double inverse) {
  const double weight = call.weight == nullptr ? 1 : call.weight[channel];
  numbers[0][channel] = static_cast<float>(mean);
  numbers[1][channel] = static_cast<float>(inverse * weight);
  numbers[2][channel] = call.bias == nullptr ? 0 : call.bias[channel];
}

// (input - mean) * a + b, of numbers of each channel.
void normalize(const NormedImages& images, const float* input, float* output, ColumnNumbers<3>& numbers,
               const ImageKernels& kernels) {
  run_over(
      images, numbers,
      [&](int64_t place, NormRows& rows) {
        rows.input = input + place;
        rows.output = output + place;
        kernels.normalize(rows);
      },
      [&](int64_t place, int64_t channel) {
        output[place] = (input[place] - numbers[0][channel]) * numbers[1][channel] + numbers[2][channel];
      });
}

// Norms one image. `images` says what it is like.
void norm_groups(const GroupNorm& call, const NormedImages& images, int64_t image, const ImageKernels& kernels) {
  static thread_local Scratch memory;
  const int64_t channels = images.channels, together = channels / call.groups, first = image * channels * images.pixels;
  auto* const moments = memory.get<Moment>(channels);
  const auto pixels = static_cast<double>(images.pixels);
  add_up_moments(parts_of(images, call.input + first, kernels), channels,
                 [&](int64_t channel, double mean, double squares) {
                   moments[channel] = {pixels, mean, squares};
                 });
  ColumnNumbers<3> numbers(columns_of(images));
  for (int64_t group = 0; group < call.groups; ++group) {
    Moment all;
    for (int64_t i = 0; i < together; ++i) all.add(moments[group * together + i]);
    const double inverse = 1 / std::sqrt(all.squares / all.count + call.epsilon);
    call.mean[image * call.groups + group] = static_cast<float>(all.mean);
    call.inverse_deviation[image * call.groups + group] = static_cast<float>(inverse);
    for (int64_t i = 0; i < together; ++i) set_numbers(numbers, call, group * together + i, all.mean, inverse);
  }
  normalize(images, call.input + first, call.output + first, numbers, kernels);
}

}  // namespace

void batch_norm(const BatchNorm& call, InstructionSet set) {
  const NormedImages& images = call.images;
  const ImageKernels& kernels = image_kernels(set);
  ColumnNumbers<3> numbers(columns_of(images));
  const auto count = static_cast<double>(images.images * images.pixels);
  const auto run = [&](float* running, int64_t channel, double value) {
    if (running == nullptr) return;
    running[channel] = static_cast<float>((1 - call.momentum) * running[channel] + call.momentum * value);
  };
  add_up_moments(parts_of(images, call.input, kernels), images.channels,
                 [&](int64_t channel, double mean, double squares) {
                   const double variance = squares / count + call.epsilon;
                   const double inverse = variance == 0 ? 0 : 1 / std::sqrt(variance);
                   run(call.running_mean, channel, mean);
                   run(call.running_variance, channel, squares / (count - 1));
                   call.mean[channel] = static_cast<float>(mean);
                   call.inverse_deviation[channel] = static_cast<float>(inverse);
                   set_numbers(numbers, call, channel, mean, inverse);
                 });
  normalize(images, call.input, call.output, numbers, kernels);
}

void group_norm(const GroupNorm& call, InstructionSet set) {
  const ImageKernels& kernels = image_kernels(set);
  NormedImages one = call.images;
  one.images = 1;
  // With an image for each thread, what is below runs on one.
  const int64_t enough = std::max<int64_t>(1, kElementsPerThread / (one.channels * one.pixels));
  const int64_t grain = call.images.images < thread_count() ? call.images.images : enough;
  parallel_for(0, call.images.images, grain, [&](int64_t begin, int64_t end) {
    for (int64_t image = begin; image < end; ++image) norm_groups(call, one, image, kernels);
  });
}

void batch_norm_gradients(const BatchNormGradients& call, InstructionSet set) {
  const NormedImages& images = call.images;
  const ImageKernels& kernels = image_kernels(set);
  ColumnNumbers<4> numbers(columns_of(images));
  std::copy_n(call.mean, images.channels, numbers[0]);
  const Parts parts = gradient_parts(call, numbers, kernels);
  const auto count = static_cast<double>(images.images * images.pixels);
  add_up(
      parts, images.channels,
      [&](int64_t first, int64_t channels, std::array<double, kLane>& sums, std::array<double, kLane>& products) {
        for (int64_t part = 0; part < parts.count; ++part) {
          const float* const of_sums = parts.first + part * images.channels + first;
          const float* const of_products = parts.second + part * images.channels + first;
          for (int64_t i = 0; i < channels; ++i) {
            sums[static_cast<size_t>(i)] += of_sums[i];
            products[static_cast<size_t>(i)] += of_products[i];
          }
        }
      },
      [&](int64_t channel, double sum, double product) {
        const double inverse = call.inverse_deviation[channel];
        if (call.grad_bias != nullptr) call.grad_bias[channel] = static_cast<float>(sum);
        if (call.grad_weight != nullptr) call.grad_weight[channel] = static_cast<float>(product * inverse);
        const double scale = call.weight == nullptr ? inverse : inverse * call.weight[channel];
        numbers[0][channel] = call.mean[channel];
        numbers[1][channel] = static_cast<float>(-scale * inverse * inverse * product / count);
        numbers[2][channel] = static_cast<float>(scale);
        numbers[3][channel] = static_cast<float>(-scale * sum / count);
      });
  if (call.grad_input == nullptr) return;
  run_over(
      images, numbers,
      [&](int64_t place, NormRows& rows) {
        rows.input = call.input + place;
        rows.gradient = call.grad_output + place;
        rows.output = call.grad_input + place;
        kernels.norm_gradient(rows);
      },
      [&](int64_t place, int64_t channel) {
        call.grad_input[place] = (call.input[place] - numbers[0][channel]) * numbers[1][channel] +
                                 (call.grad_output[place] * numbers[2][channel] + numbers[3][channel]);
      });
}

}  // namespace hetero::backend
