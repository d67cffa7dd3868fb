// The means over the pixels of images with their channels last, as squeeze-and-excite blocks and
// classifiers take them.
//
// Sums are kept in float32, of up to 256 pixels at a time, whose sums are added likewise, and
// the mean is rounded once. A result does not depend on the number of threads.
//
// Thread safety: any thread; calls share nothing. Works on parallel_for's threads.

#pragma once

#include "backend/cpu/kernels/matvec.h"
#include "backend/cpu/vector/instruction_set.h"

namespace hetero::backend {

// means[image][channel] of input[image][pixel][channel]. REQUIRES: pixels > 0.
void pixel_means(Element element, const void* input, int64_t images, int64_t pixels, int64_t channels, void* means,
                 InstructionSet set = instruction_set());

}  // namespace hetero::backend
