// Recurrent layers and cells on hetero, by the CPU's formulas.
//
// PyTorch's composite lstm, gru and rnn choose by device: the CPU hands an LSTM layer to oneDNN, or
// multiplies the whole sequence by the input weights and applies unfused cells; any other device
// gets fused cells, step by step. The results differ in their last bits. Here the composites are
// overridden for hetero tensors with the CPU's choice:
//
// 1. steps: one application of a cell, given what the linear maps made of the input and of the
//    hidden state;
// 2. directions: a step over a sequence, padded or packed, forwards or backwards in time;
// 3. stacks: layers of one or two directions, with dropout between them;
// 4. the LSTM stack of oneDNN layers, and when the CPU takes it;
// 5. one oneDNN layer as a node;
// 6. one direction of another layer as a node, in inference;
// 7. the operators, on the PrivateUse1 and the AutogradPrivateUse1 key.
//
// 1-4 call differentiable operators only, but for the node of 6. The formulas, including which
// operations are in place, are those of ATen/native/RNN.cpp and ATen/native/mkldnn/RNN.cpp (torch
// 2.11): the order of the calls decides the order in which autograd sums gradients.

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/RNN.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/mkldnn_rnn_layer_backward.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/library.h>

#include <algorithm>
#include <compare>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "backend/cpu/kernels/panel_gemm.h"
#include "backend/registry/registry.h"
#include "ops/kernels/blas.h"
#include "ops/recurrent/steps.h"
#include "ops/settings/config.h"
#include "ops/shapes/meta.h"

namespace hetero::ops {
namespace {

using at::Tensor;
using Outputs = std::tuple<Tensor, Tensor>;
using LstmOutputs = std::tuple<Tensor, Tensor, Tensor>;
// Output, final hidden state, final cell state, workspace.
using Layer = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using LayerGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

constexpr auto kLstm = static_cast<int64_t>(Cell::kLstm);

// Biases are undefined in a layer without them, the projection in all but LSTMs with proj_size.
struct Weights {
  Tensor input, hidden, input_bias, hidden_bias, projection;

  Tensor of_input(const Tensor& value) const { return at::linear(value, input, input_bias); }
  Tensor of_hidden(const Tensor& value) const { return at::linear(value, hidden, hidden_bias); }
  Tensor projected(const Tensor& value) const {
    return projection.defined() ? at::matmul(value, projection.t()) : value;
  }
};

// The cell state is undefined in all but LSTMs.
struct State {
  Tensor hidden, cell;

  template <typename Map>
  static State map(const State& a, const State& b, const Map& map) {
    return {map(a.hidden, b.hidden), a.cell.defined() ? map(a.cell, b.cell) : Tensor()};
  }
  State rows(int64_t begin, int64_t end) const {
    return map(*this, *this, [&](const Tensor& t, const Tensor&) { return t.narrow(0, begin, end - begin); });
  }
};

// A packed sequence has the sizes of its steps, and a padded one, [time, batch, feature], has none.
struct Sequence {
  Tensor data;
  at::IntArrayRef batch_sizes;

