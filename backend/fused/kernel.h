// Fused kernels: one pass over memory that computes many pointwise operators and row reductions.
//
// A kernel is data: steps over values. A value is an array in scratch memory that stays in the
// cache. A step calls one function on a whole block of it. The functions come from outside: ops/
// takes them from ATen, tests from a portable table. So the engine knows shapes and addresses but
// not what is computed. Three things are kept apart, because they change at different times:
//
//   FusedKernel   structure: values and steps                       once for each plan
//   FusedSpace    sizes and strides                                 when a shape changes
//   addresses and numbers (scalars, learning rates)                 every run
//
//   space:          sizes[0..rank), row-major; the last `row_rank` dimensions together are the row
//   element value:  one entry for each point of the space
//   row value:      one entry for each row: the result of a reduction, and what is computed from
//                   such; repeated along the row if a step with element results reads it
//   total value:    one entry for the space: a reduction of a row value over all rows, and what is
//                   computed from such. Totals come last: no element or row value is computed from
//                   one.
//
//   FusedLaunch launch;
//   prepare_fused(kernel, space, launch);                 // collapses dimensions, chooses blocks,
//                                                         lays out the scratch memory
//   run_fused(launch, addresses.data(), numbers.data());  // allocates nothing in steady state;
//                                                         splits over parallel_for
//
// Loads see the memory before the kernel, wherever they are among the steps. So an operand may be
// loaded and stored. A stored operand may share memory with loaded ones if they address every point
// of the space at the same bytes. Stored operands share no memory with one another. Each is stored
// once, with its own address for each point (or row).
//
// A row value may be stored once for each row, to an operand with stride 0 along the row, or for
// each point. Sizes of entries are 1, 2, 4, 8 and 16 bytes. If rows have no entries, reductions
// give begin and finish. A total value is stored to an operand whose strides are all 0.
//
// A kernel may be defined for some contents of its operands only, and then checks for them. If a
// check fails, nothing is written.
//
// Thread safety: launches are immutable once prepared and may run on several threads at once.

#pragma once

#include <cstdint>
#include <vector>

namespace hetero::backend {

// A number that is known when a kernel is launched; which member counts is a matter between who
// writes it and the function that reads it.
union Number {
  double f64;
  float f32;
  int64_t i64;
  uint64_t bits;
};

// The operation of a map. Other devices than the CPU know a map by this name, and simple maps are
// compiled together with their neighbours by it (compile.h). a, b and c are its operands in order,
// x, y and z its numbers. In the first part, each operation rounds, except fma, which rounds a
// product and a sum once, and these are the CPU's bits, but for kSqrt. In the second part, some are
// only near.
// Integers wrap. A form puts a number in the place of an operand; the others follow.
enum class MapOperation : uint8_t {
  kOpaque,  // only the function knows
#define HETERO_OPERATION(name, ...) name,
#include "backend/fused/operations.def"
  kCount,
};
inline constexpr MapOperation kLastCompilable = MapOperation::kConvert;

enum class EntryType : uint8_t {
  kByte,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kBool,  // a byte that is 0 or 1
  kInt8,
  kInt16,
  kInt32,
  kInt64,
};

// Which operand of a map of two is a number, the first of its numbers.
enum class NumberForm : uint8_t { kNone, kRight, kLeft };

struct MapFormula {
  MapOperation operation;
  EntryType type;  // that is computed in; of choices between values only its size counts
  // kConvert: of the input. Of other maps over float32: a half type, where this is the half type's
  // own function, which rounds to it between operations.
  EntryType from;
  NumberForm form;
  bool operator==(const MapFormula&) const = default;
};

// out[i] = f(in[0][i], in[1][i], ...; numbers) for 0 <= i < n. All arrays are dense; `out` may be
// the same array as an input. Results for an entry must not depend on n or on its position. Arrays
// are often operands' own memory, and then aligned no better than these.
struct MapFunction {
  using Pointer = void (*)(void* out, const void* const* in, const Number* numbers, int64_t n);

  MapFunction() = default;
  constexpr MapFunction(Pointer function, MapFormula computes = {}) : pointer(function), formula(computes) {}

  void operator()(void* out, const void* const* in, const Number* numbers, int64_t n) const {
    pointer(out, in, numbers, n);
  }
  bool operator==(const MapFunction& other) const { return pointer == other.pointer; }

