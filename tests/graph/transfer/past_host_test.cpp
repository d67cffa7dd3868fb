// Blocks that go between the disk and the caller's memory past host memory: where the memory can,
// and the caller wants it or host memory has no room. Otherwise they go as ever.

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_device.h"
#include "backend/sim/sim_device.h"
#include "graph/transfer/tier_lanes.h"
#include "tests/backend/tier/blocks.h"
#include "tests/graph/transfer/store_fixture.h"

namespace hetero::graph {
namespace {

using namespace testing;

constexpr int64_t kBlocks = 10;

// A disk that has a prompt, for stores whose host memory has nothing yet.
struct OnDisk {
  explicit OnDisk(const KvSpec& spec = page_spec()) : spec(spec) {
    const auto store = testing::open(options(100));
    Memory memory(spec, kBlocks);
    REQUIRE(put(*store, tokens, memory)->wait_completely().ok());
  }
  BlockStoreOptions options(int64_t host_blocks) const { return options_of(host_blocks, folder / "kv", 60, spec); }
  std::unique_ptr<BlockStore> open(int64_t host_blocks) const { return testing::open(options(host_blocks)); }

  const Folder folder;
  const KvSpec spec;
  const std::vector<int32_t> tokens = prompt(kBlocks * kTokens);
};

bool are_right(Memory& memory, const std::vector<int32_t>& tokens, int64_t blocks) {
  bool right = true;
  for (int64_t i = 0; i < blocks; ++i) right &= memory.is_right(i, up_to(tokens, i));
  return right;
}

int64_t count(const BlockRequest& request, TransferType type) {
  return std::ranges::count_if(request.graph().ops(), [&](const TransferOp& op) { return op.type == type; });
}

TEST_CASE("blocks of the disk are read into the caller's memory itself, and host memory keeps none", "[kvstore]") {
  const OnDisk disk;
  const bool rows = GENERATE(false, true), on_device = GENERATE(false, true);
  const int32_t granularity = GENERATE(0, 1, 2);
  backend::CpuDevice cpu;
  const auto store = disk.open(100);
  Memory memory(disk.spec, kBlocks, rows, on_device ? &cpu : nullptr);
  memory.clear();
  const BlockMatch match = store->match(disk.tokens);
  const auto get =
      store->get(match, memory.view, numbers(kBlocks), {.layer_granularity = granularity, .past_host = true}).value();
  CHECK(get->wait_for_layer(0).ok());
  for (int64_t i = 0; i < kBlocks; ++i) CHECK(memory.is_layer_right(i, 0, up_to(disk.tokens, i)));
  CHECK(get->wait() == kBlocks * kTokens);
  CHECK(get->status().ok());
  CHECK(are_right(memory, disk.tokens, kBlocks));
  CHECK(count(*get, TransferType::kDisk2D) == std::ssize(get->graph().ops()));
  CHECK(get->dump().find("DISK2D") != std::string::npos);
  const BlockStoreCounters counters = store->counters();
  CHECK(counters.read_past_host == kBlocks);
  CHECK(counters.from_disk == kBlocks);
  CHECK(counters.copies == 0);
  CHECK(counters.host_used == 0);
  CHECK(counters.disk.bytes_read == kBlocks * disk.spec.geometry().block_bytes());
}

TEST_CASE("a queue that waits for a layer does not overtake a read into its memory", "[kvstore]") {
  const OnDisk disk;
  backend::CpuDevice cpu;
  const auto store = disk.open(100);
  Memory memory(disk.spec, kBlocks, false, &cpu);
  memory.clear();
  const BlockMatch match = store->match(disk.tokens);
  const auto get =
      store->get(match, memory.view, numbers(kBlocks), {.layer_granularity = 1, .past_host = true}).value();
  CHECK(get->wait_for_layer(2, cpu.queue(backend::QueueKind::kCompute)).ok());
  for (int64_t i = 0; i < kBlocks; ++i) CHECK(memory.is_layer_right(i, 2, up_to(disk.tokens, i)));
}

TEST_CASE("what host memory has is copied from there, and the rest is read past it", "[kvstore]") {
  const OnDisk disk;
  const auto store = disk.open(100);
  Memory memory(disk.spec, kBlocks);
  {
    const BlockMatch first = store->match(std::span(disk.tokens).first(4 * kTokens));
    CHECK(store->prefetch(first).value()->wait() == 4 * kTokens);
  }
  memory.clear();
  const BlockMatch match = store->match(disk.tokens);
  const auto get = store->get(match, memory.view, numbers(kBlocks), {.past_host = true}).value();
  CHECK(get->wait() == kBlocks * kTokens);
  CHECK(are_right(memory, disk.tokens, kBlocks));
  CHECK(store->counters().read_past_host == 6);
  CHECK(store->counters().host_used == 4);
}

TEST_CASE("memory that no file is read into gets its blocks by way of host memory", "[kvstore]") {
  const OnDisk disk;
  const auto store = disk.open(100);
  const BlockMatch match = store->match(disk.tokens);
  SECTION("off page borders") {
    Memory memory(disk.spec, kBlocks + 1);
    for (DeviceBlocks::Layer& layer : memory.view->layers) {
      layer.keys += 64;
      layer.values += 64;
    }
    const auto get = store->get(match, memory.view, numbers(kBlocks), {.past_host = true}).value();
    CHECK(get->wait() == kBlocks * kTokens);
    CHECK(are_right(memory, disk.tokens, kBlocks));
  }
  SECTION("on a device that the host does not reach") {
    const auto device = std::move(backend::SimDevice::create({}).value());
    const auto half = static_cast<size_t>(disk.spec.geometry().piece_bytes / 2);
    const size_t plane = half * kBlocks;
    const backend::Block block = std::move(device->allocate(plane * 6).value());
    Memory back(disk.spec, kBlocks);
    auto view = std::make_shared<DeviceBlocks>(*back.view);
    view->device = device.get();
    auto* const base = static_cast<std::byte*>(block.data());
    for (size_t i = 0; i < 3; ++i) view->layers[i] = {base + 2 * i * plane, base + (2 * i + 1) * plane};
    CHECK_FALSE(view->is_direct());
    const auto get = store->get(match, view, numbers(kBlocks), {.past_host = true}).value();
    CHECK(get->wait() == kBlocks * kTokens);
    backend::Queue& queue = device->queue(backend::QueueKind::kDeviceToHost);
    for (size_t i = 0; i < 3; ++i) {
      REQUIRE(queue.copy(back.view->layers[i].keys, view->layers[i].keys, plane).ok());
      REQUIRE(queue.copy(back.view->layers[i].values, view->layers[i].values, plane).ok());
    }
    REQUIRE(queue.synchronize().ok());
    CHECK(are_right(back, disk.tokens, kBlocks));
  }
  CHECK(store->counters().read_past_host == 0);
  CHECK(store->counters().host_used == kBlocks);
}

TEST_CASE("blocks that are smaller than pages go by way of host memory", "[kvstore]") {
  const OnDisk disk(small_spec());
  const auto store = disk.open(3);
  Memory memory(disk.spec, kBlocks);
  const BlockMatch match = store->match(disk.tokens);
  const auto get = store->get(match, memory.view, numbers(kBlocks), {.past_host = true}).value();
  CHECK(get->wait() == 3 * kTokens);
  CHECK(get->status().error_class() == ErrorClass::kResource);
  CHECK(store->counters().read_past_host == 0);
}

TEST_CASE("blocks of the disk that host memory has no room for come past it", "[kvstore]") {
  const OnDisk disk;
  const auto store = disk.open(3);
  Memory memory(disk.spec, kBlocks);
  memory.clear();
  const BlockMatch match = store->match(disk.tokens);
  const auto get = store->get(match, memory.view, numbers(kBlocks), {.layer_granularity = GENERATE(0, 1)}).value();
  CHECK(get->wait() == kBlocks * kTokens);
  CHECK(get->status().ok());
  CHECK(are_right(memory, disk.tokens, kBlocks));
  const BlockStoreCounters counters = store->counters();
  CHECK(counters.read_past_host == kBlocks - 3);
  CHECK(counters.no_room == 0);
  CHECK(counters.host_used == 3);
}

TEST_CASE("a put that host memory has no room for goes to the disk past it, and is there after a restart",
          "[kvstore]") {
  const Folder folder;
  const BlockStoreOptions options = options_of(3, folder / "kv", 60, page_spec());
  const std::vector<int32_t> tokens = prompt(kBlocks * kTokens);
  const bool rows = GENERATE(false, true);
  {
    const auto store = testing::open(options);
    Memory memory(options.spec, kBlocks, rows);
    const auto request = put(*store, tokens, memory);
    CHECK(request->wait() == kBlocks * kTokens);
    CHECK(request->wait_completely().ok());
    CHECK(count(*request, TransferType::kD2Disk) > 0);
    const BlockStoreCounters counters = store->counters();
    CHECK(counters.written_past_host == kBlocks - 3);
    CHECK(counters.stored == kBlocks);
    CHECK(counters.disk.writes == kBlocks);
    // Again: the disk has them.
    CHECK(put(*store, tokens, memory)->wait() == kBlocks * kTokens);
    CHECK(store->counters().disk.writes == kBlocks);
    CHECK(store->counters().pinned == 0);
  }
  const auto store = testing::open(options);
  Memory memory(options.spec, kBlocks, rows);
  memory.clear();
  const BlockMatch match = store->match(tokens);
  CHECK(match.counts().disk == kBlocks);
  CHECK(store->get(match, memory.view, numbers(kBlocks)).value()->wait() == kBlocks * kTokens);
  CHECK(are_right(memory, tokens, kBlocks));
}

TEST_CASE("a put past host memory says what the remote store lacks", "[kvstore]") {
  const Folder folder;
  BlockStoreOptions options = options_of(3, folder / "kv", 60, page_spec());
  options.remote = "memory:past-host";
  const auto store = testing::open(options);
  Memory memory(options.spec, kBlocks);
  const auto request = put(*store, prompt(kBlocks * kTokens), memory);
  CHECK(request->wait() == kBlocks * kTokens);
  CHECK(request->wait_completely().error_class() == ErrorClass::kResource);
  CHECK(store->counters().remote.puts == 3);
}

TEST_CASE("a put past host memory ends where the disk is full, or may not be used yet", "[kvstore]") {
  const Folder folder;
  BlockStoreOptions options = options_of(3, folder / "kv", 6, page_spec());
  SECTION("full") {
    const auto store = testing::open(options);
    Memory memory(options.spec, kBlocks);
    const auto request = put(*store, prompt(kBlocks * kTokens), memory);
    // Those of the disk that the request itself brings are not evicted for it.
    CHECK(request->wait() == 6 * kTokens);
    CHECK(request->status().error_class() == ErrorClass::kResource);
  }
  SECTION("only blocks that are used again go to the disk") {
    options.disk_after_hits = 1;
    const auto store = testing::open(options);
    Memory memory(options.spec, kBlocks);
    CHECK(put(*store, prompt(kBlocks * kTokens), memory)->wait() == 3 * kTokens);
    CHECK(store->counters().written_past_host == 0);
  }
}

TEST_CASE("a damaged block past host memory is not delivered, and is erased", "[kvstore]") {
  const OnDisk disk;
  const auto path = std::filesystem::path(disk.options(1).disk_folder) / "blocks";
  const int64_t block_bytes = disk.spec.geometry().block_bytes();
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(4 * block_bytes + block_bytes / 2);  // in the values of layer 1
  file.put('x').put('y');
  file.close();
  const auto store = disk.open(100);
  Memory memory(disk.spec, kBlocks);
  {
    const BlockMatch match = store->match(disk.tokens);
    const auto get = store->get(match, memory.view, numbers(kBlocks), {.past_host = true}).value();
    CHECK(get->wait() == 4 * kTokens);
    CHECK(get->status().error_class() == ErrorClass::kStorage);
    CHECK(are_right(memory, disk.tokens, 4));
    CHECK(store->counters().disk.checksum_failures == 1);
  }
  store->wait_idle();
  CHECK(store->match(disk.tokens).tokens() == 4 * kTokens);
}

TEST_CASE("a write past host memory that fails stores a prefix, and gives its slots back", "[kvstore]") {
  const Folder folder;
  const BlockStoreOptions options = options_of(3, folder / "kv", 60, page_spec());
  const auto store = testing::open(options);
  const std::vector<int32_t> tokens = prompt(kBlocks * kTokens);
  Memory memory(options.spec, kBlocks);
  struct Full : backend::FileFaults {
    backend::FileFault next(backend::FileCall call, int, int64_t, size_t) override {
      if (call != backend::FileCall::kWrite) return {};
      return {.kind = backend::FileFault::kError, .error = ENOSPC};
    }
  };
  {
    const backend::testing::WithFaults<Full> faults;
    const auto request = put(*store, tokens, memory);
    CHECK(request->wait() == 3 * kTokens);
    CHECK(request->status().error_class() == ErrorClass::kStorage);
    store->wait_idle();
  }
  CHECK(store->counters().disk.used == 0);
  CHECK(store->counters().pinned == 0);
  CHECK(put(*store, tokens, memory)->wait() == kBlocks * kTokens);
  CHECK(store->counters().disk.used >= kBlocks - 3);
}

TEST_CASE("memory is direct only if all of its rows are whole pages on page borders", "[kvstore]") {
  Memory memory(page_spec(), kBlocks), rows(page_spec(), kBlocks, true), small(small_spec(), kBlocks);
  CHECK(memory.view->is_direct());
  CHECK(rows.view->is_direct());
  CHECK_FALSE(small.view->is_direct());
  memory.view->layers[1].values += 512;
  CHECK_FALSE(memory.view->is_direct());
  rows.view->row_stride += 512;
  CHECK_FALSE(rows.view->is_direct());
}

TEST_CASE("a lane refuses direct transfers of other memory, and a scheduler those that have no lane", "[kvstore]") {
  const Folder folder;
  const KvSpec spec = page_spec();
  const backend::BlockGeometry geometry = spec.geometry();
  backend::BlockFileOptions options;
  options.folder = folder / "file";
  options.geometry = geometry;
  options.most_bytes = 4 * geometry.block_bytes();
  const auto file = std::move(backend::BlockFile::open(options, [](const backend::StoredBlock&) {}).value());
  DeviceLane device(geometry, nullptr, 1);
  DiskLane disk(
      *file, geometry, nullptr, device, [](int64_t) { return backend::StoredBlock(); },
      [](const std::vector<int64_t>&) {});
  Memory memory(spec, kBlocks);
  memory.view->layers[0].keys += 64;
  device.add(memory.view);
  const auto run = [&](bool has_lane) {
    TransferScheduler scheduler;
    if (has_lane) scheduler.set_lane(TransferType::kDisk2D, disk);
    TransferOpGraph graph;
    graph.add_op({.type = TransferType::kDisk2D, .source = {{0, 2}}, .destination = {{memory.view->base, 2}}});
    CHECK(graph.verify().ok());
    return scheduler.submit(std::move(graph))->wait();
  };
  CHECK(run(true).error_class() == ErrorClass::kUsage);
  CHECK(run(true).message() == "kv: a file cannot be read into this memory, or written from it");
  CHECK(run(false).message() == "there is no lane for DISK2D");
}

}  // namespace
}  // namespace hetero::graph
