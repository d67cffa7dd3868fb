// hetero_sim_fuzz: random programs by random plans on simulated accelerators, against the interpreter.
//
//   hetero_sim_fuzz [--seeds N] [--first S] [--seed S]
//
// A seed gives a program, what the planner may use, and a SimDevice with the memory that the planner was told of and no byte more, and with
// queues that stall at random. The program is planned and run three times, each time on what the last one has left: where that lies elsewhere than
// before, it is planned anew. What must hold:
//
//   - the verifier accepts graph and plan, and both print and parse back;
//   - every result has the bits that the interpreter gives;
//   - the accelerator never holds more than it may, and afterwards just what the bindings hold; at last neither device holds anything;
//   - nothing is written beside a block;
//   - where durations are what they are said to be, the run takes the virtual time that the simulation of its plan predicts.
//
// One seed in four has trouble: kernels that throw, inputs that were lost before, or a device whose k-th call of some kind fails. Then what has no
// error must have the interpreter's bits, memory is given back all the same, and the executor's next run, without trouble where that can be, is as
// all others.
//
// The first seed that breaks one of these ends the run with status 1, the graph, the plan, and the command that runs it again.
//
// Thread safety: one thread, and those of the SimDevice.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/cpu_device.h"
#include "backend/fault/fault_device.h"
#include "backend/sim/sim_device.h"
#include "graph/cost/simulate.h"
#include "graph/fusion/fusion.h"
#include "graph/plan/slice_allocator.h"
#include "graph/verify/verify.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"
#include "tests/graph/fixtures/seeds.h"

namespace hetero::graph::testing {
namespace {

using backend::Block;
using backend::FaultDevice;
using backend::kAccelerator;
using backend::kCpu;
using backend::MemoryStats;
using backend::QueueKind;
using backend::SimDevice;
using backend::SimOptions;

enum class Trouble : uint8_t { kNone, kThrows, kLost, kFault };
constexpr const char* kTroubleNames[] = {"none", "kernels that throw", "lost inputs", "a failing call"};

constexpr int kRounds = 3;
constexpr unsigned kMostSeconds = 120;  // for one seed; more is a hang

// What the seeds have had to do, so that one sees that they did something.
struct Totals {
  int64_t runs = 0;
  int64_t plans = 0;
  int64_t bounded = 0;     // plans within a budget
  int64_t streamed = 0;    // of these, those with returns
  int64_t fused = 0;       // plans with fused groups
  int64_t spread = 0;      // plans with tasks on several compute queues
  int64_t host_tasks = 0;  // plans with tasks on the CPU's worker queue
  int64_t timed = 0;       // runs whose time was predicted
  int64_t failed = 0;      // runs with an error
  int64_t from_peers = 0;  // copies straight from another accelerator
  RunCounts counts;
};

Status found(std::string what) { return Status(ErrorClass::kInternal, std::move(what)); }

float input_value(BufferId buffer, size_t i) {
  return 0.5f * static_cast<float>(buffer) + 0.125f * static_cast<float>(i % 89);
}

using backend::contains;
using backend::DeviceIndex;
using backend::DeviceSet;

class Trial {
 public:
  Trial(uint64_t seed, backend::Device& cpu, Totals& totals)
      : random_(static_cast<uint32_t>(seed * 2654435761u + 1)),
        cpu_(cpu),
        totals_(totals),
        accelerators_(seed % 4 == 3 ? 2 + seed / 4 % 2 : 1) {
    make_program();
    if (accelerators_ > 1) spread_program();
    choose_options(seed);
  }

