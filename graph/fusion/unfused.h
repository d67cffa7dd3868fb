// UnfusedMemory: memory for members of a fused group that run one by one.
//
// The group's loads and stores have their memory. Values that members only pass on to each other
// have none. They get some of the CPU's here, when the first member asks for it. So the members run
// as if they had never been fused, with the CPU's kernels.
//
// Thread safety: belongs to the thread that runs the members.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "backend/base/status.h"
#include "backend/device/device.h"
#include "graph/ir/fused_group.h"
#include "graph/ir/graph.h"

namespace hetero::graph {

class UnfusedMemory {
 public:
  // Of a buffer that has none. The same for each call until clear(). Errors: kResource.
  Result<void*> of(const Graph& graph, BufferId buffer, backend::Device& cpu);
  // Fills `data` with the addresses of a member's operands. `operands` are those of the group's, as
  // kernels reach them. Errors: as above.
  Status resolve(const Graph& graph, const FusedGroup& group, void* const* operands, const Node& member,
                 backend::Device& cpu, void** data);
  void clear() { blocks_.clear(); }
  size_t size() const { return blocks_.size(); }

 private:
  std::vector<std::pair<BufferId, backend::Block>> blocks_;
};

}  // namespace hetero::graph
