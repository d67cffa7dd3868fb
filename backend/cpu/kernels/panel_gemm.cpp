// Threads form a grid over rows and panels. Each takes its rows in blocks that stay in its
// second-level cache, and multiplies a block by one panel after the other. A block is cut into as
// many rows as a kernel takes, about equally. k is cut if a panel would not stay in the cache; the
// sums of a block then wait in the thread's memory.

#include "backend/cpu/kernels/panel_gemm.h"

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "backend/base/parallel.h"
#include "backend/base/rounding.h"
#include "backend/cpu/kernels/pack_in_parts.h"
#include "backend/cpu/kernels/panel_kernel.h"
#include "backend/cpu/vector/scratch.h"
#include "backend/cpu/vector/strided_copy.h"

namespace hetero::backend {

#if !defined(__x86_64__)
const PanelKernels& panel_kernels_avx2(int) { std::abort(); }
const PanelKernels& panel_kernels_avx512(int) { std::abort(); }
const PanelKernels& panel_kernels_bfloat16() { std::abort(); }
#endif

namespace {

// Rows of x, and the part of a panel, that fit into a second-level cache of 1 MiB with other data.
constexpr int64_t kBlockBytes = 320 << 10;
constexpr int64_t kPanelBytes = 256 << 10;
// Rows whose distance is a multiple of this many bytes use the same lines of a first-level cache.
constexpr int64_t kAliasingBytes = 4096;
constexpr int64_t kLineBytes = 64;
// The multiplications, and the bytes of a packed weight, that are worth another thread.
constexpr int64_t kWorkPerThread = 1 << 18;
// As many that threads end at about the same time.
constexpr int64_t kTasksPerThread = 8;
constexpr int64_t kBytesPerThread = 64 << 10;
constexpr int64_t kMostWidth = 32;

const PanelKernels& kernels_of(Element element, InstructionSet set) {
  assert(has_panels(set));
  if (set == InstructionSet::kAvx2) return panel_kernels_avx2(static_cast<int>(element));
  if (element == Element::kBfloat16 && prefers_bfloat16_instructions()) return panel_kernels_bfloat16();
  return panel_kernels_avx512(static_cast<int>(element));
}

// The memory of a panel of k elements.
int64_t panel_bytes(const PanelKernels& kernels, int64_t item, int64_t k) {
  return divide_up(k, kernels.terms) * kernels.terms * kernels.width * item;
}

// Packs outputs [0, count) of w into a panel, padded with 0.
void pack_panel(const Matvec& call, const std::byte* w, int64_t count, const PanelKernels& kernels, std::byte* to) {
  const int64_t item = element_bytes(call.element);
  const int64_t step_bytes = kernels.terms * item;
  const int64_t whole = call.k / kernels.terms;  // steps
  const int64_t row = (call.columns ? call.w_stride : 1) * item;
  const int64_t column = (call.columns ? 1 : call.w_stride) * item;
  if (count < kernels.width || whole * kernels.terms < call.k) {
    std::memset(to, 0, static_cast<size_t>(panel_bytes(kernels, item, call.k)));
  }
  const bool aligned = reinterpret_cast<uintptr_t>(w) % alignof(float) == 0 && column % step_bytes == 0;
  if (count == kernels.width && kernels.pack != nullptr && !call.columns && aligned) {
    kernels.pack(reinterpret_cast<const float*>(w), column / step_bytes, whole, reinterpret_cast<float*>(to));
  } else if (count == kernels.width && (kernels.terms == 1 || !call.columns)) {
    gather_tile(to, reinterpret_cast<const char*>(w), whole, row * kernels.terms, count, column,
                static_cast<int>(step_bytes));
  } else {
    for (int64_t k = 0; k < whole * kernels.terms; ++k) {
      std::byte* const step = to + k / kernels.terms * kernels.width * step_bytes + k % kernels.terms * item;
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(step + i * step_bytes, w + k * row + i * column, static_cast<size_t>(item));
      }
    }
  }
  for (int64_t k = whole * kernels.terms; k < call.k; ++k) {
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(to + (whole * kernels.width + i) * step_bytes, w + k * row + i * column, static_cast<size_t>(item));
    }
  }
}

