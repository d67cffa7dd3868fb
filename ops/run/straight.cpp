#include "ops/run/straight.h"

#include <ATen/core/Generator.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "backend/registry/registry.h"
#include "graph/cost/cost.h"
#include "ops/kernels/boxed.h"
#include "ops/kernels/kernel.h"
#include "ops/memory/storage_memory.h"
#include "ops/record/generator.h"
#include "ops/record/recorder.h"
#include "ops/run/plan_options.h"
#include "ops/run/profile.h"
#include "ops/run/sync.h"
#include "ops/settings/parallel.h"
#include "ops/tensor/sparse.h"

namespace hetero::ops {
namespace {

// Makes hetero tensors of a straight call's results.
class ResultWrapper {
 public:
  // `cpu` stands for the argument `hetero`.
  void add_input(const at::Tensor& cpu, const at::Tensor& hetero) { inputs_.push_back({cpu, hetero}); }

  void add_sparse_input(const at::Tensor& cpu, const at::Tensor& hetero) { sparse_.push_back({cpu, hetero}); }

  std::vector<at::Tensor> wrap_members(const at::Tensor& sparse) {
    std::vector<at::Tensor> members = members_of(sparse);
    for (at::Tensor& member : members) member = wrap(member);
    return members;
  }

  at::Tensor wrap(const at::Tensor& result) {
    if (!result.defined()) return result;
    if (is_sparse(result) && result.device().is_cpu()) {
      for (const auto& [cpu, hetero] : sparse_) {
        if (result.is_same(cpu)) return hetero;
      }
      return with_members(result, wrap_members(result));
    }
    TORCH_CHECK_NOT_IMPLEMENTED(!result.is_quantized(),
                                "hetero: the result is a quantized tensor, which the hetero device does not hold; use "
                                "torchao, or .cpu() first");
    TORCH_CHECK_NOT_IMPLEMENTED(result.layout() == c10::kStrided && !result.is_nested(), "hetero: the result is a ",
                                result.is_nested() ? "nested" : c10::str(result.layout()),
                                " tensor, which the hetero device does not hold; use layout=torch.jagged for nested "
                                "ones, or .cpu() first");
    if (!result.device().is_cpu()) return result;
    for (const auto& [cpu, hetero] : inputs_) {
      if (result.is_same(cpu)) return hetero;
      if (result.storage().is_alias_of(cpu.storage())) {
        return like(hetero.storage(), result);
      }
    }
    c10::StorageImpl* storage = result.storage().unsafeGetStorageImpl();
    for (const auto& [cpu, hetero] : wrapped_) {
      if (cpu == storage) return like(hetero, result);
    }
    const c10::Storage owner = make_storage(storage->nbytes());
    c10::Storage bytes = result.storage();
    if (storage->data_ptr().get_context() == nullptr && storage->nbytes() != 0) {
      // Memory that the storage does not own: a constant, or somebody else's buffer.
      bytes = result.clone(at::MemoryFormat::Preserve).storage();
      return wrap(result.clone(at::MemoryFormat::Preserve));
    }
    install_bytes(static_cast<HeteroStorage*>(owner.unsafeGetStorageImpl()), adopt_cpu_storage(bytes));
    wrapped_.emplace_back(storage, owner);
    return like(owner, result);
  }

 private:
  static at::Tensor like(const c10::Storage& storage, const at::Tensor& cpu) {
    at::Tensor made = make_view(storage, cpu.scalar_type(), cpu.sizes(), cpu.strides(), cpu.storage_offset());
    if (cpu.is_conj()) made.unsafeGetTensorImpl()->_set_conj(true);
    if (cpu.is_neg()) made.unsafeGetTensorImpl()->_set_neg(true);
    return made;
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> inputs_;
  std::vector<std::pair<at::Tensor, at::Tensor>> sparse_;
  std::vector<std::pair<c10::StorageImpl*, c10::Storage>> wrapped_;
};

// The host storages of one call: one for each storage, so that kernels see which arguments overlap.
class HostStorages {
 public:
  explicit HostStorages(SyncReason reason) : reason_(reason) {}

  c10::Storage of(const c10::Storage& storage, bool writes) {
    for (Known& known : known_) {
      if (known.hetero != storage.unsafeGetStorageImpl()) continue;
      if (writes && !known.written) host_storage(storage, reason_, true);
      known.written |= writes;
      return known.host;
    }
    known_.push_back({storage.unsafeGetStorageImpl(), host_storage(storage, reason_, writes), writes});
    return known_.back().host;
  }

