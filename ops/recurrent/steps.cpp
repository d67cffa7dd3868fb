#include "ops/recurrent/steps.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <deque>
#include <vector>

#include "backend/base/barrier.h"
#include "backend/base/parallel.h"
#include "backend/base/rounding.h"
#include "backend/cpu/kernels/panel_gemm.h"
#include "backend/cpu/vector/scratch.h"
#include "ops/fused/functions.h"

namespace hetero::ops {
namespace {

// Of the gates' parts that are made of the inputs at once.
constexpr int64_t kBlockBytes = 4 << 20;
// That a thread keeps from call to call.
constexpr int64_t kMostScratch = 4 << 20;
// Threads divide units in such groups: as matvec does, and in whole panels.
constexpr int64_t kUnitGroup = 64;
// Of the hidden state's weight, and sequences, that are worth another thread.
constexpr int64_t kBytesPerThread = 64 << 10;
constexpr int64_t kRowsPerThread = 4;
// With more sequences, a packed weight is faster.
constexpr int64_t kMostPlainRows = 4;

// ---- cells

// Arithmetic on `count` numbers.
class Vectors {
 public:
  explicit Vectors(int64_t count) : count_(count) {}
  void add(const float* a, const float* b, float* out) const { two<Function::kAdd>(a, b, out); }
  void subtract(const float* a, const float* b, float* out) const { two<Function::kSub>(a, b, out); }
  void multiply(const float* a, const float* b, float* out) const { two<Function::kMul>(a, b, out); }
  void sigmoid(float* x) const { one<Function::kSigmoid>(x, x); }
  void relu(const float* x, float* out) const { one<Function::kRelu>(x, out); }
  void tanh(const float* x, float* out) const { one<Function::kTanh>(x, out); }

 private:
  template <Function kFunction>
  static backend::MapFunction function() {
    static const backend::MapFunction found = functions().map(kFunction, Form::kTensors, at::kFloat);
    return found;
  }
  template <Function kFunction>
  void one(const float* x, float* out) const {
    const void* const in[] = {x};
    function<kFunction>()(out, in, nullptr, count_);
  }
  template <Function kFunction>
  void two(const float* a, const float* b, float* out) const {
    const void* const in[] = {a, b};
    function<kFunction>()(out, in, nullptr, count_);
  }

  int64_t count_;
};

// Some units of one sequence in one step. Gates are `stride` apart.
struct Units {
  int64_t count, stride;
  const float* of_input;  // what a linear map made of the input
  float* gates;           // and of the hidden state; overwritten
  const float* before;    // hidden state
  float* after;
  float* cell_state;
};

void simple_cell(Cell cell, const Units& units) {
  const Vectors vectors(units.count);
  vectors.add(units.gates, units.of_input, units.gates);
  if (cell == Cell::kTanh) {
    vectors.tanh(units.gates, units.after);
  } else {
    vectors.relu(units.gates, units.after);
  }
}

void lstm_cell(const Units& units) {
  const Vectors vectors(units.count);
  float* const input = units.gates;
  float* const forget = input + units.stride;
  float* const fresh = forget + units.stride;
  float* const output = fresh + units.stride;
  for (int64_t gate = 0; gate < 4; ++gate) {
    float* const sum = units.gates + gate * units.stride;
    vectors.add(sum, units.of_input + gate * units.stride, sum);
  }
  vectors.sigmoid(input);
  vectors.sigmoid(forget);
  vectors.tanh(fresh, fresh);
  vectors.sigmoid(output);
  vectors.multiply(forget, units.cell_state, units.cell_state);
  vectors.multiply(input, fresh, fresh);
  vectors.add(units.cell_state, fresh, units.cell_state);
  vectors.tanh(units.cell_state, units.after);
  vectors.multiply(output, units.after, units.after);
}

void gru_cell(const Units& units) {
  const Vectors vectors(units.count);
  float* const reset = units.gates;
  float* const update = reset + units.stride;
  float* const fresh = update + units.stride;
  vectors.add(reset, units.of_input, reset);
  vectors.sigmoid(reset);
  vectors.add(update, units.of_input + units.stride, update);
  vectors.sigmoid(update);
  vectors.multiply(fresh, reset, fresh);
  vectors.add(units.of_input + 2 * units.stride, fresh, fresh);
  vectors.tanh(fresh, fresh);
  vectors.subtract(units.before, fresh, units.after);
  vectors.multiply(units.after, update, units.after);
  vectors.add(units.after, fresh, units.after);
}

void compute_cell(Cell cell, const Units& units) {
  switch (cell) {
    case Cell::kRelu:
    case Cell::kTanh:
      return simple_cell(cell, units);
    case Cell::kLstm:
      return lstm_cell(units);
    case Cell::kGru:
      return gru_cell(units);
  }
}

// ---- a layer

int64_t all_gates(const RecurrentLayer& layer) { return static_cast<int64_t>(gate_count(layer.cell)) * layer.units; }

class LayerRun {
 public:
  LayerRun(const RecurrentLayer& layer, int64_t threads)
      : layer_(layer), width_(all_gates(layer)), grid_(make_grid(threads)), barrier_(members()) {
    offsets_.reserve(static_cast<size_t>(layer.steps) + 1);
    offsets_.push_back(0);
    for (int64_t step = 0; step < layer.steps; ++step) offsets_.push_back(offsets_.back() + rows_of(step));
    for (int64_t done = 0; done < layer.steps; done += block_steps(done)) {
      block_rows_ = std::max(block_rows_, block(done).row_count());
    }
  }
  LayerRun(const LayerRun&) = delete;

