// The largest of the pixels under a kernel, and where it is, over images with their channels last.
//
// Channels are next to each other in memory, so vectors compare the channels of a pixel. PyTorch's
// kernel for the same keeps a place of 8 bytes for each entry while it compares, and turns elements
// of 16 bits into floats in memory.
//
// A value that is no number counts as the largest; of equal ones the first counts. Where no pixel
// is under a kernel, it is minus infinity, at the first place from there on. These are PyTorch's
// rules, and results have its bits.
//
// Thread safety: any thread; calls share nothing. Works on parallel_for's threads.

#pragma once

#include "backend/cpu/convolution/geometry.h"
#include "backend/cpu/kernels/matvec.h"
#include "backend/cpu/vector/instruction_set.h"

namespace hetero::backend {

// geometry.outputs == geometry.channels. No size is 0. The output may have other sizes than the
// geometry says: lines whose kernel begins within the image, or within its padding.
struct MaxPool {
  ConvolutionGeometry geometry;
  int64_t out_height = 0;
  int64_t out_width = 0;
  Element element = Element::kFloat32;
  const void* input = nullptr;  // [images, height, width, channels]
  void* output = nullptr;       // [images, out_height, out_width, channels]
  int64_t* places = nullptr;    // the same: y * width + x of each largest pixel
};

// REQUIRES: height * width fits an int32.
void max_pool(const MaxPool& call);
// The same by a given instruction set, for tests. REQUIRES: set <= instruction_set().
void max_pool(const MaxPool& call, InstructionSet set);

}  // namespace hetero::backend
