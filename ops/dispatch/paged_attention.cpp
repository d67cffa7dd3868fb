// hetero::paged_attention and hetero::paged_append_: attention over a KV cache in pages, and the
// writing of pages. docs/kv_cache.md describes the arguments; backend/cpu/paged/paged_attention.h
// computes them.
//
// 1. what the arguments must be, for the CPU's kernels and the Meta kernels alike
// 2. the CPU's kernels
// 3. registration; tensors of the device are recorded by the catch-all
//
// Wrong shapes are found when a call is recorded. A wrong page number, length or slot is found when
// the kernel runs: on the device that is where a value is needed.

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <cmath>
#include <optional>

#include "backend/cpu/paged/paged_attention.h"

namespace hetero::ops {
namespace {

using at::Tensor;
using backend::CacheElement;
using backend::Element;
using OptionalTensor = std::optional<Tensor>;

// ---- 1. arguments

bool is_given(const OptionalTensor& tensor) { return tensor.has_value() && tensor->defined(); }

Element element_of(const char* name, at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return Element::kFloat32;
    case at::kBFloat16:
      return Element::kBfloat16;
    case at::kHalf:
      return Element::kFloat16;
    default:
      TORCH_CHECK_TYPE(false, name, " must be float32, bfloat16 or float16, not ", type);
  }
}

CacheElement cache_element_of(const char* name, at::ScalarType type) {
  if (type == at::kChar) return CacheElement::kInt8;
  if (type == at::kFloat8_e4m3fn) return CacheElement::kFloat8;
  return backend::cache_element(element_of(name, type));
}

void check_integers(const char* name, const Tensor& tensor, int64_t dim, const c10::SymInt& size) {
  TORCH_CHECK_TYPE(tensor.scalar_type() == at::kInt, name, " must be int32, not ", tensor.scalar_type());
  TORCH_CHECK(tensor.dim() == dim, name, " must have ", dim, dim == 1 ? " dimension, not " : " dimensions, not ",
              tensor.dim());
  TORCH_CHECK(tensor.sym_size(0) == size, name, " has ", tensor.sym_size(0), " entries, and ", size, " are needed");
}

// A pair of caches and their scales.
struct Pages {
  const Tensor& keys;
  const Tensor& values;
  const OptionalTensor& key_scales;
  const OptionalTensor& value_scales;

  void check(const c10::SymInt& head_size) const {
    TORCH_CHECK(keys.dim() == 4 && values.dim() == 4,
                "key_pages and value_pages must be [pages, kv_heads, page_tokens, head_size]");
    TORCH_CHECK(keys.sym_sizes() == values.sym_sizes() && keys.scalar_type() == values.scalar_type(),
                "key_pages and value_pages must have the same sizes and dtype");
    TORCH_CHECK(keys.sym_size(3) == head_size, "the heads of key_pages have ", keys.sym_size(3),
                " elements, and those of the other tensors ", head_size);
    TORCH_CHECK(keys.sym_size(2) > 0, "a page must have room for a token");
    for (const Tensor* side : {&keys, &values}) {
      TORCH_CHECK(side->sym_size(3) <= 1 || side->sym_stride(3) == 1,
                  "key_pages and value_pages must be dense along their last dimension");
    }
    const bool scaled = backend::has_scales(cache_element_of("key_pages", keys.scalar_type()));
    check_scales("key_scales", key_scales, scaled);
    check_scales("value_scales", value_scales, scaled);
  }

  void check_scales(const char* name, const OptionalTensor& scales, bool wanted) const {
    TORCH_CHECK(is_given(scales) == wanted, name, wanted ? " are needed for" : " are not for", " pages of ",
                keys.scalar_type());
    if (!wanted) return;
    TORCH_CHECK_TYPE(scales->scalar_type() == at::kFloat, name, " must be float32, not ", scales->scalar_type());
    TORCH_CHECK(scales->sym_sizes() == keys.sym_sizes().slice(0, 3), name,
                " must be [pages, kv_heads, page_tokens], a scale for each row");
  }