  bool packed() const { return !batch_sizes.empty(); }
};

// ---- 1. steps

// `hidden_gates` is the step's own and may be overwritten.
using Step = State (*)(const Tensor& hidden_gates, const Tensor& input_gates, const State& before, const Weights&);

State tanh_step(const Tensor& hidden_gates, const Tensor& input_gates, const State&, const Weights&) {
  return {at::tanh(hidden_gates.add_(input_gates)), {}};
}

State relu_step(const Tensor& hidden_gates, const Tensor& input_gates, const State&, const Weights&) {
  return {at::relu(hidden_gates.add_(input_gates)), {}};
}

State lstm_step(const Tensor& hidden_gates, const Tensor& input_gates, const State& before, const Weights& weights) {
  const auto gates = hidden_gates.add_(input_gates).unsafe_chunk(4, 1);
  const Tensor input = gates[0].sigmoid_();
  const Tensor forget = gates[1].sigmoid_();
  const Tensor fresh = gates[2].tanh_();
  const Tensor output = gates[3].sigmoid_();
  const Tensor kept = forget * before.cell;
  const Tensor cell = kept.add_(input * fresh);
  return {weights.projected(output * cell.tanh()), cell};
}

State gru_step(const Tensor& hidden_gates, const Tensor& input_gates, const State& before, const Weights&) {
  const auto of_input = input_gates.unsafe_chunk(3, 1);
  const auto of_hidden = hidden_gates.unsafe_chunk(3, 1);
  const Tensor reset = of_hidden[0].add_(of_input[0]).sigmoid_();
  const Tensor update = of_hidden[1].add_(of_input[1]).sigmoid_();
  const Tensor fresh = of_input[2].add(of_hidden[2].mul_(reset)).tanh_();
  return {(before.hidden - fresh).mul_(update).add_(fresh), {}};
}

Step step_of(Cell cell) {
  switch (cell) {
    case Cell::kRelu:
      return relu_step;
    case Cell::kTanh:
      return tanh_step;
    case Cell::kLstm:
      return lstm_step;
    case Cell::kGru:
      return gru_step;
  }
  return nullptr;
}

// ---- 2. directions

struct Run {
  Tensor output;
  State last;
};

Run run_padded(Step step, const Tensor& input, State state, const Weights& weights, bool reverse) {
  auto inputs = weights.of_input(input).unbind(0);
  TORCH_CHECK(!inputs.empty(), "Expected sequence length to be larger than 0 in RNN");
  if (reverse) std::reverse(inputs.begin(), inputs.end());
  std::vector<Tensor> outputs;
  outputs.reserve(inputs.size());
  for (const Tensor& gates : inputs) {
    state = step(weights.of_hidden(state.hidden), gates, state, weights);
    outputs.push_back(state.hidden);
  }
  if (reverse) std::reverse(outputs.begin(), outputs.end());
  return {at::stack(outputs, 0), state};
}

State concat(const std::vector<State>& states) {
  std::vector<Tensor> hidden, cell;
  for (const State& state : states) {
    hidden.push_back(state.hidden);
    if (state.cell.defined()) cell.push_back(state.cell);
  }
  return {at::cat(hidden, 0), cell.empty() ? Tensor() : at::cat(cell, 0)};
}

// Batches only shrink in time: the sequences that end at a step are the last rows of the state.
Run run_packed(Step step, const Tensor& gates, at::IntArrayRef batch_sizes, State state, const Weights& weights) {
  std::vector<Tensor> outputs;
  std::vector<State> ended;
  int64_t first = 0;
  int64_t rows = batch_sizes.front();
  for (const int64_t batch : batch_sizes) {
    const Tensor input = gates.narrow(0, first, batch);
    first += batch;
    if (batch < rows) {
      ended.push_back(state.rows(batch, rows));
      state = state.rows(0, batch);
    }
    rows = batch;
    state = step(weights.of_hidden(state.hidden), input, state, weights);
    outputs.push_back(state.hidden);
  }
  ended.push_back(state);
  std::reverse(ended.begin(), ended.end());
  const Tensor output = at::cat(outputs, 0);
  return {output, concat(ended)};
}

// Backwards in time batches only grow: a sequence enters with its row of the initial state.
Run run_packed_reversed(Step step, const Tensor& gates, at::IntArrayRef batch_sizes, const State& initial,
                        const Weights& weights) {
  std::vector<Tensor> outputs;
  int64_t end = gates.size(0);
  int64_t rows = batch_sizes.back();
  State state = initial.rows(0, rows);
  for (size_t i = batch_sizes.size(); i-- > 0;) {
    const int64_t batch = batch_sizes[i];
    if (batch > rows) state = concat({state, initial.rows(rows, batch)});
    rows = batch;
    const Tensor input = gates.narrow(0, end - batch, batch);
    end -= batch;
    state = step(weights.of_hidden(state.hidden), input, state, weights);
    outputs.push_back(state.hidden);
  }
  std::reverse(outputs.begin(), outputs.end());
  return {at::cat(outputs, 0), state};
}

Run run_steps(Cell cell, const Sequence& input, const State& initial, const Weights& weights, bool reverse) {
  const Step step = step_of(cell);
  if (!input.packed()) return run_padded(step, input.data, initial, weights, reverse);
  const Tensor gates = weights.of_input(input.data);
  return reverse ? run_packed_reversed(step, gates, input.batch_sizes, initial, weights)
                 : run_packed(step, gates, input.batch_sizes, initial, weights);
}

// 6.
bool is_node(Cell cell, const Sequence& input, const State& initial, const Weights& weights);
Run record_node(Cell cell, const Sequence& input, const State& initial, const Weights& weights, bool reverse);

Run run_direction(Cell cell, const Sequence& input, const State& initial, const Weights& weights, bool reverse) {
  return is_node(cell, input, initial, weights) ? record_node(cell, input, initial, weights, reverse)
                                                : run_steps(cell, input, initial, weights, reverse);
}

// ---- 3. stacks

struct Options {
  bool has_biases;
  int64_t num_layers;
  double dropout;
  bool train;
  bool bidirectional;

