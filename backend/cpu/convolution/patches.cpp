#include "backend/cpu/convolution/patches.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "backend/base/parallel.h"
#include "backend/base/rounding.h"
#include "backend/cpu/kernels/panel_gemm.h"
#include "backend/cpu/vector/scratch.h"
#include "backend/cpu/vector/strided_copy.h"

namespace hetero::backend {
namespace {

// A weight of so many bytes stays in a thread's second-level cache while it meets blocks of rows.
constexpr int64_t kSmallWeight = 1 << 20;
// The bytes of such a block, and of rows that meet a larger weight together.
constexpr int64_t kBlockBytes = 192 << 10;
constexpr int64_t kMostBytes = 4 << 20;
// Products of fewer rows are not efficient.
constexpr int64_t kFewestRows = 48;
constexpr int64_t kBlocksPerThread = 8;
constexpr int64_t kBytesPerThread = 32 << 10;

// How the rows of a product are divided. A weight that stays in each thread's cache meets small
// blocks, which threads share. A larger one meets as many rows as possible at once, and threads
// share its outputs.
struct Blocks {
  // `row_bytes`: of x as it is read. A follower's rows should be in the cache, too.
  Blocks(const Matvec& call, int64_t row_bytes, bool follows) : rows(call.m) {
    const int64_t threads = thread_count(), item = element_bytes(call.element);
    const bool small_weight = call.n * call.k * item <= kSmallWeight;
    shared = small_weight && rows >= threads * kFewestRows;
    int64_t most = (small_weight ? kBlockBytes : kMostBytes) / row_bytes;
    if (follows && shared) most = std::min(most, kBlockBytes / (call.n * item));
    block = std::clamp(most, std::min(kFewestRows, rows), rows);
    int64_t count = divide_up(rows, block);
    // Some for each thread, so that none waits long for another.
    if (shared && threads > 1) {
      const int64_t each = std::min(kBlocksPerThread, rows / (kFewestRows * threads));
      count = std::max(round_up(count, threads), each * threads);
    }
    block = divide_up(rows, count);
  }

  // Calls body(first, count) for each block.
  void run(FunctionRef<void(int64_t, int64_t)> body) const {
    const auto run_some = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) body(i * block, std::min(block, rows - i * block));
    };
    const int64_t count = divide_up(rows, block);
    if (shared) {
      parallel_for(0, count, 1, run_some);
    } else {
      run_some(0, count);
    }
  }

  int64_t rows;
  int64_t block;  // rows
  bool shared;    // each block is one thread's
};

// Rows [first, first + count) of a result of `width` elements a row, which `make` puts where it is
// told.
void make_rows(void* result, int64_t width, Element element, int64_t first, int64_t count,
               FunctionRef<void(void*)> make, const Follower* follower) {
  static thread_local Scratch memory;
  const int64_t row_bytes = width * element_bytes(element);
  const bool elsewhere = follower != nullptr && !follower->wants_result();
  void* const to = elsewhere ? memory.get(count * row_bytes) : static_cast<std::byte*>(result) + first * row_bytes;
  make(to);
  if (follower != nullptr) follower->run(first * width, (first + count) * width, to);
}

// Rows of the result, from `first` on; `part` has their x.
void multiply_block(Matvec part, int64_t first, FunctionRef<void(const Matvec&)> multiply, const Follower* follower) {
  const auto make = [&](void* y) {
    part.y = y;
    multiply(part);
  };
  make_rows(part.y, part.y_stride, part.element, first, part.m, make, follower);
}

// Positions of all images one after the other: the image, and the pixel that the kernel's first
// point meets, which may be outside.
struct Corner {
  Corner(const ConvolutionGeometry& geometry, int64_t row)
      : g(geometry), out_width(g.out_width()), out_height(g.out_height()) {
    const int64_t position = row % (out_height * out_width);
    image = row / (out_height * out_width);
    y = position / out_width;
    x = position % out_width;
  }
  int64_t top() const { return y * g.stride_y - g.padding_y; }
  int64_t left() const { return x * g.stride_x - g.padding_x; }
  void next() {
    if (++x < out_width) return;
    x = 0;
    if (++y < out_height) return;
    y = 0;
    ++image;
  }

