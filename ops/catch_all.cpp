#include "ops/catch_all.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Generator.h>
#include <ATen/record_function.h>
#include <c10/core/DefaultDtype.h>

#include <array>
#include <limits>
#include <shared_mutex>
#include <unordered_map>
#include <unordered_set>

#include "backend/registry.h"
#include "ops/generator.h"
#include "ops/kernel.h"
#include "ops/meta.h"
#include "ops/parallel.h"
#include "ops/recorder.h"
#include "ops/sync.h"

namespace hetero::ops {
namespace {

// Operators whose results depend on data but whose Meta kernels do not say so.
bool always_straight(const std::string& name) {
  static const std::vector<std::string> names = {
      "aten::_unique2",
      "aten::unique_dim",
      "aten::unique_consecutive",
      "aten::_pack_padded_sequence",
      "aten::_pad_packed_sequence",
  };
  return std::find(names.begin(), names.end(), name.substr(0, name.find('.'))) != names.end();
}

bool has_prefix(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

}  // namespace

OpInfo::OpInfo(const c10::OperatorHandle& op) : handle(op) {
  const c10::FunctionSchema& schema = op.schema();
  name = schema.operator_name().name;
  if (!schema.operator_name().overload_name.empty()) name += "." + schema.operator_name().overload_name;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    // An `out` is overwritten; any other written argument is read first.
    access.push_back(!written            ? graph::Access::kRead
                     : argument.is_out() ? graph::Access::kWrite
                                         : graph::Access::kUpdate);
    c10::TypePtr type = argument.type();
    if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    if (auto list = type->cast<c10::ListType>()) type = list->getElementType();
    is_number.push_back(type->kind() == c10::TypeKind::NumberType);
    if (type->kind() == c10::TypeKind::GeneratorType) generator_argument = static_cast<int>(i);
    if (type->kind() == c10::TypeKind::StorageType || type->kind() == c10::TypeKind::ClassType ||
        type->kind() == c10::TypeKind::StreamObjType || type->kind() == c10::TypeKind::QSchemeType) {
      records = false;
    }
  }
  for (const c10::Argument& result : schema.returns()) {
    const bool tensor = result.type()->isSubtypeOf(*c10::TensorType::get());
    const bool list = result.type()->isSubtypeOf(*c10::ListType::ofTensors());
    const c10::AliasInfo* alias = result.alias_info();
    int argument = -1;
    if (alias != nullptr) {
      for (size_t i = 0; i < schema.arguments().size() && argument < 0; ++i) {
        const c10::AliasInfo* other = schema.arguments()[i].alias_info();
        if (other != nullptr && *other == *alias) argument = static_cast<int>(i);
      }
    }
    returned_argument.push_back(argument);
    if (!tensor && !list) {
      returns.push_back(Return::kOther);
      records = false;
      straight_reason = SyncReason::kDataDependentValue;
    } else if (alias != nullptr && alias->isWrite()) {
      returns.push_back(Return::kArgument);
    } else if (alias != nullptr) {
      returns.push_back(Return::kView);
      views = true;
    } else {
      returns.push_back(tensor ? Return::kTensor : Return::kTensorList);
    }
  }
  if (overwrites_first_argument(name)) access[0] = graph::Access::kWrite;
  if (returns.empty() && std::count(access.begin(), access.end(), graph::Access::kRead) == std::ssize(access)) {
    // Whatever it does, it does not do to a tensor.
    records = false;
  }
  if (name == "aten::native_batch_norm") {
    // In training it updates the running statistics, which its schema does not say.
    access[3] = access[4] = graph::Access::kUpdate;
  }
  seeded = generator_argument < 0 && op.hasTag(at::Tag::nondeterministic_seeded);
  if (op.hasTag(at::Tag::dynamic_output_shape) || always_straight(name)) {
    records = false;
    straight_reason = SyncReason::kDataDependentShape;
  } else if (op.hasTag(at::Tag::data_dependent_output)) {
    records = false;
    straight_reason = SyncReason::kDataDependentValue;
  }
  takes_cpu_tensors = has_prefix(name, "aten::_pack_padded_sequence") ||
                      has_prefix(name, "aten::_pad_packed_sequence") || has_prefix(name, "aten::_ctc_loss");
  takes_cpu_indices = has_prefix(name, "aten::index.Tensor") || has_prefix(name, "aten::index_put") ||
                      has_prefix(name, "aten::_index_put_impl") || has_prefix(name, "aten::_unsafe_index");
}

const OpInfo& op_info(const c10::OperatorHandle& handle) {
  // Keyed by the address of the operator's name, which is unique while the operator exists.
  static auto* infos = new std::unordered_map<const void*, std::unique_ptr<OpInfo>>;
  static auto* retired = new std::vector<std::unique_ptr<OpInfo>>;
  static auto* mutex = new std::shared_mutex;
  const c10::OperatorName& operator_name = handle.operator_name();
  const auto matches = [&](const OpInfo& info) {
    return info.access.size() == handle.schema().arguments().size() &&
           info.returns.size() == handle.schema().returns().size() &&
           has_prefix(info.name, operator_name.name.c_str()) &&
           info.name.size() == operator_name.name.size() +
                                   (operator_name.overload_name.empty() ? 0 : operator_name.overload_name.size() + 1);
  };
  {
    std::shared_lock lock(*mutex);
    const auto found = infos->find(&operator_name);
    if (found != infos->end() && matches(*found->second)) return *found->second;
  }
  std::unique_lock lock(*mutex);
  std::unique_ptr<OpInfo>& info = (*infos)[&operator_name];
  if (info != nullptr && matches(*info)) return *info;
  if (info != nullptr) retired->push_back(std::move(info));
  info = std::make_unique<OpInfo>(handle);
  Locked recording(recorder().mutex());
  info->id = graph::op_table().find(info->name);
  if (info->id == graph::op_table().size() || graph::op_table()[info->id].kernel == &boxed_kernel) {
    graph::OpTraits traits = traits_of(info->name);
    traits.kernel = &boxed_kernel;
    traits.self = info.get();
    info->id = graph::op_table().add(std::move(traits));
  } else {
    info->numbers_decide_shape = false;  // a typed row: its numbers are plan inputs
  }
  return *info;
}

const OpInfo& op_info(const char* name, const char* overload) {
  return op_info(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}

namespace {

bool encode_value(const OpInfo& info, size_t argument, const c10::IValue& value, Call& call, RandomState random);

bool encode_list(const OpInfo& info, size_t argument, const c10::IValue& value, Call& call, RandomState random) {
  if (value.isIntList()) {
    call.integers(value.toIntVector());
    return true;
  }
  if (value.isDoubleList() && !info.is_number[argument]) {
    const auto numbers = value.toDoubleVector();
    if (info.numbers_decide_shape) {
      call.list(numbers.size());
      for (const double number : numbers) call.shape_real(number);
    } else {
      call.reals(numbers);
    }
    return true;
  }
  const auto elements = value.toListRef();
  call.list(elements.size());
  for (const c10::IValue& element : elements) {
    if (!encode_value(info, argument, element, call, random)) return false;
  }
  return true;
}

// Returns false for a value that cannot be recorded.
bool encode_value(const OpInfo& info, size_t argument, const c10::IValue& value, Call& call, RandomState random) {
  if (static_cast<int>(argument) == info.generator_argument) {
    call.generator(random);
  } else if (value.isTensor()) {
    call.tensor(value.toTensor(), info.access[argument]);
  } else if (value.isNone()) {
    call.none();
  } else if (info.is_number[argument] && value.isScalar()) {
    call.scalar(value.toScalar(), info.numbers_decide_shape);
  } else if (value.isInt()) {
    call.integer(value.toInt());
  } else if (value.isSymInt()) {
    call.integer(value.toSymInt().guard_int(__FILE__, __LINE__));
  } else if (value.isBool()) {
    call.boolean(value.toBool());
  } else if (value.isDouble()) {
    if (info.numbers_decide_shape) {
      call.shape_real(value.toDouble());
    } else {
      call.real(value.toDouble());
    }
  } else if (value.isString()) {
    call.string(value.toStringRef());
  } else if (value.isDevice()) {
    call.device();
  } else if (value.isList()) {
    return encode_list(info, argument, value, call, random);
  } else {
    return false;
  }
  return true;
}

bool encode(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments, Call& call, RandomState random) {
  call.clear();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!encode_value(info, i, arguments[i], call, random)) return false;
  }
  if (info.seeded) call.generator(random);
  return call.operands.size() < std::numeric_limits<uint16_t>::max() / 2;
}

// Applies `replace` to every tensor in the values, inside lists too.
template <typename Replace>
void map_tensors(c10::IValue& value, const Replace& replace) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) value = replace(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(tensor.defined() ? replace(tensor) : tensor);
    }
    value = std::move(list);
  } else if (value.isList() &&
             value.type()->castRaw<c10::ListType>()->getElementType()->isSubtypeOf(*c10::OptionalType::ofTensor())) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isNone() || !element.toTensor().defined()) {
        list.push_back(std::nullopt);
      } else {
        list.push_back(replace(element.toTensor()));
      }
    }
    value = std::move(list);
  }
}