// Rows of a block in parts of about the same number.
struct Parts {
  Parts(int64_t rows, int64_t most) : count(divide_up(rows, most)), each(rows / count), longer(rows % count) {}
  int64_t begin(int64_t i) const { return i * each + std::min(i, longer); }

  int64_t count, each, longer;
};

// What the parts of one product have in common.
class Product {
 public:
  Product(std::span<const Matvec> calls, const PanelKernels& kernels)
      : calls_(calls),
        common_(calls.front()),
        kernels_(kernels),
        item_(element_bytes(common_.element)),
        steps_(divide_up(common_.k, kernels.terms)),
        x_item_(kernels.floats ? 4 : item_),
        kernel_rows_(common_.pieces != nullptr ? kernels.piece_rows : kernels.rows) {
    const int64_t step_bytes = kernels.width * kernels.terms * item_;
    const int64_t parts = std::max<int64_t>(1, divide_up(steps_ * step_bytes, kPanelBytes));
    part_steps_ = divide_up(steps_, parts);
    for (const Matvec& call : calls) panels_ += panels(call);
    if (common_.pieces != nullptr) {
      assert(common_.pieces->floats == kernels.floats && common_.pieces->size % kernels.terms == 0);
      piece_steps_ = common_.pieces->size / kernels.terms;
      part_steps_ = round_up(part_steps_, piece_steps_);
      set_block_rows(std::max<int64_t>(1, common_.pieces->row_bytes));
      return;
    }
    x_stride_ = common_.x_stride * item_;
    copies_ = kernels.floats || common_.x_columns || common_.k % kernels.terms != 0 || x_stride_ % kAliasingBytes == 0;
    if (copies_) {
      x_stride_ = round_up(steps_ * kernels.terms * x_item_, kLineBytes);
      if (x_stride_ % kAliasingBytes == 0) x_stride_ += kLineBytes;
    }
    set_block_rows(std::max<int64_t>(1, steps_ * kernels.terms * x_item_));
  }

  void run() const {
    if (panels_ == 0 || common_.m == 0) return;
    const Parts parts(common_.m, kernel_rows_);
    const int64_t work = common_.m * panels_ * kernels_.width * std::max<int64_t>(1, common_.k);
    const int64_t threads = std::clamp<int64_t>(work / kWorkPerThread, 1, thread_count());
    // Blocks of rows that the cache holds, and where there are few panels, enough for threads to
    // share: parts as the kernel wants them, or else as many rows in each.
    int64_t blocks = divide_up(parts.count, block_parts_);
    if (const int64_t wanted = divide_up(kTasksPerThread * threads, panels_); threads > 1 && blocks < wanted) {
      blocks = wanted;
      if (wanted > parts.count) {
        blocks = std::min(common_.m, round_up(parts.count, threads / std::gcd(panels_, threads)));
      }
    }
    const auto first_row = [&](int64_t block) {
      return blocks <= parts.count ? parts.begin(parts.count * block / blocks) : common_.m * block / blocks;
    };
    const int64_t tasks = blocks * panels_;
    const int64_t grain =
        threads == 1 ? tasks : std::max<int64_t>(1, kWorkPerThread / std::max<int64_t>(1, work / tasks));
    // A task is a panel by a block. Panels of one block are side by side, so that a thread has few
    // blocks.
    parallel_for(0, tasks, grain, [&](int64_t begin, int64_t end) {
      while (begin < end) {
        const int64_t block = begin / panels_, panel = begin % panels_;
        const int64_t last_panel = std::min(panels_, panel + end - begin);
        multiply_block(first_row(block), first_row(block + 1), panel, last_panel);
        begin += last_panel - panel;
      }
    });
  }

 private:
  int64_t panels(const Matvec& call) const { return divide_up(call.n, kernels_.width); }

  void set_block_rows(int64_t row_bytes) {
    block_parts_ = std::max<int64_t>(1, kBlockBytes / row_bytes / kernel_rows_);
  }

