// Runs Meta kernels: they tell what an operator's outputs look like, without its data.
//
// The call is repeated on meta tensors with the geometry of the operands. They share storages as
// the operands do, so overlap checks and views have the real outcome.
//
// Thread safety: any thread; REQUIRES that the recorder's lock is not held (a Meta kernel may be
// Python).

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <vector>

#include "ops/record/meta_cache.h"

namespace hetero::ops {

struct OpInfo;

struct MetaRun {
  // For each hetero tensor argument, in order: its meta tensor after the call.
  std::vector<at::Tensor> inputs;
  std::vector<c10::IValue> results;
  bool failed = false;           // the kernel raised: the call may be wrong
  bool divided_by_zero = false;  // for that reason
  bool undescribed = false;      // there is no such Meta kernel
  SyncReason reason = SyncReason::kNoMetaKernel;
};

// Meta kernels in Python are slow, the first of them imports hundreds of modules, and a C++ program
// has none.
enum class MetaKernels : uint8_t { kAll, kWithoutPython };

// Whether the operator's Meta kernel was registered by a file of Python.
bool is_described_in_python(const OpInfo& info);

// Returns false when nothing can be said: there is no Meta kernel, it raised, or its results are
// not plain tensors.
bool run_meta(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments, MetaRun& run,
              MetaKernels kernels = MetaKernels::kAll);

// Runs the CPU kernel on zeros of the operands' geometry, or on other numbers if zeros would divide
// integers by zero. It is stricter than the Meta kernel, and gives the true strides. Returns false
// if it raises or its results are not plain new tensors.
bool run_probe(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments, MetaRun& run);

// For a convolution: what its formula says; some arguments would keep a kernel busy for ever.
// Returns false for other operators.
bool run_formula(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments, MetaRun& run);

// For operands of any size: the sizes of the operator's shape rule, and the dtypes that its CPU
// kernel makes of one element of each operand. Returns false if no rule answers.
bool run_rule(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments, MetaRun& run);

// While one is alive, a Meta kernel of ours runs no kernel of the CPU to learn what only that
// knows.
class NothingRuns {
 public:
  NothingRuns();
  NothingRuns(const NothingRuns&) = delete;
  ~NothingRuns();
  // In this thread.
  static bool holds();

 private:
  bool before_;
};

// The cache entry for a successful run. REQUIRES: the recorder lock.
MetaEntry entry_of(const OpInfo& info, const MetaRun& run);

}  // namespace hetero::ops
