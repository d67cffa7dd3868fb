// KvCache: which tokens of which sequences have their keys and values in which pages.
//
// The manager of a KV cache for attention that reads pages in place. It hands out pages, shares
// them between sequences, moves them between memories, and makes room. It computes nothing: the
// caller runs the model, which writes pages by slots() and reads them by table().
//
//   auto cache = KvCache::make(options, std::move(memories), mover);
//   SequenceId id = cache->allocate(prompt);          // shares the longest prefix that is at hand
//   cache->extend(id, rest_of_prompt);                // pages for tokens still to be computed
//   cache->acquire(id, group);                        // its pages are resident, and stay
//   cache->slots(id, group, first, slots);            // where the new keys and values go
//   cache->table(id, group);                          // the block table, for the operator
//   cache->release(id, group);
//   cache->written(id, cache->length(id));            // others may share these tokens now
//
// Blocks and pages. A block is `page_tokens` tokens of a sequence, in all layers. It has one page
// for each group of layers (PageLayout::layers each), so that layers can leave one by one; with one
// group, a block is a page. Sequences share blocks by reference.
//
// Copy on write. extend() writes behind the last token. If another sequence, or a longer prefix,
// has the block that it would write, the sequence gets a copy of it first.
//
// Prefixes. A full block whose tokens were written() is indexed by its tokens and those before it.
// When no sequence uses it any more, it stays as a cache until its page is needed; the least
// recently used prefix goes first, from its end.
//
// Room. A call that needs pages asks the offload strategy for pages to move to the next memory,
// then evicts cached blocks. Above `threshold` of the first memory, pages leave ahead of need until
// `relieved` is reached. If that is not enough, the call fails with kResource and one sentence, and
// everything is as it was (a call that can tell does not evict either). Other errors are kUsage,
// for a wrong call, and those of the mover; they too leave all sequences as they were.
//
// Thread safety: none. One thread at a time calls it, as a server's scheduler does. Kernels may
// read and write pages of acquired sequences on other threads meanwhile: those do not move, and a
// sequence's table changes in calls about this sequence only. Ownership: the mover outlives the
// cache.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/base/status.h"
#include "backend/machine.h"
#include "backend/memory/page_memory.h"
#include "graph/kv/offload_strategy.h"
#include "graph/kv/page_layout.h"
#include "graph/kv/page_mover.h"
#include "graph/kv/page_store.h"
#include "graph/kv/prefix_index.h"

namespace hetero::graph {

using SequenceId = int32_t;

// What a move and a computation cost; 0 where that is unknown.
struct KvFigures {
  double offload_bandwidth = 0;  // bytes per second out of the first memory
  double return_bandwidth = 0;   // and back
  double copy_latency = 0;       // seconds for each page
  double prefill_rate = 0;       // tokens per second that the model computes
};

// The figures of a machine whose device `first` has the pages and `second` those that left.
// `flops_per_token` is what the model takes for a token.
KvFigures kv_figures(const backend::Machine& machine, backend::DeviceIndex first, backend::DeviceIndex second,
                     double flops_per_token);

struct KvOptions {
  PageLayout layout;
  int groups = 1;  // pages of a block; layers of the model = groups * layout.layers
  int32_t slab_pages = 64;
  // Of a sequence; block tables then never change their address. 0 for any number.
  int64_t most_tokens = 0;
  AttentionSpan span;
  std::string offload = "none";  // OffloadStrategy
  double threshold = 0.8;        // of the first memory's pages
  double relieved = 0.7;
  KvFigures figures;
};

enum class Preemption : uint8_t { kOffload, kRecompute };

struct KvCounters {
  int64_t allocated = 0;     // pages taken for new tokens and copies
  int64_t shared = 0;        // blocks that a sequence got by reference
  int64_t copied = 0;        // pages copied on write
  int64_t evicted = 0;       // pages of cached blocks that were dropped
  int64_t offloaded = 0;     // pages moved out of the first memory
  int64_t brought_back = 0;  // and back
  int64_t failed_moves = 0;
  int64_t preempted = 0;   // sequences
  int64_t recomputed = 0;  // tokens that resume() asked to compute again
};

class KvCache {
 public:
  // `memories` from the one that attention reads to the one where pages go last. Their sizes are
  // the budgets. Errors: kUsage for options that do not fit; kResource if the first memory has no
  // room for a block.
  static Result<std::unique_ptr<KvCache>> make(KvOptions options,
                                               std::vector<std::unique_ptr<backend::PageMemory>> memories,
                                               PageMover& mover);

  // How many of the first tokens are at hand: whole blocks.
  int64_t match(std::span<const int32_t> tokens) const;
  // A sequence with the tokens that match. The others are to be extended. Takes no page.
  SequenceId allocate(std::span<const int32_t> tokens = {});
  // Appends tokens, whose keys and values are to be written.
  Status extend(SequenceId id, std::span<const int32_t> tokens);
  // Keeps the first `length` tokens.
  Status truncate(SequenceId id, int64_t length);
  // A sequence with the same tokens and blocks. Takes no page.
  Result<SequenceId> fork(SequenceId id);
  Status free(SequenceId id);
  // The keys and values of the first `length` tokens are in their pages, in all groups. To be
  // called when no group is acquired.
  Status written(SequenceId id, int64_t length);

  // Makes what attention reads of the sequence resident in a group, waits for it, and keeps it
  // there until release(). Until then the sequence does not change.
  Status acquire(SequenceId id, int group);
  Status release(SequenceId id, int group);
  // Starts what acquire() would wait for, as far as there is room now.
  Status prefetch(SequenceId id, int group);

