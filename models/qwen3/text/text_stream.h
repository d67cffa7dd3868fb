// TextStream: text from tokens as they come, never half a character.
//
// A character may take several tokens. add() returns what is certain and keeps the rest, at most
// three bytes. The pieces joined are what Tokenizer::decode() gives for all tokens.
//
// Thread safety: one thread at a time.
// Ownership: refers to the tokenizer, which must outlive it.

#pragma once

#include <cstdint>
#include <string>

#include "qwen3/text/tokenizer.h"
#include "qwen3/text/unicode.h"

namespace hetero::qwen3 {

class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  // The text that is certain with this token; may be empty.
  std::string add(int32_t id) {
    std::string text;
    if (skip_special_ && tokenizer_.is_special(id)) return text;
    pending_ += tokenizer_.bytes(id);
    take_utf8(pending_, text, false);
    return text;
  }

  // What is kept: an incomplete character becomes U+FFFD. The stream may then be used again.
  std::string finish() {
    std::string text;
    take_utf8(pending_, text, true);
    return text;
  }

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::string pending_;
};

}  // namespace hetero::qwen3
