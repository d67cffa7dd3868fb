#include "qwen3/checkpoint/json_builder.h"

namespace hetero::qwen3 {
namespace {

constexpr size_t kMostDepth = 64;

}  // namespace

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
