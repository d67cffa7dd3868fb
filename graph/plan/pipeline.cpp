// make_plan: the pipeline of passes. See plan/passes.h for what each reads and writes.
//
//   dead values -> fusion -> placement -> one of
//     everything on the CPU:       fusion for the CPU alone -> batches -> memory; with host tasks
//                                  that overlap, as where everything fits
//     everything fits:             copies -> host tasks -> order of submission -> transfers ->
//                                  streams -> memory -> events
//     an accelerator is too small: several placements, each with residents chosen, copies, memory
//                                  and events, and simulated; the fastest is taken

#include "graph/plan/pipeline.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "backend/base/parallel.h"
#include "graph/cost/simulate.h"
#include "graph/plan/passes.h"

namespace hetero::graph {
namespace {

using backend::DeviceIndex;
using backend::kCpu;

constexpr double kNever = std::numeric_limits<double>::infinity();

// Each live node, and where there is an accelerator groups of them, by itself: what can be placed.
void find_tasks(const Graph& graph, const PlanOptions& options, Plan& plan, Scratch& scratch) {
  run_in_order(graph, plan, scratch);
  plan.fusion.clear();
  plan.groups.clear();
  plan.batches.clear();
  if (options.fusion) fuse_nodes(graph, &options, plan, scratch);
}

void lay_out_on_host(const Graph& graph, const PlanOptions& options, Plan& plan, Scratch& scratch) {
  run_in_order(graph, plan, scratch);
  plan.fusion.clear();
  if (options.fusion) {
    fuse_nodes(graph, nullptr, plan, scratch);
    join_calls(graph, plan, scratch);
  } else {
    plan.groups.clear();
    plan.batches.clear();
  }
  plan_host_memory(graph, options, plan, scratch);
  std::ranges::fill(plan.transfer_bytes, 0);
  plan.event_count = 0;
}

// Memory and events of a program whose instructions have their order and their queues.
bool lay_out_queues(const Graph& graph, const PlanOptions& options, const Limits& limits, Plan& plan,
                    Scratch& scratch) {
  order_queues(graph, plan, scratch);
  const bool fits = plan_memory(graph, options, !is_bounded(limits), plan, scratch);
  insert_events(plan, scratch);
  return fits;
}

void forget_utilizations(Plan& plan) {
  for (Placement& placement : plan.placements) placement.utilization = placement.modelled_utilization = 1;
}

// The same with the accelerator's tasks spread over its compute queues. False where that does not
// fit, or takes no less time; the plan is then as it was.
bool lay_out_spread(const Graph& graph, const PlanOptions& options, const Limits& limits, Plan& plan,
                    Scratch& scratch) {
  scratch.serial = plan.program;
  const double serial_seconds = spread_tasks(graph, options, plan, scratch);
  if (serial_seconds == 0) return false;
  if (lay_out_queues(graph, options, limits, plan, scratch)) {
    simulate(graph, plan, CostModel(options), scratch.simulation);
    if (scratch.simulation.seconds < kWorthIt * serial_seconds) return true;
  }
  plan.program = scratch.serial;
  for (Return& entry : plan.returns) entry.residence = {};
  forget_utilizations(plan);
  return false;
}

// What takes less time of tasks on one compute queue and spread over several.
bool lay_out_tasks(const Graph& graph, const PlanOptions& options, const Limits& limits, Plan& plan, Scratch& scratch) {
  if (lay_out_spread(graph, options, limits, plan, scratch)) return true;
  return lay_out_queues(graph, options, limits, plan, scratch);
}

// The same with small copies as transfers of several, in the way of joining that takes the least
// time.
class TransferTrial {
 public:
  TransferTrial(const Graph& graph, const PlanOptions& options, const Limits& limits, Plan& plan, Scratch& scratch)
      : graph_(graph), options_(options), costs_(options), limits_(limits), plan_(plan), scratch_(scratch) {}

