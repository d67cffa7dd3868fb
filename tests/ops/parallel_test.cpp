// One pool of threads: what backend/ runs in parallel runs on ATen's, with the cores and as many
// threads as the thread that asks has.

#include <ATen/Parallel.h>
#include <sched.h>

#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "backend/base/parallel.h"
#include "backend/threads/core_group.h"
#include "tests/ops/fixture.h"

namespace hetero::ops::testing {
namespace {

class Parallel : public OpsTest {};

// What a parallel region of a group's task saw.
struct Region {
  int64_t threads = 0;
  std::set<std::thread::id> ids;
  std::set<int> cores;  // all that its threads may run on
};

void look(void* context) {
  Region& region = *static_cast<Region*>(context);
  region.threads = backend::thread_count();
  std::mutex mutex;
  backend::parallel_for(0, 3, 1, [&](int64_t, int64_t) {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    // Long enough that the other threads come before one has taken all.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const bool known = sched_getaffinity(0, sizeof(mask), &mask) == 0;
    const std::lock_guard lock(mutex);
    region.ids.insert(std::this_thread::get_id());
    for (int core = 0; known && core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &mask)) region.cores.insert(core);
    }
  });
}

TEST_F(Parallel, RegionsOfACoreGroupHaveItsThreadsOnItsCores) {
  const int others = at::get_num_threads();
  for (const int core : backend::cores_of_process()) {
    auto group = backend::CoreGroup::create({.name = "cores", .cores = {core}, .threads = 3});
    ASSERT_TRUE(group.ok());
    Region region;
    ASSERT_TRUE(group.value()->submit({&look, &region}).ok());
    ASSERT_TRUE(group.value()->wait_idle().ok());
    EXPECT_EQ(region.threads, 3);
    // OpenMP may give fewer threads than it was asked for where there are fewer processors.
    EXPECT_GE(region.ids.size(), 2);
    EXPECT_EQ(region.cores, std::set<int>{core});
  }
  EXPECT_EQ(at::get_num_threads(), others);
}

}  // namespace
}  // namespace hetero::ops::testing