  // For each block the page in the first memory, or -1 where it is not resident. Valid until the
  // next call that changes this sequence or moves pages that it has not acquired; the address stays
  // if most_tokens is set.
  Result<std::span<const int32_t>> table(SequenceId id, int group);
  // Tables of several sequences as rows of `row` numbers, with -1 behind the end of each.
  Status fill_tables(std::span<const SequenceId> ids, int group, int32_t* rows, int64_t row);
  // slot = page * page_tokens + place in the page, for tokens first to first + slots.size().
  // Errors: kUsage if one of the pages is not resident; acquire() makes them so.
  Status slots(SequenceId id, int group, int64_t first, std::span<int64_t> slots) const;

  // Takes the sequence's pages away, in the way that is predicted to be faster. It keeps its
  // tokens; resume() or free() must follow before it is changed or acquired again. Errors:
  // kResource if pages are to be offloaded and there is no room for them.
  Result<Preemption> preempt(SequenceId id);
  Result<Preemption> preempt(SequenceId id, Preemption how);
  // Its pages are here again. Gives how many tokens, the last ones, are to be computed again.
  Result<int64_t> resume(SequenceId id);

  bool has(SequenceId id) const { return sequences_.contains(id); }
  // REQUIRES, for these: has(id).
  int64_t length(SequenceId id) const { return std::ssize(sequences_.at(id).tokens); }
  int64_t written_length(SequenceId id) const { return sequences_.at(id).written; }
  bool preempted(SequenceId id) const { return sequences_.at(id).state != SequenceState::kActive; }
  std::span<const int32_t> tokens(SequenceId id) const { return sequences_.at(id).tokens; }

  const KvOptions& options() const { return options_; }
  const PageStore& pages() const { return store_; }
  // Blocks that are indexed.
  size_t cached_blocks() const { return index_.size(); }
  KvCounters counters() const;
  // Whether what it knows of blocks, pages and sequences fits together; for tests.
  Status check() const;

 private:
  enum class SequenceState : uint8_t { kActive, kOffloaded, kDropped };

  struct Sequence {
    SequenceState state = SequenceState::kActive;
    std::vector<int32_t> tokens;
    std::vector<BlockId> blocks;
    int64_t written = 0;
    std::vector<std::vector<PageId>> acquired;  // by group; pinned pages
    std::vector<bool> is_acquired;
    // Block tables, of which the first `valid` entries are right as of a version of the store.
    std::vector<std::vector<int32_t>> tables;
    size_t valid = 0;
    uint64_t version = 0;

    bool in_use() const;
    void invalidate_from(size_t block) { valid = std::min(valid, block); }
  };

  KvCache(KvOptions options, std::vector<PagePool> pools, PageMover& mover, std::unique_ptr<OffloadStrategy> strategy);

  size_t groups() const { return static_cast<size_t>(options_.groups); }
  int64_t page_tokens() const { return options_.layout.page_tokens; }
  int64_t blocks_for(int64_t tokens) const { return (tokens + page_tokens() - 1) / page_tokens(); }
  PageId page(BlockId block, size_t group) const { return pages_[static_cast<size_t>(block) * groups() + group]; }
  std::span<PageId> pages_of(BlockId block) {
    return std::span(pages_).subspan(static_cast<size_t>(block) * groups(), groups());
  }
  int32_t& references(BlockId block) { return references_[static_cast<size_t>(block)]; }

  // Errors: kUsage if there is no such sequence.
  Result<Sequence*> find(SequenceId id);
  // Errors: kUsage if it is preempted or acquired, too.
  Result<Sequence*> changeable(SequenceId id);
  Status check_group(int group) const;
  SequenceId add(Sequence sequence);

  BlockId new_block();
  Result<BlockId> take_block();
  // Errors: kResource or the mover's.
  Result<BlockId> copy_block(BlockId block);
  void forget_block(BlockId block);
  void reference(BlockId block);
  void unreference(BlockId block);
  bool pinned(BlockId block) const;
  void touch(BlockId block);
  // Blocks of the longest prefix.
  std::vector<BlockId> walk(std::span<const int32_t> tokens) const;
  void drop_blocks(Sequence& sequence, size_t keep);
  // Indexes a full block, or replaces it by an equal one.
  void seal(Sequence& sequence, size_t block);
  void replace(Sequence& sequence, size_t place, BlockId by);
  void refresh(Sequence& sequence);
  std::vector<PageId> read_pages(const Sequence& sequence, size_t group) const;

  // ---- room (kv_room.cpp)
  Status make_room(int64_t pages);
  bool can_make_room(int64_t pages, const std::vector<OffloadCandidate>& candidates) const;
  Status out_of_pages(int64_t pages) const;
  void relieve();
  bool evict_one();
  std::vector<OffloadCandidate> candidates();
  // Pages that are pinned already become resident. Errors: kResource or the mover's; those that
  // came stay.
  Status bring(std::span<const PageId> pages);

  // ---- preemption (kv_preempt.cpp)
  std::vector<PageId> own_pages(const Sequence& sequence);
  Preemption faster(const Sequence& sequence, size_t own_pages);
  Status offload(Sequence& sequence);
  Result<int64_t> recompute(Sequence& sequence);

  KvOptions options_;
  PageStore store_;
  PrefixIndex index_;
  std::unique_ptr<OffloadStrategy> strategy_;
  std::unordered_map<SequenceId, Sequence> sequences_;
  SequenceId next_id_ = 0;
  std::vector<int32_t> references_;  // by block
  std::vector<PageId> pages_;        // by block and group
  std::vector<BlockId> unused_blocks_;
  uint64_t now_ = 0;  // counts calls, for the order of use
  int64_t next_relief_ = 0;
  KvCounters counters_;
};

}  // namespace hetero::graph
