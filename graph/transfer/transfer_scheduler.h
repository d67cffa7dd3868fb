// TransferScheduler: runs transfer graphs on lanes, one lane for each type of transfer.
//
// A transfer starts when all transfers that it waits for have ended: those of its graph
// (transfer_graph.h), and those of earlier graphs that touch the same blocks (block_hazards.h).
// Ready transfers of a lane start in the order of their priorities and then of readiness, as long
// as the lane has bytes and operations to spare; one may always run.
//
// A transfer that fails cancels what takes its data, also in other graphs, and nothing else. The
// others go on, and a run ends when none of its transfers is running: its blocks can be given back
// then. cancel() keeps transfers from starting, except those whose data another graph waits for.
//
//   TransferScheduler scheduler;
//   scheduler.set_lane(TransferType::kH2D, lane, {.most_bytes = 64 << 20});
//   std::shared_ptr<TransferRun> run = scheduler.submit(std::move(graph));
//   Status status = run->wait();
//   const int64_t blocks = run->graph().usable_prefix();
//
// Starting and completing a transfer takes the locks of its lane and its run only, and time that
// does not depend on the number of graphs.
//
// Thread safety: any thread may call any function. Lanes are called by the thread that made a
// transfer ready: one that submits, or one that reports a completion.
// Ownership: lanes must outlive the scheduler. The scheduler must outlive its runs' transfers; its
// destructor waits for them.

#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "backend/base/status.h"
#include "graph/transfer/block_hazards.h"
#include "graph/transfer/transfer_graph.h"

namespace hetero::graph {

class TransferRun;
class TransferScheduler;

// Reports the end of a transfer, once.
class TransferDone {
 public:
  void operator()(const Status& status) const;

 private:
  friend class TransferScheduler;
  TransferDone(TransferScheduler& scheduler, void* node) : scheduler_(&scheduler), node_(node) {}
  TransferScheduler* scheduler_;
  void* node_;
};

// Who moves the bytes.
class TransferLane {
 public:
  virtual ~TransferLane() = default;
  // Starts a transfer. `done` is called once, from any thread, perhaps before start() returns. The
  // op is valid until then.
  virtual void start(const TransferOp& op, TransferDone done) = 0;
};

struct LaneLimits {
  uint64_t most_bytes = UINT64_MAX;  // that are in flight
  int most_operations = 64;
};

class TransferRun {
 public:
  // Waits until every awaited transfer has ended. The error of the first that failed; kCancelled if
  // some were cancelled.
  Status wait();
  // Waits until every awaited transfer of this layer into the graph's target has ended. Errors:
  // those of wait(), if one of them did not complete.
  Status wait_for_layer(int32_t layer);
  // Waits until all have ended, those that are not awaited too.
  Status wait_completely();
  bool is_done() const;
  // With the states of its transfers. REQUIRES: the scheduler has not begun to be destroyed.
  const TransferOpGraph& graph() const { return graph_; }

 private:
  friend class TransferDone;
  friend class TransferScheduler;
  struct Node;
  struct Edge;

  explicit TransferRun(TransferOpGraph graph);
  Status outcome() const;

  TransferOpGraph graph_;
  std::unique_ptr<Node[]> nodes_;
  std::vector<std::unique_ptr<Edge>> edges_;  // to its nodes
  std::atomic<bool> is_cancelled_{false};
  std::atomic<int64_t> open_{0};  // transfers that have not ended
  std::function<void(const TransferOpGraph&)> finished_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  int64_t awaited_ = 0;
  int watchers_ = 0;  // threads that wait for single transfers
  bool is_finished_ = false;
  Status error_;
};

class TransferScheduler {
 public:
  TransferScheduler() = default;
  ~TransferScheduler();
  TransferScheduler(const TransferScheduler&) = delete;

  // Before the first graph with such transfers.
  void set_lane(TransferType type, TransferLane& lane, LaneLimits limits = {});
  // enqueue() and start().
  std::shared_ptr<TransferRun> submit(TransferOpGraph graph);
  // The graph has its place in the order of graphs, and nothing of it starts yet. REQUIRES:
  // graph.verify(); start() follows.
  // `finished` is called once, when the last transfer has ended, and before the scheduler forgets
  // which blocks the graph touched. If the caller plans and enqueues under a lock that `finished`
  // takes, no graph can be planned for data that then does not come.
  std::shared_ptr<TransferRun> enqueue(TransferOpGraph graph, std::function<void(const TransferOpGraph&)> finished);
  // Starts what can start. Transfers of a type without a lane fail.
  void start(TransferRun& run);
  void cancel(TransferRun& run);
  // Another request waits for this transfer: cancel() does not stop it any more.
  void keep(TransferRun& run, uint32_t op);
  // Until the graphs that run now have ended; others may begin meanwhile.
  void wait_for_running();
  // Until no graph runs.
  void wait_idle();

  struct Counters {
    int64_t started = 0;
    int64_t completed = 0;
    int64_t failed = 0;
    int64_t cancelled = 0;
    int64_t joined = 0;  // waits for the data of another graph's transfer
  };
  Counters counters() const;
  // Blocks of all tiers that graphs which have not ended touch.
  size_t blocks_in_use() const;

 private:
  friend class TransferDone;
  using Node = TransferRun::Node;

  struct Ended {
    Node* node;
    TransferState state;
    Status status;
  };
  // Ready transfers of one type.
  struct Queue {
    Node* first = nullptr;
    Node* last = nullptr;
  };
  struct Lane {
    std::mutex mutex;  // guards what follows
    TransferLane* lane = nullptr;
    LaneLimits limits;
    std::array<Queue, kTransferPriorities> ready;
    uint64_t bytes = 0;  // in flight
    int operations = 0;
    bool is_pumping = false;
  };

  Lane& lane_of(const Node& node);
  void wait_for_other(Node& before, Node& after, bool carries_data);
  bool add_edge(Node& before, Node& after, bool carries_data);
  void mark_joined(Node& node);
  Status make_ready(Node& node);
  void pump(Lane& lane);
  Node* take_ready(Lane& lane);
  bool must_run(const Node& node) const;
  void complete(Node& node, const Status& status);
  std::optional<Ended> release(Node& node);
  void end(Ended first);
  void report(Node& node, TransferState state, const Status& status);
  void close(TransferRun& run);
  void finish(TransferRun& run);

  std::array<Lane, kTransferTypes> lanes_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable idle_;
  BlockHazards hazards_;
  uint64_t next_graph_ = 1;
  std::unordered_map<const TransferRun*, std::shared_ptr<TransferRun>> running_;

  std::atomic<int64_t> started_{0}, completed_{0}, failed_{0}, cancelled_{0}, joined_{0};
};

}  // namespace hetero::graph
