// UTF-8 and normalization, against simple definitions of both.

#include "qwen3/text/unicode.h"

#include <utf8proc.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "tests/catch/catch.h"

namespace hetero::qwen3 {
namespace {

std::string utf8_of(uint32_t c) {
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  return std::string(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
}

// The library's normalization of the whole text at once.
std::string nfc_of(const std::string& text) {
  utf8proc_uint8_t* result = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &result, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  REQUIRE(length >= 0);
  std::string normalized(reinterpret_cast<const char*>(result), static_cast<size_t>(length));
  std::free(result);
  return normalized;
}

bool is_character(uint32_t c) { return c < 0x110000 && !(c >= 0xD800 && c < 0xE000); }

// Whether the bytes are exactly one character, by decoding and encoding it again.
bool is_one_character(const std::string& bytes) {
  utf8proc_int32_t c = 0;
  const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(bytes.data()),
                                       static_cast<utf8proc_ssize_t>(bytes.size()), &c);
  return length == static_cast<utf8proc_ssize_t>(bytes.size()) && c >= 0 && utf8_of(static_cast<uint32_t>(c)) == bytes;
}

}  // namespace

TEST_CASE("normalizing piece by piece is normalizing the whole text") {
  // Characters that compose, decompose, reorder, and Hangul.
  const std::vector<uint32_t> marks = {
      'a',     'e',     'o',    ' ',    0x301,  0x302,   0x323,   0x328,  0x345,  0xE9,   0x1EA1,  0x212B,  0x1100,
      0x1161,  0x11A8,  0xAC00, 0xAC01, 0x0958, 0x0915,  0x093C,  0x0344, 0x4E00, 0xF900, 0x2F800, 0x1D15E, 0x1D158,
      0x1D165, 0x1F600, 0xFB1D, 0x0F71, 0x0F72, 0x20000, 0xE0041, 0x338,  '=',    '<',    0x3C9,   0x314};
  std::mt19937 random(1);
  for (int i = 0; i < 50000; ++i) {
    std::string text;
    for (size_t left = random() % 12; left > 0; --left) {
      const uint32_t any = random() % 0x30000;
      text += utf8_of(random() % 8 != 0 || !is_character(any) ? marks[random() % marks.size()] : any);
    }
    const std::string expected = nfc_of(text);
    INFO(text);
    REQUIRE(to_nfc(text) == expected);
    if (is_clearly_nfc(text)) REQUIRE(text == expected);
  }
}

TEST_CASE("every character normalizes as in the library, alone and between others") {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (!is_character(c)) continue;
    const std::string text = "a" + utf8_of(c) + "\u0301";
    if (to_nfc(text) != nfc_of(text) || to_nfc(utf8_of(c)) != nfc_of(utf8_of(c))) {
      INFO(c);
      REQUIRE(false);
    }
  }
}

TEST_CASE("most text needs no normalization") {
  CHECK(is_clearly_nfc("plain ASCII, façade, Größe"));
  CHECK(is_clearly_nfc("漢字かな 한국어 кириллица ελληνικά 🙂"));
  CHECK(!is_clearly_nfc("e\u0301"));
}

TEST_CASE("text is well-formed exactly if all its characters are") {
  std::mt19937 random(2);
  const std::string_view bytes = "a\x80\xBF\xC0\xC1\xC2\xDF\xE0\xED\xEF\xF0\xF4\xF5\xFF\x8F\x90\x9F\xA0";
  for (int i = 0; i < 200000; ++i) {
    std::string text;
    for (size_t left = 1 + random() % 5; left > 0; --left) text += bytes[random() % bytes.size()];
    // The longest prefix of characters.
    size_t at = 0;
    while (at < text.size()) {
      size_t length = 1;
      while (length <= 4 && !(at + length <= text.size() && is_one_character(text.substr(at, length)))) ++length;
      if (length > 4) break;
      at += length;
    }
    const size_t expected = at == text.size() ? std::string_view::npos : at;
    REQUIRE(find_invalid_utf8(text) == expected);
    REQUIRE(find_invalid_utf8("12345678" + text) == (expected == std::string_view::npos ? expected : expected + 8));
  }
}

TEST_CASE("text that is taken in pieces is the text that is taken at once") {
  std::mt19937 random(3);
  const std::string_view bytes = "ab\x80\xBF\xC2\xE2\x82\xAC\xF0\x9F\x98\x80\xED\xA0\xFF";
  for (int i = 0; i < 100000; ++i) {
    std::string all;
    std::string pending;
    std::string text;
    for (size_t left = random() % 10; left > 0; --left) {
      std::string piece;
      for (size_t more = random() % 3; more > 0; --more) piece += bytes[random() % bytes.size()];
      all += piece;
      pending += piece;
      take_utf8(pending, text, false);
      REQUIRE(find_invalid_utf8(text) == std::string_view::npos);
      REQUIRE(pending.size() <= 3);
    }
    take_utf8(pending, text, true);
    REQUIRE(pending.empty());
    std::string whole;
    take_utf8(all, whole, true);
    REQUIRE(text == whole);
  }
}

TEST_CASE("each maximal part of a character becomes one replacement") {
  const auto lossy = [](std::string bytes) {
    std::string text;
    take_utf8(bytes, text, true);
    return text;
  };
  // The examples of the Unicode standard, table 3-8 and following.
  CHECK(lossy("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41") == "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
  CHECK(lossy("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41") == "\uFFFD\uFFFD\uFFFD\uFFFDA");
  CHECK(lossy("\xED\xA0\x80") == "\uFFFD\uFFFD\uFFFD");
}

}  // namespace hetero::qwen3
