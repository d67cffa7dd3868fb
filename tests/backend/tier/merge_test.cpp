// Merging: every byte is moved once, neighbours share operations, and no limit is broken.

#include "backend/tier/merge.h"

#include <algorithm>
#include <map>
#include <random>

#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

std::byte* address(int64_t at) { return reinterpret_cast<std::byte*>(at); }

// Where each byte of the file goes, from operations or from pieces.
using Moves = std::multimap<int64_t, std::byte*>;

Moves moves_of(const std::vector<FilePiece>& pieces) {
  Moves moves;
  for (const FilePiece& piece : pieces) {
    for (int64_t i = 0; i < piece.bytes; ++i) moves.emplace(piece.offset + i, piece.memory + i);
  }
  return moves;
}

Moves moves_of(const std::vector<MergedOperation>& operations) {
  Moves moves;
  for (const MergedOperation& operation : operations) {
    int64_t offset = operation.offset;
    for (const iovec& part : operation.memory) {
      for (size_t i = 0; i < part.iov_len; ++i) moves.emplace(offset++, static_cast<std::byte*>(part.iov_base) + i);
    }
    CHECK(offset == operation.offset + operation.bytes);
  }
  return moves;
}

std::vector<std::pair<int64_t, std::byte*>> sorted(const Moves& moves) {
  std::vector<std::pair<int64_t, std::byte*>> all(moves.begin(), moves.end());
  std::sort(all.begin(), all.end());
  return all;
}

TEST_CASE("81,922 pieces that are contiguous in the file and scattered in memory are few operations", "[tier]") {
  constexpr int64_t kPieces = 81922, kBytes = 4096;
  std::vector<FilePiece> pieces;
  for (int64_t i = 0; i < kPieces; ++i) {
    pieces.push_back({i * kBytes, address((1 + (i * 7919) % kPieces) * 2 * kBytes), kBytes});
  }
  std::shuffle(pieces.begin(), pieces.end(), std::mt19937(1));
  CHECK(merge_pieces(pieces, {.bytes = MergeLimits::kMostBytes}).size() == (kPieces + 1023) / 1024);
  CHECK(merge_pieces(pieces).size() <= 1026);
}

TEST_CASE("Neighbouring blocks are one operation with one part, where memory is contiguous too", "[tier]") {
  std::vector<FilePiece> pieces;
  for (int64_t i = 7; i >= 0; --i) pieces.push_back({(100 + i) * 65536, address((100 + i) * 65536), 65536});
  const auto operations = merge_pieces(pieces);
  REQUIRE(operations.size() == 1);
  CHECK(operations[0].memory.size() == 1);
  CHECK(operations[0].offset == 100 * 65536);
  CHECK(operations[0].bytes == 8 * 65536);
  CHECK(operations[0].first_piece == 0);
  CHECK(operations[0].pieces == 8);
}

TEST_CASE("A piece larger than a request is split, and the parts are whole pages", "[tier]") {
  const int64_t bytes = (int64_t{5} << 30) + 4096;
  std::vector<FilePiece> pieces{{8192, address(4096), bytes}};
  const auto operations = merge_pieces(pieces, {.bytes = MergeLimits::kMostBytes});
  REQUIRE(operations.size() == 3);
  int64_t at = 8192;
  for (const MergedOperation& operation : operations) {
    CHECK(operation.offset == at);
    CHECK(operation.bytes % 4096 == 0);
    CHECK(operation.pieces == 1);
    at += operation.bytes;
  }
  CHECK(at == 8192 + bytes);
}

TEST_CASE("No pieces are no operations, and empty ones are none either", "[tier]") {
  std::vector<FilePiece> pieces;
  CHECK(merge_pieces(pieces).empty());
  pieces = {{0, address(64), 0}, {10, address(64), 0}};
  CHECK(merge_pieces(pieces).empty());
}

TEST_CASE("Every byte is moved once, to its place, within the limits, for any pieces", "[tier]") {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    const MergeLimits limits{.parts = 1 + static_cast<int64_t>(random() % 5),
                             .bytes = 1 + static_cast<int64_t>(random() % 40)};
    std::vector<FilePiece> pieces;
    int64_t offset = 0, memory = 4096;
    for (int count = static_cast<int>(random() % 30); count > 0; --count) {
      if (random() % 3 == 0) offset += random() % 4;
      if (random() % 3 == 0) memory += random() % 4;
      if (random() % 10 == 0) offset = std::max<int64_t>(0, offset - 5);  // overlaps
      const int64_t bytes = random() % 12;
      pieces.push_back({offset, address(memory), bytes});
      offset += bytes;
      memory += bytes;
    }
    std::shuffle(pieces.begin(), pieces.end(), random);
    const auto before = sorted(moves_of(pieces));
    const auto operations = merge_pieces(pieces, limits);
    REQUIRE(sorted(moves_of(operations)) == before);
    std::vector<int64_t> covered(pieces.size(), 0);
    for (const MergedOperation& operation : operations) {
      REQUIRE(operation.bytes <= limits.bytes);
      REQUIRE(std::ssize(operation.memory) <= limits.parts);
      REQUIRE(operation.pieces >= 1);
      for (size_t i = operation.first_piece; i < operation.first_piece + operation.pieces; ++i) {
        const int64_t from = std::max(pieces[i].offset, operation.offset);
        const int64_t to = std::min(pieces[i].offset + pieces[i].bytes, operation.offset + operation.bytes);
        if (pieces[i].bytes > 0) REQUIRE(to > from);
        covered[i] += std::max<int64_t>(0, to - from);
      }
    }
    for (size_t i = 0; i < pieces.size(); ++i) REQUIRE(covered[i] == pieces[i].bytes);
  }
}

}  // namespace
}  // namespace hetero::backend
