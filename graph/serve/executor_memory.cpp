#include "graph/serve/executor_impl.h"

#include <cstring>
#include <numeric>

#include "backend/base/size_classes.h"
#include "backend/memory/allocator.h"
#include "graph/program/program_sizes.h"

namespace hetero {

namespace {

// Of a block, as devices count it; none where nothing is asked for.
uint64_t counted_bytes(uint64_t bytes) { return bytes == 0 ? 0 : backend::round_to_alignment(bytes); }

}  // namespace

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

// What weights that are yet to come there, and what is the executor's own, may take of the
// accelerator's memory together.
uint64_t GraphExecutor::Impl::allowance() const {
  if (!backend::has_accelerator(options.devices)) return kAnyBytes;
  if (options.accelerator_bytes.has_value()) return *options.accelerator_bytes - weight_bytes;
  const uint64_t left = device(there()).memory_stats().bytes_left();
  return left == kAnyBytes ? left : left + own_bytes();
}

// The program by a plan that `make` makes with these options, or, where that takes more than is
// allowed, for less memory. A plan counts each input and output once and each weight as if it were
// not there, so how much less is found by trying; at last all is on the CPU.
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
    const double less = std::max(planned - (needed - allowed), planned * allowed / needed);
    chosen.machine[there()].bytes =
        tries + 1 < kMostTries ? std::max(kLeastBytes, static_cast<uint64_t>(less)) : kLeastBytes;
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

// Per buffer: the accelerators to which weights were brought for the sizes until now. They stay, so
// that a plan for others uses these and needs no others.
std::vector<backend::DeviceSet> GraphExecutor::Impl::weight_places() const {
  std::vector<backend::DeviceSet> there(places.size(), 0);
  for (BufferId b = 0; b < places.size(); ++b) {
    if (!model->is_constant(b) || model->is_written(b)) continue;
    for (DeviceIndex d = 1; d < backend::kMostDevices; ++d) {
      if (places[b][d] != nullptr) there[b] |= backend::only(d);
    }
  }
  return there;
}

Result<GraphExecutor::Impl::Instance*> GraphExecutor::Impl::find_instance(std::span<const int64_t> sizes) {
  const auto fits = [&](const Instance& instance) { return std::ranges::equal(instance.sized->sizes, sizes); };
  if (Instance* const found = known.find(fits)) return found;
  const std::vector<backend::DeviceSet> there = weight_places();
  Result<std::unique_ptr<Instance>> made = make_instance([&](const graph::PlanOptions& chosen) {
    return SizedProgram::resized(model->program(), sizes, chosen, *known.entries()[0]->sized, there);
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

}  // namespace hetero
