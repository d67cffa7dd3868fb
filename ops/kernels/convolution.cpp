#include "ops/kernels/convolution.h"

#include <ATen/Parallel.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "backend/cpu/kernels/convolution.h"
#include "ops/kernels/blas.h"
#include "ops/kernels/kernel.h"
#include "ops/kernels/measure.h"
#include "ops/kernels/own_kernel.h"
#include "ops/record/call.h"

namespace hetero::ops {
namespace {

using Implementation = ConvolutionImplementation;
using backend::ConvolutionGeometry;

std::atomic<int64_t> measurements;
std::atomic<int> forced{-1};

// ---- recognizing a convolution ------------------------------------------------------------------

// The arguments that both operators have behind their tensors.
struct Settings {
  c10::SmallVector<int64_t, 3> stride, padding, dilation;
};

// A list of `rank` numbers, or of one that stands for all.
bool read_list(Decoder& decoder, size_t rank, c10::SmallVector<int64_t, 3>& list) {
  const Tag tag = decoder.next();
  if (tag != Tag::kSizes && tag != Tag::kIntegers) return false;
  const auto length = decoder.get<uint32_t>();
  for (uint32_t i = 0; i < length; ++i) {
    list.push_back(tag == Tag::kSizes ? decoder.get_size<int64_t>() : decoder.get<int64_t>());
  }
  if (list.size() == 1) list.resize(rank, list[0]);
  return list.size() == rank;
}

// stride, padding, dilation, transposed, output_padding, groups. False for a convolution that is
// transposed or has groups.
bool read_settings(Decoder& decoder, size_t rank, Settings& settings) {
  c10::SmallVector<int64_t, 3> output_padding;
  if (!read_list(decoder, rank, settings.stride) || !read_list(decoder, rank, settings.padding) ||
      !read_list(decoder, rank, settings.dilation)) {
    return false;
  }
  if (decoder.next() != Tag::kBoolean || decoder.get<uint8_t>() != 0) return false;
  if (!read_list(decoder, rank, output_padding)) return false;
  const Tag tag = decoder.next();
  return (tag == Tag::kSize || tag == Tag::kInteger) && decoder.integer(tag) == 1;
}

// A call of ours; operands by their positions, -1 where there is none.
struct Convolution {
  ConvolutionShape shape;
  int input, weight, bias = -1, grad_output = -1;
  int output = -1, grad_input = -1, grad_weight = -1, grad_bias = -1;
};

const graph::Window& window_of(const graph::Invocation& invocation, int operand) {
  return (*invocation.windows)[invocation.operands[operand].window];
}

// Whether every operand has dense float32 numbers.
bool all_plain(const graph::Invocation& invocation) {
  for (int i = 0; i < invocation.node->operand_count; ++i) {
    const graph::Window& window = window_of(invocation, i);
    if (window.dtype != static_cast<graph::DType>(at::kFloat) || !window.contiguous || window.numel == 0 ||
        invocation.operands[i].bits != 0) {
      return false;
    }
  }
  return true;
}

// The geometry of input [images, channels, (height,) width] and weight [outputs, channels,
// (kernel_height,) kernel_width].
bool geometry_of(const graph::Window& input, const graph::Window& weight, const Settings& settings,
                 ConvolutionGeometry& geometry) {
  if (input.rank != weight.rank || input.sizes()[1] != weight.sizes()[1]) return false;
  const bool planar = input.rank == 4;
  const size_t last = planar ? 1 : 0;
  geometry = {.images = input.sizes()[0],
              .channels = input.sizes()[1],
              .height = planar ? input.sizes()[2] : 1,
              .width = input.sizes()[last + 2],
              .outputs = weight.sizes()[0],
              .kernel_height = planar ? weight.sizes()[2] : 1,
              .kernel_width = weight.sizes()[last + 2],
              .stride_y = planar ? settings.stride[0] : 1,
              .stride_x = settings.stride[last],
              .padding_y = planar ? settings.padding[0] : 0,
              .padding_x = settings.padding[last],
              .dilation_y = planar ? settings.dilation[0] : 1,
              .dilation_x = settings.dilation[last]};
  return true;
}

// Whether the window is [images, outputs, (out_height,) out_width].
bool is_output(const graph::Window& window, const ConvolutionGeometry& geometry, int rank) {
  const std::span<const int64_t> sizes = window.sizes();
  return window.rank == rank && sizes[0] == geometry.images && sizes[1] == geometry.outputs &&
         (rank == 3 || sizes[2] == geometry.out_height()) && sizes[rank - 1] == geometry.out_width();
}

bool recognize_forward(const graph::Invocation& invocation, Convolution& call) {
  const graph::Node& node = *invocation.node;
  if (node.output_count != 1 || !all_plain(invocation)) return false;
  Decoder decoder(invocation.attributes, node.attribute_bytes);
  if (decoder.next() != Tag::kTensor || decoder.next() != Tag::kTensor) return false;
  const Tag bias = decoder.next();
  const int inputs = bias == Tag::kTensor ? 3 : 2;
  const bool known = bias == Tag::kTensor || bias == Tag::kNone || bias == Tag::kUndefined;
  if (!known || node.operand_count != inputs + 1) return false;
  call.input = 0;
  call.weight = 1;
  call.bias = bias == Tag::kTensor ? 2 : -1;
  call.output = inputs;
  const graph::Window& input = window_of(invocation, call.input);
  Settings settings;
  if (input.rank < 3 || input.rank > 4) return false;
  if (!read_settings(decoder, static_cast<size_t>(input.rank - 2), settings)) return false;
  ConvolutionGeometry& geometry = call.shape.geometry;
  if (!geometry_of(input, window_of(invocation, call.weight), settings, geometry)) return false;
  call.shape.work = call.bias >= 0 ? ConvolutionWork::kForwardWithBias : ConvolutionWork::kForward;
  return is_output(window_of(invocation, call.output), geometry, input.rank) &&
         (call.bias < 0 || window_of(invocation, call.bias).numel == geometry.outputs);
}

bool recognize_backward(const graph::Invocation& invocation, Convolution& call) {
  const graph::Node& node = *invocation.node;
  if (node.operand_count != 3 + node.output_count || !all_plain(invocation)) return false;
  Decoder decoder(invocation.attributes, node.attribute_bytes);
  for (int i = 0; i < 3; ++i) {
    if (decoder.next() != Tag::kTensor) return false;
  }
  call.grad_output = 0;
  call.input = 1;
  call.weight = 2;
  const graph::Window& input = window_of(invocation, call.input);
  if (input.rank < 3 || input.rank > 4) return false;
  const Tag bias_sizes = decoder.next();
  if (bias_sizes == Tag::kSizes || bias_sizes == Tag::kIntegers) {
    for (auto left = decoder.get<uint32_t>(); left > 0; --left) {
      (void)(bias_sizes == Tag::kSizes ? decoder.get_size<int64_t>() : decoder.get<int64_t>());
    }
  } else if (bias_sizes != Tag::kNone) {
    return false;
  }
  Settings settings;
  if (!read_settings(decoder, static_cast<size_t>(input.rank - 2), settings)) return false;
  // The output mask: what it leaves out has no operand.
  if (decoder.next() != Tag::kList || decoder.get<uint32_t>() != 3) return false;
  int next = 3;
  for (int* gradient : {&call.grad_input, &call.grad_weight, &call.grad_bias}) {
    if (decoder.next() != Tag::kBoolean) return false;
    if (decoder.get<uint8_t>() != 0) *gradient = next++;
  }
  if (next != node.operand_count) return false;
  const graph::Window& weight = window_of(invocation, call.weight);
  ConvolutionGeometry& geometry = call.shape.geometry;
  if (!geometry_of(input, weight, settings, geometry)) return false;
  call.shape.work = ConvolutionWork::kBackward;
  call.shape.gradients =
      static_cast<uint8_t>((call.grad_input >= 0 ? kOfInput : 0) | (call.grad_weight >= 0 ? kOfWeight : 0) |
                           (call.grad_bias >= 0 ? kOfBias : 0));
  return is_output(window_of(invocation, call.grad_output), geometry, input.rank) &&
         (call.grad_input < 0 || window_of(invocation, call.grad_input).numel == input.numel) &&
         (call.grad_weight < 0 || window_of(invocation, call.grad_weight).numel == weight.numel) &&
         (call.grad_bias < 0 || window_of(invocation, call.grad_bias).numel == geometry.outputs);
}

// ---- running ------------------------------------------------------------------------------------

// What a call reads and writes.
struct Numbers {
  const float* input = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  const float* grad_output = nullptr;
  float* output = nullptr;
  backend::ConvolutionGradients gradients;
};

const float* read(const graph::Invocation& invocation, int operand) {
  if (operand < 0) return nullptr;
  return static_cast<const float*>(invocation.data[operand]) + window_of(invocation, operand).offset;
}

void run_unfolded(const ConvolutionShape& shape, const Numbers& numbers) {
  if (shape.work == ConvolutionWork::kBackward) {
    backend::convolution_backward(shape.geometry, numbers.grad_output, numbers.input, numbers.weight, numbers.gradients,
                                  &sgemm);
  } else {
    backend::convolution_forward(shape.geometry, numbers.input, numbers.weight, numbers.bias, numbers.output, &sgemm);
  }
}

at::IntArrayRef sizes_of(const graph::Window& window) { return {window.dims, static_cast<size_t>(window.rank)}; }

// Whether the operands have their values already, or only those that have a binding.
enum class Values : uint8_t { kAll, kBound };

// As many images of a call as speak for all, with memory of their own for the results. Operands
// without values are ones.
class Sample {
 public:
  Sample(const graph::Invocation& invocation, const Convolution& call, Values values)
      : shape_(call.shape), aliases_(invocation) {
    // Multiplications: some milliseconds.
    constexpr int64_t kMostWork = int64_t{256} << 20;
    ConvolutionGeometry& geometry = shape_.geometry;
    const int64_t work = geometry.positions() * geometry.outputs * geometry.channels * geometry.kernel();
    geometry.images = std::min(geometry.images, std::max<int64_t>(1, kMostWork / work));
    planar_ = window_of(invocation, call.input).rank == 4;
    const auto valued = [&](int operand, at::Tensor part) {
      const bool has_binding =
          invocation.bindings != nullptr && invocation.bindings[invocation.operands[operand].buffer] != nullptr;
      return values == Values::kAll || has_binding ? part : at::ones(part.sizes(), part.options());
    };
    input_ = valued(call.input, images(aliases_.operand(call.input)));
    weight_ = valued(call.weight, aliases_.operand(call.weight));
    if (call.bias >= 0) bias_ = valued(call.bias, aliases_.operand(call.bias));
    if (call.grad_output >= 0) grad_output_ = valued(call.grad_output, images(aliases_.operand(call.grad_output)));
    numbers_ = {.input = input_.const_data_ptr<float>(),
                .weight = weight_.const_data_ptr<float>(),
                .bias = bias_ ? bias_->const_data_ptr<float>() : nullptr,
                .grad_output = grad_output_.defined() ? grad_output_.const_data_ptr<float>() : nullptr,
                .output = nullptr,
                .gradients = {}};
    const auto memory = [&](bool wanted, int64_t floats, at::Tensor& results) -> float* {
      if (!wanted) return nullptr;
      results = at::empty({floats}, input_.options());
      return results.mutable_data_ptr<float>();
    };
    const bool forward = shape_.work != ConvolutionWork::kBackward;
    numbers_.output = memory(forward, geometry.images * geometry.outputs * geometry.positions(), results_[0]);
    numbers_.gradients.input = memory(call.grad_input >= 0, input_.numel(), results_[1]);
    numbers_.gradients.weight = memory(call.grad_weight >= 0, weight_.numel(), results_[2]);
    numbers_.gradients.bias = memory(call.grad_bias >= 0, geometry.outputs, results_[3]);
  }

