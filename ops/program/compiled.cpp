#include "ops/program/compiled.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "backend/registry/registry.h"
#include "graph/ir/compare.h"
#include "graph/optimize/channels_last.h"
#include "ops/dispatch/opaque.h"
#include "ops/kernels/device_kernel.h"
#include "ops/kernels/kernel.h"
#include "ops/memory/storage_memory.h"
#include "ops/program/compiled_variant.h"
#include "ops/program/static_call.h"
#include "ops/record/generator.h"
#include "ops/record/running.h"
#include "ops/run/overlap.h"
#include "ops/run/sync.h"
#include "ops/settings/config.h"
#include "ops/settings/parallel.h"

namespace hetero::ops {
namespace {

// With Options::search_longer.
constexpr int kLongSearch = 8;

uint8_t bits_of(const at::Tensor& tensor) {
  uint8_t bits = 0;
  if (tensor.is_conj()) bits |= graph::kConjugate;
  if (tensor.is_neg()) bits |= graph::kNegative;
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) bits |= graph::kWrappedNumber;
  return bits;
}

void set_bits(const at::Tensor& tensor, uint8_t bits) {
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if ((bits & graph::kConjugate) != 0) impl->_set_conj(true);
  if ((bits & graph::kNegative) != 0) impl->_set_neg(true);
}

std::span<const int64_t> span_of(c10::IntArrayRef numbers) { return {numbers.data(), numbers.size()}; }

bool looks_through(const at::Tensor& tensor, const graph::Window& window) {
  return window.equals(static_cast<graph::DType>(tensor.scalar_type()), span_of(tensor.sizes()),
                       span_of(tensor.strides()), tensor.storage_offset());
}

graph::WindowId intern(const at::Tensor& tensor, graph::WindowTable& windows) {
  const graph::WindowId id = windows.intern(static_cast<graph::DType>(tensor.scalar_type()), span_of(tensor.sizes()),
                                            span_of(tensor.strides()), tensor.storage_offset());
  TORCH_CHECK(id != graph::kNoWindow, "hetero: the program has met too many shapes");
  return id;
}

at::Tensor view_through(c10::Storage storage, const graph::Window& window, uint8_t bits) {
  const auto rank = static_cast<size_t>(window.rank);
  at::Tensor view = make_view(std::move(storage), static_cast<at::ScalarType>(window.dtype),
                              {window.sizes().data(), rank}, {window.strides().data(), rank}, window.offset);
  set_bits(view, bits);
  return view;
}

// As a view does: a write of one is a new version of both. Tensors of inference have no versions.
void share_version(const at::Tensor& view, const at::Tensor& base) {
  c10::TensorImpl* const impl = view.unsafeGetTensorImpl();
  if (!view.is_inference() && !base.is_inference()) {
    impl->set_version_counter(base.unsafeGetTensorImpl()->version_counter());
  }
}

bool is_strided(const at::Tensor& tensor) { return tensor.layout() == c10::kStrided && tensor.has_storage(); }

HeteroStorage* hetero(const c10::Storage& storage) {
  return static_cast<HeteroStorage*>(storage.unsafeGetStorageImpl());
}

// Whether results may have other strides than the operators give them.
bool layouts_may_change() { return last_bits_may_vary() && backend::accelerator() == nullptr; }

// Equal in everything but sizes and numbers: what resize_plan asks of two graphs.
bool same_structure(const graph::Graph& a, const graph::Graph& b) {
  const auto same_arguments = [&](const graph::Node& x, const graph::Node& y) {
    AttributeHeader header;
    std::memcpy(&header, a.attributes.data() + x.attribute_offset, sizeof(header));
    return std::memcmp(a.attributes.data() + x.attribute_offset, b.attributes.data() + y.attribute_offset,
                       sizeof(header) + header.structure_bytes) == 0;
  };
  const graph::Difference::Kind found = graph::compare(a, b, &graph::same_kind, same_arguments).kind;
  // What is valid where is for the plans to compare.
  const bool only_buffers = found == graph::Difference::Kind::kBuffers && a.buffers.size() == b.buffers.size();
  return found == graph::Difference::Kind::kNone || only_buffers;
}

}  // namespace

