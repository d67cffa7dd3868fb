// A follower for tests of kernels that make images: twice the image, to memory of its own.

#pragma once

#include <vector>

#include "backend/cpu/fused/follower.h"
#include "tests/backend/cpu/convolution/definition.h"
#include "tests/backend/cpu/fused/fused_program.h"
#include "tests/backend/cpu/fused/portable_functions.h"
#include "tests/catch/catch.h"

namespace hetero::backend {

class Doubling {
 public:
  // `rows` pixels of `row` channels at `image`, which may not be `wanted`.
  Doubling(int64_t rows, int64_t row, float* image, bool wanted) : doubled(unset(rows * row)) {
    testing::KernelBuilder b;
    const uint16_t x = b.load(0, 4);
    b.store(1, b.map(testing::kAdd<float>, 4, {x, x}));
    REQUIRE(prepare_fused(b.kernel, testing::dense_space({rows, row}, 0, 2, 4), launch_).ok());
    REQUIRE(Follower::can_follow(launch_, 0, rows * row));
    operands_[0] = image;
    operands_[1] = doubled.data();
    follower.emplace(launch_, operands_, nullptr, uint16_t{0}, wanted);
  }

  std::vector<float> doubled;
  std::optional<Follower> follower;

 private:
  FusedLaunch launch_;
  void* operands_[2];
};

// Runs `convolve(output, follower)`, which returns what it has done, with and without one.
template <typename Convolve>
void check_follower(const ConvolutionGeometry& g, const Convolve& convolve) {
  const int64_t rows = g.images * g.positions();
  std::vector<float> alone = unset(rows * g.outputs);
  REQUIRE(convolve(alone.data(), nullptr) == FollowedResult::kMade);
  for (const bool wanted : {false, true}) {
    std::vector<float> output = unset(rows * g.outputs);
    Doubling doubling(rows, g.outputs, output.data(), wanted);
    REQUIRE(convolve(output.data(), &*doubling.follower) == FollowedResult::kFollowed);
    size_t different = 0;
    for (size_t i = 0; i < alone.size(); ++i) {
      different += doubling.doubled[i] != 2 * alone[i] || (wanted && output[i] != alone[i]);
    }
    REQUIRE(different == 0);
  }
}

}  // namespace hetero::backend
