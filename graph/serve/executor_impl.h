// What a GraphExecutor holds, and the steps of its calls. Its sources by what they are about:
//
//   executor_impl.cpp     set-up, runs
//   executor_memory.cpp   programs for sets of sizes, and the memory that they share
//   executor_tensors.cpp  inputs and outputs: copied, lent, brought out
//
// Thread safety: that of GraphExecutor.

#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "graph/plan/sized_plans.h"
#include "graph/serve/graph_executor.h"
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

inline constexpr uint64_t kAnyBytes = backend::MemoryStats::kAnyBytes;

inline Status usage(std::string message) { return Status(ErrorClass::kUsage, std::move(message)); }

struct GraphExecutor::Impl {
  // A block of a device that grows where more is asked for. What was in it is lost then.
  struct Memory {
    Block block;
    uint64_t bytes = 0;

    std::byte* data() const { return static_cast<std::byte*>(block.data()); }
    // Errors: kResource; the memory is gone then. `moved` is set where it lies elsewhere
    // afterwards.
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

  enum class State : uint8_t { kIdle, kRunning };
  enum class Side : uint8_t { kInput, kOutput };

  // A buffer of a slot, on the devices where it has memory.
  struct SlotBuffer {
    Place own{};    // the executor's own memory
    Place place{};  // what the program uses now
    // Host memory through which it goes to and from a device; null where there is none.
    void* staging = nullptr;
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
    bool copies = false;  // begun and not waited for
    // Its bytes, where it is a constant or a state that lies on the accelerator.
    std::vector<std::byte> state{};
  };

  // A run that was given to the core group.
  struct Request {
    Impl* impl;
    size_t slot;
  };

  struct Slot {
    std::vector<SlotBuffer> homes;  // per slot buffer
    std::atomic<State> state{State::kIdle};
    Status status;  // of the last run
    // With the present sizes; it has results, then, unless `status` says otherwise.
    bool ran = false;
    // Per accelerator, from the first on. A program waits for one of each, so what another
    // accelerator still does is waited for first.
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
  // Plans are made for less and less memory of the accelerator so often, then for next to none: 0
  // would stand for any.
  static constexpr int kMostTries = 6;
  static constexpr uint64_t kLeastBytes = 1;

  const SizedProgram& sized() const { return *now->sized; }
  const graph::SavedProgram& program() const { return sized().program; }
  const graph::StaticPlan& plan() const { return sized().plan; }
  graph::BoundProgram& bound() const { return *now->bound; }
  Device& device(DeviceIndex d) const { return *options.devices[d]; }
  // The accelerator whose memory is shared out; other accelerators have what programs ask for by
  // name.
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
  using Make = std::function<Result<std::unique_ptr<SizedProgram>>(const graph::PlanOptions&)>;
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
  std::vector<backend::DeviceSet> weight_places() const;
  Result<Instance*> find_instance(std::span<const int64_t> sizes);
  Status set_sizes(std::span<const int64_t> sizes);

  Status check_slot(size_t slot) const;
  Status check_idle(size_t slot) const;
  SlotBuffer& home(size_t slot, const ProgramValue& value) { return slots[slot]->homes[home_of[value.buffer]]; }
  const Ports& ports(Side side) const { return side == Side::kInput ? sized().inputs : sized().outputs; }
  Result<size_t> find(Side side, Which which, const TensorView& tensor, size_t slot) const;
  // `updates`: it may be an input that the program writes, and gives as an output too.
  const char* why_not_lent(Side side, const ProgramValue& value, const TensorView& tensor, bool updates = false) const;
  Status take_back(size_t slot, const ProgramValue& value);
  Status note(size_t slot, graph::BoundProgram::Gate gate, backend::Queue& queue, backend::Event& event,
              backend::Event*& last);
  Status upload(size_t slot, BufferId buffer, SlotBuffer& home);
  Status lend(size_t slot, const ProgramValue& value, const TensorView& tensor, std::shared_ptr<const void> owner);
  Status set_zero_copy(Side side, Which which, const TensorView& tensor, size_t slot, std::shared_ptr<const void> owner,
                       bool updates = false);
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

}  // namespace hetero
