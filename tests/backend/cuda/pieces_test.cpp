// The kernel that copies many pieces, compiled as plain C++: every byte of each piece, and no other,
// for all sizes, alignments and grids.

#include <random>
#include <vector>

#include "tests/backend/cuda/cuda_threads.h"
#include "tests/catch/catch.h"
// After what stands for CUDA.
#include "backend/cuda/pieces.cu"

namespace {

using hetero::backend::CopyPiece;

// Pieces apart from each other, from one memory to another.
struct Pieces {
  explicit Pieces(size_t bytes) : from(bytes), to(bytes, 'x'), expected(bytes, 'x') {
    std::mt19937 random(1);
    for (char& byte : from) byte = static_cast<char>(random());
  }
  void add(size_t to_offset, size_t from_offset, size_t bytes) {
    table.push_back({to.data() + to_offset, from.data() + from_offset, bytes});
    std::copy_n(from.begin() + static_cast<ptrdiff_t>(from_offset), bytes,
                expected.begin() + static_cast<ptrdiff_t>(to_offset));
  }
  void run(unsigned blocks, unsigned parts) {
    const hetero::backend::PieceArguments arguments{table.data(), table.size(), parts};
    emulation::run(blocks, false, [&] { hetero_pieces::hetero_copy_pieces(arguments); });
  }

  // Vectors of so many bytes begin on borders of 16 bytes.
  std::vector<char> from, to, expected;
  std::vector<CopyPiece> table;
};

TEST_CASE("the kernel copies all bytes of its pieces and no other, of any size and alignment") {
  Pieces pieces(1 << 20);
  size_t at = 16;
  for (size_t bytes : {0, 1, 3, 4, 15, 16, 17, 63, 64, 1000, 4096, 16384, 16385, 40000}) {
    for (size_t to : {0, 1, 4, 8}) {
      for (size_t from : {0, 2, 4, 8}) {
        if (at + bytes + 64 > pieces.to.size()) continue;
        pieces.add(at + to, at + from, bytes);
        at += (bytes + 47) / 16 * 16;
      }
    }
  }
  REQUIRE(pieces.table.size() > 200);
  const unsigned blocks = GENERATE(1u, 7u, 64u), parts = GENERATE(1u, 4u);
  pieces.run(blocks, parts);
  CHECK(pieces.to == pieces.expected);
}

TEST_CASE("the kernel has nothing to do without pieces, and shares one among many blocks") {
  Pieces none(100);
  none.run(3, 1);
  CHECK(none.to == none.expected);
  Pieces one(1 << 20);
  one.add(5, 5, (1 << 20) - 5);
  one.run(2, 64);
  CHECK(one.to == one.expected);
}

}  // namespace
