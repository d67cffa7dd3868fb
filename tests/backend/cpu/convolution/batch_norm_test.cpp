// Batch norms in training, their gradients, and group norms against the definition in double, in
// both layouts, by every instruction set and some numbers of threads.

#include "backend/cpu/convolution/batch_norm.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "tests/backend/cpu/convolution/definition.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

struct Shape {
  int64_t images, channels, pixels;
  int64_t entries() const { return images * channels * pixels; }
};

NormedImages images_of(const Shape& shape, bool last) {
  return {.images = shape.images, .channels = shape.channels, .pixels = shape.pixels, .channels_last = last};
}

int64_t place(const Shape& s, bool last, int64_t image, int64_t channel, int64_t pixel) {
  return last ? (image * s.pixels + pixel) * s.channels + channel : (image * s.channels + channel) * s.pixels + pixel;
}

void require_close(const std::vector<float>& found, const std::vector<double>& expected, double tolerance) {
  REQUIRE(found.size() == expected.size());
  size_t different = 0;
  // Written so that a NaN is not close.
  for (size_t i = 0; i < found.size(); ++i) different += !(std::abs(found[i] - expected[i]) <= tolerance);
  REQUIRE(different == 0);
}

void check(const Shape& s, bool last, bool affine, double offset, InstructionSet set) {
  INFO(s.images << " x " << s.channels << " x " << s.pixels << " last " << last << " affine " << affine);
  std::vector<float> input = numbers(s.entries(), 1);
  for (float& value : input) value += static_cast<float>(offset);
  const std::vector<float> weight = numbers(s.channels, 2), bias = numbers(s.channels, 3);
  const std::vector<float> gradient = numbers(s.entries(), 4);
  const double epsilon = 1e-3, momentum = 0.25;
  const auto count = static_cast<double>(s.images * s.pixels);
  const auto channels = static_cast<size_t>(s.channels);

  std::vector<double> mean(channels), inverse(channels), running_mean(channels), running_variance(channels);
  std::vector<double> output(input.size()), grad_input(input.size()), grad_weight(channels), grad_bias(channels);
  for (int64_t channel = 0; channel < s.channels; ++channel) {
    const auto c = static_cast<size_t>(channel);
    const auto for_entries = [&](auto&& visit) {
      for (int64_t image = 0; image < s.images; ++image) {
        for (int64_t pixel = 0; pixel < s.pixels; ++pixel) {
          visit(static_cast<size_t>(place(s, last, image, channel, pixel)));
        }
      }
    };
    double squares = 0, scale = 1, shift = 0;
    for_entries([&](size_t i) { mean[c] += input[i] / count; });
    for_entries([&](size_t i) { squares += (input[i] - mean[c]) * (input[i] - mean[c]); });
    inverse[c] = 1 / std::sqrt(squares / count + epsilon);
    running_mean[c] = 0.75 * 2 + momentum * mean[c];
    running_variance[c] = 0.75 * 3 + momentum * squares / (count - 1);
    if (affine) {
      scale = weight[c];
      shift = bias[c];
    }
    for_entries([&](size_t i) {
      const double normed = (input[i] - mean[c]) * inverse[c];
      output[i] = normed * scale + shift;
      grad_bias[c] += gradient[i];
      grad_weight[c] += gradient[i] * normed;
    });
    for_entries([&](size_t i) {
      const double normed = (input[i] - mean[c]) * inverse[c];
      grad_input[i] = scale * inverse[c] * (gradient[i] - grad_bias[c] / count - normed * grad_weight[c] / count);
    });
  }

  std::vector<float> made = unset(s.entries()), made_mean = unset(s.channels), made_inverse = unset(s.channels);
  std::vector<float> run_mean(channels, 2), run_variance(channels, 3);
  batch_norm({.images = images_of(s, last),
              .momentum = momentum,
              .epsilon = epsilon,
              .input = input.data(),
              .weight = affine ? weight.data() : nullptr,
              .bias = affine ? bias.data() : nullptr,
              .running_mean = affine ? run_mean.data() : nullptr,
              .running_variance = affine ? run_variance.data() : nullptr,
              .output = made.data(),
              .mean = made_mean.data(),
              .inverse_deviation = made_inverse.data()},
             set);
  const double tolerance = 2e-5 + std::abs(offset) * 1e-5;
  require_close(made, output, tolerance * 5);
  require_close(made_mean, mean, tolerance);
  require_close(made_inverse, inverse, tolerance * 10);
  if (affine && count > 1) {
    require_close(run_mean, running_mean, tolerance);
    require_close(run_variance, running_variance, tolerance);
  }

  std::vector<float> of_input = unset(s.entries()), of_weight = unset(s.channels), of_bias = unset(s.channels);
  batch_norm_gradients({.images = images_of(s, last),
                        .grad_output = gradient.data(),
                        .input = input.data(),
                        .weight = affine ? weight.data() : nullptr,
                        .mean = made_mean.data(),
                        .inverse_deviation = made_inverse.data(),
                        .grad_input = of_input.data(),
                        .grad_weight = affine ? of_weight.data() : nullptr,
                        .grad_bias = affine ? of_bias.data() : nullptr},
                       set);
  require_close(of_input, grad_input, tolerance * 30);
  if (affine) {
    require_close(of_weight, grad_weight, tolerance * (1 + count));
    require_close(of_bias, grad_bias, 1e-5 + 1e-6 * count);
  }
}

