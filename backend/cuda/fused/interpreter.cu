// The interpreter of fused kernels on a GPU: runs any kernel from its program (bytecode.h).
//
// It uses the formulas and reductions of generated kernels, in the same order, so it has their
// bits. nvcc compiles it in advance, once for all kernels, into what fused_interpreter_code()
// returns. tests/backend/cuda/interpreter_emulation.cpp compiles it as plain C++. A step costs a
// switch and accesses to slots in local memory, which the L1 cache holds; a generated kernel has
// registers instead. So it serves until that is compiled.

#include <stddef.h>

#include <type_traits>
#include <utility>

#include "backend/cuda/fused/bytecode.h"
#include "backend/cuda/fused/formulas.h"
#include "backend/cuda/fused/threads.h"
#include "backend/fused/formula.h"
#include "backend/fused/kernel.h"

#if defined(__CUDACC__)
#define HETERO_CALLED __device__ __noinline__
#else
#define HETERO_CALLED static
#endif

namespace hetero_fused {

using hetero::backend::EntryType;
using hetero::backend::Instruction;
using hetero::backend::InstructionWord;
using hetero::backend::InterpreterMode;
using hetero::backend::MapOperation;
using hetero::backend::MapVariant;
using hetero::backend::OperationTraits;
using hetero::backend::ReduceOperation;

// ---- slots

template <typename T>
HETERO_DEVICE T get(const Bits64* slots, unsigned slot) {
  if constexpr (sizeof(T) == 16)
    return as<T>(Bits128{slots[slot], slots[slot + 1]});
  else
    return as<T>(static_cast<typename BitsOf<sizeof(T)>::Type>(slots[slot]));
}
template <typename T>
HETERO_DEVICE void put(Bits64* slots, unsigned slot, T value) {
  if constexpr (sizeof(T) == 16) {
    const Bits128 bits = bits_of(value);
    slots[slot] = bits.low;
    slots[slot + 1] = bits.high;
  } else {
    slots[slot] = bits_of(value);
  }
}

// visit(a value of the unsigned type of so many bytes)
template <typename Visit>
HETERO_DEVICE void by_size(unsigned bytes, Visit visit) {
  switch (bytes) {
    case 1:
      return visit(Bits8());
    case 2:
      return visit(Bits16());
    case 4:
      return visit(Bits32());
    case 8:
      return visit(Bits64());
    default:
      return visit(Bits128());
  }
}

// ---- maps

// to <- function(the first kOperands inputs as T, the others as Number)
template <typename T, typename Number, int kOperands, typename Function, size_t... kInputs>
HETERO_DEVICE void call(InstructionWord it, Bits64* slots, Function function, std::index_sequence<kInputs...>) {
  put(slots, it.to(),
      function(get<std::conditional_t<(int{kInputs} < kOperands), T, Number>>(slots, it.input(kInputs))...));
}
template <int kOperands, int kNumbers, bool kWideNumbers, typename T, typename Function>
HETERO_DEVICE void call(InstructionWord it, Bits64* slots, Function function) {
  using Number = std::conditional_t<kWideNumbers, double, T>;
  call<T, Number, kOperands>(it, slots, function, std::make_index_sequence<kOperands + kNumbers>());
}

template <int kOperands, int kNumbers, OperationTraits::NumberType kNumberType, OperationTraits::Types kTypes,
          typename Function>
HETERO_DEVICE void call_by_type(InstructionWord it, Bits64* slots, Function function) {
  using Types = OperationTraits::Types;
  constexpr bool kWide = kNumberType == OperationTraits::NumberType::kDouble;
  constexpr bool kFloats = kTypes != Types::kBits && kTypes != Types::kOther;
  constexpr bool kIntegers = kTypes != Types::kFloating && kTypes != Types::kOther;
  constexpr bool kBools = kTypes == Types::kAll || kTypes == Types::kBits;
  const auto with = [&](auto entry) { call<kOperands, kNumbers, kWide, decltype(entry)>(it, slots, function); };
  switch (static_cast<EntryType>(it.type())) {
    case EntryType::kFloat32:
      if constexpr (kFloats) with(float());
      return;
    case EntryType::kFloat64:
      if constexpr (kFloats) with(double());
      return;
    case EntryType::kByte:
      if constexpr (kIntegers) with(Bits8());
      return;
    case EntryType::kInt8:
      if constexpr (kIntegers) with(static_cast<signed char>(0));
      return;
    case EntryType::kInt16:
      if constexpr (kIntegers) with(short());
      return;
    case EntryType::kInt32:
      if constexpr (kIntegers) with(int());
      return;
    case EntryType::kInt64:
      if constexpr (kIntegers) with(Index64());
      return;
    case EntryType::kBool:
      if constexpr (kBools) with(Bool());
      return;
    case EntryType::kFloat16:
    case EntryType::kBFloat16:
      return;  // only stored
  }
}

// visit(an entry of the type)
template <typename Visit>
HETERO_DEVICE void by_type(uint8_t type, Visit visit) {
  switch (static_cast<EntryType>(type)) {
    case EntryType::kByte:
      return visit(Bits8());
    case EntryType::kFloat16:
      return visit(Float16());
    case EntryType::kBFloat16:
      return visit(BFloat16());
    case EntryType::kFloat32:
      return visit(float());
    case EntryType::kFloat64:
      return visit(double());
    case EntryType::kBool:
      return visit(Bool());
    case EntryType::kInt8:
      return visit(static_cast<signed char>(0));
    case EntryType::kInt16:
      return visit(short());
    case EntryType::kInt32:
      return visit(int());
    case EntryType::kInt64:
      return visit(Index64());
  }
}

// The source type of a conversion is in the place of the variant.
HETERO_CALLED void convert_entry(InstructionWord it, Bits64* slots) {
  by_type(it.variant(), [&](auto from) {
    const auto entry = get<decltype(from)>(slots, it.input(0));
    by_type(it.type(), [&](auto to) { put(slots, it.to(), convert<decltype(to)>(entry)); });
  });
}

// Choices between values move bits.
HETERO_CALLED void choose_entry(InstructionWord it, Bits64* slots) {
  by_size(it.type(), [&](auto bits) {
    using T = decltype(bits);
    if (static_cast<MapOperation>(it.operation()) == MapOperation::kWhere) {
      put(slots, it.to(),
          where(get<Bits8>(slots, it.input(0)), get<T>(slots, it.input(1)), get<T>(slots, it.input(2))));
    } else {
      put(slots, it.to(),
          masked_fill(get<T>(slots, it.input(0)), get<Bits8>(slots, it.input(1)), get<T>(slots, it.input(2))));
    }
  });
}

HETERO_CALLED void raise_entry(InstructionWord it, Bits64* slots) {
  const auto with = [&](auto entry) {
    using T = decltype(entry);
    using Exponent = std::conditional_t<Traits<T>::kFloating, double, Index64>;
    put(slots, it.to(), power_of_number(get<T>(slots, it.input(0)), get<Exponent>(slots, it.input(1))));
  };
  switch (static_cast<EntryType>(it.type())) {
    case EntryType::kFloat32:
      return with(float());
    case EntryType::kFloat64:
      return with(double());
    case EntryType::kByte:
      return with(Bits8());
    case EntryType::kInt8:
      return with(static_cast<signed char>(0));
    case EntryType::kInt16:
      return with(short());
    case EntryType::kInt32:
      return with(int());
    case EntryType::kInt64:
      return with(Index64());
    default:
      return;
  }
}

template <typename Half>
HETERO_CALLED void call_in_half(InstructionWord it, Bits64* slots) {
  const auto x = [&](int j) { return get<float>(slots, it.input(j)); };
  switch (static_cast<MapOperation>(it.operation())) {
    case MapOperation::kRsqrt:
      return put(slots, it.to(), inverse_root_in<Half>(x(0)));
    case MapOperation::kAddScaled:
      return put(slots, it.to(), add_scaled_in<Half>(x(0), x(1), x(2)));
    case MapOperation::kSigmoidBackward:
      return put(slots, it.to(), sigmoid_backward_in<Half>(x(0), x(1)));
    case MapOperation::kPow:
      return put(slots, it.to(), power_of_number_in<Half>(x(0), get<double>(slots, it.input(1))));
    default:
      return;
  }
}

// All others, by the table of operations.
HETERO_CALLED void call_operation(InstructionWord it, Bits64* slots) {
  using enum OperationTraits::NumberType;
  using enum OperationTraits::Types;
  switch (static_cast<MapOperation>(it.operation())) {
#define HETERO_OPERATION(name, function, operands, numbers, result, number_type, types, entries) \
  case MapOperation::name:                                                                       \
    return call_by_type<operands, numbers, number_type, types>(                                  \
        it, slots, [](auto... x) { return hetero_fused::function(x...); });
#include "backend/fused/operations.def"
    default:
      return;
  }
}

HETERO_DEVICE void run_map(InstructionWord it, Bits64* slots) {
  switch (static_cast<MapOperation>(it.operation())) {
    case MapOperation::kConvert:
      return convert_entry(it, slots);
    case MapOperation::kWhere:
    case MapOperation::kMaskedFill:
      return choose_entry(it, slots);
    default:
      break;
  }
  switch (static_cast<MapVariant>(it.variant())) {
    case MapVariant::kPlain:
      return call_operation(it, slots);
    case MapVariant::kOfNumber:
      return raise_entry(it, slots);
    case MapVariant::kInFloat16:
      return call_in_half<Float16>(it, slots);
    case MapVariant::kInBFloat16:
      return call_in_half<BFloat16>(it, slots);
  }
}

// ---- reductions

template <template <typename> typename State, bool kBools, typename Visit>
HETERO_DEVICE void by_entry(uint8_t type, Visit visit) {
  switch (static_cast<EntryType>(type)) {
    case EntryType::kFloat32:
      return visit(State<float>());
    case EntryType::kFloat64:
      return visit(State<double>());
    case EntryType::kByte:
      return visit(State<Bits8>());
    case EntryType::kInt8:
      return visit(State<signed char>());
    case EntryType::kInt16:
      return visit(State<short>());
    case EntryType::kInt32:
      return visit(State<int>());
    case EntryType::kInt64:
      return visit(State<Index64>());
    case EntryType::kBool:
      if constexpr (kBools) visit(State<Bool>());
      return;
    default:
      return;
  }
}
template <template <typename> typename State, typename Visit>
HETERO_DEVICE void by_float(uint8_t type, Visit visit) {
  if (static_cast<EntryType>(type) == EntryType::kFloat32)
    visit(State<float>());
  else
    visit(State<double>());
}

// visit(a state of the reduction)
template <typename Visit>
HETERO_DEVICE void by_reduction(InstructionWord it, Visit visit) {
  const uint8_t type = it.type();
  switch (static_cast<ReduceOperation>(it.variant())) {
    case ReduceOperation::kSum:
      return by_entry<Sum, false>(type, visit);
    case ReduceOperation::kProduct:
      return by_entry<Product, false>(type, visit);
    case ReduceOperation::kMaximum:
    case ReduceOperation::kAny:
      return by_entry<Maximum, true>(type, visit);
    case ReduceOperation::kMinimum:
    case ReduceOperation::kAll:
      return by_entry<Minimum, true>(type, visit);
    case ReduceOperation::kArgMaximum:
      return by_entry<ArgMaximum, false>(type, visit);
    case ReduceOperation::kArgMinimum:
      return by_entry<ArgMinimum, false>(type, visit);
    case ReduceOperation::kSquaredDeviation:
      return by_float<SquaredDeviation>(type, visit);
    case ReduceOperation::kPeak:
      return by_float<Peak>(type, visit);
    case ReduceOperation::kSquaredDistance:
      return by_float<SquaredDistance>(type, visit);
    case ReduceOperation::kSumExpFast:
      return by_float<SumExp>(type, visit);
    case ReduceOperation::kPick:
      return by_size(type, [&](auto bits) { visit(Pick<decltype(bits)>()); });
    case ReduceOperation::kOpaque:
    case ReduceOperation::kCount:
      return;
  }
}

template <typename State>
HETERO_DEVICE State get_state(const Bits64* slots, unsigned slot) {
  static_assert(sizeof(State) <= hetero::backend::kStateSlots * sizeof(Bits64),
                "a larger state than there is room for");
  State state;
  memcpy(&state, slots + slot, sizeof(State));
  return state;
}
template <typename State>
HETERO_DEVICE void put_state(Bits64* slots, unsigned slot, const State& state) {
  memcpy(slots + slot, &state, sizeof(State));
}

template <typename State>
struct ParameterOf {
  static constexpr bool kHas = false;
};
template <typename T>
struct ParameterOf<SquaredDistance<T>> {
  static constexpr bool kHas = true;
  typedef T Type;
};
template <typename T>
struct ParameterOf<SumExp<T>> {
  static constexpr bool kHas = true;
  typedef T Type;
};
template <typename T>
struct ParameterOf<Pick<T>> {
  static constexpr bool kHas = true;
  typedef Index64 Type;
};

HETERO_CALLED void begin_reduction(InstructionWord it, Bits64* slots) {
  by_reduction(it, [&](auto state) {
    using Parameter = ParameterOf<decltype(state)>;
    if constexpr (Parameter::kHas)
      state.begin_with(get<typename Parameter::Type>(slots, it.input(0)));
    else
      state.begin();
    put_state(slots, it.to(), state);
  });
}

HETERO_CALLED void add_entry(InstructionWord it, Bits64* slots, Index64 index) {
  by_reduction(it, [&](auto none) {
    using State = decltype(none);
    State state = get_state<State>(slots, it.to());
    state.add(get<typename State::Entry>(slots, it.input(0)), index);
    put_state(slots, it.to(), state);
  });
}

// The threads of a block meet here, so all of them arrive with the same instruction.
HETERO_CALLED void reduce_states(InstructionWord it, Bits64* slots, unsigned group, void* memory) {
  by_reduction(it, [&](auto none) {
    using State = decltype(none);
    const State own = get_state<State>(slots, it.to());
    put_state(slots, it.to(), group == 32 ? reduce_group<32>(own, memory) : reduce_group<kThreads>(own, memory));
  });
}

HETERO_CALLED void finish_reduction(InstructionWord it, Bits64* slots) {
  by_reduction(it, [&](auto none) {
    using State = decltype(none);
    put(slots, it.input(0), get_state<State>(slots, it.to()).finish());
  });
}

HETERO_CALLED void keep_state(InstructionWord it, const Bits64* slots, char* at) {
  by_reduction(it, [&](auto none) {
    using State = decltype(none);
    *reinterpret_cast<State*>(at) = get_state<State>(slots, it.to());
  });
}

HETERO_CALLED void merge_states(InstructionWord it, Bits64* slots, const char* parts, Bits64 count) {
  by_reduction(it, [&](auto state) {
    merge_parts(state, parts, count);
    put_state(slots, it.to(), state);
  });
}

// ---- the program

// A thread of the launch. Only `words`, which are the kernel's parameter, are the same for all.
struct Thread {
  const Bits64* words;
  Bits64* slots;
  void* memory;  // of the block
  Bits64 row, part;
  // The entries that the threads of the group take: `vector` each, and on after a step.
  Bits64 begin, end, step;
  Bits64 own;  // where in a step the thread's begin
  unsigned lane;
  // Whether it has a row; the others go along, since all threads meet at barriers, and store
  // nothing.
  bool live;

