#include "graph/program/archive_json.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace hetero::graph {
namespace {

using Json = nlohmann::ordered_json;  // keeps the order in which fields are written

constexpr size_t kHeaderAlignment = 64;

// Takes values out of JSON, each by the path of its field. The first that is not there or of
// another type is the error; later ones are not looked at, and what was taken is then of no use.
class JsonReader {
 public:
  JsonReader(std::string_view text, const char* file) : file_(file), root_(Json::parse(text, nullptr, false)) {
    if (!root_.is_object()) refuse("", "is no object of JSON");
  }

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  const Json& root() const { return root_; }

  // What `expected` says of the field `path`.
  void refuse(const std::string& path, const char* expected) {
    if (!status_.ok()) return;
    status_ = Status(ErrorClass::kStorage, std::string(file_) + (path.empty() ? "" : ": " + path) + ' ' + expected);
  }

  const Json& field(const Json& object, const std::string& path, const char* name) {
    static const Json nothing;
    if (!object.is_object()) {
      refuse(path, "is no object");
      return nothing;
    }
    const auto found = object.find(name);
    return found == object.end() ? nothing : *found;
  }
  void take(const Json& value, const std::string& path, std::string& text) {
    if (!value.is_string()) return refuse(path, "is missing or is no text");
    text = value.get<std::string>();
  }
  void take(const Json& value, const std::string& path, uint64_t& number) {
    if (!value.is_number_unsigned()) return refuse(path, "is missing or is no number of the kind 0, 1, 2");
    number = value.get<uint64_t>();
  }
  template <typename T>
  void take_up_to(const Json& value, const std::string& path, uint64_t most, T& number) {
    uint64_t wide = 0;
    take(value, path, wide);
    if (wide > most) refuse(path, "is too large");
    number = static_cast<T>(wide);
  }
  // Calls take(entry, path) for each entry of a list.
  template <typename Take>
  void each(const Json& list, const std::string& path, const Take& take) {
    if (!list.is_array()) return refuse(path, "is missing or is no list");
    for (size_t i = 0; i < list.size() && ok(); ++i) take(list[i], path + '[' + std::to_string(i) + ']');
  }

 private:
  const char* const file_;
  const Json root_;
  Status status_;
};

// JSON is UTF-8, and what is not makes dump() throw.
Result<std::string> print(const Json& json, int indent) {
  try {
    return json.dump(indent);
  } catch (const Json::exception&) {
    return Status(ErrorClass::kUsage, "a name or a text of the program is not UTF-8, so it cannot be saved");
  }
}

template <typename Value>
Json value_json(const WindowTable& windows, const Value& value) {
  return {{"name", value.name}, {"buffer", value.buffer}, {"window", to_string(windows[value.window])}};
}

template <typename Value>
void take_value(JsonReader& reader, const Json& json, const std::string& path, WindowTable& windows, Value& value) {
  std::string window;
  reader.take(reader.field(json, path, "name"), path + ".name", value.name);
  reader.take_up_to(reader.field(json, path, "buffer"), path + ".buffer", UINT32_MAX, value.buffer);
  reader.take(reader.field(json, path, "window"), path + ".window", window);
  value.window = parse_window(window, windows);
  if (value.window == kNoWindow) reader.refuse(path + ".window", "is no window, such as f32[2,3]");
}

Json values_json(const WindowTable& windows, const std::vector<ProgramValue>& values) {
  Json list = Json::array();
  for (const ProgramValue& value : values) {
    list.push_back(value_json(windows, value));
    list.back()["bits"] = value.bits;
  }
  return list;
}

void take_values(JsonReader& reader, const char* name, WindowTable& windows, std::vector<ProgramValue>& values) {
  reader.each(reader.field(reader.root(), "", name), name, [&](const Json& json, const std::string& path) {
    ProgramValue& value = values.emplace_back();
    take_value(reader, json, path, windows, value);
    reader.take_up_to(reader.field(json, path, "bits"), path + ".bits", UINT8_MAX, value.bits);
  });
}

}  // namespace

