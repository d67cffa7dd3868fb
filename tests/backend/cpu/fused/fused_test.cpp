#include "backend/cpu/fused/launch.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "backend/base/parallel.h"
#include "tests/backend/cpu/fused/fused_program.h"
#include "tests/backend/cpu/fused/portable_functions.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

using namespace testing;

// Runs each range on a thread of its own.
template <int kThreads>
inline constexpr ParallelPool kPool = {[](int64_t begin, int64_t end, int64_t grain, RangeFunction body) {
                                         const int64_t share = std::max(grain, (end - begin + kThreads - 1) / kThreads);
                                         std::vector<std::thread> threads;
                                         for (int64_t at = begin; at < end; at += share) {
                                           threads.emplace_back([=] { body(at, std::min(at + share, end)); });
                                         }
                                         for (std::thread& thread : threads) thread.join();
                                       },
                                       [] { return int64_t{kThreads}; }};

struct PoolScope {
  explicit PoolScope(const ParallelPool& pool) { set_parallel_pool(&pool); }
  ~PoolScope() { set_parallel_pool(nullptr); }
};

// Prepares with a launch that was used before, runs, and compares all memory.
void check_case(const RandomCase& c, FusedLaunch& launch) {
  const Status status = prepare_fused(c.kernel, c.space, launch);
  INFO((status.ok() ? "" : status.message()));
  REQUIRE(status.ok());
  std::vector<std::vector<char>> expected = c.memory;
  const bool holds = interpret(c.kernel, c.space, c.pointers(expected).data(), c.numbers.data());
  std::vector<std::vector<char>> memory = c.memory;
  CHECK(run_fused(launch, c.pointers(memory).data(), c.numbers.data()) == holds);
  const bool same = memory == expected;
  REQUIRE(same);
}

// The same in parts, the last one first. Where operands share memory, a part may read what another
// has written. False for a launch that runs as a whole.
bool check_parts(const RandomCase& c, FusedLaunch& launch) {
  REQUIRE(prepare_fused(c.kernel, c.space, launch).ok());
  const int64_t unit = part_entries(launch);
  if (unit == 0 || !launch.pairs.empty()) return false;
  std::vector<std::vector<char>> expected = c.memory, memory = c.memory;
  run_fused(launch, c.pointers(expected).data(), c.numbers.data());
  const int64_t all = launch.space.rows * launch.space.row, part = (all / unit / 3 + 1) * unit;
  for (int64_t end = all; end > 0; end -= part) {
    run_fused_part(launch, c.pointers(memory).data(), c.numbers.data(), std::max<int64_t>(0, end - part), end);
  }
  const bool same = memory == expected;
  REQUIRE(same);
  return true;
}

// Which ways of running the random kernels took.
struct Ways {
  int in_place = 0, careful = 0, several_rows = 0, tiles = 0, streamed = 0, phases = 0, kept = 0, split = 0;
  int stages = 0, checks = 0, row_maps = 0;

  void add(const FusedLaunch& launch) {
    stages += !launch.stages.empty();
    for (const FusedStage& stage : launch.stages) {
      checks += !stage.checks.empty();
      add(stage.launch);
    }
    if (launch.empty) return;
    const FusedProgram& program = launch.program;
    const auto has = [&](Place::Kind kind) {
      return std::any_of(program.places.begin(), program.places.end(),
                         [&](const Place& it) { return it.kind == kind; });
    };
    row_maps += std::any_of(program.steps.begin(), program.steps.end(),
                            [](const ProgramStep& it) { return it.kind == ProgramStep::Kind::kRowMap; });
    in_place += has(Place::Kind::kElements);
    kept += has(Place::Kind::kKept);
    careful += !launch.pairs.empty();
    several_rows += program.rows_per_block > 1;
    tiles += program.rows_per_block > 1 && program.pieces > 1;
    streamed += program.streamed;
    phases += program.phases.size() > 1;
    split += program.streamed && program.pieces > program.stretch && program.groups < thread_count();
  }
};

void check_random(uint32_t first_seed, int count, int64_t entries, bool long_rows, Ways& ways) {
  FusedLaunch launch;
  for (uint32_t seed = first_seed; seed < first_seed + count; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    check_case(random_case(random, entries, long_rows), launch);
    ways.add(launch);
  }
}

TEST_CASE("random kernels compute what an interpreter computes") {
  Ways ways;
  check_random(0, 2000, 600, false, ways);
  check_random(2000, 400, 20000, false, ways);
  check_random(3000, 60, 150000, true, ways);
  CHECK(ways.in_place > 100);
  CHECK(ways.careful > 100);
  CHECK(ways.several_rows > 100);
  CHECK(ways.tiles > 5);
  CHECK(ways.streamed > 10);
  CHECK(ways.phases > 5);
  CHECK(ways.kept > 5);
  CHECK(ways.stages > 100);
  CHECK(ways.checks > 50);
  CHECK(ways.row_maps > 10);
}

