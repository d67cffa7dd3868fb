// The kernel of a layer of an LSTM (hetero::lstm_layer, rnn.cpp) with packed weights.
//
// PyTorch's call of oneDNN reorders both weights each time. A layer that keeps no workspace for a
// backward pass, and whose weights stay as they are, packs them once
// (ops/memory/packed_weights.h):
//
// - In float32 with at most eight sequences, steps are ours: a product of all inputs with a packed
//   weight, then for each step a product of few rows (matvec.h). oneDNN takes up to twice as long.
//   Results differ from eager's in the last bits. Layers with small weights do not run so.
// - Otherwise oneDNN's layer runs with weights in its own layout. The results have eager's bits.
//
// The stock kernel runs all other layers, and every layer with fusion off or config().verify.
//
// Thread safety: as any kernel.

#pragma once

#include "graph/ir/op.h"

namespace hetero::ops {

// Returns false and does nothing where the weights are not packed.
bool run_lstm_layer(const graph::Invocation& invocation);
// OpTraits::run_together: halves of a bidirectional layer of few sequences, each on a thread.
void run_lstm_layers(const graph::Invocation* calls, size_t count);
// OpTraits::prepare: packs the weights that have a binding.
void prepare_lstm_layer(const graph::Invocation& invocation);

}  // namespace hetero::ops
