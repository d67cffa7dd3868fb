// FusedLaunch: a fused kernel prepared for one space, and the function that runs it.
//
//   FusedLaunch launch;
//   if (Status status = prepare_fused(kernel, space, launch); !status.ok()) return status;
//   run_fused(launch, addresses.data(), numbers.data());
//
// Preparing checks that kernel and space are legal, collapses dimensions (space.h) and lays out the
// program (schedule.h, program.h). A kernel with totals or checks becomes several launches
// (backend/fused/stages.h). The launch keeps only the functions and reducers that kernel and space
// point to. Preparing again reuses its memory.
//
// Thread safety: a prepared launch is immutable; several threads may call run_fused at once.
// Scratch memory belongs to the threads. It grows to the largest launch's need and is kept.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "backend/base/status.h"
#include "backend/cpu/fused/program.h"
#include "backend/cpu/fused/space.h"
#include "backend/cpu/vector/limits.h"
#include "backend/fused/kernel.h"
#include "backend/fused/stages.h"

namespace hetero::backend {

struct FusedStage;

// What a device other than the CPU knows of a launch: its own code, say, found once.
struct DevicePart {
  virtual ~DevicePart() = default;
};

// Room for one beside a launch, filled while the launch is run. Copies of a launch begin without
// one.
class DeviceSlot {
 public:
  DeviceSlot() = default;
  DeviceSlot(const DeviceSlot&) {}
  DeviceSlot(DeviceSlot&& other) noexcept : part_(other.part_.exchange(nullptr)) {}
  DeviceSlot& operator=(DeviceSlot other) noexcept {
    delete part_.exchange(other.part_.exchange(nullptr));
    return *this;
  }
  ~DeviceSlot() { clear(); }

  DevicePart* get() const { return part_.load(std::memory_order_acquire); }
  // Takes the part, if there is none yet.
  void offer(std::unique_ptr<DevicePart>& part) const {
    DevicePart* none = nullptr;
    if (part_.compare_exchange_strong(none, part.get(), std::memory_order_acq_rel)) (void)part.release();
  }
  // REQUIRES: no run is under way.
  void clear() { delete part_.exchange(nullptr); }

 private:
  mutable std::atomic<DevicePart*> part_{nullptr};
};

// What a kernel does that only limits the entries of one operand: ReLU, or a clamp by numbers, in
// float32, also of a half type's entries.
struct LimitStep {
  bool is_there = false;
  EntryType type = EntryType::kFloat32;  // of the entries
  uint16_t from = 0;                     // operands
  uint16_t to = 0;
  Limits limits;  // where no number says another
  int low_number = -1;
  int high_number = -1;
};

struct FusedLaunch {
  RowSpace space;
  // Presumes that the operands of each pair have different addresses. Where two have the same,
  // `careful` runs, which copies what it reads before it writes.
  FusedProgram program;
  FusedProgram careful;
  std::vector<std::pair<uint16_t, uint16_t>> pairs;
  bool empty = true;  // nothing to run
  bool has_row_values = false;
  LimitStep limit;
  // Of a kernel with totals or checks, which then has no program of its own: they run one after the
  // other.
  std::vector<FusedStage> stages;
  int64_t temporary_bytes = 0;  // what stages pass on to later ones
  int64_t max_stage_operands = 0;
  DeviceSlot device_part;

  // Whether a part of it is machine code (compile.h).
  bool is_compiled() const;
};

// A stage, prepared.
struct FusedStage {
  FusedLaunch launch;
  std::vector<StageOperand> operands;
  // Temporaries of one byte; where one is 0 after this stage, no other runs.
  std::vector<int64_t> checks;
};

// Errors: kUsage for a kernel or space that breaks the contract of kernel.h; the launch then runs
// nothing.
Status prepare_fused(const FusedKernel& kernel, const FusedSpace& space, FusedLaunch& launch);

// REQUIRES: an address for each of the kernel's operands, a number for each of its numbers; neither
// is kept. An operand of an empty space may be null. False where a check of the kernel failed; then
// nothing was written.
bool run_fused(const FusedLaunch& launch, void* const* operands, const Number* numbers);

// Whether the launch may run in parts, on one thread each: parts begin and end at multiples of so
// many entries of the space, counted in the order of the linear index (space.h). 0: it may not.
int64_t part_entries(const FusedLaunch& launch);
// Runs entries [begin, end). REQUIRES: of run_fused; part_entries() divides both.
void run_fused_part(const FusedLaunch& launch, void* const* operands, const Number* numbers, int64_t begin,
                    int64_t end);

}  // namespace hetero::backend
