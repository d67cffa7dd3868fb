// The executor lock, and the slices whose runs go on under it.
//
// A kernel may be Python and use hetero tensors, so that a run begins inside another: the lock is
// recursive, and the slices form a stack. What a running slice touches keeps its bytes where they
// are.
//
// Thread safety: the executor lock, but for executor_mutex().

#pragma once

#include <c10/util/Exception.h>

#include <mutex>
#include <string>
#include <vector>

#include "ops/record/trace_slice.h"
#include "ops/settings/config.h"

namespace hetero::ops {

std::recursive_mutex& executor_mutex();
// In a forked child: a recursive mutex belongs to a thread of the parent, and the child cannot
// unlock it.
void renew_executor_mutex();

// Each inside the one before.
std::vector<const TraceSlice*>& running_slices();

// A run goes on, for a scope. REQUIRES: the executor lock.
class RunScope {
 public:
  explicit RunScope(const TraceSlice& slice) { running_slices().push_back(&slice); }
  ~RunScope() { running_slices().pop_back(); }
  RunScope(const RunScope&) = delete;
};

// The Python line that recorded the node, while it runs, with config().traceback.
std::string line_of(uint32_t sequence);

// Runs a kernel's call; with config().traceback an error also names the line that recorded it.
template <typename Call>
void with_line(uint32_t sequence, Call&& call) {
  if (!config().traceback.load(std::memory_order_relaxed)) [[likely]] {
    call();
    return;
  }
  try {
    call();
  } catch (c10::Error& error) {
    error.add_context("recorded at " + line_of(sequence));
    throw;
  }
}

}  // namespace hetero::ops
