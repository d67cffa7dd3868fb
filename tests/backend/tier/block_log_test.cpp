// The log gives back what was put into it, up to the first byte that is not right, whatever the
// bytes are; a compaction loses nothing.

#include "backend/tier/block_log.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <thread>

#include "tests/backend/tier/blocks.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

using testing::TemporaryFolder;
using testing::WithFaults;

const LogIdentity kIdentity{{3, 4}, {.tokens = 4, .pieces = 3, .piece_bytes = 100}, "a model"};

LogRecord record_of(int64_t slot, uint64_t number) {
  LogRecord record;
  record.slot = slot;
  record.generation = number;
  record.key = {number, 1};
  record.parent = {number, 2};
  record.tokens = {static_cast<int32_t>(number), 5, 6};
  record.checksums = {number, 7, 8};
  return record;
}

// A log of `count` records, some of them erased ones, and where each one ends.
struct Log {
  LogHeader header{{21, 22}, kIdentity};
  std::vector<LogRecord> records;
  std::vector<size_t> ends;
  std::string bytes = encode_header(header);
  explicit Log(uint64_t count) {
    uint64_t chain = header.uuid[0];
    ends.push_back(bytes.size());
    for (uint64_t i = 1; i <= count; ++i) {
      LogRecord record = record_of(static_cast<int64_t>(i % 7), i);
      if (i % 4 == 0) {
        record = {};
        record.kind = LogRecord::kErased;
        record.slot = static_cast<int64_t>(i % 7);
        record.generation = i;
      }
      encode_record(record, chain, bytes);
      records.push_back(record);
      ends.push_back(bytes.size());
    }
  }
  // The parsed records are the first ones of these.
  bool begins_with(const ParsedLog& parsed) const {
    return parsed.records.size() <= records.size() &&
           std::equal(parsed.records.begin(), parsed.records.end(), records.begin()) &&
           parsed.good_bytes == ends[parsed.records.size()];
  }
};

TEST_CASE("A log that was encoded is parsed as it was", "[tier]") {
  const Log log(20);
  Result<ParsedLog> parsed = parse_log(log.bytes);
  REQUIRE(parsed.ok());
  CHECK(parsed.value().header == log.header);
  CHECK(parsed.value().records == log.records);
  CHECK(parsed.value().good_bytes == log.bytes.size());
}

TEST_CASE("A log that is cut anywhere gives the records before the cut", "[tier]") {
  const Log log(12);
  for (size_t bytes = 0; bytes <= log.bytes.size(); ++bytes) {
    // On the heap and of this length, so that a sanitizer sees every read beyond it.
    const std::vector<char> cut(log.bytes.begin(), log.bytes.begin() + static_cast<ptrdiff_t>(bytes));
    Result<ParsedLog> parsed = parse_log({cut.data(), cut.size()});
    REQUIRE(parsed.ok() == (bytes >= log.ends[0]));
    if (!parsed.ok()) continue;
    size_t whole = 0;
    while (whole + 1 < log.ends.size() && log.ends[whole + 1] <= bytes) ++whole;
    REQUIRE(parsed.value().records.size() == whole);
    REQUIRE(log.begins_with(parsed.value()));
  }
}

TEST_CASE("A flipped bit anywhere loses the records from there on, and gives no wrong one", "[tier]") {
  const Log log(12);
  for (size_t bit = 0; bit < log.bytes.size() * 8; ++bit) {
    std::string bytes = log.bytes;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    Result<ParsedLog> parsed = parse_log(bytes);
    REQUIRE(parsed.ok() == (bit / 8 >= log.ends[0]));
    if (!parsed.ok()) continue;
    size_t whole = 0;
    while (log.ends[whole + 1] <= bit / 8) ++whole;
    REQUIRE(parsed.value().records.size() == whole);
    REQUIRE(log.begins_with(parsed.value()));
  }
}

TEST_CASE("Random bytes, and logs with random damage, crash nothing and give no wrong record", "[tier]") {
  std::mt19937 random(9);
  const Log log(30);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = round % 2 == 0 ? log.bytes : log.bytes.substr(0, log.ends[0]);
    if (round % 2 == 0) {
      for (int edits = 1 + static_cast<int>(random() % 4); edits > 0; --edits) {
        const size_t at = log.ends[0] + random() % (bytes.size() - log.ends[0]);
        const size_t count = std::min<size_t>(bytes.size() - at, random() % 80);
        switch (random() % 4) {
          case 0:
            bytes.erase(at, count);
            break;
          case 1:
            bytes.insert(at, bytes.substr(random() % (bytes.size() - 80), count));
            break;
          case 2:
            bytes.replace(at, count, std::string(count, '\xff'));
            break;
          default:
            for (size_t i = 0; i < count; ++i) bytes[at + i] = static_cast<char>(random());
        }
        if (bytes.size() <= log.ends[0] + 100) break;
      }
    } else {
      for (size_t i = random() % 400; i > 0; --i) bytes.push_back(static_cast<char>(random()));
    }
    const std::vector<char> heap(bytes.begin(), bytes.end());
    Result<ParsedLog> parsed = parse_log({heap.data(), heap.size()});
    REQUIRE(parsed.ok());
    REQUIRE(log.begins_with(parsed.value()));
  }
  for (int round = 0; round < 20000; ++round) {
    std::string bytes(random() % 300, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (round % 2 == 0) bytes.replace(0, std::min<size_t>(bytes.size(), 8), "hetKVlog");
    REQUIRE_FALSE(parse_log(bytes).ok());
  }
}

