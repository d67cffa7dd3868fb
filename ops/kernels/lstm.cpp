#include "ops/kernels/lstm.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>

#include <optional>
#include <utility>
#include <vector>

#include "ops/kernels/boxed.h"
#include "ops/kernels/own_kernel.h"
#include "ops/kernels/packed_weights.h"

namespace hetero::ops {
namespace {

using at::Tensor;

// Arguments of hetero::lstm_layer, which begin with the input and the two weights.
constexpr size_t kInputWeight = 1, kHiddenWeight = 2, kReverse = 7, kHiddenSize = 10, kHasBiases = 12;
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
  const auto call = [](const c10::OperatorHandle& handle, torch::jit::Stack stack) {
    handle.callBoxed(&stack);
    return std::move(stack.front());
  };
  std::vector<Tensor> reordered;  // one call makes both
  const auto make = [&](size_t which) {
    return [&, which]() -> PackedWeights::Made {
      if (reordered.empty()) {
        reordered =
            call(*reorder, {arguments[kInputWeight], arguments[kHiddenWeight], arguments[kHiddenSize],
                            arguments[kReverse], arguments[kHasBiases], false, arguments[0].toTensor().sizes().vec()})
                .toTensorVector();
      }
      if (!reordered[which].is_mkldnn()) return {{}, 0};
      return {reordered[which], call(*bytes_of, {reordered[which]}).toInt()};
    };
  };
  const Tensor* const input = layer.input.weights->find_or_make(layer.input.key, layer.input.bytes, make(0));
  if (input == nullptr || !input->defined()) return std::nullopt;
  const Tensor* const hidden = layer.hidden.weights->find_or_make(layer.hidden.key, layer.hidden.bytes, make(1));
  if (hidden == nullptr || !hidden->defined()) return std::nullopt;
  return Packed{input, hidden};
}

torch::jit::Stack read_arguments(const graph::Invocation& invocation, KernelTensors& tensors) {
  Decoder decoder(invocation.attributes, invocation.node->attribute_bytes);
  const auto& info = *static_cast<const OpInfo*>(invocation.traits->self);
  return arguments_of(handle_of(info).schema(), decoder, tensors);
}

}  // namespace

bool run_lstm_layer(const graph::Invocation& invocation) {
  const std::optional<Layer> layer = Layer::read(invocation);
  if (!layer) return false;
  layer->input.weights->note_use();
  layer->hidden.weights->note_use();
  if (!layer->input.weights->worth_packing() || !layer->hidden.weights->worth_packing()) return false;

  static const auto stock = c10::Dispatcher::singleton().findSchemaOrThrow("aten::mkldnn_rnn_layer", "");
  Isolated isolated;
  const at::AutoGradMode no_workspace(false);
  KernelTensors tensors(invocation);
  torch::jit::Stack stack = read_arguments(invocation, tensors);
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
  pack(*layer, read_arguments(invocation, tensors));
}

}  // namespace hetero::ops
