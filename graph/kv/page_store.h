// PageStore: pages with identities, wherever their bytes are.
//
// A page is made in the first memory, which is the one that attention reads. It can leave to
// another memory and come back, by copies that a PageMover runs. Its state says where it is:
//
//   kResident  in the first memory: the only state in which it may be read or written
//   kLeaving   being copied to another memory
//   kAway      in another memory
//   kComing    being copied back
//
// A page keeps its number while it moves; its slot in the first memory changes. A failed move
// leaves the page where it was. A pinned page does not leave.
//
// A page is `idle` when no sequence uses it and it is kept as a cache only. The store counts idle
// pages by memory, so that the manager knows what evicting them would give.
//
// Thread safety: none; the manager's. The mover may copy at any time between start and wait.
// Ownership: the mover outlives the store, which waits for all copies when it dies.

#pragma once

#include <cstdint>
#include <vector>

#include "backend/base/status.h"
#include "graph/kv/page_mover.h"
#include "graph/kv/page_pool.h"

namespace hetero::graph {

using PageId = int32_t;

enum class PageState : uint8_t { kFree, kResident, kLeaving, kAway, kComing };
const char* to_string(PageState state);

class PageStore {
 public:
  // REQUIRES: at least one pool; all have the same page_bytes.
  PageStore(std::vector<PagePool> pools, PageMover& mover);
  ~PageStore();
  PageStore(const PageStore&) = delete;

  // A resident page with any content. Errors: kResource if the first memory is full.
  Result<PageId> take();
  // A resident copy of a page that is resident or away. Errors: kResource, or the mover's.
  Result<PageId> duplicate(PageId page);
  // Waits for a move of it, and forgets it. REQUIRES: not pinned.
  void drop(PageId page);

  PageState state(PageId page) const { return entries_[index(page)].state; }
  bool pinned(PageId page) const { return entries_[index(page)].pins != 0; }
  bool idle(PageId page) const { return entries_[index(page)].idle; }
  // In the first memory; -1 unless it is resident.
  int32_t slot(PageId page) const {
    const Entry& entry = entries_[index(page)];
    return entry.state == PageState::kResident ? entry.slot : -1;
  }
  void pin(PageId page);
  void unpin(PageId page);
  void set_idle(PageId page, bool idle);
  uint64_t last_use(PageId page) const { return entries_[index(page)].last_use; }
  void touch(PageId page, uint64_t now) { entries_[index(page)].last_use = now; }

  // Starts a move to another memory. Errors: kResource if none has room, or the mover's. REQUIRES:
  // resident, not pinned.
  Status leave(PageId page);
  // Starts the move back. Errors: kResource if the first memory is full, or the mover's. REQUIRES:
  // away.
  Status come(PageId page);
  // Waits for the page's move. A page that leaves stays if `keep`. Errors: the mover's; the page is
  // where it was.
  Status finish(PageId page, bool keep = false);
  // Ends the moves that are done, without waiting. Failures are counted.
  void settle();
  // Waits for one move out of the first memory; false if there is none.
  bool finish_a_leaving();

  // Pages of the first memory.
  int32_t capacity() const { return pools_[0].capacity(); }
  int32_t used() const { return pools_[0].used(); }
  int32_t free() const { return pools_[0].free(); }
  int32_t leaving() const { return leaving_; }
  int32_t leaving_in_use() const;  // those that are not idle
  int32_t pinned() const { return pinned_; }
  int32_t idle_here() const { return idle_[0]; }
  // Pages of the others.
  int32_t room_elsewhere() const;
  int32_t idle_elsewhere() const;

  const PagePool& pool(int memory) const { return pools_[static_cast<size_t>(memory)]; }
  int32_t moving() const { return static_cast<int32_t>(moving_.size()); }
  int memories() const { return static_cast<int>(pools_.size()); }
  // Changes whenever slot() of a page that lives on changes.
  uint64_t version() const { return version_; }
  // The caller gave a page's place to another page.
  void note_change() { ++version_; }

  struct Counters {
    int64_t taken = 0;
    int64_t left = 0;       // moves out that were completed
    int64_t came_back = 0;  // moves back that were completed
    int64_t failed_moves = 0;
  };
  const Counters& counters() const { return counters_; }

 private:
  struct Entry {
    PageState state = PageState::kFree;
    bool idle = false;
    uint8_t memory = 0;  // where the valid bytes are
    uint8_t target_memory = 0;
    int32_t slot = -1;
    int32_t target_slot = -1;
    uint32_t pins = 0;
    PageMover::Token token = 0;
    uint64_t last_use = 0;
  };

  static size_t index(PageId page) { return static_cast<size_t>(page); }
  PageId new_entry();
  std::byte* address(int memory, int32_t slot) const { return pools_[static_cast<size_t>(memory)].address(slot); }
  Status start_move(PageId page, int target, int32_t slot, PageState state);
  // The mover is done with the page: it is where it went, or where it was after an error or with
  // `keep`.
  void end_move(PageId page, bool moved);
  void count_idle(const Entry& entry, int change);

  std::vector<PagePool> pools_;
  PageMover& mover_;
  std::vector<Entry> entries_;
  std::vector<PageId> unused_;
  std::vector<PageId> moving_;
  std::vector<int32_t> idle_;  // by memory
  int32_t leaving_ = 0;
  int32_t pinned_ = 0;
  uint64_t version_ = 0;
  Counters counters_;
};

}  // namespace hetero::graph
