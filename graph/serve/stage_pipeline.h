// StagePipeline: a program cut into stages that work at the same time, each on another request.
//
//   auto pipeline = StagePipeline::create(model, {.stages = 3});
//   auto first = pipeline.value()->submit(inputs, outputs);   // copies the inputs
//   auto second = pipeline.value()->submit(more, elsewhere);  // in stage 1 while `first` is in 2
//   Status status = first.value()->wait();                    // `outputs` are filled
//
// cut_program.h makes the cut. Each stage has an executor (graph_executor.h) and a core group,
// whose queue of tasks is the stage's. A *frame* is a request's memory: its inputs, its outputs and
// the values that cross between stages. It moves from stage to stage. Each stage binds its executor
// to it, without a copy if the executor can use the memory.
//
// `depth` is the number of frames, and thus of concurrent requests. The default, twice the number
// of stages, is double buffering: each stage has one to work on and one that waits. More frames
// even out stages whose times vary. Fewer take less memory and answer sooner.
//
// Requests pass all stages, and end, in the order of submit(). States are updated in this order
// too. An error ends its request and no other; later stages skip it. After warm-up, a request takes
// heap memory for its StageRequest and for errors only.
//
// Thread safety: any thread. A forked child may only destroy its parent's pipelines. REQUIRES:
// submit(), wait_idle() and StageRequest::wait() are not called on a stage.
// Ownership: the pipeline shares the model. Core groups and devices outlive it, and output tensors
// the request. The destructor stops and waits for running work; no thread may be in submit() then.
// Requests may be kept longer.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/base/status.h"
#include "backend/device/device.h"
#include "backend/threads/core_group.h"
#include "graph/ir/plan.h"
#include "graph/ir/plan_options.h"
#include "graph/program/tensor_view.h"
#include "graph/serve/graph_executor.h"
#include "graph/serve/model.h"

namespace hetero {

class StageRequest {
 public:
  bool has_ended() const { return ended_.load(std::memory_order_acquire); }
  // Blocks the calling thread until the request has ended. Its error: that of the stage where it
  // failed, or kCancelled.
  Status wait() const;

 private:
  friend class StagePipeline;
  std::atomic<bool> ended_{false};
  Status status_;  // written before the end
};

#define HETERO_STAGE_COUNTS(X)                                                      \
  X(submitted, "accepted; each becomes one of completed and failed")                \
  X(completed, "completed")                                                         \
  X(failed, "failed, cancelled ones among them")                                    \
  X(in_flight, "in flight now")                                                     \
  X(most_in_flight, "the most that ever were in flight")                            \
  X(frames, "frames that have memory now")                                          \
  X(lent, "inputs and outputs of all stages that are bound to a frame where it is") \
  X(copied, "the others, which are copied")

struct StageCounts {
#define X(name, text) int64_t name = 0;
  HETERO_STAGE_COUNTS(X)
#undef X
};

class StagePipeline {
 public:
  enum class WhenFull : uint8_t { kWait, kRefuse };
  struct Options {
    size_t stages = 2;
    size_t depth = 0;  // frames; 0: twice as many as stages
    WhenFull when_full = WhenFull::kWait;
    // One for each stage, or one for all; none: the pipeline makes one for each, of the process's
    // cores in equal parts where there are enough, and of the accelerator's compute queues. A
    // stage's executor uses the compute queues of its group.
    std::vector<backend::CoreGroup*> groups = {};
    backend::Devices devices = process_devices();
    // Of the accelerator's memory, for all stages; each has a part as large as what it computes.
    // Not set: what is left of its limit.
    std::optional<uint64_t> accelerator_bytes = {};
    // One for each stage: where it may run, for example. None: static_plan_options(devices) for
    // all.
    std::vector<graph::PlanOptions> plans = {};
    // Draws the states of random operators, as GraphExecutor's does, on the thread that calls
    // submit().
    std::function<std::pair<uint64_t, uint64_t>()> draw = nullptr;
  };

  // Errors: kUsage as cut_program, and for a wrong number of groups or plans; kResource where the
  // memory does not suffice, or the accelerator has less than `accelerator_bytes` left; kDevice
  // where the system starts no thread.
  static Result<std::unique_ptr<StagePipeline>> create(std::shared_ptr<Model> model, Options options);
  ~StagePipeline();
  StagePipeline(const StagePipeline&) = delete;
  StagePipeline& operator=(const StagePipeline&) = delete;

  // Copies the inputs, which are not needed afterwards, and sends the request on its way; the
  // outputs are filled when it has ended. Tensors are on the host, one for each input and output of
  // the program, in its order. Where `depth` requests are in flight, waits until one has ended
  // (kWait) or refuses (kRefuse). Errors: kUsage for a wrong number, dtype or shape; kResource
  // where there is no room; kCancelled after stop().
  Result<std::shared_ptr<StageRequest>> submit(std::span<const TensorView> inputs, std::span<const TensorView> outputs);

  // So many requests may be in flight from now on. More take memory here; where fewer may, those
  // that are on their way end first. Errors: kUsage for 0; kResource.
  Status set_depth(size_t depth);
  size_t depth() const;

  // From now on nothing is accepted, and what is in flight ends as cancelled, between two kernels
  // at the latest. Does not wait.
  void stop();
  // Blocks the calling thread until what was submitted before the call has ended. Errors: kDevice
  // in a forked child.
  Status wait_idle();

  size_t stages() const;
  const GraphExecutor& executor(size_t stage) const;
  // That the cut predicts for the stage.
  double predicted_seconds(size_t stage) const;
  StageCounts counts() const;

 private:
  struct Impl;
  explicit StagePipeline(std::unique_ptr<Impl> impl);
  static void end(StageRequest& request, Status status);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hetero