  HETERO_DEVICE Bits64 header(hetero::backend::HeaderWord word) const { return words[word]; }
  HETERO_DEVICE InstructionWord instruction(unsigned at) const { return InstructionWord{words[at]}; }

  // The place of the entry with this index.
  template <typename Index>
  HETERO_DEVICE Index64 offset_in(unsigned view, Index index) const {
    Index64 bytes = 0;
    for (unsigned d = static_cast<unsigned>(words[view]) - 1; d > 0; --d) {
      const Index size = static_cast<Index>(words[view + 2 * d]), rest = index / size;
      bytes += static_cast<Index64>(index - rest * size) * static_cast<Index64>(words[view + 2 * d + 1]);
      index = rest;
    }
    return bytes + static_cast<Index64>(index) * static_cast<Index64>(words[view + 1]);
  }
  HETERO_DEVICE Index64 offset(unsigned view, Bits64 index) const {
    if (header(hetero::backend::kWideWord) != 0) return offset_in<Bits64>(view, index);
    return offset_in<Bits32>(view, static_cast<Bits32>(index));
  }

  HETERO_DEVICE char* address(InstructionWord it) const { return reinterpret_cast<char*>(slots[it.input(0)]); }
  HETERO_DEVICE void load(InstructionWord it, const char* from) {
    by_size(it.type(), [&](auto bits) { put(slots, it.to(), *reinterpret_cast<const decltype(bits)*>(from)); });
  }
  HETERO_DEVICE void store(InstructionWord it, char* to) {
    by_size(it.type(),
            [&](auto bits) { *reinterpret_cast<decltype(bits)*>(to) = get<decltype(bits)>(slots, it.to()); });
  }
  // The place of the row's state of part 0.
  HETERO_DEVICE char* states(InstructionWord it) const {
    using namespace hetero::backend;
    return reinterpret_cast<char*>(header(kStatesWord)) +
           (it.a() * header(kRowsWord) + row) * header(kPartsWord) * kStateBytes;
  }

