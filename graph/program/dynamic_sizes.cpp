#include "graph/program/dynamic_sizes.h"

#include <algorithm>
#include <utility>

#include "graph/ir/text.h"

namespace hetero::graph {
namespace {

constexpr size_t kMostDims = 64;

Status usage(std::string message) { return Status(ErrorClass::kUsage, std::move(message)); }
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

int64_t floor_of(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a % b < 0) != (b < 0) ? 1 : 0); }

constexpr SizeRequirement::Kind kRelations[] = {SizeRequirement::Kind::kEqual, SizeRequirement::Kind::kUnequal,
                                                SizeRequirement::Kind::kAtMost};

const char* relation_word(SizeRequirement::Kind kind) {
  if (kind == SizeRequirement::Kind::kEqual) return "=";
  return kind == SizeRequirement::Kind::kUnequal ? "!=" : "<=";
}

void append(std::string& text, const DynamicWindow& window, std::span<const SizeVariable> variables) {
  text += std::string(dtype_name(window.dtype)) + '[';
  text += to_string(window.sizes, variables) + "]{" + to_string(window.strides, variables) + '}';
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
    if (made_.requirements.size() == kMostSizeVariables) return expect("fewer requirements");
    made_.requirements.push_back(std::move(made));
    return true;
  }

  bool add(SizeVariable made) {
    if (made_.variables.size() == kMostSizeVariables) return expect("fewer variables");
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
      if (!product(term) || made.size() == kMostSizeTerms) return expect("a sum, such as 2*batch*tokens-1");
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
      if (found == made_.variables.end() || term.variables.size() == kMostSizeFactors) return false;
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

Status sizes_too_large() { return usage("the sizes are too large: what follows from them does not fit 64 bits"); }

int64_t SizeEvaluation::operator()(const SizeSum& sum) {
  int64_t total = 0;
  for (const SizeTerm& term : sum) {
    int64_t product = term.factor;
    for (const uint16_t v : term.variables) fits_ &= !__builtin_mul_overflow(product, variables_[v], &product);
    fits_ &= !__builtin_add_overflow(total, product, &total);
  }
  return total;
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
    SizeEvaluation value(values);
    const int64_t a = value(variable.a);
    const int64_t b = value(variable.b);
    if (!value.fits() || (variable.kind == SizeVariable::Kind::kFloor && b == -1)) return sizes_too_large();
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

Result<std::vector<int64_t>> possible_values(const DynamicSizes& dynamic, std::span<const int64_t> sizes) {
  Result<std::vector<int64_t>> values = values_of(dynamic.variables, sizes);
  if (!values.ok()) return values;
  SizeEvaluation value(values.value());
  for (const SizeRequirement& requirement : dynamic.requirements) {
    using Kind = SizeRequirement::Kind;
    const int64_t a = value(requirement.a);
    const int64_t b = value(requirement.b);
    if (!value.fits()) return sizes_too_large();
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

Result<int64_t> value_of(const SizeSum& sum, std::span<const int64_t> variables) {
  SizeEvaluation evaluate(variables);
  const int64_t value = evaluate(sum);
  if (!evaluate.fits()) return sizes_too_large();
  return value;
}

std::string sizes_text(const DynamicSizes& dynamic, std::span<const int64_t> sizes) {
  std::string text;
  for (size_t d = 0; d < sizes.size(); ++d) {
    text += (d == 0 ? "" : ", ") + dynamic.variables[d].name + ' ' + std::to_string(sizes[d]);
  }
  return text;
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

std::string to_string(const std::vector<SizeSum>& sums, std::span<const SizeVariable> variables) {
  std::string text;
  for (const SizeSum& sum : sums) text += (&sum == sums.data() ? "" : ",") + to_string(sum, variables);
  return text;
}

SizeSum multiplied(const SizeSum& a, const SizeSum& b) {
  SizeSum made;
  for (const SizeTerm& x : a) {
    for (const SizeTerm& y : b) {
      SizeTerm term{x.factor * y.factor, x.variables};
      term.variables.insert(term.variables.end(), y.variables.begin(), y.variables.end());
      std::ranges::sort(term.variables);
      add(made, 1, {std::move(term)});
    }
  }
  return made;
}

void add(SizeSum& sum, int64_t factor, const SizeSum& other) {
  for (const SizeTerm& term : other) {
    const auto same = std::ranges::find(sum, term.variables, &SizeTerm::variables);
    if (same == sum.end()) {
      sum.push_back({factor * term.factor, term.variables});
    } else {
      same->factor += factor * term.factor;
    }
  }
  std::erase_if(sum, [](const SizeTerm& term) { return term.factor == 0; });
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
