#include "graph/serve/executor_impl.h"

#include <cstring>

namespace hetero {

// ---- SetInput -----------------------------------------------------------------------------------

Status GraphExecutor::Impl::check_slot(size_t slot) const {
  if (slot < slots.size()) return Status();
  return usage("there is no slot " + std::to_string(slot) + "; the executor has " + std::to_string(slots.size()));
}

Status GraphExecutor::Impl::check_idle(size_t slot) const {
  if (Status status = check_slot(slot); !status.ok()) return status;
  if (slots[slot]->state.load(std::memory_order_acquire) == State::kIdle) return Status();
  return usage("slot " + std::to_string(slot) + " is running; wait for it, or use another slot");
}

// The slot's next run waits for what the queue has done so far. `last` is the event that it waits
// for now.
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
  // The last upload may still read these bytes; and where a run on the host still goes on, the slot
  // would not be idle.
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

// Memory can be lent that stands for the whole buffer, on the one device where the program has it;
// else the end of a sentence says why not.
const char* GraphExecutor::Impl::why_not_lent(Side side, const ProgramValue& value, const TensorView& tensor,
                                              bool updates) const {
  const backend::DeviceSet devices =
      side == Side::kInput ? plan().graph.buffers[value.buffer].valid_on : backend::only(output_device(value.buffer));
  const Window& at = window(value);
  const auto same = [&](const ProgramValue& other) { return other.buffer == value.buffer; };
  const auto same_look = [&](const ProgramValue& other) {
    return same(other) && other.window == value.window && other.bits == value.bits;
  };
  const auto inputs = std::ranges::count_if(program().inputs, same);
  const auto outputs = std::ranges::count_if(program().outputs, same);
  const bool is_update =
      updates && side == Side::kInput && outputs == std::ranges::count_if(program().outputs, same_look);
  const auto uses = inputs + (is_update ? 0 : outputs);
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
                                          std::shared_ptr<const void> owner, bool updates) {
  const Result<size_t> index = find(side, which, tensor, slot);
  if (!index.ok()) return index.status();
  const ProgramValue& value = ports(side)[index.value()];
  if (const char* why = why_not_lent(side, value, tensor, updates))
    return usage(ports(side).words(index.value()) + why);
  return lend(slot, value, tensor, std::move(owner));
}

Status GraphExecutor::SetInputZeroCopy(Which input, const TensorView& tensor, size_t slot,
                                       std::shared_ptr<const void> owner) {
  return impl_->set_zero_copy(Impl::Side::kInput, input, tensor, slot, std::move(owner));
}

Status GraphExecutor::SetStateZeroCopy(Which input, const TensorView& tensor, size_t slot,
                                       std::shared_ptr<const void> owner) {
  return impl_->set_zero_copy(Impl::Side::kInput, input, tensor, slot, std::move(owner), true);
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

// ---- GetOutput ----------------------------------------------------------------------------------

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
  // The queue of copies is everybody's: what waits there for this run would hold up the results of
  // others. With several slots it is worth it.
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

}  // namespace hetero
