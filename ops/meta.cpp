#include "ops/meta.h"

#include <ATen/EmptyTensor.h>

#include "ops/catch_all.h"
#include "ops/kernel.h"
#include "ops/recorder.h"

namespace hetero::ops {
namespace {

class MetaTensors {
 public:
  explicit MetaTensors(MetaRun& run) : run_(run) {}

  at::Tensor of(const at::Tensor& tensor) {
    if (!is_hetero(tensor)) return tensor;  // a 0-dim CPU tensor
    at::Tensor meta = at::detail::make_tensor<c10::TensorImpl>(
        storage_for(storage_of(tensor)), c10::DispatchKeySet(c10::DispatchKey::Meta), tensor.dtype());
    c10::TensorImpl* impl = meta.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    if (tensor.is_conj()) impl->_set_conj(true);
    if (tensor.is_neg()) impl->_set_neg(true);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
    run_.inputs.push_back(meta);
    return meta;
  }

 private:
  c10::Storage storage_for(HeteroStorage* storage) {
    for (const auto& [known, meta] : storages_) {
      if (known == storage) return meta;
    }
    c10::Storage meta(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(storage->nbytes()),
        c10::DataPtr(nullptr, c10::Device(c10::kMeta)), c10::GetAllocator(c10::kMeta), true));
    storages_.emplace_back(storage, meta);
    return meta;
  }

  MetaRun& run_;
  std::vector<std::pair<HeteroStorage*, c10::Storage>> storages_;
};

c10::IValue to_meta(const c10::IValue& value, MetaTensors& tensors) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? c10::IValue(tensors.of(value.toTensor())) : value;
  }
  if (value.isDevice()) return c10::Device(c10::kMeta);
  if (value.isGenerator()) return {};
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(tensor.defined() ? tensors.of(tensor) : tensor);
    }
    return list;
  }
  if (value.isList() && value.type()->castRaw<c10::ListType>()->getElementType()->isSubtypeOf(
                            *c10::OptionalType::ofTensor())) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isNone() || !element.toTensor().defined()) {
        list.push_back(std::nullopt);
      } else {
        list.push_back(tensors.of(element.toTensor()));
      }
    }
    return list;
  }
  return value;
}

bool has_meta_kernel(const c10::OperatorHandle& handle) {
  return handle.hasKernelForDispatchKey(c10::DispatchKey::Meta) ||
         handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
         handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
         handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

bool plain(const at::Tensor& tensor) {
  return !tensor.defined() || (tensor.layout() == c10::kStrided && tensor.is_meta() &&
                               !tensor.is_quantized() && !tensor.is_nested() &&
                               !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides());
}

}  // namespace

bool run_meta(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments, MetaRun& run) {
  if (!has_meta_kernel(info.handle)) return false;
  MetaTensors tensors(run);
  torch::jit::Stack stack;
  for (const c10::IValue& argument : arguments) stack.push_back(to_meta(argument, tensors));
  try {
    WithoutInterpreter released;
    Isolated isolated;
    info.handle.callBoxed(&stack);
  } catch (const c10::NotImplementedError&) {
    // No kernel after all, or one that gives up on this call.
    return false;
  } catch (const std::exception&) {
    run.failed = true;
    return false;
  }
  for (size_t r = 0; r < stack.size(); ++r) {
    const c10::IValue& value = stack[r];
    const bool fresh = info.returns[r] == OpInfo::Return::kTensor ||
                       info.returns[r] == OpInfo::Return::kTensorList;
    const auto usable = [&](const at::Tensor& tensor) {
      if (!plain(tensor)) return false;
      if (!fresh || !tensor.defined()) return true;
      if (tensor.is_conj() || tensor.is_neg()) return false;
      // A result that is secretly an argument, or a view of one, is no new value.
      for (const at::Tensor& input : run.inputs) {
        if (tensor.storage().is_alias_of(input.storage())) return false;
      }
      return true;
    };
    if (value.isTensor()) {
      if (!usable(value.toTensor())) return false;
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) {
        if (!usable(tensor)) return false;
      }
    } else {
      return false;
    }
  }
  run.results = std::move(stack);
  return true;
}

MetaEntry entry_of(const OpInfo& info, const MetaRun& run) {
  MetaEntry entry;
  const auto add = [&](const at::Tensor& meta) {
    if (!meta.defined()) {
      entry.outputs.push_back({});
      return;
    }
    const graph::WindowId window = recorder().windows().intern(
        static_cast<graph::DType>(meta.scalar_type()), {meta.sizes().data(), meta.sizes().size()},
        {meta.strides().data(), meta.strides().size()}, 0);
    entry.outputs.push_back(
        {window, storage_bytes_for(meta.sizes(), meta.strides(), 0, meta.element_size())});
  };
  for (size_t r = 0; r < run.results.size(); ++r) {
    if (info.returns[r] == OpInfo::Return::kTensor) {
      add(run.results[r].toTensor());
    } else if (info.returns[r] == OpInfo::Return::kTensorList) {
      const auto list = run.results[r].toTensorVector();
      entry.list_lengths.push_back(static_cast<uint32_t>(list.size()));
      for (const at::Tensor& tensor : list) add(tensor);
    }
  }
  return entry;
}

}  // namespace hetero::ops