  // REQUIRES: the program has its order of submission.
  bool run() {
    if (!has_small_copies()) return lay_out_tasks(graph_, options_, limits_, plan_, scratch_);
    find_variants();
    size_t best = 0;
    size_t last = 0;
    double least = kNever;
    for (size_t v = 0; v < variants_.size(); ++v) {
      const double seconds = lay_out_as(variants_[v]);
      last = v;
      if (!(seconds < least)) continue;
      best = v;
      least = seconds;
    }
    if (last != best) least = lay_out_as(variants_[best]);
    scratch_.joined.clear();
    return least < kNever;
  }

 private:
  // A program in the order of submission.
  struct Variant {
    std::vector<Instruction> program;
    std::vector<uint8_t> joined;  // as in Scratch
    bool operator==(const Variant&) const = default;
  };

  // Two that may be one transfer, as far as sizes tell.
  bool has_small_copies() const {
    uint32_t small[kMaxQueues] = {};
    if (!options_.join_copies) return false;
    return std::ranges::any_of(plan_.program, [&](const Instruction& instruction) {
      return instruction.is_copy() &&
             graph_.buffers[instruction.index].bytes <= costs_.transfer_bytes(instruction.to) &&
             ++small[instruction.queue] == 2;
    });
  }

  // With copies apart first.
  void find_variants() {
    variants_.push_back({plan_.program, {}});
    allow_transfers(true);
    for (const Joining joining : {Joining::kReady, Joining::kWaiting}) {
      plan_.program = variants_[0].program;
      scratch_.joined.clear();
      order_queues(graph_, plan_, scratch_);
      if (!join_copies(graph_, joining, plan_, scratch_)) continue;
      Variant variant{plan_.program, scratch_.joined};
      if (variant != variants_.back()) variants_.push_back(std::move(variant));
    }
  }

  void allow_transfers(bool allow) {
    for (DeviceIndex d = 0; d < plan_.device_count; ++d) {
      plan_.transfer_bytes[d] = allow ? costs_.transfer_bytes(d) : 0;
    }
  }

  // Seconds; kNever where it does not fit.
  double lay_out_as(const Variant& variant) {
    plan_.program = variant.program;
    scratch_.joined = variant.joined;
    allow_transfers(!variant.joined.empty());
    for (Return& entry : plan_.returns) entry.residence = {};
    forget_utilizations(plan_);
    if (!lay_out_tasks(graph_, options_, limits_, plan_, scratch_)) return kNever;
    simulate(graph_, plan_, costs_, scratch_.simulation);
    return scratch_.simulation.seconds;
  }

  const Graph& graph_;
  const PlanOptions& options_;
  const CostModel costs_;
  const Limits& limits_;
  Plan& plan_;
  Scratch& scratch_;
  std::vector<Variant> variants_;
};

// Everything after placement, on several queues. Without limits, what gets to an accelerator stays
// there. False where it does not fit.
bool lay_out(const Graph& graph, const PlanOptions& options, const Limits& limits, Plan& plan, Scratch& scratch) {
  std::ranges::fill(plan.transfer_bytes, 0);
  scratch.joined.clear();
  if (!insert_copies(graph, options.machine, limits, plan, scratch)) return false;
  move_host_tasks(graph, plan, scratch);
  order_queues(graph, plan, scratch);
  submit_early(graph, limits, plan, scratch);
  return TransferTrial(graph, options, limits, plan, scratch).run();
}

// Seconds of tasks on the CPU without a worker queue: host tasks in a row run on a thread each.
class HostSeconds {
 public:
  void add(double seconds, bool host_task) {
    if (!host_task) end_row();
    (host_task ? row_seconds_ : seconds_) += seconds;
    row_ += host_task;
  }
  double total() {
    end_row();
    return seconds_;
  }

 private:
  void end_row() {
    if (row_ != 0) seconds_ += row_seconds_ / static_cast<double>(std::min(row_, backend::thread_count()));
    row_seconds_ = 0;
    row_ = 0;
  }

