#include "tests/backend/cpu/fused/fused_program.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/backend/cpu/fused/portable_functions.h"

namespace hetero::backend::testing {

FusedSpace dense_space(std::initializer_list<int64_t> sizes, int row_rank, int operands, int bytes) {
  FusedSpace space;
  for (const int64_t size : sizes) space.sizes[space.rank++] = size;
  space.row_rank = row_rank;
  FusedOperand operand;
  operand.bytes = bytes;
  int64_t stride = bytes;
  for (int d = space.rank - 1; d >= 0; --d) {
    operand.strides[d] = stride;
    stride *= space.sizes[d];
  }
  space.operands.assign(operands, operand);
  return space;
}

namespace {

int64_t product(const FusedSpace& space, int begin, int end) {
  int64_t result = 1;
  for (int d = begin; d < end; ++d) result *= space.sizes[d];
  return result;
}

// The address of a point, given by its row-major index over dimensions [0, end).
char* address(const FusedSpace& space, int operand, void* base, int64_t index, int end) {
  const FusedOperand& it = space.operands[operand];
  int64_t offset = it.offset;
  for (int d = end - 1; d >= 0; --d) {
    offset += index % space.sizes[d] * it.strides[d];
    index /= space.sizes[d];
  }
  return static_cast<char*>(base) + offset;
}

}  // namespace

bool interpret(const FusedKernel& kernel, const FusedSpace& space, void* const* operands, const Number* numbers) {
  const int row_begin = space.rank - space.row_rank;
  const int64_t rows = product(space, 0, row_begin);
  const int64_t row = product(space, row_begin, space.rank);
  std::vector<std::vector<char>> values(kernel.values.size());
  const auto count_of = [&](uint16_t v) {
    const Extent extent = kernel.values[v].extent;
    return extent == Extent::kTotal ? 1 : extent == Extent::kRow ? rows : rows * row;
  };
  const auto entry = [&](uint16_t v, int64_t point, bool by_row) {
    const Extent extent = kernel.values[v].extent;
    const int64_t index = extent == Extent::kTotal ? 0 : extent == Extent::kRow && !by_row ? point / row : point;
    return values[v].data() + index * kernel.values[v].bytes;
  };
  for (size_t v = 0; v < values.size(); ++v)
    values[v].resize(count_of(static_cast<uint16_t>(v)) * kernel.values[v].bytes);
  for (const FusedStep& step : kernel.steps) {
    if (step.kind != FusedStep::Kind::kLoad) continue;
    const bool by_row = kernel.values[step.value].extent == Extent::kRow;
    for (int64_t i = 0; i < count_of(step.value); ++i) {
      std::memcpy(entry(step.value, i, by_row),
                  address(space, step.operand, operands[step.operand], i, by_row ? row_begin : space.rank),
                  kernel.values[step.value].bytes);
    }
  }
  const auto index_of = [&](const FusedStep& step, int64_t r) {
    int64_t index;
    std::memcpy(&index, entry(step.inputs[1], r, true), sizeof(index));
    return index;
  };
  bool holds = true;
  for (const bool storing : {false, true})
    for (const FusedStep& step : kernel.steps) {
      if (storing != (step.kind == FusedStep::Kind::kStore)) continue;
      if (storing && !holds) return false;
      const bool by_row = kernel.values[step.value].extent == Extent::kRow;
      const int64_t count = count_of(step.value);
      switch (step.kind) {
        case FusedStep::Kind::kLoad:
          break;
        case FusedStep::Kind::kFill:
          for (int64_t i = 0; i < count; ++i) {
            std::memcpy(entry(step.value, i, by_row), numbers + step.first_number, kernel.values[step.value].bytes);
          }
          break;
        case FusedStep::Kind::kMap:
          for (int64_t i = 0; i < count; ++i) {
            const void* in[4] = {};
            for (int j = 0; j < step.input_count; ++j) in[j] = entry(step.inputs[j], i, by_row);
            step.map(entry(step.value, i, by_row), in, numbers + step.first_number, 1);
          }
          break;
        case FusedStep::Kind::kReduce:
          if (kernel.values[step.value].extent == Extent::kTotal) {
            std::vector<char> state(step.reducer->state_bytes);
            step.reducer->begin(state.data());
            for (int64_t r = 0; r < rows; ++r) step.reducer->add(state.data(), entry(step.inputs[0], r, true), 1, r);
            step.reducer->finish(state.data(), entry(step.value, 0, true));
            break;
          }
          for (int64_t r = 0; r < rows; ++r) {
            std::vector<char> state(step.reducer->state_bytes);
            if (step.reducer == &pick_reducer(kernel.values[step.value].bytes)) {
              const int64_t index = index_of(step, r);
              std::memset(entry(step.value, r, true), 0, kernel.values[step.value].bytes);
              if (index < 0 || index >= row) continue;
              std::memcpy(entry(step.value, r, true), entry(step.inputs[0], r * row + index, false),
                          kernel.values[step.value].bytes);
              continue;
            }
            step.reducer->begin(state.data());
            for (int64_t i = 0; i < row; ++i)
              step.reducer->add(state.data(), entry(step.inputs[0], r * row + i, false), 1, i);
            step.reducer->finish(state.data(), entry(step.value, r, true));
          }
          break;
        case FusedStep::Kind::kLookUp:
          for (int64_t i = 0; i < count; ++i) {
            int64_t index;
            std::memcpy(&index, entry(step.inputs[0], i / row, true), sizeof(index));
            std::memcpy(entry(step.value, i, false),
                        address(space, step.operand, operands[step.operand], i, space.rank) +
                            index * space.operands[step.operand].table_stride,
                        kernel.values[step.value].bytes);
          }
          break;
        case FusedStep::Kind::kOneHot:
          for (int64_t i = 0; i < count; ++i) {
            const int bytes = kernel.values[step.value].bytes;
            std::memset(entry(step.value, i, false), 0, bytes);
            if (index_of(step, i / row) == i % row) {
              std::memcpy(entry(step.value, i, false), entry(step.inputs[0], i / row, true), bytes);
            }
          }
          break;
        case FusedStep::Kind::kCheck:
          for (int64_t i = 0; i < rows; ++i) holds = holds && *entry(step.value, i, true) != 0;
          break;
        case FusedStep::Kind::kStore: {
          if (kernel.values[step.value].extent == Extent::kTotal) {
            std::memcpy(address(space, step.operand, operands[step.operand], 0, 0), entry(step.value, 0, true),
                        kernel.values[step.value].bytes);
            break;
          }
          bool once = by_row;
          for (int d = row_begin; d < space.rank; ++d) {
            once = once && (space.sizes[d] == 1 || space.operands[step.operand].strides[d] == 0);
          }
          for (int64_t i = 0; i < (once ? rows : rows * row); ++i) {
            std::memcpy(address(space, step.operand, operands[step.operand], i, once ? row_begin : space.rank),
                        entry(step.value, i, once), kernel.values[step.value].bytes);
          }
          break;
        }
      }
    }
  return holds;
}

std::vector<void*> RandomCase::pointers(std::vector<std::vector<char>>& in) const {
  std::vector<void*> result;
  for (const Address& at : addresses) result.push_back(in[at.memory].data() + at.offset);
  return result;
}

namespace {

constexpr int kSizes[] = {1, 2, 4, 8, 16};

template <typename Out>
MapFunction cast_to(int from) {
  constexpr MapFunction functions[] = {kCast<uint8_t, Out>, kCast<uint16_t, Out>, kCast<uint32_t, Out>,
                                       kCast<uint64_t, Out>, kCast<Wide, Out>};
  return functions[from];
}
MapFunction cast(int from, int to) {
  switch (to) {
    case 0:
      return cast_to<uint8_t>(from);
    case 1:
      return cast_to<uint16_t>(from);
    case 2:
      return cast_to<uint32_t>(from);
    case 3:
      return cast_to<uint64_t>(from);
    default:
      return cast_to<Wide>(from);
  }
}

template <typename T>
MapFunction mix_of(int inputs) {
  constexpr MapFunction functions[] = {mix<T, 0>, mix<T, 1>, mix<T, 2>, mix<T, 3>, mix<T, 4>};
  return functions[inputs];
}
MapFunction mix_of(int size, int inputs) {
  switch (size) {
    case 0:
      return mix_of<uint8_t>(inputs);
    case 1:
      return mix_of<uint16_t>(inputs);
    case 2:
      return mix_of<uint32_t>(inputs);
    case 3:
      return mix_of<uint64_t>(inputs);
    default:
      return mix_of<Wide>(inputs);
  }
}

struct Addition {
  MapFunction map, row_map;
};
template <typename T>
inline constexpr Addition kAddition{kAdd<T>, add_row_entry<T>};
// Of sizes up to 8 bytes.
Addition addition_of(int size) {
  constexpr Addition functions[] = {kAddition<uint8_t>, kAddition<uint16_t>, kAddition<uint32_t>, kAddition<uint64_t>};
  return functions[size];
}

// Reducers with results of 8 bytes.
const Reducer& reducer_of(int size, int which) {
  static constexpr const Reducer* kReducers[5][3] = {
      {&kSum<uint8_t, uint64_t>, &kArgmax<uint8_t>, &kOrdered<uint8_t>},
      {&kSum<uint16_t, uint64_t>, &kArgmax<uint16_t>, &kOrdered<uint16_t>},
      {&kSum<uint32_t, uint64_t>, &kArgmax<uint32_t>, &kOrdered<uint32_t>},
      {&kSum<uint64_t, uint64_t>, &kMax<uint64_t>, &kOrdered<uint64_t>},
      {&kSum<Wide, uint64_t>, &kOrdered<Wide>, &kOrdered<Wide>},
  };
  return *kReducers[size][which];
}

class Generator {
 public:
  Generator(std::mt19937& random, int64_t entries, bool long_rows)
      : random_(random), entries_(entries), long_rows_(long_rows) {}

