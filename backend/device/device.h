// Device, Queue, Event and Block: the whole contract between hetero and a compute device.
//
// A Device owns memory and a few Queues. A Queue runs tasks and copies strictly in the order of
// submission. Different queues run at the same time; Events, and nothing else, order them. The
// layers above, such as the executor and the storages of ops/, use this header alone. So a new
// device is one folder that implements it: `cpu` (runs inline on the calling thread, and has a
// worker queue), `sim` (an accelerator without hardware), `cuda`, and `fault` (wraps any of them).
//
//   Device* device = registry().accelerator();
//   Result<Block> block = device->allocate(1 << 20);
//   Queue& compute = device->queue(QueueKind::kCompute);
//   compute.launch({&run_kernel, &context});
//   std::unique_ptr<Event> done = device->create_event();
//   compute.record(*done);
//   registry().cpu()->queue(QueueKind::kCompute).wait(*done);
//
// Thread safety: any thread may use Devices, Queues and Events. A Block belongs to one thread at a
// time.
// Ownership: a Device outlives its Queues, Events and Blocks. The registry leaks its devices on
// purpose, because tensors may be destroyed after static destructors have run.

#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "backend/base/status.h"

namespace hetero::backend {

class Device;
struct FusedCall;    // backend/fused/call.h
struct FusedKernel;  // backend/fused/kernel.h

// A process numbers its devices densely. The CPU is always 0; accelerators follow.
using DeviceIndex = uint8_t;
inline constexpr DeviceIndex kCpu = 0;
inline constexpr DeviceIndex kAccelerator = 1;  // the first
// Capacity of sets and arrays of devices. A Machine knows how many devices there are
// (backend/machine.h).
inline constexpr int kMostDevices = 8;

// Bit i is device i.
using DeviceSet = uint8_t;
constexpr DeviceSet only(DeviceIndex device) { return static_cast<DeviceSet>(1u << device); }
constexpr bool contains(DeviceSet devices, DeviceIndex device) { return (devices >> device & 1) != 0; }
// REQUIRES: there is one.
constexpr DeviceIndex first_of(DeviceSet devices) { return static_cast<DeviceIndex>(std::countr_zero(devices)); }

// By DeviceIndex; null if there is no such device, and then there is none after it.
using Devices = std::array<Device*, kMostDevices>;
inline bool has_accelerator(const Devices& devices) { return devices[kAccelerator] != nullptr; }
// Those of them that are accelerators.
inline std::span<Device* const> accelerators_of(const Devices& devices) {
  size_t end = kAccelerator;
  while (end < devices.size() && devices[end] != nullptr) ++end;
  return std::span(devices).subspan(kAccelerator, end - kAccelerator);
}

// A range of bytes of a device's memory, released when the Block dies. Blocks are aligned to at
// least 64 bytes. The memory comes from the device's own allocator, or was adopted from another
// owner (see `adopt`).
class Block {
 public:
  using Release = void (*)(void* context, void* data, size_t bytes);

  Block() = default;
  // Takes over memory; calls `release(context, data, bytes)` exactly once.
  static Block adopt(void* data, size_t bytes, Release release, void* context) {
    Block block;
    block.data_ = data;
    block.bytes_ = bytes;
    block.release_ = release;
    block.context_ = context;
    return block;
  }
  Block(Block&& other) noexcept { swap(other); }
  Block& operator=(Block&& other) noexcept {
    if (this != &other) {
      reset();
      swap(other);
    }
    return *this;
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() { reset(); }

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }

  void reset() {
    if (data_ == nullptr) return;
    if (release_ != nullptr) release_(context_, data_, bytes_);
    data_ = nullptr;
    bytes_ = 0;
    release_ = nullptr;
    context_ = nullptr;
  }

 private:
  void swap(Block& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(release_, other.release_);
    std::swap(context_, other.context_);
  }

