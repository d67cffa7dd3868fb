#include "graph/transfer/device_blocks.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "backend/device/piece_copies.h"

namespace hetero::graph {
namespace {

// Of the numbers of one memory's blocks.
constexpr int64_t kSpan = int64_t{1} << 32;

void append(std::vector<backend::CopyRange>& ranges, std::byte* to, const std::byte* from, size_t bytes) {
  if (!ranges.empty()) {
    backend::CopyRange& last = ranges.back();
    if (static_cast<std::byte*>(last.destination) + last.bytes == to &&
        static_cast<const std::byte*>(last.source) + last.bytes == from) {
      last.bytes += bytes;
      return;
    }
  }
  ranges.push_back({to, from, bytes});
}

bool is_into_device(const TransferOp& op) { return destination_tier(op.type) == Tier::kDevice; }
const BlockExtents& device_side(const TransferOp& op) { return is_into_device(op) ? op.destination : op.source; }

}  // namespace

Status DeviceBlocks::check(const backend::BlockGeometry& geometry) const {
  const auto wrong = [](const std::string& what) { return Status(ErrorClass::kUsage, "kv: " + what); };
  if (std::ssize(layers) != geometry.pieces) {
    return wrong("the memory has " + std::to_string(layers.size()) + " layers, and the store's blocks have " +
                 std::to_string(geometry.pieces));
  }
  if (rows <= 0 || row_bytes <= 0 || blocks < 0 || blocks >= kSpan) return wrong("sizes must be positive");
  if (2 * rows * row_bytes != geometry.piece_bytes) {
    return wrong("a layer's keys and values of a block have " + std::to_string(2 * rows * row_bytes) +
                 " bytes, and those of the store have " + std::to_string(geometry.piece_bytes));
  }
  for (const Layer& layer : layers) {
    if (layer.keys == nullptr || layer.values == nullptr) return wrong("a layer has no memory");
  }
  return Status();
}

bool DeviceBlocks::is_direct() const {
  if (device != nullptr && !(device->capabilities().host_accessible && device->capabilities().inline_queues)) {
    return false;
  }
  constexpr int64_t kPage = backend::BlockGeometry::kPageBytes;
  if (row_bytes % kPage != 0 || block_stride % kPage != 0 || (rows > 1 && row_stride % kPage != 0)) return false;
  return std::ranges::all_of(layers, [](const Layer& layer) {
    return reinterpret_cast<uintptr_t>(layer.keys) % kPage == 0 &&
           reinterpret_cast<uintptr_t>(layer.values) % kPage == 0;
  });
}

std::vector<std::byte*> DeviceBlocks::rows_of(int64_t block) const {
  std::vector<std::byte*> parts;
  for (const Layer& layer : layers) {
    for (std::byte* const half : {layer.keys, layer.values}) {
      for (int64_t row = 0; row < rows; ++row) {
        parts.push_back(half + (block - base) * block_stride + row * row_stride);
      }
    }
  }
  return parts;
}

std::vector<backend::CopyRange> copies_of(const TransferOp& op, const DeviceBlocks& blocks,
                                          const backend::BlockGeometry& geometry, std::byte* host) {
  const bool into_device = is_into_device(op);
  const std::vector<int64_t> there = list_blocks(device_side(op));
  const std::vector<int64_t> here = list_blocks(into_device ? op.source : op.destination);
  const int64_t first = op.layer_granularity == 0 ? 0 : op.layer_id;
  const int64_t last = op.layer_granularity == 0 ? geometry.pieces : first + op.layer_granularity;
  const int64_t half = geometry.piece_bytes / 2;
  std::vector<backend::CopyRange> ranges;
  // Layer by layer, where the device has neighbouring blocks; the host has a block's layers
  // together.
  for (int64_t layer = first; layer < last; ++layer) {
    for (const bool values : {false, true}) {
      const DeviceBlocks::Layer& memory = blocks.layers[static_cast<size_t>(layer)];
      std::byte* const base = values ? memory.values : memory.keys;
      for (size_t i = 0; i < there.size(); ++i) {
        std::byte* const piece =
            host + here[i] * geometry.block_bytes() + layer * geometry.piece_stride() + (values ? half : 0);
        std::byte* const block = base + (there[i] - blocks.base) * blocks.block_stride;
        for (int64_t row = 0; row < blocks.rows; ++row) {
          std::byte* const on_host = piece + row * blocks.row_bytes;
          std::byte* const on_device = block + row * blocks.row_stride;
          const auto bytes = static_cast<size_t>(blocks.row_bytes);
          into_device ? append(ranges, on_device, on_host, bytes) : append(ranges, on_host, on_device, bytes);
        }
      }
    }
  }
  return ranges;
}

DeviceLane::DeviceLane(const backend::BlockGeometry& geometry, std::byte* host, int threads)
    : geometry_(geometry),
      host_(host),
      copiers_(threads, [this](Job& job) { run(job); }),
      upload_waiter_(1, [this](Job& job) { run(job); }),
      download_waiter_(1, [this](Job& job) { run(job); }) {}

void DeviceLane::add(const std::shared_ptr<DeviceBlocks>& blocks) {
  // Lanes of several stores may name the same blocks.
  static std::mutex naming;
  static int64_t next_base = 0;
  {
    const std::lock_guard lock(naming);
    if (blocks->base < 0) blocks->base = std::exchange(next_base, next_base + kSpan);
  }
  const std::lock_guard lock(mutex_);
  if (!memories_.emplace(blocks->base / kSpan, blocks).second) return;
  std::erase_if(memories_, [](const auto& memory) { return memory.second.expired(); });
}

// The copies, by a kernel where they are many and small, and an event behind them. A queue that
// other devices' events cannot be put on waits.
Result<std::shared_ptr<backend::Event>> DeviceLane::submit(const TransferOp& op, const DeviceBlocks& blocks) {
  const std::vector<backend::CopyRange> ranges = copies_of(op, blocks, geometry_, host_);
  copies_.fetch_add(std::ssize(ranges), std::memory_order_relaxed);
  backend::Queue& queue =
      blocks.device->queue(is_into_device(op) ? backend::QueueKind::kHostToDevice : backend::QueueKind::kDeviceToHost);
  std::shared_ptr<backend::Event> event = blocks.device->create_event();
  const Result<bool> by_kernel = backend::copy_scattered(queue, ranges);
  if (!by_kernel.ok()) return by_kernel.status();
  if (by_kernel.value()) (is_into_device(op) ? scatters_ : gathers_).fetch_add(1, std::memory_order_relaxed);
  if (Status status = queue.record(*event); !status.ok()) return status;
  return event;
}

std::shared_ptr<DeviceBlocks> DeviceLane::find(const TransferOp& op) const {
  const std::lock_guard lock(mutex_);
  const auto found = memories_.find(device_side(op).front().first / kSpan);
  return found == memories_.end() ? nullptr : found->second.lock();
}

void DeviceLane::start(const TransferOp& op, TransferDone done) {
  Job job{&op, done, find(op), nullptr, Status()};
  if (job.blocks == nullptr) return done(Status(ErrorClass::kInternal, "kv: the device's blocks are gone"));
  if (job.blocks->device != nullptr) {
    Result<std::shared_ptr<backend::Event>> event = submit(op, *job.blocks);
    if (!event.ok()) return done(event.status());
    job.event = std::move(event.value());
  }
  {
    const std::lock_guard lock(mutex_);
    if (job.event != nullptr) {
      auto& events = events_[op.graph_id];
      if (events.size() <= op.op_id) events.resize(op.op_id + 1);
      events[op.op_id] = job.event;
    }
  }
  JobThreads<Job>& threads = job.event == nullptr ? copiers_ : is_into_device(op) ? upload_waiter_ : download_waiter_;
  threads.submit(std::move(job), op.priority);
}

std::shared_ptr<backend::Event> DeviceLane::event_of(const TransferOp& op) const {
  const std::lock_guard lock(mutex_);
  const auto found = events_.find(op.graph_id);
  if (found == events_.end() || found->second.size() <= op.op_id) return nullptr;
  return found->second[op.op_id];
}

void DeviceLane::forget(uint64_t graph_id) {
  const std::lock_guard lock(mutex_);
  events_.erase(graph_id);
}

void DeviceLane::run(Job& job) {
  if (job.event != nullptr) {
    // A thread that waits beside the program is not the host of a simulated machine, whose clock
    // waiting would advance.
    while (job.blocks->device->has_virtual_clock() && !job.event->query()) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (!job.blocks->device->has_virtual_clock()) job.status = job.event->synchronize();
  } else {
    const std::vector<backend::CopyRange> ranges = copies_of(*job.op, *job.blocks, geometry_, host_);
    copies_.fetch_add(std::ssize(ranges), std::memory_order_relaxed);
    for (const backend::CopyRange& range : ranges) std::memcpy(range.destination, range.source, range.bytes);
  }
  job.blocks.reset();
  job.done(job.status);
}

}  // namespace hetero::graph