  Status run() {
    const int64_t held_before = cpu_.memory_stats().allocated_bytes;
    auto devices = SimDevice::create_machine(sim_options_, accelerators_);
    if (!devices.ok()) return devices.status();
    sims_ = std::move(devices.value());
    {
      backend::Devices all{};
      for (DeviceIndex d = 0; d <= accelerators_; ++d) {
        faulty_.push_back(std::make_unique<FaultDevice>(device(d)));
        all[d] = faulty_.back().get();
      }
      Executor executor(all);
      for (round_ = 0; round_ < kRounds; ++round_) {
        if (Status status = run_round(executor); !status.ok()) return status;
      }
    }
    bindings_.clear();
    expected_.clear();
    for (const auto& sim : sims_) {
      if (sim->memory_stats().allocated_bytes != 0) return found("the accelerator's memory is not given back");
      if (sim->guard_violations() != 0) return found("bytes beside a block were written");
      totals_.from_peers += sim->counters().copies_from_peers;
    }
    if (cpu_.memory_stats().allocated_bytes != held_before) return found("the CPU's memory is not given back");
    return Status();
  }

  // The line that says what was chosen, then the graph, and the last plan.
  void print(std::FILE* file) const {
    std::fprintf(
        file,
        "round %d: %zu accelerators, policy %s, the first of %llu bytes, fusion %d, thorough %d, own blocks from %llu "
        "or %llu "
        "bytes, compute queues %d, join copies %d, flops %g, copies %g bytes/s, latency %g s, spread %g, "
        "stalls %d, plan from "
        "text %d, trouble: "
        "%s\n\n%s\n%s\n",
        round_, accelerators_, to_string(options_.policy), static_cast<unsigned long long>(options_.machine[1].bytes),
        options_.fusion, options_.thorough, static_cast<unsigned long long>(options_.own_block_bytes),
        static_cast<unsigned long long>(options_.least_own_block_bytes), options_.compute_queues, options_.join_copies,
        sim_options_.flops, sim_options_.h2d_bandwidth, sim_options_.launch_latency, sim_options_.duration_spread,
        sim_options_.schedule_seed != 0, from_text_, kTroubleNames[static_cast<int>(trouble_)],
        to_string(program_.graph).c_str(), to_string(plan_).c_str());
  }

 private:
  backend::Device& device(DeviceIndex d) { return d == kCpu ? cpu_ : static_cast<backend::Device&>(*sims_[d - 1]); }

  uint64_t below(uint64_t limit) { return std::uniform_int_distribution<uint64_t>(0, limit - 1)(random_); }
  bool one_in(uint64_t count) { return below(count) == 0; }
  // Between two numbers, all powers alike.
  double between(double least, double most) {
    return least * std::pow(most / least, std::uniform_real_distribution<double>(0, 1)(random_));
  }

  // Unknown now and then, as planners must expect.
  double figure(double least, double most) { return one_in(10) ? 0 : between(least, most); }

  void make_program() {
    const int nodes = 5 + static_cast<int>(below(76));
    Graph& graph = program_.graph;
    if (one_in(4)) {
      make_fusable(program_, random_, nodes);
      const bool some_there = one_in(2);
      for (Buffer& buffer : graph.buffers) {
        if (buffer.valid_on != 0 && some_there) buffer.valid_on = static_cast<uint8_t>(1 + below(3));
      }
    } else {
      make_random(program_, random_, nodes, !one_in(3));
    }
    if (one_in(2)) add_host_tasks();
    defined_.resize(graph.buffers.size());
    for (const Operand& operand : graph.operands) defined_[operand.buffer] |= operand.access == Access::kDefine;
    for (Buffer& buffer : graph.buffers) {
      bound_at_.push_back(buffer.valid_on);
      buffer.steady = buffer.valid_on != 0 && one_in(2);
    }
    trouble_ = static_cast<Trouble>(one_in(4) ? 1 + below(3) : 0);
    if (trouble_ != Trouble::kThrows) return;
    for (int i = 0; i < 2; ++i) {
      Node& node = graph.nodes[below(graph.nodes.size())];
      const OpId broken[] = {test_ops().throws, test_ops().half_throws, test_ops().host_throws};
      node.op = broken[below(std::size(broken))];
    }
  }

