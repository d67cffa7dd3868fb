// RangePieces: how threads divide a range of indices among them, so that none waits long for
// another.
//
// Each thread has a share of the range, and takes pieces from its front: half of what is left, but
// `grain` indices or more. With its own share done it goes on with those of the others in the same
// way. So a thread that a core was taken away from, or whose indices are more work, or that comes
// late, keeps the others waiting for one piece at most; and where all are alike, each works on
// indices side by side, in a number of pieces that grows with the logarithm of its share.
//
//   RangePieces pieces(0, rows, 64, threads);
//   on_each_thread([&](int64_t thread) { pieces.work(thread, body); });
//
// Thread safety: work() may be called by several threads at once, also by fewer than there are
// shares.

#pragma once

#include <atomic>
#include <cstdint>

#include "backend/base/parallel.h"

namespace hetero::backend {

class RangePieces {
 public:
  // REQUIRES: begin < end, grain > 0, shares > 0. Of many threads, some have one share together.
  RangePieces(int64_t begin, int64_t end, int64_t grain, int64_t shares);

  // Calls `body` on pieces until nothing is left to take; others may still be at work on theirs.
  void work(int64_t share, RangeFunction body);

 private:
  struct alignas(64) Share {
    std::atomic<int64_t> next;
    int64_t end;
  };
  static constexpr int64_t kMostShares = 64;

  int64_t grain_, count_;
  Share shares_[kMostShares];
};

}  // namespace hetero::backend
