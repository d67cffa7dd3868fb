// Vector functions: the arithmetic of fused kernels, with the bits of PyTorch's own CPU kernels.
//
// A function is found by its operation and by the dtype that PyTorch computes in, the common dtype
// of the operands:
//
//   functions().map(Function::kExp, Form::kTensors, at::kFloat)     // exp(in[0][i])
//   functions().map(Function::kAdd, Form::kNumberRight, at::kLong)  // in[0][i] + numbers[0].i64
//   functions().cast(at::kHalf, at::kFloat)
//
// For float16 and bfloat16 PyTorch converts to float32, computes, and rounds. So the functions of
// these dtypes take and give float32 arrays (compute_dtype), and lowering adds the casts. They are
// separate functions, because PyTorch takes some transcendentals of float32 from MKL but those of
// the half dtypes from SLEEF. Functions that only move bits (kWhere, kMaskedFill) work on the dtype
// itself. Numbers are floats, doubles or int64s, for arrays of float32, of float64, or of any other
// type.
//
// Everything is compiled once for each CPU capability for which PyTorch has kernels, with PyTorch's
// own at::vec. It is chosen as PyTorch chooses (at::get_cpu_capability), so ATEN_CPU_CAPABILITY
// applies to both. A result does not depend on an entry's position: the tail uses the same vector
// arithmetic. PyTorch's own loops compute a tensor's last entries (less than two vectors) by scalar
// code, which rounds differently for some functions; see tests/ops/lower_test.cpp.
//
// Thread safety: immutable once made.

#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>

#include "backend/fused/kernel.h"

namespace hetero::ops {

// A function's name is that of what it computes (backend/fused/kernel.h), so each one in the table
// has a name that other devices understand.
using Function = backend::MapOperation;

// Which operand of a function of two is a number (the first of its numbers).
enum class Form : uint8_t { kTensors, kNumberRight, kNumberLeft, kCount };

using Reduction = backend::ReduceOperation;

// Dtypes of which lowering knows something: the first sixteen of c10, without the complex ones.
inline constexpr int kDTypeCount = 16;
inline bool is_fusible(at::ScalarType dtype) {
  return static_cast<int>(dtype) < kDTypeCount && !c10::isComplexType(dtype) && !c10::isQIntType(dtype);
}

// The dtype of the arrays that the functions of `dtype` take.
inline at::ScalarType compute_dtype(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

struct FunctionTable {
  backend::MapFunction maps[static_cast<size_t>(Form::kCount)][static_cast<size_t>(Function::kCount)][kDTypeCount];
  backend::MapFunction casts[kDTypeCount][kDTypeCount];
  const backend::Reducer* reducers[static_cast<size_t>(Reduction::kCount)][kDTypeCount];

  // Null if there is no such function.
  backend::MapFunction map(Function function, Form form, at::ScalarType dtype) const {
    return maps[static_cast<size_t>(form)][static_cast<size_t>(function)][static_cast<size_t>(dtype)];
  }
  // As Tensor::to. Null if the dtypes are equal.
  backend::MapFunction cast(at::ScalarType from, at::ScalarType to) const {
    return casts[static_cast<size_t>(from)][static_cast<size_t>(to)];
  }
  const backend::Reducer* reducer(Reduction reduction, at::ScalarType dtype) const {
    return reducers[static_cast<size_t>(reduction)][static_cast<size_t>(dtype)];
  }
};

// Gives each map of the table its formula: function, form and dtype (formulas.cpp). Reducers have
// theirs where they are made.
void add_formulas(FunctionTable& table);

// Kernels planned from now on are compiled for the capability that PyTorch has chosen, or not at
// all: as config().jit says.
void choose_instruction_set();

// The table for this process and CPU.
const FunctionTable& functions();

// One for each file functions_*.cpp.
namespace AVX512 {
void fill(FunctionTable& table);
}
namespace AVX2 {
void fill(FunctionTable& table);
}
namespace DEFAULT {
void fill(FunctionTable& table);
}

// MKL's functions, which libtorch_cpu exports if it was built with MKL; `vml_function` returns null
// otherwise.
using VmlFloat = void (*)(int n, const float* in, float* out, int64_t mode);
using VmlDouble = void (*)(int n, const double* in, double* out, int64_t mode);
void* vml_function(const char* name);

}  // namespace hetero::ops
