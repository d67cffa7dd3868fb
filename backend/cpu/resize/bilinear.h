// Images with their channels last, resized by bilinear interpolation: decoders of segmentation
// networks and feature pyramids do it.
//
// A row of the output is a sum of two rows of the input, by weights of that row, and a pixel of it
// one of two pixels of that sum. The sums are kept in float32, and a result is rounded once. ATen's
// kernel multiplies four pixels by products of weights.
//
// Thread safety: any thread; calls share nothing. Works on parallel_for's threads.

#pragma once

#include <cstdint>

#include "backend/cpu/kernels/matvec.h"
#include "backend/cpu/vector/instruction_set.h"

namespace hetero::backend {

struct BilinearResize {
  int64_t images = 1;
  int64_t channels = 1;
  int64_t height = 1;
  int64_t width = 1;
  int64_t out_height = 1;
  int64_t out_width = 1;
  // In pixels of the input: how far apart rows and columns of the output are.
  float step_y = 1;
  float step_x = 1;
  // The centers of corners are the input's; otherwise their edges are.
  bool aligns_corners = false;
  Element element = Element::kFloat32;
  const void* input = nullptr;  // [images, height, width, channels]
  void* output = nullptr;       // [images, out_height, out_width, channels]
};

// Writes call.output, which does not overlap the input. REQUIRES: no size is 0; set <=
// instruction_set().
void resize_bilinear(const BilinearResize& call, InstructionSet set = instruction_set());

}  // namespace hetero::backend
