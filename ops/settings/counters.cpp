#include "ops/settings/counters.h"

#include "graph/run/executor.h"

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

std::span<const CounterRow> counter_rows() {
  using Kind = CounterRow::Kind;
  static constexpr CounterRow kRows[] = {
#define GROUP(name, title) {Kind::kGroup, "", #name, "", title, nullptr},
#define TABLE(name, title) {Kind::kTable, "", #name, "", title, nullptr},
#define COUNTER(group, key, field, text) {Kind::kCounter, #group, #key, #field, text, &Counters::field},
#define SECONDS(group, key, field, text) {Kind::kSeconds, #group, #key, #field, text, &Counters::field},
#define FIGURE(field, title) {Kind::kFigure, "", #field, #field, title, &Counters::field},
#define LEVEL(group, key, text) {Kind::kLevel, #group, #key, "", text, nullptr},
#include "ops/settings/counters.def"
  };
  return kRows;
}

void Counters::add(const graph::RunCounts& counts) {
#define GROUP(name, title)
#define FIGURE(field, title) \
  if (counts.field != 0) count(field, counts.field);
#define COUNTER(group, key, field, text) FIGURE(field, text)
#include "graph/run/run_counts.def"
#undef COUNTER
#undef FIGURE
#undef GROUP
}

void NamedCounts::count(const std::string& name) {
  const std::lock_guard lock(mutex_);
  ++counts_[name];
}

std::map<std::string, int64_t> NamedCounts::all() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void NamedCounts::clear() {
  const std::lock_guard lock(mutex_);
  counts_.clear();
}

void Counters::reset() {
  for (const CounterRow& row : counter_rows()) {
    if (row.counter != nullptr) this->*row.counter = 0;
  }
  for (Count& flush : flushes) flush = 0;
  for (Count& own : own_kernels) own = 0;
  fallbacks.clear();
  tried.clear();
  rescues.clear();
}

}  // namespace hetero::ops
