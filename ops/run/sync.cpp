#include "ops/run/sync.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/Formatting.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>
#include <optional>
#include <sstream>

#include "backend/registry/registry.h"
#include "graph/verify/interpret.h"
#include "ops/memory/arrivals.h"
#include "ops/memory/gaps.h"
#include "ops/memory/storage_memory.h"
#include "ops/record/recorder.h"
#include "ops/record/running.h"
#include "ops/run/overlap.h"
#include "ops/run/run_errors.h"
#include "ops/run/slice_run.h"
#include "ops/settings/config.h"
#include "ops/settings/parallel.h"

namespace hetero::ops {
namespace {

std::atomic<bool> bad_fork{false};
bool prepared_fork = false;  // by the thread that forks, which holds all locks

// Reused, so that a steady state allocates nothing. The executor lock.
struct Runner {
  Cut cut;
  SliceRun run;
};
Runner& runner() {
  static auto* instance = new Runner;
  return *instance;
}

// A run, which may be inside another. Whatever happens, its cut holds nothing afterwards.
class Nested {
 public:
  explicit Nested(Cut& cut) : running_(cut.slice), cut_(cut) {}
  ~Nested() { cut_.clear(); }
  Nested(const Nested&) = delete;

 private:
  const RunScope running_;
  Cut& cut_;
};

// Takes note of what it took to record and to run a trace: it may be worth running the next one
// while it is recorded.
void note_overlap(const Cut& cut, const SliceRun& run) {
  overlap().learn(cut, run.began() - cut.times.begun, run.ended() - run.began());
  if (cut.times.mark != nullptr) overlap().judge(cut.times.mark, run.ended() - cut.times.divided_begun);
}

// Cuts with `cut_nodes(recorder, reuse, cut)` and runs the result. Returns the error of the run.
template <typename CutNodes>
Status cut_and_run_once(SyncReason reason, CutNodes cut_nodes, Cut& cut, SliceRun& run) {
  const Nested nested(cut);
  cut.slice.threads = at::get_num_threads();
  bool any;
  {
    Locked lock(recorder().mutex());
    cut.slice.default_dtype = recorder().default_dtype();
    any = cut_nodes(recorder(), SliceRun::keeps_plans(), cut);
  }
  if (!any) return Status();
  const Status status = run.run(cut, reason);
  if (cut.request.keeps && cut.request.end != nullptr && run.ended() > run.began()) note_overlap(cut, run);
  return status;
}

bool trim_caches() {
  Locked lock(recorder().mutex());
  return recorder().trim_caches();
}

template <typename CutNodes>
Status cut_and_run(SyncReason reason, CutNodes cut_nodes) {
  if (!running_slices().empty()) {
    // A Python kernel inside a run came back to us: run on objects of its own.
    Cut cut;
    SliceRun run;
    return cut_and_run_once(reason, cut_nodes, cut, run);
  }
  Runner& state = runner();
  Status status = cut_and_run_once(reason, cut_nodes, state.cut, state.run);
  if (!trim_caches()) [[unlikely]] {
    // What was left pending stands in the way. Its errors are for whoever needs it.
    const auto all = [](Recorder& from, bool reuse, Cut& cut) { return from.cut_all(reuse, cut); };
    const Status rest = cut_and_run_once(SyncReason::kPendingNodes, all, state.cut, state.run);
    if (!rest.ok() && run_errors().deferred.ok()) run_errors().deferred = rest;
    trim_caches();
  }
  return status;
}

// Raises the error of a storage whose bytes are lost. REQUIRES: the executor lock.
void check_bytes(const HeteroStorage* storage) {
  if (storage->binding.error.ok()) return;
  const Status error = storage->binding.error;
  give_back(error);
  raise(error);
}

bool is_touched(const HeteroStorage* storage) {
  Locked recording(recorder().mutex());
  return recorder().touched(storage);
}

// In a capture nothing of the program runs. What has its bytes, or depends on constants only, may
// be looked at: for the latter, the result is what computes it. REQUIRES: the executor lock.
ConstantPart check_constant(HeteroStorage* storage, SyncReason reason) {
  check_bytes(storage);
  std::optional<ConstantPart> part;
  {
    Locked recording(recorder().mutex());
    part = recorder().constant_part(storage);
  }
  if (!part.has_value()) refuse_capture(to_string(reason));
  return std::move(*part);
}

// Brings the bytes of a settled storage to the host. REQUIRES: the executor lock.
void fetch_bytes(HeteroStorage* storage) {
  if (const Status status = bring_to_host(storage); !status.ok()) raise(status);
}

// Moves the bytes of a settled storage together, which somebody wants that way. REQUIRES: the
// executor lock.
void bring_together(HeteroStorage* storage) {
  if (!storage->binding.layout.has_gaps()) return;
  if (const Status status = close_gaps(storage); !status.ok()) raise(status);
  Locked recording(recorder().mutex());
  storage->growth = Growth::kNotApart;
}

c10::Storage cpu_storage(c10::DataPtr bytes, size_t size, bool resizable = true) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                            static_cast<int64_t>(size), std::move(bytes),
                                                            c10::GetCPUAllocator(), resizable));
}

