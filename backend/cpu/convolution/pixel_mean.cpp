#include "backend/cpu/convolution/pixel_mean.h"

#include <algorithm>

#include "backend/base/parallel.h"
#include "backend/base/rounding.h"
#include "backend/cpu/convolution/image_kernels.h"
#include "backend/cpu/vector/scratch.h"

namespace hetero::backend {
namespace {

constexpr int64_t kTogether = 256;  // pixels
constexpr int64_t kSumsPerThread = 64 << 10;

}  // namespace

void pixel_means(Element element, const void* input, int64_t images, int64_t pixels, int64_t channels, void* means,
                 InstructionSet set) {
  static thread_local Scratch memory, total_memory;
  const auto sum = image_kernels(set).sum[static_cast<size_t>(element)];
  const int64_t parts = divide_up(pixels, kTogether), groups = divide_up(channels, kSummedChannels);
  float* const sums = memory.get<float>(images * parts * channels);
  const int64_t grain = std::max<int64_t>(1, kSumsPerThread / (std::min(kTogether, pixels) * kSummedChannels));
  parallel_for(0, images * parts * groups, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t channel = i % groups * kSummedChannels, part = i / groups;  // of all images
      const int64_t image = part / parts, first = part % parts * kTogether;
      sum({.first = element_at(input, (image * pixels + first) * channels + channel, element),
           .pixels = std::min(kTogether, pixels - first),
           .channels = channels,
           .count = std::min(kSummedChannels, channels - channel),
           .sums = sums + part * channels + channel});
    }
  });
  float* const totals = total_memory.get<float>(channels);
  for (int64_t image = 0; image < images; ++image) {
    const float* const of_image = sums + image * parts * channels;
    std::copy_n(of_image, channels, totals);
    for (int64_t part = 1; part < parts; ++part) {
      for (int64_t c = 0; c < channels; ++c) totals[c] += of_image[part * channels + c];
    }
    for (int64_t c = 0; c < channels; ++c) totals[c] /= static_cast<float>(pixels);
    narrow(element, totals, channels, static_cast<std::byte*>(means) + image * channels * element_bytes(element), set);
  }
}

}  // namespace hetero::backend
