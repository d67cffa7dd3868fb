// Compiled programs give the bits of interpreted ones, and of the functions entry by entry; all
// NaNs count as equal. The functions here are plain C++, so a formula is also checked against what
// it says in kernel.h.

#include "backend/cpu/fused/compile.h"

#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "backend/cpu/fused/exponential.h"
#include "backend/cpu/fused/launch.h"
#include "backend/cpu/vector/half.h"
#include "backend/fused/gelu.h"
#include "tests/backend/child.h"
#include "tests/backend/cpu/fused/fused_program.h"
#include "tests/backend/cpu/fused/portable_functions.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

using namespace testing;
using O = MapOperation;

// ---- Functions with formulas

template <typename T>
constexpr EntryType kTypeOf = sizeof(T) == 8 ? EntryType::kFloat64 : EntryType::kFloat32;

template <typename T>
T number_of(const Number& number) {
  if constexpr (sizeof(T) == 8) return number.f64;
  return number.f32;
}

template <typename T>
T greater_of(T a, T b) {
  return a != a ? a : b != b ? b : a > b ? a : b;
}
template <typename T>
T lesser_of(T a, T b) {
  return a != a ? a : b != b ? b : a < b ? a : b;
}

// As kernel.h says; each operation rounds, since the tests are compiled without fused operations.
template <O kOperation, typename T>
auto compute(T a, T b, T c, T x, T y) {
  if constexpr (kOperation == O::kNegate) return -a;
  if constexpr (kOperation == O::kAbs) return std::fabs(a);
  if constexpr (kOperation == O::kFloor) return std::floor(a);
  if constexpr (kOperation == O::kCeil) return std::ceil(a);
  if constexpr (kOperation == O::kRound) return std::nearbyint(a);
  if constexpr (kOperation == O::kTrunc) return std::trunc(a);
  if constexpr (kOperation == O::kReciprocal) return 1 / a;
  if constexpr (kOperation == O::kRsqrt) return 1 / std::sqrt(a);
  if constexpr (kOperation == O::kSqrt) return std::sqrt(a);
  if constexpr (kOperation == O::kRelu) return a < 0 ? T(0) : a;
  if constexpr (kOperation == O::kAdd) return a + b;
  if constexpr (kOperation == O::kSub) return a - b;
  if constexpr (kOperation == O::kMul) return a * b;
  if constexpr (kOperation == O::kDiv) return a / b;
  if constexpr (kOperation == O::kMaximum) return greater_of(a, b);
  if constexpr (kOperation == O::kMinimum) return lesser_of(a, b);
  if constexpr (kOperation == O::kAddScaled) return std::fma(b, x, a);
  if constexpr (kOperation == O::kEqual) return static_cast<uint8_t>(a == b);
  if constexpr (kOperation == O::kNotEqual) return static_cast<uint8_t>(a != b);
  if constexpr (kOperation == O::kLess) return static_cast<uint8_t>(a < b);
  if constexpr (kOperation == O::kLessEqual) return static_cast<uint8_t>(a <= b);
  if constexpr (kOperation == O::kGreater) return static_cast<uint8_t>(a > b);
  if constexpr (kOperation == O::kGreaterEqual) return static_cast<uint8_t>(a >= b);
  if constexpr (kOperation == O::kClamp) return x != x || y != y ? T(NAN) : a != a ? a : std::min(std::max(a, x), y);
  if constexpr (kOperation == O::kClampMin) return x != x ? T(NAN) : a != a ? a : std::max(a, x);
  if constexpr (kOperation == O::kClampMax) return x != x ? T(NAN) : a != a ? a : std::min(a, x);
  if constexpr (kOperation == O::kThreshold) return a <= x ? y : b;
  if constexpr (kOperation == O::kLeakyRelu) return a * (a > 0 ? T(1) : x);
  if constexpr (kOperation == O::kSigmoidBackward) return a * (1 - b) * b;
  if constexpr (kOperation == O::kTanhBackward) return a * std::fma(-b, b, T(1));
  if constexpr (kOperation == O::kAddcmul) return std::fma(x * b, c, a);
  if constexpr (kOperation == O::kAddcdiv) return a + x * b / c;
}

