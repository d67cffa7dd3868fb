#include "ops/convolution/images.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/native_group_norm_backward_ops.h>
#include <ATen/ops/native_group_norm_ops.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "backend/cpu/convolution/batch_norm.h"
#include "backend/cpu/convolution/image_layout.h"
#include "backend/cpu/convolution/max_pool.h"
#include "backend/cpu/convolution/pixel_mean.h"
#include "backend/cpu/resize/bilinear.h"
#include "backend/cpu/resize/nearest.h"
#include "ops/kernels/boxed.h"
#include "ops/kernels/in_place.h"
#include "ops/kernels/kernel.h"
#include "ops/kernels/own_kernel.h"
#include "ops/record/call.h"

namespace hetero::ops {
namespace {

using graph::Window;

std::byte* address_of(const graph::Invocation& invocation, int operand) {
  const Window& window = window_of(invocation, operand);
  return static_cast<std::byte*>(invocation.data[operand]) + window.offset * graph::dtype_bytes(window.dtype);
}

// [images, channels, height, width], by pixels.
bool has_channels_last(const Window& window) { return window.rank == 4 && is_by_pixels(window); }

// One or two numbers; nothing else.
std::optional<std::array<int64_t, 2>> read_pair(Decoder& decoder) {
  const Tag tag = decoder.next();
  if (tag != Tag::kSizes && tag != Tag::kIntegers) return {};
  const auto count = decoder.get<uint32_t>();
  if (count > 2) return {};
  std::array<int64_t, 2> pair{};
  for (uint32_t i = 0; i < count; ++i) {
    pair[i] = tag == Tag::kSizes ? decoder.get_size<int64_t>() : decoder.get<int64_t>();
  }
  if (count == 1) pair[1] = pair[0];
  return pair;
}

// The scale of an interpolation along one dimension, as the step of pixels of the input that ATen
// makes of it (compute_scales_value); nothing else.
std::optional<float> read_step(Decoder& decoder, int64_t size, int64_t out_size) {
  const Tag tag = decoder.next();
  const bool given = tag == Tag::kReal || tag == Tag::kShapeReal;
  if (!given && tag != Tag::kNone) return {};
  const double scale = given ? decoder.real(tag) : 0;
  return scale > 0 ? static_cast<float>(1 / scale) : static_cast<float>(size) / static_cast<float>(out_size);
}

bool read_max_pool(const graph::Invocation& invocation, backend::MaxPool& call) {
  if (invocation.node->operand_count != 3 || invocation.operands[0].bits != 0) return false;
  const Window &input = window_of(invocation, 0), &output = window_of(invocation, 1),
               &places = window_of(invocation, 2);
  const std::optional<backend::Element> element = element_of(input.dtype);
  if (!element || !has_channels_last(input) || !has_channels_last(output) || !has_channels_last(places)) return false;
  Decoder decoder(invocation.attributes, invocation.node->attribute_bytes);
  if (decoder.next() != Tag::kTensor || decoder.operand() != 0) return false;
  const auto kernel = read_pair(decoder), given_stride = read_pair(decoder), padding = read_pair(decoder),
             dilation = read_pair(decoder);
  if (!kernel || !given_stride || !padding || !dilation) return false;
  const std::array<int64_t, 2>& stride = (*given_stride)[0] == 0 ? *kernel : *given_stride;
  const auto sizes = input.sizes();
  call.geometry = {.images = sizes[0],
                   .channels = sizes[1],
                   .height = sizes[2],
                   .width = sizes[3],
                   .outputs = sizes[1],
                   .kernel_height = (*kernel)[0],
                   .kernel_width = (*kernel)[1],
                   .stride_y = stride[0],
                   .stride_x = stride[1],
                   .padding_y = (*padding)[0],
                   .padding_x = (*padding)[1],
                   .dilation_y = (*dilation)[0],
                   .dilation_x = (*dilation)[1]};
  call.out_height = output.sizes()[2];
  call.out_width = output.sizes()[3];
  call.element = *element;
  return call.geometry.pixels() <= std::numeric_limits<int32_t>::max();
}

// ---- batch norms --------------------------------------------------------------------------------

// Of float32 operands that have memory; of no number for none.
class NormOperands {
 public:
  explicit NormOperands(const graph::Invocation& invocation)
      : invocation_(invocation),
        decoder_(invocation.attributes, invocation.node->attribute_bytes),
        next_output_(invocation.node->operand_count - invocation.node->output_count) {}

