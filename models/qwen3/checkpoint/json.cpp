#include "qwen3/checkpoint/json.h"

#include <cmath>
#include <cstdio>
#include <fstream>

namespace hetero::qwen3 {
namespace {

constexpr size_t kMostDepth = 64;
const Json kNull;

Status storage_error(std::string message) { return Status(ErrorClass::kStorage, std::move(message)); }

std::string text_of(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", number);
  return text;
}

}  // namespace

std::string in_quotes(std::string_view text) {
  constexpr size_t kMost = 80;
  std::string result = "\"";
  for (const char c : text.substr(0, kMost)) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned char>(c));
      result += escape;
    } else {
      result += c;
    }
  }
  return result + (text.size() > kMost ? "…\"" : "\"");
}

Result<Json> parse_json(std::string_view text, const std::string& what) { return JsonBuilder().build(text, what); }

Result<std::string> read_text(const std::filesystem::path& path, uint64_t most_bytes) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return storage_error("there is no file " + path.string());
  const uint64_t bytes = std::filesystem::file_size(path, error);
  if (error) return storage_error(path.string() + " cannot be read: " + error.message());
  if (bytes > most_bytes) {
    return storage_error(path.string() + " has " + std::to_string(bytes) + " bytes, and at most " +
                         std::to_string(most_bytes) + " are read");
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(bytes, '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(bytes))) {
    return storage_error(path.string() + " cannot be read");
  }
  return text;
}

Result<Json> read_json(const std::filesystem::path& path, uint64_t most_bytes) {
  auto text = read_text(path, most_bytes);
  if (!text.ok()) return text.status();
  return parse_json(text.value(), path.string());
}

JsonFields::JsonFields(const Json& object, std::string what) : object_(object), what_(std::move(what)) {
  if (!object.is_object()) status_ = storage_error(what_ + " is not a JSON object");
}

bool JsonFields::has(const char* key) const { return !at(key).is_null(); }

const Json& JsonFields::at(const char* key) const {
  if (!object_.is_object()) return kNull;
  const auto found = object_.find(key);
  return found == object_.end() ? kNull : *found;
}

JsonFields& JsonFields::require(const char* key) {
  if (!has(key)) fail(std::string(key) + " is missing");
  return *this;
}

JsonFields& JsonFields::read(const char* key, int64_t& value, int64_t least, int64_t most) {
  const Json& field = at(key);
  if (field.is_null()) return *this;
  const bool fits = field.is_number_integer() &&
                    (!field.is_number_unsigned() || field.get<uint64_t>() <= uint64_t{INT64_MAX}) &&
                    field.get<int64_t>() >= least && field.get<int64_t>() <= most;
  if (fits) {
    value = field.get<int64_t>();
  } else {
    fail(std::string(key) + " must be an integer from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return *this;
}

JsonFields& JsonFields::read(const char* key, std::optional<double>& value, double least, double most) {
  if (!has(key)) return *this;
  double number = 0;
  read(key, number, least, most);
  value = number;
  return *this;
}

JsonFields& JsonFields::read(const char* key, double& value, double least, double most) {
  const Json& field = at(key);
  if (field.is_null()) return *this;
  if (field.is_number() && field.get<double>() >= least && field.get<double>() <= most) {
    value = field.get<double>();
  } else {
    fail(std::string(key) + " must be a number from " + text_of(least) + " to " + text_of(most));
  }
  return *this;
}

JsonFields& JsonFields::read(const char* key, bool& value) {
  const Json& field = at(key);
  if (field.is_null()) return *this;
  if (field.is_boolean()) {
    value = field.get<bool>();
  } else {
    fail(std::string(key) + " must be true or false");
  }
  return *this;
}

JsonFields& JsonFields::read(const char* key, std::string& value) {
  const Json& field = at(key);
  if (field.is_null()) return *this;
  if (field.is_string()) {
    value = field.get<std::string>();
  } else {
    fail(std::string(key) + " must be a string");
  }
  return *this;
}

void JsonFields::fail(const std::string& sentence) {
  if (status_.ok()) status_ = storage_error(what_ + ": " + sentence);
}

Result<Json> JsonBuilder::build(std::string_view text, const std::string& what) {
  if (Json::sax_parse(text.begin(), text.end(), this)) return std::move(root_);
  return Status(ErrorClass::kStorage, what + " " + (reason_.empty() ? "is not JSON" : reason_));
}

bool JsonBuilder::refuse(std::string reason) {
  if (reason_.empty()) reason_ = std::move(reason);
  return false;
}

// Puts the value into the container that is open; returns where it is.
Json* JsonBuilder::place(Json value) {
  if (open_.empty()) {
    root_ = std::move(value);
    return &root_;
  }
  Json& container = *open_.back();
  if (container.is_array()) {
    container.push_back(std::move(value));
    return &container.back();
  }
  Json& target = container[keys_.back()];
  target = std::move(value);
  return &target;
}

bool JsonBuilder::add(Json value) {
  place(std::move(value));
  return true;
}

bool JsonBuilder::open(Json container) {
  if (open_.size() >= kMostDepth) {
    return refuse("is nested deeper than " + std::to_string(kMostDepth) + " levels");
  }
  open_.push_back(place(std::move(container)));
  keys_.emplace_back();
  return true;
}

bool JsonBuilder::close() {
  open_.pop_back();
  keys_.pop_back();
  return true;
}

bool JsonBuilder::key(std::string& name) {
  if (!open_.back()->emplace(name, nullptr).second) {
    return refuse("has the key " + in_quotes(name) + " twice in one object");
  }
  keys_.back() = std::move(name);
  return true;
}

bool JsonBuilder::parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) {
  constexpr int kOutOfRange = 406;
  return refuse(error.id == kOutOfRange ? "is not JSON: a number is out of range"
                                        : "is not JSON: the text is wrong at byte " + std::to_string(position));
}

}  // namespace hetero::qwen3
