#include "graph/transfer/tier_lanes.h"

#include <chrono>
#include <utility>

namespace hetero::graph {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

void Rate::begin() {
  const std::lock_guard lock(mutex_);
  if (in_flight_++ == 0) since_ = now();
}

void Rate::end(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const double time = now();
  busy_ += time - since_;
  since_ = time;
  bytes_ += static_cast<double>(bytes);
  --in_flight_;
  // Older transfers count less.
  if (busy_ > 4) {
    busy_ /= 2;
    bytes_ /= 2;
  }
}

double Rate::bandwidth() const {
  const std::lock_guard lock(mutex_);
  return busy_ > 0 ? bytes_ / busy_ : 0;
}

void DiskLane::start(const TransferOp& op, TransferDone done) {
  const bool reads = source_tier(op.type) == Tier::kDisk;
  const std::vector<int64_t> slots = list_blocks(reads ? op.source : op.destination);
  const std::vector<int64_t> places = list_blocks(reads ? op.destination : op.source);
  const bool is_direct = op.type == TransferType::kDisk2D || op.type == TransferType::kD2Disk;
  std::shared_ptr<DeviceBlocks> memory;  // lives until the transfer has ended
  if (is_direct) {
    memory = device_.find(op);
    if (memory == nullptr) return done(Status(ErrorClass::kInternal, "kv: the device's blocks are gone"));
    if (!memory->is_direct()) {
      return done(Status(ErrorClass::kUsage, "kv: a file cannot be read into this memory, or written from it"));
    }
  }
  // Adds a block, whose memory is set.
  const auto add = [&](auto& blocks, size_t i) {
    auto& block = blocks.emplace_back();
    block.slot = slots[i];
    if (is_direct) {
      block.parts = memory->rows_of(places[i]);
    } else {
      block.data = host_ + places[i] * geometry_.block_bytes();
    }
  };
  if (!reads) {
    std::vector<backend::BlockWrite> blocks;
    for (size_t i = 0; i < slots.size(); ++i) {
      add(blocks, i);
      blocks.back().block = describe_(slots[i]);
    }
    file_.write(std::move(blocks), [done, memory](const backend::BlockResult& result) { done(result.status); });
    return;
  }
  std::vector<backend::BlockRead> blocks;
  for (size_t i = 0; i < slots.size(); ++i) add(blocks, i);
  const bool all = op.layer_granularity == 0;
  reads_.begin();
  file_.read(std::move(blocks), all ? 0 : op.layer_id, all ? geometry_.pieces : op.layer_granularity,
             [this, done, memory, bytes = op.bytes](const backend::BlockResult& result) {
               reads_.end(bytes);
               if (!result.bad_slots.empty()) report_missing_(result.bad_slots);
               done(result.status);
             });
}

RemoteLane::RemoteLane(backend::RemoteTier& tier, const backend::BlockGeometry& geometry, std::byte* host, int threads,
                       Describe describe, ReportMissing report_missing)
    : tier_(tier),
      geometry_(geometry),
      host_(host),
      describe_(std::move(describe)),
      report_missing_(std::move(report_missing)),
      threads_(threads, [this](const Job& job) { run(job); }) {}

void RemoteLane::start(const TransferOp& op, TransferDone done) { threads_.submit({&op, done}, op.priority); }

void RemoteLane::run(const Job& job) {
  const bool reads = job.op->type == TransferType::kRemote2H;
  const uint64_t bytes = job.op->bytes;
  if (reads) reads_.begin();
  const Status status = transfer(*job.op);
  if (reads) reads_.end(bytes);
  job.done(status);
}

Status RemoteLane::transfer(const TransferOp& op) {
  const bool reads = op.type == TransferType::kRemote2H;
  const std::vector<int64_t> nodes = list_blocks(reads ? op.source : op.destination);
  const std::vector<int64_t> places = list_blocks(reads ? op.destination : op.source);
  std::vector<backend::StoredBlock> names;
  for (const int64_t node : nodes) names.push_back(describe_(node));
  std::vector<backend::RemoteBlock> blocks;
  for (size_t i = 0; i < nodes.size(); ++i) {
    blocks.push_back({.key = names[i].key,
                      .parent = names[i].parent,
                      .tokens = names[i].tokens,
                      .data = host_ + places[i] * geometry_.block_bytes()});
  }
  const backend::RemoteResult result = reads ? tier_.get(blocks) : tier_.put(blocks);
  std::vector<int64_t> missing;
  for (const int64_t position : result.missing) missing.push_back(nodes[static_cast<size_t>(position)]);
  if (!missing.empty() && reads) report_missing_(missing);
  if (!result.status.ok()) return result.status;
  if (!missing.empty()) return Status(ErrorClass::kStorage, "kv: the remote store does not have all blocks");
  return Status();
}

}  // namespace hetero::graph