  Decoder& decoder() { return decoder_; }
  bool failed() const { return failed_; }

  // The first image says what images are; others are like it.
  const float* image() { return checked_image(next_tensor()); }
  float* per_channel() { return checked_numbers(next_tensor()); }
  float* output_image() { return checked_image(next_output_++); }
  float* output_per_channel() { return checked_numbers(next_output_++); }
  // One number for each image and group.
  float* output_per_group(int64_t groups) { return checked_numbers(next_output_++, images_.images * groups); }
  int64_t integer() {
    const Tag tag = decoder_.next();
    if (tag == Tag::kInteger || tag == Tag::kSize) return decoder_.integer(tag);
    failed_ = true;
    return 0;
  }
  double real() {
    const Tag tag = decoder_.next();
    if (tag == Tag::kReal || tag == Tag::kShapeReal) return decoder_.real(tag);
    failed_ = true;
    return 0;
  }
  bool flag() {
    if (decoder_.next() == Tag::kBoolean) return decoder_.get<uint8_t>() != 0;
    failed_ = true;
    return false;
  }
  const backend::NormedImages& images() const { return images_; }

 private:
  int next_tensor() {
    const Tag tag = decoder_.next();
    if (tag == Tag::kTensor) return decoder_.operand();
    if (tag != Tag::kNone && tag != Tag::kUndefined) failed_ = true;
    return -1;
  }
  bool is_usable(int operand) {
    failed_ = failed_ || operand < 0 || operand >= invocation_.node->operand_count ||
              invocation_.operands[operand].bits != 0 || invocation_.data[operand] == nullptr ||
              static_cast<at::ScalarType>(window_of(invocation_, operand).dtype) != at::kFloat;
    return !failed_;
  }
  float* checked_image(int operand) {
    if (!is_usable(operand)) return nullptr;
    const Window& window = window_of(invocation_, operand);
    if (first_ == nullptr) {
      if (window.rank < 2 || window.numel == 0) return fail();
      first_ = &window;
      const auto sizes = window.sizes();
      images_ = {.images = sizes[0],
                 .channels = sizes[1],
                 .pixels = window.numel / (sizes[0] * sizes[1]),
                 .channels_last = !window.contiguous};
      if (images_.pixels == 1) images_.channels_last = true;  // in either
    }
    const bool fits = images_.channels_last && images_.pixels > 1 ? is_by_pixels(window) : window.contiguous;
    if (!fits || !std::ranges::equal(window.sizes(), first_->sizes())) return fail();
    return reinterpret_cast<float*>(address_of(invocation_, operand));
  }
  float* checked_numbers(int operand) { return checked_numbers(operand, images_.channels); }
  float* checked_numbers(int operand, int64_t count) {
    if (operand < 0 || !is_usable(operand)) return nullptr;
    const Window& window = window_of(invocation_, operand);
    if (!window.contiguous || window.numel != count) return fail();
    return reinterpret_cast<float*>(address_of(invocation_, operand));
  }
  float* fail() {
    failed_ = true;
    return nullptr;
  }

