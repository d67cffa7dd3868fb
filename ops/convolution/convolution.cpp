#include "ops/convolution/convolution.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/rsqrt.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/cpu/convolution/convolution.h"
#include "backend/cpu/convolution/pixel_gradients.h"
#include "ops/convolution/filter.h"
#include "ops/kernels/blas.h"
#include "ops/kernels/kernel.h"
#include "ops/kernels/linear.h"
#include "ops/kernels/measure.h"
#include "ops/kernels/own_kernel.h"
#include "ops/kernels/packed_product.h"
#include "ops/memory/packed_weights.h"
#include "ops/settings/parallel.h"

namespace hetero::ops {
namespace {

using Implementation = ConvolutionImplementation;
using backend::ConvolutionGeometry;

std::atomic<int64_t> measurements;
std::atomic<int> forced{-1};

bool may_keep_more() { return config().packed_bytes.load(std::memory_order_relaxed) > 0; }

bool is_forced() { return forced.load(std::memory_order_relaxed) >= 0; }

bool can_keep_any(const ConvolutionCall& call) {
  return std::ranges::any_of(kFilterImplementations,
                             [&](Implementation one) { return can_convolve_by_filter(one, call); });
}

// Null where nothing can keep a filter of the weight.
PackedWeights* filters_of(const graph::Invocation& invocation, const ConvolutionCall& call) {
  return can_keep_any(call) ? PackedWeights::of_operand(invocation, call.weight) : nullptr;
}

// Those of the call that are not of its operands alone.
void complete(ConvolutionCall& call) {
  call.shape.threads = at::get_num_threads();
  call.shape.tiles = (call.has_patches || call.tile_sets > 0) && may_use_tiles(call.shape.element);
  call.has_winograd = call.has_winograd && config().winograd.load(std::memory_order_relaxed);
  call.shape.winograd = call.has_winograd;
  if (call.has_winograd && call.ours == Implementation::kStock) call.ours = Implementation::kWinograd;
  const bool multiplies = call.ours == Implementation::kUnfolded || call.ours == Implementation::kPixels;
  if (multiplies && !has_sgemm()) call.ours = Implementation::kStock;
}

PixelProduct product_of(const ConvolutionCall& call) {
  const ConvolutionGeometry& geometry = call.shape.geometry;
  return {.input = call.input,
          .weight = call.weight,
          .bias = call.bias,
          .output = call.output,
          .element = call.shape.element,
          .pixels = geometry.images * geometry.pixels(),
          .channels = geometry.channels,
          .outputs = geometry.outputs};
}

// ---- by our loops that need no filter -----------------------------------------------------------

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

void run_by_pixels(const ConvolutionShape& shape, const Numbers& numbers) {
  const backend::PixelGradients call{.geometry = shape.geometry,
                                     .grad_output = numbers.grad_output,
                                     .input = numbers.input,
                                     .weight = numbers.weight,
                                     .gradients = numbers.gradients};
  if (shape.groups == 1 && shape.geometry.pointwise()) {
    backend::pointwise_gradients(call, &sgemm);
  } else {
    backend::depthwise_gradients(call);
  }
}

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

bool wants(const ConvolutionCall& call, ConvolutionGradient gradient) { return (call.shape.gradients & gradient) != 0; }

// Those of the weight and the bias as the call wants them.
Gradients stock_gradients(const ConvolutionCall& call, const at::Tensor& grad_output, const at::Tensor& input,
                          const at::Tensor& weight, bool of_input) {
  const ConvolutionSettings& s = call.settings;
  return at::convolution_backward(grad_output, input, weight, at::IntArrayRef(call.shape.geometry.outputs), s.stride,
                                  s.padding, s.dilation, false, s.output_padding, s.groups,
                                  {of_input, wants(call, kOfWeight), wants(call, kOfBias)});
}

// Writes the gradient of the input. The result has the others.
Gradients run_backward_by_winograd(const ConvolutionCall& call, const at::Tensor& grad_output, const at::Tensor& input,
                                   const at::Tensor& weight, float* grad_input) {
  const bool made = gradient_by_winograd(call, grad_output, weight, grad_input);
  if (made && !wants(call, kOfWeight) && !wants(call, kOfBias)) return {};
  const OpenMpScope openmp;
  Gradients gradients = stock_gradients(call, grad_output, input, weight, !made);
  if (!made) {
    const at::Tensor& whole = std::get<0>(gradients);
    at::from_blob(grad_input, input.sizes(), input.strides(), whole.options()).copy_(whole);
  }
  return gradients;
}

at::IntArrayRef sizes_of(const graph::Window& window) { return {window.dims, static_cast<size_t>(window.rank)}; }

// ---- choosing -----------------------------------------------------------------------------------

// Whether the operands have their values already, or only those that have a binding.
enum class Values : uint8_t { kAll, kBound };

// As many images of a call as speak for all, with memory of their own for the results. Operands
// without values are ones.
class Sample {
 public:
  Sample(const graph::Invocation& invocation, const ConvolutionCall& call, Values values)
      : call_(call), settings_(call_.settings), aliases_(invocation) {
    // Multiplications: some milliseconds.
    constexpr int64_t kMostWork = int64_t{256} << 20;
    ConvolutionGeometry& geometry = call_.shape.geometry;
    const int64_t of_output = geometry.channels / call.settings.groups * geometry.kernel();
    const int64_t work = geometry.positions() * geometry.outputs * of_output;
    geometry.images = std::min(geometry.images, std::max<int64_t>(1, kMostWork / std::max<int64_t>(1, work)));
    const auto valued = [&](int operand, at::Tensor part) {
      const bool has_binding =
          invocation.bindings != nullptr && invocation.bindings[invocation.operands[operand].buffer] != nullptr;
      if (values == Values::kAll || has_binding) return part;
      return at::empty_strided(part.sizes(), part.strides(), part.options()).fill_(1);
    };
    input_ = valued(call.input, images(aliases_.operand(call.input)));
    weight_ = valued(call.weight, aliases_.operand(call.weight));
    if (call.bias >= 0) bias_ = valued(call.bias, aliases_.operand(call.bias));
    if (call.grad_output >= 0) grad_output_ = valued(call.grad_output, images(aliases_.operand(call.grad_output)));
    const auto memory = [&](bool wanted, int64_t floats, at::Tensor& results) -> float* {
      if (!wanted) return nullptr;
      results = at::empty({floats}, input_.options());
      return results.mutable_data_ptr<float>();
    };
    if (!call_.is_backward()) {
      const graph::Window& output = window_of(invocation, call.output);
      std::vector<int64_t> sizes(output.sizes().begin(), output.sizes().end());
      sizes[0] = geometry.images;
      results_[0] = at::empty_strided(sizes, at::IntArrayRef(output.strides().data(), sizes.size()), input_.options());
    }
    if (call_.shape.element != backend::Element::kFloat32) return;
    numbers_ = {.input = input_.const_data_ptr<float>(),
                .weight = weight_.const_data_ptr<float>(),
                .bias = bias_ ? bias_->const_data_ptr<float>() : nullptr,
                .grad_output = grad_output_.defined() ? grad_output_.const_data_ptr<float>() : nullptr,
                .output = results_[0].defined() ? results_[0].mutable_data_ptr<float>() : nullptr,
                .gradients = {}};
    numbers_.gradients.input = memory(call.grad_input >= 0, input_.numel(), results_[1]);
    numbers_.gradients.weight = memory(call.grad_weight >= 0, weight_.numel(), results_[2]);
    numbers_.gradients.bias = memory(call.grad_bias >= 0, geometry.outputs, results_[3]);
  }

