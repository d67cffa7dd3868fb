// EngineThread: runs an engine's steps on a thread of its own, while there is something to do.
//
// Thread safety: any thread.
// Ownership: the engine outlives it. The destructor waits for the step that runs; requests that
// have not ended stay in the engine.

#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "qwen3/model/engine.h"

namespace hetero::qwen3 {

class EngineThread {
 public:
  explicit EngineThread(Engine& engine) : engine_(engine), thread_([this] { run(); }) {}
  ~EngineThread() {
    {
      const std::lock_guard lock(mutex_);
      stops_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  EngineThread(const EngineThread&) = delete;

  Engine& engine() { return engine_; }
  // After Engine::submit or cancel.
  void wake() {
    { const std::lock_guard lock(mutex_); }
    wake_.notify_all();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!stops_) {
      if (!engine_.busy()) {
        wake_.wait(lock, [this] { return stops_ || engine_.busy(); });
        continue;
      }
      lock.unlock();
      (void)engine_.step();  // its requests were told of an error
      lock.lock();
    }
  }

  Engine& engine_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace hetero::qwen3
