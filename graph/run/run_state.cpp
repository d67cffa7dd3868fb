#include "graph/run/run_state.h"

#include <cstring>
#include <string>
#include <utility>

#include "graph/ir/kernel_error.h"

namespace hetero::graph {

using backend::DeviceIndex;
using backend::kCpu;

void RunState::begin(const Graph& graph, const Plan& plan, std::span<Binding* const> bindings,
                     const backend::Devices& devices) {
  graph_ = &graph;
  plan_ = &plan;
  bindings_ = bindings;
  devices_ = devices;
  failures_.clear();
  on_entry_.clear();
  failure_count_ = 0;
  kept_.clear();
  std::byte* const* const bases = arena_bases_;
  for (DeviceIndex d = 0; d < plan.device_count; ++d) {
    arena_status_[d] = Status();
    arena_bases_[d] = nullptr;
    if (plan.arena_bytes[d] == 0) continue;
    Result<backend::Block> block = devices_[d]->allocate(plan.arena_bytes[d]);
    if (block.ok()) {
      arenas_[d] = std::move(block.value());
      arena_bases_[d] = static_cast<std::byte*>(arenas_[d].data());
    } else {
      arena_status_[d] = block.status();
    }
  }

  notes_ = &plan.notes;
  if (plan.notes.empty()) {
    note_buffers(graph, plan, own_notes_);
    notes_ = &own_notes_;
  }
  const size_t buffers = graph.buffers.size();
  if (held_.size() < buffers) held_.resize(buffers);
  addresses_.assign(buffers * plan.device_count, nullptr);
  for (const BufferId b : notes_->placed) {
    for (DeviceIndex d = 0; d < plan.device_count; ++d) {
      const size_t place = plan.place_of(b, d);
      const Residence& residence = plan.residences[place];
      if (residence.home == Home::kArena) {
        if (bases[d] != nullptr) addresses_[place] = bases[d] + residence.offset;
      } else if (residence.home == Home::kBound || residence.home == Home::kBrought) {
        if (bindings[b] != nullptr) addresses_[place] = std::as_const(*bindings[b]).blocks[d].data();
      }
    }
  }
  for (const BufferId b : notes_->taking) take_block(b);
  unwritten_.assign(buffers, nullptr);
  for (size_t b = 0; b < buffers; ++b) {
    Binding* const binding = bindings[b];
    if (binding == nullptr) continue;
    binding->layout = graph.buffers[b].layout;
    if (!binding->error.ok()) [[unlikely]] {
      on_entry_.emplace_back(b, add_failure(0, binding->error));
      failures_.back().raised = false;
    }
    if (graph.buffers[b].valid_on == 0) continue;
    if (!binding->sharers) unwritten_[b] = binding;
    if (has_accelerator(devices_) && binding->reads != INT16_MAX) ++binding->reads;
  }
  for (const BufferId b : notes_->written) {
    unwritten_[b] = nullptr;
    // What was derived of bytes that this run changes.
    if (bindings[b] != nullptr) bindings[b]->changed();
  }
}

// Where it cannot, the buffer gets memory of its own, and its kernel moves all bytes.
void RunState::take_block(BufferId buffer) {
  const Buffer& shape = graph_->buffers[buffer];
  Binding* const from = bindings_[shape.takes];
  Binding* const to = bindings_[buffer];
  if (from == nullptr || to == nullptr || !from->error.ok() || from->blocks[kCpu].bytes() < shape.bytes) return;
  addresses_[plan_->place_of(buffer, kCpu)] = from->blocks[kCpu].data();
  to->blocks[kCpu] = std::move(from->blocks[kCpu]);
}

void RunState::end() {
  for (backend::Block& arena : arenas_) arena.reset();
  bindings_ = {};
}

void RunState::come_back(const Return& entry) {
  std::byte* const base = arena_bases_[entry.device];
  addresses_[plan_->place_of(entry.buffer, entry.device)] = base == nullptr ? nullptr : base + entry.residence.offset;
}

FailureId RunState::provide(uint32_t node, BufferId buffer, DeviceIndex device) {
  Status status = try_provide(buffer, device);
  return status.ok() ? kHealthy : add_failure(node, std::move(status));
}

Status RunState::try_provide(BufferId buffer, DeviceIndex device) {
  const Residence& residence = plan_->residence(buffer, device);
  const Buffer& shape = graph_->buffers[buffer];
  if (residence.home == Home::kArena) return arena_status_[device];
  if ((shape.valid_on >> device & 1) != 0 && shape.bytes > 0) {
    return Status(ErrorClass::kInternal, "buffer b" + std::to_string(buffer) + " is bound as valid without a block");
  }
  Result<backend::Block> block = devices_[device]->allocate(shape.bytes);
  if (!block.ok()) return block.status();
  addresses_[plan_->place_of(buffer, device)] = block.value().data();
  Binding* const bound = bindings_[buffer];
  (bound != nullptr ? bound->blocks[device] : held_[buffer]) = std::move(block.value());
  return Status();
}

FailureId RunState::resolve_unfused(uint32_t index, uint32_t position, void** data) {
  const Node& node = graph_->nodes[index];
  const Operand* const operands = graph_->operands_of(node);
  for (int i = 0; i < node.operand_count; ++i) {
    const BufferId buffer = operands[i].buffer;
    if (plan_->residence(buffer, kCpu).has_memory(position)) {
      if (address(buffer, kCpu) == nullptr) {
        if (const FailureId failure = provide(index, buffer, kCpu)) return failure;
      }
      data[i] = address(buffer, kCpu);
      continue;
    }
    Result<void*> memory = unfused_.of(*graph_, buffer, *devices_[kCpu]);
    if (!memory.ok()) return add_failure(index, memory.status());
    data[i] = memory.value();
  }
  return kHealthy;
}

FailureId RunState::resolve(uint32_t index, DeviceIndex device, void** data, bool& brings) {
  const Node& node = graph_->nodes[index];
  const Operand* const operands = graph_->operands_of(node);
  bool complete = true;
  for (int i = 0; i < node.operand_count; ++i) {
    data[i] = address(operands[i].buffer, device);
    complete &= data[i] != nullptr;
  }
  if (complete) [[likely]]
    return kHealthy;
  for (int i = 0; i < node.operand_count; ++i) {
    if (data[i] != nullptr) continue;
    const BufferId buffer = operands[i].buffer;
    if (operands[i].access == Access::kDefine && op_table()[node.op].brings_memory &&
        plan_->residence(buffer, device).home == Home::kBrought) {
      brings = true;
      continue;
    }
    // An earlier operand of this node may have been given the memory.
    if (address(buffer, device) == nullptr) {
      if (const FailureId failure = provide(index, buffer, device)) return failure;
    }
    data[i] = address(buffer, device);
  }
  return kHealthy;
}

FailureId RunState::collect(uint32_t index, void* const* data, backend::Block* brought) {
  const Node& node = graph_->nodes[index];
  const Operand* const operands = graph_->operands_of(node);
  FailureId failure = kHealthy;
  for (int i = 0; i < node.operand_count; ++i) {
    if (data[i] != nullptr) continue;
    const BufferId buffer = operands[i].buffer;
    if (!brought[i]) {
      // The operator left an output undefined that its Meta kernel had promised: zeros stand for
      // it.
      failure = earlier(failure, provide(index, buffer, kCpu));
      void* const bytes = address(buffer, kCpu);
      if (bytes != nullptr) std::memset(bytes, 0, graph_->buffers[buffer].bytes);
      continue;
    }
    addresses_[plan_->place_of(buffer, kCpu)] = brought[i].data();
    Binding* const bound = bindings_[buffer];
    (bound != nullptr ? bound->blocks[kCpu] : held_[buffer]) = std::move(brought[i]);
  }
  return failure;
}

// Whether nobody will see the bytes of a bound buffer after the program, and only the host's queue
// reads them.
bool RunState::dies_on_host(BufferId buffer) const {
  const Buffer& shape = graph_->buffers[buffer];
  if (shape.escapes || shape.valid_on != backend::only(kCpu)) return false;
  if (!kept_.empty() && kept_[buffer] != 0) return false;
  for (DeviceIndex d = 1; d < plan_->device_count; ++d) {
    if (plan_->residence(buffer, d).home != Home::kNone) return false;
  }
  return true;
}

void RunState::release(const Node& node, uint32_t position) {
  const Operand* const operands = graph_->operands_of(node);
  for (int i = 0; i < node.operand_count; ++i) release(operands[i].buffer, position);
}

void RunState::release(BufferId buffer, uint32_t position) {
  const Residence& residence = plan_->residence(buffer, kCpu);
  if (residence.last != position) return;
  if (residence.home >= Home::kBrought) {
    held_[buffer].reset();
  } else if (residence.home == Home::kBound && dies_on_host(buffer)) {
    bindings_[buffer]->blocks[kCpu].reset();
    bindings_[buffer]->derived.reset();
  }
}

bool RunState::call_together(std::span<const Invocation> calls) {
  try {
    calls[0].traits->run_together(calls.data(), calls.size());
    return true;
  } catch (...) {
    return false;
  }
}

FailureId RunState::call_kernel(uint32_t node, const Invocation& invocation) {
  try {
    graph::call_kernel(invocation);
    return kHealthy;
  } catch (...) {
    return add_failure(node, kernel_error(invocation.traits->name));
  }
}

FailureId RunState::add_failure(uint32_t node, Status status) {
  const std::lock_guard lock(mutex_);
  if (rehearsing_) {
    if (rehearsed_.ok()) rehearsed_ = std::move(status);
    return kHealthy;
  }
  failures_.push_back({node, std::move(status), true});
  failure_count_.store(static_cast<uint32_t>(failures_.size()), std::memory_order_relaxed);
  return static_cast<FailureId>(failures_.size());
}

void RunState::begin_rehearsal() {
  rehearsing_ = true;
  rehearsed_ = Status();
}

Status RunState::end_rehearsal() {
  rehearsing_ = false;
  return std::exchange(rehearsed_, Status());
}

void RunState::raise(FailureId failure) {
  const std::lock_guard lock(mutex_);
  failures_[failure - 1].raised = true;
}

FailureId RunState::earlier(FailureId a, FailureId b) {
  if (a == kHealthy || b == kHealthy) return a == kHealthy ? b : a;
  const std::lock_guard lock(mutex_);
  return failures_[b - 1].node < failures_[a - 1].node ? b : a;
}

Status RunState::first_failure() const {
  const Failure* first = nullptr;
  for (const Failure& failure : failures_) {
    if (failure.raised && (first == nullptr || failure.node < first->node)) first = &failure;
  }
  return first == nullptr ? Status() : first->status;
}

void RunState::find_written(const std::vector<Outcome>& outcomes, std::vector<backend::DeviceSet>& written) const {
  written.assign(graph_->buffers.size(), 0);
  std::vector<DeviceIndex> device(graph_->nodes.size());
  for (size_t n = 0; n < device.size(); ++n) device[n] = plan_->placements[n].device;
  // A tail writes what its body has written.
  for (const FusedGroup& group : plan_->groups) {
    for (const uint32_t n : group.members) device[n] = placement_of(*plan_, group).device;
  }
  for (size_t n = 0; n < graph_->nodes.size(); ++n) {
    if (outcomes[n] != Outcome::kRan && outcomes[n] != Outcome::kFailed) continue;
    const Node& node = graph_->nodes[n];
    for (int i = 0; i < node.operand_count; ++i) {
      const Operand& operand = graph_->operands_of(node)[i];
      if (operand.writes()) written[operand.buffer] = backend::only(device[n]);
    }
  }
}

void RunState::settle(BufferId buffer, FailureId failure, backend::DeviceSet valid_on, backend::DeviceSet kept) {
  Binding& binding = *bindings_[buffer];
  if (failure != kHealthy) {
    binding.error = status_of(failure);
    valid_on = graph_->buffers[buffer].valid_on == 0 ? 0 : kept;
  } else if (!binding.error.ok()) {
    binding.error = Status();
  }
  // A device that could not give the memory for a touch that needs no bytes, or has released what
  // dies, has none of the bytes.
  const DeviceIndex devices = binding.blocks.size();
  valid_on &= static_cast<backend::DeviceSet>((1u << devices) - 1);
  for (DeviceIndex d = 0; d < devices; ++d) {
    if (!binding.blocks[d]) valid_on &= ~backend::only(d);
  }
  binding.valid_on = valid_on;
  // What is stale takes no memory, unless somebody looks at it.
  for (DeviceIndex d = 0; d < devices; ++d) {
    if (d == kCpu && binding.sharers) continue;
    if (!backend::contains(valid_on, d) && valid_on != 0) binding.blocks[d].reset();
  }
}

}  // namespace hetero::graph
