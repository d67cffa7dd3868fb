// Forward, for each group of images. Many groups run on several threads at once; otherwise the
// steps within are parallel.
// 1. For each block of channels: make its columns, then add their product with the block's part of
//    the weight to the group's outputs.
// 2. Copy the outputs to their places.
//
// Backward, for each group of images:
// 1. The gradients of the outputs become one matrix [outputs, positions of all images].
// 2. Threads take blocks of channels. A thread makes the block's columns, which give the block's
//    part of the weight's gradient. It folds the columns' gradients and copies them to their
//    places.

#include "backend/cpu/convolution/convolution.h"

#include <algorithm>
#include <cstring>

#include "backend/base/parallel.h"
#include "backend/base/rounding.h"
#include "backend/cpu/vector/scratch.h"

namespace hetero::backend {
namespace {

// A product is efficient from about this many columns on; more only take memory.
constexpr int64_t kManyPositions = 2048;
// Each thread reads a weight of up to this many floats from its own cache.
constexpr int64_t kSmallWeight = 1 << 18;
constexpr int64_t kFewestPositions = 128;
// Lines of this many positions make good vectors, so interleaving does not pay.
constexpr int64_t kLongLine = 16;
// Products with fewer rows are not efficient.
constexpr int64_t kFewestOutputs = 16;
constexpr int64_t kFewestRows = 64;

// In floats.
int64_t pitch_of(int64_t width) {
  constexpr int64_t kFloat = sizeof(float);
  return row_pitch(width * kFloat) / kFloat;
}

// How a call is cut into pieces.
struct Cut {
  const ConvolutionGeometry& geometry;
  int64_t group;  // images
  bool interleaved;
  int64_t block;  // channels

  Cut(const ConvolutionGeometry& geometry, bool forward) : geometry(geometry) {
    const int64_t positions = geometry.positions(), threads = thread_count();
    const int64_t channel = std::max(geometry.kernel() * positions, geometry.pixels());
    const int64_t most =
        std::min({kManyPositions / positions, kMostShared / (positions * geometry.outputs), kMostBlock / channel});
    int64_t groups = divide_up(geometry.images, std::clamp<int64_t>(most, 1, geometry.images));
    const bool small_weight = geometry.outputs * geometry.channels * geometry.kernel() <= kSmallWeight;
    if (forward && threads > 1 && small_weight && geometry.images * positions >= threads * kFewestPositions) {
      groups = std::min(geometry.images, divide_up(groups, threads) * threads);
    }
    group = divide_up(geometry.images, groups);
    interleaved = group > 1 && geometry.out_width() < kLongLine;
    int64_t blocks = divide_up(geometry.channels * channel * group, kMostBlock);
    if (!forward) {
      // Threads take equal numbers of blocks, none so small that its products are inefficient.
      const int64_t fewest = std::min(threads, divide_up(geometry.channels * geometry.kernel(), kFewestRows));
      blocks = divide_up(blocks, fewest) * fewest;
    }
    block = divide_up(geometry.channels, std::min(blocks, geometry.channels));
  }
  int64_t groups() const { return divide_up(geometry.images, group); }
  int64_t blocks() const { return divide_up(geometry.channels, block); }
  int64_t first_image(int64_t index) const { return index * group; }
  int64_t images(int64_t index) const { return std::min(group, geometry.images - index * group); }
  int64_t channels(int64_t index) const { return std::min(block, geometry.channels - index * block); }
};

// The columns of channels [first, first + count) of `images` images from `image` on, `lanes` of
// which are interleaved in `planes`.
class Columns {
 public:
  Columns(const Cut& cut, int64_t image, int64_t images)
      : cut_(cut), geometry_(cut.geometry), image_(image), images_(images), lanes_(cut.interleaved ? images : 1) {}

  // Of the matrices of columns and of outputs: floats in a row, and from row to row.
  int64_t width() const { return geometry_.positions() * images_; }
  int64_t pitch() const { return images_ == 1 ? width() : pitch_of(width()); }

  // Makes the rows of one channel.
  void gather(const float* input, int64_t channel, float* plane, float* rows) const {
    const int64_t stride = geometry_.channels * geometry_.pixels(), pixels = geometry_.pixels();
    const float* const first = input + image_ * stride + channel * pixels;
    if (lanes_ > 1) {
      if (geometry_.pointwise()) {
        interleave(first, stride, lanes_, pixels, rows);
      } else {
        interleave(first, stride, lanes_, pixels, plane);
        unfold(geometry_, plane, lanes_, rows, pitch());
      }
      return;
    }
    for (int64_t i = 0; i < images_; ++i) {
      unfold(geometry_, first + i * stride, 1, rows + i * geometry_.positions(), pitch());
    }
  }

