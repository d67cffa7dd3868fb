// Generates machine code for a run of maps: one loop over vectors of entries that keeps values in
// registers.
//
// A run is a list of vector instructions in static single assignment: loads, fills, maps and stores
// of one vector of each value. The result has the bits of the maps' own functions, except for the
// payload of a NaN. Each operation rounds by itself. A product and a sum share a rounding only if
// the formula says so.
//
// The code is position-independent, and contains no sizes, addresses or numbers.
//
// Thread safety: pure functions.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/cpu/fused/vector_instruction.h"
#include "backend/cpu/vector/instruction_set.h"
#include "backend/fused/formula.h"
#include "backend/fused/kernel.h"

namespace hetero::backend {

// Whether this build can generate code, for AVX2 and AVX-512.
bool has_code_generator();

// For n entries; `arrays` are the addresses of their first.
// REQUIRES: n is a positive multiple of the run's lanes.
using VectorLoop = void (*)(char* const* arrays, const Number* numbers, int64_t n);

inline constexpr int kMaxVectorArrays = 24;
inline constexpr size_t kMaxVectorInstructions = 256;

// Whether code can be generated for maps with this formula.
bool can_generate(const MapFormula& formula);
// Whether code is faster than the map's own function even where it is alone: that one calls a
// library for each vector.
bool is_worth_generating_alone(const MapFormula& formula);

// Writes the loop into `code`. The number of bytes, or 0 where the run needs more registers, or
// more code, than there is. REQUIRES: set is not kNone; each value is made once, before it is used;
// at most kMaxVectorArrays arrays.
size_t generate_vector_loop(std::span<const VectorInstruction> run, int array_count, InstructionSet set,
                            std::span<uint8_t> code);

}  // namespace hetero::backend
