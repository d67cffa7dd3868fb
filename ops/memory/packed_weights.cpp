#include "ops/memory/packed_weights.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "backend/file/file.h"
#include "ops/settings/config.h"

namespace hetero::ops {
namespace {

std::atomic<int64_t> packed_bytes;
std::atomic<int64_t> charged_bytes;  // of these, what counts for the limit

// Of the machine, or of the container that the process is in.
int64_t machine_bytes() {
  static const int64_t bytes = [] {
    int64_t least = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
      int64_t limit = 0;
      if (std::ifstream(path) >> limit && limit > 0) least = std::min(least, limit);
    }
    return least;
  }();
  return bytes;
}

// Room for a packed weight of `bytes`, `charged` of which count for the limit; given back unless
// kept.
class Room {
 public:
  static bool may_be_found(int64_t bytes, int64_t charged) {
    return fits(packed_bytes.load(std::memory_order_relaxed), bytes, charged_bytes.load(std::memory_order_relaxed),
                charged);
  }
  Room(int64_t bytes, int64_t charged) : bytes_(bytes), charged_(charged) {
    const int64_t all = packed_bytes.fetch_add(bytes), counted = charged_bytes.fetch_add(charged);
    found_ = fits(all, bytes, counted, charged);
  }
  ~Room() {
    packed_bytes -= bytes_;
    charged_bytes -= charged_;
  }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  bool found() const { return found_; }
  // In the end so many stay taken: forms are padded.
  void keep(int64_t bytes, int64_t charged) {
    packed_bytes += bytes - std::exchange(bytes_, 0);
    charged_bytes += charged - std::exchange(charged_, 0);
  }

 private:
  static bool fits(int64_t all, int64_t bytes, int64_t counted, int64_t charged) {
    const int64_t most = config().packed_bytes.load(std::memory_order_relaxed);
    if (most <= 0 || all + bytes > machine_bytes() / 2) return false;
    return charged <= 0 || counted + charged <= std::min(most, machine_bytes() / 8);
  }

  int64_t bytes_, charged_;
  bool found_ = false;
};

}  // namespace

PackedWeights::~PackedWeights() {
  const std::unique_ptr<Entry> entries(first_.load());
  for (const Entry* entry = entries.get(); entry != nullptr; entry = entry->next.get()) give_back(*entry);
}

void PackedWeights::give_back(const Entry& entry) {
  packed_bytes -= entry.made.bytes;
  charged_bytes -= entry.charged;
}

int64_t PackedWeights::next_serial() {
  static std::atomic<int64_t> last{0};
  return ++last;
}

// REQUIRES: the lock.
void PackedWeights::drop_outdated(const PackedKey& key) {
  std::unique_ptr<Entry> left(first_.exchange(nullptr)), kept;
  std::unique_ptr<Entry>* end = &kept;
  while (left != nullptr) {
    std::unique_ptr<Entry> entry = std::exchange(left, nullptr);
    left = std::move(entry->next);
    PackedKey now = entry->key;
    now.serials = key.serials;
    if (now == key && entry->key != key) {
      give_back(*entry);
      continue;
    }
    *end = std::move(entry);
    end = &(*end)->next;
  }
  first_.store(kept.release(), std::memory_order_release);
}

PackedWeights* PackedWeights::of_operand(const graph::Invocation& invocation, int operand) {
  graph::Binding* const binding = binding_of(invocation, operand);
  if (binding == nullptr) return nullptr;
  graph::Derived* derived = binding->derived.get();
  if (derived == nullptr) derived = binding->derived.publish(std::make_unique<PackedWeights>(binding->mapped));
  return dynamic_cast<PackedWeights*>(derived);
}

bool PackedWeights::stay(const graph::Invocation& invocation, int operand) {
  const graph::Binding* const binding = binding_of(invocation, operand);
  if (binding == nullptr) return false;
  const auto* const weights = dynamic_cast<const PackedWeights*>(binding->derived.get());
  return weights != nullptr && weights->stay_.load(std::memory_order_relaxed);
}

const PackedWeights::Entry* PackedWeights::find(const PackedKey& key) const {
  const Entry* entry = first_.load(std::memory_order_acquire);
  while (entry != nullptr && entry->key != key) entry = entry->next.get();
  return entry;
}

bool PackedWeights::has_replaced(const void* bytes, int64_t count) const {
  const auto* const begin = static_cast<const std::byte*>(bytes);
  const Entry* entry = first_.load(std::memory_order_acquire);
  for (; entry != nullptr; entry = entry->next.get()) {
    const auto* const other = static_cast<const std::byte*>(entry->key.address);
    if (begin < other + entry->replaced && other < begin + count) return true;
  }
  return false;
}

bool PackedWeights::has_one_of_several() const {
  const Entry* entry = first_.load(std::memory_order_acquire);
  while (entry != nullptr && entry->key.serials == PackedKey{}.serials) entry = entry->next.get();
  return entry != nullptr;
}

const at::Tensor* PackedWeights::find_or_make(const PackedKey& key, int64_t bytes, int64_t plain,
                                              backend::FunctionRef<Made()> make) {
  if (const Entry* entry = find(key)) return &entry->made.packed;
  const bool is_of_several = key.serials != PackedKey{}.serials;
  // Of several forms, the first one replaces the bytes.
  const auto replaced_now = [&] { return mapped_ && !has_replaced(key.address, plain) ? plain : 0; };
  const auto charge = [](int64_t bytes, int64_t replaced) { return std::max<int64_t>(0, bytes - replaced); };
  if (!is_of_several && !Room::may_be_found(bytes, charge(bytes, replaced_now()))) return nullptr;
  const std::lock_guard lock(mutex_);
  if (const Entry* entry = find(key)) return &entry->made.packed;
  if (is_of_several) drop_outdated(key);
  const int64_t replaced = replaced_now();
  Room room(bytes, charge(bytes, replaced));
  if (!room.found()) return nullptr;
  auto added = std::make_unique<Entry>(Entry{key, make(), 0, 0, nullptr});
  const bool has_form = added->made.packed.defined();
  if (!has_form) added->made.bytes = 0;
  // What was replaced before, packing has read again.
  const bool drops = mapped_ && plain > 0 && (has_form || has_replaced(key.address, plain));
  if (drops && backend::drop_pages(key.address, static_cast<size_t>(plain)) && has_form) added->replaced = replaced;
  added->charged = charge(added->made.bytes, added->replaced);
  room.keep(added->made.bytes, added->charged);
  added->next.reset(first_.load(std::memory_order_relaxed));
  first_.store(added.get(), std::memory_order_release);
  return &added.release()->made.packed;
}

graph::Binding* binding_of(const graph::Invocation& invocation, int operand) {
  return invocation.bindings == nullptr ? nullptr : invocation.bindings[invocation.operands[operand].buffer];
}

int64_t packed_weight_bytes() { return packed_bytes; }

bool has_room_to_pack(int64_t bytes) { return Room::may_be_found(bytes, bytes); }

}  // namespace hetero::ops
