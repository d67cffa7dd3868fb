// GraphExecutor: runs a saved program over and over, with everything possible done in advance.
//
//   auto executor = GraphExecutor::Init("minilm.hetero", {}).value();
//   executor->SetInput("input_ids", TensorView::row_major(ids, "i64", {1, 8}));
//   executor->Run();
//   executor->GetOutput("output", TensorView::row_major(result, "f32", {1, 384}));
//
// The four phases, with nothing hidden in them:
//   Init       plans, or takes the plan that was saved for this machine; takes all memory, once;
//              binds each kernel to its addresses.
//   SetInput   copies a tensor to where the program reads it. SetInputZeroCopy makes the program
//              read the caller's memory instead.
//   Run        calls kernels, submits copies between devices and waits between queues. It takes no
//              memory and no lock. The host waits for a device only if a CPU kernel needs an
//              accelerator's result. RunAsync does that on the executor's core group and returns at
//              once.
//   GetOutput  copies a result to a tensor; GetOutputAsync begins to; GetOutputView shows it where
//              it is.
//
// A program with dimensions (dynamic_sizes.h) has one set of sizes at a time, at first those of its
// example. SetSizes changes them. It is the one other function that takes memory, if the sizes need
// more than any before. Plans and bindings of the latest sizes are kept.
//
// Inputs and outputs exist once for each *slot*; Options::slots is their number. With an
// accelerator, one slot's inputs are uploaded and another's outputs brought back while a third
// computes. Inputs stay until they are set again, so a slot may run again with the same ones. Slots
// share the memory of temporaries and run one after the other. For concurrent requests, make
// several executors of one Model, each with a core group (server.h).
//
// An executor takes accelerator memory in Init and SetSizes only. Its plan is made for what it may
// take: Options::accelerator_bytes, or what is left of the device's limit. So executors that share
// an accelerator keep its limit together, and later ones compute more on the CPU.
//
// Errors are Status values: kUsage with one sentence that says what to do, kKernel with the
// operator's name and its exception. The executor remains usable after an error.
//
// The names are those of TVM's graph executor, whose users know these phases.
//
// Thread safety: different slots may be filled and read on different threads while one runs. Calls
// for one slot are one thread's at a time.
// Ownership: the executor shares the model; core group and devices outlive it. The destructor waits
// for running work.

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/base/status.h"
#include "backend/device/device.h"
#include "backend/threads/core_group.h"
#include "graph/ir/plan.h"
#include "graph/ir/plan_options.h"
#include "graph/program/ports.h"
#include "graph/program/tensor_view.h"
#include "graph/run/bound_program.h"
#include "graph/serve/model.h"
#include "graph/serve/static_plan.h"

namespace hetero {

// What planning may use of these devices when a program is known ahead of time: fused kernels, and
// memory that is taken beforehand.
graph::PlanOptions static_plan_options(const backend::Devices& devices);
// The CPU and the accelerator that this process has chosen.
backend::Devices process_devices();
// What several executors share of the accelerator's memory: `wanted`, or else what is left of its
// limit. None where there is no accelerator, or neither.
std::optional<uint64_t> bytes_to_share(const backend::Devices& devices, std::optional<uint64_t> wanted);

class GraphExecutor;

// A run, or a copy, that goes on; one that was made of nothing is done. Does not outlive the
// executor.
class Pending {
 public:
  Pending() = default;
  bool done() const;
  // Blocks until it is done; its error. To be called once at least before the slot is used on.
  Status wait();

 private:
  friend class GraphExecutor;
  Pending(GraphExecutor* executor, size_t slot, size_t output) : executor_(executor), slot_(slot), output_(output) {}
  GraphExecutor* executor_ = nullptr;
  size_t slot_ = 0;
  size_t output_ = SIZE_MAX;  // of a copy
};

class GraphExecutor {
 public:
  struct Options {
    size_t slots = 2;
    // Where RunAsync runs; null: Run only.
    backend::CoreGroup* group = nullptr;
    backend::Devices devices = process_devices();
    // The accelerator's compute queues that the program may use; none: those of `group`, and all
    // where it names none either. Executors that use different ones do not wait for each other
    // there, save where copies stand behind copies; with one slot, a result is copied when the run
    // is over, and so holds up nobody.
    std::vector<backend::QueueKind> compute_queues = {};
    // Of the accelerator's memory, for the executor's whole life: slots, temporaries, states, and
    // weights that it is the first to use there. Not set: what is left of the device's limit at the
    // time when memory is taken.
    std::optional<uint64_t> accelerator_bytes = {};
    // So many executors of the model, made one after the other, this one first, are to find room in
    // these bytes: it leaves the others as much as it takes, save for the weights, which they
    // share.
    size_t sharers = 1;
    // What planning may use; static_plan_options(devices) where not set.
    std::unique_ptr<graph::PlanOptions> plan = nullptr;
    // The plan in the file is used where it was made for a machine like this one.
    bool use_saved_plan = true;
    // Launches of the accelerator that follow each other are recorded after a few runs and launched
    // as one from then on: CUDA graphs.
    bool segments = true;
    // Draws the state of a random operator: a seed and an offset. Where not set, the seed is 0 and
    // the offset counts on.
    std::function<std::pair<uint64_t, uint64_t>()> draw = nullptr;
  };

