// 1. FusedLevels says which passes over the row there are, and what each computes.
// 2. Steps become calls of formulas.h, one statement each, on values that are held as bits.

#include "backend/cuda/fused/source.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <utility>

#include "backend/cuda/fused/levels.h"
#include "backend/cuda/fused/text.h"
#include "backend/fused/formula.h"

namespace hetero::backend {
namespace {

using Kind = FusedStep::Kind;
using Slot = CudaArgument::Kind;
using Types = OperationTraits::Types;

constexpr int64_t kMaxParts = 256;
constexpr int kBlocksPerMultiprocessor = 8;

std::string str(int64_t number) { return std::to_string(number); }

// ---- what can be written ------------------------------------------------------------------------

bool is_storage(EntryType type) { return type == EntryType::kFloat16 || type == EntryType::kBFloat16; }

bool can_write(const MapFormula& formula) {
  using O = MapOperation;
  const EntryType type = formula.type;
  if (formula.operation == O::kOpaque || formula.operation >= O::kCount) return false;
  if (formula.operation == O::kConvert) return true;
  if (formula.operation == O::kWhere || formula.operation == O::kMaskedFill) return formula.form == NumberForm::kNone;
  if (is_storage(type) || (formula.form != NumberForm::kNone && traits(formula.operation).operands < 2)) return false;
  const Types types = traits(formula.operation).types;
  if (type == EntryType::kBool) return types == Types::kAll || types == Types::kBits;
  if (is_floating(type)) return types != Types::kBits;
  return types != Types::kFloating || is_power_of_number(formula);
}

bool can_write(const ReducerFormula& formula) {
  using R = ReduceOperation;
  switch (formula.operation) {
    case R::kOpaque:
    case R::kCount:
      return false;
    case R::kPick:
      return true;
    case R::kAny:
    case R::kAll:
      return formula.type == EntryType::kBool;
    case R::kMaximum:
    case R::kMinimum:
      return !is_storage(formula.type);
    case R::kSquaredDeviation:
    case R::kPeak:
    case R::kSquaredDistance:
    case R::kSumExpFast:
      return formula.type == EntryType::kFloat32 || formula.type == EntryType::kFloat64;
    default:
      return !is_storage(formula.type) && formula.type != EntryType::kBool;
  }
}

// Whether values have the sizes that the formula says.
bool fits(const FusedKernel& kernel, const FusedStep& step) {
  const MapFormula& formula = step.map.formula;
  if (step.input_count != input_count(formula) || kernel.values[step.value].bytes != result_bytes(formula))
    return false;
  for (int j = 0; j < step.input_count; ++j) {
    if (kernel.values[step.inputs[j]].bytes != input_bytes(formula, j)) return false;
  }
  return true;
}

const char* refusal(const FusedKernel& kernel, const FusedStep& step) {
  switch (step.kind) {
    case Kind::kCheck:
      return "a check";
    case Kind::kLookUp:
      return "a table, whose index a check would have to hold for";
    case Kind::kMap:
      if (step.map == nullptr || !can_write(step.map.formula)) return "a function without a formula for GPUs";
      return fits(kernel, step) ? nullptr : "a function with other entries than its formula's";
    case Kind::kReduce: {
      if (step.reducer == nullptr || !can_write(step.reducer->formula)) return "a reduction without a formula for GPUs";
      const int bytes = input_bytes(step.reducer->formula);
      const bool is_same = bytes == 0 || bytes == kernel.values[step.inputs[0]].bytes;
      return is_same ? nullptr : "a reduction of other entries than its formula's";
    }
    default:
      return nullptr;
  }
}

// ---- types --------------------------------------------------------------------------------------

const char* type_name(EntryType type) {
  switch (type) {
    case EntryType::kByte:
      return "Bits8";
    case EntryType::kFloat16:
      return "Float16";
    case EntryType::kBFloat16:
      return "BFloat16";
    case EntryType::kFloat32:
      return "float";
    case EntryType::kFloat64:
      return "double";
    case EntryType::kBool:
      return "Bool";
    case EntryType::kInt8:
      return "signed char";
    case EntryType::kInt16:
      return "short";
    case EntryType::kInt32:
      return "int";
    case EntryType::kInt64:
      return "Index64";
  }
  return "";
}
std::string bits_name(int bytes) { return "Bits" + str(8 * bytes); }

// The type in which the formula's functions take their operands.
std::string operand_type(const MapFormula& formula) {
  const bool moves = formula.operation == MapOperation::kWhere || formula.operation == MapOperation::kMaskedFill;
  return moves ? bits_name(entry_bytes(formula.type)) : type_name(formula.type);
}

// ---- writing ------------------------------------------------------------------------------------

class Writer {
 public:
  Writer(const FusedKernel& kernel, const CudaVariant& variant)
      : kernel_(kernel), variant_(variant), levels_(kernel, variant) {}

