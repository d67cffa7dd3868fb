#include "qwen3/text/added_tokens.h"

#include <algorithm>
#include <tuple>

#include "qwen3/text/unicode.h"

namespace hetero::qwen3 {
namespace {

// Bytes of the white space character at the start, 0 if there is none: White_Space of Unicode.
size_t leading_space(std::string_view text) {
  if (text.empty()) return 0;
  const char c = text[0];
  if (c == ' ' || (c >= '\t' && c <= '\r')) return 1;
  for (const std::string_view two : {"\u0085", "\u00A0"}) {
    if (text.starts_with(two)) return 2;
  }
  const std::string_view three = text.substr(0, 3);
  if (three >= "\u2000" && three <= "\u200A" && three.size() == 3) return 3;
  for (const std::string_view space : {"\u1680", "\u2028", "\u2029", "\u202F", "\u205F", "\u3000"}) {
    if (three == space) return 3;
  }
  return 0;
}

size_t skip_space(std::string_view text, size_t at) {
  while (const size_t length = leading_space(text.substr(at))) at += length;
  return at;
}

// Where the white space begins that ends at `at`, not before `least`.
size_t space_before(std::string_view text, size_t at, size_t least) {
  while (at > least) {
    size_t begin = at - 1;
    while (begin > least && (text[begin] & 0xC0) == 0x80) --begin;
    if (leading_space(text.substr(begin)) != at - begin) break;
    at = begin;
  }
  return at;
}

}  // namespace

Result<AddedTokens> AddedTokens::make(std::vector<AddedToken> tokens) {
  AddedTokens added;
  added.tokens_ = std::move(tokens);
  std::ranges::sort(added.tokens_, [](const AddedToken& a, const AddedToken& b) {
    return std::tuple(static_cast<unsigned char>(a.content[0]), b.content.size(), a.id) <
           std::tuple(static_cast<unsigned char>(b.content[0]), a.content.size(), b.id);
  });
  bool has_words = false;
  for (uint32_t i = 0; i < added.tokens_.size(); ++i) {
    auto& [begin, end] = added.by_first_byte_[static_cast<unsigned char>(added.tokens_[i].content[0])];
    if (end == 0) begin = i;
    end = i + 1;
    has_words |= added.tokens_[i].is_single_word;
  }
  if (!has_words) return added;
  // What \w is to the package that is the model.
  const std::string word = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]";
  auto pattern = Pattern::compile(word);
  if (!pattern.ok()) return Status(ErrorClass::kInternal, pattern.status().message());
  added.word_patterns_.push_back(std::move(pattern.value()));
  return added;
}

const AddedToken* AddedTokens::longest_at(std::string_view text, size_t at) const {
  const auto [begin, end] = by_first_byte_[static_cast<unsigned char>(text[at])];
  for (uint32_t i = begin; i < end; ++i) {
    if (text.substr(at).starts_with(tokens_[i].content)) return &tokens_[i];
  }
  return nullptr;
}

// Whether a word's character is next to the range.
Result<bool> AddedTokens::is_within_word(std::string_view text, size_t begin, size_t end) const {
  Pattern::Matcher matcher;
  size_t before = begin;
  while (before > 0 && (text[--before] & 0xC0) == 0x80) {
  }
  for (const auto& [at, length] : {std::pair(before, begin - before), std::pair(end, text.size() - end)}) {
    if (length == 0) continue;
    const std::string_view character = text.substr(at, utf8_length(text[at]));
    const auto match = word_patterns_[0].find(character, 0, matcher);
    if (!match.ok()) return match.status();
    if (match.value().begin == 0) return true;
  }
  return false;
}

Status AddedTokens::split(std::string_view text, bool parse_special, std::vector<Piece>& pieces) const {
  size_t taken = 0;  // all before is in `pieces`
  for (size_t at = tokens_.empty() ? text.size() : 0; at < text.size();) {
    const AddedToken* token = longest_at(text, at);
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + token->content.size();
    at = end;
    if (token->is_special && !parse_special) continue;
    if (token->is_single_word) {
      const auto within = is_within_word(text, begin, end);
      if (!within.ok()) return within.status();
      if (within.value()) continue;
    }
    if (token->takes_space_before) begin = space_before(text, begin, std::min(taken, begin));
    if (token->takes_space_behind) end = skip_space(text, end);
    if (taken < begin) pieces.push_back({text.substr(taken, begin - taken)});
    pieces.push_back({text.substr(begin, end - begin), token->id});
    taken = end;
  }
  if (taken < text.size()) pieces.push_back({text.substr(taken)});
  return Status();
}

}  // namespace hetero::qwen3
