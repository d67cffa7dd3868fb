#include "graph/optimize/fit_sizes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "graph/ir/compare.h"
#include "graph/program/program_sizes.h"

namespace hetero::graph {
namespace {

constexpr size_t kNumberBytes = 8;
// Products of so many factors are tried: strides of a tensor of that many dynamic dimensions.
constexpr size_t kMostFactors = 4;
constexpr size_t kMostProducts = 200000;
// Sums of two products are tried of so many, the simplest first.
constexpr size_t kMostPaired = 400;

using Values = std::vector<int64_t>;  // of one integer, per sample

Status differs(const std::string& what) { return Status(ErrorClass::kUsage, what); }

// Divides by what all have in common; the first that is not 0 becomes positive. Returns what was
// divided by; 0 where all are 0.
int64_t reduce(Values& values) {
  int64_t common = 0;
  for (const int64_t value : values) common = std::gcd(common, value);
  const auto first = std::ranges::find_if(values, [](int64_t value) { return value != 0; });
  if (first == values.end()) return 0;
  if (*first < 0) common = -common;
  for (int64_t& value : values) value /= common;
  return common;
}

// Finds for the values of an integer the sum that gives them.
class Fitter {
 public:
  // `factors` per sample: see Product. The samples are enough to tell sums apart.
  Fitter(std::vector<SizeSum> sums, std::vector<Values> values)
      : sums_(std::move(sums)), factor_values_(std::move(values)) {
    products_.push_back({{}, Values(samples(), 1)});
    size_t begin = 0;
    for (size_t degree = 1; degree <= kMostFactors; ++degree) {
      const size_t end = products_.size();
      for (size_t p = begin; p < end; ++p) extend(p);
      begin = end;
    }
    for (size_t p = 0; p < products_.size(); ++p) {
      Values shape = products_[p].values;
      const int64_t common = reduce(shape);
      by_shape_.try_emplace(std::move(shape), p, common);
    }
  }

  std::optional<SizeSum> fit(const Values& values) {
    const auto known = memory_.find(values);
    if (known != memory_.end()) return known->second;
    std::optional<SizeSum> made = fit_one(values);
    if (!made.has_value()) made = fit_two(values);
    return memory_[values] = made;
  }

 private:
  struct Product {
    std::vector<uint16_t> factors;  // in ascending order
    Values values;
  };

  size_t samples() const { return factor_values_.empty() ? 1 : factor_values_[0].size(); }

  void extend(size_t p) {
    const size_t first = products_[p].factors.empty() ? 0 : products_[p].factors.back();
    for (size_t f = first; f < sums_.size() && products_.size() < kMostProducts; ++f) {
      Product made{products_[p].factors, products_[p].values};
      made.factors.push_back(static_cast<uint16_t>(f));
      bool fits = true;
      for (size_t s = 0; s < made.values.size(); ++s) {
        fits &= !__builtin_mul_overflow(made.values[s], factor_values_[f][s], &made.values[s]);
      }
      if (fits) products_.push_back(std::move(made));
    }
  }

  SizeSum sum_of(const Product& product, int64_t factor) const {
    SizeSum sum{{factor, {}}};
    for (const uint16_t f : product.factors) sum = multiplied(sum, sums_[f]);
    return sum;
  }

  std::optional<SizeSum> fit_one(const Values& values) const {
    Values shape = values;
    const int64_t common = reduce(shape);
    if (common == 0) return SizeSum{};
    const auto found = by_shape_.find(shape);
    if (found == by_shape_.end()) return std::nullopt;
    const auto& [product, divided] = found->second;
    if (common % divided != 0) return std::nullopt;
    return sum_of(products_[product], common / divided);
  }

  // rest + a * one product + b * another.
  std::optional<SizeSum> fit_two(const Values& values) const {
    const size_t count = std::min(products_.size(), kMostPaired);
    for (size_t i = 1; i < count; ++i) {
      for (size_t j = i; j < count; ++j) {
        const std::optional<SizeSum> made = fit_pair(values, products_[i], products_[j]);
        if (made.has_value()) return made;
      }
    }
    return std::nullopt;
  }

