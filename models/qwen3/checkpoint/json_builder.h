// JsonBuilder: builds a JSON value from the events of nlohmann's parser, strictly.
//
// It refuses an object with the same key twice, and deep nesting. A reader of large files derives
// from it and takes some parts out of the stream, so that they never become a value.
//
// Thread safety: one thread.
// Ownership: owns the value until it is taken.

#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "qwen3/checkpoint/json.h"

namespace hetero::qwen3 {

class JsonBuilder : public nlohmann::json_sax<Json> {
 public:
  // Parses the text with this builder; `what` names it in errors. Errors: kStorage.
  Result<Json> build(std::string_view text, const std::string& what);

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(int64_t value) override { return add(Json(value)); }
  bool number_unsigned(uint64_t value) override { return add(Json(value)); }
  bool number_float(double value, const std::string&) override { return add(Json(value)); }
  bool string(std::string& value) override { return add(Json(std::move(value))); }
  bool binary(Json::binary_t&) override { return false; }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override;
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override;

 protected:
  // How many containers are open.
  size_t depth() const { return open_.size(); }
  // The key of the value that comes next in the object that is open at this depth, from 1.
  const std::string& key_at(size_t depth) const { return keys_[depth - 1]; }
  // Ends the parsing; the sentence goes on after the name of the text: "is …".
  bool refuse(std::string reason);
  bool add(Json value);

 private:
  bool open(Json container);
  bool close();
  Json* place(Json value);

  Json root_;
  std::vector<Json*> open_;
  std::vector<std::string> keys_;  // of the open containers
  std::string reason_;
};

}  // namespace hetero::qwen3
