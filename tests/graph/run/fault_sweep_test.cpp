// Every call of a run fails once, and once for ever: small programs, each with something of its own, on devices whose k-th allocation, copy, launch
// or event fails, for k = 1 until a run comes to its end before.
//
// What the failure may reach is worked out from the plan alone (`Reach`): the instruction that made the call fails, and with it whatever reads what
// it should have made. Just these buffers have an error, of the call's class; all others have the interpreter's bits; no memory is left; and the
// same executor runs the program right when the devices are healthy again.

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "backend/fault/fault_device.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"

namespace hetero::graph::testing {
namespace {

using backend::DeviceIndex;
using backend::FaultDevice;
using backend::FaultDuration;
using backend::FaultKind;
using backend::kAccelerator;
using backend::kCpu;
using backend::kMostDevices;
using Kind = Instruction::Kind;
using Positions = std::set<uint32_t>;

constexpr FaultKind kKinds[] = {FaultKind::kAllocation, FaultKind::kCopy, FaultKind::kLaunch, FaultKind::kEventRecord,
                                FaultKind::kEventWait};

// Which instructions make the calls of a run, and what their failure reaches.
class Reach {
 public:
  Reach(const Graph& graph, const Plan& plan) : graph_(graph), plan_(plan) {
    for (uint32_t p = 0; p < plan.program.size(); ++p) note(p);
  }

  // The instructions that fail where the k-th call of the kind on the device does, or all from there on. None where there are fewer calls.
  // REQUIRES: not the events', whose failure the host makes good.
  Positions failing(FaultKind kind, DeviceIndex device, size_t k, bool for_ever) const {
    if (kind == FaultKind::kAllocation) return failing_allocations(device, k - 1, for_ever);
    const std::vector<Positions>& calls = kind == FaultKind::kCopy ? transfers_ : launches_;
    Positions positions;
    for (size_t i = k - 1; device != kCpu && i < calls.size() && (i == k - 1 || for_ever); ++i) {
      positions.insert(calls[i].begin(), calls[i].end());
    }
    return positions;
  }

  // Per buffer: an error reaches its binding where these instructions fail.
  std::vector<bool> reached(const Positions& failing) const {
    std::vector<bool> broken(graph_.buffers.size() * plan_.device_count);
    for (uint32_t p = 0; p < plan_.program.size(); ++p) {
      const Instruction& instruction = plan_.program[p];
      const bool fails = failing.count(p) != 0;
      if (instruction.kind == Kind::kCopy) {
        const size_t b = plan_.place_of(instruction.index, 0);
        broken[b + instruction.to] = fails || broken[b + instruction.from];
      } else if (instruction.kind == Kind::kRun) {
        run(graph_.nodes[instruction.index], device_of(instruction.queue), fails, broken);
      }
    }
    std::vector<bool> lost(graph_.buffers.size());
    for (BufferId b = 0; b < lost.size(); ++b) {
      lost[b] = plan_.valid_after[b] != 0;
      for (DeviceIndex d = 0; d < plan_.device_count; ++d) {
        if ((plan_.valid_after[b] >> d & 1) != 0 && !broken[plan_.place_of(b, d)]) lost[b] = false;
      }
    }
    return lost;
  }

 private:
  struct Allocation {
    uint32_t position;  // of the instruction that needs it first
    size_t residence;   // SIZE_MAX for the arena
  };

  void note(uint32_t p) {
    const Instruction& instruction = plan_.program[p];
    if (instruction.kind == Kind::kCopy) {
      if (p >= transfer_end_) {
        transfer_end_ = end_of_transfer(graph_, plan_, p);
        transfers_.emplace_back();
      }
      transfers_.back().insert(p);
      touch(p, instruction.index, instruction.from, false);
      if (instruction.stay == 0) {
        touch(p, instruction.index, instruction.to, false);
      } else {
        in_arena_[instruction.to].insert(p);
        returned_.insert(plan_.place_of(instruction.index, instruction.to));
      }
    } else if (instruction.kind == Kind::kRun) {
      const DeviceIndex device = device_of(instruction.queue);
      if (device == kAccelerator) launches_.push_back({p});
      const Node& node = graph_.nodes[instruction.index];
      for (const Operand *o = graph_.operands_of(node), *end = o + node.operand_count; o != end; ++o) {
        const bool brings = o->access == Access::kDefine && op_table()[node.op].brings_memory;
        touch(p, o->buffer, device, brings);
      }
    }
  }

