// The one kernel that the stand-in (standin_cuda.cpp) runs: hetero's, which copies many pieces. Its
// text is compiled as plain C++, with the addresses at which the host reaches the memories.

#include <mutex>
#include <vector>

#include "tests/backend/cuda/cuda_threads.h"
// After what stands for CUDA.
#include "backend/cuda/pieces.cu"

namespace standin {

void* access_to(const void* address);

void run_copy_pieces(unsigned blocks, hetero::backend::PieceArguments arguments) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  std::vector<hetero::backend::CopyPiece> pieces(arguments.pieces, arguments.pieces + arguments.count);
  for (hetero::backend::CopyPiece& piece : pieces) {
    piece.to = static_cast<char*>(access_to(piece.to));
    piece.from = static_cast<const char*>(access_to(piece.from));
  }
  arguments.pieces = pieces.data();
  emulation::run(blocks, false, [&] { hetero_pieces::hetero_copy_pieces(arguments); });
}

}  // namespace standin