// The executor lock, and a variant as it comes to be.
struct CompiledProgram::Capture {
  using Kind = Variant::Source::Kind;

  void name_arguments();
  void name_constants(const Cut& cut);
  Variant::Source name_constant(const c10::Storage& storage);
  Variant::Source source_of_result(const c10::Storage& storage);
  void add_result(const c10::IValue& value, c10::DeviceType device, graph::WindowTable& windows);
  void relate(size_t number, const std::vector<c10::IValue>& values);
  void keep(Cut& cut, const graph::WindowTable& windows);
  void lay_out(size_t seen, graph::WindowTable& windows);

  Executing executing;
  const OpaqueOperators opaque{};
  std::unique_ptr<Variant> variant = std::make_unique<Variant>();
  std::vector<c10::Storage> stand_ins;  // per storage of the arguments
  std::vector<c10::IValue> given;       // per argument: what stands for it
  std::unordered_map<const c10::StorageImpl*, Variant::Source> sources;
};

// Of a run; reused, so that a steady state allocates little.
struct CompiledProgram::Work {
  Cut cut;
  SliceRun run;
  std::vector<c10::Storage> arguments;  // on hetero, per storage
  // Where such a storage stands for one on the CPU or on CUDA: that one.
  std::vector<c10::Storage> originals;
  std::vector<c10::Storage> made;  // for the results
  std::vector<HeteroStorage*> to_settle;
  std::vector<c10::IValue> results;
  std::vector<c10::Storage> gpu_copies;  // per storage in `made`

  void take_arguments(std::vector<c10::IValue>& values, const ArgumentStorages& storages, const Variant& variant);
  void settle_arguments(const Variant& variant);
  void make_results(const std::vector<c10::IValue>& values, const Variant& variant, const graph::WindowTable& windows);
  void bump_versions(const std::vector<c10::IValue>& values, const ArgumentStorages& storages, const Variant& variant);
  const c10::Storage& storage(const Variant& variant, Variant::Source source) const;
  void bind(const Variant& variant);
  void draw(const Variant& variant);
  void write_back(const Variant& variant);
  void bring_results_out(const Variant& variant);
  at::Tensor on_host(const Variant::Result& result, const at::Tensor& tensor);
  at::Tensor on_gpu(const Variant::Result& result, const at::Tensor& tensor);
  void clear();
};

void ArgumentStorages::look(const std::vector<c10::IValue>& arguments) {
  numbers.assign(arguments.size(), kNone);
  storages.clear();
  size_t size = 16;
  while (size < 2 * arguments.size()) size *= 2;
  table.assign(size, kNone);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].isTensor() || !is_strided(arguments[i].toTensor())) continue;
    c10::StorageImpl* const storage = arguments[i].toTensor().storage().unsafeGetStorageImpl();
    size_t at = (reinterpret_cast<uintptr_t>(storage) >> 4) * 0x9E3779B97F4A7C15ull & (size - 1);
    while (table[at] != kNone && storages[table[at]] != storage) at = (at + 1) & (size - 1);
    if (table[at] == kNone) {
      table[at] = static_cast<uint32_t>(storages.size());
      storages.push_back(storage);
    }
    numbers[i] = table[at];
  }
}

bool CompiledVariant::fits(const std::vector<c10::IValue>& values, const ArgumentStorages& of,
                           const graph::WindowTable& windows) const {
  if (values.size() != arguments.size() || of.storages.size() != written.size()) return false;
  for (size_t i = 0; i < values.size(); ++i) {
    const Argument& known = arguments[i];
    if (of.numbers[i] != known.storage) return false;
    if (known.storage == ArgumentStorages::kNone) {
      if (values[i].tagKind() != known.number.tagKind() || values[i] != known.number) return false;
      continue;
    }
    const at::Tensor& tensor = values[i].toTensor();
    if (!looks_through(tensor, windows[known.window]) || bits_of(tensor) != known.bits ||
        tensor.device().type() != known.device) {
      return false;
    }
  }
  return true;
}

CompiledProgram::CompiledProgram(Options options)
    : options_(options), storages_(std::make_unique<ArgumentStorages>()), work_(std::make_unique<Work>()) {}

CompiledProgram::~CompiledProgram() = default;

