// The steps of recurrent layers in float32.
//
// Products with packed weights make the gates' parts of many inputs at once. Then each step
// multiplies the state before by the weight of the hidden state, and computes its cell by the
// vector functions of fused kernels.
//
// The threads of a layer start once. Each has some of the units, so that it reads a part of the
// weight that its cache may hold, and waits for the others after each step (barrier.h); or it has
// all units of some of the sequences, and waits between blocks of steps.
//
// A result does not depend on the number of threads.
//
// Thread safety: any thread; layers share nothing.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/cpu/kernels/matvec.h"

namespace hetero::ops {

// The numbers are those of ideep::rnn_kind.
enum class Cell : uint8_t { kRelu, kTanh, kLstm, kGru };
inline size_t gate_count(Cell cell) { return cell == Cell::kLstm ? 4 : cell == Cell::kGru ? 3 : 1; }

// One direction of a layer. All is dense; gates lie as PyTorch's parameters have them.
struct RecurrentLayer {
  Cell cell = Cell::kLstm;
  bool reverse = false;  // from the last step to the first
  int64_t inputs = 0;    // features
  int64_t units = 0;
  int64_t steps = 0;
  int64_t rows = 0;                    // sequences
  const int64_t* step_rows = nullptr;  // how many of them a step has, never growing; null for all
  // [rows of all steps, inputs] and [rows of all steps, units].
  const float* input = nullptr;
  float* output = nullptr;
  // [gates * units, inputs], by pack_panel_weight.
  const void* input_weight = nullptr;
  // [gates * units, units], and that of each gate by pack_panel_weight, or null.
  const float* hidden_weight = nullptr;
  std::array<const void*, 4> packed_hidden{};
  // [gates * units], null for none.
  const float* input_bias = nullptr;
  const float* hidden_bias = nullptr;
  // [rows, units], before the first step; the cell's of an LSTM only.
  const float* hidden = nullptr;
  const float* cell_state = nullptr;
  // The same, after a sequence's last step.
  float* last_hidden = nullptr;
  float* last_cell = nullptr;
};

// Products of few rows read the weight of the hidden state as it is; with a few more they can.
bool wants_packed_hidden(int64_t rows);
inline bool needs_packed_hidden(int64_t rows) { return rows > backend::kMaxMatvecRows; }
// The products with the weights, for pack_panel_weight.
backend::Matvec input_product(const RecurrentLayer& layer);
backend::Matvec hidden_product(const RecurrentLayer& layer, size_t gate);

// Side by side where there are threads. REQUIRES: backend::has_panels(), and of each steps > 0,
// rows > 0, inputs > 0 and units > 0; a packed weight if needs_packed_hidden(rows).
void run_layers(std::span<const RecurrentLayer> layers);

}  // namespace hetero::ops
