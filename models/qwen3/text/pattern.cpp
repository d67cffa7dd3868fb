#include "qwen3/text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <new>
#include <utility>

namespace hetero::qwen3 {
namespace {

constexpr size_t kMostExpression = 16384;

Status refusal(std::string_view expression, const std::string& reason) {
  return Status(ErrorClass::kStorage,
                "the regular expression \"" + std::string(expression.substr(0, 200)) + "\" " + reason);
}

// Reads an expression once, left to right.
class Translator {
 public:
  explicit Translator(std::string_view expression) : expression_(expression) {}

  Result<std::string> translate() {
    bool in_class = false;
    for (size_t at = 0; at < expression_.size();) {
      const char c = expression_[at];
      if (c == '\\') {
        if (Status status = escape(at); !status.ok()) return status;
        continue;
      }
      const std::string_view rest = expression_.substr(at);
      if (in_class && (c == '[' || rest.starts_with("&&"))) {
        return refusal(expression_, "has a set within a set, which is not supported");
      }
      if (!in_class && rest.starts_with("(?") && !is_known_group(rest.substr(2))) {
        return refusal(expression_, "has a group that is not supported: " + std::string(rest.substr(0, 4)));
      }
      in_class = c == '[' || (in_class && c != ']');
      result_ += c;
      ++at;
      // The first of a set may be ] itself, behind ^.
      if (c == '[') {
        for (const char first : {'^', ']'}) {
          if (at < expression_.size() && expression_[at] == first) result_ += expression_[at++];
        }
      }
    }
    return result_;
  }

 private:
  // Groups that both understand alike: without capture, with case ignored, looking around, atomic.
  static bool is_known_group(std::string_view rest) {
    for (const char* start : {":", "i:", "=", "!", "<=", "<!", ">"}) {
      if (rest.starts_with(start)) return true;
    }
    return false;
  }

  Status escape(size_t& at) {
    const char c = at + 1 < expression_.size() ? expression_[at + 1] : '\0';
    at += 2;
    switch (c) {
      case 's':
        result_ += "\\p{White_Space}";
        return Status();
      case 'S':
        result_ += "\\P{White_Space}";
        return Status();
      case 'p':
      case 'P':
      case 'd':
      case 'D':
      case 'r':
      case 'n':
      case 't':
      case 'f':
        result_ += {'\\', c};
        return Status();
      default:
        break;
    }
    const bool is_punctuation =
        c > ' ' && c < 0x7F && !(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z');
    if (!is_punctuation && c != ' ')
      return refusal(expression_, std::string("has the escape \\") + c + ", which is not supported");
    result_ += {'\\', c};
    return Status();
  }

  std::string_view expression_;
  std::string result_;
};

}  // namespace

Pattern::Matcher::Matcher() : data_(pcre2_match_data_create_8(1, nullptr)) {
  if (data_ == nullptr) throw std::bad_alloc();
}

Pattern::Matcher::~Matcher() { pcre2_match_data_free_8(data_); }

void Pattern::Free::operator()(pcre2_real_code_8* code) const { pcre2_code_free_8(code); }

Result<Pattern> Pattern::compile(std::string_view expression) {
  if (expression.size() > kMostExpression) return refusal(expression, "is too long");
  auto translated = Translator(expression).translate();
  if (!translated.ok()) return translated.status();
  const std::string& text = translated.value();
  int error = 0;
  PCRE2_SIZE offset = 0;
  // Lines: in the Ruby syntax, ^ and $ always match at them.
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  const std::unique_ptr<pcre2_compile_context_8, void (*)(pcre2_compile_context_8*)> context(
      pcre2_compile_context_create_8(nullptr), &pcre2_compile_context_free_8);
  if (context != nullptr) pcre2_set_newline_8(context.get(), PCRE2_NEWLINE_LF);
  pcre2_code_8* code = pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(text.data()), text.size(), kOptions, &error,
                                       &offset, context.get());
  if (code == nullptr) {
    std::array<PCRE2_UCHAR8, 128> message{};
    pcre2_get_error_message_8(error, message.data(), message.size());
    return refusal(expression, std::string("is wrong: ") + reinterpret_cast<const char*>(message.data()));
  }
  Pattern pattern(code);
  pcre2_jit_compile_8(code, PCRE2_JIT_COMPLETE);  // without it, matches are interpreted
  return pattern;
}

Result<Pattern::Match> Pattern::find(std::string_view text, size_t from, Matcher& matcher) const {
  const auto run = [&](uint32_t options) {
    return pcre2_match_8(code_.get(), reinterpret_cast<PCRE2_SPTR8>(text.data()), text.size(), from,
                         PCRE2_NO_UTF_CHECK | options, matcher.data_, nullptr);
  };
  int count = run(0);
  // The interpreter has its stack on the heap.
  if (count == PCRE2_ERROR_JIT_STACKLIMIT) count = run(PCRE2_NO_JIT);
  if (count == PCRE2_ERROR_NOMATCH) return Match();
  if (count < 0) {
    return Status(ErrorClass::kResource, "the tokenizer's regular expression needs too much backtracking on this text");
  }
  const PCRE2_SIZE* found = pcre2_get_ovector_pointer_8(matcher.data_);
  return Match{found[0], found[1]};
}

}  // namespace hetero::qwen3