CompiledVariant* CompiledProgram::find(const std::vector<c10::IValue>& arguments) {
  storages_->look(arguments);
  const bool any_layout = layouts_may_change();
  return variants_.find([&](const Variant& it) {
    return (any_layout || !it.has_other_layouts) && it.fits(arguments, *storages_, windows_);
  });
}

// ---- running ------------------------------------------------------------------------------------

// A storage on hetero for each of the arguments. One on the CPU or on CUDA lends its memory.
void CompiledProgram::Work::take_arguments(std::vector<c10::IValue>& values, const ArgumentStorages& storages,
                                           const Variant& variant) {
  bool borrows = false;
  arguments.resize(variant.written.size());
  originals.resize(variant.written.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t number = storages.numbers[i];
    if (number == ArgumentStorages::kNone || arguments[number]) continue;
    const c10::Storage& storage = values[i].toTensor().storage();
    const c10::DeviceType device = variant.arguments[i].device;
    if (device == kHetero) {
      arguments[number] = storage;
      continue;
    }
    originals[number] = storage;
    arguments[number] = make_storage(storage.nbytes());
    if (device == c10::DeviceType::CPU) {
      install_bytes(hetero(arguments[number]), adopt_cpu_storage(storage));
    } else {
      install_bytes(hetero(arguments[number]), borrow_gpu_storage(storage), backend::kGpu);
      borrows = true;
    }
    // Its owner writes it without telling.
    hetero(arguments[number])->binding.sharers.add();
  }
  if (borrows) wait_for_gpu();
}

// Runs what the arguments wait for; of those that are written, also who still reads them.
void CompiledProgram::Work::settle_arguments(const Variant& variant) {
  to_settle.clear();
  for (size_t s = 0; s < arguments.size(); ++s) {
    if (originals[s]) continue;
    to_settle.push_back(hetero(arguments[s]));
    if (variant.written[s] != 0) settle_users(hetero(arguments[s]), SyncReason::kCompiled);
  }
  settle(to_settle, SyncReason::kCompiled);
}

const c10::Storage& CompiledProgram::Work::storage(const Variant& variant, Variant::Source source) const {
  switch (source.kind) {
    case Variant::Source::Kind::kArgument:
      return arguments[source.index];
    case Variant::Source::Kind::kConstant:
      return variant.constants[source.index];
    default:
      return made[source.index];
  }
}

void CompiledProgram::Work::make_results(const std::vector<c10::IValue>& values, const Variant& variant,
                                         const graph::WindowTable& windows) {
  using Relation = Variant::Result::Relation;
  using Kind = Variant::Source::Kind;
  for (const uint64_t bytes : variant.result_bytes) made.push_back(make_storage(bytes));
  results.reserve(variant.results.size());
  for (const Variant::Result& result : variant.results) {
    if (result.source.kind == Kind::kNumber) {
      results.push_back(result.number);
      continue;
    }
    const std::vector<c10::IValue>& relatives = result.source.kind == Kind::kArgument ? values : results;
    if (result.relation == Relation::kSame) {
      results.push_back(relatives[result.relative]);
      continue;
    }
    at::Tensor made = view_through(storage(variant, result.source), windows[result.window], result.bits);
    if (result.relation == Relation::kView) share_version(made, relatives[result.relative].toTensor());
    results.emplace_back(std::move(made));
  }
}

// What the program writes has a new version, as behind an operator in place.
void CompiledProgram::Work::bump_versions(const std::vector<c10::IValue>& values, const ArgumentStorages& storages,
                                          const Variant& variant) {
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t number = storages.numbers[i];
    if (number != ArgumentStorages::kNone && variant.written[number] != 0) {
      values[i].toTensor().unsafeGetTensorImpl()->bump_version();
    }
  }
}

