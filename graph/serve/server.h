// Server: one model, and as many requests at once as there are lanes.
//
// A lane is a core group (backend/threads/core_group.h) and a GraphExecutor of its own; lanes share
// the model's weights. A scheduler (scheduler.h) puts requests on lanes: what it says of order,
// back-pressure, deadlines, cancellation and errors holds here.
//
//   auto server = Server::create(Model::load("minilm.hetero").value(), {.groups = 2}).value();
//   auto request = server->submit({TensorView::row_major(ids, "i64", {1, 8})}, {TensorView::row_major(result, "f32", {1, 384})},
//                                 {.deadline = graph::Request::Clock::now() + 50ms});
//   Status status = request.value()->wait();
//
// The tensors are memory of the caller, on the host, which the program reads and writes where it is
// if it lies as the program's own does, and copies otherwise. From submit() until the request has
// ended nobody else writes the inputs or touches the outputs; after an error, outputs hold
// anything.
//
// Groups that name compute queues of the accelerator (CoreGroup::Options) have these for
// themselves: what their requests launch runs beside each other there.
//
// Lanes have equal parts of the accelerator's memory that is left when the server is made
// (Options::accelerator_bytes), beside the weights, which are there once.
//
// A lane makes its executor on its own thread. So the plan is one for the threads that the lane
// has: the plan in the file is used where it was saved with as many threads, and another is made
// where a lane has fewer. Memory is the lane's too, near its cores where the system places it by
// first touch.
//
// A running request stops between two kernels after cancel(), or when its deadline has passed. Once
// every lane has run a request, one whose tensors are lent takes no memory from the heap but what
// kernels take.
//
// Thread safety: any thread. Fork: as the scheduler's.
// Ownership: the server owns lanes and executors and shares the model. It shares a request from
// submit() until it has ended.

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/threads/core_group.h"
#include "backend/base/status.h"
#include "graph/serve/graph_executor.h"
#include "graph/serve/model.h"
#include "graph/serve/scheduler.h"
#include "graph/program/tensor_view.h"

namespace hetero {

class Server {
 public:
  using WhenFull = graph::Scheduler::WhenFull;
  using WhenClosed = graph::Scheduler::WhenClosed;

  // Inputs and outputs of one run, in the order of the program's. May be submitted again, with
  // other tensors, when it has ended; then nothing is allocated.
  class Request : public graph::Request {
   public:
    std::vector<TensorView> inputs;
    std::vector<TensorView> outputs;
    // Of the program's dimensions, for who knows them already; none: submit() finds them.
    std::vector<int64_t> sizes;

   private:
    friend class Server;
    std::vector<int64_t> sizes_;  // with which it runs
  };

  struct Options {
    // The process's cores, and the compute queues of its accelerator, in so many equal parts
    // (split_cores, split_compute_queues).
    int groups = 1;
    std::vector<backend::CoreGroup::Options> lanes = {};  // instead: these
    size_t capacity = 64;  // requests that may wait, beside those for which a lane is free
    WhenFull when_full = WhenFull::kWait;
    // Of the accelerator's memory, for all lanes and the weights that they bring there. Not set:
    // what is left of its limit.
    std::optional<uint64_t> accelerator_bytes = {};
    // Options of each lane's executor, called on its thread; slots, group, compute queues and share
    // of the memory are the server's. None: the defaults. Lanes whose executors are told no `draw`
    // draw different numbers.
    std::function<GraphExecutor::Options()> executor = nullptr;
  };

  // Errors: those of split_cores, CoreGroup::create, GraphExecutor::Init and Scheduler::create;
  // kUsage for several lanes of a program that changes a state of its own, which every lane would
  // have for itself.
  static Result<std::unique_ptr<Server>> create(std::shared_ptr<Model> model, Options options);
  // Closes, cancelling what waits unless close() was called before, and waits for the rest.
  // REQUIRES: nobody is in submit().
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Requests to a program with dimensions may be of different sizes; outputs are to have those of
  // graph::output_shapes. Errors: kUsage for a wrong number of tensors, or one of another dtype,
  // shape or device than the program's, with the request left as it was; those of
  // Scheduler::submit.
  Status submit(std::shared_ptr<Request> request, graph::RequestOptions options = {});
  Result<std::shared_ptr<Request>> submit(std::vector<TensorView> inputs, std::vector<TensorView> outputs,
                                          graph::RequestOptions options = {});

  // As the scheduler's.
  void close(WhenClosed waiting);
  void wait_idle();
  graph::SchedulerCounters counters() const;

  const Model& model() const { return *model_; }
  size_t lanes() const { return lanes_.size(); }
  const backend::CoreGroup& group(size_t lane) const { return *lanes_[lane]->group; }
  // For what does not change while it runs: program(), plan(), bytes(). counts() when nothing runs.
  const GraphExecutor& executor(size_t lane) const { return *lanes_[lane]->executor; }

 private:
  struct Lane {
    std::unique_ptr<backend::CoreGroup> group;
    std::unique_ptr<GraphExecutor> executor;
    std::vector<uint8_t> lent;  // per output: the program writes the request's memory
  };

  explicit Server(std::shared_ptr<Model> model);
  Status start(Options options);
  Status start_lane(backend::CoreGroup::Options group, const Options& options);
  Status make_executor(Lane& lane, const Options& options);
  bool choose_share(GraphExecutor::Options& chosen);
  Status run(Lane& lane, Request& request);
  static Status run_program(Lane& lane, Request& request);

  const std::shared_ptr<Model> model_;
  std::atomic<uint64_t> draws_{0};
  size_t lane_count_ = 0;
  // While lanes are made: of the accelerator's memory, what the next ones may have.
  std::optional<uint64_t> accelerator_bytes_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::unique_ptr<graph::Scheduler> scheduler_;  // the first to go: it waits for what runs
};

}  // namespace hetero
