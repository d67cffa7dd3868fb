// Copies: the nodes in order, with a copy wherever a node needs bytes that its device does not
// have, and room for them made before.
//
// A write-invalidate protocol over whole buffers, simulated while planning (as StarPU's MSI data
// states do at run time):
//   1. A buffer starts valid where the graph says.
//   2. A node that reads a buffer, or writes a part of it, needs it valid on its device: if it is
//      valid elsewhere only, a copy comes first, over the fastest link from where it is valid, and
//      by way of the host where there is none.
//   3. A buffer that is valid nowhere holds whatever its memory holds; the first device to touch it
//      has the valid bytes. An empty buffer is copied like any other: whether its writer has failed
//      must be known in order.
//   4. A write makes all other devices' bytes stale.
//
// Where everything fits, what is valid after the last node stays where it is. Where accelerators
// may hold only so much (`limits`), bytes come and go:
//   5. Residents (plan/residency.cpp) have their place for the whole program. Everything else
//      leaves after its last use there, and is copied back only if the CPU's bytes are not the same
//      and somebody will want them.
//   6. When even so there is no room, the bytes whose next use is furthest away leave early (L.
//      Belady, 1966), and come back for it.
// What has left and comes back does so in other memory: a Return of the plan.

#include <algorithm>
#include <span>

#include "graph/plan/passes.h"

namespace hetero::graph {
namespace {

using backend::contains;
using backend::DeviceIndex;
using backend::DeviceSet;
using backend::kCpu;
using backend::only;
using backend::QueueKind;

constexpr uint32_t kNever = UINT32_MAX;

class Walk {
 public:
  Walk(const Graph& graph, const backend::Machine& machine, const Limits& limits, Plan& plan, Scratch& scratch)
      : graph_(graph),
        machine_(machine),
        limits_(limits),
        bounded_(is_bounded(limits)),
        plan_(plan),
        scratch_(scratch),
        states_(scratch.states) {}

  bool run() {
    begin();
    for (uint32_t i = 0; i < scratch_.order.size(); ++i) {
      const Task& task = scratch_.tasks.tasks[scratch_.order[i]];
      const DeviceIndex device = task.device_in(plan_);
      uses_ = {scratch_.tasks.begin(task), task.use_count};
      find_next_use(task);
      if (device != kCpu && bounded_ && !make_room(device)) return false;
      bring(device);
      if (!task.is_fetch()) {
        plan_.program.push_back(task.instruction(queue_id(device, QueueKind::kCompute)));
      }
      note_writes(device);
      if (bounded_) let_go(i, device);
    }
    finish();
    return true;
  }

 private:
  uint64_t size_of(BufferId b) const { return SliceAllocator::round_up(graph_.buffers[b].bytes); }
  uint32_t& next_use_of(BufferId b, DeviceIndex device) {
    return scratch_.next_use_of[size_t{b} * machine_.size() + device];
  }
  uint32_t next_use_of(BufferId b, DeviceIndex device) const {
    return scratch_.next_use_of[size_t{b} * machine_.size() + device];
  }

  void begin() {
    plan_.program.clear();
    plan_.returns.clear();
    states_.assign(graph_.buffers.size(), {});
    for (size_t b = 0; b < states_.size(); ++b) states_[b].valid_on = graph_.buffers[b].valid_on;
    std::ranges::fill(scratch_.peak_bytes, 0);
    if (!bounded_) return;
    std::ranges::fill(used_, 0);
    for (BufferId b = 0; b < states_.size(); ++b) {
      BufferState& state = states_[b];
      state.stays = (state.valid_on | scratch_.resident[b]) & ~only(kCpu);
      state.present = state.stays;
      for (DeviceIndex d = 1; d < machine_.size(); ++d) used_[d] += contains(state.stays, d) ? size_of(b) : 0;
    }
    find_next_uses();
    for (auto& present : scratch_.present) present.clear();
    std::ranges::copy(used_, scratch_.peak_bytes);
  }

