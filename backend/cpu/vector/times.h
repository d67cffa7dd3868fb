// times<N>(body): body(Index<0>()) to body(Index<N - 1>()). The compiler keeps arrays in registers
// whose indices are constants from the start, and not always those of loops that it unrolls.
//
//   times<kOutputs>([&](auto i) __attribute__((always_inline)) { sums[i] = bias; });
//
// Thread safety: none of its own.

#pragma once

namespace hetero::backend {

template <int I>
struct Index {
  constexpr operator int() const { return I; }
};

template <int N, typename Body>
[[gnu::always_inline]] inline void times(Body&& body) {
  if constexpr (N > 0) {
    times<N - 1>(body);
    body(Index<N - 1>());
  }
}

}  // namespace hetero::backend
