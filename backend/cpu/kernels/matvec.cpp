// 1. Convert the rows of x to floats once, in an order that suits the loads of w.
// 2. Divide the outputs of all calls, one call after the other, over parallel_for, and within a
//    thread into tiles whose sums stay in its first-level cache.
// 3. A kernel of the instruction set computes a tile in float32. The tile gets its bias, is rounded
//    and stored.

#include "backend/cpu/kernels/matvec.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "backend/base/parallel.h"
#include "backend/base/rounding.h"
#include "backend/cpu/kernels/matvec_kernel.h"
#include "backend/cpu/vector/elements_portable.h"
#include "backend/cpu/vector/scratch.h"

namespace hetero::backend {
namespace {

constexpr MatvecTableHolder kPortableTable = make_matvec_table<Vector, Float32, Bfloat16, Bfloat16, Float16>();

// Calls `use` with an element and the functions that widen and narrow one.
template <typename Use>
void with_element(Element element, Use use) {
  switch (element) {
    case Element::kFloat32:
      return use(float(), same, same);
    case Element::kBfloat16:
      return use(uint16_t(), bfloat16_to_float, float_to_bfloat16);
    case Element::kFloat16:
      return use(uint16_t(), float16_to_float, float_to_float16);
  }
}

// ---- the product

// Threads get a call's outputs in whole groups, so the borders between threads do not change any
// result.
constexpr int64_t kGroup = 64;
// Floats of a tile, for all rows of x together.
constexpr int64_t kTileFloats = 8192;
// The bytes of w that are worth another thread.
constexpr int64_t kBytesPerThread = 64 << 10;
// Those of a thread that its second-level cache has from the call before, such as the weight of a
// recurrent network.
constexpr int64_t kCachedBytes = 1 << 20;

int64_t group_count(const Matvec& call) { return divide_up(call.n, kGroup); }

void store(const Matvec& call, InstructionSet set, float* sums, int64_t stride, int64_t first, int64_t count) {
  const int64_t item = element_bytes(call.element);
  for (int64_t m = 0; m < call.m; ++m) {
    float* const from = sums + m * stride;
    if (call.bias != nullptr) add_elements(call.element, call.bias, first, count, from);
    narrow(call.element, from, count, static_cast<std::byte*>(call.y) + (m * call.y_stride + first) * item, set);
  }
}

// The rows of x as floats, each `stride` long. One buffer for each thread that calls; helpers read
// the caller's.
const float* prepared_rows(const Matvec& call, const MatvecKernels& kernels, int64_t stride) {
  static thread_local Scratch memory;
  auto* const floats = memory.get<float>(call.m * stride);
  for (int64_t m = 0; m < call.m; ++m) {
    const int64_t skip = m * call.x_stride * element_bytes(call.element);
    kernels.prepare(static_cast<const std::byte*>(call.x) + skip, call.k, floats + m * stride);
  }
  return floats;
}

// Outputs [first, last).
void compute(const Matvec& call, InstructionSet set, const MatvecKernels& kernels, const float* x, int64_t x_stride,
             int64_t first, int64_t last, bool from_memory) {
  alignas(64) float sums[kTileFloats];
  const int64_t tile = kTileFloats / call.m / kGroup * kGroup;
  for (; first < last; first += tile) {
    const int64_t count = std::min(tile, last - first);
    const int64_t skip = first * (call.columns ? 1 : call.w_stride) * element_bytes(call.element);
    kernels.parts[call.m - 1]({.x = x,
                               .x_stride = x_stride,
                               .k = call.k,
                               .w = static_cast<const std::byte*>(call.w) + skip,
                               .w_stride = call.w_stride,
                               .count = count,
                               .out = sums,
                               .out_stride = tile,
                               .from_memory = from_memory});
    store(call, set, sums, tile, first, count);
  }
}

}  // namespace

const MatvecTable& matvec_table(InstructionSet set) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return matvec_avx512();
  if (set == InstructionSet::kAvx2) return matvec_avx2();
#endif
  (void)set;
  return kPortableTable.kernels;
}

void widen(Element element, const void* from, int64_t count, float* to, InstructionSet set) {
  const int64_t whole = count / kMatvecMaxBlock * kMatvecMaxBlock;
  matvec_table(set)[static_cast<int>(element)][1].prepare(from, whole, to);
  with_element(element, [&](auto example, auto widen_one, auto) {
    const auto* const elements = static_cast<const decltype(example)*>(from);
    for (int64_t i = whole; i < count; ++i) to[i] = widen_one(elements[i]);
  });
}

void narrow(Element element, const float* from, int64_t count, void* to, InstructionSet set) {
  const int64_t whole = count / kMatvecMaxBlock * kMatvecMaxBlock;
  matvec_table(set)[static_cast<int>(element)][1].narrow(from, whole, to);
  with_element(element, [&](auto example, auto, auto narrow_one) {
    auto* const elements = static_cast<decltype(example)*>(to);
    for (int64_t i = whole; i < count; ++i) elements[i] = narrow_one(from[i]);
  });
}

void add_elements(Element element, const void* from, int64_t first, int64_t count, float* to) {
  with_element(element, [&](auto example, auto widen_one, auto) {
    const auto* const elements = static_cast<const decltype(example)*>(from) + first;
    for (int64_t i = 0; i < count; ++i) to[i] += widen_one(elements[i]);
  });
}

void matvec(std::span<const Matvec> calls) { matvec(calls, instruction_set()); }

void matvec(std::span<const Matvec> calls, InstructionSet set) {
  int64_t groups = 0;
  for (const Matvec& call : calls) groups += group_count(call);
  if (groups == 0 || calls.front().m <= 0) return;
  const Matvec& common = calls.front();
  const MatvecKernels& kernels = matvec_table(set)[static_cast<int>(common.element)][common.columns ? 1 : 0];
  const int64_t x_stride = round_up(common.k, kMatvecMaxBlock);
  const float* const x = prepared_rows(common, kernels, x_stride);
  const int64_t group_bytes = kGroup * common.k * element_bytes(common.element);
  const int64_t grain = std::max<int64_t>(1, kBytesPerThread / std::max<int64_t>(1, group_bytes));
  const bool from_memory = groups * group_bytes > kCachedBytes * thread_count();
  parallel_for(0, groups, grain, [&](int64_t begin, int64_t end) {
    int64_t before = 0;  // groups of the calls before
    for (const Matvec& call : calls) {
      const int64_t first = std::max<int64_t>(0, begin - before) * kGroup;
      const int64_t last = std::min(call.n, (end - before) * kGroup);
      compute(call, set, kernels, x, x_stride, first, last, from_memory);
      before += group_count(call);
    }
  });
}

}  // namespace hetero::backend
