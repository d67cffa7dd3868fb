// The tokenizer, against a simple one. tests/python/models compares it with the `tokenizers`
// package.

#include "qwen3/text/tokenizer.h"

#include <atomic>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "qwen3/text/byte_pairs.h"
#include "qwen3/text/pattern.h"
#include "qwen3/text/text_stream.h"
#include "qwen3/text/tokenizer_file.h"
#include "tests/catch/catch.h"
#include "tests/models/qwen3/small_files.h"

namespace hetero::qwen3 {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

Tokenizer tokenizer_of(const Json& json) {
  auto tokenizer = Tokenizer::parse(json.dump());
  INFO((tokenizer.status().ok() ? "" : tokenizer.status().message()));
  REQUIRE(tokenizer.ok());
  return std::move(tokenizer.value());
}

Ids encode(const Tokenizer& tokenizer, const std::string& text, bool parse_special = true) {
  const auto ids = tokenizer.encode(text, parse_special);
  REQUIRE(ids.ok());
  return ids.value();
}

// The tokens as text, joined by |.
std::string pieces(const Tokenizer& tokenizer, const std::string& text, bool parse_special = true) {
  std::string result;
  for (const int32_t id : encode(tokenizer, text, parse_special)) {
    result += (result.empty() ? "" : "|") + tokenizer.bytes(id);
  }
  return result;
}

std::string refusal(const std::function<void(Json&)>& change) {
  Json json = small_tokenizer();
  change(json);
  const auto tokenizer = Tokenizer::parse(json.dump());
  return tokenizer.ok() ? "" : tokenizer.status().message();
}

std::string random_text(std::mt19937& random) {
  const std::vector<std::string> parts = {
      "the ", "and", "rolling",      " thinner", "  ", "\n",      "é",  "e\u0301", "漢",    "🙂",
      "12",   "'s",  "<|im_start|>", "<think>",  "<|", "aaaaaaa", "\t", ".",       "\u00a0"};
  std::string text;
  for (size_t left = random() % 12; left > 0; --left) text += parts[random() % parts.size()];
  return text;
}

}  // namespace

TEST_CASE("merges come in the order of their ranks") {
  const Tokenizer tokenizer = tokenizer_of(small_tokenizer());
  CHECK(pieces(tokenizer, "the thing and rolling") == "the| |th|ing| |and| |r|oll|ing");
  CHECK(pieces(tokenizer, "aaaaaaa") == "aaaa|aa|a");
  CHECK(pieces(tokenizer, "x  y") == "x| | |y");
  CHECK(pieces(tokenizer, "don't") == "d|o|n|'|t");
  CHECK(encode(tokenizer, "").empty());
}

TEST_CASE("a queue of merges gives what repeated search gives") {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::array<int32_t, 256> bytes{};
    for (int32_t i = 0; i < 256; ++i) bytes[static_cast<size_t>(i)] = i;
    std::vector<BytePairs::Merge> merges;
    std::map<std::pair<int32_t, int32_t>, std::pair<size_t, int32_t>> ranks;
    int32_t next = 256;
    for (int i = 0; i < 30; ++i) {
      const auto token = [&] {
        const auto among = static_cast<uint32_t>(next - 256 + 3);
        const auto chosen = static_cast<int32_t>(random() % among);
        return chosen < 3 ? 'a' + chosen : 256 + chosen - 3;
      };
      const BytePairs::Merge merge{token(), token(), next};
      if (!ranks.try_emplace({merge.left, merge.right}, merges.size(), merge.result).second) continue;
      merges.push_back(merge);
      ++next;
    }
    const BytePairs pairs(bytes, merges);
    BytePairs::Workspace workspace;
    for (int i = 0; i < 20; ++i) {
      std::string word;
      for (size_t left = random() % 40; left > 0; --left) word += static_cast<char>('a' + random() % 3);
      Ids expected(word.begin(), word.end());
      while (true) {
        size_t best = expected.size();
        size_t rank = SIZE_MAX;
        for (size_t at = 0; at + 1 < expected.size(); ++at) {
          const auto found = ranks.find({expected[at], expected[at + 1]});
          if (found != ranks.end() && found->second.first < rank) {
            rank = found->second.first;
            best = at;
          }
        }
        if (rank == SIZE_MAX) break;
        expected[best] = merges[rank].result;
        expected.erase(expected.begin() + static_cast<ptrdiff_t>(best) + 1);
      }
      Ids ids;
      pairs.encode(word, workspace, ids);
      REQUIRE(ids == expected);
    }
  }
}

