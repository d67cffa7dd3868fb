#include "graph/transfer/block_store.h"

#include <algorithm>
#include <cassert>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "backend/memory/host_pool.h"
#include "backend/memory/range_allocator.h"
#include "graph/transfer/block_index.h"
#include "graph/transfer/tier_lanes.h"

namespace hetero::graph {
namespace {

using backend::BlockFile;
using backend::HostPool;
using backend::RemoteTier;
using backend::StoredBlock;

// Until a tier was measured, and for each of its transfers.
constexpr double kDiskSeconds = 1e-3;
constexpr double kRemoteSeconds = 2e-3;
constexpr int kRemoteThreads = 4;

// What a transfer graph does to the index when it ends.
struct Fill {
  std::vector<NodeId> nodes;
  Tier tier;
  std::vector<uint32_t> ops;  // all of them must complete
};
struct Pin {
  NodeId node;
  Tier tier;
};

// A block that another graph brings to a tier.
struct Join {
  NodeId node;
  Tier tier;
  int64_t position;
};

struct Plan {
  explicit Plan(Tier target) : graph(target) {}
  TransferOpGraph graph;
  std::vector<Fill> fills;
  std::vector<Pin> pins;
  std::vector<Join> joins;
  int64_t end = 0;  // blocks that are planned for
  uint64_t number = 0;
  Status cut;        // why these are not all
  Status unwritten;  // why not all go to the disk
};

// A transfer graph, and those of its ops that fill some blocks.
struct Filler {
  std::shared_ptr<TransferRun> run;
  std::vector<uint32_t> ops;
};

// Neighbouring blocks of a request that come the same way.
struct Fragment {
  Tier from;
  bool is_direct;    // from the disk past host memory
  int64_t position;  // in the request
  std::vector<NodeId> nodes;
  std::vector<int64_t> places;  // in host memory; none if it is direct
};

// `distinct`: they are written.
Status check_places(const DeviceBlocks& memory, std::span<const int64_t> blocks, bool distinct) {
  for (const int64_t block : blocks) {
    if (block < 0 || block >= memory.blocks) {
      return Status(ErrorClass::kUsage, "kv: block " + std::to_string(block) + " is not in the memory, which has " +
                                            std::to_string(memory.blocks));
    }
  }
  if (!distinct) return Status();
  std::vector<int64_t> sorted(blocks.begin(), blocks.end());
  std::ranges::sort(sorted);
  if (std::ranges::adjacent_find(sorted) == sorted.end()) return Status();
  return Status(ErrorClass::kUsage, "kv: two blocks have the same place");
}

}  // namespace

class BlockStore::Impl {
 public:
  Impl(const BlockStoreOptions& options, std::unique_ptr<HostPool> host, std::unique_ptr<RemoteTier> remote)
      : options_(options),
        geometry_(options.spec.geometry()),
        places_(options.host_bytes / geometry_.block_bytes()),
        host_(std::move(host)),
        free_places_(static_cast<uint64_t>(places_)),
        remote_(std::move(remote)),
        index_({.block_tokens = options.spec.block_tokens,
                .fingerprint = options.spec.fingerprint(),
                .policy = options.policy,
                .host_blocks = places_,
                .disk_blocks = std::max<int64_t>(1, options.disk_bytes / geometry_.block_bytes())}),
        device_lane_(geometry_, host_->data(), options.copy_threads) {
    scheduler_.set_lane(TransferType::kH2D, device_lane_);
    scheduler_.set_lane(TransferType::kD2H, device_lane_);
    if (remote_ == nullptr) return;
    remote_lane_.emplace(
        *remote_, geometry_, host_->data(), kRemoteThreads,
        [this](int64_t node) { return name_of(static_cast<NodeId>(node)); },
        [this](const std::vector<int64_t>& nodes) { report_missing(Tier::kRemote, nodes); });
    scheduler_.set_lane(TransferType::kRemote2H, *remote_lane_);
    // Some of its threads are left for those who wait for blocks.
    scheduler_.set_lane(TransferType::kH2Remote, *remote_lane_, {.most_operations = kRemoteThreads / 2});
  }

  Status open_disk();

  // ---- what the store's functions do

  void match(std::span<const int32_t> tokens, bool global, BlockMatch& match);
  void release(const BlockMatch& match);
  std::shared_ptr<BlockRequest> get(BlockStore& store, const std::vector<NodeId>& path,
                                    const std::shared_ptr<DeviceBlocks>& memory, std::span<const int64_t> blocks,
                                    const GetOptions& options);
  std::shared_ptr<BlockRequest> put(BlockStore& store, std::span<const int32_t> tokens,
                                    const std::shared_ptr<DeviceBlocks>& memory, std::span<const int64_t> blocks);
  Status reset();
  BlockStoreCounters counters() const;
  std::vector<TransferRecord> timeline() const;

  const BlockStoreOptions options_;
  const backend::BlockGeometry geometry_;

 private:
  friend class BlockStore;
  friend class BlockRequest;

  bool is_in(NodeId node, Tier tier) const {
    const BlockState state = index_.state(node, tier);
    return state == BlockState::kReady || (state == BlockState::kFilling && tier == Tier::kHost);
  }
  // Where a block comes from soonest; kDevice: from nowhere.
  Tier source_of(NodeId node) const {
    if (is_in(node, Tier::kHost)) return Tier::kHost;
    // It is being evicted.
    if (index_.state(node, Tier::kHost) != BlockState::kAbsent) return Tier::kDevice;
    if (file_ != nullptr && is_in(node, Tier::kDisk)) return Tier::kDisk;
    return remote_ != nullptr && is_in(node, Tier::kRemote) ? Tier::kRemote : Tier::kDevice;
  }
  std::span<const int32_t> block_of(std::span<const int32_t> tokens, size_t block) const {
    const auto count = static_cast<size_t>(geometry_.tokens);
    return tokens.subspan(block * count, count);
  }
  uint64_t bytes_of(size_t blocks, int32_t layers) const {
    return blocks * static_cast<uint64_t>(layers == 0 ? geometry_.pieces : layers) *
           static_cast<uint64_t>(geometry_.piece_bytes);
  }

