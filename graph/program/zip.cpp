#include "graph/program/zip.h"

#include <algorithm>
#include <set>
#include <utility>

namespace hetero::graph {
namespace {

constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr uint32_t kCentralSignature = 0x02014b50;
constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocator64Signature = 0x07064b50;
constexpr size_t kLocalBytes = 30;
constexpr size_t kCentralBytes = 46;
constexpr size_t kEndBytes = 22;
constexpr size_t kEnd64Bytes = 56;
constexpr size_t kLocator64Bytes = 20;

constexpr uint16_t kPlainVersion = 10;
constexpr uint16_t kZip64Version = 45;
constexpr uint16_t kMadeOnUnix = 3 << 8;
constexpr uint16_t kEncrypted = 1;
constexpr uint16_t kUtf8Names = 1 << 11;
constexpr uint16_t kFirstDay = 1 << 5 | 1;  // 1 January 1980: the same program gives the same file
constexpr uint32_t kRegularFile = 0100644u << 16;
constexpr uint16_t kZip64Field = 0x0001;
constexpr uint16_t kAlignmentField = 0xD935;  // Android's zipalign: the alignment, then zeros
constexpr uint32_t kIn64 = UINT32_MAX;        // the ZIP64 field has the number
constexpr uint16_t kCountIn64 = UINT16_MAX;

uint32_t low(uint64_t number) { return static_cast<uint32_t>(std::min<uint64_t>(number, kIn64)); }
bool is_large(uint64_t number) { return number >= kIn64; }

template <typename T>
void put(std::string& bytes, T number) {
  for (size_t i = 0; i < sizeof(T); ++i) bytes += static_cast<char>(number >> (8 * i) & 0xFF);
}

// What local headers and the directory both say of an entry.
void put_common(std::string& bytes, const ZipEntry& entry, bool zip64, size_t extra_bytes) {
  put<uint16_t>(bytes, zip64 ? kZip64Version : kPlainVersion);
  put<uint16_t>(bytes, kUtf8Names);
  put<uint16_t>(bytes, 0);  // stored
  put<uint16_t>(bytes, 0);  // the time
  put<uint16_t>(bytes, kFirstDay);
  put<uint32_t>(bytes, entry.crc);
  put<uint32_t>(bytes, low(entry.bytes));
  put<uint32_t>(bytes, low(entry.bytes));
  put<uint16_t>(bytes, static_cast<uint16_t>(entry.name.size()));
  put<uint16_t>(bytes, static_cast<uint16_t>(extra_bytes));
}

Status wrong(std::string what) { return Status(ErrorClass::kStorage, std::move(what)); }

// Numbers one after the other; 0 behind the end.
class Bytes {
 public:
  explicit Bytes(std::string_view bytes) : bytes_(bytes) {}
  template <typename T>
  T take() {
    T number = 0;
    for (size_t i = 0; i < sizeof(T) && position_ + i < bytes_.size(); ++i) {
      number |= static_cast<T>(static_cast<T>(static_cast<unsigned char>(bytes_[position_ + i])) << (8 * i));
    }
    position_ = std::min(position_ + sizeof(T), bytes_.size());
    return number;
  }
  std::string_view take(size_t count) {
    const std::string_view taken = bytes_.substr(position_, count);
    position_ += taken.size();
    return taken;
  }
  size_t left() const { return bytes_.size() - position_; }

 private:
  std::string_view bytes_;
  size_t position_ = 0;
};

struct Common {
  uint16_t flags = 0;
  uint16_t method = 0;
  uint32_t crc = 0;
  uint32_t packed_bytes = 0;
  uint32_t bytes = 0;
  uint16_t name_bytes = 0;
  uint16_t extra_bytes = 0;
};

Common take_common(Bytes& record) {
  Common common;
  record.take<uint16_t>();  // the version that is needed
  common.flags = record.take<uint16_t>();
  common.method = record.take<uint16_t>();
  record.take(4);  // when
  common.crc = record.take<uint32_t>();
  common.packed_bytes = record.take<uint32_t>();
  common.bytes = record.take<uint32_t>();
  common.name_bytes = record.take<uint16_t>();
  common.extra_bytes = record.take<uint16_t>();
  return common;
}

struct Directory {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t entries = 0;
};

class ZipReader {
 public:
  explicit ZipReader(std::string_view file) : file_(file) {}

  Result<std::vector<ZipEntry>> read() {
    if (!file_.starts_with("PK")) return wrong("is not a ZIP file");
    if (Status status = find_directory(); !status.ok()) return status;
    // Each entry has a record in the directory, so larger counts cannot be true.
    if (directory_.entries > directory_.bytes / kCentralBytes) return wrong("has a damaged directory");
    Bytes records(file_.substr(directory_.offset, directory_.bytes));
    std::vector<ZipEntry> entries;
    std::set<std::string> names;
    for (uint64_t i = 0; i < directory_.entries; ++i) {
      ZipEntry& entry = entries.emplace_back();
      if (Status status = read_entry(records, entry); !status.ok()) return status;
      if (!names.insert(entry.name).second) return wrong("has two entries of the name " + entry.name);
    }
    if (records.left() != 0) return wrong("has a damaged directory");
    return entries;
  }