  // With filters that are kept, or made anew in each run.
  Measured measure(const std::vector<Implementation>& candidates, bool keeps) {
    ++measurements;
    keeps_ = keeps;
    return ops::measure(candidates.size(), [&](size_t i) { run(candidates[i]); });
  }

 private:
  at::Tensor images(const at::Tensor& tensor) { return tensor.narrow(0, 0, call_.shape.geometry.images); }

  void run(Implementation implementation) {
    switch (implementation) {
      case Implementation::kStock:
        run_stock();
        break;
      case Implementation::kUnfolded:
        run_unfolded(call_.shape, numbers_);
        break;
      case Implementation::kPixels:
        run_by_pixels(call_.shape, numbers_);
        break;
      default:
        if (call_.is_backward()) {
          run_backward_by_winograd(call_, grad_output_, input_, weight_, numbers_.gradients.input);
        } else {
          run_by_filter(implementation);
        }
        break;
    }
  }

  void run_by_filter(Implementation implementation) {
    const auto make = [&] { return make_filter(implementation, call_, weight_, input_.sizes()).packed; };
    at::Tensor& kept = filters_[static_cast<size_t>(implementation)];
    if (keeps_ && !kept.defined()) kept = make();
    const at::Tensor filter = keeps_ ? kept : make();
    at::Tensor made;
    if (filter.defined()) made = convolve_by_filter(implementation, call_, filter, input_, bias_, results_[0]);
    if (!made.defined()) return run_stock();
    if (made.const_data_ptr() != results_[0].const_data_ptr()) results_[0].copy_(made);
  }

