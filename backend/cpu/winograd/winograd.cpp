#include "backend/cpu/winograd/winograd.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cstdlib>

#include "backend/base/parallel.h"
#include "backend/base/rounding.h"
#include "backend/cpu/kernels/panel_gemm.h"
#include "backend/cpu/vector/scratch.h"
#include "backend/cpu/winograd/winograd_kernel.h"

namespace hetero::backend {

#if !defined(__x86_64__)
const WinogradKernels& winograd_avx2() { std::abort(); }
const WinogradKernels& winograd_avx512() { std::abort(); }
#endif

namespace {

// A filter of so many bytes stays in a thread's second-level cache while it meets blocks of tiles.
constexpr int64_t kSmallFilter = 1 << 20;
// The bytes of such a block, and of tiles that meet a larger filter together.
constexpr int64_t kBlockBytes = 512 << 10;
constexpr int64_t kMostBytes = 4 << 20;
constexpr int64_t kBlocksPerThread = 4;
// Products of fewer rows are not efficient.
constexpr int64_t kFewestTiles = 24;
constexpr int64_t kLineFloats = 16;
// Outputs of a product that one thread computes.
constexpr int64_t kOutputsTogether = 128;
constexpr int64_t kTilesTogether = 8;
// Of the filter, that are worth another thread.
constexpr int64_t kTapsPerThread = 1 << 15;

const WinogradKernels& kernels_of(InstructionSet set) {
  assert(has_panels(set));
  return set == InstructionSet::kAvx512 ? winograd_avx512() : winograd_avx2();
}

// Floats from one matrix of tiles to the next. Rows are whole vectors; matrices do not begin at the
// same lines of a first-level cache.
int64_t row_floats(int64_t channels) { return round_up(channels, kLineFloats); }
int64_t plane_floats(int64_t tiles, int64_t channels) {
  const int64_t lines = tiles * row_floats(channels) / kLineFloats;
  return (lines | 1) * kLineFloats;
}

int64_t tile_bytes(const ConvolutionGeometry& g) {
  const int64_t floats = row_floats(g.channels) + row_floats(g.outputs);
  return kWinogradPoints * floats * static_cast<int64_t>(sizeof(float));
}

// Where the tiles of an image are. With dilation d, every d-th pixel along a dimension makes an
// image of its own. A cell has the tiles of all of them that make the same 2d × 2d pixels; without,
// it is a tile. Lines of cells lie below each other, those of all images one behind the other.
struct Tiling {
  explicit Tiling(const ConvolutionGeometry& g)
      : cell(g.dilation_y * g.dilation_x),
        cell_height(2 * g.dilation_y),
        cell_width(2 * g.dilation_x),
        columns(divide_up(g.out_width(), cell_width)),
        image_lines(divide_up(g.out_height(), cell_height)),
        lines(g.images * image_lines) {}

  int64_t cell;  // tiles
  int64_t cell_height, cell_width;
  int64_t columns, image_lines, lines;  // of cells

  int64_t line_tiles() const { return columns * cell; }
  int64_t tiles() const { return lines * line_tiles(); }
};

// Lines of cells, and of each a range of columns.
struct Block {
  int64_t line, last_line;
  int64_t left, right;

  int64_t lines() const { return last_line - line; }
  int64_t columns() const { return right - left; }
};

class Run {
 public:
  Run(const WinogradConvolution& call, InstructionSet set)
      : call_(call),
        g_(call.geometry),
        set_(set),
        kernels_(kernels_of(set)),
        channels_(g_.channels / call.groups),
        outputs_(g_.outputs / call.groups),
        filter_bytes_(winograd_filter_bytes(g_, call.groups, set)),
        width_(g_.out_width()),
        height_(g_.out_height()),
        tiling_(g_) {
    follower_ = call.follower != nullptr && call.follower->fits(g_.outputs) ? call.follower : nullptr;
  }

