#include "graph/transfer/transfer_scheduler.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace hetero::graph {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

// From a transfer to one that waits for it.
struct TransferRun::Edge {
  Node* to;
  bool carries_data;
  Edge* next = nullptr;
};

struct TransferRun::Node {
  TransferRun* run = nullptr;
  TransferOp* op = nullptr;
  Node* next = nullptr;                    // in a queue of ready transfers
  std::atomic<int32_t> waits{1};           // for transfers; 1 more until the graph is submitted
  std::atomic<bool> is_doomed{false};      // its data will not come
  std::atomic<bool> is_joined{false};      // another graph waits for its data
  std::atomic<Edge*> successors{nullptr};  // closed() when the transfer has ended

  // No edge can be added any more.
  static Edge* closed() {
    static Edge mark{};
    return &mark;
  }
  TransferState state() const { return std::atomic_ref(op->state).load(std::memory_order_acquire); }
  void set_state(TransferState state) { std::atomic_ref(op->state).store(state, std::memory_order_release); }
};

// ---- runs

TransferRun::TransferRun(TransferOpGraph graph) : graph_(std::move(graph)), nodes_(new Node[graph_.ops().size()]) {}

Status TransferRun::outcome() const {
  if (!error_.ok()) return error_;
  for (const TransferOp& op : graph_.ops()) {
    if (op.is_awaited && nodes_[op.op_id].state() == TransferState::kCancelled) {
      return Status(ErrorClass::kCancelled, "the transfers were cancelled");
    }
  }
  return Status();
}

Status TransferRun::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return awaited_ == 0; });
  return outcome();
}

Status TransferRun::wait_for_layer(int32_t layer) {
  const auto concerns = [&](const TransferOp& op) {
    if (!op.is_awaited || destination_tier(op.type) != graph_.target()) return false;
    return op.layer_granularity == 0 || (op.layer_id <= layer && layer < op.layer_id + op.layer_granularity);
  };
  std::unique_lock lock(mutex_);
  ++watchers_;
  bool is_complete = true;
  changed_.wait(lock, [&] {
    is_complete = true;
    for (const TransferOp& op : graph_.ops()) {
      if (!concerns(op)) continue;
      const TransferState state = nodes_[op.op_id].state();
      if (!is_final(state)) return false;
      is_complete &= state == TransferState::kCompleted;
    }
    return true;
  });
  --watchers_;
  if (is_complete) return Status();
  return error_.ok() ? Status(ErrorClass::kCancelled, "the transfers were cancelled") : error_;
}

Status TransferRun::wait_completely() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return is_finished_; });
  return outcome();
}

bool TransferRun::is_done() const {
  const std::lock_guard lock(mutex_);
  return awaited_ == 0;
}

void TransferDone::operator()(const Status& status) const {
  scheduler_->complete(*static_cast<TransferRun::Node*>(node_), status);
}

// ---- submission

TransferScheduler::~TransferScheduler() { wait_idle(); }

void TransferScheduler::wait_idle() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return running_.empty(); });
}

void TransferScheduler::wait_for_running() {
  std::vector<std::shared_ptr<TransferRun>> runs;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, run] : running_) runs.push_back(run);
  }
  for (const auto& run : runs) static_cast<void>(run->wait_completely());
}

void TransferScheduler::set_lane(TransferType type, TransferLane& lane, LaneLimits limits) {
  Lane& slot = lanes_[static_cast<size_t>(type)];
  const std::lock_guard lock(slot.mutex);
  slot.lane = &lane;
  slot.limits = limits;
}

TransferScheduler::Lane& TransferScheduler::lane_of(const Node& node) {
  return lanes_[static_cast<size_t>(node.op->type)];
}

std::shared_ptr<TransferRun> TransferScheduler::submit(TransferOpGraph graph) {
  std::shared_ptr<TransferRun> run = enqueue(std::move(graph), {});
  start(*run);
  return run;
}

