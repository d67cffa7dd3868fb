#include "backend/sim/sim_device.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "backend/base/blocked_signals.h"
#include "backend/base/parallel.h"
#include "backend/base/ring.h"
#include "backend/base/spin_lock.h"
#include "backend/cpu/fused/launch.h"
#include "backend/device/piece_copies.h"
#include "backend/fused/call.h"
#include "backend/fused/kernel.h"
#include "backend/memory/address_space.h"
#include "backend/memory/pool.h"

namespace hetero::backend {
namespace {

std::mutex configured_mutex;
SimOptions configured_options;

Status usage_error(const char* message) { return Status(ErrorClass::kUsage, std::string("sim: ") + message); }

Status forked_error() { return Status(ErrorClass::kDevice, "sim: the device cannot be used in a forked process"); }

bool is_amount(double value) { return value >= 0 && std::isfinite(value); }

Status check(const SimOptions& options) {
  for (double value :
       {options.flops, options.memory_bandwidth, options.launch_latency, options.h2d_bandwidth, options.d2h_bandwidth,
        options.copy_latency, options.pace, options.parallelism, options.slowdown_after}) {
    if (!is_amount(value)) return usage_error("rates, latencies and pace must be finite and not negative");
  }
  for (const SimLink& link : options.links) {
    if (!is_amount(link.link.bandwidth) || !is_amount(link.link.latency) || link.from == link.to) {
      return usage_error("a link joins two accelerators, with a rate and a latency that are finite and not negative");
    }
  }
  if (!(options.slowdown > 0)) return usage_error("slowdown must be above 0");
  if (!(options.duration_spread >= 0 && options.duration_spread <= 0.9)) {
    return usage_error("duration_spread must be between 0 and 0.9");
  }
  return Status();
}

double copy_seconds(const SimOptions& options, bool into_device, bool from_device, size_t bytes) {
  double moved = static_cast<double>(bytes);
  double bandwidth = options.h2d_bandwidth;
  if (into_device && from_device) {
    moved *= 2;  // read and written
    bandwidth = options.memory_bandwidth;
  } else if (from_device) {
    bandwidth = options.d2h_bandwidth;
  }
  return options.copy_latency + (bandwidth > 0 ? moved / bandwidth : 0);
}

}  // namespace

// One record of an event: done once the queue that recorded it has come to that point.
struct SimDevice::Signal {
  // Changes under Shared::mutex, so that nobody misses the notification.
  std::atomic<bool> done{false};
  VirtualClock::Moment moment;  // guarded by Shared::mutex
};

struct SimDevice::Shared {
  Shared(const SimOptions& options, std::vector<std::unique_ptr<SimMemory>> device_memories)
      : memories(std::move(device_memories)),
        workers(memories.size() * kQueueKinds),
        waits_for_signal(memories.size() * kQueueKinds),
        clock(options.schedule_seed, options.duration_spread, options.slowdown, options.slowdown_after,
              memories.size()) {}

  const std::vector<std::unique_ptr<SimMemory>> memories;  // per device
  const int fork_generation = backend::fork_generation();
  std::mutex mutex;
  // Guarded by mutex.
  std::condition_variable host;  // something a host thread may wait for has happened
  int waiting_hosts = 0;
  std::vector<std::condition_variable> workers;  // per queue, by ClockQueue::index()
  std::vector<uint8_t> waits_for_signal;
  VirtualClock clock;

  bool is_forked() const { return backend::fork_generation() != fork_generation; }

  template <typename Condition>
  void wait_on_host(std::unique_lock<std::mutex>& lock, Condition condition) {
    ++waiting_hosts;
    host.wait(lock, condition);
    --waiting_hosts;
  }
  // REQUIRES, for both: mutex is held.
  void notify_hosts() {
    if (waiting_hosts != 0) host.notify_all();
  }
  void complete(Signal& signal) {
    signal.done.store(true, std::memory_order_release);
    for (size_t queue = 0; queue < workers.size(); ++queue) {
      if (waits_for_signal[queue] != 0) workers[queue].notify_one();
    }
    notify_hosts();
  }

