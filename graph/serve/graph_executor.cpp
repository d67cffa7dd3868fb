#include "graph/serve/graph_executor.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <numeric>

#include "backend/base/size_classes.h"
#include "backend/memory/allocator.h"
#include "backend/registry/registry.h"
#include "graph/plan/sized_plans.h"
#include "graph/program/program_sizes.h"
#include "graph/serve/sized_program.h"
#include "graph/serve/static_plan.h"

namespace hetero {

using backend::Block;
using backend::Device;
using backend::DeviceIndex;
using backend::kCpu;
using backend::QueueKind;
using graph::BufferId;
using graph::Home;
using graph::Place;
using graph::ProgramValue;
using graph::Window;

namespace {

Status usage(std::string message) { return Status(ErrorClass::kUsage, std::move(message)); }

constexpr uint64_t kAnyBytes = backend::MemoryStats::kAnyBytes;

// Of a block, as devices count it; none where nothing is asked for.
uint64_t counted_bytes(uint64_t bytes) { return bytes == 0 ? 0 : backend::round_to_alignment(bytes); }

// A block of a device that grows where more is asked for. What was in it is lost then.
struct Memory {
  Block block;
  uint64_t bytes = 0;

  std::byte* data() const { return static_cast<std::byte*>(block.data()); }
  // Errors: kResource; the memory is gone then. `moved` is set where it lies elsewhere afterwards.
  Status reserve(Device& device, uint64_t wanted, bool& moved) {
    if (wanted <= bytes) return Status();
    moved = true;
    bytes = 0;
    block.reset();
    Result<Block> made = device.allocate(wanted);
    if (!made.ok()) return made.status();
    block = std::move(made.value());
    bytes = wanted;
    return Status();
  }
};

}  // namespace

backend::Devices process_devices() { return backend::all_devices(); }

std::optional<uint64_t> bytes_to_share(const backend::Devices& devices, std::optional<uint64_t> wanted) {
  if (!backend::has_accelerator(devices)) return std::nullopt;
  if (wanted.has_value()) return wanted;
  const uint64_t left = devices[graph::PlanOptions().searched]->memory_stats().bytes_left();
  return left == kAnyBytes ? std::nullopt : std::optional(left);
}

graph::PlanOptions static_plan_options(const backend::Devices& devices) {
  graph::PlanOptions options;
  options.fusion = true;
  options.fixed_memory = true;
  options.machine = backend::describe(devices);
  return options;
}

// What belongs to one input or output of one slot.
struct GraphExecutor::Impl {
  enum class State : uint8_t { kIdle, kRunning };
  enum class Side : uint8_t { kInput, kOutput };

  // A buffer of a slot, on the devices where it has memory.
  struct SlotBuffer {
    Place own{};              // the executor's own memory
    Place place{};            // what the program uses now
    void* staging = nullptr;  // host memory through which it goes to and from a device; null where there is none
    std::shared_ptr<const void> owner{};  // of memory that the caller lends
    bool set = false;                     // an input: it has been set

    bool is_elsewhere() const {
      return std::any_of(place.begin() + 1, place.end(), [](const void* data) { return data != nullptr; });
    }
    // Where its bytes are on the host, on their way to and from a device too.
    void* on_host() const { return staging != nullptr ? staging : place[kCpu]; }
  };

  struct OutputCopy {
    TensorView to{};
    bool copies = false;             // begun and not waited for
    std::vector<std::byte> state{};  // its bytes, where it is a constant or a state that lies on the accelerator
  };

  // A run that was given to the core group.
  struct Request {
    Impl* impl;
    size_t slot;
  };

  struct Slot {
    std::vector<SlotBuffer> homes;  // per slot buffer
    std::atomic<State> state{State::kIdle};
    Status status;     // of the last run
    bool ran = false;  // with the present sizes; it has results, then, unless `status` says otherwise
    // Per accelerator, from the first on. A program waits for one of each, so what another accelerator still does is waited for first.
    std::vector<std::unique_ptr<backend::Event>> uploaded;
    std::vector<std::unique_ptr<backend::Event>> brought;
    backend::Event* uploads = nullptr;  // the last of `uploaded` that was recorded
    backend::Event* brings = nullptr;   // and of `brought`
    std::vector<OutputCopy> copies;
    Request request;
  };

  // Where in the memory of slots a slot's buffer lies.
  struct Piece {
    size_t slot;
    size_t home;
    DeviceIndex device;
    uint64_t offset;
    bool staging;
  };

  // The program for one set of sizes, in the executor's memory.
  struct Instance {
    std::unique_ptr<SizedProgram> sized;
    std::vector<Piece> pieces{};
    std::array<uint64_t, backend::kMostDevices> slot_bytes{};
    std::unique_ptr<graph::BoundProgram> bound{};
    uint64_t version = 0;  // of the memory that it is bound to
  };

  // Of the accelerator's memory.
  struct Need {
    uint64_t weights = 0;  // that are not there yet
    uint64_t own = 0;      // slots, temporaries and states, those that there are included
  };

  std::shared_ptr<Model> model;
  Options options;
  graph::PlanOptions plan_options;
  uint64_t weight_bytes = 0;           // that this executor has brought to the accelerator
  std::vector<uint32_t> home_of;       // per buffer: which of a slot's homes; kNone for others
  std::vector<BufferId> slot_buffers;  // the reverse
  // Shared by the programs of all sizes, of which one is in use at a time.
  std::array<Memory, backend::kMostDevices> slot_memory;
  std::array<Memory, backend::kMostDevices> arenas;
  uint64_t memory_version = 1;  // counts how often some of it moved
  std::vector<Block> state_blocks;
  std::array<uint64_t, backend::kMostDevices> state_bytes{};
  std::vector<Place> places;                      // per buffer: of constants
  std::vector<Model::DeviceBytes> weights_there;  // on accelerators
  graph::SizedPlans<Instance> known{1};           // the program's own sizes are kept
  Instance* now = nullptr;
  graph::BoundCounts counted;  // by programs that are gone
  std::vector<std::unique_ptr<Slot>> slots;
  std::atomic<bool> busy{false};
  uint64_t draws = 0;

  static constexpr uint32_t kNone = UINT32_MAX;
  // Plans are made for less and less memory of the accelerator so often, then for next to none: 0 would stand for any.
  static constexpr int kMostTries = 6;
  static constexpr uint64_t kLeastBytes = 1;
  // Plans and bindings are kept for so many sizes.

