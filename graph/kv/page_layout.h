// PageLayout: where the keys and values of a page are.
//
// A page holds `page_tokens` tokens of `layers` layers: of one, of all, or of some. Attention reads
// the rows of one head of keys one after another, so a head's tokens are neighbours:
//
//   [layers][keys, values][kv_heads][page_tokens][head_size]   elements
//   [layers][keys, values][kv_heads][page_tokens]              scales (float32), for int8
//
// With 16 tokens, 128 elements and bfloat16, the keys of one head are 4 KiB in a row. A page with
// all layers is moved by one copy, and one block table serves all layers; pages with one layer each
// can leave and come back layer by layer. Pages are a whole number of cache lines.
//
// For an operator, the keys of a layer in all pages of a pool are a strided tensor [pages,
// kv_heads, page_tokens, head_size] that begins keys(layer) behind the pool's base.
//
// Thread safety: plain data.

#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/base/status.h"
#include "backend/cpu/paged/cache_rows.h"

namespace hetero::graph {

struct PageLayout {
  backend::CacheElement element = backend::CacheElement::kBfloat16;
  int64_t page_tokens = 16;
  int64_t layers = 1;  // of a page
  int64_t kv_heads = 1;
  int64_t head_size = 64;

  // Errors: kUsage for a size that is not positive or too large to count in bytes.
  Status check() const;

  // In bytes.
  int64_t row() const { return head_size * backend::cache_element_bytes(element); }
  int64_t plane() const { return kv_heads * page_tokens * row(); }
  int64_t scale_plane() const {
    return backend::has_scales(element) ? kv_heads * page_tokens * static_cast<int64_t>(sizeof(float)) : 0;
  }
  int64_t keys(int64_t layer) const { return 2 * layer * plane(); }
  int64_t values(int64_t layer) const { return (2 * layer + 1) * plane(); }
  int64_t key_scales(int64_t layer) const { return scales_begin() + 2 * layer * scale_plane(); }
  int64_t value_scales(int64_t layer) const { return scales_begin() + (2 * layer + 1) * scale_plane(); }
  size_t bytes() const;

 private:
  int64_t scales_begin() const;
};

}  // namespace hetero::graph