  void touch(uint32_t p, BufferId buffer, DeviceIndex device, bool brings) {
    const size_t index = plan_.place_of(buffer, device);
    const Home home = plan_.residences[index].home;
    if (home == Home::kArena || returned_.count(index) != 0) {
      in_arena_[device].insert(p);
      return;
    }
    touches_[index].insert(p);
    const bool there = (graph_.buffers[buffer].valid_on >> device & 1) != 0;
    if (there || !has_memory_.insert(index).second || (home == Home::kBrought && brings)) return;
    allocations_[device].push_back({p, index});
  }

  Positions failing_allocations(DeviceIndex device, size_t k, bool for_ever) const {
    std::vector<Allocation> calls;
    if (plan_.arena_bytes[device] > 0) calls.push_back({0, SIZE_MAX});
    calls.insert(calls.end(), allocations_[device].begin(), allocations_[device].end());
    Positions positions;
    for (size_t i = k; i < calls.size() && (i == k || for_ever); ++i) {
      // Without the arena, whoever needs it fails. Other memory the next one asks for again.
      const Positions& all = calls[i].residence == SIZE_MAX ? in_arena_[device] : touches_.at(calls[i].residence);
      if (for_ever || calls[i].residence == SIZE_MAX) {
        positions.insert(all.begin(), all.end());
      } else {
        positions.insert(calls[i].position);
      }
    }
    return positions;
  }