  // Some nodes become host tasks, and the CPU so slow that they are worth a hand-over.
  void add_host_tasks() {
    has_host_tasks_ = true;
    const uint64_t share = 1 + below(8);
    for (Node& node : program_.graph.nodes) {
      const OpTraits& traits = op_table()[node.op];
      if (traits.lower != nullptr || !one_in(share)) continue;
      node.op = traits.brings_memory ? test_ops().host_brings : test_ops().host_task;
    }
  }

  // What was for one accelerator uses all of them, by links that are there or not.
  void spread_program() {
    const size_t devices = accelerators_ + 1;
    for (Buffer& buffer : program_.graph.buffers) {
      if (buffer.valid_on != 0) buffer.valid_on = static_cast<DeviceSet>(1 + below((uint64_t{1} << devices) - 1));
    }
    for (size_t b = 0; b < bound_at_.size(); ++b) bound_at_[b] = program_.graph.buffers[b].valid_on;
    for (Node& node : program_.graph.nodes) {
      if (!one_in(3)) node.preference = prefer(static_cast<DeviceIndex>(below(devices)));
    }
    if (one_in(3)) return;  // neighbours have links
    for (size_t from = 0; from < accelerators_; ++from) {
      for (size_t to = 0; to < accelerators_; ++to) {
        if (from == to || one_in(3)) continue;
        sim_options_.links.push_back({from, to, {.bandwidth = figure(1e5, 1e11), .latency = figure(1e-9, 1e-4)}});
      }
    }
  }

  void choose_options(uint64_t seed) {
    const std::vector<backend::SimLink> links = std::move(sim_options_.links);
    sim_options_ = {.flops = figure(1e6, 1e13),
                    .memory_bandwidth = figure(1e6, 1e12),
                    .launch_latency = figure(1e-9, 1e-4),
                    .parallelism = figure(1, 1e6),
                    .h2d_bandwidth = figure(1e5, 1e11),
                    .d2h_bandwidth = figure(1e5, 1e11),
                    .copy_latency = figure(1e-9, 1e-4),
                    .schedule_seed = one_in(4) ? seed + 1 : 0,
                    .duration_spread = one_in(2) ? 0.9 * static_cast<double>(below(100)) / 100 : 0};
    sim_options_.links = links;
    options_.machine.cpu().rates = cpu_.capabilities();
    for (size_t d = 0; d < accelerators_; ++d) options_.machine.add({});
    if (one_in(2)) {
      options_.machine.cpu().rates.flops = figure(1e6, 1e12);
      options_.machine.cpu().rates.memory_bandwidth = figure(1e6, 1e12);
    }
    if (has_host_tasks_) options_.machine.cpu().rates.flops = figure(1e5, 1e9);
    uint64_t there = 0;
    uint64_t all = 0;
    for (const Buffer& buffer : program_.graph.buffers) {
      const uint64_t bytes = SliceAllocator::round_up(buffer.bytes);
      all += bytes;
      if ((buffer.valid_on & ~backend::only(kCpu)) != 0) there += bytes;
    }
    // What lies there is part of what may. Small rooms as often as those that hold some of all.
    const auto most = static_cast<double>(all + 128);
    const uint64_t room = one_in(2) ? below(all + 128) + 64 : static_cast<uint64_t>(between(64, most));
    uint64_t budget = 0;
    if (!one_in(4)) budget = there + room;
    // Less than lies there already: then the plan adds nothing.
    if (one_in(16)) budget = 1 + below(there + 1);
    for (DeviceIndex d = 1; d <= accelerators_; ++d) options_.machine[d].bytes = budget;
    most_bytes_ = budget == 0 ? size_t{1} << 24 : std::max(budget, there);
    sim_options_.capacity_bytes = std::max<size_t>(most_bytes_, 1);
    constexpr Policy kPolicies[] = {Policy::kAuto, Policy::kMixed, Policy::kMixed, Policy::kAccelerator,
                                    Policy::kThresholds};
    options_.policy = one_in(20) ? Policy::kCpu : kPolicies[below(std::size(kPolicies))];
    options_.fusion = one_in(2);
    options_.thorough = one_in(2);
    options_.own_block_bytes = uint64_t{64} << below(8);
    options_.least_own_block_bytes = uint64_t{1} << below(8);
    options_.compute_queues = 1 + static_cast<int>(below(backend::kComputeQueues));
    options_.join_copies = !one_in(8);
    if (one_in(3)) {
      preferences_.resize(below(op_table().size() + 1));
      for (Preference& preference : preferences_) preference = static_cast<Preference>(below(2 + accelerators_));
      options_.preferences = &preferences_;
    }
    from_text_ = one_in(2);
  }

