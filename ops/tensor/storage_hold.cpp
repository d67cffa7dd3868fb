#include "ops/tensor/storage_hold.h"

namespace hetero::ops {

bool StorageHold::lock() {
  if (strong_) return true;
  if (c10::raw::weak_intrusive_ptr::lock(storage_) == nullptr) return false;
  c10::raw::weak_intrusive_ptr::decref(storage_);
  strong_ = true;
  return true;
}

}  // namespace hetero::ops
