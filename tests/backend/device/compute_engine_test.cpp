// What the compute queues of a device share. Figures are sums of powers of two, so that equality is
// exact.

#include "backend/device/compute_engine.h"

#include <random>
#include <vector>

#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

TEST_CASE("engine: tasks one after the other take their own times, whatever they need") {
  ComputeEngine engine;
  std::mt19937 random(1);
  double free = 0;
  for (int i = 0; i < 5000; ++i) {
    const double begin = free + static_cast<double>(random() % 3) * 0.1;
    const double seconds = static_cast<double>(random() % 1000) * 1e-3;
    free = engine.run(begin, seconds, static_cast<double>(random() % 11) / 10);
    REQUIRE(free == begin + seconds);
  }
}

TEST_CASE("engine: two tasks that fill the device take as long as one after the other") {
  ComputeEngine engine;
  CHECK(engine.run(0, 2, 1) == 2);
  CHECK(engine.run(0, 3, 1) == 5);
}

TEST_CASE("engine: tasks that together do not fill the device do not notice each other") {
  ComputeEngine engine;
  CHECK(engine.run(0, 8, 0.25) == 8);
  CHECK(engine.run(1, 4, 0.5) == 5);
  CHECK(engine.run(2, 2, 0.25) == 4);
  CHECK(engine.run(0, 8, 0) == 8);
}

TEST_CASE("engine: the later one has what the earlier ones leave") {
  ComputeEngine engine;
  CHECK(engine.run(0, 4, 0.75) == 4);
  // A quarter for 4 s, then half of the device for the other half of its work.
  CHECK(engine.run(0, 4, 0.5) == 6);
  // Nothing is left until 4 s, half until 6 s.
  CHECK(engine.run(0, 2, 1) == 7);
}

TEST_CASE("engine: what is submitted later may run before") {
  ComputeEngine engine;
  CHECK(engine.run(16, 4, 1) == 20);
  CHECK(engine.end_of(0, 8, 1) == 8);
  CHECK(engine.run(0, 8, 1) == 8);
  // 8 s before the first of all, the rest behind it.
  CHECK(engine.run(4, 12, 1) == 24);
}

TEST_CASE("engine: it never does more than the device can, and rests only where nobody needs it") {
  std::mt19937 random(2);
  const auto below = [&](uint32_t bound) { return static_cast<double>(random() % bound); };
  for (int round = 0; round < 50; ++round) {
    ComputeEngine engine;
    double work = 0;
    double last = 0;
    for (int i = 0; i < 200; ++i) {
      const double seconds = below(64) / 8;
      const double utilization = below(9) / 8;
      const double begin = below(16);
      const double expected = engine.end_of(begin, seconds, utilization);
      const double end = engine.run(begin, seconds, utilization);
      REQUIRE(end == expected);
      REQUIRE(end >= begin + seconds);
      work += seconds * utilization;
      last = std::max(last, end);
    }
    REQUIRE(last >= work - 1e-6);
    // All begin within 16 s: from then on the device is full until the last that fills it alone is
    // done.
    REQUIRE(engine.run(16, 1, 1) <= 17 + work + 1e-6);
  }
}

}  // namespace
}  // namespace hetero::backend
