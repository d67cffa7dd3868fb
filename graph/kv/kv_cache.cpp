#include "graph/kv/kv_cache.h"

#include <algorithm>
#include <utility>

namespace hetero::graph {
namespace {

Status usage(std::string message) { return {ErrorClass::kUsage, std::move(message)}; }

Status check_options(const KvOptions& options, size_t memories) {
  if (Status status = options.layout.check(); !status.ok()) return status;
  if (options.groups <= 0 || options.slab_pages <= 0) return usage("a KV cache needs groups of layers and slabs");
  if (memories == 0 || memories > backend::kMostDevices) return usage("a KV cache needs 1 to 8 memories");
  if (options.span.window < 0 || options.span.sinks < 0 || options.most_tokens < 0) {
    return usage("a KV cache's window, sinks and most tokens cannot be negative");
  }
  if (!(options.relieved > 0 && options.relieved <= options.threshold && options.threshold <= 1)) {
    return usage("a KV cache needs 0 < relieved <= threshold <= 1");
  }
  return {};
}

}  // namespace

KvFigures kv_figures(const backend::Machine& machine, backend::DeviceIndex first, backend::DeviceIndex second,
                     double flops_per_token) {
  KvFigures figures;
  const auto out = machine.link(first, second), back = machine.link(second, first);
  if (out) figures.offload_bandwidth = out->bandwidth;
  if (back) figures.return_bandwidth = back->bandwidth;
  if (out) figures.copy_latency = out->latency;
  const backend::Capabilities& rates = machine[first].rates;
  const double flops = rates.flops_half > 0 ? rates.flops_half : rates.flops;
  if (flops_per_token > 0) figures.prefill_rate = flops / flops_per_token;
  return figures;
}

bool KvCache::Sequence::in_use() const {
  return std::find(is_acquired.begin(), is_acquired.end(), true) != is_acquired.end();
}

KvCache::KvCache(KvOptions options, std::vector<PagePool> pools, PageMover& mover,
                 std::unique_ptr<OffloadStrategy> strategy)
    : options_(std::move(options)),
      store_(std::move(pools), mover),
      index_(options_.layout.page_tokens),
      strategy_(std::move(strategy)) {}

Result<std::unique_ptr<KvCache>> KvCache::make(KvOptions options,
                                               std::vector<std::unique_ptr<backend::PageMemory>> memories,
                                               PageMover& mover) {
  if (Status status = check_options(options, memories.size()); !status.ok()) return status;
  auto strategy = make_offload_strategy(options.offload, options.span);
  if (!strategy.ok()) return strategy.status();
  std::vector<PagePool> pools;
  for (auto& memory : memories) pools.emplace_back(std::move(memory), options.layout.bytes(), options.slab_pages);
  if (pools[0].capacity() < options.groups) {
    return Status(ErrorClass::kResource, "the KV cache's first memory has room for " +
                                             std::to_string(pools[0].capacity()) + " pages, and a block takes " +
                                             std::to_string(options.groups));
  }
  return std::unique_ptr<KvCache>(
      new KvCache(std::move(options), std::move(pools), mover, std::move(strategy.value())));
}

// ---- sequences

Result<KvCache::Sequence*> KvCache::find(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return usage("the KV cache has no sequence " + std::to_string(id));
  return &found->second;
}

Result<KvCache::Sequence*> KvCache::changeable(SequenceId id) {
  Result<Sequence*> found = find(id);
  if (!found.ok()) return found;
  if (found.value()->state != SequenceState::kActive) {
    return usage("sequence " + std::to_string(id) + " is preempted; resume it first");
  }
  if (found.value()->in_use()) {
    return usage("sequence " + std::to_string(id) + " is acquired; release it first");
  }
  return found;
}

Status KvCache::check_group(int group) const {
  if (group >= 0 && group < options_.groups) return {};
  return usage("the KV cache has no group " + std::to_string(group) + " of layers");
}

SequenceId KvCache::add(Sequence sequence) {
  sequence.acquired.resize(groups());
  sequence.is_acquired.resize(groups());
  sequence.tables.resize(groups());
  sequence.valid = 0;
  for (auto& table : sequence.tables) table.reserve(static_cast<size_t>(blocks_for(options_.most_tokens)));
  const SequenceId id = next_id_++;
  sequences_.emplace(id, std::move(sequence));
  return id;
}

std::vector<BlockId> KvCache::walk(std::span<const int32_t> tokens) const {
  std::vector<BlockId> blocks;
  const auto size = static_cast<size_t>(page_tokens());
  BlockId last = PrefixIndex::kRoot;
  while (tokens.size() >= size) {
    last = index_.find(last, tokens.first(size));
    if (last == PrefixIndex::kNone) break;
    blocks.push_back(last);
    tokens = tokens.subspan(size);
  }
  return blocks;
}

int64_t KvCache::match(std::span<const int32_t> tokens) const { return std::ssize(walk(tokens)) * page_tokens(); }

SequenceId KvCache::allocate(std::span<const int32_t> tokens) {
  ++now_;
  Sequence sequence;
  sequence.blocks = walk(tokens);
  sequence.written = std::ssize(sequence.blocks) * page_tokens();
  sequence.tokens.assign(tokens.begin(), tokens.begin() + sequence.written);
  for (const BlockId block : sequence.blocks) reference(block);
  counters_.shared += std::ssize(sequence.blocks);
  return add(std::move(sequence));
}

Result<SequenceId> KvCache::fork(SequenceId id) {
  Result<Sequence*> found = find(id);
  if (!found.ok()) return found.status();
  const Sequence& from = *found.value();
  if (from.state != SequenceState::kActive) {
    return usage("sequence " + std::to_string(id) + " is preempted; resume it first");
  }
  Sequence sequence;
  sequence.tokens = from.tokens;
  sequence.blocks = from.blocks;
  sequence.written = from.written;
  for (const BlockId block : sequence.blocks) reference(block);
  counters_.shared += std::ssize(sequence.blocks);
  return add(std::move(sequence));
}

Status KvCache::extend(SequenceId id, std::span<const int32_t> tokens) {
  Result<Sequence*> found = changeable(id);
  if (!found.ok()) return found.status();
  if (tokens.empty()) return {};
  Sequence& sequence = *found.value();
  ++now_;
  const int64_t before = std::ssize(sequence.tokens), after = before + std::ssize(tokens);
  if (options_.most_tokens > 0 && after > options_.most_tokens) {
    return usage("a sequence of " + std::to_string(after) + " tokens exceeds the " +
                 std::to_string(options_.most_tokens) + " that the KV cache was made for");
  }
  const bool writes_last = before % page_tokens() != 0;
  const BlockId last = writes_last ? sequence.blocks.back() : PrefixIndex::kNone;
  const bool copies = writes_last && (references(last) > 1 || (index_.has(last) && !index_.is_leaf(last)));
  const int64_t fresh = blocks_for(after) - blocks_for(before) + (copies ? 1 : 0);

  std::vector<BlockId> blocks;
  Status status;
  if (copies) {
    for (const PageId page : pages_of(last)) store_.pin(page);
  }
  status = make_room(fresh * options_.groups);
  while (status.ok() && std::ssize(blocks) < fresh) {
    Result<BlockId> block = copies && blocks.empty() ? copy_block(last) : take_block();
    status = block.status();
    if (block.ok()) blocks.push_back(block.value());
  }
  if (copies) {
    for (const PageId page : pages_of(last)) store_.unpin(page);
  }
  if (!status.ok()) {
    for (const BlockId block : blocks) unreference(block);
    return status;
  }

  if (copies) {
    replace(sequence, sequence.blocks.size() - 1, blocks.front());
    unreference(blocks.front());  // the sequence has it now
    blocks.erase(blocks.begin());
  } else if (writes_last && index_.has(last)) {
    index_.remove(last);
  }
  counters_.allocated += fresh * options_.groups;
  counters_.copied += copies ? options_.groups : 0;
  sequence.blocks.insert(sequence.blocks.end(), blocks.begin(), blocks.end());
  sequence.tokens.insert(sequence.tokens.end(), tokens.begin(), tokens.end());
  touch(sequence.blocks.back());
  relieve();
  return {};
}

Status KvCache::truncate(SequenceId id, int64_t length) {
  Result<Sequence*> found = changeable(id);
  if (!found.ok()) return found.status();
  Sequence& sequence = *found.value();
  if (length < 0 || length > std::ssize(sequence.tokens)) {
    return usage("a sequence of " + std::to_string(sequence.tokens.size()) + " tokens cannot be truncated to " +
                 std::to_string(length));
  }
  ++now_;
  sequence.tokens.resize(static_cast<size_t>(length));
  sequence.written = std::min(sequence.written, length);
  drop_blocks(sequence, static_cast<size_t>(blocks_for(length)));
  return {};
}

Status KvCache::free(SequenceId id) {
  Result<Sequence*> found = find(id);
  if (!found.ok()) return found.status();
  if (found.value()->in_use()) return changeable(id).status();
  ++now_;
  drop_blocks(*found.value(), 0);
  sequences_.erase(id);
  return {};
}

Status KvCache::written(SequenceId id, int64_t length) {
  Result<Sequence*> found = changeable(id);
  if (!found.ok()) return found.status();
  Sequence& sequence = *found.value();
  if (length < sequence.written || length > std::ssize(sequence.tokens)) {
    return usage("of " + std::to_string(sequence.tokens.size()) + " tokens, " + std::to_string(sequence.written) +
                 " were written; " + std::to_string(length) + " does not follow");
  }
  const auto first = static_cast<size_t>(sequence.written / page_tokens());
  sequence.written = length;
  for (size_t block = first; block < static_cast<size_t>(length / page_tokens()); ++block) seal(sequence, block);
  return {};
}

// ---- blocks

BlockId KvCache::new_block() {
  if (unused_blocks_.empty()) {
    references_.push_back(0);
    pages_.resize(pages_.size() + groups(), -1);
    return static_cast<BlockId>(references_.size() - 1);
  }
  const BlockId block = unused_blocks_.back();
  unused_blocks_.pop_back();
  return block;
}

Result<BlockId> KvCache::take_block() {
  const BlockId block = new_block();
  for (PageId& page : pages_of(block)) {
    Result<PageId> taken = store_.take();
    if (!taken.ok()) {
      forget_block(block);
      return taken.status();
    }
    page = taken.value();
    store_.touch(page, now_);
  }
  references(block) = 1;
  return block;
}

Result<BlockId> KvCache::copy_block(BlockId from) {
  const BlockId block = new_block();
  for (size_t group = 0; group < groups(); ++group) {
    const PageId source = page(from, group);
    (void)store_.finish(source, /*keep=*/true);  // wherever it ends, it is whole there
    Result<PageId> copy = store_.duplicate(source);
    if (!copy.ok()) {
      forget_block(block);
      return copy.status();
    }
    pages_of(block)[group] = copy.value();
    store_.touch(copy.value(), now_);
  }
  references(block) = 1;
  return block;
}

void KvCache::forget_block(BlockId block) {
  for (PageId& page : pages_of(block)) {
    if (page >= 0) store_.drop(page);
    page = -1;
  }
  references(block) = 0;
  unused_blocks_.push_back(block);
}

void KvCache::reference(BlockId block) {
  if (references(block)++ > 0) return;
  if (!index_.has(block)) return;
  index_.set_used(block);
  for (const PageId page : pages_of(block)) store_.set_idle(page, false);
}

void KvCache::unreference(BlockId block) {
  if (--references(block) > 0) return;
  if (!index_.has(block)) return forget_block(block);
  index_.set_idle(block, now_);
  for (const PageId page : pages_of(block)) store_.set_idle(page, true);
}

bool KvCache::pinned(BlockId block) const {
  for (size_t group = 0; group < groups(); ++group) {
    if (store_.pinned(page(block, group))) return true;
  }
  return false;
}

void KvCache::touch(BlockId block) {
  for (const PageId page : pages_of(block)) store_.touch(page, now_);
}

// From the end: a block in use has blocks in use before it.
void KvCache::drop_blocks(Sequence& sequence, size_t keep) {
  while (sequence.blocks.size() > keep) {
    unreference(sequence.blocks.back());
    sequence.blocks.pop_back();
  }
  sequence.invalidate_from(keep);
}

void KvCache::replace(Sequence& sequence, size_t place, BlockId by) {
  reference(by);
  unreference(std::exchange(sequence.blocks[place], by));
  sequence.invalidate_from(place);
}

void KvCache::seal(Sequence& sequence, size_t place) {
  const BlockId block = sequence.blocks[place];
  if (index_.has(block)) return;
  const BlockId parent = place == 0 ? PrefixIndex::kRoot : sequence.blocks[place - 1];
  // Behind a block that could not be replaced by its equal, nothing is found by its tokens.
  if (place > 0 && !index_.has(parent)) return;
  const auto size = static_cast<size_t>(page_tokens());
  const auto tokens = std::span<const int32_t>(sequence.tokens).subspan(place * size, size);
  const BlockId equal = index_.find(parent, tokens);
  if (equal == PrefixIndex::kNone) return index_.insert(block, parent, tokens);
  if (references(block) > 1 || pinned(block)) return;
  // The better placed page of each pair is kept.
  for (size_t group = 0; group < groups(); ++group) {
    PageId& kept = pages_of(equal)[group];
    PageId& other = pages_of(block)[group];
    if (store_.state(kept) != PageState::kAway || store_.state(other) != PageState::kResident) continue;
    const bool idle = store_.idle(kept);
    store_.set_idle(kept, false);
    std::swap(kept, other);
    store_.set_idle(kept, idle);
    store_.note_change();
  }
  ++counters_.shared;
  replace(sequence, place, equal);
}

// ---- reading

void KvCache::refresh(Sequence& sequence) {
  if (sequence.version != store_.version()) sequence.valid = 0;
  for (size_t group = 0; group < groups(); ++group) {
    std::vector<int32_t>& table = sequence.tables[group];
    table.resize(sequence.blocks.size());
    for (size_t i = sequence.valid; i < table.size(); ++i) table[i] = store_.slot(page(sequence.blocks[i], group));
  }
  sequence.valid = sequence.blocks.size();
  sequence.version = store_.version();
}

Result<std::span<const int32_t>> KvCache::table(SequenceId id, int group) {
  Result<Sequence*> found = find(id);
  if (!found.ok()) return found.status();
  if (Status status = check_group(group); !status.ok()) return status;
  refresh(*found.value());
  return std::span<const int32_t>(found.value()->tables[static_cast<size_t>(group)]);
}

Status KvCache::fill_tables(std::span<const SequenceId> ids, int group, int32_t* rows, int64_t row) {
  for (const SequenceId id : ids) {
    const auto found = table(id, group);
    if (!found.ok()) return found.status();
    if (std::ssize(found.value()) <= row) continue;
    return usage("the block table of sequence " + std::to_string(id) + " has " + std::to_string(found.value().size()) +
                 " blocks, and a row " + std::to_string(row));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto found = table(ids[i], group);
    int32_t* const to = rows + static_cast<int64_t>(i) * row;
    std::ranges::copy(found.value(), to);
    std::fill(to + found.value().size(), to + row, -1);
  }
  return {};
}

Status KvCache::slots(SequenceId id, int group, int64_t first, std::span<int64_t> slots) const {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return usage("the KV cache has no sequence " + std::to_string(id));
  if (Status status = check_group(group); !status.ok()) return status;
  const Sequence& sequence = found->second;
  const int64_t length = std::ssize(sequence.tokens);
  if (first < 0 || first > length || std::ssize(slots) > length - first || sequence.state != SequenceState::kActive) {
    return usage("sequence " + std::to_string(id) + " has no pages for tokens " + std::to_string(first) + " to " +
                 std::to_string(first + std::ssize(slots)));
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    const int64_t token = first + static_cast<int64_t>(i);
    const BlockId block = sequence.blocks[static_cast<size_t>(token / page_tokens())];
    const int64_t slot = store_.slot(page(block, static_cast<size_t>(group)));
    if (slot < 0) return usage("a page of sequence " + std::to_string(id) + " is not resident; acquire it first");
    slots[i] = slot * page_tokens() + token % page_tokens();
  }
  return {};
}

std::vector<PageId> KvCache::read_pages(const Sequence& sequence, size_t group) const {
  const int64_t length = std::ssize(sequence.tokens), blocks = std::ssize(sequence.blocks);
  int64_t sinks = 0, window = 0;  // blocks before `sinks` and from `window`
  if (options_.span.window > 0 && length > 0) {
    const int64_t query = std::min(sequence.written, length - 1);
    window = std::max<int64_t>(query - options_.span.window + 1, 0) / page_tokens();
    sinks = std::min(blocks_for(options_.span.sinks), window);
  }
  std::vector<PageId> pages;
  for (int64_t i = 0; i < blocks; ++i) {
    if (i >= sinks && i < window) continue;
    pages.push_back(page(sequence.blocks[static_cast<size_t>(i)], group));
  }
  return pages;
}

Status KvCache::acquire(SequenceId id, int group) {
  Result<Sequence*> found = find(id);
  if (!found.ok()) return found.status();
  if (Status status = check_group(group); !status.ok()) return status;
  Sequence& sequence = *found.value();
  const auto g = static_cast<size_t>(group);
  if (sequence.state != SequenceState::kActive || sequence.is_acquired[g]) {
    return usage("sequence " + std::to_string(id) + (sequence.is_acquired[g] ? " is acquired" : " is preempted"));
  }
  ++now_;
  std::vector<PageId> pages = read_pages(sequence, g);
  for (const PageId page : pages) store_.pin(page);
  if (Status status = bring(pages); !status.ok()) {
    for (const PageId page : pages) store_.unpin(page);
    return status;
  }
  for (const PageId page : pages) store_.touch(page, now_);
  sequence.acquired[g] = std::move(pages);
  sequence.is_acquired[g] = true;
  return {};
}

Status KvCache::release(SequenceId id, int group) {
  Result<Sequence*> found = find(id);
  if (!found.ok()) return found.status();
  if (Status status = check_group(group); !status.ok()) return status;
  Sequence& sequence = *found.value();
  const auto g = static_cast<size_t>(group);
  if (!sequence.is_acquired[g]) return usage("sequence " + std::to_string(id) + " is not acquired");
  for (const PageId page : sequence.acquired[g]) store_.unpin(page);
  sequence.acquired[g].clear();
  sequence.is_acquired[g] = false;
  relieve();
  return {};
}

Status KvCache::prefetch(SequenceId id, int group) {
  Result<Sequence*> found = find(id);
  if (!found.ok()) return found.status();
  if (Status status = check_group(group); !status.ok()) return status;
  store_.settle();
  if (found.value()->state != SequenceState::kActive) return {};
  for (const PageId page : read_pages(*found.value(), static_cast<size_t>(group))) {
    if (store_.state(page) != PageState::kAway) continue;
    if (store_.free() == 0) break;
    if (Status status = store_.come(page); !status.ok()) return status;
  }
  return {};
}

// ---- counters and checks

KvCounters KvCache::counters() const {
  KvCounters counters = counters_;
  counters.offloaded = store_.counters().left;
  counters.brought_back = store_.counters().came_back;
  counters.failed_moves = store_.counters().failed_moves;
  return counters;
}

Status KvCache::check() const {
  std::vector<int32_t> counted(references_.size(), 0);
  for (const auto& [id, sequence] : sequences_) {
    const bool dropped = sequence.state == SequenceState::kDropped;
    const int64_t wanted = dropped ? 0 : blocks_for(std::ssize(sequence.tokens));
    if (std::ssize(sequence.blocks) != wanted || sequence.written > std::ssize(sequence.tokens)) {
      return {ErrorClass::kInternal, "sequence " + std::to_string(id) + " has a wrong number of blocks"};
    }
    for (const BlockId block : sequence.blocks) ++counted[static_cast<size_t>(block)];
  }
  int64_t live = 0;
  for (size_t i = 0; i < references_.size(); ++i) {
    const auto block = static_cast<BlockId>(i);
    if (counted[i] != references_[i]) {
      return {ErrorClass::kInternal, "block " + std::to_string(i) + " has a wrong number of references"};
    }
    if (references_[i] == 0 && !index_.has(block)) continue;
    for (size_t group = 0; group < groups(); ++group) {
      ++live;
      if (store_.state(page(block, group)) == PageState::kFree ||
          store_.idle(page(block, group)) != (references_[i] == 0)) {
        return {ErrorClass::kInternal, "block " + std::to_string(i) + " has a page in a wrong state"};
      }
    }
  }
  int64_t taken = 0;
  for (int memory = 0; memory < store_.memories(); ++memory) taken += store_.pool(memory).used();
  if (taken != live + store_.moving()) {
    return {ErrorClass::kInternal, std::to_string(taken) + " pages are taken and " + std::to_string(live) + " in use"};
  }
  return {};
}

}  // namespace hetero::graph
