// What CUDA kernels compute is what the vector functions compute, for every function, cast and
// reducer of the table: bit by bit where the operation is exact, else within stated bounds. The
// kernels' text runs on the CPU (tests/backend/cuda/cuda_emulation.h), with the C library in the
// place of CUDA's mathematical functions. The interpreter's programs give the bits of the generated
// kernels.

#include <ATen/Version.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/fused/launch.h"
#include "backend/cuda/fused/nvrtc.h"
#include "backend/fused/formula.h"
#include "ops/fused/functions.h"
#include "tests/backend/cuda/cuda_emulation.h"

namespace hetero::ops {
namespace {

using backend::Extent;
using backend::FusedStep;
using backend::MapFormula;
using backend::MapFunction;
using backend::Number;
using backend::testing::CudaEmulation;

constexpr size_t kMaxOperands = 60;

// An entry as a real number.
double real_of(at::ScalarType dtype, const char* from) {
  const auto read = [&]<typename T>(T value) {
    std::memcpy(&value, from, sizeof(T));
    return static_cast<double>(value);
  };
  switch (dtype) {
    case at::kDouble:
      return read(double());
    case at::kFloat:
      return read(float());
    case at::kHalf:
      return read(c10::Half());
    case at::kBFloat16:
      return read(c10::BFloat16());
    case at::kLong:
      return read(int64_t());
    case at::kInt:
      return read(int32_t());
    case at::kShort:
      return read(int16_t());
    case at::kChar:
      return read(int8_t());
    default:
      return read(uint8_t());
  }
}
void write_real(at::ScalarType dtype, double value, char* to) {
  const auto write = [&]<typename T>(T entry) { std::memcpy(to, &entry, sizeof(T)); };
  switch (dtype) {
    case at::kDouble:
      return write(value);
    case at::kFloat:
      return write(static_cast<float>(value));
    case at::kHalf:
      return write(c10::Half(static_cast<float>(value)));
    case at::kBFloat16:
      return write(c10::BFloat16(static_cast<float>(value)));
    case at::kLong:
      return write(static_cast<int64_t>(value));
    case at::kInt:
      return write(static_cast<int32_t>(value));
    case at::kShort:
      return write(static_cast<int16_t>(value));
    case at::kChar:
      return write(static_cast<int8_t>(value));
    case at::kBool:
      return write(static_cast<uint8_t>(value != 0));
    default:
      return write(static_cast<uint8_t>(static_cast<int64_t>(value)));
  }
}

double epsilon_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
}

// Runs all kernels on the CPU, and compiles them for GPUs where the machine has NVRTC.
template <typename Trials>
void check_all(Trials& trials, CudaEmulation& emulation) {
  for (auto& it : trials) it.emulate_with(emulation);
  ASSERT_EQ(emulation.compile(), "");
  for (auto& it : trials) it.check(emulation);
  const backend::Nvrtc* const nvrtc = backend::Nvrtc::get();
  if (nvrtc == nullptr) {
    std::fprintf(stderr, "NVRTC was not found: generated CUDA kernels are not compiled for GPUs\n");
    return;
  }
  const std::vector<std::string> texts = emulation.texts();
  for (size_t i = 0; i < texts.size(); ++i) {
    // The two texts of a kernel go to different GPUs.
    const Result<std::string> code = nvrtc->compile(texts[i], {i % 2 == 0 ? 9 : 8, 0});
    EXPECT_TRUE(code.ok()) << (code.ok() ? "" : code.status().message().substr(0, 2000));
  }
}

// A kernel with its operands' memory, and what is expected of each of its results.
struct Trial {
  backend::FusedKernel kernel;
  backend::FusedSpace space;
  std::vector<std::vector<char>> memory;
  std::vector<Number> numbers;
  struct Result {
    std::string what;
    uint16_t operand;
    at::ScalarType dtype;
    double bound;                  // in epsilons; 0 for equal bits, but for NaNs
    std::vector<uint16_t> scales;  // operands whose sizes the error may have
    at::ScalarType scale_dtype;
  };
  std::vector<Result> results;
  size_t emulated[2];