  // The device in whose memory the address lies; kNoDevice for the host's.
  static constexpr size_t kNoDevice = SIZE_MAX;
  size_t device_at(const void* data) const {
    for (size_t d = 0; d < memories.size(); ++d) {
      if (memories[d]->contains(data)) return d;
    }
    return kNoDevice;
  }
  void* kernel_address(size_t device, const void* data) const {
    return device == kNoDevice ? const_cast<void*>(data) : memories[device]->kernel_address(const_cast<void*>(data));
  }
};

// What a queue of another device waits for: one record, without the host's clock.
class SimDevice::SimRecord final : public Event {
 public:
  SimRecord(std::shared_ptr<Shared> shared, std::shared_ptr<Signal> signal)
      : shared_(std::move(shared)), signal_(std::move(signal)) {}

  bool query() const override {
    return signal_ == nullptr || shared_->is_forked() || signal_->done.load(std::memory_order_acquire);
  }
  Status synchronize() override {
    if (query()) return Status();
    std::unique_lock lock(shared_->mutex);
    shared_->wait_on_host(lock, [this] { return signal_->done.load(std::memory_order_relaxed); });
    return Status();
  }

 private:
  const std::shared_ptr<Shared> shared_;
  const std::shared_ptr<Signal> signal_;
};

class SimDevice::SimEvent final : public Event {
 public:
  explicit SimEvent(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  std::shared_ptr<Event> last_record() override {
    if (shared_->is_forked()) return std::make_shared<SimRecord>(shared_, nullptr);
    std::lock_guard lock(shared_->mutex);
    return std::make_shared<SimRecord>(shared_, last_);
  }

  bool query() const override {
    if (shared_->is_forked()) return true;
    std::shared_ptr<Signal> signal;
    {
      std::lock_guard lock(shared_->mutex);
      signal = last_;
    }
    return signal == nullptr || signal->done.load(std::memory_order_acquire);
  }

  Status synchronize() override {
    if (shared_->is_forked()) return forked_error();
    std::unique_lock lock(shared_->mutex);
    const std::shared_ptr<Signal> signal = last_;
    if (signal == nullptr) return Status();
    shared_->clock.host_waits(signal->moment);
    shared_->wait_on_host(lock, [&] { return signal->done.load(std::memory_order_relaxed); });
    return Status();
  }

  // REQUIRES, for both: the mutex of `shared()` is held.
  const std::shared_ptr<Signal>& last_signal() const { return last_; }
  void set_last_signal(std::shared_ptr<Signal> signal) { last_ = std::move(signal); }

  const std::shared_ptr<Shared>& shared() const { return shared_; }

 private:
  const std::shared_ptr<Shared> shared_;
  std::shared_ptr<Signal> last_;  // guarded by shared_->mutex; null when never recorded
};

class SimDevice::SimSegment final : public Segment {
 public:
  // All but the first are launched already when their turn comes; the work that they keep the
  // device busy with stays what it is.
  SimSegment(const Queue& queue, std::span<const Task> tasks, double launch_latency)
      : queue_(queue), tasks_(tasks.begin(), tasks.end()) {
    for (size_t t = 1; t < tasks_.size(); ++t) {
      Task& task = tasks_[t];
      const double seconds = std::max(0.0, task.seconds - launch_latency);
      if (seconds > 0) task.utilization = std::min(1.0, task.utilization * task.seconds / seconds);
      task.seconds = seconds;
    }
  }
  bool belongs_to(const Queue& queue) const { return &queue == &queue_; }
  const std::vector<Task>& tasks() const { return tasks_; }

 private:
  const Queue& queue_;
  std::vector<Task> tasks_;
};

class SimDevice::SimQueue final : public Queue, public PieceCopies {
 public:
  SimQueue(SimDevice& device, QueueKind kind)
      : device_(device), shared_(*device.shared_), kind_(kind), place_(kind, device.number_) {}

  ~SimQueue() override {
    {
      std::lock_guard lock(shared_.mutex);
      stopping_ = true;
      worker_wakeup().notify_one();
    }
    if (worker_.joinable()) worker_.join();
  }

