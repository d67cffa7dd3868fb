// The scheduler on lanes whose transfers the test ends: order, failures, cancelling, priorities, and
// random graphs in step with a plain model.

#include "graph/transfer/transfer_scheduler.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "tests/catch/catch.h"

namespace hetero::graph {
namespace {

TransferOp op_of(TransferType type, BlockExtents source, BlockExtents destination, int64_t position = 0) {
  return {.type = type, .source = std::move(source), .destination = std::move(destination), .position = position};
}

Status failure() { return Status(ErrorClass::kStorage, "the disk failed"); }

// Keeps what was started until the test ends it.
class ManualLane final : public TransferLane {
 public:
  struct Started {
    const TransferOp* op;
    TransferDone done;
  };
  void start(const TransferOp& op, TransferDone done) override { started.push_back({&op, done}); }
  void end(size_t index, const Status& status = {}) {
    const Started one = started[index];
    started.erase(started.begin() + static_cast<ptrdiff_t>(index));
    one.done(status);
  }
  std::deque<Started> started;
};

// Ends each transfer at once, within start().
class ImmediateLane final : public TransferLane {
 public:
  void start(const TransferOp&, TransferDone done) override { done({}); }
};

struct Lanes {
  ManualLane h2d, d2h, disk2h, h2disk;
  TransferScheduler scheduler;
  explicit Lanes(LaneLimits limits = {}) {
    scheduler.set_lane(TransferType::kH2D, h2d, limits);
    scheduler.set_lane(TransferType::kD2H, d2h, limits);
    scheduler.set_lane(TransferType::kDisk2H, disk2h, limits);
    scheduler.set_lane(TransferType::kH2Disk, h2disk, limits);
  }
};

// Fragment 1 is on the host, fragment 2 on disk.
TransferOpGraph local_get(int64_t device) {
  TransferOpGraph graph;
  graph.add_op(op_of(TransferType::kH2D, {{0, 4}}, {{device, 4}}));
  const uint32_t read = graph.add_op(op_of(TransferType::kDisk2H, {{20, 2}}, {{4, 2}}, 4));
  graph.add_dependency(read, graph.add_op(op_of(TransferType::kH2D, {{4, 2}}, {{device + 4, 2}}, 4)));
  return graph;
}

// Uploads of what is being read from disk, in place of reading it again.
TransferOpGraph joining_get(int64_t device) {
  TransferOpGraph graph;
  graph.add_op(op_of(TransferType::kH2D, {{0, 6}}, {{device, 6}}));
  return graph;
}

}  // namespace

TEST_CASE("fragments run in parallel, and a transfer waits for those before it") {
  Lanes lanes;
  const auto run = lanes.scheduler.submit(local_get(8));
  REQUIRE(lanes.h2d.started.size() == 1);
  REQUIRE(lanes.disk2h.started.size() == 1);
  lanes.disk2h.end(0);
  CHECK(lanes.h2d.started.size() == 2);
  lanes.h2d.end(1);
  CHECK(run->graph().usable_prefix() == 0);
  CHECK(!run->is_done());
  lanes.h2d.end(0);
  CHECK(run->wait().ok());
  CHECK(run->graph().usable_prefix() == 6);
}

TEST_CASE("a second graph joins a transfer that is still filling its blocks") {
  Lanes lanes;
  const auto first = lanes.scheduler.submit(local_get(8));
  const auto second = lanes.scheduler.submit(joining_get(30));
  CHECK(lanes.h2d.started.size() == 1);
  CHECK(lanes.scheduler.counters().joined == 1);
  // The first goes away; what the second takes is read nevertheless.
  lanes.scheduler.cancel(*first);
  lanes.disk2h.end(0);
  REQUIRE(lanes.h2d.started.size() == 2);
  CHECK(lanes.h2d.started[1].op->graph_id == 2);
  lanes.h2d.end(1);
  CHECK(second->wait().ok());
  lanes.h2d.end(0);
  CHECK(first->wait().error_class() == ErrorClass::kCancelled);
  CHECK(first->graph().usable_prefix() == 4);
  CHECK(lanes.disk2h.started.empty());
}

TEST_CASE("a failure cancels what takes its data, in all graphs, and leaves a prefix") {
  Lanes lanes;
  const auto first = lanes.scheduler.submit(local_get(8));
  const auto second = lanes.scheduler.submit(joining_get(30));
  // Writes a block that the first still reads: order, but no data.
  TransferOpGraph put(Tier::kHost);
  put.add_op(op_of(TransferType::kD2H, {{40, 1}}, {{4, 1}}));
  const auto third = lanes.scheduler.submit(std::move(put));
  CHECK(lanes.d2h.started.empty());
  lanes.disk2h.end(0, failure());
  CHECK(second->wait().error_class() == ErrorClass::kCancelled);
  REQUIRE(lanes.d2h.started.size() == 1);
  lanes.d2h.end(0);
  CHECK(third->wait().ok());
  CHECK(!first->is_done());  // its sibling is running
  lanes.h2d.end(0);
  CHECK(first->wait().message() == "the disk failed");
  CHECK(first->graph().usable_prefix() == 4);
  CHECK(first->graph().ops()[2].state == TransferState::kCancelled);
  // Nothing is left of them.
  lanes.scheduler.wait_idle();
  const auto again = lanes.scheduler.submit(local_get(8));
  lanes.disk2h.end(0);
  lanes.h2d.end(0);
  lanes.h2d.end(0);
  CHECK(again->wait().ok());
}

TEST_CASE("a request does not wait for what is written behind it") {
  Lanes lanes;
  TransferOpGraph put(Tier::kHost);
  const uint32_t save = put.add_op(op_of(TransferType::kD2H, {{0, 1}}, {{0, 1}}));
  TransferOp write = op_of(TransferType::kH2Disk, {{0, 1}}, {{0, 1}});
  write.is_awaited = false;
  put.add_dependency(save, put.add_op(std::move(write)));
  const auto run = lanes.scheduler.submit(std::move(put));
  lanes.d2h.end(0);
  CHECK(run->wait().ok());
  REQUIRE(lanes.h2disk.started.size() == 1);
  lanes.h2disk.end(0, failure());
  CHECK(run->wait_completely().message() == "the disk failed");
}

TEST_CASE("a lane starts the most urgent transfers within its bytes, and one that is larger alone") {
  Lanes lanes({.most_bytes = 100, .most_operations = 2});
  std::vector<std::shared_ptr<TransferRun>> runs;
  const auto submit = [&](uint64_t bytes, TransferPriority priority) {
    TransferOpGraph graph;
    TransferOp op = op_of(TransferType::kH2D, {{std::ssize(runs), 1}}, {{std::ssize(runs), 1}});
    op.bytes = bytes;
    op.priority = priority;
    graph.add_op(std::move(op));
    runs.push_back(lanes.scheduler.submit(std::move(graph)));
  };
  const auto running = [&] {
    std::vector<int64_t> list;
    for (const auto& one : lanes.h2d.started) list.push_back(one.op->source[0].first);
    return list;
  };
  submit(60, TransferPriority::kScrub);
  submit(60, TransferPriority::kPut);
  submit(500, TransferPriority::kPrefetch);
  submit(50, TransferPriority::kGet);
  submit(50, TransferPriority::kGet);
  submit(1, TransferPriority::kGet);
  CHECK(running() == std::vector<int64_t>{0});  // 50 do not fit beside it, and nothing overtakes
  lanes.h2d.end(0);
  CHECK(running() == std::vector<int64_t>{3, 4});
  lanes.h2d.end(0);
  CHECK(running() == std::vector<int64_t>{4, 5});
  lanes.h2d.end(0);
  lanes.h2d.end(0);
  CHECK(running() == std::vector<int64_t>{2});
  lanes.scheduler.cancel(*runs[1]);
  lanes.h2d.end(0);
  CHECK(running().empty());
  CHECK(runs[1]->wait().error_class() == ErrorClass::kCancelled);
}

TEST_CASE("a type without a lane fails, an empty graph is done, and long chains need no stack") {
  Lanes lanes;
  TransferOpGraph remote(Tier::kHost);
  remote.add_op(op_of(TransferType::kRemote2H, {{0, 1}}, {{0, 1}}));
  CHECK(lanes.scheduler.submit(std::move(remote))->wait().message() == "there is no lane for REMOTE2H");
  CHECK(lanes.scheduler.submit(TransferOpGraph())->wait().ok());
  for (const bool fails : {false, true}) {
    TransferScheduler scheduler;
    ImmediateLane immediate;
    ManualLane manual;
    scheduler.set_lane(TransferType::kDisk2H, manual);
    scheduler.set_lane(TransferType::kH2D, immediate);
    scheduler.set_lane(TransferType::kD2H, immediate);
    TransferOpGraph chain;
    uint32_t last = chain.add_op(op_of(TransferType::kDisk2H, {{0, 1}}, {{0, 1}}));
    for (int i = 0; i < 200000; ++i) {
      const auto type = i % 2 == 0 ? TransferType::kH2D : TransferType::kD2H;
      const uint32_t next = chain.add_op(op_of(type, {{0, 1}}, {{0, 1}}));
      chain.add_dependency(last, next);
      last = next;
    }
    const auto run = scheduler.submit(std::move(chain));
    manual.end(0, fails ? failure() : Status());
    CHECK(run->wait().ok() == !fails);
    CHECK(scheduler.counters().cancelled == (fails ? 200000 : 0));
  }
}

// ---- in step with a plain model

namespace {

constexpr int32_t kLayers = 4;

// All transfers in the order of submission, with what they touch; every question is answered by
// looking at all of them.
struct Model {
  struct Entry {
    TransferOp op;
    size_t graph;
    TransferState state = TransferState::kPending;
  };
  std::vector<Entry> entries;
  std::vector<size_t> begins;          // of each graph
  std::vector<std::set<size_t>> over;  // graphs that had ended before each

