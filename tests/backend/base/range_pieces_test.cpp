#include "backend/base/range_pieces.h"

#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

TEST_CASE("pieces cover a range once, whoever takes them") {
  for (const int64_t size : {1, 2, 7, 64, 1000}) {
    for (const int64_t grain : {1, 3, 200}) {
      for (const int64_t shares : {1, 2, 3, 8, 64, 100}) {
        for (const bool alone : {true, false}) {
          const int64_t begin = -5, end = begin + size;
          std::vector<std::atomic<int>> taken(static_cast<size_t>(size));
          RangePieces pieces(begin, end, grain, shares);
          const auto work = [&](int64_t share) {
            pieces.work(share, [&](int64_t from, int64_t to) {
              for (int64_t i = from; i < to; ++i) ++taken[static_cast<size_t>(i - begin)];
            });
          };
          std::vector<std::thread> threads;
          for (int64_t share = 1; !alone && share < shares; ++share) threads.emplace_back(work, share);
          work(0);
          for (std::thread& it : threads) it.join();
          int64_t once = 0;
          for (const std::atomic<int>& it : taken) once += it == 1 ? 1 : 0;
          CAPTURE(size, grain, shares, alone);
          REQUIRE(once == size);
        }
      }
    }
  }
}

TEST_CASE("pieces become smaller, down to a grain") {
  std::vector<std::pair<int64_t, int64_t>> taken;
  RangePieces pieces(0, 100, 4, 2);
  pieces.work(0, [&](int64_t from, int64_t to) { taken.emplace_back(from, to); });
  const std::vector<std::pair<int64_t, int64_t>> expected{{0, 25},  {25, 37}, {37, 43}, {43, 47}, {47, 50},
                                                          {50, 75}, {75, 87}, {87, 93}, {93, 97}, {97, 100}};
  REQUIRE(taken == expected);
}

TEST_CASE("a thread that stays at its first piece leaves the others the rest") {
  RangePieces pieces(0, 64, 1, 2);
  std::atomic<bool> has_piece{false}, others_done{false};
  int64_t kept = 0;
  std::thread slow([&] {
    pieces.work(0, [&](int64_t from, int64_t to) {
      kept += to - from;
      has_piece = true;
      while (!others_done) std::this_thread::yield();
    });
  });
  while (!has_piece) std::this_thread::yield();
  int64_t done = 0;
  pieces.work(1, [&](int64_t from, int64_t to) { done += to - from; });
  others_done = true;
  slow.join();
  REQUIRE(kept == 16);
  REQUIRE(done == 48);
}

}  // namespace
}  // namespace hetero::backend
