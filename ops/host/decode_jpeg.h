// hetero::decode_jpeg and its companions: the pixels of JPEG files as tensors.
//
//   decode_jpeg(Tensor file, int height, int width, int channels=3, *, bool bgr=False,
//               bool allow_damaged=False) -> Tensor
//   decode_jpegs(Tensor[] files, int[] heights, int[] widths, int channels=3, *, bool bgr=False,
//                bool allow_damaged=False) -> Tensor[]
//   jpeg_size(Tensor file) -> int[]
//
// file     uint8 [bytes]: a whole JPEG file
// height, width   of the image; jpeg_size reads them, with the channels of the file, from a file on
//                 the CPU, or from one of the device, whose bytes it then waits for
// channels  3 for colours, 1 for grey
// bgr       blue first, as cv2.imdecode has it; otherwise red first, as Pillow has it
// allow_damaged   data that does not decode, but is there to its end, is no error: pixels are those
//                 that Pillow and cv2 have
// result    uint8 [height, width, channels]
//
// decode_jpeg is a host task (HOST_TASK in ops/table/op_table.def): on the device, the CPU's worker
// queue decodes while other work goes on. decode_jpegs records one decode_jpeg for each file.
// backend/cpu/image/decode_jpeg.h says which files decode, and to which bytes. A wrong size or a
// damaged file is found when the kernel runs: on the device that is where a value is needed.
//
// Thread safety: as any kernel.

#pragma once

#include "graph/ir/op.h"

namespace hetero::ops {

// Runs a node of decode_jpeg in given memory. False, and nothing is done, if the output is not
// dense.
bool run_decode_jpeg(const graph::Invocation& invocation);

}  // namespace hetero::ops
