#include "backend/cpu/convolution/patches.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "backend/base/parallel.h"
#include "backend/base/rounding.h"
#include "backend/cpu/convolution/unfold.h"
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
  void next() { skip(1); }
  // Positions of the same row, this one included.
  int64_t left_in_row() const { return out_width - x; }
  // REQUIRES: count <= left_in_row().
  void skip(int64_t count) {
    if ((x += count) < out_width) return;
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
  while (count > 0) {
    const int64_t run = std::min(count, corner.left_in_row()), top = corner.top(), left = corner.left();
    const int64_t step = run > 1 ? g.stride_x * pixel_bytes : 0;  // a stride may be huge
    const void** at = to;
    for (int64_t ky = 0; ky < g.kernel_height; ++ky) {
      const int64_t y = top + ky * g.dilation_y;
      const bool is_row = y >= 0 && y < g.height;
      const std::byte* const line = input + (corner.image * g.height + (is_row ? y : 0)) * g.width * pixel_bytes;
      for (int64_t kx = 0; kx < g.kernel_width; ++kx, at += stride) {
        // Positions [begin, end) of the run meet a pixel.
        const int64_t x = left + kx * g.dilation_x;
        int64_t begin = run, end = run;
        if (is_row && x < g.width) {
          begin = std::min(x < 0 ? (-x - 1) / g.stride_x + 1 : 0, run);
          end = std::clamp((g.width - 1 - x) / g.stride_x + 1, begin, run);
        }
        std::fill(at, at + begin, zeros);
        const std::byte* pixel = begin < end ? line + (x + begin * g.stride_x) * pixel_bytes : line;
        for (int64_t i = begin; i < end; ++i, pixel += step) at[i] = pixel;
        std::fill(at + end, at + run, zeros);
      }
    }
    corner.skip(run);
    to += run;
    count -= run;
  }
}

// ---- direct convolutions of copied images

// Images whose pixels have their channels together, and for `lines` zeros around them, as far as
// the kernel meets them.
struct Copied {
  Copied(const ConvolutionGeometry& g, bool lines)
      : height(lines ? (g.out_height() - 1) * g.stride_y + g.dilation_y * (g.kernel_height - 1) + 1 : g.height),
        width(lines ? (g.out_width() - 1) * g.stride_x + g.dilation_x * (g.kernel_width - 1) + 1 : g.width),
        top(lines ? g.padding_y : 0),
        left(lines ? g.padding_x : 0) {}
  int64_t floats(int64_t channels) const { return height * width * channels; }
  bool fits(int64_t channels, int64_t most) const {
    return static_cast<double>(height) * static_cast<double>(width) * static_cast<double>(channels) <=
           static_cast<double>(most);
  }

  int64_t height, width;
  int64_t top, left;  // zeros before the image
};

// With so many channels, images are copied whatever their layout.
constexpr int64_t kFewChannels = 8;
// Floats of an image that is copied, and of several at a time unless threads had too few rows. An
// image of many channels has to fit, too: others are faster as they are.
constexpr int64_t kMostFloats = 16 << 20;
constexpr int64_t kFloatsTogether = 1 << 20;
constexpr int64_t kElementsPerThread = 16 << 10;
constexpr int64_t kTurnedBytes = 16 << 10;
// Longer pieces of a panel would not stay in a cache.
constexpr int64_t kMostOfPiece = 2 << 10;

// Whether pieces are rows of the kernel, of copied images. REQUIRES: has_panels(set).
bool reads_lines(const ConvolutionGeometry& g, int64_t groups, Element element, bool planes, InstructionSet set) {
  const bool few = g.channels <= kFewChannels;
  const int64_t piece = g.kernel_width * g.channels;
  return groups == 1 && (few || (planes && piece <= kMostOfPiece)) && (g.dilation_x == 1 || g.kernel_width == 1) &&
         g.padding_y >= 0 && g.padding_x >= 0 && piece % panel_pieces(element, set).terms == 0 &&
         Copied(g, true).fits(g.channels, few ? kMostFloats : kFloatsTogether);
}
// Whether they may be pixels.
bool reads_pixels(const ConvolutionGeometry& g, int64_t groups, Element element, bool planes, InstructionSet set) {
  const PanelPieces pieces = panel_pieces(element, set);
  const int64_t most = planes ? kFloatsTogether : pieces.floats ? kMostFloats : INT64_MAX;
  return g.channels / groups % pieces.terms == 0 && Copied(g, false).fits(g.channels, most);
}

