// Running a fused kernel, and preparing it for other sizes, takes no memory from the heap once it has run before. The test counts calls
// of operator new; sanitizers bring their own, so there it is left out.

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#include <cstdlib>
#include <new>
#include <vector>

#include "backend/cpu/fused_launch.h"
#include "tests/backend/catch.h"
#include "tests/backend/fused_program.h"
#include "tests/backend/portable_functions.h"

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
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

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

}  // namespace hetero::backend::testing

#endif
