// For each kWideRows rows of x:
// 1. they become float32, in parallel;
// 2. blocks of rows of w, those of one call after those of the other, go to threads; a thread converts pieces of its block, kDepth wide, and
//    multiplies each while it is in the cache;
// 3. the block of results gets its bias, is rounded and stored.

#include "backend/cpu/wide_gemm.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "backend/parallel.h"
#include "backend/rounding.h"

namespace hetero::backend {
namespace {

// A piece of w in float32 has 512 KiB: a quarter to a half of a second-level cache.
constexpr int64_t kOutputs = 256;
constexpr int64_t kDepth = 512;
// Blocks are whole multiples of this, and are weighed in it where work is split.
constexpr int64_t kUnit = 16;

// A thread's memory, kept from call to call.
float* scratch(std::vector<float>& memory, int64_t floats) {
  if (static_cast<int64_t>(memory.size()) < floats) memory.resize(static_cast<size_t>(floats));
  return memory.data();
}

const std::byte* at(const void* base, int64_t element, int64_t item) {
  return static_cast<const std::byte*>(base) + element * item;
}

// Outputs [first, first + count) of `rows` rows, which `x` has as floats and `row` is the first of.
void multiply_block(const Matvec& call, Sgemm sgemm, const float* x, int64_t row, int64_t rows, int64_t first,
                    int64_t count) {
  static thread_local std::vector<float> memory;
  const int64_t item = element_bytes(call.element);
  float* const w = scratch(memory, kOutputs * kDepth + kOutputs * kWideRows);
  float* const sums = w + kOutputs * kDepth;
  for (int64_t begin = 0; begin < call.k; begin += kDepth) {
    const int64_t depth = std::min(kDepth, call.k - begin);
    for (int64_t i = 0; i < count; ++i) {
      widen(call.element, at(call.w, (first + i) * call.w_stride + begin, item), depth, w + i * depth);
    }
    sgemm({.b_transposed = true,
           .accumulate = begin != 0,
           .m = rows,
           .n = count,
           .k = depth,
           .a = x + begin,
           .lda = call.k,
           .b = w,
           .ldb = depth,
           .c = sums,
           .ldc = count});
  }
  if (call.k == 0) std::fill_n(sums, rows * count, 0.0f);
  for (int64_t i = 0; i < rows; ++i) {
    float* const from = sums + i * count;
    if (call.bias != nullptr) add_elements(call.element, call.bias, first, count, from);
    auto* const to = static_cast<std::byte*>(call.y) + ((row + i) * call.y_stride + first) * item;
    narrow(call.element, from, count, to);
  }
}

int64_t units(int64_t outputs) { return divide_up(outputs, kUnit); }

// The size of a call's blocks: equal, and as many for each thread if the call were alone.
int64_t block_outputs(const Matvec& call, int64_t threads) {
  const int64_t rounds = std::max<int64_t>(1, divide_up(call.n, threads * kOutputs));
  return std::min(kOutputs, units(divide_up(call.n, threads * rounds)) * kUnit);
}

}  // namespace

void wide_gemm(std::span<const Matvec> calls, Sgemm sgemm) {
  int64_t all_units = 0;
  for (const Matvec& call : calls) all_units += units(call.n);
  if (all_units == 0) return;
  const Matvec& common = calls.front();
  static thread_local std::vector<float> memory;
  float* const x = scratch(memory, std::min(common.m, kWideRows) * common.k);
  const int64_t threads = thread_count();
  for (int64_t row = 0; row < common.m; row += kWideRows) {
    const int64_t rows = std::min(kWideRows, common.m - row);
    parallel_for(0, rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        widen(common.element, at(common.x, (row + i) * common.x_stride, element_bytes(common.element)), common.k,
              x + i * common.k);
      }
    });
    // A block belongs to the range that has its middle: blocks of different size still make even parts.
    parallel_for(0, all_units, 1, [&](int64_t begin, int64_t end) {
      int64_t unit = 0;
      for (const Matvec& call : calls) {
        const int64_t outputs = block_outputs(call, threads);
        for (int64_t first = 0; first < call.n; first += outputs) {
          const int64_t count = std::min(outputs, call.n - first);
          const int64_t middle = unit + units(count) / 2;
          unit += units(count);
          if (begin <= middle && middle < end) multiply_block(call, sgemm, x, row, rows, first, count);
        }
      }
    });
  }
}

}  // namespace hetero::backend