  Status launch(Task task) override {
    const Status status = submit({.kind = CommandKind::kTask, .task = task});
    if (status.ok()) device_.counters_.count_launch();
    return status;
  }

  Result<std::unique_ptr<Segment>> record_segment(std::span<const Task> tasks) override {
    if (shared_.is_forked()) return forked_error();
    return std::unique_ptr<Segment>(std::make_unique<SimSegment>(*this, tasks, device_.capabilities_.launch_latency));
  }

  Status launch_segment(Segment& segment) override {
    const auto* own = dynamic_cast<const SimSegment*>(&segment);
    if (own == nullptr || !own->belongs_to(*this)) {
      return usage_error("a queue can launch only segments that it recorded");
    }
    const Status status = submit({.kind = CommandKind::kSegment, .segment = own});
    if (status.ok()) device_.counters_.count_launch();
    return status;
  }

  Status copy(void* destination, const void* source, size_t bytes) override {
    const CopyRange range{destination, source, bytes};
    return copy_batch({&range, 1});
  }
  Status copy_batch(std::span<const CopyRange> ranges) override;
  Result<bool> copy_pieces(std::span<const CopyRange> ranges) override;

  Status record(Event& event) override {
    auto* own = dynamic_cast<SimEvent*>(&event);
    if (own == nullptr || own->shared() != device_.shared_) {
      return usage_error("a queue can record only events of its own device");
    }
    auto signal = std::allocate_shared<Signal>(PoolAllocator<Signal>());
    const Status status = submit({.kind = CommandKind::kRecord, .signal = signal}, own);
    if (status.ok()) device_.counters_.count_record();
    return status;
  }

  Status wait(Event& event) override {
    if (shared_.is_forked()) return forked_error();
    device_.counters_.count_wait();
    auto* own = dynamic_cast<SimEvent*>(&event);
    if (own == nullptr) {
      if (event.query()) return Status();
      if (std::shared_ptr<Event> record = event.last_record()) {
        return submit({.kind = CommandKind::kForeignWait, .event = std::move(record)});
      }
      // It cannot be captured, so it is waited for here and now.
      return event.synchronize();
    }
    if (own->shared() != device_.shared_) return own->synchronize();
    std::lock_guard lock(shared_.mutex);
    std::shared_ptr<Signal> signal = own->last_signal();
    if (signal == nullptr) return Status();
    if (signal->done.load(std::memory_order_acquire)) {
      shared_.clock.wait(place_, signal->moment);
      return Status();
    }
    return submit_locked({.kind = CommandKind::kWait, .signal = std::move(signal)});
  }

  Status synchronize() override {
    if (shared_.is_forked()) return forked_error();
    std::unique_lock lock(shared_.mutex);
    if (std::this_thread::get_id() == worker_.get_id()) {
      return usage_error("a task must not synchronize with the queue it runs on");
    }
    shared_.clock.host_waits(place_);
    const uint64_t target = submitted_;
    shared_.wait_on_host(lock, [&] { return completed_ >= target; });
    return Status();
  }

 private:
  // Where a range begins and ends.
  struct Ends {
    size_t into;  // the devices, or Shared::kNoDevice
    size_t from;
    bool operator==(const Ends&) const = default;
  };
  Result<Ends> ends_of(const CopyRange& range) const;
  // Of ranges that all go the same way; how many are not empty.
  struct Batch {
    Ends ends;
    size_t bytes, copies;
  };
  Result<Batch> batch_of(std::span<const CopyRange> ranges) const;
  Status submit_batch(std::span<const CopyRange> ranges, const Batch& batch, double more_seconds);
  Result<double> seconds_of(const Ends& ends, size_t bytes) const;
  void count(const Ends& ends, size_t bytes);

  enum class CommandKind { kTask, kSegment, kCopy, kRecord, kWait, kForeignWait };
  struct Command {
    CommandKind kind = CommandKind::kTask;
    Task task = {};
    const SimSegment* segment = nullptr;
    void* destination = nullptr;
    const void* source = nullptr;
    size_t bytes = 0;
    size_t transfer_bytes = 0;  // of a batch of copies, where this is the first of it
    double seconds = 0;         // virtual; of such a batch, and of tasks once they are submitted
    std::shared_ptr<Signal> signal = nullptr;
    std::shared_ptr<Event> event = nullptr;  // another device's
  };

