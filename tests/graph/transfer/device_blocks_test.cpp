// Blocks of a device's memory: copies are merged, bytes are right on a device that the host cannot
// touch, and its other queues wait for layers, not for whole requests.

#include "graph/transfer/device_blocks.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <random>

#include "backend/sim/sim_device.h"
#include "graph/transfer/block_store.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"
#include "tests/graph/transfer/kv_oracle.h"

namespace hetero::graph {
namespace {

using backend::CopyRange;
using testing::Memory;
using testing::numbers;
using testing::small_spec;

TransferOp upload(BlockExtents host, BlockExtents device, int32_t layer = 0, int32_t layers = 0) {
  return {.type = TransferType::kH2D,
          .source = std::move(host),
          .destination = std::move(device),
          .layer_id = layer,
          .layer_granularity = layers};
}

TEST_CASE("copies cover every byte of the layers once, and are joined where both sides are contiguous", "[kv]") {
  KvSpec spec = small_spec();
  spec.head_size = 256;  // a piece is 8 KiB, so blocks have no gaps
  const backend::BlockGeometry geometry = spec.geometry();
  for (const bool rows : {false, true}) {
    Memory memory(spec, 16, rows);
    memory.view->base = 0;
    std::vector<std::byte> host(static_cast<size_t>(20 * geometry.block_bytes()));
    for (const auto& [first, count] : std::vector<std::pair<int32_t, int32_t>>{{0, 0}, {1, 1}, {1, 2}}) {
      const TransferOp op = upload({{3, 2}, {9, 1}}, {{7, 3}}, first, count);
      const std::vector<CopyRange> ranges = copies_of(op, *memory.view, geometry, host.data());
      std::map<const void*, size_t> written;
      size_t bytes = 0;
      for (const CopyRange& range : ranges) {
        bytes += range.bytes;
        CHECK(written.emplace(range.destination, range.bytes).second);
      }
      CHECK(bytes == static_cast<size_t>(3 * geometry.piece_bytes * (count == 0 ? spec.layers : count)));
      const void* end = nullptr;
      for (const auto& [begin, size] : written) {
        CHECK(begin >= end);
        end = static_cast<const std::byte*>(begin) + size;
      }
    }
  }
  // With one layer, whose keys and values lie as on the host, neighbours are one copy.
  KvSpec flat = spec;
  flat.layers = 1;
  const backend::BlockGeometry one = flat.geometry();
  std::vector<std::byte> host(static_cast<size_t>(20 * one.block_bytes())), device(host.size());
  DeviceBlocks blocks;
  blocks.layers = {{device.data(), device.data() + one.piece_bytes / 2}};
  blocks.blocks = 16;
  blocks.block_stride = one.piece_bytes;
  blocks.row_bytes = one.piece_bytes / 2;
  blocks.base = 0;
  REQUIRE(blocks.check(one).ok());
  CHECK(copies_of(upload({{2, 4}}, {{5, 4}}), blocks, one, host.data()).size() == 8);
}

// A device whose memory traps the host, with blocks for all layers in one allocation.
struct OnDevice {
  OnDevice(const KvSpec& spec, int64_t blocks, const backend::SimOptions& options)
      : OnDevice(spec, blocks, std::move(backend::SimDevice::create(options).value())) {}
  OnDevice(const KvSpec& spec, int64_t blocks, std::shared_ptr<backend::Device> on)
      : spec(spec), blocks(blocks), device(std::move(on)) {
    half = static_cast<size_t>(spec.geometry().piece_bytes / 2);
    const size_t plane = half * static_cast<size_t>(blocks);
    block = std::move(device->allocate(plane * static_cast<size_t>(2 * spec.layers)).value());
    view = std::make_shared<DeviceBlocks>();
    view->device = device.get();
    view->blocks = blocks;
    view->block_stride = static_cast<int64_t>(half);
    view->row_bytes = static_cast<int64_t>(half);
    auto* const base = static_cast<std::byte*>(block.data());
    for (size_t i = 0; i < static_cast<size_t>(spec.layers); ++i) {
      view->layers.push_back({base + 2 * i * plane, base + (2 * i + 1) * plane});
    }
  }
  // All bytes between a memory of the host with the same layout and this one.
  void copy(Memory& host, bool to_device) {
    backend::Queue& queue = device->queue(backend::QueueKind::kCompute);
    for (size_t i = 0; i < view->layers.size(); ++i) {
      for (const bool values : {false, true}) {
        std::byte* const there = values ? view->layers[i].values : view->layers[i].keys;
        std::byte* const here = values ? host.view->layers[i].values : host.view->layers[i].keys;
        const size_t bytes = half * static_cast<size_t>(blocks);
        REQUIRE(queue.copy(to_device ? there : here, to_device ? here : there, bytes).ok());
      }
    }
    REQUIRE(queue.synchronize().ok());
  }

