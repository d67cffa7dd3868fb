// Forms of weights that kernels keep for the next run, in the layout of one implementation.
//
// They belong to the storage's binding (graph::Binding::derived) and go when its bytes change. All
// of a process take at most config().packed_bytes.
//
// Thread safety: any thread. What is packed is found without a lock.

#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "graph/ir/binding.h"
#include "graph/ir/op.h"
#include "ops/settings/config.h"

namespace hetero::ops {

// Of lazy programs. Others pack beforehand.
inline constexpr int kUsesBeforePacking = 8;

// Of all weights that are packed now.
inline std::atomic<int64_t> packed_bytes{0};

// Room for a packed weight, within the limit; what is not kept is given back.
class PackingRoom {
 public:
  static bool may_be_found(int64_t bytes) {
    return packed_bytes.load(std::memory_order_relaxed) + bytes <=
           config().packed_bytes.load(std::memory_order_relaxed);
  }
  explicit PackingRoom(int64_t bytes) : bytes_(bytes) {
    found_ = packed_bytes.fetch_add(bytes) + bytes <= config().packed_bytes.load(std::memory_order_relaxed);
  }
  ~PackingRoom() { packed_bytes -= bytes_ - kept_; }
  PackingRoom(const PackingRoom&) = delete;
  PackingRoom& operator=(const PackingRoom&) = delete;
  bool found() const { return found_; }
  // REQUIRES: bytes are no more than the room's.
  void keep(int64_t bytes) { kept_ = bytes; }

 private:
  const int64_t bytes_;
  bool found_ = false;
  int64_t kept_ = 0;
};

// A packed weight, and the bytes that it takes; undefined where the weight has values that the
// implementation cannot have.
struct PackedForm {
  at::Tensor form;
  int64_t bytes;
};

// The packed forms of the weights of one storage, and how often these were used since the bytes
// last changed. Executors of one model share them, and run at once.
//
//   struct Key { bool operator==(const Key&) const = default; };   // which weight, in which form
template <typename Key>
class PackedForms final : public graph::Derived {
 public:
  std::atomic<int> uses{0};

  ~PackedForms() override {
    const std::unique_ptr<const Entry> entries(first_.load());
    for (const Entry* entry = entries.get(); entry != nullptr; entry = entry->next.get())
      packed_bytes -= entry->packed.bytes;
  }

  // The storage's; null where nothing may be kept of it, or another kernel keeps something.
  static PackedForms* of(const graph::Invocation& invocation, int operand) {
    graph::Binding* const binding =
        invocation.bindings == nullptr ? nullptr : invocation.bindings[invocation.operands[operand].buffer];
    if (binding == nullptr) return nullptr;
    graph::Derived* derived = binding->derived.get();
    if (derived == nullptr) derived = binding->derived.publish(std::make_unique<PackedForms>());
    return dynamic_cast<PackedForms*>(derived);
  }

  // A weight that changes often is never worth packing.
  void note_use() {
    if (uses.load(std::memory_order_relaxed) < kUsesBeforePacking) uses.fetch_add(1, std::memory_order_relaxed);
  }

  // The form for the key; pack() makes it now if it is not there. Null where there is no room for
  // `most` bytes.
  template <typename Pack>
  const at::Tensor* get(const Key& key, int64_t most, const Pack& pack) {
    if (const Entry* found = find(key)) return &found->packed.form;
    if (!PackingRoom::may_be_found(most)) return nullptr;
    const std::lock_guard lock(mutex_);
    if (const Entry* found = find(key)) return &found->packed.form;
    PackingRoom room(most);
    if (!room.found()) return nullptr;
    auto added = std::make_unique<Entry>(Entry{key, pack(), nullptr});
    const Entry* const entry = added.get();
    added->next.reset(first_.load(std::memory_order_relaxed));
    first_.store(added.release(), std::memory_order_release);
    room.keep(entry->packed.bytes);
    return &entry->packed.form;
  }

 private:
  struct Entry {
    Key key;
    PackedForm packed;
    std::unique_ptr<const Entry> next;  // older
  };
  const Entry* find(const Key& key) const {
    const Entry* entry = first_.load(std::memory_order_acquire);
    while (entry != nullptr && !(entry->key == key)) entry = entry->next.get();
    return entry;
  }

  std::mutex mutex_;                          // of who packs
  std::atomic<const Entry*> first_{nullptr};  // what is there neither moves nor changes
};

}  // namespace hetero::ops