  size_t directions() const { return bidirectional ? 2 : 1; }
  bool drops_after(int64_t layer) const { return dropout != 0 && train && layer < num_layers - 1; }
};

// The flat list of parameters, layer by layer and direction by direction.
std::vector<Weights> gather_weights(at::TensorList params, bool has_biases, bool has_projection) {
  const size_t each = 2 + (has_biases ? 2 : 0) + (has_projection ? 1 : 0);
  TORCH_CHECK(params.size() % each == 0, "got an incorrect number of RNN parameters");
  std::vector<Weights> all;
  all.reserve(params.size() / each);
  for (size_t i = 0; i < params.size(); i += each) {
    Weights weights{params[i], params[i + 1], {}, {}, {}};
    if (has_biases) {
      weights.input_bias = params[i + 2];
      weights.hidden_bias = params[i + 3];
    }
    if (has_projection) weights.projection = params[i + each - 1];
    all.push_back(std::move(weights));
  }
  return all;
}

struct StackRun {
  Tensor output;
  std::vector<State> last;  // as the initial states: layer by layer, direction by direction
};

StackRun run_stack(Cell cell, Sequence sequence, const std::vector<State>& initial, const std::vector<Weights>& weights,
                   const Options& options) {
  const size_t directions = options.directions();
  TORCH_CHECK(initial.size() % directions == 0 && weights.size() % directions == 0,
              "Odd number of params or hiddens given to a bidirectional RNN");
  const size_t runs = static_cast<size_t>(options.num_layers) * directions;
  TORCH_CHECK(initial.size() == runs, "Expected more hidden states in stacked_rnn");
  TORCH_CHECK(weights.size() == runs, "Expected more weights in stacked_rnn");
  std::vector<State> last;
  last.reserve(runs);
  for (int64_t layer = 0; layer < options.num_layers; ++layer) {
    std::vector<Tensor> outputs;
    for (size_t direction = 0; direction < directions; ++direction) {
      const size_t i = last.size();
      Run run = run_direction(cell, sequence, initial[i], weights[i], direction == 1);
      outputs.push_back(std::move(run.output));
      last.push_back(std::move(run.last));
    }
    sequence.data = directions == 1 ? outputs[0] : at::cat(outputs, -1);
    if (options.drops_after(layer)) sequence.data = at::dropout(sequence.data, options.dropout, true);
  }
  return {std::move(sequence.data), std::move(last)};
}

Outputs run_simple(Cell cell, const Sequence& sequence, const Tensor& hx, at::TensorList params,
                   const Options& options) {
  const auto weights = gather_weights(params, options.has_biases, false);
  std::vector<State> initial;
  for (Tensor& hidden : hx.unbind(0)) initial.push_back({std::move(hidden), {}});
  const StackRun run = run_stack(cell, sequence, initial, weights, options);
  std::vector<Tensor> hidden;
  for (const State& state : run.last) hidden.push_back(state.hidden);
  return {run.output, at::stack(hidden, 0)};
}

// States of different sizes mean that hidden states are projected.
bool has_projection(at::TensorList hx) { return hx[0].sym_size(2) != hx[1].sym_size(2); }

LstmOutputs run_lstm(const Sequence& sequence, at::TensorList hx, at::TensorList params, const Options& options) {
  const auto weights = gather_weights(params, options.has_biases, has_projection(hx));
  const auto hidden = hx[0].unbind(0);
  const auto cell = hx[1].unbind(0);
  TORCH_CHECK(hidden.size() == cell.size(), "Expected as many cell states as hidden states, but got ", cell.size(),
              " and ", hidden.size());
  std::vector<State> initial;
  for (size_t i = 0; i < hidden.size(); ++i) initial.push_back({hidden[i], cell[i]});
  const StackRun run = run_stack(Cell::kLstm, sequence, initial, weights, options);
  std::vector<Tensor> last_hidden, last_cell;
  for (const State& state : run.last) {
    last_hidden.push_back(state.hidden);
    last_cell.push_back(state.cell);
  }
  return {run.output, at::stack(last_hidden, 0), at::stack(last_cell, 0)};
}

// ---- 4. oneDNN

// Whether the CPU would hand this padded LSTM to oneDNN.
bool takes_onednn(const Tensor& input, at::TensorList hx, at::TensorList params) {
  const auto on_device = [](const Tensor& t) { return t.is_privateuseone(); };
  return at::hasMKLDNN() && at::globalContext().userEnabledMkldnn() && on_device(input) &&
         std::all_of(params.begin(), params.end(), on_device) && std::all_of(hx.begin(), hx.end(), on_device) &&
         onednn_computes(input.scalar_type()) && !(input.scalar_type() == at::kHalf && at::GradMode::is_enabled()) &&
         input.sym_numel() != 0 && !has_projection(hx) && !hx[0].unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

LstmOutputs run_onednn(const Tensor& padded, at::TensorList hx, at::TensorList params, const Options& options,
                       bool batch_first) {
  Tensor input = (batch_first ? padded.transpose(0, 1) : padded).contiguous();
  const Tensor hidden = hx[0].contiguous();
  const Tensor cell = hx[1].contiguous();
  const size_t each = options.has_biases ? 4 : 2;
  std::vector<Tensor> last_hidden, last_cell;
  for (int64_t layer = 0; layer < options.num_layers; ++layer) {
    std::vector<Tensor> outputs;
    for (size_t direction = 0; direction < options.directions(); ++direction) {
      const auto i = static_cast<int64_t>(last_hidden.size());
      const at::TensorList weights = params.slice(static_cast<size_t>(i) * each, each);
      const auto bias = [&](size_t k) {
        return options.has_biases ? weights[k + 2] : at::zeros(weights[k].sizes(), weights[k].options());
      };
      auto [output, hy, cy, workspace] = at::mkldnn_rnn_layer(
          input, weights[0], weights[1], bias(0), bias(1), hidden[i], cell[i], direction == 1, {}, kLstm,
          hidden.size(2), options.num_layers, options.has_biases, options.bidirectional, batch_first, options.train);
      outputs.push_back(std::move(output));
      last_hidden.push_back(std::move(hy));
      last_cell.push_back(std::move(cy));
    }
    input = outputs.size() == 1 ? outputs[0] : at::cat(outputs, -1);
    if (options.drops_after(layer)) input = at::dropout(input, options.dropout, true);
  }
  Tensor hy = at::stack(last_hidden, 0);
  Tensor cy = at::stack(last_cell, 0);
  return {batch_first ? input.transpose(0, 1) : input, std::move(hy), std::move(cy)};
}

// ---- 5. a layer as a node

// oneDNN's layer looks at the grad mode of the thread that it runs on: in training it keeps a
// workspace for the backward pass. A node runs later, on any thread, so it is of an operator of
// ours that carries the mode as an argument. Its Meta kernel, and that of the backward pass,
// predict what aten's get wrong: the workspace's size, float32 gradients, a bias gradient of one
// row.

struct LayerShape {
  at::ScalarType dtype;
  int64_t steps, batch, input_size, hidden_size;
  auto operator<=>(const LayerShape&) const = default;
};

Layer layer(const Tensor& input, const Tensor& weight0, const Tensor& weight1, const Tensor& weight2,
            const Tensor& weight3, const Tensor& hx, const Tensor& cx, bool reverse, at::IntArrayRef batch_sizes,
            int64_t mode, int64_t hidden_size, int64_t num_layers, bool has_biases, bool bidirectional,
            bool batch_first, bool train, bool keeps_workspace) {
  const at::AutoGradMode grad_mode(keeps_workspace);
  return at::mkldnn_rnn_layer(input, weight0, weight1, weight2, weight3, hx, cx, reverse, batch_sizes, mode,
                              hidden_size, num_layers, has_biases, bidirectional, batch_first, train);
}

// Only oneDNN knows the size of its workspace: a layer of this shape is run once, on zeros.
int64_t workspace_bytes(const LayerShape& shape) {
  static auto* known = new std::map<LayerShape, int64_t>;
  static auto* mutex = new std::mutex;
  {
    std::lock_guard guard(*mutex);
    const auto found = known->find(shape);
    if (found != known->end()) return found->second;
  }
  const auto zeros = [&](at::IntArrayRef sizes) { return at::zeros(sizes, at::TensorOptions(shape.dtype)); };
  const int64_t gates = 4 * shape.hidden_size;
  const Tensor state = zeros({shape.batch, shape.hidden_size});
  const Tensor bias = zeros({gates});
  const Layer made = layer(zeros({shape.steps, shape.batch, shape.input_size}), zeros({gates, shape.input_size}),
                           zeros({gates, shape.hidden_size}), bias, bias, state, state, false, {}, kLstm,
                           shape.hidden_size, 1, true, false, false, true, true);
  const int64_t bytes = std::get<3>(made).numel();
  std::lock_guard guard(*mutex);
  return known->emplace(shape, bytes).first->second;
}

// oneDNN's layer takes all of them at their word, and would read outside of what does not fit. The
// states are [batch, hidden]; PyTorch's own decomposition (of an exported LSTM) writes [1, batch,
// hidden].
void check_layer(const Tensor& input, const Tensor& weight0, const Tensor& weight1, const Tensor& weight2,
                 const Tensor& weight3, const Tensor& hx, const Tensor& cx, at::IntArrayRef batch_sizes, int64_t mode,
                 int64_t hidden_size, bool has_biases) {
  const bool is_state = hx.dim() == 2 || (hx.dim() == 3 && hx.size(0) == 1);
  TORCH_CHECK(mode == kLstm && batch_sizes.empty() && input.dim() == 3 && is_state && hx.size(-1) == hidden_size,
              "hetero: no layer of an LSTM");
  TORCH_CHECK(input.is_contiguous() && hx.is_contiguous() && cx.is_contiguous(),
              "hetero: an LSTM's layer takes dense tensors");
  const int64_t gates = 4 * hidden_size;
  TORCH_CHECK(hx.size(-2) == input.size(1) && cx.sizes() == hx.sizes() &&
                  weight0.sizes() == at::IntArrayRef({gates, input.size(2)}) &&
                  weight1.sizes() == at::IntArrayRef({gates, hidden_size}) &&
                  (!has_biases || (weight2.numel() == gates && weight3.numel() == gates)),
              "hetero: the weights and states of an LSTM's layer do not fit its input");
}

Layer layer_meta(const Tensor& input, const Tensor& weight0, const Tensor& weight1, const Tensor& weight2,
                 const Tensor& weight3, const Tensor& hx, const Tensor& cx, bool, at::IntArrayRef batch_sizes,
                 int64_t mode, int64_t hidden_size, int64_t, bool has_biases, bool, bool, bool, bool keeps_workspace) {
  check_layer(input, weight0, weight1, weight2, weight3, hx, cx, batch_sizes, mode, hidden_size, has_biases);
  const int64_t steps = input.size(0), batch = input.size(1);
  Tensor workspace;
  if (keeps_workspace) {
    const LayerShape shape{input.scalar_type(), steps, batch, input.size(2), hidden_size};
    const int64_t bytes = NothingRuns::holds() ? 0 : workspace_bytes(shape);
    workspace = at::empty({bytes}, input.options().dtype(at::kByte));
  }
  return {at::empty({steps, batch, hidden_size}, input.options()), at::empty(hx.sizes(), hx.options()),
          at::empty(cx.sizes(), cx.options()), std::move(workspace)};
}

Layer record_layer(const Tensor& input, const Tensor& weight0, const Tensor& weight1, const Tensor& weight2,
                   const Tensor& weight3, const Tensor& hx, const Tensor& cx, bool reverse, at::IntArrayRef batch_sizes,
                   int64_t mode, int64_t hidden_size, int64_t num_layers, bool has_biases, bool bidirectional,
                   bool batch_first, bool train) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("hetero::lstm_layer", "").typed<decltype(layer)>();
  return op.call(input, weight0, weight1, weight2, weight3, hx, cx, reverse, batch_sizes, mode, hidden_size, num_layers,
                 has_biases, bidirectional, batch_first, train, at::GradMode::is_enabled());
}

LayerGradients layer_backward_meta(const Tensor& input, const Tensor& weight0, const Tensor& weight1,
                                   const Tensor& weight2, const Tensor& weight3, const Tensor& hx, const Tensor& cx,
                                   const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&,
                                   const std::optional<Tensor>&, const std::optional<Tensor>&, bool, int64_t mode,
                                   int64_t hidden_size, int64_t, bool has_biases, bool, bool,
                                   at::IntArrayRef batch_sizes, bool, const Tensor&) {
  check_layer(input, weight0, weight1, weight2, weight3, hx, cx, batch_sizes, mode, hidden_size, has_biases);
  const auto gradient = [&](at::IntArrayRef sizes) { return at::empty(sizes, input.options().dtype(at::kFloat)); };
  return {gradient(input.sizes()),     gradient(weight0.sizes()),   gradient(weight1.sizes()),
          gradient({4 * hidden_size}), gradient({4 * hidden_size}), gradient(hx.sizes()),
          gradient(cx.sizes())};
}

LayerGradients record_layer_backward(const Tensor& input, const Tensor& weight0, const Tensor& weight1,
                                     const Tensor& weight2, const Tensor& weight3, const Tensor& hx, const Tensor& cx,
                                     const Tensor& output, const Tensor& hy, const Tensor& cy,
                                     const std::optional<Tensor>& grad_output, const std::optional<Tensor>& grad_hy,
                                     const std::optional<Tensor>& grad_cy, bool reverse, int64_t mode,
                                     int64_t hidden_size, int64_t num_layers, bool has_biases, bool train,
                                     bool bidirectional, at::IntArrayRef batch_sizes, bool batch_first,
                                     const Tensor& workspace) {
  const auto defined = [](const std::optional<Tensor>& t) { return t.has_value() && t->defined(); };
  if (!defined(grad_output) && !defined(grad_hy) && !defined(grad_cy)) return {};
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("hetero::lstm_layer_backward", "")
                             .typed<decltype(record_layer_backward)>();
  return op.call(input, weight0, weight1, weight2, weight3, hx, cx, output, hy, cy, grad_output, grad_hy, grad_cy,
                 reverse, mode, hidden_size, num_layers, has_biases, train, bidirectional, batch_sizes, batch_first,
                 workspace);
}

// ---- 6. other layers as nodes

// In inference, one direction of a layer is one node where its steps may be ours
// (layer_kernel.h): recorded step by step, each would be a product and a kernel of its own. The
// stock kernel has the steps above.

using NodeResults = std::tuple<Tensor, Tensor, Tensor>;  // the last of an LSTM only

// Whether sizes are those of a layer.
bool fit(Cell cell, const Sequence& input, const State& initial, const Weights& weights) {
  const Tensor& hidden = initial.hidden;
  if (input.data.dim() != (input.packed() ? 2 : 3) || hidden.dim() != 2) return false;
  const int64_t rows = hidden.size(0), units = hidden.size(1), gates = static_cast<int64_t>(gate_count(cell)) * units;
  if (input.packed()) {
    int64_t sum = 0, most = rows;
    for (const int64_t batch : input.batch_sizes) {
      if (batch <= 0 || batch > most) return false;
      most = batch;
      sum += batch;
    }
    if (input.batch_sizes.front() != rows || sum != input.data.size(0)) return false;
  } else if (input.data.size(1) != rows) {
    return false;
  }
  const auto is = [](const Tensor& tensor, at::IntArrayRef sizes) { return tensor.sizes() == sizes; };
  const auto is_bias = [&](const Tensor& bias) { return !bias.defined() || is(bias, {gates}); };
  return is(weights.input, {gates, input.data.size(-1)}) && is(weights.hidden, {gates, units}) &&
         is_bias(weights.input_bias) && is_bias(weights.hidden_bias) &&
         weights.input_bias.defined() == weights.hidden_bias.defined() && !weights.projection.defined() &&
         initial.cell.defined() == (cell == Cell::kLstm) && (cell != Cell::kLstm || is(initial.cell, {rows, units}));
}

// Keys of tensors that stand for others, which may need gradients.
constexpr c10::DispatchKeySet kWrapped({c10::DispatchKey::Python, c10::DispatchKey::FuncTorchGradWrapper,
                                        c10::DispatchKey::FuncTorchBatched});

bool is_node(Cell cell, const Sequence& input, const State& initial, const Weights& weights) {
  const auto is_plain = [](const Tensor& tensor) {
    if (!tensor.defined()) return true;
    return tensor.is_privateuseone() && tensor.scalar_type() == at::kFloat &&
           !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() && !tensor.key_set().has_any(kWrapped) &&
           tensor.numel() != 0 && !(at::GradMode::is_enabled() && tensor.requires_grad()) &&
           !tensor._fw_grad(0).defined();
  };
  return is_plain(input.data) && is_plain(initial.hidden) && is_plain(initial.cell) && is_plain(weights.input) &&
         is_plain(weights.hidden) && is_plain(weights.input_bias) && is_plain(weights.hidden_bias) &&
         fit(cell, input, initial, weights) && last_bits_may_vary() && backend::has_panels() &&
         backend::accelerator() == nullptr &&  // which can run steps, but not a layer
         !at::autocast::is_autocast_enabled(at::kPrivateUse1) && !c10::impl::TorchDispatchModeTLS::any_modes_set();
}

// A node's arguments.
struct NodeArguments {
  NodeArguments(const Tensor& input, const Tensor& weight0, const Tensor& weight1, const std::optional<Tensor>& weight2,
                const std::optional<Tensor>& weight3, const Tensor& hx, const std::optional<Tensor>& cx,
                at::IntArrayRef batch_sizes, int64_t mode)
      : cell(static_cast<Cell>(mode)),
        sequence{input, batch_sizes},
        initial{hx, cx.value_or(Tensor())},
        weights{weight0, weight1, weight2.value_or(Tensor()), weight3.value_or(Tensor()), {}} {
    TORCH_CHECK(mode >= 0 && mode <= static_cast<int64_t>(Cell::kGru) && input.numel() != 0 &&
                    fit(cell, sequence, initial, weights),
                "hetero: the weights and states of a recurrent layer do not fit its input");
  }

