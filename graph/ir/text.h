// The text form of windows, graphs and plans: TextReader, the scanner behind their parse functions,
// and the words for devices.
//
// A TextReader walks over a text from left to right. Each accept function skips spaces and then its
// token, and returns whether it was there. If not, the position stays. Line breaks are not spaces:
// callers accept them explicitly.
//
// Thread safety: none; a value on its parser's stack. The text must outlive the reader.

#pragma once

#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>

#include "backend/base/status.h"
#include "backend/device/device.h"

namespace hetero::graph {

// "cpu", "accelerator", and for those behind the first one "accelerator:1" and so on.
inline std::string device_word(backend::DeviceIndex device) {
  if (device == backend::kCpu) return "cpu";
  return device == 1 ? "accelerator" : std::string("accelerator:").append(std::to_string(device - 1));
}

class TextReader {
 public:
  explicit TextReader(std::string_view text) : text_(text) {}

  bool at_end() {
    skip_spaces();
    return position_ == text_.size();
  }

  bool accept(std::string_view token) {
    const size_t start = position_;
    skip_spaces();
    if (text_.substr(position_).starts_with(token)) {
      position_ += token.size();
      return true;
    }
    position_ = start;
    return false;
  }

  // True where the very next character, with no space before it, is `c`.
  bool next_is(char c) const { return position_ < text_.size() && text_[position_] == c; }

  // A decimal number, e.g. the 12 of "b12".
  template <typename T>
  bool accept_number(T& value) {
    const size_t start = position_;
    skip_spaces();
    const char* first = text_.data() + position_;
    const auto [end, error] = std::from_chars(first, text_.data() + text_.size(), value);
    if (error != std::errc()) {
      position_ = start;
      return false;
    }
    position_ += static_cast<size_t>(end - first);
    return true;
  }

  // `prefix` and a number, e.g. prefix "b" and the 12 of "b12".
  template <typename T>
  bool accept_id(std::string_view prefix, T& value) {
    const size_t start = position_;
    if (accept(prefix) && accept_number(value)) return true;
    position_ = start;
    return false;
  }

  // Everything up to the first of `stops`, or to the end of the line. May be empty.
  std::string_view take_until(std::string_view stops) {
    skip_spaces();
    const size_t start = position_;
    while (position_ < text_.size() && text_[position_] != '\n' &&
           stops.find(text_[position_]) == std::string_view::npos) {
      ++position_;
    }
    return text_.substr(start, position_ - start);
  }

  // Ends a line: spaces, perhaps a comment ("# ..."), and a line break or the end of the text.
  bool accept_line_end() {
    skip_spaces();
    if (position_ < text_.size() && text_[position_] == '#') take_until("");
    if (position_ == text_.size()) return true;
    if (text_[position_] != '\n') return false;
    ++position_;
    return true;
  }

  // Moves past empty lines and lines that hold only a comment.
  void skip_empty_lines() {
    size_t start = position_;
    while (position_ < text_.size() && accept_line_end()) start = position_;
    position_ = start;
  }

  size_t size() const { return text_.size(); }

  size_t line() const {
    size_t count = 1;
    for (size_t i = 0; i < position_; ++i) count += text_[i] == '\n';
    return count;
  }

  // The error for a text that goes on otherwise than `expected`.
  Status error(std::string_view expected) const {
    return Status(ErrorClass::kUsage, "line " + std::to_string(line()) + ": expected " + std::string(expected));
  }

 private:
  void skip_spaces() {
    while (position_ < text_.size() && text_[position_] == ' ') ++position_;
  }

  std::string_view text_;
  size_t position_ = 0;
};

// A set of devices (bit i is device i), e.g. "cpu+accelerator".
inline std::string devices_text(backend::DeviceSet devices) {
  std::string text;
  for (backend::DeviceIndex d = 0; d < backend::kMostDevices; ++d) {
    if (!backend::contains(devices, d)) continue;
    if (!text.empty()) text += '+';
    text += device_word(d);
  }
  return text;
}

inline bool accept_device(TextReader& reader, backend::DeviceIndex& device) {
  // The last first: "accelerator:1" begins as "accelerator" does.
  for (backend::DeviceIndex d = backend::kMostDevices; d-- > 0;) {
    if (!reader.accept(device_word(d))) continue;
    device = d;
    return true;
  }
  return false;
}

inline bool accept_devices(TextReader& reader, backend::DeviceSet& devices) {
  do {
    backend::DeviceIndex device = 0;
    if (!accept_device(reader, device)) return false;
    devices |= backend::only(device);
  } while (reader.accept("+"));
  return true;
}

}  // namespace hetero::graph
