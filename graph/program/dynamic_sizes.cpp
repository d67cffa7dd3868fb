#include "graph/program/dynamic_sizes.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "graph/program/saved_program.h"
#include "graph/ir/text.h"

namespace hetero::graph {
namespace {

// More than any program needs; a file cannot make its reader work for longer.
constexpr size_t kMostVariables = 1024;
constexpr size_t kMostTerms = 64;
constexpr size_t kMostFactors = 16;
constexpr size_t kMostDims = 64;
constexpr uint32_t kNumberBytes = 8;

Status usage(std::string message) { return Status(ErrorClass::kUsage, std::move(message)); }
Status too_large() { return usage("the sizes are too large: what follows from them does not fit 64 bits"); }
Status too_small() { return usage("the program cannot have these sizes: some tensor would have a size below 0"); }

// Where the value of `sum` is not what fits, the error of the whole evaluation.
class Evaluation {
 public:
  explicit Evaluation(std::span<const int64_t> variables) : variables_(variables) {}

  int64_t operator()(const SizeSum& sum) {
    int64_t total = 0;
    for (const SizeTerm& term : sum) {
      int64_t product = term.factor;
      for (const uint16_t v : term.variables) fits_ &= !__builtin_mul_overflow(product, variables_[v], &product);
      fits_ &= !__builtin_add_overflow(total, product, &total);
    }
    return total;
  }
  bool fits() const { return fits_; }