TEST_CASE("a long word takes time in proportion, nearly") {
  const Tokenizer tokenizer = tokenizer_of(small_tokenizer());
  const std::string word(4'000'000, 'a');
  const Ids ids = encode(tokenizer, word);
  CHECK(ids.size() == 1'000'000);
  // Runs of spaces, lines and marks, at which a regular expression could step back again and again.
  for (const char* part : {" ", "\n", "\r\n", ".", "\u00a0", " \n", "é", "e\u0301"}) {
    std::string text;
    while (text.size() < 1'000'000) text += part;
    CHECK(!encode(tokenizer, text + "x").empty());
  }
}

TEST_CASE("added tokens are found in the text, the longest first") {
  Json json = small_tokenizer();
  json["added_tokens"].push_back({{"id", 300}, {"content", "<|im"}, {"special", false}, {"normalized", false}});
  const Tokenizer tokenizer = tokenizer_of(json);
  CHECK(pieces(tokenizer, "a<|im_start|>the<|imx") == "a|<|im_start|>|the|<|im|x");
  CHECK(tokenizer.is_special(*tokenizer.id("<|im_start|>")));
  CHECK(!tokenizer.is_special(*tokenizer.id("<think>")));
  CHECK(!tokenizer.id("<nothing>").has_value());
}

TEST_CASE("special tokens of strangers are text, other added tokens stay tokens") {
  const Tokenizer tokenizer = tokenizer_of(small_tokenizer());
  const std::string text = "<|im_end|><think>";
  CHECK(encode(tokenizer, text).size() == 2);
  const Ids ids = encode(tokenizer, text, false);
  CHECK(ids.size() == std::string("<|im_end|>").size() + 1);
  CHECK(tokenizer.decode(ids) == text);
}

TEST_CASE("added tokens take white space and keep out of words as their flags say") {
  Json json = small_tokenizer();
  const auto add = [&](int id, const char* content, const char* flag) {
    json["added_tokens"].push_back(
        {{"id", id}, {"content", content}, {"special", false}, {"normalized", false}, {flag, true}});
  };
  add(300, "[L]", "lstrip");
  add(301, "[R]", "rstrip");
  add(302, "cat", "single_word");
  const Tokenizer tokenizer = tokenizer_of(json);
  const auto count = [&](const std::string& text) { return encode(tokenizer, text).size(); };
  CHECK(encode(tokenizer, "x \u3000\n[L]") == Ids{'x', 300});
  CHECK(encode(tokenizer, "[R] \t\u00a0y") == Ids{301, 'y'});
  CHECK(encode(tokenizer, "[R] [L]") == Ids{301, 300});  // the space is taken once
  CHECK(encode(tokenizer, "cat") == Ids{302});
  CHECK(encode(tokenizer, ".cat.") == Ids{'.', 302, '.'});
  CHECK(count("cats") == 4);
  CHECK(count("_cat") == 4);
  CHECK(count("écat") == 5);
}

TEST_CASE("normalized added tokens are found in normalized text") {
  Json json = small_tokenizer();
  json["added_tokens"].push_back({{"id", 300}, {"content", "e\u0301"}, {"special", false}, {"normalized", true}});
  const Tokenizer tokenizer = tokenizer_of(json);
  CHECK(encode(tokenizer, "e\u0301") == Ids{300});
  CHECK(encode(tokenizer, "\u00e9") == Ids{300});
}

