// AddedTokens: tokens that are found in the text itself, before it is normalized or cut into words.
//
// Thread safety: immutable once made.

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/base/status.h"
#include "qwen3/text/pattern.h"

namespace hetero::qwen3 {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool is_special = false;
  bool is_normalized = false;  // found in normalized text
  bool takes_space_before = false;
  bool takes_space_behind = false;
  bool is_single_word = false;  // not found within a word
};

// A set of them that is searched at once.
class AddedTokens {
 public:
  // A piece of the text: a token, or text that is none.
  struct Piece {
    std::string_view text;
    int32_t id = -1;  // -1: text
  };

  AddedTokens() = default;
  // Errors: kInternal if the patterns for words do not compile.
  static Result<AddedTokens> make(std::vector<AddedToken> tokens);

  // Cuts the text into pieces, none empty. Of tokens at one place the longest is found; text that
  // was part of a token that was found, or that must not be found here, is not searched again.
  // REQUIRES: well-formed UTF-8. `pieces` refer to it.
  Status split(std::string_view text, bool parse_special, std::vector<Piece>& pieces) const;

 private:
  const AddedToken* longest_at(std::string_view text, size_t at) const;
  Result<bool> is_within_word(std::string_view text, size_t begin, size_t end) const;

  // By first byte, then the longest first; and the range of each first byte.
  std::vector<AddedToken> tokens_;
  std::array<std::pair<uint32_t, uint32_t>, 256> by_first_byte_{};
  // A character of a word; empty if no token asks for it.
  std::vector<Pattern> word_patterns_;
};

}  // namespace hetero::qwen3