  CudaSource write() {
    CudaSource source;
    source.variant = variant_;
    declare_arguments(source.arguments);
    source.text = std::string(kFusedHead) + "\nusing namespace hetero_fused;\n" + arguments_ + "typedef " +
                  (variant_.wide ? "Bits64" : "Bits32") + " Index;\n";
    if (!variant_.by_rows) {
      entry(source, CudaEntry::Kind::kWhole, "fused_entries", [&] { write_entries(); });
    } else if (!variant_.parts) {
      entry(source, CudaEntry::Kind::kWhole, "fused_rows", [&] { write_rows(); });
    } else {
      write_parts(source);
    }
    source.reductions = variant_.parts ? levels_.reductions() : 0;
    return source;
  }

 private:
  // -- Arguments --

  void declare(std::vector<CudaArgument>& to, const std::string& type, const std::string& name, CudaArgument argument) {
    to.push_back(argument);
    arguments_ += "  " + type + " " + name + ";\n";
  }

  void declare_arguments(std::vector<CudaArgument>& to) {
    arguments_ = "struct Arguments {\n";
    std::vector<uint8_t> used(kernel_.operand_count), stored(kernel_.operand_count);
    std::vector<uint8_t> numbers(kernel_.number_count);
    for (const FusedStep& it : kernel_.steps) {
      if (uses_operand(it)) used[it.operand] = 1;
      if (it.kind == Kind::kStore) stored[it.operand] = 1;
      const int count = it.kind == Kind::kMap    ? number_count(it.map.formula)
                        : it.kind == Kind::kFill ? (kernel_.values[it.value].bytes + 7) / 8
                                                 : 0;
      for (int k = 0; k < count; ++k) numbers[it.first_number + k] = 1;
    }
    for (uint16_t o = 0; o < kernel_.operand_count; ++o) {
      if (used[o] == 0) continue;
      declare(to, stored[o] != 0 ? "char*" : "const char*", "operand" + str(o), {.kind = Slot::kOperand, .index = o});
    }
    for (uint16_t k = 0; k < kernel_.number_count; ++k) {
      if (numbers[k] != 0) declare(to, "Bits64", "number" + str(k), {.kind = Slot::kNumber, .index = k});
    }
    declare(to, "Bits64", "rows", {.kind = Slot::kRows});
    declare(to, "Bits64", "row", {.kind = Slot::kRow});
    if (variant_.parts) {
      declare(to, "Bits64", "parts", {.kind = Slot::kParts});
      declare(to, "Bits64", "part_length", {.kind = Slot::kPartLength});
      declare(to, "char*", "states", {.kind = Slot::kStates});
    }
    std::vector<uint8_t> seen(static_cast<size_t>(variant_.shapes)),
        seen_rows(static_cast<size_t>(variant_.row_shapes));
    for (uint16_t o = 0; o < kernel_.operand_count; ++o) {
      const CudaVariant::Operand& it = variant_.operands[o];
      if (used[o] == 0) continue;
      if (!it.by_row) {
        const CudaView view = variant_.by_rows ? CudaView::kInRow : CudaView::kEntries;
        declare_view(to, view, o, it.rank, seen[it.shape], "size" + str(it.shape) + "_", "stride" + str(o) + "_");
      }
      if (variant_.by_rows) {
        declare_view(to, CudaView::kByRow, o, it.row_rank, seen_rows[it.row_shape],
                     "row_size" + str(it.row_shape) + "_", "row_stride" + str(o) + "_");
      }
    }
    arguments_ += "};\n";
  }

