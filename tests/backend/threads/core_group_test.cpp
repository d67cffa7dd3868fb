#include "backend/threads/core_group.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <barrier>
#include <numeric>
#include <thread>
#include <vector>

#include "backend/base/parallel.h"
#include "tests/backend/child.h"
#include "tests/backend/device/tasks.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

using testing::run_in_child;
using Cores = std::vector<int>;
using Parts = std::vector<Cores>;

std::unique_ptr<CoreGroup> make_group(CoreGroup::Options options) {
  auto group = CoreGroup::create(std::move(options));
  if (!group.ok()) throw std::runtime_error(group.status().message());
  return std::move(group.value());
}

using testing::task_of;

Cores cores_of_this_thread() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  Cores cores;
  if (pthread_getaffinity_np(pthread_self(), sizeof(mask), &mask) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &mask)) cores.push_back(core);
  }
  return cores;
}

TEST_CASE("a group runs tasks of many threads, those of one thread in its order") {
  constexpr int kThreads = 4;
  constexpr int kTasks = 500;
  const auto group = make_group({.name = "order"});
  std::vector<std::vector<int>> seen(kThreads);  // written by the group's thread alone
  struct Entry {
    std::vector<int>* seen;
    int number;
  };
  std::vector<Entry> entries;
  for (auto& own : seen) {
    for (int i = 0; i < kTasks; ++i) entries.push_back({&own, i});
  }
  std::atomic<int> refused = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kTasks; ++i) {
        const Task task{[](void* context) {
                          auto& entry = *static_cast<Entry*>(context);
                          entry.seen->push_back(entry.number);
                        },
                        &entries[static_cast<size_t>(t * kTasks + i)]};
        if (!group->submit(task).ok()) ++refused;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  REQUIRE(group->wait_idle().ok());
  REQUIRE(refused == 0);
  Cores expected(kTasks);
  std::iota(expected.begin(), expected.end(), 0);
  for (const auto& own : seen) CHECK(own == expected);
}

TEST_CASE("a task may submit to its own group, and runs before what it submits") {
  const auto group = make_group({.name = "again"});
  Cores order;
  auto second = [&] { order.push_back(2); };
  Status submitted(ErrorClass::kInternal, "not called");
  auto first = [&] {
    submitted = group->submit(task_of(second));
    order.push_back(1);
  };
  REQUIRE(group->submit(task_of(first)).ok());
  REQUIRE(group->wait_idle().ok());
  REQUIRE(group->wait_idle().ok());
  CHECK(submitted.ok());
  CHECK(order == Cores{1, 2});
}

TEST_CASE("waiting for a group without work returns at once") {
  const auto group = make_group({.name = "idle"});
  CHECK(group->wait_idle().ok());
}

TEST_CASE("a task that waits for its own group gets an error, not a deadlock") {
  const auto group = make_group({.name = "self"});
  Status status;
  auto wait = [&] { status = group->wait_idle(); };
  REQUIRE(group->submit(task_of(wait)).ok());
  REQUIRE(group->wait_idle().ok());
  REQUIRE_FALSE(status.ok());
  CHECK(status.error_class() == ErrorClass::kUsage);
  CHECK(status.message() == "core group \"self\": a task must not wait for the group it runs on");
}

TEST_CASE("a destroyed group has run what was submitted") {
  std::atomic<int> runs = 0;
  auto count = [&] { ++runs; };
  auto group = make_group({.name = "end"});
  for (int i = 0; i < 100; ++i) REQUIRE(group->submit(task_of(count)).ok());
  group.reset();
  CHECK(runs == 100);
}

