// WordPiece: text to the token numbers of a BERT model that does not tell capitals from small
// letters, as transformers' BertTokenizer gives them.
//
// Text is UTF-8. Letters of the Latin (up to U+017F), Greek and Cyrillic alphabets lose their case
// and their accents; all others stay as they are, though BERT also takes some of them apart, such
// as Korean syllables. That takes a Unicode library, such as ICU.
//
// Thread safety: immutable once made.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

class WordPiece {
 public:
  // Reads a vocabulary, a token a line. Throws std::runtime_error where there is none.
  explicit WordPiece(const std::string& path);

  // [CLS], the tokens, [SEP]; at most `length` altogether.
  std::vector<int64_t> encode(std::string_view text, size_t length) const;

 private:
  int64_t number(const std::string& token) const;
  void append_word(const std::u32string& word, std::vector<int64_t>& tokens) const;

  std::unordered_map<std::string, int64_t> vocabulary_;
  int64_t unknown_ = 0, begin_ = 0, end_ = 0;
};
