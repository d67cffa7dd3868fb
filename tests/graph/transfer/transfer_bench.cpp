// hetero_transfer_bench: nanoseconds that the scheduler of transfers takes, by the number of graphs
// that run. Each graph reads two blocks from disk and uploads them. A tick ends a transfer and
// starts what waited for it. Then milliseconds to take in one graph of 1,024 blocks that come layer
// by layer, and what the block store takes for a match, a plan and a release of 1,024 blocks.
//
//   hetero_transfer_bench [FOLDER]    the folder is for a store with a disk
//
// Thread safety: one thread.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "graph/transfer/block_store.h"
#include "graph/transfer/transfer_scheduler.h"

namespace hetero::graph {
namespace {

using Clock = std::chrono::steady_clock;

class QueueLane final : public TransferLane {
 public:
  void start(const TransferOp&, TransferDone done) override { started.push_back(done); }
  std::vector<TransferDone> started;
};

TransferOpGraph get(int64_t number) {
  TransferOpGraph graph;
  const int64_t block = 2 * number;
  const uint32_t read =
      graph.add_op({.type = TransferType::kDisk2H, .source = {{block, 2}}, .destination = {{block, 2}}});
  graph.add_dependency(read,
                       graph.add_op({.type = TransferType::kH2D, .source = {{block, 2}}, .destination = {{block, 2}}}));
  return graph;
}

double nanoseconds_each(Clock::time_point begin, int64_t count) {
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / static_cast<double>(count);
}

struct Times {
  double submit, tick;
};

Times measure(int64_t graphs) {
  QueueLane disk, device;
  TransferScheduler scheduler;
  scheduler.set_lane(TransferType::kDisk2H, disk, {.most_operations = 1 << 30});
  scheduler.set_lane(TransferType::kH2D, device, {.most_operations = 1 << 30});
  std::vector<TransferOpGraph> made;
  for (int64_t i = 0; i < graphs; ++i) made.push_back(get(i));
  Clock::time_point begin = Clock::now();
  for (TransferOpGraph& graph : made) (void)scheduler.submit(std::move(graph));
  const double submit = nanoseconds_each(begin, graphs);
  begin = Clock::now();
  for (const TransferDone& done : std::exchange(disk.started, {})) done({});
  const double tick = nanoseconds_each(begin, graphs);
  for (const TransferDone& done : std::exchange(device.started, {})) done({});
  return {submit, tick};
}

double median_of(std::vector<double>& list) {
  std::ranges::nth_element(list, list.begin() + static_cast<ptrdiff_t>(list.size() / 2));
  return list[list.size() / 2];
}

void print(int64_t graphs) {
  std::vector<double> submits, ticks;
  for (int64_t i = 0; i < std::max<int64_t>(5, 20000 / graphs); ++i) {
    const Times times = measure(graphs);
    submits.push_back(times.submit);
    ticks.push_back(times.tick);
  }
  std::printf("%6lld graphs: submit %5.0f ns, tick %4.0f ns\n", static_cast<long long>(graphs), median_of(submits),
              median_of(ticks));
}

constexpr int64_t kBlocks = 1024;
constexpr int32_t kLayers = 28;

// A layered GET of scattered blocks. Some are in host memory; the others come from the disk, 128 at
// a time.
TransferOpGraph layered_get(int64_t in_host, int64_t device) {
  const auto place = [](int64_t block) { return block * 37 % kBlocks; };
  TransferOpGraph graph;
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    const auto layered = [&](TransferType type, int64_t begin, int64_t end, int64_t to) {
      TransferOp op{.type = type, .position = begin, .layer_id = layer, .layer_granularity = 1};
      for (int64_t i = begin; i < end; ++i) {
        append_block(op.source, place(i));
        append_block(op.destination, to + place(i));
      }
      return graph.add_op(std::move(op));
    };
    if (in_host > 0) layered(TransferType::kH2D, 0, in_host, device);
    for (int64_t begin = in_host; begin < kBlocks; begin += 128) {
      const int64_t end = std::min(kBlocks, begin + 128);
      const uint32_t read = layered(TransferType::kDisk2H, begin, end, 0);
      graph.add_dependency(read, layered(TransferType::kH2D, begin, end, device));
    }
  }
  return graph;
}

struct GraphTimes {
  double enqueue, end;
};

// `others` requests of the same blocks run meanwhile.
GraphTimes measure_layered(int64_t in_host, int64_t others) {
  QueueLane disk, device;
  TransferScheduler scheduler;
  scheduler.set_lane(TransferType::kDisk2H, disk, {.most_operations = 1 << 30});
  scheduler.set_lane(TransferType::kH2D, device, {.most_operations = 1 << 30});
  for (int64_t i = 0; i < others; ++i) (void)scheduler.submit(layered_get(i == 0 ? 0 : kBlocks, i * kBlocks));
  TransferOpGraph graph = layered_get(in_host, others * kBlocks);
  Clock::time_point begin = Clock::now();
  const auto run = scheduler.enqueue(std::move(graph), {});
  const double enqueue = nanoseconds_each(begin, 1) / 1e6;
  scheduler.start(*run);
  begin = Clock::now();
  while (!disk.started.empty() || !device.started.empty()) {
    for (const TransferDone& done : std::exchange(disk.started, {})) done({});
    for (const TransferDone& done : std::exchange(device.started, {})) done({});
  }
  return {enqueue, nanoseconds_each(begin, 1) / 1e6};
}

void print_layered(const char* what, int64_t in_host, int64_t others) {
  std::vector<double> enqueues, ends;
  for (int i = 0; i < 31; ++i) {
    const GraphTimes times = measure_layered(in_host, others);
    enqueues.push_back(times.enqueue);
    ends.push_back(times.end);
  }
  std::printf("%s: enqueue %6.2f ms, all transfers end %6.2f ms\n", what, median_of(enqueues), median_of(ends));
}

// ---- the store

// 64 prompts, so that a match finds little of its own in the processor's caches.
constexpr int64_t kPrompts = 64;

std::vector<int32_t> prompt(int64_t number, int64_t blocks) {
  std::minstd_rand random(static_cast<uint32_t>(number) * 2654435761U + 1);
  std::vector<int32_t> tokens(static_cast<size_t>(blocks * 16));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 150000);
  return tokens;
}