template <typename T, O kOperation, NumberForm kForm>
void map_entries(void* out, const void* const* in, const Number* numbers, int64_t n) {
  const MapFormula formula{kOperation, kTypeOf<T>, {}, kForm};
  const int inputs = input_count(formula);
  const bool has_form = kForm != NumberForm::kNone;
  const Number none[2] = {};
  if (number_count(formula) == 0) numbers = none;
  for (int64_t i = 0; i < n; ++i) {
    T operands[3] = {};
    int at = 0;
    for (int j = 0; j < 3 && at < inputs; ++j) {
      if (has_form && j == (kForm == NumberForm::kLeft ? 0 : 1)) continue;
      operands[j] = load_entry<T>(in[at++], i);
    }
    if (has_form) operands[kForm == NumberForm::kLeft ? 0 : 1] = number_of<T>(numbers[0]);
    store_entry(out, i,
                compute<kOperation>(operands[0], operands[1], operands[2], number_of<T>(numbers[has_form ? 1 : 0]),
                                    number_of<T>(numbers[1])));
  }
}

template <typename T>
void choose(void* out, const void* const* in, const Number*, int64_t n) {
  for (int64_t i = 0; i < n; ++i) store_entry(out, i, load_entry<T>(in[load_entry<uint8_t>(in[0], i) != 0 ? 1 : 2], i));
}
template <typename T>
void fill_masked(void* out, const void* const* in, const Number* numbers, int64_t n) {
  T value;
  std::memcpy(&value, numbers, sizeof(T));
  for (int64_t i = 0; i < n; ++i)
    store_entry(out, i, load_entry<uint8_t>(in[1], i) != 0 ? value : load_entry<T>(in[0], i));
}

// A map and the types of what it takes and gives; bools are bytes here.
struct Described {
  MapFunction map;
  std::vector<EntryType> inputs;
  EntryType result;
};

template <typename T, O kOperation, NumberForm kForm>
Described describe() {
  const MapFormula formula{kOperation, kTypeOf<T>, {}, kForm};
  const bool is_test = kOperation >= O::kEqual && kOperation <= O::kGreaterEqual;
  return {{&map_entries<T, kOperation, kForm>, formula},
          std::vector<EntryType>(input_count(formula), kTypeOf<T>),
          is_test ? EntryType::kByte : kTypeOf<T>};
}

template <typename T>
void add_floats(std::vector<Described>& to) {
  constexpr int kFirst = static_cast<int>(O::kNegate), kPairs = static_cast<int>(O::kAdd);
  constexpr int kEndOfPairs = static_cast<int>(O::kGreaterEqual) + 1, kEnd = static_cast<int>(O::kAddcdiv) + 1;
  [&]<int... I>(std::integer_sequence<int, I...>) {
    (to.push_back(describe<T, static_cast<O>(kFirst + I), NumberForm::kNone>()), ...);
  }
  (std::make_integer_sequence<int, kEnd - kFirst>());
  [&]<int... I>(std::integer_sequence<int, I...>) {
    (to.push_back(describe<T, static_cast<O>(kPairs + I), NumberForm::kRight>()), ...);
    (to.push_back(describe<T, static_cast<O>(kPairs + I), NumberForm::kLeft>()), ...);
  }
  (std::make_integer_sequence<int, kEndOfPairs - kPairs>());
  to.push_back({{&choose<T>, {O::kWhere, kTypeOf<T>, {}, {}}}, {EntryType::kByte, kTypeOf<T>, kTypeOf<T>}, kTypeOf<T>});
  to.push_back({{&fill_masked<T>, {O::kMaskedFill, kTypeOf<T>, {}, {}}}, {kTypeOf<T>, EntryType::kByte}, kTypeOf<T>});
}

template <typename To, typename From, auto kFunction>
Described convert(EntryType to, EntryType from) {
  return {{map_unary<To, From, kFunction>, {O::kConvert, to, from, {}}},
          {from},
          to == EntryType::kBool ? EntryType::kByte : to};
}
template <auto kFunction>
Described of_bytes(O operation) {
  return {{map_binary<uint8_t, kFunction>, {operation, EntryType::kBool, {}, {}}},
          {EntryType::kByte, EntryType::kByte},
          EntryType::kByte};
}

float gelu(float x) {
  const float scaled = x * x * kGeluScale;
  const float place = (scaled > 2 ? 2.0f : scaled) - 1;
  float sum = kGeluCoefficients[0];
  for (size_t i = 1; i < std::size(kGeluCoefficients); ++i) sum = std::fma(sum, place, kGeluCoefficients[i]);
  const float error = x * sum;
  return std::fma(x / 2, error < -1 ? -1.0f : error > 1 ? 1.0f : error, x / 2);
}