  const SizedProgram& sized() const { return *now->sized; }
  const graph::SavedProgram& program() const { return sized().program; }
  const graph::StaticPlan& plan() const { return sized().plan; }
  graph::BoundProgram& bound() const { return *now->bound; }
  Device& device(DeviceIndex d) const { return *options.devices[d]; }
  // The accelerator whose memory is shared out; other accelerators have what programs ask for by name.
  DeviceIndex there() const { return plan_options.searched; }
  const Window& window(const ProgramValue& value) const { return program().windows[value.window]; }

  Status init();
  Status choose_queues();
  Status check_share() const;
  void share_out(const Instance& first);
  void choose_homes();
  void make_slots();
  void lay_out(Instance& instance) const;
  Need need_of(const Instance& instance) const;
  uint64_t own_bytes() const;
  uint64_t allowance() const;
  std::string too_little(const Need& need) const;
  template <typename Make>
  Result<std::unique_ptr<Instance>> make_instance(const Make& make) const;
  Status take_memory(const Instance& instance);
  Status place_constants(const Instance& instance);
  Status place_state(BufferId buffer, const Instance& instance);
  Status get_state(const graph::ProgramConstant& state, const TensorView& to);
  Status copy_state(const void* from, DeviceIndex on, void* to, DeviceIndex there, uint64_t bytes);
  void bind(Instance& instance);
  Status use(Instance& instance);
  Status quiesce();
  void settle_run(size_t slot);
  Result<Instance*> find_instance(std::span<const int64_t> sizes);
  Status set_sizes(std::span<const int64_t> sizes);

  Status check_slot(size_t slot) const;
  Status check_idle(size_t slot) const;
  SlotBuffer& home(size_t slot, const ProgramValue& value) { return slots[slot]->homes[home_of[value.buffer]]; }
  const Ports& ports(Side side) const { return side == Side::kInput ? sized().inputs : sized().outputs; }
  Result<size_t> find(Side side, Which which, const TensorView& tensor, size_t slot) const;
  const char* why_not_lent(Side side, const ProgramValue& value, const TensorView& tensor) const;
  Status take_back(size_t slot, const ProgramValue& value);
  Status note(size_t slot, graph::BoundProgram::Gate gate, backend::Queue& queue, backend::Event& event,
              backend::Event*& last);
  Status upload(size_t slot, BufferId buffer, SlotBuffer& home);
  Status lend(size_t slot, const ProgramValue& value, const TensorView& tensor, std::shared_ptr<const void> owner);
  Status set_zero_copy(Side side, Which which, const TensorView& tensor, size_t slot,
                       std::shared_ptr<const void> owner);
  DeviceIndex output_device(BufferId buffer) const;
  const Place& place(size_t slot, BufferId buffer) const {
    return home_of[buffer] == kNone ? places[buffer] : slots[slot]->homes[home_of[buffer]].place;
  }

