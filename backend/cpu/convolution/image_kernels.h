// image_kernels(): the loops of image_kernel.h for an instruction set.
//
// Thread safety: any thread.

#pragma once

#include "backend/cpu/convolution/image_kernel.h"
#include "backend/cpu/vector/instruction_set.h"

namespace hetero::backend {

const ImageKernels& image_kernels(InstructionSet set);

}  // namespace hetero::backend
