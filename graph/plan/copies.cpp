// Copies: the nodes in order, with a copy wherever a node needs bytes that its device does not have, and room for them made before.
//
// A write-invalidate protocol over whole buffers, simulated while planning (as StarPU's MSI data states do at run time):
//   1. A buffer starts valid where the graph says.
//   2. A node that reads a buffer, or writes a part of it, needs it valid on its device: if it is valid elsewhere only, a copy comes first, on the
//      accelerator's copy queue of that direction.
//   3. A buffer that is valid nowhere holds whatever its memory holds; the first device to touch it has the valid bytes. An empty buffer is copied like
//      any other: whether its writer has failed must be known in order.
//   4. A write makes all other devices' bytes stale.
//
// Where everything fits, what is valid after the last node stays where it is. Where the accelerator may hold only so much (`limit`), bytes come and go:
//   5. Residents (plan/residency.cpp) have their place for the whole program. Everything else leaves after its last use there, and is copied back only
//      if the CPU's bytes are not the same and somebody will want them.
//   6. When even so there is no room, the bytes whose next use is furthest away leave early (L. Belady, 1966), and come back for it.
// What has left and comes back does so in other memory: a Return of the plan.

#include <algorithm>
#include <span>

#include "graph/plan/passes.h"

namespace hetero::graph {
namespace {

using backend::DeviceIndex;
using backend::kAccelerator;
using backend::kCpu;
using backend::QueueKind;

constexpr uint8_t kHere[] = {1u << kCpu, 1u << kAccelerator};
constexpr uint32_t kNever = UINT32_MAX;

class Walk {
 public:
  Walk(const Graph& graph, uint64_t limit, Plan& plan, Scratch& scratch)
      : graph_(graph), limit_(limit), plan_(plan), scratch_(scratch), states_(scratch.states) {}

  bool run() {
    begin();
    for (uint32_t i = 0; i < scratch_.order.size(); ++i) {
      const Task& task = scratch_.tasks.tasks[scratch_.order[i]];
      const DeviceIndex device = task.device_in(plan_);
      const bool grouped = task.group != Task::kNoGroup;
      uses_ = {scratch_.tasks.begin(task), task.use_count};
      find_next_use(task);
      if (device == kAccelerator && bounded() && !make_room()) return false;
      bring(device);
      if (!task.is_fetch()) {
        plan_.program.push_back({.kind = grouped        ? Instruction::Kind::kFused
                                         : task.is_body ? Instruction::Kind::kBody
                                                        : Instruction::Kind::kRun,
                                 .queue = queue_id(device, QueueKind::kCompute),
                                 .index = grouped ? task.group : task.node});
      }
      note_writes(device);
      if (bounded()) let_go(i, device);
    }
    finish();
    return true;
  }

 private:
  bool bounded() const { return limit_ != kAnyBytes; }
  uint64_t size_of(BufferId b) const { return SliceAllocator::round_up(graph_.buffers[b].bytes); }

  void begin() {
    plan_.program.clear();
    plan_.returns.clear();
    states_.assign(graph_.buffers.size(), {});
    for (size_t b = 0; b < states_.size(); ++b) states_[b].valid_on = graph_.buffers[b].valid_on;
    scratch_.peak_bytes = 0;
    if (!bounded()) return;
    used_ = 0;
    for (BufferId b = 0; b < states_.size(); ++b) {
      BufferState& state = states_[b];
      state.stays = (state.valid_on & kHere[kAccelerator]) != 0 || scratch_.resident[b] != 0;
      state.present = state.stays;
      if (state.stays) used_ += size_of(b);
    }
    find_next_uses();
    scratch_.present.clear();
    scratch_.peak_bytes = used_;
  }

  // For each use of the order, when the accelerator touches its buffer next; and the last touches.
  void find_next_uses() {
    const TaskGraph& tasks = scratch_.tasks;
    scratch_.next_use.resize(tasks.uses.size());
    for (uint32_t i = static_cast<uint32_t>(scratch_.order.size()); i-- > 0;) {
      const Task& task = tasks.tasks[scratch_.order[i]];
      const bool there = task.device_in(plan_) == kAccelerator;
      for (uint32_t u = task.first_use; u < task.first_use + task.use_count; ++u) {
        BufferState& state = states_[tasks.uses[u].buffer];
        scratch_.next_use[u] = state.next_use;
        if (!tasks.uses[u].in_memory()) continue;
        if (there) state.next_use = i;
        if (state.last_use == kNever) state.last_use = i;
      }
    }
  }

  void find_next_use(const Task& task) {
    if (!bounded()) return;
    for (uint32_t u = task.first_use; u < task.first_use + task.use_count; ++u) {
      states_[scratch_.tasks.uses[u].buffer].next_use = scratch_.next_use[u];
    }
  }

  // For what the task needs on the accelerator. False where that cannot be.
  bool make_room() {
    uint64_t needed = 0;
    for (const Use& use : uses_) needed += takes_memory(use) ? size_of(use.buffer) : 0;
    while (used_ + needed > limit_) {
      const BufferId victim = find_victim();
      if (victim == kNoBuffer) return false;
      leave(victim);
    }
    for (const Use& use : uses_) {
      if (!takes_memory(use)) continue;
      states_[use.buffer].present = true;
      used_ += size_of(use.buffer);
      scratch_.present.push_back(use.buffer);
    }
    scratch_.peak_bytes = std::max(scratch_.peak_bytes, used_);
    return true;
  }

  bool takes_memory(const Use& use) const { return use.in_memory() && !states_[use.buffer].present; }

