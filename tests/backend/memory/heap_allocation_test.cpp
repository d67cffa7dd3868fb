// What runs in every step takes no memory from the heap once it has run before. The tests count
// calls of operator new; sanitizers bring their own, so there they are left out.

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "backend/cpu/fused/launch.h"
#include "backend/cpu/kernels/panel_gemm.h"
#include "backend/cuda/fused/engine.h"
#include "tests/backend/cpu/fused/fused_program.h"
#include "tests/backend/cpu/fused/portable_functions.h"
#include "tests/catch/catch.h"

namespace {
thread_local long heap_allocations = 0;

void* count_and_allocate(size_t bytes, size_t alignment) {
  ++heap_allocations;
  if (void* memory = std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment)) return memory;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(size_t bytes) { return count_and_allocate(bytes, 16); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return count_and_allocate(bytes, static_cast<size_t>(alignment));
}
// Not inlined: g++ 12 takes an inlined free() of a pointer from operator new for a mistake.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace hetero::backend::testing {

TEST_CASE("preparing and running fused kernels allocates nothing in the long run") {
  KernelBuilder b;
  const uint16_t x = b.load(0, 4);
  const uint16_t sum = b.reduce(kSum<float, float>, 4, x);
  uint16_t y = b.map(kAdd<float>, 4, {x, sum});
  y = b.map(kMultiply<float>, 4, {y, b.load(1, 4)});
  b.store(2, y);
  const int64_t sizes[][2] = {{3, 5}, {100, 7}, {2, 100000}, {40, 3000}};
  std::vector<FusedSpace> spaces;
  for (const auto& [rows, row] : sizes) {
    spaces.push_back(dense_space({rows, row}, 1, 3, 4));
    spaces.push_back(spaces.back());
    spaces.back().operands[1].strides[0] = 4;  // transposed
    spaces.back().operands[1].strides[1] = 4 * rows;
  }
  std::vector<float> memory(3 * 200000);
  void* operands[] = {memory.data(), memory.data() + 200000, memory.data() + 400000};
  FusedLaunch launch;
  long last = 0;
  for (int round = 0; round < 3; ++round) {
    const long before = heap_allocations;
    for (const FusedSpace& space : spaces) {
      if (!prepare_fused(b.kernel, space, launch).ok()) throw std::bad_alloc();
      run_fused(launch, operands, nullptr);
    }
    last = heap_allocations - before;
    if (round == 0) CHECK(last > 0);
  }
  CHECK(last == 0);
}

TEST_CASE("products of one x allocate nothing in the long run") {
  constexpr int64_t kDepth = 40;
  // Zeros, for x, the weights and the results of both calls.
  std::vector<uint16_t> x(20 * kDepth), w(70 * kDepth), y(2 * 20 * 70);
  const auto allocations = [&](int64_t m, const auto& run) {
    std::vector<Matvec> calls;
    for (const int64_t n : {70, 9}) {
      calls.push_back({.element = Element::kBfloat16,
                       .m = m,
                       .n = n,
                       .k = kDepth,
                       .x = x.data(),
                       .x_stride = kDepth,
                       .w = w.data(),
                       .w_stride = kDepth,
                       .y = y.data() + 20 * 70 * static_cast<int64_t>(calls.size()),
                       .y_stride = n});
    }
    long last = 0;
    for (int round = 0; round < 3; ++round) {
      const long before = heap_allocations;
      run(calls);
      last = heap_allocations - before;
    }
    return last;
  };
  CHECK(allocations(8, [](const std::vector<Matvec>& calls) { matvec(calls); }) == 0);
  if (has_panels()) CHECK(allocations(20, [](const std::vector<Matvec>& calls) { panel_gemm(calls); }) == 0);
}

// A machine that runs nothing.
struct IdleMachine final : CudaMachine {
  int multiprocessors() const override { return 4; }
  Result<std::vector<void*>> load(const std::string&, const std::vector<std::string>& names) override {
    return std::vector<void*>(names.size());
  }
  Status launch(void*, unsigned, unsigned, void*, void*) override { return {}; }
  Result<void*> allocate(size_t) override { return static_cast<void*>(&memory); }
  uint64_t memory = 0;
};
struct IdleCompiler final : CudaCompiler {
  std::string target() const override { return ""; }
  Result<std::string> compile(const std::string&) override { return std::string("code"); }
};

TEST_CASE("a fused kernel that the CUDA engine knows is launched without allocating") {
  Reducer sum = kSum<float, float>;
  sum.formula = {ReduceOperation::kSum, EntryType::kFloat32};
  KernelBuilder b;
  const uint16_t by_row = b.reduce(sum, 4, b.load(0, 4));
  b.store(1, by_row);
  b.store(2, b.total(sum, 4, by_row));
  FusedSpace space = dense_space({50, 3000}, 1, 3, 4);
  space.operands[1].strides[1] = space.operands[2].strides[0] = space.operands[2].strides[1] = 0;
  FusedLaunch launch;
  REQUIRE(prepare_fused(b.kernel, space, launch).ok());
  for (const bool is_compiled : {true, false}) {
    IdleMachine machine;
    IdleCompiler compiler;
    FusedEngine engine(machine, is_compiled ? &compiler : nullptr, {.interpreter = is_compiled ? "" : "interpreter"});
    launch.device_part.clear();
    void* const operands[3] = {};
    long last = 0;
    for (int round = 0; round < 3; ++round) {
      const long before = heap_allocations;
      const bool ok = engine.run({b.kernel, space, launch, operands, nullptr}, nullptr).ok();
      last = heap_allocations - before;
      CHECK(ok);
      if (round == 0) CHECK(last > 0);
    }
    CHECK(last == 0);
    CHECK((engine.counters().interpreted > 0) == !is_compiled);
  }
}

}  // namespace hetero::backend::testing

#endif