  // `index`: of the pass's current entry.
  HETERO_DEVICE void run(InstructionWord it, Bits64 index) {
    using namespace hetero::backend;
    if (it.operation() < static_cast<uint8_t>(Instruction::kNumber)) return run_map(it, slots);
    switch (static_cast<Instruction>(it.operation())) {
      case Instruction::kNumber:
        slots[it.to()] = words[it.a()];
        return;
      case Instruction::kRowAddress:
        slots[it.to()] = words[it.a()] + static_cast<Bits64>(offset(it.b(), row));
        return;
      case Instruction::kRowLoad:
        return load(it, address(it));
      case Instruction::kRowStore:
        if (live && lane == 0) store(it, address(it));
        return;
      case Instruction::kLoad:
        return load(it, address(it) + offset(it.a(), index));
      case Instruction::kStore:
        return store(it, address(it) + offset(it.a(), index));
      case Instruction::kOneHot:
        return by_size(it.type(), [&](auto bits) {
          using T = decltype(bits);
          const bool is_here = get<Bits64>(slots, it.input(1)) == index;
          put(slots, it.to(), is_here ? get<T>(slots, it.input(0)) : T{});
        });
      case Instruction::kBegin:
        return begin_reduction(it, slots);
      case Instruction::kAdd:
        return add_entry(it, slots, static_cast<Index64>(index));
      case Instruction::kReduce:
        return reduce_states(it, slots, static_cast<unsigned>(header(kGroupWord)), memory);
      case Instruction::kFinish:
        return finish_reduction(it, slots);
      case Instruction::kKeep:
        if (lane == 0) keep_state(it, slots, states(it) + part * kStateBytes);
        return;
      case Instruction::kMerge:
        return merge_states(it, slots, states(it), header(kPartsWord));
      case Instruction::kSynchronize:
        if (header(kGroupWord) == 32)
          synchronize_group<32>();
        else
          synchronize_group<kThreads>();
        return;
      case Instruction::kPass:
        return;  // run_program's
    }
  }

