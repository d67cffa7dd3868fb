// Binding: the memory of a storage, which the executor and the storage's owner share.
//
// It says on which devices the storage's bytes are, and where.
//
// Thread safety: the owner's. The executor uses the bindings of a run during that run.

#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "backend/base/status.h"
#include "backend/device/device.h"
#include "backend/memory/pool.h"
#include "backend/memory/spill_file.h"
#include "graph/ir/layout.h"

namespace hetero::graph {

// What a kernel derived from a storage's bytes and keeps for the next run, such as a weight in
// another layout. The kernel that made it knows its type. It is dropped when the bytes change: by
// the executor before a run whose nodes write them, and by any other writer.
struct Derived {
  virtual ~Derived() = default;
};

// Owns the derived data. Programs that share the bytes may run at once: any of them may publish,
// and the first one stays.
class DerivedPointer {
 public:
  DerivedPointer() = default;
  DerivedPointer(DerivedPointer&& other) noexcept : pointer_(other.release()) {}
  DerivedPointer& operator=(DerivedPointer&& other) noexcept {
    delete pointer_.exchange(other.release());
    return *this;
  }
  ~DerivedPointer() { reset(); }

  Derived* get() const { return pointer_.load(std::memory_order_acquire); }
  // Returns the derived data from now on: `made`, or what another thread has published before.
  Derived* publish(std::unique_ptr<Derived> made) {
    Derived* found = nullptr;
    return pointer_.compare_exchange_strong(found, made.get()) ? made.release() : found;
  }
  // REQUIRES: it is not in use.
  void reset() {
    if (get() != nullptr) delete release();
  }

 private:
  Derived* release() { return pointer_.exchange(nullptr); }
  std::atomic<Derived*> pointer_{nullptr};
};

// How many outside may read and write the bytes unseen.
class Sharers {
 public:
  Sharers() = default;
  Sharers(Sharers&& other) noexcept : count_(other.count_.load()) {}
  Sharers& operator=(Sharers&& other) noexcept {
    count_ = other.count_.load();
    return *this;
  }

  explicit operator bool() const { return count_.load(std::memory_order_relaxed) != 0; }
  // On any thread.
  void add() { ++count_; }
  void remove() { --count_; }

 private:
  std::atomic<int32_t> count_{0};
};

// A block per device. Those of accelerators take room only once one of them was there.
class Blocks {
 public:
  backend::Block& operator[](backend::DeviceIndex device) {
    if (device == backend::kCpu) return host_;
    if (others_ == nullptr) others_ = std::make_unique<Others>();
    return (*others_)[device - 1];
  }
  const backend::Block& operator[](backend::DeviceIndex device) const {
    static const backend::Block none;
    if (device == backend::kCpu) return host_;
    return others_ == nullptr ? none : (*others_)[device - 1];
  }
  // Devices with larger numbers have no block.
  backend::DeviceIndex size() const { return others_ == nullptr ? 1 : backend::kMostDevices; }
  void reset_accelerators() { others_.reset(); }
  void reset_all() {
    host_.reset();
    reset_accelerators();
  }
  bool on_accelerator() const {
    return others_ != nullptr && std::ranges::any_of(*others_, [](const backend::Block& block) { return bool(block); });
  }

 private:
  // From a pool: storages come and go with each run.
  struct Others : std::array<backend::Block, backend::kMostDevices - 1> {
    static void* operator new(size_t) { return backend::FreeList<sizeof(Others)>::allocate(); }
    static void operator delete(void* memory) { backend::FreeList<sizeof(Others)>::deallocate(memory); }
  };
  backend::Block host_;
  std::unique_ptr<Others> others_;
};

// The bytes of a storage: a block per device, and which of them are valid.
struct Binding {
  Blocks blocks;
  backend::DeviceSet valid_on = 0;
  Layout layout;  // of the storage in the CPU's block
  // While there are any, nothing is derived of the bytes, and the CPU's block holds them between
  // runs.
  Sharers sharers;
  DerivedPointer derived;
  // Where the CPU's bytes are while it has no block for them; valid_on says that they are valid
  // there.
  std::unique_ptr<backend::SpilledBytes> spilled;
  Status error;  // not ok: the bytes are lost, for this reason
  // How many programs with an accelerator have read the bytes since they were written or evicted;
  // below 0 after an eviction.
  int16_t reads = 0;
  uint8_t evictions = 0;  // how often they had to leave the accelerator for another program
  bool mapped = false;    // they are a file's, which the system may drop and read again

  // Forgets what was known of the bytes.
  void changed() {
    derived.reset();
    reads = 0;
    evictions = 0;
  }

  // The bytes were evicted from the accelerator for another program's. Each repeated eviction
  // doubles the number of reads that it takes until they are expected to stay again.
  void evicted() {
    constexpr uint8_t kMost = 8;
    constexpr int kFirst = 32;
    reads = static_cast<int16_t>(-(kFirst << evictions));
    if (evictions < kMost) ++evictions;
  }
};

}  // namespace hetero::graph
