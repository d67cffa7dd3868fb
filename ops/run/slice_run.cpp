#include "ops/run/slice_run.h"

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <cstdio>
#include <span>
#include <string>

#include "backend/registry/registry.h"
#include "graph/verify/verify.h"
#include "ops/memory/arrivals.h"
#include "ops/memory/gaps.h"
#include "ops/memory/storage_memory.h"
#include "ops/record/running.h"
#include "ops/record/trie.h"
#include "ops/run/cost_history.h"
#include "ops/run/profile.h"
#include "ops/run/program_log.h"
#include "ops/run/run_errors.h"
#include "ops/run/verify_flush.h"
#include "ops/settings/config.h"
#include "ops/settings/parallel.h"
#include "ops/tensor/locks.h"

namespace hetero::ops {
namespace {

// Of the runs after the first ones that were measured, one in so many is: the machine may change.
constexpr uint32_t kSeldom = 16;

void add_counts(const graph::Plan& plan, const graph::RunCounts& counts) {
  Counters& total = counters();
  count(total.dead_nodes, plan.dead_nodes);
  count(total.cpu_kernels, counts.kernels[backend::kCpu]);
  for (size_t d = 1; d < backend::kMostDevices; ++d) {
    count(total.accelerator_kernels, counts.kernels[d]);
    count(total.bytes_to_accelerator, counts.copied_bytes[d]);
  }
  if (counts.copies != 0) {
    for (const graph::Instruction& instruction : plan.program) {
      if (!instruction.is_copy()) continue;
      count(instruction.to == backend::kCpu ? total.copies_to_cpu : total.copies_to_accelerator);
    }
    count(total.bytes_to_cpu, counts.copied_bytes[backend::kCpu]);
  }
  if (counts.uploads_ahead != 0) count(total.copies_to_accelerator, counts.uploads_ahead);
  total.add(counts);
}

}  // namespace

DefaultDtype::DefaultDtype(at::ScalarType dtype) : before_(c10::typeMetaToScalarType(c10::get_default_dtype())) {
  if (before_ != dtype) c10::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
  changed_ = before_ != dtype;
}
DefaultDtype::~DefaultDtype() {
  if (changed_) c10::set_default_dtype(c10::scalarTypeToTypeMeta(before_));
}

bool SliceRun::keeps_plans() { return running_slices().size() == 1; }

Status SliceRun::start(Cut& cut, SyncReason reason) {
  if (has_spilled.load(std::memory_order_relaxed)) [[unlikely]]
    bring_back(cut.slice);
  for (const graph::BufferId b : cut.slice.to_close) {
    HeteroStorage* const storage = cut.slice.holds[b].storage();
    // The nodes cannot see the bytes as they lie: they are lost to them, and so to what the run
    // makes.
    if (Status status = close_gaps(storage); !status.ok()) storage->binding.error = std::move(status);
  }
  count(counters().flushes[static_cast<size_t>(reason)]);
  planned_ = choice_.plan(cut.slice, cut.request);
  const graph::Graph& graph = *planned_.graph;
  const graph::Plan& plan = *planned_.plan;
  const graph::PlanOptions& options = choice_.options();
  const int64_t log = config().log.load(std::memory_order_relaxed);
  if (config().verify_plans.load(std::memory_order_relaxed)) {
    Status status = graph::verify_graph(graph);
    if (status.ok()) status = graph::verify_plan(graph, plan, options);
    if (!status.ok()) return status;
  }
  const bool keeps = config().keep_plans.load(std::memory_order_relaxed);
  std::string& text = program_log().plan_text;
  if (keeps || log >= 2) text = plan_text(graph, plan, options);
  if (log >= 1) {
    std::fprintf(stderr, "hetero: flush (%s): %zu nodes, %u dead\n%s", to_string(reason), graph.nodes.size(),
                 plan.dead_nodes, log >= 2 ? text.c_str() : "");
  }
  cut_ = &cut;
  if (spills()) make_host_room(host_need(cut.slice, graph, plan));
  reason_ = reason;
  counts_ = graph::RunCounts();
  CachedPlan* const kept = planned_.kept;
  profiles_ = profiles();
  measures_ = keeps || profiles_ ||
              (options.machine.has_accelerator() && kept != nullptr &&
               (kept->measured < PlanChoice::kMeasuredRuns || ++kept->unmeasured % kSeldom == 0));
  if (measures_ && options.machine.has_accelerator()) provisional_before_ = backend::accelerator()->provisional_runs();
  if (options.machine.has_accelerator() && keeps_plans()) find_uploads(cut.slice, plan, uploads_, uploaded_);
  if (profiles_) begun_at_ = profiler_time();
  executor_.begin(graph, plan, cut.slice.bindings, counts_, measures_ ? &times_ : nullptr, &uploads_, find_segments());
  return Status();
}

// Null where launches stay by themselves. What is measured is measured kernel by kernel, and a
// profiler wants to see each.
std::unique_ptr<graph::Segments>* SliceRun::find_segments() {
  if (!choice_.options().machine.has_accelerator() || planned_.kept == nullptr || measures_ || at::hasCallbacks() ||
      !config().segments.load(std::memory_order_relaxed)) {
    return nullptr;
  }
  return &planned_.kept->segments;
}

bool SliceRun::go_on(const std::atomic<int32_t>* stop) { return executor_.go_on(stop); }

Status SliceRun::finish() {
  Status status = executor_.end();
  for (const StorageHold& hold : uploaded_) track_storage(hold.storage());
  uploaded_.clear();
  uploads_.entries.clear();
  const bool spilling = may_spill.load(std::memory_order_relaxed) || has_spilled.load(std::memory_order_relaxed);
  const bool all_small = planned_.kept != nullptr && planned_.kept->largest_bound < kLargeStorage;
  if (choice_.options().machine.has_accelerator() || spilling || !all_small) track_storages(cut_->slice);
  add_counts(*planned_.plan, counts_);
  if (choice_.options().machine.has_accelerator() && backend::accelerator()->has_virtual_clock())
    advance_virtual_clock();
  if (measures_) note_run(status.ok());
  if (profiles_) {
    profile().add_run(*planned_.graph, *planned_.plan, times_, cut_->slice.notes, begun_at_, to_string(reason_));
  }
  if (!status.ok()) [[unlikely]]
    note_failure();
  return status;
}

// What an operator was to change that the plan has left out, since a later one replaces it all, is
// lost: it would be older than what was recorded.
void SliceRun::note_failure() {
  const graph::Graph& graph = *planned_.graph;
  std::vector<uint8_t> older(graph.buffers.size());
  const auto mark = [&](const graph::Node& node, std::span<const graph::GroupOperand> stored) {
    for (int i = 0; i < node.operand_count; ++i) {
      const graph::Operand& operand = graph.operands_of(node)[i];
      const auto stores = [&](const graph::GroupOperand& o) { return o.buffer == operand.buffer && o.stores; };
      if (operand.writes() && std::ranges::none_of(stored, stores)) older[operand.buffer] = 1;
    }
  };
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!planned_.plan->live[n]) mark(graph.nodes[n], {});
  }
  for (const graph::FusedGroup& group : planned_.plan->groups) {
    for (const uint32_t member : group.members) mark(graph.nodes[member], group.operands);
  }
  FailedRun run;
  for (size_t b = 0; b < cut_->slice.bindings.size(); ++b) {
    graph::Binding* const binding = cut_->slice.bindings[b];
    if (binding == nullptr || binding->error.ok()) continue;
    if (older[b] != 0) binding->valid_on = 0;
    run.errors.push_back(binding->error.message());
    run.storages.emplace_back(cut_->slice.holds[b].storage(), false);
  }
  std::vector<FailedRun>& runs = run_errors().failed_runs;
  std::erase_if(runs, [](FailedRun& other) {
    std::erase_if(other.storages, [](const StorageHold& hold) { return !hold.alive(); });
    return other.storages.empty();
  });
  if (!run.storages.empty()) runs.push_back(std::move(run));
}

