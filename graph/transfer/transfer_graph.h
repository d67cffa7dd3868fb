// TransferOpGraph: the transfers of one request between tiers, and what must happen before what.
//
// A block is the keys and values of some tokens, of all layers. Each tier has numbered places for
// blocks. An op moves a run of blocks, with all layers or some, from one tier to another. A request
// for cached tokens (GET) becomes a graph like this one. Fragment 1 is in host memory, fragment 2
// on disk, and the upload of the first does not wait for the second:
//
//   TransferOpGraph graph;
//   graph.add_op({.type = TransferType::kH2D, .source = {{0, 4}}, .destination = {{8, 4}}});
//   const uint32_t read = graph.add_op({.type = TransferType::kDisk2H, ...});
//   const uint32_t upload = graph.add_op({.type = TransferType::kH2D, ..., .position = 4});
//   graph.add_dependency(read, upload);
//   Status status = graph.verify();
//   auto run = scheduler.submit(std::move(graph));   // transfer_scheduler.h
//
// The names are those of FlexKV (github.com/taco-project/FlexKV, flexkv/common/transfer.py).
//
// Thread safety: a value; one thread at a time. While it runs, only the scheduler writes states.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/base/status.h"

namespace hetero::graph {

enum class Tier : uint8_t { kDevice, kHost, kDisk, kRemote, kPeer };
inline constexpr int kTiers = 5;
const char* to_string(Tier tier);

enum class TransferType : uint8_t {
  kH2D,
  kD2H,
  kDisk2H,
  kH2Disk,
  kRemote2H,
  kH2Remote,
  kDisk2D,
  kD2Disk,
  kPeer2H,
  kH2Peer
};
inline constexpr int kTransferTypes = 10;
const char* to_string(TransferType type);  // "H2D", "DISK2H"
Tier source_tier(TransferType type);
Tier destination_tier(TransferType type);

// Neighbouring blocks of a tier.
struct BlockExtent {
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const BlockExtent&) const = default;
};
// Blocks in the order of the request, as few extents as there are runs.
using BlockExtents = std::vector<BlockExtent>;
void append_block(BlockExtents& extents, int64_t block);
int64_t block_count(const BlockExtents& extents);
std::vector<int64_t> list_blocks(const BlockExtents& extents);

enum class TransferState : uint8_t { kPending, kReady, kRunning, kCompleted, kFailed, kCancelled };
const char* to_string(TransferState state);
inline bool is_final(TransferState state) { return state >= TransferState::kCompleted; }

// The most urgent first.
enum class TransferPriority : uint8_t { kGet, kPrefetch, kPut, kScrub };
inline constexpr int kTransferPriorities = 4;

struct TransferOp {
  uint32_t op_id = 0;     // set by add_op()
  uint64_t graph_id = 0;  // set when the graph is submitted
  TransferType type = TransferType::kH2D;
  BlockExtents source{};
  BlockExtents destination{};     // as many blocks
  int64_t position = 0;           // of the first block in the request
  int32_t layer_id = 0;           // the first layer
  int32_t layer_granularity = 0;  // how many layers; 0: all
  uint64_t bytes = 0;
  TransferPriority priority = TransferPriority::kGet;
  bool is_awaited = true;  // false: the request counts as done without it
  std::vector<uint32_t> predecessors{};
  std::vector<uint32_t> successors{};
  TransferState state = TransferState::kPending;
  double started = 0;  // seconds of the steady clock; 0: not yet
  double ended = 0;
};

// The state while others may write it.
TransferState state_of(const TransferOp& op);

// A transfer that has ended, for timelines. Fields are those of TransferOp.
struct TransferRecord {
  uint64_t graph_id = 0;
  uint32_t op_id = 0;
  TransferType type = TransferType::kH2D;
  int64_t position = 0;
  int64_t blocks = 0;
  int32_t layer_id = 0;
  int32_t layer_granularity = 0;
  uint64_t bytes = 0;
  double started = 0;
  double ended = 0;
};
// Appends those of a graph that have completed.
void append_records(std::vector<TransferRecord>& records, const std::vector<TransferOp>& ops);

// Calls visit(tier, block, writes) for each block that the op reads, then for each that it writes.
template <typename Visit>
void for_each_block(const TransferOp& op, const Visit& visit) {
  for (const bool writes : {false, true}) {
    const Tier tier = writes ? destination_tier(op.type) : source_tier(op.type);
    for (const BlockExtent& extent : writes ? op.destination : op.source) {
      for (int64_t i = 0; i < extent.count; ++i) visit(tier, extent.first + i, writes);
    }
  }
}

// Whether both touch some layer of a block.
bool share_layers(const TransferOp& a, const TransferOp& b);

class TransferOpGraph {
 public:
  // `target`: where the request wants its blocks.
  explicit TransferOpGraph(Tier target = Tier::kDevice) : target_(target) {}

  // The op's number.
  uint32_t add_op(TransferOp op);
  // The op `after` starts when `before` has completed. A dependency that exists is not added again.
  // REQUIRES: both are numbers of ops.
  void add_dependency(uint32_t before, uint32_t after);

  // Errors: kInternal in one sentence, for a cycle; for source and destination of different sizes,
  // or an extent that is not positive; and for two ops of which one writes what the other touches,
  // without a path between them.
  Status verify() const;
  // The graph in the language of Graphviz, with states.
  std::string dump() const;

  const std::vector<TransferOp>& ops() const { return ops_; }
  Tier target() const { return target_; }
  // Whether the op brings blocks where the request wants them: to the target, or to the disk past
  // host memory that has no room.
  bool delivers(const TransferOp& op) const {
    return destination_tier(op.type) == target_ || op.type == TransferType::kD2Disk;
  }
  // Blocks of the request that its ops bring to the target.
  int64_t blocks() const;
  // Blocks at the beginning of the request, all of whose ops have completed.
  int64_t usable_prefix() const;

 private:
  friend class TransferScheduler;

  std::vector<std::vector<uint64_t>> find_descendants(const std::vector<uint32_t>& order) const;
  Status check_extents(const TransferOp& op) const;
  Status check_hazards(const std::vector<std::vector<uint64_t>>& descendants) const;

  Tier target_;
  std::vector<TransferOp> ops_;
};

}  // namespace hetero::graph
