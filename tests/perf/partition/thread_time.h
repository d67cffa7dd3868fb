// The time that the calling thread has had a processor: what others do on the machine is not in it,
// nor is waiting.
//
// Thread safety: any thread, each for itself.

#pragma once

#include <time.h>

namespace hetero::graph::testing {

inline double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace hetero::graph::testing