  FollowedResult run() {
    static thread_local Scratch shared;
    largest_ = shared.get<float>(tiling_.tiles() + g_.channels);
    zeros_ = largest_ + tiling_.tiles();
    std::fill_n(zeros_, g_.channels, 0.0F);
    const int64_t threads = thread_count(), lines = tiling_.lines, columns = tiling_.columns;
    const bool shares = filter_bytes_ <= kSmallFilter && tiling_.tiles() >= threads * kFewestTiles;
    const int64_t most = std::max<int64_t>(kFewestTiles, (shares ? kBlockBytes : kMostBytes) / tile_bytes(g_));
    // Whole lines, or parts of one.
    const int64_t parts = std::min(columns, divide_up(tiling_.line_tiles(), most));
    const int64_t together = std::max<int64_t>(1, most / tiling_.line_tiles());
    int64_t count = divide_up(lines, together);
    if (shares && threads > 1 && parts == 1) {
      // Some for each thread, so that none waits long for another.
      const int64_t fewest = divide_up(lines, divide_up(kFewestTiles, tiling_.line_tiles()));
      count = std::min(std::max(round_up(count, threads), kBlocksPerThread * threads), std::max(count, fewest));
    }
    const auto block = [&](int64_t i) {
      const int64_t line = i / parts, part = i % parts;
      return Block{lines * line / count, lines * (line + 1) / count, columns * part / parts,
                   columns * (part + 1) / parts};
    };
    if (shares) {
      parallel_for(0, count * parts, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) alone(block(i));
      });
    } else {
      for (int64_t i = 0; i < count * parts; ++i) by_all_threads(block(i));
    }
    if (!finite_ || !is_in_range()) return FollowedResult::kOutOfRange;
    return follower_ != nullptr ? FollowedResult::kFollowed : FollowedResult::kMade;
  }

 private:
  // Matrices of a block: what tiles became, and their products.
  struct Matrices {
    float* spread;
    float* sums;
    int64_t spread_plane, sums_plane;
  };
  int64_t line_tiles(const Block& block) const { return block.columns() * tiling_.cell; }
  int64_t tiles(const Block& block) const { return block.lines() * line_tiles(block); }

  Matrices matrices(const Block& block, Scratch& memory) const {
    const int64_t spread = plane_floats(tiles(block), g_.channels), sums = plane_floats(tiles(block), g_.outputs);
    auto* const all = memory.get<float>(kWinogradPoints * (spread + sums));
    return {all, all + kWinogradPoints * spread, spread, sums};
  }

  bool is_in_range() const {
    // The quartile of so many tiles that are not all zeros, about.
    constexpr int64_t kAsked = 255;
    float asked[kAsked + 1];
    const int64_t count = tiling_.tiles(), step = divide_up(count, kAsked);
    float* end = asked;
    for (int64_t i = 0; i < count; i += step) {
      if (largest_[i] > 0) *end++ = largest_[i];
    }
    if (end == asked) *end++ = 0;
    float* const quartile = asked + (end - asked) / 4;
    std::nth_element(asked, quartile, end);
    return *std::max_element(largest_, largest_ + count) <= kWinogradRange * *quartile;
  }

  void alone(const Block& block) {
    static thread_local Scratch memory;
    const Matrices made = matrices(block, memory);
    spread(block, made, 0, tiles(block));
    for (int64_t point = 0; point < kWinogradPoints; ++point) {
      for (int64_t group = 0; group < call_.groups; ++group) multiply(block, made, point, group, 0, outputs_);
    }
    gather(block, made, 0, block.lines());
  }