  static std::set<std::pair<Tier, int64_t>> places(const TransferOp& op, bool writes) {
    std::set<std::pair<Tier, int64_t>> all;
    for (const BlockExtent& extent : writes ? op.destination : op.source) {
      for (int64_t i = 0; i < extent.count; ++i) {
        all.emplace(writes ? destination_tier(op.type) : source_tier(op.type), extent.first + i);
      }
    }
    return all;
  }
  static bool meet(const std::set<std::pair<Tier, int64_t>>& a, const std::set<std::pair<Tier, int64_t>>& b) {
    return std::ranges::any_of(a, [&](const auto& place) { return b.contains(place); });
  }
  static bool conflict(const TransferOp& a, const TransferOp& b) {
    return share_layers(a, b) && (meet(places(a, true), places(b, true)) || meet(places(a, true), places(b, false)) ||
                                  meet(places(a, false), places(b, true)));
  }

  // Transfers before `i` that it waits for.
  bool waits(size_t i) const {
    for (size_t j = 0; j < i; ++j) {
      if (is_final(entries[j].state)) continue;
      const bool same = entries[j].graph == entries[i].graph;
      const auto& before = entries[i].op.predecessors;
      if (same ? std::ranges::find(before, entries[j].op.op_id) != before.end()
               : conflict(entries[j].op, entries[i].op)) {
        return true;
      }
    }
    return false;
  }
  void add(const TransferOpGraph& graph) {
    std::set<size_t> open, ended;
    for (const Entry& entry : entries) {
      if (!is_final(entry.state)) open.insert(entry.graph);
    }
    for (size_t other = 0; other < begins.size(); ++other) {
      if (!open.contains(other)) ended.insert(other);
    }
    const size_t number = begins.size();
    begins.push_back(entries.size());
    over.push_back(std::move(ended));
    for (const TransferOp& op : graph.ops()) entries.push_back({op, number});
  }
  // The last writers of what `i` reads, in other graphs, for each layer. Those of graphs that had
  // ended do not count: what they wrote is there or was given up.
  std::set<size_t> sources(size_t i) const {
    std::set<size_t> found;
    for (const auto& place : places(entries[i].op, false)) {
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        const TransferOp one{.layer_id = layer, .layer_granularity = 1};
        if (!share_layers(one, entries[i].op)) continue;
        for (size_t j = i; j-- > 0;) {
          if (!share_layers(one, entries[j].op) || !places(entries[j].op, true).contains(place)) continue;
          const size_t other = entries[j].graph, own = entries[i].graph;
          if (other != own && !over[own].contains(other)) found.insert(j);
          break;
        }
      }
    }
    return found;
  }
  bool is_doomed(size_t i) const {
    const auto lost = [&](size_t j) {
      return entries[j].state == TransferState::kFailed || entries[j].state == TransferState::kCancelled;
    };
    for (const uint32_t before : entries[i].op.predecessors) {
      if (lost(begins[entries[i].graph] + before)) return true;
    }
    return std::ranges::any_of(sources(i), lost);
  }
  // States that follow from those of others.
  void settle() {
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = 0; i < entries.size(); ++i) {
        if (entries[i].state != TransferState::kPending || waits(i)) continue;
        entries[i].state = is_doomed(i) ? TransferState::kCancelled : TransferState::kRunning;
        changed = true;
      }
    }
  }
};

