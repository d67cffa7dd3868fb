// What running a plan costs the host once it has been run before: time per node, memory from the heap, waits that the program does not ask for.

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend/cpu/cpu_device.h"
#include "tests/graph/fixtures/steady.h"
#include "tests/perf/partition/bound.h"
#include "tests/perf/partition/idle_device.h"
#include "tests/perf/partition/model.h"
#include "tests/perf/partition/rows.h"
#include "tests/perf/partition/thread_time.h"

namespace {
std::atomic<int64_t> heap_allocations{0};  // of all threads
}  // namespace

void* operator new(size_t bytes) {
  heap_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace hetero::graph::testing {
namespace {

constexpr int kWarmUp = 50;
constexpr int kRounds = 400;
constexpr ModelShape kSmall{.layers = 16, .hidden = 64, .query = 64, .key = 16, .inner = 128};

struct Replays {
  double seconds_per_node = 0;  // median
  double allocations = 0;       // per run
};

Replays replay(const Graph& graph, const Plan& plan, const Devices& devices, IdleDevice* idle) {
  const Bound bound(graph, devices);
  Executor executor(devices);
  RunCounts counts;
  std::vector<double> times;
  times.reserve(kRounds);
  int64_t before = 0;
  for (int round = 0; round < kWarmUp + kRounds; ++round) {
    if (round == kWarmUp) before = heap_allocations;
    const double begin = thread_seconds();
    const Status status = executor.run(graph, plan, bound.pointers(), counts);
    if (round >= kWarmUp) times.push_back(thread_seconds() - begin);
    if (!status.ok()) throw std::runtime_error(status.message());
    if (idle != nullptr) idle->finish();
  }
  Replays replays;
  replays.allocations = static_cast<double>(heap_allocations - before) / kRounds;
  std::ranges::sort(times);
  replays.seconds_per_node = times[kRounds / 2] / static_cast<double>(graph.nodes.size());
  return replays;
}

void program_rows(Table& table, const char* what, const PlanOptions& options, const Machine& machine) {
  Model model(kSmall, 1, 16);
  // What goes in is bound for run after run.
  for (Buffer& buffer : model.graph.buffers) buffer.escapes |= buffer.valid_on != 0;
  Steady steady = plan_until_steady(model.graph, options);
  Plan& plan = steady.plan;
  note_buffers(model.graph, plan, plan.notes);
  const auto count = [&](Instruction::Kind kind) { return std::ranges::count(plan.program, kind, &Instruction::kind); };
  const auto host_waits = std::ranges::count_if(plan.program, [](const Instruction& instruction) {
    return instruction.kind == Instruction::Kind::kWait && instruction.queue == kHostQueue;
  });
  backend::CpuDevice cpu;
  IdleDevice idle;
  const Replays alone = replay(model.graph, plan, {&cpu, &idle}, &idle);
  table.at_most(
      text("host time of a replay, us per node: %s (%zu nodes, %d copies, %d events, %d waits)", what,
           model.graph.nodes.size(), static_cast<int>(count(Instruction::Kind::kCopy)),
           static_cast<int>(count(Instruction::Kind::kRecord)), static_cast<int>(count(Instruction::Kind::kWait))),
      text("%.3f", 1e6 * alone.seconds_per_node), 1e6 * alone.seconds_per_node, 1);
  const double runs = kWarmUp + kRounds;
  const double unasked = static_cast<double>(idle.waits().for_queues_midway) +
                         static_cast<double>(idle.waits().for_events) - runs * static_cast<double>(host_waits);
  table.at_most("&nbsp; waits of the host that the program does not ask for, per run",
                text("%.2f (%d asked for)", unasked / runs, static_cast<int>(host_waits)), unasked / runs, 0);

  auto sim = backend::SimDevice::create(machine.sim);
  if (!sim.ok()) throw std::runtime_error(sim.status().message());
  const Replays simulated = replay(model.graph, plan, {&cpu, sim.value().get()}, nullptr);
  table.at_most("&nbsp; allocations from the heap, per run", text("%.2f", alone.allocations), alone.allocations, 0);
  table.at_most("&nbsp; the same on a SimDevice, its threads included", text("%.2f", simulated.allocations),
                simulated.allocations, 0);
  table.note("&nbsp; host time on a SimDevice, with waking its threads, us per node",
             text("%.3f", 1e6 * simulated.seconds_per_node));
}

}  // namespace

void run_rows(Table& table, const Machine& machine) {
  PlanOptions options = machine.options();
  options.policy = Policy::kMixed;
  program_rows(table, "a device for each node by lot", options, machine);
  options.policy = Policy::kAccelerator;
  Model model(kSmall, 1, 16);
  options.machine[1].bytes = budget_for(model, 0.25, options);
  program_rows(table, "streamed, a quarter fits", options, machine);
}

}  // namespace hetero::graph::testing
