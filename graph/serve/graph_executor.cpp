#include "graph/serve/graph_executor.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "backend/registry.h"
#include "graph/serve/static_plan.h"

namespace hetero {

using backend::Block;
using backend::Device;
using backend::DeviceIndex;
using backend::kAccelerator;
using backend::kCpu;
using backend::kMaxDevices;
using backend::QueueKind;
using graph::BufferId;
using graph::Home;
using graph::Place;
using graph::ProgramValue;
using graph::Window;

namespace {

constexpr uint64_t kAlignment = 64;

uint64_t aligned(uint64_t bytes) { return (std::max<uint64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment; }

Status usage(std::string message) { return Status(ErrorClass::kUsage, std::move(message)); }

// One block from which several pieces are handed out, in the order in which they were asked for.
class Pool {
 public:
  uint64_t add(uint64_t bytes) {
    const uint64_t offset = bytes_;
    bytes_ += aligned(bytes);
    return offset;
  }
  Status take(Device& device) {
    if (bytes_ == 0) return Status();
    Result<Block> block = device.allocate(bytes_);
    if (!block.ok()) return block.status();
    block_ = std::move(block.value());
    return Status();
  }
  std::byte* at(uint64_t offset) const { return static_cast<std::byte*>(block_.data()) + offset; }
  uint64_t bytes() const { return bytes_; }

 private:
  uint64_t bytes_ = 0;
  Block block_;
};

}  // namespace

std::array<Device*, kMaxDevices> process_devices() { return {&backend::cpu_device(), backend::accelerator()}; }

graph::PlanOptions static_plan_options(const std::array<Device*, kMaxDevices>& devices) {
  graph::PlanOptions options;
  options.fusion = true;
  options.fixed_memory = true;
  options.cpu = devices[kCpu]->capabilities();
  if (Device* const accelerator = devices[kAccelerator]; accelerator != nullptr) {
    options.has_accelerator = true;
    options.accelerator = accelerator->capabilities();
    options.accelerator_host_accessible = options.accelerator.host_accessible;
    options.accelerator_device = accelerator;
    options.accelerator_bytes = static_cast<uint64_t>(accelerator->memory_stats().limit_bytes);
  }
  return options;
}

Result<size_t> Which::find(const std::vector<ProgramValue>& values, const char* kind) const {
  if (index_ < values.size()) return index_;
  std::string names;
  for (size_t i = 0; i < values.size(); ++i) {
    if (index_ == SIZE_MAX && values[i].name == name_) return i;
    names += (i == 0 ? "" : ", ") + values[i].name;
  }
  const std::string asked =
      index_ == SIZE_MAX ? "called '" + std::string(name_) + "'" : "number " + std::to_string(index_);
  return usage(std::string("there is no ") + kind + " " + asked + "; the program has " +
               (values.empty() ? std::string("none") : names));
}

// What belongs to one input or output of one slot.
struct GraphExecutor::Impl {
  enum class State : uint8_t { kIdle, kRunning };

  // A buffer of a slot, on the devices where it has memory.
  struct SlotBuffer {
    Place own{};                   // what Init gave it
    Place place{};                 // what the program uses now
    std::byte* staging = nullptr;  // host memory through which it goes to and from a device; null where there is none
    std::shared_ptr<const void> owner{};  // of memory that the caller lends
    bool set = false;                     // an input: it has been set
  };

  struct OutputCopy {
    TensorView to{};
    bool copies = false;  // begun and not waited for
  };

  struct Slot {
    std::vector<SlotBuffer> homes;  // per slot buffer
    std::atomic<State> state{State::kIdle};
    Status status;  // of the last run
    std::unique_ptr<backend::Event> uploaded;
    std::unique_ptr<backend::Event> brought;
    bool uploads = false;  // `uploaded` was recorded
    std::vector<OutputCopy> copies;
  };

  // A run that was given to the core group.
  struct Request {
    Impl* impl;
    size_t slot;
  };

