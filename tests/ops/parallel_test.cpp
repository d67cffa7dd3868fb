// What backend/ runs in parallel runs on helpers or ATen's threads, with the cores and as many
// threads as the thread that asks has.

#include <ATen/Parallel.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "backend/base/parallel.h"
#include "backend/threads/core_group.h"
#include "ops/settings/parallel.h"
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

// What a body sees of thread counts: its loops and ATen's stay on its thread.
void expect_one_thread_in_bodies() {
  std::atomic<int> bodies{0}, others{0};
  backend::parallel_for(0, 64, 1, [&](int64_t begin, int64_t end) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    ++bodies;
    const auto here = std::this_thread::get_id();
    const bool alone = backend::thread_count() == 1 && at::get_num_threads() == 1;
    std::atomic<bool> elsewhere{false};
    const auto look_around = [&](int64_t, int64_t) { elsewhere = elsewhere || std::this_thread::get_id() != here; };
    backend::parallel_for(begin, end + 8, 1, look_around);
    at::parallel_for(begin, end + 8, 1, look_around);
    if (!alone || elsewhere) ++others;
  });
  EXPECT_GT(bodies, 1);
  EXPECT_EQ(others, 0);
}

TEST_F(Parallel, BodiesHaveOneThreadWithAndWithoutHelpers) {
  const int threads = at::get_num_threads();
  for (const int count : {2, 3, threads}) {
    at::set_num_threads(count);
    // A thread that has run no kernel of PyTorch has helpers.
    std::thread([&] {
      for (int round = 0; round < 20; ++round) expect_one_thread_in_bodies();
      EXPECT_EQ(backend::thread_count(), count);
      begin_openmp();
      end_openmp();
      EXPECT_EQ(at::get_num_threads(), count);
    }).join();
  }
  at::set_num_threads(threads);
}

TEST_F(Parallel, WhatABodyRaisesComesToTheCallerAndLeavesThreadsAsTheyWere) {
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  std::thread([] {
    for (int round = 0; round < 20; ++round) {
      EXPECT_THROW(backend::parallel_for(0, 16, 1,
                                         [](int64_t, int64_t end) {
                                           if (end == 16) throw std::runtime_error("of the body");
                                         }),
                   std::runtime_error);
      EXPECT_EQ(at::get_num_threads(), 2);
      EXPECT_EQ(backend::thread_count(), 2);
    }
  }).join();
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace hetero::ops::testing