  void pin(Plan& plan, NodeId node, Tier tier) {
    index_.pin(node, tier);
    plan.pins.push_back({node, tier});
  }
  void join(Plan& plan, NodeId node, Tier tier, int64_t position) {
    if (index_.state(node, tier) == BlockState::kFilling) plan.joins.push_back({node, tier, position});
  }
  static uint64_t filler_key(NodeId node, Tier tier) { return uint64_t{node} * kTiers + static_cast<uint64_t>(tier); }
  // Whether a block comes from the disk past host memory, if the caller wants that.
  bool is_read_past(NodeId node) const { return source_of(node) == Tier::kDisk; }
  void wait_for_room(std::unique_lock<std::mutex>& lock, int64_t count, bool past_host,
                     backend::FunctionRef<std::span<const NodeId>()> path_of);
  std::vector<int64_t> take_places(int64_t count);
  std::optional<int64_t> take_slot();
  void remove(NodeId node, Tier tier);
  void unpin(NodeId node, Tier tier);
  void drop(NodeId node, Tier tier);
  void doom(NodeId node, Tier tier);
  void sweep();
  std::shared_ptr<BlockRequest> enqueue(BlockStore& store, const std::shared_ptr<Plan>& plan,
                                        const std::shared_ptr<DeviceBlocks>& memory);
  void finish(Plan& plan, const TransferOpGraph& graph);
  void report_missing(Tier tier, const std::vector<int64_t>& blocks);
  StoredBlock name_of(NodeId node) const;
  StoredBlock name_of_slot(int64_t slot) const;

  void plan_get(Plan& plan, std::span<const NodeId> path, const DeviceBlocks* memory, std::span<const int64_t> blocks,
                const GetOptions& options);
  void plan_put(Plan& plan, std::span<const int32_t> tokens, std::vector<NodeId>& path, const DeviceBlocks& memory,
                std::span<const int64_t> blocks);
  bool is_worth(Tier tier, int64_t blocks) const;
  std::vector<Fragment> fragments_of(Plan& plan, std::span<const NodeId> path, const DeviceBlocks* memory,
                                     bool past_host);
  int64_t blocks_of_chunk(int32_t layers) const;
  void add_writes(Plan& plan, std::span<const NodeId> nodes, std::span<const int64_t> places, int64_t position,
                  std::span<const uint32_t> after, bool to_disk, bool to_remote);

  const int64_t places_;
  const std::unique_ptr<HostPool> host_;

  mutable std::mutex mutex_;  // guards what follows, up to the lanes
  backend::RangeAllocator free_places_;
  int64_t used_places_ = 0;
  std::unique_ptr<BlockFile> file_;
  std::unique_ptr<RemoteTier> remote_;
  BlockIndex index_;
  std::unordered_map<int64_t, NodeId> slots_;
  std::vector<Pin> doomed_;  // no one may use them any more; they go when no one holds them
  BlockStoreCounters counters_;
  std::vector<TransferRecord> records_;  // the latest, and up to as many older ones
  int64_t matches_ = 0;
  uint64_t next_request_ = 0;
  std::set<uint64_t> running_;  // requests
  // The graph that fills a block, by filler_key().
  std::unordered_map<uint64_t, std::shared_ptr<Filler>> fillers_;
  std::condition_variable finished_;