TEST_CASE("a group's thread runs on the group's cores, and goes by its name") {
  for (int core : cores_of_process()) {
    const auto group = make_group({.name = "pinned to a core", .cores = {core}});
    CHECK(group->cores() == Cores{core});
    CHECK(group->threads() == 1);
    Cores cores;
    char name[16] = {};
    int current = -1;
    auto look = [&] {
      cores = cores_of_this_thread();
      current = sched_getcpu();
      pthread_getname_np(pthread_self(), name, sizeof(name));
    };
    REQUIRE(group->submit(task_of(look)).ok());
    REQUIRE(group->wait_idle().ok());
    CHECK(cores == Cores{core});
    CHECK(current == core);
    CHECK(std::string(name) == "pinned to a cor");
  }
}

TEST_CASE("a group without cores has all of the process, also where a pinned thread makes it") {
  const Cores all = cores_of_process();
  const auto pinned = make_group({.name = "pinned", .cores = {all.front()}});
  Cores cores;
  Cores known;
  int threads = 0;
  auto look = [&] { cores = cores_of_this_thread(); };
  auto make = [&] {
    known = cores_of_process();
    const auto free = make_group({.name = "free"});
    threads = free->threads();
    if (free->submit(task_of(look)).ok() && !free->wait_idle().ok()) cores.clear();
  };
  REQUIRE(pinned->submit(task_of(make)).ok());
  REQUIRE(pinned->wait_idle().ok());
  CHECK(known == all);
  CHECK(cores == all);
  CHECK(threads == static_cast<int>(all.size()));
}

std::vector<std::pair<std::thread::id, int>> told_counts;  // written by one group's thread at a time

TEST_CASE("a group tells the pool on its own thread how many threads its regions have") {
  told_counts.clear();
  set_thread_count_hook([](int threads) { told_counts.emplace_back(std::this_thread::get_id(), threads); });
  std::thread::id id;
  {
    const auto group = make_group({.name = "count", .threads = 3});
    CHECK(group->threads() == 3);
    auto look = [&] { id = std::this_thread::get_id(); };
    REQUIRE(group->submit(task_of(look)).ok());
    REQUIRE(group->wait_idle().ok());
  }
  set_thread_count_hook(nullptr);
  REQUIRE(told_counts.size() == 1);
  CHECK(told_counts[0] == std::pair(id, 3));
}

TEST_CASE("groups run at the same time") {
  constexpr int kGroups = 3;
  // A task goes on when all are there: tasks that ran one after another would never end.
  std::barrier meeting(kGroups);
  std::atomic<int> met = 0;
  auto meet = [&] {
    meeting.arrive_and_wait();
    ++met;
  };
  std::vector<std::unique_ptr<CoreGroup>> groups;
  for (int i = 0; i < kGroups; ++i) groups.push_back(make_group({.name = "group" + std::to_string(i)}));
  for (int round = 0; round < 50; ++round) {
    for (const auto& group : groups) REQUIRE(group->submit(task_of(meet)).ok());
  }
  for (const auto& group : groups) REQUIRE(group->wait_idle().ok());
  CHECK(met == 50 * kGroups);
}

TEST_CASE("cores that a group cannot have are refused with a sentence") {
  const auto forbidden = CoreGroup::create({.name = "far", .cores = {100000}});
  REQUIRE_FALSE(forbidden.ok());
  CHECK(forbidden.status().error_class() == ErrorClass::kUsage);
  CHECK(forbidden.status().message().find(
            "core group \"far\": core 100000 is not one that this process may use; choose among ") == 0);
  const int core = cores_of_process().front();
  const auto twice = CoreGroup::create({.name = "twice", .cores = {core, core}});
  REQUIRE_FALSE(twice.ok());
  CHECK(twice.status().message() ==
        "core group \"twice\": core " + std::to_string(core) + " is named twice; name each core once");
  const auto fewer = CoreGroup::create({.name = "fewer", .threads = -1});
  REQUIRE_FALSE(fewer.ok());
  CHECK(fewer.status().error_class() == ErrorClass::kUsage);
}