// Collects the hetero tensors of a call with their access.
template <typename Visit>
void visit_tensors(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments, const Visit& visit) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue copy = arguments[i];
    map_tensors(copy, [&](const at::Tensor& tensor) {
      visit(i, tensor);
      return tensor;
    });
  }
  (void)info;
}

[[noreturn]] void raise_mixed_devices(const OpInfo& info, const at::Tensor& foreign) {
  (void)info;
  TORCH_CHECK_NOT_IMPLEMENTED(foreign.layout() == c10::kStrided, "hetero: tensors of layout ", foreign.layout(),
                              " are not held by the device; use .cpu() or .to_dense() first");
  TORCH_CHECK(false,
              "Expected all tensors to be on the same device, but found at least two devices, "
              "hetero:0 and ",
              foreign.device(), "!");
}

c10::ArrayRef<c10::IValue> arguments_of(const OpInfo& info, const torch::jit::Stack& stack) {
  return torch::jit::last(stack, info.access.size());
}

// Draws what a random call needs, before anything can fail.
RandomState draw(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  if (info.generator_argument >= 0) {
    const c10::IValue& value = arguments[info.generator_argument];
    return draw_random_state(value.isNone() ? std::nullopt : std::optional<at::Generator>(value.toGenerator()));
  }
  return info.seeded ? draw_random_state(std::nullopt) : RandomState{};
}