  DeviceLane device_lane_;
  std::optional<DiskLane> disk_lane_;
  std::optional<RemoteLane> remote_lane_;
  TransferScheduler scheduler_;  // its transfers end before anything else goes
};

// ---- places

// REQUIRES, for all functions of this part: mutex_.

// Until host memory has places for the blocks of a request that it lacks, or the requests that came
// before it have ended. Those that come later cannot keep it waiting. `path_of` finds its known
// blocks, of `count`; others may forget blocks meanwhile. What it found last is true at the end.
// `past_host`: blocks of the disk need no place.
void BlockStore::Impl::wait_for_room(std::unique_lock<std::mutex>& lock, int64_t count, bool past_host,
                                     backend::FunctionRef<std::span<const NodeId>()> path_of) {
  const uint64_t later = next_request_;
  finished_.wait(lock, [&] {
    const std::span<const NodeId> path = path_of();
    if (running_.empty() || *running_.begin() >= later) return true;
    int64_t lacking = count, own = 0;
    for (const NodeId node : path) {
      lacking -= is_in(node, Tier::kHost) || (past_host && is_read_past(node));
      own += index_.pins(node, Tier::kHost) > 0;
    }
    const int64_t needed = std::min(lacking, places_ - own);
    return places_ - index_.counts(Tier::kHost).pinned >= needed;
  });
}

// Runs where there are some, then what can be evicted: as many as there are.
std::vector<int64_t> BlockStore::Impl::take_places(int64_t count) {
  std::vector<int64_t> places;
  for (int64_t run = count; run > 0 && count > 0;) {
    const std::optional<uint64_t> first = free_places_.take(static_cast<uint64_t>(std::min(run, count)));
    if (!first.has_value()) {
      run /= 2;
      continue;
    }
    run = std::min(run, count);
    for (int64_t i = 0; i < run; ++i) places.push_back(static_cast<int64_t>(*first) + i);
    count -= run;
  }
  used_places_ += std::ssize(places);
  for (; count > 0; --count) {
    const NodeId victim = index_.evict(Tier::kHost);
    if (victim == BlockIndex::kNone) break;
    places.push_back(index_.place(victim, Tier::kHost));
    remove(victim, Tier::kHost);
    ++counters_.evicted_host;
  }
  std::ranges::sort(places);
  if (!places.empty()) host_->use_up_to(static_cast<size_t>((places.back() + 1) * geometry_.block_bytes()));
  return places;
}

std::optional<int64_t> BlockStore::Impl::take_slot() {
  if (std::optional<int64_t> slot = file_->take()) return slot;
  const NodeId victim = index_.evict(Tier::kDisk);
  if (victim == BlockIndex::kNone) return std::nullopt;
  drop(victim, Tier::kDisk);
  ++counters_.evicted_disk;
  return file_->take();
}

// Takes a block out of a tier. The index forgets blocks that only the remote store has: their
// number has no bound, and a match asks again.
void BlockStore::Impl::remove(NodeId node, Tier tier) {
  const Tier other = tier == Tier::kHost ? Tier::kDisk : Tier::kHost;
  const bool last = tier != Tier::kRemote && index_.state(node, Tier::kRemote) == BlockState::kReady &&
                    index_.pins(node, Tier::kRemote) == 0 && index_.state(node, other) == BlockState::kAbsent;
  index_.remove(node, tier);
  if (last) index_.remove(node, Tier::kRemote);
}

void BlockStore::Impl::unpin(NodeId node, Tier tier) {
  const bool last = tier == Tier::kRemote && index_.state(node, tier) == BlockState::kReady &&
                    index_.pins(node, tier) == 1 && index_.state(node, Tier::kHost) == BlockState::kAbsent &&
                    index_.state(node, Tier::kDisk) == BlockState::kAbsent;
  index_.unpin(node, tier);
  if (last) index_.remove(node, tier);
}

// Takes a block out of a tier, and gives its place back.
void BlockStore::Impl::drop(NodeId node, Tier tier) {
  const int64_t place = index_.place(node, tier);
  remove(node, tier);
  if (tier == Tier::kHost) {
    free_places_.give(static_cast<uint64_t>(place), 1);
    --used_places_;
  } else if (tier == Tier::kDisk) {
    slots_.erase(place);
    file_->erase(place);
  }
}

void BlockStore::Impl::doom(NodeId node, Tier tier) {
  const BlockState state = index_.state(node, tier);
  if (state == BlockState::kAbsent || state == BlockState::kEvicting) return;
  index_.set_evicting(node, tier);
  doomed_.push_back({node, tier});
}

void BlockStore::Impl::sweep() {
  // Dropping a block may let its parent's node go, but not that of another doomed block, which is
  // still somewhere.
  std::erase_if(doomed_, [&](const Pin& block) {
    if (index_.pins(block.node, block.tier) > 0) return false;
    drop(block.node, block.tier);
    return true;
  });
}

StoredBlock BlockStore::Impl::name_of(NodeId node) const {
  const std::lock_guard lock(mutex_);
  const std::span<const int32_t> tokens = index_.tokens(node);
  return {.slot = 0,
          .key = index_.key(node),
          .parent = index_.key(index_.parent(node)),
          .tokens = {tokens.begin(), tokens.end()}};
}

StoredBlock BlockStore::Impl::name_of_slot(int64_t slot) const {
  NodeId node;
  {
    const std::lock_guard lock(mutex_);
    node = slots_.at(slot);  // it is pinned
  }
  StoredBlock block = name_of(node);
  block.slot = slot;
  return block;
}

void BlockStore::Impl::report_missing(Tier tier, const std::vector<int64_t>& blocks) {
  const std::lock_guard lock(mutex_);
  for (const int64_t block : blocks) {
    if (tier == Tier::kRemote) {
      doom(static_cast<NodeId>(block), tier);
    } else if (const auto found = slots_.find(block); found != slots_.end()) {
      doom(found->second, tier);
    }
  }
}

// ---- opening

Status BlockStore::Impl::open_disk() {
  std::unordered_map<BlockKey, NodeId, backend::BlockKeyHash> known{{options_.spec.fingerprint(), BlockIndex::kRoot}};
  backend::BlockFileOptions options;
  options.folder = options_.disk_folder;
  options.geometry = geometry_;
  options.fingerprint = options_.spec.fingerprint();
  options.description = options_.spec.describe();
  options.most_bytes = options_.disk_bytes;
  options.durability = options_.durability;
  options.engine = options_.engine;
  options.memory = {host_->data(), static_cast<size_t>(places_ * geometry_.block_bytes())};
  std::vector<int64_t> unknown;
  Result<std::unique_ptr<BlockFile>> file = BlockFile::open(options, [&](const StoredBlock& block) {
    const auto parent = known.find(block.parent);
    if (parent == known.end() || std::ssize(block.tokens) != geometry_.tokens) return unknown.push_back(block.slot);
    const NodeId node = index_.insert(parent->second, block.tokens);
    if (index_.key(node) != block.key || index_.state(node, Tier::kDisk) != BlockState::kAbsent) {
      return unknown.push_back(block.slot);
    }
    known.emplace(block.key, node);
    index_.begin_fill(node, Tier::kDisk, block.slot);
    index_.finish_fill(node, Tier::kDisk);
    slots_.emplace(block.slot, node);
  });
  if (!file.ok()) return file.status();
  file_ = std::move(file.value());
  for (const int64_t slot : unknown) file_->erase(slot);
  disk_lane_.emplace(
      *file_, geometry_, host_->data(), device_lane_, [this](int64_t slot) { return name_of_slot(slot); },
      [this](const std::vector<int64_t>& slots) { report_missing(Tier::kDisk, slots); });
  for (const TransferType type :
       {TransferType::kDisk2H, TransferType::kH2Disk, TransferType::kDisk2D, TransferType::kD2Disk}) {
    scheduler_.set_lane(type, *disk_lane_);
  }
  return Status();
}

// ---- matching

void BlockStore::Impl::match(std::span<const int32_t> tokens, bool global, BlockMatch& match) {
  const auto hold = [&](NodeId node, Tier tier) {
    index_.pin(node, tier);
    match.held_in_.push_back(tier);
    BlockCounts& counts = match.counts_;
    ++(tier == Tier::kHost ? counts.host : tier == Tier::kDisk ? counts.disk : counts.remote);
  };
  std::vector<BlockKey> keys;  // of what is not here
  {
    const size_t most = tokens.size() / static_cast<size_t>(geometry_.tokens);
    match.path_.reserve(most);
    match.held_in_.reserve(most);
    const std::lock_guard lock(mutex_);
    ++matches_;
    index_.match(tokens, match.path_);
    for (const NodeId node : match.path_) {
      const Tier tier = source_of(node);
      if (tier == Tier::kDevice || (tier == Tier::kRemote && !global)) break;
      hold(node, tier);
    }
    match.path_.resize(match.held_in_.size());
    index_.touch(match.path_);
    if (!global || remote_ == nullptr) return;
    BlockKey key = index_.key(match.path_.empty() ? BlockIndex::kRoot : match.path_.back());
    const size_t blocks = tokens.size() / static_cast<size_t>(geometry_.tokens);
    for (size_t i = match.path_.size(); i < blocks; ++i) {
      key = backend::chain_key(key, block_of(tokens, i));
      keys.push_back(key);
    }
  }
  if (keys.empty()) return;
  const Result<int64_t> found = remote_->match(keys);
  if (!found.ok()) return;
  const std::lock_guard lock(mutex_);
  for (int64_t i = 0; i < found.value(); ++i) {
    const NodeId parent = match.path_.empty() ? BlockIndex::kRoot : match.path_.back();
    const NodeId node = index_.insert(parent, block_of(tokens, match.path_.size()));
    if (index_.state(node, Tier::kRemote) == BlockState::kAbsent) {
      index_.begin_fill(node, Tier::kRemote, node);
      index_.finish_fill(node, Tier::kRemote);
    }
    const Tier tier = source_of(node);
    if (tier == Tier::kDevice) break;
    match.path_.push_back(node);
    hold(node, tier);
  }
}

void BlockStore::Impl::release(const BlockMatch& match) {
  const std::lock_guard lock(mutex_);
  --matches_;
  for (size_t i = 0; i < match.path_.size(); ++i) unpin(match.path_[i], match.held_in_[i]);
  sweep();
}

// ---- planning

bool BlockStore::Impl::is_worth(Tier tier, int64_t blocks) const {
  if (options_.prefill_rate <= 0) return true;
  const bool disk = tier == Tier::kDisk;
  const double bandwidth = disk ? disk_lane_->reads().bandwidth() : remote_lane_->reads().bandwidth();
  if (bandwidth <= 0) return true;  // it is measured by this one
  const double load = static_cast<double>(blocks * geometry_.pieces * geometry_.piece_bytes) / bandwidth +
                      (disk ? kDiskSeconds : kRemoteSeconds);
  return load < static_cast<double>(blocks * geometry_.tokens) / options_.prefill_rate;
}

int64_t BlockStore::Impl::blocks_of_chunk(int32_t layers) const {
  return std::max<int64_t>(1, options_.chunk_bytes / static_cast<int64_t>(bytes_of(1, layers)));
}

// 1. Blocks in host memory are held, so that no other takes their places.
// 2. Places are taken for the others, as far as there are some and loading is worth it.
// 3. Blocks of the disk without a place are read past host memory, if the caller's can have them.
std::vector<Fragment> BlockStore::Impl::fragments_of(Plan& plan, std::span<const NodeId> path,
                                                     const DeviceBlocks* memory, bool past_host) {
  const bool may_be_direct = memory != nullptr && memory->is_direct();
  past_host = past_host && may_be_direct;
  std::vector<Tier> from;
  for (const NodeId node : path) {
    const Tier tier = source_of(node);
    if (tier == Tier::kDevice) break;
    from.push_back(tier);
    pin(plan, node, tier);
  }
  for (size_t i = 0; i < from.size();) {
    size_t end = i;
    while (end < from.size() && from[end] == from[i]) ++end;
    if (from[i] != Tier::kHost && !is_worth(from[i], static_cast<int64_t>(end - i))) {
      counters_.not_worth += static_cast<int64_t>(from.size() - i);
      plan.cut = Status(ErrorClass::kCancelled, "kv: computing the other blocks is expected to be faster");
      from.resize(i);
    }
    i = end;
  }
  const auto needs_place = [&](Tier tier) { return tier != Tier::kHost && !(past_host && tier == Tier::kDisk); };
  const std::vector<int64_t> taken = take_places(std::ranges::count_if(from, needs_place));
  size_t next = 0;
  std::vector<Fragment> fragments;
  for (size_t i = 0; i < from.size(); ++i) {
    const bool lacks_place = needs_place(from[i]) && next == taken.size();
    const bool is_direct = from[i] == Tier::kDisk && may_be_direct && (past_host || lacks_place);
    if (lacks_place && !is_direct) {
      counters_.no_room += static_cast<int64_t>(from.size() - i);
      plan.cut = Status(ErrorClass::kResource, "kv: host memory has no room for the other blocks");
      break;
    }
    const int64_t place = is_direct ? -1 : from[i] == Tier::kHost ? index_.place(path[i], Tier::kHost) : taken[next++];
    if (is_direct) {
      ++counters_.read_past_host;
    } else if (from[i] == Tier::kHost) {
      // An upload waits for its data itself.
      if (plan.graph.target() == Tier::kHost) join(plan, path[i], Tier::kHost, plan.end);
    } else {
      index_.begin_fill(path[i], Tier::kHost, place);
      pin(plan, path[i], Tier::kHost);
    }
    if (fragments.empty() || fragments.back().from != from[i] || fragments.back().is_direct != is_direct) {
      fragments.push_back({from[i], is_direct, plan.end, {}, {}});
    }
    fragments.back().nodes.push_back(path[i]);
    fragments.back().places.push_back(place);
    ++plan.end;
    ++(from[i] == Tier::kHost   ? counters_.from_host
       : from[i] == Tier::kDisk ? counters_.from_disk
                                : counters_.from_remote);
  }
  return fragments;
}

// Writes to the disk and the remote store, after `after` of the same graph, for which no one waits.
void BlockStore::Impl::add_writes(Plan& plan, std::span<const NodeId> nodes, std::span<const int64_t> places,
                                  int64_t position, std::span<const uint32_t> after, bool to_disk, bool to_remote) {
  for (const Tier tier : {Tier::kDisk, Tier::kRemote}) {
    if (tier == Tier::kDisk ? !to_disk || file_ == nullptr : !to_remote || remote_ == nullptr) continue;
    TransferOp op{.type = tier == Tier::kDisk ? TransferType::kH2Disk : TransferType::kH2Remote};
    Fill fill{{}, tier, {}};
    // Nothing is evicted for a disk that failed.
    const bool failed = tier == Tier::kDisk && file_->counters().quarantined;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (index_.state(nodes[i], tier) != BlockState::kAbsent) {
        join(plan, nodes[i], tier, position + static_cast<int64_t>(i));
        continue;
      }
      std::optional<int64_t> there = nodes[i];
      if (tier == Tier::kDisk) there = failed ? std::nullopt : take_slot();
      if (!there.has_value()) {
        plan.unwritten = Status(ErrorClass::kStorage, "kv: the disk failed, or has no room for all blocks");
        break;
      }
      index_.begin_fill(nodes[i], tier, *there);
      pin(plan, nodes[i], tier);
      if (tier == Tier::kDisk) slots_[*there] = nodes[i];
      append_block(op.source, places[i]);
      append_block(op.destination, *there);
      fill.nodes.push_back(nodes[i]);
    }
    if (fill.nodes.empty()) continue;
    op.position = position;
    op.bytes = bytes_of(fill.nodes.size(), 0);
    op.priority = TransferPriority::kPut;
    op.is_awaited = false;
    const uint32_t id = plan.graph.add_op(std::move(op));
    for (const uint32_t before : after) plan.graph.add_dependency(before, id);
    fill.ops.push_back(id);
    plan.fills.push_back(std::move(fill));
  }
}

