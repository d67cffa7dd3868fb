// The block store against an oracle: whatever it delivers has the bytes that were put, from every
// tier, through evictions, restarts, failures, cancels and threads.

#include "graph/transfer/block_store.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "tests/graph/transfer/store_fixture.h"

namespace hetero::graph {
namespace {

using namespace testing;

int64_t put_all(BlockStore& store, const std::vector<int32_t>& tokens, bool completely = true) {
  Memory memory(small_spec(), static_cast<int64_t>(tokens.size()) / kTokens);
  const auto request = put(store, tokens, memory);
  const int64_t stored = request->wait();
  if (completely) REQUIRE(request->wait_completely().ok());
  return stored;
}

// The tokens that arrive, all with the right bytes.
int64_t get_all(BlockStore& store, const std::vector<int32_t>& tokens, const GetOptions& options = {},
                bool rows = false) {
  const BlockMatch match = store.match(tokens);
  const int64_t known = match.tokens() / kTokens;
  if (known <= options.first_block) return match.tokens();
  Memory memory(small_spec(), known, rows);
  memory.clear();
  const std::vector<int64_t> blocks = numbers(known - options.first_block, options.first_block);
  auto request = store.get(match, memory.view, blocks, options);
  REQUIRE(request.ok());
  const int64_t usable = request.value()->wait();
  for (int64_t i = options.first_block; i < usable / kTokens; ++i) {
    INFO("block " << i);
    REQUIRE(memory.is_right(i, up_to(tokens, i)));
  }
  return usable;
}

TEST_CASE("what was put comes back from host memory, in both layouts", "[kvstore]") {
  const auto store = open(options_of(100));
  const std::vector<int32_t> tokens = prompt(42);
  CHECK(get_all(*store, tokens) == 0);
  CHECK(put_all(*store, tokens) == 40);
  CHECK(get_all(*store, tokens) == 40);
  CHECK(get_all(*store, tokens, {}, true) == 40);
  CHECK(get_all(*store, tokens, {.first_block = 3}) == 40);
  CHECK(get_all(*store, tokens, {.layer_granularity = 1}) == 40);
  CHECK(get_all(*store, tokens, {.layer_granularity = 2}) == 40);
  std::vector<int32_t> other = tokens;
  other[17] ^= 1;  // in block 4
  CHECK(get_all(*store, other) == 16);
  const BlockStoreCounters counters = store->counters();
  CHECK(counters.stored == 10);
  CHECK(counters.host_used == 10);
  CHECK(counters.pinned == 0);
}

TEST_CASE("putting a longer prompt copies only what is new", "[kvstore]") {
  const auto store = open(options_of(100));
  const std::vector<int32_t> tokens = prompt(80);
  CHECK(put_all(*store, {tokens.begin(), tokens.begin() + 40}) == 40);
  CHECK(put_all(*store, tokens) == 80);
  CHECK(store->counters().stored == 20);
  CHECK(get_all(*store, tokens) == 80);
}

TEST_CASE("what host memory has no room for comes from the disk, after a restart too", "[kvstore]") {
  const Folder folder;
  const std::vector<int32_t> first = prompt(40, 1), second = prompt(40, 2), third = prompt(40, 3);
  {
    const auto store = open(options_of(12, folder / "kv"));
    for (const auto& tokens : {first, second, third}) CHECK(put_all(*store, tokens) == 40);
    CHECK(store->counters().evicted_host == 18);
    for (const auto& tokens : {first, second, third}) CHECK(get_all(*store, tokens) == 40);
    CHECK(store->counters().from_disk >= 20);
    CHECK(store->counters().pinned == 0);
  }
  for (int round = 0; round < 3; ++round) {
    const auto store = open(options_of(12, folder / "kv"));
    CHECK(store->counters().disk.recovered == 30);
    for (const auto& tokens : {first, second, third}) {
      CHECK(store->match(tokens).tokens() == 40);
      CHECK(get_all(*store, tokens, {.layer_granularity = round}) == 40);
    }
    CHECK(store->counters().from_disk == 30);
  }
}

TEST_CASE("a disk that is full forgets the ends of what was used least recently", "[kvstore]") {
  const Folder folder;
  const auto store = open(options_of(10, folder / "kv", 16));
  const std::vector<int32_t> first = prompt(40, 1), second = prompt(40, 2);
  CHECK(put_all(*store, first) == 40);
  CHECK(put_all(*store, second) == 40);
  CHECK(get_all(*store, second) == 40);
  CHECK(get_all(*store, first) == 24);
  CHECK(store->counters().evicted_disk == 4);
}

TEST_CASE("stores share blocks through a remote store, and keep them on their disks", "[kvstore]") {
  const Folder folder;
  const std::vector<int32_t> tokens = prompt(40);
  BlockStoreOptions options = options_of(100);
  options.remote = "memory:shared-by-stores";
  {
    const auto store = open(options);
    CHECK(put_all(*store, tokens) == 40);
  }
  options.disk_folder = folder / "kv";
  {
    const auto store = open(options);
    CHECK(store->match(tokens, false).tokens() == 0);
    const BlockMatch match = store->match(tokens);
    CHECK(match.counts().remote == 10);
    CHECK(get_all(*store, tokens, {.layer_granularity = 1}) == 40);
    store->wait_idle();
    CHECK(store->counters().from_remote == 10);
    CHECK(store->counters().disk.writes == 10);
    CHECK(get_all(*store, tokens) == 40);
    CHECK(store->counters().from_remote == 10);
  }
  options.remote.clear();
  const auto store = open(options);
  CHECK(get_all(*store, tokens) == 40);
}

TEST_CASE("what differs in one field of the specification is not found", "[kvstore]") {
  const std::vector<int32_t> tokens = prompt(40);
  BlockStoreOptions options = options_of(100);
  options.remote = "memory:fingerprints";
  CHECK(put_all(*open(options), tokens) == 40);
  for (int field = 0; field < 4; ++field) {
    BlockStoreOptions other = options;
    if (field == 0) other.spec.revision = "2";
    if (field == 1) other.spec.adapter = "lora";
    if (field == 2) other.spec.name_space = "another tenant";
    if (field == 3) other.spec.dtype = "float16";
    CHECK(open(other)->match(tokens).tokens() == 0);
  }
  CHECK(open(options)->match(tokens).tokens() == 40);
}

TEST_CASE("a folder of another specification is refused in one sentence", "[kvstore]") {
  const Folder folder;
  BlockStoreOptions options = options_of(100, folder / "kv");
  open(options);
  options.spec.revision = "2";
  const auto store = BlockStore::open(options);
  REQUIRE_FALSE(store.ok());
  CHECK(store.status().error_class() == ErrorClass::kStorage);
}

TEST_CASE("requests beside each other read a block from the disk once", "[kvstore]") {
  const Folder folder;
  const std::vector<int32_t> tokens = prompt(400);
  put_all(*open(options_of(200, folder / "kv")), tokens);
  const auto store = open(options_of(200, folder / "kv"));
  std::atomic<int64_t> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      const BlockMatch match = store->match(tokens);
      Memory memory(small_spec(), 100);
      memory.clear();
      auto request = store->get(match, memory.view, numbers(100));
      if (!request.ok() || request.value()->wait() != 400) {
        ++wrong;
        return;
      }
      for (int64_t i = 0; i < 100; ++i) wrong += !memory.is_right(i, up_to(tokens, i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  store->wait_idle();
  CHECK(store->counters().disk.reads == 100);
  CHECK(store->counters().pinned == 0);
}

TEST_CASE("a prefetch brings blocks to host memory", "[kvstore]") {
  const Folder folder;
  const std::vector<int32_t> tokens = prompt(40);
  put_all(*open(options_of(20, folder / "kv")), tokens);
  const auto store = open(options_of(20, folder / "kv"));
  const BlockMatch match = store->match(tokens);
  CHECK(match.counts().disk == 10);
  auto request = store->prefetch(match);
  REQUIRE(request.ok());
  CHECK(request.value()->wait() == 40);
  store->wait_idle();
  CHECK(store->match(tokens).counts().host == 10);
}

TEST_CASE("a remote store that fails delivers a prefix of right blocks, and no one waits for it", "[kvstore]") {
  const std::vector<int32_t> tokens = prompt(400);
  BlockStoreOptions options = options_of(200);
  options.remote = "memory:faulty";
  put_all(*open(options), tokens);
  for (const char* const faults : {"?torn_every=7", "?fail_every=5", "?drop_every=9"}) {
    options.remote = std::string("memory:faulty").append(faults);
    options.remote_timeout_seconds = 0.2;
    const auto store = open(options);
    CHECK(get_all(*store, tokens) <= 400);
    store->wait_idle();
    CHECK(store->counters().pinned == 0);
  }
}

TEST_CASE("more blocks than host memory can hold are a prefix", "[kvstore]") {
  const Folder folder;
  const std::vector<int32_t> tokens = prompt(80);
  put_all(*open(options_of(30, folder / "kv")), tokens);
  const auto store = open(options_of(8, folder / "kv"));
  CHECK(get_all(*store, tokens) == 32);
  CHECK(store->counters().no_room == 12);
  CHECK(put_all(*store, prompt(80, 5), false) == 32);
  store->wait_idle();
  CHECK(store->counters().pinned == 0);
}

TEST_CASE("a block goes to the disk after it was used again so often", "[kvstore]") {
  const Folder folder;
  BlockStoreOptions options = options_of(30, folder / "kv");
  options.disk_after_hits = 2;
  const auto store = open(options);
  const std::vector<int32_t> tokens = prompt(40);
  put_all(*store, tokens);
  get_all(*store, tokens);
  store->wait_idle();
  CHECK(store->counters().disk.writes == 0);
  get_all(*store, tokens);
  store->wait_idle();
  CHECK(store->counters().disk.writes == 10);
}

TEST_CASE("what is faster computed than loaded is not loaded", "[kvstore]") {
  const Folder folder;
  const std::vector<int32_t> tokens = prompt(400), others = prompt(400, 7);
  {
    const auto store = open(options_of(300, folder / "kv"));
    put_all(*store, tokens);
    put_all(*store, others);
  }
  BlockStoreOptions options = options_of(300, folder / "kv");
  options.prefill_rate = 1e12;
  const auto store = open(options);
  CHECK(get_all(*store, tokens) == 400);  // this one measures
  CHECK(get_all(*store, others) == 0);
  CHECK(store->counters().not_worth == 100);
}

TEST_CASE("a store that is reset has nothing", "[kvstore]") {
  const Folder folder;
  const std::vector<int32_t> tokens = prompt(40);
  {
    const auto store = open(options_of(30, folder / "kv"));
    put_all(*store, tokens);
    {
      const BlockMatch match = store->match(tokens);
      CHECK_FALSE(store->reset().ok());
    }
    REQUIRE(store->reset().ok());
    CHECK(store->match(tokens).tokens() == 0);
    CHECK(store->counters().host_used == 0);
    put_all(*store, prompt(40, 9));
  }
  CHECK(open(options_of(30, folder / "kv"))->match(tokens).tokens() == 0);
}

TEST_CASE("wrong arguments are one sentence each", "[kvstore]") {
  const auto store = open(options_of(30));
  const std::vector<int32_t> tokens = prompt(16);
  put_all(*store, tokens);
  const BlockMatch match = store->match(tokens);
  Memory memory(small_spec(), 4);
  const auto refused = [&](const Result<std::shared_ptr<BlockRequest>>& result) {
    return !result.ok() && result.status().error_class() == ErrorClass::kUsage;
  };
  CHECK(refused(store->get(match, memory.view, numbers(3))));
  CHECK(refused(store->get(match, memory.view, std::vector<int64_t>{0, 1, 2, 4})));
  CHECK(refused(store->get(match, memory.view, std::vector<int64_t>{0, 1, 1, 2})));
  CHECK(refused(store->get(match, memory.view, std::vector<int64_t>{0, 1, -1, 2})));
  CHECK(refused(store->get(match, nullptr, numbers(4))));
  CHECK(refused(store->get(match, memory.view, numbers(4), {.layer_granularity = 4})));
  CHECK(refused(store->get(BlockMatch(), memory.view, {})));
  CHECK(refused(store->put(tokens, memory.view, std::vector<int64_t>{9})));
  KvSpec other = small_spec();
  other.layers = 2;
  Memory wrong(other, 4);
  CHECK(refused(store->get(match, wrong.view, numbers(4))));
  BlockStoreOptions tiny = options_of(30);
  tiny.host_bytes = 100;
  CHECK_FALSE(BlockStore::open(tiny).ok());
}

// Threads put, get, prefetch and cancel prompts that share prefixes. Then the store is opened again.
// `host_blocks`: so few that some requests find no room. Of whole pages, blocks may go past it.
void run_random(unsigned seed, int threads, int operations, bool remote, const KvSpec& spec = small_spec(),
                int64_t host_blocks = 24) {
  const Folder folder;
  BlockStoreOptions options = options_of(host_blocks, folder / "kv", 60, spec);
  if (remote) {
    options.remote = std::string("memory:random").append(std::to_string(seed)).append("?torn_every=50&drop_every=40");
  }
  std::vector<std::vector<int32_t>> prompts;
  std::mt19937 random(seed);
  for (int i = 0; i < 8; ++i) {
    std::vector<int32_t> tokens = prompt(40, i / 4 + 100);  // shared
    const std::vector<int32_t> own = prompt(static_cast<int64_t>(random() % 48), i);
    tokens.resize(kTokens * (1 + random() % 10));
    tokens.insert(tokens.end(), own.begin(), own.end());
    prompts.push_back(tokens);
  }
  for (int opening = 0; opening < 3; ++opening) {
    const auto store = open(options);
    std::atomic<int64_t> wrong = 0;
    std::vector<std::thread> workers;
    for (int t = 0; t < threads; ++t) {
      workers.emplace_back([&, t] {
        std::mt19937 dice(seed * 31 + static_cast<unsigned>(opening * 7 + t));
        for (int i = 0; i < operations; ++i) {
          const std::vector<int32_t>& tokens = prompts[dice() % prompts.size()];
          const auto blocks = static_cast<int64_t>(tokens.size()) / kTokens;
          Memory memory(spec, blocks, dice() % 2 == 0);
          const auto what = dice() % 10;
          if (what < 4) {
            for (int64_t b = 0; b < blocks; ++b) memory.write(b, up_to(tokens, b));
            auto request = store->put(tokens, memory.view, numbers(blocks));
            if (dice() % 4 == 0) request.value()->cancel();
            request.value()->wait();
          } else {
            const BlockMatch match = store->match(tokens);
            const int64_t known = match.tokens() / kTokens;
            if (what == 4) {
              auto request = store->prefetch(match);
              if (dice() % 2 == 0) request.value()->cancel();
              continue;
            }
            memory.clear();
            const GetOptions how{.layer_granularity = static_cast<int32_t>(dice() % 3), .past_host = dice() % 2 == 0};
            auto request = store->get(match, memory.view, numbers(known), how);
            if (dice() % 4 == 0) request.value()->cancel();
            if (dice() % 3 == 0 && request.value()->wait_for_layer(0).ok()) {
              for (int64_t b = 0; b < std::min(known, request.value()->graph().blocks()); ++b) {
                wrong += !memory.is_layer_right(b, 0, up_to(tokens, b));
              }
            }
            const int64_t usable = request.value()->wait() / kTokens;
            for (int64_t b = 0; b < usable; ++b) wrong += !memory.is_right(b, up_to(tokens, b));
          }
        }
      });
    }
    for (std::thread& worker : workers) worker.join();
    store->wait_idle();
    REQUIRE(wrong == 0);
    const BlockStoreCounters counters = store->counters();
    REQUIRE(counters.pinned == 0);
    REQUIRE(counters.host_used <= counters.host_blocks);
    REQUIRE(counters.disk.checksum_failures == 0);
    if (spec.head_size == page_spec().head_size) REQUIRE(counters.read_past_host > 0);
    if (opening == 1) REQUIRE(store->reset().ok());
    if (opening == 1) REQUIRE(store->counters().host_used == 0);
  }
}

TEST_CASE("random requests of threads always get the right bytes", "[kvstore]") {
  for (unsigned seed = 1; seed <= 12; ++seed) {
    INFO("seed " << seed);
    run_random(seed, 1 + static_cast<int>(seed % 4), 60, seed % 2 == 0);
  }
}

TEST_CASE("random requests of threads get the right bytes past host memory, too", "[kvstore]") {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    INFO("seed " << seed);
    run_random(seed, 1 + static_cast<int>(seed % 4), 60, seed % 2 == 0, page_spec(), 8);
  }
}

TEST_CASE("random requests of threads, many", "[.long][kvstore]") {
  for (unsigned seed = 1000; seed < 1300; ++seed) {
    INFO("seed " << seed);
    run_random(seed, 1 + static_cast<int>(seed % 5), 150, seed % 2 == 0);
    run_random(seed, 1 + static_cast<int>(seed % 5), 100, seed % 2 == 0, page_spec(), 8);
  }
}

}  // namespace
}  // namespace hetero::graph
