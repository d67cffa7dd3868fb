#include "ops/sync.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/Formatting.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DefaultDtype.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <unordered_set>

#include "backend/registry.h"
#include "graph/executor.h"
#include "graph/plan.h"
#include "graph/verify.h"
#include "ops/config.h"
#include "ops/parallel.h"
#include "ops/plan_cache.h"
#include "ops/recorder.h"
#include "ops/verify_flush.h"

namespace hetero::ops {
namespace {

std::atomic<bool> bad_fork{false};
bool prepared_fork = false;  // by the thread that forks, which holds all locks

// What one run needs; reused, so that a steady state allocates nothing.
struct Runner {
  std::recursive_mutex mutex;  // the executor lock; recursive because a Python kernel may use hetero tensors
  int depth = 0;
  Cut cut;
  graph::Plan plan;
  graph::PlanOptions options;
  graph::Executor executor;
  Status deferred;  // the first error that no caller has seen
  std::string plan_text;
};

// The storages that hold memory of the accelerator, so that it can be switched off.
struct Tracked {
  std::mutex mutex;
  std::unordered_set<HeteroStorage*> storages;
};

Tracked& tracked() {
  static auto* instance = new Tracked;
  return *instance;
}

void track_accelerator(const Cut& cut) {
  std::lock_guard guard(tracked().mutex);
  for (size_t b = 0; b < cut.bindings.size(); ++b) {
    if (cut.bindings[b] != nullptr && cut.bindings[b]->blocks[backend::kAccelerator]) {
      tracked().storages.insert(cut.holds[b].storage());
    }
  }
}

Runner& runner() {
  static auto* instance = new Runner;
  return *instance;
}

[[noreturn]] void raise(const Status& status) {
  if (status.cause()) std::rethrow_exception(status.cause());
  if (status.error_class() == ErrorClass::kResource) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, status.message());
  }
  TORCH_CHECK(false, "hetero: ", status.message());
}

graph::PlanOptions plan_options() {
  graph::PlanOptions options;
  // The straight interpreter knows bits, not tolerances.
  options.fusion = config().fusion.load(std::memory_order_relaxed) && !config().verify.load(std::memory_order_relaxed);
  options.cpu = backend::cpu_device().capabilities();
  if (backend::Device* accelerator = backend::accelerator()) {
    options.has_accelerator = true;
    options.accelerator = accelerator->capabilities();
    options.accelerator_host_accessible = options.accelerator.host_accessible;
    const backend::MemoryStats stats = accelerator->memory_stats();
    if (stats.limit_bytes > 0) {
      options.accelerator_bytes =
          static_cast<uint64_t>(std::max<int64_t>(1, stats.limit_bytes - stats.allocated_bytes));
    }
  }
  return options;
}

void add_counts(const graph::Plan& plan, const graph::RunCounts& counts) {
  Counters& total = counters();
  count(total.dead_nodes, plan.dead_nodes);
  count(total.cpu_kernels, counts.kernels[backend::kCpu]);
  count(total.fused_groups, counts.fused_groups);
  count(total.fused_nodes, counts.fused_nodes);
  count(total.compiled_groups, counts.compiled_groups);
  count(total.accelerator_kernels, counts.kernels[backend::kAccelerator]);
  if (counts.copies != 0) {
    for (const graph::Instruction& instruction : plan.program) {
      if (instruction.kind != graph::Instruction::Kind::kCopy) continue;
      count(instruction.to == backend::kCpu ? total.copies_to_cpu : total.copies_to_accelerator);
    }
    count(total.bytes_to_cpu, counts.copied_bytes[backend::kCpu]);
    count(total.bytes_to_accelerator, counts.copied_bytes[backend::kAccelerator]);
  }
  count(total.events, counts.events);
  count(total.waits, counts.waits);
  count(total.skipped_nodes, counts.skipped);
}

// The default dtype, for a scope.
class DefaultDtype {
 public:
  explicit DefaultDtype(at::ScalarType dtype) : before_(c10::typeMetaToScalarType(c10::get_default_dtype())) {
    if (before_ != dtype) c10::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
    changed_ = before_ != dtype;
  }
  ~DefaultDtype() {
    if (changed_) c10::set_default_dtype(c10::scalarTypeToTypeMeta(before_));
  }
  DefaultDtype(const DefaultDtype&) = delete;

