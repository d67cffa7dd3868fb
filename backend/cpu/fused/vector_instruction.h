// VectorInstruction: what one step of a generated loop does with a vector of entries (codegen.h).
//
// Thread safety: plain data.

#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>

#include "backend/cpu/vector/instruction_set.h"
#include "backend/fused/formula.h"
#include "backend/fused/kernel.h"

namespace hetero::backend {

struct VectorInstruction {
  enum class Kind : uint8_t {
    kLoad,   // value <- array[source]
    kFill,   // value <- the first bytes of numbers[source], everywhere
    kMap,    // value <- formula(inputs; numbers + source)
    kStore,  // array[source] <- value
  };
  Kind kind = Kind::kLoad;
  uint8_t bytes = 0;     // of an entry of the value
  MapFormula formula{};  // kMap
  uint16_t value = 0;
  uint16_t inputs[3] = {};
  uint16_t source = 0;
};
// Lists are compared as bytes.
static_assert(std::has_unique_object_representations_v<VectorInstruction>);

// How many entries a vector of the run has.
inline int vector_lanes(std::span<const VectorInstruction> run, InstructionSet set) {
  int widest = 4;
  for (const VectorInstruction& it : run) widest = std::max<int>(widest, it.bytes);
  return (set == InstructionSet::kAvx512 ? 64 : 32) / widest;
}

}  // namespace hetero::backend
