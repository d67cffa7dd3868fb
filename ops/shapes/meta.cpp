#include "ops/shapes/meta.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/EmbeddingBag.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <span>
#include <unordered_map>
#include <utility>

#include "ops/kernels/boxed.h"
#include "ops/kernels/kernel.h"
#include "ops/record/generator.h"
#include "ops/record/op_info.h"
#include "ops/record/recorder.h"
#include "ops/settings/parallel.h"
#include "ops/shapes/shape_rules.h"

namespace hetero::ops {
namespace {

// What the bytes of stand-ins on the CPU are; of one element, or none, their sizes are at most one.
enum class Fill : uint8_t { kZeros, kOnes, kOneElement };

// Stand-ins for the hetero tensors of a call, with their geometry and their sharing of storages:
// meta tensors, or bytes on the CPU.
class StandIns {
 public:
  StandIns(c10::DeviceType device, Fill fill, MetaRun& run) : device_(device), fill_(fill), run_(run) {}

  c10::DeviceType device() const { return device_; }

  at::Tensor of(const at::Tensor& tensor) {
    if (!is_hetero(tensor)) return tensor;  // a 0-dim CPU tensor
    const c10::DispatchKeySet keys(device_ == c10::kMeta ? c10::DispatchKey::Meta : c10::DispatchKey::CPU);
    const bool whole = fill_ != Fill::kOneElement;
    at::Tensor meta = at::detail::make_tensor<c10::TensorImpl>(
        whole ? storage_for(storage_of(tensor)) : storage_of_bytes(tensor.element_size()), keys, tensor.dtype());
    c10::TensorImpl* impl = meta.unsafeGetTensorImpl();
    if (whole) {
      impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    } else {
      c10::SmallVector<int64_t, 6> sizes;
      for (const int64_t size : tensor.sizes()) sizes.push_back(std::min<int64_t>(size, 1));
      impl->set_sizes_contiguous(sizes);
    }
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
    return storages_.emplace_back(storage, storage_of_bytes(storage->nbytes())).second;
  }

  c10::Storage storage_of_bytes(size_t bytes) {
    return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                              static_cast<int64_t>(bytes), memory(bytes),
                                                              c10::GetAllocator(device_), true));
  }

  c10::DataPtr memory(size_t bytes) {
    if (device_ == c10::kMeta) return c10::DataPtr(nullptr, c10::Device(c10::kMeta));
    if (bytes == 0) return c10::GetCPUAllocator()->allocate(0);
    // Zeros that nobody looks at, such as most rows of an embedding, take no memory.
    void* const zeros = std::calloc(bytes, 1);
    if (zeros == nullptr) throw std::bad_alloc();
    if (fill_ == Fill::kOnes) std::memset(zeros, 1, bytes);
    return c10::DataPtr(zeros, zeros, &std::free, c10::Device(c10::kCPU));
  }

  c10::DeviceType device_;
  Fill fill_;
  MetaRun& run_;
  std::vector<std::pair<HeteroStorage*, c10::Storage>> storages_;
};