// Describes the buffers as Recorder::finish() does. REQUIRES: nobody but owners outside and this
// object has the storages.
void CompiledProgram::Work::bind(const Variant& variant) {
  using Kind = Variant::Source::Kind;
  cut.slice.graph.buffers = variant.graph.buffers;
  cut.slice.graph.windows = variant.graph.windows;
  cut.slice.bindings.assign(variant.sources.size(), nullptr);
  cut.slice.holds.resize(variant.sources.size());
  for (size_t b = 0; b < variant.sources.size(); ++b) {
    const Variant::Source source = variant.sources[b];
    if (source.kind == Kind::kTemporary) continue;
    HeteroStorage* const bound = hetero(storage(variant, source));
    graph::Buffer& buffer = cut.slice.graph.buffers[b];
    cut.slice.holds[b] = StorageHold(bound, true);
    cut.slice.bindings[b] = &bound->binding;
    buffer.bytes = bound->nbytes();
    buffer.valid_on = bound->binding.valid_on;
    buffer.steady = buffer.valid_on != 0 && is_steady(*bound);
    if (bound->binding.layout.has_gaps()) cut.slice.to_close.push_back(static_cast<graph::BufferId>(b));
    // Owners are this object and the hold; memory that is lent stays its owner's.
    const bool lent = source.kind == Kind::kArgument && originals[source.index];
    buffer.escapes = lent || source.kind != Kind::kArgument || c10::raw::intrusive_ptr::use_count(bound) > 2;
    if (!buffer.escapes && buffer.valid_on == 0 && bound->binding.error.ok()) cut.slice.bindings[b] = nullptr;
    if (backend::accelerator() == nullptr) continue;
    buffer.fetched = (lent && originals[source.index].device().is_cpu() && variant.written[source.index] != 0) ||
                     std::ranges::any_of(variant.results, [source](const Variant::Result& result) {
                       return result.device == c10::DeviceType::CPU && result.source.kind == source.kind &&
                              result.source.index == source.index;
                     });
  }
}

void CompiledProgram::Work::draw(const Variant& variant) {
  if (variant.draws.empty()) {
    cut.request.values.put_bytes(variant.numbers.data(), variant.numbers.size());
    return;
  }
  size_t before = 0;
  for (const size_t at : variant.draws) {
    cut.request.values.put_bytes(variant.numbers.data() + before, at - before);
    cut.request.values.put(draw_random_state(std::nullopt));
    before = at + sizeof(RandomState);
  }
  cut.request.values.put_bytes(variant.numbers.data() + before, variant.numbers.size() - before);
}

// What was written of lent memory goes where its owner looks, if it is elsewhere.
void CompiledProgram::Work::write_back(const Variant& variant) {
  for (size_t s = 0; s < arguments.size(); ++s) {
    if (!originals[s] || variant.written[s] == 0) continue;
    HeteroStorage* const lent = hetero(arguments[s]);
    if (!originals[s].device().is_cpu()) {
      copy_to_gpu(lent, originals[s]);
      continue;
    }
    if (const Status status = bring_to_host(lent); !status.ok()) raise(status);
    void* const owners = originals[s].mutable_data();
    const void* const bytes = lent->binding.blocks[backend::kCpu].data();
    if (owners != bytes) std::memcpy(owners, bytes, originals[s].nbytes());
  }
}

at::Tensor CompiledProgram::Work::on_host(const Variant::Result& result, const at::Tensor& tensor) {
  using Kind = Variant::Source::Kind;
  const bool keeps = result.source.kind == Kind::kConstant;
  at::Tensor host = host_alias(tensor, SyncReason::kCompiled, !keeps);
  return keeps ? host.clone() : host;
}

// A copy of the storage's bytes, of which the results that share them are views.
at::Tensor CompiledProgram::Work::on_gpu(const Variant::Result& result, const at::Tensor& tensor) {
  HeteroStorage* const storage = storage_of(tensor);
  if (result.source.kind != Variant::Source::Kind::kResult) {
    const c10::Storage copy = make_gpu_storage(storage->nbytes());
    copy_to_gpu(storage, copy);
    return tensor_over(copy, tensor);
  }
  gpu_copies.resize(made.size());
  c10::Storage& copy = gpu_copies[result.source.index];
  if (!copy) {
    copy = make_gpu_storage(storage->nbytes());
    copy_to_gpu(storage, copy);
  }
  return tensor_over(copy, tensor);
}

