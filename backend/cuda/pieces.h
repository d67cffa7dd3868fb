// The table and the arguments of the kernel that copies many pieces (pieces.cu), for the host and
// for nvcc.

#pragma once

namespace hetero::backend {

struct CopyPiece {
  char* to;
  const char* from;
  unsigned long long bytes;
};

// Each piece is shared by `parts` blocks of threads.
struct PieceArguments {
  const CopyPiece* pieces;
  unsigned long long count;
  unsigned long long parts;
};

inline constexpr unsigned kPieceThreads = 256;  // of a block

}  // namespace hetero::backend