  const ConvolutionGeometry& g;
  const int64_t out_width, out_height;
  int64_t image, y, x;  // of the output
};

// As RowPieces::find, for positions [first, first + count): the pixels that the kernel meets, or
// `zeros` outside the images.
void find_pixels(const ConvolutionGeometry& g, int64_t pixel_bytes, const std::byte* input, const void* zeros,
                 int64_t first, int64_t count, int64_t stride, const void** to) {
  Corner corner(g, first);
  for (int64_t r = 0; r < count; ++r, corner.next()) {
    const int64_t image = corner.image, top = corner.top(), left = corner.left();
    const void** at = to + r;
    for (int64_t ky = 0; ky < g.kernel_height; ++ky) {
      const int64_t y = top + ky * g.dilation_y;
      const bool is_row = y >= 0 && y < g.height;
      const std::byte* const line = input + (image * g.height + (is_row ? y : 0)) * g.width * pixel_bytes;
      for (int64_t kx = 0; kx < g.kernel_width; ++kx, at += stride) {
        const int64_t x = left + kx * g.dilation_x;
        *at = is_row && x >= 0 && x < g.width ? line + x * pixel_bytes : zeros;
      }
    }
  }
}

// ---- direct convolutions of few channels

// The images with zeros around them, as far as the kernel meets them.
struct Padded {
  explicit Padded(const ConvolutionGeometry& g)
      : height((g.out_height() - 1) * g.stride_y + g.dilation_y * (g.kernel_height - 1) + 1),
        width((g.out_width() - 1) * g.stride_x + g.kernel_width) {}
  int64_t height, width;
};

constexpr int64_t kMostFloats = 16 << 20;
constexpr int64_t kElementsPerThread = 16 << 10;
constexpr int64_t kTurnedBytes = 16 << 10;

// Whether pieces are rows of the kernel, of padded images. REQUIRES: has_panels(set).
bool reads_lines(const ConvolutionGeometry& g, int64_t groups, Element element, InstructionSet set) {
  const Padded padded(g);
  const double floats = static_cast<double>(g.images) * static_cast<double>(padded.height) *
                        static_cast<double>(padded.width) * static_cast<double>(g.channels);
  return groups == 1 && g.channels <= kMostFewChannels && g.dilation_x == 1 &&
         g.kernel_width * g.channels % panel_pieces(element, set).terms == 0 && floats <= kMostFloats;
}
// Whether they may be pixels.
bool reads_pixels(const ConvolutionGeometry& g, int64_t groups, Element element, InstructionSet set) {
  const PanelPieces pieces = panel_pieces(element, set);
  return g.channels / groups % pieces.terms == 0 &&
         (!pieces.floats || g.images * g.pixels() * g.channels <= kMostFloats);
}

Scratch& images_memory() {
  static thread_local Scratch memory;
  return memory;
}

const std::byte* widen_images(const DirectConvolution& call, InstructionSet set) {
  const int64_t count = call.geometry.images * call.geometry.pixels() * call.geometry.channels;
  float* const made = images_memory().get<float>(count);
  parallel_for(0, count, kElementsPerThread, [&](int64_t begin, int64_t end) {
    widen(call.element, element_at(call.input, begin, call.element), end - begin, made + begin, set);
  });
  return reinterpret_cast<const std::byte*>(made);
}