void CompiledProgram::Work::bring_results_out(const Variant& variant) {
  using Kind = Variant::Source::Kind;
  for (size_t i = 0; i < results.size(); ++i) {
    const Variant::Result& result = variant.results[i];
    if (result.device == kHetero) continue;
    if (result.relation == Variant::Result::Relation::kSame) {
      if (result.source.kind != Kind::kArgument) results[i] = results[result.relative];
      continue;
    }
    const at::Tensor tensor = results[i].toTensor();
    at::Tensor out = result.source.kind == Kind::kArgument   ? tensor_over(originals[result.source.index], tensor)
                     : result.device == c10::DeviceType::CPU ? on_host(result, tensor)
                                                             : on_gpu(result, tensor);
    if (result.source.kind != Kind::kConstant) share_version(out, tensor);
    results[i] = std::move(out);
  }
}

void CompiledProgram::Work::clear() {
  cut.clear();
  arguments.clear();
  originals.clear();
  made.clear();
  results.clear();
  gpu_copies.clear();
}

// Where the variant has no plan yet: the plan of one that differs in sizes only.
void CompiledProgram::find_similar(Cut& cut, const Variant& variant) {
  if (options_.plan_each_size) return;
  for (const auto& other : variants_.entries()) {
    if (other.get() == &variant || other->structure != variant.structure) continue;
    cut.request.similar = other->plans.find_similar(cut.slice);
    if (cut.request.similar != nullptr) return;
  }
}

std::optional<std::vector<c10::IValue>> CompiledProgram::run(std::vector<c10::IValue>& arguments) {
  check_fork();
  const Executing executing;
  // Every operator on its own line.
  if (config().sync.load(std::memory_order_relaxed)) return std::nullopt;
  Variant* const variant = find(arguments);
  if (variant == nullptr) return std::nullopt;
  // A kernel that is Python may have come back to this very program.
  std::unique_ptr<Work> nested;
  if (!running_slices().empty()) nested = std::make_unique<Work>();
  Work& work = nested != nullptr ? *nested : *work_;
  struct Cleared {
    Work& work;
    ~Cleared() { work.clear(); }
  } const cleared{work};

  work.take_arguments(arguments, *storages_, *variant);
  work.settle_arguments(*variant);
  work.make_results(arguments, *variant, windows_);
  work.bump_versions(arguments, *storages_, *variant);
  arguments.clear();
  work.bind(*variant);
  work.draw(*variant);
  Cut& cut = work.cut;
  cut.slice.threads = at::get_num_threads();
  cut.slice.default_dtype = variant->default_dtype;
  cut.slice.notes = variant->notes;
  cut.request.own_plans = &variant->plans;
  cut.request.own_windows = &windows_;
  if (options_.search_longer) cut.request.effort = kLongSearch;
  cut.request.version = 1;
  std::optional<RunScope> running(std::in_place, cut.slice);
  cut.request.keeps = SliceRun::keeps_plans();
  if (cut.request.keeps) cut.request.kept = variant->plans.find_unchanged(cut.slice, cut.request.version);
  if (cut.request.kept == nullptr) {
    std::vector<graph::Buffer> buffers = std::move(cut.slice.graph.buffers);
    cut.slice.graph = variant->graph;
    cut.slice.graph.buffers = std::move(buffers);
    std::vector<uint8_t> changed;
    put_numbers({cut.request.values.data(), cut.request.values.size()}, cut.slice.graph, changed);
    find_similar(cut, *variant);
  }
  count(counters().compiled_calls);
  if (const Status status = work.run.run(cut, SyncReason::kCompiled); !status.ok()) {
    running.reset();
    give_back(status);
    check(status);
  }
  work.write_back(*variant);
  work.bring_results_out(*variant);
  return std::move(work.results);
}

// ---- capturing ----------------------------------------------------------------------------------