  RandomCase run() {
    make_sizes();
    const int loads = 1 + draw(4);
    for (int i = 0; i < loads; ++i) add_load();
    const int steps = draw(14);
    for (int i = 0; i < steps; ++i) add_step();
    const int stores = 1 + draw(4);
    for (int i = 0; i < stores; ++i) add_store();
    if (has_rows_ && draw(3) == 0) add_totals();
    if (has_rows_ && draw(6) == 0) add_check();
    case_.kernel = std::move(builder_.kernel);
    case_.kernel.number_count = kNumbers;
    for (int i = 0; i < kNumbers; ++i) {
      case_.numbers.emplace_back().bits = (uint64_t{random_()} << 32) | random_();
    }
    return std::move(case_);
  }

 private:
  static constexpr int kNumbers = 6;

  int draw(int count) { return static_cast<int>(random_() % static_cast<uint32_t>(count)); }
  FusedSpace& space() { return case_.space; }
  bool is_row(uint16_t v) const { return builder_.kernel.values[v].extent == Extent::kRow; }
  int size_of(uint16_t v) const {
    return static_cast<int>(std::find(std::begin(kSizes), std::end(kSizes), builder_.kernel.values[v].bytes) - kSizes);
  }

  void make_sizes() {
    space().rank = draw(6);
    has_rows_ = long_rows_ || draw(2) == 0;
    if (long_rows_) space().rank = std::max(space().rank, 1);
    space().row_rank = has_rows_ ? std::min(space().rank, draw(3)) : 0;
    if (long_rows_) space().row_rank = std::max(space().row_rank, 1);
    int64_t budget = 1 + entries_ / (1 + draw(8));
    for (int i = 0; i < space().rank; ++i) {
      // Dimensions of the row first where rows are to be long.
      const int d = long_rows_ ? space().rank - 1 - i : (i * 7 + 2) % space().rank;
      int64_t size = 1;
      switch (draw(5)) {
        case 0:
          break;
        case 1:
          size = 2 + draw(3);
          break;
        case 2:
          size = 1 + draw(70);
          break;
        case 3:  // leaves as much for the others
          while (size * size < budget) ++size;
          break;
        default:
          size = 1 + draw(static_cast<int>(std::min<int64_t>(budget, 1 << 20)));
      }
      if (long_rows_ && i == 0) size = budget * 3 / 4 + draw(100);
      if (!long_rows_ && draw(60) == 0) size = 0;
      size = std::min(size, std::max<int64_t>(budget, 1));
      space().sizes[d] = size;
      budget /= std::max<int64_t>(size, 1);
    }
  }