TEST_CASE("random kernels on several threads compute what an interpreter computes") {
  const PoolScope scope(kPool<3>);
  Ways ways;
  check_random(1000, 20, 150000, false, ways);
  check_random(5000, 60, 150000, true, ways);
  CHECK(ways.split > 5);
}

TEST_CASE("kernels compute in parts what they compute at once") {
  FusedLaunch launch;
  int in_parts = 0;
  for (uint32_t seed = 0; seed < 1500; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    in_parts += check_parts(random_case(random, seed % 10 == 0 ? 20000 : 600, false), launch);
  }
  CHECK(in_parts > 100);
}

// x * (w + w) + b, of a w and a b for each column.
TEST_CASE("what is the same in all rows is computed once") {
  KernelBuilder b;
  const uint16_t w = b.load(1, 4), twice = b.map(kAdd<float>, 4, {w, w});
  b.store(3, b.map(kAdd<float>, 4, {b.map(kMultiply<float>, 4, {b.load(0, 4), twice}), b.load(2, 4)}));
  for (const int64_t row : {5, 200, 700, 2048, 3000}) {
    const int64_t rows = 37;
    FusedSpace space = dense_space({rows, row}, 0, 4, 4);
    for (const size_t operand : {1u, 2u}) space.operands[operand].strides[0] = 0;
    FusedLaunch launch;
    REQUIRE(prepare_fused(b.kernel, space, launch).ok());
    const bool once = row <= 2048;
    CHECK((launch.program.task.end - launch.program.task.begin >= 2) == once);
    CHECK((part_entries(launch) == row) == once);
    std::vector<float> x(rows * row), ws(row), bs(row), y(rows * row), parts(rows * row);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 31);
    for (size_t i = 0; i < ws.size(); ++i) ws[i] = static_cast<float>(i % 7), bs[i] = static_cast<float>(i % 5);
    void* operands[] = {x.data(), ws.data(), bs.data(), y.data()};
    run_fused(launch, operands, nullptr);
    size_t different = 0;
    for (int64_t i = 0; i < rows * row; ++i) different += y[i] != x[i] * 2 * ws[i % row] + bs[i % row];
    REQUIRE(different == 0);
  }
}

// x, then the parts of a softmax along the rows.
FusedKernel softmax() {
  KernelBuilder b;
  const uint16_t x = b.load(0, 4);
  const uint16_t shifted = b.map(kSubtract<float>, 4, {x, b.reduce(kMax<float>, 4, x)});
  const uint16_t exponential = b.map(kExp, 4, {shifted});
  b.store(1, b.map(kDivide<float>, 4, {exponential, b.reduce(kSum<float, float>, 4, exponential)}));
  return b.kernel;
}

std::vector<float> run_softmax(int64_t rows, int64_t row, bool in_place) {
  FusedSpace space = dense_space({rows, row}, 1, 2, 4);
  FusedLaunch launch;
  REQUIRE(prepare_fused(softmax(), space, launch).ok());
  std::vector<float> x(rows * row), y(rows * row);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 97) / 97;
  void* operands[] = {x.data(), in_place ? x.data() : y.data()};
  run_fused(launch, operands, nullptr);
  return in_place ? x : y;
}

TEST_CASE("one huge row is reduced on all threads, to the bits of one thread") {
  const int64_t row = (int64_t{1} << 21) + 77;
  const std::vector<float> alone = run_softmax(1, row, false);
  REQUIRE(std::abs(std::accumulate(alone.begin(), alone.end(), 0.0) - 1) < 1e-3);
  const PoolScope scope(kPool<3>);
  const bool same = run_softmax(1, row, false) == alone;
  REQUIRE(same);
  const bool same_in_place = run_softmax(1, row, true) == alone;
  REQUIRE(same_in_place);
}

TEST_CASE("a kernel in place gives the bits of one beside") {
  for (const int64_t row : {1, 7, 300, 5000, 40000}) {
    const bool same = run_softmax(5, row, true) == run_softmax(5, row, false);
    CHECK(same);
  }
}

TEST_CASE("a space of size zero runs nothing") {
  KernelBuilder b;
  b.store(1, b.map(kAdd<float>, 4, {b.load(0, 4), b.load(0, 4)}));
  FusedLaunch launch;
  REQUIRE(prepare_fused(b.kernel, dense_space({3, 0, 2}, 0, 2, 4), launch).ok());
  void* operands[] = {nullptr, nullptr};
  run_fused(launch, operands, nullptr);
}

TEST_CASE("a reduction of empty rows gives what begin and finish give") {
  KernelBuilder b;
  const uint16_t x = b.load(0, 4);
  b.store(1, b.reduce(kSum<float, float>, 4, x));
  b.store(2, b.reduce(kArgmax<float>, 8, x));
  FusedSpace space = dense_space({2, 0}, 1, 3, 4);
  for (const int o : {1, 2}) {
    space.operands[o].bytes = 4 * o;
    space.operands[o].strides[0] = 4 * o;
    space.operands[o].strides[1] = 0;
  }
  FusedLaunch launch;
  REQUIRE(prepare_fused(b.kernel, space, launch).ok());
  std::vector<float> sums{5, 5};
  std::vector<int64_t> indices{5, 5};
  void* operands[] = {nullptr, sums.data(), indices.data()};
  run_fused(launch, operands, nullptr);
  REQUIRE(sums == std::vector<float>{0, 0});
  REQUIRE(indices == std::vector<int64_t>{-1, -1});
}

