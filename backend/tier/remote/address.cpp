// Addresses of remote tiers.

#include "backend/tier/remote/address.h"

#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

namespace hetero::backend {
namespace {

constexpr const char* kForms =
    "\"redis://[:password@]host[:port][/database]\", \"unix:///path\", \"file:///folder\" and \"memory:[name]\"";

Status wrong(std::string_view address, std::string_view what) {
  std::string message = "the remote tier's address \"";
  message.append(address).append("\" ").append(what);
  return Status(ErrorClass::kUsage, std::move(message));
}

// The address without what stands before the last "@" of its authority.
std::string without_password(std::string_view text) {
  const size_t start = text.find("://");
  const size_t at = text.rfind('@');
  if (start == std::string_view::npos || at == std::string_view::npos || at < start) return std::string(text);
  return std::string(text.substr(0, start + 3)).append("...").append(text.substr(at));
}

std::optional<int64_t> number_of(std::string_view text, int64_t most) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0 || number > most) return std::nullopt;
  return number;
}

std::optional<double> milliseconds_of(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (!std::isfinite(number) || number < 0 || number > 1e6) return std::nullopt;
  return number;
}

int digit_of(char character) {
  if (character >= '0' && character <= '9') return character - '0';
  if (character >= 'a' && character <= 'f') return character - 'a' + 10;
  if (character >= 'A' && character <= 'F') return character - 'A' + 10;
  return -1;
}

// Replaces each %XX; nothing if one is not well formed, or is a zero byte.
std::optional<std::string> unescape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out.push_back(text[i]);
      continue;
    }
    const int high = i + 2 < text.size() ? digit_of(text[i + 1]) : -1;
    const int low = high >= 0 ? digit_of(text[i + 2]) : -1;
    if (low < 0 || (high == 0 && low == 0)) return std::nullopt;
    out.push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  if (out.find('\0') != std::string::npos) return std::nullopt;
  return out;
}

// Cuts "[[user]:]password@" off the front. False if it is not well formed.
bool take_user(std::string_view& rest, RemoteAddress& address) {
  const size_t at = rest.rfind('@');
  if (at == std::string_view::npos) return true;
  std::string_view user;
  std::string_view password = rest.substr(0, at);
  if (const size_t colon = password.find(':'); colon != std::string_view::npos) {
    user = password.substr(0, colon);
    password = password.substr(colon + 1);
  }
  rest = rest.substr(at + 1);
  const auto plain_user = unescape(user);
  const auto plain_password = unescape(password);
  if (!plain_user || !plain_password || plain_password->empty()) return false;
  address.user = *plain_user;
  address.password = *plain_password;
  return true;
}

constexpr int64_t kMostDatabase = 1 << 20;

}  // namespace

std::string RemoteAddress::to_string() const {
  if (kind == Kind::kFolder) return std::string("file://").append(path);
  if (kind == Kind::kMemory) return std::string("memory:").append(name);
  if (host.empty()) return std::string("unix://").append(path);
  const bool numeric6 = host.find(':') != std::string::npos;
  return std::string("redis://").append(numeric6 ? "[" : "").append(host).append(numeric6 ? "]:" : ":").append(port);
}