bool copies_images(const DirectConvolution& call, bool lines, InstructionSet set) {
  return lines || call.input_planes || panel_pieces(call.element, set).floats;
}

// Memory for images: the calling thread's, if it is not much.
class ImageMemory {
 public:
  std::byte* get(int64_t bytes) {
    static thread_local Scratch kept;
    return (bytes <= kMostBytes ? kept : own_).get(bytes);
  }

 private:
  Scratch own_;
};

// [images, height, width, channels] of the copy, in floats or in the call's element.
const std::byte* copy_images(const DirectConvolution& call, const Copied& copy, bool as_floats, InstructionSet set,
                             ImageMemory& memory) {
  const ConvolutionGeometry& g = call.geometry;
  const int64_t item = element_bytes(call.element);
  const int64_t pixel_bytes = g.channels * (as_floats ? static_cast<int64_t>(sizeof(float)) : item);
  const bool widens = as_floats && call.element != Element::kFloat32;
  std::byte* const made = memory.get(g.images * copy.height * copy.width * pixel_bytes);
  // Pixels [x, x + count) of a row of an image.
  const auto put_pixels = [&](int64_t image, int64_t y, int64_t x, int64_t count, std::byte* to) {
    static thread_local Scratch line;
    const std::byte* from = element_at(call.input, ((image * g.height + y) * g.width + x) * g.channels, call.element);
    if (call.input_planes) {
      from = element_at(call.input, (image * g.channels * g.height + y) * g.width + x, call.element);
      std::byte* const together = widens ? line.get(count * g.channels * item) : to;
      if (call.element == Element::kFloat32) {
        interleave(reinterpret_cast<const float*>(from), g.pixels(), g.channels, count,
                   reinterpret_cast<float*>(together));
      } else {
        gather_tile(together, reinterpret_cast<const char*>(from), count, item, g.channels, g.pixels() * item,
                    static_cast<int>(item));
      }
      from = together;
    }
    if (widens) {
      widen(call.element, from, count * g.channels, reinterpret_cast<float*>(to), set);
    } else if (!call.input_planes) {
      std::memcpy(to, from, static_cast<size_t>(count * pixel_bytes));
    }
  };
  const int64_t turned = std::max<int64_t>(16, kTurnedBytes / pixel_bytes);
  const int64_t grain = std::max<int64_t>(1, kElementsPerThread / g.channels);
  parallel_for(0, g.images * copy.height * copy.width, grain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t line = begin / copy.width, first = begin % copy.width;
      const int64_t last = std::min(copy.width, first + end - begin), y = line % copy.height - copy.top;
      // [left, right) of these are in the image.
      int64_t left = last, right = last;
      if (y >= 0 && y < g.height) {
        left = std::clamp(copy.left, first, last);
        right = std::clamp(copy.left + g.width, left, last);
      }
      std::byte* const to = made + (begin - first) * pixel_bytes;
      std::memset(to + first * pixel_bytes, 0, static_cast<size_t>((left - first) * pixel_bytes));
      for (int64_t x = left; x < right; x += turned) {
        put_pixels(line / copy.height, y, x - copy.left, std::min(turned, right - x), to + x * pixel_bytes);
      }
      std::memset(to + right * pixel_bytes, 0, static_cast<size_t>((last - right) * pixel_bytes));
      begin += last - first;
    }
  });
  return made;
}

