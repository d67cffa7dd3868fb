#include "ops/record/meta_cache.h"

#include <algorithm>
#include <cstring>

namespace hetero::ops {
namespace {

uint64_t hash_words(const uint64_t* words, size_t count) {
  uint64_t hash = 0x9E3779B97F4A7C15ull;
  for (size_t i = 0; i < count; ++i) {
    hash = (hash ^ words[i]) * 0xBF58476D1CE4E5B9ull;
    hash ^= hash >> 32;
  }
  return hash;
}

// Keys are a few words: a loop is faster than memcmp.
bool same_words(const uint64_t* a, const uint64_t* b, size_t count) {
  uint64_t difference = 0;
  for (size_t i = 0; i < count; ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

// Operands that share a storage matter to overlap checks. Only calls with many operands pay for a
// longer search.
uint64_t earlier_sharer(const std::vector<CallOperand>& operands, size_t i) {
  for (size_t k = 0; k < i && k < 8; ++k) {
    if (operands[k].storage == operands[i].storage) return k + 1;
  }
  return 0;
}

// Bytes has room for a last word; what lies behind its end is masked out.
uint64_t* put_bytes(uint64_t* word, const Bytes& bytes) {
  const size_t size = bytes.size();
  for (size_t i = 0; i < size; i += 8) std::memcpy(word++, bytes.data() + i, 8);
  if (size % 8 != 0) word[-1] &= (uint64_t{1} << 8 * (size % 8)) - 1;
  return word;
}

}  // namespace

void MetaCache::make_key(graph::OpId op, const Call& call, at::ScalarType default_dtype) {
  const size_t operands = call.operands.size();
  const size_t structure = call.structure.size();
  const size_t sizes = call.sizes.size();
  key_words_ = 2 + operands + (structure + 7) / 8 + (sizes + 7) / 8;
  if (key_words_ > key_.size()) [[unlikely]]
    key_.resize(2 * key_words_);
  uint64_t* word = key_.data();
  *word++ = static_cast<uint64_t>(op) | static_cast<uint64_t>(default_dtype) << 32;
  *word++ = static_cast<uint64_t>(structure) | static_cast<uint64_t>(sizes) << 32;
  for (size_t i = 0; i < operands; ++i) {
    const CallOperand& operand = call.operands[i];
    *word++ = static_cast<uint64_t>(operand.window) | static_cast<uint64_t>(operand.bits) << 32 |
              earlier_sharer(call.operands, i) << 40;
  }
  word = put_bytes(word, call.structure);
  put_bytes(word, call.sizes);
  hash_ = hash_words(key_.data(), key_words_);
}

const std::shared_ptr<const MetaEntry>* MetaCache::find() {
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash_ & mask; slots_[i].entry != nullptr; i = (i + 1) & mask) {
    Slot& slot = slots_[i];
    if (slot.hash == hash_ && slot.key_words == key_words_ && same_words(slot.key.get(), key_.data(), key_words_)) {
      slot.found_at = ++clock_;
      return &slot.entry;
    }
  }
  return nullptr;
}

const MetaEntry* MetaCache::insert(MetaEntry entry) {
  if (2 * (count_ + 1) > slots_.size()) rehash(2 * slots_.size());
  const size_t mask = slots_.size() - 1;
  size_t i = hash_ & mask;
  while (slots_[i].entry != nullptr) i = (i + 1) & mask;
  Slot& slot = slots_[i];
  slot.hash = hash_;
  slot.key_words = static_cast<uint32_t>(key_words_);
  slot.key = std::make_unique<uint64_t[]>(key_words_);
  slot.found_at = ++clock_;
  std::copy_n(key_.data(), key_words_, slot.key.get());
  slot.entry = std::make_shared<const MetaEntry>(std::move(entry));
  ++count_;
  bytes_ += slot.bytes();
  return slot.entry.get();
}

size_t MetaCache::Slot::bytes() const {
  constexpr size_t kOverhead = 64;  // of the heap, for three blocks
  return sizeof(Slot) + key_words * sizeof(uint64_t) + sizeof(MetaEntry) + entry->outputs.size() * sizeof(MetaOutput) +
         entry->list_lengths.size() * sizeof(uint32_t) + kOverhead;
}

void MetaCache::rehash(size_t slots) {
  std::vector<Slot> old(slots);
  std::swap(old, slots_);
  const size_t mask = slots_.size() - 1;
  for (Slot& slot : old) {
    if (slot.entry == nullptr) continue;
    size_t i = slot.hash & mask;
    while (slots_[i].entry != nullptr) i = (i + 1) & mask;
    slots_[i] = std::move(slot);
  }
}

void MetaCache::trim(size_t limit) {
  if (bytes_ <= limit) return;
  // Down to half, so that this is rare.
  std::vector<std::pair<uint64_t, size_t>> ages;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].entry != nullptr) ages.emplace_back(slots_[i].found_at, i);
  }
  std::sort(ages.begin(), ages.end());
  for (const auto& [age, i] : ages) {
    if (bytes_ <= limit / 2) break;
    bytes_ -= slots_[i].bytes();
    slots_[i] = Slot();
    --count_;
  }
  rehash(slots_.size());
}

void MetaCache::clear() {
  slots_.clear();
  slots_.resize(1024);
  count_ = 0;
  bytes_ = 0;
}

}  // namespace hetero::ops