// How the transfers of random graphs divide layers: not at all, in halves, or in any way; then some
// follow each other through the layers of the same blocks, as in a layered request.
enum class Division { kNone, kHalves, kAny };

TransferOpGraph random_graph(std::mt19937& random, Division division) {
  constexpr TransferType kTypes[] = {TransferType::kH2D, TransferType::kD2H, TransferType::kDisk2H,
                                     TransferType::kH2Disk};
  TransferOpGraph graph;
  const auto draw = [&](uint32_t below) { return static_cast<int64_t>(random() % below); };
  const auto add = [&](TransferOp op) {
    const uint32_t number = graph.add_op(std::move(op));
    for (uint32_t before = 0; before < number; ++before) {
      if (Model::conflict(graph.ops()[before], graph.ops()[number]) || random() % 5 == 0) {
        graph.add_dependency(before, number);
      }
    }
  };
  const auto random_op = [&] {
    const int64_t blocks = 1 + draw(3);
    return op_of(kTypes[draw(4)], {{draw(6), blocks}}, {{draw(6), blocks}});
  };
  const int64_t count = 1 + draw(5);
  for (int64_t i = 0; i < count; ++i) {
    TransferOp op = random_op();
    if (division == Division::kHalves) {
      op.layer_id = static_cast<int32_t>(2 * draw(2));
      op.layer_granularity = 2;
    } else if (division == Division::kAny && draw(3) > 0) {
      op.layer_id = static_cast<int32_t>(draw(kLayers));
      op.layer_granularity = 1 + static_cast<int32_t>(draw(static_cast<uint32_t>(kLayers - op.layer_id)));
    } else if (division == Division::kAny && draw(2) > 0) {
      TransferOp other = random_op();
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        for (TransferOp* const next : {&op, &other}) {
          next->layer_id = layer;
          next->layer_granularity = 1;
          add(*next);
        }
      }
      continue;
    }
    add(std::move(op));
  }
  return graph;
}

}  // namespace

