// Device, Queue, Event and Block: the whole contract between hetero and a compute device.
//
// A Device owns memory and a few Queues. A Queue runs tasks and copies strictly in the order of
// submission. Different queues run at the same time; Events, and nothing else, order them. The
// layers above, such as the executor and the storages of ops/, use this header alone. So a new
// device is one folder that implements it: `cpu` (runs inline on the calling thread), `sim` (an
// accelerator without hardware), `cuda`, and `fault` (wraps any of them).
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

// Devices of one process are numbered densely. The CPU is always 0; accelerators, where there are any, follow.
using DeviceIndex = uint8_t;
inline constexpr DeviceIndex kCpu = 0;
inline constexpr DeviceIndex kAccelerator = 1;  // the first
// Capacity of sets and of storage within objects. How many devices there are, a Machine says (backend/machine.h).
inline constexpr int kMostDevices = 8;

// Bit i stands for device i.
using DeviceSet = uint8_t;
constexpr DeviceSet only(DeviceIndex device) { return static_cast<DeviceSet>(1u << device); }
constexpr bool contains(DeviceSet devices, DeviceIndex device) { return (devices >> device & 1) != 0; }
// REQUIRES: there is one.
constexpr DeviceIndex first_of(DeviceSet devices) { return static_cast<DeviceIndex>(std::countr_zero(devices)); }

// By DeviceIndex; null where there is no such device, and then there is none behind it.
using Devices = std::array<Device*, kMostDevices>;
inline bool has_accelerator(const Devices& devices) { return devices[kCpu + 1] != nullptr; }

// A range of bytes of a device's memory, released when the Block dies. Blocks are aligned to 64 bytes at least.
// The memory comes from the device's own allocator, or was adopted from whoever made it (see `adopt`).
class Block {
 public:
  using Release = void (*)(void* context, void* data, size_t bytes);

  Block() = default;
  // Takes over memory: `release(context, data, bytes)` is called exactly once.
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

// What a compute queue runs. `run` must not throw and must not submit to the queue it runs on.
struct Task {
  void (*run)(void* context);
  void* context;
  // How long it is expected to take on this device, launch included, and the share of the device that it keeps busy meanwhile, from 0 to 1: what it
  // leaves, tasks of other compute queues can use. A device that simulates time takes both for the truth; others ignore them.
  double seconds = 0;
  double utilization = 1;
};

// A point in a queue's order. An Event that was never recorded counts as done. Recording again moves it.
class Event {
 public:
  virtual ~Event() = default;
  // True when everything before the last record has run.
  virtual bool query() const = 0;
  // Blocks the calling thread until query() is true.
  virtual Status synchronize() = 0;
};

// The urgent queues are for small copies that somebody waits for, which would otherwise stand behind large ones that are in no hurry. They use the same link.
// The compute queues behind the first are for tasks that need not wait for those of the others. They share the device.
// kFromPeer carries copies that come straight from the memory of another accelerator.
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
// The queue of the same direction that yields the link to an urgent one; the kind itself for any other.
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

// Bytes that a copy moves. Pointers are those of Blocks.
struct CopyRange {
  void* destination;
  const void* source;
  size_t bytes;
};

class Queue {
 public:
  virtual ~Queue() = default;
  // Runs `task` after everything submitted before. REQUIRES: the task's context lives until it has run.
  virtual Status launch(Task task) = 0;
  // Records these tasks, which launch_segment() then launches as one, any number of times: a CUDA graph. What they do then is what they would do now: a device
  // may call them for that here and now, on this thread, and freeze the addresses and numbers with which they start kernels. None of these kernels runs.
  // Null where something that the tasks start is not in its final form, code that is still being compiled say: worth asking again some launches later.
  // Errors: kUsage where the device has no segments, kDevice where these tasks cannot be recorded. Nothing else is affected, and launching the tasks one by
  // one does the same as ever. REQUIRES: the tasks' contexts live as long as the segment.
  virtual Result<std::unique_ptr<Segment>> record_segment(std::span<const Task> tasks);
  // Runs the segment's tasks in order after everything submitted before. Errors: nothing of it was submitted. REQUIRES: recorded by this queue; it lives until
  // it has run.
  virtual Status launch_segment(Segment& segment);
  // Copies bytes between host memory and this device's memory (or within either), or from the memory of a peer
  // into this device's where there is a link (Device::link_from). Pointers are those of Blocks.
  // REQUIRES: both ranges live until the copy has run.
  virtual Status copy(void* destination, const void* source, size_t bytes) = 0;
  // Copies all ranges, in any order, as one transfer where the device can: small copies then pay the link's latency once. The ranges themselves are read
  // before it returns. After an error some may have been copied.
  // REQUIRES: as for copy(); all go the same way, between the same two memories; no destination overlaps another range.
  virtual Status copy_batch(std::span<const CopyRange> ranges);
  virtual Status record(Event& event) = 0;
  // Later work of this queue starts only when the last record of `event`, as of this call, is done. The event may
  // belong to another device.
  virtual Status wait(Event& event) = 0;
  // Blocks the calling thread until the queue is empty.
  virtual Status synchronize() = 0;
};

struct Capabilities {
  bool host_accessible = false;  // the host may dereference Block::data()
  bool inline_queues = false;    // launch and copy return after the work is done
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

struct MemoryStats {
  int64_t allocated_bytes = 0;  // held by live Blocks
  int64_t peak_bytes = 0;       // the most allocated_bytes since the last reset_peak
  int64_t reserved_bytes = 0;   // held from the system, cached Blocks included
  int64_t allocations = 0;      // Blocks handed out, ever
  int64_t reused_blocks = 0;    // of those, how many came from the cache
  int64_t reused_bytes = 0;     // their sizes
  int64_t limit_bytes = 0;      // the configured cap; 0 for none

