// Order: what each instruction must come after, on other queues than its own.
//
//   1. Walk the program with, for the bytes of each buffer on each device, the last instruction of
//      every queue that touched and that wrote them. A reader requires the last writers; a writer
//      requires everyone. Queues are in order, so one position per queue says it all.
//   2. Walk again with a vector clock per queue (Fidge/Mattern 1988): what every queue is known to
//      have run. A requirement that the clock does not cover costs a wait, after which the clock
//      also knows what the awaited instruction knew.
//   3. What runs on other queues is submitted before the host's own work where nothing forbids it
//      (submit_early): a kernel of the CPU keeps the host from submitting anything else.
// The host submits in program order and runs its own queue while submitting, so every instruction
// is after all earlier ones of the host's queue, and after whatever these waited for.

#include <algorithm>
#include <utility>

#include "graph/plan/passes.h"

namespace hetero::graph {
namespace {

void touch(Touches& touches, bool writes, QueueId queue, uint32_t position, Clock& requirement) {
  merge(requirement, writes ? touches.any : touches.write);
  touches.any[queue] = position + 1;
  if (writes) touches.write[queue] = position + 1;
}

}  // namespace

void order_queues(const Graph& graph, const Plan& plan, Scratch& scratch) {
  scratch.touches.assign(graph.buffers.size() * plan.device_count, {});
  scratch.requirements.assign(plan.program.size(), {});
  const auto bytes_of = [&](BufferId buffer, backend::DeviceIndex device) -> Touches& {
    return scratch.touches[plan.place_of(buffer, device)];
  };
  for (uint32_t i = 0; i < plan.program.size(); ++i) {
    const Instruction& instruction = plan.program[i];
    const QueueId queue = instruction.queue;
    Clock& requirement = scratch.requirements[i];
    if (!instruction.computes()) {
      // What comes back has other memory.
      if (instruction.stay != 0) bytes_of(instruction.index, instruction.to) = {};
      for_each_touch(graph, plan, instruction, [&](const TouchedBytes& bytes) {
        touch(bytes_of(bytes.buffer, bytes.device), bytes.writes, queue, i, requirement);
      });
      continue;
    }
    for (const Use& use : scratch.tasks.uses_of(instruction)) {
      touch(bytes_of(use.buffer, device_of(queue)), use.writes, queue, i, requirement);
    }
    requirement[queue] = 0;
  }
  order_transfers(plan, scratch);
  compute_clocks(plan, scratch);
}

namespace {

// Emits the instructions of a program again, queue by queue in their order, those of the host last.
class EarlySubmission {
 public:
  EarlySubmission(const Graph& graph, const Limits& limits, Plan& plan, Scratch& scratch)
      : graph_(graph),
        limits_(limits),
        bounded_(is_bounded(limits)),
        queues_(queue_count(plan.device_count)),
        plan_(plan),
        scratch_(scratch) {}