void BlockStore::Impl::plan_get(Plan& plan, std::span<const NodeId> path, const DeviceBlocks* memory,
                                std::span<const int64_t> blocks, const GetOptions& options) {
  counters_.asked += std::ssize(path);
  const std::vector<Fragment> fragments = fragments_of(plan, path, memory, options.past_host);
  const int32_t layer_granularity = options.layer_granularity;
  const auto layers = static_cast<int32_t>(geometry_.pieces);
  const int32_t step = layer_granularity == 0 ? layers : layer_granularity;
  // Layers of blocks that are there need no pieces: each copy costs the link's latency.
  const auto chunk_of = [&](const Fragment& fragment) {
    if (fragment.from == Tier::kHost && layer_granularity != 0) return fragment.nodes.size();
    // Remote values are whole blocks.
    if (fragment.from == Tier::kRemote) return static_cast<size_t>(blocks_of_chunk(0));
    return static_cast<size_t>(blocks_of_chunk(layer_granularity));
  };
  // The first layers of all blocks come first. `written` are the transfers that fill a chunk.
  std::unordered_map<int64_t, std::vector<uint32_t>> written;
  for (int32_t layer = 0; layer < layers; layer += step) {
    const int32_t granularity = layer_granularity == 0 ? 0 : std::min(step, layers - layer);
    for (const Fragment& fragment : fragments) {
      const size_t chunk = chunk_of(fragment);
      for (size_t begin = 0; begin < fragment.nodes.size(); begin += chunk) {
        const size_t end = std::min(begin + chunk, fragment.nodes.size());
        const int64_t position = fragment.position + static_cast<int64_t>(begin);
        TransferOp up{.type = TransferType::kH2D};
        TransferOp read{.type = fragment.is_direct             ? TransferType::kDisk2D
                                : fragment.from == Tier::kDisk ? TransferType::kDisk2H
                                                               : TransferType::kRemote2H};
        for (size_t i = begin; i < end; ++i) {
          append_block(up.source, fragment.places[i]);
          append_block(read.destination, fragment.places[i]);
          if (fragment.from != Tier::kHost) append_block(read.source, index_.place(fragment.nodes[i], fragment.from));
          if (memory != nullptr) {
            append_block(up.destination, memory->base + blocks[static_cast<size_t>(fragment.position) + i]);
          }
        }
        if (fragment.is_direct) read.destination = up.destination;
        for (TransferOp* const op : {&up, &read}) {
          op->position = position;
          op->layer_id = layer;
          op->layer_granularity = granularity;
          op->bytes = bytes_of(end - begin, granularity);
          op->priority = memory == nullptr ? TransferPriority::kPrefetch : TransferPriority::kGet;
        }
        std::optional<uint32_t> source;
        // A remote value comes as a whole, with the first layers.
        if (fragment.from == Tier::kDisk || (fragment.from == Tier::kRemote && layer == 0)) {
          if (fragment.from == Tier::kRemote) {
            read.layer_id = read.layer_granularity = 0;
            read.bytes = bytes_of(end - begin, 0);
          }
          source = plan.graph.add_op(std::move(read));
          written[position].push_back(*source);
        } else if (fragment.from == Tier::kRemote) {
          source = written[position].front();
        }
        if (memory != nullptr && !fragment.is_direct) {
          const uint32_t upload = plan.graph.add_op(std::move(up));
          if (source.has_value()) plan.graph.add_dependency(*source, upload);
        }
      }
    }
  }
  for (const Fragment& fragment : fragments) {
    if (fragment.is_direct) continue;
    const size_t chunk = chunk_of(fragment);
    for (size_t begin = 0; begin < fragment.nodes.size(); begin += chunk) {
      const size_t end = std::min(begin + chunk, fragment.nodes.size());
      const int64_t position = fragment.position + static_cast<int64_t>(begin);
      const std::span nodes = std::span(fragment.nodes).subspan(begin, end - begin);
      const std::span places = std::span(fragment.places).subspan(begin, end - begin);
      if (fragment.from != Tier::kHost) {
        plan.fills.push_back({{nodes.begin(), nodes.end()}, Tier::kHost, written[position]});
      }
      if (fragment.from == Tier::kRemote) {
        add_writes(plan, nodes, places, position, written[position], true, false);
      } else if (fragment.from == Tier::kHost && options_.disk_after_hits > 0) {
        for (size_t i = 0; i < nodes.size(); ++i) {
          if (index_.hits(nodes[i]) <= options_.disk_after_hits) continue;  // putting it was one
          add_writes(plan, nodes.subspan(i, 1), places.subspan(i, 1), position + static_cast<int64_t>(i), {}, true,
                     false);
        }
      }
    }
  }
}

