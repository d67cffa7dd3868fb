// The kernel of a oneDNN layer of an LSTM (hetero::lstm_layer, ops/dispatch/rnn.cpp) with packed
// weights.
//
// oneDNN wants both weights in a layout of its own, and PyTorch's call reorders them each time: a
// quarter of the time of one sequence. A layer that keeps no workspace for a backward pass keeps
// them in this layout instead (packed_weights.h). The results have eager's bits.
//
// The stock kernel runs all other layers, and every layer with fusion off or config().verify.
//
// Thread safety: as any kernel.

#pragma once

#include "graph/ir/op.h"

namespace hetero::ops {

// Returns false and does nothing where the weights are not packed.
bool run_lstm_layer(const graph::Invocation& invocation);
// OpTraits::prepare: packs the weights that have a binding.
void prepare_lstm_layer(const graph::Invocation& invocation);

}  // namespace hetero::ops
