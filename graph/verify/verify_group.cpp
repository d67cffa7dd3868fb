// A group is carried out twice on symbols: member by member, as the operators' lowerings say, and
// as its kernel says. Every byte of memory holds a symbol; in the end the bytes of every buffer
// that the kernel stores must hold the same. This knows nothing of windows that agree, rows that
// fit or values that need no memory, which is what fusion is about.

#include <algorithm>
#include <map>
#include <string>

#include "graph/fusion/footprint.h"
#include "graph/ir/lowering.h"
#include "graph/verify/usage.h"
#include "graph/verify/verify.h"

namespace hetero::graph {
namespace {

using backend::Extent;
using backend::FusedStep;
using ValueKind = Lowering::Value::Kind;
using Symbol = uint64_t;

// More work than this is left out: plans of tests are small, and what is large is made by the same
// rules.
constexpr int64_t kMaxWork = 1 << 20;

Symbol mix(Symbol a, Symbol b) {
  uint64_t h = (a ^ (b + 0x9e3779b97f4a7c15ull + (a << 6) + (a >> 2))) * 0xff51afd7ed558ccdull;
  h ^= h >> 32;
  return h * 0xc4ceb9fe1a85ec53ull ^ h >> 29;
}
template <typename Pointer>
Symbol symbol_of(Pointer* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}
Symbol number_symbol(const backend::Number& number, int bytes) {
  const uint64_t mask = bytes >= 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * bytes)) - 1;
  return mix(17, number.bits & mask);
}
constexpr Symbol kZero = 41;
// An index is a symbol, too: it stands for some place of the row.
int64_t place_of_symbol(Symbol index, int64_t row) { return static_cast<int64_t>(index % static_cast<Symbol>(row)); }
// With the first of its numbers; a map without numbers is taken to have that of the group.
Symbol map_symbol(backend::MapFunction map, const Symbol* inputs, int input_count, const backend::Number* number) {
  Symbol symbol = mix(23, symbol_of(map.pointer));
  if (number != nullptr) symbol = mix(symbol, number->bits);
  for (int i = 0; i < input_count; ++i) symbol = mix(symbol, inputs[i]);
  return symbol;
}

// Bytes that hold symbols.
class Memory {
 public:
  explicit Memory(const Graph& graph) : graph_(graph) {}

  bool holds(BufferId buffer, int64_t first, int64_t bytes) const {
    return buffer < graph_.buffers.size() && first >= 0 && bytes > 0 &&
           first + bytes <= static_cast<int64_t>(graph_.buffers[buffer].bytes);
  }
  Symbol load(BufferId buffer, int64_t first, int64_t bytes) {
    const std::vector<Byte>& memory = bytes_of(buffer);
    Symbol symbol = 31;
    const Byte start = memory[static_cast<size_t>(first)];
    bool whole = start.index == 0 && start.count == bytes;
    for (int64_t i = 0; i < bytes; ++i) {
      const Byte& byte = memory[static_cast<size_t>(first + i)];
      whole = whole && byte.value == start.value && byte.index == i && byte.count == bytes;
      symbol = mix(mix(mix(symbol, byte.value), static_cast<Symbol>(byte.index)), static_cast<Symbol>(byte.count));
    }
    return whole ? start.value : symbol;
  }
  void store(BufferId buffer, int64_t first, int64_t bytes, Symbol value) {
    std::vector<Byte>& memory = bytes_of(buffer);
    for (int64_t i = 0; i < bytes; ++i) memory[static_cast<size_t>(first + i)] = {value, i, bytes};
  }
  // Whether both hold the same in this buffer.
  bool equals(Memory& other, BufferId buffer) { return bytes_of(buffer) == other.bytes_of(buffer); }

