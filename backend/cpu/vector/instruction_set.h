// InstructionSet: the instruction sets for which the CPU's own loops are compiled or generated.
//
// Thread safety: any thread.

#pragma once

#include <cstdint>
#include <string>

namespace hetero::backend {

// In the order of preference.
enum class InstructionSet : uint8_t { kPortable, kAvx2, kAvx512 };
const char* to_string(InstructionSet set);
// The best that this processor has. AVX2 comes with FMA and F16C, AVX-512 is F, BW, VL and DQ.
InstructionSet instruction_set();
// Whether the processor multiplies pairs of bfloat16 by vectors too (AVX512-BF16).
bool has_bfloat16_instructions();
// The processor's vendor, family, model, name and stepping, as the system has them; empty if it has
// none.
const std::string& processor_model();

}  // namespace hetero::backend