  void declare_view(std::vector<CudaArgument>& to, CudaView view, uint16_t operand, int rank, uint8_t& seen,
                    const std::string& size, const std::string& stride) {
    for (uint8_t d = 0; d < rank; ++d) {
      if (d > 0 && seen == 0) declare(to, "Bits64", size + str(d), {Slot::kSize, view, operand, d});
      declare(to, "Index64", stride + str(d), {Slot::kStride, view, operand, d});
    }
    seen = 1;
  }

  // -- Text --

  void line(const std::string& text) { body_ += std::string(2 * static_cast<size_t>(depth_), ' ') + text + "\n"; }
  void open(const std::string& text) {
    line(text + " {");
    ++depth_;
  }
  void close() {
    --depth_;
    line("}");
  }

  template <typename Body>
  void entry(CudaSource& source, CudaEntry::Kind kind, const std::string& name, Body body) {
    body_.clear();
    open("extern \"C\" __global__ void __launch_bounds__(" + str(kCudaThreads) + ") " + name +
         "(const __grid_constant__ Arguments a)");
    body();
    close();
    source.text += body_;
    source.entries.push_back({kind, name});
  }

  // The index along a view, taken apart: names[d] for each dimension.
  void coordinates(const std::string& of, const std::string& name, const std::string& size, int rank) {
    line("Index " + name + "0 = " + of + ";");
    for (int d = rank - 1; d > 0; --d) {
      line("const Index " + name + str(d) + " = " + name + "0 % static_cast<Index>(a." + size + str(d) + ");");
      line(name + "0 /= static_cast<Index>(a." + size + str(d) + ");");
    }
  }
  // The offset at these coordinates.
  static std::string offset(const std::string& name, const std::string& stride, int rank) {
    std::string sum;
    for (int d = 0; d < rank; ++d) {
      if (d > 0) sum += " + ";
      sum += "static_cast<Index64>(" + name + str(d) + ") * a." + stride + str(d);
    }
    return sum;
  }

  // -- Steps --

  std::string type_of_value(uint16_t value) const { return bits_name(kernel_.values[value].bytes); }
  static std::string name(uint16_t value) { return "v" + str(value); }

  void define(uint16_t value, const std::string& text) {
    line("const " + type_of_value(value) + " " + name(value) + " = " + text + ";");
  }

  static std::string number(const std::string& type, int index) {
    return "number_as<" + type + ">(a.number" + str(index) + ")";
  }

  std::string call(const FusedStep& it) const {
    const MapFormula& formula = it.map.formula;
    if (formula.operation == MapOperation::kConvert) {
      return std::string("convert<") + type_name(formula.type) + ">(as<" + type_name(formula.from) + ">(" +
             name(it.inputs[0]) + "))";
    }
    const OperationTraits operation = traits(formula.operation);
    const std::string type = operand_type(formula);
    const bool power = is_power_of_number(formula);
    const std::string wide = is_floating(formula.type) ? "double" : "Index64";
    int input = 0, next_number = it.first_number;
    std::string list;
    for (int j = 0; j < operation.operands; ++j) {
      if (j > 0) list += ", ";
      if (is_number(formula, j)) {
        list += number(power ? wide : type, next_number++);
      } else {
        const bool is_condition = (formula.operation == MapOperation::kWhere && j == 0) ||
                                  (formula.operation == MapOperation::kMaskedFill && j == 1);
        list += "as<" + (is_condition ? "Bits8" : type) + ">(" + name(it.inputs[input++]) + ")";
      }
    }
    for (int k = 0; k < operation.numbers; ++k) {
      list +=
          ", " + number(operation.number_type == OperationTraits::NumberType::kDouble ? "double" : type, next_number++);
    }
    std::string function = operation.name;
    if (power) function += "_of_number";
    if (rounds_inside(formula)) {
      function += std::string("_in<") + type_name(formula.from) + ">";
    }
    // Headers of a host have functions of some of these names.
    return "hetero_fused::" + function + "(" + list + ")";
  }

