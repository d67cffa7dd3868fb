// Signatures of maps and reducers: the number and types of operands and numbers, and their name in
// a device's source.
//
// A name (MapFormula, ReducerFormula in kernel.h) is all that a device other than the CPU knows of
// a function. kernel.h says what it computes; for GPUs, backend/cuda/fused/formulas.h does.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>

#include "backend/fused/kernel.h"

namespace hetero::backend {

// A row of operations.def.
struct OperationTraits {
  const char* name;      // of the function in backend/cuda/fused/formulas.h; "" for kOpaque
  uint8_t operands = 1;  // in order, those that a form replaces by numbers included
  uint8_t numbers = 0;   // behind the one that a form puts in an operand's place
  enum class Result : uint8_t { kSame, kBool } result = Result::kSame;
  enum class NumberType : uint8_t { kEntry, kDouble } number_type = NumberType::kEntry;
  // Which types it has a meaning for: what rounds has none for integers, and bools have operations
  // of their own for what they can do.
  enum class Types : uint8_t {
    kFloating,
    kNumeric,  // and integers
    kAll,      // and bools
    kBits,     // integers and bools
    kOther,    // whatever the operation says
  } types = Types::kFloating;
  // Whether PyTorch's CPU kernel rounds all floating entries of a tensor in the same way. The last
  // ones, which do not fill two vectors, are computed by scalar code.
  enum class Entries : uint8_t { kAlike, kByPlace } entries = Entries::kAlike;
};
OperationTraits traits(MapOperation operation);

// Whether this is a power with a number as exponent, which is a function of its own.
bool is_power_of_number(const MapFormula& formula);
// Whether this is a half type's version of a function, which rounds to it (`from`) between
// operations.
bool rounds_inside(const MapFormula& formula);

// The name of the struct in backend/cuda/fused/formulas.h; "" for kOpaque.
const char* name_of(ReduceOperation operation);

int entry_bytes(EntryType type);
inline bool is_floating(EntryType type) { return type >= EntryType::kFloat16 && type <= EntryType::kFloat64; }

// Whether a number stands in the place of operand j: a form replaces one, but of a product and a
// sum both factor and summand.
bool is_number(const MapFormula& formula, int j);
// How many inputs a map with this formula reads.
int input_count(const MapFormula& formula);
// Bytes of an entry of input j, and of the result.
int input_bytes(const MapFormula& formula, int j);
int result_bytes(const MapFormula& formula);
// How many numbers it reads, from the first of the step on.
int number_count(const MapFormula& formula);

// The type of a reducer's entries, and of its result. 0 for kOpaque, and for kPick, which takes
// any.
int input_bytes(const ReducerFormula& formula);
int result_bytes(const ReducerFormula& formula);

}  // namespace hetero::backend
