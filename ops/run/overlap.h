// Overlap: the beginning of a trace runs on a thread of its own while the rest is still being
// recorded.
//
// Recording is mostly Python, and leaves a processor idle. So a trace that takes long to record,
// and not much longer to run, is cut into pieces of equal length. The node in the trie where the
// first one ends is a *mark*. A piece becomes a *flight*. It waits in a queue, and the overlap
// thread runs it with one thread less than the process has.
//
// A sync point takes over. The overlap thread stops before its next kernel. The thread that needs
// the value runs the rest of the flights in their order, with all threads, and then its own cut. So
// it waits for the overlap thread's current kernel only.
//
// A mark depends on the program and, once, on how long it took. A program is thus cut at the same
// places every time, and each piece finds its plan. The recorder knows beforehand what a flight
// will have done: which storages will have bytes (HeteroStorage::valid_later), and which owners are
// flights (HeteroStorage::flights). So plans do not depend on how far the flights are.
//
// We measure whether it pays, because two processors may be threads of one core, or others may need
// them. A trace that was divided a few times and did not get faster is not divided any more.
//
// A kernel of a flight has fewer threads than one of a sync point, and some kernels then add in
// another order. So the last bits of results may differ from run to run, within the tolerances of
// fusion. There are no flights if config().overlap or config().fusion is off, with
// torch.use_deterministic_algorithms(), with an accelerator, under a profiler, or with an option
// that looks at each flush. Only sync points run operators that are not PyTorch's own.
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

  // Notes how long it took to record and to run a whole trace, and says in how many pieces the next
  // one is recorded. REQUIRES: the executor lock.
  void learn(const Cut& cut, std::chrono::nanoseconds recording, std::chrono::nanoseconds running);

  // Notes how long it took to record and run a trace that is divided at `mark`. If that does not
  // pay, it is not divided any more. REQUIRES: the executor lock.
  void judge(TrieNode* mark, std::chrono::nanoseconds all);

  // For tests: divides every trace of some nodes into this many pieces as soon as it was seen,
  // whatever it takes. 0 ends that.
  void force_pieces(int pieces) { forced_pieces_ = pieces; }

  // Says that a thread wants the executor lock, or does not any more. While one does, no flight is
  // made, and the overlap thread stops.
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