TEST_CASE("a thousand steps over a few entries share a few arrays") {
  KernelBuilder b;
  const uint16_t x = b.load(0, 4);
  uint16_t sum = x;
  for (int i = 0; i < 1000; ++i) sum = b.map(kAdd<float>, 4, {sum, x});
  b.store(1, sum);
  FusedLaunch launch;
  REQUIRE(prepare_fused(b.kernel, dense_space({16}, 0, 2, 4), launch).ok());
  CHECK(launch.program.steps.size() == 1000);
  CHECK(launch.program.scratch_bytes < 1024);
  std::vector<float> in(16, 1), out(16);
  void* operands[] = {in.data(), out.data()};
  run_fused(launch, operands, nullptr);
  REQUIRE(out == std::vector<float>(16, 1001));
}

TEST_CASE("contiguous operands are read and written in place, also where they are broadcast along the rows") {
  KernelBuilder b;
  b.store(2, b.map(kAdd<float>, 4, {b.load(0, 4), b.load(1, 4)}));
  FusedSpace space = dense_space({8, 1000}, 0, 3, 4);
  FusedLaunch launch;
  REQUIRE(prepare_fused(b.kernel, space, launch).ok());
  CHECK(launch.program.steps.size() == 1);
  space.operands[1].strides[0] = 0;
  REQUIRE(prepare_fused(b.kernel, space, launch).ok());
  CHECK(launch.program.steps.size() == 1);
}

TEST_CASE("an operand is read before another of the same address is written") {
  // out = x + y; other = out * x, where out has the address of x.
  KernelBuilder b;
  const uint16_t x = b.load(0, 4);
  const uint16_t out = b.map(kAdd<float>, 4, {x, b.load(1, 4)});
  b.store(2, out);
  b.store(3, b.map(kMultiply<float>, 4, {out, x}));
  FusedLaunch launch;
  REQUIRE(prepare_fused(b.kernel, dense_space({100}, 0, 4, 4), launch).ok());
  CHECK(launch.program.steps.size() == 2);
  for (const bool shared : {false, true}) {
    std::vector<float> x_memory(100, 3), y(100, 4), sum(100), product(100);
    void* operands[] = {x_memory.data(), y.data(), shared ? x_memory.data() : sum.data(), product.data()};
    run_fused(launch, operands, nullptr);
    CHECK((shared ? x_memory : sum) == std::vector<float>(100, 7));
    CHECK(product == std::vector<float>(100, 21));
  }
}

TEST_CASE("an illegal kernel or space is a usage error, and its launch runs nothing") {
  const auto refused = [](const FusedKernel& kernel, const FusedSpace& space) {
    FusedLaunch launch;
    const Status status = prepare_fused(kernel, space, launch);
    if (!status.ok()) run_fused(launch, nullptr, nullptr);
    return !status.ok() && status.error_class() == ErrorClass::kUsage;
  };
  KernelBuilder b;
  const uint16_t x = b.load(0, 4);
  b.store(1, x);
  const FusedSpace space = dense_space({4, 4}, 1, 2, 4);
  REQUIRE_FALSE(refused(b.kernel, space));

  FusedSpace wrong = space;
  wrong.operands[1].strides[0] = 0;
  CHECK(refused(b.kernel, wrong));  // a store to a broadcast operand
  wrong = space;
  wrong.operands[0].bytes = 8;
  CHECK(refused(b.kernel, wrong));
  wrong = space;
  wrong.row_rank = 3;
  CHECK(refused(b.kernel, wrong));
  wrong = space;
  wrong.operands.pop_back();
  CHECK(refused(b.kernel, wrong));

  FusedKernel kernel = b.kernel;
  std::swap(kernel.steps[0], kernel.steps[1]);
  CHECK(refused(kernel, space));  // stored before it is written
  kernel = b.kernel;
  kernel.steps.push_back(kernel.steps[0]);
  CHECK(refused(kernel, space));  // written twice
  kernel = b.kernel;
  kernel.steps.push_back(kernel.steps[1]);
  CHECK(refused(kernel, space));  // stored twice
  kernel = b.kernel;
  kernel.steps[0].value = 7;
  CHECK(refused(kernel, space));
  kernel = b.kernel;
  kernel.values[0].extent = Extent::kRow;
  CHECK(refused(kernel, space));  // a row value from an operand with strides along the row
  KernelBuilder row;
  row.map(kAdd<float>, 4, {row.load(0, 4), row.load(0, 4)}, Extent::kRow);
  CHECK(refused(row.kernel, space));
}

}  // namespace
}  // namespace hetero::backend
