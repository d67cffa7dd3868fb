#include "graph/kv/page_store.h"

#include <algorithm>
#include <utility>

namespace hetero::graph {

const char* to_string(PageState state) {
  switch (state) {
    case PageState::kFree:
      return "free";
    case PageState::kResident:
      return "resident";
    case PageState::kLeaving:
      return "leaving";
    case PageState::kAway:
      return "away";
    case PageState::kComing:
      return "coming";
  }
  return "";
}

PageStore::PageStore(std::vector<PagePool> pools, PageMover& mover)
    : pools_(std::move(pools)), mover_(mover), idle_(pools_.size(), 0) {}

PageStore::~PageStore() {
  for (const PageId page : moving_) (void)mover_.wait(entries_[index(page)].token);
}

PageId PageStore::new_entry() {
  if (unused_.empty()) {
    entries_.emplace_back();
    return static_cast<PageId>(entries_.size() - 1);
  }
  const PageId page = unused_.back();
  unused_.pop_back();
  return page;
}

Result<PageId> PageStore::take() {
  Result<int32_t> slot = pools_[0].take();
  if (!slot.ok()) return slot.status();
  const PageId page = new_entry();
  entries_[index(page)] = {.state = PageState::kResident, .slot = slot.value()};
  ++counters_.taken;
  return page;
}

Result<PageId> PageStore::duplicate(PageId page) {
  Result<PageId> made = take();
  if (!made.ok()) return made;
  const Entry& from = entries_[index(page)];
  const Entry& to = entries_[index(made.value())];
  const PageCopy copy{.from = from.memory,
                      .to = 0,
                      .source = address(from.memory, from.slot),
                      .destination = address(0, to.slot),
                      .bytes = pools_[0].page_bytes()};
  Result<PageMover::Token> token = mover_.start(copy);
  const Status status = token.ok() ? mover_.wait(token.value()) : token.status();
  if (status.ok()) return made;
  ++counters_.failed_moves;
  drop(made.value());
  return status;
}

void PageStore::drop(PageId page) {
  if (state(page) == PageState::kLeaving || state(page) == PageState::kComing) (void)finish(page);
  Entry& entry = entries_[index(page)];
  if (entry.idle) count_idle(entry, -1);
  pools_[entry.memory].give(entry.slot);
  entry = {};
  unused_.push_back(page);
}

void PageStore::pin(PageId page) {
  if (entries_[index(page)].pins++ == 0) ++pinned_;
}

void PageStore::unpin(PageId page) {
  if (--entries_[index(page)].pins == 0) --pinned_;
}

void PageStore::count_idle(const Entry& entry, int change) { idle_[entry.memory] += change; }

void PageStore::set_idle(PageId page, bool idle) {
  Entry& entry = entries_[index(page)];
  if (entry.idle == idle) return;
  entry.idle = idle;
  count_idle(entry, idle ? 1 : -1);
}

Status PageStore::start_move(PageId page, int target, int32_t slot, PageState state) {
  Entry& entry = entries_[index(page)];
  Result<PageMover::Token> token = mover_.start({.from = entry.memory,
                                                 .to = target,
                                                 .source = address(entry.memory, entry.slot),
                                                 .destination = address(target, slot),
                                                 .bytes = pools_[0].page_bytes()});
  if (!token.ok()) {
    pools_[static_cast<size_t>(target)].give(slot);
    ++counters_.failed_moves;
    return token.status();
  }
  entry.state = state;
  entry.target_memory = static_cast<uint8_t>(target);
  entry.target_slot = slot;
  entry.token = token.value();
  moving_.push_back(page);
  if (state == PageState::kLeaving) {
    ++leaving_;
    ++version_;
  }
  return {};
}

Status PageStore::leave(PageId page) {
  for (int memory = 1; memory < memories(); ++memory) {
    if (pools_[static_cast<size_t>(memory)].free() == 0) continue;
    Result<int32_t> slot = pools_[static_cast<size_t>(memory)].take();
    if (slot.ok()) return start_move(page, memory, slot.value(), PageState::kLeaving);
  }
  return {ErrorClass::kResource, "no other memory has room for a page of the KV cache"};
}

Status PageStore::come(PageId page) {
  Result<int32_t> slot = pools_[0].take();
  if (!slot.ok()) return slot.status();
  return start_move(page, 0, slot.value(), PageState::kComing);
}

void PageStore::end_move(PageId page, bool moved) {
  Entry& entry = entries_[index(page)];
  const bool leaving = entry.state == PageState::kLeaving;
  if (leaving) --leaving_;
  if (moved) {
    if (entry.idle) count_idle(entry, -1);
    pools_[entry.memory].give(entry.slot);
    entry.memory = entry.target_memory;
    entry.slot = entry.target_slot;
    if (entry.idle) count_idle(entry, 1);
    ++(leaving ? counters_.left : counters_.came_back);
  } else {
    pools_[entry.target_memory].give(entry.target_slot);
  }
  entry.target_slot = -1;
  entry.state = entry.memory == 0 ? PageState::kResident : PageState::kAway;
  if (entry.memory == 0) ++version_;
  moving_.erase(std::find(moving_.begin(), moving_.end(), page));
}

Status PageStore::finish(PageId page, bool keep) {
  const Entry& entry = entries_[index(page)];
  if (entry.state != PageState::kLeaving && entry.state != PageState::kComing) return {};
  Status status = mover_.wait(entry.token);
  const bool stays = keep && entry.state == PageState::kLeaving;
  if (!status.ok()) ++counters_.failed_moves;
  end_move(page, status.ok() && !stays);
  return stays ? Status() : status;
}

void PageStore::settle() {
  for (size_t i = moving_.size(); i-- > 0;) {
    const PageId page = moving_[i];
    const Result<bool> finished = mover_.finished(entries_[index(page)].token);
    if (finished.ok() && !finished.value()) continue;
    if (!finished.ok()) ++counters_.failed_moves;
    end_move(page, finished.ok());
  }
}

bool PageStore::finish_a_leaving() {
  for (const PageId page : moving_) {
    if (state(page) != PageState::kLeaving) continue;
    (void)finish(page);
    return true;
  }
  return false;
}

int32_t PageStore::leaving_in_use() const {
  int32_t pages = 0;
  for (const PageId page : moving_) pages += state(page) == PageState::kLeaving && !idle(page);
  return pages;
}

int32_t PageStore::room_elsewhere() const {
  int32_t room = 0;
  for (size_t memory = 1; memory < pools_.size(); ++memory) room += pools_[memory].free();
  return room;
}

int32_t PageStore::idle_elsewhere() const {
  int32_t pages = 0;
  for (size_t memory = 1; memory < pools_.size(); ++memory) pages += idle_[memory];
  return pages;
}

}  // namespace hetero::graph