// [images, height, width, channels] of the padded images, in floats or in the call's element.
const std::byte* pad_images(const DirectConvolution& call, bool as_floats, InstructionSet set) {
  const ConvolutionGeometry& g = call.geometry;
  const Padded padded(g);
  const int64_t item = element_bytes(call.element);
  const int64_t pixel_bytes = g.channels * (as_floats ? static_cast<int64_t>(sizeof(float)) : item);
  const int64_t line_bytes = padded.width * pixel_bytes, left = std::min(g.padding_x, padded.width);
  const int64_t pixels = std::min(g.width, padded.width - left), right = left + pixels;
  std::byte* const made = images_memory().get(g.images * padded.height * line_bytes);
  const auto put_pixels = [&](int64_t image, int64_t y, std::byte* to) {
    static thread_local Scratch memory;
    const bool widens = as_floats && call.element != Element::kFloat32;
    const std::byte* from = element_at(call.input, (image * g.height + y) * g.width * g.channels, call.element);
    if (call.input_planes) {
      from = element_at(call.input, (image * g.channels * g.height + y) * g.width, call.element);
      std::byte* const together = widens ? memory.get(pixels * g.channels * item) : to;
      gather_tile(together, reinterpret_cast<const char*>(from), pixels, item, g.channels, g.pixels() * item,
                  static_cast<int>(item));
      from = together;
    }
    if (widens) {
      widen(call.element, from, pixels * g.channels, reinterpret_cast<float*>(to), set);
    } else if (!call.input_planes) {
      std::memcpy(to, from, static_cast<size_t>(pixels * pixel_bytes));
    }
  };
  const int64_t grain = std::max<int64_t>(1, kElementsPerThread / (padded.width * g.channels));
  parallel_for(0, g.images * padded.height, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t y = i % padded.height - g.padding_y;
      std::byte* const to = made + i * line_bytes;
      if (y < 0 || y >= g.height) {
        std::memset(to, 0, static_cast<size_t>(line_bytes));
        continue;
      }
      std::memset(to, 0, static_cast<size_t>(left * pixel_bytes));
      put_pixels(i / padded.height, y, to + left * pixel_bytes);
      std::memset(to + right * pixel_bytes, 0, static_cast<size_t>((padded.width - right) * pixel_bytes));
    }
  });
  return made;
}

// As RowPieces::find, for positions [first, first + count): the rows of the kernel in padded
// images.
void find_lines(const ConvolutionGeometry& g, int64_t pixel_bytes, const std::byte* images, int64_t first,
                int64_t count, int64_t stride, const void** to) {
  const Padded padded(g);
  const int64_t line_bytes = padded.width * pixel_bytes;
  Corner corner(g, first);
  for (int64_t r = 0; r < count; ++r, corner.next()) {
    const std::byte* line = images + (corner.image * padded.height + corner.y * g.stride_y) * line_bytes +
                            corner.x * g.stride_x * pixel_bytes;
    for (int64_t ky = 0; ky < g.kernel_height; ++ky, line += g.dilation_y * line_bytes) to[ky * stride + r] = line;
  }
}

// Positions [first, first + count) of [images, positions, outputs] to [images, outputs, positions].
void put_planes(const ConvolutionGeometry& g, int64_t item, const std::byte* rows, int64_t first, int64_t count,
                std::byte* output) {
  // Rows that a first-level cache holds, while planes are written one after the other.
  const int64_t together = std::max<int64_t>(16, kTurnedBytes / (g.outputs * item)), positions = g.positions();
  while (count > 0) {
    const int64_t image = first / positions, position = first % positions;
    const int64_t part = std::min({count, together, positions - position});
    std::byte* to = output + (image * g.outputs * positions + position) * item;
    for (int64_t n = 0; n < g.outputs; ++n, to += positions * item) {
      gather_tile(to, reinterpret_cast<const char*>(rows) + n * item, 1, 0, part, g.outputs * item,
                  static_cast<int>(item));
    }
    rows += part * g.outputs * item;
    first += part;
    count -= part;
  }
}

// Nothing where a follower could not run on them.
std::optional<Blocks> blocks_to_follow(const Matvec& call) {
  if (call.x_columns || call.y_stride != call.n) return std::nullopt;
  const Blocks blocks(call, call.k * element_bytes(call.element), true);
  return blocks.shared ? std::optional(blocks) : std::nullopt;
}

}  // namespace

