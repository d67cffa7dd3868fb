#include "ops/dispatch/lstm_layer.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mkldnn_rnn_layer_ops.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "backend/base/parallel.h"
#include "backend/cpu/kernels/panel_gemm.h"
#include "backend/cpu/vector/scratch.h"
#include "ops/fused/functions.h"
#include "ops/kernels/boxed.h"
#include "ops/kernels/own_kernel.h"
#include "ops/memory/packed_weights.h"

namespace hetero::ops {
namespace {

using at::Tensor;

// Arguments of hetero::lstm_layer, which begin with the input and the two weights.
constexpr size_t kInput = 0, kInputWeight = 1, kHiddenWeight = 2, kInputBias = 3, kHiddenBias = 4, kHidden = 5,
                 kCell = 6, kReverse = 7, kHiddenSize = 10, kHasBiases = 12;
// Output, final hidden state, final cell state. A layer that keeps a workspace has one more.
constexpr int kResults = 3;

struct Weight {
  PackedWeights* weights;
  PackedKey key;
  int64_t bytes;
};

// None where nothing can keep a packed form of it. REQUIRES: argument `operand` is that operand.
std::optional<Weight> weight_of(const graph::Invocation& invocation, PackedForm form, int operand) {
  const graph::Window& window = (*invocation.windows)[invocation.operands[operand].window];
  const std::optional<backend::Element> element = element_of(window.dtype);
  if (!element || window.rank != 2 || invocation.operands[operand].bits != 0) return std::nullopt;
  const int64_t n = window.sizes()[0], k = window.sizes()[1];
  if (window.strides()[1] != 1 || window.strides()[0] != k) return std::nullopt;
  PackedWeights* const weights = PackedWeights::of_operand(invocation, operand);
  if (weights == nullptr) return std::nullopt;
  const int64_t item = backend::element_bytes(*element);
  return Weight{weights,
                {.form = form,
                 .element = *element,
                 .address = static_cast<const std::byte*>(invocation.data[operand]) + window.offset * item,
                 .n = n,
                 .k = k,
                 .stride = k,
                 .columns = false},
                n * k * item};
}

// A layer that keeps no workspace, and whose weights can be kept.
struct Layer {
  Weight input, hidden;

