// 1. Divide the outputs of all images into blocks of a row, and these over parallel_for.
// 2. A kernel of the instruction set computes a block where it has one for the element, the number
//    of columns and the stride (DepthwiseRow).
// 3. Otherwise, outputs of a block that have the same taps within the image are computed together,
//    others one by one, by the taps that meet the image.

#include "backend/cpu/convolution/depthwise.h"

#include <algorithm>

#include "backend/base/parallel.h"
#include "backend/base/rounding.h"
#include "backend/cpu/convolution/depthwise_kernel.h"
#include "backend/cpu/vector/elements_portable.h"
#include "backend/cpu/vector/half.h"
#include "backend/cpu/vector/scratch.h"

namespace hetero::backend {
namespace {

constexpr DepthwiseKernels kPortable = make_depthwise_kernels<Vector, Float32, Bfloat16, Float16>();

// The products that are worth another thread.
constexpr int64_t kProductsPerThread = 128 << 10;

// The bytes of outputs that are still in a cache when a follower runs on them.
constexpr int64_t kFollowedBytes = 48 << 10;

// The kernels for whole blocks of such a call; null where there are none.
const DepthwiseKernels::Rows* row_kernels(const Depthwise& call, const DepthwiseKernels& kernels) {
  const ConvolutionGeometry& g = call.geometry;
  const bool has_columns = g.kernel_width == 3 || g.kernel_width == 5 || g.kernel_width == 7;
  if (!has_columns || g.dilation_x != 1 || g.stride_x > 2 || g.channels < kernels.row_channels) return nullptr;
  const auto& rows = kernels.row[static_cast<size_t>(call.element)][static_cast<size_t>(g.stride_x - 1)]
                                [static_cast<size_t>(g.kernel_width / 2 - 1)];
  return rows[0] != nullptr ? &rows : nullptr;
}

// As `compute`, `together` outputs at a time.
void compute_row(const Depthwise& call, const DepthwiseKernels::Rows& kernels, int64_t together, int64_t image,
                 int64_t y, int64_t first, int64_t last, std::byte* to) {
  const ConvolutionGeometry& g = call.geometry;
  const int64_t top = y * g.stride_y - g.padding_y;
  const Taps rows(top, g.kernel_height, g.dilation_y, g.height);
  const bool meets = rows.last > rows.first;
  const int64_t row = meets ? top + rows.first * g.dilation_y : 0;
  DepthwiseRow block{.input = element_at(call.input, (image * g.height + row) * g.width * g.channels, call.element),
                     .input_row = g.dilation_y * g.width * g.channels,
                     .width = g.width,
                     .left = 0,
                     .taps = call.taps + (meets ? rows.first * g.kernel_width * g.channels : 0),
                     .rows = static_cast<int>(rows.last - rows.first),
                     .bias = call.bias,
                     .output = nullptr,
                     .channels = g.channels,
                     .limits = call.limits.any()};
  for (int64_t x = first; x < last; x += together) {
    block.left = x * g.stride_x - g.padding_x;
    block.output = to + (x - first) * g.channels * element_bytes(call.element);
    kernels[static_cast<size_t>(std::min(together, last - x) - 1)](block);
  }
}

// Outputs [first, last) of a row of outputs, to `to`.
void compute(const Depthwise& call, const DepthwiseKernels& kernels, int64_t image, int64_t y, int64_t first,
             int64_t last, std::byte* to) {
  const ConvolutionGeometry& g = call.geometry;
  const int64_t top = y * g.stride_y - g.padding_y;
  const Taps rows(top, g.kernel_height, g.dilation_y, g.height);
  const auto [inner, outer] = whole_outputs(g);
  DepthwiseBlock block{.input = nullptr,
                       .input_row = g.dilation_y * g.width * g.channels,
                       .input_tap = g.dilation_x * g.channels,
                       .step = g.stride_x * g.channels,
                       .taps = nullptr,
                       .taps_row = g.kernel_width * g.channels,
                       .taps_step = g.channels,
                       .rows = static_cast<int>(rows.last - rows.first),
                       .columns = 0,
                       .bias = call.bias,
                       .output = nullptr,
                       .output_step = g.channels,
                       .channels = g.channels,
                       .limits = call.limits.any()};
  const int64_t pixel = g.channels * element_bytes(call.element);
  const auto* const plane = static_cast<const std::byte*>(call.input) + image * g.pixels() * pixel;
  for (int64_t x = first; x < last;) {
    const bool whole = x >= inner && x < outer;
    const int64_t count = whole ? std::min<int64_t>({last - x, outer - x, kDepthwiseBlock}) : 1;
    const int64_t left = x * g.stride_x - g.padding_x;
    const Taps columns(left, g.kernel_width, g.dilation_x, g.width);
    block.columns = static_cast<int>(columns.last - columns.first);
    // Without taps there is no such pixel.
    const bool meets = block.rows > 0 && block.columns > 0;
    const int64_t row = meets ? top + rows.first * g.dilation_y : 0;
    const int64_t column = meets ? left + columns.first * g.dilation_x : 0;
    block.input = plane + (row * g.width + column) * pixel;
    block.taps = call.taps + (meets ? rows.first * g.kernel_width + columns.first : 0) * g.channels;
    block.output = to + (x - first) * pixel;
    kernels.block[static_cast<size_t>(call.element)][static_cast<size_t>(count - 1)](block);
    x += count;
  }
}

}  // namespace

const DepthwiseKernels& depthwise_kernels(InstructionSet set) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return depthwise_avx512();
  if (set == InstructionSet::kAvx2) return depthwise_avx2();
#endif
  (void)set;
  return kPortable;
}

