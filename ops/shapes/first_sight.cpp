#include "ops/shapes/first_sight.h"

#include <algorithm>
#include <array>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "backend/registry/registry.h"
#include "ops/kernels/boxed.h"
#include "ops/kernels/kernel.h"
#include "ops/record/recorder.h"
#include "ops/run/straight.h"
#include "ops/run/sync.h"
#include "ops/shapes/meta.h"
#include "ops/shapes/shape_rules.h"

namespace hetero::ops {
namespace {

enum class Resized { kNone, kEmpty, kRefused };

// An empty `out` whose shape differs from what the operator makes is resized, before the call is
// recorded. One with elements is refused: the CPU kernel resizes it, with the warning that it has
// for that.
Resized find_resized(c10::ArrayRef<c10::IValue> arguments, const MetaRun& run, MetaEntry& entry) {
  bool refused = false;
  uint32_t index = 0;
  visit_tensors(arguments, [&](size_t, const at::Tensor& tensor) {
    if (!is_hetero(tensor)) return;
    const uint32_t place = index++;
    const at::Tensor& meta = run.inputs[place];
    if (meta.sizes() == tensor.sizes() && meta.strides() == tensor.strides()) return;
    refused |= tensor.numel() != 0;
    const graph::WindowId window = window_table().intern(
        static_cast<graph::DType>(tensor.scalar_type()), {meta.sizes().data(), meta.sizes().size()},
        {meta.strides().data(), meta.strides().size()}, meta.storage_offset());
    const size_t bytes = storage_bytes_for(meta.sizes(), meta.strides(), meta.storage_offset(), tensor.element_size());
    entry.resized.push_back({place, {window, bytes}});
  });
  if (refused) return Resized::kRefused;
  return entry.resized.empty() ? Resized::kNone : Resized::kEmpty;
}

// Calls whose Meta prediction was once compared with a real kernel's outputs, by everything but the
// sizes.
std::unordered_set<uint64_t>& trusted_signatures() {
  static auto* signatures = new std::unordered_set<uint64_t>;
  return *signatures;
}

// Calls whose shape rule once agreed with a real kernel, and the dtypes of their outputs.
std::unordered_map<uint64_t, std::vector<at::ScalarType>>& ruled_signatures() {
  static auto* signatures = new std::unordered_map<uint64_t, std::vector<at::ScalarType>>;
  return *signatures;
}

// What a kernel may choose the layout of its outputs by: the order of the dimensions in memory, and
// whether they have gaps.
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

}  // namespace

std::vector<Resize> resizes_of(const MetaEntry& entry) {
  std::vector<Resize> resizes;
  for (const MetaEntry::Resized& resized : entry.resized) {
    resizes.push_back({resized.tensor, window_table()[resized.becomes.window], resized.becomes.storage_bytes});
  }
  return resizes;
}

void resize_arguments(c10::ArrayRef<c10::IValue> arguments, std::span<const Resize> resizes) {
  uint32_t index = 0;
  visit_tensors(arguments, [&](size_t, const at::Tensor& tensor) {
    if (!is_hetero(tensor)) return;
    const uint32_t place = index++;
    for (const Resize& resize : resizes) {
      if (resize.tensor != place) continue;
      HeteroStorage* const storage = storage_of(tensor);
      if (resize.bytes > storage->nbytes()) resize_storage(storage, resize.bytes);
      const auto rank = static_cast<size_t>(resize.window.rank);
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides({resize.window.sizes().data(), rank},
                                                          {resize.window.strides().data(), rank}, resize.window.offset);
    }
  });
}

uint64_t signature_of(const OpInfo& info, const Call& call) {
  std::string text(reinterpret_cast<const char*>(call.structure.data()), call.structure.size());
  text.push_back(static_cast<char>(recorder().default_dtype()));
  for (const CallOperand& operand : call.operands) {
    append_layout(window_table()[operand.window], text);
    text.push_back(static_cast<char>(operand.bits));
  }
  return std::hash<std::string>()(text) * 31 + info.id;
}

namespace {

// Kernels whose layouts their Meta kernel need not know for other sizes, though it does for one:
// convolutions choose by size, LAPACK and FFT calls by their branches.
bool never_trusted(const OpInfo& info) { return info.row.layout_by_size; }

// LAPACK takes indices (pivots) unchecked, and counts them from one: zeros would make it write
// elsewhere.
bool probe_is_unsafe(const OpInfo& info, const Call& call) {
  if (!info.row.takes_pivots) return false;
  for (const CallOperand& operand : call.operands) {
    if (at::isIntegralType(static_cast<at::ScalarType>(window_table()[operand.window].dtype), true)) return true;
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

}  // namespace

FirstSight first_sight(const OpInfo& info, const Call& call, uint64_t signature) {
  constexpr size_t kSmall = size_t{1} << 20;
  const graph::OpTraits& traits = graph::op_table()[info.id];
  // A custom operator may have side effects that a probe would repeat; random operators have
  // kernels that nobody else has.
  if (!is_aten(info.name) || traits.op_class == graph::OpClass::kRandom) return FirstSight::kTrustMeta;
  const bool overlaps = writes_shared_storage(call);
  if (!overlaps && ruled_signatures().count(signature) != 0) return FirstSight::kTrustRule;
  if (!overlaps && trusted_signatures().count(signature) != 0) return FirstSight::kTrustMeta;
  if (probe_is_unsafe(info, call)) return FirstSight::kRun;
  size_t bytes = 0;
  for (const CallOperand& operand : call.operands) bytes += operand.storage->nbytes();
  // A capture has no bytes to run it on.
  if (bytes <= kSmall || captures_here()) return FirstSight::kProbe;
  // With an accelerator, running here would drag the operands home.
  return overlaps || backend::accelerator() == nullptr ? FirstSight::kRun : FirstSight::kTrustMeta;
}

namespace {

// An entry that was made under the lock before: another thread may since have forgotten all
// windows.
struct Learned {
  MetaEntry entry;
  uint64_t table = window_table().serial();

  // REQUIRES: the recorder lock.
  bool is_current() const {
    return (entry.outputs.empty() && entry.resized.empty()) || table == window_table().serial();
  }
};

Learned never_recorded(SyncReason reason) { return {MetaEntry{true, reason, {}, {}, {}}}; }

bool same_outputs(const MetaEntry& a, const MetaEntry& b) {
  if (a.outputs.size() != b.outputs.size() || a.list_lengths != b.list_lengths) return false;
  for (size_t i = 0; i < a.outputs.size(); ++i) {
    if (a.outputs[i].window != b.outputs[i].window) return false;
  }
  return true;
}

// Keeps what is now known of the call. REQUIRES: the recorder lock is not held.
void remember(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments, RandomState random, Learned learned) {
  Locked lock(recorder().mutex());
  if (!learned.is_current()) return;
  Call& call = scratch_call();
  if (!encode(info, arguments, call, random) || call.foreign.defined()) return;
  recorder().meta_cache().make_key(info.id, call, recorder().default_dtype());
  if (recorder().meta_cache().find() == nullptr) recorder().meta_cache().insert(std::move(learned.entry));
}

// What real outputs say, next to what the Meta kernel said: equal ones make the signature trusted.
Learned compare_entries(const OpInfo& info, const MetaRun* meta, const MetaRun& real, uint64_t signature) {
  Locked lock(recorder().mutex());
  Learned learned{entry_of(info, real)};
  if (meta != nullptr && !never_trusted(info) && same_outputs(learned.entry, entry_of(info, *meta))) {
    trusted_signatures().insert(signature);
  }
  return learned;
}

// The outputs that the rule predicts. REQUIRES: the recorder lock.
bool entry_by_rule(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments, const std::vector<at::ScalarType>& dtypes,
                   MetaEntry& entry) {
  std::vector<RuledOutput> outputs;
  if (!apply_rule(info.shape_rule, arguments, outputs)) return false;
  if (info.returns.size() == 1 && info.returns[0] == OpInfo::Return::kArgument) {
    // In place: the written tensor must have the shape already.
    const c10::IValue& written = arguments[info.returned_argument[0]];
    return written.isTensor() && outputs.size() == 1 &&
           written.toTensor().sizes() == c10::IntArrayRef(outputs[0].sizes);
  }
  if (outputs.size() != dtypes.size()) return false;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const RuledOutput& output = outputs[i];
    if (output.made != (dtypes[i] != at::ScalarType::Undefined)) return false;
    if (!output.made) {
      entry.outputs.push_back({});
      continue;
    }
    const graph::WindowId window =
        window_table().intern(static_cast<graph::DType>(dtypes[i]), {output.sizes.data(), output.sizes.size()},
                              {output.strides.data(), output.strides.size()}, 0);
    entry.outputs.push_back({window, storage_bytes_for(output.sizes, output.strides, 0, c10::elementSize(dtypes[i]))});
  }
  return true;
}

// Believes the rule of this kind of call from now on, if it says what a kernel did. Returns whether
// it does.
bool learn_rule(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments, const Learned& real, uint64_t signature) {
  if (info.shape_rule == ShapeRule::kNone) return false;
  Locked lock(recorder().mutex());
  if (!real.is_current()) return false;
  std::vector<at::ScalarType> dtypes;
  for (const MetaOutput& output : real.entry.outputs) {
    const bool made = output.window != graph::kNoWindow;
    dtypes.push_back(made ? static_cast<at::ScalarType>(window_table()[output.window].dtype)
                          : at::ScalarType::Undefined);
  }
  MetaEntry ruled;
  if (!entry_by_rule(info, arguments, dtypes, ruled) || !same_outputs(ruled, real.entry)) return false;
  ruled_signatures().emplace(signature, std::move(dtypes));
  return true;
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

// Runs the call for real; its outputs teach the cache.
void run_and_learn(const OpInfo& info, torch::jit::Stack* stack, RandomState random, const MetaRun* meta,
                   uint64_t signature) {
  const torch::jit::Stack arguments(stack->end() - static_cast<int64_t>(info.access.size()), stack->end());
  run_drawn(info, stack, random, SyncReason::kFirstSight);
  if (!plain_results(*stack, info.returns.size())) return;
  MetaRun real;
  const auto results = torch::jit::last(*stack, info.returns.size());
  real.results.assign(results.begin(), results.end());
  Learned learned = compare_entries(info, meta, real, signature);
  learn_rule(info, arguments, learned, signature);
  remember(info, arguments, random, std::move(learned));
}

// Indexing by a mask: a data-dependent call of an operator that otherwise is not.
bool takes_by_mask(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  if (!info.row.takes_by_mask) return false;
  bool mask = false;
  // The first argument is what is indexed.
  visit_tensors(arguments.slice(1), [&](size_t, const at::Tensor& tensor) {
    mask |= tensor.defined() && (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte);
  });
  return mask;
}

// Calls of a kind that were met by a probe alone, of which the Meta kernel is in Python.
std::unordered_map<uint64_t, int>& probed_signatures() {
  static auto* signatures = new std::unordered_map<uint64_t, int>;
  return *signatures;
}

// Whether the CPU's kernel is to say what the call makes, without the Meta kernel. One in Python
// takes longer, and the first one imports modules for a second. It is worth that for a kind of call
// that comes with ever other sizes: once trusted, it needs no probes.
bool prefers_probe(const OpInfo& info, FirstSight how, uint64_t signature) {
  // A large call is not probed but run, each time that it is met.
  const int most = how == FirstSight::kProbe ? 16 : 1;
  if ((how != FirstSight::kProbe && how != FirstSight::kRun) || !is_described_in_python(info)) return false;
  // The Meta kernel says what becomes of an `out` of another shape.
  for (size_t i = 1; i < info.access.size(); ++i) {
    if (info.access[i] != graph::Access::kRead) return false;
  }
  Locked lock(recorder().mutex());
  return ++probed_signatures()[signature] <= most;
}

}  // namespace

namespace {

enum class Met : uint8_t { kNo, kKnown, kRan };

// Without the Meta kernel, which is slow: by the rule, checked against a kernel where this kind of
// call is new.
Met meet_by_rule(const OpInfo& info, torch::jit::Stack* stack, RandomState random, FirstSight how, uint64_t signature) {
  const auto arguments = arguments_of(info, *stack);
  if (how == FirstSight::kTrustRule) {
    Learned learned;
    {
      Locked lock(recorder().mutex());
      learned.table = window_table().serial();
      if (!entry_by_rule(info, arguments, ruled_signatures().at(signature), learned.entry)) return Met::kNo;
    }
    remember(info, arguments, random, std::move(learned));
    return Met::kKnown;
  }
  std::vector<RuledOutput> outputs;
  if (info.shape_rule == ShapeRule::kNone || !apply_rule(info.shape_rule, arguments, outputs)) return Met::kNo;
  if (how == FirstSight::kRun) {
    run_and_learn(info, stack, random, nullptr, signature);
    return Met::kRan;
  }
  MetaRun probe;
  if (how != FirstSight::kProbe || !run_probe(info, arguments, probe)) return Met::kNo;
  Learned learned = compare_entries(info, nullptr, probe, signature);
  if (!learn_rule(info, arguments, learned, signature)) return Met::kNo;
  remember(info, arguments, random, std::move(learned));
  return Met::kKnown;
}

}  // namespace

namespace {

// By a probe, compared with what the Meta kernel said, if it was asked.
bool meet_by_probe(const OpInfo& info, torch::jit::Stack* stack, RandomState random, const MetaRun* meta,
                   uint64_t signature) {
  MetaRun probe;
  if (run_probe(info, arguments_of(info, *stack), probe)) {
    remember(info, arguments_of(info, *stack), random, compare_entries(info, meta, probe, signature));
    return false;
  }
  // It fails on zeros: with the real data it either raises, or cannot be predicted.
  remember(info, arguments_of(info, *stack), random, never_recorded(SyncReason::kNotRecordable));
  run_drawn(info, stack, random, SyncReason::kNotRecordable);
  return true;
}

bool meet_by_meta(const OpInfo& info, torch::jit::Stack* stack, RandomState random, FirstSight how,
                  uint64_t signature) {
  MetaRun meta;
  if (!run_meta(info, arguments_of(info, *stack), meta)) {
    // The Meta kernels in Python are missing in a C++ program. A row says that the kernel may be
    // tried.
    if (meta.undescribed && info.typed && how == FirstSight::kProbe) {
      return meet_by_probe(info, stack, random, nullptr, signature);
    }
    // Where the Meta kernel raised, the call itself may be wrong: the CPU kernel knows, each time.
    const SyncReason reason = meta.failed ? SyncReason::kNotRecordable : meta.reason;
    remember(info, arguments_of(info, *stack), random, never_recorded(reason));
    run_drawn(info, stack, random, reason);
    return true;
  }
  Learned resizing;
  Resized resized;
  std::vector<Resize> resizes;
  {
    Locked lock(recorder().mutex());
    resizing.table = window_table().serial();
    resized = find_resized(arguments_of(info, *stack), meta, resizing.entry);
    resizes = resizes_of(resizing.entry);
  }
  if (resized == Resized::kEmpty) {
    remember(info, arguments_of(info, *stack), random, std::move(resizing));
    resize_arguments(arguments_of(info, *stack), resizes);
    return false;
  }
  if (resized == Resized::kRefused) {
    run_drawn(info, stack, random, SyncReason::kStorageChange);
    return true;
  }
  if (how == FirstSight::kTrustMeta) {
    Learned learned;
    {
      Locked lock(recorder().mutex());
      learned = {entry_of(info, meta)};
    }
    remember(info, arguments_of(info, *stack), random, std::move(learned));
    return false;
  }
  if (how == FirstSight::kRun) {
    run_and_learn(info, stack, random, &meta, signature);
    return true;
  }
  return meet_by_probe(info, stack, random, &meta, signature);
}

}  // namespace

bool meet(const OpInfo& info, torch::jit::Stack* stack, RandomState random, FirstSight how, uint64_t signature) {
  switch (meet_by_rule(info, stack, random, how, signature)) {
    case Met::kKnown:
      return false;
    case Met::kRan:
      return true;
    case Met::kNo:
      if (how == FirstSight::kTrustRule) how = FirstSight::kProbe;
  }
  if (takes_by_mask(info, arguments_of(info, *stack))) {
    remember(info, arguments_of(info, *stack), random, never_recorded(SyncReason::kDataDependentShape));
    run_drawn(info, stack, random, SyncReason::kDataDependentShape);
    return true;
  }
  if (!prefers_probe(info, how, signature)) {
    return meet_by_meta(info, stack, random, how, signature);
  }
  if (how == FirstSight::kRun) {
    run_and_learn(info, stack, random, nullptr, signature);
    return true;
  }
  return meet_by_probe(info, stack, random, nullptr, signature);
}

}  // namespace hetero::ops