  uint16_t value(int bytes, Extent extent) {
    kernel.values.push_back({static_cast<uint8_t>(bytes), extent});
    return static_cast<uint16_t>(kernel.values.size() - 1);
  }
  int64_t rows() const { return space.row_rank == 0 ? 1 : space.sizes[0]; }
  int64_t points() const { return space.rank == 1 ? space.sizes[0] : space.sizes[0] * space.sizes[1]; }

  uint16_t operand(int bytes, Extent extent) {
    backend::FusedOperand made;
    made.bytes = bytes;
    const bool row = extent == Extent::kRow;
    if (space.rank == 2) made.strides[0] = row ? bytes : bytes * space.sizes[1];
    if (!row) made.strides[space.rank - 1] = bytes;
    space.operands.push_back(made);
    memory.emplace_back(static_cast<size_t>((row ? rows() : points()) * bytes));
    return kernel.operand_count++;
  }
  template <typename Draw>
  uint16_t load(at::ScalarType dtype, Extent extent, Draw draw) {
    const int bytes = static_cast<int>(c10::elementSize(dtype));
    const uint16_t from = operand(bytes, extent);
    for (size_t at = 0; at < memory[from].size(); at += bytes) write_real(dtype, draw(), memory[from].data() + at);
    const uint16_t made = value(bytes, extent);
    kernel.steps.push_back({.kind = FusedStep::Kind::kLoad, .value = made, .operand = from});
    return made;
  }
  uint16_t store(uint16_t from) {
    const uint16_t to = operand(kernel.values[from].bytes, kernel.values[from].extent);
    kernel.steps.push_back({.kind = FusedStep::Kind::kStore, .value = from, .operand = to});
    return to;
  }
  // The operand that the value was loaded from.
  uint16_t source(uint16_t loaded) const {
    for (const FusedStep& it : kernel.steps) {
      if (it.kind == FusedStep::Kind::kLoad && it.value == loaded) return it.operand;
    }
    return 0;
  }

  std::vector<void*> pointers(std::vector<std::vector<char>>& in) const {
    std::vector<void*> list;
    for (std::vector<char>& it : in) list.push_back(it.data());
    return list;
  }
  void emulate_with(CudaEmulation& emulation) {
    kernel.number_count = static_cast<uint16_t>(numbers.size());
    ASSERT_STREQ(backend::cuda_refusal(kernel), nullptr);
    emulated[0] = emulation.add(kernel, space, false);
    emulated[1] = emulation.add(kernel, space, true);
  }
  void check(const CudaEmulation& emulation) {
    backend::FusedLaunch launch;
    ASSERT_TRUE(backend::prepare_fused(kernel, space, launch).ok());
    std::vector<std::vector<char>> expected = memory;
    backend::run_fused(launch, pointers(expected).data(), numbers.data());
    for (const size_t which : emulated) {
      std::vector<std::vector<char>> given = memory;
      emulation.run(which, pointers(given).data(), numbers.data());
      for (const Result& it : results) compare(it, expected[it.operand], given[it.operand]);
      std::vector<std::vector<char>> interpreted = memory;
      ASSERT_TRUE(emulation.interpret(which, pointers(interpreted).data(), numbers.data()));
      for (Result it : results) {
        it.what += ", interpreted";
        it.bound = 0;
        compare(it, given[it.operand], interpreted[it.operand]);
      }
    }
  }

