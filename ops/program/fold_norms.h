// fold_batch_norms: makes batch norms of a program parts of the convolutions before them.
//
// With running statistics, a batch norm multiplies each channel by a number and adds another. The
// weight of a convolution whose result only the norm reads can hold the first, its bias the second.
// Weights are constants of the program, so these numbers are computed once, in float64, when the
// program is made. Other norms stay, and are fused with what follows where they are not over the
// batch.
//
// Thread safety: as the program's.

#pragma once

#include <cstddef>

#include "graph/program/saved_program.h"

namespace hetero::ops {

// Returns how many norms are gone. The plan of the program, if it had one, is dropped
// then.
size_t fold_batch_norms(graph::SavedProgram& program);

// What is done to each program that is made of Python's operators: fold_constants, merge_repeated,
// and what follows. Errors: as fold_constants(); kUsage or kResource, what PyTorch raised.
Status optimize_program(graph::SavedProgram& program);
// fold_batch_norms and use_channels_last. They vary the last bits of results, so nothing is done
// where that may not be (config.h). Layouts stay where an accelerator has kernels of its own.
Status prepare_convolutions(graph::SavedProgram& program);

}  // namespace hetero::ops