// As RowPieces::find, for positions [first, first + count): the rows of the kernel in copied
// images.
void find_lines(const ConvolutionGeometry& g, int64_t pixel_bytes, const std::byte* images, int64_t first,
                int64_t count, int64_t stride, const void** to) {
  const Copied copy(g, true);
  const int64_t line_bytes = copy.width * pixel_bytes;
  Corner corner(g, first);
  while (count > 0) {
    const int64_t run = std::min(count, corner.left_in_row());
    const int64_t step = run > 1 ? g.stride_x * pixel_bytes : 0;  // a stride may be huge
    const std::byte* line = images + (corner.image * copy.height + corner.y * g.stride_y) * line_bytes +
                            corner.x * g.stride_x * pixel_bytes;
    for (int64_t ky = 0; ky < g.kernel_height; ++ky, line += g.dilation_y * line_bytes) {
      const void** const at = to + ky * stride;
      for (int64_t i = 0; i < run; ++i) at[i] = line + i * step;
    }
    corner.skip(run);
    to += run;
    count -= run;
  }
}

// Positions [first, first + count) of [images, positions, outputs] to [images, outputs, positions],
// of outputs [begin, end).
void put_planes(const ConvolutionGeometry& g, int64_t item, const std::byte* rows, int64_t first, int64_t count,
                int64_t begin, int64_t end, std::byte* output) {
  const int64_t positions = g.positions();
  while (count > 0) {
    const int64_t image = first / positions, position = first % positions;
    const int64_t part = std::min(count, positions - position);
    transpose(reinterpret_cast<const char*>(rows + begin * item), g.outputs * item, part, end - begin,
              reinterpret_cast<char*>(output + ((image * g.outputs + begin) * positions + position) * item),
              positions * item, static_cast<int>(item));
    rows += part * g.outputs * item;
    first += part;
    count -= part;
  }
}

// Some images of a direct convolution.
class DirectRun {
 public:
  DirectRun(const DirectConvolution& call, int64_t images, bool lines, bool follows, InstructionSet set)
      : call_(call),
        g_(some_images(call.geometry, images)),
        lines_(lines),
        as_floats_(panel_pieces(call.element, set).floats),
        set_(set),
        item_(element_bytes(call.element)),
        pixel_bytes_(g_.channels * (as_floats_ ? static_cast<int64_t>(sizeof(float)) : item_)),
        row_bytes_(pixel_bytes_ * std::min(g_.stride_y, g_.height) * std::min(g_.stride_x, g_.width) +
                   g_.kernel() * static_cast<int64_t>(sizeof(void*))),
        blocks_({.element = call.element,
                 .m = g_.images * g_.positions(),
                 .n = g_.outputs,
                 .k = g_.kernel() * (g_.channels / call.groups)},
                row_bytes_, follows || call.output_planes) {}

  // Whether each block is one thread's.
  bool shares_blocks() const { return blocks_.shared; }

  // From an image on. REQUIRES: no follower unless it fits the rows, and shares_blocks().
  void run(int64_t first_image, const Follower* follower) {
    static thread_local Scratch zeros_memory;
    DirectConvolution images = call_;
    images.geometry = g_;
    images.input = element_at(call_.input, first_image * g_.pixels() * g_.channels, call_.element);
    input_ = copies_images(call_, lines_, set_) ? copy_images(images, Copied(g_, lines_), as_floats_, set_, memory_)
                                                : static_cast<const std::byte*>(images.input);
    std::byte* const zeros = zeros_memory.get(pixel_bytes_);
    std::memset(zeros, 0, static_cast<size_t>(pixel_bytes_));
    zeros_ = zeros;
    const int64_t before = first_image * g_.positions(), rows = g_.images * g_.positions();
    if (call_.output_planes) return run_planes(before, rows);
    const auto make = [&](int64_t first, int64_t count) {
      make_rows(
          call_.output, g_.outputs, call_.element, before + first, count, [&](void* to) { multiply(first, count, to); },
          follower);
    };
    if (blocks_.shared) {
      blocks_.run(make);
    } else {
      make(0, rows);
    }
  }

 private:
  static ConvolutionGeometry some_images(ConvolutionGeometry geometry, int64_t images) {
    geometry.images = images;
    return geometry;
  }

