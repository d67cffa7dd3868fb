// StopWatcher: ends a generated text at stop tokens and stop strings, and holds back what may
// become a stop string.
//
// Text comes in pieces (text_stream.h). The text ends as soon as its last bytes are a stop string;
// of several that end there, the longest. What add() returns never contains a part of the stop
// string, and the result does not depend on how the text was cut into pieces.
//
// Thread safety: one thread at a time.
// Ownership: values.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/base/status.h"

namespace hetero::qwen3 {

class StopWatcher {
 public:
  StopWatcher() = default;
  // Errors: kUsage for a stop string that is empty, longer than 4,096 bytes or not UTF-8, and for
  // more than 256 of them.
  static Result<StopWatcher> make(std::vector<int32_t> ids, std::vector<std::string> strings);

  // Whether generation ends with this token, whose text is not shown.
  bool is_stop(int32_t id) const;

  // The text that can be shown now. After a stop, nothing.
  std::string add(std::string_view piece);
  // What is held back, at the end of the generation. Nothing after a stop.
  std::string finish();

  bool is_stopped() const { return stopped_by_.has_value(); }
  // The stop string that was found, as an index into the list.
  std::optional<size_t> stopped_by() const { return stopped_by_; }

  // Forgets the text, for another one.
  void reset();

 private:
  // A stop string with its matcher (Knuth, Morris and Pratt): how much of it the text ends with.
  struct Matcher {
    std::string text;
    std::vector<uint32_t> fallback;  // for each prefix: the longest proper suffix that is a prefix
    size_t matched = 0;

    // Takes a byte. Returns whether the whole string is matched.
    bool take(char byte);
  };

  std::vector<int32_t> ids_;  // sorted
  std::vector<Matcher> matchers_;
  std::string held_;  // not shown yet
  std::optional<size_t> stopped_by_;
};

}  // namespace hetero::qwen3
