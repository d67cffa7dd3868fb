#include "tests/graph/verify/damage.h"

#include <algorithm>
#include <random>

#include "graph/plan/slice_allocator.h"

namespace hetero::graph::testing {

using Kind = Instruction::Kind;

Plan without(const Plan& plan, size_t position) {
  Plan damaged = plan;
  damaged.program.erase(damaged.program.begin() + static_cast<long>(position));
  for (Residence& residence : damaged.residences) {
    residence.first -= residence.first > position;
    residence.last -= residence.last > position;
  }
  for (Return& entry : damaged.returns) {
    entry.residence.first -= entry.residence.first > position;
    entry.residence.last -= entry.residence.last > position;
  }
  return damaged;
}

namespace {

class Mutator {
 public:
  Mutator(unsigned seed, const Devices& devices) : random_(seed), devices_(devices) {}

  // A random program with a plan; within a budget or not.
  void make(bool fused, Program& program, Plan& plan, PlanOptions& options);
  // False where the plan has nothing that could be damaged so.
  bool apply(Damage damage, const Program& program, Plan& plan);

 private:
  uint64_t below(uint64_t limit) { return std::uniform_int_distribution<uint64_t>(0, limit - 1)(random_); }
  template <typename Condition>
  size_t pick(const Plan& plan, Condition condition);
  bool remove(Instruction::Kind kind, Plan& plan);
  template <typename Change>
  bool change_residence(Plan& plan, Change change);
  bool swap(Plan& plan);
  bool change_queue(Plan& plan);

