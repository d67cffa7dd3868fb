#include "ops/run/verify_flush.h"

#include "graph/verify/interpret.h"

#include <cstring>
#include <string>

#include "backend/registry/registry.h"
#include "ops/settings/counters.h"

namespace hetero::ops {
namespace {

constexpr uint8_t kOnCpu = 1u << backend::kCpu;

// A host copy of a storage's bytes, wherever they are.
Status copy_bytes(const graph::Binding& from, uint64_t bytes, backend::Block& to) {
  Result<backend::Block> block = backend::cpu_device().allocate(bytes);
  if (!block.ok()) return block.status();
  to = std::move(block.value());
  if ((from.valid_on & kOnCpu) != 0) {
    std::memcpy(to.data(), from.blocks[backend::kCpu].data(), bytes);
    return Status();
  }
  const backend::DeviceIndex there = backend::first_of(from.valid_on);
  backend::Queue& queue = backend::device_at(there)->queue(backend::QueueKind::kDeviceToHost);
  Status status = queue.copy(to.data(), from.blocks[there].data(), bytes);
  return status.ok() ? queue.synchronize() : status;
}

// Marks the bytes that a window touches, element by element.
void mark(const graph::Window& window, std::vector<uint8_t>& written) {
  const int item = graph::dtype_bytes(window.dtype);
  if (window.numel == 0) return;
  std::vector<int64_t> index(static_cast<size_t>(window.rank), 0);
  for (int64_t element = 0; element < window.numel; ++element) {
    int64_t at = window.offset;
    for (int d = 0; d < window.rank; ++d) at += index[d] * window.strides()[d];
    std::memset(written.data() + at * item, 1, static_cast<size_t>(item));
    for (int d = window.rank - 1; d >= 0 && ++index[d] == window.sizes()[d]; --d) index[d] = 0;
  }
}

}  // namespace

FlushVerifier::FlushVerifier(bool active, const TraceSlice& slice, const graph::Graph& graph) : active_(active) {
  if (!active) return;
  copies_.resize(graph.buffers.size());
  for (size_t b = 0; b < copies_.size(); ++b) {
    const graph::Buffer& buffer = graph.buffers[b];
    if (buffer.valid_on == 0) continue;
    const Status status = copy_bytes(*slice.bindings[b], buffer.bytes, copies_[b].blocks[backend::kCpu]);
    copies_[b].valid_on = kOnCpu;
    if (!status.ok()) active_ = false;
  }
}

Status FlushVerifier::compare(const TraceSlice& slice, const graph::Graph& planned) {
  if (!active_) return Status();
  graph::Graph graph = planned;
  std::vector<graph::Binding*> bindings(copies_.size(), nullptr);
  for (size_t b = 0; b < copies_.size(); ++b) {
    graph::Buffer& buffer = graph.buffers[b];
    if (buffer.valid_on != 0) buffer.valid_on = kOnCpu;
    if (buffer.valid_on != 0 || buffer.escapes) bindings[b] = &copies_[b];
  }
  Status status = graph::interpret(graph, bindings);
  if (!status.ok()) return status;
  for (size_t b = 0; b < copies_.size(); ++b) {
    const graph::Buffer& buffer = graph.buffers[b];
    if (!buffer.escapes) continue;
    std::vector<uint8_t> written(buffer.bytes, 0);
    for (const graph::Node& node : graph.nodes) {
      const graph::Operand* operands = graph.operands_of(node);
      for (int k = 0; k < node.operand_count; ++k) {
        if (operands[k].buffer == b && operands[k].writes()) mark((*graph.windows)[operands[k].window], written);
      }
    }
    backend::Block result;
    status = copy_bytes(*slice.bindings[b], buffer.bytes, result);
    if (!status.ok()) return status;
    const auto* expected = static_cast<const uint8_t*>(copies_[b].blocks[backend::kCpu].data());
    const auto* actual = static_cast<const uint8_t*>(result.data());
    for (uint64_t i = 0; i < buffer.bytes; ++i) {
      if (written[i] != 0 && expected[i] != actual[i]) {
        return Status(ErrorClass::kInternal, "HETERO_VERIFY: byte " + std::to_string(i) + " of buffer " +
                                                 std::to_string(b) + " differs from the straight interpreter's\n" +
                                                 graph::to_string(graph));
      }
    }
  }
  count(counters().verified_flushes);
  return Status();
}

}  // namespace hetero::ops