// `path`: the known blocks of the whole blocks in `tokens`; those that are made are appended.
void BlockStore::Impl::plan_put(Plan& plan, std::span<const int32_t> tokens, std::vector<NodeId>& path,
                                const DeviceBlocks& memory, std::span<const int64_t> blocks) {
  const size_t count = tokens.size() / static_cast<size_t>(geometry_.tokens);
  for (const NodeId node : path) {
    if (is_in(node, Tier::kHost)) pin(plan, node, Tier::kHost);
  }
  // Those that are nowhere are not forgotten while others are evicted. The remote tier evicts none.
  if (!path.empty()) pin(plan, path.back(), Tier::kRemote);
  int64_t needed = static_cast<int64_t>(count - path.size());
  for (const NodeId node : path) needed += index_.state(node, Tier::kHost) == BlockState::kAbsent;
  const std::vector<int64_t> taken = take_places(needed);
  size_t next = 0;
  const auto chunk = static_cast<size_t>(blocks_of_chunk(0));
  std::vector<NodeId> nodes;     // of a chunk, all of them,
  std::vector<int64_t> places;   // and where they are in host memory
  std::vector<uint32_t> copies;  // transfers that bring some
  const TransferOp empty{.type = TransferType::kD2H, .priority = TransferPriority::kPut};
  TransferOp down = empty;
  Fill fill{{}, Tier::kHost, {}};
  // Blocks that go to the disk past host memory.
  const TransferOp empty_past{.type = TransferType::kD2Disk, .priority = TransferPriority::kPut};
  TransferOp past = empty_past;
  Fill past_fill{{}, Tier::kDisk, {}};
  const auto flush_copy = [&] {
    if (fill.nodes.empty()) return;
    down.bytes = bytes_of(fill.nodes.size(), 0);
    const uint32_t id = plan.graph.add_op(std::exchange(down, empty));
    fill.ops = {id};
    copies.push_back(id);
    plan.fills.push_back(std::exchange(fill, Fill{{}, Tier::kHost, {}}));
  };
  const auto flush = [&] {
    flush_copy();
    if (nodes.empty()) return;
    const bool to_disk = options_.disk_after_hits == 0;
    add_writes(plan, nodes, places, plan.end - std::ssize(nodes), copies, to_disk, true);
    nodes.clear();
    places.clear();
    copies.clear();
  };
  const auto flush_past = [&] {
    if (past_fill.nodes.empty()) return;
    past.bytes = bytes_of(past_fill.nodes.size(), 0);
    past_fill.ops = {plan.graph.add_op(std::exchange(past, empty_past))};
    plan.fills.push_back(std::exchange(past_fill, Fill{{}, Tier::kDisk, {}}));
  };
  const bool may_go_past = file_ != nullptr && options_.disk_after_hits == 0 && memory.is_direct();
  // Whether the disk has the block, or will have it by way of this request.
  const auto goes_past = [&](NodeId& node, size_t i) {
    if (!may_go_past) return false;
    const BlockState there = node == BlockIndex::kNone ? BlockState::kAbsent : index_.state(node, Tier::kDisk);
    if (there == BlockState::kReady) {
      pin(plan, node, Tier::kDisk);
      flush_past();  // a transfer's blocks are neighbours in the request
      return true;
    }
    const std::optional<int64_t> slot =
        there != BlockState::kAbsent || file_->counters().quarantined ? std::nullopt : take_slot();
    if (!slot.has_value()) return false;
    if (node == BlockIndex::kNone) {
      node = index_.insert(i == 0 ? BlockIndex::kRoot : path[i - 1], block_of(tokens, i));
      path.push_back(node);
    }
    index_.begin_fill(node, Tier::kDisk, *slot);
    pin(plan, node, Tier::kDisk);
    slots_[*slot] = node;
    if (past_fill.nodes.empty()) past.position = static_cast<int64_t>(i);
    append_block(past.source, memory.base + blocks[i]);
    append_block(past.destination, *slot);
    past_fill.nodes.push_back(node);
    ++counters_.stored;
    ++counters_.written_past_host;
    if (remote_ != nullptr && index_.state(node, Tier::kRemote) == BlockState::kAbsent) {
      plan.unwritten = Status(ErrorClass::kResource, "kv: host memory has no room for what the remote store lacks");
    }
    if (past_fill.nodes.size() == chunk) flush_past();
    return true;
  };
  for (size_t i = 0; i < count; ++i) {
    NodeId node = i < path.size() ? path[i] : BlockIndex::kNone;
    const bool is_here = node != BlockIndex::kNone && is_in(node, Tier::kHost);
    if (!is_here) {
      const bool is_going = node != BlockIndex::kNone && index_.state(node, Tier::kHost) != BlockState::kAbsent;
      if (!is_going && next == taken.size()) {
        flush();
        if (goes_past(node, i)) {
          ++plan.end;
          continue;
        }
      }
      flush_past();
      if (is_going || next == taken.size()) {
        counters_.no_room += static_cast<int64_t>(count - i);
        plan.cut = Status(ErrorClass::kResource, "kv: host memory has no room for the other blocks");
        break;
      }
      if (node == BlockIndex::kNone) {
        node = index_.insert(i == 0 ? BlockIndex::kRoot : path[i - 1], block_of(tokens, i));
        path.push_back(node);
      }
      index_.begin_fill(node, Tier::kHost, taken[next++]);
      pin(plan, node, Tier::kHost);
      if (fill.nodes.empty()) down.position = static_cast<int64_t>(i);
      append_block(down.source, memory.base + blocks[i]);
      append_block(down.destination, index_.place(node, Tier::kHost));
      fill.nodes.push_back(node);
      ++counters_.stored;
    } else {
      flush_past();
      join(plan, node, Tier::kHost, plan.end);
      flush_copy();  // a transfer's blocks are neighbours in the request
    }
    nodes.push_back(node);
    places.push_back(index_.place(node, Tier::kHost));
    ++plan.end;
    if (nodes.size() == chunk) flush();
  }
  flush();
  flush_past();
  for (; next < taken.size(); ++next) {
    free_places_.give(static_cast<uint64_t>(taken[next]), 1);
    --used_places_;
  }
  index_.touch(std::span(path).first(static_cast<size_t>(plan.end)));
}