  // Rows [first, last) by panels [begin, end), panels of one call after those of the other.
  void multiply_block(int64_t first, int64_t last, int64_t begin, int64_t end) const {
    static thread_local Scratch copy, sums_memory;
    const std::byte* x = nullptr;
    const void** pieces = nullptr;
    if (common_.pieces != nullptr) {
      pieces = find_pieces(first, last);
    } else {
      x = element_at(common_.x, first * common_.x_stride, common_.element);
    }
    if (copies_) {
      std::byte* const to = copy.get((last - first) * x_stride_);
      copy_rows(first, last, to);
      x = to;
    }
    float* const sums = part_steps_ < steps_ ? sums_memory.get<float>((last - first) * kernels_.width) : nullptr;
    int64_t before = 0;
    for (const Matvec& call : calls_) {
      const int64_t count = panels(call);
      for (int64_t panel = std::max<int64_t>(begin - before, 0); panel < std::min(end - before, count); ++panel) {
        multiply_panel(call, panel, x, pieces, first, last, sums);
      }
      before += count;
    }
  }

  // The addresses of each piece in all rows.
  const void** find_pieces(int64_t first, int64_t last) const {
    static thread_local Scratch memory;
    const int64_t rows = last - first;
    const void** const pieces = memory.get<const void*>(steps_ / piece_steps_ * rows);
    common_.pieces->find(first, rows, rows, pieces);
    return pieces;
  }

  // x, or the pieces of its rows.
  void multiply_panel(const Matvec& call, int64_t panel, const std::byte* x, const void* const* pieces, int64_t first,
                      int64_t last, float* sums) const {
    const int64_t output = panel * kernels_.width;
    const int64_t outputs = std::min(kernels_.width, call.n - output);
    alignas(64) float bias[kMostWidth] = {};
    if (call.bias != nullptr) add_elements(call.element, call.bias, output, outputs, bias);
    const int64_t step_bytes = kernels_.width * kernels_.terms * item_;
    const auto* const w = static_cast<const std::byte*>(call.packed) + panel * steps_ * step_bytes;
    const Parts parts(last - first, kernel_rows_);
    const auto multiply = pieces != nullptr ? kernels_.multiply_pieces : kernels_.multiply;
    int64_t step = 0;
    do {
      const int64_t steps = std::min(part_steps_, steps_ - step);
      const bool ends = step + steps == steps_;
      const int64_t before = step / piece_steps_ * (last - first);   // addresses
      const auto multiply_parts = [&](int64_t begin, int64_t end) {  // which have as many rows each
        if (begin == end) return;
        const int64_t row = parts.begin(begin);
        float* const here = sums == nullptr ? nullptr : sums + row * kernels_.width;
        PanelPart part{.x = nullptr,
                       .x_stride = x_stride_,
                       .rows = parts.begin(begin + 1) - row,
                       .parts = end - begin,
                       .w = w + step * step_bytes,
                       .steps = steps,
                       .from = step == 0 ? nullptr : here,
                       .to = ends ? nullptr : here,
                       .bias = call.bias != nullptr ? bias : nullptr,
                       .y = static_cast<std::byte*>(call.y) + ((first + row) * call.y_stride + output) * item_,
                       .y_stride = call.y_stride,
                       .count = outputs,
                       .limits = ends ? call.limits.any() : nullptr};
        if (pieces != nullptr) {
          part.pieces = pieces + before + row;
          part.piece_stride = last - first;
          part.piece_steps = piece_steps_;
          part.piece_offset = call.piece_offset;
        } else {
          part.x = x + row * x_stride_ + step * kernels_.terms * x_item_;
        }
        multiply(part);
      };
      multiply_parts(0, parts.longer);
      multiply_parts(parts.longer, parts.count);
      step += steps;
    } while (step < steps_);
  }