  // An operand of its own memory; its dimensions may lie in any order, with gaps, or be broadcast.
  uint16_t add_operand(int bytes, bool by_row, bool written) {
    FusedOperand operand;
    operand.bytes = bytes;
    int order[kMaxFusedRank];
    for (int d = 0; d < space().rank; ++d) order[d] = d;
    if (draw(3) == 0) std::shuffle(order, order + space().rank, random_);
    const bool gaps = draw(4) == 0;
    const bool broadcasts = !written && draw(2) == 0;
    int64_t stride = bytes * (draw(6) == 0 ? 2 : 1);
    for (int i = space().rank - 1; i >= 0; --i) {
      const int d = order[i];
      if (by_row && d >= space().rank - space().row_rank) continue;
      if (broadcasts && draw(2) == 0) continue;
      operand.strides[d] = stride;
      stride *= std::max<int64_t>(space().sizes[d], 1);
      if (gaps && draw(2) == 0) stride += bytes * draw(5);
    }
    // Walked backwards in some dimensions.
    if (draw(8) == 0) {
      for (int d = 0; d < space().rank; ++d) {
        if (draw(2) == 0) continue;
        operand.offset += operand.strides[d] * std::max<int64_t>(space().sizes[d] - 1, 0);
        operand.strides[d] = -operand.strides[d];
      }
    }
    const int64_t misaligned = draw(5) == 0 ? 1 + draw(7) : 0;
    operand.offset += 8;
    std::vector<char> memory(stride + bytes + misaligned + 16);
    for (char& byte : memory) byte = static_cast<char>(random_());
    case_.addresses.push_back({static_cast<int>(case_.memory.size()), misaligned});
    case_.memory.push_back(std::move(memory));
    space().operands.push_back(operand);
    stored_.push_back(false);
    memory_stored_.push_back(false);
    by_row_.push_back(by_row);
    return static_cast<uint16_t>(space().operands.size() - 1);
  }
  // An operand with the same addresses as another, under another number.
  uint16_t add_twin(uint16_t operand) {
    space().operands.push_back(FusedOperand(space().operands[operand]));
    case_.addresses.push_back(RandomCase::Address(case_.addresses[operand]));
    stored_.push_back(false);
    by_row_.push_back(by_row_[operand]);
    return static_cast<uint16_t>(space().operands.size() - 1);
  }

