// Gradients of convolutions over images with their channels last, in float32.
//
// A library prepares each of its calls, brings weights into a layout of its own and back, and takes
// memory for that. In the training of a network of depthwise and pointwise convolutions, this takes
// longer than the sums. Here both work on the operands as they lie:
//
//   pointwise   one pixel of kernel: products of the matrices [pixels, channels],
//               input' = output' * weight and weight' = output'^T * input
//   depthwise   sums over the taps; each thread sums the weight's gradient over its rows of outputs
//
// Sums are kept in float32. Their last bits depend on the instruction set and on the number of
// threads.
//
// Thread safety: any thread; calls share nothing. Works on parallel_for's threads.

#pragma once

#include "backend/cpu/convolution/convolution.h"
#include "backend/cpu/vector/instruction_set.h"

namespace hetero::backend {

// A 1-D convolution has height 1. No size is 0.
struct PixelGradients {
  ConvolutionGeometry geometry;
  const float* grad_output = nullptr;  // [images, out_height, out_width, outputs]
  const float* input = nullptr;        // [images, height, width, channels]
  // [outputs, channels]; if depthwise [channels, kernel_height, kernel_width].
  const float* weight = nullptr;
  ConvolutionGradients gradients;  // laid out as what they are of; they overlap no operand
};

// REQUIRES: geometry.pointwise().
void pointwise_gradients(const PixelGradients& call, Sgemm sgemm);
// REQUIRES: geometry.outputs == geometry.channels.
void depthwise_gradients(const PixelGradients& call, InstructionSet set = instruction_set());

}  // namespace hetero::backend
