// JSON from files that may be damaged or hostile: read strictly, refused in one sentence.
//
// parse_json() refuses what is not JSON, an object with the same key twice, and nesting deeper than
// 64. JsonFields reads typed fields of one object. It keeps the first error, so that a caller reads
// all fields in a row and asks once.
//
// Thread safety: values and pure functions; a JsonBuilder belongs to one thread.
// Ownership: JsonFields refers to the object that it reads, which must outlive it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/base/status.h"

namespace hetero::qwen3 {

using Json = nlohmann::json;

// `what` names the text in errors, such as the path of the file. Errors: kStorage.
Result<Json> parse_json(std::string_view text, const std::string& what);

// The bytes of a file of at most `most_bytes`. Errors: kStorage.
Result<std::string> read_text(const std::filesystem::path& path, uint64_t most_bytes);

// read_text(), then parse_json().
Result<Json> read_json(const std::filesystem::path& path, uint64_t most_bytes);

// A string as it is shown in a sentence: quoted, with control characters escaped, cut at 80 bytes.
std::string in_quotes(std::string_view text);

class JsonFields {
 public:
  // `what` names the object in errors. An `object` of another type is the first error.
  JsonFields(const Json& object, std::string what);

  // Whether the field exists and is not null.
  bool has(const char* key) const;
  // Whether the field exists, perhaps as null.
  bool mentions(const char* key) const { return object_.is_object() && object_.contains(key); }
  // The field, or null.
  const Json& at(const char* key) const;
  // An error unless has(key).
  JsonFields& require(const char* key);

  // Each read() leaves `value` as it is if the field is absent or null. Another type, or a number
  // out of range, is an error that names the field.
  JsonFields& read(const char* key, int64_t& value, int64_t least, int64_t most);
  JsonFields& read(const char* key, double& value, double least, double most);
  JsonFields& read(const char* key, std::optional<double>& value, double least, double most);
  JsonFields& read(const char* key, bool& value);
  JsonFields& read(const char* key, std::string& value);

  // Notes an error of the caller about this object: "<what>: <sentence>".
  void fail(const std::string& sentence);

  // The first error, or ok. Its class is kStorage.
  const Status& status() const { return status_; }

 private:
  const Json& object_;
  std::string what_;
  Status status_;
};

// Builds a value from the events of nlohmann's parser, as parse_json() does. A reader of a large
// file derives from it and takes some parts out of the stream, so that they never become a value.
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
