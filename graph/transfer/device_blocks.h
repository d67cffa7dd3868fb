// DeviceBlocks: where the caller of a block store has keys and values, and the lane that copies
// them to and from host memory.
//
// The caller's memory is pages of a serving engine, or the tensors of one sequence. For each layer
// it has keys and values; a block's half of a piece is `rows` rows. So both usual layouts fit:
//
//   [blocks, heads, tokens, size]: one row of all bytes, a block every block_stride bytes
//   [heads, all tokens, size]:     a row for each head, row_stride apart
//
// A block of DeviceBlocks is named by a number that is unique in the process, so transfers of
// different memories never wait for each other, and stores may share a memory.
//
// Copies of one transfer are merged where both sides are contiguous. In host memory a few threads
// copy, the most urgent transfer first. On a device they are one batch on its copy queue of that
// direction, or, many and small, one gather or scatter kernel (piece_copies.h). An event follows,
// for which the device's other queues can wait.
//
// Thread safety: any thread. Ownership: DeviceBlocks live until their transfers have ended.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "backend/device/device.h"
#include "backend/tier/block_geometry.h"
#include "graph/transfer/job_threads.h"
#include "graph/transfer/transfer_scheduler.h"

namespace hetero::graph {

struct DeviceBlocks {
  struct Layer {
    std::byte* keys = nullptr;
    std::byte* values = nullptr;
  };
  backend::Device* device = nullptr;  // null: memory of the host
  std::vector<Layer> layers;
  int64_t blocks = 0;
  int64_t block_stride = 0;  // bytes, from a block to the next
  int64_t rows = 1;          // of a block's keys in a layer
  int64_t row_bytes = 0;
  int64_t row_stride = 0;

  // Errors: kUsage if these are not blocks of this geometry.
  Status check(const backend::BlockGeometry& geometry) const;
  // Whether a file is read straight into these blocks, and written from them: the host reaches the
  // memory as soon as a queue has been given what changes it, and rows are whole pages. REQUIRES:
  // check().
  bool is_direct() const;
  // The rows of a block, layer by layer, keys before values: the parts of BlockRead and BlockWrite.
  std::vector<std::byte*> rows_of(int64_t block) const;
  int64_t base = -1;  // the number of block 0, which DeviceLane::add() sets
};

// The copies of blocks between a device and host memory, merged. `host` is the memory of the
// host tier's place 0.
std::vector<backend::CopyRange> copies_of(const TransferOp& op, const DeviceBlocks& blocks,
                                          const backend::BlockGeometry& geometry, std::byte* host);

// Runs H2D and D2H.
class DeviceLane final : public TransferLane {
 public:
  DeviceLane(const backend::BlockGeometry& geometry, std::byte* host, int threads);

  // Gives the blocks their numbers, unless they have some.
  void add(const std::shared_ptr<DeviceBlocks>& blocks);
  // The memory of the op's blocks; null if it is gone.
  std::shared_ptr<DeviceBlocks> find(const TransferOp& op) const;

  void start(const TransferOp& op, TransferDone done) override;
  // The event behind a transfer on a device's queue: null if it has not begun, or needs none.
  std::shared_ptr<backend::Event> event_of(const TransferOp& op) const;
  void forget(uint64_t graph_id);

  int64_t copies() const { return copies_.load(std::memory_order_relaxed); }
  // Transfers whose copies one kernel made: from a device, and to one.
  int64_t gathers() const { return gathers_.load(std::memory_order_relaxed); }
  int64_t scatters() const { return scatters_.load(std::memory_order_relaxed); }

 private:
  struct Job {
    const TransferOp* op;
    TransferDone done;
    std::shared_ptr<DeviceBlocks> blocks;
    std::shared_ptr<backend::Event> event;  // to wait for; null: to copy
    Status status;
  };
  Result<std::shared_ptr<backend::Event>> submit(const TransferOp& op, const DeviceBlocks& blocks);
  void run(Job& job);

  const backend::BlockGeometry geometry_;
  std::byte* const host_;
  std::atomic<int64_t> copies_{0}, gathers_{0}, scatters_{0};

  mutable std::mutex mutex_;  // guards what follows
  // by base / kSpan
  std::unordered_map<int64_t, std::weak_ptr<DeviceBlocks>> memories_;
  // of a graph, by op
  std::unordered_map<uint64_t, std::vector<std::shared_ptr<backend::Event>>> events_;

  JobThreads<Job> copiers_;
  // An upload must not be reported after another request's download, so each way has a thread.
  JobThreads<Job> upload_waiter_, download_waiter_;
};

}  // namespace hetero::graph
