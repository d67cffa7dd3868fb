// Generated CUDA kernels, and programs of the GPU's interpreter, give the bits of the tests'
// interpreter. They run on the CPU (cuda_emulation.h): what is tested is the source, the program
// and how they are called, not a GPU. That functions compute what PyTorch computes is
// tests/ops/cuda_formulas_test.cpp's matter.

#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "backend/cuda/fused/interpreter.h"
#include "backend/cuda/fused/nvrtc.h"
#include "backend/cuda/fused/source.h"
#include "backend/fused/formula.h"
#include "tests/backend/cpu/fused/fused_program.h"
#include "tests/backend/cpu/fused/portable_functions.h"
#include "tests/backend/cuda/cuda_emulation.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

using namespace testing;
using O = MapOperation;

// ---- Functions with names, on signed integers

template <typename T>
constexpr EntryType kTypeOf = sizeof(T) == 1   ? EntryType::kInt8
                              : sizeof(T) == 2 ? EntryType::kInt16
                              : sizeof(T) == 4 ? EntryType::kInt32
                                               : EntryType::kInt64;

template <typename T>
T wrap(uint64_t x) {
  return static_cast<T>(x);
}

template <typename T>
T inverted(T x) {
  return static_cast<T>(~x);
}
template <typename T>
T difference(T a, T b) {
  return wrap<T>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}
template <typename From, typename To>
To converted(From x) {
  return static_cast<To>(x);
}
// self + x * a * b
template <typename T>
void add_product(void* out, const void* const* in, const Number* numbers, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const auto entry = [&](int j) { return static_cast<uint64_t>(load_entry<T>(in[j], i)); };
    store_entry(out, i, wrap<T>(entry(0) + numbers[0].bits * entry(1) * entry(2)));
  }
}

// A function of so many operands of the type: ~a, a - b, and a + x * b * c.
template <typename T>
MapFunction function_of(int inputs) {
  const auto formula = [](O operation) { return MapFormula{operation, kTypeOf<T>, {}, NumberForm::kNone}; };
  switch (inputs) {
    case 1:
      return {&map_unary<T, T, inverted<T>>, formula(O::kBitwiseNot)};
    case 2:
      return {&map_binary<T, difference<T>>, formula(O::kSub)};
    default:
      return {&add_product<T>, formula(O::kAddcmul)};
  }
}
MapFunction function_of(int bytes, int inputs) {
  switch (bytes) {
    case 1:
      return function_of<int8_t>(inputs);
    case 2:
      return function_of<int16_t>(inputs);
    case 4:
      return function_of<int32_t>(inputs);
    default:
      return function_of<int64_t>(inputs);
  }
}

template <typename From, typename To>
MapFunction conversion() {
  return {&map_unary<To, From, converted<From, To>>, {O::kConvert, kTypeOf<To>, kTypeOf<From>, NumberForm::kNone}};
}
template <typename From>
MapFunction conversion_from(int to) {
  switch (to) {
    case 1:
      return conversion<From, int8_t>();
    case 2:
      return conversion<From, int16_t>();
    case 4:
      return conversion<From, int32_t>();
    default:
      return conversion<From, int64_t>();
  }
}
MapFunction conversion(int from, int to) {
  switch (from) {
    case 1:
      return conversion_from<int8_t>(to);
    case 2:
      return conversion_from<int16_t>(to);
    case 4:
      return conversion_from<int32_t>(to);
    default:
      return conversion_from<int64_t>(to);
  }
}

template <typename T>
Reducer named_reducer(Reducer reducer, ReduceOperation operation) {
  reducer.formula = {operation, kTypeOf<T>};
  return reducer;
}
// With a result of 8 bytes; null where there is none.
const Reducer* reducer_of(int bytes, bool sum) {
  static const Reducer total = named_reducer<int64_t>(kSum<int64_t, int64_t>, ReduceOperation::kSum);
  static const Reducer places[] = {named_reducer<int8_t>(kArgmax<int8_t>, ReduceOperation::kArgMaximum),
                                   named_reducer<int16_t>(kArgmax<int16_t>, ReduceOperation::kArgMaximum),
                                   named_reducer<int32_t>(kArgmax<int32_t>, ReduceOperation::kArgMaximum),
                                   named_reducer<int64_t>(kArgmax<int64_t>, ReduceOperation::kArgMaximum)};
  switch (bytes) {
    case 1:
      return &places[0];
    case 2:
      return &places[1];
    case 4:
      return &places[2];
    case 8:
      return sum ? &total : &places[3];
    default:
      return nullptr;
  }
}

// ---- Random kernels