std::vector<c10::IValue> CompiledProgram::begin_capture(const std::vector<c10::IValue>& arguments) {
  check_fork();
  keep_backward_here();  // callers put back what it is in a capture
  TORCH_CHECK(!captures_here(), "hetero: a compiled program cannot be captured inside the capture of another one");
  auto capture = std::make_unique<Capture>();
  TORCH_CHECK(capture_ == nullptr, "hetero: the program is being captured already");
  storages_->look(arguments);
  Variant& variant = *capture->variant;
  variant.written.assign(storages_->storages.size(), 0);
  for (const c10::StorageImpl* storage : storages_->storages) {
    variant.storage_bytes.push_back(storage->nbytes());
    capture->stand_ins.push_back(make_storage(storage->nbytes()));
  }
  std::vector<c10::IValue> stand_ins;
  for (size_t i = 0; i < arguments.size(); ++i) {
    Variant::Argument& known = variant.arguments.emplace_back();
    known.storage = storages_->numbers[i];
    if (!arguments[i].isTensor()) {
      known.number = arguments[i];
      stand_ins.push_back(arguments[i]);
      continue;
    }
    const at::Tensor& tensor = arguments[i].toTensor();
    TORCH_CHECK(known.storage != ArgumentStorages::kNone &&
                    (is_hetero(tensor) || tensor.device().is_cpu() || tensor.device() == kernel_device()),
                "hetero: an argument of a compiled program is a strided tensor on hetero, on the CPU, or on the GPU "
                "that is the "
                "accelerator (config.accelerator), not one on ",
                tensor.device(), " of layout ", tensor.layout());
    known.window = intern(tensor, windows_);
    known.bits = bits_of(tensor);
    known.device = tensor.device().type();
    stand_ins.push_back(view_through(capture->stand_ins[known.storage], windows_[known.window], known.bits));
  }
  capture->given = stand_ins;
  for (bool begun = false; !begun;) {
    flush_all(SyncReason::kCompiled);
    Locked lock(recorder().mutex());
    begun = recorder().begin_capture(capture->stand_ins);
  }
  capture_ = std::move(capture);
  return stand_ins;
}

void CompiledProgram::cancel_capture() {
  if (!captures_here()) return;  // it is over, and another thread's may have begun
  const std::unique_ptr<Capture> capture = std::move(capture_);
  Cut cut;
  std::vector<StorageHold> last;
  Locked lock(recorder().mutex());
  (void)recorder().end_capture(cut, last);
}

void CompiledProgram::end_capture(std::vector<c10::IValue> results, const std::vector<c10::DeviceType>& devices,
                                  size_t seen) {
  const std::unique_ptr<Capture> capture = std::move(capture_);
  TORCH_CHECK(capture != nullptr, "hetero: the program is not being captured");
  Cut cut;
  bool alone;
  bool writes_what_was_read;
  std::vector<StorageHold> last;
  {
    Locked lock(recorder().mutex());
    writes_what_was_read = recorder().writes_what_was_read();
    looked_at_ = recorder().looked_at().value();
    alone = recorder().end_capture(cut, last);
    // The recorder may forget its windows; a program keeps its own.
    for (graph::Operand& operand : cut.slice.graph.operands) {
      const graph::Window& window = window_table()[operand.window];
      operand.window = windows_.intern(window.dtype, window.sizes(), window.strides(), window.offset);
      alone = alone && operand.window != graph::kNoWindow;
    }
  }
  TORCH_CHECK(alone, "hetero: another thread used the device while the program was captured");
  TORCH_CHECK(!writes_what_was_read, "hetero: the program looks at a value, and updates it in place later");
  capture->name_arguments();
  capture->name_constants(cut);
  for (size_t i = 0; i < results.size(); ++i) {
    capture->add_result(results[i], devices[i], windows_);
    capture->relate(i, results);
  }
  captured_.clear();
  for (const StorageHold& hold : cut.slice.holds) captured_.push_back(hold.storage());
  capture->keep(cut, windows_);
  if (layouts_may_change()) capture->lay_out(seen, windows_);
  count(counters().captures);
  add(std::move(capture->variant));
}

graph::BufferId CompiledProgram::buffer_of(const at::Tensor& tensor) const {
  const auto found = std::ranges::find(captured_, tensor.storage().unsafeGetStorageImpl());
  return found == captured_.end() ? graph::kNoBuffer : static_cast<graph::BufferId>(found - captured_.begin());
}

void CompiledProgram::Capture::name_arguments() {
  for (uint32_t s = 0; s < stand_ins.size(); ++s) {
    TORCH_CHECK(stand_ins[s].nbytes() == variant->storage_bytes[s],
                "hetero: a compiled program cannot resize an argument's storage");
    sources[stand_ins[s].unsafeGetStorageImpl()] = {Kind::kArgument, s};
  }
}