TEST_CASE("random graphs start exactly what a plain model starts, whatever ends, fails or is submitted") {
  for (uint32_t seed = 0; seed < 450; ++seed) {
    std::mt19937 random(seed);
    Lanes lanes({.most_operations = 1 << 20});
    Model model;
    std::vector<std::shared_ptr<TransferRun>> runs;
    ManualLane* const all[] = {&lanes.h2d, &lanes.d2h, &lanes.disk2h, &lanes.h2disk};
    const auto check = [&] {
      model.settle();
      for (const Model::Entry& entry : model.entries) {
        const TransferOp& op = runs[entry.graph]->graph().ops()[entry.op.op_id];
        REQUIRE(op.state == entry.state);
      }
    };
    int left = 12;
    while (true) {
      std::vector<std::pair<ManualLane*, size_t>> choices;
      for (ManualLane* lane : all) {
        for (size_t i = 0; i < lane->started.size(); ++i) choices.emplace_back(lane, i);
      }
      if (left > 0 && (choices.empty() || random() % 3 == 0)) {
        --left;
        TransferOpGraph graph = random_graph(random, static_cast<Division>(seed % 3));
        REQUIRE(graph.verify().ok());
        model.add(graph);
        runs.push_back(lanes.scheduler.submit(std::move(graph)));
      } else if (!choices.empty()) {
        const auto [lane, index] = choices[random() % choices.size()];
        const TransferOp& op = *lane->started[index].op;
        const bool fails = random() % 6 == 0;
        model.entries[model.begins[op.graph_id - 1] + op.op_id].state =
            fails ? TransferState::kFailed : TransferState::kCompleted;
        lane->end(index, fails ? failure() : Status());
      } else {
        break;
      }
      check();
    }
    for (const auto& run : runs) REQUIRE((run->is_done() && run->wait_completely().ok() == run->wait().ok()));
    lanes.scheduler.wait_idle();
  }
}