// exp(-x) as exponential.h says.
float exponential_of_negative(float x) {
  float r = 0 - x;
  if (r > kExpHighest) r = kExpHighest;
  if (r < kExpLowest) r = kExpLowest;
  if (std::isnan(r)) return r;
  const float n = std::nearbyint(r * kExpScale);
  r = std::fma(n, -kExpStepRest, std::fma(n, -kExpStep, r));
  float sum = kExpCoefficients[0];
  for (size_t i = 1; i < std::size(kExpCoefficients); ++i) sum = std::fma(sum, r, kExpCoefficients[i]);
  const int whole = static_cast<int>(n), half = whole >> 1;
  return std::ldexp(std::ldexp(1 + std::fma(r * r, sum, r), half), whole - half);
}
float sigmoid(float x) { return 1 / (1 + exponential_of_negative(x)); }
float silu(float x) { return x / (1 + exponential_of_negative(x)); }

std::vector<Described> all_functions() {
  std::vector<Described> all;
  add_floats<float>(all);
  add_floats<double>(all);
  for (const auto& [type, where] : {std::pair{EntryType::kByte, MapFunction(&choose<uint8_t>)},
                                    std::pair{EntryType::kFloat16, MapFunction(&choose<uint16_t>)}}) {
    all.push_back({{where.pointer, {O::kWhere, type, {}, {}}}, {EntryType::kByte, type, type}, type});
  }
  all.push_back({{&fill_masked<uint16_t>, {O::kMaskedFill, EntryType::kBFloat16, {}, {}}},
                 {EntryType::kBFloat16, EntryType::kByte},
                 EntryType::kBFloat16});
  using E = EntryType;
  all.push_back(of_bytes<[](uint8_t a, uint8_t b) -> uint8_t { return a & b; }>(O::kBitwiseAnd));
  all.push_back(of_bytes<[](uint8_t a, uint8_t b) -> uint8_t { return a | b; }>(O::kBitwiseOr));
  all.push_back(of_bytes<[](uint8_t a, uint8_t b) -> uint8_t { return a ^ b; }>(O::kBitwiseXor));
  all.push_back({{map_unary<float, float, gelu>, {O::kGelu, E::kFloat32, {}, {}}}, {E::kFloat32}, E::kFloat32});
  all.push_back({{map_unary<float, float, sigmoid>, {O::kSigmoid, E::kFloat32, {}, {}}}, {E::kFloat32}, E::kFloat32});
  all.push_back({{map_unary<float, float, silu>, {O::kSilu, E::kFloat32, {}, {}}}, {E::kFloat32}, E::kFloat32});
  all.push_back(convert<float, uint16_t, [](uint16_t x) { return float16_to_float(x); }>(E::kFloat32, E::kFloat16));
  all.push_back(convert<uint16_t, float, [](float x) { return float_to_float16(x); }>(E::kFloat16, E::kFloat32));
  all.push_back(convert<float, uint16_t, [](uint16_t x) { return bfloat16_to_float(x); }>(E::kFloat32, E::kBFloat16));
  all.push_back(convert<uint16_t, float, [](float x) { return float_to_bfloat16(x); }>(E::kBFloat16, E::kFloat32));
  all.push_back(convert<double, float, [](float x) { return static_cast<double>(x); }>(E::kFloat64, E::kFloat32));
  all.push_back(convert<float, double, [](double x) { return static_cast<float>(x); }>(E::kFloat32, E::kFloat64));
  all.push_back(convert<float, uint8_t, [](uint8_t x) { return static_cast<float>(x); }>(E::kFloat32, E::kByte));
  all.push_back(convert<double, uint8_t, [](uint8_t x) { return static_cast<double>(x); }>(E::kFloat64, E::kByte));
  all.push_back(convert<uint8_t, float, [](float x) -> uint8_t { return x != 0; }>(E::kBool, E::kFloat32));
  all.push_back(convert<uint8_t, double, [](double x) -> uint8_t { return x != 0; }>(E::kBool, E::kFloat64));
  return all;
}

int bytes_of(EntryType type) { return input_bytes({O::kAbs, type, {}, {}}, 0); }

TEST_CASE("exp is within a rounding, and 0 or infinite where a float would be") {
  for (float x = -103; x <= 88.7f; x += 0.0031f) {
    const double right = std::exp(static_cast<double>(x));
    // Subnormal numbers have a step of their own.
    const double error = std::abs(exponential_of_negative(-x) - right) / std::max(right * 0x1p-23, 0x1p-149);
    if (error > 1.01) FAIL("exp(" << x << ") is " << exponential_of_negative(-x) << ", not " << right);
  }
  for (const float x : {-104.1f, -1e3f, -3e38f, -INFINITY}) CHECK(exponential_of_negative(-x) == 0);
  for (const float x : {89.0f, 101.0f, 3e38f, INFINITY}) CHECK(exponential_of_negative(-x) == INFINITY);
  CHECK(exponential_of_negative(-0.0f) == 1);
  CHECK(std::isnan(exponential_of_negative(NAN)));
}

