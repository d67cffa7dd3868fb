// Pattern: a regular expression of a tokenizer.json, matched by PCRE2.
//
// The `tokenizers` package matches with Oniguruma in its Ruby syntax. compile() accepts the
// constructs that mean the same to both, translates \s and \S, which do not, and refuses all others
// in one sentence. So an accepted expression matches the same text.
//
// Thread safety: immutable once compiled. A Matcher belongs to one thread at a time.

#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "backend/base/status.h"

// PCRE2's own types, so that its header stays inside.
struct pcre2_real_code_8;
struct pcre2_real_match_data_8;

namespace hetero::qwen3 {

class Pattern {
 public:
  struct Match {
    size_t begin = std::string_view::npos;  // npos: there is none
    size_t end = std::string_view::npos;
  };

  // Memory for matches.
  class Matcher {
   public:
    Matcher();
    ~Matcher();
    Matcher(const Matcher&) = delete;
    Matcher& operator=(const Matcher&) = delete;

   private:
    friend class Pattern;
    pcre2_real_match_data_8* data_;
  };

  // Errors: kStorage, with the reason.
  static Result<Pattern> compile(std::string_view expression);

  // The first match that begins at or after `from`. What is before `from` is seen by lookbehind.
  // REQUIRES: `text` is well-formed UTF-8, and `from` the start of a character or the end. Errors:
  // kResource if the text needs more backtracking than PCRE2 allows.
  Result<Match> find(std::string_view text, size_t from, Matcher& matcher) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  explicit Pattern(pcre2_real_code_8* code) : code_(code) {}

  std::unique_ptr<pcre2_real_code_8, Free> code_;
};

}  // namespace hetero::qwen3
