#include "backend/threads/core_group.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "backend/base/blocked_signals.h"
#include "backend/base/parallel.h"
#include "backend/base/ring.h"
#include "backend/base/spin_lock.h"

namespace hetero::backend {
namespace {

// For 8,192 cores, the most that Linux can be built for; cpu_set_t alone holds 1,024.
class CoreMask {
 public:
  CoreMask() { CPU_ZERO_S(bytes(), sets_.data()); }
  static constexpr int size() { return kSets * CPU_SETSIZE; }
  static constexpr size_t bytes() { return kSets * sizeof(cpu_set_t); }
  cpu_set_t* data() { return sets_.data(); }
  void add(int core) { CPU_SET_S(static_cast<size_t>(core), bytes(), sets_.data()); }
  bool has(int core) const { return CPU_ISSET_S(static_cast<size_t>(core), bytes(), sets_.data()); }

 private:
  static constexpr int kSets = 8;
  std::array<cpu_set_t, kSets> sets_;
};

std::string list(const std::vector<int>& cores) {
  std::string text;
  for (int core : cores) text += (text.empty() ? "" : ", ") + std::to_string(core);
  return text;
}

Status check_cores(const CoreGroup::Options& options) {
  const std::vector<int> allowed = cores_of_process();
  const auto error = [&](int core, const std::string& what) {
    return Status(ErrorClass::kUsage, "core group \"" + options.name + "\": core " + std::to_string(core) + " " + what);
  };
  for (auto core = options.cores.begin(); core != options.cores.end(); ++core) {
    if (!std::binary_search(allowed.begin(), allowed.end(), *core)) {
      return error(*core, "is not one that this process may use; choose among " + list(allowed));
    }
    if (std::find(options.cores.begin(), core, *core) != core)
      return error(*core, "is named twice; name each core once");
  }
  return {};
}

}  // namespace

struct CoreGroup::Impl {
  explicit Impl(Options chosen) : options(std::move(chosen)) {}

  Options options;
  const int fork_generation = backend::fork_generation();
  std::mutex mutex;
  std::condition_variable wakeup;  // for the group's thread
  std::condition_variable host;    // for those who wait for it
  Ring<Task> tasks;                // guarded by mutex
  bool stopping = false;           // guarded by mutex
  bool sleeping = false;           // guarded by mutex: the group's thread waits for `wakeup`
  int waiting_hosts = 0;           // guarded by mutex
  // Changes under the mutex; the group's thread looks at it while it spins.
  std::atomic<uint64_t> submitted{0};
  uint64_t completed = 0;  // guarded by mutex
  std::thread thread;

  bool is_forked() const { return backend::fork_generation() != fork_generation; }
  Status forked_error() const {
    return {ErrorClass::kDevice,
            "core group \"" + options.name + "\" cannot be used in a forked process; make one there"};
  }

  // The thread begins when it is pinned: what it starts inherits its cores.
  Status start() {
    const std::unique_lock lock(mutex);
    try {
      const BlockedSignals blocked;
      thread = std::thread([this] { work(); });
    } catch (const std::system_error& error) {
      return {ErrorClass::kDevice, "core group \"" + options.name + "\": cannot start a thread: " + error.what()};
    }
    CoreMask mask;
    for (int core : options.cores.empty() ? cores_of_process() : options.cores) mask.add(core);
    const int failed = pthread_setaffinity_np(thread.native_handle(), CoreMask::bytes(), mask.data());
    if (failed == 0) return {};
    stopping = true;
    return {ErrorClass::kDevice, "core group \"" + options.name +
                                     "\": the system does not pin its thread to the cores " + list(options.cores) +
                                     ": " + std::generic_category().message(failed)};
  }