  // What may still be allocated; kAnyBytes where there is no cap.
  static constexpr uint64_t kAnyBytes = UINT64_MAX;
  uint64_t bytes_left() const {
    if (limit_bytes == 0) return kAnyBytes;
    return allocated_bytes < limit_bytes ? static_cast<uint64_t>(limit_bytes - allocated_bytes) : 0;
  }
};

// Counted work, for tests and reports.
struct DeviceCounters {
  int64_t launches = 0;      // of tasks, and of segments
  int64_t copies_in = 0;     // host to device
  int64_t copies_out = 0;    // device to host
  int64_t copy_batches = 0;  // transfers that were several of these copies
  int64_t copies_from_peers = 0;
  int64_t bytes_in = 0;
  int64_t bytes_out = 0;
  int64_t bytes_from_peers = 0;
  int64_t events_recorded = 0;
  int64_t events_waited = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual const std::string& name() const = 0;
  virtual const Capabilities& capabilities() const = 0;

  // Memory of at least `bytes` (zero gives a unique, valid block). Errors: kResource with figures in the message.
  virtual Result<Block> allocate(size_t bytes) = 0;
  // The address under which a kernel that runs on this device's queue reaches a Block's bytes. The identity, except
  // where the host must not touch device memory. REQUIRES: called from inside a Task of this device.
  virtual void* kernel_address(void* data) { return data; }
  // Whether its tasks may call the CPU's kernels, at these addresses and at those of the host.
  virtual bool runs_host_kernels() const { return true; }

  // Whether run_fused() computes this kernel. It depends on the kernel's structure alone. One with checks is for devices on which
  // the CPU's kernels run: where a check fails, these say so.
  virtual bool can_fuse(const FusedKernel& kernel) const {
    (void)kernel;
    return false;
  }
  // Runs a fused kernel; `call.operands` are kernel addresses. False where a check of the kernel failed; then nothing was written. REQUIRES: called
  // from inside a Task of this device; can_fuse().
  virtual Result<bool> run_fused(const FusedCall& call);
  // How many calls of run_fused() did not run the kernel in its final form, which takes longer.
  virtual int64_t provisional_runs() const { return 0; }
  // Begins to make what run_fused() will need for this kernel, where that takes long; addresses and numbers are not looked at. Any thread may call it,
  // and nobody has to. REQUIRES: can_fuse().
  virtual void prepare_fused(const FusedCall& call) { (void)call; }

  // The link by which the kFromPeer queue copies from the other device's memory; none where bytes go by way of the host.
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
  // From the first event's last record to the second's, when this device came to them. Errors: kUsage where it has not recorded both, or knows no time.
  // REQUIRES: both are timed, and done.
  virtual Result<double> seconds_between(const Event& first, const Event& second) const;
  virtual Status synchronize() = 0;

  // A device that simulates time has a clock for each queue and one for the host, which waits for them and works beside them. Devices of one simulated
  // machine have one host, whose clock any of them moves. The others have
  // none: there advance_host does nothing and host_seconds is 0.
  virtual bool has_virtual_clock() const { return false; }
  // The host works for so long, at kernels of the CPU for example. Its clock begins with the device and moves only by this and by waiting.
  virtual void advance_host(double seconds) { (void)seconds; }
  virtual double host_seconds() const { return 0; }
  // When the queue is done with what was submitted to it.
  virtual double queue_seconds(QueueKind kind) const {
    (void)kind;
    return 0;
  }

  // Counts memory that others allocated and Blocks adopted (negative: released) in allocated_bytes and its peak. More than the
  // cap is refused with kResource, and not counted.
  virtual Status account_external(int64_t bytes) {
    (void)bytes;
    return {};
  }

  // Gives cached memory back to the system.
  virtual void empty_cache() = 0;
  // Caps allocated_bytes; 0 removes the cap. A Block that would exceed it is refused with kResource.
  virtual void set_memory_limit(size_t bytes) = 0;
  virtual MemoryStats memory_stats() const = 0;
  virtual void reset_peak() = 0;
  virtual DeviceCounters counters() const = 0;
};

}  // namespace hetero::backend
