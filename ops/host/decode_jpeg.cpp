#include "ops/host/decode_jpeg.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/image/decode_jpeg.h"
#include "ops/kernels/boxed.h"
#include "ops/kernels/kernel.h"
#include "ops/kernels/profiled.h"
#include "ops/record/call.h"
#include "ops/record/op_info.h"

namespace hetero::ops {
namespace {

using at::Tensor;
using at::TensorList;
using backend::PixelOrder;

// A JPEG file has 16 bits for each.
constexpr int64_t kMostPixels = 65535;

void check_file(const Tensor& file) {
  TORCH_CHECK_TYPE(file.scalar_type() == at::kByte, "a JPEG file must be uint8, not ", file.scalar_type());
  TORCH_CHECK(file.dim() == 1, "a JPEG file must have 1 dimension, not ", file.dim());
}

PixelOrder order_of(int64_t channels, bool bgr) {
  TORCH_CHECK_VALUE(channels == 1 || channels == 3, "decode_jpeg: channels must be 1 or 3, not ", channels);
  TORCH_CHECK_VALUE(channels == 3 || !bgr, "decode_jpeg: bgr is for 3 channels");
  return channels == 1 ? PixelOrder::kGrey : bgr ? PixelOrder::kBgr : PixelOrder::kRgb;
}

std::span<const uint8_t> bytes_of(const Tensor& file) {
  return {file.const_data_ptr<uint8_t>(), static_cast<size_t>(file.numel())};
}

Tensor decode_jpeg_meta(const Tensor& file, int64_t height, int64_t width, int64_t channels, bool bgr,
                        bool /*allow_damaged*/) {
  check_file(file);
  order_of(channels, bgr);
  for (const auto& [name, size] : {std::pair{"height", height}, std::pair{"width", width}}) {
    TORCH_CHECK_VALUE(size >= 1 && size <= kMostPixels, "decode_jpeg: ", name, " must be 1 to ", kMostPixels, ", not ",
                      size);
  }
  return at::empty({height, width, channels}, file.options());
}

void decode_into(const Tensor& file, PixelOrder order, const Tensor& pixels, bool allow_damaged) {
  const Tensor dense = file.contiguous();
  const Status status =
      backend::decode_jpeg(bytes_of(dense), order, pixels.size(0), pixels.size(1), pixels.mutable_data_ptr<uint8_t>(),
                           allow_damaged ? backend::Damage::kAllowed : backend::Damage::kRefused);
  TORCH_CHECK(status.ok(), "decode_jpeg: ", status.message());
}

Tensor decode_jpeg(const Tensor& file, int64_t height, int64_t width, int64_t channels, bool bgr, bool allow_damaged) {
  Tensor pixels = decode_jpeg_meta(file, height, width, channels, bgr, allow_damaged);
  decode_into(file, order_of(channels, bgr), pixels, allow_damaged);
  return pixels;
}

std::vector<Tensor> decode_jpegs(TensorList files, at::IntArrayRef heights, at::IntArrayRef widths, int64_t channels,
                                 bool bgr, bool allow_damaged) {
  TORCH_CHECK(heights.size() == files.size() && widths.size() == files.size(), "decode_jpegs: there are ", files.size(),
              " files, ", heights.size(), " heights and ", widths.size(), " widths");
  static const auto decode = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("hetero::decode_jpeg", "")
                                 .typed<Tensor(const Tensor&, int64_t, int64_t, int64_t, bool, bool)>();
  std::vector<Tensor> images;
  for (size_t i = 0; i < files.size(); ++i) {
    images.push_back(decode.call(files[i], heights[i], widths[i], channels, bgr, allow_damaged));
  }
  return images;
}

std::vector<int64_t> jpeg_size(const Tensor& file) {
  check_file(file);
  const Tensor dense = file.contiguous();
  const Result<backend::JpegSize> size = backend::read_jpeg_size(bytes_of(dense));
  TORCH_CHECK(size.ok(), "jpeg_size: ", size.status().message());
  return {size.value().height, size.value().width, size.value().channels};
}

}  // namespace

bool run_decode_jpeg(const graph::Invocation& invocation) {
  Isolated isolated;
  KernelTensors tensors(invocation);
  const int output = tensors.first_output();
  if (!tensors.has_memory(output) || !tensors.operand(output).is_contiguous()) return false;
  Decoder decoder(invocation.attributes, invocation.node->attribute_bytes);
  const auto& info = *static_cast<const OpInfo*>(invocation.traits->self);
  const torch::jit::Stack arguments = arguments_of(info.handle.schema(), decoder, tensors);
  const int64_t channels = arguments[3].toInt();
  const Tensor& pixels = tensors.operand(output);
  const int64_t sizes[] = {arguments[1].toInt(), arguments[2].toInt(), channels};
  if (pixels.scalar_type() != at::kByte || pixels.sizes() != at::IntArrayRef(sizes)) return false;
  const PixelOrder order = order_of(channels, arguments[4].toBool());
  const bool allow_damaged = arguments[5].toBool();
  const Tensor& file = arguments[0].toTensor();
  check_file(file);
  run_profiled(invocation.traits->name.c_str(), [&] { decode_into(file, order, pixels, allow_damaged); });
  return true;
}

TORCH_LIBRARY_FRAGMENT(hetero, library) {
  library.def(
      "decode_jpeg(Tensor file, int height, int width, int channels=3, *, bool bgr=False, bool allow_damaged=False)"
      " -> Tensor");
  library.def(
      "decode_jpegs(Tensor[] files, int[] heights, int[] widths, int channels=3, *, bool bgr=False,"
      " bool allow_damaged=False) -> Tensor[]");
  library.def("jpeg_size(Tensor file) -> int[]");
}

TORCH_LIBRARY_IMPL(hetero, CPU, library) {
  library.impl("decode_jpeg", TORCH_FN(decode_jpeg));
  library.impl("jpeg_size", TORCH_FN(jpeg_size));
}

TORCH_LIBRARY_IMPL(hetero, Meta, library) { library.impl("decode_jpeg", TORCH_FN(decode_jpeg_meta)); }

TORCH_LIBRARY_IMPL(hetero, CompositeImplicitAutograd, library) { library.impl("decode_jpegs", TORCH_FN(decode_jpegs)); }

}  // namespace hetero::ops