  void* data_ = nullptr;
  size_t bytes_ = 0;
  Release release_ = nullptr;
  void* context_ = nullptr;
};

// The work of a compute queue. `run` must not throw and must not submit to the queue it runs on.
struct Task {
  void (*run)(void* context);
  void* context;
  // The expected time on this device, including the launch, and the share of the device that the
  // task keeps busy, from 0 to 1. Tasks of other compute queues can use the rest. A device that
  // simulates time takes both as the truth; others ignore them.
  double seconds = 0;
  double utilization = 1;
};

// A point in a queue's order. An Event that was never recorded counts as done. Recording it again
// moves it.
class Event {
 public:
  virtual ~Event() = default;
  // An event that is done when the last record, as of this call, is: a queue of another device can
  // wait for it on its own thread. It moves no virtual clock. Null if the device has none, and then
  // the caller waits.
  virtual std::shared_ptr<Event> last_record() { return nullptr; }
  // Whether everything before the last record has run.
  virtual bool query() const = 0;
  // Blocks the calling thread until query() is true.
  virtual Status synchronize() = 0;
};

// Urgent queues are for small copies that the caller waits for, so that these need not stand behind
// large ones. They use the same link. The further compute queues are for tasks that need not wait
// for those of the others. They share the device. Of the CPU, kCompute2 is its worker queue.
// kFromPeer carries direct copies from another accelerator's memory.
enum class QueueKind : uint8_t {
  kCompute,
  kHostToDevice,
  kDeviceToHost,
  kUrgentToDevice,
  kUrgentToHost,
  kCompute2,
  kCompute3,
  kCompute4,
  kFromPeer
};
inline constexpr int kQueueKinds = 9;
inline constexpr int kComputeQueues = 4;
// The queue of the CPU whose tasks run on a thread of its own. All others are inline.
inline constexpr QueueKind kCpuWorker = QueueKind::kCompute2;
const char* to_string(QueueKind kind);
// The n-th compute queue, from 0.
inline QueueKind compute_queue(int n) {
  return n == 0 ? QueueKind::kCompute : static_cast<QueueKind>(static_cast<int>(QueueKind::kCompute2) + n - 1);
}
// The reverse. REQUIRES: a compute queue.
inline int compute_queue_number(QueueKind kind) {
  return kind == QueueKind::kCompute ? 0 : 1 + static_cast<int>(kind) - static_cast<int>(QueueKind::kCompute2);
}
inline bool is_side_compute(QueueKind kind) { return kind >= QueueKind::kCompute2 && kind <= QueueKind::kCompute4; }
inline bool is_compute(QueueKind kind) { return kind == QueueKind::kCompute || is_side_compute(kind); }
// The queue of the same direction that yields the link to an urgent one; the kind itself for any
// other.
inline QueueKind yielding(QueueKind kind) {
  return kind == QueueKind::kUrgentToDevice ? QueueKind::kHostToDevice
         : kind == QueueKind::kUrgentToHost ? QueueKind::kDeviceToHost
                                            : kind;
}

// Tasks of one queue that were recorded to be launched as one (Queue::record_segment).
class Segment {
 public:
  virtual ~Segment() = default;
};

// The bytes of a copy. Pointers are those of Blocks.
struct CopyRange {
  void* destination;
  const void* source;
  size_t bytes;
};

class Queue {
 public:
  virtual ~Queue() = default;
  // Runs `task` after everything submitted before. REQUIRES: the task's context lives until it has
  // run.
  virtual Status launch(Task task) = 0;
  // Records these tasks, which launch_segment() then launches as one, any number of times: a CUDA
  // graph. The device may call the tasks now, on this thread, and freeze the addresses and numbers
  // with which they start kernels. None of these kernels runs. Null if something that the tasks
  // start is not in its final form, such as code that is still being compiled; ask again some
  // launches later. Errors: kUsage if the device has no segments, kDevice if these tasks cannot be
  // recorded. An error affects nothing else, and the tasks can still be launched one by one.
  // REQUIRES: the tasks' contexts live as long as the segment.
  virtual Result<std::unique_ptr<Segment>> record_segment(std::span<const Task> tasks);
  // Runs the segment's tasks in order after everything submitted before. After an error, nothing of
  // it was submitted. REQUIRES: this queue recorded it; it lives until it has run.
  virtual Status launch_segment(Segment& segment);
  // Copies bytes between host memory and this device's memory (or within either), or from the
  // memory of a peer into this device's where there is a link (Device::link_from). Pointers are
  // those of Blocks. REQUIRES: both ranges live until the copy has run.
  virtual Status copy(void* destination, const void* source, size_t bytes) = 0;
  // Copies all ranges, in any order, as one transfer if the device can, so small copies pay the
  // link's latency once. Reads `ranges` before it returns. After an error some ranges may have been
  // copied. REQUIRES: as for copy(); all go the same way, between the same two memories; no
  // destination overlaps another range.
  virtual Status copy_batch(std::span<const CopyRange> ranges);
  virtual Status record(Event& event) = 0;
  // Later work of this queue starts after the last record of `event`, as of this call, is done. The
  // event may belong to another device.
  virtual Status wait(Event& event) = 0;
  // Blocks the calling thread until the queue is empty.
  virtual Status synchronize() = 0;
};

struct Capabilities {
  bool host_accessible = false;  // the host may dereference Block::data()
  bool inline_queues = false;    // launch and copy return after the work is done; see kCpuWorker
  // Operations and bytes per second, and seconds; 0 when unknown.
  double flops = 0;       // of float32
  double flops_half = 0;  // of 2-byte floats
  double memory_bandwidth = 0;
  double copy_bandwidth = 0;      // host to device
  double readback_bandwidth = 0;  // device to host
  double copy_latency = 0;
  double launch_latency = 0;  // of a call
  double parallelism = 0;     // elements that are computed at the same time; 0 when unknown
};

// What copies straight from one accelerator's memory to another's attain.
struct PeerLink {
  double bandwidth = 0;  // bytes per second; 0 when unknown
  double latency = 0;    // seconds for each copy

  bool operator==(const PeerLink&) const = default;
};

// The figures of one device's memory, or of several: the rows of figures.def.
struct MemoryStats {
#define MEMORY_LEVEL(field, text) int64_t field = 0;
#define MEMORY_COUNTER(field, text) int64_t field = 0;
#define MEMORY_LIMIT(field, text) int64_t field = 0;
#include "backend/device/figures.def"

