#include "qwen3/text/unicode.h"

#include <utf8proc.h>

#include <array>
#include <bitset>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace hetero::qwen3 {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// What the bytes at the start of a text are: `length` bytes of a character, or of a part of one
// that no further byte makes well-formed, or all that is there of a character that is not complete.
struct Sequence {
  enum class Kind : uint8_t { kCharacter, kInvalid, kIncomplete };
  Kind kind;
  size_t length;
};

// By table 3-7 of the Unicode standard. REQUIRES: not empty.
Sequence read_sequence(std::string_view text) {
  using Kind = Sequence::Kind;
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {Kind::kCharacter, 1};
  if (first < 0xC2 || first > 0xF4) return {Kind::kInvalid, 1};
  const size_t length = utf8_length(text[0]);
  // The second byte has bounds of its own after some first bytes.
  const unsigned char least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Kind::kIncomplete, i};
    if (byte(i) < (i == 1 ? least : 0x80) || byte(i) > (i == 1 ? most : 0xBF)) return {Kind::kInvalid, i};
  }
  return {Kind::kCharacter, length};
}

// REQUIRES: a complete character.
uint32_t code_point(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(character[i])); };
  switch (character.size()) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  }
}

// Normalizes by the library. `text` is short, or rare.
std::string normalize(std::string_view text) {
  utf8proc_uint8_t* result = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &result, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  if (length < 0) throw std::bad_alloc();  // the text is well-formed, so there is no other error
  return std::string(reinterpret_cast<const char*>(result), static_cast<size_t>(length));
}

// Characters of the first two planes that neither change nor compose with what is before them:
// runs of them are normalized as they are, and a text may be cut before each of them.
class InertCharacters {
 public:
  InertCharacters() {
    for (uint32_t c = 0; c < kCount; ++c) {
      const bool is_surrogate = c >= 0xD800 && c < 0xE000;
      const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
      inert_[c] = !is_surrogate && property->combining_class == 0;
    }
    // What a character decomposes into, without its first character, composes with what is before.
    for (uint32_t c = 0; c < kCount; ++c) {
      std::array<utf8proc_int32_t, 8> parts{};
      int boundary = 0;
      const auto count =
          utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts.data(), parts.size(),
                                  static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), &boundary);
      if (count == 1 && static_cast<uint32_t>(parts[0]) == c) continue;
      for (utf8proc_ssize_t i = 1; i < count; ++i) set_not_inert(static_cast<uint32_t>(parts[static_cast<size_t>(i)]));
      if (!is_hangul_syllable(c) && normalize(utf8_of(c)) != utf8_of(c)) inert_[c] = false;
    }
  }

  bool contains(uint32_t c) const {
    if (c < kCount) return inert_[c];
    return c >= 0x20000 && c < 0x2F800;  // ideographs
  }

 private:
  static constexpr uint32_t kCount = 0x20000;

  static bool is_hangul_syllable(uint32_t c) { return c >= 0xAC00 && c < 0xD7A4; }

  static std::string utf8_of(uint32_t c) {
    std::array<utf8proc_uint8_t, 4> bytes{};
    const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes.data());
    return std::string(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(length));
  }

  void set_not_inert(uint32_t c) {
    if (c < kCount) inert_[c] = false;
  }

  std::bitset<kCount> inert_;
};

const InertCharacters& inert_characters() {
  // Leaked: used until the process ends.
  static const InertCharacters* const characters = new InertCharacters;
  return *characters;
}

// The first position at or after `from` whose character is beyond U+02FF: all before are inert.
size_t skip_latin(std::string_view text, size_t from) {
  while (from < text.size() && static_cast<unsigned char>(text[from]) < 0xCC) ++from;
  return from;
}

}  // namespace

size_t find_invalid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t word = 0;
    if (at + sizeof word <= text.size()) {
      std::memcpy(&word, text.data() + at, sizeof word);
      if ((word & 0x8080808080808080u) == 0) {
        at += sizeof word;
        continue;
      }
    }
    const Sequence sequence = read_sequence(text.substr(at, 4));
    if (sequence.kind != Sequence::Kind::kCharacter) return at;
    at += sequence.length;
  }
  return std::string_view::npos;
}

bool is_clearly_nfc(std::string_view text) {
  for (size_t at = skip_latin(text, 0); at < text.size(); at = skip_latin(text, at)) {
    const size_t length = utf8_length(text[at]);
    if (!inert_characters().contains(code_point(text.substr(at, length)))) return false;
    at += length;
  }
  return true;
}

std::string to_nfc(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  // What is before `starter` is in `result`; from it to `at`, all characters are inert.
  size_t starter = 0;
  size_t at = skip_latin(text, 0);
  while (at < text.size()) {
    const size_t length = utf8_length(text[at]);
    if (inert_characters().contains(code_point(text.substr(at, length)))) {
      at += length;
    } else {
      // From the inert character before, which may compose, up to the next inert one.
      size_t begin = at;
      if (begin > starter) {
        do --begin;
        while ((text[begin] & 0xC0) == 0x80);
      }
      size_t end = at + length;
      while (end < text.size()) {
        const size_t next = utf8_length(text[end]);
        if (inert_characters().contains(code_point(text.substr(end, next)))) break;
        end += next;
      }
      result.append(text, starter, begin - starter);
      result += normalize(text.substr(begin, end - begin));
      starter = at = end;
    }
    at = skip_latin(text, at);
  }
  return result.append(text, starter);
}

void take_utf8(std::string& pending, std::string& text, bool is_end) {
  size_t at = 0;
  while (at < pending.size()) {
    const Sequence sequence = read_sequence(std::string_view(pending).substr(at, 4));
    if (sequence.kind == Sequence::Kind::kIncomplete && !is_end) break;
    if (sequence.kind == Sequence::Kind::kCharacter) {
      text.append(pending, at, sequence.length);
    } else {
      text += kReplacement;
    }
    at += sequence.length;
  }
  pending.erase(0, at);
}

}  // namespace hetero::qwen3