  Status check_inputs(size_t slot) const;
  void run(size_t slot, const std::atomic<int32_t>* stop);
  Status draw_states();
  Status wait(size_t slot);
  Status check_ran(size_t slot, const std::string& output) const;
  Status begin_copy(size_t slot, size_t output);
  Status end_copy(size_t slot, size_t output);
};

// ---- Init -----------------------------------------------------------------------------------------------------------

Result<std::unique_ptr<GraphExecutor>> GraphExecutor::Init(const std::string& path, Options options) {
  Result<std::shared_ptr<Model>> model = Model::load(path);
  if (!model.ok()) return model.status();
  return Init(std::move(model.value()), std::move(options));
}

Result<std::unique_ptr<GraphExecutor>> GraphExecutor::Init(std::shared_ptr<Model> model, Options options) {
  if (model == nullptr) return usage("an executor needs a model");
  if (options.slots == 0) return usage("an executor needs at least one slot");
  auto impl = std::make_unique<Impl>();
  impl->model = std::move(model);
  impl->options = std::move(options);
  if (Status status = impl->init(); !status.ok()) return status;
  return std::unique_ptr<GraphExecutor>(new GraphExecutor(std::move(impl)));
}

Status GraphExecutor::Impl::init() {
  plan_options = options.plan != nullptr ? *options.plan : static_plan_options(options.devices);
  plan_options.fixed_memory = true;
  if (Status status = choose_queues(); !status.ok()) return status;
  if (Status status = check_share(); !status.ok()) return status;
  choose_homes();
  make_slots();
  places.assign(model->program().graph.buffers.size(), Place{});
  Result<std::unique_ptr<Instance>> own = make_instance([this](const graph::PlanOptions& chosen) {
    return SizedProgram::own(model->program(), chosen, options.use_saved_plan);
  });
  if (!own.ok()) return own.status();
  Instance& instance = known.add(std::move(own.value()));
  share_out(instance);
  return use(instance);
}

Status GraphExecutor::Impl::check_share() const {
  if (!options.accelerator_bytes.has_value() || !plan_options.machine.has_accelerator()) return Status();
  const backend::MemoryStats stats = device(there()).memory_stats();
  const uint64_t left = stats.bytes_left();
  if (*options.accelerator_bytes <= left) return Status();
  return Status(ErrorClass::kResource, "the executor was to have " + backend::format_bytes(*options.accelerator_bytes) +
                                           " of the accelerator's memory, and " + backend::format_bytes(left) +
                                           " are left of its " +
                                           backend::format_bytes(static_cast<uint64_t>(stats.limit_bytes)) +
                                           "; give it less, or free what others hold there");
}

// What is to be shared with others is from here on what this executor may have.
void GraphExecutor::Impl::share_out(const Instance& first) {
  if (!options.accelerator_bytes.has_value()) return;
  const uint64_t weights = need_of(first).weights;
  const uint64_t rest = *options.accelerator_bytes - std::min(weights, *options.accelerator_bytes);
  options.accelerator_bytes = weights + rest / std::max<size_t>(1, std::exchange(options.sharers, 1));
}

Status GraphExecutor::Impl::choose_queues() {
  std::vector<QueueKind>& queues = options.compute_queues;
  if (queues.empty() && options.group != nullptr) queues = options.group->compute_queues();
  if (queues.empty()) return Status();
  plan_options.compute_queues = std::min(plan_options.compute_queues, static_cast<int>(queues.size()));
  plan_options.shares_accelerator = queues.size() < backend::kComputeQueues;
  return backend::check_compute_queues(queues);
}

// Slots have what goes in and out, and is no weight.
void GraphExecutor::Impl::choose_homes() {
  const graph::SavedProgram& program = model->program();
  home_of.assign(program.graph.buffers.size(), kNone);
  const auto add = [this](const ProgramValue& value) {
    if (home_of[value.buffer] != kNone || model->is_constant(value.buffer)) return;
    home_of[value.buffer] = static_cast<uint32_t>(slot_buffers.size());
    slot_buffers.push_back(value.buffer);
  };
  for (const ProgramValue& input : program.inputs) add(input);
  for (const ProgramValue& output : program.outputs) add(output);
}

void GraphExecutor::Impl::make_slots() {
  for (size_t s = 0; s < options.slots; ++s) {
    Slot& slot = *slots.emplace_back(std::make_unique<Slot>());
    slot.homes.resize(slot_buffers.size());
    slot.copies.resize(model->program().outputs.size());
    slot.request = {this, s};
  }
}

// ---- Sizes ----------------------------------------------------------------------------------------------------------

namespace {

// Whether the plan has the buffer in memory that outlives the program.
bool has_home(const graph::StaticPlan& plan, BufferId buffer, DeviceIndex device) {
  const Home home = plan.plan.residence(buffer, device).home;
  const bool bound = home == Home::kBound || home == Home::kBrought;
  return bound || backend::contains(plan.graph.buffers[buffer].valid_on, device);
}

// What a plan has on an accelerator, counted as DeviceDescription::bytes is.
uint64_t planned_bytes(const graph::StaticPlan& plan, DeviceIndex device) {
  uint64_t bytes = plan.plan.arena_bytes[device];
  for (BufferId b = 0; b < plan.graph.buffers.size(); ++b) {
    if (has_home(plan, b, device)) bytes += backend::round_to_alignment(plan.graph.buffers[b].bytes);
  }
  return bytes;
}

}  // namespace

void GraphExecutor::Impl::lay_out(Instance& instance) const {
  const graph::StaticPlan& plan = instance.sized->plan;
  const auto add = [&](size_t slot, size_t home, DeviceIndex device, bool staging) {
    instance.pieces.push_back({slot, home, device, instance.slot_bytes[device], staging});
    const uint64_t bytes = plan.graph.buffers[slot_buffers[home]].bytes;
    instance.slot_bytes[device] += backend::round_to_alignment(bytes);
  };
  for (size_t s = 0; s < options.slots; ++s) {
    for (size_t h = 0; h < slot_buffers.size(); ++h) {
      bool elsewhere = false;
      for (DeviceIndex d = 1; d < plan.plan.device_count; ++d) {
        if (!has_home(plan, slot_buffers[h], d)) continue;
        add(s, h, d, false);
        elsewhere = true;
      }
      // A buffer that no kernel touches lies on the host.
      const bool on_host = has_home(plan, slot_buffers[h], kCpu) || !elsewhere;
      add(s, h, kCpu, !on_host);
    }
  }
}

GraphExecutor::Impl::Need GraphExecutor::Impl::need_of(const Instance& instance) const {
  const graph::StaticPlan& plan = instance.sized->plan;
  Need need;
  if (!backend::has_accelerator(options.devices)) return need;
  need.own = counted_bytes(std::max(slot_memory[there()].bytes, instance.slot_bytes[there()])) +
             counted_bytes(std::max(arenas[there()].bytes, plan.plan.arena_bytes[there()])) + state_bytes[there()];
  for (BufferId b = 0; b < plan.graph.buffers.size(); ++b) {
    if (!model->is_constant(b) || !has_home(plan, b, there())) continue;
    const uint64_t bytes = backend::round_to_alignment(plan.graph.buffers[b].bytes);
    if (model->is_written(b)) {
      need.own += places[b][there()] == nullptr ? bytes : 0;
    } else {
      need.weights += model->is_on_device(b, device(there())) ? 0 : bytes;
    }
  }
  return need;
}

// Of the accelerator's memory.
uint64_t GraphExecutor::Impl::own_bytes() const {
  return counted_bytes(slot_memory[there()].bytes) + counted_bytes(arenas[there()].bytes) + state_bytes[there()];
}

// What weights that are yet to come there, and what is the executor's own, may take of the accelerator's memory together.
uint64_t GraphExecutor::Impl::allowance() const {
  if (!backend::has_accelerator(options.devices)) return kAnyBytes;
  if (options.accelerator_bytes.has_value()) return *options.accelerator_bytes - weight_bytes;
  const uint64_t left = device(there()).memory_stats().bytes_left();
  return left == kAnyBytes ? left : left + own_bytes();
}

// The program by a plan that `make` makes with these options, or, where that takes more than is allowed, for less memory. A plan counts each input and output once and each weight as
// if it were not there, so how much less is found by trying; at last all is on the CPU.
template <typename Make>
Result<std::unique_ptr<GraphExecutor::Impl::Instance>> GraphExecutor::Impl::make_instance(const Make& make) const {
  graph::PlanOptions chosen = plan_options;
  const auto allowed = static_cast<double>(allowance());
  for (int tries = 0;; ++tries) {
    Result<std::unique_ptr<SizedProgram>> made = make(chosen);
    if (!made.ok()) return made.status();
    auto instance = std::make_unique<Instance>(Instance{.sized = std::move(made.value())});
    lay_out(*instance);
    const Need need = need_of(*instance);
    const auto needed =
        static_cast<double>(need.weights) + static_cast<double>(need.own) * static_cast<double>(options.sharers);
    if (needed <= allowed) return instance;
    if (chosen.machine[there()].bytes == kLeastBytes) return Status(ErrorClass::kResource, too_little(need));
    const auto planned = static_cast<double>(planned_bytes(instance->sized->plan, there()));
    chosen.machine[there()].bytes =
        tries + 1 < kMostTries ? std::max(kLeastBytes, static_cast<uint64_t>(planned * allowed / needed)) : kLeastBytes;
  }
}

std::string GraphExecutor::Impl::too_little(const Need& need) const {
  return "the program needs " + backend::format_bytes(need.weights + need.own) +
         " of the accelerator's memory, and may have " + backend::format_bytes(allowance()) +
         "; free what others hold there, or raise the budget";
}

Status GraphExecutor::Impl::take_memory(const Instance& instance) {
  bool moved = false;
  Status status;
  for (DeviceIndex d = 0; d < backend::kMostDevices && status.ok(); ++d) {
    if (options.devices[d] == nullptr) continue;
    status = slot_memory[d].reserve(device(d), instance.slot_bytes[d], moved);
    if (status.ok()) status = arenas[d].reserve(device(d), instance.sized->plan.plan.arena_bytes[d], moved);
  }
  memory_version += moved ? 1 : 0;
  return status;
}

Status GraphExecutor::Impl::place_constants(const Instance& instance) {
  const graph::StaticPlan& plan = instance.sized->plan;
  for (BufferId b = 0; b < plan.graph.buffers.size(); ++b) {
    if (!model->is_constant(b)) continue;
    if (model->is_written(b)) {
      if (Status status = place_state(b, instance); !status.ok()) return status;
      continue;
    }
    // Only read from here on.
    places[b][kCpu] = const_cast<void*>(model->host_bytes(b));
    for (DeviceIndex d = 1; d < plan.plan.device_count; ++d) {
      if (!has_home(plan, b, d)) continue;
      const bool is_first = !model->is_on_device(b, device(d));
      Result<Model::DeviceBytes> bytes = model->device_bytes(b, device(d));
      if (!bytes.ok()) return bytes.status();
      if (is_first) weight_bytes += backend::round_to_alignment(plan.graph.buffers[b].bytes);
      places[b][d] = bytes.value()->data();
      weights_there.push_back(std::move(bytes.value()));
    }
  }
  return Status();
}

// A state begins with the model's bytes, and goes on with those of the program that ran before.
Status GraphExecutor::Impl::place_state(BufferId buffer, const Instance& instance) {
  const graph::StaticPlan& plan = instance.sized->plan;
  const uint64_t bytes = plan.graph.buffers[buffer].bytes;
  const backend::DeviceSet valid = now == nullptr ? 0 : now->sized->plan.graph.buffers[buffer].valid_on;
  const DeviceIndex source = valid == 0 ? kCpu : backend::first_of(valid);
  for (DeviceIndex d = 0; d < plan.plan.device_count; ++d) {
    if (!has_home(plan, buffer, d)) continue;
    if (places[buffer][d] == nullptr) {
      Result<Block> block = device(d).allocate(backend::round_to_alignment(bytes));
      if (!block.ok()) return block.status();
      places[buffer][d] = block.value().data();
      state_bytes[d] += backend::round_to_alignment(bytes);
      state_blocks.push_back(std::move(block.value()));
    }
    if (backend::contains(valid, d)) continue;
    const void* const from = valid == 0 ? model->host_bytes(buffer) : places[buffer][source];
    const Status status = copy_state(from, valid == 0 ? kCpu : source, places[buffer][d], d, bytes);
    if (!status.ok()) return status;
  }
  return Status();
}

Status GraphExecutor::Impl::copy_state(const void* from, DeviceIndex on, void* to, DeviceIndex there, uint64_t bytes) {
  if (bytes == 0) return Status();
  if (on == kCpu && there == kCpu) {
    std::memcpy(to, from, bytes);
    return Status();
  }
  if (on != kCpu && there != kCpu) {
    std::vector<std::byte> between(bytes);
    const Status status = copy_state(from, on, between.data(), kCpu, bytes);
    return status.ok() ? copy_state(between.data(), kCpu, to, there, bytes) : status;
  }
  backend::Queue& queue =
      there == kCpu ? device(on).queue(QueueKind::kDeviceToHost) : device(there).queue(QueueKind::kHostToDevice);
  const Status status = queue.copy(to, from, bytes);
  return status.ok() ? queue.synchronize() : status;
}

Status GraphExecutor::Impl::get_state(const graph::ProgramConstant& state, const TensorView& to) {
  const Window& window = program().windows[state.window];
  Status status = graph::check_shape(window, to, "state '" + state.name + "'");
  if (status.ok() && to.device != kCpu) status = usage("state '" + state.name + "' is copied to the host's memory");
  for (size_t s = 0; s < slots.size() && status.ok(); ++s) {
    status = check_idle(s);
    // A run that failed leaves its error with its slot.
    if (status.ok()) (void)wait(s);
  }
  if (!status.ok()) return status;
  const graph::Buffer& buffer = plan().graph.buffers[state.buffer];
  if (backend::contains(buffer.valid_on, kCpu)) {
    graph::copy_out(window, places[state.buffer][kCpu], to);
    return Status();
  }
  std::vector<std::byte> bytes(buffer.bytes);
  const DeviceIndex on = backend::first_of(buffer.valid_on);
  status = copy_state(places[state.buffer][on], on, bytes.data(), kCpu, buffer.bytes);
  if (status.ok()) graph::copy_out(window, bytes.data(), to);
  return status;
}

// Where the slots' buffers are, and every kernel's addresses. What the caller lent is given back.
void GraphExecutor::Impl::bind(Instance& instance) {
  for (auto& slot : slots) {
    for (SlotBuffer& home : slot->homes) home = SlotBuffer();
    slot->uploads = nullptr;
    slot->brings = nullptr;
    slot->ran = false;
  }
  for (const Piece& piece : instance.pieces) {
    SlotBuffer& home = slots[piece.slot]->homes[piece.home];
    std::byte* const at = slot_memory[piece.device].data() + piece.offset;
    (piece.staging ? home.staging : home.own[piece.device]) = at;
    home.place = home.own;
  }
  if (instance.bound != nullptr && instance.version == memory_version) return;
  std::vector<std::vector<Place>> of_slots(options.slots, places);
  for (size_t s = 0; s < options.slots; ++s) {
    for (size_t h = 0; h < slot_buffers.size(); ++h) of_slots[s][slot_buffers[h]] = slots[s]->homes[h].own;
  }
  if (instance.bound != nullptr) counted += instance.bound->counts();
  const graph::StaticPlan& plan = instance.sized->plan;
  const std::vector<graph::Binding*> bindings = model->bindings();
  graph::BoundProgram::Arenas bases{};
  for (DeviceIndex d = 0; d < bases.size(); ++d) bases[d] = arenas[d].data();
  instance.bound = std::make_unique<graph::BoundProgram>(
      plan.graph, plan.plan, options.devices, of_slots, bases, bindings,
      graph::BoundOptions{
          .segments = options.segments, .draws = instance.sized->drawing(), .compute_queues = options.compute_queues});
  instance.version = memory_version;
  const auto slots_elsewhere = std::accumulate(instance.slot_bytes.begin() + 1, instance.slot_bytes.end(), uint64_t{0});
  if (instance.bound->on_host_only() && slots_elsewhere == 0) return;
  for (auto& slot : slots) {
    if (!slot->uploaded.empty()) continue;
    for (DeviceIndex d = 1; d < plan.plan.device_count; ++d) {
      slot->uploaded.push_back(device(d).create_event());
      slot->brought.push_back(device(d).create_event());
    }
  }
}

// REQUIRES: nothing runs.
Status GraphExecutor::Impl::use(Instance& instance) {
  Status status = take_memory(instance);
  if (status.ok()) status = place_constants(instance);
  if (!status.ok()) return status;
  bind(instance);
  now = &instance;
  return Status();
}

// Nothing of any slot goes on afterwards, and the program uses no memory of callers.
Status GraphExecutor::Impl::quiesce() {
  for (size_t s = 0; s < slots.size(); ++s) {
    if (Status status = check_idle(s); !status.ok()) return status;
    if (std::ranges::any_of(slots[s]->copies, &OutputCopy::copies)) {
      return usage("an output of slot " + std::to_string(s) + " is being copied; wait for that");
    }
  }
  for (size_t s = 0; s < slots.size(); ++s) {
    Slot& slot = *slots[s];
    settle_run(s);
    for (backend::Event* const event : {slot.uploads, slot.brings}) {
      if (event == nullptr) continue;
      if (Status status = event->synchronize(); !status.ok()) return status;
    }
    for (const auto* const values : {&program().inputs, &program().outputs}) {
      for (const ProgramValue& value : *values) {
        if (Status status = take_back(s, value); !status.ok()) return status;
      }
    }
    bound().gate(s, graph::BoundProgram::Gate::kInputs, nullptr);
    bound().gate(s, graph::BoundProgram::Gate::kOutputs, nullptr);
  }
  return Status();
}

Result<GraphExecutor::Impl::Instance*> GraphExecutor::Impl::find_instance(std::span<const int64_t> sizes) {
  const auto fits = [&](const Instance& instance) { return std::ranges::equal(instance.sized->sizes, sizes); };
  if (Instance* const found = known.find(fits)) return found;
  Result<std::unique_ptr<Instance>> made = make_instance([&](const graph::PlanOptions& chosen) {
    return SizedProgram::resized(model->program(), sizes, chosen, *known.entries()[0]->sized);
  });
  if (!made.ok()) return made.status();
  return &known.add(std::move(made.value()));
}

Status GraphExecutor::Impl::set_sizes(std::span<const int64_t> sizes) {
  if (std::ranges::equal(sized().sizes, sizes)) return Status();
  if (Status status = quiesce(); !status.ok()) return status;
  const Result<Instance*> found = find_instance(sizes);
  if (!found.ok()) return found.status();
  Instance& before = *now;
  if (Status status = use(*found.value()); !status.ok()) {
    // The memory of before was enough then.
    const Status back = use(before);
    return back.ok() ? status : back;
  }
  const std::unique_ptr<Instance> oldest = known.take_oldest();
  if (oldest != nullptr && oldest->bound != nullptr) counted += oldest->bound->counts();
  return Status();
}

Status GraphExecutor::SetSizes(std::span<const int64_t> sizes) { return impl_->set_sizes(sizes); }

Status GraphExecutor::SetSizesOf(std::span<const TensorView> inputs) {
  if (dimensions().empty()) return Status();
  const Result<std::vector<int64_t>> sizes = graph::find_sizes(impl_->model->program(), inputs);
  return sizes.ok() ? SetSizes(sizes.value()) : sizes.status();
}

std::span<const graph::SizeVariable> GraphExecutor::dimensions() const {
  return impl_->model->program().dynamic.dimensions();
}
const std::vector<int64_t>& GraphExecutor::sizes() const { return impl_->sized().sizes; }

// ---- SetInput -------------------------------------------------------------------------------------------------------

Status GraphExecutor::Impl::check_slot(size_t slot) const {
  if (slot < slots.size()) return Status();
  return usage("there is no slot " + std::to_string(slot) + "; the executor has " + std::to_string(slots.size()));
}

Status GraphExecutor::Impl::check_idle(size_t slot) const {
  if (Status status = check_slot(slot); !status.ok()) return status;
  if (slots[slot]->state.load(std::memory_order_acquire) == State::kIdle) return Status();
  return usage("slot " + std::to_string(slot) + " is running; wait for it, or use another slot");
}

// The slot's next run waits for what the queue has done so far. `last` is the event that it waits for now.
Status GraphExecutor::Impl::note(size_t slot, graph::BoundProgram::Gate gate, backend::Queue& queue,
                                 backend::Event& event, backend::Event*& last) {
  if (last != nullptr && last != &event) {
    if (Status status = last->synchronize(); !status.ok()) return status;
  }
  if (Status status = queue.record(event); !status.ok()) return status;
  last = &event;
  bound().gate(slot, gate, &event);
  return Status();
}

// From staging to the devices, after what they still do with the slot.
Status GraphExecutor::Impl::upload(size_t slot, BufferId buffer, SlotBuffer& home) {
  Slot& at = *slots[slot];
  for (DeviceIndex d = 1; d < plan().plan.device_count; ++d) {
    if (home.place[d] == nullptr) continue;
    backend::Queue& queue = device(d).queue(QueueKind::kHostToDevice);
    if (Status status = bound().wait_on(slot, queue); !status.ok()) return status;
    Status status = queue.copy(home.place[d], home.on_host(), plan().graph.buffers[buffer].bytes);
    if (status.ok()) status = note(slot, graph::BoundProgram::Gate::kInputs, queue, *at.uploaded[d - 1], at.uploads);
    if (!status.ok()) return status;
  }
  return Status();
}

Result<size_t> GraphExecutor::Impl::find(Side side, Which which, const TensorView& tensor, size_t slot) const {
  if (Status status = check_idle(slot); !status.ok()) return status;
  const Result<size_t> index = ports(side).find(which);
  if (!index.ok()) return index;
  Status status = ports(side).check(index.value(), tensor);
  return status.ok() ? index : Result<size_t>(status);
}

// The slot uses the memory that Init gave it.
Status GraphExecutor::Impl::take_back(size_t slot, const ProgramValue& value) {
  if (home_of[value.buffer] == kNone) return Status();
  SlotBuffer& at = home(slot, value);
  if (at.owner == nullptr && at.place == at.own) return Status();
  // What the device still does is done with the memory that was lent.
  settle_run(slot);
  for (DeviceIndex d = 0; d < backend::kMostDevices; ++d) bound().rebind(slot, value.buffer, d, at.own[d]);
  at.place = at.own;
  at.owner.reset();
  return Status();
}

Status GraphExecutor::SetInput(Which input, const TensorView& tensor, size_t slot) {
  Impl& impl = *impl_;
  const Result<size_t> index = impl.find(Impl::Side::kInput, input, tensor, slot);
  if (!index.ok()) return index.status();
  const ProgramValue& value = impl.program().inputs[index.value()];
  if (tensor.device != kCpu) {
    return usage(impl.sized().inputs.words(index.value()) +
                 " is copied from the host's memory; use SetInputZeroCopy for memory of the accelerator");
  }
  Impl::SlotBuffer& home = impl.home(slot, value);
  Impl::Slot& at = *impl.slots[slot];
  // The last upload may still read these bytes; and where a run on the host still goes on, the slot would not be idle.
  if (home.is_elsewhere() && at.uploads != nullptr) {
    if (Status status = at.uploads->synchronize(); !status.ok()) return status;
  }
  if (Status status = impl.take_back(slot, value); !status.ok()) return status;
  if (home.place[kCpu] != nullptr && home.is_elsewhere()) {
    // Kernels of the CPU may still read it.
    impl.settle_run(slot);
  }
  graph::copy_in(tensor, impl.window(value), home.on_host());
  home.set = true;
  return impl.upload(slot, value.buffer, home);
}

// Memory can be lent that stands for the whole buffer, on the one device where the program has it; else the end of a sentence says why not.
const char* GraphExecutor::Impl::why_not_lent(Side side, const ProgramValue& value, const TensorView& tensor) const {
  const backend::DeviceSet devices =
      side == Side::kInput ? plan().graph.buffers[value.buffer].valid_on : backend::only(output_device(value.buffer));
  const Window& at = window(value);
  const auto same = [&](const ProgramValue& other) { return other.buffer == value.buffer; };
  const auto uses = std::ranges::count_if(program().inputs, same) + std::ranges::count_if(program().outputs, same);
  const auto bytes = static_cast<int64_t>(plan().graph.buffers[value.buffer].bytes);
  if (std::popcount(devices) > 1) {
    return " is used on both devices, so it cannot be lent; copy it";
  }
  if (model->is_constant(value.buffer) || uses != 1 || !at.dense || at.first_byte != 0 || at.last_byte != bytes) {
    return " shares its memory with something else of the program, so it cannot be lent; copy it";
  }
  const DeviceIndex on = devices == 0 ? kCpu : backend::first_of(devices);
  if (tensor.device != on) {
    return on == kCpu ? " is used on the host, so memory of the other cannot be lent; copy it"
                      : " is used on the accelerator, so memory of the other cannot be lent; copy it";
  }
  if (!graph::lies_like(at, tensor)) {
    return " has other strides than the program expects, so it cannot be lent; copy it, or make it contiguous";
  }
  const auto element = static_cast<uintptr_t>(graph::dtype_bytes(at.dtype));
  if (reinterpret_cast<uintptr_t>(tensor.data) % std::min<uintptr_t>(element, 8) != 0) {
    return " is not aligned to its elements, so it cannot be lent; copy it";
  }
  return nullptr;
}

Status GraphExecutor::Impl::lend(size_t slot, const ProgramValue& value, const TensorView& tensor,
                                 std::shared_ptr<const void> owner) {
  // What the device still does is done with the memory that was there before.
  settle_run(slot);
  SlotBuffer& at = home(slot, value);
  // An empty tensor may have no address, which to a kernel means that it is to bring the memory.
  if (tensor.data == nullptr) {
    at.set = true;
    return take_back(slot, value);
  }
  bound().rebind(slot, value.buffer, tensor.device, tensor.data);
  at.place[tensor.device] = tensor.data;
  at.owner = std::move(owner);
  at.set = true;
  return Status();
}

Status GraphExecutor::Impl::set_zero_copy(Side side, Which which, const TensorView& tensor, size_t slot,
                                          std::shared_ptr<const void> owner) {
  const Result<size_t> index = find(side, which, tensor, slot);
  if (!index.ok()) return index.status();
  const ProgramValue& value = ports(side)[index.value()];
  if (const char* why = why_not_lent(side, value, tensor)) return usage(ports(side).words(index.value()) + why);
  return lend(slot, value, tensor, std::move(owner));
}

Status GraphExecutor::SetInputZeroCopy(Which input, const TensorView& tensor, size_t slot,
                                       std::shared_ptr<const void> owner) {
  return impl_->set_zero_copy(Impl::Side::kInput, input, tensor, slot, std::move(owner));
}

Status GraphExecutor::SetOutputZeroCopy(Which output, const TensorView& tensor, size_t slot,
                                        std::shared_ptr<const void> owner) {
  return impl_->set_zero_copy(Impl::Side::kOutput, output, tensor, slot, std::move(owner));
}

Status GraphExecutor::OfferInput(Which input, const TensorView& tensor, size_t slot,
                                 std::shared_ptr<const void> owner) {
  Impl& impl = *impl_;
  const Result<size_t> index = impl.find(Impl::Side::kInput, input, tensor, slot);
  if (!index.ok()) return index.status();
  const ProgramValue& value = impl.program().inputs[index.value()];
  if (impl.why_not_lent(Impl::Side::kInput, value, tensor) != nullptr) {
    return SetInput(index.value(), tensor, slot);
  }
  return impl.lend(slot, value, tensor, std::move(owner));
}

Result<bool> GraphExecutor::OfferOutput(Which output, const TensorView& tensor, size_t slot,
                                        std::shared_ptr<const void> owner) {
  Impl& impl = *impl_;
  const Result<size_t> index = impl.find(Impl::Side::kOutput, output, tensor, slot);
  if (!index.ok()) return index.status();
  const ProgramValue& value = impl.program().outputs[index.value()];
  if (impl.why_not_lent(Impl::Side::kOutput, value, tensor) != nullptr) {
    if (Status status = impl.take_back(slot, value); !status.ok()) return status;
    return false;
  }
  if (Status status = impl.lend(slot, value, tensor, std::move(owner)); !status.ok()) return status;
  return true;
}

// ---- Run ------------------------------------------------------------------------------------------------------------

Status GraphExecutor::Impl::check_inputs(size_t slot) const {
  for (const ProgramValue& input : program().inputs) {
    if (home_of[input.buffer] == kNone || slots[slot]->homes[home_of[input.buffer]].set) continue;
    return usage("input '" + input.name + "' of slot " + std::to_string(slot) + " was not set");
  }
  return Status();
}

// New numbers for random operators, into the attributes of this executor's graph and the groups' numbers.
Status GraphExecutor::Impl::draw_states() {
  if (program().draws.empty()) return Status();
  // Kernels of the run before may still read the old ones.
  for (size_t s = 0; s < slots.size(); ++s) settle_run(s);
  return now->sized->draw_numbers([this] {
    return options.draw ? options.draw() : std::pair<uint64_t, uint64_t>{0, draws++};
  });
}

// REQUIRES: the slot's state says that it runs.
void GraphExecutor::Impl::run(size_t slot, const std::atomic<int32_t>* stop) {
  Slot& at = *slots[slot];
  if (busy.exchange(true, std::memory_order_acquire)) {
    at.status = usage("the executor was running another slot; use RunAsync for all, or another executor");
  } else {
    // An error that the caller has been told is over.
    if (!at.status.ok()) (void)bound().wait(slot);
    at.status = draw_states();
    if (at.status.ok()) at.status = bound().run(slot, stop);
    at.ran = true;
    busy.store(false, std::memory_order_release);
  }
  at.state.store(State::kIdle, std::memory_order_release);
  at.state.notify_all();
}

Status GraphExecutor::Run(size_t slot, const std::atomic<int32_t>* stop) {
  Impl& impl = *impl_;
  Status status = impl.check_idle(slot);
  if (status.ok()) status = impl.check_inputs(slot);
  if (!status.ok()) return status;
  impl.slots[slot]->state.store(Impl::State::kRunning, std::memory_order_relaxed);
  impl.run(slot, stop);
  return impl.slots[slot]->status;
}

Result<Pending> GraphExecutor::RunAsync(size_t slot) {
  Impl& impl = *impl_;
  if (impl.options.group == nullptr) return usage("RunAsync needs a core group: set Options::group");
  Status status = impl.check_idle(slot);
  if (status.ok()) status = impl.check_inputs(slot);
  if (!status.ok()) return status;
  impl.slots[slot]->state.store(Impl::State::kRunning, std::memory_order_relaxed);
  status = impl.options.group->submit({[](void* context) {
                                         const auto& request = *static_cast<Impl::Request*>(context);
                                         request.impl->run(request.slot, nullptr);
                                       },
                                       &impl.slots[slot]->request});
  if (!status.ok()) {
    impl.slots[slot]->state.store(Impl::State::kIdle, std::memory_order_relaxed);
    return status;
  }
  return Pending(this, slot, SIZE_MAX);
}

// ---- GetOutput ------------------------------------------------------------------------------------------------------

// Where a result is after a run; on the host, if it is there too.
DeviceIndex GraphExecutor::Impl::output_device(BufferId buffer) const {
  const backend::DeviceSet after = plan().plan.valid_after[buffer];
  const backend::DeviceSet valid = after != 0 ? after : plan().graph.buffers[buffer].valid_on;
  return valid == 0 ? kCpu : backend::first_of(valid);
}

Status GraphExecutor::Impl::wait(size_t slot) {
  if (Status status = check_slot(slot); !status.ok()) return status;
  Slot& at = *slots[slot];
  at.state.wait(State::kRunning, std::memory_order_acquire);
  settle_run(slot);
  return at.status;
}

// Waits for the slot's last run; its error stays with the slot.
void GraphExecutor::Impl::settle_run(size_t slot) {
  Status status = bound().wait(slot);
  if (slots[slot]->status.ok()) slots[slot]->status = std::move(status);
}

Status GraphExecutor::Impl::check_ran(size_t slot, const std::string& output) const {
  if (slots[slot]->ran) return Status();
  return usage(output + " has no value: slot " + std::to_string(slot) + " has not run" +
               (model->program().dynamic.dimensions().empty() ? "" : " with these sizes"));
}

Status GraphExecutor::Impl::begin_copy(size_t slot, size_t output) {
  Slot& at = *slots[slot];
  at.copies[output].copies = true;
  const BufferId buffer = program().outputs[output].buffer;
  const DeviceIndex on = output_device(buffer);
  if (on == kCpu) return Status();
  const uint64_t bytes = plan().graph.buffers[buffer].bytes;
  if (home_of[buffer] == kNone) {
    // All slots have the same one: the next run, of whichever, may change it.
    if (Status status = wait(slot); !status.ok()) return status;
    at.copies[output].state.resize(bytes);
    return copy_state(places[buffer][on], on, at.copies[output].state.data(), kCpu, bytes);
  }
  const SlotBuffer& home = at.homes[home_of[buffer]];
  // The queue of copies is everybody's: what waits there for this run would hold up the results of others. With several slots it is worth it.
  if (plan_options.shares_accelerator && options.slots == 1) {
    if (Status status = wait(slot); !status.ok()) return status;
  }
  backend::Queue& queue = device(on).queue(QueueKind::kDeviceToHost);
  if (Status status = bound().wait_on(slot, queue); !status.ok()) return status;
  const Status status = queue.copy(home.on_host(), home.place[on], bytes);
  if (!status.ok()) return status;
  return note(slot, graph::BoundProgram::Gate::kOutputs, queue, *at.brought[on - 1], at.brings);
}

Status GraphExecutor::Impl::end_copy(size_t slot, size_t output) {
  Slot& at = *slots[slot];
  OutputCopy& copy = at.copies[output];
  if (!copy.copies) return usage(model->outputs().words(output) + " has been waited for already");
  copy.copies = false;
  const ProgramValue& value = program().outputs[output];
  const void* bytes = place(slot, value.buffer)[kCpu];
  if (output_device(value.buffer) != kCpu && home_of[value.buffer] == kNone) {
    bytes = copy.state.data();
  } else if (output_device(value.buffer) != kCpu) {
    if (Status status = at.brought[output_device(value.buffer) - 1]->synchronize(); !status.ok()) return status;
    bytes = at.homes[home_of[value.buffer]].on_host();
  }
  if (Status status = wait(slot); !status.ok()) return status;
  graph::copy_out(window(value), bytes, copy.to);
  return Status();
}

Result<Pending> GraphExecutor::GetOutputAsync(Which output, const TensorView& to, size_t slot) {
  Impl& impl = *impl_;
  if (Status status = impl.check_slot(slot); !status.ok()) return status;
  const Ports& outputs = impl.sized().outputs;
  const Result<size_t> index = outputs.find(output);
  if (!index.ok()) return index.status();
  const std::string& what = outputs.words(index.value());
  if (Status status = outputs.check(index.value(), to); !status.ok()) return status;
  if (to.device != kCpu)
    return usage(what + " is copied to the host's memory; use SetOutputZeroCopy for memory of the accelerator");
  Impl::Slot& at = *impl.slots[slot];
  if (at.copies[index.value()].copies) return usage(what + " is being copied already; wait for that");
  // An accelerator's part can be waited for by its queue, what the host submits cannot.
  at.state.wait(Impl::State::kRunning, std::memory_order_acquire);
  if (!at.status.ok()) return at.status;
  if (Status status = impl.check_ran(slot, what); !status.ok()) return status;
  at.copies[index.value()].to = to;
  if (Status status = impl.begin_copy(slot, index.value()); !status.ok()) {
    at.copies[index.value()].copies = false;
    return status;
  }
  return Pending(this, slot, index.value());
}

Status GraphExecutor::GetOutput(Which output, const TensorView& to, size_t slot) {
  Result<Pending> copy = GetOutputAsync(output, to, slot);
  return copy.ok() ? copy.value().wait() : copy.status();
}

Result<TensorView> GraphExecutor::GetOutputView(Which output, size_t slot) {
  Impl& impl = *impl_;
  if (Status status = impl.wait(slot); !status.ok()) return status;
  const Result<size_t> index = impl.sized().outputs.find(output);
  if (!index.ok()) return index.status();
  const std::string& what = impl.sized().outputs.words(index.value());
  if (Status status = impl.check_ran(slot, what); !status.ok()) return status;
  const ProgramValue& value = impl.program().outputs[index.value()];
  if (impl.output_device(value.buffer) != kCpu) {
    return usage(what + " is in the accelerator's memory; use GetOutput, which copies it");
  }
  const Window& window = impl.window(value);
  auto* const bytes = static_cast<std::byte*>(impl.place(slot, value.buffer)[kCpu]);
  return TensorView{.data = bytes + window.offset * graph::dtype_bytes(window.dtype),
                    .dtype = window.dtype,
                    .sizes = {window.sizes().begin(), window.sizes().end()},
                    .strides = {window.strides().begin(), window.strides().end()}};
}

Status GraphExecutor::GetState(std::string_view name, const TensorView& to) {
  Impl& impl = *impl_;
  const auto& constants = impl.program().constants;
  const auto found = std::ranges::find_if(constants, [&](const graph::ProgramConstant& constant) {
    return constant.name == name && impl.model->is_written(constant.buffer);
  });
  if (found == constants.end()) return usage("the program has no state called '" + std::string(name) + "'");
  return impl.get_state(*found, to);
}

bool Pending::done() const {
  if (executor_ == nullptr) return true;
  const GraphExecutor::Impl& impl = *executor_->impl_;
  const GraphExecutor::Impl::Slot& slot = *impl.slots[slot_];
  if (slot.state.load(std::memory_order_acquire) == GraphExecutor::Impl::State::kRunning) return false;
  if (!impl.bound().is_done(slot_)) return false;
  return output_ == SIZE_MAX || slot.brings == nullptr || slot.brings->query();
}

Status Pending::wait() {
  if (executor_ == nullptr) return Status();
  GraphExecutor::Impl& impl = *executor_->impl_;
  return output_ == SIZE_MAX ? impl.wait(slot_) : impl.end_copy(slot_, output_);
}

// ---- the rest -------------------------------------------------------------------------------------------------------

GraphExecutor::GraphExecutor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

GraphExecutor::~GraphExecutor() {
  if (impl_->options.group != nullptr) (void)impl_->options.group->wait_idle();
  for (size_t s = 0; s < impl_->slots.size(); ++s) {
    (void)impl_->bound().wait(s);
    Impl::Slot& slot = *impl_->slots[s];
    if (slot.uploads != nullptr) (void)slot.uploads->synchronize();
    if (slot.brings != nullptr) (void)slot.brings->synchronize();
  }
}

Status GraphExecutor::Wait(size_t slot) { return impl_->wait(slot); }
const std::vector<ProgramValue>& GraphExecutor::inputs() const { return impl_->program().inputs; }
const std::vector<ProgramValue>& GraphExecutor::outputs() const { return impl_->program().outputs; }
size_t GraphExecutor::slots() const { return impl_->slots.size(); }
const graph::SavedProgram& GraphExecutor::program() const { return impl_->program(); }
const Model& GraphExecutor::model() const { return *impl_->model; }
const graph::StaticPlan& GraphExecutor::plan() const { return impl_->plan(); }
graph::BoundCounts GraphExecutor::counts() const {
  graph::BoundCounts counts = impl_->counted;
  for (const auto& instance : impl_->known.entries()) {
    if (instance->bound != nullptr) counts += instance->bound->counts();
  }
  return counts;
}
uint64_t GraphExecutor::weight_bytes() const { return impl_->weight_bytes; }
uint64_t GraphExecutor::accelerator_share() const {
  return impl_->options.accelerator_bytes.value_or(impl_->own_bytes() + impl_->weight_bytes);
}
uint64_t GraphExecutor::bytes(DeviceIndex device) const {
  return impl_->slot_memory[device].bytes + impl_->arenas[device].bytes + impl_->state_bytes[device];
}

}  // namespace hetero