  Cell cell;
  Sequence sequence;
  State initial;
  Weights weights;
};

NodeResults node(const Tensor& input, const Tensor& weight0, const Tensor& weight1,
                 const std::optional<Tensor>& weight2, const std::optional<Tensor>& weight3, const Tensor& hx,
                 const std::optional<Tensor>& cx, bool reverse, at::IntArrayRef batch_sizes, int64_t mode) {
  const NodeArguments a(input, weight0, weight1, weight2, weight3, hx, cx, batch_sizes, mode);
  Run run = run_steps(a.cell, a.sequence, a.initial, a.weights, reverse);
  return {std::move(run.output), std::move(run.last.hidden), std::move(run.last.cell)};
}

NodeResults node_meta(const Tensor& input, const Tensor& weight0, const Tensor& weight1,
                      const std::optional<Tensor>& weight2, const std::optional<Tensor>& weight3, const Tensor& hx,
                      const std::optional<Tensor>& cx, bool, at::IntArrayRef batch_sizes, int64_t mode) {
  const NodeArguments a(input, weight0, weight1, weight2, weight3, hx, cx, batch_sizes, mode);
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes.back() = hx.size(1);
  const auto state = [&] { return at::empty(hx.sizes(), hx.options()); };
  return {at::empty(sizes, input.options()), state(), a.cell == Cell::kLstm ? state() : Tensor()};
}

Run record_node(Cell cell, const Sequence& input, const State& initial, const Weights& weights, bool reverse) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("hetero::rnn_layer", "").typed<decltype(node)>();
  const auto optional = [](const Tensor& tensor) { return tensor.defined() ? std::optional(tensor) : std::nullopt; };
  auto [output, hidden, state] =
      op.call(input.data, weights.input, weights.hidden, optional(weights.input_bias), optional(weights.hidden_bias),
              initial.hidden, optional(initial.cell), reverse, input.batch_sizes, static_cast<int64_t>(cell));
  return {std::move(output), {std::move(hidden), std::move(state)}};
}

// ---- 7. operators

LstmOutputs lstm(const Tensor& input, at::TensorList hx, at::TensorList params, bool has_biases, int64_t num_layers,
                 double dropout, bool train, bool bidirectional, bool batch_first) {
  TORCH_CHECK(hx.size() == 2, "lstm expects two hidden states");
  const Options options{has_biases, num_layers, dropout, train, bidirectional};
  if (takes_onednn(input, hx, params)) return run_onednn(input, hx, params, options, batch_first);
  at::native::check_attributes(input, params, hx);
  LstmOutputs outputs = run_lstm({batch_first ? input.transpose(0, 1) : input, {}}, hx, params, options);
  if (batch_first) std::get<0>(outputs) = std::get<0>(outputs).transpose(0, 1);
  return outputs;
}

at::IntArrayRef sizes_of_steps(const Tensor& batch_sizes) {
  TORCH_CHECK(batch_sizes.numel() > 0, "Expected sequence length to be larger than 0 in RNN");
  return {batch_sizes.const_data_ptr<int64_t>(), static_cast<size_t>(batch_sizes.numel())};
}

LstmOutputs packed_lstm(const Tensor& data, const Tensor& batch_sizes, at::TensorList hx, at::TensorList params,
                        bool has_biases, int64_t num_layers, double dropout, bool train, bool bidirectional) {
  TORCH_CHECK(hx.size() == 2, "lstm expects two hidden states");
  const Tensor sizes = batch_sizes.cpu();
  return run_lstm({data, sizes_of_steps(sizes)}, hx, params, {has_biases, num_layers, dropout, train, bidirectional});
}

template <Cell cell>
Outputs padded(const Tensor& input, const Tensor& hx, at::TensorList params, bool has_biases, int64_t num_layers,
               double dropout, bool train, bool bidirectional, bool batch_first) {
  at::native::check_attributes(input, params, hx);
  Outputs outputs = run_simple(cell, {batch_first ? input.transpose(0, 1) : input, {}}, hx, params,
                               {has_biases, num_layers, dropout, train, bidirectional});
  if (batch_first) std::get<0>(outputs).transpose_(0, 1);
  return outputs;
}

template <Cell cell>
Outputs packed(const Tensor& data, const Tensor& batch_sizes, const Tensor& hx, at::TensorList params, bool has_biases,
               int64_t num_layers, double dropout, bool train, bool bidirectional) {
  const Tensor sizes = batch_sizes.cpu();
  return run_simple(cell, {data, sizes_of_steps(sizes)}, hx, params,
                    {has_biases, num_layers, dropout, train, bidirectional});
}

void check_cell_input(const Tensor& input, const Tensor& weight) {
  TORCH_CHECK(input.sym_size(1) == weight.sym_size(1), "input has inconsistent input_size: got ", input.sym_size(1),
              " expected ", weight.sym_size(1));
}

void check_cell_weight(const char* name, const Tensor& weight, int64_t gates, const c10::SymInt& hidden_size) {
  TORCH_CHECK(weight.sym_size(0) == gates * hidden_size, name, " first dim must be ", gates,
              " * hidden_size = ", gates * hidden_size, ", but got ", weight.sym_size(0));
}

void check_cell_state(const Tensor& input, const Tensor& state, const c10::SymInt& hidden_size, int label) {
  TORCH_CHECK(input.sym_size(0) == state.sym_size(0), "Input batch size ", input.sym_size(0), " doesn't match hidden",
              label, " batch size ", state.sym_size(0));
  TORCH_CHECK(state.sym_size(1) == hidden_size, "hidden", label, " has inconsistent hidden_size: got ",
              state.sym_size(1), ", expected ", hidden_size);
}

Outputs lstm_cell(const Tensor& input, at::TensorList hx, const Tensor& w_ih, const Tensor& w_hh,
                  const std::optional<Tensor>& b_ih, const std::optional<Tensor>& b_hh) {
  TORCH_CHECK(hx.size() == 2, "lstm_cell expects two hidden states");
  const c10::SymInt hidden_size = w_hh.sym_size(1);
  check_cell_input(input, w_ih);
  check_cell_weight("weight_ih", w_ih, 4, hidden_size);
  check_cell_weight("weight_hh", w_hh, 4, hidden_size);
  check_cell_state(input, hx[0], hidden_size, 0);
  check_cell_state(input, hx[1], hidden_size, 1);
  const Weights weights{w_ih, w_hh, b_ih.value_or(Tensor()), b_hh.value_or(Tensor()), {}};
  const Tensor hidden_gates = weights.of_hidden(hx[0]);
  State state = lstm_step(hidden_gates, weights.of_input(input), {hx[0], hx[1]}, weights);
  return {std::move(state.hidden), std::move(state.cell)};
}

Tensor gru_cell(const Tensor& input, const Tensor& hx, const Tensor& w_ih, const Tensor& w_hh,
                const std::optional<Tensor>& b_ih, const std::optional<Tensor>& b_hh) {
  const c10::SymInt hidden_size = w_hh.sym_size(1);
  check_cell_input(input, w_ih);
  check_cell_state(input, hx, hidden_size, 0);
  check_cell_weight("weight_ih", w_ih, 3, hidden_size);
  check_cell_weight("weight_hh", w_hh, 3, hidden_size);
  const Weights weights{w_ih, w_hh, b_ih.value_or(Tensor()), b_hh.value_or(Tensor()), {}};
  const Tensor input_gates = weights.of_input(input);
  return gru_step(weights.of_hidden(hx), input_gates, {hx, {}}, weights).hidden;
}

// The simple cells need no override: their composite is the same on every device.
void register_composites(torch::Library& library) {
  library.impl("lstm.input", TORCH_FN(lstm));
  library.impl("lstm.data", TORCH_FN(packed_lstm));
  library.impl("gru.input", TORCH_FN(padded<Cell::kGru>));
  library.impl("gru.data", TORCH_FN(packed<Cell::kGru>));
  library.impl("rnn_tanh.input", TORCH_FN(padded<Cell::kTanh>));
  library.impl("rnn_tanh.data", TORCH_FN(packed<Cell::kTanh>));
  library.impl("rnn_relu.input", TORCH_FN(padded<Cell::kRelu>));
  library.impl("rnn_relu.data", TORCH_FN(packed<Cell::kRelu>));
  library.impl("lstm_cell", TORCH_FN(lstm_cell));
  library.impl("gru_cell", TORCH_FN(gru_cell));
}

}  // namespace

