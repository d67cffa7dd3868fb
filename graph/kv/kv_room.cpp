// Room in the first memory: who leaves, who is evicted, and who comes back. See kv_cache.h.
//
// 1. Ended moves are noticed.
// 2. If pages are missing, the strategy puts those that may leave in order. If moving and evicting
//    cannot give enough, nothing is done and the call fails.
// 3. Pages leave, by as many moves at once as pages are missing. A page in use that finds no room
//    elsewhere evicts cached blocks.
// 4. What is missing still comes from cached blocks, the least recently used first.

#include <algorithm>
#include <limits>

#include "graph/kv/kv_cache.h"

namespace hetero::graph {

std::vector<OffloadCandidate> KvCache::candidates() {
  std::vector<OffloadCandidate> found;
  if (options_.offload == "none" || store_.memories() == 1) return found;
  struct Facts {
    int64_t first_token = 0;
    int64_t tokens_after = std::numeric_limits<int64_t>::max();
  };
  std::vector<Facts> facts(references_.size());
  for (const auto& [id, sequence] : sequences_) {
    for (size_t i = 0; i < sequence.blocks.size(); ++i) {
      Facts& block = facts[static_cast<size_t>(sequence.blocks[i])];
      block.first_token = static_cast<int64_t>(i) * page_tokens();
      block.tokens_after = std::min(block.tokens_after, sequence.written - block.first_token - page_tokens());
    }
  }
  for (size_t i = 0; i < references_.size(); ++i) {
    const auto block = static_cast<BlockId>(i);
    if (references_[i] == 0 && !index_.has(block)) continue;
    for (size_t group = 0; group < groups(); ++group) {
      const PageId page = this->page(block, group);
      if (store_.state(page) != PageState::kResident || store_.pinned(page)) continue;
      found.push_back({.page = page,
                       .group = static_cast<int32_t>(group),
                       .last_use = store_.last_use(page),
                       .first_token = facts[i].first_token,
                       .tokens_after = facts[i].tokens_after,
                       .idle = references_[i] == 0});
    }
  }
  strategy_->choose(found);
  return found;
}

bool KvCache::can_make_room(int64_t pages, const std::vector<OffloadCandidate>& candidates) const {
  const int64_t in_use = std::ranges::count(candidates, false, &OffloadCandidate::idle);
  const int64_t elsewhere = store_.room_elsewhere() + store_.idle_elsewhere();
  return store_.free() + store_.leaving_in_use() + store_.idle_here() + std::min(in_use, elsewhere) >= pages;
}

Status KvCache::out_of_pages(int64_t pages) const {
  return {ErrorClass::kResource, "the KV cache is out of pages: " + std::to_string(pages) + " are needed, " +
                                     std::to_string(store_.free()) + " of " + std::to_string(store_.capacity()) +
                                     " are free, and the others are in use"};
}

Status KvCache::make_room(int64_t pages) {
  store_.settle();
  if (store_.free() >= pages) return {};
  const std::vector<OffloadCandidate> leaving = candidates();
  if (!can_make_room(pages, leaving)) return out_of_pages(pages);
  size_t next = 0;
  while (store_.free() < pages) {
    for (; next < leaving.size() && store_.free() + store_.leaving() < pages; ++next) {
      const OffloadCandidate& candidate = leaving[next];
      if (!candidate.idle) {
        while (store_.room_elsewhere() == 0 && evict_one()) {
        }
      }
      // It may have been evicted for another one.
      if (store_.room_elsewhere() == 0 || store_.state(candidate.page) != PageState::kResident) continue;
      (void)store_.leave(candidate.page);  // if that fails, others leave
    }
    if (!store_.finish_a_leaving()) break;
  }
  while (store_.free() < pages && evict_one()) {
  }
  return store_.free() >= pages ? Status() : out_of_pages(pages);
}

void KvCache::relieve() {
  const double capacity = store_.capacity();
  const auto filled = [&] { return static_cast<double>(store_.used() - store_.leaving()); };
  const int64_t changes = store_.counters().taken + store_.counters().came_back;
  if (filled() <= options_.threshold * capacity || changes < next_relief_) return;
  store_.settle();
  // Candidates take a walk over all pages, so a while passes before the next one.
  next_relief_ = changes + std::max<int64_t>(store_.capacity() / 32, 1);
  for (const OffloadCandidate& candidate : candidates()) {
    if (filled() <= options_.relieved * capacity || store_.room_elsewhere() == 0) break;
    (void)store_.leave(candidate.page);
  }
}

bool KvCache::evict_one() {
  const BlockId block = index_.oldest();
  if (block == PrefixIndex::kNone) return false;
  index_.remove(block);
  forget_block(block);
  counters_.evicted += options_.groups;
  return true;
}

Status KvCache::bring(std::span<const PageId> pages) {
  store_.settle();
  Status status;
  int64_t away = 0;
  for (const PageId page : pages) {
    const Status ended = store_.finish(page, /*keep=*/true);
    if (!ended.ok()) status = ended;
    away += store_.state(page) == PageState::kAway;
  }
  if (!status.ok()) return status;
  if (away == 0) return {};
  status = make_room(away);
  for (const PageId page : pages) {
    if (!status.ok()) break;
    if (store_.state(page) == PageState::kAway) status = store_.come(page);
  }
  // All that started end here, also after an error.
  for (const PageId page : pages) {
    const Status ended = store_.finish(page);
    if (status.ok()) status = ended;
  }
  return status;
}

}  // namespace hetero::graph
