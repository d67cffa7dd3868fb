// BytePairs: byte-level byte pair encoding, from the bytes of a word to token ids.
//
// A word starts as one token for each byte. As long as two neighbours have a merge, the pair with
// the least rank is replaced by its token; of equal ranks, the first. Pairs wait in a priority
// queue, so a word of n bytes takes O(n log n).
//
// Thread safety: immutable once made. A Workspace belongs to one thread at a time.

#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/base/status.h"

namespace hetero::qwen3 {

class BytePairs {
 public:
  struct Merge {
    int32_t left = 0;
    int32_t right = 0;
    int32_t result = 0;
  };

  // A token of the word, in a list.
  struct Symbol {
    int32_t id = 0;
    int32_t before = -1;
    int32_t after = -1;
    bool is_gone = false;  // merged into the one before
  };

  // A merge that may be done.
  struct Candidate {
    uint32_t rank = 0;
    int32_t position = 0;  // of the left symbol
    int32_t result = 0;
  };

  struct Workspace {
    std::vector<Symbol> symbols;
    std::vector<Candidate> queue;
  };

  BytePairs() = default;
  // `byte_ids` has the token of each byte. Merges come in the order of their ranks; of equal pairs,
  // the last counts, as in the `tokenizers` package.
  BytePairs(const std::array<int32_t, 256>& byte_ids, std::span<const Merge> merges);

  // Appends the word's tokens. REQUIRES: a word below 2^31 bytes.
  void encode(std::string_view word, Workspace& workspace, std::vector<int32_t>& ids) const;

 private:
  struct Slot {
    uint64_t pair = kEmpty;
    uint32_t rank = 0;
    int32_t result = 0;
  };
  static constexpr uint64_t kEmpty = UINT64_MAX;

  static uint64_t pair_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t pair) const;
  const Slot* find(int32_t left, int32_t right) const;
  void push(Workspace& workspace, int32_t position) const;

  std::array<int32_t, 256> byte_ids_{};
  std::vector<Slot> slots_;  // open addressing; a power of two
  int shift_ = 0;
};

}  // namespace hetero::qwen3