  void by_all_threads(const Block& block) {
    static thread_local Scratch memory;
    const Matrices made = matrices(block, memory);
    parallel_for(0, tiles(block), kTilesTogether, [&](int64_t begin, int64_t end) { spread(block, made, begin, end); });
    const int64_t parts = divide_up(outputs_, kOutputsTogether), products = call_.groups * parts;
    parallel_for(0, kWinogradPoints * products, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i % parts * kOutputsTogether;
        multiply(block, made, i / products, i / parts % call_.groups, first,
                 std::min(first + kOutputsTogether, outputs_));
      }
    });
    parallel_for(0, block.lines(), 1, [&](int64_t begin, int64_t end) { gather(block, made, begin, end); });
  }

  // Tiles [begin, end) of the block.
  void spread(const Block& block, const Matrices& made, int64_t begin, int64_t end) const {
    const float* pixels[kTilesTogether * kWinogradPoints];
    // As many places as the block has tiles; where among its lines is all the same.
    float* const largest = largest_ + block.line * tiling_.line_tiles() + block.lines() * block.left * tiling_.cell;
    for (int64_t first = begin; first < end; first += kTilesTogether) {
      const int64_t count = std::min(kTilesTogether, end - first);
      for (int64_t i = 0; i < count; ++i) find_pixels(block, first + i, pixels + i * kWinogradPoints);
      kernels_.spread({.pixels = pixels,
                       .tiles = count,
                       .channels = g_.channels,
                       .to = made.spread + first * row_floats(g_.channels),
                       .row = row_floats(g_.channels),
                       .plane = made.spread_plane,
                       .largest = largest + first,
                       .inner_only = g_.padding_y == g_.dilation_y && g_.padding_x == g_.dilation_x});
    }
  }

  // The first pixel that a tile of a line makes, counted from the first of its block.
  int64_t row_of(int64_t tile) const { return tile % tiling_.cell / g_.dilation_x; }
  int64_t column_of(int64_t tile) const {
    return tile / tiling_.cell * tiling_.cell_width + tile % tiling_.cell % g_.dilation_x;
  }

  void find_pixels(const Block& block, int64_t tile, const float** to) const {
    const int64_t line = block.line + tile / line_tiles(block), of_line = tile % line_tiles(block);
    const int64_t top = line % tiling_.image_lines * tiling_.cell_height + row_of(of_line) - g_.padding_y;
    const int64_t left = block.left * tiling_.cell_width + column_of(of_line) - g_.padding_x;
    const float* const image = call_.input + line / tiling_.image_lines * g_.pixels() * g_.channels;
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t y = top + i * g_.dilation_y;
      const bool inside = y >= 0 && y < g_.height;
      const float* const row = image + y * g_.width * g_.channels;
      for (int64_t j = 0; j < 4; ++j) {
        const int64_t x = left + j * g_.dilation_x;
        *to++ = inside && x >= 0 && x < g_.width ? row + x * g_.channels : zeros_;
      }
    }
  }

  // Outputs [begin, end) of a group, in one of the products. REQUIRES: they are whole panels.
  void multiply(const Block& block, const Matrices& made, int64_t point, int64_t group, int64_t begin,
                int64_t end) const {
    const int64_t filter = (point * call_.groups + group) * filter_bytes_ / (kWinogradPoints * call_.groups);
    panel_gemm({.m = tiles(block),
                .n = end - begin,
                .k = channels_,
                .x = made.spread + point * made.spread_plane + group * channels_,
                .x_stride = row_floats(g_.channels),
                .packed = reinterpret_cast<const std::byte*>(call_.filter) + filter +
                          panel_weight_bytes(Element::kFloat32, begin, channels_, set_),
                .y = made.sums + point * made.sums_plane + group * outputs_ + begin,
                .y_stride = row_floats(g_.outputs)},
               set_);
  }

  // Lines [begin, end) of the block.
  void gather(const Block& block, const Matrices& made, int64_t begin, int64_t end) {
    static thread_local Scratch memory;
    const int64_t left = block.left * tiling_.cell_width;
    const int64_t width = std::min(block.right * tiling_.cell_width, width_) - left;
    const bool elsewhere = follower_ != nullptr && !follower_->wants_result();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t line = block.line + i, y = line % tiling_.image_lines * tiling_.cell_height;
      const int64_t rows = std::min(tiling_.cell_height, height_ - y);
      const int64_t first = (line / tiling_.image_lines * height_ + y) * width_ + left;  // pixel
      const int64_t pitch = (elsewhere ? width : width_) * g_.outputs;
      // Pixels that nobody wants have room in front.
      const int64_t pixels = 1 + (elsewhere ? tiling_.cell_height * width : 0);
      float* const spare = memory.get<float>(pixels * g_.outputs);
      float* const to = elsewhere ? spare + g_.outputs : call_.output + first * g_.outputs;
      if (!gather_line(made, i * line_tiles(block), line_tiles(block), width, rows, to, pitch, spare)) finite_ = false;
      if (follower_ == nullptr) continue;
      const bool dense = width == width_;
      for (int64_t row = 0; row < (dense ? 1 : rows); ++row) {
        const int64_t start = (first + row * width_) * g_.outputs;
        follower_->run(start, start + (dense ? rows : 1) * width * g_.outputs, to + row * pitch);
      }
    }
  }

  // A line of tiles, from `first` on, whose pixels are `pitch` floats from row to row.
  bool gather_line(const Matrices& made, int64_t first, int64_t tiles, int64_t width, int64_t rows, float* to,
                   int64_t pitch, float* spare) const {
    float* pixels[kTilesTogether * kWinogradPixels];
    bool finite = true;
    for (int64_t begin = 0; begin < tiles; begin += kTilesTogether) {
      const int64_t count = std::min(kTilesTogether, tiles - begin);
      for (int64_t i = 0; i < count * kWinogradPixels; ++i) {
        const int64_t tile = begin + i / kWinogradPixels;
        const int64_t y = row_of(tile) + i / 2 % 2 * g_.dilation_y, x = column_of(tile) + i % 2 * g_.dilation_x;
        pixels[i] = y < rows && x < width ? to + y * pitch + x * g_.outputs : spare;
      }
      finite &= kernels_.gather({.from = made.sums + (first + begin) * row_floats(g_.outputs),
                                 .row = row_floats(g_.outputs),
                                 .plane = made.sums_plane,
                                 .tiles = count,
                                 .outputs = g_.outputs,
                                 .bias = call_.bias,
                                 .pixels = pixels,
                                 .limits = call_.limits.any()});
    }
    return finite;
  }

  const WinogradConvolution& call_;
  const ConvolutionGeometry& g_;
  const InstructionSet set_;
  const WinogradKernels& kernels_;
  const int64_t channels_, outputs_;  // of a group
  const int64_t filter_bytes_;
  const int64_t width_, height_;  // of the output
  const Tiling tiling_;
  const Follower* follower_ = nullptr;
  float* largest_ = nullptr;  // per tile, the magnitude of its pixels
  float* zeros_ = nullptr;    // a pixel outside
  std::atomic<bool> finite_{true};
};

}  // namespace

