// Compiles the cheap part of a fused program to machine code, when the program is made.
//
// An interpreted step reads and writes whole blocks in the L1 cache, which for a sum or a product takes longer than the arithmetic. A run of
// steps whose maps have formulas (kernel.h) becomes one step that keeps the values between them in vector registers (codegen.h).
// Everything else stays as it is, between the runs: vector functions, reductions, gathers.
//
//   1. Steps are taken into a run as long as their maps have formulas. A step that cannot be, but has nothing to do with the run so far, goes
//      before it.
//   2. A value is loaded where its first reader in the run finds it, and stored only if something after the run reads it.
//   3. A run that needs more registers than there are is cut in two.
//
// Code depends on neither sizes nor addresses nor numbers, so that equal runs of all programs share it; it goes with the last program that has it. A
// process holds kMaxCodeBytes of code at most. Where the processor, the build (without Xbyak) or the system (which may refuse executable memory) does
// not allow code, programs stay as they were.
//
// Thread safety: functions from any thread.

#pragma once

#include <cstdint>
#include <string>

#include "backend/cpu/fused/executable_memory.h"
#include "backend/cpu/fused/codegen.h"
#include "backend/cpu/fused/program.h"

namespace hetero::backend {

inline constexpr size_t kMaxCodeBytes = size_t{16} << 20;

// The code of a run.
struct VectorCode {
  ~VectorCode();
  ExecutableMemory memory;
  VectorLoop loop = nullptr;
  int lanes = 1;
  std::string key;  // in the table of all code
};

// Programs made from now on use at most this instruction set; kPortable compiles nothing.
void limit_instruction_set(InstructionSet set);
// What programs are compiled for; kPortable: they are not.
InstructionSet compile_target();

// REQUIRES: the program's steps and sections are complete.
void compile_program(FusedProgram& program);

// Runs the step over n entries. `places`: the addresses of the program's places.
void run_compiled(const FusedProgram& program, const CompiledRun& run, char* const* places, const Number* numbers,
                  int64_t n);

}  // namespace hetero::backend
