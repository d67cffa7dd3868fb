// JSON from files that may be damaged or hostile: read strictly, refused in one sentence.
//
// parse_json() refuses what is not JSON, an object with the same key twice, and nesting deeper than
// 64. JsonFields reads typed fields of one object. It keeps the first error, so that a caller reads
// all fields in a row and asks once.
//
// Thread safety: values and pure functions.
// Ownership: JsonFields refers to the object that it reads, which must outlive it.

#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

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

}  // namespace hetero::qwen3