  Status run_round(Executor& executor) {
    const bool moved = bind();
    Graph& graph = program_.graph;
    if (round_ == 0 || moved) {
      if (Status status = plan(); !status.ok()) return status;
    }
    if (trouble_ == Trouble::kLost) lose_inputs();
    const bool fault = trouble_ == Trouble::kFault && round_ == 0;
    if (fault) set_fault();
    for (const auto& sim : sims_) sim->reset_peak();
    RunCounts counts;
    RunTimes times;
    const std::vector<Binding*> bound = program_.pointers(bindings_);
    const bool timed = round_ % 2 == 0;
    executor.begin(graph, plan_, bound, counts, timed ? &times : nullptr);
    executor.go_on(nullptr);
    const Status run = executor.end();
    for (const auto& device : faulty_) device->heal();
    Graph on_cpu = graph;
    for (Buffer& buffer : on_cpu.buffers) buffer.valid_on = buffer.valid_on == 0 ? 0 : 1u << kCpu;
    const Status interpreted = interpret(on_cpu, program_.pointers(expected_));
    totals_.failed += !run.ok();
    if (!run.ok() && !fault && interpreted.ok()) return found("the run failed: " + run.message());
    add(counts);
    if (Status status = check_memory(); !status.ok()) return status;
    if (timed) {
      if (Status status = check_times(times); !status.ok()) return status;
    }
    return check_values(fault);
  }

  void lose_inputs() {
    for (BufferId b = 0; b < bindings_.size(); ++b) {
      if (program_.graph.buffers[b].valid_on == 0 || !one_in(3)) continue;
      bindings_[b].error = expected_[b].error = Status(ErrorClass::kResource, "lost before");
    }
  }

  void set_fault() {
    const auto kind = static_cast<backend::FaultKind>(below(backend::kFaultKinds));
    const auto duration = one_in(2) ? backend::FaultDuration::kOnce : backend::FaultDuration::kForEver;
    faulty_[below(faulty_.size())]->fail(kind, static_cast<int64_t>(1 + below(20)), duration);
  }

  // Without trouble, buffers that are not made anew and escape keep what the last run has left. All others are as they were before the first.
  // True where the bytes that a plan begins with lie elsewhere than before.
  bool bind() {
    std::vector<Buffer>& buffers = program_.graph.buffers;
    bindings_.resize(buffers.size());
    expected_.resize(buffers.size());
    bool moved = false;
    for (BufferId b = 0; b < buffers.size(); ++b) {
      const DeviceSet before = buffers[b].valid_on;
      if (round_ > 0 && trouble_ == Trouble::kNone && !defined_[b] && buffers[b].escapes) {
        buffers[b].valid_on = bindings_[b].valid_on;
      } else {
        buffers[b].valid_on = bound_at_[b];
        bind_input(b, bound_at_[b], bindings_[b]);
        bind_input(b, bound_at_[b] == 0 ? DeviceSet{0} : backend::only(kCpu), expected_[b]);
      }
      moved |= buffers[b].valid_on != before;
    }
    return moved;
  }

