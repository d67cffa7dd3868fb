// 1. Text becomes words: capitals and accents go, blanks and control characters separate or vanish,
//    punctuation and Chinese characters are words of their own.
// 2. A word becomes the longest piece of the vocabulary that it begins with, then the longest one
//    ("##...") that the rest begins with, and so on; where that fails, [UNK].
//
// As in BERT: Devlin et al. 2018, tokenization.py of google-research/bert.

#include "wordpiece.h"

#include <fstream>
#include <stdexcept>
#include <utility>

namespace {

constexpr size_t kLongestWord = 100;

// The letters U+00C0 to U+017F, small and without accents; a dot for those that have none, or are
// no letters.
constexpr char kPlainLetters[] =
    "aaaaaa.ceeeeiiii.nooooo..uuuuy..aaaaaa.ceeeeiiii.nooooo..uuuuy.y"
    "aaaaaaccccccccdd..eeeeeeeeeegggggggghh..iiiiiiiii...jjkk.llllll."
    "...nnnnnn...oooooo..rrrrrrsssssssstttt..uuuuuuuuuuuuwwyyyzzzzzz.";

// Greek and Cyrillic letters with accents, and without.
constexpr char32_t kAccented[][2] = {
    {0x386, 0x3B1}, {0x388, 0x3B5}, {0x389, 0x3B7}, {0x38A, 0x3B9}, {0x38C, 0x3BF}, {0x38E, 0x3C5},
    {0x38F, 0x3C9}, {0x390, 0x3B9}, {0x3AA, 0x3B9}, {0x3AB, 0x3C5}, {0x3AC, 0x3B1}, {0x3AD, 0x3B5},
    {0x3AE, 0x3B7}, {0x3AF, 0x3B9}, {0x3B0, 0x3C5}, {0x3CA, 0x3B9}, {0x3CB, 0x3C5}, {0x3CC, 0x3BF},
    {0x3CD, 0x3C5}, {0x3CE, 0x3C9}, {0x400, 0x435}, {0x401, 0x435}, {0x403, 0x433}, {0x407, 0x456},
    {0x40C, 0x43A}, {0x40D, 0x438}, {0x40E, 0x443}, {0x419, 0x438}, {0x439, 0x438}, {0x450, 0x435},
    {0x451, 0x435}, {0x453, 0x433}, {0x457, 0x456}, {0x45C, 0x43A}, {0x45D, 0x438}, {0x45E, 0x443}};

bool within(char32_t c, char32_t first, char32_t last) { return first <= c && c <= last; }

// Malformed bytes become U+FFFD, which step 1 drops.
std::u32string decode(std::string_view text) {
  constexpr char32_t kBad = 0xFFFD;
  std::u32string decoded;
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i++]);
    if (first < 0x80) {
      decoded += first;
      continue;
    }
    const int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : first >= 0xC0 ? 1 : -1;
    char32_t c = more < 0 ? kBad : first & (0x3Fu >> more);
    for (int k = 0; k < more && c != kBad; ++k) {
      const bool follows = i < text.size() && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80;
      c = follows ? c << 6 | (static_cast<unsigned char>(text[i++]) & 0x3F) : kBad;
    }
    decoded += c;
  }
  return decoded;
}

void append_utf8(char32_t c, std::string& text) {
  if (c < 0x80) {
    text += static_cast<char>(c);
    return;
  }
  const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  constexpr unsigned kHeads[] = {0, 0xC0, 0xE0, 0xF0};
  text += static_cast<char>(kHeads[more] | c >> 6 * more);
  for (int k = more; k-- > 0;) text += static_cast<char>(0x80 | (c >> 6 * k & 0x3F));
}

std::string encode_utf8(std::u32string_view text) {
  std::string encoded;
  for (const char32_t c : text) append_utf8(c, encoded);
  return encoded;
}

char32_t lower(char32_t c) {
  if (within(c, 'A', 'Z')) return c + 0x20;
  if (within(c, 0xC0, 0x17F) && kPlainLetters[c - 0xC0] != '.') {
    return static_cast<unsigned char>(kPlainLetters[c - 0xC0]);
  }
  for (const auto& [accented, plain] : kAccented) {
    if (c == accented) return plain;
  }
  if (within(c, 0xC0, 0xDE) && c != 0xD7) return c + 0x20;
  if (within(c, 0x100, 0x137) || within(c, 0x14A, 0x177)) return c | 1;
  if (c == 0x141) return 0x142;
  if (within(c, 0x391, 0x3A9) || within(c, 0x410, 0x42F)) return c + 0x20;
  if (within(c, 0x400, 0x40F)) return c + 0x50;
  return c;
}

