// The bytecode that the GPU's interpreter of fused kernels runs.
//
// interpreter.h writes it and interpreter.cu reads it. It is the kernel's one parameter, an array
// of 64-bit words: the header, then instructions and the views of operands in any order. Every
// thread of the launch runs the same instructions over its own values, in `slots` of 8 bytes.
// Entries of 16 bytes take two slots.
//
//   a word of an instruction   operation 8 bits, type 8, to 8, inputs 4 x 8, variant 8; `operation`
//                              is a MapOperation, or an Instruction behind them. If inputs are not
//                              slots, the upper 32 bits are two immediates of 16 bits
//   a view                     rank, stride 0, then size and stride of dimensions 1, 2, ...
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>

#include "backend/fused/kernel.h"

#if defined(__CUDACC__)
#define HETERO_BOTH __host__ __device__
#else
#define HETERO_BOTH
#endif

namespace hetero::backend {

// Kernels come in two sizes, because slots are reserved for all threads that the GPU can hold at
// once.
struct InterpreterSize {
  const char* name;
  int words;
  int slots;
};
inline constexpr InterpreterSize kInterpreterSizes[] = {{"fused_interpreter_small", 500, 48},
                                                        {"fused_interpreter_large", 4000, 128}};
inline constexpr int kInterpreterSizeCount = 2;

// How the launch divides its work.
enum class InterpreterMode : uint8_t {
  kEntries,  // the threads of the grid side by side
  kRows,     // a group of threads has a row
  kParts,    // a block has a part of a row
};

// Places of the header.
enum HeaderWord : uint8_t {
  kModeWord,   // InterpreterMode
  kBeginWord,  // the program: instructions [begin, end)
  kEndWord,
  kGroupWord,   // threads of a row
  kVectorWord,  // entries side by side that a thread takes at a time
  kWideWord,    // whether indices need 64 bits
  kRowsWord,
  kRowWord,  // entries of a row, or of the whole space
  kPartsWord,
  kPartLengthWord,
  kStatesWord,  // address
  kHeaderWords,
};

enum class Instruction : uint8_t {
  kNumber = 128,  // to <- word a
  kRowAddress,    // to <- word a + the offset of the row in the view at b
  kRowLoad,       // to <- the entry of `type` bytes at the address in slot input 0
  kRowStore,      // the reverse, from `to`, by one thread of the row
  kLoad,          // as kRowLoad, but at the entry's offset in the view at a
  kStore,         // the reverse, from `to`
  kOneHot,        // to <- input 0, of `type` bytes, where the entry's index is input 1; else zeros
  // reductions: `variant` is the ReduceOperation, `type` as that takes it, `to` the first of its
  // kStateSlots; parameter: input 0.
  kBegin,
  kAdd,          // the entry in input 0
  kReduce,       // the states of the group's threads become one
  kFinish,       // input 0 <- the result
  kKeep,         // a part's state goes to memory, as that of reduction a
  kMerge,        // the states of all parts come from there
  kPass,         // the next a instructions for each entry; type 1: they store
  kSynchronize,  // the group's threads
};
inline constexpr int kStateSlots = 4;

struct InstructionWord {
  uint64_t bits = 0;

  HETERO_BOTH uint8_t operation() const { return static_cast<uint8_t>(bits); }
  HETERO_BOTH uint8_t type() const { return static_cast<uint8_t>(bits >> 8); }
  HETERO_BOTH uint8_t to() const { return static_cast<uint8_t>(bits >> 16); }
  HETERO_BOTH uint8_t input(int j) const { return static_cast<uint8_t>(bits >> (24 + 8 * j)); }
  HETERO_BOTH uint8_t variant() const { return static_cast<uint8_t>(bits >> 56); }
  HETERO_BOTH unsigned a() const { return static_cast<uint16_t>(bits >> 32); }
  HETERO_BOTH unsigned b() const { return static_cast<uint16_t>(bits >> 48); }
};

// Variants of maps.
enum class MapVariant : uint8_t {
  kPlain,
  kOfNumber,   // is_power_of_number()
  kInFloat16,  // rounds_inside(), this and the next
  kInBFloat16,
};

}  // namespace hetero::backend
