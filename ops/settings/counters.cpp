#include "ops/settings/counters.h"

namespace hetero::ops {

const char* to_string(SyncReason reason) {
  switch (reason) {
#define X(name, text)    \
  case SyncReason::name: \
    return text;
    HETERO_SYNC_REASONS(X)
#undef X
    case SyncReason::kCount:
      break;
  }
  return "unknown";
}

const char* to_string(OwnKernel kernel) {
  switch (kernel) {
#define X(name, text)   \
  case OwnKernel::name: \
    return text;
    HETERO_OWN_KERNELS(X)
#undef X
    case OwnKernel::kCount:
      break;
  }
  return "unknown";
}

constinit Counters* counters_instance = nullptr;
namespace {
// Before the static initializers, which register operators.
[[gnu::constructor(200)]] void make_counters() { counters_instance = new Counters; }
}  // namespace

void Counters::count_fallback(const std::string& op) {
  std::lock_guard lock(mutex_);
  ++fallbacks_[op];
}

std::map<std::string, int64_t> Counters::fallbacks() {
  std::lock_guard lock(mutex_);
  return fallbacks_;
}

void Counters::count_rescue(const std::string& refusal) {
  std::lock_guard lock(mutex_);
  ++rescues_[refusal];
}

std::map<std::string, int64_t> Counters::rescues() {
  std::lock_guard lock(mutex_);
  return rescues_;
}

void Counters::reset() {
  for (Count* counter : {&typed_nodes,
                         &boxed_nodes,
                         &views,
                         &straight,
                         &predicted_nodes,
                         &mispredicted_nodes,
                         &written_nodes,
                         &meta_hits,
                         &meta_misses,
                         &plans_made,
                         &plans_resized,
                         &plans_replayed,
                         &planning_nanoseconds,
                         &planned_nodes,
                         &dead_nodes,
                         &cpu_kernels,
                         &accelerator_kernels,
                         &fused_groups,
                         &batched_nodes,
                         &fused_nodes,
                         &compiled_groups,
                         &copies_to_accelerator,
                         &copies_to_cpu,
                         &transfers,
                         &uploads_ahead,
                         &bytes_to_accelerator,
                         &bytes_to_cpu,
                         &segments,
                         &events,
                         &waits,
                         &storages_evicted,
                         &storages_spilled,
                         &bytes_spilled,
                         &skipped_nodes,
                         &verified_flushes,
                         &captures,
                         &compiled_calls}) {
    *counter = 0;
  }
  for (Count& flush : flushes) flush = 0;
  for (Count& own : own_kernels) own = 0;
  std::lock_guard lock(mutex_);
  fallbacks_.clear();
  rescues_.clear();
}

}  // namespace hetero::ops
