#include "ops/memory/packed_weights.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "backend/file/file.h"
#include "ops/settings/config.h"

namespace hetero::ops {
namespace {

std::atomic<int64_t> packed_bytes;
std::atomic<int64_t> charged_bytes;  // of these, what counts for the limit

int64_t most_bytes() {
  constexpr int64_t kShare = 8;
  static const int64_t of_machine = sysconf(_SC_PHYS_PAGES) / kShare * sysconf(_SC_PAGESIZE);
  return std::min(config().packed_bytes.load(std::memory_order_relaxed), of_machine);
}

// Room for a packed weight, within the limit; given back unless kept.
class Room {
 public:
  static bool may_be_found(int64_t bytes) {
    return charged_bytes.load(std::memory_order_relaxed) + bytes <= most_bytes();
  }
  explicit Room(int64_t bytes) : bytes_(bytes) { found_ = charged_bytes.fetch_add(bytes) + bytes <= most_bytes(); }
  ~Room() { charged_bytes -= bytes_; }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  bool found() const { return found_; }
  // In the end `bytes` stay taken: forms are padded.
  void keep(int64_t bytes) { charged_bytes += bytes - std::exchange(bytes_, 0); }

 private:
  int64_t bytes_;
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
  return weights != nullptr && weights->worth_packing();
}

const PackedWeights::Entry* PackedWeights::find(const PackedKey& key) const {
  const Entry* entry = first_.load(std::memory_order_acquire);
  while (entry != nullptr && entry->key != key) entry = entry->next.get();
  return entry;
}

bool PackedWeights::has_form_at(const void* address) const {
  const Entry* entry = first_.load(std::memory_order_acquire);
  while (entry != nullptr && (entry->key.address != address || !entry->made.packed.defined()))
    entry = entry->next.get();
  return entry != nullptr;
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
  if (!mapped_) plain = 0;
  if (!is_of_several && !Room::may_be_found(bytes - plain)) return nullptr;
  const std::lock_guard lock(mutex_);
  if (const Entry* entry = find(key)) return &entry->made.packed;
  if (is_of_several) drop_outdated(key);
  // The first form alone.
  if (has_form_at(key.address)) plain = 0;
  Room room(std::max<int64_t>(0, bytes - plain));
  if (!room.found()) return nullptr;
  auto added = std::make_unique<Entry>(Entry{key, make(), 0, nullptr});
  if (!added->made.packed.defined()) added->made.bytes = 0;
  added->charged = std::max<int64_t>(0, added->made.bytes - plain);
  room.keep(added->charged);
  packed_bytes += added->made.bytes;
  if (mapped_ && added->made.packed.defined()) backend::drop_pages(key.address, static_cast<size_t>(plain));
  added->next.reset(first_.load(std::memory_order_relaxed));
  first_.store(added.get(), std::memory_order_release);
  return &added.release()->made.packed;
}

graph::Binding* binding_of(const graph::Invocation& invocation, int operand) {
  return invocation.bindings == nullptr ? nullptr : invocation.bindings[invocation.operands[operand].buffer];
}

int64_t packed_weight_bytes() { return packed_bytes; }

}  // namespace hetero::ops
