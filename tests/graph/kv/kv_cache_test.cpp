#include "graph/kv/kv_cache.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "backend/sim/sim_device.h"
#include "tests/graph/kv/kv_fixture.h"

namespace hetero::graph::testing {
namespace {

std::vector<int32_t> tokens_from(int32_t first, size_t count) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// A sequence with these tokens, whose keys and values are there.
SequenceId add(KvCache& cache, const std::vector<int32_t>& tokens) {
  const SequenceId id = cache.allocate(tokens);
  REQUIRE(cache.extend(id, std::span(tokens).subspan(static_cast<size_t>(cache.length(id)))).ok());
  REQUIRE(write_tokens(cache, id).ok());
  return id;
}

std::vector<int32_t> table_of(KvCache& cache, SequenceId id, int group = 0) {
  const auto table = cache.table(id, group);
  REQUIRE(table.ok());
  return {table.value().begin(), table.value().end()};
}

void read_all(KvCache& cache, SequenceId id) { REQUIRE(check_content(cache, id).ok()); }

}  // namespace

TEST_CASE("a sequence grows by pages, and slots say where its tokens are", "[kv]") {
  KvMemories memories({8});
  HostMover mover;
  const auto cache = make_cache(small_options(), memories, mover);
  const SequenceId id = cache->allocate();
  REQUIRE(cache->extend(id, tokens_from(0, 3)).ok());
  CHECK(table_of(*cache, id).size() == 1);
  REQUIRE(cache->extend(id, tokens_from(3, 2)).ok());
  const auto table = table_of(*cache, id);
  REQUIRE(table.size() == 2);
  std::vector<int64_t> slots(3);
  REQUIRE(cache->slots(id, 0, 2, slots).ok());
  CHECK(slots == std::vector<int64_t>{table[0] * 4 + 2, table[0] * 4 + 3, table[1] * 4});
  CHECK(cache->slots(id, 0, 3, slots).error_class() == ErrorClass::kUsage);
  CHECK(cache->counters().allocated == 2);
  REQUIRE(cache->free(id).ok());
  CHECK(cache->pages().used() == 0);
}

TEST_CASE("prefixes are shared once they are written, by whole blocks", "[kv]") {
  KvMemories memories({16});
  HostMover mover;
  const auto cache = make_cache(small_options(), memories, mover);
  const auto prompt = tokens_from(0, 10);
  const SequenceId first = cache->allocate(prompt);
  REQUIRE(cache->extend(first, prompt).ok());
  CHECK(cache->match(prompt) == 0);  // nobody has computed them
  REQUIRE(write_tokens(*cache, first).ok());
  CHECK(cache->match(prompt) == 8);

  auto other = prompt;
  other[5] = 99;
  CHECK(cache->match(other) == 4);
  const SequenceId second = add(*cache, other);
  CHECK(table_of(*cache, second)[0] == table_of(*cache, first)[0]);
  CHECK(table_of(*cache, second)[1] != table_of(*cache, first)[1]);
  CHECK(cache->counters().shared == 1);
  read_all(*cache, first);
  read_all(*cache, second);

  // Both die; what they computed is still there.
  REQUIRE(cache->free(first).ok());
  REQUIRE(cache->free(second).ok());
  CHECK(cache->match(prompt) == 8);
  CHECK(cache->match(other) == 8);
  CHECK(cache->pages().used() == 3);
  read_all(*cache, cache->allocate(prompt));
}

TEST_CASE("two sequences that compute the same block end with one", "[kv]") {
  KvMemories memories({16});
  HostMover mover;
  const auto cache = make_cache(small_options(), memories, mover);
  const auto prompt = tokens_from(0, 8);
  const SequenceId first = cache->allocate(prompt), second = cache->allocate(prompt);
  REQUIRE(cache->extend(first, prompt).ok());
  REQUIRE(cache->extend(second, prompt).ok());
  CHECK(cache->pages().used() == 4);
  REQUIRE(write_tokens(*cache, first).ok());
  REQUIRE(write_tokens(*cache, second).ok());
  CHECK(cache->pages().used() == 2);
  CHECK(table_of(*cache, first) == table_of(*cache, second));
  read_all(*cache, second);
}

TEST_CASE("equal hashes are no proof of equal tokens", "[kv]") {
  PrefixIndex index(2, [](uint64_t, std::span<const int32_t>) { return uint64_t{7}; });
  const std::vector<int32_t> a = {1, 2}, b = {3, 4};
  index.insert(0, PrefixIndex::kRoot, a);
  CHECK(index.find(PrefixIndex::kRoot, b) == PrefixIndex::kNone);
  index.insert(1, PrefixIndex::kRoot, b);
  index.insert(2, 0, b);
  CHECK(index.find(PrefixIndex::kRoot, a) == 0);
  CHECK(index.find(PrefixIndex::kRoot, b) == 1);
  CHECK(index.find(0, b) == 2);
  CHECK(index.find(1, b) == PrefixIndex::kNone);
  CHECK(index.find(0, a) == PrefixIndex::kNone);
  index.remove(2);
  CHECK(index.find(0, b) == PrefixIndex::kNone);
  CHECK(index.find(PrefixIndex::kRoot, b) == 1);
}

TEST_CASE("forks share pages until one of them writes", "[kv]") {
  KvMemories memories({16});
  HostMover mover;
  const auto cache = make_cache(small_options(2), memories, mover);
  const SequenceId first = add(*cache, tokens_from(0, 6));
  const int32_t used = cache->pages().used();
  const Result<SequenceId> second = cache->fork(first);
  REQUIRE(second.ok());
  CHECK(cache->pages().used() == used);
  CHECK(table_of(*cache, first, 1) == table_of(*cache, second.value(), 1));

  const auto before = table_of(*cache, first);
  REQUIRE(cache->extend(second.value(), tokens_from(50, 1)).ok());
  CHECK(cache->counters().copied == 2);  // a page for each group
  CHECK(table_of(*cache, second.value())[0] == before[0]);
  CHECK(table_of(*cache, second.value())[1] != before[1]);
  CHECK(table_of(*cache, first) == before);
  // The first one is alone with its block again, and writes in place.
  REQUIRE(cache->extend(first, tokens_from(60, 1)).ok());
  CHECK(cache->counters().copied == 2);
  CHECK(table_of(*cache, first) == before);
  for (const SequenceId id : {first, second.value()}) {
    REQUIRE(write_tokens(*cache, id).ok());
    read_all(*cache, id);
  }
}

TEST_CASE("a prefix that a longer one builds on is copied before it is changed", "[kv]") {
  KvMemories memories({16});
  HostMover mover;
  const auto cache = make_cache(small_options(), memories, mover);
  const auto prompt = tokens_from(0, 8);
  REQUIRE(cache->free(add(*cache, prompt)).ok());
  // The same without a longer one: changed in place, and no longer found.
  SequenceId id = cache->allocate(prompt);
  REQUIRE(cache->truncate(id, 7).ok());
  REQUIRE(cache->extend(id, tokens_from(90, 1)).ok());
  CHECK(cache->counters().copied == 0);
  CHECK(cache->match(prompt) == 4);
  // With one.
  REQUIRE(write_tokens(*cache, id).ok());
  REQUIRE(cache->truncate(id, 3).ok());
  REQUIRE(cache->extend(id, tokens_from(80, 1)).ok());
  CHECK(cache->counters().copied == 1);
  CHECK(cache->match(prompt) == 4);
  REQUIRE(write_tokens(*cache, id).ok());
  read_all(*cache, id);
  CHECK(cache->check().ok());
}

TEST_CASE("the least recently used prefix is evicted first, from its end", "[kv]") {
  KvMemories memories({6});
  HostMover mover;
  const auto cache = make_cache(small_options(), memories, mover);
  const auto old = tokens_from(0, 12), recent = tokens_from(100, 8);
  const SequenceId first = add(*cache, old), second = add(*cache, recent);
  REQUIRE(cache->free(first).ok());
  REQUIRE(cache->free(second).ok());
  const SequenceId third = add(*cache, tokens_from(200, 12));
  CHECK(cache->counters().evicted == 2);
  CHECK(cache->match(old) == 4);
  CHECK(cache->match(recent) == 8);
  // A match is a use.
  REQUIRE(cache->free(cache->allocate(old)).ok());
  REQUIRE(cache->extend(third, tokens_from(300, 4)).ok());
  CHECK(cache->match(old) == 4);
  CHECK(cache->match(recent) == 4);
}

TEST_CASE("without pages a call fails in one sentence and changes nothing", "[kv]") {
  KvMemories memories({3});
  HostMover mover;
  const auto cache = make_cache(small_options(), memories, mover);
  REQUIRE(cache->free(add(*cache, tokens_from(50, 4))).ok());
  const SequenceId id = add(*cache, tokens_from(0, 6));
  const Status status = cache->extend(id, tokens_from(6, 8));
  REQUIRE_FALSE(status.ok());
  CHECK(status.error_class() == ErrorClass::kResource);
  CHECK(status.message() == "the KV cache is out of pages: 2 are needed, 0 of 3 are free, and the others are in use");
  CHECK(cache->length(id) == 6);
  CHECK(cache->counters().evicted == 0);  // it would not have helped
  CHECK(cache->match(tokens_from(50, 4)) == 4);
  read_all(*cache, id);
  REQUIRE(cache->extend(id, tokens_from(6, 3)).ok());
  CHECK(cache->counters().evicted == 1);
}

TEST_CASE("a failed copy on write changes nothing", "[kv]") {
  KvMemories memories({8});
  SlowMover mover;
  const auto cache = make_cache(small_options(), memories, mover);
  const SequenceId first = add(*cache, tokens_from(0, 6));
  const SequenceId second = cache->fork(first).value();
  mover.set_failures(1);
  CHECK(cache->extend(second, tokens_from(50, 7)).error_class() == ErrorClass::kDevice);
  CHECK(cache->length(second) == 6);
  CHECK(cache->pages().used() == 2);
  CHECK(cache->check().ok());
  mover.set_failures(0);
  REQUIRE(cache->extend(second, tokens_from(50, 7)).ok());
  read_all(*cache, second);
}

TEST_CASE("pages leave under pressure and come back when they are read", "[kv]") {
  KvMemories memories({10, 32});
  SlowMover mover(2);
  KvOptions options = small_options();
  options.offload = "by_pressure";
  const auto cache = make_cache(options, memories, mover);
  const SequenceId idle = add(*cache, tokens_from(0, 16));
  const SequenceId busy = add(*cache, tokens_from(100, 16));
  CHECK(cache->counters().offloaded == 0);  // 8 of 10 is the threshold
  REQUIRE(cache->extend(busy, tokens_from(200, 4)).ok());
  // Two pages of the sequence that was used longest ago are on their way, and not to be read.
  CHECK(cache->pages().leaving() == 2);
  const auto table = table_of(*cache, idle);
  CHECK(std::count(table.begin(), table.end(), -1) == 2);
  CHECK(std::ranges::count(table_of(*cache, busy), -1) == 0);

  REQUIRE(write_tokens(*cache, busy).ok());
  REQUIRE(cache->extend(busy, tokens_from(300, 4)).ok());
  read_all(*cache, idle);
  CHECK(cache->counters().brought_back + cache->counters().offloaded > 0);
  CHECK(std::ranges::count(table_of(*cache, idle), -1) == 0);
  read_all(*cache, busy);
  CHECK_FALSE(mover.source_changed);
}

TEST_CASE("acquired pages stay, whatever others need", "[kv]") {
  KvMemories memories({4, 32});
  HostMover mover;
  KvOptions options = small_options();
  options.offload = "by_pressure";
  options.threshold = options.relieved = 1;
  const auto cache = make_cache(options, memories, mover);
  const SequenceId first = add(*cache, tokens_from(0, 12));
  REQUIRE(cache->acquire(first, 0).ok());
  const auto table = table_of(*cache, first);
  const SequenceId second = cache->allocate();
  CHECK(cache->extend(second, tokens_from(100, 8)).error_class() == ErrorClass::kResource);
  REQUIRE(cache->extend(second, tokens_from(100, 4)).ok());
  CHECK(table_of(*cache, first) == table);
  // It does not change either.
  CHECK(cache->extend(first, tokens_from(0, 1)).error_class() == ErrorClass::kUsage);
  CHECK(cache->truncate(first, 1).error_class() == ErrorClass::kUsage);
  CHECK(cache->free(first).error_class() == ErrorClass::kUsage);
  CHECK(cache->acquire(first, 0).error_class() == ErrorClass::kUsage);
  REQUIRE(cache->release(first, 0).ok());
  REQUIRE(cache->extend(second, tokens_from(104, 8)).ok());
  CHECK(cache->counters().offloaded == 2);
}

TEST_CASE("the oldest layer leaves first", "[kv]") {
  KvMemories memories({12, 32});
  HostMover mover;
  KvOptions options = small_options(3);
  options.offload = "oldest_layer_first";
  options.threshold = options.relieved = 1;
  const auto cache = make_cache(options, memories, mover);
  const SequenceId id = add(*cache, tokens_from(0, 16));
  // Layers run in order: 0 was used longest ago.
  for (int group = 0; group < 3; ++group) {
    REQUIRE(cache->acquire(id, group).ok());
    REQUIRE(cache->release(id, group).ok());
  }
  REQUIRE(cache->extend(cache->allocate(), tokens_from(100, 4)).ok());
  CHECK(std::ranges::count(table_of(*cache, id, 0), -1) == 3);
  CHECK(std::ranges::count(table_of(*cache, id, 1), -1) == 0);
  CHECK(std::ranges::count(table_of(*cache, id, 2), -1) == 0);
}

TEST_CASE("behind a sliding window pages leave, sinks stay, and neither is missed", "[kv]") {
  KvMemories memories({10, 64});
  HostMover mover;
  KvOptions options = small_options();
  options.offload = "sliding_window";
  options.span = {.window = 8, .sinks = 4};
  const auto cache = make_cache(options, memories, mover);
  const SequenceId id = cache->allocate();
  for (int32_t token = 0; token < 80; ++token) {
    REQUIRE(cache->extend(id, std::vector<int32_t>{token}).ok());
    REQUIRE(write_tokens(*cache, id).ok());
  }
  const auto table = table_of(*cache, id);
  CHECK(table.size() == 20);
  CHECK(table.front() >= 0);
  CHECK(*(table.end() - 1) >= 0);
  CHECK(*(table.end() - 2) >= 0);
  CHECK(std::ranges::count(table, -1) >= 10);
  CHECK(cache->counters().brought_back == 0);
  CHECK(cache->counters().offloaded >= 10);
}

TEST_CASE("preemption takes the faster way, by the link and the prefill rate", "[kv]") {
  for (const bool fast_link : {true, false}) {
    KvMemories memories({8, 8});
    HostMover mover;
    KvOptions options = small_options();
    // 4 pages of 64 bytes, both ways: 512 bytes; 16 tokens.
    options.figures = {.offload_bandwidth = fast_link ? 1e6 : 100,
                       .return_bandwidth = fast_link ? 1e6 : 100,
                       .copy_latency = 0,
                       .prefill_rate = 1000};
    const auto cache = make_cache(options, memories, mover);
    const auto tokens = tokens_from(0, 16);
    const SequenceId id = add(*cache, tokens);
    const Result<Preemption> how = cache->preempt(id);
    REQUIRE(how.ok());
    CHECK((how.value() == Preemption::kOffload) == fast_link);
    CHECK(cache->preempted(id));
    CHECK(std::ranges::equal(cache->tokens(id), tokens));
    // Its pages serve others.
    const SequenceId other = add(*cache, tokens_from(100, 32));
    const Result<int64_t> early = cache->resume(id);
    CHECK(early.status().error_class() == ErrorClass::kResource);
    CHECK(cache->preempted(id));
    REQUIRE(cache->free(other).ok());
    const Result<int64_t> missing = cache->resume(id);
    REQUIRE(missing.ok());
    CHECK(missing.value() == (fast_link ? 0 : 16));
    CHECK(cache->counters().recomputed == missing.value());
    CHECK(cache->counters().preempted == 1);
    REQUIRE(write_tokens(*cache, id).ok());
    read_all(*cache, id);
  }
}

TEST_CASE("a sequence that is preempted and needed by nobody is resumed from the cache", "[kv]") {
  KvMemories memories({8});
  HostMover mover;
  const auto cache = make_cache(small_options(), memories, mover);
  const SequenceId id = add(*cache, tokens_from(0, 10));
  const Result<Preemption> how = cache->preempt(id);
  REQUIRE(how.ok());
  CHECK(how.value() == Preemption::kRecompute);  // there is no other memory
  const Result<int64_t> missing = cache->resume(id);
  REQUIRE(missing.ok());
  CHECK(missing.value() == 2);
}

TEST_CASE("the figures of a machine say what moves and computing cost", "[kv]") {
  backend::Machine machine;
  const auto device = machine.add({.rates = {.flops = 1e12,
                                             .flops_half = 4e12,
                                             .copy_bandwidth = 2e10,
                                             .readback_bandwidth = 1e10,
                                             .copy_latency = 1e-5}});
  const KvFigures figures = kv_figures(machine, device, backend::kCpu, 1e9);
  CHECK(figures.offload_bandwidth == 1e10);
  CHECK(figures.return_bandwidth == 2e10);
  CHECK(figures.copy_latency == 1e-5);
  CHECK(figures.prefill_rate == 4000);
}

TEST_CASE("a block table keeps its address where the most tokens are known", "[kv]") {
  KvMemories memories({64});
  HostMover mover;
  KvOptions options = small_options();
  options.most_tokens = 200;
  const auto cache = make_cache(options, memories, mover);
  const SequenceId id = cache->allocate();
  REQUIRE(cache->extend(id, tokens_from(0, 1)).ok());
  const int32_t* const address = cache->table(id, 0).value().data();
  REQUIRE(cache->extend(id, tokens_from(1, 199)).ok());
  CHECK(cache->table(id, 0).value().data() == address);
  CHECK(cache->extend(id, tokens_from(0, 1)).error_class() == ErrorClass::kUsage);

  const SequenceId other = cache->allocate();
  REQUIRE(cache->extend(other, tokens_from(500, 5)).ok());
  std::vector<int32_t> rows(2 * 51);
  const std::vector<SequenceId> ids = {other, id};
  REQUIRE(cache->fill_tables(ids, 0, rows.data(), 51).ok());
  CHECK(rows[2] == -1);
  CHECK(rows[0] == table_of(*cache, other)[0]);
  CHECK(rows[51 + 49] == table_of(*cache, id)[49]);
  CHECK(rows[51 + 50] == -1);
  CHECK(cache->fill_tables(ids, 0, rows.data(), 49).error_class() == ErrorClass::kUsage);
}

TEST_CASE("wrong calls are refused", "[kv]") {
  KvMemories memories({8, 8});
  HostMover mover;
  const auto refused = [&](auto change) {
    KvOptions options = small_options();
    change(options);
    return KvCache::make(options, memories.lend(), mover).status().error_class() == ErrorClass::kUsage;
  };
  CHECK(refused([](KvOptions& options) { options.offload = "by_magic"; }));
  CHECK(refused([](KvOptions& options) { options.offload = "sliding_window"; }));
  CHECK(refused([](KvOptions& options) { options.groups = 0; }));
  CHECK(refused([](KvOptions& options) { options.layout.head_size = 0; }));
  CHECK(refused([](KvOptions& options) { options.layout.page_tokens = int64_t{1} << 50; }));
  CHECK(refused([](KvOptions& options) { options.threshold = 2; }));
  CHECK(refused([](KvOptions& options) { options.span.window = -1; }));
  CHECK(KvCache::make(small_options(9), memories.lend(), mover).status().error_class() == ErrorClass::kResource);

  const auto cache = make_cache(small_options(), memories, mover);
  const SequenceId id = add(*cache, tokens_from(0, 5));
  CHECK(cache->extend(17, tokens_from(0, 1)).error_class() == ErrorClass::kUsage);
  CHECK(cache->free(-1).error_class() == ErrorClass::kUsage);
  CHECK(cache->truncate(id, 6).error_class() == ErrorClass::kUsage);
  CHECK(cache->written(id, 4).error_class() == ErrorClass::kUsage);
  CHECK(cache->written(id, 6).error_class() == ErrorClass::kUsage);
  CHECK(cache->acquire(id, 1).error_class() == ErrorClass::kUsage);
  CHECK(cache->release(id, 0).error_class() == ErrorClass::kUsage);
  CHECK(cache->table(id, -1).status().error_class() == ErrorClass::kUsage);
  CHECK(cache->resume(id).status().error_class() == ErrorClass::kUsage);
  REQUIRE(cache->preempt(id).ok());
  CHECK(cache->preempt(id).status().error_class() == ErrorClass::kUsage);
  CHECK(cache->fork(id).status().error_class() == ErrorClass::kUsage);
  CHECK(cache->free(id).ok());
  CHECK(cache->check().ok());
}

TEST_CASE("a pool takes memory in slabs and gives empty ones back", "[kv]") {
  constexpr size_t kPage = 8192;
  auto memory = backend::host_page_memory(10 * kPage);
  REQUIRE(memory.ok());
  PagePool pool(std::move(memory.value()), kPage, 4);
  CHECK(pool.capacity() == 10);
  CHECK(pool.committed() == 0);
  std::vector<int32_t> slots;
  for (int i = 0; i < 10; ++i) {
    const Result<int32_t> slot = pool.take();
    REQUIRE(slot.ok());
    CHECK(slot.value() == i);
    std::memset(pool.address(slot.value()), 0x5A, kPage);
    slots.push_back(slot.value());
  }
  CHECK(pool.committed() == 10);
  CHECK(pool.take().status().error_class() == ErrorClass::kResource);
  for (int32_t slot = 9; slot >= 4; --slot) pool.give(slot);
  CHECK(pool.committed() == 8);  // one empty slab is kept
  CHECK(pool.used() == 4);
  pool.give(2);
  CHECK(pool.take().value() == 2);  // the slab that is in use first
  for (int32_t slot = 0; slot < 4; ++slot) pool.give(slot);
  CHECK(pool.committed() == 4);
  // Memory that came back is new.
  for (int i = 0; i < 10; ++i) REQUIRE(pool.take().ok());
  CHECK(pool.address(8)[0] == std::byte{0});
}

TEST_CASE("a page has the keys and values of its layers where the layout says", "[kv]") {
  const PageLayout layout{
      .element = backend::CacheElement::kInt8, .page_tokens = 16, .layers = 2, .kv_heads = 3, .head_size = 80};
  REQUIRE(layout.check().ok());
  CHECK(layout.keys(0) == 0);
  CHECK(layout.values(0) == 3 * 16 * 80);
  CHECK(layout.keys(1) == 2 * 3 * 16 * 80);
  CHECK(layout.key_scales(0) == 4 * 3 * 16 * 80);
  CHECK(layout.value_scales(1) == 4 * 3 * 16 * 80 + 3 * 3 * 16 * 4);
  CHECK(layout.bytes() == 4 * 3 * 16 * 80 + 4 * 3 * 16 * 4);
  CHECK(PageLayout{.element = backend::CacheElement::kFloat8, .page_tokens = 1, .head_size = 5}.bytes() == 64);
}

TEST_CASE("pages of an accelerator move by its copy queues", "[kv]") {
  const auto sim = backend::SimDevice::create({.capacity_bytes = size_t{1} << 20});
  REQUIRE(sim.ok());
  backend::Device& device = *sim.value();
  QueueMover mover(device);
  constexpr size_t kPages = 4;
  std::vector<std::unique_ptr<backend::PageMemory>> memories;
  memories.push_back(backend::device_page_memory(device, kPages * 64));
  auto host = backend::host_page_memory(16 * 64);
  REQUIRE(host.ok());
  memories.push_back(std::move(host.value()));
  KvOptions options = small_options();
  options.offload = "by_pressure";
  options.threshold = options.relieved = 1;
  auto made = KvCache::make(options, std::move(memories), mover);
  REQUIRE(made.ok());
  KvCache& cache = *made.value();

  // Writes and reads a page by the device's queues, as a kernel would.
  const auto copy = [&](SequenceId id, std::vector<std::byte>& bytes, bool write) {
    REQUIRE(cache.acquire(id, 0).ok());
    const auto table = table_of(cache, id);
    for (size_t i = 0; i < table.size(); ++i) {
      std::byte* const page = cache.pages().pool(0).address(table[i]);
      backend::Queue& queue =
          device.queue(write ? backend::QueueKind::kHostToDevice : backend::QueueKind::kDeviceToHost);
      REQUIRE((write ? queue.copy(page, bytes.data() + i * 64, 64) : queue.copy(bytes.data() + i * 64, page, 64)).ok());
      REQUIRE(queue.synchronize().ok());
    }
    REQUIRE(cache.release(id, 0).ok());
  };
  std::vector<SequenceId> ids;
  std::vector<std::vector<std::byte>> contents;
  for (int32_t i = 0; i < 3; ++i) {
    ids.push_back(cache.allocate());
    REQUIRE(cache.extend(ids.back(), tokens_from(100 * i, 8)).ok());
    contents.emplace_back(128, static_cast<std::byte>(i + 1));
    copy(ids.back(), contents.back(), true);
  }
  for (size_t round = 0; round < 2; ++round) {
    for (size_t i = 0; i < ids.size(); ++i) {
      std::vector<std::byte> read(128);
      copy(ids[i], read, false);
      CHECK(read == contents[i]);
    }
  }
  CHECK(cache.counters().offloaded >= 6);
  CHECK(cache.counters().brought_back >= 6);
  // A copy on write stays on the device.
  const SequenceId fork = cache.fork(ids[0]).value();
  REQUIRE(cache.truncate(fork, 6).ok());
  REQUIRE(cache.extend(fork, tokens_from(900, 1)).ok());
  std::vector<std::byte> read(128);
  copy(fork, read, false);
  CHECK(read == contents[0]);
}

}  // namespace hetero::graph::testing