 private:
  struct Byte {
    Symbol value;
    int64_t index;
    int64_t count;
    bool operator==(const Byte&) const = default;
  };
  std::vector<Byte>& bytes_of(BufferId buffer) {
    std::vector<Byte>& memory = memory_[buffer];
    if (memory.empty()) {
      const uint64_t bytes = graph_.buffers[buffer].bytes;
      for (uint64_t i = 0; i < bytes; ++i) memory.push_back({mix(mix(7, buffer), i), 0, 1});
    }
    return memory;
  }

  const Graph& graph_;
  std::map<BufferId, std::vector<Byte>> memory_;
};

// The position of point `i`, in row-major order of the sizes.
int64_t position_of(int64_t i, int rank, const int64_t* sizes, const int64_t* strides) {
  int64_t position = 0;
  for (int d = rank; d-- > 0;) {
    position += i % sizes[d] * strides[d];
    i /= sizes[d];
  }
  return position;
}

class MemberRun {
 public:
  MemberRun(const Graph& graph, const FusedGroup& group, Memory& memory)
      : graph_(graph), memory_(memory), first_number_(group.numbers.empty() ? nullptr : group.numbers.data()) {}

  Status run(uint32_t n) {
    const Node& node = graph_.nodes[n];
    const LowerRequest request = request_of(graph_, node);
    Lowering lowering;
    if (request.traits->lower == nullptr || !request.traits->lower(request, lowering))
      return violation("a member has no lowering");
    if (lowering.outputs.empty()) return violation("a member has no outputs");
    shape_ = &request.window(lowering.reduced == 0 ? lowering.outputs[0].operand : lowering.space);
    std::vector<std::vector<Symbol>> values;
    for (const Lowering::Value& value : lowering.values) {
      values.emplace_back();
      for (int64_t i = 0; i < shape_->numel; ++i) values.back().push_back(point(request, lowering, values, value, i));
    }
    for (const Lowering::Output& output : lowering.outputs) {
      const Operand& operand = request.operands[output.operand];
      const Window& window = request.window(output.operand);
      const std::vector<Symbol>& value = values[static_cast<size_t>(output.value)];
      for (int64_t i = 0; i < shape_->numel; ++i) {
        if (lowering.pieces > 1 && piece_of(lowering, i) != output.piece) continue;
        const int64_t k = window.numel == shape_->numel ? i : window.numel == 1 ? 0 : row_of(lowering.reduced, i);
        store(operand.buffer, window, k, value[static_cast<size_t>(i)]);
      }
    }
    return Status();
  }

 private:
  Symbol point(const LowerRequest& request, const Lowering& lowering, const std::vector<std::vector<Symbol>>& values,
               const Lowering::Value& value, int64_t i) {
    const int bytes = dtype_bytes(value.dtype);
    const auto input = [&](int k) -> const std::vector<Symbol>& {
      return values[static_cast<size_t>(value.inputs[k])];
    };
    Symbol symbol = 0;
    switch (value.kind) {
      case ValueKind::kOperand:
        return load(request.operands[value.operand].buffer, request.window(value.operand), i);
      case ValueKind::kPieceOperand:
        return load_piece(request.operands[value.operand].buffer, request.window(value.operand), lowering, i);
      case ValueKind::kRowOperand:
        return load_row(request.operands[value.operand].buffer, request.window(value.operand), lowering.lacked(), i);
      case ValueKind::kNumber:
        return number_symbol(lowering.numbers[value.first_number], bytes);
      case ValueKind::kMap: {
        Symbol inputs[4] = {};
        for (int k = 0; k < value.input_count; ++k) inputs[k] = input(k)[static_cast<size_t>(i)];
        const backend::Number* const number =
            value.number_count > 0 ? &lowering.numbers[value.first_number] : first_number_;
        return map_symbol(value.map, inputs, value.input_count, number);
      }
      case ValueKind::kReduce:
        symbol = mix(29, symbol_of(value.reducer));
        if (value.input_count > 1) symbol = mix(symbol, input(1)[static_cast<size_t>(i)]);
        for (int64_t j = 0; j < shape_->numel; ++j) {
          if (row_of(lowering.reduced, j) == row_of(lowering.reduced, i)) {
            symbol = mix(symbol, input(0)[static_cast<size_t>(j)]);
          }
        }
        return symbol;
      case ValueKind::kTotal:
        symbol = mix(29, symbol_of(value.reducer));
        for (int64_t j = 0; j < shape_->numel; ++j) {
          if (place_of(lowering.reduced, j) == 0) symbol = mix(symbol, input(0)[static_cast<size_t>(j)]);
        }
        return symbol;
      case ValueKind::kPick:
        for (int64_t j = 0; j < shape_->numel; ++j) {
          if (row_of(lowering.reduced, j) == row_of(lowering.reduced, i) &&
              place_of(lowering.reduced, j) ==
                  place_of_symbol(input(1)[static_cast<size_t>(i)], row_length(lowering))) {
            return input(0)[static_cast<size_t>(j)];
          }
        }
        return symbol;
      case ValueKind::kLookUp: {
        const Window& table = request.window(value.operand);
        const int64_t row = place_of_symbol(input(0)[static_cast<size_t>(i)], table.dims[0]);
        const int64_t position = table.offset + row * table.dims[2] + place_of(lowering.reduced, i) * table.dims[3];
        return memory_.load(request.operands[value.operand].buffer, position * bytes, bytes);
      }
      case ValueKind::kOneHot:
        return place_of(lowering.reduced, i) == place_of_symbol(input(1)[static_cast<size_t>(i)], row_length(lowering))
                   ? input(0)[static_cast<size_t>(i)]
                   : kZero;
    }
    return symbol;
  }