// Recorded by the catch-all; class rows in op_table.def.
TORCH_LIBRARY_FRAGMENT(hetero, library) {
  library.def(
      "lstm_layer(Tensor input, Tensor weight0, Tensor weight1, Tensor weight2, Tensor weight3, Tensor hx, Tensor cx, "
      "bool reverse, int[] batch_sizes, int mode, int hidden_size, int num_layers, bool has_biases, bool "
      "bidirectional, "
      "bool batch_first, bool train, bool keeps_workspace) -> (Tensor, Tensor, Tensor, Tensor)");
  library.def(
      "rnn_layer(Tensor input, Tensor weight0, Tensor weight1, Tensor? weight2, Tensor? weight3, Tensor hx, Tensor? "
      "cx, "
      "bool reverse, int[] batch_sizes, int mode) -> (Tensor, Tensor, Tensor)");
  library.def(
      "lstm_layer_backward(Tensor input, Tensor weight0, Tensor weight1, Tensor weight2, Tensor weight3, Tensor hx, "
      "Tensor cx, Tensor output, Tensor hy, Tensor cy, Tensor? grad_output, Tensor? grad_hy, Tensor? grad_cy, "
      "bool reverse, int mode, int hidden_size, int num_layers, bool has_biases, bool train, bool bidirectional, "
      "int[] batch_sizes, bool batch_first, Tensor workspace) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(hetero, CPU, library) {
  library.impl("rnn_layer", TORCH_FN(node));
  library.impl("lstm_layer", TORCH_FN(layer));
  library.impl("lstm_layer_backward", TORCH_FN(at::mkldnn_rnn_layer_backward));
}

TORCH_LIBRARY_IMPL(hetero, Meta, library) {
  library.impl("rnn_layer", TORCH_FN(node_meta));
  library.impl("lstm_layer", TORCH_FN(layer_meta));
  library.impl("lstm_layer_backward", TORCH_FN(layer_backward_meta));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("mkldnn_rnn_layer", TORCH_FN(record_layer));
  library.impl("mkldnn_rnn_layer_backward", TORCH_FN(record_layer_backward));
  register_composites(library);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) { register_composites(library); }

}  // namespace hetero::ops
