// Host memory that is touched ahead: as far as it should be, without changing a byte, and no longer
// than the pool lives.

#include "backend/memory/host_pool.h"

#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "backend/memory/host_ranges.h"
#include "tests/backend/child.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

constexpr size_t kPage = 4096;

size_t resident_pages(const HostPool& pool, size_t begin, size_t end) {
  std::vector<unsigned char> pages((end - begin) / kPage);
  REQUIRE(mincore(pool.data() + begin, end - begin, pages.data()) == 0);
  size_t count = 0;
  for (const unsigned char page : pages) count += page & 1U;
  return count;
}

// False where the system populates nothing.
bool reaches(const HostPool& pool, size_t bytes) {
  for (int i = 0; i < 2000 && pool.touched() < bytes; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return pool.touched() >= bytes;
}

}  // namespace

TEST_CASE("a child of a fork gets no copy of the pool, and its end there harms nothing", "[kv]") {
  HostPool pool(size_t{1} << 20, kPage, false);
  REQUIRE(pool.data() != nullptr);
  pool.data()[0] = std::byte{7};
  const std::byte* const data = pool.data();
  CHECK(testing::run_in_child([&] { return static_cast<int>(data[0]); }).died_of_fault());
  CHECK(testing::run_in_child([&] {
          // It may lie where the pool lay.
          const HostPool own(size_t{1} << 20, kPage, false, 0);
          own.data()[5] = std::byte{1};
          pool.~HostPool();
          return static_cast<int>(own.data()[5]) - 1;
        }).exit_code == 0);
  CHECK(pool.data()[0] == std::byte{7});
}

TEST_CASE("memory is touched so far ahead of its use, and no further", "[kv]") {
  constexpr size_t kBytes = size_t{64} << 20, kAhead = 2 * HostPool::kPiece;
  HostPool pool(kBytes, kPage, false, kAhead);
  REQUIRE(pool.data() != nullptr);
  if (!reaches(pool, kAhead)) return;
  CHECK(resident_pages(pool, 0, kAhead) == kAhead / kPage);
  pool.use_up_to(HostPool::kPiece);
  REQUIRE(reaches(pool, kAhead + HostPool::kPiece));
  pool.use_up_to(1);  // behind what was used
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(pool.touched() == kAhead + HostPool::kPiece);
  CHECK(resident_pages(pool, kAhead + HostPool::kPiece, kBytes) == 0);
  pool.use_up_to(kBytes);
  REQUIRE(reaches(pool, kBytes));
  CHECK(pool.touched() == kBytes);
}

TEST_CASE("touching ahead changes no byte that is written meanwhile", "[kv]") {
  constexpr size_t kBytes = size_t{16} << 20;
  HostPool pool(kBytes, kPage, true);
  for (size_t i = 0; i < kBytes; i += 64) pool.data()[i] = static_cast<std::byte>(i / 64 % 251 + 1);
  (void)reaches(pool, kBytes);
  size_t wrong = 0;
  for (size_t i = 0; i < kBytes; i += 64) wrong += pool.data()[i] != static_cast<std::byte>(i / 64 % 251 + 1) ? 1 : 0;
  CHECK(wrong == 0);
}

TEST_CASE("a pool may go while it is touched, be of any size, and touch nothing", "[kv]") {
  for (int i = 0; i < 20; ++i) {
    HostPool pool(size_t{1} << 30, kPage, false);
    pool.use_up_to(size_t{1} << 30);
  }
  HostPool small(kPage, kPage, true);
  small.use_up_to(kPage);
  std::memset(small.data(), 1, kPage);
  HostPool none(size_t{16} << 20, kPage, false, 0);
  none.use_up_to(size_t{16} << 20);
  CHECK(none.touched() == 0);
  CHECK(resident_pages(none, 0, size_t{16} << 20) == 0);
}

TEST_CASE("a device locks the parts of a pool that it copies again, and they are unlocked before they go", "[kv]") {
  static std::vector<std::pair<void*, size_t>> locked;
  HostRanges& ranges = host_ranges();
  ranges.set_locks({[](void* data, size_t bytes) {
                      locked.emplace_back(data, bytes);
                      return true;
                    },
                    [](void* data) { std::erase_if(locked, [&](const auto& range) { return range.first == data; }); }});
  {
    constexpr size_t kBlock = size_t{3} << 20, kBytes = 50 * kBlock, kPart = 21 * kBlock;  // 63 MiB
    HostPool pool(kBytes, kBlock, false, 0);
    CHECK(!ranges.is_locked(pool.data() + kPart, kBlock));
    CHECK(ranges.is_locked(pool.data() + kPart, kBlock));
    CHECK(ranges.is_locked(pool.data() + 2 * kPart - kBlock, kBlock));
    CHECK(!ranges.is_locked(pool.data() + 2 * kPart - kBlock, 2 * kBlock));  // of two parts
    CHECK(locked == std::vector<std::pair<void*, size_t>>{{pool.data() + kPart, kPart}});
    CHECK(!ranges.is_locked(pool.data() + kBytes - kBlock, kBlock));
    CHECK(ranges.is_locked(pool.data() + kBytes - kBlock, kBlock));
    CHECK(locked.back().second == 8 * kBlock);
  }
  CHECK(locked.empty());
  ranges.set_locks({});
}

}  // namespace hetero::backend