  void bind_input(BufferId b, DeviceSet valid_on, Binding& binding) {
    binding = Binding();
    if (valid_on == 0) return;
    const size_t bytes = program_.graph.buffers[b].bytes;
    Block host = take(cpu_, bytes);
    for (size_t i = 0; i < bytes / sizeof(float); ++i) static_cast<float*>(host.data())[i] = input_value(b, i);
    for (DeviceIndex d = 1; d <= accelerators_; ++d) {
      if (!contains(valid_on, d)) continue;
      binding.blocks[d] = take(device(d), bytes);
      copy(device(d).queue(QueueKind::kHostToDevice), binding.blocks[d].data(), host.data(), bytes);
    }
    if (contains(valid_on, kCpu)) binding.blocks[kCpu] = std::move(host);
    binding.valid_on = valid_on;
  }

  static Block take(backend::Device& device, size_t bytes) {
    Result<Block> block = device.allocate(bytes);
    if (!block.ok()) std::fprintf(stderr, "no memory for an input: %s\n", block.status().message().c_str());
    return block.ok() ? std::move(block.value()) : Block();
  }

  static void copy(backend::Queue& queue, void* to, const void* from, size_t bytes) {
    Status status = queue.copy(to, from, bytes);
    if (status.ok()) status = queue.synchronize();
    if (!status.ok()) std::fprintf(stderr, "a copy failed: %s\n", status.message().c_str());
  }

  Status plan() {
    Graph& graph = program_.graph;
    if (Status status = verify_graph(graph); !status.ok()) return status;
    note_rates();
    make_plan(graph, options_, plan_);
    if (Status status = verify_plan(graph, plan_, options_); !status.ok()) return status;
    const std::string text = to_string(plan_);
    Result<Plan> parsed = parse_plan(text);
    if (!parsed.ok()) return found("the plan does not parse: " + parsed.status().message());
    plan_.notes = {};
    if (!(parsed.value() == plan_) || to_string(parsed.value()) != text)
      return found("the plan parses back to another");
    if (from_text_) {
      if (Status status = restore_groups(graph, parsed.value()); !status.ok()) return status;
      if (Status status = verify_plan(graph, parsed.value(), options_); !status.ok()) return status;
      plan_ = std::move(parsed.value());
    }
    const std::string graph_text = to_string(graph);
    WindowTable windows;
    const Result<Graph> parsed_graph = parse_graph(graph_text, windows);
    if (!parsed_graph.ok()) return found("the graph does not parse: " + parsed_graph.status().message());
    if (to_string(parsed_graph.value()) != graph_text) return found("the graph parses back to another");
    ++totals_.plans;
    if (one_in(2)) note_buffers(graph, plan_, plan_.notes);
    totals_.bounded += options_.machine[1].bytes != 0;
    totals_.streamed += !plan_.returns.empty();
    totals_.fused += !plan_.groups.empty();
    totals_.spread += has_side_queues(plan_);
    totals_.host_tasks += uses_worker(plan_);
    return Status();
  }

  void note_rates() {
    if (has_rates_) return;
    has_rates_ = true;
    for (DeviceIndex d = 1; d <= accelerators_; ++d) {
      options_.machine[d].rates = device(d).capabilities();
      for (DeviceIndex from = 1; from <= accelerators_; ++from) {
        if (from == d) continue;
        if (const auto link = device(d).link_from(device(from))) options_.machine.connect(from, d, *link);
      }
    }
  }

  void add(const RunCounts& counts) {
    ++totals_.runs;
    for (int d = 0; d < backend::kMostDevices; ++d) totals_.counts.kernels[d] += counts.kernels[d];
    totals_.counts.copies += counts.copies;
    totals_.counts.transfers += counts.transfers;
    totals_.counts.waits += counts.waits;
  }