TEST_CASE("a forked child can leave a group alone, and is told that it cannot use it") {
  auto group = make_group({.name = "parent"});
  auto nothing = [] {};
  REQUIRE(group->submit(task_of(nothing)).ok());
  const auto outcome = run_in_child([&] {
    if (group->submit(task_of(nothing)).ok()) return 1;
    if (group->wait_idle().ok()) return 2;
    group.reset();
    return 0;
  });
  CHECK(outcome.exit_code == 0);
  CHECK(group->wait_idle().ok());
}

// Machines, invented. Cores are numbered as Linux numbers them: first one hardware thread of each
// core.
std::vector<CorePlace> machine(int nodes, int caches, int cores, int hardware_threads) {
  std::vector<CorePlace> places;
  const int all = nodes * caches * cores;
  for (int t = 0; t < hardware_threads; ++t) {
    for (int core = 0; core < all; ++core) {
      const int cache = core / cores;
      places.push_back({.core = t * all + core,
                        .node = cache / caches,
                        .package = cache / caches,
                        .l3 = cache * cores,
                        .l2 = core,
                        .physical = core});
    }
  }
  return places;
}

std::vector<CorePlace> without(std::vector<CorePlace> places, const Cores& gone) {
  std::erase_if(places,
                [&](const CorePlace& place) { return std::find(gone.begin(), gone.end(), place.core) != gone.end(); });
  return places;
}

Parts split(const std::vector<CorePlace>& places, int groups) {
  const auto parts = split_cores(places, groups);
  if (!parts.ok()) throw std::runtime_error(parts.status().message());
  return parts.value();
}

TEST_CASE("a split gives each part as many cores") {
  CHECK(split(machine(1, 1, 4, 1), 1) == Parts{{0, 1, 2, 3}});
  CHECK(split(machine(1, 1, 4, 1), 2) == Parts{{0, 1}, {2, 3}});
  CHECK(split(machine(1, 1, 4, 1), 3) == Parts{{0, 1}, {2}, {3}});
  CHECK(split(machine(1, 1, 4, 1), 4) == Parts{{0}, {1}, {2}, {3}});
}

TEST_CASE("a split keeps a core's hardware threads together where there are cores enough") {
  CHECK(split(machine(1, 1, 4, 2), 2) == Parts{{0, 1, 4, 5}, {2, 3, 6, 7}});
  CHECK(split(machine(1, 1, 4, 2), 4) == Parts{{0, 4}, {1, 5}, {2, 6}, {3, 7}});
  CHECK(split(machine(1, 1, 2, 2), 4) == Parts{{0}, {2}, {1}, {3}});
  CHECK(split(machine(1, 1, 2, 2), 3) == Parts{{0, 2}, {1}, {3}});
}

TEST_CASE("a split follows nodes and caches however the system numbers cores") {
  std::vector<CorePlace> interleaved;  // even cores on one node, odd ones on the other
  for (int core = 0; core < 8; ++core) {
    interleaved.push_back(
        {.core = core, .node = core % 2, .package = core % 2, .l3 = core % 2, .l2 = core, .physical = core});
  }
  CHECK(split(interleaved, 2) == Parts{{0, 2, 4, 6}, {1, 3, 5, 7}});
  CHECK(split(machine(1, 2, 3, 1), 2) == Parts{{0, 1, 2}, {3, 4, 5}});
  CHECK(split(machine(2, 2, 2, 1), 4) == Parts{{0, 1}, {2, 3}, {4, 5}, {6, 7}});
}

TEST_CASE("a split that does not come out even divides as few caches as possible") {
  // Core 3 is not the process's: 3 and 4 cores, and not the larger part first.
  CHECK(split(without(machine(1, 2, 4, 1), {3}), 2) == Parts{{0, 1, 2}, {4, 5, 6, 7}});
  CHECK(split(without(machine(1, 2, 4, 1), {7}), 2) == Parts{{0, 1, 2, 3}, {4, 5, 6}});
  // A node is kept rather than a cache: nodes of 3 and 4 cores, the second with caches of 2.
  const std::vector<CorePlace> uneven = without(machine(2, 2, 2, 1), {3});
  CHECK(split(uneven, 2) == Parts{{0, 1, 2}, {4, 5, 6, 7}});
}

