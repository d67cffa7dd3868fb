#include "graph/serve/executor_impl.h"

#include "backend/memory/allocator.h"
#include "backend/registry/registry.h"

namespace hetero {

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

// ---- Init ---------------------------------------------------------------------------------------

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

// ---- Run ----------------------------------------------------------------------------------------

Status GraphExecutor::Impl::check_inputs(size_t slot) const {
  for (const ProgramValue& input : program().inputs) {
    if (home_of[input.buffer] == kNone || slots[slot]->homes[home_of[input.buffer]].set) continue;
    return usage("input '" + input.name + "' of slot " + std::to_string(slot) + " was not set");
  }
  return Status();
}

// New numbers for random operators, into the attributes of this executor's graph and the groups'
// numbers.
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

// ---- the rest -----------------------------------------------------------------------------------

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