  Status check_memory() const {
    std::vector<uint64_t> held(sims_.size());
    for (BufferId b = 0; b < bindings_.size(); ++b) {
      const Binding& binding = bindings_[b];
      const std::string name = "b" + std::to_string(b);
      if (trouble_ == Trouble::kNone && !binding.error.ok()) return found(name + " has an error without trouble");
      for (backend::DeviceIndex d = 0; d < backend::kMostDevices; ++d) {
        const bool valid = contains(binding.valid_on, d);
        if (valid && !binding.blocks[d]) return found(name + " is valid where it has no block");
        if (!valid && binding.valid_on != 0 && binding.blocks[d]) return found(name + " keeps a block of stale bytes");
      }
      for (DeviceIndex d = 1; d <= accelerators_; ++d) {
        if (binding.blocks[d]) held[d - 1] += SliceAllocator::round_up(binding.blocks[d].bytes());
      }
    }
    for (size_t a = 0; a < sims_.size(); ++a) {
      const MemoryStats stats = sims_[a]->memory_stats();
      if (static_cast<uint64_t>(stats.peak_bytes) > most_bytes_) {
        return found("an accelerator held " + std::to_string(stats.peak_bytes) + " bytes");
      }
      if (static_cast<uint64_t>(stats.allocated_bytes) != held[a]) {
        return found("an accelerator holds " + std::to_string(stats.allocated_bytes) + " bytes, the bindings " +
                     std::to_string(held[a]));
      }
    }
    return Status();
  }

  Status check_times(const RunTimes& times) const {
    const auto is_known = [](const backend::SimLink& link) { return link.link.bandwidth > 0; };
    const bool known = sim_options_.h2d_bandwidth > 0 && sim_options_.d2h_bandwidth > 0 &&
                       std::ranges::all_of(sim_options_.links, is_known);
    if (uses_host_only(plan_) || !known || sim_options_.duration_spread > 0 || trouble_ != Trouble::kNone) {
      return Status();
    }
    Simulation simulation;
    simulate(program_.graph, plan_, CostModel(options_), simulation);
    const double tolerance = 1e-5 * simulation.seconds;  // a placement keeps its seconds as a float
    const auto differ = [tolerance](double a, double b) { return std::abs(a - b) > tolerance; };
    for (size_t p = 0; p < plan_.program.size(); ++p) {
      const Instruction::Kind kind = plan_.program[p].kind;
      if (kind == Instruction::Kind::kRecord || kind == Instruction::Kind::kWait) continue;
      const Span& took = times.spans[p];
      const Span& predicted = simulation.spans[p];
      if (differ(took.end, predicted.end)) {
        return found("p" + std::to_string(p) + " ends at " + std::to_string(took.end) + " s, not at the predicted " +
                     std::to_string(predicted.end) + " s");
      }
    }
    ++totals_.timed;
    return differ(times.seconds, simulation.seconds) ? found("the run takes another time than predicted") : Status();
  }

  // A fault reaches what the interpreter, which has none, computes. No other error does.
  Status check_values(bool fault) {
    const Graph& graph = program_.graph;
    for (BufferId b = 0; b < graph.buffers.size(); ++b) {
      if (!graph.buffers[b].escapes) continue;
      const Binding& binding = bindings_[b];
      const std::string name = "b" + std::to_string(b);
      if (!binding.error.ok()) {
        if (!fault && expected_[b].error.ok())
          return found(name + " has an error that the interpreter does not find: " + binding.error.message());
        continue;
      }
      // What the plan does not run, because nobody sees it, has no error there.
      if (!expected_[b].error.ok()) continue;
      if ((binding.valid_on != 0) != (expected_[b].valid_on != 0)) return found(name + " exists in one run only");
      const size_t bytes = graph.buffers[b].bytes;
      if (bytes == 0 || binding.valid_on == 0) continue;
      const void* const expected = expected_[b].blocks[kCpu].data();
      if (contains(binding.valid_on, kCpu) && std::memcmp(binding.blocks[kCpu].data(), expected, bytes) != 0) {
        return found(name + " has other bits on the CPU");
      }
      for (DeviceIndex d = 1; d <= accelerators_; ++d) {
        if (!contains(binding.valid_on, d)) continue;
        std::vector<std::byte> values(bytes);
        copy(device(d).queue(QueueKind::kDeviceToHost), values.data(), binding.blocks[d].data(), bytes);
        if (std::memcmp(values.data(), expected, bytes) != 0) return found(name + " has other bits on an accelerator");
      }
    }
    return Status();
  }