// ---- running

// Planning and taking a place in the order of graphs are one step for finish(). So a plan that
// counts on another graph's data waits for it, and is cancelled with it. REQUIRES: mutex_.
std::shared_ptr<BlockRequest> BlockStore::Impl::enqueue(BlockStore& store, const std::shared_ptr<Plan>& plan,
                                                        const std::shared_ptr<DeviceBlocks>& memory) {
  assert(!options_.verifies_plans || plan->graph.verify().ok());
  auto request = std::make_shared<BlockRequest>();
  request->store_ = &store;
  request->end_ = plan->end;
  request->cut_ = plan->cut;
  request->unwritten_ = plan->unwritten;
  plan->number = next_request_++;
  running_.insert(plan->number);
  request->run_ = scheduler_.enqueue(std::move(plan->graph),
                                     [this, plan, memory](const TransferOpGraph& graph) { finish(*plan, graph); });
  std::shared_ptr<Filler> last;
  for (const Join& block : plan->joins) {
    const auto found = fillers_.find(filler_key(block.node, block.tier));
    if (found == fillers_.end() || found->second == last) continue;
    last = found->second;
    for (const uint32_t op : last->ops) scheduler_.keep(*last->run, op);
    request->joined_.push_back({last->run, last->ops, block.tier, block.position});
  }
  for (const Fill& fill : plan->fills) {
    const auto filler = std::make_shared<Filler>(Filler{request->run_, fill.ops});
    for (const NodeId node : fill.nodes) fillers_[filler_key(node, fill.tier)] = filler;
  }
  return request;
}

std::shared_ptr<BlockRequest> BlockStore::Impl::get(BlockStore& store, const std::vector<NodeId>& path,
                                                    const std::shared_ptr<DeviceBlocks>& memory,
                                                    std::span<const int64_t> blocks, const GetOptions& options) {
  const auto plan = std::make_shared<Plan>(memory == nullptr ? Tier::kHost : Tier::kDevice);
  std::unique_lock lock(mutex_);
  ++(memory == nullptr ? counters_.prefetches : counters_.gets);
  const std::span<const NodeId> asked = std::span(path).subspan(static_cast<size_t>(options.first_block));
  const bool past_host = options.past_host && memory != nullptr && memory->is_direct();
  wait_for_room(lock, std::ssize(asked), past_host, [&] { return asked; });
  plan_get(*plan, asked, memory.get(), blocks, options);
  std::shared_ptr<BlockRequest> request = enqueue(store, plan, memory);
  lock.unlock();
  request->first_block_ = options.first_block;
  scheduler_.start(*request->run_);
  return request;
}

