// TokenizerFile: a tokenizer.json as data, checked.
//
// Thread safety: a value.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "backend/base/status.h"
#include "qwen3/text/added_tokens.h"
#include "qwen3/text/byte_pairs.h"
#include "qwen3/text/pattern.h"

namespace hetero::qwen3 {

struct TokenizerFile {
  std::unordered_map<std::string, int32_t> ids;  // by the spelling of tokenizer.json
  std::vector<std::string> bytes;                // of each id
  std::vector<AddedToken> added;
  std::vector<Pattern> splits;  // one after the other
  BytePairs pairs;
  bool is_normalized = false;   // by NFC
  bool ignores_merges = false;  // a word that is in the vocabulary is that token

  // Errors: kStorage, one sentence.
  static Result<TokenizerFile> parse(std::string_view json);
};

// The bytes that byte-level BPE spells with these characters; the text itself if one of them stands
// for no byte.
std::string bytes_of_spelling(std::string_view spelling);
// How byte-level BPE spells bytes.
std::string spelling_of_bytes(std::string_view bytes);

}  // namespace hetero::qwen3