  int64_t members() const { return grid_.rows * grid_.units; }
  // What use_memory() takes.
  int64_t floats() const { return (block_rows_ + layer_.rows) * width_ + 2 * layer_.rows * layer_.units; }
  void use_memory(float* memory) {
    of_inputs_ = memory;
    gates_ = of_inputs_ + block_rows_ * width_;
    states_[0] = gates_ + layer_.rows * width_;
    states_[1] = states_[0] + layer_.rows * layer_.units;
    std::copy_n(layer_.hidden, layer_.rows * layer_.units, states_[0]);
    if (layer_.cell_state != nullptr) std::copy_n(layer_.cell_state, layer_.rows * layer_.units, layer_.last_cell);
  }

  // The part of some members, all of which run at once.
  void run(int64_t begin, int64_t end) {
    for (int64_t done = 0; done < layer_.steps;) {
      const Block now = block(done);
      for (int64_t member = begin; member < end; ++member) multiply_inputs(now, member);
      if (!barrier_.wait(end - begin)) return;
      for (int64_t count = block_steps(done); count > 0; --count, ++done) {
        for (int64_t member = begin; member < end; ++member) run_step(done, now, part_of(member));
        if (grid_.units > 1 && !barrier_.wait(end - begin)) return;
      }
      if (grid_.units == 1 && !barrier_.wait(end - begin)) return;
    }
  }
  // No member waits for others any more.
  void give_up() { barrier_.give_up(); }

 private:
  // Steps that follow one another in memory, and their rows.
  struct Block {
    int64_t first_row, last_row;
    int64_t row_count() const { return last_row - first_row; }
  };
  // What a member computes of a step.
  struct Part {
    int64_t first_row, last_row, first_unit, last_unit;
    int64_t units() const { return last_unit - first_unit; }
  };

  // Members divide the sequences in so many parts, and the units.
  struct Grid {
    int64_t rows, units;
  };
  Grid make_grid(int64_t threads) const {
    const int64_t bytes = width_ * layer_.units * static_cast<int64_t>(sizeof(float));
    const int64_t rows = std::min(threads, backend::divide_up(layer_.rows, kRowsPerThread));
    return {rows, std::min({threads / rows, backend::divide_up(layer_.units, kUnitGroup),
                            backend::divide_up(bytes, kBytesPerThread)})};
  }
  int64_t rows_of(int64_t step) const { return layer_.step_rows == nullptr ? layer_.rows : layer_.step_rows[step]; }
  // The step that comes in place i.
  int64_t step_at(int64_t i) const { return layer_.reverse ? layer_.steps - 1 - i : i; }
  int64_t offset_of(int64_t step) const { return offsets_[static_cast<size_t>(step)]; }

  // How many steps from place `done` on are a block.
  int64_t block_steps(int64_t done) const {
    const int64_t most = kBlockBytes / (width_ * static_cast<int64_t>(sizeof(float)));
    int64_t count = 0;
    for (int64_t rows = 0; done + count < layer_.steps; ++count) {
      rows += rows_of(step_at(done + count));
      if (count > 0 && rows > most) break;
    }
    return count;
  }
  Block block(int64_t done) const {
    const int64_t last = done + block_steps(done) - 1;
    const int64_t a = std::min(step_at(done), step_at(last)), b = std::max(step_at(done), step_at(last));
    return {offset_of(a), offset_of(b + 1)};
  }
  Part part_of(int64_t member) const {
    const int64_t row = member / grid_.units, unit = member % grid_.units;
    const int64_t groups = backend::divide_up(layer_.units, kUnitGroup);
    return {layer_.rows * row / grid_.rows, layer_.rows * (row + 1) / grid_.rows,
            groups * unit / grid_.units * kUnitGroup,
            std::min(layer_.units, groups * (unit + 1) / grid_.units * kUnitGroup)};
  }

  void multiply_inputs(const Block& block, int64_t member) const {
    const int64_t first = block.row_count() * member / members(), last = block.row_count() * (member + 1) / members();
    if (first == last) return;
    backend::Matvec call = input_product(layer_);
    call.m = last - first;
    call.x = layer_.input + (block.first_row + first) * layer_.inputs;
    call.y = of_inputs_ + first * width_;
    backend::panel_gemm(call);
  }

