#include "ops/dispatch/catch_all.h"

#include <c10/core/DefaultDtype.h>

#include <utility>

#include "ops/kernels/boxed.h"
#include "ops/record/recorder.h"
#include "ops/run/straight.h"
#include "ops/run/sync.h"
#include "ops/shapes/first_sight.h"
#include "ops/shapes/meta.h"
#include "ops/shapes/number_check.h"

namespace hetero::ops {
namespace {

// Moves CPU index tensors to the device, as indexing on CUDA does. Returns true when there were
// any.
bool move_indices(const OpInfo& info, torch::jit::Stack* stack) {
  bool moved = false;
  for (size_t i = stack->size() - info.access.size(); i < stack->size(); ++i) {
    map_tensors((*stack)[i], [&](const at::Tensor& tensor) {
      if (is_hetero(tensor) || !tensor.device().is_cpu() || tensor.dim() == 0) return tensor;
      if (!at::isIntegralType(tensor.scalar_type(), true)) return tensor;
      moved = true;
      return tensor.to(c10::Device(kHetero, 0));
    });
  }
  return moved;
}

void push_results(const OpInfo& info, torch::jit::Stack* stack, const MetaEntry& entry,
                  const std::vector<at::Tensor>& outputs) {
  const size_t arguments = info.access.size();
  std::vector<c10::IValue> results;
  results.reserve(info.returns.size());
  size_t next = 0;
  size_t next_list = 0;
  for (size_t r = 0; r < info.returns.size(); ++r) {
    switch (info.returns[r]) {
      case OpInfo::Return::kTensor:
        results.emplace_back(outputs[next++]);
        break;
      case OpInfo::Return::kTensorList: {
        const uint32_t length = entry.list_lengths[next_list++];
        c10::List<at::Tensor> list;
        for (uint32_t i = 0; i < length; ++i) list.push_back(outputs[next++]);
        results.emplace_back(std::move(list));
        break;
      }
      default:
        results.push_back((*stack)[stack->size() - arguments + info.returned_argument[r]]);
    }
  }
  torch::jit::drop(*stack, arguments);
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

// A call of a view operator: the Meta kernel says how the result looks at the storage. No node is
// recorded.
bool make_views(const OpInfo& info, torch::jit::Stack* stack) {
  MetaRun run;
  if (!run_meta(info, arguments_of(info, *stack), run)) return false;
  std::vector<at::Tensor> inputs;
  visit_tensors(arguments_of(info, *stack), [&](size_t, const at::Tensor& tensor) {
    if (is_hetero(tensor)) inputs.push_back(tensor);
  });
  bool ok = true;
  const auto to_view = [&](const at::Tensor& meta) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (meta.storage().unsafeGetStorageImpl() != run.inputs[i].storage().unsafeGetStorageImpl()) continue;
      at::Tensor view =
          make_view(inputs[i].storage(), meta.scalar_type(), meta.sizes(), meta.strides(), meta.storage_offset());
      if (meta.is_conj()) view.unsafeGetTensorImpl()->_set_conj(true);
      if (meta.is_neg()) view.unsafeGetTensorImpl()->_set_neg(true);
      return view;
    }
    ok = false;
    return at::Tensor();
  };
  for (c10::IValue& result : run.results) map_tensors(result, to_view);
  if (!ok) return false;
  torch::jit::drop(*stack, info.access.size());
  for (c10::IValue& result : run.results) stack->push_back(std::move(result));
  count(counters().views);
  return true;
}

}  // namespace

void make_outputs(const MetaEntry& entry, std::vector<at::Tensor>& all, std::vector<at::Tensor>& defined) {
  const graph::WindowTable& windows = window_table();
  for (const MetaOutput& output : entry.outputs) {
    if (output.window == graph::kNoWindow) {
      all.emplace_back();
      continue;
    }
    defined.push_back(make_tensor(windows[output.window], output.window, output.storage_bytes));
    all.push_back(defined.back());
  }
}

void record_boxed(const OpInfo& info, torch::jit::Stack* stack) {
  if (info.row.checks_numbers) check_numbers(info, arguments_of(info, *stack));
  const RandomState random = draw(info, arguments_of(info, *stack));
  for (int attempt = 0; attempt < 4; ++attempt) {
    Call& call = scratch_call();
    std::vector<at::Tensor> outputs;
    std::vector<at::Tensor> defined;
    const at::ScalarType default_dtype = c10::typeMetaToScalarType(c10::get_default_dtype());
    FirstSight how;
    uint64_t signature;
    {
      Locked lock(recorder().mutex());
      if (!encode(info, arguments_of(info, *stack), call, random)) {
        lock.unlock();
        return run_drawn(info, stack, random, SyncReason::kNotRecordable);
      }
      if (call.foreign.defined()) {
        lock.unlock();
        // Not to be kept by the thread's Call: who destroys it may need other locks.
        const at::Tensor foreign = std::exchange(call.foreign, at::Tensor());
        if (info.row.cpu_tensors) return run_drawn(info, stack, random, info.straight_reason);
        if (info.row.cpu_indices && move_indices(info, stack)) continue;
        raise_mixed_devices(foreign);
      }
      if (!recorder().set_default_dtype(default_dtype)) {
        lock.unlock();
        flush_all(SyncReason::kSettings);
        continue;
      }
      if (const MetaEntry* entry = recorder().expect(info.id, call)) {
        if (entry->straight) {
          const SyncReason reason = entry->reason;
          lock.unlock();
          return run_drawn(info, stack, random, reason);
        }
        if (!entry->resized.empty()) {
          const std::vector<Resize> resizes = resizes_of(*entry);
          lock.unlock();
          resize_arguments(arguments_of(info, *stack), resizes);
          continue;
        }
        make_outputs(*entry, outputs, defined);
        const bool pressure = recorder().append(info.id, call, defined);
        // An operator with a row counts as typed also when an unusual call took this way.
        count_locked(info.typed ? counters().typed_nodes : counters().boxed_nodes);
        push_results(info, stack, *entry, outputs);
        lock.unlock();
        if (pressure) after_record();
        return;
      }
      signature = signature_of(info, call);
      how = first_sight(info, call, signature);
    }
    count(counters().meta_misses);
    if (how == FirstSight::kProbe || how == FirstSight::kRun) counters().tried.count(info.name);
    if (meet(info, stack, random, how, signature)) return;
  }
  run_drawn(info, stack, random, SyncReason::kNotRecordable);
}

void catch_all(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  check_fork();
  const OpInfo& info = op_info(handle);
  if (!info.records) return run_straight(info, stack, info.straight_reason);
  if (info.views) {
    if (make_views(info, stack)) return;
    return run_straight(info, stack, SyncReason::kNoMetaKernel);
  }
  record_boxed(info, stack);
}

}  // namespace hetero::ops
