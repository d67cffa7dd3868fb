// Counters: what was recorded, planned and run, counted where it happens, for explain() and for tests.
//
// Thread safety: relaxed atomics; names of operators behind a mutex on the cold path only.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace hetero::ops {

// Every place where a value must exist; see sync.h. The text is what explain() shows.
#define HETERO_SYNC_REASONS(X)                          \
  X(kReadScalar, "read scalar")                         \
  X(kCopyToDevice, "copy to another device")            \
  X(kDataDependentShape, "data-dependent shape")        \
  X(kDataDependentValue, "data-dependent control flow") \
  X(kLeaveDispatcher, "leave the dispatcher")           \
  X(kFirstSight, "first sight of a large operator")     \
  X(kNoMetaKernel, "operator without meta kernel")      \
  X(kNotRecordable, "operator that cannot be recorded") \
  X(kStorageChange, "storage replaced or resized")      \
  X(kSynchronize, "synchronize")                        \
  X(kPendingBytes, "too many pending bytes")            \
  X(kPendingNodes, "too many pending nodes")            \
  X(kFlush, "flush")                                    \
  X(kOverlap, "run while recording goes on")            \
  X(kCompiled, "compiled program")                      \
  X(kFork, "fork")                                      \
  X(kSyncMode, "HETERO_SYNC")                           \
  X(kExported, "write to an exported storage")          \
  X(kSettings, "global setting changed")

enum class SyncReason : uint8_t {
#define X(name, text) name,
  HETERO_SYNC_REASONS(X)
#undef X
      kCount,
};
const char* to_string(SyncReason reason);

// The kernels that run in place of PyTorch's; see own_kernel.h.
#define HETERO_OWN_KERNELS(X)                                    \
  X(kFewRows, "products of few rows")                            \
  X(kPanelProduct, "products with a weight in panels")           \
  X(kTileProduct, "products on the tile unit")                   \
  X(kConvolution, "convolutions as products over all images")    \
  X(kConvolutionBackward, "gradients of convolutions, likewise") \
  X(kAttention, "attention")                                     \
  X(kAttentionBackward, "gradients of attention")                \
  X(kGrowth, "concatenations that grew in place")

enum class OwnKernel : uint8_t {
#define X(name, text) name,
  HETERO_OWN_KERNELS(X)
#undef X
      kCount,
};
const char* to_string(OwnKernel kernel);

struct Counters {
  using Count = std::atomic<int64_t>;

  // These: the recorder lock.
  Count typed_nodes{0};         // of operators with a typed recorder
  Count boxed_nodes{0};         // of all others
  Count predicted_nodes{0};     // the trie knew them
  Count mispredicted_nodes{0};  // it expected another call
  Count written_nodes{0};       // written down when a trace was cut, for no plan stood for them
  Count meta_hits{0};           // the meta cache knew them
  Count views{0};               // metadata only, no node
  Count straight{0};            // run at once, after a flush
  Count meta_misses{0};
  Count dead_nodes{0};
  Count cpu_kernels{0};
  Count accelerator_kernels{0};
  Count fused_groups{0};     // of the kernels
  Count batched_nodes{0};    // operators that ran in kernels of several calls
  Count fused_nodes{0};      // in these
  Count compiled_groups{0};  // fused groups that ran machine code
  Count plans_made{0};
  Count planned_nodes{0};  // in plans made and resized
  Count planning_nanoseconds{0};
  Count plans_resized{0};   // made for other sizes out of an earlier plan
  Count plans_replayed{0};  // run again as they were
  Count copies_to_accelerator{0};
  Count copies_to_cpu{0};
  Count transfers{0};  // of programs: these copies, of which several may be one
  Count uploads_ahead{
      0};  // of the copies to the accelerator: while an earlier program ran than the one that reads the bytes
  Count bytes_to_accelerator{0};
  Count bytes_to_cpu{0};
  Count segments{0};  // launches of the accelerator that were several kernels
  Count events{0};
  Count waits{0};
  Count storages_evicted{0};  // from the accelerator, to make room
  Count storages_spilled{0};  // from the host's memory, likewise
  Count bytes_spilled{0};     // to files
  Count skipped_nodes{0};
  Count verified_flushes{0};
  Count captures{0};        // graphs that became compiled programs, for their first or for other sizes
  Count compiled_calls{0};  // of compiled programs
  std::array<Count, static_cast<size_t>(SyncReason::kCount)> flushes{};
  std::array<Count, static_cast<size_t>(OwnKernel::kCount)> own_kernels{};

  void count_fallback(const std::string& op);
  std::map<std::string, int64_t> fallbacks();
  // Of kernels that a GPU refused and the CPU computed, on copies: by "operator: reason".
  void count_rescue(const std::string& refusal);
  std::map<std::string, int64_t> rescues();
  void reset();

 private:
  std::mutex mutex_;
  std::map<std::string, int64_t> fallbacks_;
  std::map<std::string, int64_t> rescues_;
};

extern Counters* counters_instance;  // made when the library is loaded
inline Counters& counters() { return *counters_instance; }

inline void count(Counters::Count& counter, int64_t by = 1) { counter.fetch_add(by, std::memory_order_relaxed); }
// For counters that only change under one lock: no atomic addition.
[[gnu::always_inline]] inline void count_locked(Counters::Count& counter) {
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

}  // namespace hetero::ops