  static std::optional<Layer> read(const graph::Invocation& invocation) {
    if (!last_bits_may_vary() || invocation.node->output_count != kResults) return std::nullopt;
    Decoder decoder(invocation.attributes, invocation.node->attribute_bytes);
    for (size_t i = 0; i <= kHiddenWeight; ++i) {
      if (decoder.next() != Tag::kTensor) return std::nullopt;
    }
    const std::optional<Weight> input = weight_of(invocation, PackedForm::kLstmInput, kInputWeight);
    const std::optional<Weight> hidden = weight_of(invocation, PackedForm::kLstmHidden, kHiddenWeight);
    if (!input || !hidden) return std::nullopt;
    return Layer{*input, *hidden};
  }
};

// ---- oneDNN

// Both weights in oneDNN's layout.
struct Packed {
  const Tensor* input;
  const Tensor* hidden;
};

// None where there is no room, or where oneDNN computes with the weights as they are.
std::optional<Packed> pack(const Layer& layer, const torch::jit::Stack& arguments) {
  static const auto reorder = c10::Dispatcher::singleton().findSchema({"mkldnn::_reorder_mkldnn_rnn_layer_weight", ""});
  static const auto bytes_of = c10::Dispatcher::singleton().findSchema({"mkldnn::_nbytes", ""});
  if (!reorder || !bytes_of) return std::nullopt;  // another PyTorch
  std::vector<Tensor> reordered;                   // one call makes both
  const auto make = [&](size_t which) {
    return [&, which]() -> PackedWeights::Made {
      if (reordered.empty()) {
        reordered = call_boxed(*reorder, {arguments[kInputWeight], arguments[kHiddenWeight], arguments[kHiddenSize],
                                          arguments[kReverse], arguments[kHasBiases], false,
                                          arguments[kInput].toTensor().sizes().vec()})
                        .toTensorVector();
      }
      if (!reordered[which].is_mkldnn()) return {{}, 0};
      return {reordered[which], call_boxed(*bytes_of, {reordered[which]}).toInt()};
    };
  };
  const auto packed = [&](const Weight& weight, size_t which) {
    return weight.weights->find_or_make(weight.key, weight.bytes, weight.key.dense_bytes(), make(which));
  };
  const Tensor* const input = packed(layer.input, 0);
  if (input == nullptr || !input->defined()) return std::nullopt;
  const Tensor* const hidden = packed(layer.hidden, 1);
  if (hidden == nullptr || !hidden->defined()) return std::nullopt;
  return Packed{input, hidden};
}

// ---- few sequences

// With so many, a step reads the weight of the hidden state at the speed of a cache or of memory.
constexpr int64_t kMostRows = backend::kMaxMatvecRows;
// A smaller weight of the hidden state takes no longer than what is around it.
constexpr int64_t kSmallestWeight = 32 << 10;
// Of the gates' parts that are made of the inputs at once.
constexpr int64_t kBlockBytes = 4 << 20;

// A layer of few sequences in float32. One product makes the gates' parts of many inputs. Then each
// step multiplies its few rows by the weight of the hidden state, which is read as it is.
class FewRows {
 public:
  static bool fits(const torch::jit::Stack& arguments, const Layer& layer) {
    const auto is_plain = [](const c10::IValue& value) {
      return value.toTensor().scalar_type() == at::kFloat && value.toTensor().is_contiguous();
    };
    return backend::has_panels() && layer.hidden.key.n * layer.hidden.key.k >= kSmallestWeight &&
           layer.input.key.k > 0 && arguments[kInput].toTensor().size(1) <= kMostRows &&
           std::all_of(arguments.begin(), arguments.begin() + kReverse, is_plain);
  }
  // REQUIRES: fits(arguments, layer).
  FewRows(const torch::jit::Stack& arguments, const Layer& layer)
      : arguments_(arguments),
        layer_(layer),
        steps_(arguments[kInput].toTensor().size(0)),
        rows_(arguments[kInput].toTensor().size(1)),
        size_(layer.hidden.key.k) {}

  // Null where there is no room for the packed weight of the input.
  const Tensor* pack() const {
    const backend::Matvec call = input_product(0, steps_);
    const int64_t bytes = backend::panel_weight_bytes(call.element, call.n, call.k);
    PackedKey key = layer_.input.key;
    key.form = PackedForm::kPanels;
    return layer_.input.weights->find_or_make(key, bytes, key.dense_bytes(), [&]() -> PackedWeights::Made {
      Tensor packed = at::empty({bytes}, at::kByte);
      backend::pack_panel_weight(call, packed.mutable_data_ptr());
      return {std::move(packed), bytes};
    });
  }

  // Outputs of all steps, the last hidden state and the last cell state.
  struct Results {
    Tensor output, hidden, cell;
  };
  // Memory for them, as run() wants it.
  Results make_results() const {
    const Tensor& first = arguments_[kHidden].toTensor();
    return {at::empty({steps_, rows_, size_}, first.options()), at::empty(first.sizes(), first.options()),
            arguments_[kCell].toTensor().clone()};
  }
  // On any thread.
  void run(const Tensor& packed, const Results& results) const {
    static thread_local backend::Scratch memory;
    const bool reverse = arguments_[kReverse].toBool();
    const int64_t width = rows_ * 4 * size_;
    const int64_t most =
        std::clamp<int64_t>(kBlockBytes / std::max<int64_t>(1, width * 4), 1, std::max<int64_t>(1, steps_));
    float* const of_inputs = memory.get<float>((most + 1) * width);
    float* const gates = of_inputs + most * width;
    const float* before = arguments_[kHidden].toTensor().const_data_ptr<float>();
    auto* const cell = results.cell.mutable_data_ptr<float>();
    for (int64_t done = 0; done < steps_; done += most) {
      const int64_t count = std::min(most, steps_ - done);
      const int64_t begin = reverse ? steps_ - done - count : done;
      backend::Matvec inputs = input_product(begin, count);
      inputs.packed = packed.const_data_ptr();
      inputs.y = of_inputs;
      backend::panel_gemm(inputs);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t step = reverse ? count - 1 - i : i;
        float* const after = results.output.mutable_data_ptr<float>() + (begin + step) * rows_ * size_;
        backend::Matvec product = product_of(layer_.hidden, rows_, kHiddenBias);
        product.x = before;
        product.y = gates;
        backend::matvec(product);
        apply(of_inputs + step * width, gates, cell, after);
        before = after;
      }
    }
    std::copy_n(before, rows_ * size_, results.hidden.mutable_data_ptr<float>());
  }