  void add_load() {
    const bool row = has_rows_ && draw(5) == 0;
    if (!space().operands.empty() && draw(5) == 0) {
      auto operand = static_cast<uint16_t>(draw(static_cast<int>(space().operands.size())));
      if (draw(2) == 0) operand = add_twin(operand);
      values_.push_back(builder_.load(operand, static_cast<int>(space().operands[operand].bytes),
                                      by_row_[operand] && draw(2) == 0 ? Extent::kRow : Extent::kElement));
      return;
    }
    const int bytes = kSizes[draw(5)];
    const uint16_t operand = add_operand(bytes, row, draw(2) == 0);
    values_.push_back(builder_.load(operand, bytes, row ? Extent::kRow : Extent::kElement));
  }

  void add_step() {
    const int which = draw(12);
    if (which == 0) return add_load();
    if (which == 1) {
      const int bytes = kSizes[draw(5)];
      const Extent extent = has_rows_ && draw(3) == 0 ? Extent::kRow : Extent::kElement;
      values_.push_back(builder_.fill(static_cast<uint16_t>(draw(kNumbers - 1)), bytes, extent));
      return;
    }
    const uint16_t v = any();
    if (which == 2 && draw(2) == 0 && has_rows_) {
      // A row value of the right size makes an index as well; that of an argmax is one.
      uint16_t index = values_.front();
      for (const uint16_t u : values_) {
        if (is_row(u) && size_of(u) == 3 && draw(2) == 0) index = u;
      }
      if (!is_row(index) || size_of(index) != 3) index = add_index();
      values_.push_back(is_row(v) ? builder_.one_hot(v, index) : builder_.pick(v, index));
    } else if (which < 6 && draw(4) == 0 && size_of(v) < 4) {
      uint16_t other = v;
      for (const uint16_t u : values_) {
        if (size_of(u) == size_of(v) && is_row(u)) other = u;
      }
      const Addition addition = addition_of(size_of(v));
      values_.push_back(builder_.map(addition.map, kSizes[size_of(v)], {v, other}, extent_of({v, other})));
      builder_.kernel.steps.back().row_map = addition.row_map;
    } else if (which <= 3 && has_rows_ && reductions_ < 4) {
      ++reductions_;
      values_.push_back(builder_.reduce(reducer_of(size_of(v), draw(3)), 8, v));
    } else if (which <= 5) {
      const int to = draw(5);
      values_.push_back(builder_.map(cast(size_of(v), to), kSizes[to], {v}, extent_of({v})));
    } else {
      // Inputs of one size, the last values first.
      std::vector<uint16_t> inputs{v};
      const int wanted = 1 + draw(4);
      for (int tries = 0; tries < 8 && static_cast<int>(inputs.size()) < wanted; ++tries) {
        const uint16_t u = any();
        if (size_of(u) == size_of(v)) inputs.push_back(u);
      }
      FusedStep step{.kind = FusedStep::Kind::kMap, .first_number = static_cast<uint16_t>(draw(kNumbers))};
      step.map = mix_of(size_of(v), static_cast<int>(inputs.size()));
      step.input_count = static_cast<uint8_t>(inputs.size());
      std::copy(inputs.begin(), inputs.end(), step.inputs);
      step.value = builder_.value(kSizes[size_of(v)], extent_of(inputs));
      builder_.kernel.steps.push_back(step);
      values_.push_back(step.value);
    }
    if (draw(6) == 0) add_store();
  }