  // A step whose inputs are there and that is neither a load nor a reduction.
  void compute(const FusedStep& it) {
    if (it.kind == Kind::kMap) {
      define(it.value, "bits_of(" + call(it) + ")");
    } else if (it.kind == Kind::kFill) {
      const int bytes = kernel_.values[it.value].bytes;
      define(it.value, bytes == 16
                           ? "Bits128{a.number" + str(it.first_number) + ", a.number" + str(it.first_number + 1) + "}"
                           : "static_cast<" + bits_name(bytes) + ">(a.number" + str(it.first_number) + ")");
    } else {  // kOneHot
      define(it.value, "as<Index64>(" + name(it.inputs[1]) + ") == static_cast<Index64>(i + k) ? " +
                           name(it.inputs[0]) + " : " + type_of_value(it.value) + "{}");
    }
  }

  // -- Rows --

  // The operands' addresses at `row`.
  void row_addresses() {
    std::vector<uint8_t> seen(static_cast<size_t>(variant_.row_shapes));
    std::vector<uint8_t> done(kernel_.operand_count);
    for (const FusedStep& it : kernel_.steps) {
      if (!uses_operand(it) || done[it.operand] != 0) continue;
      done[it.operand] = 1;
      const CudaVariant::Operand& operand = variant_.operands[it.operand];
      const std::string coordinate = "q" + str(operand.row_shape) + "_";
      if (seen[operand.row_shape]++ == 0) {
        coordinates("row", coordinate, "row_size" + str(operand.row_shape) + "_", operand.row_rank);
      }
      const bool stored = std::ranges::any_of(kernel_.steps, [&](const FusedStep& other) {
        return other.kind == Kind::kStore && other.operand == it.operand;
      });
      line(std::string(stored ? "char*" : "const char*") + " const p" + str(it.operand) + " = a.operand" +
           str(it.operand) + " + " + offset(coordinate, "row_stride" + str(it.operand) + "_", operand.row_rank) + ";");
    }
  }

  static std::string reducer_type(const FusedKernel& kernel, const FusedStep& it) {
    const ReducerFormula& formula = it.reducer->formula;
    const std::string entry = formula.operation == ReduceOperation::kPick ? bits_name(kernel.values[it.inputs[0]].bytes)
                                                                          : type_name(formula.type);
    return std::string(name_of(formula.operation)) + "<" + entry + ">";
  }
  static std::string state(uint16_t value) { return std::string("r").append(str(value)); }

  void begin_reduction(const FusedStep& it) {
    const std::string type = reducer_type(kernel_, it);
    line(type + " " + state(it.value) + ";");
    if (it.reducer->parameter_bytes == 0) {
      line(state(it.value) + ".begin();");
    } else {
      const bool is_pick = it.reducer->formula.operation == ReduceOperation::kPick;
      line(state(it.value) + ".begin_with(as<" +
           (is_pick ? std::string("Index64") : std::string(type_name(it.reducer->formula.type))) + ">(" +
           name(it.inputs[1]) + "));");
    }
  }

  // Row values of this level, but for reductions, which passes give.
  void row_values(int level) {
    for (const FusedStep& it : kernel_.steps) {
      if (it.kind == Kind::kStore || !levels_.is_row(it.value) || levels_.level(it.value) != level) continue;
      if (it.kind == Kind::kLoad) {
        define(it.value, "*reinterpret_cast<const " + type_of_value(it.value) + "*>(p" + str(it.operand) + ")");
      } else if (it.kind == Kind::kReduce) {
        define(it.value, "bits_of(" + state(it.value) + ".finish())");
      } else {
        compute(it);
      }
    }
  }

  // -- Passes over entries --

  std::string address(uint16_t operand) const {
    const CudaVariant::Operand& it = variant_.operands[operand];
    const std::string base = variant_.by_rows ? "p" + str(operand) : "a.operand" + str(operand);
    return base + " + " + offset("c" + str(it.shape) + "_", "stride" + str(operand) + "_", it.rank);
  }

