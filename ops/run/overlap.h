// Overlap: the beginning of a trace runs on a thread of its own while the rest is still being
// recorded.
//
// Recording is Python, mostly, and leaves a processor idle. A trace that takes long to record, and
// runs not very much longer, is therefore cut into pieces of as many nodes: its node in the trie
// where the first one ends is a *mark*. A piece becomes a *flight*: it waits in a queue, and the
// overlap thread runs it with one thread less than the process has. A sync point takes over: the
// overlap thread stops before its next kernel, and what is left of the flights, in their order, is
// run by the thread that needs the value, with all threads; then its own cut. So nothing waits for
// the overlap thread but for the kernel that it is in.
//
// A mark depends on the program and, once, on how long it took; so a program is cut at the same
// places every time, and each piece finds its plan. What a flight will have done is known to the
// recorder before it is done: which storages will have bytes (HeteroStorage::valid_later), and
// which owners are flights (HeteroStorage::flights), so that plans do not depend on how far the
// flights are.
//
// Whether it pays is not foretold but tried: processors may be two threads of one core, and others
// may need them. A trace that was divided some times and did not get faster is divided no more.
//
// A kernel of a flight has fewer threads than one of a sync point, and some kernels add in another
// order then. So results may differ in the last bits from run to run, within the tolerances of
// fusion. There are no flights with config().overlap or config().fusion off, with
// torch.use_deterministic_algorithms(), with an accelerator, under a profiler, or with an option
// that looks at each flush. Operators that are not PyTorch's own are run by sync points only.
//
// Thread safety: any thread. `wanted_` and the making of flights: the recorder lock; running: the
// executor lock.

#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "ops/record/recorder.h"
#include "ops/run/slice_run.h"

namespace hetero::ops {

class Overlap {
 public:
  // Makes a flight of the trace, if a piece ends here and nothing is in the way. REQUIRES: no lock.
  void cut_early();

  // Takes note of how long it took to record and to run a whole trace, and says in how many pieces
  // it is to be recorded. REQUIRES: the executor lock.
  void learn(const Cut& cut, std::chrono::nanoseconds recording, std::chrono::nanoseconds running);

  // Takes note of how long it took to record and run a trace that is divided at `mark`; where that
  // does not pay, it is not divided any more. REQUIRES: the executor lock.
  void judge(TrieNode* mark, std::chrono::nanoseconds all);

  // Every trace of some nodes is divided into so many pieces as soon as it was seen, whatever it
  // takes; 0 ends that. For tests.
  void force_pieces(int pieces) { forced_pieces_ = pieces; }

  // Somebody wants the executor lock, or does not any more: no flight is made, and the overlap
  // thread stops.
  void want();
  void want_no_more();
  // Runs all flights on this thread. REQUIRES: the executor lock, and want().
  void run_waiting();

  // Ends the overlap thread; what it has not run is never run. Called when the process exits.
  void stop();
  // In a forked child, which has no overlap thread.
  void abandon();

 private:
  struct Flight {
    Cut cut;
    uint64_t number = 0;
    bool started = false;
  };

  void start_thread();
  void work();
  bool run_front(const std::atomic<int32_t>* stop);
  void complete(std::unique_ptr<Flight> flight, const Status& status);

  std::atomic<int32_t> wanted_{0};
  std::atomic<int> forced_pieces_{0};
  std::mutex mutex_;  // of all below
  std::condition_variable waiting_;
  std::deque<std::unique_ptr<Flight>> flights_;  // the front may be running
  std::atomic<int32_t> flight_count_{0};         // of them
  std::vector<std::unique_ptr<Flight>> unused_;
  std::thread thread_;
  bool stopped_ = false;
  SliceRun run_;  // of the front; the executor lock
};
Overlap& overlap();

// The executor lock, once what waits in the background has run.
class Executing {
 public:
  Executing();
  Executing(const Executing&) = delete;

 private:
  struct Wanted {
    Wanted() { overlap().want(); }
    ~Wanted() { overlap().want_no_more(); }
    Wanted(const Wanted&) = delete;
  };
  const Wanted wanted_;
  Locked<std::recursive_mutex> lock_;
};

}  // namespace hetero::ops
