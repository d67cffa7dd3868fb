#include "graph/kv/page_mover.h"

#include <cstring>
#include <utility>

namespace hetero::graph {

using backend::QueueKind;

Result<PageMover::Token> HostMover::start(const PageCopy& copy) {
  std::memcpy(copy.destination, copy.source, copy.bytes);
  return Token{0};
}

Result<PageMover::Token> QueueMover::start(const PageCopy& copy) {
  if (copy.from != 0 && copy.to != 0) {
    std::memcpy(copy.destination, copy.source, copy.bytes);
    return Token{0};
  }
  const QueueKind kind = copy.from == copy.to ? QueueKind::kCompute
                         : copy.to == 0       ? QueueKind::kHostToDevice
                                              : QueueKind::kDeviceToHost;
  backend::Queue& queue = device_.queue(kind);
  Status status = queue.copy(copy.destination, copy.source, copy.bytes);
  if (!status.ok()) return status;
  std::unique_ptr<backend::Event> event = device_.create_event();
  status = queue.record(*event);
  if (!status.ok()) {
    // Without an event only the queue itself can tell that the copy is done.
    const Status drained = queue.synchronize();
    return drained.ok() ? status : drained;
  }
  events_.emplace(++next_, std::move(event));
  return next_;
}

Result<bool> QueueMover::finished(Token token) {
  const auto found = events_.find(token);
  if (found == events_.end()) return true;
  if (!found->second->query()) return false;
  const Status status = wait(token);
  if (!status.ok()) return status;
  return true;
}

Status QueueMover::wait(Token token) {
  const auto found = events_.find(token);
  if (found == events_.end()) return {};
  Status status = found->second->synchronize();
  events_.erase(found);
  return status;
}

}  // namespace hetero::graph