  int64_t along_cut(const Lowering& lowering, int64_t i) const {
    for (int d = shape_->rank; --d > lowering.cut;) i /= shape_->dims[d];
    return i % shape_->dims[lowering.cut];
  }
  int64_t piece_length(const Lowering& lowering) const { return shape_->dims[lowering.cut] / lowering.pieces; }
  int piece_of(const Lowering& lowering, int64_t i) const {
    return static_cast<int>(along_cut(lowering, i) / piece_length(lowering));
  }

  // The window broadcast to the piece that holds point i.
  Symbol load_piece(BufferId buffer, const Window& window, const Lowering& lowering, int64_t i) {
    const int64_t length = piece_length(lowering);
    const bool lacks_cut = length == 1 && window.rank == shape_->rank - 1;
    int64_t position = window.offset;
    int k = window.rank;
    for (int d = shape_->rank; d-- > 0;) {
      int64_t index = i % shape_->dims[d];
      i /= shape_->dims[d];
      if (d == lowering.cut) index %= length;
      if (k == 0 || (d == lowering.cut && lacks_cut)) continue;
      --k;
      if (window.dims[k] != 1) position += index * window.dims[window.rank + k];
    }
    const int bytes = dtype_bytes(window.dtype);
    return memory_.load(buffer, position * bytes, bytes);
  }

  // Where the point stands in its row.
  int64_t place_of(uint64_t reduced, int64_t i) const { return row_of(~reduced, i); }
  int64_t row_length(const Lowering& lowering) const {
    return shape_->numel == 0 ? 0 : place_of(lowering.reduced, shape_->numel - 1) + 1;
  }

  // Which row the point is in, counting rows in order.
  int64_t row_of(uint64_t reduced, int64_t i) const {
    int64_t row = 0;
    int64_t count = 1;
    for (int d = shape_->rank; d-- > 0;) {
      if ((reduced >> d & 1) == 0) {
        row += i % shape_->dims[d] * count;
        count *= shape_->dims[d];
      }
      i /= shape_->dims[d];
    }
    return row;
  }

  // The window broadcast to the space, at point i.
  Symbol load(BufferId buffer, const Window& window, int64_t i) {
    int64_t position = window.offset;
    for (int d = shape_->rank; d-- > 0;) {
      const int64_t index = i % shape_->dims[d];
      i /= shape_->dims[d];
      const int k = d - shape_->rank + window.rank;
      if (k >= 0 && window.dims[k] != 1) position += index * window.dims[window.rank + k];
    }
    const int bytes = dtype_bytes(window.dtype);
    return memory_.load(buffer, position * bytes, bytes);
  }

