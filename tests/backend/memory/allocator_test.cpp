#include "backend/memory/allocator.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/backend/child.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Counts what it gives and takes, and refuses when told to. The addresses it gives are never
// dereferenced.
struct FakeSource {
  int acquired = 0;
  int released = 0;
  int refusals = 0;  // how many of the next calls are refused
  Status refusal{ErrorClass::kResource, "none"};
  uintptr_t next = size_t{1} << 40;
  std::vector<void*> released_blocks;

  MemorySource source() {
    return {[](void* context, size_t bytes) -> Result<void*> {
              auto& self = *static_cast<FakeSource*>(context);
              if (self.refusals > 0) {
                --self.refusals;
                return self.refusal;
              }
              ++self.acquired;
              const uintptr_t address = self.next;
              self.next += (bytes + kMiB) / kMiB * kMiB;
              return reinterpret_cast<void*>(address);
            },
            [](void* context, void* data, size_t) {
              auto& self = *static_cast<FakeSource*>(context);
              ++self.released;
              self.released_blocks.push_back(data);
            },
            this};
  }
};

Block take(CachingAllocator& allocator, size_t bytes) {
  Result<Block> block = allocator.allocate(bytes);
  REQUIRE(block.ok());
  return std::move(block.value());
}

TEST_CASE("a host block is writable over all its bytes and aligned to 64") {
  CachingAllocator allocator(host_memory(), "cpu");
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{64}, size_t{1000}, size_t{100000}, kMiB - 1, kMiB, 3 * kMiB + 5,
                       5 * kMiB, 33 * kMiB + 1}) {
    Block block = take(allocator, bytes);
    REQUIRE(block.data() != nullptr);
    REQUIRE(block.bytes() == bytes);
    REQUIRE(reinterpret_cast<uintptr_t>(block.data()) % kAlignment == 0);
    if (bytes >= kMiB) REQUIRE(reinterpret_cast<uintptr_t>(block.data()) % 4096 == 0);
    std::memset(block.data(), 0x5a, bytes);
  }
}

TEST_CASE("blocks of zero bytes are valid and distinct") {
  CachingAllocator allocator(host_memory(), "cpu");
  Block first = take(allocator, 0);
  Block second = take(allocator, 0);
  REQUIRE(first);
  REQUIRE(first.data() != second.data());
  REQUIRE(allocator.stats().allocated_bytes == 128);
}

TEST_CASE("the block freed last serves the next request of its class") {
  FakeSource fake;
  CachingAllocator allocator(fake.source(), "fake");
  Block first = take(allocator, 1000);
  Block second = take(allocator, 1000);
  void* const second_data = second.data();
  first.reset();
  second.reset();
  Block third = take(allocator, 1010);
  REQUIRE(third.data() == second_data);
  REQUIRE(fake.acquired == 2);
  REQUIRE(allocator.stats().allocations == 3);
  REQUIRE(allocator.stats().reused_blocks == 1);
  REQUIRE(allocator.stats().reused_bytes == 1024);
}

TEST_CASE("requests of different classes do not share blocks") {
  FakeSource fake;
  CachingAllocator allocator(fake.source(), "fake");
  void* const small = take(allocator, 1000).data();
  Block large = take(allocator, 2000);
  REQUIRE(large.data() != small);
  REQUIRE(fake.acquired == 2);
}

TEST_CASE("allocated bytes are requests rounded to 64, reserved bytes include the cache") {
  FakeSource fake;
  CachingAllocator allocator(fake.source(), "fake");
  Block first = take(allocator, 1);
  Block second = take(allocator, 1100);
  MemoryStats stats = allocator.stats();
  REQUIRE(stats.allocated_bytes == 64 + 1152);
  REQUIRE(stats.reserved_bytes == 64 + 1152);
  REQUIRE(stats.peak_bytes == 64 + 1152);
  second.reset();
  stats = allocator.stats();
  REQUIRE(stats.allocated_bytes == 64);
  REQUIRE(stats.reserved_bytes == 64 + 1152);
  REQUIRE(stats.peak_bytes == 64 + 1152);
  allocator.reset_peak();
  REQUIRE(allocator.stats().peak_bytes == 64);
  allocator.empty_cache();
  REQUIRE(allocator.stats().reserved_bytes == 64);
  REQUIRE(fake.released == 1);
}