  double seconds_ = 0;
  double row_seconds_ = 0;  // of the host tasks at hand, one by one
  int64_t row_ = 0;
};

// Everything on the CPU, with host tasks on its worker queue. False where that does not take less
// time.
bool lay_out_with_worker(const Graph& graph, const PlanOptions& options, Plan& plan, Scratch& scratch) {
  run_in_order(graph, plan, scratch);
  plan.fusion.clear();
  plan.groups.clear();
  plan.batches.clear();
  if (options.fusion) fuse_nodes(graph, nullptr, plan, scratch);
  scratch.tasks.build(graph, plan, options);
  HostSeconds serial;
  for (const Task& task : scratch.tasks.tasks) {
    if (task.is_fetch()) continue;
    scratch.tasks.predict(task, kCpu, plan);
    serial.add(task.seconds[kCpu], op_table()[graph.nodes[task.node].op].host_task);
  }
  const double serial_seconds = serial.total();
  scratch.order.resize(scratch.tasks.size());
  std::iota(scratch.order.begin(), scratch.order.end(), 0);
  scratch.resident.assign(graph.buffers.size(), 0);
  if (!lay_out(graph, options, limits_of(kAnyBytes), plan, scratch) || !uses_worker(plan)) return false;
  return simulated_seconds(graph, plan, options) < kWorthIt * serial_seconds;
}

void lay_out_on_cpu(const Graph& graph, const PlanOptions& options, Plan& plan, Scratch& scratch) {
  if (has_host_tasks(graph, plan)) {
    if (lay_out_with_worker(graph, options, plan, scratch)) return;
    if (!options.machine.has_accelerator()) plan.placements.assign(graph.nodes.size(), Placement{});
  }
  lay_out_on_host(graph, options, plan, scratch);
}

bool is_host_only(const Graph& graph, const Plan& plan) {
  for (size_t n = 0; n < plan.placements.size(); ++n) {
    if (plan.live[n] && plan.placements[n].device != kCpu) return false;
  }
  for (const Operand& operand : graph.operands) {
    const backend::DeviceSet valid = graph.buffers[operand.buffer].valid_on;
    if (valid != 0 && !backend::contains(valid, kCpu)) return false;
  }
  return true;
}

// With everything on the accelerator, as far as that may be, where several compute queues make that
// faster than what was found for one. Seconds are those of later runs, when what stays is there.
void consider_whole(const Graph& graph, PlanOptions options, Plan& plan, Scratch& scratch) {
  if (options.policy != Policy::kAuto || options.compute_queues == 1) return;
  std::vector<DeviceIndex> found;
  for (const Task& task : scratch.tasks.tasks) found.push_back(task.device_in(plan));
  const std::vector<DeviceIndex> whole = scratch.tasks.all_on(options.searched);
  if (found == whole || !scratch.tasks.differs(whole)) return;
  options.join_copies = false;
  options.thorough = false;
  Graph later = graph;
  // KNever where it does not fit.
  const auto seconds = [&](const std::vector<DeviceIndex>& devices) {
    for (BufferId b = 0; b < later.buffers.size(); ++b) {
      const Value& value = scratch.tasks.values[b];
      later.buffers[b].valid_on = scratch.tasks.begins_on(value, devices);
      const bool comes = graph.buffers[b].steady && value.updated_by == Value::kNoTask;
      if (comes && value.valid_on == backend::only(kCpu)) later.buffers[b].valid_on |= backend::only(options.searched);
    }
    return lay_out(later, options, limits_of(kAnyBytes), plan, scratch) ? simulated_seconds(later, plan, options)
                                                                        : kNever;
  };
  const std::vector<uint32_t> order = scratch.order;
  const double seconds_found = seconds(found);
  if (seconds_found == kNever) return;  // it is searched for within the bound, from here
  std::ranges::sort(scratch.order);
  write_placements(scratch.tasks, whole, plan);
  const double seconds_whole = seconds(whole);
  const bool better = seconds_whole < kWorthIt * seconds_found;
  if (!better) {
    write_placements(scratch.tasks, found, plan);
    scratch.order = order;
  }
  if (options.candidates == nullptr || seconds_whole == kNever) return;
  options.candidates->push_back({"on the accelerator wherever it can be, on several queues", seconds_whole, better});
  if (!better) return;
  for (size_t i = 0; i + 1 < options.candidates->size(); ++i) (*options.candidates)[i].chosen = false;
}

// Where an accelerator cannot hold everything at once.
class BoundedSearch {
 public:
  BoundedSearch(const Graph& graph, const PlanOptions& options, Plan& plan, Scratch& scratch)
      : graph_(graph),
        options_(options),
        apart_(with_copies_apart(options)),
        costs_(options),
        plan_(plan),
        scratch_(scratch),
        tasks_(scratch.tasks) {
    // In the order of the program: others may need more memory at once.
    std::ranges::sort(scratch.order);
    for (const Task& task : tasks_.tasks) found_.push_back(task.device_in(plan));
  }