  // The window broadcast to the dimensions that are not reduced, at point i.
  Symbol load_row(BufferId buffer, const Window& window, uint64_t reduced, int64_t i) {
    int64_t position = window.offset;
    int k = window.rank;
    for (int d = shape_->rank; d-- > 0;) {
      const int64_t index = i % shape_->dims[d];
      i /= shape_->dims[d];
      if ((reduced >> d & 1) != 0 || k == 0) continue;
      --k;
      if (window.dims[k] != 1) position += index * window.dims[window.rank + k];
    }
    const int bytes = dtype_bytes(window.dtype);
    return memory_.load(buffer, position * bytes, bytes);
  }

  void store(BufferId buffer, const Window& window, int64_t i, Symbol value) {
    const int bytes = dtype_bytes(window.dtype);
    const int64_t position = window.offset + position_of(i, window.rank, window.dims, window.dims + window.rank);
    memory_.store(buffer, position * bytes, bytes, value);
  }

  const Graph& graph_;
  Memory& memory_;
  const backend::Number* first_number_;
  const Window* shape_ = nullptr;
};

class KernelRun {
 public:
  KernelRun(const FusedGroup& group, Memory& memory)
      : group_(group), space_(group.space), memory_(memory), values_(group.kernel.values.size()) {
    for (int d = 0; d < space_.rank; ++d) {
      points_ *= space_.sizes[d];
      if (d >= space_.rank - space_.row_rank) row_ *= space_.sizes[d];
    }
  }

  Status run() {
    for (const FusedStep& step : group_.kernel.steps) {
      if (Status status = check(step); !status.ok()) return status;
      if (Status status = run(step); !status.ok()) return status;
    }
    return Status();
  }

 private:
  bool per_row(uint16_t value) const { return group_.kernel.values[value].extent == Extent::kRow; }

  Status check(const FusedStep& step) const {
    if (step.value >= values_.size()) return violation("a step has no value");
    const bool stores = step.kind == FusedStep::Kind::kStore;
    const bool reads = stores || step.kind == FusedStep::Kind::kCheck;
    if (reads == values_[step.value].empty())
      return violation("a value is written twice, or stored before it is written");
    for (int i = 0; i < step.input_count; ++i) {
      if (step.inputs[i] >= values_.size() || values_[step.inputs[i]].empty()) {
        return violation("a step reads a value that is not there yet");
      }
      const bool reduces = step.kind == FusedStep::Kind::kReduce && i == 0;
      if (per_row(step.value) && per_row(step.inputs[i]) == reduces) return violation("a step mixes extents");
    }
    if (per_row(step.value) && space_.row_rank == 0) return violation("a row value without rows");
    if (!backend::uses_operand(step)) return Status();
    if (step.operand >= space_.operands.size()) return violation("a step has no operand");
    const backend::FusedOperand& operand = space_.operands[step.operand];
    if (operand.bytes != group_.kernel.values[step.value].bytes)
      return violation("an entry has another size in memory");
    const GroupOperand& known = group_.operands[step.operand];
    if (!(stores ? known.stores : known.loads)) return violation("an operand is not known to be used so");
    for (int d = space_.rank - space_.row_rank; d < space_.rank; ++d) {
      if (per_row(step.value) && space_.sizes[d] != 1 && operand.strides[d] != 0) {
        return violation("a row value does not lie in memory as one");
      }
    }
    return Status();
  }