  // All threads of a group are at the same instruction at any time, so that they can meet at
  // barriers. Threads without an entry left in a pass go along, idle.
  HETERO_DEVICE void run_program() {
    using namespace hetero::backend;
    const unsigned stop = static_cast<unsigned>(header(kEndWord)), vector = static_cast<unsigned>(header(kVectorWord));
    // One loop for instructions of the row and those of passes: those of the pass that the group is
    // in are `first` .. `last`, and it has come to the entries from `start` on.
    unsigned first = 0, last = 0, side = 0;
    Bits64 start = 0;
    bool stores = false, active = true;
    const auto is_active = [&] { return start + own < end && (live || !stores); };
    for (unsigned at = static_cast<unsigned>(header(kBeginWord)); at < stop;) {
      const InstructionWord it = instruction(at++);
      if (static_cast<Instruction>(it.operation()) == Instruction::kPass) {
        if (begin >= end) {
          at += it.a();
          continue;
        }
        first = at;
        last = at + it.a();
        start = begin;
        stores = it.type() != 0;
        active = is_active();
        continue;
      }
      if (active) run(it, start + own + side);
      if (at != last) continue;
      // Goes on to the next entry of the pass, or past its end.
      if (++side == vector) {
        side = 0;
        start += step;
      }
      if (start < end) {
        at = first;
        active = is_active();
      } else {
        last = 0;
        active = true;
      }
    }
  }

