// The format of the log, and its file.

#include "backend/tier/block_log.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <type_traits>
#include <utility>

#include "backend/file/file_transfer.h"

namespace hetero::backend {
namespace {

constexpr std::string_view kMagic = "hetKVlog";
constexpr size_t kMostDescriptionBytes = 4096;
constexpr uint32_t kMostRecordBytes = uint32_t{64} << 20;
constexpr size_t kHeadBytes = 16;  // of a record: checksum, bytes, kind, nothing
constexpr int64_t kLeastCompactedBytes = int64_t{1} << 20;

template <typename T>
void put(std::string& bytes, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
void put_all(std::string& bytes, const std::vector<T>& values) {
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

// Reads values one after the other. Past the end it gives zeros, and says so.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T get() {
    T value = {};
    if (bytes_.size() < sizeof(T)) {
      ok_ = false;
      bytes_ = {};
    } else {
      std::memcpy(&value, bytes_.data(), sizeof(T));
      bytes_.remove_prefix(sizeof(T));
    }
    return value;
  }
  // The count is compared with what is there before any memory is taken.
  template <typename T>
  std::vector<T> get_all(uint64_t count) {
    if (count > bytes_.size() / sizeof(T)) {
      ok_ = false;
      return {};
    }
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), bytes_.data(), count * sizeof(T));
    bytes_.remove_prefix(count * sizeof(T));
    return values;
  }
  bool ok() const { return ok_; }
  bool at_end() const { return bytes_.empty(); }
  size_t left() const { return bytes_.size(); }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

// The checksum of a record's bytes after the checksum itself, and of the record before.
uint64_t chained(uint64_t before, std::string_view bytes) {
  const uint64_t both[2] = {before, checksum(bytes.data(), bytes.size())};
  return checksum(both, sizeof(both));
}

std::optional<LogRecord> parse_record(uint16_t kind, std::string_view body, int64_t pieces) {
  if (kind != LogRecord::kPublished && kind != LogRecord::kErased) return std::nullopt;
  Reader reader(body);
  LogRecord record;
  record.kind = static_cast<LogRecord::Kind>(kind);
  record.slot = reader.get<int64_t>();
  record.generation = reader.get<uint64_t>();
  record.seconds = reader.get<int64_t>();
  if (kind == LogRecord::kPublished) {
    record.key = reader.get<BlockKey>();
    record.parent = reader.get<BlockKey>();
    const auto tokens = reader.get<uint32_t>();
    const auto checksums = reader.get<uint32_t>();
    record.checksums = reader.get_all<uint64_t>(checksums);
    record.tokens = reader.get_all<int32_t>(tokens);
    if (checksums != pieces) return std::nullopt;
  }
  if (!reader.ok() || !reader.at_end() || record.slot < 0) return std::nullopt;
  return record;
}

Status storage_error(const std::string& path, const std::string& what) {
  return Status(ErrorClass::kStorage, path + what);
}

Status storage_error(const std::string& path, const std::string& what, int error) {
  return storage_error(path, what + ": " + std::generic_category().message(error));
}

std::string described(const LogIdentity& identity) {
  std::string text = "blocks of ";
  text += identity.description.empty() ? "fingerprint " + to_string(identity.fingerprint) : identity.description;
  text.append(", ").append(std::to_string(identity.geometry.tokens)).append(" tokens in ");
  text.append(std::to_string(identity.geometry.pieces)).append(" pieces of ");
  text.append(std::to_string(identity.geometry.piece_bytes)).append(" bytes");
  return text;
}

int sync_folder(const std::string& folder) {
  const int file = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return errno;
  // Some file systems cannot sync a folder; they have no order to promise either.
  const int error = fsync(file) == 0 || errno == EINVAL ? 0 : errno;
  close(file);
  return error;
}

int64_t seconds_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

int64_t encoded_bytes(const LogRecord& record) {
  const int64_t head = static_cast<int64_t>(kHeadBytes) + 24;
  if (record.kind == LogRecord::kErased) return head;
  return head + 40 + 4 * std::ssize(record.tokens) + 8 * std::ssize(record.checksums);
}

struct File {
  int descriptor = -1;
  ~File() {
    if (descriptor >= 0) close(descriptor);
  }
  int release() { return std::exchange(descriptor, -1); }
};

// Writes a new file and puts it in the place of the log. 0, or an errno.
int put_in_place(const std::string& folder, File& file, const std::string& temporary) {
  if (const int error = sync_bytes(file.descriptor)) return error;
  const std::string path = folder + "/index";
  if (rename(temporary.c_str(), path.c_str()) != 0) return errno;
  return 0;
}

}  // namespace

