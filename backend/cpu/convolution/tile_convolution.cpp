// Threads share blocks of lines of outputs where there are many; each packs the lines of input that
// its block needs. With few and many channels, all lines are packed first, and threads share the
// panels of the weight.

#include "backend/cpu/convolution/tile_convolution.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "backend/base/parallel.h"
#include "backend/base/rounding.h"
#include "backend/cpu/kernels/tile_kernel.h"
#include "backend/cpu/vector/scratch.h"

namespace hetero::backend {
namespace {

// The packed pixels of a block leave room for two panels in a second-level cache of 2 MiB.
constexpr int64_t kBlockBytes = 800 << 10;
constexpr int64_t kSharedBytes = 8 << 20;
// Outputs that are still in the cache when a follower runs on them.
constexpr int64_t kFollowedBytes = 512 << 10;
// With this many outputs per thread, threads divide the lines, unless the weight has this many more
// rows: each thread would read it all.
constexpr int64_t kOutputsForThread = 96;
constexpr int64_t kMuchWeight = 4;
constexpr int64_t kRowBytes = 64;  // of a tile
constexpr int64_t kBytesPerThread = 32 << 10;
constexpr uint32_t kInfinity = 0x7f800000;
// Tiles are loaded whole; what lies behind the last pixel is not used.
constexpr int64_t kSlack = 2 * kTileRows;

// A signal as an image of one column: threads share lines.
ConvolutionGeometry upright(const ConvolutionGeometry& g) {
  if (g.height != 1 || g.kernel_height != 1 || g.padding_y != 0) return g;
  ConvolutionGeometry turned = g;
  std::swap(turned.height, turned.width);
  std::swap(turned.kernel_height, turned.kernel_width);
  std::swap(turned.stride_y, turned.stride_x);
  std::swap(turned.padding_y, turned.padding_x);
  std::swap(turned.dilation_y, turned.dilation_x);
  turned.stride_x = turned.dilation_x = 1;
  return turned;
}

// Packed lines beyond those of the outputs, and the pixels of one.
int64_t halo_of(const ConvolutionGeometry& g) { return g.dilation_y * (g.kernel_height - 1) / g.stride_y; }
int64_t line_of(const ConvolutionGeometry& g) {
  return g.out_width() + g.dilation_x * (g.kernel_width - 1) / g.stride_x;
}
// Of a packed pixel.
int64_t row_bytes(const ConvolutionGeometry& g, Element element) {
  return g.channels / kTileDepth * plane_count(element) * kRowBytes;
}

class Convolution {
 public:
  explicit Convolution(const TileConvolution& call)
      : call_(call),
        g_(upright(call.geometry)),
        kernels_(tile_kernels(call.element)),
        item_(element_bytes(call.element)),
        depth_(g_.channels / kTileDepth),
        panels_(divide_up(g_.outputs, kPanel)),
        sets_(tile_sets(g_, call.groups, call.element)),
        joined_(sets_ < call.groups),
        remainders_(kept<Remainder>()),
        shifts_(kept<int64_t>()) {
    remainders_.clear();
    halo_ = halo_of(g_);
    line_ = line_of(g_);
    find_remainders();
    std::memcpy(&weight_, call.packed, sizeof(weight_));
  }

  FollowedResult run() {
    const int64_t lines = g_.images * g_.out_height(), outputs = lines * g_.out_width();
    const int64_t threads = thread_count();
    if (outputs < threads * kOutputsForThread || g_.outputs >= kMuchWeight * outputs) {
      set_lines(kSharedBytes, 1);
      return share_panels() ? FollowedResult::kMade : FollowedResult::kOutOfRange;
    }
    follows_ = call_.follower != nullptr && call_.follower->fits(g_.outputs);
    set_lines(kBlockBytes, threads);
    std::atomic<bool> reachable{true};
    parallel_for(0, g_.images * blocks_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end && reachable; ++i) {
        if (!run_block(i / blocks_, i % blocks_)) reachable = false;
      }
    });
    if (!reachable) return FollowedResult::kOutOfRange;
    return follows_ ? FollowedResult::kFollowed : FollowedResult::kMade;
  }

 private:
  // Pixels whose places leave these remainders are packed side by side.
  struct Remainder {
    int64_t y, x;
    bool operator==(const Remainder&) const = default;
  };

  // The thread's memory, from call to call.
  template <typename T>
  static std::vector<T>& kept() {
    static thread_local std::vector<T> memory;
    return memory;
  }

  void find_remainders() {
    for (int64_t ky = 0; ky < g_.kernel_height; ++ky) {
      for (int64_t kx = 0; kx < g_.kernel_width; ++kx) {
        const Remainder one = remainder_of(ky, kx);
        if (std::ranges::find(remainders_, one) == remainders_.end()) remainders_.push_back(one);
      }
    }
  }
  Remainder remainder_of(int64_t ky, int64_t kx) const {
    return {ky * g_.dilation_y % g_.stride_y, kx * g_.dilation_x % g_.stride_x};
  }
  auto remainders() const { return static_cast<int64_t>(remainders_.size()); }

