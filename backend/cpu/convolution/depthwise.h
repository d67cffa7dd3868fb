// Depthwise convolutions over images with their channels last: one output channel for each input
// channel, of that channel alone.
//
// Each output is a sum of kernel() products, so a call is short: a library that prepares each call
// takes as long for that as for the sums of a small image. Nothing is unfolded. Some neighbouring
// outputs of a row share the taps, a vector of channels at a time; in float32 with few columns they
// share the pixels as well (DepthwiseRow in depthwise_kernel.h).
//
// Sums are kept in float32 and rounded once. Their last bits depend on the instruction set.
//
// Thread safety: any thread; calls share nothing. Works on parallel_for's threads.

#pragma once

#include "backend/cpu/convolution/geometry.h"
#include "backend/cpu/fused/follower.h"
#include "backend/cpu/kernels/matvec.h"
#include "backend/cpu/vector/instruction_set.h"
#include "backend/cpu/vector/limits.h"

namespace hetero::backend {

// geometry.outputs == geometry.channels. A 1-D convolution has height 1. No size is 0.
struct Depthwise {
  ConvolutionGeometry geometry;
  Element element = Element::kFloat32;  // of all but the taps
  const void* input = nullptr;          // [images, height, width, channels]
  const float* taps = nullptr;          // [kernel_height, kernel_width, channels]
  const void* bias = nullptr;           // [channels], or null
  void* output = nullptr;               // [images, out_height, out_width, channels]
  Limits limits = {};                   // of the output
  const Follower* follower = nullptr;   // of the output, or null
};

// taps of a weight [channels, 1, kernel_height, kernel_width] of such elements.
void depthwise_taps(const ConvolutionGeometry& geometry, Element element, const void* weight, float* taps);

// Writes call.output, which does not overlap an input.
FollowedResult depthwise(const Depthwise& call);
// The same by a given instruction set, for tests. REQUIRES: set <= instruction_set().
FollowedResult depthwise(const Depthwise& call, InstructionSet set);

}  // namespace hetero::backend