 private:
  void compare(const Result& it, const std::vector<char>& expected, const std::vector<char>& given) const {
    const size_t bytes = c10::elementSize(it.dtype);
    int shown = 0;
    for (size_t at = 0; at < expected.size() && shown < 3; at += bytes) {
      const double a = real_of(it.dtype, expected.data() + at), b = real_of(it.dtype, given.data() + at);
      if (std::memcmp(expected.data() + at, given.data() + at, bytes) == 0 || (a != a && b != b)) continue;
      double scale = std::max({std::abs(a), std::abs(b), 1.0}), inputs = 1;
      std::string values;
      for (const uint16_t operand : it.scales) {
        const size_t index = at / bytes * c10::elementSize(it.scale_dtype);
        if (index >= memory[operand].size()) continue;
        const double input = real_of(it.scale_dtype, memory[operand].data() + index);
        values += " " + std::to_string(input);
        if (std::isfinite(input)) inputs *= std::max(1.0, std::abs(input));
      }
      if (it.bound > 0 && std::abs(a - b) <= it.bound * epsilon_of(it.dtype) * std::max(scale, inputs)) continue;
      ++shown;
      ADD_FAILURE() << it.what << ": entry " << at / bytes << " is " << b << " instead of " << a << ", of" << values;
    }
  }
};

// ---- Maps

// In epsilons of the largest of result, 1 and product of inputs.
double bound_of(const MapFormula& formula) {
  using F = Function;
  // What no compiler flags pin down.
  if (std::string(at::get_cpu_capability()) == "DEFAULT") return 64;
  if (formula.operation <= backend::kLastCompilable) return 0;
  switch (formula.operation) {
    case F::kSign:
    case F::kLogicalNot:
    case F::kBitwiseNot:
    case F::kFiniteOrZero:
    case F::kDivTrunc:
    case F::kInverseDeviation:
    case F::kNormPeak:
    case F::kNegatedProduct:
    case F::kHardtanhBackward:
    case F::kLeakyReluBackward:
    case F::kLerpNumber:
    case F::kLerp:
    case F::kMulAdd:
      return 0;
    case F::kSqrt:  // MKL's of doubles is not always the nearest
      return 1;
    case F::kExpFast:
      return 64;
    default:
      return backend::is_floating(formula.type) ? 16 : 0;
  }
}

bool moves_bits(Function function) { return function == Function::kWhere || function == Function::kMaskedFill; }

double draw_entry(at::ScalarType dtype, Function function, std::mt19937& random) {
  if (dtype == at::kBool) return random() % 2;
  if (c10::isIntegralType(dtype, false)) return static_cast<double>(random() % 200) - (dtype == at::kByte ? 0 : 100);
  constexpr double kSpecial[] = {0.0, -0.0, 1.0, -1.0, 0.5, -2.5, INFINITY, -INFINITY, NAN};
  // Quotients that overflow are one of SLEEF's weak points.
  const bool is_modulus = function == Function::kFmod || function == Function::kRemainder ||
                          function == Function::kDivFloor || function == Function::kDivTrunc;
  if (!is_modulus && random() % 4 == 0) return kSpecial[random() % std::size(kSpecial)];
  const double value = std::normal_distribution<double>(0, 3)(random);
  return is_modulus ? std::round(value * 8) / 8 + 0.0625 : value;
}

Number draw_number(const MapFormula& formula, int which, std::mt19937& random) {
  Number number{.bits = 0};
  const double value = std::array{2.5, 1.5, -0.5, 3.0}[(random() + which) % 4];
  if (backend::traits(formula.operation).number_type == backend::OperationTraits::NumberType::kDouble ||
      (formula.operation == Function::kPow && formula.form == backend::NumberForm::kRight &&
       backend::is_floating(formula.type))) {
    number.f64 = value;
  } else if (formula.type == backend::EntryType::kFloat64) {
    number.f64 = value;
  } else if (formula.type == backend::EntryType::kFloat32) {
    number.f32 = static_cast<float>(value);
  } else {
    number.i64 = formula.type == backend::EntryType::kBool ? random() % 2 : 3;
  }
  return number;
}

void add_map(Trial& trial, Function function, Form form, at::ScalarType dtype, std::mt19937& random) {
  const MapFunction map = functions().map(function, form, dtype);
  const MapFormula& formula = map.formula;
  const at::ScalarType type = moves_bits(function) ? dtype : compute_dtype(dtype);
  FusedStep step{.kind = FusedStep::Kind::kMap, .map = map};
  Trial::Result result{.what = std::string(backend::traits(function).name) + " form " +
                               std::to_string(static_cast<int>(form)) + " of " + c10::toString(dtype),
                       .operand = 0,
                       .dtype = type,
                       .bound = bound_of(formula),
                       .scales = {},
                       .scale_dtype = type};
  const bool is_test = backend::traits(function).result == backend::OperationTraits::Result::kBool;
  if (is_test) result.dtype = at::kBool;
  for (int j = 0; j < backend::input_count(formula); ++j) {
    const bool is_condition = moves_bits(function) && j == (function == Function::kWhere ? 0 : 1);
    const uint16_t input = trial.load(is_condition ? at::kBool : type, Extent::kElement,
                                      [&] { return draw_entry(is_condition ? at::kBool : dtype, function, random); });
    step.inputs[step.input_count++] = input;
    if (!is_condition) result.scales.push_back(trial.source(input));
  }
  step.first_number = static_cast<uint16_t>(trial.numbers.size());
  for (int k = 0; k < backend::number_count(formula); ++k) trial.numbers.push_back(draw_number(formula, k, random));
  step.value = trial.value(backend::result_bytes(formula), Extent::kElement);
  trial.kernel.steps.push_back(step);
  result.operand = trial.store(step.value);
  trial.results.push_back(result);
}

TEST(CudaFormulas, EveryFunctionComputesWhatTheVectorFunctionDoes) {
  if (!backend::testing::has_compiler()) GTEST_SKIP();
  std::mt19937 random(1);
  std::vector<Trial> trials;
  const auto next = [&] {
    Trial& trial = trials.emplace_back();
    trial.space.rank = 1;
    trial.space.sizes[0] = 712;
  };
  int maps = 0;
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    for (const Form form : {Form::kTensors, Form::kNumberRight, Form::kNumberLeft}) {
      for (int function = 0; function < static_cast<int>(Function::kCount); ++function) {
        const auto as = static_cast<at::ScalarType>(dtype);
        if (functions().map(static_cast<Function>(function), form, as) == nullptr) continue;
        if (trials.empty() || trials.back().space.operands.size() + 4 > kMaxOperands) next();
        add_map(trials.back(), static_cast<Function>(function), form, as, random);
        ++maps;
      }
    }
  }
  EXPECT_GT(maps, 500);
  CudaEmulation emulation;
  check_all(trials, emulation);
}