  // How many lines of outputs a block has, in equal blocks, as many as can be shared equally.
  void set_lines(int64_t bytes, int64_t threads) {
    const int64_t line_bytes = remainders() * line_ * row_bytes(g_, call_.element);
    int64_t most = std::max<int64_t>(1, bytes / line_bytes - halo_);
    if (follows_) most = std::clamp<int64_t>(kFollowedBytes / (g_.out_width() * g_.outputs * item_), 1, most);
    blocks_ = divide_up(g_.out_height(), std::min(most, g_.out_height()));
    while (g_.images * blocks_ % threads != 0 && blocks_ < g_.out_height()) ++blocks_;
    lines_ = divide_up(g_.out_height(), blocks_);
    blocks_ = divide_up(g_.out_height(), lines_);
    const int64_t plane = (lines_ + halo_) * line_;  // pixels of a remainder
    tile_stride_ = (remainders() * plane + kSlack) * kRowBytes;
    shifts_.clear();
    for (int64_t ky = 0; ky < g_.kernel_height; ++ky) {
      for (int64_t kx = 0; kx < g_.kernel_width; ++kx) {
        const int64_t of = std::ranges::find(remainders_, remainder_of(ky, kx)) - remainders_.begin();
        const int64_t y = ky * g_.dilation_y / g_.stride_y, x = kx * g_.dilation_x / g_.stride_x;
        shifts_.push_back((of * plane + y * line_ + x) * kRowBytes);
      }
    }
  }

  int64_t packed_bytes() const { return tile_stride_ * depth_ * plane_count(call_.element); }
  int64_t lines_of(int64_t block) const { return std::min(lines_, g_.out_height() - block * lines_); }

  // Lines [begin, end) of those that a block's outputs need, of one remainder. False where values
  // are out of reach.
  bool pack_lines(int64_t image, int64_t first, int64_t begin, int64_t end, int64_t remainder, std::byte* to) const {
    const auto [ry, rx] = remainders_[static_cast<size_t>(remainder)];
    to += remainder * (lines_ + halo_) * line_ * kRowBytes;
    const int64_t top = first * g_.stride_y + ry - g_.padding_y, left = rx - g_.padding_x;
    // Pixels of a line that are there.
    const int64_t x_begin = std::min(line_, left >= 0 ? 0 : divide_up(-left, g_.stride_x));
    const int64_t x_end = std::clamp(divide_up(g_.width - left, g_.stride_x), x_begin, line_);
    for (int64_t line = begin; line < end;) {
      const int64_t y = top + line * g_.stride_y, at = line * line_;
      if (y < 0 || y >= g_.height) {
        clear(to, at, at + line_);
        ++line;
        continue;
      }
      // Of one pixel that is there, several lines are as one.
      const int64_t together =
          line_ == 1 && x_end > x_begin ? std::min(end - line, divide_up(g_.height - y, g_.stride_y)) : 1;
      clear(to, at, at + x_begin);
      clear(to, at + x_end, at + line_);
      const int64_t pixel = (image * g_.height + y) * g_.width + left + x_begin * g_.stride_x;
      const int64_t step = line_ == 1 ? g_.stride_y * g_.width : g_.stride_x;
      const auto pack = joined_ ? kernels_.pack_measured_rows : kernels_.pack_rows;
      const Magnitudes found =
          pack(element_at(call_.input, pixel * g_.channels, call_.element), step * g_.channels,
               (x_end - x_begin) * together, g_.channels, to + (at + x_begin) * kRowBytes, kTileBytes, tile_stride_);
      if (call_.element == Element::kFloat32 && !within_reach(found, weight_)) return false;
      if (joined_ && found.largest >= kInfinity) return false;
      line += together;
    }
    return true;
  }

  // Packed pixels [begin, end) are 0.
  void clear(std::byte* to, int64_t begin, int64_t end) const {
    for (int64_t t = 0; t < depth_ * plane_count(call_.element) && begin < end; ++t) {
      std::memset(to + t * tile_stride_ + begin * kRowBytes, 0, static_cast<size_t>((end - begin) * kRowBytes));
    }
  }