 private:
  backend::Matvec product_of(const Weight& weight, int64_t rows, size_t bias) const {
    return {.m = rows,
            .n = weight.key.n,
            .k = weight.key.k,
            .x_stride = weight.key.k,
            .w = weight.key.address,
            .w_stride = weight.key.k,
            .bias = arguments_[kHasBiases].toBool() ? arguments_[bias].toTensor().const_data_ptr() : nullptr,
            .y_stride = weight.key.n};
  }
  backend::Matvec input_product(int64_t first_step, int64_t steps) const {
    backend::Matvec call = product_of(layer_.input, steps * rows_, kInputBias);
    call.x = arguments_[kInput].toTensor().const_data_ptr<float>() + first_step * rows_ * layer_.input.key.k;
    return call;
  }

  // A step's pointwise part. A row's gates are those of the input, forget, cell and output, one
  // after the other.
  void apply(const float* of_input, float* gates, float* cell, float* hidden) const {
    static const auto function = [](Function f) { return functions().map(f, Form::kTensors, at::kFloat); };
    static const backend::MapFunction add = function(Function::kAdd), multiply = function(Function::kMul),
                                      sigmoid = function(Function::kSigmoid), tanh = function(Function::kTanh);
    const auto of_one = [&](const backend::MapFunction& f, const float* a, float* out, int64_t n) {
      const void* const in[] = {a};
      f(out, in, nullptr, n);
    };
    const auto of_two = [&](const backend::MapFunction& f, const float* a, const float* b, float* out, int64_t n) {
      const void* const in[] = {a, b};
      f(out, in, nullptr, n);
    };
    of_two(add, gates, of_input, gates, rows_ * 4 * size_);
    for (int64_t row = 0; row < rows_; ++row, gates += 4 * size_, cell += size_, hidden += size_) {
      float* const forget = gates + size_;
      float* const fresh = gates + 2 * size_;
      float* const output = gates + 3 * size_;
      of_one(sigmoid, gates, gates, 2 * size_);
      of_one(tanh, fresh, fresh, size_);
      of_one(sigmoid, output, output, size_);
      of_two(multiply, forget, cell, cell, size_);
      of_two(multiply, gates, fresh, fresh, size_);
      of_two(add, cell, fresh, cell, size_);
      of_one(tanh, cell, hidden, size_);
      of_two(multiply, output, hidden, hidden, size_);
    }
  }

  const torch::jit::Stack& arguments_;
  const Layer& layer_;
  const int64_t steps_, rows_, size_;
};

torch::jit::Stack read_arguments(const graph::Invocation& invocation, KernelTensors& tensors) {
  Decoder decoder(invocation.attributes, invocation.node->attribute_bytes);
  const auto& info = *static_cast<const OpInfo*>(invocation.traits->self);
  return arguments_of(handle_of(info).schema(), decoder, tensors);
}

void deliver(KernelTensors& tensors, FewRows::Results results) {
  int place = tensors.first_output();
  for (Tensor* const result : {&results.output, &results.hidden, &results.cell}) {
    tensors.deliver(place++, std::move(*result));
  }
}

// One of several layers of few sequences, the weights of which are packed.
struct FewCall {
  FewCall(const graph::Invocation& invocation, const Layer& its)
      : tensors(invocation), stack(read_arguments(invocation, tensors)), layer(its) {
    if (!FewRows::fits(stack, layer)) return;
    few.emplace(stack, layer);
    packed = few->pack();
    if (packed != nullptr) results = few->make_results();
  }
  bool is_ready() const { return packed != nullptr; }

