// CoreGroup: a named part of the machine, cores and the accelerator's compute queues, with one
// thread that runs submitted tasks in order.
//
// Groups of disjoint cores run their tasks at the same time without taking each other's time or
// caches. A group of all cores gives them all to one task. The group's thread is pinned to its
// cores. Its parallel regions (backend/base/parallel.h) have the group's number of threads, which
// inherit its cores.
//
// The compute queues are the group's by convention. An executor of the group
// (graph/serve/graph_executor.h) submits to these and to no others. So groups with disjoint queues
// run at the same time on the accelerator. graph/serve/scheduler.h puts requests on groups.
//
//   Result<std::vector<std::vector<int>>> parts = split_cores(2);
//   auto group = CoreGroup::create({.name = "lane0", .cores = parts.value()[0],
//                                   .compute_queues = split_compute_queues(2)[0]});
//   group.value()->submit({&run, &context});
//   group.value()->wait_idle();
//
// An idle group spins for some tens of microseconds (kSpin), yielding to other threads, so that it
// takes up the next task at once. Then it sleeps.
//
// Thread safety: any thread, including tasks of the group unless stated otherwise. A forked child
// has no such thread: a group refuses tasks there and may only be destroyed.
// Ownership: a task's context lives until the task has run. The destructor runs what was submitted.

#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/base/status.h"
#include "backend/device/device.h"

namespace hetero::backend {

class CoreGroup {
 public:
  struct Options {
    std::string name = {};        // of the thread too, cut to 15 characters
    std::vector<int> cores = {};  // as the system numbers them; none: the thread is not pinned
    // Of the parallel regions that the group's tasks start. 0: as many as cores, or the process's
    // number if no cores are named.
    int threads = 0;
    std::vector<QueueKind> compute_queues = {};  // of the accelerator; none: all of them
  };
  static constexpr std::chrono::microseconds kSpin{30};

  // Errors: kUsage for cores that the process may not use, queues that do not compute, duplicates,
  // or less than 0 threads; kDevice if the system starts no thread.
  static Result<std::unique_ptr<CoreGroup>> create(Options options);
  // REQUIRES: not called by a task of the group; no thread submits any more.
  ~CoreGroup();
  CoreGroup(const CoreGroup&) = delete;
  CoreGroup& operator=(const CoreGroup&) = delete;

  const std::string& name() const;
  const std::vector<int>& cores() const;
  int threads() const;
  const std::vector<QueueKind>& compute_queues() const;

  // Runs `task` after everything submitted before. Takes memory only where more tasks wait than
  // ever before. Errors: kDevice in a forked child.
  // REQUIRES: the task does not throw.
  Status submit(Task task);
  // Blocks the calling thread until what was submitted before the call has run. Errors: kUsage for
  // a task of the group, which would wait for itself; kDevice in a forked child.
  Status wait_idle();

 private:
  struct Impl;
  explicit CoreGroup(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

// The cores that the process may use, ascending: what its main thread may, so taskset and cpusets
// are respected, and a pinned thread may ask.
std::vector<int> cores_of_process();

// The place of a core. Cores with equal numbers share the unit; numbers mean nothing else.
struct CorePlace {
  int core = 0;
  int node = 0;      // NUMA
  int package = 0;   // the socket
  int l3 = 0;        // cache
  int l2 = 0;        // cache
  int physical = 0;  // the core whose hardware threads share its units
};

// The system's description of these cores. Unknown units count as shared by all cores, except the
// physical core, which counts as each core's own.
std::vector<CorePlace> core_places(std::span<const int> cores);

// Splits the process's cores into this many parts of equal size (or nearly so; some have one more).
// As few parts as possible extend over several NUMA nodes, sockets or caches. Hardware threads of a
// core stay together if there is a core for each part; parts then have equal numbers of cores.
// Errors: kUsage if there are fewer cores than parts, or no parts.
Result<std::vector<std::vector<int>>> split_cores(int groups);
// Splits a machine that is given as data.
Result<std::vector<std::vector<int>>> split_cores(std::span<const CorePlace> places, int groups);

// Whether these can be a group's compute queues. Errors: kUsage for a queue that is none, and one
// that is named twice.
Status check_compute_queues(std::span<const QueueKind> queues);
// Splits an accelerator's compute queues into this many parts, some of which may have one more.
// With more parts than queues, several have the same one. REQUIRES: groups > 0.
std::vector<std::vector<QueueKind>> split_compute_queues(int groups);

}  // namespace hetero::backend