  void run() {
    const std::vector<DeviceIndex> from_search = found_;
    const std::vector<DeviceIndex> cpu = tasks_.all_on(kCpu);
    const std::vector<DeviceIndex> accelerator = tasks_.all_on(there_);
    consider(tasks_.name_of_all_on(kCpu), cpu);
    if (from_search != cpu && from_search != accelerator) consider("as if it fitted", from_search);
    const bool streams = consider("streamed to the accelerator", accelerator);
    if (streams) note_streamed();
    // What needs the largest share of the memory by itself leaves no room for what others bring
    // meanwhile.
    for (const uint64_t part : {2, 3, 4, 6, 8, 12, 16, 32, 64}) {
      if (streams || consider("streamed, but for large tasks", without_large(accelerator, bytes_there() / part))) break;
    }
    if (const double even = streams ? balanced_share() : 0; even > 0) {
      // Parts where they lie: the links and the CPU read different bytes at the same time.
      for (const double share : {0.75 * even, even, (1 + even) / 2, 1.0}) {
        consider("shared with the CPU", shared(accelerator, share));
      }
    }
    if (best_.empty()) {
      best_ = cpu;
      candidates_[0].chosen = true;
    }
    if (options_.candidates != nullptr) {
      for (Candidate& candidate : *options_.candidates) candidate.chosen = false;
      for (const Candidate& candidate : candidates_) options_.candidates->push_back(candidate);
    }
    place(best_);
    if (!is_host_only(graph_, plan_) && lay_out_within(graph_, options_, best_slack_)) return;
    // Also what was asked for elsewhere.
    const bool is_new = !is_host_only(graph_, plan_);
    place(std::vector<DeviceIndex>(tasks_.size(), kCpu));
    if (is_new) note_lack_of_memory();
    scratch_.resident.assign(graph_.buffers.size(), 0);
    if (is_host_only(graph_, plan_)) {
      lay_out_on_cpu(graph_, options_, plan_, scratch_);
    } else if (!lay_out_within(graph_, options_, 0)) {
      lay_out(graph_, options_, limits_of(kAnyBytes), plan_, scratch_);
    }
  }

 private:
  // Arenas waste something between their slices; how much less than its memory the accelerator is
  // asked to hold, in sixteenths.
  static constexpr int kSlacks[] = {1, 3, 6, 10};

  // Candidates are compared so: which copies go together is tried for the one that is taken.
  static PlanOptions with_copies_apart(PlanOptions options) {
    options.join_copies = false;
    return options;
  }

  // What a task reads of what is streamed, in bytes.
  double streamed_bytes(const Task& task) const {
    double bytes = 0;
    for (const Use* use = tasks_.begin(task); use != tasks_.end(task); ++use) {
      if (use->reads && streamed_[use->buffer] != 0) bytes += static_cast<double>(tasks_.values[use->buffer].bytes);
    }
    return bytes;
  }

