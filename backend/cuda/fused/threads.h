// Cooperation of a block's threads, in generated kernels and in the interpreter: reductions over a
// group of threads, and memory access in vectors.
//
// It follows formulas.h at the head of each generated kernel (source.h) and in interpreter.cu. A
// group is the threads that work on one row: a warp, or the whole block. States are merged in a
// tree whose shape depends on the group alone, so results do not change from run to run.

#pragma once

namespace hetero_fused {

// The number of threads of a block.
constexpr unsigned kThreads = 256;
// Bytes of a state that a group passes on.
constexpr unsigned kStateBytes = 32;

template <unsigned kGroup>
HETERO_DEVICE void synchronize_group() {
  if constexpr (kGroup > 32)
    __syncthreads();
  else
    __syncwarp();
}

// The states of all threads of the group merged into one, which all of them get. `memory`:
// kStateBytes for each thread of the block.
template <unsigned kGroup, typename State>
HETERO_DEVICE State reduce_group(const State& own, void* memory) {
  static_assert(sizeof(State) <= kStateBytes, "a larger state than there is room for");
  State* const states = static_cast<State*>(memory);
  const unsigned thread = threadIdx.x, lane = thread % kGroup;
  states[thread] = own;
  synchronize_group<kGroup>();
  for (unsigned half = kGroup / 2; half > 0; half /= 2) {
    if (lane < half) {
      State merged = states[thread];
      merged.merge(states[thread + half]);
      states[thread] = merged;
    }
    synchronize_group<kGroup>();
  }
  const State result = states[thread - lane];
  synchronize_group<kGroup>();
  return result;
}

// For a row that several blocks share: the state of each of its parts, kStateBytes apart.
template <typename State>
HETERO_DEVICE void merge_parts(State& state, const char* parts, Bits64 count) {
  state = *reinterpret_cast<const State*>(parts);
  for (Bits64 part = 1; part < count; ++part) {
    state.merge(*reinterpret_cast<const State*>(parts + part * kStateBytes));
  }
}

// kCount entries: side by side and aligned as one vector; or `stride` bytes apart, which may be 0.
template <int kCount, typename Bits>
HETERO_DEVICE void load_vector(Bits* to, const char* from) {
  typedef typename BitsOf<int(sizeof(Bits)) * kCount>::Type Vector;
  const Vector vector = *reinterpret_cast<const Vector*>(from);
  memcpy(to, &vector, sizeof(vector));
}
template <int kCount, typename Bits>
HETERO_DEVICE void store_vector(char* to, const Bits* from) {
  typedef typename BitsOf<int(sizeof(Bits)) * kCount>::Type Vector;
  Vector vector;
  memcpy(&vector, from, sizeof(vector));
  *reinterpret_cast<Vector*>(to) = vector;
}
template <int kCount, typename Bits>
HETERO_DEVICE void load_strided(Bits* to, const char* from, Index64 stride) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) to[k] = *reinterpret_cast<const Bits*>(from + k * stride);
}
template <int kCount, typename Bits>
HETERO_DEVICE void store_strided(char* to, const Bits* from, Index64 stride) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) *reinterpret_cast<Bits*>(to + k * stride) = from[k];
}

}  // namespace hetero_fused