  // By the differences from the first sample, which the rest does not change. i == j: one product
  // and a rest.
  std::optional<SizeSum> fit_pair(const Values& values, const Product& x, const Product& y) const {
    const auto difference = [](const Values& of, size_t s) { return static_cast<__int128>(of[s]) - of[0]; };
    if (values.size() < 5) return std::nullopt;
    __int128 a = 0;
    __int128 b = 0;
    if (&x == &y) {
      const __int128 step = difference(x.values, 1);
      if (step == 0 || difference(values, 1) % step != 0) return std::nullopt;
      a = difference(values, 1) / step;
    } else {
      const __int128 x1 = difference(x.values, 1), x2 = difference(x.values, 2);
      const __int128 y1 = difference(y.values, 1), y2 = difference(y.values, 2);
      const __int128 v1 = difference(values, 1), v2 = difference(values, 2);
      if (!small(x1) || !small(x2) || !small(y1) || !small(y2) || !small(v1) || !small(v2)) return std::nullopt;
      const __int128 determinant = x1 * y2 - x2 * y1;
      if (determinant == 0) return std::nullopt;
      const __int128 first = v1 * y2 - v2 * y1;
      const __int128 second = x1 * v2 - x2 * v1;
      if (first % determinant != 0 || second % determinant != 0) return std::nullopt;
      a = first / determinant;
      b = second / determinant;
    }
    if (!small(a) || !small(b)) return std::nullopt;
    const auto at = [&](size_t s) { return a * x.values[s] + (&x == &y ? 0 : b * y.values[s]); };
    const __int128 rest = values[0] - at(0);
    for (size_t s = 0; s < values.size(); ++s) {
      if (rest + at(s) != values[s]) return std::nullopt;
    }
    if (!small(rest)) return std::nullopt;
    SizeSum sum = sum_of(x, static_cast<int64_t>(a));
    if (&x != &y) add(sum, static_cast<int64_t>(b), sum_of(y, 1));
    add(sum, static_cast<int64_t>(rest), {{1, {}}});
    return sum;
  }

  // Products of two such numbers fit 128 bits, sums of them too.
  static bool small(__int128 value) { return value < (__int128{1} << 61) && value > -(__int128{1} << 61); }

