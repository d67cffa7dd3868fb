// The block store where requests meet: one that counts on another's transfers, stores that share a
// memory, and blocks that fail while others are kept.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <random>
#include <thread>

#include "tests/graph/transfer/store_fixture.h"

namespace hetero::graph {
namespace {

using namespace testing;

TEST_CASE("a memory may be used with two stores", "[kvstore]") {
  const auto a = open(options_of(20)), b = open(options_of(20));
  const std::vector<int32_t> first = prompt(40, 1), second = prompt(40, 2);
  Memory in_a(small_spec(), 10), in_b(small_spec(), 10);
  put(*a, first, in_a)->wait();
  put(*b, second, in_b)->wait();
  // The memory of the one store is filled by the other.
  const BlockMatch match = b->match(second);
  in_a.clear();
  in_b.clear();
  auto request = b->get(match, in_a.view, numbers(10));
  REQUIRE(request.ok());
  CHECK(request.value()->wait() == 40);
  for (int64_t i = 0; i < 10; ++i) CHECK(in_a.is_right(i, up_to(second, i)));
}

// The first block is damaged on the disk; what follows it is in host memory only, and goes when the
// first block is put again with others behind it.
TEST_CASE("a block that only its follower keeps can be put again when that one goes", "[kvstore]") {
  const Folder folder;
  const std::vector<int32_t> tokens = prompt(8, 1), other = prompt(8, 2);
  BlockStoreOptions options = options_of(4);
  options.chunk_bytes /= 2;
  options.disk_bytes = 2 * options.spec.geometry().block_bytes();
  options.disk_folder = folder / "kv";
  {
    Memory memory(small_spec(), 2);
    REQUIRE(put(*open(options), tokens, memory)->wait_completely().ok());
  }
  {
    std::fstream file(folder / "kv/blocks", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(3);
    file.put('\x55').put('\x33').put('\x11');
  }
  const auto store = open(options);
  {
    Memory memory(small_spec(), 2);
    const BlockMatch match = store->match(tokens);
    REQUIRE(match.tokens() == 8);
    auto request = store->get(match, memory.view, numbers(2));
    REQUIRE(request.ok());
    CHECK(request.value()->wait() == 0);
  }
  store->wait_idle();
  Memory memory(small_spec(), 4);
  REQUIRE(put(*store, other, memory)->wait_completely().ok());
  std::vector<int32_t> longer = prompt(16, 3);
  std::copy_n(tokens.begin(), 4, longer.begin());
  CHECK(put(*store, longer, memory)->wait() == 16);
  memory.clear();
  const BlockMatch match = store->match(longer);
  REQUIRE(match.tokens() == 16);
  auto request = store->get(match, memory.view, numbers(4));
  REQUIRE(request.ok());
  CHECK(request.value()->wait() == 16);
  for (int64_t i = 0; i < 4; ++i) CHECK(memory.is_right(i, up_to(longer, i)));
}

TEST_CASE("a put that counts on another's transfers has what it says", "[kvstore]") {
  BlockStoreOptions options = options_of(40);
  options.remote = "memory:?latency_ms=100";
  const auto store = open(options);
  const std::vector<int32_t> tokens = prompt(80);
  Memory memory(small_spec(), 20), same(small_spec(), 20);
  const auto first = put(*store, tokens, memory), second = put(*store, tokens, same);
  first->cancel();  // does not take the blocks from the second
  CHECK(second->wait() == 80);
  CHECK(store->match(tokens, false).tokens() == 80);
  REQUIRE(second->wait_completely().ok());
  CHECK(store->counters().remote.puts == 20);
}

TEST_CASE("what only the remote store has is asked for each time", "[kvstore]") {
  BlockStoreOptions options = options_of(10);
  options.remote = "memory:forgets?drop_every=10000";
  const auto store = open(options);
  const std::vector<int32_t> tokens = prompt(40, 1);
  Memory memory(small_spec(), 10);
  REQUIRE(put(*store, tokens, memory)->wait_completely().ok());
  REQUIRE(put(*store, prompt(40, 2), memory)->wait_completely().ok());
  CHECK(store->match(tokens, false).tokens() == 0);
  CHECK(store->match(tokens).counts().remote == 10);
  const BlockMatch match = store->match(tokens);
  auto request = store->get(match, memory.view, numbers(10), {.layer_granularity = 1});
  REQUIRE(request.ok());
  CHECK(request.value()->wait() == 40);
  for (int64_t i = 0; i < 10; ++i) CHECK(memory.is_right(i, up_to(tokens, i)));
  // A chunk is two blocks, however few layers are uploaded at a time.
  CHECK(std::ranges::count_if(request.value()->graph().ops(),
                              [](const TransferOp& op) { return op.type == TransferType::kRemote2H; }) == 5);
}

TEST_CASE("what the remote store has lost is not found", "[kvstore]") {
  BlockStoreOptions options = options_of(10);
  options.remote = "memory:loses";
  const auto store = open(options);
  const std::vector<int32_t> tokens = prompt(40, 1);
  Memory memory(small_spec(), 10);
  REQUIRE(put(*store, tokens, memory)->wait_completely().ok());
  REQUIRE(put(*store, prompt(40, 2), memory)->wait_completely().ok());
  CHECK(store->match(tokens).counts().remote == 10);
  backend::RemoteOptions remote_options;
  remote_options.geometry = store->geometry();
  remote_options.fingerprint = options.spec.fingerprint();
  const auto remote = backend::open_remote(options.remote, remote_options);
  REQUIRE(remote.ok());
  std::vector<backend::BlockKey> keys;
  for (int64_t i = 0; i < 10; ++i) {
    keys.push_back(backend::chain_key(i == 0 ? remote_options.fingerprint : keys.back(),
                                      std::span(tokens).subspan(static_cast<size_t>(i * kTokens), kTokens)));
  }
  REQUIRE(remote.value()->remove(keys).ok());
  CHECK(store->match(tokens).tokens() == 0);
}

TEST_CASE("a request for room waits for those before it only", "[kvstore]") {
  BlockStoreOptions options = options_of(20);
  options.remote = "memory:?latency_ms=20";
  const auto store = open(options);
  const std::vector<int32_t> tokens = prompt(56, 1);
  Memory memory(small_spec(), 20);
  REQUIRE(put(*store, tokens, memory)->wait_completely().ok());
  const BlockMatch match = store->match(tokens);  // leaves six places
  std::atomic<bool> ends = false;
  std::vector<std::thread> others;
  for (int t = 0; t < 2; ++t) {
    others.emplace_back([&, t] {
      // One of these always runs.
      std::shared_ptr<BlockRequest> last;
      for (int seed = t; !ends; seed += 2) {
        Memory own(small_spec(), 1);
        auto request = put(*store, prompt(4, 100 + seed), own);
        request->wait();
        if (last != nullptr) static_cast<void>(last->wait_completely());
        last = request;
      }
    });
  }
  auto done = std::async(std::launch::async, [&] {
    Memory own(small_spec(), 10);
    const int64_t stored = put(*store, prompt(40, 3), own)->wait();
    return stored <= 24 && store->sync().ok();
  });
  const bool in_time = done.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  ends = true;
  for (std::thread& thread : others) thread.join();
  CHECK(in_time);
  CHECK(done.get());
}

TEST_CASE("options and layers that there are not are refused", "[kvstore]") {
  BlockStoreOptions options = options_of(10);
  options.policy = "mru";
  CHECK(BlockStore::open(options).status().error_class() == ErrorClass::kUsage);
  const auto store = open(options_of(10));
  const std::vector<int32_t> tokens = prompt(8);
  Memory memory(small_spec(), 2);
  const auto request = put(*store, tokens, memory);
  CHECK(request->wait_for_layer(2).ok());
  CHECK(request->wait_for_layer(3).error_class() == ErrorClass::kUsage);
  CHECK(request->wait_for_layer(-1).error_class() == ErrorClass::kUsage);
}

}  // namespace
}  // namespace hetero::graph
