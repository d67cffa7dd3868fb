#include "backend/memory/address_space.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/base/size_classes.h"
#include "tests/backend/child.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

using testing::ChildOutcome;
using testing::run_in_child;

TEST_CASE("a size class holds its request with at most an eighth of waste") {
  for (size_t bytes = 1; bytes < (size_t{1} << 20); bytes += bytes / 100 + 1) {
    const size_t held = class_bytes(size_class(bytes));
    REQUIRE(held >= bytes);
    REQUIRE(held % kAlignment == 0);
    if (bytes > 512) {
      REQUIRE(held - bytes <= bytes / 8);
    } else {
      REQUIRE(held == round_to_alignment(bytes));
    }
  }
  REQUIRE(class_bytes(size_class(0)) == kAlignment);
  REQUIRE(size_class(kLargestClassBytes) == kSizeClasses - 1);
  REQUIRE(class_bytes(kSizeClasses - 1) == kLargestClassBytes);
}

TEST_CASE("each size class is the class of its own size") {
  for (int index = 0; index < kSizeClasses; ++index) {
    REQUIRE(size_class(class_bytes(index)) == index);
    if (index > 0) REQUIRE(size_class(class_bytes(index - 1) + 1) == index);
  }
}

TEST_CASE("live storages have addresses that do not overlap") {
  std::vector<std::pair<char*, size_t>> ranges;
  for (size_t i = 0; i < 2000; ++i) {
    const size_t bytes = i * i * 7 % 100003;
    char* address = static_cast<char*>(address_space::reserve(bytes));
    REQUIRE(address != nullptr);
    REQUIRE(reinterpret_cast<uintptr_t>(address) % kAlignment == 0);
    REQUIRE(address_space::contains(address));
    ranges.emplace_back(address, std::max<size_t>(bytes, 1));
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    REQUIRE(ranges[i - 1].first + ranges[i - 1].second <= ranges[i].first);
  }
  for (auto [address, bytes] : ranges) address_space::release(address, bytes);
}

TEST_CASE("a released address is handed out again, the latest first") {
  void* first = address_space::reserve(1000);
  void* second = address_space::reserve(1000);
  REQUIRE(first != second);
  address_space::release(first, 1000);
  address_space::release(second, 1000);
  REQUIRE(address_space::reserve(1001) == second);
  REQUIRE(address_space::reserve(999) == first);
  address_space::release(first, 1000);
  address_space::release(second, 1000);
}

TEST_CASE("storages of zero bytes have unique addresses") {
  void* first = address_space::reserve(0);
  void* second = address_space::reserve(0);
  REQUIRE(first != nullptr);
  REQUIRE(first != second);
  address_space::release(first, 0);
  address_space::release(second, 0);
}

TEST_CASE("a request larger than the range is refused") {
  REQUIRE(address_space::reserve(size_t{1} << 47) == nullptr);
  REQUIRE(address_space::reserve(~size_t{0}) == nullptr);
}

TEST_CASE("ordinary memory is not in the reserved range") {
  int local = 0;
  REQUIRE_FALSE(address_space::contains(&local));
  REQUIRE_FALSE(address_space::contains(nullptr));
}

TEST_CASE("threads that reserve at the same time never share an address") {
  constexpr int kThreads = 4;
  constexpr int kRounds = 20000;
  std::vector<std::thread> threads;
  std::vector<std::vector<void*>> kept(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&kept, t] {
      for (int i = 0; i < kRounds; ++i) {
        void* address = address_space::reserve(64);
        if (i % 10 == 0) {
          kept[t].push_back(address);
        } else {
          address_space::release(address, 64);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<void*> all;
  for (const auto& addresses : kept) all.insert(all.end(), addresses.begin(), addresses.end());
  std::sort(all.begin(), all.end());
  REQUIRE(all.size() == kThreads * kRounds / 10);
  REQUIRE(std::adjacent_find(all.begin(), all.end()) == all.end());
  for (void* address : all) address_space::release(address, 64);
}

TEST_CASE("a host access to a storage's address dies with a message that says what to do") {
  char* address = static_cast<char*>(address_space::reserve(4096));
  const ChildOutcome outcome = run_in_child([&] {
    address_space::install_fault_handler(nullptr);
    return *static_cast<volatile char*>(address + 100);
  });
  REQUIRE(outcome.died_of_fault());
  REQUIRE(outcome.error_output.find("hetero: the host touched the bytes of a hetero tensor at 0x") == 0);
  REQUIRE(outcome.error_output.find(".cpu()") != std::string::npos);
  address_space::release(address, 4096);
}

size_t describe_as_a_weight(const void*, char* buffer, size_t capacity) {
  const std::string text = "weight of layer 3";
  if (capacity < text.size()) return 0;
  std::memcpy(buffer, text.data(), text.size());
  return text.size();
}

TEST_CASE("the message names the storage where its owner can describe it") {
  char* address = static_cast<char*>(address_space::reserve(4096));
  const ChildOutcome outcome = run_in_child([&] {
    address_space::install_fault_handler(describe_as_a_weight);
    *static_cast<volatile char*>(address) = 1;
    return 0;
  });
  REQUIRE(outcome.died_of_fault());
  REQUIRE(outcome.error_output.find("(weight of layer 3)") != std::string::npos);
  address_space::release(address, 4096);
}

TEST_CASE("a fault elsewhere is left to the previous handler without a message") {
  const ChildOutcome outcome = run_in_child([] {
    struct sigaction action = {};
    action.sa_handler = [](int) { _exit(7); };
    sigaction(SIGSEGV, &action, nullptr);
    address_space::install_fault_handler(nullptr);
    volatile uintptr_t unmapped = 8;
    return *reinterpret_cast<volatile char*>(unmapped);
  });
  REQUIRE(outcome.exit_code == 7);
  REQUIRE(outcome.error_output.find("hetero") == std::string::npos);
}

TEST_CASE("a fault in the range reaches the previous handler after the message") {
  char* address = static_cast<char*>(address_space::reserve(64));
  const ChildOutcome outcome = run_in_child([&] {
    struct sigaction action = {};
    action.sa_handler = [](int) { _exit(7); };
    sigaction(SIGSEGV, &action, nullptr);
    address_space::install_fault_handler(nullptr);
    return *static_cast<volatile char*>(address);
  });
  REQUIRE(outcome.exit_code == 7);
  REQUIRE(outcome.error_output.find("hetero: the host touched") == 0);
  address_space::release(address, 64);
}

#if !defined(__SANITIZE_THREAD__)  // TSan does not follow a fork of a process with threads
TEST_CASE("a child forked while other threads reserve can reserve") {
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      address_space::release(address_space::reserve(64), 64);
    }
  });
  for (int i = 0; i < 50; ++i) {
    const ChildOutcome outcome = run_in_child([] {
      void* address = address_space::reserve(64);
      address_space::release(address, 64);
      return address != nullptr ? 0 : 1;
    });
    REQUIRE(outcome.exit_code == 0);
  }
  stop = true;
  busy.join();
}
#endif

}  // namespace
}  // namespace hetero::backend