  // Outputs of `lines` lines by panels [begin, end), to y.
  void multiply(const std::byte* x, int64_t lines, int64_t begin, int64_t end, std::byte* y) const {
    const int64_t bytes = panel_bytes(call_.element, g_.kernel() * g_.channels / sets_);
    const int64_t depth = depth_ / sets_, outputs_of_set = g_.outputs / sets_;
    const int64_t rows = (lines - 1) * line_ + g_.out_width();
    const auto* const w = static_cast<const std::byte*>(call_.packed) + kTileHeader;
    const TileUnit unit(rows);
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t output = panel * kPanel, count = std::min(kPanel, g_.outputs - output);
      alignas(64) float bias[kPanel] = {};
      if (call_.bias != nullptr) add_elements(call_.element, call_.bias, output, count, bias);
      const int64_t set = output / outputs_of_set;
      kernels_.multiply({.x = x + set * depth * plane_count(call_.element) * tile_stride_,
                         .x_stride = kTileBytes,
                         .tile_stride = tile_stride_,
                         .shifts = shifts_.data(),
                         .taps = g_.kernel(),
                         .rows = rows,
                         .w = w + panel * bytes,
                         .depth = depth,
                         .bias = call_.bias != nullptr ? bias : nullptr,
                         .y = y + output * item_,
                         .y_stride = g_.outputs,
                         .limits = call_.limits.any(),
                         .line = line_,
                         .line_outputs = g_.out_width(),
                         .count = count});
    }
  }

  // The first output of a line.
  int64_t output_at(int64_t image, int64_t line) const { return image * g_.positions() + line * g_.out_width(); }
  std::byte* address_of(int64_t output) const {
    return static_cast<std::byte*>(call_.output) + output * g_.outputs * item_;
  }

  bool run_block(int64_t image, int64_t block) const {
    static thread_local Scratch memory, outputs;
    std::byte* const x = memory.get(packed_bytes());
    const int64_t lines = lines_of(block), first = output_at(image, block * lines_);
    for (int64_t r = 0; r < remainders(); ++r) {
      if (!pack_lines(image, block * lines_, 0, lines + halo_, r, x)) return false;
    }
    const bool elsewhere = follows_ && !call_.follower->wants_result();
    const int64_t count = lines * g_.out_width();
    std::byte* const y = elsewhere ? outputs.get(count * g_.outputs * item_) : address_of(first);
    multiply(x, lines, 0, panels_, y);
    if (follows_) call_.follower->run(first * g_.outputs, (first + count) * g_.outputs, y);
    return true;
  }

  bool share_panels() const {
    static thread_local Scratch memory;
    std::byte* const x = memory.get(packed_bytes());
    std::atomic<bool> reachable{true};
    for (int64_t i = 0; i < g_.images * blocks_ && reachable; ++i) {
      const int64_t image = i / blocks_, block = i % blocks_, lines = lines_of(block) + halo_;
      const int64_t grain = std::max<int64_t>(1, kBytesPerThread / (line_ * g_.channels * item_));
      for (int64_t r = 0; r < remainders(); ++r) {
        parallel_for(0, lines, grain, [&](int64_t begin, int64_t end) {
          if (!pack_lines(image, block * lines_, begin, end, r, x)) reachable = false;
        });
      }
      std::byte* const y = address_of(output_at(image, block * lines_));
      // Few pieces, since each goes through all lines.
      parallel_for(0, panels_, divide_up(panels_, 2 * thread_count()),
                   [&](int64_t begin, int64_t end) { multiply(x, lines_of(block), begin, end, y); });
    }
    return reachable;
  }

  const TileConvolution& call_;
  const ConvolutionGeometry g_;
  const TileKernels& kernels_;
  const int64_t item_;
  const int64_t depth_;  // tiles of channels
  const int64_t panels_;
  const int64_t sets_;
  const bool joined_;  // a set is of several groups
  int64_t halo_;       // lines that a block needs beyond its own
  int64_t line_;       // pixels of a packed line
  std::vector<Remainder>& remainders_;
  std::vector<int64_t>& shifts_;
  Magnitudes weight_;
  bool follows_ = false;
  int64_t lines_ = 0;   // of outputs in a block
  int64_t blocks_ = 0;  // of an image
  int64_t tile_stride_ = 0;
};

}  // namespace

bool fits_tiles(const ConvolutionGeometry& geometry, Element element) {
  if (geometry.channels % kTileDepth != 0) return false;
  const ConvolutionGeometry g = upright(geometry);
  const auto remainders = [](int64_t kernel, int64_t stride) { return std::min(kernel, stride); };
  const int64_t line_bytes = remainders(g.kernel_height, g.stride_y) * remainders(g.kernel_width, g.stride_x) *
                             line_of(g) * row_bytes(g, element);
  const int64_t halo = halo_of(g), lines = std::clamp<int64_t>(kBlockBytes / line_bytes - halo, 1, g.out_height());
  return 2 * (lines + halo) <= lines * std::max<int64_t>(4, g.kernel());
}

int64_t tile_sets(const ConvolutionGeometry& geometry, int64_t groups, Element element) {
  if (groups == 1) return 1;
  if (element != Element::kBfloat16) return 0;
  const int64_t channels = geometry.channels / groups, outputs = geometry.outputs / groups;
  // Of more groups together, most products would be of zeros.
  constexpr int64_t kMostTogether = 16;
  for (int64_t together = 1; together <= std::min(groups, kMostTogether); ++together) {
    const bool whole = groups % together == 0 && channels * together % kTileDepth == 0;
    if (whole && outputs * together % kPanel == 0) return groups / together;
  }
  return 0;
}

FollowedResult convolve_tiles(const TileConvolution& call) { return Convolution(call).run(); }

}  // namespace hetero::backend