  Pointer pointer;
  MapFormula formula;
};

enum class ReduceOperation : uint8_t {
  kOpaque,  // only the functions know
  kSum,
  kProduct,
  kMaximum,  // NaN wins, in the next three too
  kMinimum,
  kArgMaximum,  // the first place, an int64; -1 in an empty row
  kArgMinimum,
  kAny,  // of bools, this and the next
  kAll,
  kSquaredDeviation,  // the sum of (a - mean)^2
  kPeak,              // the maximum of what is no NaN
  // With a parameter.
  kSquaredDistance,  // the sum of (a - parameter)^2
  kSumExpFast,       // the sum of exp(a - parameter), as near as kExpFast
  kPick,             // pick_reducer
  kCount,
};

// The name of a reducer, as MapFormula is a map's.
struct ReducerFormula {
  ReduceOperation operation;
  EntryType type;  // of the entries; kPick: of any of their size
  bool operator==(const ReducerFormula&) const = default;
};

// A reduction along a row. `add` takes n entries of which the first stands at `index` of its row;
// entries come in order; `merge` takes the state of a later part of the row. States are moved as
// bytes, and are aligned to 8 bytes where state_bytes is a multiple of 8. What is to be done may
// depend on the row: then `begin_with` takes the place of `begin`, with the row's entry of another
// row value.
struct Reducer {
  int32_t state_bytes;  // at most kMaxReducerState
  void (*begin)(void* state);
  void (*add)(void* state, const void* in, int64_t n, int64_t index);
  void (*merge)(void* state, const void* later);
  void (*finish)(const void* state, void* out);  // writes one entry
  // Of the row value's entry; 0 where there is no parameter.
  int32_t parameter_bytes = 0;
  void (*begin_with)(void* state, const void* parameter) = nullptr;
  ReducerFormula formula = {};
};
inline constexpr int32_t kMaxReducerState = 512;

// Gives the entry at an index of the row, of this many bytes. The index is the parameter, an int64.
// Zero if the row has no such index.
const Reducer& pick_reducer(int bytes);

enum class Extent : uint8_t { kElement, kRow, kTotal };

struct FusedValue {
  uint8_t bytes;  // of one entry
  Extent extent;
  bool operator==(const FusedValue&) const = default;
};

struct FusedStep {
  enum class Kind : uint8_t {
    kLoad,  // value <- operand
    // value <- the first bytes of numbers[first_number] (16 bytes: of two numbers), everywhere
    kFill,
    kMap,  // value <- map(inputs; numbers + first_number)
    // row value <- reducer over the element value inputs[0] (or a row value, repeated), with the
    //              row value inputs[1] as parameter
    // total value <- reducer over the row value inputs[0]
    kReduce,
    // element value <- the row of a table, `operand`, at the row value inputs[0], an int64 index
    kLookUp,
    // element value <- the row value inputs[0] at the row value inputs[1], an int64 index of the
    //                  row; zeros elsewhere
    kOneHot,
    kStore,  // operand <- value
    // No entry of the row value, a byte, may be 0. Maps compute it from row values that are loaded
    // or filled.
    kCheck,
  };
  Kind kind;
  uint8_t input_count = 0;
  uint16_t value = 0;
  uint16_t inputs[4] = {};
  uint16_t operand = 0;
  uint16_t first_number = 0;
  MapFunction map = nullptr;
  // Computes the same for one row if all inputs but the first are row values. They are then the
  // first numbers, in place of those of the step. Null if there is no such function.
  MapFunction row_map = nullptr;
  const Reducer* reducer = nullptr;
};

// Whether `operand` of the step means something.
inline bool uses_operand(const FusedStep& step) {
  using Kind = FusedStep::Kind;
  return step.kind == Kind::kLoad || step.kind == Kind::kLookUp || step.kind == Kind::kStore;
}

// Steps in an order in which values are written before they are read, each value by one step.
struct FusedKernel {
  std::vector<FusedValue> values;
  std::vector<FusedStep> steps;
  uint16_t operand_count = 0;
  uint16_t number_count = 0;
};

inline constexpr int kMaxFusedRank = 12;

struct FusedOperand {
  int64_t offset = 0;  // bytes from the address to the first entry
  // Bytes; 0 where the operand is broadcast; along the row 0 for row values.
  int64_t strides[kMaxFusedRank] = {};
  int64_t bytes = 0;  // of one entry
  // For a table, which only kLookUp reads: it has `table_rows` rows, this many bytes apart, laid
  // out as the strides along the row say; the other strides are 0. A kernel with a lookup checks
  // that the index is one of the rows.
  int64_t table_rows = 0;
  int64_t table_stride = 0;
};

struct FusedSpace {
  int rank = 0;
  int row_rank = 0;  // 0 where the kernel has no row values
  int64_t sizes[kMaxFusedRank] = {};
  std::vector<FusedOperand> operands;
};

// A prepared kernel: launch.h.

}  // namespace hetero::backend