  void run() {
    std::vector<Instruction>& program = plan_.program;
    for (uint32_t i = 0; i < program.size(); ++i) lines_[program[i].queue].push_back(i);
    if (bounded_) find_stays();
    scratch_.program.clear();
    while (scratch_.program.size() < program.size()) emit(find_next());
    program.swap(scratch_.program);
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  uint32_t head(QueueId queue) const {
    return next_[queue] < lines_[queue].size() ? lines_[queue][next_[queue]] : kNone;
  }

  // The first in the old order of those that may come now; the host's own only where there is no
  // other.
  uint32_t find_next() const {
    uint32_t first = kNone;   // of all
    uint32_t remote = kNone;  // may come now
    for (QueueId queue = 0; queue < queues_; ++queue) {
      const uint32_t i = head(queue);
      first = std::min(first, i);
      if (queue != kHostQueue && i < remote && may_come(i)) remote = i;
    }
    if (remote != kNone) return remote;
    const uint32_t host = head(kHostQueue);
    return host != kNone && may_come(host) ? host : first;
  }

  // What it must come after has come, and it needs no memory that is not there. The first of all
  // always may.
  bool may_come(uint32_t i) const {
    const Clock& requirement = scratch_.requirements[i];
    for (QueueId queue = 0; queue < queues_; ++queue) {
      const uint32_t before = head(queue);
      if (before != kNone && requirement[queue] > before) return false;
    }
    if (!bounded_) return true;
    // Bytes come back when all is submitted that uses those that were there before: by the order of
    // submission it is known who uses which.
    const uint32_t before = stay_before_[i];
    return (before == kNone || touches_[before] == 0) && has_room(i);
  }

  bool has_room(uint32_t i) const {
    Limits live = live_;
    for_each_stay(i, [&](uint32_t stay) {
      if (stays_at_[stay].begin == i) live[stays_at_[stay].device] += stays_at_[stay].bytes;
    });
    for (backend::DeviceIndex d = 1; d < plan_.device_count; ++d) {
      if (live[d] > limits_[d]) return false;
    }
    return true;
  }

  void emit(uint32_t i) {
    ++next_[plan_.program[i].queue];
    scratch_.program.push_back(plan_.program[i]);
    if (!bounded_) return;
    for_each_stay(i, [this, i](uint32_t stay) {
      const Stay& at = stays_at_[stay];
      if (at.begin == i) live_[at.device] += at.bytes;
    });
    for_each_stay(i, [this](uint32_t stay) {
      if (--touches_[stay] == 0) live_[stays_at_[stay].device] -= stays_at_[stay].bytes;
    });
  }

  // The stays of bytes on accelerators, where each begins, and by how many it is touched.
  void find_stays() {
    stay_before_.assign(plan_.program.size(), kNone);
    stays_.assign(plan_.program.size() + 1, 0);
    current_.assign(graph_.buffers.size() * plan_.device_count, kNone);
    for (BufferId b = 0; b < graph_.buffers.size(); ++b) {
      for (backend::DeviceIndex d = 1; d < plan_.device_count; ++d) {
        if (!backend::contains(scratch_.states[b].stays, d)) continue;
        live_[d] += SliceAllocator::round_up(graph_.buffers[b].bytes);
      }
    }
    for (uint32_t i = 0; i < plan_.program.size(); ++i) {
      stays_[i] = static_cast<uint32_t>(touched_.size());
      const Instruction& instruction = plan_.program[i];
      if (!instruction.computes()) {
        if (instruction.stay != 0) {
          uint32_t& current = current_[plan_.place_of(instruction.index, instruction.to)];
          stay_before_[i] = std::exchange(current, kNone);
        }
        for_each_touch(graph_, plan_, instruction,
                       [&](const TouchedBytes& bytes) { touch(i, bytes.buffer, bytes.device); });
      } else {
        for (const Use& use : scratch_.tasks.uses_of(instruction)) {
          if (use.in_memory()) touch(i, use.buffer, device_of(instruction.queue));
        }
      }
    }
    stays_[plan_.program.size()] = static_cast<uint32_t>(touched_.size());
  }

  void touch(uint32_t i, BufferId buffer, backend::DeviceIndex device) {
    // What stays throughout has its memory, which is in live_ from the beginning.
    if (device == backend::kCpu || backend::contains(scratch_.states[buffer].stays, device)) return;
    uint32_t& stay = current_[plan_.place_of(buffer, device)];
    if (stay == kNone) {
      stay = static_cast<uint32_t>(stays_at_.size());
      stays_at_.push_back({SliceAllocator::round_up(graph_.buffers[buffer].bytes), i, device});
      touches_.push_back(0);
    }
    ++touches_[stay];
    touched_.push_back(stay);
  }

  template <typename Function>
  void for_each_stay(uint32_t i, Function function) const {
    for (uint32_t k = stays_[i]; k < stays_[i + 1]; ++k) function(touched_[k]);
  }

  // Bytes that are on an accelerator from an instruction on.
  struct Stay {
    uint64_t bytes;
    uint32_t begin;
    backend::DeviceIndex device;
  };

  const Graph& graph_;
  const Limits& limits_;
  const bool bounded_;
  const QueueId queues_;
  Plan& plan_;
  Scratch& scratch_;
  std::vector<uint32_t> lines_[kMaxQueues];  // per queue: its instructions
  size_t next_[kMaxQueues] = {};
  Limits live_{};
  // Per copy of bytes that come back: the stay of those that were there before.
  std::vector<uint32_t> stay_before_;
  std::vector<uint32_t> stays_;    // per instruction: where its entries of touched_ begin
  std::vector<uint32_t> touched_;  // stays
  std::vector<uint32_t> current_;  // per residence: the stay that it is in
  std::vector<Stay> stays_at_;     // per stay
  std::vector<uint32_t> touches_;  // per stay: those that are to come
};

}  // namespace

void submit_early(const Graph& graph, const Limits& limits, Plan& plan, Scratch& scratch) {
  EarlySubmission(graph, limits, plan, scratch).run();
}

void compute_clocks(const Plan& plan, Scratch& scratch) {
  std::array<Clock, kMaxQueues> known{};  // per queue: what its next instruction is after
  Clock host{};
  const int queues = queue_count(plan.device_count);
  scratch.clocks.resize(plan.program.size());
  scratch.waits.clear();
  for (uint32_t i = 0; i < plan.program.size(); ++i) {
    const QueueId queue = plan.program[i].queue;
    const Clock& requirement = scratch.requirements[i];
    Clock now = known[queue];
    merge(now, host);
    now[kHostQueue] = i;
    while (true) {
      // The latest first: it is the likeliest to cover the others.
      uint32_t latest = 0;
      for (int q = 0; q < queues; ++q) {
        if (q != queue && requirement[q] > now[q]) latest = std::max(latest, requirement[q]);
      }
      if (latest == 0) break;
      const uint32_t producer = latest - 1;
      scratch.waits.emplace_back(i, producer);
      merge(now, scratch.clocks[producer]);
      now[plan.program[producer].queue] = latest;
    }
    scratch.clocks[i] = now;
    now[queue] = i + 1;
    known[queue] = now;
    if (queue == kHostQueue) host = now;
  }
}

}  // namespace hetero::graph
