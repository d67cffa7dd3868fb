#include "graph/kv/page_pool.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace hetero::graph {

PagePool::PagePool(std::unique_ptr<backend::PageMemory> memory, size_t page_bytes, int32_t slab_pages)
    : memory_(std::move(memory)), page_bytes_(page_bytes), slab_pages_(slab_pages) {
  const size_t fitting = memory_->bytes() / page_bytes_;
  capacity_ = static_cast<int32_t>(std::min<size_t>(fitting, std::numeric_limits<int32_t>::max()));
  slabs_.resize((static_cast<size_t>(capacity_) + static_cast<size_t>(slab_pages_) - 1) /
                static_cast<size_t>(slab_pages_));
  for (size_t slab = 0; slab < slabs_.size(); ++slab) bare_.insert(slab);
}

int32_t PagePool::pages_of(size_t slab) const {
  const auto first = static_cast<int64_t>(slab) * slab_pages_;
  return static_cast<int32_t>(std::min<int64_t>(slab_pages_, capacity_ - first));
}

Status PagePool::commit(size_t slab) {
  const int32_t pages = pages_of(slab);
  Status status = memory_->commit(offset_of(slab), static_cast<size_t>(pages) * page_bytes_);
  if (!status.ok()) return status;
  Slab& made = slabs_[slab];
  made.committed = true;
  committed_ += pages;
  const auto first = static_cast<int32_t>(slab) * slab_pages_;
  made.free.clear();
  for (int32_t i = pages; i-- > 0;) made.free.push_back(first + i);
  bare_.erase(slab);
  open_.insert(slab);
  empty_.insert(slab);
  return {};
}

void PagePool::release(size_t slab) {
  const int32_t pages = pages_of(slab);
  memory_->release(offset_of(slab), static_cast<size_t>(pages) * page_bytes_);
  slabs_[slab].committed = false;
  committed_ -= pages;
  open_.erase(slab);
  empty_.erase(slab);
  bare_.insert(slab);
}

Result<int32_t> PagePool::take() {
  if (open_.empty()) {
    if (bare_.empty()) return Status(ErrorClass::kResource, "all pages are taken");
    Status status = commit(*bare_.begin());
    if (!status.ok()) return status;
  }
  const size_t slab = *open_.begin();
  Slab& from = slabs_[slab];
  const int32_t slot = from.free.back();
  from.free.pop_back();
  if (from.used++ == 0) empty_.erase(slab);
  if (from.free.empty()) open_.erase(slab);
  ++used_;
  return slot;
}

void PagePool::give(int32_t slot) {
  const auto slab = static_cast<size_t>(slot / slab_pages_);
  Slab& to = slabs_[slab];
  if (to.free.empty()) open_.insert(slab);
  to.free.push_back(slot);
  --used_;
  if (--to.used > 0) return;
  empty_.insert(slab);
  if (empty_.size() > 1) release(*empty_.rbegin());
}

}  // namespace hetero::graph