std::vector<int64_t> numbers(int64_t count) {
  std::vector<int64_t> result(static_cast<size_t>(count));
  std::iota(result.begin(), result.end(), 0);
  return result;
}

void print_store(const std::string& disk) {
  BlockStoreOptions options;
  options.spec.model = "bench";
  options.spec.layers = options.spec.kv_heads = 1;
  options.spec.head_size = 8;
  const int64_t bytes = options.spec.geometry().block_bytes();
  options.host_bytes = (kPrompts + 1) * kBlocks * bytes;
  options.disk_folder = disk;
  options.disk_bytes = disk.empty() ? 0 : options.host_bytes;
  const auto store = std::move(BlockStore::open(options).value());
  const auto memory = std::make_shared<DeviceBlocks>();
  const int64_t half = options.spec.geometry().piece_bytes / 2;
  std::vector<std::byte> keys(static_cast<size_t>(kBlocks * half)), values(keys.size());
  *memory = {.layers = {{keys.data(), values.data()}}, .blocks = kBlocks, .block_stride = half, .row_bytes = half};
  for (int64_t i = 0; i < kPrompts; ++i) {
    (void)store->put(prompt(i, kBlocks), memory, numbers(kBlocks)).value()->wait_completely();
  }
  std::vector<double> matches, short_matches, releases, gets, puts;
  std::minstd_rand random(5);
  for (int i = 0; i < 301; ++i) {
    const std::vector<int32_t> tokens = prompt(static_cast<int64_t>(random() % kPrompts), kBlocks);
    Clock::time_point begin = Clock::now();
    std::optional<BlockMatch> match = store->match(tokens);
    matches.push_back(nanoseconds_each(begin, 1000));
    if (match->tokens() != kBlocks * 16) std::abort();
    begin = Clock::now();
    auto get = store->get(*match, memory, numbers(kBlocks));
    gets.push_back(nanoseconds_each(begin, 1000));
    (void)get.value()->wait_completely();
    begin = Clock::now();
    match.reset();
    releases.push_back(nanoseconds_each(begin, 1000));
    const std::vector<int32_t> other = prompt(static_cast<int64_t>(random() % kPrompts), kBlocks);
    begin = Clock::now();
    match = store->match(std::span(other).first(64 * 16));
    short_matches.push_back(nanoseconds_each(begin, 1000));
    begin = Clock::now();
    auto put = store->put(other, memory, numbers(kBlocks));
    puts.push_back(nanoseconds_each(begin, 1000));
    (void)put.value()->wait_completely();
  }
  std::printf(
      "store %s: match 1,024 blocks %5.1f us, release %5.1f; match 64 %4.1f; get %5.1f, put what is known %5.1f\n",
      disk.empty() ? "in host memory" : "with a disk", median_of(matches), median_of(releases),
      median_of(short_matches), median_of(gets), median_of(puts));
}

}  // namespace
}  // namespace hetero::graph

int main(int argc, char** argv) {
  using namespace hetero::graph;
  for (const int64_t graphs : {1, 10, 100, 1000, 10000}) print(graphs);
  print_layered("1,024 blocks by 28 layers, in host memory", kBlocks, 0);
  print_layered("1,024 blocks by 28 layers, on the disk", 0, 0);
  print_layered("1,024 blocks by 28 layers, that 7 requests also wait for", kBlocks, 7);
  print_store("");
  if (argc > 1) print_store(argv[1]);
  return 0;
}
