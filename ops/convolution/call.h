// A call of a convolution as kernels see it: which one it is, and what of ours can compute it.
//
// Thread safety: values; functions are pure.

#pragma once

#include <c10/util/SmallVector.h>

#include <optional>

#include "graph/ir/graph.h"
#include "ops/convolution/choice.h"
#include "ops/convolution/images.h"

namespace hetero::ops {

using Numbers3 = c10::SmallVector<int64_t, 3>;

// The arguments that aten::convolution and its gradients have behind their tensors.
struct ConvolutionSettings {
  Numbers3 stride, padding, dilation, output_padding;
  bool transposed = false;
  int64_t groups = 1;
};

// The batch norm behind a convolution, operands by their positions: y * scale + shift for each
// channel.
struct ConvolutionNorm {
  int weight = -1, bias = -1, mean = -1, variance = -1;
  double epsilon = 0;
};

// Operands are named by their positions, -1 where there is none.
struct ConvolutionCall {
  ConvolutionShape shape;
  ConvolutionSettings settings;
  std::optional<ConvolutionNorm> norm;
  // That of ours which needs nothing but the operands; kStock where none can compute the call.
  ConvolutionImplementation ours = ConvolutionImplementation::kStock;
  bool has_patches = false;    // backend/cpu/convolution/patches.h
  bool has_addresses = false;  // the same, of groups as well: convolve_direct
  // backend/cpu/winograd/winograd.h; of gradients, for that of the input.
  bool has_winograd = false;
  // Of these: what has the pixels of each channel together.
  bool input_planes = false, output_planes = false;
  int64_t tile_sets = 0;    // of groups, on tiles (backend/cpu/convolution/tile_convolution.h)
  bool is_product = false;  // of the pixels, with the channels of each together, by the weight
  // Transposed, where each pixel makes a patch of its own (patches.h: spread_pixels).
  bool spreads = false;
  int input = -1, weight = -1, bias = -1, grad_output = -1;
  int output = -1, grad_input = -1, grad_weight = -1, grad_bias = -1;

  bool is_backward() const { return shape.work == ConvolutionWork::kBackward; }
};

// False where none of ours can compute the call, whatever is configured. aten::convolution, or
// hetero::convolution_norm.
bool recognize_convolution(const graph::Invocation& invocation, bool with_norm, ConvolutionCall& call);
// aten::convolution_backward.
bool recognize_convolution_backward(const graph::Invocation& invocation, ConvolutionCall& call);

}  // namespace hetero::ops
