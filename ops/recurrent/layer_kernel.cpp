#include "ops/recurrent/layer_kernel.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mkldnn_rnn_layer_ops.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/base/parallel.h"
#include "backend/cpu/kernels/panel_gemm.h"
#include "ops/kernels/boxed.h"
#include "ops/kernels/own_kernel.h"
#include "ops/memory/packed_weights.h"
#include "ops/recurrent/steps.h"

namespace hetero::ops {
namespace {

using at::Tensor;

// Arguments of hetero::lstm_layer, of which hetero::rnn_layer has the first ten.
constexpr size_t kInput = 0, kInputWeight = 1, kHiddenWeight = 2, kInputBias = 3, kHiddenBias = 4, kHidden = 5,
                 kCell = 6, kReverse = 7, kBatchSizes = 8, kMode = 9, kHiddenSize = 10, kHasBiases = 12;
// Output, final hidden state, final cell state. A layer that keeps a workspace has one more.
constexpr int kResults = 3;

struct Weight {
  PackedWeights* weights;  // null where nothing can keep a packed form of it
  PackedKey key;
  int64_t bytes;
};

// None where it is not dense. REQUIRES: argument `operand` is that operand.
std::optional<Weight> weight_of(const graph::Invocation& invocation, PackedForm form, int operand) {
  const graph::Window& window = (*invocation.windows)[invocation.operands[operand].window];
  const std::optional<backend::Element> element = element_of(window.dtype);
  if (!element || window.rank != 2) return std::nullopt;
  const int64_t n = window.sizes()[0], k = window.sizes()[1];
  if (window.strides()[1] != 1 || window.strides()[0] != k) return std::nullopt;
  const int64_t item = backend::element_bytes(*element);
  return Weight{PackedWeights::of_operand(invocation, operand),
                {.form = form,
                 .element = *element,
                 .address = static_cast<const std::byte*>(invocation.data[operand]) + window.offset * item,
                 .n = n,
                 .k = k,
                 .stride = k,
                 .columns = false},
                n * k * item};
}

// A layer that keeps no workspace. Of oneDNN's, something can keep the weights.
struct Layer {
  Weight input, hidden;
  bool is_onednns;  // hetero::lstm_layer
  int results;

  static std::optional<Layer> read(const graph::Invocation& invocation, bool is_onednns) {
    const graph::Node& node = *invocation.node;
    if (!last_bits_may_vary() || node.output_count > kResults) return std::nullopt;
    for (int i = 0; i < node.operand_count; ++i) {
      if (invocation.operands[i].bits != 0) return std::nullopt;
    }
    Decoder decoder(invocation.attributes, node.attribute_bytes);
    for (size_t i = 0; i <= kHiddenWeight; ++i) {
      if (decoder.next() != Tag::kTensor) return std::nullopt;
    }
    const std::optional<Weight> input = weight_of(invocation, PackedForm::kLstmInput, kInputWeight);
    const std::optional<Weight> hidden = weight_of(invocation, PackedForm::kLstmHidden, kHiddenWeight);
    if (!input || !hidden) return std::nullopt;
    const Layer layer{*input, *hidden, is_onednns, node.output_count};
    if (is_onednns && (layer.are_new_each_time() || layer.results != kResults)) return std::nullopt;
    return layer;
  }

