// The command line of the fuzzers: which seeds to run.
//
// Thread safety: pure functions, save for what they print.

#pragma once

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string_view>
#include <system_error>

namespace hetero::graph::testing {

struct Seeds {
  uint64_t first = 0;
  uint64_t count = 100000;
  const char* keep = nullptr;  // a file
};

inline bool parse(std::string_view text, uint64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

// Of [--seeds N] [--first S] [--seed S] and, where `keeps`, [--keep PATH]. None, and the usage is printed, where the arguments are others.
inline std::optional<Seeds> read_seeds(int argc, char** argv, const char* program, bool keeps) {
  Seeds seeds;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    if (keeps && name == "--keep" && i + 1 < argc) {
      seeds.keep = argv[i + 1];
      continue;
    }
    uint64_t number = 0;
    const bool known = name == "--seeds" || name == "--first" || name == "--seed";
    if (!known || i + 1 == argc || !parse(argv[i + 1], number)) {
      std::fprintf(stderr, "usage: %s [--seeds N] [--first S] [--seed S]%s\n", program, keeps ? " [--keep PATH]" : "");
      return std::nullopt;
    }
    if (name != "--seeds") seeds.first = number;
    if (name != "--first") seeds.count = name == "--seed" ? 1 : number;
  }
  return seeds;
}

}  // namespace hetero::graph::testing
