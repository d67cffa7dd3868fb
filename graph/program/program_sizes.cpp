#include "graph/program/program_sizes.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

namespace hetero::graph {
namespace {

constexpr uint32_t kNumberBytes = 8;

Status usage(std::string message) { return Status(ErrorClass::kUsage, std::move(message)); }
Status too_small() { return usage("the program cannot have these sizes: some tensor would have a size below 0"); }

// The windows of a program whose ids those of another are, too.
void copy_windows(const WindowTable& from, WindowTable& to) {
  for (WindowId id = 0; id < from.size(); ++id) {
    const Window& window = from[id];
    (void)to.intern(window.dtype, window.sizes(), window.strides(), window.offset);
  }
}

class Instance {
 public:
  Instance(const SavedProgram& from, std::span<const int64_t> variables) : from_(from), value_(variables) {}

  Result<std::unique_ptr<SavedProgram>> make() {
    copy();
    const DynamicSizes& dynamic = from_.dynamic;
    bool possible = true;
    for (const auto& [buffer, bytes] : dynamic.buffers) {
      const int64_t value = value_(bytes);
      possible &= value >= 0;
      made_->graph.buffers[buffer].bytes = static_cast<uint64_t>(value);
    }
    for (const auto& [node, operand, window] : dynamic.operands) {
      possible &= put(window, made_->graph.operands[made_->graph.nodes[node].first_operand + operand].window);
    }
    for (const auto& [index, window] : dynamic.inputs) possible &= put(window, made_->inputs[index].window);
    for (const auto& [index, window] : dynamic.outputs) possible &= put(window, made_->outputs[index].window);
    for (const auto& [node, place, real, sum] : dynamic.numbers) {
      const int64_t value = value_(sum);
      std::byte* const at = made_->graph.attributes.data() + made_->graph.nodes[node].attribute_offset + place;
      const auto as_real = static_cast<double>(value);
      std::memcpy(at, real ? static_cast<const void*>(&as_real) : &value, kNumberBytes);
    }
    if (!value_.fits()) return sizes_too_large();
    if (!possible) return too_small();
    return std::move(made_);
  }

 private:
  void copy() {
    copy_windows(from_.windows, made_->windows);
    made_->graph = from_.graph;
    made_->graph.windows = &made_->windows;
    made_->inputs = from_.inputs;
    made_->outputs = from_.outputs;
    for (const ProgramConstant& constant : from_.constants) {
      backend::Block bytes;
      if (constant.bytes)
        bytes = backend::Block::adopt(constant.bytes.data(), constant.bytes.bytes(), nullptr, nullptr);
      made_->constants.push_back({constant.name, constant.buffer, constant.window, std::move(bytes), constant.mapped});
    }
    made_->draws = from_.draws;
  }

  bool put(const DynamicWindow& window, WindowId& id) {
    sizes_.clear();
    strides_.clear();
    for (const SizeSum& sum : window.sizes) sizes_.push_back(value_(sum));
    for (const SizeSum& sum : window.strides) strides_.push_back(value_(sum));
    const int64_t offset = value_(window.offset);
    const auto negative = [](int64_t value) { return value < 0; };
    if (offset < 0 || std::ranges::any_of(sizes_, negative) || std::ranges::any_of(strides_, negative) ||
        !is_measurable(window.dtype, sizes_, strides_, offset)) {
      return false;
    }
    id = made_->windows.intern(window.dtype, sizes_, strides_, offset);
    return id != kNoWindow;
  }