  std::shared_ptr<Model> model;
  Options options;
  graph::PlanOptions plan_options;
  graph::StaticPlan plan;
  std::vector<uint32_t> home_of;        // per buffer: which of a slot's homes; kNone for others
  std::vector<BufferId> slot_buffers;   // the reverse
  std::array<Pool, kMaxDevices> pools;  // slots and states
  std::vector<Place> places;            // per buffer: of constants
  std::array<Block, kMaxDevices> arenas;
  std::vector<std::unique_ptr<Slot>> slots;
  std::vector<Request> requests;  // per slot
  std::unique_ptr<graph::BoundProgram> bound;
  std::atomic<bool> busy{false};
  std::vector<uint8_t> drawing;  // per node: it draws
  uint64_t draws = 0;
  std::vector<std::string> input_words;  // "input 'x'", for messages
  std::vector<std::string> output_words;

  static constexpr uint32_t kNone = UINT32_MAX;

  const graph::SavedProgram& program() const { return model->program(); }
  Device& device(DeviceIndex d) const { return *options.devices[d]; }
  const Window& window(const ProgramValue& value) const { return program().windows[value.window]; }

  Status init();
  void choose_homes();
  void find_drawing();
  bool has_home(BufferId buffer, DeviceIndex device) const;
  Status take_memory();
  Status place_constants();
  Status start_states(BufferId buffer, Place place);

  Status check_slot(size_t slot) const;
  Status check_idle(size_t slot) const;
  SlotBuffer& home(size_t slot, const ProgramValue& value) { return slots[slot]->homes[home_of[value.buffer]]; }
  Result<size_t> find_input(Which which, const TensorView& tensor, size_t slot) const;
  Result<size_t> find_output(Which which, const TensorView& tensor, size_t slot) const;
  const char* why_not_lent(const ProgramValue& value, const TensorView& tensor, uint8_t devices) const;
  Status take_back(size_t slot, const ProgramValue& value);
  Status upload(size_t slot, BufferId buffer, SlotBuffer& home);
  Status lend(size_t slot, const ProgramValue& value, const TensorView& tensor, std::shared_ptr<const void> owner);
  uint8_t input_devices(const ProgramValue& value) const { return plan.graph.buffers[value.buffer].valid_on; }
  uint8_t output_devices(const ProgramValue& value) const {
    return static_cast<uint8_t>(1u << output_device(value.buffer));
  }
  DeviceIndex output_device(BufferId buffer) const;
  const Place& place(size_t slot, BufferId buffer) const {
    return home_of[buffer] == kNone ? places[buffer] : slots[slot]->homes[home_of[buffer]].place;
  }

