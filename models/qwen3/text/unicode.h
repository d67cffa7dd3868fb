// UTF-8 and normalization form C, by utf8proc.
//
// Thread safety: pure functions.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace hetero::qwen3 {

// Position of the first byte that does not belong to well-formed UTF-8; npos if all of it is.
size_t find_invalid_utf8(std::string_view text);

// Bytes of the character whose first byte is this, in well-formed UTF-8.
inline size_t utf8_length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// Normalization form C. REQUIRES: well-formed UTF-8.
std::string to_nfc(std::string_view text);

// Whether to_nfc() would change nothing, where that is seen without normalizing. False may also
// mean that it was not seen.
bool is_clearly_nfc(std::string_view text);

// Moves from `pending` to `text` all bytes whose text is certain: complete characters, and one
// U+FFFD for each maximal part of a character that cannot become well-formed. What may still become
// a character, at most three bytes, stays; with `is_end`, it becomes a U+FFFD.
void take_utf8(std::string& pending, std::string& text, bool is_end);

}  // namespace hetero::qwen3