  // The tasks that need more bytes beside those that are there go to the CPU, whatever was asked
  // for.
  std::vector<DeviceIndex> without_large(std::vector<DeviceIndex> devices, uint64_t most) const {
    for (size_t t = 0; t < devices.size(); ++t) {
      uint64_t bytes = 0;
      for (const Use* use = tasks_.begin(tasks_.tasks[t]); use != tasks_.end(tasks_.tasks[t]); ++use) {
        const Buffer& buffer = graph_.buffers[use->buffer];
        if (use->in_memory() && !backend::contains(buffer.valid_on, there_)) bytes += buffer.bytes;
      }
      if (bytes > most) devices[t] = kCpu;
    }
    return devices;
  }

  bool touches_resident(const Task& task) const {
    return std::any_of(tasks_.begin(task), tasks_.end(task), [this](const Use& use) {
      return survives(graph_.buffers[use.buffer]) && streamed_[use.buffer] == 0;
    });
  }

  // The share of what is streamed with which the CPU and the accelerator, which take turns, are as
  // long at work as the link. One at most.
  double balanced_share() const {
    double copies = 0;
    double there = 0;  // on the accelerator
    double here = 0;   // what reads streamed bytes, on the CPU
    for (const Task& task : tasks_.tasks) {
      const double bytes = streamed_bytes(task);
      there += task.seconds[there_];
      if (bytes == 0) continue;
      copies += costs_.copy_seconds(bytes, kCpu, there_);
      here += task.seconds[kCpu] - task.seconds[there_];
    }
    return copies > there && here > 0 ? std::min(1.0, (copies - there) / (copies + here)) : 0;
  }

  // About `share` of the bytes that had to be streamed is used by the CPU, spread evenly: tasks
  // that read such bytes, each with those that follow it up to the next one that needs what lies on
  // the accelerator.
  std::vector<DeviceIndex> shared(std::vector<DeviceIndex> devices, double share) const {
    double due = 0;  // bytes that the CPU has read too few
    bool here = false;
    for (size_t t = 0; t < devices.size(); ++t) {
      const Task& task = tasks_.tasks[t];
      if (const double bytes = streamed_bytes(task); bytes > 0) {
        due += share * bytes;
        here = due >= bytes / 2;
        if (here) due -= bytes;
      } else {
        here = here && !touches_resident(task);
      }
      if (here && backend::contains(task.allowed, kCpu)) devices[t] = kCpu;
    }
    return devices;
  }

  void place(const std::vector<DeviceIndex>& devices) { write_placements(tasks_, devices, plan_); }

  // Lays out with residents chosen. `first` is the first slack to try; best_slack_ is the one that
  // did.
  bool lay_out_within(const Graph& graph, const PlanOptions& options, size_t first) {
    for (size_t s = first; s < std::size(kSlacks); ++s) {
      const Limits limits = limits_with(static_cast<uint64_t>(kSlacks[s]));
      slack_ = s;
      const bool large_stay = choose_residents(graph, options_, limits, true, plan_, scratch_);
      if (lay_out(graph, options, limits, plan_, scratch_)) return true;
      if (!large_stay) continue;
      choose_residents(graph, options_, limits, false, plan_, scratch_);
      if (lay_out(graph, options, limits, plan_, scratch_)) return true;
    }
    return false;
  }

  Limits limits_with(uint64_t slack) const {
    Limits limits = limits_of(kNoLimit);
    for (DeviceIndex d = 1; d < options_.machine.size(); ++d) {
      const uint64_t bytes = options_.machine[d].bytes;
      if (bytes != 0) limits[d] = bytes - bytes / 16 * slack;
    }
    return limits;
  }

  uint64_t bytes_there() const {
    const uint64_t bytes = options_.machine[there_].bytes;
    return bytes == 0 ? kAnyBytes : bytes;
  }

  double seconds_on_cpu() const {
    double seconds = 0;
    for (const Task& task : tasks_.tasks) seconds += task.seconds[kCpu];
    return seconds;
  }

  // Everything is on the CPU, and what was chosen is not what runs.
  void note_lack_of_memory() {
    if (options_.candidates == nullptr) return;
    for (Candidate& candidate : *options_.candidates) candidate.chosen = false;
    options_.candidates->push_back({"all on the CPU, for lack of memory", seconds_on_cpu(), true});
  }

