// Layers of transformers' encoders, which PyTorch's modules call as one operator in inference.
//
// The CPU's kernel of such a layer calls stock kernels one by one. Composed of ordinary operators
// instead, a layer gets what those get: kept weights, fused kernels and our attention. Where bits
// are compared, and for arguments that are not what the modules give, PyTorch's own code decides.
//
// Thread safety: as the dispatcher.

#pragma once

#include <torch/library.h>

namespace hetero::ops {

// _transformer_encoder_layer_fwd and _native_multi_head_attention.
void register_encoder_layer(torch::Library& library);

}  // namespace hetero::ops