  // One of load and store: of `array` at the operand's entries.
  void transfer(const std::string& verb, uint16_t operand, const std::string& to, const std::string& from) {
    const CudaVariant::Operand& it = variant_.operands[operand];
    const std::string count = "<" + str(variant_.vector) + ">(";
    if (it.access == CudaAccess::kVector) {
      line(verb + "_vector" + count + to + ", " + from + ");");
    } else {
      const std::string stride =
          it.access == CudaAccess::kSame ? "0" : "a.stride" + str(operand) + "_" + str(it.rank - 1);
      line(verb + "_strided" + count + to + ", " + from + ", " + stride + ");");
    }
  }

  // What happens to entries i .. i + vector.
  void entries(int level, bool stores) {
    const std::vector<uint8_t> wanted = levels_.needed(level, stores);
    const std::string array = "[" + str(variant_.vector) + "]";
    std::vector<uint8_t> seen(static_cast<size_t>(variant_.shapes));
    const auto place = [&](uint16_t operand) {
      const CudaVariant::Operand& it = variant_.operands[operand];
      if (seen[it.shape]++ == 0) coordinates("i", "c" + str(it.shape) + "_", "size" + str(it.shape) + "_", it.rank);
    };
    for (const FusedStep& it : kernel_.steps) {
      if (it.kind == Kind::kLoad && wanted[it.value] != 0) {
        place(it.operand);
        line(type_of_value(it.value) + " l" + str(it.value) + array + ";");
        transfer("load", it.operand, "l" + str(it.value), address(it.operand));
      } else if (stores && levels_.is_entry_store(it)) {
        place(it.operand);
        line(type_of_value(it.value) + " s" + str(it.operand) + array + ";");
      }
    }
    line("#pragma unroll");
    open("for (int k = 0; k < " + str(variant_.vector) + "; ++k)");
    for (const FusedStep& it : kernel_.steps) {
      if (it.kind == Kind::kStore) {
        if (stores && levels_.is_entry_store(it)) line("s" + str(it.operand) + "[k] = " + name(it.value) + ";");
      } else if (!stores && levels_.is_reduction_of(it, level)) {
        line(state(it.value) + ".add(as<" + reducer_type(kernel_, it) + "::Entry>(" + name(it.inputs[0]) +
             "), static_cast<Index64>(i + k));");
      } else if (wanted[it.value] != 0) {
        it.kind == Kind::kLoad ? define(it.value, "l" + str(it.value) + "[k]") : compute(it);
      }
    }
    close();
    for (const FusedStep& it : kernel_.steps) {
      if (stores && levels_.is_entry_store(it)) {
        transfer("store", it.operand, address(it.operand), "s" + str(it.operand));
      }
    }
  }

  // A pass of the group over [begin, end) of its row.
  void pass(int level, bool stores, const std::string& only_if = "") {
    const std::string step = str(int64_t{variant_.group} * variant_.vector);
    open("for (Index i = begin + lane * " + str(variant_.vector) + "; i < end" + only_if + "; i += " + step + ")");
    entries(level, stores);
    close();
  }

  void reduce(int level) {
    for (const FusedStep& it : kernel_.steps) {
      if (levels_.is_reduction_of(it, level)) begin_reduction(it);
    }
    pass(level, false);
    for (const FusedStep& it : kernel_.steps) {
      if (!levels_.is_reduction_of(it, level)) continue;
      line(state(it.value) + " = reduce_group<" + str(variant_.group) + ">(" + state(it.value) + ", memory);");
    }
  }

  void store_row_values() {
    for (const FusedStep& it : kernel_.steps) {
      if (!levels_.is_row_store(it)) continue;
      line("*reinterpret_cast<" + type_of_value(it.value) + "*>(p" + str(it.operand) + ") = " + name(it.value) + ";");
    }
  }

  // -- Functions --

  void write_entries() {
    const std::string vector = str(variant_.vector);
    line("const Index step = static_cast<Index>(gridDim.x) * (kThreads * " + vector + ");");
    open("for (Index i = (static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x) * " + vector +
         "; i < static_cast<Index>(a.row); i += step)");
    entries(0, true);
    close();
  }

  void declare_memory() {
    if (levels_.reductions() > 0) line("__shared__ Bits128 memory[kThreads * kStateBytes / 16];");
    line("const Index lane = threadIdx.x % " + str(variant_.group) + ";");
  }