// Edges within the graph, and to earlier graphs, while no transfer of this one can start.
std::shared_ptr<TransferRun> TransferScheduler::enqueue(TransferOpGraph graph,
                                                        std::function<void(const TransferOpGraph&)> finished) {
  std::shared_ptr<TransferRun> run(new TransferRun(std::move(graph)));
  run->finished_ = std::move(finished);
  std::vector<TransferOp>& ops = run->graph_.ops_;
  for (TransferOp& op : ops) {
    run->nodes_[op.op_id].run = run.get();
    run->nodes_[op.op_id].op = &op;
    run->awaited_ += op.is_awaited ? 1 : 0;
  }
  run->open_ = std::ssize(ops) + 1;  // until all are released
  const std::lock_guard lock(mutex_);
  const uint64_t id = next_graph_++;
  for (TransferOp& op : ops) op.graph_id = id;
  running_.emplace(run.get(), run);
  for (const TransferOp& op : ops) {
    for (const uint32_t before : op.predecessors) add_edge(run->nodes_[before], run->nodes_[op.op_id], true);
  }
  hazards_.add(ops, *run, [&](TransferRun& other, uint32_t before, uint32_t after, bool carries_data) {
    wait_for_other(other.nodes_[before], run->nodes_[after], carries_data);
  });
  return run;
}

// Each transfer is released: those that wait for nothing are ready.
void TransferScheduler::start(TransferRun& run) {
  for (const TransferOp& op : run.graph_.ops_) {
    if (std::optional<Ended> ended = release(run.nodes_[op.op_id])) end(std::move(*ended));
  }
  close(run);
}

// REQUIRES: mutex_.
void TransferScheduler::wait_for_other(Node& before, Node& after, bool carries_data) {
  if (carries_data) mark_joined(before);
  if (!add_edge(before, after, carries_data)) return;
  if (carries_data) joined_.fetch_add(1, std::memory_order_relaxed);
}

// Whether `before` has not ended. If its data will not come, `after` is doomed.
bool TransferScheduler::add_edge(Node& before, Node& after, bool carries_data) {
  auto edge = std::make_unique<TransferRun::Edge>(TransferRun::Edge{&after, carries_data});
  after.waits.fetch_add(1, std::memory_order_relaxed);
  TransferRun::Edge* head = before.successors.load(std::memory_order_acquire);
  while (head != Node::closed()) {
    edge->next = head;
    if (before.successors.compare_exchange_weak(head, edge.get(), std::memory_order_acq_rel)) {
      after.run->edges_.push_back(std::move(edge));
      return true;
    }
  }
  after.waits.fetch_sub(1, std::memory_order_relaxed);
  if (carries_data && before.state() != TransferState::kCompleted) after.is_doomed.store(true);
  return false;
}

// Cancelling its graph must not stop it, nor what it waits for.
void TransferScheduler::mark_joined(Node& node) {
  std::vector<Node*> marked{&node};
  while (!marked.empty()) {
    Node& next = *marked.back();
    marked.pop_back();
    if (next.is_joined.exchange(true)) continue;
    for (const uint32_t before : next.op->predecessors) marked.push_back(&next.run->nodes_[before]);
  }
}

void TransferScheduler::cancel(TransferRun& run) { run.is_cancelled_.store(true, std::memory_order_release); }
void TransferScheduler::keep(TransferRun& run, uint32_t op) { mark_joined(run.nodes_[op]); }

// ---- running

bool TransferScheduler::must_run(const Node& node) const {
  if (node.is_doomed.load(std::memory_order_acquire)) return false;
  return !node.run->is_cancelled_.load(std::memory_order_acquire) || node.is_joined.load(std::memory_order_acquire);
}

// Queues the transfer and starts what the lane has room for. Errors: there is no lane.
Status TransferScheduler::make_ready(Node& node) {
  Lane& lane = lane_of(node);
  {
    const std::lock_guard lock(lane.mutex);
    if (lane.lane == nullptr) {
      return Status(ErrorClass::kStorage, std::string("there is no lane for ") + to_string(node.op->type));
    }
    node.set_state(TransferState::kReady);
    Queue& queue = lane.ready[static_cast<size_t>(node.op->priority)];
    (queue.first == nullptr ? queue.first : queue.last->next) = &node;
    queue.last = &node;
  }
  pump(lane);
  return Status();
}

// The next ready transfer for which the lane has room; it is then in flight. REQUIRES: its mutex.
TransferScheduler::Node* TransferScheduler::take_ready(Lane& lane) {
  for (Queue& queue : lane.ready) {
    if (queue.first == nullptr) continue;
    Node* const node = queue.first;
    const uint64_t bytes = node->op->bytes;
    const bool fits = lane.operations < lane.limits.most_operations && lane.bytes <= lane.limits.most_bytes &&
                      bytes <= lane.limits.most_bytes - lane.bytes;
    if (lane.operations > 0 && !fits) return nullptr;
    queue.first = std::exchange(node->next, nullptr);
    ++lane.operations;
    lane.bytes += bytes;
    return node;
  }
  return nullptr;
}

