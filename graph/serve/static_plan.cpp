#include "graph/serve/static_plan.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "backend/base/fnv.h"
#include "backend/base/parallel.h"
#include "backend/cpu/vector/instruction_set.h"
#include "graph/cost/simulate.h"
#include "graph/fusion/fusion.h"
#include "graph/plan/pipeline.h"
#include "graph/plan/resize.h"
#include "graph/verify/verify.h"

namespace hetero::graph {
namespace {

using backend::DeviceIndex;
using backend::kCpu;

constexpr int kMostRounds = 4;
constexpr char kValidOn[] = "plan.valid_on";

// The program's graph as planning sees it: what callers and executors own outlives each run.
Graph owned_graph(const SavedProgram& program) {
  Graph graph = program.graph;
  for (const ProgramConstant& constant : program.constants) {
    graph.buffers[constant.buffer].escapes = true;
    graph.buffers[constant.buffer].steady = true;
  }
  for (const ProgramValue& input : program.inputs) graph.buffers[input.buffer].escapes = true;
  for (const ProgramValue& output : program.outputs) graph.buffers[output.buffer].escapes = true;
  return graph;
}

// Per buffer: the devices whose kernels touch it.
std::vector<backend::DeviceSet> find_users(const Graph& graph, const Plan& plan) {
  std::vector<backend::DeviceSet> users(graph.buffers.size(), 0);
  for (const Instruction& instruction : plan.program) {
    if (!instruction.computes()) continue;
    for_each_touch(graph, plan, instruction,
                   [&](const TouchedBytes& touch) { users[touch.buffer] |= backend::only(touch.device); });
  }
  return users;
}

// Puts what is there before the program where the plan would like it. False where it is there
// already.
bool move_bytes(Graph& graph, const Plan& plan, const std::vector<uint8_t>& is_input) {
  const std::vector<backend::DeviceSet> users = find_users(graph, plan);
  std::vector<uint8_t> written(graph.buffers.size(), 0);
  for (const Operand& operand : graph.operands) written[operand.buffer] |= operand.writes();
  bool moved = false;
  for (BufferId b = 0; b < graph.buffers.size(); ++b) {
    Buffer& buffer = graph.buffers[b];
    if (buffer.valid_on == 0) continue;
    const backend::DeviceSet wanted = is_input[b] != 0 && !written[b] ? users[b] : plan.valid_after[b];
    if (wanted == 0 || wanted == buffer.valid_on) continue;
    buffer.valid_on = wanted;
    moved = true;
  }
  return moved;
}

// Bytes that were to be on several devices are on the CPU only where nothing uses an accelerator
// after all. REQUIRES: uses_cpu_only().
void stay_on_host(Graph& graph, Plan& plan) {
  for (BufferId b = 0; b < graph.buffers.size(); ++b) {
    if (graph.buffers[b].valid_on == 0) continue;
    graph.buffers[b].valid_on = backend::only(kCpu);
    plan.valid_after[b] = backend::only(kCpu);
    for (backend::DeviceIndex d = 1; d < plan.device_count; ++d) plan.residence(b, d) = {};
  }
}

// A set of devices is one character, so only sets of so many are written down.
constexpr char kNowhere = '0';
constexpr int kMostSets = 1 << 6;

std::string valid_text(const Graph& graph) {
  std::string text;
  for (const Buffer& buffer : graph.buffers) text += static_cast<char>(kNowhere + buffer.valid_on);
  return text;
}

// Whether windows differ in sizes only, which is what resize_plan asks of two graphs of the same
// nodes. REQUIRES: one table of windows.
bool same_kinds(const Graph& a, const Graph& b) {
  return std::ranges::equal(a.operands, b.operands, [&](const Operand& x, const Operand& y) {
    return (*a.windows)[x.window].kind == (*b.windows)[y.window].kind;
  });
}

// Whether what runs where may stay as it was decided for `before`: the plans take about as long.
bool of_one_size(const Graph& before, const Plan& plan_before, const Graph& now, const Plan& plan,
                 const PlanOptions& options) {
  return !options.machine.has_accelerator() ||
         keeps_placement(simulated_seconds(before, plan_before, options), simulated_seconds(now, plan, options));
}

// The plan in the file; an error says why it is of no use.
Status read_plan(const SavedProgram& program, const PlanOptions& options, StaticPlan& plan) {
  if (program.plan.empty()) return Status(ErrorClass::kUsage, "the program was saved without a plan");
  if (program.plan_machine != plan_machine(options)) {
    return Status(ErrorClass::kUsage, "the saved plan is for another machine or other settings");
  }
  plan.graph = owned_graph(program);
  const auto valid = program.metadata.find(kValidOn);
  if (valid == program.metadata.end() || valid->second.size() != plan.graph.buffers.size()) {
    return Status(ErrorClass::kUsage, "the saved plan is not complete");
  }
  for (size_t b = 0; b < plan.graph.buffers.size(); ++b) {
    const int devices = valid->second[b] - kNowhere;
    const bool there = plan.graph.buffers[b].valid_on != 0;
    if (devices < 0 || devices >= kMostSets || (devices != 0) != there) {
      return Status(ErrorClass::kUsage, "the saved plan is not complete");
    }
    plan.graph.buffers[b].valid_on = static_cast<backend::DeviceSet>(devices);
  }
  Result<Plan> parsed = parse_plan(program.plan);
  if (!parsed.ok()) return parsed.status();
  plan.plan = std::move(parsed.value());
  if (Status status = restore_groups(plan.graph, plan.plan); !status.ok()) return status;
  return verify_plan(plan.graph, plan.plan, options);
}

}  // namespace

std::string plan_machine(const PlanOptions& options) {
  std::string text = std::string(to_string(backend::instruction_set())) + "," + backend::processor_model() + ", " +
                     std::to_string(backend::thread_count()) + " threads, fusion " + (options.fusion ? "on" : "off");
  const backend::Machine& machine = options.machine;
  if (!machine.has_accelerator()) return text;
  for (backend::DeviceIndex d = 1; d < machine.size(); ++d) {
    const backend::Capabilities& rates = machine[d].rates;
    text += ", ";
    if (machine[d].device != nullptr) text += machine[d].device->name();
    for (const double figure : {rates.flops, rates.flops_half, rates.memory_bandwidth, rates.copy_bandwidth,
                                rates.readback_bandwidth, rates.copy_latency, rates.launch_latency}) {
      text.append(" ").append(std::to_string(figure));
    }
    text += ", " + std::to_string(machine[d].bytes) + " bytes";
    for (backend::DeviceIndex from = 1; from < machine.size(); ++from) {
      const std::optional<backend::Link> link = machine.link(from, d);
      if (!link) continue;
      text += ", from " + std::to_string(from) + " " + std::to_string(link->bandwidth) + " " +
              std::to_string(link->latency);
    }
  }
  text += std::string(", placement ") + to_string(options.policy);
  if (options.policy == Policy::kThresholds) {
    text += " " + std::to_string(options.thresholds.pressure) + " " + std::to_string(options.thresholds.time_ratio);
  }
  return text + ", " + std::to_string(options.compute_queues) + " compute queues" +
         (options.shares_accelerator ? " beside others" : "") + ", copies " +
         (options.join_copies ? "joined" : "apart");
}

Status plan_program(const SavedProgram& program, const PlanOptions& options, bool use_saved, StaticPlan& plan,
                    BytesThere there) {
  const Status of_no_use =
      use_saved ? read_plan(program, options, plan) : Status(ErrorClass::kUsage, "it was asked for");
  if (of_no_use.ok()) {
    plan.origin = "saved with the program";
    return Status();
  }
  plan.origin = "made anew: " + of_no_use.message();
  plan.graph = owned_graph(program);
  for (BufferId b = 0; b < there.size(); ++b) plan.graph.buffers[b].valid_on |= there[b];
  plan.plan = Plan();
  std::vector<uint8_t> is_input(plan.graph.buffers.size(), 0);
  for (const ProgramValue& input : program.inputs) is_input[input.buffer] = 1;
  for (int round = 0; round < kMostRounds; ++round) {
    make_plan(plan.graph, options, plan.plan);
    if (!options.machine.has_accelerator() || round + 1 == kMostRounds || !move_bytes(plan.graph, plan.plan, is_input))
      break;
  }
  if (options.machine.has_accelerator() && uses_cpu_only(plan.plan)) stay_on_host(plan.graph, plan.plan);
  return verify_plan(plan.graph, plan.plan, options);
}

Status plan_resized(const SavedProgram& program, const PlanOptions& options, const StaticPlan& like, BytesThere there,
                    StaticPlan& plan) {
  Graph before = like.graph;
  before.windows = &program.windows;
  plan.graph = owned_graph(program);
  for (BufferId b = 0; b < before.buffers.size(); ++b) plan.graph.buffers[b].valid_on = before.buffers[b].valid_on;
  if (same_kinds(before, plan.graph)) {
    plan.plan = like.plan;
    if (resize_plan(before, plan.graph, options, plan.plan) &&
        of_one_size(before, like.plan, plan.graph, plan.plan, options) &&
        verify_plan(plan.graph, plan.plan, options).ok()) {
      plan.origin = "resized";
      return Status();
    }
  }
  const Status status = plan_program(program, options, false, plan, there);
  plan.origin = "made anew for these sizes";
  return status;
}

void keep_plan(const StaticPlan& plan, const PlanOptions& options, SavedProgram& program) {
  program.plan = to_string(plan.plan);
  program.plan_machine = plan_machine(options);
  program.metadata[kValidOn] = valid_text(plan.graph);
}

}  // namespace hetero::graph
