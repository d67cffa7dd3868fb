#include "ops/meta_cache.h"

#include <cstring>

namespace hetero::ops {
namespace {

uint64_t hash_bytes(const std::byte* bytes, size_t count) {
  uint64_t hash = 0x9E3779B97F4A7C15ull ^ count;
  const auto mix = [&hash](uint64_t word) {
    hash = (hash ^ word) * 0xBF58476D1CE4E5B9ull;
    hash ^= hash >> 29;
  };
  for (; count >= 8; bytes += 8, count -= 8) {
    uint64_t word;
    std::memcpy(&word, bytes, 8);
    mix(word);
  }
  if (count != 0) {
    uint64_t word = 0;
    std::memcpy(&word, bytes, count);
    mix(word);
  }
  return hash ^ (hash >> 32);
}

}  // namespace

void MetaCache::make_key(graph::OpId op, const Call& call, at::ScalarType default_dtype) {
  key_.clear();
  key_.put(op);
  key_.put(static_cast<int8_t>(default_dtype));
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const CallOperand& operand = call.operands[i];
    // Operands that share a storage matter to overlap checks. Only calls with many operands pay for a longer search.
    uint16_t shares = 0;
    for (size_t k = 0; k < i && k < 8; ++k) {
      if (call.operands[k].storage == operand.storage) {
        shares = static_cast<uint16_t>(k + 1);
        break;
      }
    }
    key_.put(static_cast<uint64_t>(operand.window) | static_cast<uint64_t>(operand.bits) << 32 |
             static_cast<uint64_t>(shares) << 40);
  }
  key_.put_bytes(call.structure.data(), call.structure.size());
  hash_ = hash_bytes(key_.data(), key_.size());
}

const MetaEntry* MetaCache::find() const {
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash_ & mask; slots_[i].entry != nullptr; i = (i + 1) & mask) {
    const Slot& slot = slots_[i];
    if (slot.hash == hash_ && slot.key_bytes == key_.size() &&
        std::memcmp(slot.key.get(), key_.data(), key_.size()) == 0) {
      return slot.entry.get();
    }
  }
  return nullptr;
}

const MetaEntry* MetaCache::insert(MetaEntry entry) {
  if (2 * (count_ + 1) > slots_.size()) grow();
  const size_t mask = slots_.size() - 1;
  size_t i = hash_ & mask;
  while (slots_[i].entry != nullptr) i = (i + 1) & mask;
  Slot& slot = slots_[i];
  slot.hash = hash_;
  slot.key_bytes = static_cast<uint32_t>(key_.size());
  slot.key = std::make_unique<std::byte[]>(key_.size());
  std::memcpy(slot.key.get(), key_.data(), key_.size());
  slot.entry = std::make_unique<MetaEntry>(std::move(entry));
  ++count_;
  return slot.entry.get();
}

void MetaCache::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  std::swap(old, slots_);
  const size_t mask = slots_.size() - 1;
  for (Slot& slot : old) {
    if (slot.entry == nullptr) continue;
    size_t i = slot.hash & mask;
    while (slots_[i].entry != nullptr) i = (i + 1) & mask;
    slots_[i] = std::move(slot);
  }
}

void MetaCache::clear() {
  slots_.clear();
  slots_.resize(1024);
  count_ = 0;
}

}  // namespace hetero::ops