// ---- threads

namespace {

// Ends transfers on a thread of its own; each writes the numbers that the test checks.
class ThreadLane final : public TransferLane {
 public:
  ThreadLane() : thread_([this] { work(); }) {}
  ~ThreadLane() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  void start(const TransferOp& op, TransferDone done) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.emplace_back(&op, done);
    }
    changed_.notify_one();
  }

 private:
  void work() {
    std::mt19937 random(7);
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return ends_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const auto [op, done] = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      done(random() % 50 == 0 ? failure() : Status());
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<const TransferOp*, TransferDone>> waiting_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace

TEST_CASE("a layered graph of 1,024 blocks is noted once for each block, and joined layer by layer") {
  constexpr int64_t kBlocks = 1024;
  constexpr int32_t kManyLayers = 100;
  const auto layered = [](TransferType type, int64_t to) {
    TransferOpGraph graph(destination_tier(type));
    for (int32_t layer = 0; layer < kManyLayers; ++layer) {
      TransferOp op{.type = type, .layer_id = layer, .layer_granularity = 1};
      for (int64_t i = 0; i < kBlocks; ++i) {
        append_block(op.source, i * 37 % kBlocks);
        append_block(op.destination, to + i * 37 % kBlocks);
      }
      graph.add_op(std::move(op));
    }
    return graph;
  };
  Lanes lanes({.most_operations = 1 << 20});
  const auto read = lanes.scheduler.submit(layered(TransferType::kDisk2H, 0));
  const auto first = lanes.scheduler.submit(layered(TransferType::kH2D, 0));
  const auto second = lanes.scheduler.submit(layered(TransferType::kH2D, kBlocks));
  CHECK(lanes.scheduler.counters().joined == 2 * kManyLayers);  // one wait for a layer, not one for a block
  CHECK(lanes.scheduler.blocks_in_use() == 4 * kBlocks);
  REQUIRE(lanes.h2d.started.empty());
  lanes.disk2h.end(40);
  REQUIRE(lanes.h2d.started.size() == 2);
  CHECK(lanes.h2d.started[0].op->layer_id == 40);
  CHECK(lanes.h2d.started[1].op->layer_id == 40);
  lanes.disk2h.end(0, failure());
  while (!lanes.disk2h.started.empty()) lanes.disk2h.end(0);
  while (!lanes.h2d.started.empty()) lanes.h2d.end(0);
  for (const auto& run : {first, second}) {
    CHECK(run->wait().error_class() == ErrorClass::kCancelled);
    CHECK(std::ranges::count_if(run->graph().ops(),
                                [](const TransferOp& op) { return op.state == TransferState::kCancelled; }) == 1);
  }
  CHECK(lanes.scheduler.blocks_in_use() == 0);
}

TEST_CASE("graphs from many threads end on many threads, some cancelled, and nothing is left") {
  ThreadLane h2d, d2h, disk2h, h2disk;
  TransferScheduler scheduler;
  scheduler.set_lane(TransferType::kH2D, h2d, {.most_operations = 3});
  scheduler.set_lane(TransferType::kD2H, d2h);
  scheduler.set_lane(TransferType::kDisk2H, disk2h, {.most_operations = 1});
  scheduler.set_lane(TransferType::kH2Disk, h2disk);
  std::atomic<int> ended{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 200; ++i) {
        const auto run = scheduler.submit(random_graph(random, Division::kAny));
        if (random() % 4 == 0) scheduler.cancel(*run);
        if (random() % 2 == 0) (void)run->wait();
        (void)run->wait_completely();
        for (const TransferOp& op : run->graph().ops()) ended += is_final(op.state) ? 1 : 0;
        ended -= static_cast<int>(run->graph().ops().size());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(ended == 0);
  const TransferScheduler::Counters counters = scheduler.counters();
  CHECK(counters.started == counters.completed + counters.failed);
  CHECK(counters.cancelled > 0);
  // A scheduler may go as soon as its last transfer has ended.
  for (int i = 0; i < 50; ++i) {
    TransferScheduler brief;
    brief.set_lane(TransferType::kH2D, h2d);
    (void)brief.submit(joining_get(0));
  }
}

}  // namespace hetero::graph