  // Rows of x as the kernels want them.
  void copy_rows(int64_t first, int64_t last, std::byte* to) const {
    static thread_local Scratch line;
    const int64_t k = common_.k;
    const int64_t padding = (steps_ * kernels_.terms - k) * x_item_;
    // Some rows at a time, so that what is gathered of a transposed x is still in the cache when it
    // is converted to floats.
    constexpr int64_t kTogether = 16;
    for (int64_t row = first; row < last; row += kTogether) {
      const int64_t rows = std::min(kTogether, last - row);
      const std::byte* from = element_at(common_.x, row * (common_.x_columns ? 1 : common_.x_stride), common_.element);
      int64_t stride = common_.x_stride * item_;
      if (common_.x_columns) {
        std::byte* const dense = line.get(rows * k * item_);
        gather_tile(dense, reinterpret_cast<const char*>(from), rows, item_, k, common_.x_stride * item_,
                    static_cast<int>(item_));
        from = dense;
        stride = k * item_;
      }
      for (int64_t i = 0; i < rows; ++i, from += stride, to += x_stride_) {
        if (kernels_.floats) {
          widen(common_.element, from, k, reinterpret_cast<float*>(to));
        } else {
          std::memcpy(to, from, static_cast<size_t>(k * item_));
        }
        if (padding > 0) std::memset(to + k * x_item_, 0, static_cast<size_t>(padding));
      }
    }
  }

  const std::span<const Matvec> calls_;
  const Matvec& common_;
  const PanelKernels& kernels_;
  const int64_t item_;
  const int64_t steps_;
  const int64_t x_item_;       // bytes of an element of x as the kernels read it
  const int64_t kernel_rows_;  // at most, at a time
  int64_t part_steps_;         // of k at a time
  int64_t piece_steps_ = 1;    // of which the latter is a multiple
  int64_t x_stride_ = 0;       // bytes, as the kernels read x
  bool copies_ = false;
  int64_t block_parts_ = 0;  // rows of a block, in kernel_rows_
  int64_t panels_ = 0;
};

}  // namespace

PanelPieces panel_pieces(Element element, InstructionSet set) {
  const PanelKernels& kernels = kernels_of(element, set);
  return {.terms = kernels.terms, .floats = kernels.floats};
}

int64_t panel_weight_bytes(Element element, int64_t n, int64_t k, InstructionSet set) {
  const PanelKernels& kernels = kernels_of(element, set);
  return round_up(divide_up(n, kernels.width) * panel_bytes(kernels, element_bytes(element), k), kLineBytes);
}

void pack_panel_weight(const Matvec& call, void* to, InstructionSet set) {
  assert(reinterpret_cast<uintptr_t>(to) % kLineBytes == 0);
  const PanelKernels& kernels = kernels_of(call.element, set);
  const int64_t bytes = panel_bytes(kernels, element_bytes(call.element), call.k);
  const int64_t grain = std::max<int64_t>(1, kBytesPerThread / std::max<int64_t>(bytes, 1));
  parallel_for(0, divide_up(call.n, kernels.width), grain, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t first = panel * kernels.width;
      pack_panel(call, weight_of(call, first), std::min(kernels.width, call.n - first), kernels,
                 static_cast<std::byte*>(to) + panel * bytes);
    }
  });
}

void panel_gemm(std::span<const Matvec> calls, InstructionSet set) {
  if (calls.empty() || calls.front().m <= 0) return;
  const PanelKernels& kernels = kernels_of(calls.front().element, set);
  if (std::all_of(calls.begin(), calls.end(), [](const Matvec& call) { return call.packed != nullptr; })) {
    return Product(calls, kernels).run();
  }
  for (const Matvec& call : calls) {
    if (call.packed != nullptr) {
      Product(std::span(&call, 1), kernels).run();
      continue;
    }
    const int64_t bytes = panel_bytes(kernels, element_bytes(call.element), call.k);
    pack_in_parts(call, kernels.width, bytes, [&](Matvec& part, std::byte* memory) {
      pack_panel_weight(part, memory, set);
      part.packed = memory;
      Product(std::span(&part, 1), kernels).run();
    });
  }
}

}  // namespace hetero::backend
