// Convolutions that make few channels of many, as the last ones of networks that make images do.
//
// Products have a lane for each output, most of which would be empty. Here lanes are channels: an
// output is a dot product of the pixels under the kernel with its filter, some pixels at a time.
//
// Thread safety: any thread; calls share nothing. Works on parallel_for's threads.

#pragma once

#include "backend/cpu/convolution/geometry.h"
#include "backend/cpu/kernels/matvec.h"
#include "backend/cpu/vector/instruction_set.h"
#include "backend/cpu/vector/limits.h"

namespace hetero::backend {

struct FewOutputs {
  ConvolutionGeometry geometry;
  const float* input = nullptr;   // [images, height, width, channels]
  const float* filter = nullptr;  // [outputs, kernel_height, kernel_width, channels]
  const float* bias = nullptr;    // [outputs], or null
  float* output = nullptr;        // [images, out_height, out_width, outputs]
  bool output_planes = false;     // [images, outputs, out_height, out_width] instead
  Limits limits = {};             // of the output
};

// Whether there are kernels for it: up to four outputs, of whole vectors of floats.
bool fits_few_outputs(const ConvolutionGeometry& geometry, Element element, InstructionSet set = instruction_set());
// Writes call.output, which does not overlap an input. Pixels outside the image are left out.
// REQUIRES: fits_few_outputs().
void convolve_few_outputs(const FewOutputs& call, InstructionSet set = instruction_set());

}  // namespace hetero::backend