// A CPU storage that owns the block.
c10::Storage cpu_storage(backend::Block block, size_t size) {
  auto* const owner = new backend::Block(std::move(block));
  return cpu_storage(c10::DataPtr(
                         owner->data(), owner, [](void* context) { delete static_cast<backend::Block*>(context); },
                         c10::Device(c10::kCPU)),
                     size);
}

// A CPU storage of a storage's bytes, which have gaps where they are. REQUIRES: the executor lock.
c10::Storage dense_copy(const HeteroStorage* storage) {
  Result<backend::Block> block = without_gaps(storage);
  if (!block.ok()) raise(block.status());
  return cpu_storage(std::move(block.value()), storage->nbytes());
}

// What a capture has recorded of a storage, computed beside the capture. REQUIRES: the executor
// lock.
c10::Storage computed(ConstantPart& part, SyncReason reason) {
  std::vector<c10::Storage> given;
  std::vector<graph::Binding> bindings(part.storages.size());
  std::vector<graph::Binding*> pointers;
  for (size_t b = 0; b < bindings.size(); ++b) {
    pointers.push_back(&bindings[b]);
    if (part.storages[b] == nullptr) continue;
    const auto storage = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(part.storages[b]);
    const c10::Storage& host = given.emplace_back(host_storage(c10::Storage(storage), reason, false));
    bindings[b].blocks[backend::kCpu] = backend::Block::adopt(host.mutable_data(), host.nbytes(), nullptr, nullptr);
    bindings[b].valid_on = part.graph.buffers[b].valid_on = backend::only(backend::kCpu);
  }
  const KernelScope scope;
  if (const Status status = graph::interpret(part.graph, pointers); !status.ok()) raise(status);
  return cpu_storage(std::move(bindings[part.result].blocks[backend::kCpu]), part.graph.buffers[part.result].bytes);
}

// Somebody outside sees the bytes of a storage, from before what is pending is settled: what is
// recorded from now on runs at once.
class Sharing {
 public:
  explicit Sharing(HeteroStorage* storage) : storage_(storage) {
    if (storage_ != nullptr) storage_->binding.sharers.add();
  }
  ~Sharing() {
    if (storage_ != nullptr) storage_->binding.sharers.remove();
  }
  Sharing(const Sharing&) = delete;
  void keep() { storage_ = nullptr; }

 private:
  HeteroStorage* storage_;
};

// The end of a CPU storage over a HeteroStorage's block, on any thread.
template <bool kShares>
void end_reader(void* context) {
  auto* const storage = static_cast<HeteroStorage*>(static_cast<c10::StorageImpl*>(context));
  if (kShares) storage->binding.sharers.remove();
  --storage->host_readers;
  c10::raw::intrusive_ptr::decref(storage);
}

}  // namespace

void give_back(const Status& error) {
  std::vector<FailedRun>& failed_runs = run_errors().failed_runs;
  // Inside a run, that one's storages may be among them: the outermost does it.
  while (running_slices().empty()) {
    const auto failed = std::ranges::find_if(failed_runs, [&](const FailedRun& run) {
      return std::ranges::find(run.errors, error.message()) != run.errors.end();
    });
    if (failed == failed_runs.end()) return;
    std::vector<StorageHold> storages = std::move(failed->storages);
    failed_runs.erase(failed);
    std::erase_if(storages, [](StorageHold& hold) { return !hold.lock(); });
    // Runs that fail by what is pending are failed runs, too.
    for (const StorageHold& hold : storages) settle_users(hold.storage(), SyncReason::kFlush);
    for (const StorageHold& hold : storages) {
      if (hold.storage()->binding.valid_on != 0) hold.storage()->binding.error = Status();
    }
  }
}

