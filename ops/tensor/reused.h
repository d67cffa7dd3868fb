// Reused<T>: an empty vector or list whose memory stays with the thread, so that a steady state
// does not allocate.
//
//   Reused<std::vector<at::Tensor>> tensors;
//   tensors->push_back(tensor);                 its content is destroyed with `tensors`
//
// Thread safety: everything belongs to one thread.

#pragma once

#include <memory>
#include <utility>
#include <vector>

namespace hetero::ops {

template <typename T>
class Reused {
 public:
  Reused() : value_(take()) {}
  ~Reused() {
    // A kernel may have kept a list.
    if constexpr (requires { value_.use_count(); }) {
      if (value_.use_count() != 1) return;
    }
    value_.clear();
    spare().push_back(std::move(value_));
  }
  Reused(const Reused&) = delete;
  T& operator*() { return value_; }
  T* operator->() { return &value_; }

 private:
  static std::vector<T>& spare() {
    // Leaked with its thread: kernels may run while thread_locals die.
    static thread_local auto* spare = new std::vector<T>;
    return *spare;
  }
  static T take() {
    std::vector<T>& spare = Reused::spare();
    if (spare.empty()) return T();
    T taken = std::move(spare.back());
    spare.pop_back();
    return taken;
  }

  T value_;
};

}  // namespace hetero::ops
