#include "qwen3/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "qwen3/checkpoint/json.h"

namespace hetero::qwen3 {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMostHeaderBytes = 100'000'000;  // the limit of the format's own library
constexpr size_t kMostDims = 64;

struct DTypeRow {
  const char* name;   // in the file
  const char* dtype;  // of hetero
  int bytes;
};

constexpr std::array<DTypeRow, 16> kDTypes{{
    {"BF16", "bf16", 2},
    {"F32", "f32", 4},
    {"F16", "f16", 2},
    {"F64", "f64", 8},
    {"BOOL", "bool", 1},
    {"U8", "u8", 1},
    {"I8", "i8", 1},
    {"U16", "u16", 2},
    {"I16", "i16", 2},
    {"U32", "u32", 4},
    {"I32", "i32", 4},
    {"U64", "u64", 8},
    {"I64", "i64", 8},
    {"F8_E4M3", "f8e4m3fn", 1},
    {"F8_E5M2", "f8e5m2", 1},
    {"F8_E8M0", "f8e8m0fnu", 1},
}};

Status storage_error(std::string message) { return Status(ErrorClass::kStorage, std::move(message)); }

// Begin and end of a tensor in the data.
struct Place {
  uint64_t begin = 0;
  uint64_t end = 0;
  const std::string* name = nullptr;
};

// Reads `shape` and multiplies it with `bytes`. False if it is no list of sizes or overflows.
bool read_shape(const Json& shape, std::vector<int64_t>& sizes, uint64_t& bytes) {
  if (!shape.is_array() || shape.size() > kMostDims) return false;
  bool overflows = false;
  for (const Json& size : shape) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > uint64_t{INT64_MAX}) return false;
    sizes.push_back(size.get<int64_t>());
    overflows |= __builtin_mul_overflow(bytes, size.get<uint64_t>(), &bytes);
  }
  return !overflows;
}

Status read_tensor(const Json& json, const std::string& what, SafetensorsFile::Tensor& tensor, Place& place) {
  if (!json.is_object() || json.size() != 3 || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets")) {
    return storage_error(what + " must have exactly dtype, shape and data_offsets");
  }
  const Json& name = json["dtype"];
  const auto* row = std::ranges::find_if(kDTypes, [&](const DTypeRow& dtype) { return name == dtype.name; });
  if (row == kDTypes.end()) {
    return storage_error(what + " has the dtype " +
                         (name.is_string() ? in_quotes(name.get<std::string>()) : name.dump()) +
                         ", which is not supported");
  }
  tensor.dtype = row->dtype;
  tensor.element_bytes = row->bytes;
  uint64_t bytes = static_cast<uint64_t>(row->bytes);
  if (!read_shape(json["shape"], tensor.sizes, bytes)) {
    return storage_error(what + " has a shape that is no list of sizes of a tensor in memory");
  }
  const Json& offsets = json["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return storage_error(what + " has data_offsets that are not two positions");
  }
  place.begin = offsets[0].get<uint64_t>();
  place.end = offsets[1].get<uint64_t>();
  if (place.end < place.begin || place.end - place.begin != bytes) {
    return storage_error(what + " has the offsets " + std::to_string(place.begin) + " to " + std::to_string(place.end) +
                         ", but its dtype and shape take " + std::to_string(bytes) + " bytes");
  }
  return Status();
}

// Whether the tensors fill the data without gap or overlap.
Status check_places(std::vector<Place>& places, uint64_t bytes, const std::string& file) {
  std::ranges::sort(
      places, [](const Place& a, const Place& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  uint64_t filled = 0;
  for (const Place& place : places) {
    const std::string what = file + ": the tensor " + in_quotes(*place.name);
    if (place.end > bytes) {
      return storage_error(what + " ends at byte " + std::to_string(place.end) + " of the data, which have only " +
                           std::to_string(bytes) + "; is the file cut off?");
    }
    if (place.begin < filled) return storage_error(what + " overlaps another one");
    if (place.begin > filled) return storage_error(what + " leaves a gap of unused bytes before it");
    filled = place.end;
  }
  if (filled == bytes) return Status();
  return storage_error(file + ": the last " + std::to_string(bytes - filled) +
                       " bytes of the data belong to no tensor");
}

Status check_metadata(const Json& metadata, const std::string& file) {
  const bool fits =
      metadata.is_object() && std::ranges::all_of(metadata, [](const Json& value) { return value.is_string(); });
  return fits ? Status() : storage_error(file + ": __metadata__ must be an object of strings");
}

}  // namespace

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::open(const std::filesystem::path& path) {
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile);
  if (Status status = file->map(path); !status.ok()) return status;
  if (Status status = file->read_header(path.string()); !status.ok()) return status;
  return file;
}

SafetensorsFile::~SafetensorsFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

Status SafetensorsFile::map(const std::filesystem::path& path) {
  // Without O_NONBLOCK, opening a pipe would wait for a writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return storage_error(path.string() + " cannot be opened: " + std::strerror(errno));
  struct stat info {};
  const bool is_file = ::fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode);
  const auto bytes = is_file ? static_cast<size_t>(info.st_size) : 0;
  void* data = MAP_FAILED;
  if (bytes >= kLengthBytes) data = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
  const int error = errno;
  ::close(descriptor);
  if (!is_file) return storage_error(path.string() + " is not a file");
  if (bytes < kLengthBytes) return storage_error(path.string() + " is too short for a safetensors file");
  if (data == MAP_FAILED) return storage_error(path.string() + " cannot be mapped: " + std::strerror(error));
  bytes_ = {static_cast<const std::byte*>(data), bytes};
  return Status();
}

Status SafetensorsFile::read_header(const std::string& file) {
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<uint64_t>(bytes_[i]) << (8 * i);
  if (length > kMostHeaderBytes || length > bytes_.size() - kLengthBytes) {
    return storage_error(file + " says that its header has " + std::to_string(length) + " bytes; the file has " +
                         std::to_string(bytes_.size()) + ", and a header at most " + std::to_string(kMostHeaderBytes));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + kLengthBytes, length);
  if (!text.starts_with('{')) return storage_error("the header of " + file + " is not JSON: it does not begin with {");
  auto header = parse_json(text, "the header of " + file);
  if (!header.ok()) return header.status();
  const std::span<const std::byte> data = bytes_.subspan(kLengthBytes + length);
  std::vector<Place> places;
  for (const auto& [name, json] : header.value().items()) {
    if (name == "__metadata__") {
      if (Status status = check_metadata(json, file); !status.ok()) return status;
      continue;
    }
    const auto entry = tensors_.try_emplace(name).first;
    Place& place = places.emplace_back();
    place.name = &entry->first;
    Status status = read_tensor(json, file + ": the tensor " + in_quotes(name), entry->second, place);
    if (!status.ok()) return status;
    if (place.end <= data.size()) entry->second.data = data.subspan(place.begin, place.end - place.begin);
  }
  return check_places(places, data.size(), file);
}

}  // namespace hetero::qwen3