  std::mt19937 random_;
  backend::Device& cpu_;
  Totals& totals_;
  Program program_;
  bool has_host_tasks_ = false;
  std::vector<uint8_t> defined_;     // per buffer: a node defines it
  std::vector<DeviceSet> bound_at_;  // per buffer: where it is valid before the first run
  PlanOptions options_;
  SimOptions sim_options_;
  std::vector<Preference> preferences_;
  Trouble trouble_ = Trouble::kNone;
  uint64_t most_bytes_ = 0;  // that the accelerator may hold
  bool from_text_ = false;   // runs what the plan's text says
  int round_ = 0;
  const size_t accelerators_;  // one for most seeds
  bool has_rates_ = false;
  std::vector<std::unique_ptr<SimDevice>> sims_;
  std::vector<std::unique_ptr<FaultDevice>> faulty_;  // per device
  Plan plan_;
  std::vector<Binding> bindings_;
  std::vector<Binding> expected_;  // the interpreter's
};

volatile sig_atomic_t has_seed = 0;
char seed_text[96];

void report_hang(int) {
  if (has_seed != 0) static_cast<void>(!write(STDERR_FILENO, seed_text, std::strlen(seed_text)));
  _exit(1);
}

// True where the seed does all that is promised.
bool run_seed(uint64_t seed, backend::Device& cpu, Totals& totals) {
  std::snprintf(seed_text, sizeof(seed_text), "hangs: hetero_sim_fuzz --seed %llu\n",
                static_cast<unsigned long long>(seed));
  has_seed = 1;
  alarm(kMostSeconds);
  Trial trial(seed, cpu, totals);
  const Status status = trial.run();
  if (status.ok()) return true;
  std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(seed), status.message().c_str());
  trial.print(stderr);
  std::fprintf(stderr, "again: hetero_sim_fuzz --seed %llu\n", static_cast<unsigned long long>(seed));
  return false;
}

bool run_seeds(uint64_t first, uint64_t count) {
  backend::CpuDevice cpu;
  Totals totals;
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  double told = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    if (!run_seed(seed, cpu, totals)) return false;
    if (seconds() < told + 30) continue;
    told = seconds();
    std::printf("%llu seeds, %.0f s\n", static_cast<unsigned long long>(seed - first + 1), told);
    std::fflush(stdout);
  }
  alarm(0);
  const auto number = [](auto value) { return static_cast<long long>(value); };
  std::printf(
      "sim-fuzz: %lld seeds as they should be in %.1f s: %lld plans (%lld bounded, %lld with returns, %lld fused, %lld "
      "on several "
      "compute queues, %lld with host tasks on the worker queue), ",
      number(count), seconds(), number(totals.plans), number(totals.bounded), number(totals.streamed),
      number(totals.fused), number(totals.spread), number(totals.host_tasks));
  std::printf(
      "%lld runs (%lld failed, %lld timed), %lld kernels on the CPU, %lld on the accelerator, %lld copies in %lld "
      "transfers, %lld "
      "waits\n",
      number(totals.runs), number(totals.failed), number(totals.timed), number(totals.counts.kernels[kCpu]),
      number(totals.counts.kernels[kAccelerator]), number(totals.counts.copies), number(totals.counts.transfers),
      number(totals.counts.waits));
  return true;
}

}  // namespace
}  // namespace hetero::graph::testing

int main(int argc, char** argv) {
  using namespace hetero::graph::testing;
  const std::optional<Seeds> seeds = read_seeds(argc, argv, "hetero_sim_fuzz", false);
  if (!seeds.has_value()) return 2;
  std::signal(SIGALRM, report_hang);
  return run_seeds(seeds->first, seeds->count) ? 0 : 1;
}