  Measured measure() {
    ++measurements;
    return ops::measure(kConvolutionImplementations, [&](size_t i) {
      if (static_cast<Implementation>(i) == Implementation::kUnfolded) {
        run_unfolded(shape_, numbers_);
      } else {
        run_stock();
      }
    });
  }

 private:
  at::Tensor images(const at::Tensor& tensor) { return tensor.narrow(0, 0, shape_.geometry.images); }

  void run_stock() {
    const ConvolutionGeometry& geometry = shape_.geometry;
    const int64_t stride[] = {geometry.stride_y, geometry.stride_x};
    const int64_t padding[] = {geometry.padding_y, geometry.padding_x};
    const int64_t dilation[] = {geometry.dilation_y, geometry.dilation_x};
    const int64_t none[] = {0, 0};
    const auto list = [&](const int64_t(&numbers)[2]) {
      return planar_ ? at::IntArrayRef(numbers) : at::IntArrayRef(numbers + 1, 1);
    };
    if (shape_.work != ConvolutionWork::kBackward) {
      at::convolution(input_, weight_, bias_, list(stride), list(padding), list(dilation), false, list(none), 1);
      return;
    }
    const auto wanted = [&](ConvolutionGradient gradient) { return (shape_.gradients & gradient) != 0; };
    at::convolution_backward(grad_output_, input_, weight_, at::IntArrayRef(geometry.outputs), list(stride),
                             list(padding), list(dilation), false, list(none), 1,
                             {wanted(kOfInput), wanted(kOfWeight), wanted(kOfBias)});
  }

