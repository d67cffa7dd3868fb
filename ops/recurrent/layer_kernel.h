// The kernels of a layer of a recurrent network, one direction, whose weights stay as they are
// (hetero::lstm_layer and hetero::rnn_layer, rnn.cpp). They pack the weights once
// (ops/memory/packed_weights.h):
//
// - In float32, steps are ours (steps.h). Results differ from eager's in the last bits.
// - A large LSTM of more than eight sequences, or of another type, remains oneDNN's where eager's
//   is, but with weights in its own layout, in which PyTorch's call brings them each time. The
//   results have eager's bits.
//
// The stock kernel runs all other layers, those that keep a workspace for a backward pass, and
// every layer with fusion off or config().verify.
//
// Thread safety: as any kernel.

#pragma once

#include "graph/ir/op.h"

namespace hetero::ops {

// Return false and do nothing where the weights are not packed.
bool run_lstm_layer(const graph::Invocation& invocation);
bool run_rnn_layer(const graph::Invocation& invocation);
// OpTraits::run_together: layers of one input, such as both directions, side by side.
void run_lstm_layers(const graph::Invocation* calls, size_t count);
void run_rnn_layers(const graph::Invocation* calls, size_t count);
// OpTraits::prepare: pack the weights that have a binding.
void prepare_lstm_layer(const graph::Invocation& invocation);
void prepare_rnn_layer(const graph::Invocation& invocation);

}  // namespace hetero::ops