c10::IValue stand_in(const c10::IValue& value, StandIns& tensors) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? c10::IValue(tensors.of(value.toTensor())) : value;
  }
  if (value.isDevice()) return c10::Device(tensors.device());
  if (value.isGenerator()) return tensors.device() == c10::kMeta ? c10::IValue() : c10::IValue(derived_generator({}));
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(tensor.defined() ? tensors.of(tensor) : tensor);
    }
    return list;
  }
  if (value.isList() &&
      value.type()->castRaw<c10::ListType>()->getElementType()->isSubtypeOf(*c10::OptionalType::ofTensor())) {
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

bool has_meta_kernel(const OpInfo& info) {
  const c10::OperatorHandle& handle = info.handle;
  if (handle.hasKernelForDispatchKey(c10::DispatchKey::Meta)) return true;
  // What a library composes where it also has a kernel of the CPU may be a loop over all elements.
  if (!is_own(info.name) && handle.hasKernelForDispatchKey(c10::DispatchKey::CPU)) return false;
  return has_default_kernel(handle);
}

bool plain(const at::Tensor& tensor, c10::DeviceType device) {
  return !tensor.defined() ||
         (tensor.layout() == c10::kStrided && tensor.device().type() == device && !tensor.is_quantized() &&
          !tensor.is_nested() && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides());
}

// True where every result is a tensor that the recorder can stand for.
bool usable_results(const OpInfo& info, const torch::jit::Stack& results, c10::DeviceType device, const MetaRun& run) {
  std::vector<const c10::StorageImpl*> storages;
  for (size_t r = 0; r < results.size(); ++r) {
    const c10::IValue& value = results[r];
    const bool fresh = info.returns[r] == OpInfo::Return::kTensor || info.returns[r] == OpInfo::Return::kTensorList;
    const auto usable = [&](const at::Tensor& tensor) {
      if (!plain(tensor, device)) return false;
      if (!fresh || !tensor.defined()) return true;
      if (tensor.is_conj() || tensor.is_neg() || tensor.storage_offset() != 0) return false;
      // A result that is secretly an argument, a view of one, or shares memory with another result,
      // is no new value.
      for (const at::Tensor& input : run.inputs) {
        if (tensor.storage().is_alias_of(input.storage())) return false;
      }
      const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
      if (std::find(storages.begin(), storages.end(), storage) != storages.end()) return false;
      storages.push_back(storage);
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
  return true;
}

// Swallows warnings: the real run gives them.
class Silence final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

bool run_on_stand_ins(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments, c10::DeviceType device, Fill fill,
                      MetaRun& run) {
  run = {};
  StandIns tensors(device, fill, run);
  torch::jit::Stack stack;
  for (const c10::IValue& argument : arguments) stack.push_back(stand_in(argument, tensors));
  try {
    Silence silence;
    c10::WarningUtils::WarningHandlerGuard quiet(&silence);
    WithoutInterpreter released;
    KernelScope scope;
    Isolated isolated;
    SeededDefaultGenerator seeded(info.seeded && device == c10::kCPU, {});
    info.handle.callBoxed(&stack);
  } catch (const c10::NotImplementedError&) {
    // No kernel after all, or one that gives up on this call.
    run.failed = device == c10::kCPU;
    run.undescribed = !run.failed;
    return false;
  } catch (const std::exception& error) {
    run.failed = true;
    run.divided_by_zero = std::strstr(error.what(), "ZeroDivisionError") != nullptr;
    return false;
  }
  if (!usable_results(info, stack, device, run)) return false;
  run.results = std::move(stack);
  return true;
}

// Where the Meta kernel describes CUDA's kernel, and the CPU's does something else. Only of
// operators with a row: what others make is compared with what was said when they are run for the
// first time (first_sight.h), or each time (node_check.h).
void correct(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments, MetaRun& run) {
  const ArgumentSet parameters = info.row.statistics;
  if (parameters.empty()) return;
  size_t giver = 0;  // of the statistics' dtype
  for (size_t i = arguments.size(); i-- > 0;) {
    if (parameters.has(i) && arguments[i].isTensor() && arguments[i].toTensor().defined()) giver = i;
  }
  const at::ScalarType dtype = arguments[giver].toTensor().scalar_type();
  for (const size_t statistics : {1, 2}) {
    const at::Tensor& made = run.results[statistics].toTensor();
    if (makes_no_hidden_writes(info, arguments)) {
      // There are no statistics of the batch to keep.
      run.results[statistics] = at::empty({0}, made.options().dtype(dtype));
    } else if (made.scalar_type() != dtype) {
      run.results[statistics] = at::empty_strided(made.sizes(), made.strides(), made.options().dtype(dtype));
    }
  }
}

bool means_something_to_embedding_bag(c10::ArrayRef<c10::IValue> arguments) {
  constexpr size_t kMode = 4;
  const int64_t mode = arguments[kMode].toInt();
  return mode >= 0 && mode <= static_cast<int64_t>(at::native::EmbeddingBagMode::MAX);
}

// Dimensions that there are, each once; and of a transform to real numbers, as many of them as its
// input has.
bool means_something_to_fft(ArgumentMeaning meaning, c10::ArrayRef<c10::IValue> arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  std::vector<bool> met(self.dim());
  int64_t last = -1;
  for (const int64_t dim : arguments[1].toIntVector()) {
    if (dim < 0 || dim >= self.dim() || met[dim]) return false;
    met[dim] = true;
    last = dim;
  }
  if (meaning == ArgumentMeaning::kFft) return true;
  if (last < 0 || meaning == ArgumentMeaning::kFftOfReals) return last >= 0;
  constexpr size_t kLastSize = 3;
  const int64_t size = arguments[kLastSize].toInt();
  return size > 0 && self.size(last) > size / 2;
}

// False where the CPU's kernel would take an argument at its word that means nothing, and the Meta
// kernel does not look at it.
bool means_something(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  constexpr size_t kHeads = 4;
  switch (info.row.meaning) {
    case ArgumentMeaning::kAny:
      return true;
    case ArgumentMeaning::kEmbeddingBag:
      return means_something_to_embedding_bag(arguments);
    case ArgumentMeaning::kFft:
    case ArgumentMeaning::kFftOfReals:
    case ArgumentMeaning::kFftToReals:
      return means_something_to_fft(info.row.meaning, arguments);
    case ArgumentMeaning::kHeads:
      return arguments[kHeads].toInt() > 0;
  }
  return true;
}

thread_local bool nothing_runs = false;

}  // namespace

bool is_described_in_python(const OpInfo& info) {
  static std::mutex mutex;
  static auto* known = new std::unordered_map<std::string, bool>;
  const std::lock_guard lock(mutex);
  if (const auto found = known->find(info.name); found != known->end()) return found->second;
  const std::string registered = info.handle.dumpState();
  const size_t line = registered.find("\nMeta: ");
  const bool python = line != std::string::npos && std::string_view(registered)
                                                           .substr(line + 1)
                                                           .substr(0, registered.find('\n', line + 1) - line - 1)
                                                           .find(".py:") != std::string_view::npos;
  return known->emplace(info.name, python).first->second;
}

NothingRuns::NothingRuns() : before_(std::exchange(nothing_runs, true)) {}
NothingRuns::~NothingRuns() { nothing_runs = before_; }
bool NothingRuns::holds() { return nothing_runs; }

bool run_meta(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments, MetaRun& run, MetaKernels kernels) {
  run = {};
  run.failed = !means_something(info, arguments);
  if (run.failed) return false;
  run.undescribed = !has_meta_kernel(info) || (kernels == MetaKernels::kWithoutPython && is_described_in_python(info));
  if (run.undescribed || !run_on_stand_ins(info, arguments, c10::kMeta, Fill::kZeros, run)) return false;
  correct(info, arguments, run);
  return true;
}

bool run_probe(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments, MetaRun& run) {
  if (run_on_stand_ins(info, arguments, c10::kCPU, Fill::kZeros, run)) return true;
  if (!run.divided_by_zero) return false;
  // Of integers. Whether the real ones can be divided, the run will tell.
  return run_on_stand_ins(info, arguments, c10::kCPU, Fill::kOnes, run);
}

namespace {

void keep_inputs(c10::ArrayRef<c10::IValue> arguments, MetaRun& run) {
  run.inputs.clear();
  visit_tensors(arguments, [&](size_t, const at::Tensor& tensor) {
    if (is_hetero(tensor)) run.inputs.push_back(tensor);
  });
}

at::Tensor without_bytes(c10::IntArrayRef sizes, at::ScalarType dtype) {
  return at::empty(sizes, at::TensorOptions(dtype).device(c10::kMeta));
}

}  // namespace

bool run_formula(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments, MetaRun& run) {
  run = {};
  c10::SmallVector<int64_t, 6> sizes;
  if (info.shape_rule != ShapeRule::kConvolution) return false;
  run.failed = !convolution_sizes(arguments, sizes);
  if (run.failed) return false;
  keep_inputs(arguments, run);
  run.results = {without_bytes(sizes, arguments[0].toTensor().scalar_type())};
  return true;
}

bool run_rule(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments, MetaRun& run) {
  std::vector<RuledOutput> outputs;
  if (!apply_rule(info.shape_rule, arguments, outputs)) return false;
  const bool in_place = info.returns.size() == 1 && info.returns[0] == OpInfo::Return::kArgument;
  if (in_place) {
    const c10::IValue& written = arguments[info.returned_argument[0]];
    if (!written.isTensor() || outputs.size() != 1 || written.toTensor().sizes() != c10::IntArrayRef(outputs[0].sizes))
      return false;
  }
  torch::jit::Stack one_each(arguments.begin(), arguments.end());
  if (info.shape_rule == ShapeRule::kLayerNorm) {
    const size_t normalized = one_each[1].toIntVector().size();
    one_each[1] = std::vector<int64_t>(normalized, 1);
  }
  if (!run_on_stand_ins(info, one_each, c10::kCPU, Fill::kOneElement, run)) return false;
  keep_inputs(arguments, run);  // nothing is resized
  if (in_place) return true;
  if (outputs.size() != run.results.size()) return false;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].made) return false;
    if (!run.results[i].isTensor() || !run.results[i].toTensor().defined()) return false;
    run.results[i] = without_bytes(outputs[i].sizes, run.results[i].toTensor().scalar_type());
  }
  return true;
}

MetaEntry entry_of(const OpInfo& info, const MetaRun& run) {
  MetaEntry entry;
  const auto add = [&](const at::Tensor& meta) {
    if (!meta.defined()) {
      entry.outputs.push_back({});
      return;
    }
    const graph::WindowId window =
        window_table().intern(static_cast<graph::DType>(meta.scalar_type()), {meta.sizes().data(), meta.sizes().size()},
                              {meta.strides().data(), meta.strides().size()}, 0);
    entry.outputs.push_back({window, storage_bytes_for(meta.sizes(), meta.strides(), 0, meta.element_size())});
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
