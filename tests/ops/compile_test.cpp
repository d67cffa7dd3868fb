// Compiled kernels have the bits of the vector functions, for every function whose formula can be
// compiled; and all have formulas. All NaNs count as equal.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "backend/cpu/fused/compile.h"
#include "backend/cpu/fused/launch.h"
#include "ops/fused/functions.h"

namespace hetero::ops {
namespace {

using backend::EntryType;
using backend::FusedStep;
using backend::InstructionSet;
using backend::MapFormula;
using backend::MapFunction;
using backend::MapOperation;
using backend::Number;

constexpr int64_t kEntries = 1009;  // the last vector is not full

// Entries of this size: floats, also special ones, or bools.
std::vector<char> random_entries(int bytes, std::mt19937& random) {
  std::vector<char> entries(kEntries * bytes);
  constexpr double kSpecial[] = {0.0,       -0.0, 1.0,   -1.0,   0.5,    -2.5, INFINITY,
                                 -INFINITY, NAN,  1e-45, 5e-324, 3.4e38, 1e308};
  std::normal_distribution<double> normal(0, 3);
  for (int64_t i = 0; i < kEntries; ++i) {
    const double value = random() % 3 == 0 ? kSpecial[random() % std::size(kSpecial)] : normal(random);
    char* const to = entries.data() + i * bytes;
    const auto single = static_cast<float>(value);
    const auto bits = static_cast<uint16_t>(random());
    if (bytes == 8) std::memcpy(to, &value, 8);
    if (bytes == 4) std::memcpy(to, &single, 4);
    if (bytes == 2) std::memcpy(to, &bits, 2);
    if (bytes == 1) *to = static_cast<char>(random() % 2);
  }
  return entries;
}

Number random_number(int bytes, std::mt19937& random) {
  Number number{.bits = 0};
  std::memcpy(&number, random_entries(bytes, random).data(), bytes);
  return number;
}

// Applies the function twice, to the same entries, since a single map is not compiled.
struct Application {
  backend::FusedKernel kernel;
  backend::FusedSpace space;
  std::vector<std::vector<char>> inputs;
  std::vector<Number> numbers;
  int result_bytes;

  Application(const MapFunction& map, int bytes, std::mt19937& random) : result_bytes(bytes) {
    const MapFormula& formula = map.formula;
    space.rank = 1;
    space.sizes[0] = kEntries;
    FusedStep call{.kind = FusedStep::Kind::kMap, .map = map};
    for (int j = 0; j < backend::input_count(formula); ++j) {
      const int size = backend::input_bytes(formula, j);
      inputs.push_back(random_entries(size, random));
      const uint16_t value = add_value(size);
      kernel.steps.push_back({.kind = FusedStep::Kind::kLoad, .value = value, .operand = add_operand(size)});
      call.inputs[call.input_count++] = value;
    }
    for (int i = 0; i < 2; ++i) {
      call.value = add_value(bytes);
      kernel.steps.push_back(call);
      kernel.steps.push_back({.kind = FusedStep::Kind::kStore, .value = call.value, .operand = add_operand(bytes)});
    }
    const int size = backend::input_bytes(formula, 0);
    numbers = {random_number(size, random), random_number(size, random)};
    kernel.number_count = 2;
  }

  uint16_t add_value(int bytes) {
    kernel.values.push_back({static_cast<uint8_t>(bytes), backend::Extent::kElement});
    return static_cast<uint16_t>(kernel.values.size() - 1);
  }
  uint16_t add_operand(int bytes) {
    backend::FusedOperand operand;
    operand.bytes = operand.strides[0] = bytes;
    space.operands.push_back(operand);
    return kernel.operand_count++;
  }