TEST_CASE("a split covers each core once, on machines of all shapes") {
  for (int nodes : {1, 2}) {
    for (int caches : {1, 3}) {
      for (int hardware_threads : {1, 2}) {
        const auto places = machine(nodes, caches, 4, hardware_threads);
        for (int groups = 1; groups <= static_cast<int>(places.size()); ++groups) {
          const Parts parts = split(places, groups);
          REQUIRE(parts.size() == static_cast<size_t>(groups));
          Cores all;
          size_t least = places.size();
          size_t most = 0;
          for (const Cores& part : parts) {
            all.insert(all.end(), part.begin(), part.end());
            least = std::min(least, part.size());
            most = std::max(most, part.size());
          }
          std::sort(all.begin(), all.end());
          Cores expected(places.size());
          std::iota(expected.begin(), expected.end(), 0);
          REQUIRE(all == expected);
          REQUIRE(most - least <= static_cast<size_t>(hardware_threads));
        }
      }
    }
  }
}

TEST_CASE("splits that are not possible are refused with a sentence") {
  for (int groups : {-1, 0, 5}) {
    const auto parts = split_cores(machine(1, 1, 4, 1), groups);
    REQUIRE_FALSE(parts.ok());
    CHECK(parts.status().error_class() == ErrorClass::kUsage);
    CHECK(parts.status().message() ==
          "cannot split 4 cores into " + std::to_string(groups) + " groups; ask for 1 to as many as there are cores");
  }
}

TEST_CASE("this machine's cores can be split, and each part pinned to") {
  const auto cores = static_cast<int>(cores_of_process().size());
  REQUIRE(cores > 0);
  const auto parts = split_cores(cores);
  REQUIRE(parts.ok());
  for (const Cores& part : parts.value()) {
    REQUIRE(part.size() == 1);
    CHECK(CoreGroup::create({.name = "part", .cores = part}).ok());
  }
}

TEST_CASE("compute queues are split in equal parts, and of more parts than queues several have the same one") {
  using enum QueueKind;
  using Queues = std::vector<std::vector<QueueKind>>;
  CHECK(split_compute_queues(1) == Queues{{kCompute, kCompute2, kCompute3, kCompute4}});
  CHECK(split_compute_queues(2) == Queues{{kCompute, kCompute2}, {kCompute3, kCompute4}});
  CHECK(split_compute_queues(3) == Queues{{kCompute}, {kCompute2}, {kCompute3, kCompute4}});
  CHECK(split_compute_queues(4) == Queues{{kCompute}, {kCompute2}, {kCompute3}, {kCompute4}});
  const Queues of_nine = split_compute_queues(9);
  REQUIRE(of_nine.size() == 9);
  int users[kComputeQueues] = {};
  for (const auto& part : of_nine) {
    REQUIRE(part.size() == 1);
    ++users[compute_queue_number(part[0])];
  }
  for (const int count : users) CHECK((count == 2 || count == 3));
}

TEST_CASE("a group carries its compute queues, and what are none is refused") {
  using enum QueueKind;
  CHECK(make_group({.name = "all"})->compute_queues().empty());
  CHECK(make_group({.name = "right", .compute_queues = {kCompute3, kCompute4}})->compute_queues() ==
        std::vector{kCompute3, kCompute4});
  const auto message = [](std::vector<QueueKind> queues) {
    const auto group = CoreGroup::create({.name = "wrong", .compute_queues = std::move(queues)});
    return group.ok() ? "no error" : group.status().message();
  };
  CHECK(message({kCompute, kHostToDevice}) ==
        "core group \"wrong\": the queue h2d computes nothing; name compute queues");
  CHECK(message({kCompute2, kCompute2}) ==
        "core group \"wrong\": the queue compute 2 is named twice; name each queue once");
}

}  // namespace
}  // namespace hetero::backend