  // Adds the figures of another device. The limit stays this one's.
  void add(const MemoryStats& other) {
#define MEMORY_LEVEL(field, text) field += other.field;
#define MEMORY_COUNTER(field, text) field += other.field;
#include "backend/device/figures.def"
  }

  // The bytes that may still be allocated; kAnyBytes without a cap.
  static constexpr uint64_t kAnyBytes = UINT64_MAX;
  uint64_t bytes_left() const {
    if (limit_bytes == 0) return kAnyBytes;
    return allocated_bytes < limit_bytes ? static_cast<uint64_t>(limit_bytes - allocated_bytes) : 0;
  }
};

// Counted work, for tests and reports: the rows of figures.def.
struct DeviceCounters {
#define DEVICE_COUNTER(field, text) int64_t field = 0;
#include "backend/device/figures.def"
};

class Device {
 public:
  virtual ~Device() = default;

  virtual const std::string& name() const = 0;
  virtual const Capabilities& capabilities() const = 0;

  // Memory of at least `bytes` (zero gives a unique, valid block). Errors: kResource with figures
  // in the message.
  virtual Result<Block> allocate(size_t bytes) = 0;
  // The address by which a kernel on this device's queue reaches a Block's bytes. The identity,
  // unless the host must not touch device memory. REQUIRES: called from inside a Task of this
  // device.
  virtual void* kernel_address(void* data) { return data; }
  // Whether tasks may call the CPU's kernels, at these addresses and at those of the host.
  virtual bool runs_host_kernels() const { return true; }

  // Whether run_fused() computes this kernel. It depends on the kernel's structure alone. Only
  // devices that run the CPU's kernels accept kernels with checks, because these report a failed
  // check.
  virtual bool can_fuse(const FusedKernel& kernel) const {
    (void)kernel;
    return false;
  }
  // Runs a fused kernel; `call.operands` are kernel addresses. False if a check of the kernel
  // failed; nothing was written then.
  // REQUIRES: called from inside a Task of this device; can_fuse().
  virtual Result<bool> run_fused(const FusedCall& call);
  // How many calls of run_fused() did not run the kernel in its final, faster form.
  virtual int64_t provisional_runs() const { return 0; }
  // Starts to prepare what run_fused() will need for this kernel, if that takes long. Ignores
  // addresses and numbers. Any thread may call it; calling it is optional. REQUIRES: can_fuse().
  virtual void prepare_fused(const FusedCall& call) { (void)call; }

  // The link by which the kFromPeer queue copies from the other device's memory; none where bytes
  // go by way of the host.
  virtual std::optional<PeerLink> link_from(const Device& other) const {
    (void)other;
    return std::nullopt;
  }
  // The device itself, where this one stands before it.
  virtual const Device& real() const { return *this; }

  virtual Queue& queue(QueueKind kind) = 0;
  virtual std::unique_ptr<Event> create_event() = 0;
  // One for seconds_between(). Recording it may cost more.
  virtual std::unique_ptr<Event> create_timed_event() { return create_event(); }
  // The seconds from the first event's last record to the second's on this device. Errors: kUsage
  // if it has not recorded both, or knows no time. REQUIRES: both are timed, and done.
  virtual Result<double> seconds_between(const Event& first, const Event& second) const;
  virtual Status synchronize() = 0;

  // A device that simulates time has a clock for each queue and one for the host, which waits for
  // them and works beside them. Devices of one simulated machine have one host, whose clock any of
  // them moves. The others have none: there advance_host does nothing and host_seconds is 0.
  virtual bool has_virtual_clock() const { return false; }
  // Advances the host's clock by work of its own, such as kernels of the CPU. The clock starts with
  // the device and moves only by this and by waiting.
  virtual void advance_host(double seconds) { (void)seconds; }
  virtual double host_seconds() const { return 0; }
  // The time at which the queue is done with what was submitted.
  virtual double queue_seconds(QueueKind kind) const {
    (void)kind;
    return 0;
  }
  // What is submitted to the queue from now on begins at this time at the earliest: it waits for
  // something that has no clock of its own.
  virtual void hold_queue(QueueKind kind, double until) {
    (void)kind;
    (void)until;
  }

  // Counts memory that other allocators own and Blocks adopted (negative: released), in
  // allocated_bytes and its peak. Refuses to exceed the cap with kResource, and then counts
  // nothing.
  virtual Status account_external(int64_t bytes) {
    (void)bytes;
    return {};
  }

  // Returns cached memory to the system.
  virtual void empty_cache() = 0;
  // Caps allocated_bytes; 0 removes the cap. A Block that would exceed it is refused with
  // kResource.
  virtual void set_memory_limit(size_t bytes) = 0;
  virtual MemoryStats memory_stats() const = 0;
  virtual void reset_peak() = 0;
  virtual DeviceCounters counters() const = 0;
};

}  // namespace hetero::backend