  // For each use of the order, when each device touches its buffer next; and the last touches.
  void find_next_uses() {
    const TaskGraph& tasks = scratch_.tasks;
    const size_t devices = machine_.size();
    scratch_.next_use_of.assign(states_.size() * devices, kNever);
    scratch_.next_use.resize(tasks.uses.size() * devices);
    for (uint32_t i = static_cast<uint32_t>(scratch_.order.size()); i-- > 0;) {
      const Task& task = tasks.tasks[scratch_.order[i]];
      const DeviceIndex device = task.device_in(plan_);
      for (uint32_t u = task.first_use; u < task.first_use + task.use_count; ++u) {
        const BufferId b = tasks.uses[u].buffer;
        for (DeviceIndex d = 0; d < devices; ++d) scratch_.next_use[u * devices + d] = next_use_of(b, d);
        if (!tasks.uses[u].in_memory()) continue;
        next_use_of(b, device) = i;
        if (states_[b].last_use == kNever) states_[b].last_use = i;
      }
    }
  }

  void find_next_use(const Task& task) {
    if (!bounded_) return;
    const size_t devices = machine_.size();
    for (uint32_t u = task.first_use; u < task.first_use + task.use_count; ++u) {
      for (DeviceIndex d = 0; d < devices; ++d) {
        next_use_of(scratch_.tasks.uses[u].buffer, d) = scratch_.next_use[u * devices + d];
      }
    }
  }

  // For what the task needs on its accelerator. False where that cannot be.
  bool make_room(DeviceIndex device) {
    uint64_t needed = 0;
    for (const Use& use : uses_) needed += takes_memory(use, device) ? size_of(use.buffer) : 0;
    while (used_[device] + needed > limits_[device]) {
      const BufferId victim = find_victim(device);
      if (victim == kNoBuffer) return false;
      leave(victim, device);
    }
    for (const Use& use : uses_) {
      if (!takes_memory(use, device)) continue;
      states_[use.buffer].present |= only(device);
      used_[device] += size_of(use.buffer);
      scratch_.present[device].push_back(use.buffer);
    }
    scratch_.peak_bytes[device] = std::max(scratch_.peak_bytes[device], used_[device]);
    return true;
  }

  bool takes_memory(const Use& use, DeviceIndex device) const {
    return use.in_memory() && !contains(states_[use.buffer].present, device);
  }

  // What is used last, and of those the largest.
  BufferId find_victim(DeviceIndex device) const {
    BufferId victim = kNoBuffer;
    for (const BufferId b : scratch_.present[device]) {
      if (std::ranges::find(uses_, b, &Use::buffer) != uses_.end()) continue;
      const uint32_t next = next_use_of(b, device);
      if (victim == kNoBuffer || next > next_use_of(victim, device) ||
          (next == next_use_of(victim, device) && graph_.buffers[b].bytes > graph_.buffers[victim].bytes)) {
        victim = b;
      }
    }
    return victim;
  }

  // The bytes leave the accelerator. They will be wanted.
  void leave(BufferId b, DeviceIndex device) {
    if (states_[b].valid_on == only(device)) copy_to(kCpu, b);
    forget(b, device);
  }

  void forget(BufferId b, DeviceIndex device) {
    BufferState& state = states_[b];
    state.present &= ~only(device);
    state.has_left |= only(device);
    state.valid_on &= ~only(device);
    used_[device] -= size_of(b);
    auto& present = scratch_.present[device];
    const auto place = std::ranges::find(present, b);
    *place = present.back();
    present.pop_back();
  }

  void bring(DeviceIndex device) {
    for (const Use& use : uses_) {
      BufferState& state = states_[use.buffer];
      if (!use.in_memory() || contains(state.valid_on, device)) continue;
      // What comes back gets its new memory with a copy, needed or not.
      const bool comes_back = contains(state.has_left, device);
      if (!comes_back && !use.reads) continue;
      if (state.valid_on != 0) copy_to(device, use.buffer);
      state.valid_on |= only(device);
    }
  }

