// The lanes of the tiers that keep blocks by key, a disk and a remote store: to and from host
// memory, and past it between the disk and the caller's memory.
//
// A block of the disk tier is a slot of its file. A block of the remote tier is the number of its
// node in the index, since a remote store has no places. Who asks for a transfer tells by
// `Describe` what a block is called.
//
// Thread safety: any thread. Ownership: the tiers outlive their lanes.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "backend/tier/block_file.h"
#include "backend/tier/remote_tier.h"
#include "graph/transfer/device_blocks.h"
#include "graph/transfer/job_threads.h"
#include "graph/transfer/transfer_scheduler.h"

namespace hetero::graph {

// Key, parent and tokens of a block of the tier.
using Describe = std::function<backend::StoredBlock(int64_t block)>;
// Blocks that the tier does not have after all.
using ReportMissing = std::function<void(const std::vector<int64_t>& blocks)>;

// What a tier attains: bytes over the time in which transfers are in flight.
class Rate {
 public:
  void begin();
  void end(uint64_t bytes);
  // Bytes per second; 0 while unknown.
  double bandwidth() const;

 private:
  mutable std::mutex mutex_;
  int in_flight_ = 0;
  double since_ = 0;
  double busy_ = 0;
  double bytes_ = 0;
};

// Runs DISK2H and H2DISK; and DISK2D and D2DISK for memory that a file is read into directly
// (DeviceBlocks::is_direct), which `device` knows.
class DiskLane final : public TransferLane {
 public:
  DiskLane(backend::BlockFile& file, const backend::BlockGeometry& geometry, std::byte* host, const DeviceLane& device,
           Describe describe, ReportMissing report_missing)
      : file_(file),
        geometry_(geometry),
        host_(host),
        device_(device),
        describe_(std::move(describe)),
        report_missing_(std::move(report_missing)) {}

  void start(const TransferOp& op, TransferDone done) override;
  const Rate& reads() const { return reads_; }

 private:
  backend::BlockFile& file_;
  const backend::BlockGeometry geometry_;
  std::byte* const host_;
  const DeviceLane& device_;
  const Describe describe_;
  const ReportMissing report_missing_;
  Rate reads_;
};

// Runs REMOTE2H and H2REMOTE on threads of its own, since the calls block.
class RemoteLane final : public TransferLane {
 public:
  RemoteLane(backend::RemoteTier& tier, const backend::BlockGeometry& geometry, std::byte* host, int threads,
             Describe describe, ReportMissing report_missing);
  void start(const TransferOp& op, TransferDone done) override;
  const Rate& reads() const { return reads_; }

 private:
  struct Job {
    const TransferOp* op;
    TransferDone done;
  };
  void run(const Job& job);
  Status transfer(const TransferOp& op);

  backend::RemoteTier& tier_;
  const backend::BlockGeometry geometry_;
  std::byte* const host_;
  const Describe describe_;
  const ReportMissing report_missing_;
  Rate reads_;
  JobThreads<Job> threads_;
};

}  // namespace hetero::graph
