#include "ops/record/recorder.h"

#include <ATen/core/DeprecatedTypeProperties.h>
#include <c10/core/DefaultDtype.h>

#include "graph/ir/liveness.h"
#include "ops/record/layouts.h"
#include "ops/record/plan_cache.h"
#include "ops/settings/config.h"
#include "ops/table/operator_row.h"

namespace hetero::ops {

constinit Recorder* recorder_instance = nullptr;
namespace {

// After so many programs that read a storage and do not write it, later ones are expected to do the
// same.
constexpr int16_t kSteadyReads = 3;

constexpr size_t kWindowBytes = 128;  // of one with four dimensions, index included

// Before the static initializers, which register operators.
[[gnu::constructor(200)]] void make_recorder() { recorder_instance = new Recorder; }
}  // namespace

bool is_steady(const HeteroStorage& storage) { return storage.binding.reads >= kSteadyReads; }

Recorder::Recorder() { trace_.windows = &window_table(); }

CallView Recorder::view(graph::OpId op, const Call& call) {
  const size_t count = call.operands.size();
  if (inputs_.size() < count) [[unlikely]] {
    inputs_.resize(2 * count);
    input_storages_.resize(2 * count);
  }
  for (size_t i = 0; i < count; ++i) {
    const CallOperand& operand = call.operands[i];
    inputs_[i] = {buffer_of(operand.storage, i, inputs_.data()), operand.window, operand.access, operand.bits};
    input_storages_[i] = operand.storage;
  }
  return {op,
          call.preference,
          static_cast<int8_t>(default_dtype_),
          {inputs_.data(), count},
          {call.structure.data(), call.structure.size()},
          {call.sizes.data(), call.sizes.size()},
          static_cast<uint32_t>(call.values.size())};
}

namespace {

bool same_kinds(const MetaEntry& a, const MetaEntry& b, const graph::WindowTable& windows) {
  if (a.outputs.size() != b.outputs.size() || a.list_lengths != b.list_lengths) return false;
  for (size_t i = 0; i < a.outputs.size(); ++i) {
    const graph::WindowId x = a.outputs[i].window;
    const graph::WindowId y = b.outputs[i].window;
    if (x == y) continue;
    if (x == graph::kNoWindow || y == graph::kNoWindow || windows[x].kind != windows[y].kind) return false;
  }
  return true;
}

}  // namespace

const MetaEntry* Recorder::expect(graph::OpId op, const Call& call) {
  TrieNode* similar;
  const CallView seen = view(op, call);
  next_ = trie_.find(at_, seen, window_table(), similar);
  if (next_ != nullptr) [[likely]] {
    count_locked(counters().predicted_nodes);
    return &next_->entry();
  }
  if (const TrieNode* expected = at_->first_child()) {
    count_locked(counters().mispredicted_nodes);
    mispredictions_[mispredicted_++ % mispredictions_.size()] = {
        static_cast<uint32_t>(path_.size()), expected->op(), op,
        (similar != nullptr ? similar : expected)->difference(seen, window_table())};
  }
  meta_cache_.make_key(op, call, default_dtype_);
  const std::shared_ptr<const MetaEntry>* entry = meta_cache_.find();
  if (entry == nullptr) return nullptr;
  count_locked(counters().meta_hits);
  if (!(*entry)->is_recorded()) return entry->get();
  if (similar != nullptr && same_kinds(similar->entry(), **entry, window_table())) {
    next_ = similar;
    trie_.renew(similar, seen, *entry);
    return &similar->entry();
  }
  next_entry_ = *entry;
  return next_entry_.get();
}

std::vector<Misprediction> Recorder::mispredictions() const {
  const size_t kept = std::min(mispredicted_, mispredictions_.size());
  std::vector<Misprediction> latest;
  for (size_t i = mispredicted_ - kept; i < mispredicted_; ++i) {
    latest.push_back(mispredictions_[i % mispredictions_.size()]);
  }
  return latest;
}

bool Recorder::append(graph::OpId op, const Call& call, std::span<const at::Tensor> outputs) {
  if (next_ == nullptr) [[unlikely]]
    next_ = trie_.insert(at_, view(op, call), std::move(next_entry_));
  values_.put_bytes(call.values.data(), call.values.size());
  return advance(next_, outputs);
}

bool Recorder::append_expected(TrieNode* expected, std::span<const at::Tensor> outputs) {
  trie_.use(expected);
  count_locked(counters().predicted_nodes);
  return advance(expected, outputs);
}

// A storage with bytes that the trace has not met.
[[gnu::noinline]] void Recorder::hold(HeteroStorage* storage) {
  storage->epoch = epoch_;
  storage->buffer = static_cast<graph::BufferId>(holds_.size());
  holds_.emplace_back(storage, true);
  // It was not in the trace when somebody came to see its bytes: see host_storage().
  uses_shared_ |= static_cast<bool>(storage->binding.sharers);
}

// A step of the trace, with the inputs in input_storages_ and the numbers in values_.
bool Recorder::advance(TrieNode* node, std::span<const at::Tensor> outputs) {
  at_ = node;
  if (path_.empty()) [[unlikely]]
    begun_ = std::chrono::steady_clock::now();
  path_.push_back(node);
  version_ = std::max(version_, node->version());
  ++sequence_;
  HeteroStorage* const* storage = input_storages_.data();
  for (const graph::Operand& operand : node->inputs()) {
    if ((*storage)->epoch != epoch_) [[unlikely]]
      hold(*storage);
    StorageHold& held = holds_[operand.buffer];
    held.make_strong();
    if (operand.access != graph::Access::kRead) held.written = true;
    ++storage;
  }
  for (const at::Tensor& output : outputs) {
    HeteroStorage* const born = storage_of(output);
    born->epoch = epoch_;
    born->buffer = static_cast<graph::BufferId>(holds_.size());
    holds_.emplace_back(born, false).written = true;
    pending_bytes_ += static_cast<int64_t>(born->nbytes());
  }
  if (config().traceback.load(std::memory_order_relaxed) || profiles()) [[unlikely]]
    take_note();
  return node->is_mark() || path_.size() == cut_at_ || pressure() != SyncReason::kCount;
}

void Recorder::take_note() {
  NodeNote note = profiles() ? note_operation() : NodeNote();
  if (config().traceback.load(std::memory_order_relaxed) && interpreter_hooks().where) {
    note.line = interpreter_hooks().where();
  }
  notes_[sequence_ - 1] = std::move(note);
}

// Writes the nodes of the trace that are not written yet.
void Recorder::write_down() {
  count(counters().written_nodes, static_cast<int64_t>(path_.size() - trace_.nodes.size()));
  const auto put = [&](const std::byte* bytes, size_t count) {
    trace_.attributes.insert(trace_.attributes.end(), bytes, bytes + count);
  };
  for (size_t i = trace_.nodes.size(); i < path_.size(); ++i) {
    const TrieNode& step = *path_[i];
    graph::Node node;
    node.op = step.op();
    node.first_operand = static_cast<uint32_t>(trace_.operands.size());
    node.attribute_offset = static_cast<uint32_t>(trace_.attributes.size());
    node.sequence = sequence_ - static_cast<uint32_t>(path_.size() - i);
    node.preference = step.preference();
    // Buffers have their numbers in the order of first use.
    for (const graph::Operand& input : step.inputs()) {
      trace_.operands.push_back(input);
      written_buffers_ = std::max(written_buffers_, input.buffer + 1);
    }
    const size_t inputs_end = trace_.operands.size();
    for (const MetaOutput& output : step.entry().outputs) {
      if (output.window == graph::kNoWindow) continue;
      trace_.operands.push_back({written_buffers_++, output.window, graph::Access::kDefine, 0});
    }
    node.operand_count = static_cast<uint16_t>(trace_.operands.size() - node.first_operand);
    node.output_count = static_cast<uint16_t>(trace_.operands.size() - inputs_end);
    const AttributeHeader header{step.structure_bytes(), step.size_bytes()};
    put(reinterpret_cast<const std::byte*>(&header), sizeof(header));
    put(step.structure(), step.structure_bytes());
    put(step.sizes(), step.size_bytes());
    put(values_.data() + written_values_, step.value_bytes());
    written_values_ += step.value_bytes();
    node.attribute_bytes = static_cast<uint32_t>(trace_.attributes.size()) - node.attribute_offset;
    trace_.nodes.push_back(node);
  }
}

void Recorder::describe_buffers() {
  trace_.buffers.clear();
  for (const StorageHold& hold : holds_) trace_.buffers.push_back({hold.storage()->nbytes(), 0, false});
}

SyncReason Recorder::pressure() {
  if (captures_) [[unlikely]] {
    capture_spoiled_ |= !captures_here();
    return SyncReason::kCount;
  }
  const Config& options = config();
  if (uses_shared_) return SyncReason::kExported;
  if (options.sync.load(std::memory_order_relaxed)) return SyncReason::kSyncMode;
  if (static_cast<int64_t>(path_.size()) >= options.pending_nodes.load(std::memory_order_relaxed)) {
    return SyncReason::kPendingNodes;
  }
  if (pending_bytes_ >= options.pending_bytes.load(std::memory_order_relaxed)) {
    return SyncReason::kPendingBytes;
  }
  return SyncReason::kCount;
}

void Recorder::next_epoch() {
  if (++epoch_ == 0) epoch_ = 1;
  pending_bytes_ = 0;
  uses_shared_ = false;
}

bool Recorder::cut_all(bool reuse, Cut& cut, const HeteroStorage* fetched) {
  if (path_.empty()) return false;
  cut.request.keeps = reuse;
  std::swap(cut.slice.holds, holds_);
  if (!notes_.empty()) std::swap(cut.slice.notes, notes_);
  finish(cut.slice, fetched);
  if (reuse) {
    PlanSet& plans = at_->plans();
    if (version_ != kUnlikeTrie && cut.slice.notes.empty())
      cut.request.kept = plans.find_unchanged(cut.slice, version_);
    divide(plans);
  }
  if (cut.request.kept == nullptr) write_down();
  take_all(cut);
  return true;
}

// What is written down, and the end of the path.
void Recorder::take_all(Cut& cut) {
  if (cut.request.kept == nullptr) {
    std::swap(cut.slice.graph.nodes, trace_.nodes);
    std::swap(cut.slice.graph.operands, trace_.operands);
    std::swap(cut.slice.graph.attributes, trace_.attributes);
    lay_out(cut.slice);
  }
  std::swap(cut.request.values, values_);
  end_path(cut);
  next_epoch();
}

// Sets the mark of a path that is to be divided, unless some operator is not of PyTorch's core: it
// may be Python, or want the thread that needs its result.
void Recorder::divide(PlanSet& plans) {
  const auto count = static_cast<size_t>(std::exchange(plans.pieces, 0));
  if (count == 0) return;
  const bool core =
      std::ranges::all_of(path_, [](const TrieNode* node) { return is_aten(graph::op_table()[node->op()].name); });
  if (!core) return;
  if (path_.size() - left_over_ < count) return;
  TrieNode* const mark = path_[left_over_ + (path_.size() - left_over_) / count - 1];
  if (mark->plans().trials > 0) return;  // it did not pay
  mark->plans().whole = plans.whole;
  mark->set_cuts(static_cast<int>(count) - 1);
}

namespace {
constinit thread_local bool this_thread_captures = false;
}  // namespace

bool captures_here() { return this_thread_captures; }

void refuse_capture(const std::string& what) {
  TORCH_CHECK(!this_thread_captures, "hetero: a compiled program cannot contain this: ", what);
}

bool Recorder::begin_capture(std::span<const c10::Storage> stand_ins) {
  if (!path_.empty()) return false;
  captures_ = this_thread_captures = true;
  capture_spoiled_ = false;
  looked_at_ = {};
  stand_ins_.clear();
  for (const c10::Storage& storage : stand_ins) stand_ins_.push_back(storage.unsafeGetStorageImpl());
  return true;
}

std::optional<ConstantPart> Recorder::constant_part(HeteroStorage* storage) {
  ConstantPart part;
  if (!written(storage)) {
    if (storage->binding.valid_on == 0) return std::nullopt;
    read_in_capture_.emplace_back(storage, true);
    return part;
  }
  write_down();
  // Who reads a value before it is overwritten need not run: the part has memory of its own.
  needed_.assign(holds_.size(), 0);
  needed_[storage->buffer] = 1;
  selected_.assign(trace_.nodes.size(), 0);
  for (size_t i = trace_.nodes.size(); i-- > 0;) {
    const std::span operands(trace_.operands_of(trace_.nodes[i]), trace_.nodes[i].operand_count);
    const auto makes = [&](const graph::Operand& operand) { return operand.writes() && needed_[operand.buffer] != 0; };
    if (std::ranges::none_of(operands, makes)) continue;
    selected_[i] = 1;
    for (const graph::Operand& operand : operands) needed_[operand.buffer] = 1;
  }
  std::vector<size_t> draws;
  const auto is_stand_in = [this](const HeteroStorage* used) {
    return std::ranges::find(stand_ins_, used) != stand_ins_.end();
  };
  for (size_t i = 0; i < trace_.nodes.size(); ++i) {
    if (selected_[i] == 0) continue;
    const graph::Node& node = trace_.nodes[i];
    const graph::OpTraits& traits = graph::op_table()[node.op];
    if (traits.host_task || traits.is_foreign || traits.side_effects) return std::nullopt;
    Decoder::find_random_states(trace_.attributes.data() + node.attribute_offset, 0, draws);
    if (!draws.empty()) return std::nullopt;
    looked_at_.add(int64_t{node.op});
    looked_at_.add(trace_.attributes.data() + node.attribute_offset, node.attribute_bytes);
    for (const graph::Operand& operand : std::span(trace_.operands_of(node), node.operand_count)) {
      looked_at_.add(to_string(window_table()[operand.window]));
      const HeteroStorage* const used = holds_[operand.buffer].storage();
      if (is_stand_in(used) || !used->binding.error.ok()) return std::nullopt;
      if (operand.writes() && used->binding.valid_on != 0) return std::nullopt;
    }
    part.graph.nodes.push_back(node);
  }
  part.graph.operands = trace_.operands;
  part.graph.attributes = trace_.attributes;
  part.graph.windows = &window_table();
  part.storages.assign(holds_.size(), nullptr);
  for (size_t b = 0; b < holds_.size(); ++b) {
    HeteroStorage* const used = holds_[b].storage();
    const uint8_t valid_on = needed_[b] != 0 ? used->binding.valid_on : uint8_t{0};
    part.graph.buffers.push_back({used->nbytes(), valid_on, false});
    if (valid_on == 0) continue;
    part.storages[b] = used;
    read_in_capture_.emplace_back(used, true);
  }
  part.result = storage->buffer;
  return part;
}

bool Recorder::writes_what_was_read() const {
  return std::ranges::any_of(read_in_capture_, [this](const StorageHold& hold) { return written(hold.storage()); });
}

bool Recorder::end_capture(Cut& cut, std::vector<StorageHold>& last) {
  captures_ = this_thread_captures = false;
  stand_ins_.clear();
  last = std::move(read_in_capture_);
  read_in_capture_.clear();
  if (capture_spoiled_) return false;
  write_down();
  std::swap(cut.slice.holds, holds_);
  std::swap(cut.slice.notes, notes_);
  finish(cut.slice, nullptr);
  std::swap(cut.slice.graph.nodes, trace_.nodes);
  std::swap(cut.slice.graph.operands, trace_.operands);
  std::swap(cut.slice.graph.attributes, trace_.attributes);
  std::swap(cut.request.values, values_);
  cut.slice.default_dtype = default_dtype_;
  end_path(cut);
  next_epoch();
  return true;
}

bool Recorder::cut_early(Cut& cut, uint64_t& flight) {
  const bool due = path_.size() >= cut_at_ || at_->is_mark();
  if (path_.empty() || !due || uses_shared_ || !notes_.empty()) return false;
  if (at_->is_mark()) {
    piece_ = path_.size() - left_over_;
    cuts_left_ = at_->cuts();
    if (mark_ == nullptr) {
      mark_ = at_;
      divided_begun_ = begun_;
    }
  }
  TrieNode* const mark = mark_;
  flight = ++last_flight_;
  cut.request.keeps = true;
  cut.slice.default_dtype = default_dtype_;
  std::swap(cut.slice.holds, holds_);
  write_down();
  finish(cut.slice, nullptr, flight);
  take_all(cut);
  mark_ = mark;
  cut_at_ = --cuts_left_ > 0 ? piece_ : kNever;
  return true;
}

void Recorder::land(Cut& cut, uint64_t flight, std::vector<StorageHold>& last) {
  landed_ = flight;
  for (StorageHold& hold : cut.slice.holds) {
    if (!hold.strong()) continue;
    --hold.storage()->flights;
    // Nothing foreign may run under this lock, as the end of a storage may.
    if (c10::raw::intrusive_ptr::use_count(hold.storage()) == 1) {
      last.push_back(std::move(hold));
    } else {
      const StorageHold released = std::move(hold);
    }
  }
}

// The last place of the trace from which on its operators are those with which some earlier trace
// began; 0 where there is none that would leave a trace of less than half the size.
size_t Recorder::find_beginning() const {
  constexpr size_t kAlike = 16;
  constexpr int kMostBeginnings = 16;
  const auto begins_like = [&](size_t at, const TrieNode* node) {
    for (size_t i = at; i < at + kAlike; ++i, node = node->first_child()) {
      if (node == nullptr || node->op() != path_[i]->op()) return false;
    }
    return true;
  };
  int64_t bytes = 0;  // born in the rest
  for (size_t at = path_.size(); at-- > path_.size() / 2;) {
    for (const MetaOutput& output : path_[at]->entry().outputs) bytes += static_cast<int64_t>(output.storage_bytes);
    if (bytes > pending_bytes_ / 2) return 0;
    if (at + kAlike > path_.size()) continue;
    int beginnings = 0;
    for (const TrieNode* first = trie_.first(); first != nullptr && beginnings < kMostBeginnings;
         first = first->sibling(), ++beginnings) {
      if (begins_like(at, first)) return at;
    }
  }
  return 0;
}

bool Recorder::cut_some(bool reuse, Cut& cut) {
  const size_t count = find_beginning();
  if (count == 0) return cut_all(reuse, cut);
  write_down();
  selected_.assign(path_.size(), 0);
  std::fill_n(selected_.begin(), count, uint8_t{1});
  split(reuse, cut);
  return true;
}

// The trace is over: it ends at a node of the trie, and the next one starts at the root.
void Recorder::end_path(Cut& cut) {
  cut.request.end = at_;
  cut.request.version = version_ == kUnlikeTrie ? 0 : trie_.version();
  cut.times.begun = begun_;
  cut.times.recorded_nodes = path_.size() - left_over_;
  path_.clear();
  left_over_ = 0;
  cut.times.mark = std::exchange(mark_, nullptr);
  cut.times.divided_begun = divided_begun_;
  values_.clear();
  trace_.clear();
  version_ = 0;
  cut_at_ = kNever;
  written_values_ = 0;
  written_buffers_ = 0;
  at_ = trie_.root();
  trie_.tick();
}

// What the outputs of the trace's node `n` look like. The node of the trie that it was recorded at,
// or traced again at, may know other sizes.
std::shared_ptr<const MetaEntry> Recorder::entry_in_trace(size_t n, const TrieNode& step) const {
  const graph::Node& node = trace_.nodes[n];
  const graph::Operand* const first = trace_.operands_of(node) + (node.operand_count - node.output_count);
  const graph::Operand* operand = first;
  bool same = true;
  for (const MetaOutput& output : step.entry().outputs) {
    if (output.window != graph::kNoWindow) same &= operand++->window == output.window;
  }
  if (same) return step.shared_entry();
  auto entry = std::make_shared<MetaEntry>(step.entry());
  operand = first;
  for (MetaOutput& output : entry->outputs) {
    if (output.window == graph::kNoWindow) continue;
    output = {operand->window, holds_[operand->buffer].storage()->nbytes()};
    ++operand;
  }
  return entry;
}

// Walks the trie along what stayed in the trace.
void Recorder::retrace(const std::vector<TrieNode*>& path) {
  for (size_t i = 0; i < trace_.nodes.size(); ++i) {
    const graph::Node& node = trace_.nodes[i];
    const std::byte* const attributes = trace_.attributes.data() + node.attribute_offset;
    AttributeHeader header;
    std::memcpy(&header, attributes, sizeof(header));
    const std::byte* const structure = attributes + sizeof(header);
    const CallView call{node.op,
                        node.preference,
                        static_cast<int8_t>(default_dtype_),
                        {trace_.operands_of(node), static_cast<size_t>(node.operand_count - node.output_count)},
                        {structure, header.structure_bytes},
                        {structure + header.structure_bytes, header.size_bytes},
                        path[i]->value_bytes()};
    TrieNode* similar;
    TrieNode* next = trie_.find(at_, call, window_table(), similar);
    if (next == nullptr && similar != nullptr && same_kinds(similar->entry(), path[i]->entry(), window_table())) {
      next = similar;
      version_ = kUnlikeTrie;
    }
    at_ = next != nullptr ? next : trie_.insert(at_, call, entry_in_trace(i, *path[i]));
    path_.push_back(at_);
    version_ = std::max(version_, at_->version());
    values_.put_bytes(structure + header.structure_bytes + header.size_bytes, at_->value_bytes());
  }
  written_values_ = values_.size();
  written_buffers_ = static_cast<graph::BufferId>(holds_.size());
}

bool Recorder::cut_ancestors(std::span<HeteroStorage* const> storages, bool readers, bool reuse, Cut& cut,
                             const HeteroStorage* fetched) {
  wanted_.clear();
  for (const HeteroStorage* storage : storages) {
    if (readers ? touched(storage) : written(storage)) wanted_.push_back(storage->buffer);
  }
  if (wanted_.empty()) return false;
  const bool like_trie = version_ != kUnlikeTrie;
  if (reuse && like_trie && at_->plans().needs_all(wanted_, readers, version_)) return cut_all(reuse, cut, fetched);
  write_down();
  select_ancestors(storages, readers);
  if (std::ranges::any_of(selected_, [](uint8_t selected) { return selected == 0; }) &&
      (readers || !reuse || captures_ || !rest_uses_temporaries())) {
    split(reuse, cut, fetched);
    return true;
  }
  if (reuse && like_trie) at_->plans().learn_needs_all(wanted_, readers, trie_.version());
  return cut_all(reuse, cut, fetched);
}

void Recorder::select_ancestors(std::span<HeteroStorage* const> storages, bool readers) {
  enum : uint8_t { kTouched = 1, kWritten = 2 };  // by a later selected node
  needed_.assign(holds_.size(), 0);
  selected_.assign(trace_.nodes.size(), 0);
  for (const HeteroStorage* storage : storages) {
    if (touched(storage)) needed_[storage->buffer] = readers ? (kTouched | kWritten) : kTouched;
  }
  for (size_t i = trace_.nodes.size(); i-- > 0;) {
    const graph::Node& node = trace_.nodes[i];
    const graph::Operand* operands = trace_.operands_of(node);
    bool select = false;
    for (int k = 0; k < node.operand_count && !select; ++k) {
      const uint8_t need = needed_[operands[k].buffer];
      select = (operands[k].writes() && (need & kTouched)) || (operands[k].reads() && (need & kWritten));
    }
    if (!select) continue;
    selected_[i] = 1;
    for (int k = 0; k < node.operand_count; ++k) {
      needed_[operands[k].buffer] |= operands[k].writes() ? (kTouched | kWritten) : kTouched;
    }
  }
}

// Which buffers have an owner beside the trace, in `needed_`.
void Recorder::find_owned() {
  needed_.assign(holds_.size(), 0);
  for (size_t b = 0; b < holds_.size(); ++b) {
    const size_t owners = c10::raw::intrusive_ptr::use_count(holds_[b].storage());
    needed_[b] = owners > (holds_[b].strong() ? 1 : 0);
  }
}

// Whether nodes that are not selected use what selected ones compute and nobody else can see any
// more, as a backward pass does when the loss is read behind it. As parts of one program, they have
// no such values between them, which would have to be kept whole and in PyTorch's layout. Never
// with a rest that does more than compute: what reads files, and operators of the program's own.
bool Recorder::rest_uses_temporaries() {
  for (size_t i = 0; i < trace_.nodes.size(); ++i) {
    const graph::OpTraits& traits = graph::op_table()[trace_.nodes[i].op];
    if (selected_[i] == 0 && (traits.host_task || traits.is_foreign || traits.side_effects)) return false;
  }
  find_owned();
  std::vector<uint8_t>& computed = live_;
  computed.assign(holds_.size(), 0);
  for (size_t i = 0; i < trace_.nodes.size(); ++i) {
    const graph::Node& node = trace_.nodes[i];
    for (const graph::Operand& operand : std::span(trace_.operands_of(node), node.operand_count)) {
      if (needed_[operand.buffer] != 0) continue;
      if (selected_[i] == 0 && computed[operand.buffer] != 0) return true;
      if (selected_[i] != 0 && operand.writes()) computed[operand.buffer] = 1;
    }
  }
  return false;
}

// Of the nodes that are not selected, those whose results nobody can see any more are dropped:
// marks them in `selected_`. Else what a program computes and forgets would stay pending for ever,
// in front of everything that it does later.
void Recorder::drop_dead() {
  describe_buffers();
  find_owned();
  live_ = selected_;
  count(counters().dead_nodes, find_live(trace_, needed_, live_));
  for (size_t i = 0; i < live_.size(); ++i) {
    if (live_[i] == 0) selected_[i] = kDead;
  }
}

void Recorder::split(bool reuse, Cut& cut, const HeteroStorage* fetched) {
  if (reuse) divide(at_->plans());
  drop_dead();
  // Take everything, then put the nodes that stay back under a new epoch.
  graph::Graph all;
  std::swap(all, trace_);
  trace_.windows = &window_table();
  std::vector<StorageHold> holds;
  std::swap(holds, holds_);
  const std::vector<TrieNode*> path = path_;
  std::vector<TrieNode*> path_left;
  end_path(cut);
  next_epoch();
  cut.request.keeps = reuse;
  cut.request.version = 0;  // its nodes are not those of the path
  cut.slice.selection = selected_;

  constexpr graph::BufferId kNowhere = UINT32_MAX;
  std::vector<graph::BufferId> in_trace(all.buffers.size(), kNowhere);
  std::vector<graph::BufferId> in_cut(all.buffers.size(), kNowhere);
  for (size_t i = 0; i < all.nodes.size(); ++i) {
    if (selected_[i] == kDead) continue;
    const bool selected = selected_[i] != 0;
    if (!selected) path_left.push_back(path[i]);
    graph::Graph& to = selected ? cut.slice.graph : trace_;
    std::vector<StorageHold>& to_holds = selected ? cut.slice.holds : holds_;
    std::vector<graph::BufferId>& numbers = selected ? in_cut : in_trace;
    graph::Node node = all.nodes[i];
    const graph::Operand* operands = all.operands_of(node);
    const std::byte* attributes = all.attributes.data() + node.attribute_offset;
    node.first_operand = static_cast<uint32_t>(to.operands.size());
    node.attribute_offset = static_cast<uint32_t>(to.attributes.size());
    for (int k = 0; k < node.operand_count; ++k) {
      graph::Operand operand = operands[k];
      graph::BufferId& number = numbers[operand.buffer];
      StorageHold& hold = holds[operand.buffer];
      if (number == kNowhere) {
        number = static_cast<graph::BufferId>(to_holds.size());
        to_holds.emplace_back(hold.storage(), hold.strong());
        if (!selected) {
          uses_shared_ |= static_cast<bool>(hold.storage()->binding.sharers);
          hold.storage()->epoch = epoch_;
          hold.storage()->buffer = number;
        }
      }
      operand.buffer = number;
      to.operands.push_back(operand);
      if (!selected && operand.writes()) holds_[number].written = true;
      if (!selected && operand.access == graph::Access::kDefine) {
        pending_bytes_ += static_cast<int64_t>(all.buffers[operands[k].buffer].bytes);
      }
    }
    to.attributes.insert(to.attributes.end(), attributes, attributes + node.attribute_bytes);
    to.nodes.push_back(node);
  }
  begun_ = std::chrono::steady_clock::now();
  retrace(path_left);
  left_over_ = path_.size();
  if (!notes_.empty()) cut.slice.notes = notes_;
  // The holds of `all` die with this function, so that finish() counts only real owners. A storage
  // that both parts use is held by both, so it has an owner beside the cut and escapes.
  holds.clear();
  finish(cut.slice, fetched);
  lay_out(cut.slice);
}

void Recorder::finish(TraceSlice& slice, const HeteroStorage* fetched, uint64_t flight) {
  slice.graph.windows = &window_table();
  slice.graph.buffers.resize(slice.holds.size());
  slice.bindings.assign(slice.holds.size(), nullptr);
  for (size_t b = 0; b < slice.holds.size(); ++b) {
    StorageHold& hold = slice.holds[b];
    HeteroStorage* storage = hold.storage();
    graph::Buffer& buffer = slice.graph.buffers[b];
    buffer = {storage->nbytes(), 0, false};
    // Mostly a value that nobody can see any more.
    if (c10::raw::intrusive_ptr::use_count(storage) == 0 || !hold.lock()) continue;
    // The binding of a storage in flight belongs to who runs the flight.
    const bool flies = storage->in_flight > landed_;
    buffer.valid_on = flies ? storage->valid_later : storage->binding.valid_on;
    buffer.escapes = c10::raw::intrusive_ptr::use_count(storage) > 1 + storage->flights;
    if (buffer.valid_on != 0) {
      buffer.steady = is_steady(*storage) && !flies;
      buffer.layout = flies ? storage->layout_later : storage->binding.layout;
      buffer.bytes = buffer.layout.block_bytes(buffer.bytes);
    }
    buffer.fetched = storage == fetched || (uses_shared_ && storage->binding.sharers);
    if (buffer.escapes || buffer.valid_on != 0 || (!flies && !storage->binding.error.ok())) {
      slice.bindings[b] = &storage->binding;
    }
    if (flight == 0) continue;
    ++storage->flights;
    if (slice.bindings[b] == nullptr) continue;
    storage->in_flight = flight;
    storage->valid_later = hold.written ? uint8_t{1u << backend::kCpu} : buffer.valid_on;
    storage->layout_later = buffer.layout;
  }
}

bool Recorder::trim_caches() {
  const auto limit = static_cast<size_t>(config().cache_bytes.load(std::memory_order_relaxed));
  const bool too_many_windows = window_table().size() * kWindowBytes > limit / 4;
  const bool too_many_traces = trie_.bytes() + PlanSet::total_bytes() > limit / 2;
  meta_cache_.trim(limit / 4);
  if (!too_many_windows && !too_many_traces) return true;
  if (!path_.empty()) return false;
  mark_ = nullptr;
  if (too_many_traces) trie_.trim(limit / 2);
  // Windows have no age: programs whose shapes keep changing begin anew.
  if (too_many_windows) forget();
  return true;
}

void Recorder::forget() {
  meta_cache_.clear();
  trie_.clear();
  at_ = trie_.root();
  mark_ = nullptr;
  window_table().clear();
}

}  // namespace hetero::ops