// What was neither an argument nor made by the graph.
void CompiledProgram::Capture::name_constants(const Cut& cut) {
  std::vector<uint8_t> born(cut.slice.holds.size(), 0);
  for (const graph::Operand& operand : cut.slice.graph.operands) {
    born[operand.buffer] |= operand.access == graph::Access::kDefine;
  }
  for (size_t b = 0; b < cut.slice.holds.size(); ++b) {
    HeteroStorage* const storage = cut.slice.holds[b].storage();
    if (born[b] != 0 || sources.count(storage) != 0) continue;
    // Without bytes it was made during the capture, by torch.empty, and is filled by the graph.
    if (storage->binding.valid_on == 0 && storage->binding.error.ok()) continue;
    name_constant(c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage)));
  }
}

CompiledVariant::Source CompiledProgram::Capture::name_constant(const c10::Storage& storage) {
  variant->constants.push_back(storage);
  const auto index = static_cast<uint32_t>(variant->constants.size() - 1);
  return sources[storage.unsafeGetStorageImpl()] = {Kind::kConstant, index};
}

CompiledVariant::Source CompiledProgram::Capture::source_of_result(const c10::Storage& storage) {
  const auto found = sources.find(storage.unsafeGetStorageImpl());
  if (found != sources.end()) return found->second;
  if (hetero(storage)->binding.valid_on != 0) return name_constant(storage);
  variant->result_bytes.push_back(storage.nbytes());
  const auto index = static_cast<uint32_t>(variant->result_bytes.size() - 1);
  return sources[storage.unsafeGetStorageImpl()] = {Kind::kResult, index};
}

void CompiledProgram::Capture::add_result(const c10::IValue& value, c10::DeviceType device,
                                          graph::WindowTable& windows) {
  Variant::Result& result = variant->results.emplace_back();
  result.source.kind = Kind::kNumber;
  if (!value.isTensor()) {
    result.number = value;
    return;
  }
  const at::Tensor& tensor = value.toTensor();
  TORCH_CHECK(is_hetero(tensor) && is_strided(tensor),
              "hetero: a result of the program is not a strided tensor on hetero");
  result.source = source_of_result(tensor.storage());
  result.window = intern(tensor, windows);
  result.bits = bits_of(tensor);
  result.device = device;
  if (result.source.kind != Kind::kArgument) return;
  for (const Variant::Argument& argument : variant->arguments) {
    TORCH_CHECK(argument.storage != result.source.index || argument.device == device,
                "hetero: a result of the program shares the memory of an argument on another device");
  }
}

// What the result is to an argument, or to a result before it.
void CompiledProgram::Capture::relate(size_t number, const std::vector<c10::IValue>& values) {
  using Relation = Variant::Result::Relation;
  Variant::Result& result = variant->results[number];
  if (result.source.kind == Kind::kNumber) return;
  const at::Tensor& tensor = values[number].toTensor();
  const auto meet = [&](const c10::IValue& relative, size_t index, bool looks_alike) {
    // One that an operator made look otherwise, as aten::t_ does, is the argument's no longer.
    const Relation relation = looks_alike && relative.toTensor().is_same(tensor) ? Relation::kSame : Relation::kView;
    if (result.relation >= relation) return;
    result.relation = relation;
    result.relative = static_cast<uint32_t>(index);
  };
  if (result.source.kind == Kind::kArgument) {
    for (size_t i = 0; i < given.size(); ++i) {
      const Variant::Argument& argument = variant->arguments[i];
      if (argument.storage != result.source.index) continue;
      meet(given[i], i, argument.window == result.window && argument.bits == result.bits);
    }
    return;
  }
  for (size_t i = 0; i < number; ++i) {
    const Variant::Result& other = variant->results[i];
    if (other.source.kind != result.source.kind || other.source.index != result.source.index) continue;
    meet(values[i], i, other.device == result.device);
  }
}