  // The transpose of gather.
  void scatter(float* rows, int64_t channel, float* plane, float* grad_input) const {
    const int64_t stride = geometry_.channels * geometry_.pixels(), pixels = geometry_.pixels();
    float* const first = grad_input + image_ * stride + channel * pixels;
    if (lanes_ > 1) {
      if (geometry_.pointwise()) {
        deinterleave(rows, lanes_, pixels, first, stride);
      } else {
        fold(geometry_, rows, pitch(), lanes_, plane);
        deinterleave(plane, lanes_, pixels, first, stride);
      }
      return;
    }
    for (int64_t i = 0; i < images_; ++i) {
      fold(geometry_, rows + i * geometry_.positions(), pitch(), 1, first + i * stride);
    }
  }

  // Rows [first, first + count) of the outputs' matrix [outputs, pitch()] from where they lie in a
  // tensor, and back.
  void gather_outputs(const float* tensor, int64_t first, int64_t count, float* matrix) const {
    const int64_t positions = geometry_.positions(), stride = geometry_.outputs * positions;
    const float* const from = tensor + image_ * stride + first * positions;
    float* const to = matrix + first * pitch();
    if (lanes_ > 1) {
      for (int64_t row = 0; row < count; ++row) {
        interleave(from + row * positions, stride, lanes_, positions, to + row * pitch());
      }
      return;
    }
    for (int64_t i = 0; i < images_; ++i) {
      for (int64_t row = 0; row < count; ++row) {
        std::memcpy(to + row * pitch() + i * positions, from + i * stride + row * positions, positions * sizeof(float));
      }
    }
  }
  void scatter_outputs(const float* matrix, int64_t first, int64_t count, float* tensor) const {
    const int64_t positions = geometry_.positions(), stride = geometry_.outputs * positions;
    float* const to = tensor + image_ * stride + first * positions;
    const float* const from = matrix + first * pitch();
    if (lanes_ > 1) {
      for (int64_t row = 0; row < count; ++row) {
        deinterleave(from + row * pitch(), lanes_, positions, to + row * positions, stride);
      }
      return;
    }
    for (int64_t i = 0; i < images_; ++i) {
      for (int64_t row = 0; row < count; ++row) {
        std::memcpy(to + i * stride + row * positions, from + row * pitch() + i * positions, positions * sizeof(float));
      }
    }
  }

 private:
  const Cut& cut_;
  const ConvolutionGeometry& geometry_;
  int64_t image_, images_, lanes_;
};

void forward_group(const Cut& cut, int64_t index, const float* input, const float* weight, const float* bias,
                   float* output, Sgemm sgemm) {
  static thread_local Scratch shared_scratch, block_scratch, plane_scratch;
  const ConvolutionGeometry& geometry = cut.geometry;
  const Columns columns(cut, cut.first_image(index), cut.images(index));
  const int64_t width = columns.width(), pitch = columns.pitch(), kernel = geometry.kernel(),
                outputs = geometry.outputs;
  const bool in_place = cut.images(index) == 1;
  float* const matrix =
      in_place ? output + cut.first_image(index) * outputs * width : shared_scratch.get<float>(outputs * pitch);
  float* const rows = block_scratch.get<float>(cut.block * kernel * pitch);
  const int64_t output_grain = std::max(kFewestOutputs, divide_up(outputs, thread_count()));
  for (int64_t block = 0; block < cut.blocks(); ++block) {
    const int64_t first = block * cut.block, count = cut.channels(block);
    const float* b = rows;
    if (geometry.pointwise() && in_place) {
      b = input + (cut.first_image(index) * geometry.channels + first) * width;
    } else {
      parallel_for(0, count, std::max<int64_t>(1, 4096 / (kernel * width)), [&](int64_t begin, int64_t end) {
        float* const plane = plane_scratch.get<float>(geometry.pixels() * cut.group);
        for (int64_t i = begin; i < end; ++i) columns.gather(input, first + i, plane, rows + i * kernel * pitch);
      });
    }
    parallel_for(0, divide_up(outputs, output_grain), 1, [&](int64_t begin, int64_t end) {
      const int64_t from = begin * output_grain, to = std::min(outputs, end * output_grain);
      if (block == 0 && bias != nullptr) {
        for (int64_t i = from; i < to; ++i) std::fill_n(matrix + i * pitch, width, bias[i]);
      }
      sgemm({.accumulate = block > 0 || bias != nullptr,
             .m = to - from,
             .n = width,
             .k = count * kernel,
             .a = weight + (from * geometry.channels + first) * kernel,
             .lda = geometry.channels * kernel,
             .b = b,
             .ldb = pitch,
             .c = matrix + from * pitch,
             .ldc = pitch});
      if (block + 1 == cut.blocks() && !in_place) columns.scatter_outputs(matrix, from, to - from, output);
    });
  }
}

}  // namespace

bool convolution_fits(const ConvolutionGeometry& geometry) {
  return std::max(geometry.kernel() * geometry.positions(), geometry.pixels()) <= kMostBlock;
}

void convolution_forward(const ConvolutionGeometry& geometry, const float* input, const float* weight,
                         const float* bias, float* output, Sgemm sgemm) {
  const Cut cut(geometry, true);
  const auto run = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) forward_group(cut, i, input, weight, bias, output, sgemm);
  };
  if (cut.groups() >= thread_count()) {
    parallel_for(0, cut.groups(), 1, run);
  } else {
    run(0, cut.groups());
  }
}