 private:
  const at::ScalarType before_;
  bool changed_ = false;
};

// Counts what its scope takes as planning of the cut.
class PlanningTime {
 public:
  explicit PlanningTime(const Cut& cut) : nodes_(cut.graph.nodes.size()) {}
  ~PlanningTime() {
    count(counters().planned_nodes, static_cast<int64_t>(nodes_));
    count(counters().planning_nanoseconds, (std::chrono::steady_clock::now() - start_).count());
  }
  PlanningTime(const PlanningTime&) = delete;

 private:
  const size_t nodes_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// A plan for the cut out of one for other sizes; null where that cannot be.
graph::Plan* resized_plan(PlanSet& known, CachedPlan* similar, const Cut& cut, const graph::PlanOptions& options) {
  const PlanningTime time(cut);
  // Sizes that come back shall find their plan; sizes that only grow shall not fill the set with old ones.
  CachedPlan* target = similar;
  if (!known.full()) {
    target = &known.add(cut);
    target->graph = similar->graph;
    target->plan = similar->plan;
    target->settings = similar->settings;
  }
  target->version = 0;  // until the plan is whole
  if (!graph::resize_plan(target->graph, cut.graph, options, target->plan)) {
    known.drop(target);
    return nullptr;
  }
  target->keep(cut);
  graph::note_buffers(target->graph, target->plan, target->plan.notes);
  known.measure();
  count(counters().plans_resized);
  return &target->plan;
}

// What the accelerator's memory can hold changes from run to run; and a run inside another must not replace the other's plan.
bool keeps_plans(const Runner& state) { return state.depth == 1 && backend::accelerator() == nullptr; }

// Takes the numbers of a cut over to a plan that fits it exactly.
bool renewed(CachedPlan& kept, const Cut& cut) {
  if (kept.graph.attributes != cut.graph.attributes) {
    std::vector<uint8_t> changed;
    graph::find_changed_attributes(kept.graph, cut.graph, changed);
    if (!graph::renew_numbers(cut.graph, changed, kept.plan)) return false;
  }
  kept.keep(cut);
  return true;
}

// The plan of the cut: a kept one where the same trace was planned before, else a new one. What is seen for the first time may never come again:
// it is planned without fusion, and nothing is kept.
graph::Plan& plan_for(Runner& state, Cut& cut, graph::Plan& scratch) {
  graph::PlanOptions& options = state.options;
  PlanSet* const known = cut.keeps && cut.end != nullptr ? &cut.end->plans() : nullptr;
  const PlanSettings settings{options.fusion, config().jit.load(std::memory_order_relaxed), at::get_num_threads()};
  if (cut.kept != nullptr) {
    if (cut.kept->renew(cut.values) && cut.kept->settings == settings) {
      count(counters().plans_replayed);
      return cut.kept->plan;
    }
    cut.graph = cut.kept->graph;
    known->drop(std::exchange(cut.kept, nullptr));
  }
  if (known == nullptr || ++known->sightings == 1) {
    options.fusion = false;
    graph::make_plan(cut.graph, options, scratch);
    return scratch;
  }
  CachedPlan* similar;
  if (CachedPlan* kept = known->find(cut, similar)) {
    if (kept->settings == settings && renewed(*kept, cut)) {
      count(counters().plans_replayed);
      return kept->plan;
    }
    known->drop(kept);
    similar = nullptr;
  }
  if (similar != nullptr && similar->settings == settings) {
    if (graph::Plan* plan = resized_plan(*known, similar, cut, options)) return *plan;
  }
  const PlanningTime time(cut);
  CachedPlan& made = known->add(cut);
  made.settings = settings;
  made.version = 0;  // until the plan is whole
  graph::make_plan(cut.graph, options, made.plan);
  made.version = cut.version;
  graph::note_buffers(cut.graph, made.plan, made.plan.notes);
  known->measure();
  count(counters().plans_made);
  for (size_t n = 0; n < made.plan.fusion.size(); ++n) {
    if (made.plan.live[n] != 0) count(fusion_notes()[static_cast<size_t>(made.plan.fusion[n])]);
  }
  return made.plan;
}

// Plans and runs `cut`. REQUIRES: the executor lock, not the recorder lock. Returns the first error.
Status run(Runner& state, Cut& cut, graph::Plan& scratch, graph::Executor& executor, SyncReason reason) {
  RECORD_FUNCTION("hetero::flush", std::vector<c10::IValue>());
  count(counters().flushes[static_cast<size_t>(reason)]);
  state.options = plan_options();
  // Planning, too, asks what untyped numbers become.
  const DefaultDtype dtype(cut.default_dtype);
  const graph::Plan& plan = plan_for(state, cut, scratch);
  const graph::Graph& graph = cut.planned();
  const int64_t log = config().log.load(std::memory_order_relaxed);
  if (config().verify_plans.load(std::memory_order_relaxed)) {
    Status status = graph::verify_graph(graph);
    if (status.ok()) status = graph::verify_plan(graph, plan, state.options);
    if (!status.ok()) return status;
  }
  if (config().keep_plans.load(std::memory_order_relaxed) || log >= 2) {
    state.plan_text = graph::to_string(graph) + "\n" + graph::to_string(plan);
  }
  if (log >= 1) {
    std::fprintf(stderr, "hetero: flush (%s): %zu nodes, %u dead\n%s", to_string(reason), graph.nodes.size(),
                 plan.dead_nodes, log >= 2 ? state.plan_text.c_str() : "");
  }
  WithoutInterpreter released;
  KernelScope scope;
  choose_thread_count();
  FlushVerifier verifier(config().verify.load(std::memory_order_relaxed), cut);
  graph::RunCounts counts;
  Status status = executor.run(graph, plan, cut.bindings, counts);
  if (state.options.has_accelerator) track_accelerator(cut);
  if (status.ok()) status = verifier.compare(cut);
  add_counts(plan, counts);
  return status;
}

// A run, which may be inside another. Whatever happens, its cut holds nothing afterwards.
class Nested {
 public:
  Nested(int& depth, Cut& cut) : depth_(depth), cut_(cut) { ++depth_; }
  ~Nested() {
    cut_.clear();
    --depth_;
  }
  Nested(const Nested&) = delete;