  const SavedProgram& from_;
  SizeEvaluation value_;
  std::unique_ptr<SavedProgram> made_ = std::make_unique<SavedProgram>();
  std::vector<int64_t> sizes_;
  std::vector<int64_t> strides_;
};

// --- Finding the dimensions

// A size that is factor * dimension + rest.
struct Line {
  uint16_t dimension;
  int64_t factor;
  int64_t rest;
};

std::optional<Line> line_of(const SizeSum& sum, size_t dimensions) {
  std::optional<Line> line;
  int64_t rest = 0;
  for (const SizeTerm& term : sum) {
    if (term.variables.empty()) {
      rest = term.factor;
    } else if (term.variables.size() == 1 && term.variables[0] < dimensions && !line.has_value() && term.factor != 0) {
      line = Line{term.variables[0], term.factor, 0};
    } else {
      return std::nullopt;
    }
  }
  if (line.has_value()) line->rest = rest;
  return line;
}

// Per dimension: the first input that tells it.
struct Teller {
  uint32_t input = 0;  // in DynamicSizes::inputs
  uint32_t axis = 0;
  std::optional<Line> line;
};

std::vector<Teller> find_tellers(const DynamicSizes& dynamic) {
  const size_t dimensions = dynamic.dimensions().size();
  std::vector<Teller> tellers(dimensions);
  for (uint32_t i = 0; i < dynamic.inputs.size(); ++i) {
    const DynamicWindow& window = dynamic.inputs[i].window;
    for (uint32_t axis = 0; axis < window.sizes.size(); ++axis) {
      const std::optional<Line> line = line_of(window.sizes[axis], dimensions);
      if (!line.has_value()) continue;
      Teller& teller = tellers[line->dimension];
      // A plain one is found for whatever size it has.
      if (!teller.line.has_value() || (teller.line->factor != 1 && line->factor == 1)) teller = {i, axis, line};
    }
  }
  return tellers;
}

// --- Verifying

class SizesVerifier {
 public:
  explicit SizesVerifier(const SavedProgram& program) : program_(program), dynamic_(program.dynamic) {}

  Status run() {
    const size_t dimensions = dynamic_.dimensions().size();
    if (dynamic_.variables.size() > kMostSizeVariables) return usage("the program has too many variables");
    for (size_t v = 0; v < dynamic_.variables.size(); ++v) {
      const SizeVariable& variable = dynamic_.variables[v];
      const bool is_dimension = variable.kind == SizeVariable::Kind::kDimension;
      if (is_dimension != (v < dimensions)) return usage("the dimension " + variable.name + " comes behind a variable");
      if (!has(variable.a, v) || !has(variable.b, v)) {
        return usage("the variable " + variable.name + " follows from one that comes later");
      }
      if (variable.least < 0 || variable.most < variable.least) {
        return usage("the dimension " + variable.name + " can have no size");
      }
      for (size_t other = 0; other < v; ++other) {
        if (dynamic_.variables[other].name == variable.name) {
          return usage("two dimensions or variables have the name " + variable.name);
        }
      }
    }
    if (dynamic_.requirements.size() > kMostSizeVariables) return usage("the program has too many requirements");
    for (const SizeRequirement& requirement : dynamic_.requirements) {
      if (!has(requirement.a) || !has(requirement.b)) return usage("a requirement is of variables that are not there");
    }
    if (Status status = check_places(); !status.ok()) return status;
    const std::vector<Teller> tellers = find_tellers(dynamic_);
    for (size_t d = 0; d < dimensions; ++d) {
      if (!tellers[d].line.has_value()) {
        return usage("no input tells the size of the dimension " + dynamic_.variables[d].name);
      }
    }
    return dimensions == 0 ? Status() : check_example();
  }

 private:
  bool has(const SizeSum& sum, size_t variables) const {
    return sum.size() <= kMostSizeTerms && std::ranges::all_of(sum, [&](const SizeTerm& term) {
             return term.variables.size() <= kMostSizeFactors &&
                    std::ranges::all_of(term.variables, [&](uint16_t v) { return v < variables; });
           });
  }
  bool has(const SizeSum& sum) const { return has(sum, dynamic_.variables.size()); }
  bool has(const DynamicWindow& window, WindowId id) const {
    const Window& example = program_.windows[id];
    const auto rank = static_cast<size_t>(example.rank);
    const auto known = [this](const SizeSum& sum) { return has(sum); };
    return window.dtype == example.dtype && window.sizes.size() == rank && window.strides.size() == rank &&
           std::ranges::all_of(window.sizes, known) && std::ranges::all_of(window.strides, known) && has(window.offset);
  }