  // The results, and whether code made them.
  bool run(InstructionSet set, std::vector<char>& results) {
    backend::limit_instruction_set(set);
    backend::FusedLaunch launch;
    const Status status = backend::prepare_fused(kernel, space, launch);
    choose_instruction_set();
    EXPECT_TRUE(status.ok());
    results.assign(2 * kEntries * result_bytes, 0);
    std::vector<void*> operands;
    for (std::vector<char>& input : inputs) operands.push_back(input.data());
    operands.push_back(results.data());
    operands.push_back(results.data() + kEntries * result_bytes);
    backend::run_fused(launch, operands.data(), numbers.data());
    return launch.is_compiled();
  }
};

template <typename T>
bool same_or_nan(const char* a, const char* b) {
  T x, y;
  std::memcpy(&x, a, sizeof(T));
  std::memcpy(&y, b, sizeof(T));
  return std::memcmp(a, b, sizeof(T)) == 0 || (x != x && y != y);
}
bool same(at::ScalarType dtype, const char* a, const char* b) {
  switch (dtype) {
    case at::kDouble:
      return same_or_nan<double>(a, b);
    case at::kFloat:
      return same_or_nan<float>(a, b);
    case at::kHalf:
      return same_or_nan<c10::Half>(a, b);
    case at::kBFloat16:
      return same_or_nan<c10::BFloat16>(a, b);
    default:
      return std::memcmp(a, b, c10::elementSize(dtype)) == 0;
  }
}

// Whether the function could be compiled; fails where its code gives other bits.
bool check(const MapFunction& map, at::ScalarType result) {
  if (map == nullptr || !backend::can_generate(map.formula)) return false;
  std::mt19937 random(static_cast<unsigned>(map.formula.operation));
  for (int round = 0; round < 4; ++round) {
    Application application(map, static_cast<int>(c10::elementSize(result)), random);
    std::vector<char> interpreted, compiled;
    EXPECT_FALSE(application.run(InstructionSet::kPortable, interpreted));
    for (const InstructionSet set : {InstructionSet::kAvx2, InstructionSet::kAvx512}) {
      if (!backend::has_code_generator() || set > backend::instruction_set()) continue;
      EXPECT_TRUE(application.run(set, compiled));
      int different = 0;
      for (size_t at = 0; at < compiled.size(); at += c10::elementSize(result)) {
        different += !same(result, compiled.data() + at, interpreted.data() + at);
      }
      EXPECT_EQ(different, 0);
    }
  }
  return true;
}

TEST(Compile, CodeHasTheBitsOfTheFunctions) {
  if (backend::compile_target() == InstructionSet::kPortable) GTEST_SKIP() << "nothing is compiled here";
  int compiled = 0;
  for (const Form form : {Form::kTensors, Form::kNumberRight, Form::kNumberLeft}) {
    for (int function = 0; function < static_cast<int>(Function::kCount); ++function) {
      for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
        const auto common = static_cast<at::ScalarType>(dtype);
        const MapFunction map = functions().map(static_cast<Function>(function), form, common);
        SCOPED_TRACE(::testing::Message() << "form " << static_cast<int>(form) << " function " << function << " of "
                                          << c10::toString(common));
        const bool is_test = map != nullptr && map.formula.operation >= MapOperation::kEqual &&
                             map.formula.operation <= MapOperation::kGreaterEqual;
        const bool moves = map != nullptr && (map.formula.operation == MapOperation::kWhere ||
                                              map.formula.operation == MapOperation::kMaskedFill);
        compiled += check(map, is_test ? at::kBool : moves ? common : compute_dtype(common));
      }
    }
  }
  EXPECT_GT(compiled, 200);
}

TEST(Compile, CodeHasTheBitsOfTheCasts) {
  if (backend::compile_target() == InstructionSet::kPortable) GTEST_SKIP() << "nothing is compiled here";
  int compiled = 0;
  for (int from = 0; from < kDTypeCount; ++from) {
    for (int to = 0; to < kDTypeCount; ++to) {
      const auto result = static_cast<at::ScalarType>(to);
      SCOPED_TRACE(::testing::Message() << c10::toString(static_cast<at::ScalarType>(from)) << " to "
                                        << c10::toString(result));
      compiled += check(functions().cast(static_cast<at::ScalarType>(from), result), result);
    }
  }
  EXPECT_EQ(compiled, 12);
}

// What a device other than the CPU knows of a kernel is the names of its functions.
TEST(Formulas, EveryFunctionHasANameAndTheSignatureThatItSays) {
  int named = 0;
  for (const Form form : {Form::kTensors, Form::kNumberRight, Form::kNumberLeft}) {
    for (int function = 0; function < static_cast<int>(Function::kCount); ++function) {
      for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
        const MapFunction map =
            functions().map(static_cast<Function>(function), form, static_cast<at::ScalarType>(dtype));
        if (map == nullptr) continue;
        SCOPED_TRACE(::testing::Message() << "form " << static_cast<int>(form) << " function " << function << " of "
                                          << c10::toString(static_cast<at::ScalarType>(dtype)));
        EXPECT_EQ(static_cast<int>(map.formula.operation), function);
        EXPECT_STRNE(backend::traits(map.formula.operation).name, "");
        EXPECT_GE(backend::input_count(map.formula), 1);
        EXPECT_EQ(static_cast<int>(map.formula.form), static_cast<int>(form));
        ++named;
      }
    }
  }
  EXPECT_GT(named, 500);
}

TEST(Formulas, EveryCastAndReducerHasAName) {
  for (int from = 0; from < kDTypeCount; ++from) {
    for (int to = 0; to < kDTypeCount; ++to) {
      const MapFunction map = functions().cast(static_cast<at::ScalarType>(from), static_cast<at::ScalarType>(to));
      if (map == nullptr) continue;
      EXPECT_EQ(map.formula.operation, MapOperation::kConvert);
      EXPECT_EQ(backend::entry_bytes(map.formula.from),
                static_cast<int>(c10::elementSize(static_cast<at::ScalarType>(from))));
      EXPECT_EQ(backend::result_bytes(map.formula),
                static_cast<int>(c10::elementSize(static_cast<at::ScalarType>(to))));
    }
  }
  int named = 0;
  for (int reduction = 0; reduction < static_cast<int>(Reduction::kCount); ++reduction) {
    for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
      const auto as = static_cast<at::ScalarType>(dtype);
      const backend::Reducer* reducer = functions().reducer(static_cast<Reduction>(reduction), as);
      if (reducer == nullptr) continue;
      EXPECT_EQ(static_cast<int>(reducer->formula.operation), reduction);
      EXPECT_STRNE(backend::name_of(reducer->formula.operation), "");
      EXPECT_EQ(backend::input_bytes(reducer->formula), static_cast<int>(c10::elementSize(compute_dtype(as))));
      ++named;
    }
  }
  EXPECT_GT(named, 60);
}

}  // namespace
}  // namespace hetero::ops