TEST_CASE("the limit refuses a block with the figures and leaves the allocator usable") {
  FakeSource fake;
  CachingAllocator allocator(fake.source(), "fake");
  allocator.set_memory_limit(3 * kMiB);
  Block held = take(allocator, 2 * kMiB);
  const Result<Block> refused = allocator.allocate(kMiB + kMiB / 2);
  REQUIRE_FALSE(refused.ok());
  REQUIRE(refused.status().error_class() == ErrorClass::kResource);
  REQUIRE(refused.status().message().find("hetero out of memory. Tried to allocate 1.50 MiB; 2.00 MiB "
                                          "already allocated, limit 3.00 MiB") == 0);
  REQUIRE(allocator.stats().allocated_bytes == static_cast<int64_t>(2 * kMiB));
  REQUIRE(allocator.stats().limit_bytes == static_cast<int64_t>(3 * kMiB));
  Block fits = take(allocator, kMiB);
  REQUIRE(allocator.stats().allocated_bytes == static_cast<int64_t>(3 * kMiB));
  allocator.set_memory_limit(0);
  REQUIRE(allocator.allocate(100 * kMiB).ok());
}

TEST_CASE("cached blocks do not count against the limit") {
  FakeSource fake;
  CachingAllocator allocator(fake.source(), "fake");
  allocator.set_memory_limit(4 * kMiB);
  for (size_t bytes = kMiB; bytes <= 4 * kMiB; bytes += kMiB) REQUIRE(allocator.allocate(bytes).ok());
  REQUIRE(allocator.stats().reserved_bytes == static_cast<int64_t>(10 * kMiB));
}

TEST_CASE("when the system has no memory the cache is released and the request retried once") {
  FakeSource fake;
  CachingAllocator allocator(fake.source(), "fake");
  take(allocator, 2 * kMiB).reset();
  take(allocator, 3 * kMiB).reset();
  fake.refusals = 1;
  Block block = take(allocator, kMiB);
  REQUIRE(fake.released == 2);
  REQUIRE(allocator.stats().reserved_bytes == static_cast<int64_t>(kMiB));
}

TEST_CASE("when the system has no memory twice the request fails and nothing is counted") {
  FakeSource fake;
  CachingAllocator allocator(fake.source(), "fake");
  Block held = take(allocator, kMiB);
  const MemoryStats before = allocator.stats();
  fake.refusals = 2;
  const Result<Block> refused = allocator.allocate(2 * kMiB);
  REQUIRE_FALSE(refused.ok());
  REQUIRE(refused.status().error_class() == ErrorClass::kResource);
  REQUIRE(refused.status().message().find("limit none") != std::string::npos);
  REQUIRE(allocator.stats().allocated_bytes == before.allocated_bytes);
  REQUIRE(allocator.stats().reserved_bytes == before.reserved_bytes);
  REQUIRE(allocator.stats().peak_bytes == before.peak_bytes);
  REQUIRE(allocator.stats().allocations == before.allocations);
  REQUIRE(allocator.allocate(2 * kMiB).ok());
}

TEST_CASE("a failed device is not taken for one without memory") {
  FakeSource fake;
  CachingAllocator allocator(fake.source(), "cuda");
  fake.refusals = 1;
  fake.refusal = Status(ErrorClass::kDevice, "cuda: cudaMalloc: device-side assert triggered");
  const Result<Block> refused = allocator.allocate(128);
  REQUIRE_FALSE(refused.ok());
  REQUIRE(refused.status().error_class() == ErrorClass::kDevice);
  REQUIRE(refused.status().message() == fake.refusal.message());
  REQUIRE(fake.acquired == 0);  // not asked again
  REQUIRE(allocator.stats().allocated_bytes == 0);
  REQUIRE(allocator.stats().reserved_bytes == 0);
  take(allocator, 128);
}

TEST_CASE("a request of absurd size fails cleanly on the host") {
  CachingAllocator allocator(host_memory(), "cpu");
  for (size_t bytes : {~size_t{0}, size_t{1} << 60, size_t{1} << 47}) {
    const Result<Block> refused = allocator.allocate(bytes);
    REQUIRE_FALSE(refused.ok());
    REQUIRE(refused.status().error_class() == ErrorClass::kResource);
  }
  REQUIRE(allocator.stats().allocated_bytes == 0);
}

TEST_CASE("the cache is bounded and gives up the large block freed longest ago first") {
  FakeSource fake;
  CachingAllocator allocator(fake.source(), "fake");
  take(allocator, 1000).reset();
  Block oldest = take(allocator, 32 * kMiB);
  void* const oldest_data = oldest.data();
  oldest.reset();
  take(allocator, 24 * kMiB).reset();
  take(allocator, 28 * kMiB).reset();
  take(allocator, 20 * kMiB).reset();
  REQUIRE(fake.released == 0);
  take(allocator, 16 * kMiB).reset();  // 120 MiB cached now; 32 at most were live at once, so 112 may be
  REQUIRE(fake.released_blocks == std::vector<void*>{oldest_data});
  REQUIRE(allocator.stats().reserved_bytes == static_cast<int64_t>(88 * kMiB) + 1024);
}