TEST_CASE("Records with false lengths and counts are refused even if their checksum is right", "[tier]") {
  // A hostile writer can compute checksums, so the fields are checked too.
  const Log log(0);
  std::mt19937 random(11);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = log.bytes;
    uint64_t chain = log.header.uuid[0];
    LogRecord record = record_of(static_cast<int64_t>(random() % 5), 1);
    record.checksums.resize(random() % 5);
    record.tokens.resize(random() % 5);
    encode_record(record, chain, bytes);
    const size_t fields[] = {8, 12, 16, 72, 76};  // bytes, kind, slot, tokens, checksums
    const size_t at = log.ends[0] + fields[random() % 5];
    const uint32_t values[] = {0, 1, 2, 0x7fffffff, 0x80000000, 0xffffffff, static_cast<uint32_t>(random() % 200)};
    const uint32_t value = values[random() % 7];
    std::memcpy(bytes.data() + at, &value, sizeof(value));
    const uint64_t sum = checksum(bytes.data() + log.ends[0] + 8, bytes.size() - log.ends[0] - 8);
    const uint64_t both[2] = {log.header.uuid[0], sum};
    const uint64_t right = checksum(both, sizeof(both));
    std::memcpy(bytes.data() + log.ends[0], &right, sizeof(right));
    const std::vector<char> heap(bytes.begin(), bytes.end());
    Result<ParsedLog> parsed = parse_log({heap.data(), heap.size()});
    REQUIRE(parsed.ok());
    for (const LogRecord& found : parsed.value().records) {
      REQUIRE(found.slot >= 0);
      REQUIRE((found.kind == LogRecord::kErased || found.checksums.size() == 3));
    }
  }
}

struct Opened {
  TemporaryFolder folder{"block-log"};
  std::unique_ptr<BlockLog> log;
  std::filesystem::path path() const { return folder.path / "index"; }
  BlockLog& open() {
    log.reset();
    auto opened = BlockLog::open(folder.path, kIdentity);
    REQUIRE(opened.ok());
    log = std::move(opened.value());
    return *log;
  }
  // The keys of the live records, by slot.
  std::map<int64_t, uint64_t> keys() const {
    std::map<int64_t, uint64_t> found;
    for (const BlockLog::Record& record : log->live()) found[record->slot] = record->key.high;
    return found;
  }
};

TEST_CASE("The last record of a slot counts, after a restart too", "[tier]") {
  Opened opened;
  BlockLog& log = opened.open();
  REQUIRE(log.publish({record_of(1, 10), record_of(2, 20), record_of(3, 30)}) == 0);
  REQUIRE(log.publish({record_of(2, 21)}) == 0);
  REQUIRE(log.erase({3, 4}) == 0);
  const std::map<int64_t, uint64_t> wanted{{1, 10}, {2, 21}};
  CHECK(opened.keys() == wanted);
  CHECK(log.find(2)->checksums == std::vector<uint64_t>{21, 7, 8});
  CHECK(log.find(3) == nullptr);
  opened.open();
  CHECK(opened.keys() == wanted);
  CHECK(opened.log->sync() == 0);
}

TEST_CASE("A damaged end is cut off, and the log goes on behind what is good", "[tier]") {
  Opened opened;
  REQUIRE(opened.open().publish({record_of(1, 10), record_of(2, 20)}) == 0);
  opened.log.reset();
  std::filesystem::resize_file(opened.path(), std::filesystem::file_size(opened.path()) - 1);
  std::ofstream(opened.path(), std::ios::app) << "what a crash left";
  REQUIRE(opened.open().publish({record_of(3, 30)}) == 0);
  CHECK(opened.log->counters().cut_bytes > 0);
  opened.open();
  CHECK(opened.keys() == std::map<int64_t, uint64_t>{{1, 10}, {3, 30}});
  CHECK(opened.log->counters().cut_bytes == 0);
}