// The graph, and what its buffers and numbers are.
void CompiledProgram::Capture::keep(Cut& cut, const graph::WindowTable& windows) {
  for (const StorageHold& hold : cut.slice.holds) {
    const auto found = sources.find(hold.storage());
    variant->sources.push_back(found == sources.end() ? Variant::Source{} : found->second);
  }
  for (const graph::Operand& operand : cut.slice.graph.operands) {
    const Variant::Source source = variant->sources[operand.buffer];
    if (operand.writes() && source.kind == Kind::kArgument) variant->written[source.index] = 1;
  }
  variant->graph = std::move(cut.slice.graph);
  variant->graph.windows = &windows;
  for (graph::Buffer& buffer : variant->graph.buffers) buffer = {buffer.bytes, 0, false};
  variant->numbers = std::move(cut.request.values);
  size_t before = 0;
  for (const graph::Node& node : variant->graph.nodes) {
    const std::byte* const attributes = variant->graph.attributes.data() + node.attribute_offset;
    Decoder::find_random_states(attributes, before, variant->draws);
    before += node.attribute_bytes - values_offset(attributes);
  }
  variant->default_dtype = cut.slice.default_dtype;
  variant->notes = std::move(cut.slice.notes);
  // What runs later is not the operator that recorded it.
  for (auto& [sequence, note] : variant->notes) note.operation = 0;
  // What a program is for runs often: it is planned at once.
  variant->plans.sightings = 1;
}

// Of results that only the program of the gradients sees, and of what nobody sees.
void CompiledProgram::Capture::lay_out(size_t seen, graph::WindowTable& windows) {
  const auto may_not_change = [&](const Variant::Result& result) {
    return result.device != kHetero || result.bits != 0 || result.source.kind != Kind::kResult;
  };
  std::vector<uint8_t> fixed(variant->result_bytes.size(), 0);  // per storage of results
  std::vector<graph::BufferId> buffer_of(fixed.size(), graph::kNoBuffer);
  for (size_t i = 0; i < variant->results.size(); ++i) {
    const Variant::Result& result = variant->results[i];
    if (result.source.kind == Kind::kResult && (i < seen || may_not_change(result))) fixed[result.source.index] = 1;
  }
  std::vector<uint8_t> temporary;
  for (size_t b = 0; b < variant->sources.size(); ++b) {
    const Variant::Source source = variant->sources[b];
    if (source.kind == Kind::kResult) buffer_of[source.index] = static_cast<graph::BufferId>(b);
    temporary.push_back(source.kind == Kind::kTemporary || (source.kind == Kind::kResult && fixed[source.index] == 0));
  }
  std::vector<graph::SavedImage> saved;
  std::vector<Variant::Result*> of;
  for (size_t i = std::min(seen, variant->results.size()); i < variant->results.size(); ++i) {
    Variant::Result& result = variant->results[i];
    if (may_not_change(result) || fixed[result.source.index] != 0) continue;
    const graph::BufferId buffer = buffer_of[result.source.index];
    if (buffer == graph::kNoBuffer) continue;
    saved.push_back({buffer, result.window});
    of.push_back(&result);
  }
  if (saved.empty() || graph::use_channels_last(variant->graph, windows, temporary, saved) == 0) return;
  variant->has_other_layouts = true;
  for (size_t i = 0; i < saved.size(); ++i) of[i]->window = saved[i].window;
}

void CompiledProgram::add(std::unique_ptr<Variant> variant) {
  uint32_t structures = 0;
  for (const auto& other : variants_.entries()) structures = std::max(structures, other->structure + 1);
  variant->structure = structures;
  for (const auto& other : variants_.entries()) {
    const bool alike = same_structure(other->graph, variant->graph) &&
                       std::ranges::equal(other->sources, variant->sources, [](const auto& a, const auto& b) {
                         return a.kind == b.kind && a.index == b.index;
                       });
    if (alike) variant->structure = other->structure;
  }
  variants_.add(std::move(variant));
  variants_.take_oldest();
}

std::string CompiledProgram::describe() {
  const Executing executing;
  std::string text;
  for (const auto& variant : variants_.entries()) {
    text += graph::to_string(variant->graph);
    text += '\n';
    if (const CachedPlan* plan = variant->plans.latest()) text += graph::to_string(plan->plan);
    text += '\n';
  }
  return text;
}

}  // namespace hetero::ops