 private:
  int& depth_;
  Cut& cut_;
};

// Cuts with `cut_nodes(recorder, reuse, cut)` and runs the result. Returns the error of the run.
template <typename CutNodes>
Status cut_and_run_once(Runner& state, SyncReason reason, CutNodes cut_nodes, Cut& cut, graph::Plan& plan,
                        graph::Executor& executor) {
  const Nested nested(state.depth, cut);
  bool any;
  {
    Locked lock(recorder().mutex());
    cut.default_dtype = recorder().default_dtype();
    any = cut_nodes(recorder(), keeps_plans(state), cut);
  }
  return any ? run(state, cut, plan, executor, reason) : Status();
}

bool trim_caches() {
  Locked lock(recorder().mutex());
  return recorder().trim_caches();
}

template <typename CutNodes>
Status cut_and_run(Runner& state, SyncReason reason, CutNodes cut_nodes) {
  if (state.depth != 0) {
    // A Python kernel inside a run came back to us: run on objects of its own.
    Cut cut;
    graph::Plan plan;
    graph::Executor executor;
    return cut_and_run_once(state, reason, cut_nodes, cut, plan, executor);
  }
  Status status = cut_and_run_once(state, reason, cut_nodes, state.cut, state.plan, state.executor);
  if (!trim_caches()) [[unlikely]] {
    // What was left pending stands in the way. Its errors are for whoever needs it.
    const auto all = [](Recorder& from, bool reuse, Cut& cut) { return from.cut_all(reuse, cut); };
    const Status rest = cut_and_run_once(state, SyncReason::kPendingNodes, all, state.cut, state.plan, state.executor);
    if (!rest.ok() && state.deferred.ok()) state.deferred = rest;
    trim_caches();
  }
  return status;
}

// Raises the error of a storage whose bytes are lost. REQUIRES: the executor lock.
void check_bytes(const HeteroStorage* storage) {
  if (!storage->binding.error.ok()) raise(storage->binding.error);
}

// Brings the bytes of a settled storage to the host. REQUIRES: the executor lock.
void bring_to_host(HeteroStorage* storage) {
  graph::Binding& binding = storage->binding;
  check_bytes(storage);
  constexpr uint8_t kOnCpu = 1u << backend::kCpu;
  if ((binding.valid_on & kOnCpu) != 0) return;
  if (!binding.blocks[backend::kCpu]) {
    Result<backend::Block> block = backend::cpu_device().allocate(storage->nbytes());
    if (!block.ok()) raise(block.status());
    binding.blocks[backend::kCpu] = std::move(block.value());
  }
  if (binding.valid_on != 0) {
    backend::Device* accelerator = backend::accelerator();
    backend::Queue& queue = accelerator->queue(backend::QueueKind::kDeviceToHost);
    Status status = queue.copy(binding.blocks[backend::kCpu].data(), binding.blocks[backend::kAccelerator].data(),
                               storage->nbytes());
    if (status.ok()) status = queue.synchronize();
    if (!status.ok()) raise(status);
    count(counters().copies_to_cpu);
    count(counters().bytes_to_cpu, static_cast<int64_t>(storage->nbytes()));
  }
  binding.valid_on |= kOnCpu;
}

}  // namespace