TEST(CudaFormulas, EveryCastComputesWhatTheVectorFunctionDoes) {
  if (!backend::testing::has_compiler()) GTEST_SKIP();
  std::mt19937 random(2);
  std::vector<Trial> trials;
  for (int from = 0; from < kDTypeCount; ++from) {
    const auto source = static_cast<at::ScalarType>(from);
    if (!is_fusible(source)) continue;
    Trial trial;
    trial.space.rank = 1;
    trial.space.sizes[0] = 712;
    // Also between what integers can hold, and for half types what they must round.
    const uint16_t input = trial.load(source, Extent::kElement, [&] {
      return source == at::kBool   ? random() % 2
             : source == at::kByte ? random() % 256
                                   : std::uniform_real_distribution<double>(-100, 100)(random);
    });
    for (int to = 0; to < kDTypeCount; ++to) {
      const auto target = static_cast<at::ScalarType>(to);
      const MapFunction map = functions().cast(source, target);
      if (map == nullptr) continue;
      FusedStep step{.kind = FusedStep::Kind::kMap, .input_count = 1, .map = map};
      step.inputs[0] = input;
      step.value = trial.value(static_cast<int>(c10::elementSize(target)), Extent::kElement);
      trial.kernel.steps.push_back(step);
      trial.results.push_back({.what = std::string(c10::toString(source)) + " to " + c10::toString(target),
                               .operand = trial.store(step.value),
                               .dtype = target,
                               .bound = 0,
                               .scales = {trial.source(input)},
                               .scale_dtype = source});
    }
    if (!trial.results.empty()) trials.push_back(std::move(trial));
  }
  EXPECT_EQ(trials.size(), 10);
  CudaEmulation emulation;
  check_all(trials, emulation);
}

