// Copies: the program in order, with a copy wherever a node needs bytes that its device does not
// have.
//
// A write-invalidate protocol over whole buffers, simulated while planning (as StarPU's MSI data
// states do at run time):
//   1. A buffer starts valid where the graph says.
//   2. A node that reads a buffer, or writes a part of it, needs it valid on its device: if it is
//      valid elsewhere only, a copy comes first, on the accelerator's copy queue of that direction.
//   3. A buffer that is valid nowhere holds whatever its memory holds; the first device to touch it
//      has the valid bytes. An empty buffer is copied like any other: whether its writer has failed
//      must be known in order.
//   4. A write makes all other devices' bytes stale.
// What is valid after the last node stays where it is.

#include "graph/passes/passes.h"

namespace hetero::graph {
namespace {

using backend::DeviceIndex;
using backend::QueueKind;

// The devices are two: bytes that are not on one are on the other.
Instruction copy_to(DeviceIndex to, BufferId buffer) {
  const bool in = to == backend::kAccelerator;
  return {.kind = Instruction::Kind::kCopy,
          .queue = queue_id(backend::kAccelerator, in ? QueueKind::kHostToDevice : QueueKind::kDeviceToHost),
          .index = buffer,
          .from = in ? backend::kCpu : backend::kAccelerator,
          .to = to};
}

}  // namespace

void insert_copies(const Graph& graph, Plan& plan, Scratch& scratch) {
  std::vector<uint8_t>& valid = scratch.valid;
  valid.resize(graph.buffers.size());
  for (size_t b = 0; b < valid.size(); ++b) valid[b] = graph.buffers[b].valid_on;

  plan.program.clear();
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    if (!plan.live[n]) continue;
    const Node& node = graph.nodes[n];
    const DeviceIndex device = plan.placements[n].device;
    const auto here = static_cast<uint8_t>(1u << device);
    const Operand* const first = graph.operands_of(node);
    const Operand* const end = first + node.operand_count;
    for (const Operand* o = first; o != end; ++o) {
      uint8_t& bytes = valid[o->buffer];
      if (bytes & here) continue;
      if (o->writes() && overwrites(*graph.windows, *o, graph.buffers[o->buffer])) continue;
      if (bytes != 0) plan.program.push_back(copy_to(device, o->buffer));
      bytes |= here;
    }
    plan.program.push_back(
        {.kind = Instruction::Kind::kRun, .queue = queue_id(device, QueueKind::kCompute), .index = n});
    for (const Operand* o = first; o != end; ++o) {
      if (o->writes()) valid[o->buffer] = here;
    }
  }

  plan.valid_after.resize(valid.size());
  for (size_t b = 0; b < valid.size(); ++b) {
    const Buffer& buffer = graph.buffers[b];
    plan.valid_after[b] = buffer.escapes || buffer.valid_on != 0 ? valid[b] : 0;
  }
}

}  // namespace hetero::graph