  void run_stock() {
    if (!call_.is_backward()) {
      // The copy is made after each call of the stock kernel: KernelTensors::deliver.
      results_[0].copy_(at::convolution(input_, weight_, bias_, settings_.stride, settings_.padding, settings_.dilation,
                                        settings_.transposed, settings_.output_padding, settings_.groups));
      return;
    }
    stock_gradients(call_, grad_output_, input_, weight_, wants(call_, kOfInput));
  }

  ConvolutionCall call_;
  const ConvolutionSettings& settings_;
  KernelTensors aliases_;
  Numbers numbers_;
  at::Tensor input_, weight_, grad_output_;
  std::array<at::Tensor, kConvolutionImplementations> filters_;
  bool keeps_ = false;
  std::optional<at::Tensor> bias_;
  std::array<at::Tensor, 4> results_;
};

ConvolutionChoice choose(const graph::Invocation& invocation, const ConvolutionCall& call, Values values) {
  if (call.ours == Implementation::kStock) return {};
  const std::vector<Implementation> candidates{Implementation::kStock, call.ours};
  const Measured measured = Sample(invocation, call, values).measure(candidates, false);
  return {.plain = candidates[fastest(measured)], .sure = measured.repeated};
}

// With `guesses` also where the machine was too busy.
ConvolutionChoice try_keeping(const graph::Invocation& invocation, const ConvolutionCall& call,
                              ConvolutionChoice choice, Values values = Values::kAll, bool guesses = false) {
  std::vector<Implementation> candidates{choice.plain == call.ours ? choice.plain : Implementation::kStock};
  for (const Implementation one : kFilterImplementations) {
    if (one != candidates[0] && can_convolve_by_filter(one, call)) candidates.push_back(one);
  }
  const Measured measured = Sample(invocation, call, values).measure(candidates, true);
  if (measured.repeated || guesses) {
    choice.sure = choice.sure && measured.repeated;
    const auto cost = [&](size_t i) {
      const bool of_others = candidates[i] == Implementation::kStock || candidates[i] == Implementation::kPacked;
      return measured.seconds[i] * (of_others ? kOfOpenMp : 1);
    };
    size_t least = 0;
    for (size_t i = 1; i < candidates.size(); ++i) least = cost(i) < cost(least) ? i : least;
    choice.kept = candidates[least];
    if (!can_convolve_by_filter(*choice.kept, call)) choice.kept = Implementation::kStock;
  }
  return choice;
}

ConvolutionChoice chosen_by_force(const ConvolutionCall& call) {
  const auto wanted = static_cast<Implementation>(forced.load(std::memory_order_relaxed));
  const Implementation plain = wanted == call.ours ? wanted : Implementation::kStock;
  const bool keeps = can_convolve_by_filter(wanted, call);
  return {.plain = plain, .kept = keeps ? wanted : Implementation::kStock};
}

ConvolutionChoice chosen(const graph::Invocation& invocation, const ConvolutionCall& call, PackedWeights* filters,
                         int uses) {
  if (is_forced()) return chosen_by_force(call);
  ConvolutionChoices& choices = convolution_choices();
  std::optional<ConvolutionChoice> choice = choices.find(call.shape);
  if (!choice) {
    choice = choose(invocation, call, Values::kAll);
    choices.learn(call.shape, *choice);
  }
  if (!choice->kept && filters != nullptr && filters->was_used(uses) && may_keep_more()) {
    // What is needed early is taken for what it is on a busy machine, and measured again later.
    choice = try_keeping(invocation, call, *choice, Values::kAll, uses < kUsesBeforePacking);
    if (choice->kept) {
      choices.learn(call.shape, *choice);
    } else {
      filters->forget_uses();  // tried again after as many uses
    }
  }
  // A call of similar size may have been one that others can compute, or the library another one.
  if (choice->plain != call.ours) choice->plain = Implementation::kStock;
  return *choice;
}

// What chosen() gives for such calls from now on. Where the machine is too busy, what was measured
// last is taken for what it is.
void settle(const graph::Invocation& invocation, const ConvolutionCall& call, const PackedWeights* filters) {
  constexpr int kMostTries = 3;
  if (is_forced()) return;
  ConvolutionChoices& choices = convolution_choices();
  std::optional<ConvolutionChoice> choice = choices.settled(call.shape);
  for (int tries = 0; !choice || (!choice->sure && tries > 0 && tries < kMostTries); ++tries) {
    choice = choose(invocation, call, Values::kBound);
  }
  for (int tries = 1; filters != nullptr && may_keep_more() && !choice->kept && tries <= kMostTries; ++tries) {
    choice = try_keeping(invocation, call, *choice, Values::kBound, tries == kMostTries);
  }
  choices.settle(call.shape, *choice);
}

// The implementations that may keep a filter of the call, the chosen one first. Not each can have
// all values.
std::array<Implementation, 2> keepers(const ConvolutionChoice& choice) {
  return {choice.kept.value_or(Implementation::kStock), Implementation::kPacked};
}

struct Kept {
  Implementation by = Implementation::kStock;
  const at::Tensor* filter = nullptr;  // null where the call runs without
};

Kept filter_now(const graph::Invocation& invocation, const ConvolutionCall& call, const ConvolutionChoice& choice,
                PackedWeights* filters) {
  const bool keeps = choice.kept.value_or(Implementation::kStock) != Implementation::kStock;
  if (filters == nullptr || !keeps || !filters->worth_packing()) return {};
  for (const Implementation by : keepers(choice)) {
    if (!can_convolve_by_filter(by, call)) continue;
    const PackedKey key = filter_key(by, call, invocation);
    const at::Tensor* const filter = filters->find_or_make(key, filter_space(by, call), key.dense_bytes(), [&] {
      KernelTensors tensors(invocation);
      return make_filter(by, call, tensors.operand(call.weight), sizes_of(window_of(invocation, call.input)));
    });
    // Otherwise there is no room, or it cannot have the values.
    if (filter != nullptr && filter->defined()) return {by, filter};
  }
  return {};
}

// ---- running ------------------------------------------------------------------------------------

// An output operand's memory: as planned, or brought.
class Output {
 public:
  Output(const graph::Invocation& invocation, KernelTensors& tensors, int operand)
      : tensors_(tensors), operand_(operand) {
    if (operand < 0 || tensors.has_memory(operand)) return;
    const graph::Window& window = window_of(invocation, operand);
    const auto dtype = static_cast<at::ScalarType>(window.dtype);
    const at::IntArrayRef strides(window.strides().data(), static_cast<size_t>(window.rank));
    brought_ = at::empty_strided(sizes_of(window), strides, at::TensorOptions(dtype));
  }
  // REQUIRES: the call has the operand.
  const at::Tensor& tensor() { return brought_.defined() ? brought_ : tensors_.operand(operand_); }
  float* numbers() { return operand_ < 0 ? nullptr : tensor().mutable_data_ptr<float>(); }
  // What was written into tensor().
  void deliver() {
    if (brought_.defined()) tensors_.deliver(operand_, std::move(brought_));
  }
  // This, which may be tensor().
  void deliver(at::Tensor made) {
    // The tensor's own storage, where another one lies in its memory.
    if (brought_.defined() && made.const_data_ptr() == brought_.const_data_ptr()) {
      made.reset();
      return deliver();
    }
    brought_.reset();
    tensors_.deliver(operand_, std::move(made));
  }