  // A row value of int64s, most of which are indices of the row.
  uint16_t add_index() {
    const uint16_t operand = add_operand(8, true, false);
    char* const base = case_.memory.back().data() + case_.addresses.back().offset;
    const int row_begin = space().rank - space().row_rank;
    const int64_t row = product(space(), row_begin, space().rank);
    for (int64_t i = product(space(), 0, row_begin); i-- > 0;) {
      const int64_t index = draw(static_cast<int>(row) + 2) - 1;
      std::memcpy(address(space(), operand, base, i, row_begin), &index, sizeof(index));
    }
    return builder_.load(operand, 8, Extent::kRow);
  }

  // Totals of row values, and what is computed from them, stored to operands of one entry.
  void add_totals() {
    std::vector<uint16_t> rows;
    for (const uint16_t v : values_) {
      if (is_row(v)) rows.push_back(v);
    }
    for (int i = 1 + draw(3); i > 0 && !rows.empty(); --i) {
      const uint16_t from = rows[draw(static_cast<int>(rows.size()))];
      uint16_t total = builder_.total(reducer_of(size_of(from), draw(3)), 8, from);
      if (draw(2) == 0) {
        total = builder_.map(mix_of(3, 2), 8, {total, builder_.fill(0, 8, Extent::kTotal)}, Extent::kTotal, 1);
      }
      const uint16_t operand = add_operand(8, true, true);
      std::fill_n(space().operands[operand].strides, kMaxFusedRank, 0);
      builder_.store(operand, total);
    }
  }
  void add_check() {
    const uint16_t operand = add_operand(1, true, false);
    if (draw(2) == 0) std::fill(case_.memory.back().begin(), case_.memory.back().end(), 1);
    builder_.check(builder_.load(operand, 1, Extent::kRow));
  }

  uint16_t any() {
    const int last = static_cast<int>(values_.size());
    return values_[draw(3) == 0 ? draw(last) : std::max(0, last - 1 - draw(4))];
  }
  Extent extent_of(const std::vector<uint16_t>& inputs) {
    bool row = has_rows_;
    for (const uint16_t v : inputs) row = row && is_row(v);
    return row && draw(4) != 0 ? Extent::kRow : Extent::kElement;
  }

  void add_store() {
    const uint16_t v = any();
    const bool row = is_row(v) && draw(3) != 0;
    const int bytes = kSizes[size_of(v)];
    // In place, over something that was loaded; or beside.
    if (draw(2) == 0) {
      for (uint16_t o = 0; o < space().operands.size(); ++o) {
        if (space().operands[o].bytes != bytes || by_row_[o] != row || !can_be_written(o)) continue;
        const uint16_t operand = draw(2) == 0 && !stored_[o] ? o : add_twin(o);
        return write(operand, v);
      }
    }
    write(add_operand(bytes, row, true), v);
  }
  bool can_be_written(uint16_t operand) const {
    if (memory_stored_[case_.addresses[operand].memory]) return false;
    const FusedOperand& it = case_.space.operands[operand];
    for (int d = 0; d < case_.space.rank - (by_row_[operand] ? case_.space.row_rank : 0); ++d) {
      if (case_.space.sizes[d] > 1 && it.strides[d] == 0) return false;
    }
    return true;
  }
  void write(uint16_t operand, uint16_t v) {
    stored_[operand] = true;
    memory_stored_[case_.addresses[operand].memory] = true;
    builder_.store(operand, v);
  }

  std::mt19937& random_;
  const int64_t entries_;
  const bool long_rows_;
  bool has_rows_ = false;
  int reductions_ = 0;
  RandomCase case_;
  KernelBuilder builder_;
  std::vector<uint16_t> values_;
  std::vector<bool> stored_, by_row_;  // by operand
  std::vector<bool> memory_stored_;    // by memory
};

}  // namespace

RandomCase random_case(std::mt19937& random, int64_t entries, bool long_rows) {
  return Generator(random, entries, long_rows).run();
}

}  // namespace hetero::backend::testing