std::string encode_header(const LogHeader& header) {
  const std::string_view description = std::string_view(header.identity.description).substr(0, kMostDescriptionBytes);
  std::string bytes(kMagic);
  put(bytes, LogHeader::kVersion);
  put(bytes, static_cast<uint32_t>(description.size()));
  put(bytes, header.uuid);
  put(bytes, header.identity.fingerprint);
  put(bytes, header.identity.geometry);
  bytes += description;
  put(bytes, checksum(bytes.data(), bytes.size()));
  return bytes;
}

void encode_record(const LogRecord& record, uint64_t& chain, std::string& bytes) {
  const size_t start = bytes.size();
  put(bytes, uint64_t{0});
  put(bytes, static_cast<uint32_t>(encoded_bytes(record)));
  put(bytes, record.kind);
  put(bytes, uint16_t{0});
  put(bytes, record.slot);
  put(bytes, record.generation);
  put(bytes, record.seconds);
  if (record.kind == LogRecord::kPublished) {
    put(bytes, record.key);
    put(bytes, record.parent);
    put(bytes, static_cast<uint32_t>(record.tokens.size()));
    put(bytes, static_cast<uint32_t>(record.checksums.size()));
    put_all(bytes, record.checksums);
    put_all(bytes, record.tokens);
  }
  chain = chained(chain, std::string_view(bytes).substr(start + sizeof(chain)));
  std::memcpy(bytes.data() + start, &chain, sizeof(chain));
}

Result<ParsedLog> parse_log(std::string_view bytes) {
  ParsedLog log;
  if (!bytes.starts_with(kMagic)) return storage_error("", "it is not an index of blocks");
  Reader head(bytes.substr(kMagic.size()));
  const auto version = head.get<uint32_t>();
  if (head.ok() && version != LogHeader::kVersion) {
    std::string what = "it has version ";
    what.append(std::to_string(version)).append(", and this program reads version ");
    what.append(std::to_string(LogHeader::kVersion));
    return storage_error("", what);
  }
  const auto description_bytes = head.get<uint32_t>();
  log.header.uuid = head.get<std::array<uint64_t, 2>>();
  log.header.identity.fingerprint = head.get<BlockKey>();
  log.header.identity.geometry = head.get<BlockGeometry>();
  if (description_bytes > kMostDescriptionBytes || description_bytes > head.left()) head.get_all<char>(UINT64_MAX);
  const std::vector<char> description = head.ok() ? head.get_all<char>(description_bytes) : std::vector<char>();
  log.header.identity.description.assign(description.begin(), description.end());
  const size_t summed = bytes.size() - head.left();
  const auto sum = head.get<uint64_t>();
  if (!head.ok() || sum != checksum(bytes.data(), summed)) return storage_error("", "its beginning is damaged");

  log.good_bytes = bytes.size() - head.left();
  log.chain = log.header.uuid[0];
  for (std::string_view rest = bytes.substr(log.good_bytes); rest.size() >= kHeadBytes;) {
    Reader reader(rest);
    const auto chain = reader.get<uint64_t>();
    const auto length = reader.get<uint32_t>();
    const auto kind = reader.get<uint16_t>();
    if (length < kHeadBytes || length > kMostRecordBytes || length > rest.size()) break;
    if (chain != chained(log.chain, rest.substr(sizeof(chain), length - sizeof(chain)))) break;
    std::optional<LogRecord> record =
        parse_record(kind, rest.substr(kHeadBytes, length - kHeadBytes), log.header.identity.geometry.pieces);
    if (!record.has_value()) break;
    log.records.push_back(*std::move(record));
    log.chain = chain;
    log.good_bytes += length;
    rest.remove_prefix(length);
  }
  return log;
}

