// Stop strings over streamed text, against a search in the whole text.

#include "qwen3/text/stop.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/catch/catch.h"

namespace hetero::qwen3 {
namespace {

struct Expected {
  std::string shown;
  bool is_stopped = false;
};

// Byte by byte: the text ends where it first ends with a stop string, and loses the longest of
// these.
Expected stop_simply(const std::string& text, const std::vector<std::string>& strings) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : strings) {
      if (text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

}  // namespace

TEST_CASE("streamed text stops where the whole text would, however it is cut") {
  std::mt19937 random(1);
  const auto word = [&](size_t most) {
    std::string text;
    for (size_t left = 1 + random() % most; left > 0; --left) text += static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int i = 0; i < 50000; ++i) {
    std::vector<std::string> strings;
    for (size_t left = random() % 4; left > 0; --left) strings.push_back(word(6));
    const std::string text = word(40);
    auto watcher = StopWatcher::make({}, strings);
    REQUIRE(watcher.ok());
    std::string shown;
    for (size_t at = 0; at < text.size() && !watcher.value().is_stopped();) {
      const size_t length = std::min<size_t>(random() % 5, text.size() - at);
      shown += watcher.value().add(text.substr(at, length));
      at += length;
      // Nothing is shown that a stop string could still take back.
      REQUIRE(stop_simply(text, strings).shown.starts_with(shown));
    }
    shown += watcher.value().finish();
    const Expected expected = stop_simply(text, strings);
    REQUIRE(shown == expected.shown);
    REQUIRE(watcher.value().is_stopped() == expected.is_stopped);
  }
}

TEST_CASE("only what may become a stop string is held back") {
  auto watcher = StopWatcher::make({}, {"\nUser:"});
  REQUIRE(watcher.ok());
  CHECK(watcher.value().add("Hello") == "Hello");
  CHECK(watcher.value().add("\nUs").empty());
  CHECK(watcher.value().add("ed") == "\nUsed");
  CHECK(watcher.value().add("\nUser") == "");
  CHECK(watcher.value().add(": more") == "");
  CHECK(watcher.value().is_stopped());
  CHECK(watcher.value().stopped_by() == size_t{0});
  CHECK(watcher.value().add("text") == "");
  CHECK(watcher.value().finish() == "");
  watcher.value().reset();
  CHECK(!watcher.value().is_stopped());
  CHECK(watcher.value().add("a\n") == "a");
  CHECK(watcher.value().finish() == "\n");
}

TEST_CASE("of several stop strings that end at once, the longest is cut off") {
  auto watcher = StopWatcher::make({}, {"c", "abc", "bc"});
  REQUIRE(watcher.ok());
  CHECK(watcher.value().add("xabcd") == "x");
  CHECK(watcher.value().stopped_by() == size_t{1});
}

TEST_CASE("stop tokens are found by id") {
  const auto watcher = StopWatcher::make({7, 3}, {});
  REQUIRE(watcher.ok());
  CHECK(watcher.value().is_stop(3));
  CHECK(watcher.value().is_stop(7));
  CHECK(!watcher.value().is_stop(4));
}

TEST_CASE("stop strings that cannot be matched are refused") {
  CHECK(!StopWatcher::make({}, {""}).ok());
  CHECK(!StopWatcher::make({}, {"\xFF"}).ok());
  CHECK(!StopWatcher::make({}, {std::string(4097, 'x')}).ok());
  CHECK(!StopWatcher::make({}, std::vector<std::string>(257, "x")).ok());
}

}  // namespace hetero::qwen3
