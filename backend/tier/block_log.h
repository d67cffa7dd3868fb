// BlockLog: which blocks are in the slots of a file, as a log that a crash cannot corrupt.
//
// The log is one file. It begins with what the blocks belong to, followed by records: a block was
// published in a slot, or erased from it. Each record has its length and a checksum; the checksum
// is chained to the record before, so nothing that is left from an older log fits. A reader takes
// records until the first one that is not right, and cuts the rest off.
//
// Compaction writes a snapshot, the live records only, into a new file and renames it over the log,
// which then goes on in it. So there is one file at any moment, and it is whole.
//
// Memory keeps the live records. They hold the checksums that reads verify.
//
// Thread safety: any thread. Ownership: records are immutable and shared.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "backend/base/status.h"
#include "backend/tier/block_geometry.h"
#include "backend/tier/block_key.h"

namespace hetero::backend {

// What the blocks of a folder belong to.
struct LogIdentity {
  BlockKey fingerprint;
  BlockGeometry geometry;
  std::string description;
  bool operator==(const LogIdentity&) const = default;
};

struct LogRecord {
  enum Kind : uint16_t { kPublished = 1, kErased = 2 };
  Kind kind = kPublished;
  int64_t slot = 0;
  uint64_t generation = 0;  // grows with each record of the log
  int64_t seconds = 0;      // since 1970
  // Of a published block:
  BlockKey key;
  BlockKey parent;
  std::vector<int32_t> tokens;
  std::vector<uint64_t> checksums;  // of its pieces

  bool operator==(const LogRecord&) const = default;
};

// The format. Figures are stored as this machine has them in memory (little-endian everywhere that
// hetero runs).
struct LogHeader {
  static constexpr uint32_t kVersion = 1;
  std::array<uint64_t, 2> uuid = {};  // of the folder; the first one seeds the chain of checksums
  LogIdentity identity;
  bool operator==(const LogHeader&) const = default;
};
std::string encode_header(const LogHeader& header);
// Adds the record to `bytes`; `chain` is the checksum of the record before it, and becomes its own.
void encode_record(const LogRecord& record, uint64_t& chain, std::string& bytes);

struct ParsedLog {
  LogHeader header;
  std::vector<LogRecord> records;
  size_t good_bytes = 0;  // what follows is damaged, or not there
  uint64_t chain = 0;     // the checksum of the last good record
};
// Errors: kStorage if the header is not right. Never trusts a length.
Result<ParsedLog> parse_log(std::string_view bytes);

struct LogCounters {
  int64_t bytes = 0;
  int64_t live_bytes = 0;
  int64_t compactions = 0;
  int64_t cut_bytes = 0;  // of a damaged end, when it was opened
};

class BlockLog {
 public:
  using Record = std::shared_ptr<const LogRecord>;

  // Opens folder/index, or makes it. Errors: kStorage; of another version, fingerprint or geometry;
  // damaged at its beginning; no permission. REQUIRES: no one else has it open.
  static Result<std::unique_ptr<BlockLog>> open(const std::string& folder, const LogIdentity& identity);
  ~BlockLog();
  BlockLog(const BlockLog&) = delete;

  // The live record of a slot, or null.
  Record find(int64_t slot) const;
  std::vector<Record> live() const;

  // Appends records in one write, with generations and times of their own. They are live when it
  // returns 0; else the errno, and none of them is.
  int publish(std::vector<LogRecord> records);
  // The slots have no live record from now on, whatever is returned: 0, or the errno if the log
  // does not say so. Then the blocks may be there again when it is next opened, which is safe.
  int erase(const std::vector<int64_t>& slots);

  // Everything appended so far is on the disk. 0, or an errno.
  int sync();

  bool wants_compaction() const;
  // Records may be appended meanwhile. 0, or an errno; the log then goes on as it was.
  int compact();

  LogCounters counters() const;

 private:
  BlockLog(std::string folder, int file, ParsedLog parsed);
  void take_in(std::vector<LogRecord>& records);
  int append(const std::vector<LogRecord>& records);
  void stamp(LogRecord& record);

  const std::string folder_;
  const LogHeader header_;
  const size_t header_bytes_;
  std::mutex compacting_;  // taken before mutex_
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  int file_;
  int64_t end_;  // of the last record
  uint64_t chain_;
  uint64_t generation_ = 0;  // the last one that was used
  std::unordered_map<int64_t, Record> live_;
  int64_t live_bytes_ = 0;
  int64_t compacts_at_ = 0;
  bool keeps_tail_ = false;      // while a compaction goes on
  std::vector<LogRecord> tail_;  // appended during it
  LogCounters counters_;
};

}  // namespace hetero::backend