void depthwise_taps(const ConvolutionGeometry& geometry, Element element, const void* weight, float* taps) {
  const auto value = [&](int64_t i) {
    if (element == Element::kFloat32) return static_cast<const float*>(weight)[i];
    const uint16_t bits = static_cast<const uint16_t*>(weight)[i];
    return element == Element::kBfloat16 ? bfloat16_to_float(bits) : float16_to_float(bits);
  };
  // A cache line of each tap's channels at a time.
  constexpr int64_t kTogether = 16;
  const int64_t kernel = geometry.kernel();
  for (int64_t first = 0; first < geometry.channels; first += kTogether) {
    const int64_t last = std::min(first + kTogether, geometry.channels);
    for (int64_t tap = 0; tap < kernel; ++tap) {
      for (int64_t c = first; c < last; ++c) taps[tap * geometry.channels + c] = value(c * kernel + tap);
    }
  }
}

FollowedResult depthwise(const Depthwise& call, InstructionSet set) {
  const ConvolutionGeometry& g = call.geometry;
  const DepthwiseKernels& kernels = depthwise_kernels(set);
  const int64_t width = g.out_width();
  const DepthwiseKernels::Rows* const whole_rows = row_kernels(call, kernels);
  // Blocks of much the same size.
  const int64_t together = divide_up(width, divide_up(width, whole_rows != nullptr ? kDepthwiseRow : kDepthwiseBlock));
  const int64_t row_blocks = divide_up(width, together);
  const int64_t products = together * g.channels * g.kernel();
  const int64_t grain = std::max<int64_t>(1, kProductsPerThread / products);
  const int64_t pixel = g.channels * element_bytes(call.element);
  const Follower* const follower =
      call.follower != nullptr && call.follower->fits(g.channels) ? call.follower : nullptr;
  // As many blocks of a row at a time as a follower should have.
  const int64_t most_blocks = std::max<int64_t>(1, kFollowedBytes / (together * pixel));
  parallel_for(0, g.images * g.out_height() * row_blocks, grain, [&](int64_t begin, int64_t end) {
    static thread_local Scratch memory;
    const bool elsewhere = follower != nullptr && !follower->wants_result();
    std::byte* const own = elsewhere ? memory.get((most_blocks + 1) * together * pixel + kFollowedBytes) : nullptr;
    int64_t waiting = 0, first = 0;  // pixels for the follower, from the first on
    const auto follow = [&] {
      if (waiting == 0) return;
      const std::byte* const at = elsewhere ? own : static_cast<const std::byte*>(call.output) + first * pixel;
      follower->run(first * g.channels, (first + waiting) * g.channels, at);
      waiting = 0;
    };
    while (begin < end) {
      const int64_t row = begin / row_blocks, block = begin % row_blocks;
      int64_t last_block = std::min(block + end - begin, row_blocks);
      if (follower != nullptr) last_block = std::min(last_block, block + most_blocks);
      const int64_t left = block * together, right = std::min<int64_t>(last_block * together, width);
      if (waiting == 0) first = row * width + left;
      std::byte* const to =
          elsewhere ? own + waiting * pixel : static_cast<std::byte*>(call.output) + (row * width + left) * pixel;
      const int64_t image = row / g.out_height(), y = row % g.out_height();
      if (whole_rows == nullptr) {
        compute(call, kernels, image, y, left, right, to);
      } else {
        compute_row(call, *whole_rows, together, image, y, left, right, to);
      }
      begin += last_block - block;
      if (follower == nullptr) continue;
      waiting += right - left;
      if (waiting * pixel >= kFollowedBytes || begin == end) follow();
    }
  });
  return follower != nullptr ? FollowedResult::kFollowed : FollowedResult::kMade;
}

FollowedResult depthwise(const Depthwise& call) { return depthwise(call, instruction_set()); }

}  // namespace hetero::backend