bool is_blank(char32_t c) {
  return c == ' ' || within(c, '\t', '\n') || c == '\r' || c == 0xA0 || c == 0x1680 || within(c, 0x2000, 0x200A) ||
         within(c, 0x2028, 0x2029) || c == 0x202F || c == 0x205F || c == 0x3000;
}

// Also marks that stand over a letter: accents.
bool vanishes(char32_t c) {
  return c < 0x20 || within(c, 0x7F, 0x9F) || c == 0xAD || within(c, 0x200B, 0x200F) || within(c, 0x202A, 0x202E) ||
         within(c, 0x2060, 0x2064) || c == 0xFEFF || c == 0xFFFD || within(c, 0x300, 0x36F);
}

bool is_punctuation(char32_t c) {
  return within(c, '!', '/') || within(c, ':', '@') || within(c, '[', '`') || within(c, '{', '~') || c == 0xA1 ||
         c == 0xA7 || c == 0xAB || c == 0xB6 || c == 0xB7 || c == 0xBB || c == 0xBF || within(c, 0x2010, 0x2027) ||
         within(c, 0x2030, 0x2043) || within(c, 0x2045, 0x2051) || within(c, 0x2053, 0x205E) ||
         within(c, 0x3001, 0x3003) || within(c, 0x3008, 0x3011) || within(c, 0xFF01, 0xFF03) || c == 0xFF0C ||
         c == 0xFF0E || c == 0xFF1A || c == 0xFF1B || c == 0xFF1F;
}

bool is_chinese(char32_t c) {
  return within(c, 0x4E00, 0x9FFF) || within(c, 0x3400, 0x4DBF) || within(c, 0x20000, 0x2A6DF) ||
         within(c, 0x2A700, 0x2CEAF) || within(c, 0xF900, 0xFAFF) || within(c, 0x2F800, 0x2FA1F);
}

std::vector<std::u32string> split_words(std::string_view text) {
  std::vector<std::u32string> words;
  std::u32string word;
  const auto end_word = [&] {
    if (!word.empty()) words.push_back(std::exchange(word, {}));
  };
  for (char32_t c : decode(text)) {
    if (is_blank(c)) {
      end_word();
      continue;
    }
    if (vanishes(c)) continue;
    c = lower(c);
    const bool alone = is_punctuation(c) || is_chinese(c);
    if (alone) end_word();
    word += c;
    if (alone) end_word();
  }
  end_word();
  return words;
}

}  // namespace

WordPiece::WordPiece(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    vocabulary_.emplace(line, static_cast<int64_t>(vocabulary_.size()));
  }
  unknown_ = number("[UNK]");
  begin_ = number("[CLS]");
  end_ = number("[SEP]");
  if (unknown_ < 0 || begin_ < 0 || end_ < 0) throw std::runtime_error(path + " is no vocabulary of a BERT model");
}

int64_t WordPiece::number(const std::string& token) const {
  const auto found = vocabulary_.find(token);
  return found == vocabulary_.end() ? -1 : found->second;
}

void WordPiece::append_word(const std::u32string& word, std::vector<int64_t>& tokens) const {
  const size_t before = tokens.size();
  size_t begin = 0;
  while (begin < word.size() && word.size() <= kLongestWord) {
    int64_t piece = -1;
    size_t end = word.size() + 1;
    while (piece < 0 && --end > begin) {
      const std::string text = encode_utf8(std::u32string_view(word).substr(begin, end - begin));
      piece = number(begin == 0 ? text : "##" + text);
    }
    if (piece < 0) break;
    tokens.push_back(piece);
    begin = end;
  }
  if (begin == word.size()) return;
  tokens.resize(before);
  tokens.push_back(unknown_);
}

std::vector<int64_t> WordPiece::encode(std::string_view text, size_t length) const {
  std::vector<int64_t> tokens = {begin_};
  for (const std::u32string& word : split_words(text)) append_word(word, tokens);
  if (tokens.size() > length - 1) tokens.resize(length - 1);
  tokens.push_back(end_);
  return tokens;
}