TEST_CASE("gelu is within three roundings, and exact where erf is 1") {
  for (float x = -8; x <= 8; x += 0.000173f) {
    const double right = 0.5 * x * (1 + std::erf(static_cast<double>(x) / std::sqrt(2.0)));
    const double error = std::abs(gelu(x) - right) / std::max(1.0, static_cast<double>(std::abs(x)));
    if (error > 3 * 0x1p-24) FAIL("gelu(" << x << ") is " << gelu(x) << ", not " << right);
  }
  for (const float x : {5.4f, 6.0f, 100.0f, 1e10f, 1.5e19f, 3e38f}) {
    CHECK(gelu(x) == x);
    CHECK(gelu(-x) == 0);
  }
  for (const float x : {0.0f, -0.0f, 1e-45f, 1e-38f, 1e-20f}) CHECK(gelu(x) == Approx(x / 2));
  CHECK(std::isnan(gelu(NAN)));
}

// ---- Values

double random_real(std::mt19937& random) {
  constexpr double kSpecial[] = {0.0,           -0.0,    1.0,   -1.0,   0.5,    2.5,    -3.5,           INFINITY,
                                 -INFINITY,     NAN,     1e-45, -1e-40, 5e-324, 1e-310, 1.17549435e-38, 3.4028235e38,
                                 -3.4028235e38, 1.7e308, 65504, 65520,  6e-8,   8388609};
  if (random() % 4 == 0) return kSpecial[random() % std::size(kSpecial)];
  return std::normal_distribution<double>(0, 2)(random);
}
void random_entry(std::mt19937& random, EntryType type, char* to) {
  const double real = random_real(random);
  switch (type) {
    case EntryType::kByte:
      return store_entry<uint8_t>(to, 0, random() % 3 == 0 ? 0 : 1);
    case EntryType::kFloat16:
      return store_entry(to, 0, float_to_float16(static_cast<float>(real)));
    case EntryType::kBFloat16:
      return store_entry(to, 0, float_to_bfloat16(static_cast<float>(real)));
    case EntryType::kFloat32:
      return store_entry(to, 0, static_cast<float>(real));
    default:
      return store_entry(to, 0, real);
  }
}

// The entry with one NaN for all, as a key to compare.
uint64_t comparable(EntryType type, const char* at) {
  switch (type) {
    case EntryType::kByte:
      return load_entry<uint8_t>(at, 0);
    case EntryType::kFloat16: {
      const auto bits = load_entry<uint16_t>(at, 0);
      return (bits & 0x7FFF) > 0x7C00 ? 0x7E00 : bits;
    }
    case EntryType::kBFloat16: {
      const auto bits = load_entry<uint16_t>(at, 0);
      return (bits & 0x7FFF) > 0x7F80 ? 0x7FC0 : bits;
    }
    case EntryType::kFloat32: {
      const auto value = load_entry<float>(at, 0);
      return value != value ? 0x7FC00000 : std::bit_cast<uint32_t>(value);
    }
    default: {
      const auto value = load_entry<double>(at, 0);
      return value != value ? 0x7FF8000000000000 : std::bit_cast<uint64_t>(value);
    }
  }
}

struct LimitScope {
  explicit LimitScope(InstructionSet set) { limit_instruction_set(set); }
  ~LimitScope() { limit_instruction_set(InstructionSet::kAvx512); }
};