  ConvolutionShape shape_;
  KernelTensors aliases_;
  bool planar_ = true;
  Numbers numbers_;
  at::Tensor input_, weight_, grad_output_;
  std::optional<at::Tensor> bias_;
  std::array<at::Tensor, 4> results_;
};

ConvolutionChoice choose(const graph::Invocation& invocation, const Convolution& call, Values values) {
  const Measured measured = Sample(invocation, call, values).measure();
  return {.implementation = static_cast<Implementation>(fastest(measured)), .sure = measured.repeated};
}

Implementation chosen(const graph::Invocation& invocation, const Convolution& call) {
  if (const int implementation = forced.load(std::memory_order_relaxed); implementation >= 0) {
    return static_cast<Implementation>(implementation);
  }
  ConvolutionChoices& choices = convolution_choices();
  std::optional<ConvolutionChoice> choice = choices.find(call.shape);
  if (!choice) {
    choice = choose(invocation, call, Values::kAll);
    choices.learn(call.shape, *choice);
  }
  return choice->implementation;
}

// An output operand's memory: as planned, or brought.
class Output {
 public:
  Output(const graph::Invocation& invocation, KernelTensors& tensors, int operand)
      : tensors_(tensors), operand_(operand) {
    if (operand < 0 || tensors.has_memory(operand)) return;
    brought_ = at::empty(sizes_of(window_of(invocation, operand)), at::TensorOptions(at::kFloat));
  }
  float* numbers() {
    if (operand_ < 0) return nullptr;
    return brought_.defined() ? brought_.mutable_data_ptr<float>()
                              : tensors_.operand(operand_).mutable_data_ptr<float>();
  }
  void deliver() {
    if (brought_.defined()) tensors_.deliver(operand_, std::move(brought_));
  }