  // Errors: as Model::load; kUsage for no slots, or wrong queues; kResource where the memory does
  // not suffice, or the accelerator has less than `accelerator_bytes` left.
  static Result<std::unique_ptr<GraphExecutor>> Init(const std::string& path, Options options);
  static Result<std::unique_ptr<GraphExecutor>> Init(std::shared_ptr<Model> model, Options options);
  ~GraphExecutor();
  GraphExecutor(const GraphExecutor&) = delete;
  GraphExecutor& operator=(const GraphExecutor&) = delete;

  const std::vector<graph::ProgramValue>& inputs() const;
  const std::vector<graph::ProgramValue>& outputs() const;
  size_t slots() const;

  // What sizes the program may have; none where it has one set of them.
  std::span<const graph::SizeVariable> dimensions() const;
  // The present ones, in that order.
  const std::vector<int64_t>& sizes() const;
  // From now on inputs and outputs of all slots are those for these sizes; none is set, and results
  // that were not read are gone. Does nothing where they are the present ones. Errors: kUsage for
  // sizes that the program cannot have, or while a slot runs or an output is copied; kResource
  // where the memory does not suffice. The executor is as before then.
  Status SetSizes(std::span<const int64_t> sizes);
  // The sizes for which the inputs, all of them, are such tensors. Errors: kUsage where there are
  // none.
  Status SetSizesOf(std::span<const TensorView> inputs);

  // Copies; the tensor may be on the host only, with any strides, and is not needed afterwards.
  // Errors: kUsage for an unknown input, a wrong dtype or shape, or a slot that runs.
  Status SetInput(Which input, const TensorView& tensor, size_t slot = 0);
  // From now on the slot reads this memory. It must lie as the program's own does, in the row-major
  // order of its sizes as a rule, and stay until the slot has another input there; `owner` is held
  // until then. Errors: kUsage also for another device, strides or alignment, and for an input that
  // is an output too.
  Status SetInputZeroCopy(Which input, const TensorView& tensor, size_t slot = 0,
                          std::shared_ptr<const void> owner = nullptr);
  // The same for an input that the program writes and gives as an output: it is written in this
  // memory, a state that the caller keeps, such as the cache of a request.
  Status SetStateZeroCopy(Which input, const TensorView& tensor, size_t slot = 0,
                          std::shared_ptr<const void> owner = nullptr);
  // The same for a result: the program writes it there.
  Status SetOutputZeroCopy(Which output, const TensorView& tensor, size_t slot = 0,
                           std::shared_ptr<const void> owner = nullptr);
  // For memory that may lie in any way: what the zero-copy functions do where they can, and copies
  // otherwise. Takes nothing from the heap where strides are row-major. The result of OfferOutput
  // says whether the program writes there itself; if not, it writes to its own memory, and
  // GetOutput copies. Errors: as SetInput.
  Status OfferInput(Which input, const TensorView& tensor, size_t slot = 0,
                    std::shared_ptr<const void> owner = nullptr);
  Result<bool> OfferOutput(Which output, const TensorView& tensor, size_t slot = 0,
                           std::shared_ptr<const void> owner = nullptr);

  // Runs the slot on the calling thread. With an accelerator it has only been submitted afterwards,
  // and what goes wrong there is an error of GetOutput or Wait. `stop`: see BoundProgram::run.
  // Errors: kUsage where an input was never set, or the executor runs already; kKernel.
  Status Run(size_t slot = 0, const std::atomic<int32_t>* stop = nullptr);
  // The same on the core group, after whatever was given to it before.
  Result<Pending> RunAsync(size_t slot = 0);
  // Blocks until the slot's last run is over; its error.
  Status Wait(size_t slot = 0);

  // Waits for the slot's run and copies the result. Errors: those of the run too; kUsage where the
  // slot has not run with the present sizes.
  Status GetOutput(Which output, const TensorView& to, size_t slot = 0);
  // Begins to copy the result, to an accelerator's host memory or on the core group; `to` is filled
  // when wait() returns.
  Result<Pending> GetOutputAsync(Which output, const TensorView& to, size_t slot = 0);
  // The result where it is, until the slot runs again. Waits for the run. Errors: kUsage where it
  // is not in the host's memory.
  Result<TensorView> GetOutputView(Which output, size_t slot = 0);

  // Copies what a state, a constant that the program writes, is after the runs until now. Errors:
  // kUsage for an unknown one, a wrong dtype or shape, or a slot that runs.
  Status GetState(std::string_view name, const TensorView& to);

  // For the present sizes.
  const graph::SavedProgram& program() const;
  const Model& model() const;
  const graph::StaticPlan& plan() const;
  graph::BoundCounts counts() const;
  // Bytes taken for this executor alone, per device: slots, temporaries and states.
  uint64_t bytes(backend::DeviceIndex device) const;
  // Of weights that it was the first to bring to the accelerator.
  uint64_t weight_bytes() const;
  // Of the accelerator's memory, what the executor may have in its life, weights that it brought
  // there included; that which it has, where accelerator_bytes is not set.
  uint64_t accelerator_share() const;

 private:
  friend class Pending;
  struct Impl;
  explicit GraphExecutor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hetero