struct Fault : FileFaults {
  FileCall call;
  FileFault fault;
  int64_t position;
  std::atomic<int64_t> seen{0};
  Fault(FileCall call, FileFault fault, int64_t position) : call(call), fault(fault), position(position) {}
  FileFault next(FileCall of, int, int64_t, size_t) override {
    if (of != call) return {};
    return seen++ == position ? fault : FileFault();
  }
};

TEST_CASE("A record that could not be appended is not there, and the next one is", "[tier]") {
  Opened opened;
  BlockLog& log = opened.open();
  REQUIRE(log.publish({record_of(1, 10)}) == 0);
  struct ShortThenFull : FileFaults {
    std::atomic<int> seen{0};
    FileFault next(FileCall, int, int64_t, size_t) override {
      if (seen++ == 0) return {.kind = FileFault::kShort};
      return {.kind = FileFault::kError, .error = ENOSPC};
    }
  };
  {
    const WithFaults<ShortThenFull> faults;
    CHECK(log.publish({record_of(2, 20), record_of(3, 30)}) == ENOSPC);
  }
  CHECK(log.find(2) == nullptr);
  REQUIRE(log.publish({record_of(4, 40)}) == 0);
  opened.open();
  CHECK(opened.keys() == std::map<int64_t, uint64_t>{{1, 10}, {4, 40}});
}

TEST_CASE("A compaction that fails at any call leaves the log as it was", "[tier]") {
  for (const FileCall call : {FileCall::kWrite, FileCall::kSync}) {
    for (int64_t position = 0; position < 4; ++position) {
      Opened opened;
      BlockLog& log = opened.open();
      REQUIRE(log.publish({record_of(1, 10), record_of(2, 20)}) == 0);
      REQUIRE(log.erase({1}) == 0);
      const int64_t before = log.counters().bytes;
      {
        const WithFaults<Fault> faults(call, FileFault{.kind = FileFault::kError, .error = EIO}, position);
        const int error = log.compact();
        CHECK(error == (faults.seen > position ? EIO : 0));
        CHECK((log.counters().bytes < before) == (error == 0));
      }
      REQUIRE(log.publish({record_of(3, 30)}) == 0);
      CHECK(std::distance(std::filesystem::directory_iterator(opened.folder.path), {}) == 1);
      opened.open();
      CHECK(opened.keys() == std::map<int64_t, uint64_t>{{2, 20}, {3, 30}});
    }
  }
}

TEST_CASE("Records that are appended during a compaction are kept", "[tier]") {
  Opened opened;
  BlockLog& log = opened.open();
  std::atomic<bool> ends{false};
  int failed = 0;  // Catch2's macros are for one thread
  std::thread appends([&] {
    for (uint64_t i = 1; i <= 3000; ++i) {
      failed += log.publish({record_of(static_cast<int64_t>(i % 50), i)}) != 0;
      if (i % 3 == 0) failed += log.erase({static_cast<int64_t>(i % 50)}) != 0;
    }
    ends = true;
  });
  int compactions = 0;
  for (; !ends || compactions < 2; ++compactions) CHECK(log.compact() == 0);
  appends.join();
  CHECK(failed == 0);
  const std::map<int64_t, uint64_t> before = opened.keys();
  CHECK(log.counters().compactions == compactions);
  opened.open();
  CHECK(opened.keys() == before);
}

TEST_CASE("A log asks to be compacted when most of it is dead", "[tier]") {
  Opened opened;
  BlockLog& log = opened.open();
  std::vector<LogRecord> many;
  for (int64_t slot = 0; slot < 10000; ++slot) many.push_back(record_of(slot, static_cast<uint64_t>(slot)));
  REQUIRE(log.publish(many) == 0);
  CHECK(log.counters().bytes > 1 << 20);
  CHECK_FALSE(log.wants_compaction());
  std::vector<int64_t> slots;
  for (int64_t slot = 0; slot < 9000; ++slot) slots.push_back(slot);
  REQUIRE(log.erase(slots) == 0);
  CHECK(log.wants_compaction());
  REQUIRE(log.compact() == 0);
  CHECK_FALSE(log.wants_compaction());
  CHECK(log.counters().bytes < 1 << 18);
  opened.open();
  CHECK(opened.keys().size() == 1000);
}

TEST_CASE("What an interrupted compaction left is removed", "[tier]") {
  Opened opened;
  REQUIRE(opened.open().publish({record_of(1, 10)}) == 0);
  opened.log.reset();
  std::ofstream(opened.path().string() + ".new") << "half a snapshot";
  opened.open();
  CHECK(opened.keys() == std::map<int64_t, uint64_t>{{1, 10}});
  CHECK(std::distance(std::filesystem::directory_iterator(opened.folder.path), {}) == 1);
}

}  // namespace
}  // namespace hetero::backend