  const std::vector<SizeSum> sums_;
  const std::vector<Values> factor_values_;  // per factor
  std::vector<Product> products_;            // those of fewer factors first
  std::map<Values, std::pair<size_t, int64_t>> by_shape_;
  std::map<Values, std::optional<SizeSum>> memory_;
};

std::string name_of(const Graph& graph, size_t node) {
  return 'n' + std::to_string(node) + " (" + op_table()[graph.nodes[node].op].name + ')';
}

int64_t number_at(const Graph& graph, const Node& node, uint32_t place) {
  int64_t number = 0;
  std::memcpy(&number, graph.attributes.data() + node.attribute_offset + place, sizeof(number));
  return number;
}

bool draws_at(const SavedProgram& program, const Node& node, uint32_t place) {
  const uint64_t at = uint64_t{node.attribute_offset} + place;
  return std::ranges::any_of(program.draws, [&](uint64_t draw) { return at == draw || at == draw + kNumberBytes; });
}

bool same_constants(const SavedProgram& a, const SavedProgram& b) {
  return std::ranges::equal(a.constants, b.constants, [&](const ProgramConstant& x, const ProgramConstant& y) {
    return x.name == y.name && x.buffer == y.buffer && x.bytes.bytes() == y.bytes.bytes() &&
           to_string(a.windows[x.window]) == to_string(b.windows[y.window]) &&
           (x.bytes.data() == y.bytes.data() || std::memcmp(x.bytes.data(), y.bytes.data(), x.bytes.bytes()) == 0);
  });
}

bool same_values(const SavedProgram& a, const std::vector<ProgramValue>& x, const SavedProgram& b,
                 const std::vector<ProgramValue>& y) {
  return std::ranges::equal(x, y, [&](const ProgramValue& v, const ProgramValue& w) {
    return v.buffer == w.buffer && v.bits == w.bits && same_rank(a.windows[v.window], b.windows[w.window]);
  });
}

bool same_bytes(const Graph& a, const Node& x, const Graph& b, const Node& y, std::span<const uint32_t> numbers) {
  uint32_t begin = 0;
  const auto same_until = [&](uint32_t end) {
    const bool same = std::memcmp(a.attributes.data() + x.attribute_offset + begin,
                                  b.attributes.data() + y.attribute_offset + begin, end - begin) == 0;
    return same;
  };
  for (const uint32_t place : numbers) {
    if (!same_until(place)) return false;
    begin = place + kNumberBytes;
  }
  return same_until(x.attribute_bytes);
}

// Whether two recordings differ in integers only. Errors: the first other difference.
Status compare_structure(const SavedProgram& a, const SavedProgram& b, FindNumbers find_numbers) {
  const Graph& x = a.graph;
  const Graph& y = b.graph;
  if (!same_values(a, a.inputs, b, b.inputs) || !same_values(a, a.outputs, b, b.outputs)) {
    return differs("its inputs or outputs are others for other sizes");
  }
  if (!same_constants(a, b)) return differs("it uses a constant that is another one for other sizes");
  const Difference found = compare(x, y, &same_rank, [&](const Node& v, const Node& w) {
    if (find_numbers == nullptr) return true;
    std::vector<uint32_t> numbers;
    find_numbers(x, v, numbers);
    return same_bytes(x, v, y, w, numbers);
  });
  using Kind = Difference::Kind;
  switch (found.kind) {
    case Kind::kNone:
      return Status();
    case Kind::kCall:
      return differs(name_of(x, found.node) + " is another call for other sizes: " + name_of(y, found.node));
    case Kind::kOperands:
      return differs(name_of(x, found.node) + " has other operands for other sizes");
    case Kind::kArguments:
      return differs(name_of(x, found.node) + " has other arguments for other sizes");
    case Kind::kCount:
      return differs("it has more calls for some sizes than for others");
    case Kind::kBuffers:
      return differs("it has other buffers for other sizes");
  }
  return Status();
}

class SizesFit {
 public:
  SizesFit(SavedProgram& program, std::span<const SizeSample> samples, Fitter& fitter, FindNumbers find_numbers)
      : program_(program), fitter_(fitter), find_numbers_(find_numbers) {
    programs_.push_back(&program);
    for (const SizeSample& sample : samples) programs_.push_back(sample.program);
  }

  Status run() {
    for (size_t s = 1; s < programs_.size(); ++s) {
      if (Status status = compare_structure(program_, *programs_[s], find_numbers_); !status.ok()) return status;
    }
    const Graph& graph = program_.graph;
    DynamicSizes& dynamic = program_.dynamic;
    for (BufferId b = 0; b < graph.buffers.size(); ++b) {
      SizeSum sum;
      const auto bytes = [b](const SavedProgram& p) { return static_cast<int64_t>(p.graph.buffers[b].bytes); };
      if (!find(bytes, sum)) return no_sum("the bytes of b" + std::to_string(b));
      if (is_dynamic_) dynamic.buffers.push_back({b, std::move(sum)});
    }
    for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
      for (uint32_t i = 0; i < graph.nodes[n].operand_count; ++i) {
        DynamicWindow window;
        const auto id = [n, i](const SavedProgram& p) { return p.graph.operands_of(p.graph.nodes[n])[i].window; };
        if (!find_window(id, window))
          return no_sum("a size of operand " + std::to_string(i) + " of " + name_of(graph, n));
        if (is_dynamic_) dynamic.operands.push_back({n, i, std::move(window)});
      }
      if (Status status = find_numbers_of(n); !status.ok()) return status;
    }
    if (Status status = find_values(program_.inputs, &SavedProgram::inputs, dynamic.inputs); !status.ok())
      return status;
    return find_values(program_.outputs, &SavedProgram::outputs, dynamic.outputs);
  }

