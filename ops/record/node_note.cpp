#include "ops/record/node_note.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <vector>

namespace hetero::ops {
namespace {

std::vector<uint64_t>& operations() {
  static thread_local std::vector<uint64_t> numbers;
  return numbers;
}

int32_t thread_number() {
  static thread_local const auto number = static_cast<int32_t>(::syscall(SYS_gettid));
  return number;
}

}  // namespace

void set_profiles(bool on) { detail::profiles.store(on, std::memory_order_relaxed); }

void begin_operation(uint64_t number) { operations().push_back(number); }

// A profiler that starts inside an operator sees its end only.
void end_operation() {
  if (!operations().empty()) operations().pop_back();
}

NodeNote note_operation() {
  return {.operation = operations().empty() ? 0 : operations().back(),
          .nanoseconds = profiler_time(),
          .thread = thread_number()};
}

int64_t profiler_time() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace hetero::ops