Result<RemoteAddress> parse_remote_address(const std::string& text) {
  const std::string shown = without_password(text);
  RemoteAddress address;
  std::string_view rest = text;
  const auto skip = [&rest](std::string_view scheme) {
    if (!rest.starts_with(scheme)) return false;
    rest.remove_prefix(scheme.size());
    return true;
  };
  if (text.find('\0') != std::string::npos) return wrong("...", "has a zero byte");

  if (skip("redis://")) {
    address.kind = RemoteAddress::Kind::kRedis;
    if (!take_user(rest, address)) return wrong(shown, "has a user or a password that is not well formed");
    if (const size_t slash = rest.find('/'); slash != std::string_view::npos) {
      const std::string_view database = rest.substr(slash + 1);
      const auto number = number_of(database, kMostDatabase);
      if (!database.empty() && !number) return wrong(shown, "has a database that is not a number");
      address.database = number.value_or(0);
      rest = rest.substr(0, slash);
    }
    address.port = "6379";
    std::string_view after = rest;
    if (rest.starts_with('[')) {
      const size_t end = rest.find(']');
      if (end == std::string_view::npos) return wrong(shown, "has \"[\" without \"]\"");
      address.host = rest.substr(1, end - 1);
      after = rest.substr(end + 1);
    } else {
      const size_t colon = rest.find(':');
      address.host = rest.substr(0, colon);
      after = colon == std::string_view::npos ? std::string_view() : rest.substr(colon);
    }
    if (address.host.empty()) return wrong(shown, "has no host");
    if (!after.empty()) {
      const auto port = after.front() == ':' ? number_of(after.substr(1), 65535) : std::nullopt;
      if (!port || *port == 0) return wrong(shown, "has a port that is not a number from 1 to 65535");
      address.port = std::to_string(*port);
    }
    return address;
  }
  if (skip("unix://")) {
    address.kind = RemoteAddress::Kind::kRedis;
    if (!take_user(rest, address)) return wrong(shown, "has a user or a password that is not well formed");
    if (const size_t mark = rest.find('?'); mark != std::string_view::npos) {
      std::string_view database = rest.substr(mark + 1);
      constexpr std::string_view kName = "database=";
      const auto number =
          database.starts_with(kName) ? number_of(database.substr(kName.size()), kMostDatabase) : std::nullopt;
      if (!number) return wrong(shown, "may end with \"?database=N\", and with nothing else");
      address.database = *number;
      rest = rest.substr(0, mark);
    }
    const auto path = unescape(rest);
    if (!path || !path->starts_with('/')) return wrong(shown, "needs the path of a socket, as in \"unix:///path\"");
    if (path->size() > 107) return wrong(shown, "has a path of a socket that is longer than 107 bytes");
    address.path = *path;
    return address;
  }
  if (skip("file://")) {
    address.kind = RemoteAddress::Kind::kFolder;
    const auto path = unescape(rest);
    if (!path || !path->starts_with('/') || path->find_first_not_of('/') == std::string::npos) {
      return wrong(shown, "needs the path of a folder, as in \"file:///folder\"");
    }
    address.path = *path;
    while (address.path.back() == '/') address.path.pop_back();
    return address;
  }
  if (skip("memory:")) {
    address.kind = RemoteAddress::Kind::kMemory;
    const size_t mark = rest.find('?');
    address.name = rest.substr(0, mark);
    rest = mark == std::string_view::npos ? std::string_view() : rest.substr(mark + 1);
    while (!rest.empty()) {
      const size_t end = rest.find('&');
      const std::string_view setting = rest.substr(0, end);
      rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
      const size_t equal = setting.find('=');
      const std::string_view name = setting.substr(0, equal);
      const std::string_view value = equal == std::string_view::npos ? std::string_view() : setting.substr(equal + 1);
      if (name == "latency_ms") {
        const auto latency = milliseconds_of(value);
        if (!latency) return wrong(shown, "has a latency_ms that is not a number from 0 to 1000000");
        address.faults.latency_ms = *latency;
        continue;
      }
      MemoryFaults& faults = address.faults;
      int64_t* every = name == "fail_every"   ? &faults.fail_every
                       : name == "hang_every" ? &faults.hang_every
                       : name == "torn_every" ? &faults.torn_every
                       : name == "drop_every" ? &faults.drop_every
                                              : nullptr;
      if (every == nullptr) {
        return wrong(shown, "may have latency_ms, fail_every, hang_every, torn_every and drop_every, and nothing else");
      }
      const auto number = number_of(value, INT64_MAX);
      if (!number) return wrong(shown, std::string("has a value of ").append(name).append(" that is not a number"));
      *every = *number;
    }
    return address;
  }
  return wrong(shown, std::string("is none of ").append(kForms));
}

}  // namespace hetero::backend
