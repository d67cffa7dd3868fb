// Fused kernels as programs of the precompiled interpreter (interpreter.cu), which runs them until
// they are compiled.
//
//   // Nothing if the kernel is too large for the interpreter.
//   auto program = interpreter_program(kernel, variant, space, launch);
//   program->fill(operands, numbers, states, words);
//   for (const InterpreterProgram::Launch& it : program->launches) {
//     program->choose(it, words);
//     launch the interpreter of kInterpreterSizes[program->size] with launch.blocks(it.kind)
//     blocks of kCudaThreads threads and the words
//   }
//
// A program does what the source of the same variant does (source.h), pass by pass, thread by
// thread and in the same order. So the results have equal bits. Unlike a source, a program belongs
// to one space.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "backend/cpu/fused/space.h"
#include "backend/cuda/fused/bytecode.h"
#include "backend/cuda/fused/source.h"
#include "backend/fused/kernel.h"

namespace hetero::backend {

struct InterpreterProgram {
  struct Launch {
    CudaEntry::Kind kind;
    InterpreterMode mode;
    uint16_t group;
    uint16_t begin, end;  // instructions
  };
  struct Place {
    uint16_t word;
    uint16_t index;  // of an operand or a number
    int64_t offset;  // of an operand's first entry
  };

  int size = 0;                 // of kInterpreterSizes
  std::vector<uint64_t> words;  // what is the same in all launches
  std::vector<Place> operands, numbers;
  std::vector<Launch> launches;  // in this order

  // `to` has kInterpreterSizes[size].words words.
  void fill(void* const* operand_addresses, const Number* number_values, void* states, uint64_t* to) const;
  void choose(const Launch& launch, uint64_t* to) const;
};

// REQUIRES: cuda_refusal(kernel) is null; the variant was chosen for kernel and space, and the
// launch planned for its source.
std::optional<InterpreterProgram> interpreter_program(const FusedKernel& kernel, const CudaVariant& variant,
                                                      const RowSpace& space, const CudaLaunch& launch);

// Whether every stage of the kernel has a program, in any space. REQUIRES: cuda_refusal(kernel) is
// null.
bool can_interpret(const FusedKernel& kernel);

// The interpreter's machine code, for CudaMachine::load; only in builds with the cuda device.
std::string_view fused_interpreter_code();

}  // namespace hetero::backend
