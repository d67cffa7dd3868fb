#include "backend/memory/host_ranges.h"

#include <vector>

#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

std::vector<void*> locked;
bool refuses = false;

bool lock(void* data, size_t) {
  if (!refuses) locked.push_back(data);
  return !refuses;
}
void unlock(void* data) { std::erase(locked, data); }

constexpr size_t kBytes = 4 * HostRanges::kLeastBytes;

}  // namespace

TEST_CASE("host ranges: what is copied again is locked until it goes") {
  std::vector<char> memory(kBytes);
  locked.clear();
  refuses = false;
  HostRanges ranges;
  ranges.add(memory.data(), kBytes);
  CHECK_FALSE(ranges.is_locked(memory.data() + 100, 1000));  // nobody locks
  ranges.set_locks({lock, unlock});
  CHECK_FALSE(ranges.is_locked(memory.data() + 100, 1000));
  CHECK(locked.empty());
  CHECK(ranges.is_locked(memory.data(), kBytes));
  CHECK(ranges.is_locked(memory.data() + kBytes - 8, 8));
  CHECK(locked == std::vector<void*>{memory.data()});
  CHECK(ranges.locked() == 1);
  ranges.remove(memory.data(), kBytes);
  CHECK(locked.empty());
  CHECK_FALSE(ranges.is_locked(memory.data(), kBytes));
}

TEST_CASE("host ranges: bytes that reach beyond a range, or lie in none, are not locked") {
  std::vector<char> memory(kBytes);
  locked.clear();
  HostRanges ranges;
  ranges.set_locks({lock, unlock});
  ranges.add(memory.data() + 64, kBytes / 2);
  for (int times = 0; times < 3; ++times) {
    CHECK_FALSE(ranges.is_locked(memory.data(), 64));
    CHECK_FALSE(ranges.is_locked(memory.data() + 128, kBytes / 2));
  }
  CHECK(locked.empty());
  ranges.add(memory.data() + kBytes - 8, 8);  // small ones are passed over
  ranges.remove(memory.data() + kBytes - 8, 8);
}

TEST_CASE("host ranges: memory that is added twice is locked until it was removed twice, and a refusal stands") {
  std::vector<char> memory(kBytes);
  locked.clear();
  HostRanges ranges;
  ranges.set_locks({lock, unlock});
  ranges.add(memory.data(), kBytes);
  ranges.add(memory.data(), kBytes);
  CHECK_FALSE(ranges.is_locked(memory.data(), 8));
  CHECK(ranges.is_locked(memory.data(), 8));
  ranges.remove(memory.data(), kBytes);
  CHECK(ranges.is_locked(memory.data(), 8));
  ranges.remove(memory.data(), kBytes);
  CHECK(locked.empty());
  refuses = true;
  ranges.add(memory.data(), kBytes);
  CHECK_FALSE(ranges.is_locked(memory.data(), 8));
  CHECK_FALSE(ranges.is_locked(memory.data(), 8));
  refuses = false;
  CHECK_FALSE(ranges.is_locked(memory.data(), 8));
  ranges.remove(memory.data(), kBytes);
}

}  // namespace hetero::backend