  Status run(const FusedStep& step) {
    const auto points = static_cast<size_t>(points_);
    const auto row = static_cast<size_t>(row_);
    std::vector<Symbol>& value = values_[step.value];
    if (step.kind == FusedStep::Kind::kStore) return store(step);
    if (step.kind == FusedStep::Kind::kCheck) return Status();
    value.resize(points);
    for (size_t i = 0; i < points; ++i) {
      switch (step.kind) {
        case FusedStep::Kind::kLoad: {
          const int64_t first = address(step.operand, i);
          const BufferId buffer = group_.operands[step.operand].buffer;
          const int64_t bytes = space_.operands[step.operand].bytes;
          if (!memory_.holds(buffer, first, bytes)) return violation("a load reaches outside its buffer");
          value[i] = memory_.load(buffer, first, bytes);
          break;
        }
        case FusedStep::Kind::kLookUp: {
          const backend::FusedOperand& table = space_.operands[step.operand];
          if (table.table_rows < 1) return violation("a table without rows");
          const Symbol index = values_[step.inputs[0]][i];
          const int64_t first =
              address(step.operand, i) + place_of_symbol(index, table.table_rows) * table.table_stride;
          const BufferId buffer = group_.operands[step.operand].buffer;
          if (!memory_.holds(buffer, first, table.bytes)) return violation("a table reaches outside its buffer");
          value[i] = memory_.load(buffer, first, table.bytes);
          break;
        }
        case FusedStep::Kind::kFill:
          if (step.first_number >= group_.numbers.size()) return violation("a number is not there");
          value[i] = number_symbol(group_.numbers[step.first_number], group_.kernel.values[step.value].bytes);
          break;
        case FusedStep::Kind::kMap: {
          Symbol inputs[4] = {};
          for (int k = 0; k < step.input_count; ++k) inputs[k] = values_[step.inputs[k]][i];
          const size_t number = step.first_number;
          if (number > 0 && number >= group_.numbers.size()) return violation("a number is not there");
          value[i] = map_symbol(step.map, inputs, step.input_count,
                                group_.numbers.empty() ? nullptr : &group_.numbers[number]);
          break;
        }
        case FusedStep::Kind::kReduce:
          if (step.reducer == &backend::pick_reducer(group_.kernel.values[step.value].bytes)) {
            value[i] = values_[step.inputs[0]][i / row * row + place_in_row(step, i)];
            break;
          }
          value[i] = mix(29, symbol_of(step.reducer));
          if (step.input_count > 1) value[i] = mix(value[i], values_[step.inputs[1]][i]);
          if (group_.kernel.values[step.value].extent == Extent::kTotal) {
            for (size_t j = 0; j < points; j += row) value[i] = mix(value[i], values_[step.inputs[0]][j]);
            break;
          }
          for (size_t j = i / row * row; j < (i / row + 1) * row; ++j)
            value[i] = mix(value[i], values_[step.inputs[0]][j]);
          break;
        case FusedStep::Kind::kOneHot:
          value[i] = i % row == place_in_row(step, i) ? values_[step.inputs[0]][i] : kZero;
          break;
        case FusedStep::Kind::kStore:
        case FusedStep::Kind::kCheck:
          break;
      }
    }
    return Status();
  }
  size_t place_in_row(const FusedStep& step, size_t i) const {
    return static_cast<size_t>(place_of_symbol(values_[step.inputs[1]][i], row_));
  }

  Status store(const FusedStep& step) {
    const BufferId buffer = group_.operands[step.operand].buffer;
    const int64_t bytes = space_.operands[step.operand].bytes;
    std::map<int64_t, Symbol> stored;
    for (size_t i = 0; i < static_cast<size_t>(points_); ++i) {
      const int64_t first = address(step.operand, i);
      if (!memory_.holds(buffer, first, bytes)) return violation("a store reaches outside its buffer");
      const Symbol symbol = values_[step.value][i];
      if (const auto [at, fresh] = stored.emplace(first, symbol); !fresh && at->second != symbol) {
        return violation("different values are stored in the same bytes");
      }
      memory_.store(buffer, first, bytes, symbol);
    }
    // Blocks of the space run in any order: other operands may share these bytes only point by
    // point.
    for (size_t k = 0; k < group_.operands.size(); ++k) {
      if (k == step.operand || group_.operands[k].buffer != buffer) continue;
      for (size_t i = 0; i < static_cast<size_t>(points_); ++i) {
        const int64_t first = address(static_cast<uint16_t>(k), i);
        const auto next = stored.lower_bound(first - bytes + 1);
        if (next != stored.end() && next->first < first + space_.operands[k].bytes) {
          return violation("two operands share bytes");
        }
      }
    }
    return Status();
  }