// ---- Reducers

// In epsilons of the result, where entries are quarters, whose sums are exact.
double bound_of(Reduction reduction, at::ScalarType dtype, int64_t row) {
  if (!c10::isFloatingType(dtype)) return 0;
  switch (reduction) {
    case Reduction::kProduct:
    case Reduction::kSquaredDeviation:
    case Reduction::kSumExpFast:
      return 32 + 2 * std::sqrt(static_cast<double>(row));
    default:
      return 0;
  }
}

void add_reduction(Trial& trial, Reduction reduction, at::ScalarType dtype, std::mt19937& random) {
  const backend::Reducer* reducer = functions().reducer(reduction, dtype);
  const bool floating = c10::isFloatingType(dtype);
  const bool product = reduction == Reduction::kProduct;
  int drawn = 0;
  const uint16_t input = trial.load(dtype, Extent::kElement, [&]() -> double {
    if (dtype == at::kBool) return random() % 200 != 0;
    if (floating && product) return random() % 2 == 0 ? 0.998 : 1.0025;
    if (floating && ++drawn % 3001 == 3000 && reduction != Reduction::kSum) return NAN;
    return (static_cast<double>(random() % 64) - (dtype == at::kByte ? 0 : 32)) / (floating ? 4 : 1);
  });
  FusedStep step{.kind = FusedStep::Kind::kReduce, .input_count = 1, .reducer = reducer};
  step.inputs[0] = input;
  if (reducer->parameter_bytes != 0) {
    step.inputs[step.input_count++] =
        trial.load(dtype, Extent::kRow, [&] { return reduction == Reduction::kSumExpFast ? 8.0 : random() % 8 / 4.0; });
  }
  step.value = trial.value(backend::result_bytes(reducer->formula), Extent::kRow);
  trial.kernel.steps.push_back(step);
  const bool is_place = reduction == Reduction::kArgMaximum || reduction == Reduction::kArgMinimum;
  trial.results.push_back({.what = std::string(backend::name_of(reduction)) + " of " + c10::toString(dtype) +
                                   " rows of " + std::to_string(trial.space.sizes[1]),
                           .operand = trial.store(step.value),
                           .dtype = is_place ? at::kLong : dtype,
                           .bound = bound_of(reduction, dtype, trial.space.sizes[1]),
                           .scales = {},
                           .scale_dtype = dtype});
}

TEST(CudaFormulas, EveryReducerComputesWhatTheCpuDoes) {
  if (!backend::testing::has_compiler()) GTEST_SKIP();
  std::mt19937 random(3);
  std::vector<Trial> trials;
  int reducers = 0;
  struct Shape {
    int64_t rows, row;
  };
  // A warp, a block, several blocks, and none.
  for (const Shape shape : {Shape{11, 700}, Shape{5, 4003}, Shape{2, 20000}, Shape{3, 0}}) {
    for (const at::ScalarType dtype :
         {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kFloat, at::kDouble, at::kBool}) {
      Trial& trial = trials.emplace_back();
      trial.space.rank = 2;
      trial.space.row_rank = 1;
      trial.space.sizes[0] = shape.rows;
      trial.space.sizes[1] = shape.row;
      for (int reduction = 0; reduction < static_cast<int>(Reduction::kCount); ++reduction) {
        if (functions().reducer(static_cast<Reduction>(reduction), dtype) == nullptr) continue;
        add_reduction(trial, static_cast<Reduction>(reduction), dtype, random);
        ++reducers;
      }
    }
  }
  EXPECT_GT(reducers, 150);
  CudaEmulation emulation;
  check_all(trials, emulation);
  EXPECT_GT(emulation.ways().parts, 0);
  EXPECT_GT(emulation.ways().blocks, 0);
}

}  // namespace
}  // namespace hetero::ops
