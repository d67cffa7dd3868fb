// InstructionSet: the instruction sets for which the CPU's own loops are compiled or generated.
//
// Thread safety: any thread.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace hetero::backend {

// In the order of preference.
enum class InstructionSet : uint8_t { kPortable, kAvx2, kAvx512 };
const char* to_string(InstructionSet set);
// The best that this processor has. AVX2 comes with FMA and F16C, AVX-512 is F, BW, VL and DQ.
InstructionSet instruction_set();
// Whether the processor multiplies pairs of bfloat16 by vectors too (AVX512-BF16).
bool has_bfloat16_instructions();
// Whether products of many rows are faster with them than as floats. Intel's processors since
// Sapphire Rapids start one every other cycle, and two multiplications of floats each cycle: half
// the rate.
bool prefers_bfloat16_instructions();
// For tests and measurements: takes the place of the processor's preference, where the processor
// has the instructions. nullopt ends that.
void prefer_bfloat16_instructions(std::optional<bool> preferred);
// The processor's vendor, family, model, name and stepping, as the system has them; empty if it has
// none.
const std::string& processor_model();

}  // namespace hetero::backend