  void write_rows() {
    const int64_t groups = kCudaThreads / variant_.group;
    declare_memory();
    open("for (Index first = static_cast<Index>(blockIdx.x) * " + str(groups) +
         "; first < static_cast<Index>(a.rows); " + "first += static_cast<Index>(gridDim.x) * " + str(groups) + ")");
    // Groups without a row go along on the last one, since all threads meet at barriers, and store
    // nothing.
    line("const Index wanted = first + threadIdx.x / " + str(variant_.group) + ";");
    line("const bool live = wanted < static_cast<Index>(a.rows);");
    line("const Index row = live ? wanted : static_cast<Index>(a.rows) - 1;");
    line("const Index begin = 0, end = static_cast<Index>(a.row);");
    row_addresses();
    for (int level = 0; level <= levels_.last(); ++level) {
      row_values(level);
      if (level < levels_.last()) reduce(level);
    }
    if (levels_.has_entry_stores()) pass(levels_.last(), true, " && live");
    if (levels_.has_row_stores()) {
      // The group's threads may still be reading what is overwritten.
      line("synchronize_group<" + str(variant_.group) + ">();");
      open("if (live && lane == 0)");
      store_row_values();
      close();
    }
    close();
  }

  // Where the parts of the row have left their states of the reduction.
  std::string states_of(const FusedStep& it) const {
    return "a.states + ((static_cast<Bits64>(" + str(levels_.reduction(it.value)) +
           ") * a.rows + row) * a.parts) * kStateBytes";
  }

  // The row values up to the level, with states of earlier passes merged.
  void row_values_from_states(int level) {
    row_addresses();
    for (int below = 0; below <= level; ++below) {
      for (const FusedStep& it : kernel_.steps) {
        if (it.kind != Kind::kReduce || levels_.level(it.value) != below) continue;
        line(reducer_type(kernel_, it) + " " + state(it.value) + ";");
        line("merge_parts(" + state(it.value) + ", " + states_of(it) + ", a.parts);");
      }
      row_values(below);
    }
  }

  void write_parts(CudaSource& source) {
    for (int level = 0; level < levels_.last(); ++level) {
      entry(source, CudaEntry::Kind::kPass, "fused_pass" + str(level), [&] { write_part(level, false); });
    }
    if (levels_.has_entry_stores())
      entry(source, CudaEntry::Kind::kPass, "fused_stores", [&] { write_part(levels_.last(), true); });
    if (!levels_.has_row_stores()) return;
    entry(source, CudaEntry::Kind::kRows, "fused_rows", [&] {
      line("const Index step = static_cast<Index>(gridDim.x) * kThreads;");
      open(
          "for (Index row = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x; row < static_cast<Index>(a.rows); "
          "row += step)");
      row_values_from_states(levels_.last());
      store_row_values();
      close();
    });
  }

  void write_part(int level, bool stores) {
    declare_memory();
    open("for (Index work = blockIdx.x; work < static_cast<Index>(a.rows * a.parts); work += gridDim.x)");
    line("const Index row = work / static_cast<Index>(a.parts), part = work % static_cast<Index>(a.parts);");
    line("const Index begin = part * static_cast<Index>(a.part_length), row_end = static_cast<Index>(a.row);");
    line(
        "const Index part_end = begin + static_cast<Index>(a.part_length), end = part_end < row_end ? part_end : "
        "row_end;");
    row_values_from_states(level);
    if (stores) {
      pass(level, true);
    } else {
      reduce(level);
      open("if (lane == 0)");
      for (const FusedStep& it : kernel_.steps) {
        if (!levels_.is_reduction_of(it, level)) continue;
        line("*reinterpret_cast<" + reducer_type(kernel_, it) + "*>(" + states_of(it) +
             " + part * kStateBytes) = " + state(it.value) + ";");
      }
      close();
    }
    close();
  }