 private:
  KernelTensors& tensors_;
  int operand_;
  at::Tensor brought_;
};

// Whether ours may run at all.
bool ours_may_run() { return last_bits_may_vary() && has_sgemm(); }

bool run_recognized(const graph::Invocation& invocation, Convolution& call) {
  call.shape.threads = at::get_num_threads();
  if (!backend::convolution_fits(call.shape.geometry)) return false;
  Isolated isolated;
  if (chosen(invocation, call) == Implementation::kStock) return false;
  const bool backward = call.shape.work == ConvolutionWork::kBackward;
  run_as_operator(backward ? OwnKernel::kConvolutionBackward : OwnKernel::kConvolution, invocation, [&] {
    KernelTensors tensors(invocation);
    Output output(invocation, tensors, call.output), grad_input(invocation, tensors, call.grad_input),
        grad_weight(invocation, tensors, call.grad_weight), grad_bias(invocation, tensors, call.grad_bias);
    run_unfolded(call.shape, {.input = read(invocation, call.input),
                              .weight = read(invocation, call.weight),
                              .bias = read(invocation, call.bias),
                              .grad_output = read(invocation, call.grad_output),
                              .output = output.numbers(),
                              .gradients = {grad_input.numbers(), grad_weight.numbers(), grad_bias.numbers()}});
    for (Output* one : {&output, &grad_input, &grad_weight, &grad_bias}) one->deliver();
  });
  return true;
}

// What chosen() gives for such calls from now on. Where the machine is too busy, what was measured
// last is taken for what it is.
void settle(const graph::Invocation& invocation, Convolution& call) {
  constexpr int kMostTries = 3;
  call.shape.threads = at::get_num_threads();
  if (!backend::convolution_fits(call.shape.geometry) || forced.load(std::memory_order_relaxed) >= 0) return;
  ConvolutionChoices& choices = convolution_choices();
  if (choices.settled(call.shape)) return;
  Isolated isolated;
  ConvolutionChoice choice{.sure = false};
  for (int tries = 0; !choice.sure && tries < kMostTries; ++tries) choice = choose(invocation, call, Values::kBound);
  choices.settle(call.shape, choice);
}

}  // namespace

void prepare_convolution(const graph::Invocation& invocation) {
  Convolution call;
  if (ours_may_run() && recognize_forward(invocation, call)) settle(invocation, call);
}

void prepare_convolution_backward(const graph::Invocation& invocation) {
  Convolution call;
  if (ours_may_run() && recognize_backward(invocation, call)) settle(invocation, call);
}

bool run_convolution(const graph::Invocation& invocation) {
  Convolution call;
  return ours_may_run() && recognize_forward(invocation, call) && run_recognized(invocation, call);
}

bool run_convolution_backward(const graph::Invocation& invocation) {
  Convolution call;
  return ours_may_run() && recognize_backward(invocation, call) && run_recognized(invocation, call);
}

ConvolutionCounts convolution_counts() {
  ConvolutionCounts counts;
  for (const OwnKernel kernel : {OwnKernel::kConvolution, OwnKernel::kConvolutionBackward}) {
    counts.runs[static_cast<int>(Implementation::kUnfolded)] += counters().own_kernels[static_cast<size_t>(kernel)];
  }
  counts.measurements = measurements;
  return counts;
}

void force_convolution_implementation(std::optional<ConvolutionImplementation> implementation) {
  forced = implementation ? static_cast<int>(*implementation) : -1;
}

}  // namespace hetero::ops