  // Divides the rows, or their parts, among groups of threads, and the entries among the threads of
  // a group.
  HETERO_DEVICE void run_all() {
    using namespace hetero::backend;
    const InterpreterMode mode = static_cast<InterpreterMode>(header(kModeWord));
    const unsigned group = static_cast<unsigned>(header(kGroupWord)),
                   vector = static_cast<unsigned>(header(kVectorWord));
    const Bits64 rows = header(kRowsWord), length = header(kRowWord), parts = header(kPartsWord);
    if (mode == InterpreterMode::kEntries) {
      begin = Bits64{blockIdx.x} * kThreads * vector;
      own = threadIdx.x * vector;
      end = length;
      step = Bits64{gridDim.x} * kThreads * vector;
      run_program();
      return;
    }
    lane = threadIdx.x % group;
    own = lane * vector;
    step = Bits64{group} * vector;
    const Bits64 together = kThreads / group;
    const Bits64 items = mode == InterpreterMode::kRows ? (rows + together - 1) / together : rows * parts;
    for (Bits64 item = blockIdx.x; item < items; item += gridDim.x) {
      if (mode == InterpreterMode::kRows) {
        const Bits64 wanted = item * together + threadIdx.x / group;
        live = wanted < rows;
        row = live ? wanted : rows - 1;
        begin = 0;
        end = length;
      } else {
        row = item / parts;
        part = item % parts;
        begin = part * header(kPartLengthWord);
        end = begin + header(kPartLengthWord) < length ? begin + header(kPartLengthWord) : length;
      }
      run_program();
    }
  }
};

template <int kWords>
struct InterpreterArguments {
  Bits64 words[kWords];
};

template <int kSlots>
HETERO_DEVICE void interpret(const Bits64* words) {
  __shared__ Bits128 memory[kThreads * kStateBytes / 16];
  Bits64 slots[kSlots];
  Thread thread{words, slots, memory, 0, 0, 0, 0, 0, 0, 0, true};
  thread.run_all();
}

extern "C" __global__ void __launch_bounds__(256) fused_interpreter_small(
    const __grid_constant__ InterpreterArguments<hetero::backend::kInterpreterSizes[0].words> a) {
  interpret<hetero::backend::kInterpreterSizes[0].slots>(a.words);
}
extern "C" __global__ void __launch_bounds__(256) fused_interpreter_large(
    const __grid_constant__ InterpreterArguments<hetero::backend::kInterpreterSizes[1].words> a) {
  interpret<hetero::backend::kInterpreterSizes[1].slots>(a.words);
}

}  // namespace hetero_fused