std::vector<InstructionSet> sets() {
  std::vector<InstructionSet> result;
  for (const InstructionSet set : {InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    if (has_code_generator() && set <= instruction_set()) result.push_back(set);
  }
  return result;
}

// A kernel with memory for its operands, of known types.
struct Case {
  KernelBuilder builder;
  FusedSpace space;
  std::vector<EntryType> types;  // by operand
  std::vector<std::vector<char>> memory;
  std::vector<Number> numbers;

  uint16_t add_operand(std::mt19937& random, EntryType type, std::initializer_list<int64_t> strides_in_entries = {}) {
    FusedOperand operand;
    operand.bytes = bytes_of(type);
    int64_t stride = operand.bytes;
    for (int d = space.rank - 1; d >= 0; --d) {
      operand.strides[d] = stride;
      stride *= space.sizes[d];
    }
    int d = 0;
    for (const int64_t given : strides_in_entries) operand.strides[d++] = given * operand.bytes;
    int64_t bytes = operand.bytes;
    for (d = 0; d < space.rank; ++d) bytes += operand.strides[d] * (space.sizes[d] - 1);
    types.push_back(type);
    memory.emplace_back(bytes);
    for (int64_t at = 0; at < bytes; at += operand.bytes) random_entry(random, type, memory.back().data() + at);
    space.operands.push_back(operand);
    return static_cast<uint16_t>(types.size() - 1);
  }

  static std::vector<void*> pointers(std::vector<std::vector<char>>& memory) {
    std::vector<void*> result;
    for (std::vector<char>& it : memory) result.push_back(it.data());
    return result;
  }

  // Runs for this set; the number of compiled runs.
  size_t run(InstructionSet set, std::vector<std::vector<char>>& result) const {
    const LimitScope scope(set);
    FusedLaunch launch;
    const Status status = prepare_fused(builder.kernel, space, launch);
    INFO((status.ok() ? "" : status.message()));
    REQUIRE(status.ok());
    result = memory;
    run_fused(launch, pointers(result).data(), numbers.data());
    return launch.program.compiled.size();
  }

  bool same(const std::vector<std::vector<char>>& a, const std::vector<std::vector<char>>& b) const {
    for (size_t o = 0; o < a.size(); ++o) {
      for (size_t at = 0; at < a[o].size(); at += bytes_of(types[o])) {
        if (comparable(types[o], a[o].data() + at) != comparable(types[o], b[o].data() + at)) {
          UNSCOPED_INFO("operand " << o << " entry " << at / bytes_of(types[o]) << ": " << std::hex
                                   << comparable(types[o], a[o].data() + at) << " instead of "
                                   << comparable(types[o], b[o].data() + at));
          return false;
        }
      }
    }
    return true;
  }

  // The numbers of compiled runs, by set.
  std::vector<size_t> check() const {
    std::vector<std::vector<char>> interpreted, compiled;
    REQUIRE(run(InstructionSet::kPortable, interpreted) == 0);
    std::vector<std::vector<char>> by_entry = memory;
    interpret(builder.kernel, space, pointers(by_entry).data(), numbers.data());
    REQUIRE(same(interpreted, by_entry));
    std::vector<size_t> runs;
    for (const InstructionSet set : sets()) {
      INFO("set " << static_cast<int>(set));
      runs.push_back(run(set, compiled));
      REQUIRE(same(compiled, interpreted));
    }
    return runs;
  }
};

Case case_of(std::initializer_list<int64_t> sizes) {
  Case made;
  made.space = dense_space(sizes, 0, 0, 1);
  return made;
}

Number random_number(std::mt19937& random, EntryType type) {
  Number number{.bits = 0};
  random_entry(random, type, reinterpret_cast<char*>(&number));
  return number;
}

// ---- Tests

TEST_CASE("compiled: every function gives the interpreter's bits, at every size") {
  std::mt19937 random(1);
  for (const Described& function : all_functions()) {
    for (const int64_t n : {1, 3, 8, 16, 31, 64, 1000, 5000}) {
      INFO("operation " << static_cast<int>(function.map.formula.operation) << " type "
                        << static_cast<int>(function.map.formula.type) << " form "
                        << static_cast<int>(function.map.formula.form) << " entries " << n);
      Case c = case_of({n});
      // Twice, since a single map is not worth compiling. The first result may take its inputs'
      // registers only in the second.
      FusedStep step{.kind = FusedStep::Kind::kMap, .map = function.map};
      for (const EntryType type : function.inputs) {
        step.inputs[step.input_count++] = c.builder.load(c.add_operand(random, type), bytes_of(type));
      }
      for (int i = 0; i < 2; ++i) {
        step.value = c.builder.value(bytes_of(function.result), Extent::kElement);
        c.builder.kernel.steps.push_back(step);
        c.builder.store(c.add_operand(random, function.result), step.value);
      }
      c.builder.kernel.number_count = 2;
      const EntryType type = function.map.formula.type;
      c.numbers = {random_number(random, type), random_number(random, type)};
      for (const size_t runs : c.check()) REQUIRE(runs == 1);
    }
  }
}

// A random program over all functions; some operands are broadcast or transposed.
struct Generator {
  std::mt19937& random;
  const std::vector<Described>& functions;
  Case c;
  std::vector<std::vector<uint16_t>> values = std::vector<std::vector<uint16_t>>(5);  // by type

  int draw(int n) { return static_cast<int>(random() % n); }

  uint16_t value_of(EntryType type) {
    std::vector<uint16_t>& of_type = values[static_cast<size_t>(type)];
    if (of_type.empty() || draw(8) == 0) {
      const int64_t columns = c.space.sizes[1], rows = c.space.sizes[0];
      const int way = draw(8);
      const uint16_t operand = way == 0   ? c.add_operand(random, type, {0, 1})
                               : way == 1 ? c.add_operand(random, type, {1, 0})
                               : way == 2 ? c.add_operand(random, type, {1, rows})
                               : way == 3 ? c.add_operand(random, type, {2 * columns, 2})
                                          : c.add_operand(random, type);
      of_type.push_back(c.builder.load(operand, bytes_of(type)));
    }
    if (draw(20) == 0) of_type.push_back(c.builder.fill(static_cast<uint16_t>(draw(4)), bytes_of(type)));
    return of_type[draw(3) == 0 ? draw(static_cast<int>(of_type.size())) : of_type.size() - 1];
  }

  void run() {
    for (int i = 0; i < 4; ++i)
      c.numbers.push_back(random_number(random, draw(3) == 0 ? EntryType::kFloat64 : EntryType::kFloat32));
    const bool singles = draw(2) == 0;  // otherwise float64, too, which narrows vectors
    const int steps = 1 + draw(40);
    for (int i = 0; i < steps; ++i) {
      const Described* function;
      do {
        function = &functions[draw(static_cast<int>(functions.size()))];
      } while (singles && (function->result == EntryType::kFloat64 || function->inputs[0] == EntryType::kFloat64));
      FusedStep step{
          .kind = FusedStep::Kind::kMap, .first_number = static_cast<uint16_t>(draw(3)), .map = function->map};
      if (draw(12) == 0) step.map.formula = {};  // a function that is not known
      for (const EntryType type : function->inputs) step.inputs[step.input_count++] = value_of(type);
      step.value = c.builder.value(bytes_of(function->result), Extent::kElement);
      c.builder.kernel.steps.push_back(step);
      values[static_cast<size_t>(function->result)].push_back(step.value);
      if (i + 1 == steps || draw(6) == 0) store(function->result, step.value);
    }
    c.builder.kernel.number_count = 4;
  }
  // Beside, or over an operand that was loaded.
  void store(EntryType type, uint16_t value) {
    if (draw(3) == 0) {
      for (uint16_t o = 0; o < c.types.size(); ++o) {
        const FusedOperand& operand = c.space.operands[o];
        if (c.types[o] != type || stored(o) || (operand.strides[0] == 0 || operand.strides[1] == 0)) continue;
        return c.builder.store(o, value);
      }
    }
    c.builder.store(c.add_operand(random, type), value);
  }
  bool stored(uint16_t operand) const {
    return std::any_of(c.builder.kernel.steps.begin(), c.builder.kernel.steps.end(), [&](const FusedStep& it) {
      return it.kind == FusedStep::Kind::kStore && it.operand == operand;
    });
  }
};

TEST_CASE("compiled: random programs give the interpreter's bits") {
  const std::vector<Described> functions = all_functions();
  size_t compiled = 0, cut = 0;
  for (uint32_t seed = 0; seed < 600; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const bool long_rows = seed % 5 == 0;
    const auto rows = static_cast<int64_t>(1 + random() % (long_rows ? 6 : 40));
    const auto columns = static_cast<int64_t>(1 + random() % (long_rows ? 3000 : 60));
    Generator generator{random, functions, case_of({rows, columns})};
    generator.run();
    for (const size_t runs : generator.c.check()) {
      compiled += runs > 0;
      cut += runs > 1;
    }
  }
  if (sets().empty()) return;
  CHECK(compiled > 400);
  CHECK(cut > 50);
}

MapFunction add() { return describe<float, O::kAdd, NumberForm::kNone>().map; }
MapFunction multiply() { return describe<float, O::kMul, NumberForm::kNone>().map; }
MapFunction widen() {
  return convert<float, uint16_t, [](uint16_t x) { return bfloat16_to_float(x); }>(EntryType::kFloat32,
                                                                                   EntryType::kBFloat16)
      .map;
}
MapFunction narrow() {
  return convert<uint16_t, float, [](float x) { return float_to_bfloat16(x); }>(EntryType::kBFloat16,
                                                                                EntryType::kFloat32)
      .map;
}

TEST_CASE("compiled: every bfloat16 is rounded as the interpreter rounds, picked or computed") {
  constexpr auto kNone = NumberForm::kNone;
  const MapFunction picks[] = {describe<float, O::kRelu, kNone>().map, describe<float, O::kNegate, kNone>().map,
                               describe<float, O::kAbs, kNone>().map};
  std::mt19937 random(1);
  Case c = case_of({1 << 16});
  const uint16_t x = c.builder.map(widen(), 4, {c.builder.load(c.add_operand(random, EntryType::kBFloat16), 2)});
  for (int bits = 0; bits < 1 << 16; ++bits) store_entry(c.memory[0].data(), bits, static_cast<uint16_t>(bits));
  // Halfway between two of them, and beside that.
  const uint16_t y = c.builder.load(c.add_operand(random, EntryType::kFloat32), 4);
  for (int64_t i = 0; i < 1 << 16; ++i) {
    const uint32_t bits =
        static_cast<uint32_t>(i) << 16 | (i % 3 == 0 ? 0x8000 : static_cast<uint32_t>(random() % 65536));
    store_entry(c.memory[1].data(), i, std::bit_cast<float>(bits));
  }
  const auto put = [&](uint16_t value) {
    c.builder.store(c.add_operand(random, EntryType::kBFloat16), c.builder.map(narrow(), 2, {value}));
  };
  for (const MapFunction& pick : picks) put(c.builder.map(pick, 4, {x}));
  const uint16_t least = c.builder.map(describe<float, O::kMinimum, kNone>().map, 4, {x, x});
  put(c.builder.map(describe<float, O::kMaximum, kNone>().map, 4, {least, x}));
  put(c.builder.map(describe<float, O::kMinimum, kNone>().map, 4, {x, y}));  // y is no bfloat16
  put(c.builder.map(add(), 4, {x, y}));
  put(y);
  c.check();
}

// Eight steps on two operands.
Case chain(std::mt19937& random, int64_t n) {
  Case c = case_of({n});
  const uint16_t x = c.builder.load(c.add_operand(random, EntryType::kFloat32), 4);
  const uint16_t y = c.builder.load(c.add_operand(random, EntryType::kFloat32), 4);
  uint16_t z = x;
  for (int i = 0; i < 4; ++i) z = c.builder.map(multiply(), 4, {c.builder.map(add(), 4, {z, x}), y});
  c.builder.store(c.add_operand(random, EntryType::kFloat32), z);
  return c;
}

TEST_CASE("compiled: a chain is one step that needs no scratch memory for its values") {
  if (sets().empty()) return;
  std::mt19937 random(2);
  const Case c = chain(random, 10000);
  FusedLaunch launch;
  REQUIRE(prepare_fused(c.builder.kernel, c.space, launch).ok());
  CHECK(launch.is_compiled());
  CHECK(launch.program.steps.size() == 1);
  CHECK(launch.program.scratch_bytes == launch.program.table_bytes);
}

TEST_CASE("compiled: equal runs share code, which goes with the last program that has it") {
  if (sets().empty()) return;
  std::mt19937 random(3);
  const size_t before = ExecutableMemory::bytes_in_use();
  {
    FusedLaunch a, b;
    const Case c = chain(random, 100), d = chain(random, 77777);
    REQUIRE(prepare_fused(c.builder.kernel, c.space, a).ok());
    const size_t one = ExecutableMemory::bytes_in_use();
    CHECK(one > before);
    REQUIRE(prepare_fused(d.builder.kernel, d.space, b).ok());
    CHECK(ExecutableMemory::bytes_in_use() == one);
    const VectorCode* code = a.program.compiled[0].code.get();
    CHECK(code == b.program.compiled[0].code.get());
    // Preparing again, for another size, keeps the code.
    REQUIRE(prepare_fused(d.builder.kernel, d.space, a).ok());
    CHECK(code == a.program.compiled[0].code.get());
  }
  CHECK(ExecutableMemory::bytes_in_use() == before);
}

TEST_CASE("compiled: a run that needs more registers than there are is cut") {
  std::mt19937 random(4);
  Case c = case_of({1000});
  std::vector<uint16_t> values{c.builder.load(c.add_operand(random, EntryType::kFloat32), 4)};
  for (int i = 0; i < 50; ++i) values.push_back(c.builder.map(add(), 4, {values.back(), values[0]}));
  uint16_t sum = values[0];
  for (const uint16_t value : values) sum = c.builder.map(multiply(), 4, {sum, value});
  c.builder.store(c.add_operand(random, EntryType::kFloat32), sum);
  for (const size_t runs : c.check()) CHECK(runs > 1);
}

TEST_CASE("compiled: calls stay between runs, and loads that are gathered go before them") {
  std::mt19937 random(5);
  Case c = case_of({50, 60});
  const uint16_t x = c.builder.load(c.add_operand(random, EntryType::kFloat32), 4);
  uint16_t z = c.builder.map(multiply(), 4, {c.builder.map(add(), 4, {x, x}), x});
  // Transposed, so that it is gathered.
  const uint16_t y = c.builder.load(c.add_operand(random, EntryType::kFloat32, {1, 50}), 4);
  z = c.builder.map(multiply(), 4, {c.builder.map(add(), 4, {z, y}), x});
  SECTION("without a call") {
    c.builder.store(c.add_operand(random, EntryType::kFloat32), z);
    for (const size_t runs : c.check()) CHECK(runs == 1);
  }
  SECTION("with a call") {
    z = c.builder.map(kExp, 4, {z});
    z = c.builder.map(multiply(), 4, {c.builder.map(add(), 4, {z, y}), x});
    c.builder.store(c.add_operand(random, EntryType::kFloat32), z);
    for (const size_t runs : c.check()) CHECK(runs == 2);
  }
}

TEST_CASE("compiled: one code serves other numbers") {
  if (sets().empty()) return;
  std::mt19937 random(6);
  Case c = case_of({100});
  const uint16_t x = c.builder.load(c.add_operand(random, EntryType::kFloat32), 4);
  const MapFunction scale = describe<float, O::kMul, NumberForm::kRight>().map;
  c.builder.store(c.add_operand(random, EntryType::kFloat32),
                  c.builder.map(scale, 4, {c.builder.map(scale, 4, {x}, Extent::kElement, 0)}, Extent::kElement, 1));
  c.builder.kernel.number_count = 2;
  FusedLaunch launch;
  REQUIRE(prepare_fused(c.builder.kernel, c.space, launch).ok());
  REQUIRE(launch.is_compiled());
  for (const float factor : {2.0F, 3.0F}) {
    std::vector<float> in(100, 1), out(100);
    Number numbers[2] = {{.bits = 0}, {.bits = 0}};
    numbers[0].f32 = factor;
    numbers[1].f32 = 5;
    void* operands[] = {in.data(), out.data()};
    run_fused(launch, operands, numbers);
    CHECK(out == std::vector<float>(100, 5 * factor));
  }
}

TEST_CASE("compiled: rows and their reductions give the interpreter's bits") {
  for (const int64_t row : {5, 300, 5000, 90000}) {
    std::mt19937 random(7);
    Case c = case_of({3, row});
    c.space.row_rank = 1;
    const uint16_t x = c.builder.load(c.add_operand(random, EntryType::kFloat32), 4);
    const uint16_t y = c.builder.map(multiply(), 4, {c.builder.map(add(), 4, {x, x}), x});
    const uint16_t sum = c.builder.reduce(kMax<float>, 4, y);
    const uint16_t z = c.builder.map(multiply(), 4, {c.builder.map(add(), 4, {y, sum}), sum});
    c.builder.store(c.add_operand(random, EntryType::kFloat32), z);
    for (const size_t runs : c.check()) CHECK(runs >= 2);
  }
}

TEST_CASE("compiled: SiLU alone, and interpreted where there is no room for code") {
  if (sets().empty()) return;
  std::mt19937 random(9);
  Case c = case_of({1000});
  const uint16_t x = c.builder.load(c.add_operand(random, EntryType::kFloat32), 4);
  const MapFunction silu_map{map_unary<float, float, silu>, {O::kSilu, EntryType::kFloat32, {}, {}}};
  c.builder.store(c.add_operand(random, EntryType::kFloat32), c.builder.map(silu_map, 4, {x}));
  for (const size_t runs : c.check()) CHECK(runs == 1);
  const std::vector<uint8_t> code(kMaxCodeBytes - ExecutableMemory::bytes_in_use());
  const ExecutableMemory all = ExecutableMemory::copy(code, kMaxCodeBytes);
  REQUIRE(all);
  FusedLaunch launch;
  REQUIRE(prepare_fused(c.builder.kernel, c.space, launch).ok());
  CHECK(!launch.is_compiled());
}

TEST_CASE("compiled: where the system refuses executable memory, programs are interpreted") {
  constexpr int kSetMdwe = 65, kRefuseExecGain = 1;  // PR_SET_MDWE of Linux 6.3
  constexpr int kUnsupported = 7;
  const ChildOutcome outcome = run_in_child([] {
    if (prctl(kSetMdwe, kRefuseExecGain, 0, 0, 0) != 0) return kUnsupported;
    std::mt19937 random(8);
    Case c = chain(random, 12345);  // by a factor that no other test has compiled
    c.builder.store(c.add_operand(random, EntryType::kFloat32), c.builder.map(add(), 4, {0, 1}));
    FusedLaunch launch;
    if (!prepare_fused(c.builder.kernel, c.space, launch).ok() || launch.is_compiled()) return 1;
    if (compile_target() != InstructionSet::kPortable) return 2;
    std::vector<std::vector<char>> expected = c.memory, got = c.memory;
    run_fused(launch, Case::pointers(got).data(), nullptr);
    interpret(c.builder.kernel, c.space, Case::pointers(expected).data(), nullptr);
    return c.same(got, expected) ? 0 : 3;
  });
  if (sets().empty() || outcome.exit_code == kUnsupported) return;
  CHECK(outcome.exit_code == 0);
}

}  // namespace
}  // namespace hetero::backend
