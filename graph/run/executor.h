// Executor: runs a planned graph on the devices' queues.
//
// The caller binds each buffer that exists before or after the program to a Binding (a storage's
// blocks). The executor takes the arenas from the devices, submits the program's instructions in
// order, and waits for every queue it used. Then the bindings hold the results: for each escaping
// buffer, blocks on the devices of plan.valid_after. A buffer that was bound valid but does not
// escape may have lost its bytes: they are released after their last use.
//
// Failure: a node that fails poisons what it would have written. Nodes that read something poisoned
// do not run and poison their own outputs. Everything else runs. Each bound buffer that was
// poisoned gets the first error that reached it in Binding::error. A fused group runs its members
// one by one, as if it had never been fused, if an input is poisoned, its memory is missing, or a
// check fails.
//
// A poisoned buffer that was bound valid on entry keeps its bytes only if no node wrote it. A
// binding that comes with an error is poisoned from the start; the error is cleared when a node
// overwrites the whole buffer.
//
// Thread safety: one run at a time per Executor. Kernels of an inline queue run on the calling
// thread, others on the threads of their device.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/device/device.h"
#include "graph/ir/binding.h"
#include "graph/ir/graph.h"
#include "graph/ir/plan.h"
#include "graph/run/run_data.h"

namespace hetero::graph {

class Segments;

class Executor {
 public:
  Executor();  // runs on the devices of the registry
  // Runs on these devices. REQUIRES: they outlive the Executor.
  explicit Executor(const backend::Devices& devices);
  ~Executor();

  // Runs `plan`. `bindings[b]` is null for buffers that neither exist before nor escape. Returns
  // the first error, if any. REQUIRES: plan was made from graph; a buffer with valid_on != 0 or
  // escapes has a binding whose valid_on covers the graph's.
  Status run(const Graph& graph, const Plan& plan, std::span<Binding* const> bindings, RunCounts& counts);

  // The same in parts, one after the other on whatever threads: begin(), go_on() until it returns
  // true, end(). `stop` is looked at between instructions of a program that uses the CPU only:
  // where it is not 0, the rest is left to the next go_on(). Null: never. REQUIRES: the arguments
  // of begin() live until end(). `times`, if not null, is filled in; `uploads`, if not null, are
  // made. `segments`: what is remembered of the plan between its runs, where launches that are the
  // same each time may become one; null: each is by itself.
  void begin(const Graph& graph, const Plan& plan, std::span<Binding* const> bindings, RunCounts& counts,
             RunTimes* times = nullptr, const Uploads* uploads = nullptr,
             std::unique_ptr<Segments>* segments = nullptr);
  bool go_on(const std::atomic<int32_t>* stop);
  Status end();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hetero::graph