  int64_t address(uint16_t operand, size_t i) const {
    const backend::FusedOperand& o = space_.operands[operand];
    return o.offset + position_of(static_cast<int64_t>(i), space_.rank, space_.sizes, o.strides);
  }

  const FusedGroup& group_;
  const backend::FusedSpace& space_;
  Memory& memory_;
  std::vector<std::vector<Symbol>> values_;
  int64_t points_ = 1;
  int64_t row_ = 1;
};

// As a member of a group: the body of a node with a tail has run before.
bool touches(const Graph& graph, const Node& node, int operand) {
  return !op_table()[node.op].has_tail || in_tail(graph, node, operand);
}

Status check_members(const Graph& graph, const FusedGroup& group) {
  for (size_t i = 0; i < group.members.size(); ++i) {
    if (group.members[i] >= graph.nodes.size()) return violation("a member is not there");
    for (size_t j = 0; j < i; ++j) {
      if (group.members[j] < group.members[i]) continue;
      const Node& a = graph.nodes[group.members[i]];
      const Node& b = graph.nodes[group.members[j]];
      for (int k = 0; k < a.operand_count; ++k) {
        for (int l = 0; l < b.operand_count; ++l) {
          if (!touches(graph, a, k) || !touches(graph, b, l)) continue;
          if (conflicts(*graph.windows, graph.operands_of(a)[k], graph.operands_of(b)[l])) {
            return violation("members are not in the order of the program");
          }
        }
      }
    }
  }
  return Status();
}

}  // namespace

Status verify_group(const Graph& graph, const FusedGroup& group) {
  if (Status status = check_members(graph, group); !status.ok()) return status;
  const size_t operands = group.operands.size();
  if (group.kernel.operand_count != operands || group.space.operands.size() != operands ||
      group.kernel.number_count != group.numbers.size()) {
    return violation("the kernel is of another group");
  }
  int64_t work = 0;
  Lowering lowering;
  Footprint footprint;
  for (const uint32_t n : group.members) {
    const Node& node = graph.nodes[n];
    // What is carried out below trusts its windows to fit together.
    if (!lower_node(graph, node, lowering) || measure(graph, node, lowering, footprint) != FusionNote::kJoined) {
      return violation("a member cannot be fused");
    }
    for (int i = 0; i < node.operand_count; ++i) {
      const Operand& operand = graph.operands_of(node)[i];
      const int64_t numel = (*graph.windows)[operand.window].numel;
      if (numel > kMaxWork) return Status();
      // A reduction is carried out in the plainest way.
      work += numel * (op_table()[node.op].op_class == OpClass::kPointwise ? 8 : 8 + numel);
      work += static_cast<int64_t>(std::min<uint64_t>(graph.buffers[operand.buffer].bytes, kMaxWork));
    }
  }
  if (work > kMaxWork) return Status();

  Memory by_members(graph);
  MemberRun members(graph, group, by_members);
  for (const uint32_t n : group.members) {
    if (Status status = members.run(n); !status.ok()) return status;
  }
  Memory by_kernel(graph);
  if (Status status = KernelRun(group, by_kernel).run(); !status.ok()) return status;
  for (const GroupOperand& operand : group.operands) {
    if (operand.stores && !by_kernel.equals(by_members, operand.buffer)) {
      return violation("what is stored in b" + std::to_string(operand.buffer) + " is not what the members write");
    }
  }
  return Status();
}

}  // namespace hetero::graph