Result<std::string> write_program_json(const SavedProgram& program) {
  Json constants = Json::array();
  for (const ProgramConstant& constant : program.constants) constants.push_back(value_json(program.windows, constant));
  Json metadata = Json::object();
  for (const auto& [key, text] : program.metadata) metadata[key] = text;
  const Json json = {{"inputs", values_json(program.windows, program.inputs)},
                     {"outputs", values_json(program.windows, program.outputs)},
                     {"constants", std::move(constants)},
                     {"draws", program.draws},
                     {"metadata", std::move(metadata)},
                     {"plan_machine", program.plan_machine}};
  return print(json, 1);
}

Status read_program_json(std::string_view text, SavedProgram& program) {
  JsonReader reader(text, "program.json");
  if (!reader.ok()) return reader.status();
  const Json& root = reader.root();
  take_values(reader, "inputs", program.windows, program.inputs);
  take_values(reader, "outputs", program.windows, program.outputs);
  reader.each(reader.field(root, "", "constants"), "constants", [&](const Json& json, const std::string& path) {
    take_value(reader, json, path, program.windows, program.constants.emplace_back());
  });
  reader.each(reader.field(root, "", "draws"), "draws", [&](const Json& json, const std::string& path) {
    reader.take(json, path, program.draws.emplace_back());
  });
  const Json& metadata = reader.field(root, "", "metadata");
  if (!metadata.is_object()) reader.refuse("metadata", "is missing or is no object");
  for (auto it = metadata.begin(); it != metadata.end() && reader.ok(); ++it) {
    reader.take(*it, "metadata." + it.key(), program.metadata[it.key()]);
  }
  reader.take(reader.field(root, "", "plan_machine"), "plan_machine", program.plan_machine);
  return reader.status();
}

Result<std::string> with_plan_machine(std::string_view text, const std::string& machine) {
  JsonReader reader(text, "program.json");
  if (!reader.ok()) return reader.status();
  Json json = reader.root();
  json["plan_machine"] = machine;
  return print(json, 1);
}

Result<std::string> write_weights_header(const std::vector<WeightEntry>& entries) {
  Json json = Json::object();
  for (const WeightEntry& entry : entries) {
    json[entry.name] = {
        {"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", Json::array({entry.begin, entry.end})}};
  }
  Result<std::string> text = print(json, -1);
  if (!text.ok()) return text;
  std::string& header = text.value();
  constexpr size_t kLengthBytes = 8;
  header.append(kHeaderAlignment - 1 - (kLengthBytes + header.size() - 1) % kHeaderAlignment, ' ');
  std::string length;
  for (size_t i = 0; i < kLengthBytes; ++i) length += static_cast<char>(uint64_t{header.size()} >> (8 * i) & 0xFF);
  return length + header;
}

Result<Weights> read_weights_header(std::string_view file) {
  constexpr const char* kFile = "weights.safetensors";
  constexpr size_t kLengthBytes = 8;
  uint64_t length = 0;
  for (size_t i = std::min(file.size(), kLengthBytes); i-- > 0;) length = length << 8 | static_cast<uint8_t>(file[i]);
  if (file.size() < kLengthBytes || length > file.size() - kLengthBytes) {
    return Status(ErrorClass::kStorage, std::string(kFile) + " is too short for its header");
  }
  JsonReader reader(file.substr(kLengthBytes, length), kFile);
  if (!reader.ok()) return reader.status();
  Weights weights{.data = kLengthBytes + length, .entries = {}};
  const uint64_t data_bytes = file.size() - weights.data;
  for (auto it = reader.root().begin(); it != reader.root().end() && reader.ok(); ++it) {
    if (it.key() == "__metadata__") continue;
    WeightEntry& entry = weights.entries[it.key()];
    entry.name = it.key();
    reader.take(reader.field(*it, it.key(), "dtype"), it.key() + ".dtype", entry.dtype);
    uint64_t places[2] = {};
    size_t count = 0;
    const std::string path = it.key() + ".data_offsets";
    reader.each(reader.field(*it, it.key(), "data_offsets"), path, [&](const Json& json, const std::string& at) {
      if (count == 2) return reader.refuse(path, "has more than two entries");
      reader.take(json, at, places[count++]);
    });
    entry.begin = places[0];
    entry.end = places[1];
    if (count != 2 || entry.begin > entry.end || entry.end > data_bytes) reader.refuse(path, "is no part of the file");
  }
  if (!reader.ok()) return reader.status();
  return weights;
}

}  // namespace hetero::graph