bool fits_winograd(const ConvolutionGeometry& g, InstructionSet set) {
  if (!has_panels(set) || g.kernel_height != 3 || g.kernel_width != 3 || g.stride_y != 1 || g.stride_x != 1) {
    return false;
  }
  // Cells of a large dilation would be more than blocks should have, and reach beyond the image.
  const Tiling tiling(g);
  return tiling.cell == 1 || (tiling.cell * tile_bytes(g) <= kMostBytes &&
                              tiling.tiles() * kWinogradPixels <= 2 * g.images * g.positions());
}

int64_t winograd_filter_bytes(const ConvolutionGeometry& g, int64_t groups, InstructionSet set) {
  return kWinogradPoints * groups * panel_weight_bytes(Element::kFloat32, g.outputs / groups, g.channels / groups, set);
}

bool make_winograd_filter(const ConvolutionGeometry& g, int64_t groups, const float* weight, float* to,
                          InstructionSet set) {
  constexpr int64_t kTogether = 32;  // outputs: whole panels
  const int64_t channels = g.channels / groups, outputs = g.outputs / groups, parts = divide_up(outputs, kTogether);
  const int64_t group_bytes = panel_weight_bytes(Element::kFloat32, outputs, channels, set);
  const int64_t grain = std::max<int64_t>(1, kTapsPerThread / (kTogether * channels * 9));
  std::atomic<bool> in_range{true};
  parallel_for(0, groups * parts, grain, [&](int64_t begin, int64_t end) {
    static thread_local Scratch memory;
    const int64_t plane = plane_floats(kTogether, channels), row = row_floats(channels);
    float* const turned = memory.get<float>(kWinogradPoints * plane);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t group = i / parts, first = i % parts * kTogether, count = std::min(kTogether, outputs - first);
      for (int64_t n = 0; n < count; ++n) {
        std::array<float, 9> largest;
        kernels_of(set).turn({.taps = weight + (group * outputs + first + n) * 9 * channels,
                              .channels = channels,
                              .to = turned + n * row,
                              .plane = plane,
                              .largest = largest.data()});
        const float least = *std::ranges::max_element(largest) / kWinogradRange;
        if (std::ranges::any_of(largest, [&](float tap) { return tap != 0 && tap < least; })) in_range = false;
      }
      auto* packed = reinterpret_cast<std::byte*>(to) + group * group_bytes +
                     panel_weight_bytes(Element::kFloat32, first, channels, set);
      for (int64_t point = 0; point < kWinogradPoints; ++point, packed += groups * group_bytes) {
        pack_panel_weight({.n = count, .k = channels, .w = turned + point * plane, .w_stride = row}, packed, set);
      }
    }
  });
  return in_range;
}

FollowedResult convolve_winograd(const WinogradConvolution& call, InstructionSet set) { return Run(call, set).run(); }

}  // namespace hetero::backend