  const graph::Invocation& invocation_;
  Decoder decoder_;
  int next_output_;
  const Window* first_ = nullptr;
  backend::NormedImages images_;
  bool failed_ = false;
};

bool run_group_norm_of_floats(const graph::Invocation& invocation) {
  if (!last_bits_may_differ() || invocation.node->output_count != 3) return false;
  NormOperands operands(invocation);
  backend::GroupNorm call;
  call.input = operands.image();
  call.weight = operands.per_channel();
  call.bias = operands.per_channel();
  const std::array<int64_t, 3> sizes{operands.integer(), operands.integer(), operands.integer()};
  call.groups = operands.integer();
  call.epsilon = operands.real();
  call.output = operands.output_image();
  call.mean = operands.output_per_group(call.groups);
  call.inverse_deviation = operands.output_per_group(call.groups);
  call.images = operands.images();
  const auto [images, channels, pixels] = sizes;
  const bool fits = call.images.images == images && call.images.channels == channels && call.images.pixels == pixels;
  if (operands.failed() || !fits || call.groups < 1 || channels % call.groups != 0) return false;
  run_as_operator(OwnKernel::kGroupNorm, invocation, [&] { backend::group_norm(call); });
  return true;
}

// Whether ATen's group norm takes it. Its kernels look at the layout of the input, and take it for
// that of the gradient.
bool is_fit_for_aten(const Window& window) { return window.contiguous || (window.rank > 3 && is_by_pixels(window)); }

// Runs the operator on its first arguments made contiguous, so many of them, and makes its results
// the node's.
template <typename Op>
void run_on_contiguous(const graph::Invocation& invocation, size_t count) {
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
  const Isolated isolated;
  KernelTensors tensors(invocation);
  Decoder decoder(invocation.attributes, invocation.node->attribute_bytes);
  torch::jit::Stack stack = arguments_of(handle.schema(), decoder, tensors);
  for (size_t i = 0; i < count; ++i) stack[i] = stack[i].toTensor().contiguous();
  run_profiled(invocation.traits->name.c_str(), [&] { handle.callBoxed(&stack); });
  int output = tensors.first_output();
  for (c10::IValue& value : stack) {
    at::Tensor result = std::exchange(value, c10::IValue()).toTensor();
    if (result.defined() && output < invocation.node->operand_count) tensors.deliver(output++, std::move(result));
  }
}

}  // namespace

bool run_batch_norm(const graph::Invocation& invocation) {
  if (!last_bits_may_differ() || invocation.node->output_count != 3) return false;
  NormOperands operands(invocation);
  backend::BatchNorm call;
  call.input = operands.image();
  call.weight = operands.per_channel();
  call.bias = operands.per_channel();
  call.running_mean = operands.per_channel();
  call.running_variance = operands.per_channel();
  const bool training = operands.flag();
  call.momentum = operands.real();
  call.epsilon = operands.real();
  if (!training || operands.failed()) return false;
  call.output = operands.output_image();
  call.mean = operands.output_per_channel();
  call.inverse_deviation = operands.output_per_channel();
  if (operands.failed()) return false;
  call.images = operands.images();
  run_as_operator(OwnKernel::kBatchNorm, invocation, [&] { backend::batch_norm(call); });
  return true;
}

bool run_batch_norm_backward(const graph::Invocation& invocation) {
  if (!last_bits_may_differ()) return false;
  NormOperands operands(invocation);
  backend::BatchNormGradients call;
  call.grad_output = operands.image();
  call.input = operands.image();
  call.weight = operands.per_channel();
  (void)operands.per_channel();  // running statistics
  (void)operands.per_channel();
  call.mean = operands.per_channel();
  call.inverse_deviation = operands.per_channel();
  const bool training = operands.flag();
  (void)operands.real();
  if (!training || operands.failed() || call.mean == nullptr || call.inverse_deviation == nullptr) return false;
  // The output mask: what it leaves out has no operand.
  if (operands.decoder().next() != Tag::kList || operands.decoder().get<uint32_t>() != 3) return false;
  if (operands.flag()) call.grad_input = operands.output_image();
  if (operands.flag()) call.grad_weight = operands.output_per_channel();
  if (operands.flag()) call.grad_bias = operands.output_per_channel();
  if (operands.failed()) return false;
  call.images = operands.images();
  run_as_operator(OwnKernel::kBatchNormBackward, invocation, [&] { backend::batch_norm_gradients(call); });
  return true;
}

bool run_group_norm(const graph::Invocation& invocation) {
  if (run_group_norm_of_floats(invocation)) return true;
  if (is_fit_for_aten(window_of(invocation, 0))) return false;
  run_on_contiguous<at::_ops::native_group_norm>(invocation, 1);
  return true;
}

bool run_group_norm_backward(const graph::Invocation& invocation) {
  if (window_of(invocation, 0).contiguous && window_of(invocation, 1).contiguous) return false;
  run_on_contiguous<at::_ops::native_group_norm_backward>(invocation, 2);
  return true;
}

bool is_by_pixels(const Window& window) {
  if (window.rank < 3 || window.rank > 5 || !window.dense || window.numel == 0) return false;
  const auto sizes = window.sizes(), strides = window.strides();
  const auto fits = [&](int dimension, int64_t stride) {
    return sizes[dimension] == 1 || strides[dimension] == stride;
  };
  if (!fits(1, 1)) return false;
  int64_t stride = sizes[1];
  for (int d = window.rank - 1; d > 1; --d) {
    if (!fits(d, stride)) return false;
    stride *= sizes[d];
  }
  return fits(0, stride);
}

bool run_max_pool(const graph::Invocation& invocation) {
  backend::MaxPool call;
  if (!read_max_pool(invocation, call)) return false;
  run_as_operator(OwnKernel::kMaxPool, invocation, [&] {
    const Isolated isolated(Isolated::Threads::kOurs);
    KernelTensors tensors(invocation);
    std::array<at::Tensor, 2> made;
    const auto result = [&](int operand) -> void* {
      if (tensors.has_memory(operand)) return address_of(invocation, operand);
      const Window& window = window_of(invocation, operand);
      const auto rank = static_cast<size_t>(window.rank);
      at::Tensor& tensor = made[static_cast<size_t>(operand - 1)];
      tensor = at::empty_strided({window.sizes().data(), rank}, {window.strides().data(), rank},
                                 at::TensorOptions(static_cast<at::ScalarType>(window.dtype)));
      return tensor.mutable_data_ptr();
    };
    call.input = address_of(invocation, 0);
    call.output = result(1);
    call.places = static_cast<int64_t*>(result(2));
    backend::max_pool(call);
    for (int i = 0; i < 2; ++i) {
      if (made[static_cast<size_t>(i)].defined()) tensors.deliver(i + 1, std::move(made[static_cast<size_t>(i)]));
    }
  });
  return true;
}

bool run_pixel_mean(const graph::Invocation& invocation) {
  if (invocation.node->operand_count != 2 || invocation.data[1] == nullptr || !last_bits_may_vary()) return false;
  const Window &images = window_of(invocation, 0), &means = window_of(invocation, 1);
  if (invocation.operands[0].bits != 0 || images.dtype != means.dtype || !has_channels_last(images)) return false;
  const std::optional<backend::Element> element = element_of(images.dtype);
  const int64_t count = images.sizes()[0], channels = images.sizes()[1];
  if (!element || channels == 1 || means.rank < 2 || means.strides()[1] != 1) return false;
  if (means.sizes()[1] != channels || (count > 1 && means.strides()[0] != channels)) return false;
  Decoder decoder(invocation.attributes, invocation.node->attribute_bytes);
  if (decoder.next() != Tag::kTensor || decoder.operand() != 0) return false;
  const Tag tag = decoder.next();
  if ((tag != Tag::kSizes && tag != Tag::kIntegers) || decoder.get<uint32_t>() != 2) return false;
  uint64_t dimensions = 0;
  for (int i = 0; i < 2; ++i) {
    const int64_t d = tag == Tag::kSizes ? decoder.get_size<int64_t>() : decoder.get<int64_t>();
    dimensions |= uint64_t{1} << ((d + 4) % 4);
  }
  if (dimensions != 0b1100) return false;
  run_as_operator(OwnKernel::kPixelMean, invocation, [&] {
    backend::pixel_means(*element, address_of(invocation, 0), count, images.numel / (count * channels), channels,
                         address_of(invocation, 1));
  });
  return true;
}

bool run_bilinear(const graph::Invocation& invocation) {
  constexpr int64_t kFewestChannels = 16;
  if (invocation.node->operand_count != 2 || invocation.data[1] == nullptr || !last_bits_may_vary()) return false;
  const Window &input = window_of(invocation, 0), &output = window_of(invocation, 1);
  const std::optional<backend::Element> element = element_of(input.dtype);
  if (invocation.operands[0].bits != 0 || !element || output.dtype != input.dtype || input.numel == 0) return false;
  if (!has_channels_last(input) || !has_channels_last(output) || input.sizes()[1] < kFewestChannels) return false;
  Decoder decoder(invocation.attributes, invocation.node->attribute_bytes);
  if (decoder.next() != Tag::kTensor || decoder.operand() != 0 || !read_pair(decoder)) return false;
  if (decoder.next() != Tag::kBoolean) return false;
  const bool aligns_corners = decoder.get<uint8_t>() != 0;
  backend::BilinearResize call{.images = input.sizes()[0],
                               .channels = input.sizes()[1],
                               .height = input.sizes()[2],
                               .width = input.sizes()[3],
                               .out_height = output.sizes()[2],
                               .out_width = output.sizes()[3],
                               .aligns_corners = aligns_corners,
                               .element = *element,
                               .input = address_of(invocation, 0),
                               .output = address_of(invocation, 1)};
  // As at::native::area_pixel_compute_scale has it.
  const auto find = [&](int64_t size, int64_t out_size, float& step) {
    const std::optional<float> given = read_step(decoder, size, out_size);
    if (!given) return false;
    const float of_corners = out_size > 1 ? static_cast<float>(size - 1) / static_cast<float>(out_size - 1) : 0;
    step = aligns_corners ? of_corners : *given;
    return true;
  };
  if (!find(call.height, call.out_height, call.step_y)) return false;
  if (!find(call.width, call.out_width, call.step_x)) return false;
  run_as_operator(OwnKernel::kResize, invocation, [&] { backend::resize_bilinear(call); });
  return true;
}

bool run_nearest(const graph::Invocation& invocation) {
  constexpr float kMostPlaces = 1 << 24;  // that floats tell apart
  if (invocation.node->operand_count != 2 || invocation.data[1] == nullptr) return false;
  const Window &input = window_of(invocation, 0), &output = window_of(invocation, 1);
  if (invocation.operands[0].bits != 0 || output.dtype != input.dtype || input.numel == 0) return false;
  const bool by_pixels = has_channels_last(input) && has_channels_last(output);
  if (!element_of(input.dtype) || (!by_pixels && !(input.contiguous && output.contiguous))) return false;
  Decoder decoder(invocation.attributes, invocation.node->attribute_bytes);
  if (decoder.next() != Tag::kTensor || decoder.operand() != 0 || !read_pair(decoder)) return false;
  // As ATen's kernels have it, which agree on these scales.
  static thread_local std::array<std::vector<int64_t>, 2> sources;
  for (int i = 0; i < 2; ++i) {
    const int64_t size = input.sizes()[2 + i], out_size = output.sizes()[2 + i];
    const std::optional<float> step = read_step(decoder, size, out_size);
    if (!step || !(static_cast<float>(out_size) * *step < kMostPlaces)) return false;
    const float usual = static_cast<float>(size) / static_cast<float>(out_size);
    if ((out_size == size || out_size == 2 * size) && *step != usual) return false;
    sources[i].clear();
    for (int64_t place = 0; place < out_size; ++place) {
      sources[i].push_back(std::min(static_cast<int64_t>(static_cast<float>(place) * *step), size - 1));
    }
  }
  // Planes of row-major images are images of one channel.
  const int64_t images = input.sizes()[0], channels = input.sizes()[1];
  const backend::NearestResize call{.images = by_pixels ? images : images * channels,
                                    .height = input.sizes()[2],
                                    .width = input.sizes()[3],
                                    .pixel_bytes = (by_pixels ? channels : 1) * graph::dtype_bytes(input.dtype),
                                    .rows = sources[0],
                                    .columns = sources[1],
                                    .input = address_of(invocation, 0),
                                    .output = address_of(invocation, 1)};
  run_as_operator(OwnKernel::kResize, invocation, [&] { backend::resize_nearest(call); });
  return true;
}

bool run_gelu(const graph::Invocation& invocation) {
  // gelu_out gives contiguous tensors to oneDNN, whose result then has the argument's layout.
  if (invocation.node->operand_count != 2 || invocation.data[1] == nullptr) return false;
  if (!window_of(invocation, 0).contiguous || window_of(invocation, 1).contiguous) return false;
  run_on_contiguous<at::_ops::gelu>(invocation, 1);
  return true;
}

bool run_copy(const graph::Invocation& invocation) {
  if (invocation.node->operand_count != 2 || invocation.data[0] == nullptr) return false;
  const Window &to = window_of(invocation, 0), &from = window_of(invocation, 1);
  if (invocation.operands[0].bits != 0 || invocation.operands[1].bits != 0) return false;
  if (invocation.operands[0].buffer == invocation.operands[1].buffer) return false;
  const std::optional<backend::Element> element = element_of(to.dtype);
  if (!element || static_cast<at::ScalarType>(from.dtype) != at::kFloat || !from.contiguous) return false;
  if (!has_channels_last(to) || to.contiguous || !std::ranges::equal(from.sizes(), to.sizes())) return false;
  run_as_operator(OwnKernel::kLayout, invocation, [&] {
    const auto sizes = to.sizes();
    backend::put_channels_last(reinterpret_cast<const float*>(address_of(invocation, 1)), sizes[0], sizes[1],
                               sizes[2] * sizes[3], *element, address_of(invocation, 0));
  });
  return true;
}

bool run_concatenation(const graph::Invocation& invocation) {
  if (grow_in_place(invocation)) return true;
  constexpr int kMost = 64;
  constexpr int64_t kFewestRows = 16;  // of fewer, each is long
  const int result = invocation.node->operand_count - 1;
  const Window& whole = window_of(invocation, result);
  if (invocation.data[result] == nullptr || !whole.dense || whole.numel == 0 || result > kMost) return false;
  const auto sizes = whole.sizes();
  int along = -1;
  std::array<backend::RowPiece, kMost> pieces;
  size_t count = 0;
  for (int i = 0; i < result; ++i) {
    const Window& part = window_of(invocation, i);
    if (part.numel == 0) continue;
    if (part.rank != whole.rank || part.dtype != whole.dtype || invocation.operands[i].bits != 0) return false;
    for (int d = 0; along < 0 && d < whole.rank; ++d) {
      if (part.sizes()[d] != sizes[d]) along = d;
    }
    if (along < 0) return false;
    const std::optional<int64_t> row = row_of(part, whole, along);
    if (!row) return false;
    pieces[count++] = {address_of(invocation, i), *row * graph::dtype_bytes(whole.dtype)};
  }
  if (count < 2 || invocation.operands[result].bits != 0) return false;
  const int64_t rows = whole.numel / (sizes[along] * whole.strides()[along]);
  if (rows < kFewestRows) return false;
  run_as_operator(OwnKernel::kConcatenation, invocation, [&] {
    backend::concatenate_rows(std::span(pieces.data(), count), rows, address_of(invocation, result));
  });
  return true;
}

}  // namespace hetero::ops
