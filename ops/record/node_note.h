// NodeNote: what is kept of the call that recorded a node, where somebody wants to know.
//
// HETERO_TRACEBACK keeps the Python line, for messages. A profiler (ops/run/profile.h) keeps which
// of its operators it was, and when. The profiler tells each thread on which of its operators the
// thread is.
//
// Thread safety: any thread.

#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <unordered_map>

namespace hetero::ops {

struct NodeNote {
  std::string line{};
  uint64_t operation = 0;   // the profiler's number of the operator; 0: none
  int64_t nanoseconds = 0;  // since the epoch
  int32_t thread = 0;       // the system's number
};

// By graph::Node::sequence.
using NodeNotes = std::unordered_map<uint32_t, NodeNote>;

namespace detail {
inline std::atomic<bool> profiles{false};
}

// Whether a profiler wants to know.
inline bool profiles() { return detail::profiles.load(std::memory_order_relaxed); }
void set_profiles(bool on);

// The operators of the profiler on this thread, each inside the one before.
void begin_operation(uint64_t number);
void end_operation();
// The innermost one, now.
NodeNote note_operation();
// Nanoseconds since the epoch, by the clock that profilers use.
int64_t profiler_time();

}  // namespace hetero::ops