void flush_all(SyncReason reason) {
  if (bad_fork) return;
  refuse_capture(to_string(reason));
  const Executing executing;
  const bool too_long = reason == SyncReason::kPendingNodes || reason == SyncReason::kPendingBytes;
  Status status = cut_and_run(reason, [too_long](Recorder& from, bool reuse, Cut& cut) {
    return too_long ? from.cut_some(reuse, cut) : from.cut_all(reuse, cut);
  });
  const bool explicit_sync =
      reason == SyncReason::kFlush || reason == SyncReason::kSynchronize || reason == SyncReason::kSyncMode;
  if (!explicit_sync) {
    if (!status.ok() && run_errors().deferred.ok()) run_errors().deferred = status;
    return;
  }
  if (status.ok()) status = std::exchange(run_errors().deferred, Status());
  run_errors().deferred = Status();
  if (status.ok()) return;
  give_back(status);
  raise(status);
}

namespace {

// `fetched`, if not null, is the one of them whose bytes the host is about to read.
void settle_for(std::span<HeteroStorage* const> storages, const HeteroStorage* fetched, SyncReason reason) {
  check_fork();
  const Executing executing;
  if (captures_here()) [[unlikely]] {
    for (HeteroStorage* storage : storages) check_constant(storage, reason);
    return;
  }
  const Status status = cut_and_run(reason, [&](Recorder& from, bool reuse, Cut& cut) {
    // On the CPU alone there is nothing to fetch, and no plan depends on it.
    return from.cut_ancestors(storages, false, reuse, cut, backend::accelerator() != nullptr ? fetched : nullptr);
  });
  for (HeteroStorage* storage : storages) check_bytes(storage);
  // Some other value failed in the same run: whoever needs it will see the error.
  if (!status.ok() && status.error_class() == ErrorClass::kInternal) raise(status);
}

}  // namespace

bool is_constant(HeteroStorage* storage) {
  const Executing executing;
  Locked recording(recorder().mutex());
  return recorder().constant_part(storage).has_value();
}

void settle(std::span<HeteroStorage* const> storages, SyncReason reason) { settle_for(storages, nullptr, reason); }

void settle_users(HeteroStorage* storage, SyncReason reason) {
  check_fork();
  const Executing executing;
  if (captures_here()) [[unlikely]] {
    if (is_touched(storage)) refuse_capture(to_string(reason));
    return;
  }
  HeteroStorage* const storages[] = {storage};
  const Status status = cut_and_run(
      reason, [&](Recorder& from, bool reuse, Cut& cut) { return from.cut_ancestors(storages, true, reuse, cut); });
  if (!status.ok() && status.error_class() == ErrorClass::kInternal) raise(status);
}

void after_record() {
  SyncReason reason;
  {
    Locked lock(recorder().mutex());
    reason = recorder().pressure();
  }
  if (reason != SyncReason::kCount) return flush_all(reason);
  overlap().cut_early();
}

c10::Storage host_storage(const c10::Storage& of, SyncReason reason, bool writes) {
  check_fork();
  auto* storage = static_cast<HeteroStorage*>(of.unsafeGetStorageImpl());
  HeteroStorage* const storages[] = {storage};
  const Executing executing;
  if (captures_here() && !writes) [[unlikely]] {
    ConstantPart part = check_constant(storage, reason);
    if (part.result != graph::kNoBuffer) return computed(part, reason);
  }
  const bool shares = writes && reason == SyncReason::kLeaveDispatcher;
  Sharing sharing(shares ? storage : nullptr);
  if (writes) settle_users(storage, reason);
  settle_for(storages, storage, reason);
  fetch_bytes(storage);
  if (storage->binding.layout.has_gaps() && !writes) return dense_copy(storage);
  if (writes) {
    bring_together(storage);
    storage->binding.valid_on = 1u << backend::kCpu;
    storage->binding.changed();
  }

  c10::StorageImpl* owner = c10::Storage(of).unsafeReleaseStorageImpl();
  ++storage->host_readers;
  sharing.keep();
  c10::DataPtr pointer(storage->binding.blocks[backend::kCpu].data(), owner,
                       shares ? &end_reader<true> : &end_reader<false>, c10::Device(c10::kCPU));
  return cpu_storage(std::move(pointer), storage->nbytes(), !storage->binding.sharers);
}