Result<std::unique_ptr<BlockLog>> BlockLog::open(const std::string& folder, const LogIdentity& wanted) {
  LogIdentity identity = wanted;
  identity.description.resize(std::min(identity.description.size(), kMostDescriptionBytes));
  const std::string path = folder + "/index";
  const std::string temporary = path + ".new";
  // A compaction that a crash interrupted.
  unlink(temporary.c_str());
  File file{::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW)};
  if (file.descriptor < 0 && errno != ENOENT) return storage_error(path, " cannot be opened", errno);
  if (file.descriptor < 0) {
    LogHeader header{.uuid = {}, .identity = identity};
    if (getrandom(header.uuid.data(), sizeof(header.uuid), 0) != sizeof(header.uuid)) {
      header.uuid = {static_cast<uint64_t>(seconds_now()), static_cast<uint64_t>(getpid())};
    }
    file.descriptor = ::open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file.descriptor < 0) return storage_error(path, " cannot be made", errno);
    int error = write_all(file.descriptor, 0, encode_header(header));
    if (error == 0) error = put_in_place(folder, file, temporary);
    if (error == 0) error = sync_folder(folder);
    if (error != 0) {
      unlink(temporary.c_str());
      return storage_error(path, " cannot be made", error);
    }
  }
  struct stat status = {};
  if (fstat(file.descriptor, &status) != 0) return storage_error(path, " cannot be read", errno);
  std::string bytes(static_cast<size_t>(status.st_size), '\0');
  if (const int error = read_all(file.descriptor, 0, bytes.data(), bytes.size())) {
    return storage_error(path, " cannot be read", error);
  }
  Result<ParsedLog> parsed = parse_log(bytes);
  if (!parsed.ok()) return storage_error(path, " cannot be used: " + parsed.status().message());
  const LogIdentity& found = parsed.value().header.identity;
  if (found.fingerprint != identity.fingerprint || found.geometry != identity.geometry) {
    std::string what = " has " + described(found);
    what.append(", not ").append(described(identity));
    if (found.description == identity.description && found.fingerprint != identity.fingerprint) {
      what.append(": their fingerprints are ").append(to_string(found.fingerprint));
      what.append(" and ").append(to_string(identity.fingerprint));
    }
    return storage_error(path, what);
  }
  const auto good = static_cast<off_t>(parsed.value().good_bytes);
  const int64_t cut = status.st_size - good;
  if (cut > 0 && ftruncate(file.descriptor, good) != 0) return storage_error(path, " cannot be repaired", errno);
  std::unique_ptr<BlockLog> log(new BlockLog(folder, file.release(), std::move(parsed.value())));
  log->counters_.cut_bytes = cut;
  return log;
}

BlockLog::BlockLog(std::string folder, int file, ParsedLog parsed)
    : folder_(std::move(folder)),
      header_(std::move(parsed.header)),
      header_bytes_(encode_header(header_).size()),
      file_(file),
      end_(static_cast<int64_t>(parsed.good_bytes)),
      chain_(parsed.chain),
      compacts_at_(kLeastCompactedBytes) {
  live_.reserve(parsed.records.size());
  take_in(parsed.records);
}

BlockLog::~BlockLog() { close(file_); }

// A record counts if it is newer than what is known of its slot.
void BlockLog::take_in(std::vector<LogRecord>& records) {
  for (LogRecord& record : records) {
    generation_ = std::max(generation_, record.generation);
    const auto known = live_.find(record.slot);
    if (known != live_.end()) {
      if (record.generation <= known->second->generation) continue;
      live_bytes_ -= encoded_bytes(*known->second);
    }
    if (record.kind == LogRecord::kErased) {
      if (known != live_.end()) live_.erase(known);
      continue;
    }
    live_bytes_ += encoded_bytes(record);
    const int64_t slot = record.slot;
    live_[slot] = std::make_shared<const LogRecord>(std::move(record));
  }
}

void BlockLog::stamp(LogRecord& record) {
  record.generation = ++generation_;
  record.seconds = seconds_now();
}

BlockLog::Record BlockLog::find(int64_t slot) const {
  const std::lock_guard guard(mutex_);
  const auto found = live_.find(slot);
  return found == live_.end() ? nullptr : found->second;
}