 private:
  std::string_view at(uint64_t offset, size_t bytes) const {
    return offset <= file_.size() && bytes <= file_.size() - offset ? file_.substr(offset, bytes) : std::string_view();
  }

  Status find_directory() {
    // A comment may follow the last record; ours have none.
    const size_t most = std::min<size_t>(file_.size(), kEndBytes + UINT16_MAX);
    for (size_t back = kEndBytes; back <= most; ++back) {
      const size_t position = file_.size() - back;
      Bytes record(file_.substr(position));
      if (record.take<uint32_t>() != kEndSignature) continue;
      const auto disk = record.take<uint16_t>();
      const auto directory_disk = record.take<uint16_t>();
      const auto entries_here = record.take<uint16_t>();
      const auto entries = record.take<uint16_t>();
      const auto bytes = record.take<uint32_t>();
      const auto offset = record.take<uint32_t>();
      if (size_t{record.take<uint16_t>()} != record.left()) continue;
      if (disk != 0 || directory_disk != 0 || entries_here != entries) return wrong("is a part of a split ZIP file");
      directory_ = {.offset = offset, .bytes = bytes, .entries = entries};
      uint64_t end = position;
      if (entries == kCountIn64 || bytes == kIn64 || offset == kIn64) {
        if (Status status = read_end64(position, end); !status.ok()) return status;
      }
      // What lies between the directory and its end would be seen by no checksum.
      if (directory_.offset > end || directory_.bytes != end - directory_.offset)
        return wrong("has a damaged directory");
      return Status();
    }
    return wrong("is cut off or damaged at its end");
  }

  Status read_end64(uint64_t end, uint64_t& directory_end) {
    const std::string_view locator = end < kLocator64Bytes ? "" : at(end - kLocator64Bytes, kLocator64Bytes);
    Bytes record(locator);
    const bool located = record.take<uint32_t>() == kLocator64Signature && record.take<uint32_t>() == 0;
    const auto offset = record.take<uint64_t>();
    if (!located || record.take<uint32_t>() != 1 || at(offset, kEnd64Bytes).empty()) {
      return wrong("has a damaged directory");
    }
    Bytes end64(at(offset, kEnd64Bytes));
    if (end64.take<uint32_t>() != kEnd64Signature || end64.take<uint64_t>() != kEnd64Bytes - 12) {
      return wrong("has a damaged directory");
    }
    end64.take(12);  // versions and disks
    const auto entries_here = end64.take<uint64_t>();
    directory_.entries = end64.take<uint64_t>();
    directory_.bytes = end64.take<uint64_t>();
    directory_.offset = end64.take<uint64_t>();
    if (entries_here != directory_.entries || offset + kEnd64Bytes + kLocator64Bytes != end) {
      return wrong("has a damaged directory");
    }
    directory_end = offset;
    return Status();
  }

  Status read_entry(Bytes& records, ZipEntry& entry) const {
    if (records.left() < kCentralBytes || records.take<uint32_t>() != kCentralSignature) {
      return wrong("has a damaged directory");
    }
    records.take<uint16_t>();  // who made it
    const Common common = take_common(records);
    const auto comment_bytes = records.take<uint16_t>();
    const auto disk = records.take<uint16_t>();
    records.take(6);  // attributes
    entry.header = records.take<uint32_t>();
    if (records.left() < size_t{common.name_bytes} + common.extra_bytes + comment_bytes) {
      return wrong("has a damaged directory");
    }
    entry.name = records.take(common.name_bytes);
    entry.crc = common.crc;
    entry.bytes = common.bytes;
    uint64_t packed_bytes = common.packed_bytes;
    const bool known = read_zip64(records.take(common.extra_bytes), entry, packed_bytes);
    records.take(comment_bytes);
    if (!known || disk != 0) return wrong("has a damaged directory");
    if ((common.flags & kEncrypted) != 0) return wrong("has an encrypted entry, " + entry.name);
    if (common.method != 0 || packed_bytes != entry.bytes) {
      return wrong("has a compressed entry, " + entry.name + ", where all must be stored");
    }
    return find_data(common, entry);
  }

  // Takes the numbers that did not fit into 32 bits. False where there are none.
  static bool read_zip64(std::string_view extra, ZipEntry& entry, uint64_t& packed_bytes) {
    bool wanted = entry.bytes == kIn64 || packed_bytes == kIn64 || entry.header == kIn64;
    for (Bytes fields(extra); fields.left() >= 4;) {
      const auto id = fields.take<uint16_t>();
      const auto bytes = fields.take<uint16_t>();
      Bytes field(fields.take(bytes));
      if (id != kZip64Field || !wanted) continue;
      for (uint64_t* const number : {&entry.bytes, &packed_bytes, &entry.header}) {
        if (*number != kIn64) continue;
        if (field.left() < 8) return false;
        *number = field.take<uint64_t>();
      }
      wanted = false;
    }
    return !wanted;
  }