  // Straight from a device that has the bytes, or by way of the host.
  void copy_to(DeviceIndex to, BufferId b) {
    BufferState& state = states_[b];
    std::optional<backend::Link> link = machine_.fastest_link(state.valid_on, to);
    if (!link) {
      copy_to(kCpu, b);
      link = machine_.link(kCpu, to);
    }
    const bool urgent = state.made && scratch_.tasks.values[b].small;
    const QueueId queue = queue_id(link->owner, urgent ? link->urgent : link->queue);
    Instruction copy = Instruction::copy(queue, b, link->from, to);
    if (contains(state.has_left, to)) {
      plan_.returns.push_back({b, to, {}});
      copy.stay = static_cast<uint32_t>(plan_.returns.size());
      state.has_left &= ~only(to);
    }
    plan_.program.push_back(copy);
    state.valid_on |= only(to);
  }

  void note_writes(DeviceIndex device) {
    for (const Use& use : uses_) {
      if (!use.writes) continue;
      states_[use.buffer].valid_on = use.stores ? only(device) : DeviceSet{0};
      states_[use.buffer].made = true;
    }
  }

  // What need not stay on accelerators after the task.
  void let_go(uint32_t position, DeviceIndex device) {
    for (const Use& use : uses_) {
      const BufferId b = use.buffer;
      const BufferState& state = states_[b];
      for (DeviceIndex d = 1; d < machine_.size(); ++d) {
        if (!contains(state.present, d) || contains(state.stays, d)) continue;
        if (d != device) {
          if (!contains(state.valid_on, d)) forget(b, d);
        } else if (state.last_use == position && !graph_.buffers[b].escapes) {
          forget(b, d);
        } else if (next_use_of(b, d) == kNever) {
          leave(b, d);
        }
      }
    }
  }

  void finish() {
    // What lay on an accelerator before and has no place there any more.
    for (BufferId b = 0; bounded_ && b < states_.size(); ++b) {
      const DeviceSet goes = states_[b].stays & ~scratch_.resident[b] & states_[b].valid_on;
      if (goes == 0) continue;
      if ((states_[b].valid_on & ~goes) == 0 && graph_.buffers[b].escapes) copy_to(kCpu, b);
      states_[b].valid_on &= ~goes;
    }
    plan_.valid_after.resize(states_.size());
    for (BufferId b = 0; b < states_.size(); ++b)
      plan_.valid_after[b] = survives(graph_.buffers[b]) ? states_[b].valid_on : DeviceSet{0};
  }

  const Graph& graph_;
  const backend::Machine& machine_;
  const Limits& limits_;
  const bool bounded_;
  Plan& plan_;
  Scratch& scratch_;
  std::vector<BufferState>& states_;
  std::span<const Use> uses_;  // of the task at hand
  Limits used_{};
};

}  // namespace

void run_in_order(const Graph& graph, Plan& plan, Scratch& scratch) {
  std::vector<DeviceSet>& valid = scratch.valid;
  valid.resize(graph.buffers.size());
  for (size_t b = 0; b < valid.size(); ++b) valid[b] = graph.buffers[b].valid_on;
  plan.program.clear();
  plan.returns.clear();
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    if (!plan.live[n]) continue;
    plan.program.push_back(Instruction::run(kHostQueue, n));
    const Node& node = graph.nodes[n];
    for (const Operand *o = graph.operands_of(node), *end = o + node.operand_count; o != end; ++o) {
      DeviceSet& bytes = valid[o->buffer];
      bytes = o->writes() ? only(kCpu) : bytes | only(kCpu);
    }
  }
  plan.valid_after.resize(valid.size());
  for (size_t b = 0; b < valid.size(); ++b) plan.valid_after[b] = survives(graph.buffers[b]) ? valid[b] : DeviceSet{0};
}

bool insert_copies(const Graph& graph, const backend::Machine& machine, const Limits& limits, Plan& plan,
                   Scratch& scratch) {
  return Walk(graph, machine, limits, plan, scratch).run();
}

}  // namespace hetero::graph
