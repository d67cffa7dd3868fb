// Kernels of images that replace PyTorch's; most of them are for images with their channels last.
// They have its bits, save for sums.
//
// Thread safety: any thread.

#pragma once

#include "graph/ir/graph.h"

namespace hetero::ops {

inline const graph::Window& window_of(const graph::Invocation& invocation, int operand) {
  return (*invocation.windows)[invocation.operands[operand].window];
}

// Whether images with one to three dimensions of pixels have the channels of each pixel together
// and the pixels in order. Layouts of one channel or one pixel are row-major as well.
bool is_by_pixels(const graph::Window& window);

// Each returns false and does nothing where the stock kernel has to run.

// max_pool2d_with_indices.
bool run_max_pool(const graph::Invocation& invocation);
// mean, over the pixels.
bool run_pixel_mean(const graph::Invocation& invocation);
// upsample_bilinear2d, of many channels.
bool run_bilinear(const graph::Invocation& invocation);
// upsample_nearest2d; the bits are PyTorch's.
bool run_nearest(const graph::Invocation& invocation);
// gelu, from one layout to another: ATen's leaves its result unwritten there.
bool run_gelu(const graph::Invocation& invocation);
// copy_, of row-major floats.
bool run_copy(const graph::Invocation& invocation);
// cat, along a dimension with many rows before it, such as the channels of images. It may grow in
// place instead (in_place.h).
bool run_concatenation(const graph::Invocation& invocation);
// native_batch_norm by the statistics of the batch, in float32 and either layout; its gradients.
bool run_batch_norm(const graph::Invocation& invocation);
bool run_batch_norm_backward(const graph::Invocation& invocation);
// native_group_norm, in float32 and either layout; layouts that ATen's refuses. Its gradients of
// layouts that ATen's takes for others.
bool run_group_norm(const graph::Invocation& invocation);
bool run_group_norm_backward(const graph::Invocation& invocation);

}  // namespace hetero::ops
