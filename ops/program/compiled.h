// CompiledProgram: a graph that is captured once and then runs any number of times, without
// recording.
//
// Capturing is recording. A capture gives the caller *stand-ins*: tensors that look like the
// arguments and have no bytes. The caller calls the program's operators on them. What the recorder
// (recorder.h) writes down meanwhile is kept, and does not run.
//
// A call of the program binds its arguments' storages to the graph's buffers, makes storages for
// the results, draws new random numbers and runs the plan. Planner and executor are those of
// everything else (slice_run.h): a call is a cut that was made beforehand.
//
//   CompiledProgram program(options);
//   results = program.run(arguments);   // none: not captured for such arguments, or config.sync
//   stand_ins = program.begin_capture(arguments);
//   ... operators on stand_ins, on this thread ...
//   program.end_capture(results, on_host);   // or cancel_capture()
//
// What was captured for arguments of certain sizes is a *variant*. It says what each buffer is: the
// storage of an argument, a constant (a storage with bytes that was no argument; it is held), a
// result, or nothing that is seen outside. A variant has a plan for each way in which the
// arguments' bytes lie. Variants that differ only in sizes share the planning: the plan of one is
// resized for the other. Other sizes are captured again, but not planned again.
//
// Arguments and results are numbers and tensors on hetero, on the CPU or, if the accelerator is a
// GPU, on CUDA. Numbers are part of what a variant is for. An argument that is not on hetero is
// used where it lies, for the length of the call; on CUDA, behind the work of the current stream.
// Arguments may be written, may share storages, and may be results. A result on CUDA is a copy.
//
// What depends on values cannot be captured: `refuse_capture` of recorder.h raises. The caller then
// runs the operators as usual.
//
// Thread safety: any thread; the executor lock, which a capture holds from its beginning to its
// end, on one thread. No Python here. Ownership: variants own their graphs, plans, windows and
// constants, and nothing of the recorder's.

#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graph/ir/graph.h"
#include "graph/plan/sized_plans.h"
#include "graph/program/saved_program.h"
#include "ops/record/plan_cache.h"
#include "ops/record/recorder.h"
#include "ops/run/slice_run.h"

namespace hetero::ops {

// For CompiledProgram::save(): unique ones.
struct ProgramNames {
  std::vector<std::string> inputs;
  // Of the results, and of what is updated.
  std::vector<std::string> outputs;
  // Tensors by which the program's constants are known.
  std::vector<std::pair<std::string, at::Tensor>> constants;
};

// compiled_variant.h
struct CompiledVariant;
struct ArgumentStorages;

class CompiledProgram {
 public:
  struct Options {
    // Each size gets a plan of its own, where one for other sizes could be resized.
    bool plan_each_size = false;
    // Planning may search for placements and a smaller arena several times as long as usual.
    bool search_longer = false;
  };
  explicit CompiledProgram(Options options);
  ~CompiledProgram();
  CompiledProgram(const CompiledProgram&) = delete;

  // The results; nothing if there is no variant for these arguments, or with config.sync. After a
  // run `arguments` is empty, so that memory without another owner is released as the program goes.
  // Raises what a kernel raised.
  std::optional<std::vector<c10::IValue>> run(std::vector<c10::IValue>& arguments);

  // The stand-ins; numbers stand for themselves. Runs what is pending. A call of end_capture() or
  // cancel_capture() must follow, on this thread.
  std::vector<c10::IValue> begin_capture(const std::vector<c10::IValue>& arguments);
  // Makes a variant of what was recorded. `results` are what run() will return, each on its one of
  // `devices`. Raises a sentence if that cannot be. The capture is over in any case. Those behind
  // the first `seen` are for the program of the gradients, and images among them may get their
  // channels last (graph/optimize/channels_last.h).
  void end_capture(std::vector<c10::IValue> results, const std::vector<c10::DeviceType>& devices,
                   size_t seen = SIZE_MAX);
  // Forgets what was recorded. Does nothing on a thread that does not capture.
  void cancel_capture();

  // The variant that was captured or ran last, as a program of its own. REQUIRES: there is one; its
  // arguments and results are tensors. Raises a sentence where it cannot be saved.
  std::unique_ptr<graph::SavedProgram> save(const ProgramNames& names);
  // The arguments of that variant whose bytes it writes. A saved program gives their new values as
  // outputs behind the results.
  std::vector<size_t> updated_arguments() const;
  // The buffer of what was captured last that is the tensor's storage; kNoBuffer where no node
  // touches it. REQUIRES: the tensor was alive when the capture ended.
  graph::BufferId buffer_of(const at::Tensor& tensor) const;

  // What the variants are, for people: their graphs and latest plans as text.
  std::string describe();
  size_t variants() const { return variants_.size(); }

  using Variant = CompiledVariant;

 private:
  struct Capture;
  struct Work;

  Variant* find(const std::vector<c10::IValue>& arguments);
  void find_similar(Cut& cut, const Variant& variant);
  void add(std::unique_ptr<Variant> variant);

  const Options options_;
  graph::WindowTable windows_;
  graph::SizedPlans<Variant> variants_;
  std::unique_ptr<Capture> capture_;
  std::vector<const c10::StorageImpl*> captured_;  // per buffer of the last capture; never followed
  uint64_t looked_at_ = 0;                         // by the last capture: Recorder::looked_at()
  std::unique_ptr<ArgumentStorages> storages_;
  std::unique_ptr<Work> work_;
};

}  // namespace hetero::ops