  std::condition_variable& worker_wakeup() { return shared_.workers[place_.index()]; }

  // Appends a command, and moves `recorded`, where given, to its signal in the same step.
  Status submit(Command command, SimEvent* recorded = nullptr) {
    if (shared_.is_forked()) return forked_error();
    std::lock_guard lock(shared_.mutex);
    return submit_locked(std::move(command), recorded);
  }

  // REQUIRES: the mutex is held.
  Status submit_locked(Command command, SimEvent* recorded = nullptr) {
    if (!worker_.joinable()) {
      try {
        const BlockedSignals blocked;
        worker_ = std::thread([this] { work(); });
      } catch (const std::system_error& error) {
        return Status(ErrorClass::kDevice, std::string("sim: cannot start a thread: ") + error.what());
      }
    }
    tell_clock(command);
    if (recorded != nullptr) recorded->set_last_signal(command.signal);
    commands_.push_back(std::move(command));
    ++submitted_;
    worker_wakeup().notify_one();
    return Status();
  }

  // REQUIRES: the mutex is held.
  void tell_clock(Command& command) {
    VirtualClock& clock = shared_.clock;
    switch (command.kind) {
      case CommandKind::kTask:
        command.seconds = clock.run(place_, command.task.seconds, command.task.utilization);
        break;
      case CommandKind::kSegment:
        for (const Task& task : command.segment->tasks()) {
          command.seconds += clock.run(place_, task.seconds, task.utilization);
        }
        break;
      case CommandKind::kCopy:
        if (command.transfer_bytes != 0) {
          command.seconds = clock.copy(place_, command.seconds, command.transfer_bytes);
        }
        break;
      case CommandKind::kRecord:
        command.signal->moment = clock.record(place_);
        break;
      case CommandKind::kWait:
        clock.wait(place_, command.signal->moment);
        break;
      case CommandKind::kForeignWait:
        break;  // see hold_queue()
    }
  }

  void work() {
    pthread_setname_np(pthread_self(), (std::string("sim-") + to_string(kind_)).c_str());
    run_worker_start_hook();
    std::unique_lock lock(shared_.mutex);
    while (true) {
      worker_wakeup().wait(lock, [this] { return !commands_.empty() || stopping_; });
      if (commands_.empty()) return;
      const Command command = commands_.pop_front();
      run(command, lock);
      ++completed_;
      shared_.notify_hosts();
    }
  }

  // REQUIRES: `lock` is held; it is again on return.
  void run(const Command& command, std::unique_lock<std::mutex>& lock) {
    if (command.kind == CommandKind::kRecord) {
      shared_.complete(*command.signal);
      return;
    }
    if (command.kind == CommandKind::kWait) {
      uint8_t& waits = shared_.waits_for_signal[place_.index()];
      waits = 1;
      worker_wakeup().wait(lock, [&] { return command.signal->done.load(std::memory_order_relaxed); });
      waits = 0;
      return;
    }
    lock.unlock();
    if (command.kind == CommandKind::kForeignWait) {
      // A device that fails says so where its own work is waited for.
      (void)command.event->synchronize();
      lock.lock();
      return;
    }
    const auto begin = std::chrono::steady_clock::now();
    pause_by_seed();
    if (command.kind == CommandKind::kTask) {
      command.task.run(command.task.context);
    } else if (command.kind == CommandKind::kSegment) {
      for (const Task& task : command.segment->tasks()) task.run(task.context);
    } else {
      std::memmove(command.destination, command.source, command.bytes);
    }
    if (const double least = command.seconds * device_.options_.pace; least > 0) {
      std::this_thread::sleep_until(begin + std::chrono::duration<double>(least));
    }
    lock.lock();
  }

  // Up to 63 microseconds, by a linear congruential generator that differs from queue to queue.
  void pause_by_seed() {
    const uint64_t seed = device_.options_.schedule_seed;
    if (seed == 0) return;
    random_ = random_ * 6364136223846793005u + (seed + place_.index()) * 2 + 1;
    std::this_thread::sleep_for(std::chrono::microseconds(random_ >> 58));
  }

