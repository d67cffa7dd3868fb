// A convolution of images with their channels last on the tile unit, without a matrix of patches.
//
// The images are packed once, with their padding, a row of tiles for each pixel. The pixels that
// one point of the kernel meets are then rows of this, some rows further on, so that the sums over
// all points are one product of shifted rows (TilePart::taps). With a stride, pixels are sorted by
// their remainders first, and those that a point meets are neighbours again. Between the outputs of
// a line and those of the next are some that nobody wants, which are not stored.
//
// Groups of channels are joined to sets whose channels and outputs fill tiles, with zeros in the
// weight where an output does not meet a channel of its set. A unit that multiplies sixteen times
// as fast as vectors has time for those. An infinity or NaN would meet zeros, so it is looked for.
//
// Compared with patches (patches.h), pixels are copied, and floats are split into planes, once and
// not once for each point of the kernel.
//
// Each thread keeps its packed pixels from call to call: about 800 KiB, or what two lines of an
// image need; up to 8 MiB where threads share them.
//
// Thread safety: any thread; calls share nothing.

#pragma once

#include "backend/cpu/convolution/geometry.h"
#include "backend/cpu/fused/follower.h"
#include "backend/cpu/kernels/matvec.h"
#include "backend/cpu/vector/limits.h"

namespace hetero::backend {

struct TileConvolution {
  ConvolutionGeometry geometry;
  Element element = Element::kFloat32;
  const void* input = nullptr;  // [images, height, width, channels]
  int64_t groups = 1;
  // As for a product of patches: pack_tile_weight(), of [outputs, kernel * channels / tile_sets()].
  const void* packed = nullptr;
  const void* bias = nullptr;          // [outputs], or null
  void* output = nullptr;              // [images, out_height, out_width, outputs]
  Limits limits = {};                  // of the output
  const Follower* follower = nullptr;  // of the output, or null
};

// Whether tiles of channels are whole, and fewer pixels are packed than patches have: a kernel that
// reaches far needs many lines for each.
bool fits_tiles(const ConvolutionGeometry& geometry, Element element);

// The most sets of groups that tiles can have: the i-th set of outputs meets the i-th of channels.
// One group is one set. 0 where there are none, or in float32, whose planes would lose what is
// small beside another group's channels. REQUIRES: groups divide channels and outputs.
int64_t tile_sets(const ConvolutionGeometry& geometry, int64_t groups, Element element);

// Out of range: the input has values that the unit cannot have (tile_gemm.h), or joined groups an
// infinity or NaN. REQUIRES: has_tiles_for(element), fits_tiles(); tile_sets() is not 0; output
// does not overlap an input.
FollowedResult convolve_tiles(const TileConvolution& call);

}  // namespace hetero::backend