void flush_all(SyncReason reason) {
  if (bad_fork) return;
  Runner& state = runner();
  Locked lock(state.mutex);
  const bool too_long = reason == SyncReason::kPendingNodes || reason == SyncReason::kPendingBytes;
  Status status = cut_and_run(state, reason, [too_long](Recorder& from, bool reuse, Cut& cut) {
    return too_long ? from.cut_some(reuse, cut) : from.cut_all(reuse, cut);
  });
  const bool explicit_sync =
      reason == SyncReason::kFlush || reason == SyncReason::kSynchronize || reason == SyncReason::kSyncMode;
  if (!explicit_sync) {
    if (!status.ok() && state.deferred.ok()) state.deferred = status;
    return;
  }
  if (status.ok()) status = std::exchange(state.deferred, Status());
  state.deferred = Status();
  if (!status.ok()) raise(status);
}

void settle(std::span<HeteroStorage* const> storages, SyncReason reason) {
  check_fork();
  Runner& state = runner();
  Locked lock(state.mutex);
  const Status status = cut_and_run(state, reason, [&](Recorder& from, bool reuse, Cut& cut) {
    return from.cut_ancestors(storages, false, reuse, cut);
  });
  for (HeteroStorage* storage : storages) check_bytes(storage);
  // Some other value failed in the same run: whoever needs it will see the error.
  if (!status.ok() && status.error_class() == ErrorClass::kInternal) raise(status);
}

void settle_users(HeteroStorage* storage, SyncReason reason) {
  check_fork();
  Runner& state = runner();
  Locked lock(state.mutex);
  HeteroStorage* const storages[] = {storage};
  const Status status = cut_and_run(state, reason, [&](Recorder& from, bool reuse, Cut& cut) {
    return from.cut_ancestors(storages, true, reuse, cut);
  });
  if (!status.ok() && status.error_class() == ErrorClass::kInternal) raise(status);
}

void after_record() {
  SyncReason reason;
  {
    Locked lock(recorder().mutex());
    reason = recorder().pressure();
  }
  if (reason != SyncReason::kCount) flush_all(reason);
}

c10::Storage host_storage(const c10::Storage& of, SyncReason reason, bool writes) {
  check_fork();
  auto* storage = static_cast<HeteroStorage*>(of.unsafeGetStorageImpl());
  HeteroStorage* const storages[] = {storage};
  Runner& state = runner();
  Locked lock(state.mutex);
  if (writes) settle_users(storage, reason);
  settle(storages, reason);
  bring_to_host(storage);
  if (writes) {
    storage->binding.valid_on = 1u << backend::kCpu;
    storage->binding.derived.reset();
    storage->binding.shared |= reason == SyncReason::kLeaveDispatcher;
  }

  c10::StorageImpl* owner = c10::Storage(of).unsafeReleaseStorageImpl();
  c10::DataPtr pointer(
      storage->binding.blocks[backend::kCpu].data(), owner,
      [](void* context) { c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(context)); },
      c10::Device(c10::kCPU));
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                            static_cast<int64_t>(storage->nbytes()), std::move(pointer),
                                                            c10::GetCPUAllocator(), true));
}