  // What is used last, and of those the largest.
  BufferId find_victim() const {
    BufferId victim = kNoBuffer;
    for (const BufferId b : scratch_.present) {
      if (std::ranges::find(uses_, b, &Use::buffer) != uses_.end()) continue;
      if (victim == kNoBuffer || states_[b].next_use > states_[victim].next_use ||
          (states_[b].next_use == states_[victim].next_use && graph_.buffers[b].bytes > graph_.buffers[victim].bytes)) {
        victim = b;
      }
    }
    return victim;
  }

  // The bytes leave the accelerator. They will be wanted.
  void leave(BufferId b) {
    if (states_[b].valid_on == kHere[kAccelerator]) copy_to(kCpu, b);
    forget(b);
  }

  void forget(BufferId b) {
    BufferState& state = states_[b];
    state.present = false;
    state.has_left = true;
    state.valid_on &= kHere[kCpu];
    used_ -= size_of(b);
    auto& present = scratch_.present;
    const auto place = std::ranges::find(present, b);
    *place = present.back();
    present.pop_back();
  }

  void bring(DeviceIndex device) {
    const uint8_t here = kHere[device];
    for (const Use& use : uses_) {
      BufferState& state = states_[use.buffer];
      if (!use.in_memory() || (state.valid_on & here) != 0) continue;
      // What comes back gets its new memory with a copy, needed or not.
      const bool comes_back = device == kAccelerator && state.has_left;
      if (!comes_back && !use.reads) continue;
      if (state.valid_on != 0) copy_to(device, use.buffer);
      state.valid_on |= here;
    }
  }

  void copy_to(DeviceIndex to, BufferId b) {
    const bool in = to == kAccelerator;
    const bool urgent = states_[b].made && scratch_.tasks.values[b].small;
    const QueueKind kind = in ? (urgent ? QueueKind::kUrgentToDevice : QueueKind::kHostToDevice)
                              : (urgent ? QueueKind::kUrgentToHost : QueueKind::kDeviceToHost);
    Instruction copy{.kind = Instruction::Kind::kCopy,
                     .queue = queue_id(kAccelerator, kind),
                     .index = b,
                     .from = in ? kCpu : kAccelerator,
                     .to = to};
    BufferState& state = states_[b];
    if (in && state.has_left) {
      plan_.returns.push_back({b, kAccelerator, {}});
      copy.stay = static_cast<uint32_t>(plan_.returns.size());
      state.has_left = false;
    }
    plan_.program.push_back(copy);
    state.valid_on |= kHere[to];
  }

  void note_writes(DeviceIndex device) {
    for (const Use& use : uses_) {
      if (!use.writes) continue;
      states_[use.buffer].valid_on = use.stores ? kHere[device] : 0;
      states_[use.buffer].made = true;
    }
  }

  // What need not stay on the accelerator after the task.
  void let_go(uint32_t position, DeviceIndex device) {
    for (const Use& use : uses_) {
      const BufferId b = use.buffer;
      const BufferState& state = states_[b];
      if (!state.present || state.stays) continue;
      if (device == kCpu) {
        if ((state.valid_on & kHere[kAccelerator]) == 0) forget(b);
      } else if (state.last_use == position && !graph_.buffers[b].escapes) {
        forget(b);
      } else if (state.next_use == kNever) {
        leave(b);
      }
    }
  }

  void finish() {
    // What lay on the accelerator before and has no place there any more.
    for (BufferId b = 0; bounded() && b < states_.size(); ++b) {
      if (!states_[b].stays || scratch_.resident[b] || (states_[b].valid_on & kHere[kAccelerator]) == 0) continue;
      if (states_[b].valid_on == kHere[kAccelerator] && graph_.buffers[b].escapes) copy_to(kCpu, b);
      states_[b].valid_on &= kHere[kCpu];
    }
    plan_.valid_after.resize(states_.size());
    for (BufferId b = 0; b < states_.size(); ++b)
      plan_.valid_after[b] = survives(graph_.buffers[b]) ? states_[b].valid_on : 0;
  }

  const Graph& graph_;
  const uint64_t limit_;
  Plan& plan_;
  Scratch& scratch_;
  std::vector<BufferState>& states_;
  std::span<const Use> uses_;  // of the task at hand
  uint64_t used_ = 0;
};

}  // namespace

void run_in_order(const Graph& graph, Plan& plan, Scratch& scratch) {
  std::vector<uint8_t>& valid = scratch.valid;
  valid.resize(graph.buffers.size());
  for (size_t b = 0; b < valid.size(); ++b) valid[b] = graph.buffers[b].valid_on;
  plan.program.clear();
  plan.returns.clear();
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    if (!plan.live[n]) continue;
    plan.program.push_back({.kind = Instruction::Kind::kRun, .queue = kHostQueue, .index = n});
    const Node& node = graph.nodes[n];
    for (const Operand *o = graph.operands_of(node), *end = o + node.operand_count; o != end; ++o) {
      uint8_t& bytes = valid[o->buffer];
      bytes = o->writes() ? kHere[kCpu] : bytes | kHere[kCpu];
    }
  }
  plan.valid_after.resize(valid.size());
  for (size_t b = 0; b < valid.size(); ++b) plan.valid_after[b] = survives(graph.buffers[b]) ? valid[b] : 0;
}

bool insert_copies(const Graph& graph, uint64_t limit, Plan& plan, Scratch& scratch) {
  return Walk(graph, limit, plan, scratch).run();
}

}  // namespace hetero::graph