 private:
  static Status no_sum(const std::string& what) {
    return differs(what + " follows from the sizes in another way than by sums and products of them");
  }

  // What `value` says of each sample's program; is_dynamic_: not always the same.
  template <typename Value>
  bool find(const Value& value, SizeSum& sum) {
    values_.clear();
    for (const SavedProgram* program : programs_) values_.push_back(value(*program));
    is_dynamic_ = std::ranges::adjacent_find(values_, std::ranges::not_equal_to()) != values_.end();
    if (!is_dynamic_) {
      sum.clear();
      if (values_[0] != 0) sum.push_back({values_[0], {}});
      return true;
    }
    std::optional<SizeSum> found = fitter_.fit(values_);
    if (!found.has_value()) return false;
    sum = std::move(*found);
    return true;
  }

  template <typename Id>
  bool find_window(const Id& id, DynamicWindow& window) {
    const Window& own = program_.windows[id(program_)];
    window.dtype = own.dtype;
    bool any = false;
    bool found = true;
    const auto put = [&](const auto& value, SizeSum& sum) {
      found &= find([&](const SavedProgram& p) { return value(p.windows[id(p)]); }, sum);
      any |= is_dynamic_;
    };
    for (int d = 0; d < own.rank; ++d) {
      put([d](const Window& w) { return w.dims[d]; }, window.sizes.emplace_back());
      put([d](const Window& w) { return w.dims[w.rank + d]; }, window.strides.emplace_back());
    }
    put([](const Window& w) { return w.offset; }, window.offset);
    is_dynamic_ = any;
    return found;
  }

  Status find_numbers_of(uint32_t n) {
    places_.clear();
    const Graph& graph = program_.graph;
    if (find_numbers_ != nullptr) find_numbers_(graph, graph.nodes[n], places_);
    for (const uint32_t place : places_) {
      if (draws_at(program_, graph.nodes[n], place)) continue;
      SizeSum sum;
      bool real = false;
      if (!find([&](const SavedProgram& p) { return number_at(p.graph, p.graph.nodes[n], place); }, sum)) {
        real = true;
        bool integral = true;
        const auto as_real = [&](const SavedProgram& p) {
          const auto value = std::bit_cast<double>(number_at(p.graph, p.graph.nodes[n], place));
          integral &= std::abs(value) < 0x1p53 && std::floor(value) == value;
          return integral ? static_cast<int64_t>(value) : 0;
        };
        if (!find(as_real, sum) || !integral) return no_sum("a number of " + name_of(graph, n));
      }
      if (is_dynamic_) program_.dynamic.numbers.push_back({n, place, real, std::move(sum)});
    }
    return Status();
  }

  Status find_values(const std::vector<ProgramValue>& values, std::vector<ProgramValue> SavedProgram::*of,
                     std::vector<DynamicSizes::ValueWindow>& windows) {
    for (uint32_t i = 0; i < values.size(); ++i) {
      DynamicWindow window;
      if (!find_window([&](const SavedProgram& p) { return (p.*of)[i].window; }, window)) {
        return no_sum("a size of " + values[i].name);
      }
      if (is_dynamic_) windows.push_back({i, std::move(window)});
    }
    return Status();
  }

  SavedProgram& program_;
  std::vector<const SavedProgram*> programs_;
  Fitter& fitter_;
  const FindNumbers find_numbers_;
  bool is_dynamic_ = false;  // what was found last
  Values values_;
  std::vector<uint32_t> places_;
};

// Whether nothing follows from what is different.
bool equivalent(const Window& a, const Window& b) {
  if (a.dtype != b.dtype || !std::ranges::equal(a.sizes(), b.sizes())) return false;
  if (a.numel == 0) return true;
  if (a.offset != b.offset) return false;
  for (size_t d = 0; d < a.sizes().size(); ++d) {
    if (a.sizes()[d] != 1 && a.strides()[d] != b.strides()[d]) return false;
  }
  return true;
}

}  // namespace