std::shared_ptr<BlockRequest> BlockStore::Impl::put(BlockStore& store, std::span<const int32_t> tokens,
                                                    const std::shared_ptr<DeviceBlocks>& memory,
                                                    std::span<const int64_t> blocks) {
  const auto plan = std::make_shared<Plan>(Tier::kHost);
  std::unique_lock lock(mutex_);
  ++counters_.puts;
  const size_t count = std::min(blocks.size(), tokens.size() / static_cast<size_t>(geometry_.tokens));
  const std::span<const int32_t> whole = tokens.first(count * static_cast<size_t>(geometry_.tokens));
  std::vector<NodeId> path;
  path.reserve(count);
  wait_for_room(lock, static_cast<int64_t>(count), false, [&] {
    path.clear();
    index_.match(whole, path);
    return std::span<const NodeId>(path);
  });
  plan_put(*plan, whole, path, *memory, blocks);
  std::shared_ptr<BlockRequest> request = enqueue(store, plan, memory);
  lock.unlock();
  scheduler_.start(*request->run_);
  return request;
}

void BlockStore::Impl::finish(Plan& plan, const TransferOpGraph& graph) {
  const std::lock_guard lock(mutex_);
  for (const TransferOp& op : graph.ops()) {
    counters_.failed += op.state == TransferState::kFailed;
    counters_.cancelled += op.state == TransferState::kCancelled;
  }
  append_records(records_, graph.ops());
  if (records_.size() > 2 * kMostRecords) records_.erase(records_.begin(), records_.end() - kMostRecords);
  for (const Fill& fill : plan.fills) {
    const bool is_complete =
        std::ranges::all_of(fill.ops, [&](uint32_t id) { return graph.ops()[id].state == TransferState::kCompleted; });
    for (const NodeId node : fill.nodes) {
      fillers_.erase(filler_key(node, fill.tier));
      if (is_complete && index_.state(node, fill.tier) == BlockState::kFilling) {
        index_.finish_fill(node, fill.tier);
      } else {
        doom(node, fill.tier);
      }
    }
  }
  for (const Pin& block : plan.pins) unpin(block.node, block.tier);
  sweep();
  running_.erase(plan.number);
  finished_.notify_all();
  if (!graph.ops().empty()) device_lane_.forget(graph.ops().front().graph_id);
}

Status BlockStore::Impl::reset() {
  std::unique_lock lock(mutex_);
  // Requests may come in between.
  while (matches_ == 0 && !running_.empty()) {
    lock.unlock();
    scheduler_.wait_idle();
    lock.lock();
  }
  if (matches_ > 0) return Status(ErrorClass::kUsage, "kv: the store cannot be reset while there are matches");
  for (const auto& [slot, node] : slots_) file_->erase(slot);
  slots_.clear();
  doomed_.clear();
  index_.clear();
  free_places_ = backend::RangeAllocator(static_cast<uint64_t>(places_));
  used_places_ = 0;
  return Status();
}

std::vector<TransferRecord> BlockStore::Impl::timeline() const {
  const std::lock_guard lock(mutex_);
  return {records_.end() - static_cast<ptrdiff_t>(std::min(records_.size(), kMostRecords)), records_.end()};
}

BlockStoreCounters BlockStore::Impl::counters() const {
  const std::lock_guard lock(mutex_);
  BlockStoreCounters counters = counters_;
  counters.joined = scheduler_.counters().joined;
  counters.host_blocks = places_;
  counters.host_used = used_places_;
  counters.pinned = index_.counts(Tier::kHost).pinned;
  counters.copies = device_lane_.copies();
  counters.gathers = device_lane_.gathers();
  counters.scatters = device_lane_.scatters();
  if (file_ != nullptr) {
    counters.disk = file_->counters();
    counters.disk_bandwidth = disk_lane_->reads().bandwidth();
  }
  if (remote_ != nullptr) {
    counters.remote = remote_->counters();
    counters.remote_bandwidth = remote_lane_->reads().bandwidth();
  }
  return counters;
}

// ---- matches and requests

BlockMatch::BlockMatch(BlockMatch&& other) noexcept { *this = std::move(other); }

BlockMatch& BlockMatch::operator=(BlockMatch&& other) noexcept {
  std::swap(store_, other.store_);
  std::swap(path_, other.path_);
  std::swap(held_in_, other.held_in_);
  std::swap(counts_, other.counts_);
  return *this;
}

BlockMatch::~BlockMatch() {
  if (store_ != nullptr) store_->impl_->release(*this);
}

int64_t BlockMatch::tokens() const { return store_ == nullptr ? 0 : counts_.total() * store_->geometry().tokens; }

int64_t BlockRequest::wait() {
  static_cast<void>(run_->wait());
  // Its blocks are free again, unless some are being written.
  const std::vector<TransferOp>& ops = run_->graph().ops();
  if (std::ranges::all_of(ops, [](const TransferOp& op) { return op.is_awaited; })) {
    static_cast<void>(run_->wait_completely());
  }
  int64_t blocks = end_;
  for (const TransferOp& op : ops) {
    if (!run_->graph().delivers(op) || state_of(op) == TransferState::kCompleted) continue;
    blocks = std::min(blocks, op.position);
  }
  for (const Joined& other : joined_) {
    if (other.tier != run_->graph().target()) continue;
    static_cast<void>(other.run->wait());
    if (!other.is_complete()) blocks = std::min(blocks, other.position);
  }
  return (first_block_ + blocks) * store_->geometry().tokens;
}

bool BlockRequest::Joined::is_complete() const {
  return std::ranges::all_of(
      ops, [&](uint32_t op) { return state_of(run->graph().ops()[op]) == TransferState::kCompleted; });
}

// Waits for the transfers of others into the tiers up to `last`.
Status BlockRequest::status_of_joined(Tier last) const {
  for (const Joined& other : joined_) {
    if (other.tier > last) continue;
    Status status = other.tier == Tier::kHost ? other.run->wait() : other.run->wait_completely();
    if (other.is_complete()) continue;
    return status.ok() ? Status(ErrorClass::kCancelled, "the transfers were cancelled") : status;
  }
  return Status();
}

Status BlockRequest::status() {
  Status status = run_->wait();
  if (status.ok()) status = status_of_joined(Tier::kHost);
  return status.ok() ? cut_ : status;
}

Status BlockRequest::wait_for_layer(int32_t layer) {
  if (layer < 0 || layer >= store_->geometry().pieces) {
    return Status(ErrorClass::kUsage, "kv: there is no layer " + std::to_string(layer));
  }
  Status status = run_->wait_for_layer(layer);
  return status.ok() ? status_of_joined(Tier::kHost) : status;
}

