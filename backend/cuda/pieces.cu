// One launch that copies many pieces between memories that a GPU reaches: its own, and pinned
// memory of the host.
//
// Blocks of threads take pieces in turn, or parts of them. Threads of a block copy words next to
// each other, the largest that both addresses are aligned to, several before they wait. nvcc
// compiles it in advance; tests/backend/cuda/pieces_test.cpp compiles it as plain C++.

#include "backend/cuda/pieces.h"

#if defined(__CUDACC__)
#define HETERO_PIECE __device__ __forceinline__
#else
#define HETERO_PIECE inline
#endif

namespace hetero_pieces {

using hetero::backend::CopyPiece;
using hetero::backend::PieceArguments;
typedef unsigned long long Count;

struct alignas(16) Word16 {
  unsigned long long low, high;
};

// Words first, first + step, ... of the piece. Returns the bytes of all its words.
template <typename Word>
HETERO_PIECE Count copy_words(const CopyPiece& piece, Count first, Count step) {
  constexpr int kTogether = 4;
  const Count words = piece.bytes / sizeof(Word);
  Word* const to = reinterpret_cast<Word*>(piece.to);
  const Word* const from = reinterpret_cast<const Word*>(piece.from);
  for (Count begin = first; begin < words; begin += kTogether * step) {
    Word values[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (begin + i * step < words) values[i] = from[begin + i * step];
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (begin + i * step < words) to[begin + i * step] = values[i];
    }
  }
  return words * sizeof(Word);
}

extern "C" __global__ void __launch_bounds__(256) hetero_copy_pieces(const __grid_constant__ PieceArguments arguments) {
  const Count step = arguments.parts * hetero::backend::kPieceThreads;
  for (Count unit = blockIdx.x; unit < arguments.count * arguments.parts; unit += gridDim.x) {
    const CopyPiece piece = arguments.pieces[unit / arguments.parts];
    const Count first = unit % arguments.parts * hetero::backend::kPieceThreads + threadIdx.x;
    const Count addresses = reinterpret_cast<Count>(piece.to) | reinterpret_cast<Count>(piece.from);
    Count copied = 0;
    if (addresses % 16 == 0) {
      copied = copy_words<Word16>(piece, first, step);
    } else if (addresses % 4 == 0) {
      copied = copy_words<unsigned>(piece, first, step);
    }
    const CopyPiece rest{piece.to + copied, piece.from + copied, piece.bytes - copied};
    copy_words<char>(rest, first, step);
  }
}

}  // namespace hetero_pieces