TEST_CASE("text comes back from its tokens, streamed or not") {
  const Tokenizer tokenizer = tokenizer_of(small_tokenizer());
  std::mt19937 random(2);
  for (int i = 0; i < 5000; ++i) {
    const std::string text = random_text(random);
    const Ids ids = encode(tokenizer, text);
    REQUIRE(tokenizer.decode(ids) == to_nfc(text));
    for (const bool skip : {false, true}) {
      TextStream stream(tokenizer, skip);
      std::string streamed;
      for (const int32_t id : ids) {
        const std::string piece = stream.add(id);
        REQUIRE(find_invalid_utf8(piece) == std::string_view::npos);
        streamed += piece;
      }
      REQUIRE(streamed + stream.finish() == tokenizer.decode(ids, skip));
    }
  }
}

TEST_CASE("any ids decode to well-formed text") {
  const Tokenizer tokenizer = tokenizer_of(small_tokenizer());
  std::mt19937 random(3);
  for (int i = 0; i < 5000; ++i) {
    Ids ids;
    for (size_t left = random() % 20; left > 0; --left) ids.push_back(static_cast<int32_t>(random() % 300) - 5);
    const std::string text = tokenizer.decode(ids);
    REQUIRE(find_invalid_utf8(text) == std::string_view::npos);
    TextStream stream(tokenizer, false);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.add(id);
    REQUIRE(streamed + stream.finish() == text);
  }
}

TEST_CASE("invalid text is refused with the place of the first wrong byte") {
  const Tokenizer tokenizer = tokenizer_of(small_tokenizer());
  const auto result = tokenizer.encode("abcdefghij\xC3(");
  REQUIRE(!result.ok());
  CHECK(result.status().error_class() == ErrorClass::kUsage);
  CHECK(result.status().message() == "the text is not UTF-8: the byte at 10 is wrong");
  CHECK(!tokenizer.encode("\xED\xA0\x80").ok());
  CHECK(encode(tokenizer, std::string("\0", 1)).size() == 1);
}

TEST_CASE("both spellings of merges are read, and a whole word goes before merges where the file says") {
  Json json = small_tokenizer();
  for (Json& merge : json["model"]["merges"]) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  const Tokenizer spaced = tokenizer_of(json);
  CHECK(pieces(spaced, "the thing") == "the| |th|ing");
  json["model"]["vocab"]["xyz"] = 299;
  CHECK(pieces(tokenizer_of(json), "xyz") == "x|y|z");
  json["model"]["ignore_merges"] = true;
  CHECK(pieces(tokenizer_of(json), "xyz") == "xyz");
}

