// use_channels_last: lays images between the operators of a program out with their channels last.
//
// A model's tensors [images, channels, (depth,) (height,) width] are row-major, since its input is.
// Kernels of convolutions and pools read the channels of a pixel together and reorder what is laid
// out otherwise, in and out, at each call. So buffers that only the program sees get windows with
// other strides. The values are the same, and so is the memory.
//
// A buffer gets the other layout if convolutions touch it, all that touch it keep layouts
// (OpTraits::keeps_layout), see it row-major only then, or see a part of it with its entries no
// further apart, and every window of it can be expressed.
// Pointwise operators, norms, pools and concatenations get images of one layout, or none is
// changed. Pointwise operators make images of images, also where they see these as tokens. Tokens
// may meet others that are transposed, if the operators that share them read and write fewer bytes
// across than before.
// Convolutions take any: one that reads the program's input reorders it as before.
// Copies take any, too. Gradients of a convolution have the layout of its input.
//
// Where a program computes gradients of convolutions, as a training step does, nothing is changed
// if their filters are large beside their images. Depthwise and 1 x 1 filters have one layout only.
// The forward pass of a step may be a program of its own. What it gives to the backward pass may
// have any layout, and then the same holds for it.
//
// Signals [signals, channels, length] are images where something convolves such. Operators that see
// them as tokens [sequences, length, channels] get row-major ones.
//
// Saved programs whose sizes depend on those of inputs (SavedProgram::dynamic) are left alone.
//
// Thread safety: as the program's, or the graph's and its table's.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "graph/program/saved_program.h"

namespace hetero::graph {

// Returns how many buffers have another layout now. The plan of the program, if it had one, is
// dropped then.
size_t use_channels_last(SavedProgram& program);
// A temporary buffer that a later program sees, through a window that becomes another one.
struct SavedImage {
  BufferId buffer;
  WindowId window;
};
// The same of a graph and its table of windows. Nobody else sees the buffers that are marked as
// temporary, but the program of the gradients those that are `saved` for it, if it has one.
size_t use_channels_last(Graph& graph, WindowTable& windows, const std::vector<uint8_t>& temporary,
                         std::span<SavedImage> saved = {});

}  // namespace hetero::graph