  SimDevice& device_;
  Shared& shared_;
  const QueueKind kind_;
  const ClockQueue place_;
  uint64_t random_ = 0;  // the worker's own
  // Guarded by shared_.mutex.
  Ring<Command> commands_;
  uint64_t submitted_ = 0;
  uint64_t completed_ = 0;
  bool stopping_ = false;
  std::thread worker_;
};

// Errors: what no copy may do.
Result<SimDevice::SimQueue::Ends> SimDevice::SimQueue::ends_of(const CopyRange& range) const {
  const char* const begins[] = {static_cast<char*>(range.destination), static_cast<const char*>(range.source)};
  size_t devices[2];
  for (int i = 0; i < 2; ++i) {
    devices[i] = shared_.device_at(begins[i]);
    if (devices[i] != shared_.device_at(begins[i] + range.bytes - 1)) {
      return usage_error("a copy reaches beyond the device's memory");
    }
    if (address_space::contains(begins[i])) {
      return usage_error("a copy was given a storage's address instead of a Block's");
    }
  }
  return Ends{devices[0], devices[1]};
}

Result<double> SimDevice::SimQueue::seconds_of(const Ends& ends, size_t bytes) const {
  const auto is_peer = [this](size_t device) { return device != Shared::kNoDevice && device != device_.number_; };
  if (is_peer(ends.into))
    return usage_error("a copy to another device's memory is submitted to a queue of that device");
  if (!is_peer(ends.from)) {
    return copy_seconds(device_.options_, ends.into == device_.number_, ends.from == device_.number_, bytes);
  }
  const auto link = device_.peer_link(ends.from);
  if (ends.into != device_.number_ || !link) return usage_error("there is no link for a copy between these memories");
  return link->latency + (link->bandwidth > 0 ? static_cast<double>(bytes) / link->bandwidth : 0);
}

void SimDevice::SimQueue::count(const Ends& ends, size_t bytes) {
  if (ends.into == device_.number_ && ends.from != device_.number_ && ends.from != Shared::kNoDevice) {
    device_.counters_.count_copy_from_peer(bytes);
  } else {
    device_.counters_.count_copy(ends.into == device_.number_, ends.from == device_.number_, bytes);
  }
}

Result<SimDevice::SimQueue::Batch> SimDevice::SimQueue::batch_of(std::span<const CopyRange> ranges) const {
  if (shared_.is_forked()) return forked_error();
  Batch batch{};
  for (const CopyRange& range : ranges) {
    if (range.bytes == 0) continue;
    const Result<Ends> found = ends_of(range);
    if (!found.ok()) return found.status();
    if (batch.copies > 0 && found.value() != batch.ends) {
      return usage_error("the copies of a batch must all go the same way");
    }
    batch.ends = found.value();
    batch.bytes += range.bytes;
    ++batch.copies;
  }
  return batch;
}

// One command for each range, submitted together; the first takes the time of all.
Status SimDevice::SimQueue::submit_batch(std::span<const CopyRange> ranges, const Batch& batch, double more_seconds) {
  const Result<double> seconds = seconds_of(batch.ends, batch.bytes);
  if (!seconds.ok()) return seconds.status();
  bool is_first = true;
  std::lock_guard lock(shared_.mutex);
  for (const CopyRange& range : ranges) {
    if (range.bytes == 0) continue;
    Status status = submit_locked({.kind = CommandKind::kCopy,
                                   .destination = shared_.kernel_address(batch.ends.into, range.destination),
                                   .source = shared_.kernel_address(batch.ends.from, range.source),
                                   .bytes = range.bytes,
                                   .transfer_bytes = is_first ? batch.bytes : 0,
                                   .seconds = is_first ? seconds.value() + more_seconds : 0});
    if (!status.ok()) return status;
    count(batch.ends, range.bytes);
    is_first = false;
  }
  if (batch.copies > 1) device_.counters_.count_copy_batch();
  return Status();
}

Status SimDevice::SimQueue::copy_batch(std::span<const CopyRange> ranges) {
  const Result<Batch> batch = batch_of(ranges);
  if (!batch.ok()) return batch.status();
  return batch.value().copies == 0 ? Status() : submit_batch(ranges, batch.value(), 0);
}

// A launch in place of what the link takes to begin a copy.
Result<bool> SimDevice::SimQueue::copy_pieces(std::span<const CopyRange> ranges) {
  const Result<Batch> batch = batch_of(ranges);
  if (!batch.ok()) return batch.status();
  const Ends ends = batch.value().ends;
  const bool crosses = (ends.into == device_.number_ && ends.from == Shared::kNoDevice) ||
                       (ends.from == device_.number_ && ends.into == Shared::kNoDevice);
  if (batch.value().copies == 0 || !crosses) return false;
  const double more = std::max(0.0, device_.options_.launch_latency - device_.options_.copy_latency);
  if (Status status = submit_batch(ranges, batch.value(), more); !status.ok()) return status;
  device_.counters_.count_launch();
  return true;
}

void set_sim_options(const SimOptions& options) {
  std::lock_guard guard(configured_mutex);
  configured_options = options;
}

SimOptions sim_options() {
  std::lock_guard guard(configured_mutex);
  return configured_options;
}

Result<std::vector<std::unique_ptr<SimDevice>>> SimDevice::create_machine(const SimOptions& options, size_t count) {
  if (Status status = check(options); !status.ok()) return status;
  std::vector<std::unique_ptr<SimMemory>> memories;
  for (size_t d = 0; d < count; ++d) {
    Result<std::unique_ptr<SimMemory>> memory = SimMemory::create(options.capacity_bytes);
    if (!memory.ok()) return memory.status();
    memories.push_back(std::move(memory.value()));
  }
  const auto shared = std::make_shared<Shared>(options, std::move(memories));
  std::vector<std::unique_ptr<SimDevice>> devices;
  for (size_t d = 0; d < count; ++d) {
    std::string name = count == 1 ? "sim" : "sim:" + std::to_string(d);
    devices.emplace_back(new SimDevice(options, std::move(name), d, shared));
  }
  return devices;
}

Result<std::unique_ptr<SimDevice>> SimDevice::create(const SimOptions& options) {
  Result<std::vector<std::unique_ptr<SimDevice>>> machine = create_machine(options, 1);
  if (!machine.ok()) return machine.status();
  return std::move(machine.value().front());
}

SimDevice::SimDevice(const SimOptions& options, std::string name, size_t number, std::shared_ptr<Shared> shared)
    : name_(std::move(name)),
      number_(number),
      options_(options),
      capabilities_{.host_accessible = false,
                    .inline_queues = false,
                    .flops = options.flops,
                    .flops_half = options.flops_half,
                    .memory_bandwidth = options.memory_bandwidth,
                    .copy_bandwidth = options.h2d_bandwidth,
                    .readback_bandwidth = options.d2h_bandwidth,
                    .copy_latency = options.copy_latency,
                    .launch_latency = options.launch_latency,
                    .parallelism = options.parallelism},
      shared_(std::move(shared)),
      memory_(shared_->memories[number].get()) {
  for (int kind = 0; kind < kQueueKinds; ++kind) {
    queues_[static_cast<size_t>(kind)] = std::make_unique<SimQueue>(*this, static_cast<QueueKind>(kind));
  }
}

bool SimDevice::is_usable() const { return !shared_->is_forked(); }

SimDevice::~SimDevice() {
  if (shared_->is_forked()) {
    // The workers do not exist in this process. Joining them would hang, and so would destroying
    // the conditions that they waited for, so both are leaked.
    for (auto& queue : queues_) static_cast<void>(queue.release());
    new std::shared_ptr<Shared>(shared_);
    return;
  }
  // A queue may wait for a signal that another is yet to give; none may stop before all are
  // drained.
  static_cast<void>(synchronize());
}

Result<Block> SimDevice::allocate(size_t bytes) { return memory_->allocate(bytes); }

Result<bool> SimDevice::run_fused(const FusedCall& call) {
  return backend::run_fused(call.launch, call.operands, call.numbers);
}

// What a GPU refuses is refused here too: where a check fails, the CPU's kernels would have to say
// so.
bool SimDevice::can_fuse(const FusedKernel& kernel) const {
  using Kind = FusedStep::Kind;
  const auto is_checked = [](const FusedStep& step) { return step.kind == Kind::kCheck || step.kind == Kind::kLookUp; };
  return options_.host_kernels || std::ranges::none_of(kernel.steps, is_checked);
}

std::optional<PeerLink> SimDevice::link_from(const Device& other) const {
  const auto* const peer = dynamic_cast<const SimDevice*>(&other.real());
  return peer == nullptr || peer->shared_ != shared_ ? std::nullopt : peer_link(peer->number_);
}

std::optional<PeerLink> SimDevice::peer_link(size_t from) const {
  if (options_.links.empty()) {
    const bool neighbours = from + 1 == number_ || number_ + 1 == from;
    return neighbours ? std::optional(PeerLink{.bandwidth = SimOptions::kNeighbourBandwidth}) : std::nullopt;
  }
  const auto found = std::ranges::find_if(options_.links,
                                          [&](const SimLink& link) { return link.from == from && link.to == number_; });
  return found == options_.links.end() ? std::nullopt : std::optional(found->link);
}

Queue& SimDevice::queue(QueueKind kind) { return *queues_[static_cast<size_t>(kind)]; }

std::unique_ptr<Event> SimDevice::create_event() { return std::make_unique<SimEvent>(shared_); }

Status SimDevice::synchronize() {
  for (auto& queue : queues_) {
    if (Status status = queue->synchronize(); !status.ok()) return status;
  }
  return Status();
}

// A forked child has only the parent's clock, behind a lock that nobody may ever give back.

void SimDevice::advance_host(double seconds) {
  if (shared_->is_forked()) return;
  std::lock_guard lock(shared_->mutex);
  shared_->clock.advance_host(seconds);
}

double SimDevice::host_seconds() const {
  if (shared_->is_forked()) return 0;
  std::lock_guard lock(shared_->mutex);
  return shared_->clock.host_seconds();
}

double SimDevice::queue_seconds(QueueKind kind) const {
  if (shared_->is_forked()) return 0;
  std::lock_guard lock(shared_->mutex);
  return shared_->clock.queue_seconds({kind, number_});
}

void SimDevice::hold_queue(QueueKind kind, double until) {
  if (shared_->is_forked()) return;
  std::lock_guard lock(shared_->mutex);
  shared_->clock.hold({kind, number_}, until);
}

void SimDevice::reset_clock() {
  if (shared_->is_forked()) return;
  std::lock_guard lock(shared_->mutex);
  shared_->clock.reset();
}

Result<double> SimDevice::seconds_between(const Event& first, const Event& second) const {
  if (shared_->is_forked()) return forked_error();
  std::lock_guard lock(shared_->mutex);
  double seconds[2];
  const Event* const events[] = {&first, &second};
  for (int i = 0; i < 2; ++i) {
    const auto* own = dynamic_cast<const SimEvent*>(events[i]);
    if (own == nullptr || own->shared() != shared_)
      return usage_error("an event of another device has no time on this one's clock");
    const Signal* signal = own->last_signal().get();
    if (signal == nullptr || !shared_->clock.is_current(signal->moment)) {
      return usage_error("an event that was not recorded since the clock began has no time");
    }
    seconds[i] = signal->moment.seconds;
  }
  return seconds[1] - seconds[0];
}

void SimDevice::record_spans(bool on) {
  if (shared_->is_forked()) return;
  std::lock_guard lock(shared_->mutex);
  shared_->clock.record_spans(on);
}

std::vector<SimSpan> SimDevice::spans() const {
  if (shared_->is_forked()) return {};
  std::lock_guard lock(shared_->mutex);
  std::vector<SimSpan> spans = shared_->clock.spans();
  std::erase_if(spans, [this](const SimSpan& span) { return span.device != number_; });
  return spans;
}

}  // namespace hetero::backend