// Gives the steps functions with names. False where the kernel has something that none fits.
bool give_names(RandomCase& c, std::mt19937& random) {
  const auto bytes = [&](uint16_t value) { return int{c.kernel.values[value].bytes}; };
  std::erase_if(c.kernel.steps, [](const FusedStep& it) { return it.kind == FusedStep::Kind::kCheck; });
  for (FusedStep& it : c.kernel.steps) {
    if (it.kind == FusedStep::Kind::kMap) {
      it.row_map = nullptr;
      if (bytes(it.value) > 8 || bytes(it.inputs[0]) > 8) return false;
      it.input_count = std::min<uint8_t>(it.input_count, 3);
      it.map = bytes(it.inputs[0]) == bytes(it.value) ? function_of(bytes(it.value), it.input_count)
                                                      : conversion(bytes(it.inputs[0]), bytes(it.value));
      it.first_number = std::min<uint16_t>(it.first_number, c.kernel.number_count - 1);
    } else if (it.kind == FusedStep::Kind::kReduce && it.reducer->parameter_bytes == 0) {
      it.reducer = reducer_of(bytes(it.inputs[0]), random() % 2 == 0);
      if (it.reducer == nullptr) return false;
    }
  }
  // A GPU's entries lie at multiples of their sizes.
  const int64_t shift = random() % 2 == 0 ? 8 : 0;
  for (uint16_t o = 0; o < c.kernel.operand_count; ++o) {
    c.space.operands[o].offset += shift;
    c.addresses[o].offset = c.space.operands[o].bytes == 16 && shift == 0 ? 8 : 0;
  }
  return true;
}

struct Trial {
  RandomCase c;
  size_t emulated[2];  // for any addresses, and for those that it has
};

std::vector<Trial> random_trials(size_t count, CudaEmulation& emulation) {
  std::vector<Trial> trials;
  for (uint32_t seed = 0; trials.size() < count; ++seed) {
    std::mt19937 random(seed);
    const bool is_long = seed % 4 == 0;
    RandomCase c = random_case(random, is_long ? 60000 : 3000, is_long);
    if (!give_names(c, random)) continue;
    REQUIRE(cuda_refusal(c.kernel) == nullptr);
    bool aligned = true;
    for (void* const address : c.pointers(c.memory))
      aligned = aligned && reinterpret_cast<uintptr_t>(address) % 16 == 0;
    Trial& trial = trials.emplace_back(Trial{std::move(c), {}});
    trial.emulated[0] = emulation.add(trial.c.kernel, trial.c.space, false);
    trial.emulated[1] = emulation.add(trial.c.kernel, trial.c.space, aligned);
  }
  return trials;
}

// run(which of the emulation, operands, numbers)
template <typename Run>
void check_bits(const std::vector<Trial>& trials, Run run) {
  for (size_t t = 0; t < trials.size(); ++t) {
    const RandomCase& c = trials[t].c;
    std::vector<std::vector<char>> expected = c.memory;
    interpret(c.kernel, c.space, c.pointers(expected).data(), c.numbers.data());
    for (const size_t which : trials[t].emulated) {
      INFO("trial " << t << " kernel " << which);
      std::vector<std::vector<char>> memory = c.memory;
      run(which, c.pointers(memory).data(), c.numbers.data());
      const bool same = memory == expected;
      REQUIRE(same);
    }
  }
}

TEST_CASE("cuda: random kernels give the bits of the definition") {
  if (!has_compiler()) return;
  CudaEmulation emulation;
  const std::vector<Trial> trials = random_trials(64, emulation);
  REQUIRE(emulation.compile() == "");
  check_bits(trials, [&](size_t which, void* const* operands, const Number* numbers) {
    emulation.run(which, operands, numbers);
  });
  const CudaEmulation::Ways ways = emulation.ways();
  CHECK(ways.entries > 15);
  CHECK(ways.warps > 15);
  CHECK(ways.blocks > 0);
  CHECK(ways.parts > 5);
  CHECK(ways.vectors > 15);
  CHECK(ways.stages > 3);
}

TEST_CASE("cuda: interpreted random kernels give the bits of the definition") {
  if (!has_fibers()) return;
  CudaEmulation emulation;
  check_bits(random_trials(256, emulation), [&](size_t which, void* const* operands, const Number* numbers) {
    REQUIRE(emulation.interpret(which, operands, numbers));
  });
}