  std::mt19937 random_;
  const Devices& devices_;
};

template <typename Condition>
size_t Mutator::pick(const Plan& plan, Condition condition) {
  std::vector<size_t> found;
  for (size_t p = 0; p < plan.program.size(); ++p) {
    if (condition(plan.program[p])) found.push_back(p);
  }
  return found.empty() ? plan.program.size() : found[below(found.size())];
}

bool Mutator::remove(Kind kind, Plan& plan) {
  const size_t p = pick(plan, [kind](const Instruction& instruction) { return instruction.kind == kind; });
  if (p == plan.program.size()) return false;
  plan = without(plan, p);
  return true;
}

template <typename Change>
bool Mutator::change_residence(Plan& plan, Change change) {
  const size_t r = below(plan.residences.size() + plan.returns.size());
  const bool returns = r >= plan.residences.size();
  Residence& residence = returns ? plan.returns[r - plan.residences.size()].residence : plan.residences[r];
  return residence.home != Home::kNone && change(residence);
}

// Two instructions near each other; lifetimes are what they are then.
bool Mutator::swap(Plan& plan) {
  if (plan.program.size() < 2) return false;
  const size_t a = below(plan.program.size() - 1);
  const size_t b = std::min(plan.program.size() - 1, a + 1 + below(3));
  std::swap(plan.program[a], plan.program[b]);
  const auto follow = [a, b](Residence& residence) {
    if (residence.home == Home::kNone || (residence.first == a && residence.last == b)) return;
    for (uint32_t* position : {&residence.first, &residence.last}) {
      *position = static_cast<uint32_t>(*position == a ? b : *position == b ? a : *position);
    }
  };
  for (Residence& residence : plan.residences) follow(residence);
  for (Return& entry : plan.returns) follow(entry.residence);
  return true;
}

bool Mutator::change_queue(Plan& plan) {
  if (plan.program.empty()) return false;
  Instruction& instruction = plan.program[below(plan.program.size())];
  // The programs have no host tasks; what else goes to the worker queue, plan/host_tasks_test.cpp
  // tries.
  auto queue = static_cast<QueueId>(below(queue_count(plan.device_count) - 1u));
  if (queue >= kWorkerQueue) ++queue;
  if (queue == instruction.queue) return false;
  instruction.queue = queue;
  return true;
}

void Mutator::make(bool fused, Program& program, Plan& plan, PlanOptions& options) {
  const int nodes = 10 + static_cast<int>(below(40));
  fused ? make_fusable(program, random_, nodes) : make_random(program, random_, nodes, below(2) == 0);
  constexpr Policy kPolicies[] = {Policy::kMixed, Policy::kMixed, Policy::kAccelerator};
  const PlanOptions all = options_for(devices_);
  if (all.machine.size() > 2) spread(program, random_, all.machine.size());
  options = all;
  options.fusion = fused;
  options.policy = kPolicies[below(std::size(kPolicies))];
  if (below(2) == 0) {
    uint64_t there = 0;
    for (const Buffer& buffer : program.graph.buffers) {
      if ((buffer.valid_on & ~backend::only(backend::kCpu)) != 0) there += SliceAllocator::round_up(buffer.bytes);
    }
    const uint64_t bytes = there + 512 + 64 * below(48);
    for (backend::DeviceIndex d = 1; d < options.machine.size(); ++d) options.machine[d].bytes = bytes;
  }
  plan = program.plan(options);
}

bool Mutator::apply(Damage damage, const Program& program, Plan& plan) {
  switch (damage) {
    case Damage::kNoWait:
      return remove(Kind::kWait, plan);
    case Damage::kNoRecord:
      return remove(Kind::kRecord, plan);
    case Damage::kNoCopy:
      return remove(Kind::kCopy, plan);
    case Damage::kOtherOffset:
      return change_residence(plan, [this](Residence& residence) {
        if (residence.home != Home::kArena) return false;
        residence.offset += 64 * (1 + below(8)) * (below(2) == 0 ? 1 : -1);
        return true;
      });
    case Damage::kLaterFirst:
      return change_residence(plan, [](Residence& residence) { return ++residence.first <= residence.last; });
    case Damage::kEarlierLast:
      return change_residence(plan, [](Residence& residence) { return residence.last-- > residence.first; });
    case Damage::kSwapped:
      return swap(plan);
    case Damage::kOtherQueue:
      return change_queue(plan);
    case Damage::kNoStay: {
      const size_t p = pick(plan, [](const Instruction& instruction) { return instruction.stay != 0; });
      if (p != plan.program.size()) plan.program[p].stay = 0;
      return p != plan.program.size();
    }
    case Damage::kOtherValidity: {
      const auto b = static_cast<BufferId>(below(plan.valid_after.size()));
      const auto devices = static_cast<backend::DeviceSet>(below(uint64_t{1} << plan.device_count));
      if (plan.valid_after[b] == devices || !program.graph.buffers[b].escapes) return false;
      plan.valid_after[b] = devices;
      return true;
    }
    case Damage::kOtherHome: {
      const size_t r = below(plan.residences.size());
      Residence& residence = plan.residences[r];
      const auto home = static_cast<Home>(1 + below(4));
      if (residence.home == Home::kNone || residence.home == home) return false;
      residence.home = home;
      if (home != Home::kArena) return true;
      // At the arena's end, where nobody else is.
      uint64_t& bytes = plan.arena_bytes[r % plan.device_count];
      residence.offset = bytes;
      bytes += SliceAllocator::round_up(program.graph.buffers[r / plan.device_count].bytes);
      return true;
    }
  }
  return false;
}

}  // namespace

void for_each_mutation(
    bool fused, int count, const Devices& devices,
    const std::function<void(Damage, Program&, const Plan& sound, const Plan& damaged, const PlanOptions&)>& look) {
  Mutator mutator(9, devices);
  for (int tried = 0; tried < count;) {
    Program program;
    Plan sound;
    PlanOptions options;
    mutator.make(fused, program, sound, options);
    Plan damaged = sound;
    const auto damage = static_cast<Damage>(tried % kDamages);
    if (!mutator.apply(damage, program, damaged)) continue;
    ++tried;
    look(damage, program, sound, damaged, options);
  }
}

}  // namespace hetero::graph::testing
