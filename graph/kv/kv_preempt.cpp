// Preemption: a sequence gives up its pages for others, and gets them back later. See kv_cache.h.
//
// Offloading moves the pages that only this sequence has, and later moves them back. Recomputing
// drops them; full blocks stay as a cache while nobody needs the room. Pages that other sequences
// have stay where they are, so neither way counts them.

#include <algorithm>
#include <string>
#include <utility>

#include "graph/kv/kv_cache.h"

namespace hetero::graph {

std::vector<PageId> KvCache::own_pages(const Sequence& sequence) {
  std::vector<PageId> pages;
  for (const BlockId block : sequence.blocks) {
    if (references(block) > 1) continue;
    for (const PageId page : pages_of(block)) {
      if (store_.state(page) == PageState::kResident) pages.push_back(page);
    }
  }
  return pages;
}

Preemption KvCache::faster(const Sequence& sequence, size_t own_pages) {
  const KvFigures& figures = options_.figures;
  const int64_t room = store_.room_elsewhere() + store_.idle_elsewhere();
  if (static_cast<int64_t>(own_pages) > room || store_.memories() == 1) return Preemption::kRecompute;
  if (figures.prefill_rate <= 0) return Preemption::kOffload;
  if (figures.offload_bandwidth <= 0 || figures.return_bandwidth <= 0) return Preemption::kRecompute;
  const auto bytes = static_cast<double>(options_.layout.bytes());
  const double move = static_cast<double>(own_pages) *
                      (bytes / figures.offload_bandwidth + bytes / figures.return_bandwidth + 2 * figures.copy_latency);
  int64_t tokens = 0;
  for (size_t i = 0; i < sequence.blocks.size(); ++i) {
    const int64_t first = static_cast<int64_t>(i) * page_tokens();
    if (references(sequence.blocks[i]) == 1) tokens += std::clamp<int64_t>(sequence.written - first, 0, page_tokens());
  }
  return move <= static_cast<double>(tokens) / figures.prefill_rate ? Preemption::kOffload : Preemption::kRecompute;
}

Status KvCache::offload(Sequence& sequence) {
  store_.settle();
  const std::vector<PageId> pages = own_pages(sequence);
  if (std::ssize(pages) > store_.room_elsewhere() + store_.idle_elsewhere()) {
    return {ErrorClass::kResource, "no other memory of the KV cache has room for " + std::to_string(pages.size()) +
                                       " pages of a preempted sequence"};
  }
  for (const PageId page : pages) {
    while (store_.room_elsewhere() == 0 && evict_one()) {
    }
    // A page whose move fails stays; the sequence is whole all the same.
    (void)store_.leave(page);
  }
  return {};
}

Result<Preemption> KvCache::preempt(SequenceId id) {
  Result<Sequence*> found = changeable(id);
  if (!found.ok()) return found.status();
  return preempt(id, faster(*found.value(), own_pages(*found.value()).size()));
}

Result<Preemption> KvCache::preempt(SequenceId id, Preemption how) {
  Result<Sequence*> found = changeable(id);
  if (!found.ok()) return found.status();
  Sequence& sequence = *found.value();
  ++now_;
  if (how == Preemption::kOffload) {
    if (Status status = offload(sequence); !status.ok()) return status;
    sequence.state = SequenceState::kOffloaded;
  } else {
    drop_blocks(sequence, 0);
    sequence.state = SequenceState::kDropped;
  }
  ++counters_.preempted;
  return how;
}

// As allocate() and extend() would.
Result<int64_t> KvCache::recompute(Sequence& sequence) {
  const int64_t length = std::ssize(sequence.tokens);
  std::vector<BlockId> blocks = walk(sequence.tokens);
  const int64_t shared = std::ssize(blocks), missing = blocks_for(length) - shared;
  for (const BlockId block : blocks) reference(block);
  Status status = make_room(missing * options_.groups);
  while (status.ok() && std::ssize(blocks) < shared + missing) {
    Result<BlockId> block = take_block();
    status = block.status();
    if (block.ok()) blocks.push_back(block.value());
  }
  if (!status.ok()) {
    for (size_t i = blocks.size(); i-- > 0;) unreference(blocks[i]);
    return status;
  }
  counters_.shared += shared;
  counters_.allocated += missing * options_.groups;
  sequence.blocks = std::move(blocks);
  sequence.written = shared * page_tokens();
  sequence.invalidate_from(0);
  return length - sequence.written;
}

Result<int64_t> KvCache::resume(SequenceId id) {
  Result<Sequence*> found = find(id);
  if (!found.ok()) return found.status();
  Sequence& sequence = *found.value();
  ++now_;
  if (sequence.state == SequenceState::kActive) {
    return Status(ErrorClass::kUsage, "sequence " + std::to_string(id) + " is not preempted");
  }
  int64_t tokens = 0;
  if (sequence.state == SequenceState::kDropped) {
    Result<int64_t> missing = recompute(sequence);
    if (!missing.ok()) return missing;
    tokens = missing.value();
    counters_.recomputed += tokens;
  } else {
    std::vector<PageId> pages;
    for (size_t group = 0; group < groups(); ++group) {
      const std::vector<PageId> read = read_pages(sequence, group);
      pages.insert(pages.end(), read.begin(), read.end());
    }
    for (const PageId page : pages) store_.pin(page);
    Status status = bring(pages);
    for (const PageId page : pages) store_.unpin(page);
    if (!status.ok()) return status;
    for (const PageId page : pages) store_.touch(page, now_);
  }
  sequence.state = SequenceState::kActive;
  relieve();
  return tokens;
}

}  // namespace hetero::graph