TEST_CASE("a program that repeats its steps asks the source for nothing again") {
  FakeSource fake;
  CachingAllocator allocator(fake.source(), "fake");
  // Forward, then backward with blocks of other sizes.
  const auto step = [&] {
    std::vector<Block> blocks;
    for (int i = 0; i < 8; ++i) blocks.push_back(take(allocator, 64 * kMiB));
    blocks.resize(4);
    for (int i = 0; i < 4; ++i) blocks.push_back(take(allocator, 56 * kMiB));
  };
  step();
  const int acquired = fake.acquired;
  allocator.reset_peak();
  for (int i = 0; i < 200; ++i) step();
  REQUIRE(fake.acquired == acquired);
  REQUIRE(fake.released == 0);
}

TEST_CASE("what one unusual step needed goes back to the source in time") {
  FakeSource fake;
  CachingAllocator allocator(fake.source(), "fake");
  {
    std::vector<Block> blocks;
    for (int i = 0; i < 8; ++i) blocks.push_back(take(allocator, 64 * kMiB));
  }
  REQUIRE(allocator.stats().reserved_bytes == static_cast<int64_t>(512 * kMiB));
  take(allocator, 64 * kMiB).reset();
  REQUIRE(allocator.stats().reserved_bytes == static_cast<int64_t>(512 * kMiB));
  for (int i = 0; i < 1000; ++i) take(allocator, 64 * kMiB).reset();
  REQUIRE(allocator.stats().reserved_bytes < static_cast<int64_t>(256 * kMiB));
}

TEST_CASE("what other allocators own is allocated and reserved while it lives") {
  FakeSource fake;
  CachingAllocator allocator(fake.source(), "fake");
  REQUIRE(allocator.account_external(static_cast<int64_t>(kMiB)).ok());
  REQUIRE(allocator.stats().allocated_bytes == static_cast<int64_t>(kMiB));
  REQUIRE(allocator.stats().reserved_bytes >= allocator.stats().allocated_bytes);
  REQUIRE(allocator.account_external(-static_cast<int64_t>(kMiB)).ok());
  REQUIRE(allocator.stats().reserved_bytes == 0);
  REQUIRE(fake.acquired == 0);
}

TEST_CASE("a destroyed allocator has given everything back") {
  FakeSource fake;
  {
    CachingAllocator allocator(fake.source(), "fake");
    for (size_t bytes = 1; bytes < kMiB; bytes *= 3) take(allocator, bytes).reset();
  }
  REQUIRE(fake.acquired > 0);
  REQUIRE(fake.acquired == fake.released);
}

TEST_CASE("threads that allocate at the same time never share a block or pass the limit") {
  CachingAllocator allocator(host_memory(), "cpu");
  allocator.set_memory_limit(256 * 1024);
  std::atomic<int> clashes{0};
  std::atomic<int> refusals{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<Block> held;
      for (int i = 0; i < 5000; ++i) {
        Result<Block> block = allocator.allocate(1000 + static_cast<size_t>(i % 7) * 700);
        if (!block.ok()) {
          ++refusals;
          held.clear();
          continue;
        }
        std::memset(block.value().data(), t, block.value().bytes());
        held.push_back(std::move(block.value()));
        if (i % 3 != 0) continue;
        const Block& oldest = held.front();
        const auto* bytes = static_cast<const char*>(oldest.data());
        if (bytes[0] != t || bytes[oldest.bytes() - 1] != t) ++clashes;
        held.erase(held.begin());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(clashes == 0);
  REQUIRE(refusals > 0);
  REQUIRE(allocator.stats().allocated_bytes == 0);
  REQUIRE(allocator.stats().peak_bytes <= 256 * 1024);
}

#if defined(__SANITIZE_ADDRESS__)
TEST_CASE("AddressSanitizer reports a use of a freed block") {
  CachingAllocator allocator(host_memory(), "cpu");
  Block block = take(allocator, 100);
  volatile char* data = static_cast<char*>(block.data());
  block.reset();
  REQUIRE(testing::run_in_child([&] { return data[50]; }).died_of_fault());
}
#endif

TEST_CASE("byte counts are printed with the unit a reader expects") {
  REQUIRE(format_bytes(0) == "0 bytes");
  REQUIRE(format_bytes(1023) == "1023 bytes");
  REQUIRE(format_bytes(1536) == "1.50 KiB");
  REQUIRE(format_bytes(size_t{3} << 30) == "3.00 GiB");
}

}  // namespace
}  // namespace hetero::backend
