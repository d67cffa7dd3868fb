// Server: runs requests for one model, as many at once as there are lanes.
//
// A lane is a core group (backend/threads/core_group.h) with its own GraphExecutor; lanes share the
// model's weights. A scheduler puts requests on lanes. What scheduler.h says of order,
// back-pressure, deadlines, cancellation and errors holds here.
//
//   auto server = Server::create(Model::load("minilm.hetero").value(), {.groups = 2}).value();
//   auto request = server->submit({TensorView::row_major(ids, "i64", {1, 8})},
//                                 {TensorView::row_major(result, "f32", {1, 384})},
//                                 {.deadline = graph::Request::Clock::now() + 50ms});
//   Status status = request.value()->wait();
//
// Tensors are the caller's host memory. The program uses them in place if they have its own layout,
// and copies otherwise. From submit() until the end of the request, the caller must not write the
// inputs or touch the outputs. After an error, outputs are undefined.
//
// Groups that name compute queues of the accelerator (CoreGroup::Options) have these for
// themselves, so their requests run concurrently there. Lanes get equal parts of the accelerator
// memory that is left when the server is made (Options::accelerator_bytes), beyond the shared
// weights.
//
// A lane makes its executor on its own thread, so the plan fits the lane's number of threads. The
// file's plan is used if it was saved with as many threads; a lane with fewer makes another. Memory
// that the system places by first touch is near the lane's cores.
//
// A running request stops between two kernels after cancel() or its deadline. Once every lane has
// run a request, only kernels take memory from the heap for requests with lent tensors.
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

#include "backend/base/status.h"
#include "backend/threads/core_group.h"
#include "graph/program/tensor_view.h"
#include "graph/serve/graph_executor.h"
#include "graph/serve/model.h"
#include "graph/serve/scheduler.h"

namespace hetero {

class Server {
 public:
  using WhenFull = graph::Scheduler::WhenFull;
  using WhenClosed = graph::Scheduler::WhenClosed;

  // The inputs and outputs of one run, in the program's order. When it has ended, it may be
  // submitted again, with other tensors; then nothing is allocated.
  class Request : public graph::Request {
   public:
    std::vector<TensorView> inputs;
    std::vector<TensorView> outputs;
    // Sizes of the program's dimensions, if the caller knows them; none: submit() finds them.
    std::vector<int64_t> sizes;

   private:
    friend class Server;
    std::vector<int64_t> sizes_;  // with which it runs
  };

  struct Options {
    // Splits the process's cores and its accelerator's compute queues into this many equal parts
    // (split_cores, split_compute_queues).
    int groups = 1;
    std::vector<backend::CoreGroup::Options> lanes = {};  // instead: these
    size_t capacity = 64;  // requests that may wait, beside those for which a lane is free
    WhenFull when_full = WhenFull::kWait;
    // Accelerator memory for all lanes and the weights that they bring there. Not set: what is left
    // of its limit.
    std::optional<uint64_t> accelerator_bytes = {};
    // Options of each lane's executor, called on its thread. The server sets slots, group, compute
    // queues and the share of memory. None: the defaults. Executors without a `draw` draw different
    // numbers per lane.
    std::function<GraphExecutor::Options()> executor = nullptr;
  };

  // Errors: those of split_cores, CoreGroup::create, GraphExecutor::Init and Scheduler::create;
  // kUsage for several lanes of a program that changes a state of its own, because each lane would
  // have its own state.
  static Result<std::unique_ptr<Server>> create(std::shared_ptr<Model> model, Options options);
  // Closes, cancels waiting requests unless close() was called before, and waits for running ones.
  // REQUIRES: no thread is in submit().
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Requests to a program with dimensions may have different sizes; outputs must have those of
  // graph::output_shapes. Errors: those of Scheduler::submit; kUsage, with the request unchanged,
  // for a wrong number of tensors, or a wrong dtype, shape or device.
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
  // For program(), plan() and bytes(), which do not change; for counts() when nothing runs.
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
  // While lanes are made: the accelerator memory that the next lanes may have.
  std::optional<uint64_t> accelerator_bytes_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::unique_ptr<graph::Scheduler> scheduler_;  // the first to go: it waits for what runs
};

}  // namespace hetero