void check(const Shape& shape, double offset = 0) {
  for (const InstructionSet set : {InstructionSet::kPortable, InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    if (set > instruction_set()) continue;
    for (const bool last : {false, true}) {
      for (const bool affine : {false, true}) check(shape, last, affine, offset, set);
    }
  }
}

TEST_CASE("batch norms of any number of channels and pixels") {
  for (const int64_t channels : {1, 2, 3, 8, 15, 16, 17, 24, 32, 48, 64, 65, 100, 144, 200}) check({2, channels, 30});
  for (const int64_t pixels : {1, 2, 5, 15, 16, 17, 49, 63, 64, 65, 129, 1000}) check({3, 12, pixels});
}

TEST_CASE("batch norms of many pixels") {
  check({1, 5, 20000});
  check({7, 96, 400});
}

TEST_CASE("batch norms of numbers far from 0") { check({2, 20, 600}, 100); }

TEST_CASE("batch norms on several threads") {
  for (const int64_t threads : {2, 3, 7}) {
    const Threads pool(threads);
    check({4, 70, 300});
    check({1, 33, 3000});
  }
}

TEST_CASE("equal numbers have no deviation, even without an epsilon") {
  const std::vector<float> input(24, 2.0f), bias{1, 2, 3};
  std::vector<float> output = unset(24), mean = unset(3), inverse = unset(3);
  batch_norm({.images = {.images = 2, .channels = 3, .pixels = 4},
              .input = input.data(),
              .bias = bias.data(),
              .output = output.data(),
              .mean = mean.data(),
              .inverse_deviation = inverse.data()});
  for (size_t i = 0; i < output.size(); ++i) CHECK(output[i] == bias[i / 4 % 3]);
}

TEST_CASE("a batch norm of one number for each channel has no variance to run on") {
  const std::vector<float> input = numbers(8, 1);
  std::vector<float> output = unset(8), mean = unset(8), inverse = unset(8), variance(8, 1.0f);
  batch_norm({.images = {.images = 1, .channels = 8, .pixels = 1},
              .momentum = 0.1,
              .epsilon = 1e-5,
              .input = input.data(),
              .running_variance = variance.data(),
              .output = output.data(),
              .mean = mean.data(),
              .inverse_deviation = inverse.data()});
  for (size_t i = 0; i < 8; ++i) {
    CHECK(output[i] == 0);
    CHECK(std::isnan(variance[i]));
  }
}

void check_groups(const Shape& s, int64_t groups, double offset = 0) {
  const int64_t together = s.channels / groups;
  const double epsilon = 1e-3;
  for (const InstructionSet set : {InstructionSet::kPortable, InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    if (set > instruction_set()) continue;
    for (const bool last : {false, true}) {
      for (const bool affine : {false, true}) {
        INFO(s.images << " x " << s.channels << " x " << s.pixels << " groups " << groups << " last " << last);
        std::vector<float> input = numbers(s.entries(), 1);
        for (float& value : input) value += static_cast<float>(offset);
        const std::vector<float> weight = numbers(s.channels, 2), bias = numbers(s.channels, 3);
        std::vector<double> output(input.size()), mean, inverse;
        for (int64_t image = 0; image < s.images; ++image) {
          for (int64_t group = 0; group < groups; ++group) {
            const auto for_entries = [&](auto&& visit) {
              for (int64_t channel = group * together; channel < (group + 1) * together; ++channel) {
                for (int64_t pixel = 0; pixel < s.pixels; ++pixel) {
                  visit(static_cast<size_t>(place(s, last, image, channel, pixel)), static_cast<size_t>(channel));
                }
              }
            };
            const auto count = static_cast<double>(together * s.pixels);
            double sum = 0, squares = 0;
            for_entries([&](size_t i, size_t) { sum += input[i] / count; });
            for_entries([&](size_t i, size_t) { squares += (input[i] - sum) * (input[i] - sum); });
            mean.push_back(sum);
            inverse.push_back(1 / std::sqrt(squares / count + epsilon));
            for_entries([&](size_t i, size_t channel) {
              const double normed = (input[i] - sum) * inverse.back();
              output[i] = affine ? normed * weight[channel] + bias[channel] : normed;
            });
          }
        }
        std::vector<float> made = unset(s.entries()), made_mean = unset(s.images * groups), made_inverse = made_mean;
        group_norm({.images = images_of(s, last),
                    .groups = groups,
                    .epsilon = epsilon,
                    .input = input.data(),
                    .weight = affine ? weight.data() : nullptr,
                    .bias = affine ? bias.data() : nullptr,
                    .output = made.data(),
                    .mean = made_mean.data(),
                    .inverse_deviation = made_inverse.data()},
                   set);
        const double tolerance = 2e-5 + std::abs(offset) * 1e-5;
        require_close(made, output, tolerance * 5);
        require_close(made_mean, mean, tolerance);
        require_close(made_inverse, inverse, tolerance * 10);
      }
    }
  }
}

TEST_CASE("group norms of any number of channels, groups and pixels") {
  for (const auto& [channels, groups] :
       {std::pair{1, 1}, {2, 2}, {6, 3}, {15, 5}, {16, 1}, {32, 8}, {48, 16}, {96, 4}, {200, 25}}) {
    for (const int64_t pixels : {1, 5, 16, 49, 300}) check_groups({2, channels, pixels}, groups);
  }
  check_groups({1, 8, 20000}, 4);
  check_groups({3, 20, 600}, 5, 100);
}

TEST_CASE("group norms on several threads, of more images than these and of fewer") {
  for (const int64_t threads : {2, 3, 7}) {
    const Threads pool(threads);
    check_groups({1, 64, 1000}, 8);
    check_groups({4, 64, 200}, 8);
    check_groups({9, 24, 100}, 3);
  }
}

}  // namespace
}  // namespace hetero::backend