std::vector<BlockLog::Record> BlockLog::live() const {
  const std::lock_guard guard(mutex_);
  std::vector<Record> records;
  records.reserve(live_.size());
  for (const auto& [slot, record] : live_) records.push_back(record);
  return records;
}

// A failed append leaves a part of a record at most, which the next one overwrites.
int BlockLog::append(const std::vector<LogRecord>& records) {
  std::string bytes;
  uint64_t chain = chain_;
  for (const LogRecord& record : records) encode_record(record, chain, bytes);
  if (const int error = write_all(file_, end_, bytes)) {
    (void)!ftruncate(file_, end_);
    return error;
  }
  end_ += std::ssize(bytes);
  chain_ = chain;
  if (keeps_tail_) tail_.insert(tail_.end(), records.begin(), records.end());
  return 0;
}

int BlockLog::publish(std::vector<LogRecord> records) {
  const std::lock_guard guard(mutex_);
  for (LogRecord& record : records) stamp(record);
  if (const int error = append(records)) return error;
  take_in(records);
  return 0;
}

int BlockLog::erase(const std::vector<int64_t>& slots) {
  const std::lock_guard guard(mutex_);
  std::vector<LogRecord> records;
  for (int64_t slot : slots) {
    if (live_.find(slot) == live_.end()) continue;
    LogRecord& record = records.emplace_back();
    record.kind = LogRecord::kErased;
    record.slot = slot;
    stamp(record);
  }
  if (records.empty()) return 0;
  const int error = append(records);
  take_in(records);
  return error;
}

int BlockLog::sync() {
  // Without the lock, so that records are appended meanwhile. A compaction would close the file.
  const std::lock_guard guard(compacting_);
  int file = -1;
  {
    const std::lock_guard reading(mutex_);
    file = file_;
  }
  return sync_bytes(file);
}

bool BlockLog::wants_compaction() const {
  const std::lock_guard guard(mutex_);
  return end_ > compacts_at_ && end_ > 2 * (live_bytes_ + static_cast<int64_t>(header_bytes_));
}

int BlockLog::compact() {
  const std::lock_guard guard(compacting_);
  std::vector<Record> records;
  {
    const std::lock_guard reading(mutex_);
    for (const auto& [slot, record] : live_) records.push_back(record);
    tail_.clear();
    keeps_tail_ = true;
  }
  // In the order of publishing, so parents mostly stand before their children.
  std::sort(records.begin(), records.end(),
            [](const Record& a, const Record& b) { return a->generation < b->generation; });

  const std::string temporary = folder_ + "/index.new";
  unlink(temporary.c_str());
  File file{::open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)};
  int error = file.descriptor < 0 ? errno : 0;
  uint64_t chain = header_.uuid[0];
  int64_t end = 0;
  std::string bytes = encode_header(header_);
  const auto flush = [&] {
    if (error == 0) error = write_all(file.descriptor, end, bytes);
    end += std::ssize(bytes);
    bytes.clear();
  };
  for (const Record& record : records) {
    encode_record(*record, chain, bytes);
    if (bytes.size() >= size_t{1} << 20) flush();
  }
  flush();
  if (error == 0) error = sync_bytes(file.descriptor);

  {
    const std::lock_guard writing(mutex_);
    keeps_tail_ = false;
    for (const LogRecord& record : tail_) encode_record(record, chain, bytes);
    tail_.clear();
    flush();
    if (error == 0) error = put_in_place(folder_, file, temporary);
    if (error == 0) {
      close(std::exchange(file_, file.release()));
      end_ = end;
      chain_ = chain;
      ++counters_.compactions;
      compacts_at_ = kLeastCompactedBytes;
    } else {
      // Not again before the log has grown as much as it has now.
      compacts_at_ = 2 * end_;
    }
  }
  if (error == 0) return sync_folder(folder_);
  unlink(temporary.c_str());
  return error;
}

LogCounters BlockLog::counters() const {
  const std::lock_guard guard(mutex_);
  LogCounters counters = counters_;
  counters.bytes = end_;
  counters.live_bytes = live_bytes_;
  return counters;
}

}  // namespace hetero::backend
