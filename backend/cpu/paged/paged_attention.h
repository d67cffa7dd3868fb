// Attention over keys and values that are in pages: out = softmax(scale * q k^T) v for each query,
// whose keys a block table finds. And the writing of new keys and values into pages.
//
// A batch has sequences of different lengths. Key j of a sequence is in page table[j /
// page_tokens], at place j % page_tokens, and is read there: nothing is gathered. A sequence's
// queries are its last tokens. The one at position p attends to keys 0 to p; with a window to the
// last `window` of these and to the first `sinks` keys. Pages that no query reads may have any
// number in the table.
//
// Rows. Queries that read the same head of keys, those of all its heads of queries and of all
// tokens of a chunk, go over the keys together, so decoding reads keys and values once.
//
// Threads. Few rows over many keys are divided into parts of the keys, whose results are merged in
// their order (FlashDecoding). How they are divided depends on the call alone, so the bits do not
// depend on the number of threads. Sums are kept in float32. A query that reads no key gives 0.
//
// Thread safety: any thread; calls share nothing. Each thread keeps scratch memory.

#pragma once

#include <cstdint>

#include "backend/base/status.h"
#include "backend/cpu/paged/cache_rows.h"
#include "backend/cpu/vector/instruction_set.h"

namespace hetero::backend {

// Keys or values: [pages, kv_heads, page_tokens, head_size], dense along the last dimension.
// Strides count elements; those of scales count floats.
struct PagedRows {
  const void* data = nullptr;
  int64_t page_stride = 0;
  int64_t head_stride = 0;
  int64_t token_stride = 0;
  const float* scales = nullptr;  // [pages, kv_heads, page_tokens], where the element has scales
  int64_t scale_page_stride = 0;
  int64_t scale_head_stride = 0;
  int64_t scale_token_stride = 0;
};

struct PagedAttention {
  Element element = Element::kFloat32;          // of queries and out
  CacheElement cache = CacheElement::kFloat32;  // of keys and values
  int64_t sequences = 0;
  int64_t tokens = 0;  // queries of all sequences, one after another
  int64_t heads = 0;
  int64_t kv_heads = 0;  // head h of the queries reads head h / (heads / kv_heads)
  int64_t head_size = 0;
  int64_t pages = 0;
  int64_t page_tokens = 0;
  // [tokens, heads, head_size], dense along the last dimension.
  const void* query = nullptr;
  int64_t query_token_stride = 0;
  int64_t query_head_stride = 0;
  void* out = nullptr;  // dense
  PagedRows keys;
  PagedRows values;
  const int32_t* table = nullptr;  // [sequences, blocks]
  int64_t table_stride = 0;
  int64_t blocks = 0;
  const int32_t* lengths = nullptr;  // keys of each sequence, with those of its queries
  // The first query of each sequence, and the end of the last one: sequences + 1 numbers. Null
  // where all sequences have the same number.
  const int32_t* starts = nullptr;
  float scale = 1;
  int64_t window = 0;  // 0 for none
  int64_t sinks = 0;
};

// Errors: kUsage, in one sentence, for lengths, starts or a table that do not fit; nothing is
// written then. REQUIRES: heads is a multiple of kv_heads; out overlaps nothing else.
Status paged_attention(const PagedAttention& call);
// The same by a given instruction set, for tests. REQUIRES: set <= instruction_set().
Status paged_attention(const PagedAttention& call, InstructionSet set);

// New keys and values: [tokens, kv_heads, head_size], dense along the last dimension.
struct PagedAppend {
  Element element = Element::kFloat32;  // of the new ones
  CacheElement cache = CacheElement::kFloat32;
  int64_t tokens = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t pages = 0;
  int64_t page_tokens = 0;
  const void* key = nullptr;
  int64_t key_token_stride = 0;
  int64_t key_head_stride = 0;
  const void* value = nullptr;
  int64_t value_token_stride = 0;
  int64_t value_head_stride = 0;
  // Written. Their data and scales are not const in truth.
  PagedRows keys;
  PagedRows values;
  const int64_t* slots = nullptr;  // page * page_tokens + place for each token; -1 leaves it out
};

// Errors: kUsage for a slot that there is not; nothing is written then. Of tokens with the same
// slot the last one stays.
Status paged_append(const PagedAppend& call);

}  // namespace hetero::backend