// Moves CPU index tensors to the device, as indexing on CUDA does. Returns true when there were any.
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

enum class Resized { kNone, kEmpty, kRefused };

// An empty `out` whose shape differs from what the operator makes is resized here, before the call is recorded. One with elements is
// refused: the CPU kernel resizes it, with the warning that it has for that.
Resized resize_outputs(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments, const MetaRun& run) {
  struct Change {
    at::Tensor tensor, meta;
  };
  std::vector<Change> changes;
  size_t index = 0;
  visit_tensors(info, arguments, [&](size_t, const at::Tensor& tensor) {
    if (!is_hetero(tensor)) return;
    const at::Tensor& meta = run.inputs[index++];
    if (meta.sizes() != tensor.sizes() || meta.strides() != tensor.strides()) changes.push_back({tensor, meta});
  });
  for (const Change& change : changes) {
    if (change.tensor.numel() != 0) return Resized::kRefused;
  }
  for (const auto& [tensor, meta] : changes) {
    const size_t bytes = storage_bytes_for(meta.sizes(), meta.strides(), meta.storage_offset(), tensor.element_size());
    HeteroStorage* storage = storage_of(tensor);
    if (bytes > storage->nbytes()) resize_storage(storage, bytes);
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes(), meta.strides(), meta.storage_offset());
  }
  return changes.empty() ? Resized::kNone : Resized::kEmpty;
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

