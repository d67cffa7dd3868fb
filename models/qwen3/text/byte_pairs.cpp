#include "qwen3/text/byte_pairs.h"

#include <algorithm>
#include <bit>

namespace hetero::qwen3 {
namespace {

// Whether `a` is done after `b`.
bool comes_later(const BytePairs::Candidate& a, const BytePairs::Candidate& b) {
  return std::pair(a.rank, a.position) > std::pair(b.rank, b.position);
}

}  // namespace

BytePairs::BytePairs(const std::array<int32_t, 256>& byte_ids, std::span<const Merge> merges) : byte_ids_(byte_ids) {
  const size_t size = std::bit_ceil(std::max<size_t>(merges.size() * 2, 16));
  shift_ = 64 - std::countr_zero(size);
  slots_.resize(size);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t pair = pair_of(merges[rank].left, merges[rank].right);
    slots_[slot_of(pair)] = {pair, static_cast<uint32_t>(rank), merges[rank].result};
  }
}

// Where the pair is, or where it would be.
size_t BytePairs::slot_of(uint64_t pair) const {
  size_t slot = (pair * 0x9E3779B97F4A7C15u) >> shift_;
  while (slots_[slot].pair != pair && slots_[slot].pair != kEmpty) slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

const BytePairs::Slot* BytePairs::find(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  const Slot& slot = slots_[slot_of(pair)];
  return slot.pair == pair ? &slot : nullptr;
}

void BytePairs::push(Workspace& workspace, int32_t position) const {
  const Symbol& left = workspace.symbols[static_cast<size_t>(position)];
  const Slot* slot = find(left.id, workspace.symbols[static_cast<size_t>(left.after)].id);
  if (slot == nullptr) return;
  workspace.queue.push_back({slot->rank, position, slot->result});
  std::ranges::push_heap(workspace.queue, comes_later);
}

void BytePairs::encode(std::string_view word, Workspace& workspace, std::vector<int32_t>& ids) const {
  std::vector<Symbol>& symbols = workspace.symbols;
  std::vector<Candidate>& queue = workspace.queue;
  symbols.clear();
  queue.clear();
  const auto count = static_cast<int32_t>(word.size());
  for (int32_t i = 0; i < count; ++i) {
    const auto byte = static_cast<unsigned char>(word[static_cast<size_t>(i)]);
    symbols.push_back({byte_ids_[byte], i - 1, i + 1 < count ? i + 1 : -1});
  }
  for (int32_t i = 0; i + 1 < count; ++i) {
    if (const Slot* slot = find(symbols[static_cast<size_t>(i)].id, symbols[static_cast<size_t>(i) + 1].id)) {
      queue.push_back({slot->rank, i, slot->result});
    }
  }
  std::ranges::make_heap(queue, comes_later);
  while (!queue.empty()) {
    std::ranges::pop_heap(queue, comes_later);
    const Candidate next = queue.back();
    queue.pop_back();
    Symbol& left = symbols[static_cast<size_t>(next.position)];
    if (left.is_gone || left.after < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.after)];
    // One of the two may have been merged with another since.
    const Slot* slot = find(left.id, right.id);
    if (slot == nullptr || slot->result != next.result) continue;
    left.id = next.result;
    left.after = right.after;
    right.is_gone = true;
    if (left.after >= 0) {
      symbols[static_cast<size_t>(left.after)].before = next.position;
      push(workspace, next.position);
    }
    if (left.before >= 0) push(workspace, left.before);
  }
  for (int32_t i = count == 0 ? -1 : 0; i >= 0; i = symbols[static_cast<size_t>(i)].after) {
    ids.push_back(symbols[static_cast<size_t>(i)].id);
  }
}

}  // namespace hetero::qwen3