Status BlockRequest::wait_for_layer(int32_t layer, backend::Queue& queue) {
  for (const TransferOp& op : run_->graph().ops()) {
    if (destination_tier(op.type) != Tier::kDevice) continue;
    if (op.layer_granularity != 0 && (layer < op.layer_id || layer >= op.layer_id + op.layer_granularity)) continue;
    const std::shared_ptr<backend::Event> event = store_->impl_->device_lane_.event_of(op);
    if (event == nullptr) return wait_for_layer(layer);
    if (Status status = queue.wait(*event); !status.ok()) return status;
  }
  return Status();
}

Status BlockRequest::wait_completely() {
  Status status = run_->wait_completely();
  if (status.ok()) status = status_of_joined(Tier::kRemote);
  if (status.ok()) status = cut_;
  return status.ok() ? unwritten_ : status;
}

bool BlockRequest::is_done() const {
  return run_->is_done() && std::ranges::all_of(joined_, [](const Joined& other) {
           return other.tier != Tier::kHost || other.run->is_done();
         });
}

void BlockRequest::cancel() { store_->impl_->scheduler_.cancel(*run_); }
std::string BlockRequest::dump() const { return run_->graph().dump(); }

// ---- the store

BlockStore::BlockStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
BlockStore::~BlockStore() = default;

Result<std::unique_ptr<BlockStore>> BlockStore::open(const BlockStoreOptions& options) {
  if (Status status = options.spec.check(); !status.ok()) return status;
  const backend::BlockGeometry geometry = options.spec.geometry();
  const int64_t blocks = options.host_bytes / geometry.block_bytes();
  if (blocks < 1) {
    return Status(ErrorClass::kUsage,
                  "kv: host_bytes must be at least one block, " + std::to_string(geometry.block_bytes()) + " bytes");
  }
  if (options.chunk_bytes < 1 || options.copy_threads < 1 || options.disk_after_hits < 0) {
    return Status(ErrorClass::kUsage, "kv: chunk_bytes and copy_threads must be positive");
  }
  if (std::ranges::find(eviction_policies(), options.policy) == eviction_policies().end()) {
    return Status(ErrorClass::kUsage, "kv: there is no eviction policy " + options.policy);
  }
  auto host = std::make_unique<HostPool>(static_cast<size_t>(blocks * geometry.block_bytes()),
                                         static_cast<size_t>(geometry.block_bytes()), !options.disk_folder.empty());
  if (host->data() == nullptr) return Status(ErrorClass::kResource, "kv: the system has no memory for host_bytes");
  std::unique_ptr<RemoteTier> remote;
  if (!options.remote.empty()) {
    backend::RemoteOptions remote_options;
    remote_options.geometry = geometry;
    remote_options.fingerprint = options.spec.fingerprint();
    remote_options.timeout_seconds = options.remote_timeout_seconds;
    remote_options.codec = options.remote_codec;
    Result<std::unique_ptr<RemoteTier>> opened = backend::open_remote(options.remote, remote_options);
    if (!opened.ok()) return opened.status();
    remote = std::move(opened.value());
  }
  auto impl = std::make_unique<Impl>(options, std::move(host), std::move(remote));
  if (!options.disk_folder.empty()) {
    if (Status status = impl->open_disk(); !status.ok()) return status;
  }
  return std::unique_ptr<BlockStore>(new BlockStore(std::move(impl)));
}

const backend::BlockGeometry& BlockStore::geometry() const { return impl_->geometry_; }

BlockMatch BlockStore::match(std::span<const int32_t> tokens, bool global) {
  BlockMatch match;
  match.store_ = this;
  impl_->match(tokens, global, match);
  return match;
}

Result<std::shared_ptr<BlockRequest>> BlockStore::get(const BlockMatch& match, std::shared_ptr<DeviceBlocks> memory,
                                                      std::span<const int64_t> blocks, const GetOptions& options) {
  const auto wrong = [](const char* what) { return Status(ErrorClass::kUsage, std::string("kv: ") + what); };
  if (match.store_ != this) return wrong("the match is of another store");
  if (memory == nullptr) return wrong("there is no memory for the blocks");
  if (Status status = memory->check(impl_->geometry_); !status.ok()) return status;
  const int64_t known = std::ssize(match.path_);
  if (options.first_block < 0 || options.first_block > known) return wrong("first_block is not in the match");
  if (options.layer_granularity < 0 || options.layer_granularity > impl_->geometry_.pieces) {
    return wrong("layer_granularity must be between 0 and the number of layers");
  }
  if (std::ssize(blocks) != known - options.first_block) return wrong("there must be a place for each block");
  if (Status status = check_places(*memory, blocks, true); !status.ok()) return status;
  impl_->device_lane_.add(memory);
  return impl_->get(*this, match.path_, memory, blocks, options);
}

Result<std::shared_ptr<BlockRequest>> BlockStore::put(std::span<const int32_t> tokens,
                                                      std::shared_ptr<DeviceBlocks> memory,
                                                      std::span<const int64_t> blocks, backend::Event* after) {
  if (memory == nullptr) return Status(ErrorClass::kUsage, "kv: there is no memory with the blocks");
  if (Status status = memory->check(impl_->geometry_); !status.ok()) return status;
  if (Status status = check_places(*memory, blocks, false); !status.ok()) return status;
  if (after != nullptr) {
    Status status = memory->device == nullptr ? after->synchronize()
                                              : memory->device->queue(backend::QueueKind::kDeviceToHost).wait(*after);
    if (!status.ok()) return status;
  }
  impl_->device_lane_.add(memory);
  return impl_->put(*this, tokens, memory, blocks);
}

Result<std::shared_ptr<BlockRequest>> BlockStore::prefetch(const BlockMatch& match) {
  if (match.store_ != this) return Status(ErrorClass::kUsage, "kv: the match is of another store");
  return impl_->get(*this, match.path_, nullptr, {}, {});
}

Status BlockStore::reset() { return impl_->reset(); }
Status BlockStore::sync() {
  impl_->scheduler_.wait_for_running();
  return impl_->file_ == nullptr ? Status() : impl_->file_->sync();
}
void BlockStore::wait_idle() { impl_->scheduler_.wait_idle(); }
BlockStoreCounters BlockStore::counters() const { return impl_->counters(); }
std::vector<TransferRecord> BlockStore::timeline() const { return impl_->timeline(); }

}  // namespace hetero::graph