 private:
  KernelTensors& tensors_;
  int operand_;
  at::Tensor brought_;
};

// `bias` in place of the call's own, if given.
void run_by_filter(Implementation by, const graph::Invocation& invocation, const ConvolutionCall& call,
                   const at::Tensor& filter, const at::Tensor* bias = nullptr) {
  const OwnKernel counted = by == Implementation::kPacked       ? OwnKernel::kPackedConvolution
                            : by == Implementation::kDepthwise  ? OwnKernel::kDepthwise
                            : by == Implementation::kWinograd   ? OwnKernel::kWinograd
                            : by == Implementation::kFewOutputs ? OwnKernel::kFewOutputs
                                                                : OwnKernel::kPatchProduct;
  run_as_operator(counted, invocation, [&] {
    KernelTensors tensors(invocation);
    const auto tensor = [&](int operand) {
      return operand < 0 ? std::nullopt : std::optional<at::Tensor>(tensors.operand(operand));
    };
    const at::Tensor& input = tensors.operand(call.input);
    Output output(invocation, tensors, call.output);
    at::Tensor made = convolve_by_filter(by, call, filter, input, bias != nullptr ? *bias : tensor(call.bias),
                                         output.tensor(), invocation.follower);
    if (!made.defined()) {  // images with values that the implementation cannot have
      const OpenMpScope openmp;
      const ConvolutionSettings& s = call.settings;
      const auto convolve = [&](const auto& function, auto&&... norm) {
        return function(input, tensors.operand(call.weight), tensor(call.bias), s.stride, s.padding, s.dilation,
                        s.transposed, s.output_padding, s.groups, norm...);
      };
      made = call.norm ? convolve(&convolution_norm, tensor(call.norm->weight), tensor(call.norm->bias),
                                  tensors.operand(call.norm->mean), tensors.operand(call.norm->variance), false, 0.,
                                  call.norm->epsilon)
                       : convolve(&at::convolution);
    }
    output.deliver(std::move(made));
  });
}

// ---- with a norm --------------------------------------------------------------------------------

// The filter and the bias in which the norm is; null where nothing can keep them. They are made
// anew when bytes of any of their storages change. REQUIRES: the executor lock.
struct Folded {
  const at::Tensor* filter = nullptr;
  const at::Tensor* bias = nullptr;
};

Folded fold(Implementation by, const graph::Invocation& invocation, const ConvolutionCall& call,
            PackedWeights& filters) {
  PackedKey key = filter_key(by, call, invocation);
  auto place = key.settings.end() - 6;
  *place++ = std::bit_cast<int64_t>(call.norm->epsilon);
  size_t i = 0;
  for (const int operand : {call.bias, call.norm->weight, call.norm->bias, call.norm->mean, call.norm->variance}) {
    PackedWeights* const derived = operand < 0 ? nullptr : PackedWeights::of_operand(invocation, operand);
    if (operand >= 0 && derived == nullptr) return {};
    *place++ = reinterpret_cast<intptr_t>(read(invocation, operand));
    key.serials[i++] = derived == nullptr ? 0 : derived->serial();
  }
  std::optional<KernelTensors> tensors;
  const auto values = [&](int operand) {
    if (!tensors) tensors.emplace(invocation);
    return operand < 0 ? at::Tensor() : tensors->operand(operand).to(at::kDouble);
  };
  const auto norm = [&] {
    return affine_norm(values(call.norm->weight), values(call.norm->bias), values(call.norm->mean),
                       values(call.norm->variance), call.norm->epsilon);
  };
  Folded folded;
  folded.filter = filters.find_or_make(key, filter_space(by, call), 0, [&] {
    std::vector<int64_t> along(static_cast<size_t>(window_of(invocation, call.weight).rank), 1);
    along[0] = -1;
    const at::Tensor filter = (values(call.weight) * norm().scale.view(along)).to(at::kFloat);
    // Infinite ones would make sums over a window NaN.
    if (!is_finite(filter)) return PackedWeights::Made{{}, 0};
    return make_filter(by, call, filter, sizes_of(window_of(invocation, call.input)));
  });
  key.form = PackedForm::kFilterBias;
  const int64_t bytes = call.shape.geometry.outputs * static_cast<int64_t>(sizeof(float));
  folded.bias = filters.find_or_make(key, bytes, 0, [&] {
    const auto [scale, shift] = norm();
    at::Tensor bias = (call.bias < 0 ? shift : shift + values(call.bias) * scale).to(at::kFloat);
    if (!is_finite(bias)) bias.reset();
    return PackedWeights::Made{std::move(bias), bytes};
  });
  return folded;
}

bool run_with_norm(const graph::Invocation& invocation, ConvolutionCall& call) {
  if (call.shape.element != backend::Element::kFloat32) return false;
  complete(call);
  PackedWeights* const filters = filters_of(invocation, call);
  if (filters == nullptr) return false;
  Isolated isolated(Isolated::Threads::kOurs);
  filters->note_use();
  // Earlier than other weights: without, it is two passes.
  constexpr int kUses = 2;
  if (!filters->was_used(kUses) || !may_keep_more()) return false;
  const ConvolutionChoice choice = chosen(invocation, call, filters, kUses);
  bool has_room = true;
  for (const Implementation by : keepers(choice)) {
    if (!can_convolve_by_filter(by, call)) continue;
    const Folded folded = fold(by, invocation, call, *filters);
    has_room = folded.filter != nullptr && folded.bias != nullptr;
    if (!has_room || !folded.filter->defined() || !folded.bias->defined()) continue;
    run_by_filter(by, invocation, call, *folded.filter, folded.bias);
    return true;
  }
  // What there was may be taken by norms that are no more.
  if (!has_room && !filters->empty()) binding_of(invocation, call.weight)->derived.reset();
  return false;
}

// ---- without ------------------------------------------------------------------------------------

bool run_recognized(const graph::Invocation& invocation, ConvolutionCall& call) {
  if (call.is_product && !is_forced() && run_pixel_product(invocation, product_of(call))) return true;
  complete(call);
  PackedWeights* const filters = filters_of(invocation, call);
  if (call.ours == Implementation::kStock && filters == nullptr) return false;
  Isolated isolated(Isolated::Threads::kOurs);
  if (filters != nullptr) filters->note_use();
  const ConvolutionChoice choice = chosen(invocation, call, filters, kUsesBeforePacking);
  if (const Kept kept = filter_now(invocation, call, choice, filters); kept.filter != nullptr) {
    run_by_filter(kept.by, invocation, call, *kept.filter);
    return true;
  }
  if (choice.plain == Implementation::kStock) return false;
  if (can_convolve_by_filter(choice.plain, call)) {
    KernelTensors tensors(invocation);
    const PackedWeights::Made made =
        make_filter(choice.plain, call, tensors.operand(call.weight), sizes_of(window_of(invocation, call.input)));
    if (!made.packed.defined()) return false;  // it cannot have the values
    run_by_filter(choice.plain, invocation, call, made.packed);
    return true;
  }
  run_as_operator(call.is_backward() ? OwnKernel::kConvolutionBackward : OwnKernel::kConvolution, invocation, [&] {
    KernelTensors tensors(invocation);
    Output output(invocation, tensors, call.output), grad_input(invocation, tensors, call.grad_input),
        grad_weight(invocation, tensors, call.grad_weight), grad_bias(invocation, tensors, call.grad_bias);
    const Numbers numbers{.input = read(invocation, call.input),
                          .weight = read(invocation, call.weight),
                          .bias = read(invocation, call.bias),
                          .grad_output = read(invocation, call.grad_output),
                          .output = output.numbers(),
                          .gradients = {grad_input.numbers(), grad_weight.numbers(), grad_bias.numbers()}};
    if (choice.plain == Implementation::kWinograd) {
      auto [_, of_weight, of_bias] =
          run_backward_by_winograd(call, tensors.operand(call.grad_output), tensors.operand(call.input),
                                   tensors.operand(call.weight), numbers.gradients.input);
      grad_input.deliver();
      if (call.grad_weight >= 0) grad_weight.deliver(std::move(of_weight));
      if (call.grad_bias >= 0) grad_bias.deliver(std::move(of_bias));
      return;
    }
    if (choice.plain == Implementation::kPixels) {
      run_by_pixels(call.shape, numbers);
    } else {
      run_unfolded(call.shape, numbers);
    }
    for (Output* one : {&output, &grad_input, &grad_weight, &grad_bias}) one->deliver();
  });
  return true;
}

void prepare(const graph::Invocation& invocation, ConvolutionCall& call) {
  if (call.is_product) return prepare_pixel_product(invocation, product_of(call));
  complete(call);
  PackedWeights* const filters = filters_of(invocation, call);
  if (call.ours == Implementation::kStock && filters == nullptr) return;
  if (filters != nullptr) filters->note_that_bytes_stay();
  Isolated isolated;
  settle(invocation, call, filters);
  filter_now(invocation, call, chosen(invocation, call, filters, kUsesBeforePacking), filters);
}

}  // namespace

void prepare_convolution(const graph::Invocation& invocation) {
  ConvolutionCall call;
  if (last_bits_may_vary() && recognize_convolution(invocation, false, call)) prepare(invocation, call);
}

void prepare_convolution_backward(const graph::Invocation& invocation) {
  ConvolutionCall call;
  if (last_bits_may_vary() && recognize_convolution_backward(invocation, call)) prepare(invocation, call);
}

bool run_convolution(const graph::Invocation& invocation) {
  ConvolutionCall call;
  return last_bits_may_vary() && recognize_convolution(invocation, false, call) && run_recognized(invocation, call);
}

bool run_convolution_norm(const graph::Invocation& invocation) {
  ConvolutionCall call;
  return last_bits_may_vary() && recognize_convolution(invocation, true, call) && run_with_norm(invocation, call);
}

bool run_convolution_backward(const graph::Invocation& invocation) {
  ConvolutionCall call;
  return last_bits_may_vary() && recognize_convolution_backward(invocation, call) && run_recognized(invocation, call);
}

AffineNorm affine_norm(const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& mean,
                       const at::Tensor& variance, double epsilon) {
  AffineNorm norm{.scale = at::rsqrt(variance + epsilon), .shift = {}};
  if (weight.defined()) norm.scale = norm.scale * weight;
  norm.shift = mean * norm.scale * -1;
  if (bias.defined()) norm.shift = norm.shift + bias;
  return norm;
}

bool norms_may_be_folded() { return last_bits_may_vary() && has_packed_convolutions() && may_keep_more(); }

at::Tensor convolution_norm(const at::Tensor& input, const at::Tensor& filter,
                            const std::optional<at::Tensor>& filter_bias, at::IntArrayRef stride,
                            at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                            at::IntArrayRef output_padding, int64_t groups, const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, const at::Tensor& mean, const at::Tensor& variance,
                            bool, double, double epsilon) {
  at::Tensor result =
      at::convolution(input, filter, filter_bias, stride, padding, dilation, transposed, output_padding, groups);
  std::vector<int64_t> along(static_cast<size_t>(result.dim()), 1);
  along[1] = -1;
  const AffineNorm norm =
      affine_norm(weight.value_or(at::Tensor()), bias.value_or(at::Tensor()), mean, variance, epsilon);
  return at::addcmul_out(result, norm.shift.view(along), result, norm.scale.view(along));
}

ConvolutionCounts convolution_counts() {
  ConvolutionCounts counts;
  for (const OwnKernel kernel : {OwnKernel::kConvolution, OwnKernel::kConvolutionBackward}) {
    counts.runs[static_cast<int>(Implementation::kUnfolded)] += counters().own_kernels[static_cast<size_t>(kernel)];
  }
  const auto of = [](OwnKernel kernel) { return counters().own_kernels[static_cast<size_t>(kernel)].load(); };
  counts.runs[static_cast<int>(Implementation::kPacked)] = of(OwnKernel::kPackedConvolution);
  counts.runs[static_cast<int>(Implementation::kDepthwise)] = of(OwnKernel::kDepthwise);
  counts.runs[static_cast<int>(Implementation::kWinograd)] = of(OwnKernel::kWinograd);
  counts.runs[static_cast<int>(Implementation::kFewOutputs)] = of(OwnKernel::kFewOutputs);
  // Of all products of patches.
  for (const Implementation one : {Implementation::kPanels, Implementation::kTiles, Implementation::kDirect}) {
    counts.runs[static_cast<int>(one)] = of(OwnKernel::kPatchProduct);
  }
  counts.measurements = measurements;
  return counts;
}

void force_convolution_implementation(std::optional<ConvolutionImplementation> implementation) {
  forced = implementation ? static_cast<int>(*implementation) : -1;
}

}  // namespace hetero::ops
