// Batch norms by the statistics of the batch, and their gradients, in float32, as training computes
// them; and group norms, whose statistics are those of some channels of one image.
//
//   forward:   output = (input - mean) * inverse_deviation * weight + bias
//   backward:  bias' = sum of output',
//              weight' = inverse_deviation * sum of output' * (input - mean),
//              input' = weight * inverse_deviation *
//                       (output' - bias' / n - (input - mean) * inverse_deviation * weight' / n)
//
// The input is read once for its statistics: means and squared distances are taken of blocks that
// stay in the first-level cache, and added up in double (Chan, Golub and LeVeque, Updating formulae
// and a pairwise algorithm for computing sample variances, 1979). Results depend on the instruction
// set in their last bits, and not on the number of threads.
//
// Thread safety: any thread; calls share nothing. Works on parallel_for's threads.

#pragma once

#include <cstdint>

#include "backend/cpu/vector/instruction_set.h"

namespace hetero::backend {

// Images [images, channels, pixels], or [images, pixels, channels] with their channels last. No
// size is 0.
struct NormedImages {
  int64_t images = 1;
  int64_t channels = 1;
  int64_t pixels = 1;
  bool channels_last = false;
};

// What has one number for each channel may be null, save for mean and inverse_deviation.
struct BatchNorm {
  NormedImages images;
  double momentum = 0;
  double epsilon = 0;
  const float* input = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  // running = (1 - momentum) * running + momentum * new; the variance of n numbers is divided by
  // n - 1.
  float* running_mean = nullptr;
  float* running_variance = nullptr;
  float* output = nullptr;
  float* mean = nullptr;
  float* inverse_deviation = nullptr;  // 1 / sqrt(variance + epsilon)
};
void batch_norm(const BatchNorm& call, InstructionSet set = instruction_set());

// What has one number for each channel may be null. Groups are of equal size; `mean` and
// `inverse_deviation` have one number for each image and group.
struct GroupNorm {
  NormedImages images;
  int64_t groups = 1;
  double epsilon = 0;
  const float* input = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  float* output = nullptr;
  float* mean = nullptr;
  float* inverse_deviation = nullptr;  // 1 / sqrt(variance + epsilon)
};
void group_norm(const GroupNorm& call, InstructionSet set = instruction_set());

// Gradients that are not needed are null.
struct BatchNormGradients {
  NormedImages images;
  const float* grad_output = nullptr;
  const float* input = nullptr;
  const float* weight = nullptr;  // or null
  const float* mean = nullptr;
  const float* inverse_deviation = nullptr;
  float* grad_input = nullptr;
  float* grad_weight = nullptr;
  float* grad_bias = nullptr;
};
void batch_norm_gradients(const BatchNormGradients& call, InstructionSet set = instruction_set());

}  // namespace hetero::backend