void gather_patches(const ConvolutionGeometry& g, int64_t element_bytes, const void* input, int64_t first,
                    int64_t count, void* rows, int64_t row_bytes) {
  const int64_t pixel = g.channels * element_bytes, line = g.kernel_width * pixel;
  Corner corner(g, first);
  for (int64_t row = first; row < first + count; ++row, corner.next()) {
    auto* to = static_cast<std::byte*>(rows) + (row - first) * row_bytes;
    const int64_t image = corner.image, top = corner.top(), left = corner.left();
    for (int64_t ky = 0; ky < g.kernel_height; ++ky, to += line) {
      const int64_t y = top + ky * g.dilation_y;
      if (y < 0 || y >= g.height) {
        std::memset(to, 0, static_cast<size_t>(line));
        continue;
      }
      const auto* const from = static_cast<const std::byte*>(input) + (image * g.height + y) * g.width * pixel;
      if (g.dilation_x == 1) {
        const int64_t begin = std::clamp<int64_t>(-left, 0, g.kernel_width);
        const int64_t end = std::clamp<int64_t>(g.width - left, begin, g.kernel_width);
        std::memset(to, 0, static_cast<size_t>(begin * pixel));
        if (begin < end)
          std::memcpy(to + begin * pixel, from + (left + begin) * pixel, static_cast<size_t>((end - begin) * pixel));
        std::memset(to + end * pixel, 0, static_cast<size_t>((g.kernel_width - end) * pixel));
        continue;
      }
      for (int64_t kx = 0; kx < g.kernel_width; ++kx) {
        const int64_t x = left + kx * g.dilation_x;
        if (x < 0 || x >= g.width) {
          std::memset(to + kx * pixel, 0, static_cast<size_t>(pixel));
        } else {
          std::memcpy(to + kx * pixel, from + x * pixel, static_cast<size_t>(pixel));
        }
      }
    }
  }
}

bool convolve_patches(const ConvolutionGeometry& g, const void* input, const Matvec& call,
                      FunctionRef<void(const Matvec&)> multiply, const Follower* follower) {
  const int64_t item = element_bytes(call.element), row_bytes = call.k * item, pitch = row_pitch(row_bytes);
  Matvec whole = call;
  whole.m = g.images * g.positions();
  whole.x_columns = false;
  if (follower != nullptr && (!follower->fits(call.n) || call.y_stride != call.n)) follower = nullptr;
  if (g.pointwise()) {
    whole.x = input;
    whole.x_stride = g.channels;
    if (follower != nullptr && multiply_followed(whole, multiply, *follower)) return true;
    multiply(whole);
    return false;
  }
  const Blocks blocks(whole, pitch, follower != nullptr);
  if (!blocks.shared) follower = nullptr;
  blocks.run([&](int64_t first, int64_t count) {
    static thread_local Scratch memory;
    std::byte* const rows = memory.get(count * pitch);
    parallel_for(0, count, std::max<int64_t>(1, kBytesPerThread / row_bytes), [&](int64_t begin, int64_t end) {
      gather_patches(g, item, input, first + begin, end - begin, rows + begin * pitch, pitch);
    });
    Matvec part = whole;
    part.m = count;
    part.x = rows;
    part.x_stride = pitch / item;
    multiply_block(part, first, multiply, follower);
  });
  return follower != nullptr;
}

bool fits_direct(const ConvolutionGeometry& g, int64_t groups, Element element, bool input_planes, InstructionSet set) {
  if (!has_panels(set)) return false;
  return reads_lines(g, groups, element, set) || (!input_planes && reads_pixels(g, groups, element, set));
}