  const FusedKernel& kernel_;
  const CudaVariant& variant_;
  const FusedLevels levels_;
  std::string arguments_, body_;
  int depth_ = 0;
};

int64_t divided(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

CudaStages cuda_stages(const FusedKernel& kernel, const FusedSpace& space, const FusedLaunch& launch) {
  CudaStages result;
  if (launch.stages.empty()) {
    if (launch.empty) return result;
    CudaStage& stage = result.stages.emplace_back(CudaStage{kernel, launch.space, {}});
    for (uint16_t o = 0; o < kernel.operand_count; ++o) stage.operands.push_back({false, o, 0});
    return result;
  }
  std::vector<StageKernel> split;
  result.temporary_bytes = split_stages(kernel, space, split);
  for (size_t s = 0; s < split.size(); ++s) {
    const FusedLaunch& prepared = launch.stages[s].launch;
    if (prepared.empty) continue;
    result.stages.push_back({std::move(split[s].kernel), prepared.space, std::move(split[s].operands)});
  }
  return result;
}

const char* cuda_refusal(const FusedKernel& kernel) {
  if (kernel.operand_count > kMaxCudaOperands || kernel.number_count > kMaxCudaNumbers) {
    return "more arguments than a kernel may have";
  }
  for (const FusedStep& it : kernel.steps) {
    if (const char* why = refusal(kernel, it)) return why;
  }
  return nullptr;
}

CudaSource write_source(const FusedKernel& kernel, const CudaVariant& variant) {
  return Writer(kernel, variant).write();
}

CudaLaunch plan_launch(const CudaSource& source, const RowSpace& space, int multiprocessors) {
  CudaLaunch launch;
  const CudaVariant& variant = source.variant;
  const int64_t most = int64_t{multiprocessors} * kBlocksPerMultiprocessor;
  const auto limited = [&](int64_t blocks) { return std::clamp<int64_t>(blocks, 1, most); };
  launch.row_blocks = limited(divided(space.rows, kCudaThreads));
  if (!variant.by_rows) {
    launch.whole_blocks = limited(divided(space.rows * space.row, int64_t{kCudaThreads} * variant.vector));
  } else if (!variant.parts) {
    launch.whole_blocks = limited(divided(space.rows, kCudaThreads / variant.group));
  } else {
    const int64_t wanted = std::clamp<int64_t>(divided(2 * int64_t{multiprocessors}, space.rows), 1, kMaxParts);
    const int64_t length = std::max(divided(space.row, wanted), kCudaPartEntries);
    launch.part_length = divided(length, kMaxCudaVector) * kMaxCudaVector;
    launch.parts = std::max<int64_t>(divided(space.row, launch.part_length), 1);
    launch.whole_blocks = limited(space.rows * launch.parts);
    launch.state_bytes = int64_t{source.reductions} * space.rows * launch.parts * kCudaStateBytes;
  }
  return launch;
}

void fill_arguments(const CudaSource& source, const RowSpace& space, const CudaLaunch& launch, void* const* operands,
                    const Number* numbers, void* states, uint64_t* words) {
  const bool by_rows = source.variant.by_rows;
  for (const CudaArgument& it : source.arguments) {
    uint64_t& word = *words++;
    switch (it.kind) {
      case Slot::kOperand:
        word = std::bit_cast<uintptr_t>(operands[it.index]) + static_cast<uint64_t>(space.operands[it.index].offset);
        break;
      case Slot::kNumber:
        word = numbers[it.index].bits;
        break;
      case Slot::kRows:
        word = static_cast<uint64_t>(space.rows);
        break;
      case Slot::kRow:
        word = static_cast<uint64_t>(by_rows ? space.row : space.rows * space.row);
        break;
      case Slot::kParts:
        word = static_cast<uint64_t>(launch.parts);
        break;
      case Slot::kPartLength:
        word = static_cast<uint64_t>(launch.part_length);
        break;
      case Slot::kStates:
        word = std::bit_cast<uintptr_t>(states);
        break;
      case Slot::kSize:
        word = static_cast<uint64_t>(view_of(space.operands[it.index], it.view).sizes[it.dimension]);
        break;
      case Slot::kStride:
        word = static_cast<uint64_t>(view_of(space.operands[it.index], it.view).strides[it.dimension]);
        break;
    }
  }
}

}  // namespace hetero::backend
