// Image kernels on hostile sizes: memory that ends at a page that may not be touched, images of one
// pixel, row, or column, many channels, rows that are apart. The bytes of OpenCV and Pillow are
// compared in tests/python/host; here the loops for an instruction set are compared with the
// portable ones.

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <vector>

#include "backend/cpu/image/cv_color.h"
#include "backend/cpu/image/cv_filter.h"
#include "backend/cpu/image/cv_resize.h"
#include "backend/cpu/image/cv_warp.h"
#include "backend/cpu/image/pil_affine.h"
#include "backend/cpu/image/pil_enhance.h"
#include "backend/cpu/image/pil_resize.h"
#include "backend/cpu/image/row_kernels.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

// Bytes between two pages without access; they end, or begin, where the page does.
class Guarded {
 public:
  explicit Guarded(size_t bytes, bool at_end = true) : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    const size_t inner = (bytes + page_ - 1) / page_ * page_;
    size_ = inner + 2 * page_;
    map_ = static_cast<uint8_t*>(mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(map_ != MAP_FAILED);
    if (inner > 0) REQUIRE(mprotect(map_ + page_, inner, PROT_READ | PROT_WRITE) == 0);
    data_ = map_ + page_ + (at_end ? inner - bytes : 0);
  }
  ~Guarded() { munmap(map_, size_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  uint8_t* data() const { return data_; }

 private:
  size_t page_, size_;
  uint8_t* map_;
  uint8_t* data_;
};

struct Size {
  int64_t height, width;
};
constexpr Size kSizes[] = {{1, 1}, {1, 2}, {2, 1}, {1, 37}, {37, 1}, {2, 2}, {3, 3}, {5, 7}, {17, 33}, {40, 65}};

class Source {
 public:
  Source(Size size, int64_t channels, bool at_end, int64_t gap = 0)
      : memory_(static_cast<size_t>((size.height - 1) * (size.width * channels + gap) + size.width * channels), at_end),
        image_{memory_.data(), size.height, size.width, channels, size.width * channels + gap} {
    std::mt19937 random(static_cast<uint32_t>(size.height * 1000 + size.width * 10 + channels));
    for (uint8_t* p = memory_.data(); p != image_.end(); ++p) *p = static_cast<uint8_t>(random());
  }
  Image<const uint8_t> image() const { return image_; }
  ImageBatch<const uint8_t> batch() const { return {image_.data, 1, image_.height, image_.width, image_.channels}; }

 private:
  Guarded memory_;
  Image<const uint8_t> image_;
};

// What `run` writes into guarded memory, by the processor's loops and by the portable ones.
template <typename Run>
std::vector<uint8_t> same_bytes(Size size, int64_t channels, const Run& run) {
  const auto bytes = static_cast<size_t>(size.height * size.width * channels);
  std::vector<uint8_t> made[2];
  for (const bool portable : {false, true}) {
    for (const bool at_end : {false, true}) {
      const Guarded memory(bytes, at_end);
      use_portable_rows(portable);
      run(ImageBatch<uint8_t>{memory.data(), 1, size.height, size.width, channels});
      use_portable_rows(false);
      made[portable].assign(memory.data(), memory.data() + bytes);
    }
  }
  CHECK(made[0] == made[1]);
  return made[0];
}

template <typename Body>
void for_sources(const Body& body) {
  for (const Size size : kSizes) {
    for (const int64_t channels : {1, 2, 3, 4, 7}) {
      for (const bool at_end : {false, true}) body(Source(size, channels, at_end, at_end ? 0 : 5));
    }
  }
}

TEST_CASE("image: resizing stays inside of its memory") {
  for_sources([](const Source& source) {
    const Image<const uint8_t> image = source.image();
    for (const Size size : {Size{1, 1}, Size{7, 5}, Size{64, 35}}) {
      for (int i = 0; i < kCvInterpolations; ++i) {
        same_bytes(size, image.channels, [&](const ImageBatch<uint8_t>& results) {
          cv_resize(std::span(&image, 1), results, static_cast<CvInterpolation>(i));
        });
      }
      const PilBox whole{0, 0, static_cast<float>(image.width), static_cast<float>(image.height)};
      const PilBox part{0.25f, 0.5f, static_cast<float>(image.width) - 0.25f, static_cast<float>(image.height)};
      for (const PilBox& box : {whole, part}) {
        REQUIRE(box.fits(image.height, image.width));
        for (int i = 0; i < kPilFilters; ++i) {
          same_bytes(size, image.channels, [&](const ImageBatch<uint8_t>& results) {
            pil_resize(std::span(&image, 1), std::span(&box, 1), results, static_cast<PilFilter>(i));
          });
        }
      }
    }
  });
}

TEST_CASE("image: enhancing stays inside of its memory") {
  for_sources([](const Source& source) {
    const Image<const uint8_t> image = source.image();
    if (image.channels != 1 && image.channels != 3) return;
    for (int property = 0; property < kPilProperties; ++property) {
      for (const float factor : {0.0f, 0.3f, 1.0f, 2.5f, -1.0f, 1e30f}) {
        const PilEnhancement enhancement{static_cast<PilProperty>(property), factor};
        same_bytes({image.height, image.width}, image.channels, [&](const ImageBatch<uint8_t>& results) {
          pil_enhance(std::span(&image, 1), std::span(&enhancement, 1), results);
        });
      }
    }
  });
}

TEST_CASE("image: warps stay inside of their memory") {
  constexpr double kHuge = 1e12;
  const AffineMatrix affine[] = {{1, 0, 0, 0, 1, 0},           {0.9, 0.3, -2, -0.3, 0.9, 3}, {0, 0, 0, 0, 0, 0},
                                 {kHuge, 1, 0, 1, kHuge, 0.5}, {0.01, 0, 0.2, 0, 0.02, 0.1}, {0, 1, -0.5, 1, 0, 0.5}};
  const PerspectiveMatrix perspective[] = {{1, 0.1, 0, 0, 1, 0, 0.01, 0.02, 1}, {0, 0, 0, 0, 0, 0, 0, 0, 0}};
  const std::vector<uint8_t> fill(7, 9);
  for_sources([&](const Source& source) {
    const Image<const uint8_t> image = source.image();
    constexpr Size kSize{9, 70};
    for (const int border : {0, 1, 2, 3, 4}) {
      for (const bool linear : {false, true}) {
        const CvWarp warp{.linear = linear, .inverse = true, .border = static_cast<CvBorder>(border), .value = {5}};
        for (const AffineMatrix& matrix : affine) {
          same_bytes(kSize, image.channels, [&](const ImageBatch<uint8_t>& results) {
            cv_warp_affine(std::span(&image, 1), std::span(&matrix, 1), results, warp);
          });
        }
        for (const PerspectiveMatrix& matrix : perspective) {
          same_bytes(kSize, image.channels, [&](const ImageBatch<uint8_t>& results) {
            cv_warp_perspective(std::span(&image, 1), std::span(&matrix, 1), results, warp);
          });
        }
      }
    }
    for (const auto filter :
         {PilTransformFilter::kNearest, PilTransformFilter::kBilinear, PilTransformFilter::kBicubic}) {
      for (const PilAffine& numbers : affine) {
        same_bytes(kSize, image.channels, [&](const ImageBatch<uint8_t>& results) {
          pil_affine(std::span(&image, 1), std::span(&numbers, 1), results, filter,
                     std::span(fill.data(), static_cast<size_t>(image.channels)));
        });
      }
    }
  });
}

TEST_CASE("image: smoothing and colours stay inside of their memory") {
  for (const Size size : kSizes) {
    for (const int64_t channels : {1, 2, 3, 4, 7}) {
      for (const bool at_end : {false, true}) {
        const Source source(size, channels, at_end);
        for (const int64_t kernel : {1, 3, 5, 15, 17, 41}) {
          same_bytes(size, channels, [&](const ImageBatch<uint8_t>& results) {
            cv_gaussian_blur(source.batch(), results, {kernel, 5}, 0, 0, CvBorder::kReflect101);
          });
          same_bytes(size, channels, [&](const ImageBatch<uint8_t>& results) {
            cv_box_blur(source.batch(), results, {4, kernel}, CvBorder::kConstant);
          });
          same_bytes(size, channels,
                     [&](const ImageBatch<uint8_t>& results) { cv_median_blur(source.batch(), results, kernel); });
        }
        for (int64_t code = 0; channels == 3 && code < 80; ++code) {
          if (!is_color_code(code)) continue;
          const auto chosen = static_cast<CvColor>(code);
          same_bytes(size, color_channels(chosen),
                     [&](const ImageBatch<uint8_t>& results) { cv_color(source.batch(), results, chosen); });
        }
      }
    }
  }
}

TEST_CASE("image: nothing is written where there is no image or no result") {
  cv_resize(std::span<const Image<const uint8_t>>(), {nullptr, 0, 4, 4, 3}, CvInterpolation::kLinear);
  pil_resize({}, {}, {nullptr, 0, 4, 4, 3}, PilFilter::kBicubic);
  cv_warp_affine({}, {}, {nullptr, 0, 4, 4, 3}, {});
  cv_median_blur({nullptr, 0, 4, 4, 3}, {nullptr, 0, 4, 4, 3}, 3);
  cv_color({nullptr, 2, 0, 4, 3}, {nullptr, 2, 0, 4, 1}, CvColor::kBgrToGray);
  cv_gaussian_blur({nullptr, 2, 4, 0, 3}, {nullptr, 2, 4, 0, 3}, {3, 3}, 0, 0, CvBorder::kReplicate);
}

TEST_CASE("image: a box outside of an image does not fit") {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  CHECK(PilBox{0, 0, 5, 4}.fits(4, 5));
  CHECK(PilBox{2, 2, 2, 2}.fits(4, 5));
  CHECK_FALSE(PilBox{-1, 0, 5, 4}.fits(4, 5));
  CHECK_FALSE(PilBox{0, 0, 5.5f, 4}.fits(4, 5));
  CHECK_FALSE(PilBox{3, 0, 2, 4}.fits(4, 5));
  CHECK_FALSE(PilBox{kNan, 0, 5, 4}.fits(4, 5));
}

TEST_CASE("image: weights of a Gaussian add up to 256") {
  for (int64_t size = 1; size <= kMostKernel; size += 2) {
    for (const double sigma : {0.0, 0.3, 1.0, 7.0, 300.0}) {
      int32_t sum = 0;
      for (const int32_t weight : gaussian_weights(size, sigma)) sum += weight;
      CHECK(sum == 256);
    }
  }
}

}  // namespace
}  // namespace hetero::backend
