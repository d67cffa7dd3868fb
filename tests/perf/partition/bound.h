// Bound: bindings for the buffers of a graph, so that it can be run again and again. What the buffers hold is arbitrary.
//
// Thread safety: one thread.

#pragma once

#include <vector>

#include "graph/run/executor.h"
#include "tests/graph/fixtures/program.h"

namespace hetero::graph::testing {

class Bound {
 public:
  Bound(const Graph& graph, const Devices& devices) : bindings_(graph.buffers.size()) {
    for (BufferId b = 0; b < bindings_.size(); ++b) {
      const Buffer& buffer = graph.buffers[b];
      for (backend::DeviceIndex d = 0; d < backend::kMostDevices; ++d) {
        if ((buffer.valid_on >> d & 1) != 0) bindings_[b].blocks[d] = allocate(*devices[d], buffer.bytes);
      }
      bindings_[b].valid_on = buffer.valid_on;
      pointers_.push_back(buffer.escapes || buffer.valid_on != 0 ? &bindings_[b] : nullptr);
    }
  }
  std::span<Binding* const> pointers() const { return pointers_; }

 private:
  std::vector<Binding> bindings_;
  std::vector<Binding*> pointers_;
};

}  // namespace hetero::graph::testing
