// PagePool: equal pages in one memory, taken in slabs and given back in slabs.
//
// A page is a number, its slot: page i begins i * page_bytes() behind base(). A slab is
// `slab_pages` neighbouring pages. take() prefers the lowest slab that has memory and a free page,
// so the others become empty. An empty slab gives its memory back when another one is empty too;
// keeping one avoids mapping and unmapping at the edge.
//
// Thread safety: none; the owner's.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "backend/memory/page_memory.h"

namespace hetero::graph {

class PagePool {
 public:
  // As many pages as fit in the memory, but no more than an int32 counts. REQUIRES: page_bytes > 0,
  // slab_pages > 0.
  PagePool(std::unique_ptr<backend::PageMemory> memory, size_t page_bytes, int32_t slab_pages);
  PagePool(PagePool&&) = default;

  // A free slot. Errors: kResource if all are taken, or the memory has none left.
  Result<int32_t> take();
  // REQUIRES: taken.
  void give(int32_t slot);

  std::byte* base() const { return memory_->base(); }
  std::byte* address(int32_t slot) const { return base() + static_cast<size_t>(slot) * page_bytes_; }
  size_t page_bytes() const { return page_bytes_; }
  int32_t capacity() const { return capacity_; }
  int32_t used() const { return used_; }
  int32_t free() const { return capacity_ - used_; }
  // Pages that have memory.
  int32_t committed() const { return committed_; }

 private:
  struct Slab {
    std::vector<int32_t> free;  // slots; the last one is taken next
    int32_t used = 0;
    bool committed = false;
  };

  int32_t pages_of(size_t slab) const;
  size_t offset_of(size_t slab) const { return slab * static_cast<size_t>(slab_pages_) * page_bytes_; }
  Status commit(size_t slab);
  void release(size_t slab);

  std::unique_ptr<backend::PageMemory> memory_;
  size_t page_bytes_;
  int32_t slab_pages_;
  int32_t capacity_ = 0;
  int32_t used_ = 0;
  int32_t committed_ = 0;
  std::vector<Slab> slabs_;
  std::set<size_t> open_;   // committed slabs with free slots
  std::set<size_t> bare_;   // slabs without memory
  std::set<size_t> empty_;  // committed slabs whose slots are all free
};

}  // namespace hetero::graph
