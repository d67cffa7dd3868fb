// PageMover: who copies pages from one memory to another.
//
// The manager starts a copy, goes on, and asks later whether it is done. Until then neither side is
// read or written. HostMover copies at once, by memcpy. QueueMover submits to an accelerator's copy
// queues.
//
// Thread safety: the manager calls it from one thread at a time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "backend/base/status.h"
#include "backend/device/device.h"

namespace hetero::graph {

// Memories are numbered as the manager was given them; 0 is the one that attention reads.
struct PageCopy {
  int from = 0;
  int to = 0;
  const std::byte* source = nullptr;
  std::byte* destination = nullptr;
  size_t bytes = 0;
};

class PageMover {
 public:
  using Token = uint64_t;

  virtual ~PageMover() = default;
  // Errors: any; nothing is copied then. REQUIRES: both sides live until the copy is done.
  virtual Result<Token> start(const PageCopy& copy) = 0;
  // Whether the copy is done. True and an error end the token. After an error the destination holds
  // anything and the source is as before.
  virtual Result<bool> finished(Token token) = 0;
  // Waits until it is done; ends the token.
  virtual Status wait(Token token) = 0;
};

// For memories that the host reaches.
class HostMover final : public PageMover {
 public:
  Result<Token> start(const PageCopy& copy) override;
  Result<bool> finished(Token) override { return true; }
  Status wait(Token) override { return {}; }
};

// For one accelerator, whose memory is number 0, and host memories. Copies go by its queue of their
// direction; copies within memory 0 by its compute queue, before later kernels.
class QueueMover final : public PageMover {
 public:
  // REQUIRES: the device outlives it.
  explicit QueueMover(backend::Device& device) : device_(device) {}
  Result<Token> start(const PageCopy& copy) override;
  Result<bool> finished(Token token) override;
  Status wait(Token token) override;

 private:
  backend::Device& device_;
  Token next_ = 0;
  std::unordered_map<Token, std::unique_ptr<backend::Event>> events_;
};

}  // namespace hetero::graph
