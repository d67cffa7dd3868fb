// Locks that many threads of Python use: waiting for one never holds the interpreter's lock.
//
// A kernel that runs under one of hetero's locks may be Python, and needs the interpreter's lock to
// go on. So a thread that waits for the lock releases the interpreter's lock meanwhile. The Python
// bindings install how; a C++ program has no interpreter.
//
// Thread safety: any thread. The hooks are set once, before the first tensor is made.

#pragma once

#include <string>

namespace hetero::ops {

// How to let go of the interpreter's lock while blocking; set by the Python bindings.
struct InterpreterHooks {
  void* (*release)() = nullptr;  // null result: the lock was not held
  void (*restore)(void* state) = nullptr;
  std::string (*where)() = nullptr;  // "file.py:12 in forward", or empty
};
InterpreterHooks& interpreter_hooks();

// Releases the interpreter's lock for its lifetime, if this thread holds it.
class WithoutInterpreter {
 public:
  WithoutInterpreter() : state_(interpreter_hooks().release ? interpreter_hooks().release() : nullptr) {}
  ~WithoutInterpreter() {
    if (state_ != nullptr) interpreter_hooks().restore(state_);
  }
  WithoutInterpreter(const WithoutInterpreter&) = delete;

 private:
  void* state_;
};

// Waits without the interpreter's lock, because a kernel that runs under this lock may be Python.
template <typename Mutex>
class Locked {
 public:
  [[gnu::always_inline]] explicit Locked(Mutex& mutex) : mutex_(mutex) {
    if (!mutex_.try_lock()) [[unlikely]]
      wait();
  }
  ~Locked() {
    if (held_) mutex_.unlock();
  }
  void unlock() {
    mutex_.unlock();
    held_ = false;
  }
  Locked(const Locked&) = delete;

 private:
  [[gnu::noinline]] void wait() {
    WithoutInterpreter released;
    mutex_.lock();
  }

  Mutex& mutex_;
  bool held_ = true;
};

}  // namespace hetero::ops