TEST_CASE("threads encode at once and get the same") {
  const Tokenizer tokenizer = tokenizer_of(small_tokenizer());
  std::vector<std::string> texts;
  std::vector<Ids> expected;
  std::mt19937 random(4);
  for (int i = 0; i < 200; ++i) {
    texts.push_back(random_text(random));
    expected.push_back(encode(tokenizer, texts.back()));
  }
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (size_t i = 0; i < texts.size(); ++i) wrong += tokenizer.encode(texts[i]).value() == expected[i] ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("files with other parts are refused in a sentence that names them") {
  struct Case {
    std::function<void(Json&)> change;
    const char* named;
  };
  const std::vector<Case> cases = {
      {[](Json& json) { json.erase("model"); }, "model is missing"},
      {[](Json& json) { json["model"]["type"] = "WordPiece"; }, "WordPiece"},
      {[](Json& json) { json["model"]["dropout"] = 0.1; }, "dropout"},
      {[](Json& json) { json["model"]["byte_fallback"] = true; }, "byte_fallback"},
      {[](Json& json) { json["model"]["continuing_subword_prefix"] = "##"; }, "continuing_subword_prefix"},
      {[](Json& json) { json["model"]["vocab"] = 3; }, "no vocab"},
      {[](Json& json) { json["model"]["vocab"]["zz"] = 5; }, "id of another one"},
      {[](Json& json) { json["model"]["vocab"]["zz"] = -1; }, "no id below"},
      {[](Json& json) { json["model"]["vocab"]["zz"] = 1 << 24; }, "no id below"},
      {[](Json& json) { json["model"]["vocab"].erase("!"); }, "no token for the byte 33"},
      {[](Json& json) { json["model"]["merges"] = "x"; }, "no merges"},
      {[](Json& json) { json["model"]["merges"].push_back("a b c"); }, "no pair"},
      {[](Json& json) {
         json["model"]["merges"].push_back({"q", "q"});
       },
       "needs the token \"qq\""},
      {[](Json& json) { json["added_tokens"] = 1; }, "added_tokens"},
      {[](Json& json) { json["added_tokens"][0]["content"] = ""; }, "empty"},
      {[](Json& json) { json["added_tokens"][0]["id"] = 1; }, "does not agree"},
      {[](Json& json) { json["added_tokens"][0]["content"] = "a"; }, "does not agree"},
      {[](Json& json) { json["normalizer"]["type"] = "NFKC"; }, "NFKC"},
      {[](Json& json) { json["pre_tokenizer"] = nullptr; }, "ByteLevel"},
      {[](Json& json) { json["pre_tokenizer"]["pretokenizers"][0]["type"] = "Digits"; }, "Digits"},
      {[](Json& json) { json["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; }, "Isolated"},
      {[](Json& json) {
         json["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", "x"}};
       },
       "regular expression"},
      {[](Json& json) { json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a"; }, "wrong"},
      {[](Json& json) { json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\w+"; }, "\\w"},
      {[](Json& json) { json["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; }, "add_prefix_space"},
      {[](Json& json) {
         json["post_processor"] = {{"type", "TemplateProcessing"}};
       },
       "TemplateProcessing"},
      {[](Json& json) {
         json["decoder"] = {{"type", "WordPiece"}};
       },
       "WordPiece"},
      {[](Json& json) {
         json["truncation"] = {{"max_length", 5}};
       },
       "truncation"},
  };
  for (const Case& bad : cases) {
    const std::string sentence = refusal(bad.change);
    INFO(bad.named << ": " << sentence);
    CHECK(sentence.find(bad.named) != std::string::npos);
    CHECK(sentence.starts_with("tokenizer.json"));
  }
  CHECK(!Tokenizer::parse("{").ok());
  std::string twice = small_tokenizer().dump();
  twice.replace(twice.find("\"vocab\":{"), 9, "\"vocab\":{\"!\":33,");
  CHECK(Tokenizer::parse(twice).status().message().find("twice") != std::string::npos);
  CHECK(!Tokenizer::read("/nonexistent").ok());
}

TEST_CASE("a tokenizer with more ids than the model has embeddings does not fit") {
  const Tokenizer tokenizer = tokenizer_of(small_tokenizer());
  CHECK(tokenizer.check_fits(tokenizer.size()).ok());
  CHECK(!tokenizer.check_fits(tokenizer.size() - 1).ok());
}

TEST_CASE("regular expressions mean what they mean to the tokenizers package, or are refused") {
  const auto matches = [](const char* expression, const char* text) {
    const auto pattern = Pattern::compile(expression);
    REQUIRE(pattern.ok());
    Pattern::Matcher matcher;
    return pattern.value().find(text, 0, matcher).value().begin == 0;
  };
  CHECK(matches("\\s", "\u0085"));
  CHECK(!matches("\\s", "\u180e"));  // white space of PCRE2 alone
  CHECK(matches("[^\\s]", "\u180e"));
  CHECK(matches("(?i:'s)", "'\u017f"));
  CHECK(matches("[]a]", "]"));
  for (const char* expression :
       {"\\w", "\\b", "\\h", "(?m)a", "(?<n>a)", "[a[b]]", "[a&&b]", "\\1", "(?P<n>a)", "a\\"}) {
    INFO(expression);
    CHECK(!Pattern::compile(expression).ok());
  }
}

}  // namespace hetero::qwen3