// A virtual clock does not see what a run does that uses the host only; it is told, and that is
// what the run has taken.
void SliceRun::advance_virtual_clock() {
  if (!graph::uses_host_only(*planned_.plan)) return;
  double seconds = 0;
  for (size_t p = 0; p < planned_.plan->program.size(); ++p) {
    const double begin = seconds;
    seconds += graph::modelled_seconds(*planned_.graph, *planned_.plan, planned_.plan->program[p]);
    if (measures_) times_.spans[p] = {begin, seconds};
  }
  times_.seconds = seconds;
  backend::accelerator()->advance_host(seconds);
}

// Learns from what the run took, where all of it was done as it will be.
void SliceRun::note_run(bool succeeded) {
  const graph::Graph& graph = *planned_.graph;
  const bool on_host = graph::uses_host_only(*planned_.plan);
  backend::Device* const accelerator = choice_.options().machine.has_accelerator() ? backend::accelerator() : nullptr;
  const bool provisional = accelerator != nullptr && accelerator->provisional_runs() != provisional_before_;
  if (accelerator != nullptr && planned_.kept != nullptr && succeeded && !provisional) {
    Learned learned;
    if (!on_host || !accelerator->has_virtual_clock())
      learned = learn_costs(graph, *planned_.plan, choice_.options(), times_);
    ++planned_.kept->measured;
    const double predicted = planned_.kept->predicted_seconds;
    const bool judged = planned_.kept->alone.note(times_.seconds, predicted, learned.beside);
    if (learned.slowness > 0) planned_.kept->alone.learn(learned.slowness);
    if (PlanSet* const plans = plans_for(cut_->request); plans != nullptr && judged) {
      plans->trial.note(times_.seconds, predicted, *planned_.plan);
    }
  }
  if (!config().keep_plans.load(std::memory_order_relaxed)) return;
  ProgramLog& log = program_log();
  log_program(log,
              {.graph = graph,
               .plan = *planned_.plan,
               .options = choice_.options(),
               .times = &times_,
               .candidates = planned_.kept != nullptr ? planned_.kept->candidates : choice_.candidates()},
              "flush " + std::to_string(++log.flushes) + ": " + to_string(reason_));
}

Status SliceRun::run(Cut& cut, SyncReason reason) {
  RECORD_FUNCTION("hetero::flush", std::vector<c10::IValue>());
  began_ = ended_ = {};
  // Planning, too, asks what untyped numbers become.
  const DefaultDtype dtype(cut.slice.default_dtype);
  Status status = start(cut, reason);
  if (!status.ok()) return status;
  WithoutInterpreter released;
  KernelScope scope;
  choose_thread_count();
  FlushVerifier verifier(config().verify.load(std::memory_order_relaxed), cut.slice, *planned_.graph);
  began_ = std::chrono::steady_clock::now();
  go_on(nullptr);
  status = finish();
  ended_ = std::chrono::steady_clock::now();
  return status.ok() ? verifier.compare(cut.slice, *planned_.graph) : status;
}

}  // namespace hetero::ops