 private:
  const std::span<const int64_t> variables_;
  bool fits_ = true;
};

// --- Evaluating

const char* kind_word(SizeVariable::Kind kind) {
  switch (kind) {
    case SizeVariable::Kind::kDimension:
      return "dimension";
    case SizeVariable::Kind::kFloor:
      return "floor";
    case SizeVariable::Kind::kMax:
      return "max";
    case SizeVariable::Kind::kMin:
      break;
  }
  return "min";
}

// The sum in terms of the dimensions alone, with what variables are in their place.
std::string spelled_out(const SizeSum& sum, std::span<const SizeVariable> variables) {
  std::vector<SizeVariable> known;
  for (const SizeVariable& variable : variables) {
    SizeVariable named;
    named.name = variable.kind == SizeVariable::Kind::kDimension
                     ? variable.name
                     : std::string(kind_word(variable.kind)) + '(' + to_string(variable.a, known) + ',' +
                           to_string(variable.b, known) + ')';
    known.push_back(std::move(named));
  }
  return to_string(sum, known);
}

// The numbers of all variables where the dimensions are `sizes`. Errors: those of values_of(), and the first requirement that is not met.
Result<std::vector<int64_t>> possible_values(const DynamicSizes& dynamic, std::span<const int64_t> sizes) {
  Result<std::vector<int64_t>> values = values_of(dynamic.variables, sizes);
  if (!values.ok()) return values;
  Evaluation value(values.value());
  for (const SizeRequirement& requirement : dynamic.requirements) {
    using Kind = SizeRequirement::Kind;
    const int64_t a = value(requirement.a);
    const int64_t b = value(requirement.b);
    if (!value.fits()) return too_large();
    const bool met = requirement.kind == Kind::kEqual ? a == b : requirement.kind == Kind::kUnequal ? a != b : a <= b;
    if (met) continue;
    const char* const relation = requirement.kind == Kind::kEqual     ? " to be "
                                 : requirement.kind == Kind::kUnequal ? " not to be "
                                                                      : " to be at most ";
    const auto text = [&](const SizeSum& sum, int64_t number) {
      const std::string spelled = spelled_out(sum, dynamic.variables);
      const std::string digits = std::to_string(number);
      return spelled == digits ? digits : spelled + " (" + digits + ")";
    };
    return usage("the program cannot have these sizes: " + sizes_text(dynamic, sizes) + ". The model needs " +
                 text(requirement.a, a) + relation + text(requirement.b, b));
  }
  return values;
}

int64_t floor_of(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a % b < 0) != (b < 0) ? 1 : 0); }

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
    if (!value_.fits()) return too_large();
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
      made_->constants.push_back({constant.name, constant.buffer, constant.window, std::move(bytes)});
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
  Evaluation value_;
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
    if (dynamic_.variables.size() > kMostVariables) return usage("the program has too many variables");
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
    if (dynamic_.requirements.size() > kMostVariables) return usage("the program has too many requirements");
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
    return sum.size() <= kMostTerms && std::ranges::all_of(sum, [&](const SizeTerm& term) {
             return term.variables.size() <= kMostFactors &&
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

// --- Text

constexpr SizeRequirement::Kind kRelations[] = {SizeRequirement::Kind::kEqual, SizeRequirement::Kind::kUnequal,
                                                SizeRequirement::Kind::kAtMost};

const char* relation_word(SizeRequirement::Kind kind) {
  if (kind == SizeRequirement::Kind::kEqual) return "=";
  return kind == SizeRequirement::Kind::kUnequal ? "!=" : "<=";
}

void append(std::string& text, const std::vector<SizeSum>& sums, std::span<const SizeVariable> variables) {
  for (size_t i = 0; i < sums.size(); ++i) text += (i == 0 ? "" : ",") + to_string(sums[i], variables);
}

void append(std::string& text, const DynamicWindow& window, std::span<const SizeVariable> variables) {
  text += std::string(dtype_name(window.dtype)) + '[';
  append(text, window.sizes, variables);
  text += "]{";
  append(text, window.strides, variables);
  text += '}';
  if (!window.offset.empty()) text += " at " + to_string(window.offset, variables);
  text += '\n';
}

bool is_name(std::string_view name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !name.empty() && letter(name[0]) &&
         std::ranges::all_of(name, [&](char c) { return letter(c) || c == '.' || (c >= '0' && c <= '9'); });
}

class SizesReader {
 public:
  explicit SizesReader(std::string_view text) : reader_(text) {}

  Result<DynamicSizes> read() {
    reader_.skip_empty_lines();
    while (!reader_.at_end()) {
      if (!line() || !reader_.accept_line_end()) return reader_.error(expected_);
      reader_.skip_empty_lines();
    }
    return std::move(made_);
  }

  Result<SizeSum> read_sum(std::span<const SizeVariable> variables) {
    made_.variables.assign(variables.begin(), variables.end());
    SizeSum made;
    if (!sum(made) || !reader_.at_end()) return reader_.error(expected_);
    return made;
  }

 private:
  // What a line is that was not understood.
  bool expect(const char* what) {
    expected_ = what;
    return false;
  }

  bool line() {
    uint32_t index = 0;
    if (reader_.accept("dimension ")) return dimension();
    if (reader_.accept_id("input ", index)) return value(made_.inputs, index);
    if (reader_.accept_id("output ", index)) return value(made_.outputs, index);
    if (reader_.accept_id("b", index)) {
      DynamicSizes::Bytes& bytes = made_.buffers.emplace_back();
      bytes.buffer = index;
      return reader_.accept(":") && sum(bytes.bytes) && (reader_.accept("bytes") || expect("'bytes'"));
    }
    if (reader_.accept_id("n", index)) return node(index);
    if (reader_.accept("let ")) return variable();
    if (reader_.accept("require ")) return requirement();
    return expect("a line of sizes.txt");
  }

  bool dimension() {
    SizeVariable made;
    made.name = name();
    if (!is_name(made.name) || !reader_.accept_number(made.least) || !reader_.accept("..")) {
      return expect("a name and its bounds, such as batch 1..64");
    }
    if (!reader_.accept("any") && !reader_.accept_number(made.most)) return expect("a number, or any");
    return add(std::move(made));
  }

  bool variable() {
    SizeVariable made;
    made.name = name();
    if (!is_name(made.name) || !reader_.accept("=")) return expect("a name and =");
    using Kind = SizeVariable::Kind;
    bool known = false;
    for (const Kind kind : {Kind::kFloor, Kind::kMax, Kind::kMin}) {
      if (known || !reader_.accept(kind_word(kind))) continue;
      made.kind = kind;
      known = true;
    }
    if (!known || !reader_.accept("(")) return expect("floor(, max( or min(");
    if (!sum(made.a) || !reader_.accept(",") || !sum(made.b) || !reader_.accept(")")) return expect("two sums");
    return add(std::move(made));
  }

  bool requirement() {
    SizeRequirement made;
    if (!sum(made.a)) return false;
    bool known = false;
    for (const auto kind : kRelations) {
      if (known || !reader_.accept(relation_word(kind))) continue;
      made.kind = kind;
      known = true;
    }
    if (!known) return expect("=, != or <=");
    if (!sum(made.b)) return false;
    if (made_.requirements.size() == kMostVariables) return expect("fewer requirements");
    made_.requirements.push_back(std::move(made));
    return true;
  }

  bool add(SizeVariable made) {
    if (made_.variables.size() == kMostVariables) return expect("fewer variables");
    made_.variables.push_back(std::move(made));
    return true;
  }

  bool node(uint32_t index) {
    if (reader_.next_is('.')) {
      DynamicSizes::OperandWindow& made = made_.operands.emplace_back();
      made.node = index;
      return reader_.accept_id(".", made.operand) && reader_.accept(":") && window(made.window);
    }
    DynamicSizes::Number& made = made_.numbers.emplace_back();
    made.node = index;
    made.real = reader_.accept("real at");
    if (!made.real && !reader_.accept("number at")) return expect("'number at' or 'real at'");
    return reader_.accept_number(made.place) && reader_.accept(":") && sum(made.value);
  }

  bool value(std::vector<DynamicSizes::ValueWindow>& values, uint32_t index) {
    DynamicSizes::ValueWindow& made = values.emplace_back();
    made.index = index;
    return reader_.accept(":") && window(made.window);
  }

  bool window(DynamicWindow& made) {
    made.dtype = parse_dtype(reader_.take_until("["));
    if (made.dtype < 0 || !reader_.accept("[") || !list("]", made.sizes) || !reader_.accept("{") ||
        !list("}", made.strides)) {
      return expect("a window, such as f32[batch,4]{4,1}");
    }
    return !reader_.accept("at ") || sum(made.offset);
  }

  bool list(std::string_view close, std::vector<SizeSum>& sums) {
    while (!reader_.accept(close)) {
      if ((!sums.empty() && !reader_.accept(",")) || sums.size() == kMostDims) return false;
      if (!sum(sums.emplace_back())) return false;
    }
    return true;
  }

  bool sum(SizeSum& made) {
    do {
      SizeTerm term;
      if (!product(term) || made.size() == kMostTerms) return expect("a sum, such as 2*batch*tokens-1");
      if (term.factor != 0) made.push_back(std::move(term));
      // A sign belongs to the number behind it.
    } while (reader_.accept("+") || reader_.next_is('-'));
    return true;
  }

  bool product(SizeTerm& term) {
    term.factor = 1;
    if (reader_.accept("-")) term.factor = -1;
    do {
      int64_t number = 0;
      if (reader_.accept_number(number)) {
        if (number < 0 || __builtin_mul_overflow(term.factor, number, &term.factor)) return false;
        continue;
      }
      const std::string_view called = name();
      const auto found = std::ranges::find(made_.variables, called, &SizeVariable::name);
      if (found == made_.variables.end() || term.variables.size() == kMostFactors) return false;
      term.variables.push_back(static_cast<uint16_t>(found - made_.variables.begin()));
    } while (reader_.accept("*"));
    std::ranges::sort(term.variables);
    return true;
  }

  std::string_view name() { return reader_.take_until(" +-*,])}=:(!<"); }

  TextReader reader_;
  DynamicSizes made_;
  const char* expected_ = "a line of sizes.txt";
};

}  // namespace

std::span<const SizeVariable> DynamicSizes::dimensions() const {
  const auto is_dimension = [](const SizeVariable& v) { return v.kind == SizeVariable::Kind::kDimension; };
  return {variables.begin(), std::ranges::find_if_not(variables, is_dimension)};
}

Result<std::vector<int64_t>> values_of(std::span<const SizeVariable> variables, std::span<const int64_t> sizes) {
  std::vector<int64_t> values;
  for (size_t v = 0; v < variables.size(); ++v) {
    const SizeVariable& variable = variables[v];
    if (variable.kind == SizeVariable::Kind::kDimension) {
      if (v >= sizes.size()) {
        return usage("the program has more dimensions than the " + std::to_string(sizes.size()) + " sizes given");
      }
      if (sizes[v] < variable.least || sizes[v] > variable.most) {
        const bool open = variable.most == std::numeric_limits<int64_t>::max();
        return usage(variable.name + " is " + std::to_string(sizes[v]) + ", and the program was made for " +
                     std::to_string(variable.least) + (open ? " and more" : " to " + std::to_string(variable.most)));
      }
      values.push_back(sizes[v]);
      continue;
    }
    Evaluation value(values);
    const int64_t a = value(variable.a);
    const int64_t b = value(variable.b);
    if (!value.fits() || (variable.kind == SizeVariable::Kind::kFloor && b == -1)) return too_large();
    if (variable.kind == SizeVariable::Kind::kMax) {
      values.push_back(std::max(a, b));
    } else if (variable.kind == SizeVariable::Kind::kMin) {
      values.push_back(std::min(a, b));
    } else if (b == 0) {
      return usage("the program cannot have these sizes: something is divided by 0");
    } else {
      values.push_back(floor_of(a, b));
    }
  }
  const auto dimensions = std::ranges::count(variables, SizeVariable::Kind::kDimension, &SizeVariable::kind);
  if (static_cast<size_t>(dimensions) == sizes.size()) return values;
  return usage("the program has " + std::to_string(dimensions) + " dimensions, and " + std::to_string(sizes.size()) +
               " sizes were given");
}

Result<int64_t> value_of(const SizeSum& sum, std::span<const int64_t> variables) {
  Evaluation evaluate(variables);
  const int64_t value = evaluate(sum);
  if (!evaluate.fits()) return too_large();
  return value;
}

std::string sizes_text(const DynamicSizes& dynamic, std::span<const int64_t> sizes) {
  std::string text;
  for (size_t d = 0; d < sizes.size(); ++d) {
    text += (d == 0 ? "" : ", ") + dynamic.variables[d].name + ' ' + std::to_string(sizes[d]);
  }
  return text;
}

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
  Evaluation value(variables.value());
  for (const auto& [index, window] : dynamic) {
    for (size_t axis = 0; axis < window.sizes.size(); ++axis) {
      shapes[index].sizes[axis] = value(window.sizes[axis]);
      shapes[index].strides[axis] = value(window.strides[axis]);
      if (shapes[index].sizes[axis] < 0 || shapes[index].strides[axis] < 0) return too_small();
    }
  }
  if (!value.fits()) return too_large();
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

std::string to_string(const SizeSum& sum, std::span<const SizeVariable> variables) {
  std::string text;
  for (const SizeTerm& term : sum) {
    if (!text.empty() && term.factor >= 0) text += '+';
    const bool plain = !term.variables.empty() && (term.factor == 1 || term.factor == -1);
    if (!plain) text += std::to_string(term.factor);
    if (plain && term.factor == -1) text += '-';
    for (size_t i = 0; i < term.variables.size(); ++i) {
      text += (i == 0 && plain ? "" : "*") + variables[term.variables[i]].name;
    }
  }
  return text.empty() ? "0" : text;
}

std::string shape_text(const SavedProgram& program, const std::vector<ProgramValue>& values, size_t index) {
  const auto& windows = &values == &program.inputs ? program.dynamic.inputs : program.dynamic.outputs;
  const auto found = std::ranges::find(windows, index, &DynamicSizes::ValueWindow::index);
  if (found == windows.end()) return to_string(program.windows[values[index].window]);
  std::string text = std::string(dtype_name(found->window.dtype)) + '[';
  append(text, found->window.sizes, program.dynamic.variables);
  return text + ']';
}

std::string to_string(const DynamicSizes& dynamic) {
  std::string text;
  const std::span<const SizeVariable> variables = dynamic.variables;
  for (const SizeVariable& variable : variables) {
    if (variable.kind == SizeVariable::Kind::kDimension) {
      const bool open = variable.most == std::numeric_limits<int64_t>::max();
      text += "dimension " + variable.name + ' ' + std::to_string(variable.least) + ".." +
              (open ? "any" : std::to_string(variable.most)) + '\n';
    } else {
      text += "let " + variable.name + " = " + kind_word(variable.kind) + '(' + to_string(variable.a, variables) + ',' +
              to_string(variable.b, variables) + ")\n";
    }
  }
  for (const SizeRequirement& requirement : dynamic.requirements) {
    text += "require " + to_string(requirement.a, variables) + ' ' + relation_word(requirement.kind) + ' ' +
            to_string(requirement.b, variables) + '\n';
  }
  for (const auto& [buffer, bytes] : dynamic.buffers) {
    text += 'b' + std::to_string(buffer) + ": " + to_string(bytes, variables) + " bytes\n";
  }
  for (const auto& [node, operand, window] : dynamic.operands) {
    text += 'n' + std::to_string(node) + '.' + std::to_string(operand) + ": ";
    append(text, window, variables);
  }
  for (const auto& [node, place, real, value] : dynamic.numbers) {
    text += 'n' + std::to_string(node) + (real ? " real at " : " number at ") + std::to_string(place) + ": " +
            to_string(value, variables) + '\n';
  }
  for (const auto& [index, window] : dynamic.inputs) {
    text += "input " + std::to_string(index) + ": ";
    append(text, window, variables);
  }
  for (const auto& [index, window] : dynamic.outputs) {
    text += "output " + std::to_string(index) + ": ";
    append(text, window, variables);
  }
  return text;
}

Result<DynamicSizes> parse_sizes(std::string_view text) { return SizesReader(text).read(); }

Result<SizeSum> parse_sum(std::string_view text, std::span<const SizeVariable> variables) {
  return SizesReader(text).read_sum(variables);
}

}  // namespace hetero::graph
