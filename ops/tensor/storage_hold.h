// StorageHold: an owner of a storage that can be strong or weak.
//
// The trace holds a storage with bytes strongly, because its bytes are an input. It holds a storage
// that was born in the trace weakly. A value that the program has dropped is thus found dead when
// the trace is cut.
//
// Thread safety: a hold belongs to one thread at a time; the storage may die on any thread.

#pragma once

#include <utility>

#include "ops/tensor/storage.h"

namespace hetero::ops {

class StorageHold {
 public:
  StorageHold() : strong_(false), storage_(nullptr) {}  // of none
  StorageHold(HeteroStorage* storage, bool strong) : strong_(strong), storage_(storage) {
    if (strong) {
      c10::raw::intrusive_ptr::incref(storage);
    } else {
      c10::raw::weak_intrusive_ptr::incref(storage);
    }
  }
  StorageHold(StorageHold&& other) noexcept
      : written(other.written), strong_(other.strong_), storage_(std::exchange(other.storage_, nullptr)) {}
  StorageHold& operator=(StorageHold&& other) noexcept {
    std::swap(storage_, other.storage_);
    std::swap(strong_, other.strong_);
    std::swap(written, other.written);
    return *this;
  }
  ~StorageHold() {
    if (storage_ == nullptr) return;
    if (strong_) {
      c10::raw::intrusive_ptr::decref(storage_);
    } else {
      c10::raw::weak_intrusive_ptr::decref(storage_);
    }
  }

  void make_strong() {
    if (strong_) return;
    c10::raw::intrusive_ptr::incref(storage_);
    c10::raw::weak_intrusive_ptr::decref(storage_);
    strong_ = true;
  }
  // Makes the hold strong if the storage still lives; false when it is gone.
  bool lock() {
    if (strong_) return true;
    if (c10::raw::weak_intrusive_ptr::lock(storage_) == nullptr) return false;
    c10::raw::weak_intrusive_ptr::decref(storage_);
    strong_ = true;
    return true;
  }
  // Whether somebody owns the storage. REQUIRES: it holds one.
  bool alive() const { return c10::raw::intrusive_ptr::use_count(storage_) != 0; }
  HeteroStorage* storage() const { return storage_; }
  bool strong() const { return strong_; }

  bool written = false;  // some node of the trace writes it

 private:
  bool strong_;
  HeteroStorage* storage_;
};

}  // namespace hetero::ops