  void run_step(int64_t i, const Block& block, const Part& part) {
    const int64_t step = step_at(i);
    const int64_t rows = rows_of(step), next_rows = i + 1 < layer_.steps ? rows_of(step_at(i + 1)) : 0;
    const float* const before = states_[i % 2];
    float* const after = states_[(i + 1) % 2];
    const auto copy = [&](const float* from, int64_t first, int64_t last, float* to) {
      for (int64_t row = std::max(first, part.first_row); row < std::min(last, part.last_row); ++row) {
        const int64_t skip = row * layer_.units + part.first_unit;
        std::copy_n(from + skip, part.units(), to + skip);
      }
    };
    multiply_hidden(before, std::min(rows, part.last_row), part);
    for (int64_t row = part.first_row; row < std::min(rows, part.last_row); ++row) {
      const int64_t skip = row * layer_.units + part.first_unit;
      const int64_t gate = row * width_ + part.first_unit;
      compute_cell(layer_.cell, {.count = part.units(),
                                 .stride = layer_.units,
                                 .of_input = of_inputs_ + (offset_of(step) - block.first_row) * width_ + gate,
                                 .gates = gates_ + gate,
                                 .before = before + skip,
                                 .after = after + skip,
                                 .cell_state = layer_.last_cell == nullptr ? nullptr : layer_.last_cell + skip});
    }
    copy(after, 0, rows, layer_.output + offset_of(step) * layer_.units);
    copy(after, next_rows, rows, layer_.last_hidden);  // which end here
    copy(layer_.hidden, rows, next_rows, after);       // which begin with the next step
  }

  void multiply_hidden(const float* before, int64_t last_row, const Part& part) const {
    if (part.first_row >= last_row) return;
    std::array<backend::Matvec, 4> calls;
    const size_t gates = gate_count(layer_.cell);
    const bool packed = layer_.packed_hidden[0] != nullptr;
    for (size_t gate = 0; gate < gates; ++gate) {
      backend::Matvec& call = calls[gate] = hidden_product(layer_, gate);
      call.m = last_row - part.first_row;
      call.x = before + part.first_row * layer_.units;
      call.n = part.units();
      call.w = static_cast<const float*>(call.w) + part.first_unit * layer_.units;
      if (packed) {
        call.packed = static_cast<const std::byte*>(call.packed) +
                      backend::panel_weight_bytes(call.element, part.first_unit, layer_.units);
      }
      if (call.bias != nullptr) call.bias = static_cast<const float*>(call.bias) + part.first_unit;
      call.y = gates_ + part.first_row * width_ + static_cast<int64_t>(gate) * layer_.units + part.first_unit;
    }
    const auto all = std::span(calls).first(gates);
    if (packed) {
      backend::panel_gemm(all);
    } else {
      backend::matvec(all);
    }
  }

  const RecurrentLayer& layer_;
  const int64_t width_;  // of all gates
  const Grid grid_;
  backend::Barrier barrier_;
  std::vector<int64_t> offsets_;  // of steps in rows
  int64_t block_rows_ = 0;        // at most
  float* of_inputs_ = nullptr;    // of a block
  float* gates_ = nullptr;
  std::array<float*, 2> states_{};  // before and after a step, in turns
};

}  // namespace

bool wants_packed_hidden(int64_t rows) { return rows > kMostPlainRows; }

backend::Matvec input_product(const RecurrentLayer& layer) {
  const int64_t n = all_gates(layer);
  return {.n = n,
          .k = layer.inputs,
          .x_stride = layer.inputs,
          .w_stride = layer.inputs,
          .packed = layer.input_weight,
          .bias = layer.input_bias,
          .y_stride = n};
}

backend::Matvec hidden_product(const RecurrentLayer& layer, size_t gate) {
  const int64_t n = layer.units, first = static_cast<int64_t>(gate) * n;
  return {.n = n,
          .k = n,
          .x_stride = n,
          .w = layer.hidden_weight + first * n,
          .w_stride = n,
          .packed = layer.packed_hidden[gate],
          .bias = layer.hidden_bias == nullptr ? nullptr : layer.hidden_bias + first,
          .y_stride = all_gates(layer)};
}

void run_layers(std::span<const RecurrentLayer> layers) {
  static thread_local backend::Scratch scratch;
  const auto count = static_cast<int64_t>(layers.size());
  const int64_t threads = std::max<int64_t>(1, backend::thread_count() / std::max<int64_t>(1, count));
  std::deque<LayerRun> runs;  // which do not move
  int64_t floats = 0, members = 0;
  for (const RecurrentLayer& layer : layers) {
    floats += runs.emplace_back(layer, threads).floats();
    members += runs.back().members();
  }
  backend::Scratch large;
  auto* memory = (floats <= kMostScratch ? scratch : large).get<float>(floats);
  for (LayerRun& run : runs) {
    run.use_memory(memory);
    memory += run.floats();
  }
  backend::run_at_once(members, [&](int64_t begin, int64_t end) {
    try {
      int64_t before = 0;  // members of the layers before
      for (LayerRun& run : runs) {
        const int64_t first = std::max<int64_t>(0, begin - before), last = std::min(run.members(), end - before);
        if (first < last) run.run(first, last);
        before += run.members();
      }
    } catch (...) {
      for (LayerRun& run : runs) run.give_up();
      throw;
    }
  });
}

}  // namespace hetero::ops
