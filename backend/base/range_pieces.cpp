#include "backend/base/range_pieces.h"

#include <algorithm>

namespace hetero::backend {

RangePieces::RangePieces(int64_t begin, int64_t end, int64_t grain, int64_t shares)
    : grain_(grain), count_(std::min(shares, kMostShares)) {
  const int64_t each = (end - begin) / count_, longer = (end - begin) % count_;
  for (int64_t i = 0; i < count_; ++i) {
    shares_[i].next.store(begin, std::memory_order_relaxed);
    shares_[i].end = begin += each + (i < longer ? 1 : 0);
  }
}

void RangePieces::work(int64_t share, RangeFunction body) {
  for (int64_t i = 0; i < count_; ++i) {
    Share& from = shares_[(share + i) % count_];
    int64_t next = from.next.load(std::memory_order_relaxed);
    while (next < from.end) {
      const int64_t piece = std::max(grain_, (from.end - next) / 2);
      next = from.next.fetch_add(piece, std::memory_order_relaxed);
      if (next >= from.end) break;
      body(next, std::min(next + piece, from.end));
      next = from.next.load(std::memory_order_relaxed);
    }
  }
}

}  // namespace hetero::backend
