// IdleDevice: an accelerator that takes everything and does nothing, so that what is measured is what submitting costs.
//
// It counts what is asked of it: how often the host waits for a queue or an event.
// Thread safety: one thread.

#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include "backend/device/device.h"

namespace hetero::graph::testing {

class IdleDevice final : public backend::Device {
 public:
  struct Waits {
    int64_t for_queues = 0;
    int64_t for_queues_midway = 0;  // something was submitted to some queue afterwards, before the next finish()
    int64_t for_events = 0;
  };

  const std::string& name() const override { return name_; }
  const backend::Capabilities& capabilities() const override { return capabilities_; }
  Result<backend::Block> allocate(size_t bytes) override {
    const auto release = [](void*, void* data, size_t) { std::free(data); };
    return backend::Block::adopt(std::aligned_alloc(64, (bytes / 64 + 1) * 64), bytes, release, nullptr);
  }
  backend::Queue& queue(backend::QueueKind) override { return queue_; }
  std::unique_ptr<backend::Event> create_event() override { return std::make_unique<IdleEvent>(*this); }
  bool can_fuse(const backend::FusedKernel&) const override { return true; }
  Status synchronize() override { return wait_for_queue(); }
  void empty_cache() override {}
  void set_memory_limit(size_t) override {}
  backend::MemoryStats memory_stats() const override { return {}; }
  void reset_peak() override {}
  backend::DeviceCounters counters() const override { return {}; }

  // Between runs.
  void finish() { waited_ = 0; }
  const Waits& waits() const { return waits_; }

 private:
  class IdleEvent final : public backend::Event {
   public:
    explicit IdleEvent(IdleDevice& device) : device_(device) {}
    bool query() const override { return true; }
    Status synchronize() override {
      ++device_.waits_.for_events;
      return Status();
    }

   private:
    IdleDevice& device_;
  };

  class IdleQueue final : public backend::Queue {
   public:
    explicit IdleQueue(IdleDevice& device) : device_(device) {}
    Status launch(backend::Task) override { return device_.submit(); }
    Status copy(void*, const void*, size_t) override { return device_.submit(); }
    Status record(backend::Event&) override { return device_.submit(); }
    Status wait(backend::Event&) override { return device_.submit(); }
    Status synchronize() override { return device_.wait_for_queue(); }

   private:
    IdleDevice& device_;
  };

  Status submit() {
    waits_.for_queues_midway += waited_;
    waited_ = 0;
    return Status();
  }
  Status wait_for_queue() {
    ++waits_.for_queues;
    ++waited_;
    return Status();
  }

  const std::string name_ = "idle";
  const backend::Capabilities capabilities_;
  Waits waits_;
  int64_t waited_ = 0;      // for queues, since something was submitted
  IdleQueue queue_{*this};  // stands for all of them
};

}  // namespace hetero::graph::testing