  Status check_places() const {
    const Graph& graph = program_.graph;
    bool known = true;
    for (const auto& [buffer, bytes] : dynamic_.buffers) known &= buffer < graph.buffers.size() && has(bytes);
    for (const auto& [node, operand, window] : dynamic_.operands) {
      known = known && node < graph.nodes.size() && operand < graph.nodes[node].operand_count &&
              has(window, graph.operands_of(graph.nodes[node])[operand].window);
    }
    for (const auto& [node, place, real, value] : dynamic_.numbers) {
      known = known && node < graph.nodes.size() && place <= graph.nodes[node].attribute_bytes &&
              graph.nodes[node].attribute_bytes - place >= kNumberBytes && has(value);
    }
    const auto check = [&](const std::vector<DynamicSizes::ValueWindow>& windows,
                           const std::vector<ProgramValue>& values) {
      for (const auto& [index, window] : windows) {
        known = known && index < values.size() && has(window, values[index].window);
      }
    };
    check(dynamic_.inputs, program_.inputs);
    check(dynamic_.outputs, program_.outputs);
    for (const ProgramConstant& constant : program_.constants) {
      for (const auto& [buffer, bytes] : dynamic_.buffers) known &= buffer != constant.buffer;
    }
    return known ? Status() : usage("the program's sizes are those of something that it does not have");
  }

  // What follows for the sizes of the example must be the example.
  Status check_example() const {
    const Result<std::unique_ptr<SavedProgram>> made = program_at(program_, example_sizes(program_));
    if (!made.ok()) return made.status();
    const Graph& a = program_.graph;
    const Graph& b = made.value()->graph;
    const auto same_values = [](const std::vector<ProgramValue>& x, const std::vector<ProgramValue>& y) {
      return std::ranges::equal(x, y, {}, &ProgramValue::window, &ProgramValue::window);
    };
    const bool same = std::ranges::equal(a.operands, b.operands, {}, &Operand::window, &Operand::window) &&
                      std::ranges::equal(a.buffers, b.buffers, {}, &Buffer::bytes, &Buffer::bytes) &&
                      a.attributes == b.attributes && same_values(program_.inputs, made.value()->inputs) &&
                      same_values(program_.outputs, made.value()->outputs);
    return same ? Status() : usage("the program's sizes do not give its own graph");
  }

