#include "backend/cpu/few_outputs/few_outputs.h"

#include <algorithm>
#include <cassert>
#include <cstdlib>

#include "backend/base/parallel.h"
#include "backend/cpu/few_outputs/few_outputs_kernel.h"
#include "backend/cpu/vector/scratch.h"

namespace hetero::backend {

#if !defined(__x86_64__)
const DotKernels& dot_kernels_avx2() { std::abort(); }
const DotKernels& dot_kernels_avx512() { std::abort(); }
#endif

namespace {

constexpr int64_t kLanes = 16;  // of the longest vectors
constexpr int64_t kWorkPerThread = 64 << 10;

// Sums of one row of the output of an image, [out_width, outputs].
class RowOfOutputs {
 public:
  RowOfOutputs(const FewOutputs& call, InstructionSet set) : call_(call), g_(call.geometry), whole_(whole_outputs(g_)) {
    const DotKernels& kernels = set == InstructionSet::kAvx512 ? dot_kernels_avx512() : dot_kernels_avx2();
    kernel_ = kernels.of_outputs[g_.outputs - 1];
  }

  void operator()(const float* image, int64_t y, float* sums) const {
    const int64_t top = y * g_.stride_y - g_.padding_y;
    const Taps down(top, g_.kernel_height, g_.dilation_y, g_.height);
    if (down.first == down.last) {
      std::fill_n(sums, g_.out_width() * g_.outputs, 0.0F);
      return;
    }
    const Taps all(0, g_.kernel_width, 1, g_.kernel_width);
    const float* const from = image + (top + down.first * g_.dilation_y) * g_.width * g_.channels;
    for (int64_t x = 0; x < whole_.first; ++x) at_border(from, down, x, sums);
    run(from, down, all, whole_.first, whole_.last - whole_.first, sums);
    for (int64_t x = whole_.last; x < g_.out_width(); ++x) at_border(from, down, x, sums);
  }

 private:
  void at_border(const float* from, const Taps& down, int64_t x, float* sums) const {
    run(from, down, Taps(x * g_.stride_x - g_.padding_x, g_.kernel_width, g_.dilation_x, g_.width), x, 1, sums);
  }

  // Strides and dilations may be huge where there is one output, or one tap.
  void run(const float* from, const Taps& down, const Taps& across, int64_t x, int64_t count, float* sums) const {
    if (count == 0) return;
    const int64_t taps_down = down.last - down.first, taps_across = across.last - across.first;
    if (taps_across == 0) {
      std::fill_n(sums + x * g_.outputs, count * g_.outputs, 0.0F);
      return;
    }
    const int64_t of_row = g_.kernel_width * g_.channels;
    const int64_t column = x * g_.stride_x - g_.padding_x + across.first * g_.dilation_x;
    kernel_({.pixels = from + column * g_.channels,
             .step = count > 1 ? g_.stride_x * g_.channels : 0,
             .taps_down = taps_down,
             .down = taps_down > 1 ? g_.dilation_y * g_.width * g_.channels : 0,
             .taps_across = taps_across,
             .across = taps_across > 1 ? g_.dilation_x * g_.channels : g_.channels,
             .channels = g_.channels,
             .filter = call_.filter + down.first * of_row + across.first * g_.channels,
             .filter_down = of_row,
             .filter_output = g_.kernel_height * of_row,
             .count = count,
             .sums = sums + x * g_.outputs});
  }

  const FewOutputs& call_;
  const ConvolutionGeometry& g_;
  const WholeOutputs whole_;
  void (*kernel_)(const DotRow&) = nullptr;
};

}  // namespace

bool fits_few_outputs(const ConvolutionGeometry& geometry, Element element, InstructionSet set) {
  const bool has_kernels = set == InstructionSet::kAvx512 || set == InstructionSet::kAvx2;
  return has_kernels && element == Element::kFloat32 && geometry.outputs <= kMostFewOutputs &&
         geometry.channels % kLanes == 0;
}

void convolve_few_outputs(const FewOutputs& call, InstructionSet set) {
  assert(fits_few_outputs(call.geometry, Element::kFloat32, set));
  const ConvolutionGeometry& g = call.geometry;
  const RowOfOutputs compute(call, set);
  const int64_t width = g.out_width(), height = g.out_height(), outputs = g.outputs;
  const int64_t work = width * outputs * g.kernel() * g.channels;
  parallel_for(0, g.images * height, std::max<int64_t>(1, kWorkPerThread / std::max<int64_t>(1, work)),
               [&](int64_t begin, int64_t end) {
                 static thread_local Scratch memory;
                 float* const sums = memory.get<float>(width * outputs);
                 for (int64_t i = begin; i < end; ++i) {
                   const int64_t image = i / height, y = i % height;
                   compute(call.input + image * g.pixels() * g.channels, y, sums);
                   for (int64_t o = 0; o < outputs; ++o) {
                     float* const to = call.output_planes ? call.output + ((image * outputs + o) * height + y) * width
                                                          : call.output + i * width * outputs + o;
                     const int64_t step = call.output_planes ? 1 : outputs;
                     const float bias = call.bias != nullptr ? call.bias[o] : 0;
                     for (int64_t x = 0; x < width; ++x) to[x * step] = call.limits(sums[x * outputs + o] + bias);
                   }
                 }
               });
}

}  // namespace hetero::backend
