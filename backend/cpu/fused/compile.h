// Compiles the cheap steps of a fused program to machine code, when the program is made.
//
// An interpreted step reads and writes whole blocks in the L1 cache. For a sum or a product, that
// takes longer than the arithmetic. A run of steps whose maps have formulas (kernel.h) becomes one
// step that keeps the values in vector registers (codegen.h). So does one step alone whose function
// calls a library for each vector. Vector functions, reductions and gathers stay as they are.
//
//   1. Steps join a run as long as their maps have formulas. A step that cannot join, but does not
//      depend on the run so far, goes before it.
//   2. A value is loaded for its first reader in the run, and stored only if a step after the run
//      reads it.
//   3. A run that needs too many registers is cut in two.
//
// Code contains no sizes, addresses or numbers, so equal runs of all programs share it. It is freed
// with the last program that uses it. A process holds at most kMaxCodeBytes of code. Without a
// suitable processor, Xbyak at build time, or executable memory from the system, programs stay
// interpreted.
//
// Thread safety: functions from any thread.

#pragma once

#include <cstdint>
#include <string>

#include "backend/cpu/fused/codegen.h"
#include "backend/cpu/fused/executable_memory.h"
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
// The instruction set that programs are compiled for; kPortable: they are not compiled.
InstructionSet compile_target();

// REQUIRES: the program's steps and sections are complete.
void compile_program(FusedProgram& program);

// Runs the step over n entries. `places`: the addresses of the program's places.
void run_compiled(const FusedProgram& program, const CompiledRun& run, char* const* places, const Number* numbers,
                  int64_t n);

}  // namespace hetero::backend
