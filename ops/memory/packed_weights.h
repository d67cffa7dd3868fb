// Weights that kernels keep in another layout: packed once, used until their bytes change.
//
// The packed forms of a storage's weights are derived data of its binding (graph/ir/binding.h),
// which drops them when the bytes change. Together they take at most config().packed_bytes, and at
// most an eighth of the machine's memory. What comes in the place of a file's bytes does not count
// for these, but is at most half of the machine's: the weights of a loaded program leave the
// process's memory when they are packed, and are read again where somebody wants them. A weight is
// worth packing once it was used kUsesBeforePacking times unchanged; programs with bound addresses,
// whose weights do not change, pack in advance.
//
// Thread safety: any thread. Executors of one model share what is packed, and run at once: they
// find it without a lock.

#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>

#include "backend/base/function_ref.h"
#include "backend/cpu/kernels/matvec.h"
#include "graph/ir/binding.h"
#include "graph/ir/graph.h"

namespace hetero::ops {

inline constexpr int kUsesBeforePacking = 8;

enum class PackedForm : uint8_t { kPanels, kTiles, kBlas, kFilter, kFilterBias, kLstmInput, kLstmHidden };

// A matrix [n, k] in a storage, and the form it is packed in.
struct PackedKey {
  PackedForm form;
  backend::Element element;
  const void* address;
  int64_t n, k, stride;
  bool columns;
  // Of a convolution's filter: those that its form depends on, and where what is folded into it is.
  std::array<int64_t, 20> settings{};
  // Of what is folded into it: PackedWeights::serial().
  std::array<int64_t, 5> serials{};
  bool operator==(const PackedKey&) const = default;
  int64_t dense_bytes() const { return n * k * backend::element_bytes(element); }
};

class PackedWeights final : public graph::Derived {
 public:
  struct Made {
    at::Tensor packed;  // undefined where the weight has no such form
    int64_t bytes;
  };

  explicit PackedWeights(bool mapped) : mapped_(mapped) {}
  ~PackedWeights() override;
  // Those of an operand's storage; null where nothing can keep them.
  static PackedWeights* of_operand(const graph::Invocation& invocation, int operand);

  // Whether note_that_bytes_stay() was said of the operand's storage.
  static bool stay(const graph::Invocation& invocation, int operand);

  // The weight in that form, made now if it was not before; undefined where it has none. Null where
  // there is no room for `bytes`. `make` says how many the form takes in the end. It comes in the
  // place of `plain` bytes at the key's address. Drops what differs from a key with serial numbers
  // in these only. REQUIRES: nobody else uses that.
  const at::Tensor* find_or_make(const PackedKey& key, int64_t bytes, int64_t plain, backend::FunctionRef<Made()> make);

  // Differs whenever the bytes may differ: for what is derived of several storages.
  int64_t serial() const { return serial_; }
  bool empty() const { return first_.load(std::memory_order_relaxed) == nullptr; }
  // Whether a form is kept that is derived of several storages.
  bool has_one_of_several() const;

  // A weight that changes often is never worth packing.
  void note_use() {
    if (!worth_packing()) uses_.fetch_add(1, std::memory_order_relaxed);
  }
  void note_that_bytes_stay() {
    stay_.store(true, std::memory_order_relaxed);
    uses_ = kUsesBeforePacking;
  }
  void forget_uses() { uses_ = 0; }
  bool was_used(int times) const { return uses_.load(std::memory_order_relaxed) >= times; }
  bool worth_packing() const { return was_used(kUsesBeforePacking); }

 private:
  struct Entry {
    PackedKey key;
    Made made;
    int64_t charged;              // bytes of the limit
    int64_t replaced;             // bytes at the key's address in the place of which it came
    std::unique_ptr<Entry> next;  // older
  };
  const Entry* find(const PackedKey& key) const;
  bool has_replaced(const void* bytes, int64_t count) const;
  void drop_outdated(const PackedKey& key);
  static void give_back(const Entry& entry);
  static int64_t next_serial();

  const bool mapped_;  // graph::Binding::mapped
  const int64_t serial_ = next_serial();
  std::atomic<bool> stay_{false};
  std::atomic<int> uses_{0};            // since the bytes last changed
  std::mutex mutex_;                    // of who packs
  std::atomic<Entry*> first_{nullptr};  // what is there neither moves nor changes
};

// Null where there is none.
graph::Binding* binding_of(const graph::Invocation& invocation, int operand);

// Of all weights that are packed now.
int64_t packed_weight_bytes();
// Whether there would be room for so many more beside them.
bool has_room_to_pack(int64_t bytes);

}  // namespace hetero::ops