  backend::PagedRows rows(const Tensor& side, const OptionalTensor& scales) const {
    backend::PagedRows rows{.data = side.const_data_ptr(),
                            .page_stride = side.stride(0),
                            .head_stride = side.stride(1),
                            .token_stride = side.stride(2)};
    if (!is_given(scales)) return rows;
    rows.scales = scales->const_data_ptr<float>();
    rows.scale_page_stride = scales->stride(0);
    rows.scale_head_stride = scales->stride(1);
    rows.scale_token_stride = scales->stride(2);
    return rows;
  }
};

void check_attention(const Tensor& query, const Pages& pages, const Tensor& block_table, const Tensor& lengths,
                     const OptionalTensor& query_starts, int64_t window, int64_t sinks) {
  element_of("query", query.scalar_type());
  TORCH_CHECK(query.dim() == 3 || query.dim() == 4,
              "query must be [tokens, heads, head_size] or [sequences, "
              "queries, heads, head_size], not of ",
              query.dim(), " dimensions");
  const bool padded = query.dim() == 4;
  pages.check(query.sym_size(-1));
  const c10::SymInt heads = query.sym_size(-2), kv_heads = pages.keys.sym_size(1);
  TORCH_CHECK(kv_heads > 0 && heads % kv_heads == 0, "the ", heads, " heads of query are no multiple of the ", kv_heads,
              " heads of key_pages");
  TORCH_CHECK(lengths.dim() == 1, "lengths must have 1 dimension, not ", lengths.dim());
  const c10::SymInt sequences = lengths.sym_size(0);
  check_integers("lengths", lengths, 1, sequences);
  check_integers("block_table", block_table, 2, sequences);
  if (is_given(query_starts)) {
    TORCH_CHECK(!padded, "query_starts is for query as [tokens, heads, head_size]");
    check_integers("query_starts", *query_starts, 1, sequences + 1);
  } else {
    TORCH_CHECK(query.sym_size(0) == sequences, "query has ", query.sym_size(0), padded ? " sequences" : " tokens",
                ", and lengths says ", sequences, " sequences", padded ? "" : "; several queries need query_starts");
  }
  TORCH_CHECK(window >= 0 && sinks >= 0, "window and sinks cannot be negative");
}

void check_append(const Pages& pages, const Tensor& key, const Tensor& value, const Tensor& slots) {
  TORCH_CHECK(key.dim() == 3, "key must be [tokens, kv_heads, head_size]");
  TORCH_CHECK(key.sym_sizes() == value.sym_sizes() && key.scalar_type() == value.scalar_type(),
              "key and value must have the same sizes and dtype");
  element_of("key", key.scalar_type());
  pages.check(key.sym_size(2));
  TORCH_CHECK(key.sym_size(1) == pages.keys.sym_size(1), "key has ", key.sym_size(1), " heads, and key_pages ",
              pages.keys.sym_size(1));
  TORCH_CHECK_TYPE(slots.scalar_type() == at::kLong, "slots must be int64, not ", slots.scalar_type());
  TORCH_CHECK(slots.dim() == 1 && slots.sym_size(0) == key.sym_size(0), "slots must be one for each of the ",
              key.sym_size(0), " tokens");
}

// ---- 2. the CPU's kernels

Tensor dense_rows(const Tensor& tensor) {
  return tensor.size(-1) <= 1 || tensor.stride(-1) == 1 ? tensor : tensor.contiguous();
}

Tensor paged_attention(const Tensor& query, const Tensor& key_pages, const Tensor& value_pages,
                       const Tensor& block_table, const Tensor& lengths, const OptionalTensor& query_starts,
                       std::optional<double> scale, int64_t window, int64_t sinks, const OptionalTensor& key_scales,
                       const OptionalTensor& value_scales) {
  const Pages pages{key_pages, value_pages, key_scales, value_scales};
  check_attention(query, pages, block_table, lengths, query_starts, window, sinks);
  Tensor out = at::empty(query.sizes(), query.options().memory_format(at::MemoryFormat::Contiguous));
  const int64_t heads = query.size(-2), head_size = query.size(-1);
  const Tensor rows = query.dim() == 4 ? query.reshape({-1, heads, head_size}) : query;
  const Tensor queries = dense_rows(rows), table = dense_rows(block_table), ends = lengths.contiguous();
  const Tensor starts = is_given(query_starts) ? query_starts->contiguous() : Tensor();
  if (out.numel() == 0) return out;
  const backend::PagedAttention call{
      .element = element_of("query", query.scalar_type()),
      .cache = cache_element_of("key_pages", key_pages.scalar_type()),
      .sequences = ends.size(0),
      .tokens = queries.size(0),
      .heads = heads,
      .kv_heads = key_pages.size(1),
      .head_size = head_size,
      .pages = key_pages.size(0),
      .page_tokens = key_pages.size(2),
      .query = queries.const_data_ptr(),
      .query_token_stride = queries.stride(0),
      .query_head_stride = queries.stride(1),
      .out = out.mutable_data_ptr(),
      .keys = pages.rows(key_pages, key_scales),
      .values = pages.rows(value_pages, value_scales),
      .table = table.const_data_ptr<int32_t>(),
      .table_stride = table.stride(0),
      .blocks = table.size(1),
      .lengths = ends.const_data_ptr<int32_t>(),
      .starts = starts.defined() ? starts.const_data_ptr<int32_t>() : nullptr,
      .scale = static_cast<float>(scale.value_or(1 / std::sqrt(static_cast<double>(head_size)))),
      .window = window,
      .sinks = sinks};
  const Status status = backend::paged_attention(call);
  TORCH_CHECK_INDEX(status.ok(), status.message());
  return out;
}

void paged_append(const Tensor& key_pages, const Tensor& value_pages, const Tensor& key, const Tensor& value,
                  const Tensor& slots, const OptionalTensor& key_scales, const OptionalTensor& value_scales) {
  const Pages pages{key_pages, value_pages, key_scales, value_scales};
  check_append(pages, key, value, slots);
  const Tensor keys = dense_rows(key), values = dense_rows(value), places = slots.contiguous();
  if (keys.numel() == 0) return;
  const backend::PagedAppend call{.element = element_of("key", key.scalar_type()),
                                  .cache = cache_element_of("key_pages", key_pages.scalar_type()),
                                  .tokens = keys.size(0),
                                  .kv_heads = keys.size(1),
                                  .head_size = keys.size(2),
                                  .pages = key_pages.size(0),
                                  .page_tokens = key_pages.size(2),
                                  .key = keys.const_data_ptr(),
                                  .key_token_stride = keys.stride(0),
                                  .key_head_stride = keys.stride(1),
                                  .value = values.const_data_ptr(),
                                  .value_token_stride = values.stride(0),
                                  .value_head_stride = values.stride(1),
                                  .keys = pages.rows(key_pages, key_scales),
                                  .values = pages.rows(value_pages, value_scales),
                                  .slots = places.const_data_ptr<int64_t>()};
  const Status status = backend::paged_append(call);
  TORCH_CHECK_INDEX(status.ok(), status.message());
}

// ---- 3. registration

Tensor paged_attention_meta(const Tensor& query, const Tensor& key_pages, const Tensor& value_pages,
                            const Tensor& block_table, const Tensor& lengths, const OptionalTensor& query_starts,
                            std::optional<double>, int64_t window, int64_t sinks, const OptionalTensor& key_scales,
                            const OptionalTensor& value_scales) {
  check_attention(query, {key_pages, value_pages, key_scales, value_scales}, block_table, lengths, query_starts, window,
                  sinks);
  return at::empty_symint(query.sym_sizes(), query.options().memory_format(at::MemoryFormat::Contiguous));
}

void paged_append_meta(const Tensor& key_pages, const Tensor& value_pages, const Tensor& key, const Tensor& value,
                       const Tensor& slots, const OptionalTensor& key_scales, const OptionalTensor& value_scales) {
  check_append({key_pages, value_pages, key_scales, value_scales}, key, value, slots);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hetero, library) {
  library.def(
      "paged_attention(Tensor query, Tensor key_pages, Tensor value_pages, Tensor block_table, Tensor lengths, *, "
      "Tensor? query_starts=None, float? scale=None, int window=0, int sinks=0, Tensor? key_scales=None, "
      "Tensor? value_scales=None) -> Tensor");
  library.def(
      "paged_append_(Tensor(a!) key_pages, Tensor(b!) value_pages, Tensor key, Tensor value, Tensor slots, *, "
      "Tensor(c!)? key_scales=None, Tensor(d!)? value_scales=None) -> ()");
}

TORCH_LIBRARY_IMPL(hetero, CPU, library) {
  library.impl("paged_attention", TORCH_FN(paged_attention));
  library.impl("paged_append_", TORCH_FN(paged_append));
}

TORCH_LIBRARY_IMPL(hetero, Meta, library) {
  library.impl("paged_attention", TORCH_FN(paged_attention_meta));
  library.impl("paged_append_", TORCH_FN(paged_append_meta));
}

}  // namespace hetero::ops