  const SavedProgram& program_;
  const DynamicSizes& dynamic_;
};

}  // namespace

Status verify_sizes(const SavedProgram& program) { return SizesVerifier(program).run(); }

Result<std::vector<int64_t>> find_sizes(const SavedProgram& program, std::span<const TensorView> inputs) {
  const DynamicSizes& dynamic = program.dynamic;
  if (inputs.size() != program.inputs.size()) {
    return usage("the program has " + std::to_string(program.inputs.size()) + " inputs, and " +
                 std::to_string(inputs.size()) + " were given");
  }
  const auto name_of = [&](const DynamicSizes::ValueWindow& input) {
    return "input '" + program.inputs[input.index].name + "'";
  };
  for (const DynamicSizes::ValueWindow& input : dynamic.inputs) {
    const size_t rank = inputs[input.index].sizes.size();
    if (rank == input.window.sizes.size()) continue;
    return usage(name_of(input) + " has " + std::to_string(rank) + " dimensions, and is to have " +
                 std::to_string(input.window.sizes.size()));
  }
  std::vector<int64_t> sizes;
  for (const Teller& teller : find_tellers(dynamic)) {
    const DynamicSizes::ValueWindow& input = dynamic.inputs[teller.input];
    const int64_t size = inputs[input.index].sizes[teller.axis];
    int64_t over = 0;
    if (__builtin_sub_overflow(size, teller.line->rest, &over) || over % teller.line->factor != 0) {
      return usage(name_of(input) + " has size " + std::to_string(size) + " in dimension " +
                   std::to_string(teller.axis) + ", which is to be " +
                   to_string(input.window.sizes[teller.axis], dynamic.variables));
    }
    sizes.push_back(over / teller.line->factor);
  }
  const Result<std::vector<int64_t>> values = possible_values(dynamic, sizes);
  if (!values.ok()) return values.status();
  for (const DynamicSizes::ValueWindow& input : dynamic.inputs) {
    for (size_t axis = 0; axis < input.window.sizes.size(); ++axis) {
      const Result<int64_t> expected = value_of(input.window.sizes[axis], values.value());
      if (!expected.ok()) return expected.status();
      if (expected.value() == inputs[input.index].sizes[axis]) continue;
      return usage(name_of(input) + " is " + to_string(inputs[input.index]) + ", and dimension " +
                   std::to_string(axis) + " is to be " + std::to_string(expected.value()) + ": the inputs have " +
                   sizes_text(dynamic, sizes));
    }
  }
  return sizes;
}

std::vector<int64_t> example_sizes(const SavedProgram& program) {
  std::vector<int64_t> sizes;
  for (const Teller& teller : find_tellers(program.dynamic)) {
    const uint32_t input = program.dynamic.inputs[teller.input].index;
    const int64_t size = program.windows[program.inputs[input].window].sizes()[teller.axis];
    sizes.push_back((size - teller.line->rest) / teller.line->factor);
  }
  return sizes;
}

namespace {

Result<std::vector<TensorShape>> shapes_of(const SavedProgram& program, const std::vector<ProgramValue>& values,
                                           const std::vector<DynamicSizes::ValueWindow>& dynamic,
                                           std::span<const int64_t> sizes) {
  const Result<std::vector<int64_t>> variables = possible_values(program.dynamic, sizes);
  if (!variables.ok()) return variables.status();
  std::vector<TensorShape> shapes;
  for (const ProgramValue& value : values) {
    const Window& window = program.windows[value.window];
    shapes.push_back({window.dtype,
                      {window.sizes().begin(), window.sizes().end()},
                      {window.strides().begin(), window.strides().end()}});
  }
  SizeEvaluation value(variables.value());
  for (const auto& [index, window] : dynamic) {
    for (size_t axis = 0; axis < window.sizes.size(); ++axis) {
      shapes[index].sizes[axis] = value(window.sizes[axis]);
      shapes[index].strides[axis] = value(window.strides[axis]);
      if (shapes[index].sizes[axis] < 0 || shapes[index].strides[axis] < 0) return too_small();
    }
  }
  if (!value.fits()) return sizes_too_large();
  return shapes;
}

}  // namespace

Result<std::vector<TensorShape>> input_shapes(const SavedProgram& program, std::span<const int64_t> sizes) {
  return shapes_of(program, program.inputs, program.dynamic.inputs, sizes);
}
Result<std::vector<TensorShape>> output_shapes(const SavedProgram& program, std::span<const int64_t> sizes) {
  return shapes_of(program, program.outputs, program.dynamic.outputs, sizes);
}

Result<std::unique_ptr<SavedProgram>> program_at(const SavedProgram& program, std::span<const int64_t> sizes) {
  const Result<std::vector<int64_t>> variables = possible_values(program.dynamic, sizes);
  if (!variables.ok()) return variables.status();
  return Instance(program, variables.value()).make();
}

std::string shape_text(const SavedProgram& program, const std::vector<ProgramValue>& values, size_t index) {
  const auto& windows = &values == &program.inputs ? program.dynamic.inputs : program.dynamic.outputs;
  const auto found = std::ranges::find(windows, index, &DynamicSizes::ValueWindow::index);
  if (found == windows.end()) return to_string(program.windows[values[index].window]);
  std::string text = std::string(dtype_name(found->window.dtype)) + '[';
  return text + to_string(found->window.sizes, program.dynamic.variables) + ']';
}

}  // namespace hetero::graph