  // False where it cannot be.
  bool consider(const char* name, const std::vector<DeviceIndex>& devices) {
    place(devices);
    double seconds = std::numeric_limits<double>::infinity();
    if (is_host_only(graph_, plan_)) {
      seconds = seconds_on_cpu();
    } else if (lay_out_within(graph_, apart_, 0)) {
      seconds = steady_seconds();
    }
    candidates_.push_back({name, seconds});
    if (tasks_.differs(devices) && seconds < best_seconds_ * (best_.empty() ? 1 : 0.98)) {
      if (chosen_ < candidates_.size()) candidates_[chosen_].chosen = false;
      chosen_ = candidates_.size() - 1;
      candidates_[chosen_].chosen = true;
      best_seconds_ = seconds;
      best_ = devices;
      best_slack_ = slack_;
    }
    return seconds < std::numeric_limits<double>::infinity();
  }

  // What the candidate at hand copies in from the CPU in each run.
  void note_streamed() {
    streamed_.assign(graph_.buffers.size(), 0);
    for (BufferId b = 0; b < graph_.buffers.size(); ++b) {
      streamed_[b] = graph_.buffers[b].valid_on == backend::only(kCpu) && scratch_.resident[b] == 0;
    }
  }

  // Of the program as it will run from the second time on, when the residents are there.
  double steady_seconds() {
    Simulation simulation;
    Graph steady = graph_;
    bool differs = false;
    for (BufferId b = 0; b < steady.buffers.size(); ++b) {
      Buffer& buffer = steady.buffers[b];
      const bool stays = scratch_.resident[b] != 0 && buffer.valid_on == backend::only(kCpu) && buffer.steady;
      if (!stays && tasks_.values[b].updated_by == Value::kNoTask) continue;
      differs = differs || buffer.valid_on != plan_.valid_after[b];
      buffer.valid_on = plan_.valid_after[b];
    }
    if (differs && !lay_out_within(steady, apart_, slack_)) return std::numeric_limits<double>::infinity();
    simulate(steady, plan_, costs_, simulation);
    return simulation.seconds;
  }

  const Graph& graph_;
  const PlanOptions& options_;
  const PlanOptions apart_;
  const CostModel costs_;
  Plan& plan_;
  Scratch& scratch_;
  const TaskGraph& tasks_;
  const DeviceIndex there_ = options_.searched;
  std::vector<DeviceIndex> found_;
  // Per buffer: "streamed to the accelerator" copies it in each time.
  std::vector<uint8_t> streamed_;
  std::vector<Candidate> candidates_;
  size_t chosen_ = SIZE_MAX;
  std::vector<DeviceIndex> best_;
  double best_seconds_ = std::numeric_limits<double>::infinity();
  size_t slack_ = 0;
  size_t best_slack_ = 0;
};

}  // namespace

Scratch& thread_scratch() {
  // On the heap: a shared library has little room for thread-local objects.
  thread_local const auto own = std::make_unique<Scratch>();
  return *own;
}

void make_plan(const Graph& graph, const PlanOptions& options, Plan& plan) {
  Scratch& scratch = thread_scratch();
  plan.notes.placed.clear();
  plan.notes.written.clear();

  plan.device_count = options.machine.size();
  drop_dead_values(graph, plan, scratch);
  if (!options.machine.has_accelerator()) {
    plan.placements.assign(graph.nodes.size(), Placement{});
    lay_out_on_cpu(graph, options, plan, scratch);
    return;
  }
  find_tasks(graph, options, plan, scratch);
  place_nodes(graph, options, plan, scratch.tasks, scratch.order);
  if (!is_host_only(graph, plan)) consider_whole(graph, options, plan, scratch);
  if (is_host_only(graph, plan)) {
    lay_out_on_cpu(graph, options, plan, scratch);
  } else if (!lay_out(graph, options, limits_of(kAnyBytes), plan, scratch)) {
    BoundedSearch(graph, options, plan, scratch).run();
  }
  if (options.shares_accelerator) note_utilizations(graph, options, plan);
}

}  // namespace hetero::graph
