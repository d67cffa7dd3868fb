// With many rows and few outputs, threads share the rows. Each packs blocks of its rows, as large
// as fit into its second-level cache, and multiplies a block by one panel of w after the other.
// Otherwise threads share the panels: all rows are packed first, in parallel.
//
// k is cut if the rows of a block would not fit otherwise. The sums of a block then wait in the
// thread's memory.

#include "backend/cpu/kernels/tile_gemm.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cassert>
#include <cstdlib>
#include <cstring>

#include "backend/base/parallel.h"
#include "backend/base/rounding.h"
#include "backend/cpu/kernels/pack_in_parts.h"
#include "backend/cpu/kernels/tile_kernel.h"
#include "backend/cpu/vector/scratch.h"

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace hetero::backend {

#if !defined(__x86_64__)
const TileKernels& tile_kernels(Element) { std::abort(); }
TileUnit::TileUnit(int64_t) {}
TileUnit::~TileUnit() = default;
#endif

bool has_tiles() {
#if defined(__linux__) && defined(__x86_64__)
  static const bool has = [] {
    if (!__builtin_cpu_supports("amx-tile") || !__builtin_cpu_supports("amx-bf16") ||
        !__builtin_cpu_supports("avx512bf16") || instruction_set() != InstructionSet::kAvx512) {
      return false;
    }
    // ARCH_REQ_XCOMP_PERM of asm/prctl.h, which older systems lack.
    constexpr int kRequestPermission = 0x1023;
    constexpr int kTileData = 18;  // XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has;
#else
  return false;
#endif
}

namespace {

// The bytes of packed rows. They leave room for two panels and results in a second-level cache of 2
// MiB.
constexpr int64_t kBlockBytes = 800 << 10;
constexpr int64_t kMostRows = 512;
// The least rows of a block if k is cut.
constexpr int64_t kFewRows = 192;
// With this many rows per thread, threads divide the rows,
constexpr int64_t kRowsForThread = 96;
// unless there are this many more outputs, because each thread would then read the whole weight.
constexpr int64_t kMuchWeight = 4;
// With fewer, the next panel is wanted sooner than it could come.
constexpr int64_t kRowsForNext = 128;
// Sums that wait for the next part of k, and rows that threads share, at a time.
constexpr int64_t kSumBytes = 1 << 20;
constexpr int64_t kSharedBytes = 8 << 20;
constexpr int64_t kBytesPerThread = 64 << 10;

int64_t panels(int64_t n) { return divide_up(n, kPanel); }

// BLAS checks the distance of rows even if there is only one.
int64_t leading(int64_t stride, int64_t rows, int64_t columns) {
  return rows == 1 ? std::max(stride, columns) : stride;
}

// Rows [first, first + rows) of a float32 product that planes cannot compute.
void multiply_plainly(const Matvec& call, Sgemm sgemm, int64_t first, int64_t rows) {
  const auto* const x = static_cast<const float*>(call.x) + first * (call.x_columns ? 1 : call.x_stride);
  auto* const y = static_cast<float*>(call.y) + first * call.y_stride;
  sgemm({.a_transposed = call.x_columns,
         .b_transposed = !call.columns,
         .m = rows,
         .n = call.n,
         .k = call.k,
         .a = x,
         .lda = call.x_columns ? leading(call.x_stride, call.k, rows) : leading(call.x_stride, rows, call.k),
         .b = static_cast<const float*>(call.w),
         .ldb = call.columns ? leading(call.w_stride, call.k, call.n) : leading(call.w_stride, call.n, call.k),
         .c = y,
         .ldc = leading(call.y_stride, rows, call.n)});
  for (int64_t i = 0; i < rows; ++i) {
    float* const row = y + i * call.y_stride;
    if (call.bias != nullptr) add_elements(call.element, call.bias, 0, call.n, row);
    if (call.limits.any() != nullptr) std::transform(row, row + call.n, row, call.limits);
  }
}

// What the parts of one product have in common.
class Product {
 public:
  Product(std::span<const Matvec> calls, Sgemm sgemm)
      : calls_(calls),
        sgemm_(sgemm),
        common_(calls.front()),
        kernels_(tile_kernels(common_.element)),
        item_(element_bytes(common_.element)) {
    // As few cuts as possible, into equal parts.
    const int64_t most =
        kBlockBytes / row_tile_bytes(common_.element, kTileDepth) / (kFewRows / kTileRows) * kTileDepth;
    const int64_t parts = std::max<int64_t>(1, divide_up(common_.k, most));
    depth_ = std::max(kTileDepth, round_up(divide_up(common_.k, parts), kTileDepth));
    block_rows_ = std::clamp(kBlockBytes / row_tile_bytes(common_.element, depth_) * kTileRows / kPanel * kPanel,
                             kPanel, kMostRows);
    for (const Matvec& call : calls) panels_ += panels(call.n);
  }

  void run() {
    if (panels_ == 0) return;
    const int64_t threads = thread_count();
    if (common_.m >= threads * kRowsForThread && panels_ * kPanel < kMuchWeight * common_.m) {
      // Always the same blocks: one that holds a row out of reach has other bits.
      const int64_t count = round_up(divide_up(common_.m, block_rows_), threads);
      const int64_t rows = round_up(divide_up(common_.m, count), kPanel);
      parallel_for(0, divide_up(common_.m, rows), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) run_block(i * rows, std::min(rows, common_.m - i * rows));
      });
    } else {
      share_panels();
    }
  }

 private:
  // Rows [first, first + rows) by panels [begin, end), panels of one call after those of the other.
  // Sums go on in `sums` from part to part of k.
  void multiply(const std::byte* x, int64_t x_stride, int64_t first, int64_t rows, int64_t begin, int64_t end,
                int64_t depth_begin, int64_t depth, float* sums) const {
    const bool starts = depth_begin == 0;
    const bool ends = depth_begin + depth >= common_.k;
    const int64_t steps = divide_up(rows, kPanel) * std::max<int64_t>(1, tiles_of(depth));
    const int64_t lines = divide_up(panel_bytes(common_.element, depth), 64 * steps);
    int64_t before = 0;
    for (const Matvec& call : calls_) {
      const int64_t count = panels(call.n);
      for (int64_t panel = std::max<int64_t>(begin - before, 0); panel < std::min(end - before, count); ++panel) {
        const int64_t output = panel * kPanel;
        const int64_t outputs = std::min(kPanel, call.n - output);
        alignas(64) float bias[kPanel] = {};
        if (starts && call.bias != nullptr) add_elements(call.element, call.bias, output, outputs, bias);
        float* const here = sums + (before + panel - begin) * round_up(rows, kPanel) * kPanel;
        const auto* const w = static_cast<const std::byte*>(call.packed) + kTileHeader +
                              panel * panel_bytes(call.element, call.k) + panel_bytes(call.element, depth_begin);
        const bool last = panel + 1 >= std::min(end - before, count);
        kernels_.multiply({.x = x,
                           .x_stride = x_stride,
                           .rows = rows,
                           .w = w,
                           .depth = tiles_of(depth),
                           .from = starts ? nullptr : here,
                           .to = ends ? nullptr : here,
                           .bias = call.bias != nullptr ? bias : nullptr,
                           .y = static_cast<std::byte*>(call.y) + (first * call.y_stride + output) * item_,
                           .y_stride = call.y_stride,
                           .limits = call.limits.any(),
                           .count = outputs,
                           .next = last || rows < kRowsForNext ? nullptr : w + panel_bytes(call.element, call.k),
                           .next_lines = lines});
      }
      before += count;
    }
  }

  bool is_cut() const { return depth_ < common_.k; }
  // The memory that the sums of a block and so many panels need between parts of k.
  int64_t sum_bytes(int64_t rows, int64_t panels) const {
    return is_cut() ? round_up(rows, kPanel) * panels * kPanel * 4 : 0;
  }

  bool reachable(const Magnitudes& x) const {
    if (common_.element != Element::kFloat32) return true;
    return std::all_of(calls_.begin(), calls_.end(), [&](const Matvec& call) {
      Magnitudes w;
      std::memcpy(&w, call.packed, sizeof(w));
      return within_reach(x, w);
    });
  }

  Magnitudes pack(int64_t first, int64_t rows, int64_t depth_begin, int64_t depth, std::byte* to) const {
    const int64_t row_step = common_.x_columns ? 1 : common_.x_stride;
    const int64_t depth_step = common_.x_columns ? common_.x_stride : 1;
    const std::byte* const x = element_at(common_.x, first * row_step + depth_begin * depth_step, common_.element);
    const int64_t to_stride = row_tile_bytes(common_.element, depth);
    if (common_.x_columns) return kernels_.pack_rows_across(x, common_.x_stride, rows, depth, to, to_stride);
    return kernels_.pack_rows(x, common_.x_stride, rows, depth, to, to_stride, kTileBytes);
  }

  void run_block(int64_t row, int64_t rows) const {
    if (multiply_block(row, rows)) return;
    for (const Matvec& call : calls_) multiply_plainly(call, sgemm_, row, rows);
  }

  // All outputs of a block of rows; false if its values are out of reach. If k is cut, as many
  // outputs at a time as need little memory for sums.
  bool multiply_block(int64_t row, int64_t rows) const {
    static thread_local Scratch memory, sums_memory;
    std::byte* const x = memory.get(divide_up(rows, kTileRows) * row_tile_bytes(common_.element, depth_));
    const int64_t together = is_cut() ? std::max<int64_t>(1, kSumBytes / sum_bytes(rows, 1)) : panels_;
    auto* const sums = sums_memory.get<float>(sum_bytes(rows, std::min(together, panels_)) / 4);
    // The BLAS may use the unit too, so it does not run while this is set up.
    const TileUnit unit(kTileRows);
    for (int64_t panel = 0; panel < panels_; panel += together) {
      const int64_t end = std::min(panels_, panel + together);
      for (int64_t begin = 0; begin < std::max<int64_t>(common_.k, 1); begin += depth_) {
        const int64_t depth = std::min(depth_, common_.k - begin);
        if (!reachable(pack(row, rows, begin, depth, x))) return false;
        multiply(x, row_tile_bytes(common_.element, depth), row, rows, panel, end, begin, depth, sums);
      }
    }
    return true;
  }

  void share_panels() {
    const int64_t stride = row_tile_bytes(common_.element, common_.k);
    const int64_t together =
        std::max(kPanel, kSharedBytes / std::max<int64_t>(stride, 1) * kTileRows / kPanel * kPanel);
    for (int64_t first = 0; first < common_.m; first += together) {
      share_panels(first, std::min(together, common_.m - first));
    }
  }

  void share_panels(int64_t first, int64_t count) {
    static thread_local Scratch memory;
    const int64_t stride = row_tile_bytes(common_.element, common_.k);
    std::byte* const x = memory.get(divide_up(count, kTileRows) * stride);
    std::atomic<bool> planes{true};
    const int64_t grain = std::max<int64_t>(1, kBytesPerThread / std::max<int64_t>(stride, 1));
    parallel_for(0, divide_up(count, kTileRows), grain, [&](int64_t begin, int64_t end) {
      const int64_t rows = std::min(count, end * kTileRows) - begin * kTileRows;
      if (!reachable(pack(first + begin * kTileRows, rows, 0, common_.k, x + begin * stride))) planes = false;
    });
    if (!planes) {
      for (const Matvec& call : calls_) multiply_plainly(call, sgemm_, first, count);
      return;
    }
    // Few pieces, since each goes through all rows.
    const int64_t weight_grain =
        std::max(divide_up(panels_, 2 * thread_count()),
                 kBytesPerThread / panel_bytes(common_.element, std::max<int64_t>(common_.k, 1)));
    parallel_for(0, panels_, weight_grain, [&](int64_t begin, int64_t end) {
      static thread_local Scratch sums_memory;
      auto* const sums = sums_memory.get<float>(sum_bytes(std::min(block_rows_, count), 1) / 4);
      const TileUnit unit(count);
      for (int64_t row = 0; row < count; row += block_rows_) {
        const int64_t rows = std::min(block_rows_, count - row);
        const std::byte* const block = x + row / kTileRows * stride;
        const auto part = [&](int64_t panel, int64_t panel_end, int64_t from) {
          multiply(block + row_tile_bytes(common_.element, from), stride, first + row, rows, panel, panel_end, from,
                   std::min(depth_, common_.k - from), sums);
        };
        if (!is_cut()) {
          part(begin, end, 0);
          continue;
        }
        for (int64_t panel = begin; panel < end; ++panel) {
          for (int64_t from = 0; from < common_.k; from += depth_) part(panel, panel + 1, from);
        }
      }
    });
  }

  const std::span<const Matvec> calls_;
  const Sgemm sgemm_;
  const Matvec& common_;
  const TileKernels& kernels_;
  const int64_t item_;
  int64_t depth_;  // elements of k at a time
  int64_t block_rows_;
  int64_t panels_ = 0;
};

}  // namespace