 private:
  struct Known {
    const c10::StorageImpl* hetero;
    c10::Storage host;
    bool written;
  };
  SyncReason reason_;
  std::vector<Known> known_;
};

// After the kernel wrote through `cpu`, makes `hetero` look the same: an `out` may have been
// resized.
void write_back(const at::Tensor& cpu, const at::Tensor& hetero, const void* bytes_before) {
  HeteroStorage* storage = storage_of(hetero);
  if (cpu.storage().data_ptr().get() != bytes_before) {
    const size_t bytes = cpu.storage().nbytes();
    c10::Storage taken = cpu.storage();
    storage->change_size(bytes);
    install_bytes(storage, adopt_cpu_storage(std::move(taken)));
  }
  if (cpu.sizes() != hetero.sizes() || cpu.strides() != hetero.strides() ||
      cpu.storage_offset() != hetero.storage_offset()) {
    hetero.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset());
  }
}

double bytes_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == c10::kStrided ? static_cast<double>(tensor.nbytes()) : 0;
}

// A virtual clock does not see what runs here. It is told what planning expects of an operator of
// which it knows nothing but the bytes.
void advance_virtual_clock(double bytes) {
  backend::Device* const accelerator = backend::accelerator();
  if (accelerator == nullptr || !accelerator->has_virtual_clock()) return;
  graph::PlanOptions options;
  options.machine.cpu().rates = planned_host();
  accelerator->advance_host(graph::CostModel(options).run_seconds({.flops = bytes / 4, .bytes = bytes}, backend::kCpu));
}

// In a capture: whether the call gives the same in every run of the program, and changes nothing.
bool is_constant_call(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  bool constant = is_own(info.name) && !info.seeded && info.generator_argument < 0 &&
                  std::ranges::all_of(info.access, [](graph::Access access) { return access == graph::Access::kRead; });
  visit_tensors(arguments, [&](size_t, const at::Tensor& tensor) {
    constant = constant && (!is_hetero(tensor) || (!is_sparse(tensor) && is_constant(storage_of(tensor))));
    if (constant && !is_sparse(tensor)) note_look(tensor);
  });
  return constant;
}

// In a capture: notes the call's other arguments, of which its results are made, too.
void note_call(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  std::ostringstream call;
  call << info.name;
  for (const c10::IValue& value : arguments) {
    const bool has_tensors = value.isTensor() || value.isTensorList() || value.isOptionalTensorList();
    if (!has_tensors) call << ' ' << value;
  }
  Locked recording(recorder().mutex());
  recorder().looked_at().add(call.str());
}

}  // namespace

void run_straight(const OpInfo& info, torch::jit::Stack* stack, SyncReason reason) {
  run_drawn(info, stack, draw(info, arguments_of(info, *stack)), reason);
}

void run_drawn(const OpInfo& info, torch::jit::Stack* stack, RandomState random, SyncReason reason) {
  const auto arguments = arguments_of(info, *stack);
  if (captures_here()) [[unlikely]] {
    if (!is_constant_call(info, arguments)) refuse_capture(info.name + " (" + to_string(reason) + ")");
    note_call(info, arguments);
  }
  count(counters().straight);
  if (reason != SyncReason::kFirstSight) counters().fallbacks.count(info.name);

  // Settle everything at once, then look at each tensor.
  std::vector<HeteroStorage*> storages;
  double moved = 0;
  visit_tensors(arguments, [&](size_t, const at::Tensor& tensor) {
    moved += bytes_of(tensor);
    if (is_hetero(tensor) && is_sparse(tensor)) {
      for (const at::Tensor& member : members_of(tensor)) storages.push_back(storage_of(member));
    } else if (is_hetero(tensor)) {
      storages.push_back(storage_of(tensor));
    } else {
      const bool number = tensor.device().is_cpu() && tensor.dim() == 0;
      if (!number && !info.row.cpu_tensors) raise_mixed_devices(tensor);
    }
  });
  settle(storages, reason);

  struct Written {
    at::Tensor cpu, hetero;
    const void* bytes;
  };
  std::vector<Written> written;
  HostStorages bytes(reason);
  ResultWrapper wrapper;
  torch::jit::Stack cpu_stack;
  for (size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue value = arguments[i];
    const bool writes = info.access[i] != graph::Access::kRead;
    const auto on_host = [&](const at::Tensor& tensor) {
      at::Tensor cpu = tensor_over(bytes.of(tensor.storage(), writes), tensor);
      wrapper.add_input(cpu, tensor);
      return cpu;
    };
    map_tensors(value, [&](const at::Tensor& tensor) {
      if (!is_hetero(tensor)) return tensor;
      if (is_sparse(tensor)) {
        std::vector<at::Tensor> members = members_of(tensor);
        for (at::Tensor& member : members) member = on_host(member);
        at::Tensor cpu = with_members(tensor, members);
        if (writes) written.push_back({cpu, tensor, nullptr});
        wrapper.add_sparse_input(cpu, tensor);
        return cpu;
      }
      at::Tensor cpu = on_host(tensor);
      if (writes) written.push_back({cpu, tensor, cpu.storage().data_ptr().get()});
      return cpu;
    });
    if (value.isDevice() && value.toDevice().type() == kHetero) value = c10::Device(c10::kCPU);
    if (static_cast<int>(i) == info.generator_argument) value = derived_generator(random);
    cpu_stack.push_back(std::move(value));
  }
  {
    WithoutInterpreter released;
    KernelScope scope;
    Isolated isolated;
    SeededDefaultGenerator seeded(info.seeded, random);
    const ProfiledCall profiled(info.name);
    info.handle.callBoxed(&cpu_stack);
  }
  for (const Written& entry : written) {
    if (is_sparse(entry.hetero)) {
      become(entry.hetero, entry.cpu, wrapper.wrap_members(entry.cpu));
    } else {
      write_back(entry.cpu, entry.hetero, entry.bytes);
    }
  }
  for (c10::IValue& result : cpu_stack) {
    map_tensors(result, [&](const at::Tensor& tensor) {
      at::Tensor wrapped = wrapper.wrap(tensor);
      moved += bytes_of(wrapped);
      // The program may write its result, which is made anew in each run.
      if (captures_here() && is_hetero(wrapped) && std::ranges::find(storages, storage_of(wrapped)) == storages.end())
          [[unlikely]] {
        wrapped = wrapped.clone();
      }
      return wrapped;
    });
  }
  advance_virtual_clock(moved);
  torch::jit::drop(*stack, info.access.size());
  for (c10::IValue& result : cpu_stack) stack->push_back(std::move(result));
}

}  // namespace hetero::ops