void convolution_backward(const ConvolutionGeometry& geometry, const float* grad_output, const float* input,
                          const float* weight, const ConvolutionGradients& gradients, Sgemm sgemm) {
  static thread_local Scratch shared_scratch, block_scratch, plane_scratch;
  const Cut cut(geometry, false);
  const int64_t kernel = geometry.kernel(), outputs = geometry.outputs, depth = geometry.channels * kernel;
  for (int64_t group = 0; group < cut.groups(); ++group) {
    const Columns columns(cut, cut.first_image(group), cut.images(group));
    const int64_t width = columns.width(), pitch = columns.pitch();
    const bool in_place = cut.images(group) == 1;
    float* const made = in_place ? nullptr : shared_scratch.get<float>(outputs * pitch);
    const float* const matrix = in_place ? grad_output + cut.first_image(group) * outputs * width : made;
    if (!in_place || gradients.bias != nullptr) {
      parallel_for(0, outputs, std::max<int64_t>(1, 8192 / width), [&](int64_t begin, int64_t end) {
        if (!in_place) columns.gather_outputs(grad_output, begin, end - begin, made);
        if (gradients.bias == nullptr) return;
        for (int64_t i = begin; i < end; ++i) {
          double sum = group == 0 ? 0 : gradients.bias[i];
          for (int64_t j = 0; j < width; ++j) sum += matrix[i * pitch + j];
          gradients.bias[i] = static_cast<float>(sum);
        }
      });
    }
    if (gradients.input == nullptr && gradients.weight == nullptr) continue;
    parallel_for(0, cut.blocks(), 1, [&](int64_t begin, int64_t end) {
      float* const rows = block_scratch.get<float>(cut.block * kernel * pitch);
      float* const plane = plane_scratch.get<float>(geometry.pixels() * cut.group);
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * cut.block, count = cut.channels(block);
        if (gradients.weight != nullptr) {
          const float* b = rows;
          if (geometry.pointwise() && in_place) {
            b = input + (cut.first_image(group) * geometry.channels + first) * width;
          } else {
            for (int64_t i = 0; i < count; ++i) columns.gather(input, first + i, plane, rows + i * kernel * pitch);
          }
          sgemm({.b_transposed = true,
                 .accumulate = group > 0,
                 .m = outputs,
                 .n = count * kernel,
                 .k = width,
                 .a = matrix,
                 .lda = pitch,
                 .b = b,
                 .ldb = pitch,
                 .c = gradients.weight + first * kernel,
                 .ldc = depth});
        }
        if (gradients.input != nullptr) {
          sgemm({.a_transposed = true,
                 .m = count * kernel,
                 .n = width,
                 .k = outputs,
                 .a = weight + first * kernel,
                 .lda = depth,
                 .b = matrix,
                 .ldb = pitch,
                 .c = rows,
                 .ldc = pitch});
          for (int64_t i = 0; i < count; ++i) {
            columns.scatter(rows + i * kernel * pitch, first + i, plane, gradients.input);
          }
        }
      }
    });
  }
}

}  // namespace hetero::backend