bool within_reach(const Magnitudes& x, const Magnitudes& w) {
  constexpr double kLeast = 0x1p-90;
  constexpr double kMost = 0x1p40;
  const auto value = [](uint32_t bits) { return static_cast<double>(std::bit_cast<float>(bits)); };
  const double a = value(x.largest), b = value(w.largest);
  if (!(a < kMost) || !(b < kMost)) return false;  // or no number
  if (a == 0 || b == 0) return true;
  const double least_a = value(x.least), least_b = value(w.least);
  return least_a >= kLeast && least_b >= kLeast && least_a * least_b >= kLeast;
}

int64_t tile_weight_bytes(Element element, int64_t n, int64_t k) {
  return kTileHeader + panels(n) * panel_bytes(element, k);
}

bool pack_tile_weight(const Matvec& call, void* to) {
  assert(reinterpret_cast<uintptr_t>(to) % 64 == 0);
  const TileKernels& kernels = tile_kernels(call.element);
  auto* const tiles = static_cast<std::byte*>(to) + kTileHeader;
  const int64_t bytes = panel_bytes(call.element, call.k);
  std::atomic<uint32_t> largest{Magnitudes{}.largest}, least{Magnitudes{}.least};
  const int64_t grain = std::max<int64_t>(1, kBytesPerThread / std::max<int64_t>(bytes, 1));
  parallel_for(0, panels(call.n), grain, [&](int64_t begin, int64_t end) {
    Magnitudes mine;
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t first = panel * kPanel;
      const std::byte* const w = weight_of(call, first);
      mine.join(kernels.pack_panel(w, call.w_stride, call.columns, std::min(kPanel, call.n - first), call.k,
                                   tiles + panel * bytes));
    }
    for (uint32_t seen = largest; seen < mine.largest && !largest.compare_exchange_weak(seen, mine.largest);) {
    }
    for (uint32_t seen = least; seen > mine.least && !least.compare_exchange_weak(seen, mine.least);) {
    }
  });
  const Magnitudes found{.largest = largest, .least = least};
  static_assert(sizeof(found) <= kTileHeader);
  std::memcpy(to, &found, sizeof(found));
  // For values of x that are neither large nor small.
  constexpr uint32_t kOne = std::bit_cast<uint32_t>(1.0f);
  return call.element != Element::kFloat32 || within_reach({kOne, kOne}, found);
}

void tile_gemm(std::span<const Matvec> calls, Sgemm sgemm) {
  if (calls.empty() || calls.front().m <= 0) return;
  const bool packed =
      std::all_of(calls.begin(), calls.end(), [](const Matvec& call) { return call.packed != nullptr; });
  if (packed) return Product(calls, sgemm).run();
  for (const Matvec& call : calls) {
    if (call.packed != nullptr) {
      Product(std::span(&call, 1), sgemm).run();
      continue;
    }
    const auto multiply = [&](Matvec& part, std::byte* memory) {
      if (!pack_tile_weight(part, memory)) return multiply_plainly(part, sgemm, 0, part.m);
      part.packed = memory;
      Product(std::span(&part, 1), sgemm).run();
    };
    pack_in_parts(call, kPanel, panel_bytes(call.element, call.k), multiply, kTileHeader);
  }
}

}  // namespace hetero::backend