  void run_planes(int64_t before, int64_t rows) {
    const auto make = [&](int64_t first, int64_t count) {
      static thread_local Scratch memory;
      std::byte* const made = memory.get(count * g_.outputs * item_);
      multiply(first, count, made);
      const int64_t grain = std::max<int64_t>(1, kElementsPerThread / count);
      parallel_for(0, g_.outputs, grain, [&](int64_t begin, int64_t end) {
        put_planes(g_, item_, made, before + first, count, begin, end, static_cast<std::byte*>(call_.output));
      });
    };
    if (blocks_.shared) return blocks_.run(make);
    const int64_t most = std::max(kFewestRows, kMostBytes / (g_.outputs * item_));
    for (int64_t first = 0; first < rows; first += most) make(first, std::min(most, rows - first));
  }

  // Positions [first, first + count) of all groups, to `to`.
  void multiply(int64_t first, int64_t count, void* to) const {
    static thread_local std::vector<Matvec> calls;
    const int64_t channels = g_.channels / call_.groups, outputs = g_.outputs / call_.groups;
    const int64_t k = g_.kernel() * channels, packed_bytes = panel_weight_bytes(call_.element, outputs, k, set_);
    const auto find = [&](int64_t begin, int64_t part, int64_t stride, const void** addresses) {
      if (lines_) {
        find_lines(g_, pixel_bytes_, input_, first + begin, part, stride, addresses);
      } else {
        find_pixels(g_, pixel_bytes_, input_, zeros_, first + begin, part, stride, addresses);
      }
    };
    const RowPieces pieces{.size = lines_ ? g_.kernel_width * channels : channels,
                           .row_bytes = row_bytes_,
                           .floats = as_floats_,
                           .find = find};
    calls.resize(static_cast<size_t>(call_.groups));
    for (int64_t i = 0; i < call_.groups; ++i) {
      calls[static_cast<size_t>(i)] = {
          .element = call_.element,
          .m = count,
          .n = outputs,
          .k = k,
          .pieces = &pieces,
          .piece_offset = i * (pixel_bytes_ / call_.groups),
          .packed = static_cast<const std::byte*>(call_.packed) + i * packed_bytes,
          .bias = call_.bias == nullptr ? nullptr : element_at(call_.bias, i * outputs, call_.element),
          .y = static_cast<std::byte*>(to) + i * outputs * item_,
          .y_stride = g_.outputs,
          .limits = call_.limits};
    }
    panel_gemm(calls, set_);
  }

  const DirectConvolution& call_;
  const ConvolutionGeometry g_;
  const bool lines_, as_floats_;
  const InstructionSet set_;
  const int64_t item_, pixel_bytes_;
  const int64_t row_bytes_;  // of the image, and addresses
  const Blocks blocks_;
  ImageMemory memory_;
  const std::byte* input_ = nullptr;
  const void* zeros_ = nullptr;
};

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
  return reads_lines(g, groups, element, input_planes, set) || reads_pixels(g, groups, element, input_planes, set);
}

FollowedResult convolve_direct(const DirectConvolution& call, InstructionSet set) {
  const ConvolutionGeometry& g = call.geometry;
  const bool lines = reads_lines(g, call.groups, call.element, call.input_planes, set);
  int64_t together = g.images;
  if (copies_images(call, lines, set)) {
    const int64_t floats = Copied(g, lines).floats(g.channels);
    const int64_t wanted = divide_up(kBlocksPerThread * kFewestRows * thread_count(), g.positions());
    together =
        std::clamp<int64_t>(std::min(std::max(kFloatsTogether / floats, wanted), kMostFloats / floats), 1, g.images);
  }
  const int64_t parts = divide_up(g.images, together);
  const Follower* follower = call.follower;
  if (follower != nullptr && (call.output_planes || !follower->fits(g.outputs))) follower = nullptr;
  const auto images_of = [&](int64_t part) { return g.images * (part + 1) / parts - g.images * part / parts; };
  for (int64_t part = 0; part < parts; ++part) {
    if (!DirectRun(call, images_of(part), lines, follower != nullptr, set).shares_blocks()) follower = nullptr;
  }
  for (int64_t part = 0; part < parts; ++part) {
    DirectRun(call, images_of(part), lines, follower != nullptr, set).run(g.images * part / parts, follower);
  }
  return follower != nullptr ? FollowedResult::kFollowed : FollowedResult::kMade;
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