  void run(const Node& node, DeviceIndex device, bool fails, std::vector<bool>& broken) const {
    const Operand* const begin = graph_.operands_of(node);
    const Operand* const end = begin + node.operand_count;
    const auto at = [&](const Operand& operand) { return plan_.place_of(operand.buffer, device); };
    for (const Operand* o = begin; o != end; ++o) fails |= o->reads() && broken[at(*o)];
    for (const Operand* o = begin; o != end; ++o) {
      if (!o->writes()) continue;
      if (fails || overwrites(*graph_.windows, *o, graph_.buffers[o->buffer])) broken[at(*o)] = fails;
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  std::vector<Positions> transfers_;  // per call: its copies
  uint32_t transfer_end_ = 0;
  std::vector<Positions> launches_;
  std::vector<Allocation> allocations_[kMostDevices];
  Positions in_arena_[kMostDevices];
  std::map<size_t, Positions> touches_;  // per residence outside the arenas
  std::set<size_t> has_memory_;
  std::set<size_t> returned_;  // residences whose bytes are in a return now
};

// What a sweep has seen.
struct Swept {
  int64_t injected = 0;  // runs in which a call failed
  int64_t reached = 0;   // buffers with an error, in all of them
  int64_t healthy = 0;   // and without
};

class Sweep {
 public:
  Sweep(Program& program, const PlanOptions& options, Swept& swept)
      : program_(program), plan_(program.plan(options)), expected_(program.interpret()), swept_(swept) {
    if (!options.machine.has_accelerator()) devices_[kAccelerator] = nullptr;
  }

  const Plan& plan() const { return plan_; }

  void run() {
    const Reach reach(program_.graph, plan_);
    for (DeviceIndex d = 0; d < kMostDevices && devices_[d] != nullptr; ++d) {
      for (const FaultKind kind : kKinds) {
        for (const FaultDuration duration : {FaultDuration::kOnce, FaultDuration::kForEver}) {
          for (size_t k = 1; fail(reach, d, kind, k, duration); ++k) {
          }
        }
      }
    }
  }

 private:
  // False where the run came to its end without the failure.
  bool fail(const Reach& reach, DeviceIndex device, FaultKind kind, size_t k, FaultDuration duration) {
    INFO(to_string(program_.graph));
    INFO(to_string(plan_));
    INFO((device == kCpu ? "CPU" : "accelerator")
         << ", " << to_string(kind) << ' ' << k << (duration == FaultDuration::kOnce ? "" : " and all later"));
    const auto held = held_bytes();
    bool fired = false;
    {
      Results results;
      results.bindings = program_.bind(test_devices());
      FaultDevice& faulty = *devices_[device];
      const int64_t before = faulty.failures(kind);
      faulty.fail(kind, static_cast<int64_t>(k), duration);
      const std::vector<Binding*> bound = program_.pointers(results.bindings);
      results.status = executor_.run(program_.graph, plan_, bound, results.counts);
      faulty.heal();
      fired = faulty.failures(kind) != before;
      program_.read_values(results, test_devices());
      if (fired) check(results, reach, device, kind, k, duration);
    }
    REQUIRE(held_bytes() == held);
    check_healthy_run();
    REQUIRE(held_bytes() == held);
    return fired;
  }

  void check(const Results& results, const Reach& reach, DeviceIndex device, FaultKind kind, size_t k,
             FaultDuration duration) {
    ++swept_.injected;
    const bool event = kind == FaultKind::kEventRecord || kind == FaultKind::kEventWait;
    const ErrorClass error = kind == FaultKind::kAllocation ? ErrorClass::kResource : ErrorClass::kDevice;
    // A group that cannot get its memory runs its members one by one, which asks again.
    const bool exact = plan_.groups.empty();
    if (event) REQUIRE(results.status.ok());
    if (!event && exact) REQUIRE_FALSE(results.status.ok());
    if (!results.status.ok()) REQUIRE(results.status.error_class() == error);
    std::vector<bool> reached(program_.graph.buffers.size());
    if (!event) reached = reach.reached(reach.failing(kind, device, k, duration == FaultDuration::kForEver));
    for (BufferId b = 0; b < reached.size(); ++b) {
      const Binding& binding = results.bindings[b];
      INFO("b" << b);
      if (exact) REQUIRE(!binding.error.ok() == reached[b]);
      if (!binding.error.ok()) REQUIRE(binding.error.error_class() == error);
      ++(binding.error.ok() ? swept_.healthy : swept_.reached);
      if (!program_.graph.buffers[b].escapes || !binding.error.ok()) continue;
      REQUIRE(results.values[b] == expected_.values[b]);
    }
  }

  void check_healthy_run() {
    Results results;
    results.bindings = program_.bind(test_devices());
    results.status = executor_.run(program_.graph, plan_, program_.pointers(results.bindings), results.counts);
    program_.read_values(results, test_devices());
    REQUIRE(results.status.ok());
    REQUIRE(same_values(program_, results, expected_));
  }

  static std::array<int64_t, kMostDevices> held_bytes() {
    return {test_devices()[kCpu]->memory_stats().allocated_bytes,
            test_devices()[kAccelerator]->memory_stats().allocated_bytes};
  }

  Program& program_;
  const Plan plan_;
  const Results expected_;
  Swept& swept_;
  FaultDevice cpu_{*test_devices()[kCpu]};
  FaultDevice accelerator_{*test_devices()[kAccelerator]};
  std::array<FaultDevice*, kMostDevices> devices_{&cpu_, &accelerator_};
  Executor executor_{{&cpu_, &accelerator_}};
};

// --- The programs

constexpr Preference kHere = Preference::kCpu;
constexpr Preference kThere = Preference::kAccelerator;

BufferId after(Program& p, BufferId x, Preference where, OpId op = test_ops().matmul, int64_t count = 16) {
  return p.define(op, count, {p.read(x)}, where);
}

void make_chain(Program& p) {
  BufferId value = p.input(16);
  for (int i = 0; i < 4; ++i) value = after(p, value, kThere);
  p.escape(value);
}

// From device to device, with results on the way.
void make_zigzag(Program& p) {
  BufferId value = p.input(16);
  for (int i = 0; i < 5; ++i) {
    value = after(p, value, i % 2 == 0 ? kThere : kHere);
    if (i % 2 == 1) p.escape(value);
  }
  p.escape(value);
}

void make_fork(Program& p) {
  const BufferId x = p.input(16);
  const BufferId root = after(p, x, kThere);
  BufferId left = root;
  BufferId right = root;
  for (int i = 0; i < 2; ++i) {
    left = after(p, left, kHere);
    right = after(p, right, kThere);
  }
  p.escape(right);
  p.escape(p.define(test_ops().matmul, 16, {p.read(left), p.read(right)}, kHere));
  p.escape(p.define(test_ops().matmul, 16, {p.read(left), p.read(right)}, kThere));
}

void make_updates(Program& p) {
  const BufferId x = p.input(16);
  const BufferId y = p.input(16);
  p.escape(x);
  p.escape(y);
  for (int i = 0; i < 4; ++i) p.add(test_ops().matmul, {p.read(y), p.update(x)}, i % 2 == 0 ? kThere : kHere);
  p.add(test_ops().matmul, {p.read(x), p.update(y)}, kThere);
}

void make_partial_writes(Program& p) {
  const BufferId x = p.input(16);
  const BufferId y = p.input(16);
  p.escape(y);
  p.add(test_ops().matmul, {p.read(x), p.operand(y, Access::kWrite, {8}, {1}, 0)}, kThere);
  p.add(test_ops().matmul, {p.read(x), p.operand(y, Access::kWrite, {8}, {2}, 1)}, kHere);
  p.add(test_ops().matmul, {p.operand(y, Access::kRead, {4}, {1}, 2), p.operand(y, Access::kUpdate, {4}, {1}, 8)},
        kThere);
  p.escape(after(p, y, kThere));
}

// What fails before is overwritten as a whole.
void make_overwrites(Program& p) {
  const BufferId x = p.input(16);
  const BufferId y = p.input(16);
  p.escape(y);
  for (int i = 0; i < 3; ++i) {
    p.escape(after(p, y, kThere));
    p.add(test_ops().matmul, {p.read(x), p.write(y)}, i == 1 ? kHere : kThere);
  }
}

void make_empty_sizes(Program& p) {
  const BufferId x = p.input(0);
  const BufferId y = p.define(test_ops().matmul, 0, {p.read(x)}, kThere);
  const BufferId z = p.define(test_ops().matmul, 16, {p.read(y)}, kHere);
  const BufferId empty = p.define(test_ops().matmul, 0, {p.read(z)}, kThere);
  p.add(test_ops().matmul, {p.read(z), p.update(empty)}, kHere);
  for (const BufferId b : {y, z, empty}) p.escape(b);
}

void make_brought(Program& p) {
  const BufferId x = p.input(16);
  const BufferId kept = after(p, x, kHere, test_ops().brings);
  const BufferId gone = after(p, kept, kHere, test_ops().brings);
  const BufferId sent = after(p, gone, kHere, test_ops().brings);
  p.escape(kept);
  p.escape(after(p, sent, kThere, test_ops().brings));
}

void make_inputs_there(Program& p) {
  const BufferId both = p.input(16, 0b11);
  const BufferId there = p.input(16, 0b10);
  const BufferId dying = p.input(16, 0b10);
  p.escape(both);
  p.escape(there);
  p.add(test_ops().matmul, {p.read(there), p.update(both)}, kHere);
  p.escape(p.define(test_ops().matmul, 16, {p.read(both), p.read(dying)}, kThere));
  p.add(test_ops().matmul, {p.read(both), p.update(there)}, kThere);
}

// Weights that do not fit together, used twice.
void make_streamed(Program& p) {
  std::vector<BufferId> weights(5);
  for (BufferId& weight : weights) p.escape(weight = p.input(64));
  BufferId value = p.input(16);
  for (int i = 0; i < 10; ++i) {
    value = p.define(test_ops().matmul, 16, {p.read(weights[static_cast<size_t>(i % 5)]), p.read(value)}, kThere);
  }
  p.escape(value);
}

// Values that wait for their second use while others need the room.
void make_evicted(Program& p) {
  std::vector<BufferId> values{after(p, p.input(64), kThere, test_ops().matmul, 64)};
  for (int i = 0; i < 5; ++i) values.push_back(after(p, values.back(), kThere, test_ops().matmul, 64));
  BufferId gradient = values.back();
  for (size_t i = values.size() - 1; i-- > 0;) {
    gradient = p.define(test_ops().matmul, 64, {p.read(values[i]), p.read(gradient)}, kThere);
  }
  p.escape(gradient);
}

// Small inputs that come together, and small results that go together.
void make_transfers(Program& p) {
  std::vector<Operand> results;
  for (int i = 0; i < 3; ++i) results.push_back(p.read(after(p, p.input(16), kThere)));
  p.escape(p.input(16));
  p.escape(p.define(test_ops().matmul, 16, results, kHere));
}

// Large temporaries and dying inputs, on the CPU alone.
void make_on_host(Program& p) {
  BufferId value = p.input(16);
  for (int i = 0; i < 6; ++i) {
    value = p.define(test_ops().pointwise, 300, {p.read(value), p.read(p.input(16))}, kHere);
    if (i == 3) p.escape(value);
  }
  p.escape(p.define(test_ops().brings, 16, {p.read(value)}, kHere));
}

void make_fused(Program& p) {
  const BufferId x = p.input(16);
  BufferId value = x;
  for (int i = 0; i < 6; ++i) {
    value = p.define(i == 3 ? test_ops().pointwise : test_ops().map, 16, {p.read(value), p.read(x)});
    if (i % 2 == 1) p.escape(value);
  }
}

// Products whose biases are in the groups of what follows.
void make_tails(Program& p) {
  const BufferId bias = p.input(6);
  BufferId value = p.input(24);
  const auto matrix = [&](BufferId buffer, Access access) { return p.operand(buffer, access, {4, 6}, {6, 1}, 0); };
  for (int i = 0; i < 4; ++i) {
    const BufferId product = p.empty(24);
    p.add(test_ops().product, {p.operand(bias, Access::kRead, {6}, {1}, 0), matrix(value, Access::kRead),
                               matrix(product, Access::kDefine)});
    const BufferId out = p.empty(24);
    p.add(test_ops().map, {matrix(product, Access::kRead), matrix(value, Access::kRead), matrix(out, Access::kDefine)});
    if (i % 2 == 1) p.escape(product);
    p.escape(out);
    value = out;
  }
}

void expect_tails(const Plan& plan) { REQUIRE(std::ranges::count(plan.program, Kind::kBody, &Instruction::kind) == 4); }

void sweep(const char* name, void (*make)(Program&), const PlanOptions& options, Swept& swept,
           void (*expect)(const Plan&) = nullptr) {
  Program program;
  make(program);
  Swept own;
  Sweep all(program, options, own);
  INFO(name);
  if (expect != nullptr) expect(all.plan());
  all.run();
  CHECK(own.injected > 0);
  std::printf("fault sweep, %s: %lld faults, %lld errors in bindings, %lld bindings without\n", name,
              static_cast<long long>(own.injected), static_cast<long long>(own.reached),
              static_cast<long long>(own.healthy));
  swept.injected += own.injected;
  swept.reached += own.reached;
  swept.healthy += own.healthy;
}

void expect_transfers(const Plan& plan) {
  REQUIRE(plan.transfer_bytes[kAccelerator] > 0);
  REQUIRE(std::ranges::adjacent_find(plan.program, [](const Instruction& a, const Instruction& b) {
            return a.kind == Kind::kCopy && b.kind == Kind::kCopy && a.queue == b.queue;
          }) != plan.program.end());
}

void expect_returns(const Plan& plan) { REQUIRE(plan.returns.size() >= 2); }
void expect_groups(const Plan& plan) { REQUIRE(!plan.groups.empty()); }

}  // namespace

TEST_CASE("whatever call fails, the error reaches what depends on it, and only that") {
  Swept swept;
  const PlanOptions mixed = mixed_options();
  sweep("a chain", make_chain, mixed, swept);
  sweep("from device to device", make_zigzag, mixed, swept);
  sweep("a fork", make_fork, mixed, swept);
  sweep("updates in place", make_updates, mixed, swept);
  sweep("partial writes", make_partial_writes, mixed, swept);
  sweep("overwrites", make_overwrites, mixed, swept);
  sweep("empty buffers", make_empty_sizes, mixed, swept);
  sweep("brought memory", make_brought, mixed, swept);
  sweep("inputs on the accelerator", make_inputs_there, mixed, swept);
  PlanOptions bounded = mixed;
  bounded.machine[1].bytes = 1100;
  sweep("streamed weights", make_streamed, bounded, swept, expect_returns);
  sweep("evicted values", make_evicted, bounded, swept, expect_returns);
  PlanOptions joining = mixed;
  joining.machine[1].rates.copy_latency = 1e-3;
  sweep("transfers of several copies", make_transfers, joining, swept, expect_transfers);
  joining.machine[1].bytes = 1100;
  sweep("transfers of several copies to little memory", make_streamed, joining, swept, expect_returns);
  sweep("the CPU alone", make_on_host, cpu_options(), swept);
  sweep("fused groups", make_fused, fused_options(), swept, expect_groups);
  PlanOptions fused_there = mixed;
  fused_there.fusion = true;
  sweep("fused groups on two devices", make_fused, fused_there, swept, expect_groups);
  sweep("bodies and tails", make_tails, fused_options(), swept, expect_tails);
  sweep("bodies and tails on two devices", make_tails, fused_there, swept, expect_tails);
  std::printf("fault sweep: %lld faults injected\n", static_cast<long long>(swept.injected));
  CHECK(swept.injected > 300);
  CHECK(swept.reached > 300);
  CHECK(swept.healthy > 300);
}

}  // namespace hetero::graph::testing