// Rows of floats whose sums depend on their order: x - sum / 1000, in each order that a GPU's
// threads may have.
TEST_CASE("cuda: interpreted reductions give the bits of generated ones") {
  if (!has_compiler()) return;
  Reducer sum = kSum<float, float>;
  sum.formula = {ReduceOperation::kSum, EntryType::kFloat32};
  Reducer deviation = kSum<float, float>;  // only its name is used
  deviation.formula = {ReduceOperation::kSquaredDeviation, EntryType::kFloat32};
  const auto map = [](O operation) {
    return MapFunction(kAdd<float>.pointer, {operation, EntryType::kFloat32, {}, NumberForm::kNone});
  };
  KernelBuilder b;
  const uint16_t x = b.load(0, 4);
  const uint16_t total = b.reduce(sum, 4, x);
  const uint16_t centered = b.map(map(O::kSub), 4, {x, total});
  const uint16_t spread = b.reduce(deviation, 4, b.map(map(O::kMul), 4, {centered, x}));
  b.store(1, b.map(map(O::kDiv), 4, {centered, spread}));
  b.store(2, spread);
  struct Shape {
    int64_t rows, row;
  };
  CudaEmulation emulation;
  std::vector<Shape> shapes{{37, 52}, {37, 700}, {9, 3001}, {9, 4096}, {1, 50000}, {2, 65536}};
  for (const Shape shape : shapes) {
    FusedSpace space = dense_space({shape.rows, shape.row}, 1, 3, 4);
    space.operands[2].strides[0] = 4;
    space.operands[2].strides[1] = 0;
    for (const bool aligned : {false, true}) emulation.add(b.kernel, space, aligned);
  }
  REQUIRE(emulation.compile() == "");
  CHECK(emulation.ways().parts > 0);
  CHECK(emulation.ways().blocks > 0);
  CHECK(emulation.ways().warps > 0);
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (size_t which = 0; which < 2 * shapes.size(); ++which) {
    const Shape shape = shapes[which / 2];
    INFO(shape.rows << " rows of " << shape.row << ", kernel " << which);
    std::vector<float> input(static_cast<size_t>(shape.rows * shape.row));
    for (float& it : input) it = normal(random);
    std::vector<float> results[2][2];
    for (int way = 0; way < 2; ++way) {
      results[way][0].resize(input.size());
      results[way][1].resize(static_cast<size_t>(shape.rows));
      void* const operands[] = {input.data(), results[way][0].data(), results[way][1].data()};
      if (way == 0) {
        emulation.run(which, operands, nullptr);
      } else {
        REQUIRE(emulation.interpret(which, operands, nullptr));
      }
    }
    const bool same = results[0][0] == results[1][0] && results[0][1] == results[1][1];
    REQUIRE(same);
    REQUIRE(results[0][1][0] > 0);
  }
}

// A chain that keeps so many entries to its end.
FusedKernel chain(int entries) {
  KernelBuilder b;
  std::vector<uint16_t> loads;
  for (int i = 0; i < entries; ++i) loads.push_back(b.load(static_cast<uint16_t>(i % 2), 4));
  uint16_t last = loads.back();
  for (const uint16_t it : loads) last = b.map(function_of(4, 2), 4, {last, it});
  b.store(2, last);
  return b.kernel;
}

TEST_CASE("cuda: what is too large for the interpreter is told apart ahead, whatever the space will be") {
  REQUIRE(can_interpret(chain(100)));
  REQUIRE_FALSE(can_interpret(chain(200)));
  CudaEmulation emulation;
  const size_t small = emulation.add(chain(10), dense_space({64}, 0, 3, 4), false);
  const size_t medium = emulation.add(chain(100), dense_space({64}, 0, 3, 4), false);
  const size_t large = emulation.add(chain(200), dense_space({64}, 0, 3, 4), false);
  CHECK(emulation.interpreter_size(small) == 0);
  CHECK(emulation.interpreter_size(medium) == 1);
  CHECK(emulation.interpreter_size(large) == -1);

  int told = 0;
  for (const Trial& trial : random_trials(256, emulation)) {
    if (!can_interpret(trial.c.kernel)) continue;
    ++told;
    for (const size_t which : trial.emulated) REQUIRE(emulation.interpreter_size(which) >= 0);
  }
  REQUIRE(told > 200);
}

TEST_CASE("cuda: NVRTC compiles generated kernels for the GPUs that are supported") {
  const Nvrtc* const nvrtc = Nvrtc::get();
  if (nvrtc == nullptr) {
    WARN("NVRTC was not found: generated CUDA kernels are not compiled for GPUs");
    return;
  }
  int compiled = 0;
  for (uint32_t seed = 0; compiled < 12; ++seed) {
    std::mt19937 random(seed);
    const bool is_long = seed % 2 == 0;
    RandomCase c = random_case(random, is_long ? 60000 : 3000, is_long);
    if (!give_names(c, random)) continue;
    FusedLaunch launch;
    REQUIRE(prepare_fused(c.kernel, c.space, launch).ok());
    for (const CudaStage& stage : cuda_stages(c.kernel, c.space, launch).stages) {
      const CudaVariant variant = choose_variant(stage.kernel, stage.space, true, CudaEmulation::kMultiprocessors);
      const CudaSource source = write_source(stage.kernel, variant);
      for (const ComputeCapability capability : {ComputeCapability{8, 0}, ComputeCapability{9, 0}}) {
        const Result<std::string> code = nvrtc->compile(source.text, capability);
        INFO((code.ok() ? "" : code.status().message()));
        REQUIRE(code.ok());
        REQUIRE(code.value().size() > 100);
        ++compiled;
      }
    }
  }
}

}  // namespace
}  // namespace hetero::backend