  const KvSpec spec;
  const int64_t blocks;
  size_t half;
  std::shared_ptr<backend::Device> device;
  backend::Block block;
  std::shared_ptr<DeviceBlocks> view;
};

std::unique_ptr<BlockStore> open(const KvSpec& spec, int64_t blocks) {
  BlockStoreOptions options;
  options.spec = spec;
  options.host_bytes = blocks * spec.geometry().block_bytes();
  options.verifies_plans = true;
  return std::move(BlockStore::open(options).value());
}

std::vector<int32_t> prompt(int64_t tokens) {
  std::vector<int32_t> result;
  for (int64_t i = 0; i < tokens; ++i) result.push_back(static_cast<int32_t>(i * 7 % 1000));
  return result;
}

TEST_CASE("a device's blocks are stored after what computes them, and come back to where its kernels read them",
          "[kvstore]") {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    const KvSpec spec = small_spec();
    OnDevice device(spec, 10, {.schedule_seed = seed});
    const std::vector<int32_t> tokens = prompt(40);
    Memory expected(spec, 10);
    const auto until = [&](int64_t block) { return std::span(tokens).first(static_cast<size_t>((block + 1) * 4)); };
    for (int64_t i = 0; i < 10; ++i) expected.write(i, until(i));
    const auto store = open(spec, 20);
    // The last writes come from the compute queue, and only the event says when they are there.
    const auto computed = device.device->create_event();
    backend::Queue& compute = device.device->queue(backend::QueueKind::kCompute);
    for (size_t i = 0; i < device.view->layers.size(); ++i) {
      for (const bool values : {false, true}) {
        const size_t bytes = device.half * 10;
        REQUIRE(compute
                    .copy(values ? device.view->layers[i].values : device.view->layers[i].keys,
                          values ? expected.view->layers[i].values : expected.view->layers[i].keys, bytes)
                    .ok());
      }
    }
    REQUIRE(compute.record(*computed).ok());
    const auto put = store->put(tokens, device.view, numbers(10), computed.get());
    REQUIRE(put.ok());
    CHECK(put.value()->wait() == 40);
    Memory nothing(spec, 10);
    device.copy(nothing, true);
    const BlockMatch match = store->match(tokens);
    const auto get = store->get(match, device.view, numbers(10), {.layer_granularity = 1});
    REQUIRE(get.ok());
    CHECK(get.value()->wait() == 40);
    Memory found(spec, 10);
    device.copy(found, false);
    for (int64_t i = 0; i < 10; ++i) CHECK(found.is_right(i, until(i)));
  }
}

TEST_CASE("scattered pieces leave a device by one gather, and come to it by one scatter a transfer", "[kvstore]") {
  for (const uint64_t seed : {1, 2}) {
    for (const int32_t granularity : {0, 1}) {
      const KvSpec spec = small_spec();
      OnDevice device(spec, 20, {.schedule_seed = seed});
      const std::vector<int32_t> tokens = prompt(40);
      const std::vector<int64_t> from{17, 2, 9, 4, 15, 6, 0, 11, 13, 19}, to{1, 16, 3, 14, 5, 12, 7, 10, 18, 8};
      Memory expected(spec, 20), found(spec, 20), nothing(spec, 20);
      const auto until = [&](size_t block) { return std::span(tokens).first((block + 1) * 4); };
      for (size_t i = 0; i < 10; ++i) expected.write(from[i], until(i));
      device.copy(expected, true);
      const auto store = open(spec, 20);
      REQUIRE(store->put(tokens, device.view, from).value()->wait() == 40);
      CHECK(store->counters().gathers == 1);
      CHECK(store->counters().scatters == 0);
      CHECK(store->counters().copies == 60);
      device.copy(nothing, true);
      const BlockMatch match = store->match(tokens);
      const int64_t launches = device.device->counters().launches;
      REQUIRE(store->get(match, device.view, to, {.layer_granularity = granularity}).value()->wait() == 40);
      CHECK(store->counters().gathers == 1);
      CHECK(store->counters().scatters == (granularity == 0 ? 1 : spec.layers));
      CHECK(device.device->counters().launches - launches == store->counters().scatters);
      device.copy(found, false);
      for (size_t i = 0; i < 10; ++i) CHECK(found.is_right(to[i], until(i)));
      CHECK_FALSE(found.is_right(from[0], until(0)));
    }
  }
}

TEST_CASE("scattered blocks of the machine's accelerator come back, from host memory that is used again",
          "[accelerator]") {
  if (testing::is_accelerator_missing(true)) return;
  backend::Device* const accelerator = testing::test_devices()[backend::kAccelerator];
  KvSpec spec = small_spec();
  spec.head_size = 64;
  constexpr int64_t kBlocks = 60;
  OnDevice device(spec, kBlocks, std::shared_ptr<backend::Device>(accelerator, [](backend::Device*) {}));
  const auto store = open(spec, 3 * kBlocks);
  std::vector<int64_t> places = numbers(kBlocks);
  std::mt19937 random(1);
  for (int round = 0; round < 3; ++round) {
    std::vector<int32_t> tokens = prompt(kBlocks * 4);
    tokens[0] = round;
    const auto until = [&](size_t block) { return std::span(tokens).first((block + 1) * 4); };
    Memory expected(spec, kBlocks), nothing(spec, kBlocks), found(spec, kBlocks);
    std::ranges::shuffle(places, random);
    for (size_t i = 0; i < kBlocks; ++i) expected.write(places[i], until(i));
    device.copy(expected, true);
    REQUIRE(store->put(tokens, device.view, places).value()->wait() == kBlocks * 4);
    for (const int32_t granularity : {0, 1}) {
      device.copy(nothing, true);
      std::ranges::shuffle(places, random);
      const BlockMatch match = store->match(tokens);
      REQUIRE(store->get(match, device.view, places, {.layer_granularity = granularity}).value()->wait() ==
              kBlocks * 4);
      device.copy(found, false);
      bool right = true;
      for (size_t i = 0; i < kBlocks; ++i) right &= found.is_right(places[i], until(i));
      CHECK(right);
    }
  }
  // A `fault` device before it, and a build of the cuda device without nvcc, have no such kernel.
  const BlockStoreCounters counters = store->counters();
  CHECK((counters.gathers == 3 || counters.gathers == 0));
  CHECK(counters.scatters == counters.gathers * (1 + spec.layers));
}

TEST_CASE("a few pieces, or those of the host's own memory, need no kernel", "[kvstore]") {
  const KvSpec spec = small_spec();
  OnDevice device(spec, 4, backend::SimOptions());
  const auto store = open(spec, 20);
  const std::vector<int32_t> tokens = prompt(40);
  REQUIRE(store->put(std::span(tokens).first(8), device.view, std::vector<int64_t>{3, 0}).value()->wait() == 8);
  CHECK(store->counters().copies == 12);
  Memory memory(spec, 10);
  for (int64_t i = 0; i < 10; ++i) memory.write(i, std::span(tokens).first(static_cast<size_t>((i + 1) * 4)));
  REQUIRE(store->put(tokens, memory.view, numbers(10)).value()->wait() == 40);
  CHECK(store->counters().gathers == 0);
}

TEST_CASE("a request is delivered while a put that came before it still waits for its data", "[kvstore]") {
  const KvSpec spec = small_spec();
  OnDevice device(spec, 20, backend::SimOptions());
  const auto store = open(spec, 40);
  const std::vector<int32_t> known = prompt(40), computed(40, 7);
  REQUIRE(store->put(known, device.view, numbers(10)).value()->wait() == 40);
  std::atomic<bool> go_on{false};
  backend::Queue& compute = device.device->queue(backend::QueueKind::kCompute);
  const auto event = device.device->create_event();
  const backend::Task held{.run = [](void* go) { static_cast<std::atomic<bool>*>(go)->wait(false); },
                           .context = &go_on};
  REQUIRE(compute.launch(held).ok());
  REQUIRE(compute.record(*event).ok());
  const auto put = store->put(computed, device.view, numbers(10, 10), event.get());
  REQUIRE(put.ok());
  const BlockMatch match = store->match(known);
  const auto get = store->get(match, device.view, numbers(10), {.layer_granularity = 1});
  CHECK(get.value()->wait() == 40);
  CHECK(!put.value()->is_done());
  go_on = true;
  go_on.notify_all();
  CHECK(put.value()->wait() == 40);
}

TEST_CASE("jobs of requests begin before those of puts that came earlier", "[kvstore]") {
  const auto held = std::make_shared<std::atomic<bool>>(true);
  std::atomic<bool> begun = false;
  std::vector<int> order;
  {
    JobThreads<int> threads(1, [&](int& job) {
      if (job == 0) {
        begun = true;
        begun.notify_all();
        held->wait(true);
      }
      order.push_back(job);
    });
    threads.submit(0, TransferPriority::kPut);
    begun.wait(false);  // a thread that has not begun would take any of the jobs that are there
    threads.submit(1, TransferPriority::kPut);
    threads.submit(2, TransferPriority::kScrub);
    threads.submit(3, TransferPriority::kPut);
    threads.submit(4, TransferPriority::kPrefetch);
    threads.submit(5, TransferPriority::kGet);
    threads.submit(6, TransferPriority::kGet);
    *held = false;
    held->notify_all();
  }
  CHECK(order == std::vector<int>{0, 5, 6, 4, 1, 3, 2});
  // The store says which are which.
  const KvSpec spec = small_spec();
  const auto store = open(spec, 20);
  Memory memory(spec, 10);
  const auto put = store->put(prompt(40), memory.view, numbers(10)).value();
  put->wait();
  for (const TransferOp& op : put->graph().ops()) CHECK(op.priority == TransferPriority::kPut);
  const BlockMatch match = store->match(prompt(40));
  const auto get = store->get(match, memory.view, numbers(10)).value();
  get->wait();
  for (const TransferOp& op : get->graph().ops()) CHECK(op.priority == TransferPriority::kGet);
}

// Seconds of virtual time until the first layer's kernel begins, and until the last one has ended.
struct Times {
  double first = 0, all = 0, bound = 0;
};

Times use_layers(const backend::SimOptions& options, int32_t granularity) {
  KvSpec spec = small_spec();
  spec.layers = 28;
  spec.kv_heads = 8;
  spec.head_size = 128;
  spec.block_tokens = 16;
  constexpr int64_t kBlocks = 128;
  OnDevice device(spec, kBlocks, options);
  const auto store = open(spec, kBlocks);
  const std::vector<int32_t> tokens = prompt(kBlocks * 16);
  const auto put = store->put(tokens, device.view, numbers(kBlocks));
  REQUIRE(put.value()->wait() == kBlocks * 16);
  REQUIRE(device.device->synchronize().ok());
  const double begin = device.device->host_seconds();
  const double bytes = static_cast<double>(spec.geometry().piece_bytes * spec.layers * kBlocks);
  Times times;
  times.bound = bytes / options.h2d_bandwidth;
  const BlockMatch match = store->match(tokens);
  const auto get = store->get(match, device.view, numbers(kBlocks), {.layer_granularity = granularity});
  REQUIRE(get.ok());
  backend::Queue& compute = device.device->queue(backend::QueueKind::kCompute);
  const backend::Task task{.run = [](void*) {}, .context = nullptr, .seconds = times.bound / 28 * 0.05};
  for (int32_t layer = 0; layer < spec.layers; ++layer) {
    REQUIRE(get.value()->wait_for_layer(layer, compute).ok());
    REQUIRE(compute.launch(task).ok());
    if (layer == 0) times.first = device.device->queue_seconds(backend::QueueKind::kCompute) - begin - task.seconds;
  }
  times.all = device.device->queue_seconds(backend::QueueKind::kCompute) - begin;
  REQUIRE(device.device->synchronize().ok());
  CHECK(get.value()->wait() == kBlocks * 16);
  return times;
}

TEST_CASE("kernels that wait for their layer begin early, and all end with the link", "[kvstore]") {
  // The links of torch_hetero/profiles.
  for (const auto& [name, bandwidth, latency] :
       std::vector<std::tuple<const char*, double, double>>{{"h200", 55e9, 6e-6}, {"rtx4090", 25e9, 6e-6}}) {
    const backend::SimOptions options{.h2d_bandwidth = bandwidth, .d2h_bandwidth = bandwidth, .copy_latency = latency};
    const Times layers = use_layers(options, 4), whole = use_layers(options, 0);
    std::printf(
        "%s: first layer's compute after %.3f ms by layers, %.3f ms as a whole; all after %.3f of the link's bound\n",
        name, layers.first * 1e3, whole.first * 1e3, layers.all / layers.bound);
    CHECK(layers.first <= 0.6 * whole.first);
    CHECK(layers.all <= 1.02 * layers.bound);
  }
}

}  // namespace
}  // namespace hetero::graph