Status fit_sizes(SavedProgram& program, std::vector<SizeVariable> variables, std::span<const int64_t> own,
                 std::span<const SizeSample> samples, std::span<const SizeSum> factors, FindNumbers find_numbers) {
  for (const SizeSample& sample : samples) {
    if (sample.program->looked_at != program.looked_at) return differs("it looks at a value that depends on sizes");
  }
  std::vector<Values> variables_of;  // per sample
  const auto add_sample = [&](std::span<const int64_t> sizes) {
    Result<Values> values = values_of(variables, sizes);
    if (!values.ok()) return values.status();
    variables_of.push_back(std::move(values.value()));
    return Status();
  };
  Status status = add_sample(own);
  for (const SizeSample& sample : samples) {
    if (status.ok()) status = add_sample(sample.sizes);
  }
  if (!status.ok()) return status;
  std::vector<SizeSum> sums;
  std::vector<Values> sum_values;
  const auto add_factor = [&](const SizeSum& sum) {
    Values values;
    for (const Values& of : variables_of) {
      const Result<int64_t> value = value_of(sum, of);
      if (!value.ok()) return;
      values.push_back(value.value());
    }
    if (std::ranges::find(sum_values, values) != sum_values.end()) return;
    sums.push_back(sum);
    sum_values.push_back(std::move(values));
  };
  for (uint16_t v = 0; v < variables.size(); ++v) add_factor({{1, {v}}});
  for (const SizeSum& factor : factors) add_factor(factor);
  Fitter fitter(std::move(sums), std::move(sum_values));
  program.dynamic = DynamicSizes();
  program.dynamic.variables = std::move(variables);
  status = SizesFit(program, samples, fitter, find_numbers).run();
  if (status.ok()) status = verify_sizes(program);
  if (!status.ok()) program.dynamic = DynamicSizes();
  return status;
}

Status compare_at(const SavedProgram& program, const SizeSample& recorded) {
  const Result<std::unique_ptr<SavedProgram>> made = program_at(program, recorded.sizes);
  if (!made.ok()) return made.status();
  const SavedProgram& a = *made.value();
  const SavedProgram& b = *recorded.program;
  if (Status status = compare_structure(a, b, nullptr); !status.ok()) return status;
  for (size_t n = 0; n < a.graph.nodes.size(); ++n) {
    const Node& x = a.graph.nodes[n];
    const Node& y = b.graph.nodes[n];
    for (int i = 0; i < x.operand_count; ++i) {
      const Window& made_window = a.windows[a.graph.operands_of(x)[i].window];
      const Window& window = b.windows[b.graph.operands_of(y)[i].window];
      if (equivalent(made_window, window)) continue;
      return differs("operand " + std::to_string(i) + " of " + name_of(a.graph, n) + " would be " +
                     to_string(made_window) + " and is " + to_string(window));
    }
    for (uint32_t byte = 0; byte < x.attribute_bytes; ++byte) {
      const uint64_t at = uint64_t{x.attribute_offset} + byte;
      const bool drawn =
          std::ranges::any_of(a.draws, [&](uint64_t draw) { return at >= draw && at < draw + 2 * kNumberBytes; });
      if (!drawn && a.graph.attributes[at] != b.graph.attributes[uint64_t{y.attribute_offset} + byte]) {
        return differs("an argument of " + name_of(a.graph, n) + " would be another one");
      }
    }
  }
  for (BufferId b_id = 0; b_id < a.graph.buffers.size(); ++b_id) {
    if (a.graph.buffers[b_id].bytes < b.graph.buffers[b_id].bytes) {
      return differs("b" + std::to_string(b_id) + " would be too small");
    }
  }
  return Status();
}

}  // namespace hetero::graph
