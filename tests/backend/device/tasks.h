// Memory of a device and tasks for its queues, in short.

#pragma once

#include <utility>

#include "backend/device/device.h"
#include "tests/catch/catch.h"

namespace hetero::backend::testing {

inline Block take(Device& device, size_t bytes) {
  Result<Block> block = device.allocate(bytes);
  REQUIRE(block.ok());
  return std::move(block.value());
}

// A task that calls what it refers to, which must live until it has run.
template <typename Callable>
Task task_of(Callable& callable) {
  return {[](void* context) { (*static_cast<Callable*>(context))(); }, &callable};
}

}  // namespace hetero::backend::testing