  // Weights that the program computes.
  bool are_new_each_time() const { return input.weights == nullptr || hidden.weights == nullptr; }
  void note_use() const {
    for (PackedWeights* const weights : {input.weights, hidden.weights}) {
      if (weights != nullptr) weights->note_use();
    }
  }
  void note_that_bytes_stay() const {
    for (PackedWeights* const weights : {input.weights, hidden.weights}) {
      if (weights != nullptr) weights->note_that_bytes_stay();
    }
  }
  bool is_worth_packing() const {
    return are_new_each_time() || (input.weights->worth_packing() && hidden.weights->worth_packing());
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

// ---- our steps

// Of an LSTM with more sequences, and with a larger weight of the hidden state, oneDNN is faster.
constexpr int64_t kMostRowsOfLstm = 8;
constexpr int64_t kLargestWeightOfLstm = 64 << 10;
// Of a layer whose weights are packed for one call.
constexpr int64_t kLeastSteps = 4;

torch::jit::Stack read_arguments(const graph::Invocation& invocation, KernelTensors& tensors) {
  Decoder decoder(invocation.attributes, invocation.node->attribute_bytes);
  const auto& info = *static_cast<const OpInfo*>(invocation.traits->self);
  return arguments_of(handle_of(info).schema(), decoder, tensors);
}

// A call of a layer, in float32, whose steps may be ours.
class OurLayer {
 public:
  // Reads sizes only: before a program runs, most operands have no values.
  OurLayer(const graph::Invocation& invocation, const Layer& layer)
      : layer_(layer), tensors_(invocation), arguments_(read_arguments(invocation, tensors_)), fits_(read()) {}

  bool fits() const { return fits_; }
  const torch::jit::Stack& arguments() const { return arguments_; }
  // False where there is no room for a packed weight. REQUIRES: fits().
  bool pack() {
    backend::Matvec inputs = input_product(call_);
    inputs.w = layer_.input.key.address;
    call_.input_weight = pack(layer_.input.weights, inputs);
    if (call_.input_weight == nullptr) return false;
    if (!wants_packed_hidden(call_.rows)) return true;
    for (size_t gate = 0; gate < gate_count(call_.cell); ++gate) {
      call_.packed_hidden[gate] = pack(layer_.hidden.weights, hidden_product(call_, gate));
      if (call_.packed_hidden[gate] != nullptr) continue;
      call_.packed_hidden = {};
      return !needs_packed_hidden(call_.rows);
    }
    return true;
  }
  // With memory for the results. REQUIRES: pack() returned true.
  const RecurrentLayer& prepare() {
    std::array<const float*, kReverse> numbers{};
    for (const size_t i : {kInput, kInputBias, kHiddenBias, kHidden, kCell}) {
      if (arguments_[i].isNone() || !has_argument(i)) continue;
      plain_[i] = arguments_[i].toTensor().contiguous();
      numbers[i] = plain_[i].const_data_ptr<float>();
    }
    call_.input = numbers[kInput];
    call_.input_bias = numbers[kInputBias];
    call_.hidden_bias = numbers[kHiddenBias];
    call_.hidden = numbers[kHidden];
    call_.cell_state = numbers[kCell];
    const Tensor& hidden = plain_[kHidden];
    std::vector<int64_t> sizes = plain_[kInput].sizes().vec();
    sizes.back() = call_.units;
    const auto make = [&](at::IntArrayRef its) {
      results_.emplace_back(at::empty(its, hidden.options()));
      return results_.back().toTensor().mutable_data_ptr<float>();
    };
    call_.output = make(sizes);
    call_.last_hidden = make(hidden.sizes());
    if (call_.cell_state != nullptr) call_.last_cell = make(hidden.sizes());
    return call_;
  }
  void deliver() { deliver(results_); }
  // As many as Layer::results.
  void deliver(torch::jit::Stack& results) {
    int place = tensors_.first_output();
    for (c10::IValue& result : results) tensors_.deliver(place++, std::exchange(result, {}).toTensor());
  }

 private:
  // oneDNN's has biases of zeros where a layer has none.
  bool has_argument(size_t i) const {
    const bool is_bias = i == kInputBias || i == kHiddenBias;
    return !is_bias || !layer_.is_onednns || arguments_[kHasBiases].toBool();
  }
  // The sizes of the call; false where it does not fit.
  bool read() {
    if (!backend::has_panels()) return false;
    for (size_t i = 0; i < kReverse; ++i) {
      if (arguments_[i].isNone()) continue;
      const Tensor& tensor = arguments_[i].toTensor();
      if (tensor.scalar_type() != at::kFloat || tensor.numel() == 0) return false;
    }
    step_rows_ = arguments_[kBatchSizes].toIntVector();
    const at::IntArrayRef input = arguments_[kInput].toTensor().sizes();
    call_.cell = static_cast<Cell>(arguments_[kMode].toInt());
    call_.reverse = arguments_[kReverse].toBool();
    call_.inputs = layer_.input.key.k;
    call_.units = layer_.hidden.key.k;
    call_.hidden_weight = static_cast<const float*>(layer_.hidden.key.address);
    call_.steps = step_rows_.empty() ? input[0] : static_cast<int64_t>(step_rows_.size());
    call_.rows = step_rows_.empty() ? input[1] : step_rows_.front();
    call_.step_rows = step_rows_.empty() ? nullptr : step_rows_.data();
    if (layer_.are_new_each_time() && call_.steps < kLeastSteps) return false;
    if (!layer_.is_onednns) return layer_.results == (call_.cell == Cell::kLstm ? kResults : kResults - 1);
    return call_.rows <= kMostRowsOfLstm || layer_.hidden.key.n * layer_.hidden.key.k <= kLargestWeightOfLstm;
  }
  const void* pack(PackedWeights* weights, const backend::Matvec& call) {
    const int64_t bytes = backend::panel_weight_bytes(call.element, call.n, call.k);
    const auto make = [&]() -> PackedWeights::Made {
      Tensor packed = at::empty({bytes}, at::kByte);
      backend::pack_panel_weight(call, packed.mutable_data_ptr());
      return {std::move(packed), bytes};
    };
    if (layer_.are_new_each_time()) return packed_now_.emplace_back(make().packed).const_data_ptr();
    const PackedKey key{.form = PackedForm::kPanels,
                        .element = call.element,
                        .address = call.w,
                        .n = call.n,
                        .k = call.k,
                        .stride = call.w_stride,
                        .columns = false};
    const Tensor* const made = weights->find_or_make(key, bytes, key.dense_bytes(), make);
    return made == nullptr ? nullptr : made->const_data_ptr();
  }

  const Layer layer_;
  KernelTensors tensors_;
  torch::jit::Stack arguments_;
  std::array<Tensor, kReverse> plain_;  // contiguous
  std::vector<int64_t> step_rows_;
  std::vector<Tensor> packed_now_;  // for this call alone
  torch::jit::Stack results_;
  RecurrentLayer call_;
  bool fits_;
};

// With oneDNN's kernel.
bool run_packed_onednn(const graph::Invocation& invocation, const Layer& layer, OurLayer& call) {
  static const auto stock = c10::Dispatcher::singleton().findSchemaOrThrow(at::_ops::mkldnn_rnn_layer::name, "");
  torch::jit::Stack stack = call.arguments();
  const std::optional<Packed> packed = pack(layer, stack);
  if (!packed) return false;
  stack[kInputWeight] = *packed->input;
  stack[kHiddenWeight] = *packed->hidden;
  stack.pop_back();  // keeps_workspace
  run_as_operator(OwnKernel::kPackedRecurrent, invocation, [&] { stock.callBoxed(&stack); });
  stack.resize(kResults);
  call.deliver(stack);
  return true;
}

// Each layer on threads of its own. False, and nothing is done, where there is but one thread, or
// one of them is no such layer.
bool run_side_by_side(const graph::Invocation* calls, size_t count, bool are_onednns) {
  Isolated isolated;
  if (backend::thread_count() == 1) return false;
  const at::AutoGradMode no_workspace(false);
  std::array<std::optional<OurLayer>, graph::kMaxBatch> ours;  // which end in the reverse order
  for (size_t i = 0; i < count; ++i) {
    const std::optional<Layer> layer = Layer::read(calls[i], are_onednns);
    if (!layer || !layer->is_worth_packing()) return false;
    if (OurLayer& call = ours[i].emplace(calls[i], *layer); !call.fits() || !call.pack()) return false;
  }
  ops::count(counters().own_kernels[static_cast<size_t>(OwnKernel::kPackedRecurrent)], static_cast<int64_t>(count));
  run_profiled(calls[0].traits->name.c_str(), [&] {
    std::vector<RecurrentLayer> layers;
    for (size_t i = 0; i < count; ++i) layers.push_back(ours[i]->prepare());
    run_layers(layers);
  });
  for (size_t i = 0; i < count; ++i) ours[i]->deliver();
  return true;
}

void run_together(const graph::Invocation* calls, size_t count, bool are_onednns) {
  if (run_side_by_side(calls, count, are_onednns)) return;
  for (size_t i = 0; i < count; ++i) calls[i].traits->kernel(calls[i]);
}

bool run_layer(const graph::Invocation& invocation, bool is_onednns) {
  const std::optional<Layer> layer = Layer::read(invocation, is_onednns);
  if (!layer) return false;
  layer->note_use();
  if (!layer->is_worth_packing()) return false;
  Isolated isolated;
  const at::AutoGradMode no_workspace(false);
  OurLayer ours(invocation, *layer);
  if (!ours.fits()) return is_onednns && run_packed_onednn(invocation, *layer, ours);
  if (!ours.pack()) return false;
  run_as_operator(OwnKernel::kPackedRecurrent, invocation, [&] { run_layers(std::span(&ours.prepare(), 1)); });
  ours.deliver();
  return true;
}

void prepare_layer(const graph::Invocation& invocation, bool is_onednns) {
  const std::optional<Layer> layer = Layer::read(invocation, is_onednns);
  if (!layer) return;
  layer->note_that_bytes_stay();
  if (layer->are_new_each_time()) return;
  Isolated isolated;
  OurLayer ours(invocation, *layer);
  if (ours.fits()) {
    ours.pack();
  } else if (is_onednns) {
    pack(*layer, ours.arguments());
  }
}

}  // namespace

bool run_lstm_layer(const graph::Invocation& invocation) { return run_layer(invocation, true); }
void run_lstm_layers(const graph::Invocation* calls, size_t count) { run_together(calls, count, true); }
void prepare_lstm_layer(const graph::Invocation& invocation) { prepare_layer(invocation, true); }

bool run_rnn_layer(const graph::Invocation& invocation) { return run_layer(invocation, false); }
void run_rnn_layers(const graph::Invocation* calls, size_t count) { run_together(calls, count, false); }
void prepare_rnn_layer(const graph::Invocation& invocation) { prepare_layer(invocation, false); }

}  // namespace hetero::ops