  KernelTensors tensors;
  torch::jit::Stack stack;
  Layer layer;
  std::optional<FewRows> few;
  const Tensor* packed = nullptr;
  FewRows::Results results;
};

// Each layer on a thread of its own. False, and nothing is done, where that is not faster or one of
// them is no such layer.
bool run_side_by_side(const graph::Invocation* calls, size_t count) {
  Isolated isolated;
  const auto threads = backend::thread_count();
  if (threads == 1 || std::cmp_less(count, threads)) return false;
  const at::AutoGradMode no_workspace(false);
  std::array<std::optional<FewCall>, graph::kMaxBatch> ready;  // which end in the reverse order
  for (size_t i = 0; i < count; ++i) {
    const std::optional<Layer> layer = Layer::read(calls[i]);
    if (!layer || !layer->input.weights->worth_packing() || !layer->hidden.weights->worth_packing()) return false;
    if (!ready[i].emplace(calls[i], *layer).is_ready()) return false;
  }
  ops::count(counters().own_kernels[static_cast<size_t>(OwnKernel::kPackedLstm)], static_cast<int64_t>(count));
  run_profiled(calls[0].traits->name.c_str(), [&] {
    backend::parallel_for(0, static_cast<int64_t>(count), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const FewCall& call = *ready[static_cast<size_t>(i)];
        call.few->run(*call.packed, call.results);
      }
    });
  });
  for (size_t i = 0; i < count; ++i) deliver(ready[i]->tensors, std::move(ready[i]->results));
  return true;
}

}  // namespace

void run_lstm_layers(const graph::Invocation* calls, size_t count) {
  if (run_side_by_side(calls, count)) return;
  for (size_t i = 0; i < count; ++i) calls[i].traits->kernel(calls[i]);
}

bool run_lstm_layer(const graph::Invocation& invocation) {
  const std::optional<Layer> layer = Layer::read(invocation);
  if (!layer) return false;
  layer->input.weights->note_use();
  layer->hidden.weights->note_use();
  if (!layer->input.weights->worth_packing() || !layer->hidden.weights->worth_packing()) return false;

  static const auto stock = c10::Dispatcher::singleton().findSchemaOrThrow(at::_ops::mkldnn_rnn_layer::name, "");
  Isolated isolated;
  const at::AutoGradMode no_workspace(false);
  KernelTensors tensors(invocation);
  torch::jit::Stack stack = read_arguments(invocation, tensors);
  if (const FewRows few(stack, *layer); few.fits(stack, *layer)) {
    const Tensor* const packed = few.pack();
    if (packed == nullptr) return false;
    FewRows::Results results = few.make_results();
    run_as_operator(OwnKernel::kPackedLstm, invocation, [&] { few.run(*packed, results); });
    deliver(tensors, std::move(results));
    return true;
  }
  const std::optional<Packed> packed = pack(*layer, stack);
  if (!packed) return false;
  stack[kInputWeight] = *packed->input;
  stack[kHiddenWeight] = *packed->hidden;
  stack.pop_back();  // keeps_workspace
  run_as_operator(OwnKernel::kPackedLstm, invocation, [&] { stock.callBoxed(&stack); });
  for (int i = 0; i < kResults; ++i) {
    tensors.deliver(tensors.first_output() + i, std::exchange(stack[static_cast<size_t>(i)], {}).toTensor());
  }
  return true;
}

void prepare_lstm_layer(const graph::Invocation& invocation) {
  const std::optional<Layer> layer = Layer::read(invocation);
  if (!layer) return;
  layer->input.weights->note_that_bytes_stay();
  layer->hidden.weights->note_that_bytes_stay();
  Isolated isolated;
  KernelTensors tensors(invocation);
  const torch::jit::Stack stack = read_arguments(invocation, tensors);
  if (FewRows::fits(stack, *layer)) {
    FewRows(stack, *layer).pack();
  } else {
    pack(*layer, stack);
  }
}

}  // namespace hetero::ops
