// A convolution of images with their channels last as a product: of rows of patches by the weight.
//
// The matrix of patches has a row for each output position of each image: the pixels under the
// kernel, the channels of each together, or 0 outside the image. So a row of the kernel is one copy
// where it is not dilated, and the product's rows are the output's pixels as they lie in memory.
// The weight is a matrix [outputs, kernel_height * kernel_width * channels].
//
// The matrix is made a few rows at a time, which stay in a cache until they are multiplied. A
// kernel of one pixel without strides needs none: the pixels are its rows.
//
// Products by panels need no such rows either: they may read the pixels where they are, by their
// addresses, one for each place of the kernel, or that of zeros outside the image. That works for
// groups of channels, too. It is the indirect convolution of Dukhan (arXiv:1907.02129). Images of
// few channels, as a network's first ones, and planes are copied, with the channels of each pixel
// together and zeros around them, so that a row of the kernel is one piece.
//
// Each thread keeps its rows from call to call: up to 4 MiB, or 48 rows that take more.
//
// Thread safety: any thread; calls share nothing.

#pragma once

#include "backend/base/function_ref.h"
#include "backend/cpu/convolution/geometry.h"
#include "backend/cpu/fused/follower.h"
#include "backend/cpu/kernels/matvec.h"
#include "backend/cpu/vector/limits.h"

namespace hetero::backend {

// Rows [first, first + count) of the matrix, `row_bytes` bytes apart, of elements of
// `element_bytes` bytes.
void gather_patches(const ConvolutionGeometry& geometry, int64_t element_bytes, const void* input, int64_t first,
                    int64_t count, void* rows, int64_t row_bytes);

// The weight as said, of the sizes, types and packed form that `call` has; its m, x and x_stride
// are set here. `multiply` computes such a call, as it would any; it is called on several threads
// at once, and uses several where it is not. True where the follower, if there is one, has run on
// all of the result.
bool convolve_patches(const ConvolutionGeometry& geometry, const void* input, const Matvec& call,
                      FunctionRef<void(const Matvec&)> multiply, const Follower* follower = nullptr);

// A convolution of groups of channels, by the addresses of pixels.
struct DirectConvolution {
  ConvolutionGeometry geometry;
  int64_t groups = 1;
  Element element = Element::kFloat32;
  const void* input = nullptr;  // [images, height, width, channels]
  bool input_planes = false;    // [images, channels, height, width] instead
  bool output_planes = false;   // [images, outputs, out_height, out_width]; nothing follows
  // For each group the weight [its outputs, kernel_height * kernel_width * its channels] as
  // pack_panel_weight makes it, one behind the other.
  const void* packed = nullptr;
  const void* bias = nullptr;          // [outputs], or null
  void* output = nullptr;              // [images, out_height, out_width, outputs]
  Limits limits = {};                  // of the output
  const Follower* follower = nullptr;  // of the output, or null
};
// Whether there are panels, for pieces of so many channels; and an image that has to be copied is
// small enough: 64 MiB in floats, of planes with many channels 4 MiB.
bool fits_direct(const ConvolutionGeometry& geometry, int64_t groups, Element element, bool input_planes = false,
                 InstructionSet set = instruction_set());
// Writes call.output, which does not overlap an input. REQUIRES: fits_direct().
FollowedResult convolve_direct(const DirectConvolution& call, InstructionSet set = instruction_set());

// A transposed convolution whose stride is its kernel: each pixel of the input makes a patch of the
// output, [kernel_height, kernel_width, outputs], by a product.
struct PixelSpread {
  int64_t images = 1;
  int64_t height = 1;
  int64_t width = 1;
  int64_t kernel_height = 1;
  int64_t row_bytes = 0;  // of the packed weight, from a row of the kernel to the next
};
// `call` is of one row of the kernel: its n is kernel_width * outputs, its bias has that many; its
// m, x, x_stride and y_stride are set here. `multiply` as above, on one thread each. Returns what
// convolve_patches does.
bool spread_pixels(const PixelSpread& spread, const void* input, const Matvec& call,
                   FunctionRef<void(const Matvec&)> multiply, const Follower* follower = nullptr);

// Whether multiply_followed would compute the call, for a follower that fits its rows.
bool may_be_followed(const Matvec& call);
// A product whose x is there, in blocks of rows that `multiply` computes on one thread each, with
// the follower behind each. False, and nothing is done, where it is faster in other parts.
bool multiply_followed(const Matvec& call, FunctionRef<void(const Matvec&)> multiply, const Follower& follower);

}  // namespace hetero::backend
