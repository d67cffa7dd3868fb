// Fused kernels as CUDA source: the text of a kernel's functions, and the arguments of their
// launches.
//
//   CudaVariant variant = choose_variant(kernel, launch.space, aligned, multiprocessors);
//   CudaSource source = write_source(kernel, variant);  // compile source.text, e.g. with NVRTC
//   CudaLaunch plan = plan_launch(source, space);       // blocks, parts of rows, memory for states
//   fill_arguments(source, space, plan, operands, numbers, states, words);
//   for (entry of source.entries)
//     launch entry.name with plan.blocks(entry.kind) blocks of kCudaThreads threads and the words
//
// The text depends on the kernel's structure and on the variant: which operands are read in
// vectors, and over how many dimensions each is walked. Sizes, strides, addresses and numbers are
// arguments, so one text serves many shapes.
//
//   kernels without row values   a thread takes `vector` entries at a time, with a stride of the
//                                whole grid
//   rows                         a group of threads (a warp or a block) takes a row. Each reduction
//                                ends a pass over the row; later passes compute the entries that
//                                they need again
//   few long rows                several blocks share a row. Each pass is a function of its own. It
//                                leaves the states of the parts in memory and merges those of
//                                earlier passes, in order: no atomics
//
// Kernels with totals are given as their stages (backend/fused/stages.h), none of which has
// totals.
//
// formulas.h and threads.h are the head of the text. Neither this file nor the text needs a CUDA
// header.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/cpu/fused/launch.h"
#include "backend/cpu/fused/space.h"
#include "backend/cuda/fused/variant.h"
#include "backend/fused/kernel.h"
#include "backend/fused/stages.h"

namespace hetero::backend {

inline constexpr int kCudaStateBytes = 32;   // of a reducer's state, at most
inline constexpr int kMaxCudaOperands = 64;  // what fits into a kernel's arguments
inline constexpr int kMaxCudaNumbers = 256;

// A kernel with one source: a whole kernel, or a stage of one with totals.
struct CudaStage {
  FusedKernel kernel;
  RowSpace space;
  std::vector<StageOperand> operands;  // what it is called with
};
struct CudaStages {
  std::vector<CudaStage> stages;  // to run in this order; none where there is nothing to do
  int64_t temporary_bytes = 0;    // what they pass on
};
// REQUIRES: the launch was prepared for kernel and space; the kernel has no checks.
CudaStages cuda_stages(const FusedKernel& kernel, const FusedSpace& space, const FusedLaunch& launch);

// Why no source can be written for the kernel; null if one can.
const char* cuda_refusal(const FusedKernel& kernel);

// A word of the arguments.
struct CudaArgument {
  enum class Kind : uint8_t {
    kOperand,  // the address of its first entry
    kNumber,
    kRows,
    kRow,         // entries of a row, or of the whole space
    kParts,       // of a row
    kPartLength,  // entries
    kStates,      // address
    // Of dimension `dimension` of operand `index`'s view, and of all views of the same shape.
    kSize,
    kStride,  // bytes
  };
  Kind kind;
  CudaView view = CudaView::kEntries;
  uint16_t index = 0;
  uint8_t dimension = 0;
};

struct CudaEntry {
  enum class Kind : uint8_t {
    kWhole,  // all there is to do
    kPass,   // over parts of rows
    kRows,   // a thread for each row
  };
  Kind kind;
  std::string name;
};

struct CudaSource {
  std::string text;
  std::vector<CudaArgument> arguments;
  std::vector<CudaEntry> entries;  // to be launched in this order
  CudaVariant variant;
  int reductions = 0;  // whose states stand in memory between entries
};

// REQUIRES: cuda_refusal(kernel) is null; the variant was chosen for it.
CudaSource write_source(const FusedKernel& kernel, const CudaVariant& variant);

struct CudaLaunch {
  int64_t whole_blocks = 1;
  int64_t row_blocks = 1;
  int64_t parts = 1;
  int64_t part_length = 0;
  int64_t state_bytes = 0;  // of the memory for states

  int64_t blocks(CudaEntry::Kind kind) const { return kind == CudaEntry::Kind::kRows ? row_blocks : whole_blocks; }
};
CudaLaunch plan_launch(const CudaSource& source, const RowSpace& space, int multiprocessors);

// What of the arguments changes with the shape only is the same in all launches of a space;
// `operands` and `numbers` are those of the kernel. `words` has source.arguments.size() entries.
void fill_arguments(const CudaSource& source, const RowSpace& space, const CudaLaunch& launch, void* const* operands,
                    const Number* numbers, void* states, uint64_t* words);

}  // namespace hetero::backend