  // The entry's bytes begin behind its local header, whose extra fields are its own.
  Status find_data(const Common& central, ZipEntry& entry) const {
    const std::string damaged = "has a damaged entry, " + entry.name;
    Bytes record(at(entry.header, kLocalBytes));
    if (record.take<uint32_t>() != kLocalSignature) return wrong(damaged);
    const Common local = take_common(record);
    if (local.method != central.method || at(entry.header + kLocalBytes, local.name_bytes) != entry.name) {
      return wrong(damaged);
    }
    entry.data = entry.header + kLocalBytes + local.name_bytes + local.extra_bytes;
    if (entry.data > directory_.offset || entry.bytes > directory_.offset - entry.data) return wrong(damaged);
    return Status();
  }

  std::string_view file_;
  Directory directory_;
};

}  // namespace

std::string zip_local_header(ZipEntry& entry, uint64_t alignment) {
  const bool zip64 = is_large(entry.bytes);
  std::string extra;
  if (zip64) {
    put<uint16_t>(extra, kZip64Field);
    put<uint16_t>(extra, 16);
    put<uint64_t>(extra, entry.bytes);
    put<uint64_t>(extra, entry.bytes);
  }
  const uint64_t end = entry.header + kLocalBytes + entry.name.size() + extra.size();
  if (end % alignment != 0) {
    constexpr uint64_t kFieldBytes = 6;  // of the field without zeros
    const uint64_t zeros = (alignment - (end + kFieldBytes) % alignment) % alignment;
    put<uint16_t>(extra, kAlignmentField);
    put<uint16_t>(extra, static_cast<uint16_t>(2 + zeros));
    put<uint16_t>(extra, static_cast<uint16_t>(alignment));
    extra.append(zeros, '\0');
  }
  std::string header;
  put<uint32_t>(header, kLocalSignature);
  put_common(header, entry, zip64, extra.size());
  header += entry.name + extra;
  entry.data = entry.header + header.size();
  return header;
}

std::string zip_directory(const std::vector<ZipEntry>& entries, uint64_t offset) {
  std::string bytes;
  for (const ZipEntry& entry : entries) {
    std::string numbers;
    if (is_large(entry.bytes)) {
      put<uint64_t>(numbers, entry.bytes);
      put<uint64_t>(numbers, entry.bytes);
    }
    if (is_large(entry.header)) put<uint64_t>(numbers, entry.header);
    const bool zip64 = !numbers.empty();
    put<uint32_t>(bytes, kCentralSignature);
    put<uint16_t>(bytes, kMadeOnUnix | kZip64Version);
    put_common(bytes, entry, zip64, zip64 ? 4 + numbers.size() : 0);
    put<uint16_t>(bytes, 0);  // no comment
    put<uint16_t>(bytes, 0);  // the disk
    put<uint16_t>(bytes, 0);  // internal attributes
    put<uint32_t>(bytes, kRegularFile);
    put<uint32_t>(bytes, low(entry.header));
    bytes += entry.name;
    if (!zip64) continue;
    put<uint16_t>(bytes, kZip64Field);
    put<uint16_t>(bytes, static_cast<uint16_t>(numbers.size()));
    bytes += numbers;
  }
  const uint64_t directory_bytes = bytes.size();
  if (entries.size() >= kCountIn64 || is_large(directory_bytes) || is_large(offset)) {
    put<uint32_t>(bytes, kEnd64Signature);
    put<uint64_t>(bytes, kEnd64Bytes - 12);
    put<uint16_t>(bytes, kMadeOnUnix | kZip64Version);
    put<uint16_t>(bytes, kZip64Version);
    put<uint32_t>(bytes, 0);
    put<uint32_t>(bytes, 0);
    put<uint64_t>(bytes, entries.size());
    put<uint64_t>(bytes, entries.size());
    put<uint64_t>(bytes, directory_bytes);
    put<uint64_t>(bytes, offset);
    put<uint32_t>(bytes, kLocator64Signature);
    put<uint32_t>(bytes, 0);
    put<uint64_t>(bytes, offset + directory_bytes);
    put<uint32_t>(bytes, 1);
  }
  const auto count = static_cast<uint16_t>(std::min<size_t>(entries.size(), kCountIn64));
  put<uint32_t>(bytes, kEndSignature);
  put<uint16_t>(bytes, 0);
  put<uint16_t>(bytes, 0);
  put<uint16_t>(bytes, count);
  put<uint16_t>(bytes, count);
  put<uint32_t>(bytes, low(directory_bytes));
  put<uint32_t>(bytes, low(offset));
  put<uint16_t>(bytes, 0);
  return bytes;
}

Result<std::vector<ZipEntry>> read_zip(std::string_view file) { return ZipReader(file).read(); }

}  // namespace hetero::graph
