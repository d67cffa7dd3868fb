// BlockStore: keys and values of prompts that were seen, in host memory, on a disk, and in a remote
// store, so that none of them is computed twice.
//
//   auto store = BlockStore::open({.spec = spec, .host_bytes = 8 << 30, .disk_folder = "/cache",
// ...});
//   BlockMatch match = store->match(tokens);                    // what is there; it stays
//   auto get = store->get(match, memory, blocks);               // into the caller's memory
//   Status status = get->wait_for_layer(0);                     // layer by layer, or
//   int64_t tokens = get->wait();                               // all: what can be used
//   auto put = store->put(tokens, memory, blocks);              // after the model has computed
// them
//   put->wait();                                                // the caller's memory is free
// again
//
// GET. Blocks in host memory are copied at once. Those on the disk beyond are read into host memory
// and copied as they arrive, those in the remote store likewise, and written to the disk meanwhile.
// A block that another request is reading already is not read again.
//
// PUT. Blocks that host memory lacks are copied there. Then the request is done; what the disk and
// the remote store lack is written behind it. wait_completely() waits for these writes too.
//
// If host memory has no room, and the caller's memory is one that a file is read into directly,
// blocks go between it and the disk, past host memory.
//
// The bytes that arrive are those that were put, or nothing: the disk and the remote store verify
// checksums, tokens are compared, and a request reports the prefix that it delivered. A tier that
// fails is not used; the others go on.
//
// A block is only loaded if that is expected to be faster than computing it
// (Options::prefill_rate).
//
// Thread safety: any thread. Ownership: the caller's memory must live until its request is done,
// and the store must outlive requests and matches.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/base/status.h"
#include "backend/tier/block_file.h"
#include "backend/tier/remote_tier.h"
#include "graph/transfer/device_blocks.h"
#include "graph/transfer/kv_spec.h"
#include "graph/transfer/transfer_scheduler.h"

namespace hetero::graph {

struct BlockStoreOptions {
  KvSpec spec;
  int64_t host_bytes = 0;   // at least one block
  std::string disk_folder;  // empty: no disk
  int64_t disk_bytes = 0;
  backend::Durability durability = backend::Durability::kNone;
  backend::FileEngine engine = backend::FileEngine::kAuto;
  std::string remote;  // an address (backend/tier/remote_tier.h); empty: none
  double remote_timeout_seconds = 2;
  std::string remote_codec = "none";
  std::string policy = "arc";  // of eviction
  // A block is written to the disk when it was used so often again; 0: when it is put.
  int64_t disk_after_hits = 0;
  // Tokens that the model computes in a second; 0: unknown, so whatever is there is loaded.
  double prefill_rate = 0;
  int64_t chunk_bytes = 8 << 20;  // of a transfer
  int copy_threads = 1;
  bool verifies_plans = false;  // for tests: each graph is verified before it runs
};

// How many blocks of a prefix each tier would deliver.
struct BlockCounts {
  int64_t host = 0, disk = 0, remote = 0;
  int64_t total() const { return host + disk + remote; }
};

// The rows of store_counters.def, and those of the tiers.
struct BlockStoreCounters {
#define STORE_COUNTER(field, name, text) int64_t field = 0;
#define STORE_RATE(field, name, text) double field = 0;
#include "graph/transfer/store_counters.def"

  backend::BlockFileCounters disk;
  backend::RemoteCounters remote;
};

class BlockStore;

// A prefix that is there. While it lives, its blocks are not evicted.
class BlockMatch {
 public:
  BlockMatch() = default;
  BlockMatch(BlockMatch&& other) noexcept;
  BlockMatch& operator=(BlockMatch&& other) noexcept;
  ~BlockMatch();

  int64_t tokens() const;
  const BlockCounts& counts() const { return counts_; }

 private:
  friend class BlockStore;
  BlockStore* store_ = nullptr;
  std::vector<uint32_t> path_;
  std::vector<Tier> held_in_;  // of each block
  BlockCounts counts_;
};

class BlockRequest {
 public:
  // Until the request is done: the tokens at the beginning of the request whose blocks were all
  // delivered. For a PUT, those that are in host memory now, or on the disk if it had no room.
  int64_t wait();
  // The same, and why it is not all; ok where it is.
  Status status();
  // Until a layer of all blocks is delivered. With a queue of the device, its later work waits
  // instead of the calling thread, as far as copies have begun.
  Status wait_for_layer(int32_t layer);
  Status wait_for_layer(int32_t layer, backend::Queue& queue);
  // Until the writes behind it are done, too.
  Status wait_completely();
  bool is_done() const;
  // Transfers that have not begun do not begin, unless another request waits for them.
  void cancel();
  // In the language of Graphviz.
  std::string dump() const;
  const TransferOpGraph& graph() const { return run_->graph(); }

 private:
  friend class BlockStore;
  // Transfers of another request that bring blocks of this one to a tier.
  struct Joined {
    std::shared_ptr<TransferRun> run;
    std::vector<uint32_t> ops;
    Tier tier;
    int64_t position;  // of the first of these blocks
    bool is_complete() const;
  };
  Status status_of_joined(Tier last) const;

  BlockStore* store_ = nullptr;
  std::shared_ptr<TransferRun> run_;
  std::vector<Joined> joined_;
  int64_t first_block_ = 0;
  int64_t end_ = 0;  // blocks that are transferred or there, from first_block_ on
  Status cut_, unwritten_;
};

struct GetOptions {
  int64_t first_block = 0;        // the caller has those before it
  int32_t layer_granularity = 0;  // layers of a transfer; 0: all
  // Blocks of the disk are read into the caller's memory itself, if it can be
  // (DeviceBlocks::is_direct), and host memory keeps no copy.
  bool past_host = false;
};

class BlockStore {
 public:
  // Errors: kUsage for the options, kStorage for the disk's folder, kResource for host memory.
  static Result<std::unique_ptr<BlockStore>> open(const BlockStoreOptions& options);
  ~BlockStore();

  const backend::BlockGeometry& geometry() const;

  // The longest known prefix, in whole blocks. `global`: also what the remote store has, which is
  // asked for, in at most its timeout.
  BlockMatch match(std::span<const int32_t> tokens, bool global = true);

  // Blocks of the match, from options.first_block on, into blocks[i] of `memory`: one for each.
  // Errors: kUsage.
  Result<std::shared_ptr<BlockRequest>> get(const BlockMatch& match, std::shared_ptr<DeviceBlocks> memory,
                                            std::span<const int64_t> blocks, const GetOptions& options = {});
  // Keys and values of the first whole blocks of `tokens`, blocks[i] for each. Later work of the
  // caller may overwrite them when wait() has returned. `after`: what computes them.
  Result<std::shared_ptr<BlockRequest>> put(std::span<const int32_t> tokens, std::shared_ptr<DeviceBlocks> memory,
                                            std::span<const int64_t> blocks, backend::Event* after = nullptr);
  // Brings blocks to host memory.
  Result<std::shared_ptr<BlockRequest>> prefetch(const BlockMatch& match);

  // Forgets all blocks here, as after new weights; the remote store's are left alone. Errors:
  // kUsage while there are matches.
  Status reset();
  // Until what was put is on the disk as durably as it can be.
  Status sync();
  void wait_idle();
  BlockStoreCounters counters() const;
  // The transfers that completed last, in the order in which their requests ended.
  static constexpr size_t kMostRecords = 8192;
  std::vector<TransferRecord> timeline() const;

 private:
  friend class BlockMatch;
  friend class BlockRequest;
  class Impl;
  explicit BlockStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hetero::graph