// A call of a view operator: the Meta kernel says how the result looks at the storage. No node is recorded.
bool make_views(const OpInfo& info, torch::jit::Stack* stack) {
  MetaRun run;
  if (!run_meta(info, arguments_of(info, *stack), run)) return false;
  std::vector<at::Tensor> inputs;
  visit_tensors(info, arguments_of(info, *stack), [&](size_t, const at::Tensor& tensor) {
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
  const graph::WindowTable& windows = recorder().windows();
  for (const MetaOutput& output : entry.outputs) {
    if (output.window == graph::kNoWindow) {
      all.emplace_back();
      continue;
    }
    defined.push_back(make_tensor(windows[output.window], output.window, output.storage_bytes));
    all.push_back(defined.back());
  }
}

namespace {

// Calls whose Meta prediction was once compared with a real kernel's outputs, by everything but the sizes.
std::unordered_set<uint64_t>& trusted_signatures() {
  static auto* signatures = new std::unordered_set<uint64_t>;
  return *signatures;
}

// What a kernel may choose the layout of its outputs by: the order of the dimensions in memory, and whether they have gaps.
void append_layout(const graph::Window& window, std::string& text) {
  std::array<int, 64> order{};
  const int rank = std::min<int>(window.rank, static_cast<int>(order.size()));
  for (int d = 0; d < rank; ++d) order[d] = d;
  std::stable_sort(order.begin(), order.begin() + rank,
                   [&](int a, int b) { return window.strides()[a] > window.strides()[b]; });
  int64_t dense = 1;
  bool gaps = false;
  for (int i = rank; i-- > 0;) {
    const int d = order[i];
    if (window.sizes()[d] != 1) gaps |= window.strides()[d] != dense;
    dense *= window.sizes()[d];
  }
  for (int i = 0; i < rank; ++i) {
    const int d = order[i];
    text.push_back(static_cast<char>(d));
    text.push_back(static_cast<char>((window.sizes()[d] == 1) | (window.strides()[d] == 0) << 1));
  }
  for (const int fact :
       {static_cast<int>(window.dtype), rank, static_cast<int>(window.numel == 0), static_cast<int>(gaps)}) {
    text.push_back(static_cast<char>(fact));
  }
}

// REQUIRES: the recorder lock.
uint64_t signature_of(const OpInfo& info, const Call& call) {
  std::string text(reinterpret_cast<const char*>(call.structure.data()), call.structure.size());
  for (const CallOperand& operand : call.operands) {
    append_layout(recorder().windows()[operand.window], text);
    text.push_back(static_cast<char>(operand.bits));
  }
  return std::hash<std::string>()(text) * 31 + info.id;
}

// How an unseen call is met. PyTorch's Meta kernels check less than its CPU kernels do (dtypes and overlaps above all), and some
// predict other strides, so the first call of its kind is tried for real: a small one on zeros of the same geometry, a large one by
// running it.
enum class FirstSight { kTrustMeta, kProbe, kRun };

// Kernels whose layouts depend on more than a signature tells: convolutions choose by size, LAPACK and FFT calls by their branches.
bool never_trusted(const OpInfo& info) {
  return graph::op_table()[info.id].op_class == graph::OpClass::kConvolution || has_prefix(info.name, "aten::linalg") ||
         has_prefix(info.name, "aten::_linalg") || has_prefix(info.name, "aten::_fft");
}

// LAPACK takes indices (pivots) unchecked, and counts them from one: zeros would make it write elsewhere.
bool probe_is_unsafe(const OpInfo& info, const Call& call) {
  if (!has_prefix(info.name, "aten::linalg") && !has_prefix(info.name, "aten::lu_")) return false;
  for (const CallOperand& operand : call.operands) {
    if (at::isIntegralType(static_cast<at::ScalarType>(recorder().windows()[operand.window].dtype), true)) return true;
  }
  return false;
}

// Whether the call writes a storage that another of its operands uses too.
bool writes_shared_storage(const Call& call) {
  for (const CallOperand& written : call.operands) {
    if (written.access == graph::Access::kRead) continue;
    for (const CallOperand& other : call.operands) {
      if (&other != &written && other.storage == written.storage) return true;
    }
  }
  return false;
}

FirstSight first_sight(const OpInfo& info, const Call& call, uint64_t signature) {
  constexpr size_t kSmall = size_t{1} << 20;
  const graph::OpTraits& traits = graph::op_table()[info.id];
  // A custom operator may have side effects that a probe would repeat; random operators have kernels that nobody else has.
  if (!has_prefix(info.name, "aten::") || traits.op_class == graph::OpClass::kRandom) return FirstSight::kTrustMeta;
  const bool overlaps = writes_shared_storage(call);
  if (!overlaps && trusted_signatures().count(signature) != 0) return FirstSight::kTrustMeta;
  if (probe_is_unsafe(info, call)) return FirstSight::kRun;
  size_t bytes = 0;
  for (const CallOperand& operand : call.operands) bytes += operand.storage->nbytes();
  if (bytes <= kSmall) return FirstSight::kProbe;
  // With an accelerator, running here would drag the operands home.
  return overlaps || backend::accelerator() == nullptr ? FirstSight::kRun : FirstSight::kTrustMeta;
}

bool same_outputs(const MetaEntry& a, const MetaEntry& b) {
  if (a.outputs.size() != b.outputs.size() || a.list_lengths != b.list_lengths) return false;
  for (size_t i = 0; i < a.outputs.size(); ++i) {
    if (a.outputs[i].window != b.outputs[i].window) return false;
  }
  return true;
}

// Keeps what is now known of the call. REQUIRES: the recorder lock is not held.
void remember(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments, RandomState random, MetaEntry entry) {
  Locked lock(recorder().mutex());
  Call& call = scratch_call();
  if (!encode(info, arguments, call, random) || call.foreign.defined()) return;
  recorder().meta_cache().make_key(info.id, call, recorder().default_dtype());
  if (recorder().meta_cache().find() == nullptr) recorder().meta_cache().insert(std::move(entry));
}

// What real outputs say, next to what the Meta kernel said: equal ones make the signature trusted.
MetaEntry compare_entries(const OpInfo& info, const MetaRun& meta, const MetaRun& real, uint64_t signature) {
  Locked lock(recorder().mutex());
  MetaEntry entry = entry_of(info, real);
  if (!never_trusted(info) && same_outputs(entry, entry_of(info, meta))) trusted_signatures().insert(signature);
  return entry;
}

// Real results that are plain new values, at the start of memory of their own.
bool plain_results(const torch::jit::Stack& results, size_t count) {
  std::unordered_set<const void*> storages;
  bool plain = true;
  for (const c10::IValue& result : torch::jit::last(results, count)) {
    c10::IValue copy = result;
    map_tensors(copy, [&](const at::Tensor& tensor) {
      plain = plain && is_hetero(tensor) && tensor.storage_offset() == 0 && !tensor.is_conj() && !tensor.is_neg() &&
              storages.insert(tensor.storage().unsafeGetStorageImpl()).second;
      return tensor;
    });
  }
  return plain;
}

// Runs the call at once, with the random numbers that were drawn for it.
void run_drawn(const OpInfo& info, torch::jit::Stack* stack, RandomState random, SyncReason reason);

// Runs the call for real; its outputs teach the cache.
void run_and_learn(const OpInfo& info, torch::jit::Stack* stack, RandomState random, const MetaRun& meta,
                   uint64_t signature) {
  const torch::jit::Stack arguments(stack->end() - static_cast<int64_t>(info.access.size()), stack->end());
  run_drawn(info, stack, random, SyncReason::kFirstSight);
  if (!plain_results(*stack, info.returns.size())) return;
  MetaRun real;
  const auto results = torch::jit::last(*stack, info.returns.size());
  real.results.assign(results.begin(), results.end());
  remember(info, arguments, random, compare_entries(info, meta, real, signature));
}

// Data-dependent calls of operators that otherwise are not: indexing by a mask.
SyncReason failure_reason(c10::ArrayRef<c10::IValue> arguments) {
  bool mask = false;
  for (const c10::IValue& argument : arguments) {
    if (!argument.isList()) continue;
    c10::IValue copy = argument;
    map_tensors(copy, [&](const at::Tensor& tensor) {
      mask = mask || tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte;
      return tensor;
    });
  }
  return mask ? SyncReason::kDataDependentShape : SyncReason::kNotRecordable;
}

// Meets a call that the cache does not know. Returns true when it was run; false when it is known now.
bool meet(const OpInfo& info, torch::jit::Stack* stack, RandomState random, FirstSight how, uint64_t signature) {
  MetaRun meta;
  const bool known = run_meta(info, arguments_of(info, *stack), meta);
  const Resized resized = known ? resize_outputs(info, arguments_of(info, *stack), meta) : Resized::kNone;
  if (resized == Resized::kEmpty) return false;
  if (resized == Resized::kRefused) {
    run_drawn(info, stack, random, SyncReason::kStorageChange);
    return true;
  }
  if (!known) {
    if (!meta.failed) remember(info, arguments_of(info, *stack), random, MetaEntry{true, meta.reason, {}, {}});
    // Where the Meta kernel raised, the call itself may be wrong: the CPU kernel knows.
    run_drawn(info, stack, random, meta.failed ? failure_reason(arguments_of(info, *stack)) : meta.reason);
    return true;
  }
  if (how == FirstSight::kTrustMeta) {
    MetaEntry entry;
    {
      Locked lock(recorder().mutex());
      entry = entry_of(info, meta);
    }
    remember(info, arguments_of(info, *stack), random, std::move(entry));
    return false;
  }
  if (how == FirstSight::kRun) {
    run_and_learn(info, stack, random, meta, signature);
    return true;
  }
  MetaRun probe;
  if (run_probe(info, arguments_of(info, *stack), probe)) {
    remember(info, arguments_of(info, *stack), random, compare_entries(info, meta, probe, signature));
    return false;
  }
  // It fails on zeros: with the real data it either raises now, or cannot be predicted.
  const torch::jit::Stack arguments(stack->end() - static_cast<int64_t>(info.access.size()), stack->end());
  run_drawn(info, stack, random, SyncReason::kNotRecordable);
  remember(info, arguments, random, MetaEntry{true, SyncReason::kNotRecordable, {}, {}});
  return true;
}

}  // namespace

void record_boxed(const OpInfo& info, torch::jit::Stack* stack) {
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
        if (info.takes_cpu_tensors) return run_drawn(info, stack, random, info.straight_reason);
        if (info.takes_cpu_indices && move_indices(info, stack)) continue;
        raise_mixed_devices(info, call.foreign);
      }
      if (!recorder().set_default_dtype(default_dtype)) {
        lock.unlock();
        flush_all(SyncReason::kSettings);
        continue;
      }
      recorder().meta_cache().make_key(info.id, call, default_dtype);
      if (const MetaEntry* entry = recorder().meta_cache().find()) {
        count_locked(counters().meta_hits);
        if (entry->straight) {
          const SyncReason reason = entry->reason;
          lock.unlock();
          return run_drawn(info, stack, random, reason);
        }
        make_outputs(*entry, outputs, defined);
        const bool pressure = recorder().append(info.id, call, defined);
        // An operator with a row counts as typed also when an unusual call took this way.
        count_locked(info.numbers_decide_shape ? counters().boxed_nodes : counters().typed_nodes);
        push_results(info, stack, *entry, outputs);
        lock.unlock();
        if (pressure) after_record();
        return;
      }
      signature = signature_of(info, call);
      how = first_sight(info, call, signature);
    }
    count(counters().meta_misses);
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

namespace {

// Makes hetero tensors of a straight call's results.
class ResultWrapper {
 public:
  // `cpu` stands for the argument `hetero`.
  void add_input(const at::Tensor& cpu, const at::Tensor& hetero) { inputs_.push_back({cpu, hetero}); }

  at::Tensor wrap(const at::Tensor& result) {
    if (!result.defined()) return result;
    TORCH_CHECK_NOT_IMPLEMENTED(result.layout() == c10::kStrided && !result.is_quantized() && !result.is_nested(),
                                "hetero: the result is a ",
                                result.is_quantized() ? "quantized" : c10::str(result.layout()),
                                " tensor, which the hetero device does not hold; use .cpu() first");
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
    auto made = c10::make_intrusive<HeteroStorage>(storage->nbytes());
    HeteroStorage* hetero = made.get();
    c10::Storage owner(std::move(made));
    c10::Storage bytes = result.storage();
    if (storage->data_ptr().get_context() == nullptr && storage->nbytes() != 0) {
      // Memory that the storage does not own: a constant, or somebody else's buffer.
      bytes = result.clone(at::MemoryFormat::Preserve).storage();
      return wrap(result.clone(at::MemoryFormat::Preserve));
    }
    install_bytes(hetero, adopt_cpu_storage(bytes));
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

// After the kernel wrote through `cpu`, makes `hetero` look the same: an `out` may have been resized.
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

}  // namespace

void run_straight(const OpInfo& info, torch::jit::Stack* stack, SyncReason reason) {
  run_drawn(info, stack, draw(info, arguments_of(info, *stack)), reason);
}

namespace {

void run_drawn(const OpInfo& info, torch::jit::Stack* stack, RandomState random, SyncReason reason) {
  count(counters().straight);
  if (reason != SyncReason::kFirstSight) counters().count_fallback(info.name);
  const auto arguments = arguments_of(info, *stack);

  // Settle everything at once, then look at each tensor.
  std::vector<HeteroStorage*> storages;
  visit_tensors(info, arguments, [&](size_t, const at::Tensor& tensor) {
    if (is_hetero(tensor)) {
      storages.push_back(storage_of(tensor));
    } else {
      const bool number = tensor.device().is_cpu() && tensor.dim() == 0;
      if (!number && !info.takes_cpu_tensors) raise_mixed_devices(info, tensor);
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
    map_tensors(value, [&](const at::Tensor& tensor) {
      if (!is_hetero(tensor)) return tensor;
      const bool writes = info.access[i] != graph::Access::kRead;
      at::Tensor cpu = tensor_over(bytes.of(tensor.storage(), writes), tensor);
      if (writes) written.push_back({cpu, tensor, cpu.storage().data_ptr().get()});
      wrapper.add_input(cpu, tensor);
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
    info.handle.callBoxed(&cpu_stack);
  }
  for (const Written& entry : written) write_back(entry.cpu, entry.hetero, entry.bytes);
  for (c10::IValue& result : cpu_stack) {
    map_tensors(result, [&](const at::Tensor& tensor) { return wrapper.wrap(tensor); });
  }
  torch::jit::drop(*stack, info.access.size());
  for (c10::IValue& result : cpu_stack) stack->push_back(std::move(result));
}

// Reads one argument of type `type` back.
c10::IValue decode_value(const c10::TypePtr& declared, Decoder& decoder, KernelTensors& tensors) {
  c10::TypePtr type = declared;
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  const Tag tag = decoder.next();
  switch (tag) {
    case Tag::kNone:
      return {};
    case Tag::kTensor:
      return tensors.operand(decoder.operand());
    case Tag::kUndefined:
      return at::Tensor();
    case Tag::kConstant:
      return decoder.constant();
    case Tag::kInteger:
      return decoder.get<int64_t>();
    case Tag::kBoolean:
      return decoder.get<uint8_t>() != 0;
    case Tag::kReal:
    case Tag::kShapeReal:
      return decoder.real(tag);
    case Tag::kScalar:
    case Tag::kShapeScalar:
      return decoder.scalar(tag);
    case Tag::kDevice:
      return c10::Device(c10::kCPU);
    case Tag::kGenerator:
      return derived_generator(decoder.random_state());
    case Tag::kString: {
      const auto length = decoder.get<uint32_t>();
      return std::string(reinterpret_cast<const char*>(decoder.skip(length)), length);
    }
    case Tag::kIntegers: {
      const auto length = decoder.get<uint32_t>();
      c10::List<int64_t> list;
      for (uint32_t i = 0; i < length; ++i) list.push_back(decoder.get<int64_t>());
      return list;
    }
    case Tag::kReals: {
      const auto length = decoder.get<uint32_t>();
      c10::List<double> list;
      for (uint32_t i = 0; i < length; ++i) list.push_back(decoder.get_value<double>());
      return list;
    }
    case Tag::kList: {
      const auto length = decoder.get<uint32_t>();
      const c10::TypePtr element = type->expect<c10::ListType>()->getElementType();
      auto list = c10::impl::GenericList(element);
      for (uint32_t i = 0; i < length; ++i) list.push_back(decode_value(element, decoder, tensors));
      return list;
    }
  }
  TORCH_INTERNAL_ASSERT(false, "hetero: damaged attributes");
}

}  // namespace

void boxed_kernel(const graph::Invocation& invocation) {
  const auto& info = *static_cast<const OpInfo*>(invocation.traits->self);
  Isolated isolated;
  RECORD_FUNCTION(info.name.c_str(), std::vector<c10::IValue>());
  KernelTensors tensors(invocation);
  Decoder decoder(invocation.attributes, invocation.node->attribute_bytes);
  // The operator may have been removed since (torch.library); aten's never are.
  const c10::OperatorHandle handle =
      has_prefix(info.name, "aten::")
          ? info.handle
          : c10::Dispatcher::singleton().findSchemaOrThrow(
                info.name.substr(0, info.name.find('.')).c_str(),
                info.name.find('.') == std::string::npos ? "" : info.name.substr(info.name.find('.') + 1).c_str());
  torch::jit::Stack stack;
  for (const c10::Argument& argument : handle.schema().arguments()) {
    stack.push_back(decode_value(argument.type(), decoder, tensors));
  }
  SeededDefaultGenerator seeded(info.seeded, info.seeded ? (decoder.next(), decoder.random_state()) : RandomState{});
  with_line(invocation.node->sequence, [&] { handle.callBoxed(&stack); });

  int output = tensors.first_output();
  const auto take = [&](at::Tensor result) {
    // Outputs that the Meta kernel left undefined have no operand.
    if (!result.defined() || output >= invocation.node->operand_count) return;
    tensors.deliver(output++, std::move(result));
  };
  for (size_t r = 0; r < info.returns.size(); ++r) {
    if (info.returns[r] == OpInfo::Return::kTensor) {
      take(std::exchange(stack[r], c10::IValue()).toTensor());
    } else if (info.returns[r] == OpInfo::Return::kTensorList) {
      c10::IValue list = std::exchange(stack[r], c10::IValue());
      auto items = list.toTensorVector();
      list = c10::IValue();
      for (at::Tensor& item : items) take(std::exchange(item, at::Tensor()));
    }
  }
  stack.clear();
}

}  // namespace hetero::ops