  void work() {
    { const std::lock_guard wait_for_start(mutex); }
    pthread_setname_np(pthread_self(), options.name.substr(0, 15).c_str());
    use_thread_count(options.threads);
    std::unique_lock lock(mutex);
    while (true) {
      if (tasks.empty() && !stopping) wait_for_work(lock);
      if (tasks.empty()) return;
      const Task task = tasks.pop_front();
      lock.unlock();
      task.run(task.context);
      lock.lock();
      ++completed;
      if (waiting_hosts != 0) host.notify_all();
    }
  }

  // REQUIRES: `lock` is held; it is again on return.
  void wait_for_work(std::unique_lock<std::mutex>& lock) {
    const uint64_t known = completed;
    lock.unlock();
    const auto end = std::chrono::steady_clock::now() + kSpin;
    while (submitted.load(std::memory_order_relaxed) == known && std::chrono::steady_clock::now() < end) {
      // To whoever has been woken on this core meanwhile, the one who waited for the last task
      // above all.
      sched_yield();
    }
    lock.lock();
    sleeping = true;
    wakeup.wait(lock, [this] { return !tasks.empty() || stopping; });
    sleeping = false;
  }
};

Result<std::unique_ptr<CoreGroup>> CoreGroup::create(Options options) {
  if (Status status = check_cores(options); !status.ok()) return status;
  if (Status status = check_compute_queues(options.compute_queues); !status.ok()) {
    return Status(status.error_class(), "core group \"" + options.name + "\": " + status.message());
  }
  if (options.threads < 0) {
    return Status(ErrorClass::kUsage, "core group \"" + options.name + "\": " + std::to_string(options.threads) +
                                          " threads cannot be; give a number from 1 on, or 0 for as many as cores");
  }
  if (options.threads == 0) {
    options.threads = static_cast<int>(options.cores.empty() ? cores_of_process().size() : options.cores.size());
  }
  auto impl = std::make_unique<Impl>(std::move(options));
  if (Status status = impl->start(); !status.ok()) {
    if (impl->thread.joinable()) impl->thread.join();
    return status;
  }
  return std::unique_ptr<CoreGroup>(new CoreGroup(std::move(impl)));
}

CoreGroup::CoreGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

CoreGroup::~CoreGroup() {
  if (impl_->is_forked()) {
    // There is no thread to join, and the mutex may be locked for ever. Leaked in the child alone.
    (void)impl_.release();
    return;
  }
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
    impl_->wakeup.notify_one();
  }
  impl_->thread.join();
}

const std::string& CoreGroup::name() const { return impl_->options.name; }
const std::vector<int>& CoreGroup::cores() const { return impl_->options.cores; }
int CoreGroup::threads() const { return impl_->options.threads; }
const std::vector<QueueKind>& CoreGroup::compute_queues() const { return impl_->options.compute_queues; }

Status CoreGroup::submit(Task task) {
  if (impl_->is_forked()) return impl_->forked_error();
  const std::lock_guard lock(impl_->mutex);
  impl_->tasks.push_back(task);
  impl_->submitted.fetch_add(1, std::memory_order_relaxed);
  if (impl_->sleeping) impl_->wakeup.notify_one();
  return {};
}

Status CoreGroup::wait_idle() {
  if (impl_->is_forked()) return impl_->forked_error();
  if (std::this_thread::get_id() == impl_->thread.get_id()) {
    return {ErrorClass::kUsage, "core group \"" + name() + "\": a task must not wait for the group it runs on"};
  }
  std::unique_lock lock(impl_->mutex);
  const uint64_t target = impl_->submitted.load(std::memory_order_relaxed);
  ++impl_->waiting_hosts;
  impl_->host.wait(lock, [&] { return impl_->completed >= target; });
  --impl_->waiting_hosts;
  return {};
}

std::vector<int> cores_of_process() {
  CoreMask mask;
  std::vector<int> cores;
  if (sched_getaffinity(getpid(), CoreMask::bytes(), mask.data()) != 0) return cores;
  for (int core = 0; core < CoreMask::size(); ++core) {
    if (mask.has(core)) cores.push_back(core);
  }
  return cores;
}

}  // namespace hetero::backend