bool convolve_direct(const DirectConvolution& call, const Follower* follower, InstructionSet set) {
  static thread_local Scratch zeros_memory;
  const ConvolutionGeometry& g = call.geometry;
  const int64_t item = element_bytes(call.element), rows = g.images * g.positions();
  const int64_t channels = g.channels / call.groups, outputs = g.outputs / call.groups;
  const int64_t k = g.kernel() * channels, packed_bytes = panel_weight_bytes(call.element, outputs, k, set);
  const bool as_floats = panel_pieces(call.element, set).floats;
  const int64_t x_item = as_floats ? static_cast<int64_t>(sizeof(float)) : item, pixel_bytes = g.channels * x_item;
  const bool lines = reads_lines(g, call.groups, call.element, set);
  // Of the image, and addresses.
  const int64_t row_bytes = pixel_bytes * std::min(g.stride_y, g.height) * std::min(g.stride_x, g.width) +
                            g.kernel() * static_cast<int64_t>(sizeof(void*));
  const std::byte* const input = lines       ? pad_images(call, as_floats, set)
                                 : as_floats ? widen_images(call, set)
                                             : static_cast<const std::byte*>(call.input);
  std::byte* const zeros = zeros_memory.get(pixel_bytes);
  std::memset(zeros, 0, static_cast<size_t>(pixel_bytes));

  // Positions [first, first + count) of all groups, to `to`.
  const auto multiply = [&](int64_t first, int64_t count, void* to) {
    static thread_local std::vector<Matvec> calls;
    const auto find = [&](int64_t begin, int64_t part, int64_t stride, const void** addresses) {
      if (lines) {
        find_lines(g, pixel_bytes, input, first + begin, part, stride, addresses);
      } else {
        find_pixels(g, pixel_bytes, input, zeros, first + begin, part, stride, addresses);
      }
    };
    const RowPieces pieces{.size = lines ? g.kernel_width * channels : channels,
                           .row_bytes = row_bytes,
                           .floats = as_floats,
                           .find = find};
    calls.resize(static_cast<size_t>(call.groups));
    for (int64_t i = 0; i < call.groups; ++i) {
      calls[static_cast<size_t>(i)] = {
          .element = call.element,
          .m = count,
          .n = outputs,
          .k = k,
          .pieces = &pieces,
          .piece_offset = i * channels * x_item,
          .packed = static_cast<const std::byte*>(call.packed) + i * packed_bytes,
          .bias = call.bias == nullptr ? nullptr : element_at(call.bias, i * outputs, call.element),
          .y = static_cast<std::byte*>(to) + i * outputs * item,
          .y_stride = g.outputs};
    }
    panel_gemm(calls, set);
  };
  if (follower != nullptr && (call.output_planes || !follower->fits(g.outputs))) follower = nullptr;
  const Matvec all{.element = call.element, .m = rows, .n = outputs * call.groups, .k = k};
  const Blocks blocks(all, row_bytes, follower != nullptr || call.output_planes);
  const auto run = [&](int64_t first, int64_t count) {
    static thread_local Scratch memory;
    const auto make = [&](void* to) { multiply(first, count, to); };
    if (call.output_planes) {
      std::byte* const made = memory.get(count * g.outputs * item);
      make(made);
      put_planes(g, item, made, first, count, static_cast<std::byte*>(call.output));
    } else {
      make_rows(call.output, g.outputs, call.element, first, count, make, follower);
    }
  };
  if (!blocks.shared) follower = nullptr;
  if (blocks.shared) {
    blocks.run(run);
  } else {
    run(0, rows);
  }
  return follower != nullptr;
}

bool spread_pixels(const PixelSpread& spread, const void* input, const Matvec& call,
                   FunctionRef<void(const Matvec&)> multiply, const Follower* follower) {
  const int64_t item = element_bytes(call.element), line = spread.width * call.n;  // of the output
  if (follower != nullptr && !follower->fits(line)) follower = nullptr;
  parallel_for(0, spread.images * spread.height, 1, [&](int64_t begin, int64_t end) {
    static thread_local Scratch memory;
    const bool elsewhere = follower != nullptr && !follower->wants_result();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i * spread.kernel_height * line;
      std::byte* const y =
          elsewhere ? memory.get(spread.kernel_height * line * item) : static_cast<std::byte*>(call.y) + first * item;
      for (int64_t row = 0; row < spread.kernel_height; ++row) {
        Matvec part = call;
        part.m = spread.width;
        part.x = static_cast<const std::byte*>(input) + i * spread.width * call.k * item;
        part.x_stride = call.k;
        part.packed = static_cast<const std::byte*>(call.packed) + row * spread.row_bytes;
        part.y = y + row * line * item;
        part.y_stride = call.n;
        multiply(part);
      }
      if (follower != nullptr) follower->run(first, first + spread.kernel_height * line, y);
    }
  });
  return follower != nullptr;
}

bool may_be_followed(const Matvec& call) { return blocks_to_follow(call).has_value(); }

bool multiply_followed(const Matvec& call, FunctionRef<void(const Matvec&)> multiply, const Follower& follower) {
  const std::optional<Blocks> blocks = blocks_to_follow(call);
  if (!blocks || !follower.fits(call.n)) return false;
  const int64_t row_bytes = call.x_stride * element_bytes(call.element);
  blocks->run([&](int64_t first, int64_t count) {
    Matvec part = call;
    part.m = count;
    part.x = static_cast<const std::byte*>(call.x) + first * row_bytes;
    multiply_block(part, first, multiply, &follower);
  });
  return true;
}

}  // namespace hetero::backend