// Starts what the lane has room for. Only one thread does so at a time; a transfer that ends within
// start() comes back here and leaves it to the first.
void TransferScheduler::pump(Lane& lane) {
  std::unique_lock lock(lane.mutex);
  if (lane.is_pumping) return;
  lane.is_pumping = true;
  while (Node* const node = take_ready(lane)) {
    lock.unlock();
    if (must_run(*node)) {
      node->op->started = now();
      node->set_state(TransferState::kRunning);
      started_.fetch_add(1, std::memory_order_relaxed);
      lane.lane->start(*node->op, TransferDone(*this, node));
      lock.lock();
    } else {
      lock.lock();
      --lane.operations;
      lane.bytes -= node->op->bytes;
      lock.unlock();
      end({node, TransferState::kCancelled, {}});
      lock.lock();
    }
  }
  lane.is_pumping = false;
}

// The run stays open until this function is done with the scheduler, which may end with it.
void TransferScheduler::complete(Node& node, const Status& status) {
  node.op->ended = now();
  TransferRun& run = *node.run;
  run.open_.fetch_add(1, std::memory_order_relaxed);
  Lane& lane = lane_of(node);
  {
    const std::lock_guard lock(lane.mutex);
    --lane.operations;
    lane.bytes -= node.op->bytes;
  }
  end({&node, status.ok() ? TransferState::kCompleted : TransferState::kFailed, status});
  pump(lane);
  close(run);
}

// One transfer less to wait for. With the last it is made ready, or ends at once.
std::optional<TransferScheduler::Ended> TransferScheduler::release(Node& node) {
  if (node.waits.fetch_sub(1, std::memory_order_acq_rel) != 1) return std::nullopt;
  if (!must_run(node)) return Ended{&node, TransferState::kCancelled, {}};
  Status status = make_ready(node);
  if (status.ok()) return std::nullopt;
  return Ended{&node, TransferState::kFailed, std::move(status)};
}

// 1. The state, then no more edges: who comes later sees the state.
// 2. Those that wait are released, and doomed if they take data that did not come.
// 3. The run is told; with its last transfer it ends.
// Without recursion, as chains of cancelled transfers may be long.
void TransferScheduler::end(Ended first) {
  std::vector<Ended> ended{std::move(first)};
  while (!ended.empty()) {
    const auto [node, state, status] = std::move(ended.back());
    ended.pop_back();
    node->set_state(state);
    TransferRun::Edge* edge = node->successors.exchange(Node::closed(), std::memory_order_acq_rel);
    while (edge != nullptr) {
      TransferRun::Edge* const next = edge->next;  // the edge may go with its run
      Node& after = *edge->to;
      if (edge->carries_data && state != TransferState::kCompleted) {
        after.is_doomed.store(true, std::memory_order_release);
      }
      edge = next;
      if (std::optional<Ended> other = release(after)) ended.push_back(std::move(*other));
    }
    report(*node, state, status);
  }
}

void TransferScheduler::report(Node& node, TransferState state, const Status& status) {
  (state == TransferState::kCompleted ? completed_
   : state == TransferState::kFailed  ? failed_
                                      : cancelled_)
      .fetch_add(1, std::memory_order_relaxed);
  TransferRun& run = *node.run;
  if (!status.ok() || node.op->is_awaited) {
    const std::lock_guard lock(run.mutex_);
    if (!status.ok() && run.error_.ok()) run.error_ = status;
    if (node.op->is_awaited && (--run.awaited_ == 0 || run.watchers_ > 0)) run.changed_.notify_all();
  }
  close(run);
}

void TransferScheduler::close(TransferRun& run) {
  if (run.open_.fetch_sub(1, std::memory_order_acq_rel) == 1) finish(run);
}

void TransferScheduler::finish(TransferRun& run) {
  if (run.finished_) run.finished_(run.graph_);
  std::shared_ptr<TransferRun> kept;
  const std::lock_guard lock(mutex_);
  hazards_.remove(run);
  const auto found = running_.find(&run);
  kept = std::move(found->second);
  running_.erase(found);
  {
    const std::lock_guard run_lock(run.mutex_);
    run.is_finished_ = true;
    run.changed_.notify_all();
  }
  if (running_.empty()) idle_.notify_all();
}

TransferScheduler::Counters TransferScheduler::counters() const {
  const auto read = [](const std::atomic<int64_t>& counter) { return counter.load(std::memory_order_relaxed); };
  return {read(started_), read(completed_), read(failed_), read(cancelled_), read(joined_)};
}

size_t TransferScheduler::blocks_in_use() const {
  const std::lock_guard lock(mutex_);
  return hazards_.size();
}

}  // namespace hetero::graph