  Status check_inputs(size_t slot) const;
  void run(size_t slot, const std::atomic<int32_t>* stop);
  Status draw_states();
  Status wait(size_t slot);
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
  for (const ProgramValue& input : program().inputs) input_words.push_back("input '" + input.name + "'");
  for (const ProgramValue& output : program().outputs) output_words.push_back("output '" + output.name + "'");
  Status status = graph::plan_program(program(), plan_options, options.use_saved_plan, plan);
  if (!status.ok()) return status;
  find_drawing();
  return take_memory();
}

void GraphExecutor::Impl::find_drawing() {
  drawing.assign(plan.graph.nodes.size(), 0);
  for (size_t n = 0; n < drawing.size(); ++n) {
    const graph::Node& node = plan.graph.nodes[n];
    drawing[n] = std::ranges::any_of(program().draws, [&](uint64_t draw) {
      return node.attribute_offset <= draw && draw < uint64_t{node.attribute_offset} + node.attribute_bytes;
    });
  }
}

bool GraphExecutor::Impl::has_home(BufferId buffer, DeviceIndex device) const {
  const Home home = plan.plan.residence(buffer, device).home;
  const bool bound = home == Home::kBound || home == Home::kBrought;
  return bound || (plan.graph.buffers[buffer].valid_on >> device & 1) != 0;
}

// Slots have what goes in and out, and is no weight.
void GraphExecutor::Impl::choose_homes() {
  home_of.assign(plan.graph.buffers.size(), kNone);
  const auto add = [this](const ProgramValue& value) {
    if (home_of[value.buffer] != kNone || model->is_constant(value.buffer)) return;
    home_of[value.buffer] = static_cast<uint32_t>(slot_buffers.size());
    slot_buffers.push_back(value.buffer);
  };
  for (const ProgramValue& input : program().inputs) add(input);
  for (const ProgramValue& output : program().outputs) add(output);
}

Status GraphExecutor::Impl::take_memory() {
  choose_homes();
  struct Piece {
    size_t slot;
    size_t home;
    DeviceIndex device;
    uint64_t offset;
    bool staging;
  };
  std::vector<Piece> pieces;
  for (size_t s = 0; s < options.slots; ++s) {
    for (size_t h = 0; h < slot_buffers.size(); ++h) {
      const BufferId b = slot_buffers[h];
      const uint64_t bytes = plan.graph.buffers[b].bytes;
      bool on_device = false;
      bool on_host = false;
      for (DeviceIndex d = 0; d < kMaxDevices; ++d) {
        if (!has_home(b, d)) continue;
        (d == kCpu ? on_host : on_device) = true;
        pieces.push_back({s, h, d, pools[d].add(bytes), false});
      }
      // A buffer that no kernel touches lies on the host.
      if (!on_host) pieces.push_back({s, h, kCpu, pools[kCpu].add(bytes), on_device});
    }
  }
  std::vector<std::pair<BufferId, uint64_t>> states[kMaxDevices];
  for (BufferId b = 0; b < plan.graph.buffers.size(); ++b) {
    if (!model->is_constant(b) || !model->is_written(b)) continue;
    for (DeviceIndex d = 0; d < kMaxDevices; ++d) {
      if (has_home(b, d)) states[d].emplace_back(b, pools[d].add(plan.graph.buffers[b].bytes));
    }
  }
  std::array<std::byte*, kMaxDevices> bases{};
  for (DeviceIndex d = 0; d < kMaxDevices; ++d) {
    if (options.devices[d] == nullptr) continue;
    if (Status status = pools[d].take(device(d)); !status.ok()) return status;
    if (plan.plan.arena_bytes[d] == 0) continue;
    Result<Block> arena = device(d).allocate(plan.plan.arena_bytes[d]);
    if (!arena.ok()) return arena.status();
    arenas[d] = std::move(arena.value());
    bases[d] = static_cast<std::byte*>(arenas[d].data());
  }
  for (size_t s = 0; s < options.slots; ++s) {
    Slot& slot = *slots.emplace_back(std::make_unique<Slot>());
    slot.homes.resize(slot_buffers.size());
    slot.copies.resize(program().outputs.size());
    requests.push_back({this, s});
  }
  for (const Piece& piece : pieces) {
    SlotBuffer& home = slots[piece.slot]->homes[piece.home];
    std::byte* const at = pools[piece.device].at(piece.offset);
    (piece.staging ? home.staging : reinterpret_cast<std::byte*&>(home.own[piece.device])) = at;
  }
  places.assign(plan.graph.buffers.size(), Place{});
  for (DeviceIndex d = 0; d < kMaxDevices; ++d) {
    for (const auto& [b, offset] : states[d]) places[b][d] = pools[d].at(offset);
  }
  if (Status status = place_constants(); !status.ok()) return status;
  std::vector<std::vector<Place>> of_slots(options.slots, places);
  for (size_t s = 0; s < options.slots; ++s) {
    for (size_t h = 0; h < slot_buffers.size(); ++h) {
      SlotBuffer& home = slots[s]->homes[h];
      home.place = home.own;
      of_slots[s][slot_buffers[h]] = home.place;
    }
  }
  const std::vector<graph::Binding*> bindings = model->bindings();
  bound = std::make_unique<graph::BoundProgram>(plan.graph, plan.plan, options.devices, of_slots, bases, bindings,
                                                graph::SegmentOptions{.record = options.segments, .draws = drawing});
  if (bound->on_host_only()) return Status();
  for (auto& slot : slots) {
    slot->uploaded = device(kAccelerator).create_event();
    slot->brought = device(kAccelerator).create_event();
  }
  return Status();
}

Status GraphExecutor::Impl::place_constants() {
  for (BufferId b = 0; b < plan.graph.buffers.size(); ++b) {
    if (!model->is_constant(b)) continue;
    if (model->is_written(b)) {
      if (Status status = start_states(b, places[b]); !status.ok()) return status;
      continue;
    }
    // Only read from here on.
    places[b][kCpu] = const_cast<void*>(model->host_bytes(b));
    if (!has_home(b, kAccelerator)) continue;
    Result<void*> bytes = model->device_bytes(b, device(kAccelerator));
    if (!bytes.ok()) return bytes.status();
    places[b][kAccelerator] = bytes.value();
  }
  return Status();
}

Status GraphExecutor::Impl::start_states(BufferId buffer, Place place) {
  const size_t bytes = plan.graph.buffers[buffer].bytes;
  if (bytes == 0) return Status();
  if (place[kCpu] != nullptr) std::memcpy(place[kCpu], model->host_bytes(buffer), bytes);
  if (place[kAccelerator] == nullptr) return Status();
  backend::Queue& queue = device(kAccelerator).queue(QueueKind::kHostToDevice);
  if (Status status = queue.copy(place[kAccelerator], model->host_bytes(buffer), bytes); !status.ok()) return status;
  return queue.synchronize();
}

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

// From staging to the device, after what the device still does with the slot.
Status GraphExecutor::Impl::upload(size_t slot, BufferId buffer, SlotBuffer& home) {
  if (home.place[kAccelerator] == nullptr) return Status();
  Slot& at = *slots[slot];
  backend::Queue& queue = device(kAccelerator).queue(QueueKind::kHostToDevice);
  if (Status status = bound->wait_on(slot, queue); !status.ok()) return status;
  const void* const from = home.staging != nullptr ? home.staging : home.place[kCpu];
  Status status = queue.copy(home.place[kAccelerator], from, plan.graph.buffers[buffer].bytes);
  if (status.ok()) status = queue.record(*at.uploaded);
  if (!status.ok()) return status;
  at.uploads = true;
  bound->gate(slot, graph::BoundProgram::Gate::kInputs, at.uploaded.get());
  return Status();
}

Result<size_t> GraphExecutor::Impl::find_input(Which which, const TensorView& tensor, size_t slot) const {
  if (Status status = check_idle(slot); !status.ok()) return status;
  const Result<size_t> index = which.find(program().inputs, "input");
  if (!index.ok()) return index.status();
  Status status = graph::check_shape(window(program().inputs[index.value()]), tensor, input_words[index.value()]);
  return status.ok() ? index : Result<size_t>(status);
}

Result<size_t> GraphExecutor::Impl::find_output(Which which, const TensorView& tensor, size_t slot) const {
  if (Status status = check_idle(slot); !status.ok()) return status;
  const Result<size_t> index = which.find(program().outputs, "output");
  if (!index.ok()) return index.status();
  Status status = graph::check_shape(window(program().outputs[index.value()]), tensor, output_words[index.value()]);
  return status.ok() ? index : Result<size_t>(status);
}

// The slot uses the memory that Init gave it.
Status GraphExecutor::Impl::take_back(size_t slot, const ProgramValue& value) {
  if (home_of[value.buffer] == kNone) return Status();
  SlotBuffer& at = home(slot, value);
  if (at.owner == nullptr && at.place == at.own) return Status();
  // What the device still does is done with the memory that was lent.
  if (Status status = bound->wait(slot); !status.ok()) return status;
  for (DeviceIndex d = 0; d < kMaxDevices; ++d) bound->rebind(slot, value.buffer, d, at.own[d]);
  at.place = at.own;
  at.owner.reset();
  return Status();
}

Status GraphExecutor::SetInput(Which input, const TensorView& tensor, size_t slot) {
  Impl& impl = *impl_;
  const Result<size_t> index = impl.find_input(input, tensor, slot);
  if (!index.ok()) return index.status();
  const ProgramValue& value = impl.program().inputs[index.value()];
  if (tensor.device != kCpu) {
    return usage(impl.input_words[index.value()] +
                 " is copied from the host's memory; use SetInputZeroCopy for memory of the accelerator");
  }
  Impl::SlotBuffer& home = impl.home(slot, value);
  Impl::Slot& at = *impl.slots[slot];
  // The last upload may still read these bytes; and where a run on the host still goes on, the slot would not be idle.
  if (home.place[kAccelerator] != nullptr && at.uploads) {
    if (Status status = at.uploaded->synchronize(); !status.ok()) return status;
  }
  if (Status status = impl.take_back(slot, value); !status.ok()) return status;
  if (home.place[kCpu] != nullptr && home.place[kAccelerator] != nullptr) {
    // Kernels of the CPU may still read it.
    if (Status status = impl.bound->wait(slot); !status.ok()) return status;
  }
  graph::copy_in(tensor, impl.window(value),
                 home.staging != nullptr ? home.staging : static_cast<std::byte*>(home.place[kCpu]));
  home.set = true;
  return impl.upload(slot, value.buffer, home);
}

// Memory can be lent that stands for the whole buffer, on the one device where the program has it; else the end of a sentence says why not.
const char* GraphExecutor::Impl::why_not_lent(const ProgramValue& value, const TensorView& tensor,
                                              uint8_t devices) const {
  const Window& at = window(value);
  const auto same = [&](const ProgramValue& other) { return other.buffer == value.buffer; };
  const auto uses = std::ranges::count_if(program().inputs, same) + std::ranges::count_if(program().outputs, same);
  const auto bytes = static_cast<int64_t>(plan.graph.buffers[value.buffer].bytes);
  if (devices == (1u << kCpu | 1u << kAccelerator)) {
    return " is used on both devices, so it cannot be lent; copy it";
  }
  if (model->is_constant(value.buffer) || uses != 1 || !at.dense || at.first_byte != 0 || at.last_byte != bytes) {
    return " shares its memory with something else of the program, so it cannot be lent; copy it";
  }
  const DeviceIndex on = devices == 1u << kAccelerator ? kAccelerator : kCpu;
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
  if (Status status = bound->wait(slot); !status.ok()) return status;
  SlotBuffer& at = home(slot, value);
  bound->rebind(slot, value.buffer, tensor.device, tensor.data);
  at.place[tensor.device] = tensor.data;
  at.owner = std::move(owner);
  at.set = true;
  return Status();
}

Status GraphExecutor::SetInputZeroCopy(Which input, const TensorView& tensor, size_t slot,
                                       std::shared_ptr<const void> owner) {
  Impl& impl = *impl_;
  const Result<size_t> index = impl.find_input(input, tensor, slot);
  if (!index.ok()) return index.status();
  const ProgramValue& value = impl.program().inputs[index.value()];
  if (const char* why = impl.why_not_lent(value, tensor, impl.input_devices(value))) {
    return usage(impl.input_words[index.value()] + why);
  }
  return impl.lend(slot, value, tensor, std::move(owner));
}

Status GraphExecutor::SetOutputZeroCopy(Which output, const TensorView& tensor, size_t slot,
                                        std::shared_ptr<const void> owner) {
  Impl& impl = *impl_;
  const Result<size_t> index = impl.find_output(output, tensor, slot);
  if (!index.ok()) return index.status();
  const ProgramValue& value = impl.program().outputs[index.value()];
  if (const char* why = impl.why_not_lent(value, tensor, impl.output_devices(value))) {
    return usage(impl.output_words[index.value()] + why);
  }
  return impl.lend(slot, value, tensor, std::move(owner));
}

Status GraphExecutor::OfferInput(Which input, const TensorView& tensor, size_t slot,
                                 std::shared_ptr<const void> owner) {
  Impl& impl = *impl_;
  const Result<size_t> index = impl.find_input(input, tensor, slot);
  if (!index.ok()) return index.status();
  const ProgramValue& value = impl.program().inputs[index.value()];
  if (impl.why_not_lent(value, tensor, impl.input_devices(value)) != nullptr) {
    return SetInput(index.value(), tensor, slot);
  }
  return impl.lend(slot, value, tensor, std::move(owner));
}

Result<bool> GraphExecutor::OfferOutput(Which output, const TensorView& tensor, size_t slot,
                                        std::shared_ptr<const void> owner) {
  Impl& impl = *impl_;
  const Result<size_t> index = impl.find_output(output, tensor, slot);
  if (!index.ok()) return index.status();
  const ProgramValue& value = impl.program().outputs[index.value()];
  if (impl.why_not_lent(value, tensor, impl.output_devices(value)) != nullptr) {
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
  for (size_t s = 0; s < slots.size(); ++s) {
    if (Status status = bound->wait(s); !status.ok()) return status;
  }
  for (const uint64_t offset : program().draws) {
    const auto [seed, counter] = options.draw ? options.draw() : std::pair<uint64_t, uint64_t>{0, draws++};
    std::memcpy(plan.graph.attributes.data() + offset, &seed, sizeof(seed));
    std::memcpy(plan.graph.attributes.data() + offset + sizeof(seed), &counter, sizeof(counter));
  }
  if (!graph::renew_numbers(plan.graph, drawing, plan.plan)) {
    return Status(ErrorClass::kInternal, "a group's numbers could not be made anew");
  }
  return Status();
}

// REQUIRES: the slot's state says that it runs.
void GraphExecutor::Impl::run(size_t slot, const std::atomic<int32_t>* stop) {
  Slot& at = *slots[slot];
  if (busy.exchange(true, std::memory_order_acquire)) {
    at.status = usage("the executor was running another slot; use RunAsync for all, or another executor");
  } else {
    at.status = draw_states();
    if (at.status.ok()) at.status = bound->run(slot, stop);
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
                                       &impl.requests[slot]});
  if (!status.ok()) {
    impl.slots[slot]->state.store(Impl::State::kIdle, std::memory_order_relaxed);
    return status;
  }
  return Pending(this, slot, SIZE_MAX);
}

// ---- GetOutput ------------------------------------------------------------------------------------------------------

// Where a result is after a run; on the host, if it is there too.
DeviceIndex GraphExecutor::Impl::output_device(BufferId buffer) const {
  const uint8_t after = plan.plan.valid_after[buffer];
  const uint8_t valid = after != 0 ? after : plan.graph.buffers[buffer].valid_on;
  return valid == 1u << kAccelerator ? kAccelerator : kCpu;
}

Status GraphExecutor::Impl::wait(size_t slot) {
  if (Status status = check_slot(slot); !status.ok()) return status;
  Slot& at = *slots[slot];
  at.state.wait(State::kRunning, std::memory_order_acquire);
  Status status = bound->wait(slot);
  if (at.status.ok()) at.status = std::move(status);
  return at.status;
}

Status GraphExecutor::Impl::begin_copy(size_t slot, size_t output) {
  Slot& at = *slots[slot];
  at.copies[output].copies = true;
  const BufferId buffer = program().outputs[output].buffer;
  if (output_device(buffer) == kCpu) return Status();
  const SlotBuffer* const home = home_of[buffer] == kNone ? nullptr : &at.homes[home_of[buffer]];
  if (home == nullptr) return usage("output '" + program().outputs[output].name + "' is a state on the accelerator");
  backend::Queue& queue = device(kAccelerator).queue(QueueKind::kDeviceToHost);
  if (Status status = bound->wait_on(slot, queue); !status.ok()) return status;
  void* const to = home->staging != nullptr ? home->staging : home->place[kCpu];
  Status status = queue.copy(to, home->place[kAccelerator], plan.graph.buffers[buffer].bytes);
  if (status.ok()) status = queue.record(*at.brought);
  if (status.ok()) bound->gate(slot, graph::BoundProgram::Gate::kOutputs, at.brought.get());
  return status;
}

Status GraphExecutor::Impl::end_copy(size_t slot, size_t output) {
  Slot& at = *slots[slot];
  OutputCopy& copy = at.copies[output];
  if (!copy.copies) return usage("output '" + program().outputs[output].name + "' has been waited for already");
  copy.copies = false;
  const ProgramValue& value = program().outputs[output];
  const void* bytes = place(slot, value.buffer)[kCpu];
  if (output_device(value.buffer) != kCpu) {
    if (Status status = at.brought->synchronize(); !status.ok()) return status;
    const SlotBuffer& home = at.homes[home_of[value.buffer]];
    if (home.staging != nullptr) bytes = home.staging;
  }
  if (Status status = wait(slot); !status.ok()) return status;
  graph::copy_out(window(value), bytes, copy.to);
  return Status();
}

Result<Pending> GraphExecutor::GetOutputAsync(Which output, const TensorView& to, size_t slot) {
  Impl& impl = *impl_;
  if (Status status = impl.check_slot(slot); !status.ok()) return status;
  const Result<size_t> index = output.find(impl.program().outputs, "output");
  if (!index.ok()) return index.status();
  const ProgramValue& value = impl.program().outputs[index.value()];
  const std::string& what = impl.output_words[index.value()];
  if (Status status = graph::check_shape(impl.window(value), to, what); !status.ok()) return status;
  if (to.device != kCpu)
    return usage(what + " is copied to the host's memory; use SetOutputZeroCopy for memory of the accelerator");
  Impl::Slot& at = *impl.slots[slot];
  if (at.copies[index.value()].copies) return usage(what + " is being copied already; wait for that");
  // An accelerator's part can be waited for by its queue, what the host submits cannot.
  at.state.wait(Impl::State::kRunning, std::memory_order_acquire);
  if (!at.status.ok()) return at.status;
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
  const Result<size_t> index = output.find(impl.program().outputs, "output");
  if (!index.ok()) return index.status();
  const ProgramValue& value = impl.program().outputs[index.value()];
  if (impl.output_device(value.buffer) != kCpu) {
    return usage("output '" + value.name + "' is in the accelerator's memory; use GetOutput, which copies it");
  }
  const Window& window = impl.window(value);
  auto* const bytes = static_cast<std::byte*>(impl.place(slot, value.buffer)[kCpu]);
  return TensorView{.data = bytes + window.offset * graph::dtype_bytes(window.dtype),
                    .dtype = window.dtype,
                    .sizes = {window.sizes().begin(), window.sizes().end()},
                    .strides = {window.strides().begin(), window.strides().end()}};
}

bool Pending::done() const {
  const GraphExecutor::Impl& impl = *executor_->impl_;
  const GraphExecutor::Impl::Slot& slot = *impl.slots[slot_];
  if (slot.state.load(std::memory_order_acquire) == GraphExecutor::Impl::State::kRunning) return false;
  if (!impl.bound->is_done(slot_)) return false;
  return output_ == SIZE_MAX || slot.brought == nullptr || slot.brought->query();
}

Status Pending::wait() {
  GraphExecutor::Impl& impl = *executor_->impl_;
  return output_ == SIZE_MAX ? impl.wait(slot_) : impl.end_copy(slot_, output_);
}

// ---- the rest -------------------------------------------------------------------------------------------------------

GraphExecutor::GraphExecutor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

GraphExecutor::~GraphExecutor() {
  if (impl_->options.group != nullptr) (void)impl_->options.group->wait_idle();
  for (size_t s = 0; s < impl_->slots.size(); ++s) {
    (void)impl_->bound->wait(s);
    Impl::Slot& slot = *impl_->slots[s];
    if (slot.uploaded != nullptr) (void)slot.uploaded->synchronize();
    if (slot.brought != nullptr) (void)slot.brought->synchronize();
  }
}

Status GraphExecutor::Wait(size_t slot) { return impl_->wait(slot); }
const std::vector<ProgramValue>& GraphExecutor::inputs() const { return impl_->program().inputs; }
const std::vector<ProgramValue>& GraphExecutor::outputs() const { return impl_->program().outputs; }
size_t GraphExecutor::slots() const { return impl_->slots.size(); }
const graph::SavedProgram& GraphExecutor::program() const { return impl_->program(); }
const graph::StaticPlan& GraphExecutor::plan() const { return impl_->plan; }
graph::BoundCounts GraphExecutor::counts() const { return impl_->bound->counts(); }
uint64_t GraphExecutor::bytes(DeviceIndex device) const {
  return impl_->pools[device].bytes() + impl_->plan.plan.arena_bytes[device];
}

}  // namespace hetero
