#include "graph/kv/page_layout.h"

#include <string>

#include "backend/base/rounding.h"

namespace hetero::graph {
namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kMostBytes = int64_t{1} << 40;

}  // namespace

Status PageLayout::check() const {
  double product = static_cast<double>(backend::cache_element_bytes(element)) * 2;
  for (const int64_t size : {page_tokens, layers, kv_heads, head_size}) {
    if (size <= 0) return {ErrorClass::kUsage, "a page's sizes must be positive"};
    product *= static_cast<double>(size);
  }
  if (product > static_cast<double>(kMostBytes)) {
    return {ErrorClass::kUsage, "a page may not be larger than 1 TiB"};
  }
  return {};
}

int64_t PageLayout::scales_begin() const {
  return backend::round_up(2 * layers * plane(), static_cast<int64_t>(sizeof(float)));
}

size_t PageLayout::bytes() const {
  return static_cast<size_t>(backend::round_up(scales_begin() + 2 * layers * scale_plane(), kLine));
}

}  // namespace hetero::graph
