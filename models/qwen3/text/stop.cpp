#include "qwen3/text/stop.h"

#include <algorithm>
#include <utility>

#include "qwen3/text/unicode.h"

namespace hetero::qwen3 {
namespace {

constexpr size_t kMostStrings = 256;
constexpr size_t kMostBytes = 4096;

Status usage(std::string message) { return Status(ErrorClass::kUsage, std::move(message)); }

// The failure function of Knuth, Morris and Pratt.
std::vector<uint32_t> fallback_of(std::string_view text) {
  std::vector<uint32_t> fallback(text.size() + 1, 0);
  uint32_t length = 0;
  for (size_t i = 1; i < text.size(); ++i) {
    while (length > 0 && text[i] != text[length]) length = fallback[length];
    if (text[i] == text[length]) ++length;
    fallback[i + 1] = length;
  }
  return fallback;
}

}  // namespace

Result<StopWatcher> StopWatcher::make(std::vector<int32_t> ids, std::vector<std::string> strings) {
  if (strings.size() > kMostStrings) {
    return usage("there are " + std::to_string(strings.size()) + " stop strings, and at most " +
                 std::to_string(kMostStrings) + " are supported");
  }
  StopWatcher watcher;
  for (std::string& text : strings) {
    if (text.empty()) return usage("a stop string is empty");
    if (text.size() > kMostBytes) {
      return usage("a stop string has more than " + std::to_string(kMostBytes) + " bytes");
    }
    if (find_invalid_utf8(text) != std::string_view::npos) return usage("a stop string is not UTF-8");
    std::vector<uint32_t> fallback = fallback_of(text);
    watcher.matchers_.push_back({.text = std::move(text), .fallback = std::move(fallback)});
  }
  std::ranges::sort(ids);
  watcher.ids_ = std::move(ids);
  return watcher;
}

bool StopWatcher::is_stop(int32_t id) const { return std::ranges::binary_search(ids_, id); }

bool StopWatcher::Matcher::take(char byte) {
  while (matched > 0 && (matched == text.size() || text[matched] != byte)) matched = fallback[matched];
  if (text[matched] == byte) ++matched;
  return matched == text.size();
}

std::string StopWatcher::add(std::string_view piece) {
  if (is_stopped()) return {};
  for (const char byte : piece) {
    held_ += byte;
    for (size_t i = 0; i < matchers_.size(); ++i) {
      const bool is_whole = matchers_[i].take(byte);
      if (is_whole && (!stopped_by_ || matchers_[i].text.size() > matchers_[*stopped_by_].text.size())) stopped_by_ = i;
    }
    if (is_stopped()) {
      held_.resize(held_.size() - matchers_[*stopped_by_].text.size());
      return std::exchange(held_, {});
    }
  }
  size_t keep = 0;
  for (const Matcher& matcher : matchers_) keep = std::max(keep, matcher.matched);
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopWatcher::finish() { return is_stopped() ? std::string() : std::exchange(held_, {}); }

void StopWatcher::reset() {
  for (Matcher& matcher : matchers_) matcher.matched = 0;
  held_.clear();
  stopped_by_.reset();
}

}  // namespace hetero::qwen3