void note_look(const at::Tensor& tensor) {
  std::ostringstream look;
  look << tensor.scalar_type() << tensor.sizes() << tensor.strides() << tensor.storage_offset();
  Locked recording(recorder().mutex());
  recorder().looked_at().add(look.str());
}

at::Tensor host_alias(const at::Tensor& tensor, SyncReason reason, bool writes) {
  if (captures_here() && !writes) [[unlikely]]
    note_look(tensor);
  return tensor_over(host_storage(tensor.storage(), reason, writes), tensor);
}

bool is_fresh(HeteroStorage* storage) {
  const Executing executing;
  Locked recording(recorder().mutex());
  return storage->binding.valid_on == 0 && storage->binding.error.ok() && !recorder().touched(storage);
}

void install_bytes(HeteroStorage* storage, backend::Block block, backend::DeviceIndex device) {
  const Executing executing;
  storage->binding.changed();
  storage->binding.spilled.reset();
  storage->binding.blocks[device] = std::move(block);
  storage->binding.valid_on = backend::only(device);
  storage->binding.layout = graph::Layout();
  storage->binding.error = Status();
  track_storage(storage);
  note_arrival(storage);
}

void resize_storage(HeteroStorage* storage, size_t bytes) {
  check_fork();
  if (bytes == storage->nbytes()) return;
  const Executing executing;
  // Who sees the bytes keeps their address.
  TORCH_CHECK(!storage->binding.sharers, "Trying to resize storage that is not resizable");
  settle_users(storage, SyncReason::kStorageChange);
  graph::Binding& binding = storage->binding;
  if (binding.valid_on != 0) {
    fetch_bytes(storage);
    binding.changed();
    bring_together(storage);
    const HostPin pin(storage);
    Result<backend::Block> block = allocate_on_host(bytes);
    if (!block.ok()) raise(block.status());
    std::memcpy(block.value().data(), binding.blocks[backend::kCpu].data(), std::min(bytes, storage->nbytes()));
    binding.blocks[backend::kCpu] = std::move(block.value());
    binding.valid_on = 1u << backend::kCpu;
  } else {
    binding.blocks[backend::kCpu].reset();
  }
  binding.blocks.reset_accelerators();
  storage->change_size(bytes);
  track_storage(storage);
}

void settle_everything_on_cpu() {
  flush_all(SyncReason::kSettings);
  const Executing executing;
  leave_accelerator();
}

std::string last_plan_text() {
  const Executing executing;
  return program_log().plan_text;
}

std::vector<std::string> logged_programs() {
  const Executing executing;
  const auto& programs = program_log().programs;
  return {programs.begin(), programs.end()};
}

void clear_logged_programs() {
  const Executing executing;
  program_log().programs.clear();
}

ProgramLog exchange_program_log(ProgramLog log) {
  const Executing executing;
  return std::exchange(program_log(), std::move(log));
}

void set_placement_rules(std::vector<PlacementRules::Rule> rules) {
  flush_all(SyncReason::kSettings);
  const std::lock_guard lock(executor_mutex());
  placement_rules().set(std::move(rules));
}

void prepare_fork() {
  // A child of a process that never used the device may use it.
  if (!device_was_used() || bad_fork) return;
  flush_all(SyncReason::kFork);
  overlap().want();
  executor_mutex().lock();
  recorder().mutex().lock();
  tracking_mutex().lock();
  prepared_fork = true;
}

void finish_fork_in_parent() {
  if (!std::exchange(prepared_fork, false)) return;
  tracking_mutex().unlock();
  recorder().mutex().unlock();
  executor_mutex().unlock();
  overlap().want_no_more();
}

void finish_fork_in_child() {
  if (!std::exchange(prepared_fork, false)) {
    if (!bad_fork) backend::forget_accelerator();  // the child makes its own
    return;
  }
  tracking_mutex().unlock();
  recorder().mutex().unlock();
  renew_executor_mutex();
  overlap().abandon();
  bad_fork = true;
}

bool in_bad_fork() { return bad_fork; }

void check_fork() {
  TORCH_CHECK(!bad_fork,
              "Cannot re-initialize hetero in forked subprocess. To use hetero with "
              "multiprocessing, you must use the 'spawn' start method");
}

}  // namespace hetero::ops
