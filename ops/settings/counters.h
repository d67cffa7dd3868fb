// Counters: what was recorded, planned and run, counted where it happens, for explain() and for
// tests. The rows of counters.def say which there are.
//
// Thread safety: relaxed atomics; names of operators behind a mutex on the cold path only.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>

namespace hetero::graph {
struct RunCounts;
}

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
  X(kExported, "use of bytes that the host sees")       \
  X(kSettings, "global setting changed")

enum class SyncReason : uint8_t {
#define X(name, text) name,
  HETERO_SYNC_REASONS(X)
#undef X
      kCount,
};
const char* to_string(SyncReason reason);

// The kernels that run in place of PyTorch's; see own_kernel.h.
#define HETERO_OWN_KERNELS(X)                                     \
  X(kFewRows, "products of few rows")                             \
  X(kPanelProduct, "products with a weight in panels")            \
  X(kTileProduct, "products on the tile unit")                    \
  X(kPackedBlasProduct, "products with a weight that MKL packed") \
  X(kQuantizedProduct, "products with a quantized weight")        \
  X(kPackedRecurrent, "recurrent layers with packed weights")     \
  X(kConvolution, "convolutions as products over all images")     \
  X(kPackedConvolution, "convolutions with a packed weight")      \
  X(kDepthwise, "depthwise convolutions")                         \
  X(kPatchProduct, "convolutions as products of patches")         \
  X(kWinograd, "convolutions by Winograd's algorithm")            \
  X(kFewOutputs, "convolutions to few channels")                  \
  X(kConvolutionBackward, "gradients of convolutions")            \
  X(kAttention, "attention")                                      \
  X(kAttentionBackward, "gradients of attention")                 \
  X(kGrowth, "concatenations that grew in place")                 \
  X(kPad, "padding in place")                                     \
  X(kMaxPool, "maxima of pixels")                                 \
  X(kPixelMean, "means over pixels")                              \
  X(kResize, "resized images")                                    \
  X(kLayout, "images whose channels were put last")               \
  X(kConcatenation, "concatenations of rows")                     \
  X(kEmbeddingBags, "embedding bags")                             \
  X(kBatchNorm, "batch norms in training")                        \
  X(kBatchNormBackward, "gradients of batch norms")               \
  X(kGroupNorm, "group norms")

enum class OwnKernel : uint8_t {
#define X(name, text) name,
  HETERO_OWN_KERNELS(X)
#undef X
      kCount,
};
const char* to_string(OwnKernel kernel);

// Counts by name, for what happens seldom.
class NamedCounts {
 public:
  void count(const std::string& name);
  std::map<std::string, int64_t> all() const;
  void clear();

 private:
  mutable std::mutex mutex_;
  std::map<std::string, int64_t> counts_;
};

struct Counters {
  using Count = std::atomic<int64_t>;

#define COUNTER(group, key, field, text) Count field{0};
#define SECONDS(group, key, field, text) Count field{0};
#define FIGURE(field, title) Count field{0};
#include "ops/settings/counters.def"

  std::array<Count, static_cast<size_t>(SyncReason::kCount)> flushes{};
  std::array<Count, static_cast<size_t>(OwnKernel::kCount)> own_kernels{};

  // What an executor counted in a run.
  void add(const graph::RunCounts& counts);
  NamedCounts fallbacks;  // by operator
  // Calls of a kind that was new, by operator: those that were tried, or run at once.
  NamedCounts tried;
  // Kernels that a GPU refused and the CPU computed, on copies: by "operator: reason".
  NamedCounts rescues;
  void reset();
};

// A row of counters.def, for reports.
struct CounterRow {
  enum class Kind : uint8_t { kGroup, kTable, kCounter, kSeconds, kFigure, kLevel };
  Kind kind;
  const char* group;  // that it belongs to; "" for groups, tables and figures
  const char* name;   // in the group or in the report
  const char* field;  // of Counters; "" where code fills it in
  const char* text;
  std::atomic<int64_t> Counters::*counter;  // null where code fills it in
};
std::span<const CounterRow> counter_rows();

extern Counters* counters_instance;  // made when the library is loaded
inline Counters& counters() { return *counters_instance; }

inline void count(Counters::Count& counter, int64_t by = 1) { counter.fetch_add(by, std::memory_order_relaxed); }
// For counters that only change under one lock: no atomic addition.
[[gnu::always_inline]] inline void count_locked(Counters::Count& counter) {
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

}  // namespace hetero::ops