at::Tensor tensor_over(c10::Storage bytes, const at::Tensor& tensor) {
  at::Tensor alias = at::detail::make_tensor<c10::TensorImpl>(
      std::move(bytes), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  c10::TensorImpl* impl = alias.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) impl->_set_conj(true);
  if (tensor.is_neg()) impl->_set_neg(true);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return alias;
}

at::Tensor host_alias(const at::Tensor& tensor, SyncReason reason, bool writes) {
  return tensor_over(host_storage(tensor.storage(), reason, writes), tensor);
}

bool is_fresh(HeteroStorage* storage) {
  Locked executing(runner().mutex);
  Locked recording(recorder().mutex());
  return storage->binding.valid_on == 0 && storage->binding.error.ok() && !recorder().touched(storage);
}

void install_bytes(HeteroStorage* storage, backend::Block block) {
  Locked lock(runner().mutex);
  storage->binding.derived.reset();
  storage->binding.blocks[backend::kCpu] = std::move(block);
  storage->binding.valid_on = 1u << backend::kCpu;
  storage->binding.error = Status();
}

void resize_storage(HeteroStorage* storage, size_t bytes) {
  check_fork();
  if (bytes == storage->nbytes()) return;
  Runner& state = runner();
  Locked lock(state.mutex);
  settle_users(storage, SyncReason::kStorageChange);
  graph::Binding& binding = storage->binding;
  binding.derived.reset();
  if (binding.valid_on != 0) {
    bring_to_host(storage);
    Result<backend::Block> block = backend::cpu_device().allocate(bytes);
    if (!block.ok()) raise(block.status());
    std::memcpy(block.value().data(), binding.blocks[backend::kCpu].data(), std::min(bytes, storage->nbytes()));
    binding.blocks[backend::kCpu] = std::move(block.value());
    binding.valid_on = 1u << backend::kCpu;
  } else {
    binding.blocks[backend::kCpu].reset();
  }
  binding.blocks[backend::kAccelerator].reset();
  storage->change_size(bytes);
}

void settle_everything_on_cpu() {
  flush_all(SyncReason::kSettings);
  Locked lock(runner().mutex);
  std::vector<StorageHold> holds;
  {
    std::lock_guard guard(tracked().mutex);
    for (HeteroStorage* storage : tracked().storages) {
      StorageHold hold(storage, false);
      if (hold.lock()) holds.push_back(std::move(hold));
    }
    tracked().storages.clear();
  }
  for (StorageHold& hold : holds) {
    graph::Binding& binding = hold.storage()->binding;
    if (binding.error.ok()) bring_to_host(hold.storage());
    binding.blocks[backend::kAccelerator].reset();
    binding.valid_on &= 1u << backend::kCpu;
  }
}

void untrack_accelerator(HeteroStorage* storage) {
  std::lock_guard guard(tracked().mutex);
  tracked().storages.erase(storage);
}

std::string last_plan_text() {
  Locked lock(runner().mutex);
  return runner().plan_text;
}

std::string line_of(uint32_t sequence) {
  const auto& lines = runner().cut.lines;
  const auto found = lines.find(sequence);
  return found == lines.end() ? std::string() : found->second;
}

void prepare_fork() {
  // A child of a process that never used the device may use it.
  if (!device_was_used() || bad_fork) return;
  flush_all(SyncReason::kFork);
  runner().mutex.lock();
  recorder().mutex().lock();
  tracked().mutex.lock();
  prepared_fork = true;
}

void finish_fork_in_parent() {
  if (!std::exchange(prepared_fork, false)) return;
  tracked().mutex.unlock();
  recorder().mutex().unlock();
  runner().mutex.unlock();
}

void finish_fork_in_child() {
  if (!std::exchange(prepared_fork, false)) return;
  tracked().mutex.unlock();
  recorder().mutex().unlock();
  // A recursive mutex belongs to a thread of the parent: the child's cannot unlock it.
  new (&runner().mutex) std::recursive_mutex;
  bad_fork = true;
}

bool in_bad_fork() { return bad_fork; }

void check_fork() {
  TORCH_CHECK(!bad_fork,
              "Cannot re-initialize hetero in forked subprocess. To use hetero with "
              "multiprocessing, you must use the 'spawn' start method");
}

}  // namespace hetero::ops
