// Blocks on a disk: what was written comes back, after a restart too; what is wrong is never given
// as right; a disk that fails ends calls with one sentence; nothing hangs.

#include "backend/tier/block_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "tests/backend/child.h"
#include "tests/backend/tier/blocks.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

using testing::fill;
using testing::is_filled;
using testing::pages;
using testing::Pages;
using testing::read_blocks;
using testing::TemporaryFolder;
using testing::WithFaults;
using testing::write_blocks;

constexpr BlockGeometry kGeometry{.tokens = 4, .pieces = 3, .piece_bytes = 5000};
const BlockKey kFingerprint{11, 12};

struct Store {
  BlockFileOptions options;
  std::unique_ptr<BlockFile> file;
  std::vector<StoredBlock> recovered;
  Status status;

  explicit Store(const TemporaryFolder& folder, FileEngine engine = FileEngine::kAuto, int64_t slots = 16,
                 Durability durability = Durability::kNone) {
    options.folder = folder.path / "blocks";
    options.geometry = kGeometry;
    options.fingerprint = kFingerprint;
    options.description = "a model";
    options.most_bytes = slots * kGeometry.block_bytes();
    options.engine = engine;
    options.durability = durability;
    options.group_seconds = 0.005;
  }
  Store& open() {
    file.reset();
    recovered.clear();
    auto opened = BlockFile::open(options, [&](const StoredBlock& block) { recovered.push_back(block); });
    status = opened.status();
    if (opened.ok()) file = std::move(opened.value());
    return *this;
  }
  std::string path(const char* name) const { return options.folder + "/" + name; }
};

BlockKey key_of(uint64_t number) { return {number, number * 77 + 1}; }

StoredBlock block_of(uint64_t number, const BlockKey& parent = kFingerprint) {
  const auto first = static_cast<int32_t>(number);
  return {.slot = 0, .key = key_of(number), .parent = parent, .tokens = {first, first + 1, first + 2, first + 3}};
}

// Takes a slot and writes a block there.
int64_t put(BlockFile& file, uint64_t number, const BlockKey& parent = kFingerprint) {
  const std::optional<int64_t> slot = file.take();
  REQUIRE(slot.has_value());
  const Pages data = pages(kGeometry.block_bytes());
  fill(data.get(), kGeometry, key_of(number));
  const BlockResult result =
      write_blocks(file, {{.slot = *slot, .data = data.get(), .block = block_of(number, parent)}});
  INFO((result.status.ok() ? "" : result.status.message()));
  REQUIRE(result.status.ok());
  return *slot;
}

bool has(BlockFile& file, int64_t slot, uint64_t number) {
  const Pages data = pages(kGeometry.block_bytes());
  const BlockResult result = read_blocks(file, {{.slot = slot, .data = data.get()}}, 0, kGeometry.pieces);
  const bool right = is_filled(data.get(), kGeometry, key_of(number), 0, kGeometry.pieces);
  if (result.status.ok()) {
    CHECK(result.bad_slots.empty());
    CHECK(right);
  } else {
    CHECK(result.bad_slots == std::vector<int64_t>{slot});
  }
  return result.status.ok();
}

FileEngine engine_of(int index) { return index == 0 ? FileEngine::kAuto : FileEngine::kThreads; }

TEST_CASE("A block comes back as it was written, whole and in pieces, with both engines", "[tier]") {
  const FileEngine engine = engine_of(GENERATE(0, 1));
  const TemporaryFolder folder("block-file");
  Store store(folder, engine);
  REQUIRE(store.open().status.ok());
  const int64_t slot = put(*store.file, 5);
  CHECK(has(*store.file, slot, 5));
  const Pages data = pages(kGeometry.block_bytes());
  const BlockResult result = read_blocks(*store.file, {{.slot = slot, .data = data.get()}}, 1, 1);
  CHECK(result.status.ok());
  CHECK(is_filled(data.get(), kGeometry, key_of(5), 1, 1));
  // No other piece is touched.
  CHECK(data[0] == std::byte{0xEE});
  CHECK(data[2 * kGeometry.piece_stride()] == std::byte{0xEE});
  const BlockFileCounters counters = store.file->counters();
  CHECK(counters.writes == 1);
  CHECK(counters.reads == 2);
  CHECK(counters.used == 1);
  CHECK(counters.slots == 16);
  CHECK(counters.bytes_written == kGeometry.block_bytes());
  CHECK(std::string(counters.engine) == (engine == FileEngine::kThreads ? "threads" : counters.engine));
}

TEST_CASE("Blocks in the memory that a file was given go by registered memory, others do not", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder);
  const auto bytes = static_cast<size_t>(kGeometry.block_bytes());
  const Pages memory = pages(4 * kGeometry.block_bytes());
  store.options.memory = {memory.get(), 4 * bytes};
  REQUIRE(store.open().status.ok());
  put(*store.file, 1);  // from other memory
  BlockFileCounters counters = store.file->counters();
  CHECK(counters.registered_operations == 0);
  CHECK(counters.registered_bytes == 0);
  const int64_t slot = store.file->take().value();
  fill(memory.get(), kGeometry, key_of(2));
  CHECK(write_blocks(*store.file, {{.slot = slot, .data = memory.get(), .block = block_of(2)}}).status.ok());
  CHECK(read_blocks(*store.file, {{.slot = slot, .data = memory.get() + bytes}}, 0, kGeometry.pieces).status.ok());
  CHECK(is_filled(memory.get() + bytes, kGeometry, key_of(2), 0, kGeometry.pieces));
  counters = store.file->counters();
  const bool allowed = std::string(counters.engine) == "io_uring" && counters.unregistered.empty();
  CHECK(counters.registered_operations == (allowed ? 2 : 0));
  CHECK(counters.registered_bytes == (allowed ? 4 * kGeometry.block_bytes() : 0));
}

// Four parts of a page for each piece, in an order of their own.
struct Scattered {
  static constexpr BlockGeometry kGeometry{.tokens = 4, .pieces = 3, .piece_bytes = 16384};
  Pages memory = pages(kGeometry.block_bytes());
  std::vector<std::byte*> parts;

  Scattered() {
    for (int64_t i = 0; i < 12; ++i) parts.push_back(memory.get() + (i * 5 % 12) * 4096);
  }
  // As a block has it.
  Pages gathered() const {
    Pages whole = pages(kGeometry.block_bytes());
    for (size_t i = 0; i < parts.size(); ++i) std::memcpy(whole.get() + i * 4096, parts[i], 4096);
    return whole;
  }
  void scatter(const std::byte* whole) {
    for (size_t i = 0; i < parts.size(); ++i) std::memcpy(parts[i], whole + i * 4096, 4096);
  }
};

TEST_CASE("A block may be scattered in memory, to be written and to be read", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder, engine_of(GENERATE(0, 1)));
  store.options.geometry = Scattered::kGeometry;
  REQUIRE(store.open().status.ok());
  const Pages whole = pages(Scattered::kGeometry.block_bytes());
  fill(whole.get(), Scattered::kGeometry, key_of(7));
  Scattered from, to, some;
  from.scatter(whole.get());
  const int64_t slot = store.file->take().value(), next = store.file->take().value();
  REQUIRE(write_blocks(*store.file, {{.slot = slot, .block = block_of(7), .parts = from.parts}}).status.ok());
  REQUIRE(write_blocks(*store.file, {{.slot = next, .data = whole.get(), .block = block_of(8)}}).status.ok());
  // What is written scattered is read in one range, and the other way; neighbours in one call too.
  const Pages back = pages(Scattered::kGeometry.block_bytes());
  REQUIRE(read_blocks(*store.file, {{.slot = slot, .data = back.get()}}, 0, 3).status.ok());
  CHECK(is_filled(back.get(), Scattered::kGeometry, key_of(7), 0, 3));
  Scattered other;
  REQUIRE(read_blocks(*store.file, {{.slot = next, .parts = other.parts}, {.slot = slot, .parts = to.parts}}, 0, 3)
              .status.ok());
  CHECK(is_filled(to.gathered().get(), Scattered::kGeometry, key_of(7), 0, 3));
  CHECK(is_filled(other.gathered().get(), Scattered::kGeometry, key_of(7), 0, 3));
  REQUIRE(read_blocks(*store.file, {{.slot = slot, .parts = some.parts}}, 1, 1).status.ok());
  CHECK(is_filled(some.gathered().get(), Scattered::kGeometry, key_of(7), 1, 1));
  CHECK(some.gathered()[0] == std::byte{0xEE});
  CHECK(some.gathered()[2 * 16384] == std::byte{0xEE});
}

TEST_CASE("Parts that are off page borders, too many, or not those of a block are refused", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder);
  store.options.geometry = Scattered::kGeometry;
  REQUIRE(store.open().status.ok());
  const Pages whole = pages(Scattered::kGeometry.block_bytes());
  const Scattered good;
  const auto refuses = [&](std::vector<BlockRead> blocks) {
    return read_blocks(*store.file, std::move(blocks), 0, 3).status.error_class() == ErrorClass::kUsage;
  };
  Scattered shifted, many;
  shifted.parts[5] += 512;
  CHECK(refuses({{.slot = 0, .parts = shifted.parts}}));
  shifted.parts[5] = nullptr;
  CHECK(refuses({{.slot = 0, .parts = shifted.parts}}));
  for (int i = 0; i < 3; ++i) many.parts.push_back(many.parts.front());  // a piece of five
  CHECK(refuses({{.slot = 0, .parts = many.parts}}));
  many.parts.pop_back();
  CHECK(refuses({{.slot = 0, .parts = many.parts}}));
  CHECK(refuses({{.slot = 0, .parts = good.parts}, {.slot = 0, .data = whole.get()}}));
  // With gaps between pieces there are no parts.
  Store gaps(folder);
  gaps.options.folder = folder.path / "gaps";
  REQUIRE(gaps.open().status.ok());
  const BlockResult result =
      read_blocks(*gaps.file, {{.slot = 0, .parts = std::vector<std::byte*>(3, whole.get())}}, 0, 3);
  CHECK(result.status.error_class() == ErrorClass::kUsage);
}

TEST_CASE("A scattered block that is damaged is not given as right", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder);
  store.options.geometry = Scattered::kGeometry;
  REQUIRE(store.open().status.ok());
  Scattered memory;
  const int64_t slot = store.file->take().value();
  REQUIRE(write_blocks(*store.file, {{.slot = slot, .block = block_of(7), .parts = memory.parts}}).status.ok());
  const int file = ::open(store.path("blocks").c_str(), O_WRONLY);
  REQUIRE(pwrite(file, "x", 1, slot * Scattered::kGeometry.block_bytes() + 16384 + 9000) == 1);
  close(file);
  const BlockResult result = read_blocks(*store.file, {{.slot = slot, .parts = memory.parts}}, 0, 3);
  CHECK(result.bad_slots == std::vector<int64_t>{slot});
  CHECK(store.file->counters().checksum_failures == 1);
  CHECK(read_blocks(*store.file, {{.slot = slot, .parts = memory.parts}}, 2, 1).status.ok());
}

TEST_CASE("Blocks are there after a restart, parents before children, with keys and tokens", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder);
  REQUIRE(store.open().status.ok());
  // The child is written first.
  put(*store.file, 2, key_of(1));
  put(*store.file, 3, key_of(2));
  put(*store.file, 1);
  REQUIRE(store.open().status.ok());
  REQUIRE(store.recovered.size() == 3);
  for (uint64_t i = 0; i < 3; ++i) {
    const StoredBlock& block = store.recovered[i];
    CHECK(block.key == key_of(i + 1));
    CHECK(block.tokens == block_of(i + 1).tokens);
    CHECK(block.parent == (i == 0 ? kFingerprint : key_of(i)));
    CHECK(has(*store.file, block.slot, i + 1));
  }
  CHECK(store.file->counters().recovered == 3);
  CHECK(store.file->counters().used == 3);
}

TEST_CASE("Blocks whose parent is lost are dropped, and their slots are free", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder, FileEngine::kAuto, 4);
  REQUIRE(store.open().status.ok());
  const int64_t parent = put(*store.file, 1);
  put(*store.file, 2, key_of(1));
  put(*store.file, 3, key_of(2));
  put(*store.file, 4, key_of(4));  // its own parent
  CHECK_FALSE(store.file->take().has_value());
  store.file->erase(parent);
  REQUIRE(store.open().status.ok());
  CHECK(store.recovered.empty());
  for (int i = 0; i < 4; ++i) CHECK(store.file->take().has_value());
  // They do not come back when the parent does.
  store.file->give(parent);
  put(*store.file, 1);
  REQUIRE(store.open().status.ok());
  CHECK(store.recovered.size() == 1);
}

TEST_CASE("Of two blocks with one key the later one is recovered, and no slot leaks", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder, FileEngine::kAuto, 3);
  REQUIRE(store.open().status.ok());
  put(*store.file, 9);
  const int64_t later = put(*store.file, 9);
  REQUIRE(store.open().status.ok());
  REQUIRE(store.recovered.size() == 1);
  CHECK(store.recovered[0].slot == later);
  CHECK(store.file->take().has_value());
  CHECK(store.file->take().has_value());
  CHECK_FALSE(store.file->take().has_value());
}

TEST_CASE("Slots are taken one behind the other, and erased ones again", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder, FileEngine::kAuto, 6);
  REQUIRE(store.open().status.ok());
  for (int64_t i = 0; i < 6; ++i) CHECK(store.file->take() == i);
  CHECK_FALSE(store.file->take().has_value());
  for (int64_t slot : {1, 4, 3}) store.file->give(slot);
  CHECK(store.file->take() == 1);
  CHECK(store.file->take() == 3);
  CHECK(store.file->take() == 4);
  CHECK_FALSE(store.file->take().has_value());
}

TEST_CASE("Neighbouring slots share operations, for writing and reading", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder);
  REQUIRE(store.open().status.ok());
  const Pages data = pages(8 * kGeometry.block_bytes());
  std::vector<BlockWrite> writes;
  std::vector<BlockRead> reads;
  for (int64_t i = 0; i < 8; ++i) {
    const int64_t slot = *store.file->take();
    std::byte* const at = data.get() + i * kGeometry.block_bytes();
    fill(at, kGeometry, key_of(static_cast<uint64_t>(i)));
    writes.push_back({slot, at, block_of(static_cast<uint64_t>(i))});
    reads.push_back({slot, at});
  }
  const int64_t before = store.file->counters().operations;
  REQUIRE(write_blocks(*store.file, writes).status.ok());
  CHECK(store.file->counters().operations == before + 1);
  REQUIRE(read_blocks(*store.file, reads, 0, kGeometry.pieces).status.ok());
  CHECK(store.file->counters().operations == before + 2);
  // Apart in memory and in another order.
  const Pages apart = pages(16 * kGeometry.block_bytes());
  for (int64_t i = 0; i < 8; ++i) reads[i].data = apart.get() + (2 * i + 1) * kGeometry.block_bytes();
  std::shuffle(reads.begin(), reads.end(), std::mt19937(3));
  REQUIRE(read_blocks(*store.file, reads, 0, kGeometry.pieces).status.ok());
  CHECK(store.file->counters().operations == before + 3);
  for (const BlockRead& read : reads) {
    CHECK(is_filled(read.data, kGeometry, key_of(static_cast<uint64_t>(read.slot)), 0, kGeometry.pieces));
  }
}

TEST_CASE("A slot that is read twice in one call is right in both places", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder);
  REQUIRE(store.open().status.ok());
  const int64_t a = put(*store.file, 1), b = put(*store.file, 2);
  const Pages data = pages(4 * kGeometry.block_bytes());
  std::vector<BlockRead> reads;
  for (int64_t i = 0; i < 4; ++i) reads.push_back({i % 2 == 0 ? a : b, data.get() + i * kGeometry.block_bytes()});
  REQUIRE(read_blocks(*store.file, reads, 0, kGeometry.pieces).status.ok());
  for (int64_t i = 0; i < 4; ++i) {
    CHECK(is_filled(reads[i].data, kGeometry, key_of(i % 2 == 0 ? 1 : 2), 0, kGeometry.pieces));
  }
}

TEST_CASE("A changed byte on the disk is a bad slot, and only that one", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder);
  REQUIRE(store.open().status.ok());
  const int64_t good = put(*store.file, 1), bad = put(*store.file, 2);
  {
    std::fstream disk(store.path("blocks"), std::ios::in | std::ios::out | std::ios::binary);
    disk.seekp(bad * kGeometry.block_bytes() + kGeometry.piece_stride() + 4999);
    disk.put('!');
  }
  const Pages data = pages(2 * kGeometry.block_bytes());
  const std::vector<BlockRead> reads{{good, data.get()}, {bad, data.get() + kGeometry.block_bytes()}};
  const BlockResult result = read_blocks(*store.file, reads, 0, kGeometry.pieces);
  REQUIRE_FALSE(result.status.ok());
  CHECK(result.status.error_class() == ErrorClass::kStorage);
  CHECK(result.bad_slots == std::vector<int64_t>{bad});
  CHECK(is_filled(data.get(), kGeometry, key_of(1), 0, kGeometry.pieces));
  CHECK(store.file->counters().checksum_failures == 1);
  // Pieces that are right are given.
  CHECK(read_blocks(*store.file, {reads[1]}, 0, 1).status.ok());
  CHECK(read_blocks(*store.file, {reads[1]}, 2, 1).status.ok());
  CHECK_FALSE(read_blocks(*store.file, {reads[1]}, 1, 1).status.ok());
}

TEST_CASE("Free, erased and unknown slots have no block", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder);
  REQUIRE(store.open().status.ok());
  const int64_t slot = put(*store.file, 1);
  store.file->erase(slot);
  store.file->erase(slot);
  store.file->erase(-1);
  store.file->erase(int64_t{1} << 60);
  CHECK(store.file->counters().used == 0);
  for (int64_t unknown : {slot, int64_t{-1}, int64_t{7}, int64_t{16}, INT64_MAX})
    CHECK_FALSE(has(*store.file, unknown, 1));
  // Writing needs a slot that was taken.
  const Pages data = pages(kGeometry.block_bytes());
  for (int64_t unknown : {slot, int64_t{-1}, int64_t{16}}) {
    const BlockResult result = write_blocks(*store.file, {{unknown, data.get(), block_of(1)}});
    REQUIRE_FALSE(result.status.ok());
    CHECK(result.status.error_class() == ErrorClass::kUsage);
    CHECK(result.bad_slots == std::vector<int64_t>{unknown});
  }
}

TEST_CASE("Wrong pieces and unaligned memory are refused; no blocks are done at once", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder);
  REQUIRE(store.open().status.ok());
  const int64_t slot = put(*store.file, 1);
  const Pages data = pages(2 * kGeometry.block_bytes());
  const auto status = [&](std::byte* to, int64_t first, int64_t pieces) {
    return read_blocks(*store.file, {{slot, to}}, first, pieces).status;
  };
  CHECK(status(data.get(), 0, 3).ok());
  const std::pair<int64_t, int64_t> wrong[] = {{-1, 1}, {0, 0}, {0, 4}, {3, 1}, {1, INT64_MAX}, {INT64_MAX, 1}};
  for (const auto& [first, pieces] : wrong) CHECK_FALSE(status(data.get(), first, pieces).ok());
  CHECK_FALSE(status(data.get() + 512, 0, 3).ok());
  CHECK_FALSE(status(nullptr, 0, 3).ok());
  CHECK(read_blocks(*store.file, {}, 0, 1).status.ok());
  CHECK(write_blocks(*store.file, {}).status.ok());
}

TEST_CASE("A slot that is written again has the new block only", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder);
  REQUIRE(store.open().status.ok());
  const int64_t slot = put(*store.file, 1);
  const Pages data = pages(kGeometry.block_bytes());
  fill(data.get(), kGeometry, key_of(2));
  REQUIRE(write_blocks(*store.file, {{slot, data.get(), block_of(2)}}).status.ok());
  CHECK(has(*store.file, slot, 2));
  REQUIRE(store.open().status.ok());
  REQUIRE(store.recovered.size() == 1);
  CHECK(store.recovered[0].key == key_of(2));
  CHECK(has(*store.file, slot, 2));
}

TEST_CASE("A record that a crash left over new bytes is a bad slot, not wrong bytes", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder);
  REQUIRE(store.open().status.ok());
  const int64_t slot = put(*store.file, 1);
  const auto old_log = std::filesystem::path(store.path("index"));
  std::filesystem::copy_file(old_log, folder.path / "old");
  store.file->erase(slot);
  put(*store.file, 2);
  put(*store.file, 3);
  store.file->erase(slot);
  // As if the system had lost the end of the log but not the bytes.
  store.file.reset();
  std::filesystem::remove(old_log);
  std::filesystem::rename(folder.path / "old", old_log);
  {
    std::fstream disk(store.path("blocks"), std::ios::in | std::ios::out | std::ios::binary);
    const Pages data = pages(kGeometry.block_bytes());
    fill(data.get(), kGeometry, key_of(2));
    disk.seekp(slot * kGeometry.block_bytes());
    disk.write(reinterpret_cast<const char*>(data.get()), kGeometry.block_bytes());
  }
  REQUIRE(store.open().status.ok());
  REQUIRE(store.recovered.size() == 1);
  CHECK_FALSE(has(*store.file, slot, 1));
}

TEST_CASE("A folder of another model, geometry, version, or owner is refused in one sentence", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder);
  REQUIRE(store.open().status.ok());
  put(*store.file, 1);
  const auto message = [](Store& other) {
    REQUIRE_FALSE(other.open().status.ok());
    CHECK(other.status.error_class() == ErrorClass::kStorage);
    return other.status.message();
  };
  const auto contains = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  Store other(folder);
  CHECK(contains(message(other), "in use by another process"));
  store.file.reset();
  other.options.fingerprint = {1, 2};
  CHECK(contains(message(other), "fingerprints are"));
  other.options.description = "another model";
  CHECK(contains(message(other), "blocks of a model"));
  CHECK(contains(message(other), "not blocks of another model"));
  other = Store(folder);
  other.options.geometry.pieces = 4;
  CHECK(contains(message(other), "in 3 pieces"));
  other = Store(folder);
  other.options.most_bytes = kGeometry.block_bytes() - 1;
  CHECK(contains(message(other), "but a block has"));
  other = Store(folder);
  other.options.folder = folder.path / "none" / "blocks";
  CHECK(contains(message(other), "No such file"));
  other.options.folder = folder.path / "a-file";
  std::ofstream(other.options.folder) << "x";
  CHECK(contains(message(other), "Not a directory"));
  {
    std::fstream index(store.path("index"), std::ios::in | std::ios::out | std::ios::binary);
    index.seekp(8);
    index.put(7);
  }
  other = Store(folder);
  CHECK(contains(message(other), "it has version 7"));
  {
    std::fstream index(store.path("index"), std::ios::in | std::ios::out | std::ios::binary);
    index.seekp(8);
    index.put(1);
  }
  CHECK(other.open().status.ok());
  CHECK(other.recovered.size() == 1);
  other.options.geometry.pieces = 0;
  CHECK_FALSE(other.open().status.ok());
}

TEST_CASE("The folder and its files are private", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder);
  const mode_t before = umask(0);
  REQUIRE(store.open().status.ok());
  umask(before);
  const auto mode = [](const std::string& path) {
    struct stat status = {};
    REQUIRE(stat(path.c_str(), &status) == 0);
    return status.st_mode & 0777;
  };
  CHECK(mode(store.options.folder) == 0700);
  CHECK(mode(store.path("blocks")) == 0600);
  CHECK(mode(store.path("index")) == 0600);
}

TEST_CASE("Slots take no space before they are written", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder, FileEngine::kAuto, 1 << 16);
  REQUIRE(store.open().status.ok());
  put(*store.file, 1);
  struct stat status = {};
  REQUIRE(stat(store.path("blocks").c_str(), &status) == 0);
  CHECK(status.st_size == (1 << 16) * kGeometry.block_bytes());
  CHECK(status.st_blocks * 512 < 1 << 20);
}

TEST_CASE("A folder that may have fewer bytes than before keeps the blocks that fit", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder);
  REQUIRE(store.open().status.ok());
  for (uint64_t i = 0; i < 5; ++i) put(*store.file, i);
  store.options.most_bytes = 3 * kGeometry.block_bytes();
  REQUIRE(store.open().status.ok());
  CHECK(store.recovered.size() == 3);
  CHECK_FALSE(store.file->take().has_value());
  store.options.most_bytes = 7 * kGeometry.block_bytes();
  REQUIRE(store.open().status.ok());
  CHECK(store.recovered.size() == 3);
  for (const StoredBlock& block : store.recovered) CHECK(has(*store.file, block.slot, block.key.high));
  for (int i = 0; i < 4; ++i) CHECK(store.file->take().has_value());
}

TEST_CASE("Without the file of slots, no block is recovered", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder);
  REQUIRE(store.open().status.ok());
  put(*store.file, 1);
  store.file.reset();
  std::filesystem::remove(store.path("blocks"));
  REQUIRE(store.open().status.ok());
  CHECK(store.recovered.empty());
  CHECK(store.file->counters().used == 0);
}

TEST_CASE("The log is compacted while blocks come and go, and loses none", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder, FileEngine::kAuto, 32);
  store.options.geometry = {.tokens = 2000, .pieces = 2, .piece_bytes = 64};
  store.options.most_bytes = 32 * store.options.geometry.block_bytes();
  REQUIRE(store.open().status.ok());
  const Pages data = pages(store.options.geometry.block_bytes());
  std::map<int64_t, BlockKey> there;
  std::mt19937 random(5);
  uint64_t number = 0;
  const auto wait_for_compactions = [&] { return store.file->counters().compactions >= 3; };
  for (int i = 0; i < 20000 && !wait_for_compactions(); ++i) {
    if (there.size() == 32 || (random() % 3 == 0 && !there.empty())) {
      const auto slot = std::next(there.begin(), static_cast<ptrdiff_t>(random() % there.size()));
      store.file->erase(slot->first);
      there.erase(slot);
    } else {
      StoredBlock block = block_of(++number);
      block.tokens.resize(2000, 1);
      const int64_t slot = *store.file->take();
      fill(data.get(), store.options.geometry, block.key);
      REQUIRE(write_blocks(*store.file, {{slot, data.get(), block}}).status.ok());
      there[slot] = block.key;
    }
  }
  CHECK(store.file->counters().compactions >= 3);
  CHECK(store.file->counters().log_bytes < 4 << 20);
  REQUIRE(store.open().status.ok());
  REQUIRE(store.recovered.size() == there.size());
  for (const StoredBlock& block : store.recovered) {
    CHECK(there[block.slot] == block.key);
    CHECK(read_blocks(*store.file, {{block.slot, data.get()}}, 0, 2).status.ok());
    CHECK(is_filled(data.get(), store.options.geometry, block.key, 0, 2));
  }
}

// Faults of one kind of call, at positions.
struct Fault : FileFaults {
  FileCall call;
  int64_t skipped;  // calls before the first fault
  int64_t count;    // faults
  FileFault fault;
  std::atomic<int64_t> seen{0};
  Fault(FileCall call, int64_t skipped, int64_t count, FileFault fault)
      : call(call), skipped(skipped), count(count), fault(fault) {}
  FileFault next(FileCall of, int, int64_t, size_t) override {
    if (of != call) return {};
    const int64_t number = seen++;
    return number >= skipped && number < skipped + count ? fault : FileFault();
  }
};

FileFault error_of(int error) { return {.kind = FileFault::kError, .error = error}; }

TEST_CASE("Short, interrupted, late and reordered calls change nothing", "[tier]") {
  const FileEngine engine = engine_of(GENERATE(0, 1));
  const TemporaryFolder folder("block-file");
  Store store(folder, engine);
  struct Mixed : FileFaults {
    std::atomic<uint64_t> seen{0};
    FileFault next(FileCall, int, int64_t, size_t) override {
      switch (seen++ % 7) {
        case 0:
          return {.kind = FileFault::kShort};
        case 1:
          return error_of(EINTR);
        case 2:
          return {.kind = FileFault::kReorder};
        case 3:
          return error_of(EAGAIN);
        case 4:
          return {.kind = FileFault::kDelay, .milliseconds = 1};
        default:
          return {};
      }
    }
  };
  // A sync that is interrupted is an error in the eyes of the caller; so only reads and writes.
  REQUIRE(store.open().status.ok());
  std::map<int64_t, uint64_t> there;
  {
    const WithFaults<Mixed> faults;
    for (uint64_t i = 0; i < 12; ++i) there[put(*store.file, i)] = i;
    for (const auto& [slot, number] : there) CHECK(has(*store.file, slot, number));
  }
  REQUIRE(store.open().status.ok());
  CHECK(store.recovered.size() == 12);
  for (const auto& [slot, number] : there) CHECK(has(*store.file, slot, number));
  CHECK_FALSE(store.file->counters().quarantined);
}

TEST_CASE("A torn write that says it succeeded is a bad slot", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder);
  REQUIRE(store.open().status.ok());
  int64_t slot = 0;
  {
    const WithFaults<Fault> faults(FileCall::kWrite, 0, 1, FileFault{.kind = FileFault::kTorn});
    slot = put(*store.file, 1);
  }
  CHECK_FALSE(has(*store.file, slot, 1));
  const Pages data = pages(kGeometry.block_bytes());
  CHECK(read_blocks(*store.file, {{slot, data.get()}}, 0, 1).status.ok());
}

TEST_CASE("A full disk fails that write only; one that stays full is given up", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder, FileEngine::kAuto, 40);
  REQUIRE(store.open().status.ok());
  const int64_t good = put(*store.file, 1);
  const int64_t slot = *store.file->take();
  const Pages data = pages(kGeometry.block_bytes());
  fill(data.get(), kGeometry, key_of(2));
  const auto write = [&] { return write_blocks(*store.file, {{slot, data.get(), block_of(2)}}); };
  for (int64_t skipped : {0, 1}) {  // the bytes, then the record
    const WithFaults<Fault> faults(FileCall::kWrite, skipped, 1, error_of(ENOSPC));
    const BlockResult result = write();
    REQUIRE_FALSE(result.status.ok());
    CHECK(result.status.error_class() == ErrorClass::kStorage);
    CHECK(result.status.message().find("No space left") != std::string::npos);
    CHECK(result.bad_slots == std::vector<int64_t>{slot});
    CHECK_FALSE(has(*store.file, slot, 2));
  }
  CHECK(has(*store.file, good, 1));
  // The slot is still taken, and can be written.
  CHECK(write().status.ok());
  CHECK(has(*store.file, slot, 2));
  {
    const WithFaults<Fault> faults(FileCall::kWrite, 0, INT64_MAX / 2, error_of(ENOSPC));
    for (int i = 0; i < 16; ++i) CHECK_FALSE(write().status.ok());
  }
  CHECK(store.file->counters().quarantined);
  REQUIRE(store.open().status.ok());
  CHECK(has(*store.file, good, 1));
}

TEST_CASE("After a failed write the disk is left alone, and every call ends at once", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder);
  REQUIRE(store.open().status.ok());
  const int64_t good = put(*store.file, 1);
  const int64_t slot = *store.file->take();
  const Pages data = pages(kGeometry.block_bytes());
  {
    const WithFaults<Fault> faults(FileCall::kWrite, 0, 1, error_of(GENERATE(EIO, EROFS)));
    CHECK_FALSE(write_blocks(*store.file, {{slot, data.get(), block_of(2)}}).status.ok());
  }
  CHECK(store.file->counters().quarantined);
  const int64_t operations = store.file->counters().operations;
  const BlockResult result = read_blocks(*store.file, {{good, data.get()}}, 0, 1);
  REQUIRE_FALSE(result.status.ok());
  CHECK(result.status.error_class() == ErrorClass::kStorage);
  CHECK(result.status.message().find("is not used any more") != std::string::npos);
  CHECK(result.bad_slots == std::vector<int64_t>{good});
  CHECK_FALSE(write_blocks(*store.file, {{slot, data.get(), block_of(2)}}).status.ok());
  CHECK_FALSE(store.file->take().has_value());
  CHECK_FALSE(store.file->sync().ok());
  store.file->erase(good);
  CHECK(store.file->counters().operations == operations);
  REQUIRE(store.open().status.ok());
  CHECK(store.file->counters().recovered == 1);
}

TEST_CASE("A read that fails is a bad slot; reads that go on failing end the use of the disk", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder);
  REQUIRE(store.open().status.ok());
  const int64_t slot = put(*store.file, 1);
  {
    const WithFaults<Fault> faults(FileCall::kRead, 0, 1, error_of(EIO));
    CHECK_FALSE(has(*store.file, slot, 1));
  }
  CHECK(has(*store.file, slot, 1));
  {
    const WithFaults<Fault> faults(FileCall::kRead, 0, INT64_MAX / 2, error_of(EIO));
    for (int i = 0; i < 16; ++i) CHECK_FALSE(has(*store.file, slot, 1));
  }
  CHECK(store.file->counters().quarantined);
}

TEST_CASE("A fault at any call loses that block at most, and the next opening finds the others", "[tier]") {
  const int variant = GENERATE(0, 1);
  const Durability durability = variant == 0 ? Durability::kNone : Durability::kStrict;
  const FileEngine engine = engine_of(variant);
  for (const FileCall call : {FileCall::kRead, FileCall::kWrite, FileCall::kSync}) {
    for (const FileFault fault : {error_of(EIO), error_of(ENOSPC), FileFault{.kind = FileFault::kTorn}}) {
      if (call == FileCall::kSync && fault.kind == FileFault::kTorn) continue;  // has no bytes
      int64_t position = 0;
      for (bool reached = true; reached; ++position) {
        const TemporaryFolder folder("block-file");
        Store store(folder, engine, 6, durability);
        std::map<int64_t, uint64_t> acknowledged;
        const Pages data = pages(kGeometry.block_bytes());
        {
          const WithFaults<Fault> faults(call, position, 1, fault);
          if (store.open().status.ok()) {
            for (uint64_t number = 0; number < 4; ++number) {
              const std::optional<int64_t> slot = store.file->take();
              if (!slot.has_value()) break;
              fill(data.get(), kGeometry, key_of(number));
              if (write_blocks(*store.file, {{*slot, data.get(), block_of(number)}}).status.ok()) {
                acknowledged[*slot] = number;
              }
              if (acknowledged.count(*slot) > 0) has(*store.file, *slot, number);
              if (number == 2) {
                store.file->erase(*slot);
                acknowledged.erase(*slot);
              }
            }
          }
          store.file.reset();
          reached = faults.seen > position;
        }
        store.open();
        if (!store.status.ok()) {
          // The log's beginning was torn.
          CHECK(fault.kind == FileFault::kTorn);
          continue;
        }
        int64_t found = 0;
        for (const StoredBlock& block : store.recovered) {
          if (acknowledged.count(block.slot) > 0) CHECK(block.key == key_of(acknowledged[block.slot]));
          const bool is_right = has(*store.file, block.slot, block.key.high);
          found += acknowledged.count(block.slot) > 0 && is_right;
          if (!is_right) CHECK(fault.kind == FileFault::kTorn);
        }
        if (fault.kind == FileFault::kError) CHECK(found == std::ssize(acknowledged));
        int64_t free = 0;
        while (store.file->take().has_value()) ++free;
        CHECK(free + std::ssize(store.recovered) == 6);
      }
      INFO("positions " << position);
      CHECK(position > (call == FileCall::kRead ? 3 : 1));
    }
  }
}

TEST_CASE("A write in strict mode is acknowledged after both files were synced", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder, FileEngine::kAuto, 16, Durability::kStrict);
  REQUIRE(store.open().status.ok());
  struct Syncs : FileFaults {
    std::atomic<int> count{0};
    FileFault next(FileCall call, int, int64_t, size_t) override {
      count += call == FileCall::kSync;
      return {};
    }
  };
  const WithFaults<Syncs> syncs;
  put(*store.file, 1);
  CHECK(syncs.count == 2);
  store.options.durability = Durability::kNone;
  REQUIRE(store.open().status.ok());
  const int before = syncs.count;
  put(*store.file, 2);
  CHECK(syncs.count == before);
  CHECK(store.file->sync().ok());
  CHECK(syncs.count == before + 2);
}

TEST_CASE("In group mode the disk has the bytes soon, with no call for it", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder, FileEngine::kAuto, 16, Durability::kGroup);
  REQUIRE(store.open().status.ok());
  const WithFaults<Fault> faults(FileCall::kSync, 0, 0, FileFault());
  put(*store.file, 1);
  for (int i = 0; i < 2000 && faults.seen < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(faults.seen >= 2);
}

TEST_CASE("Closing a file waits for what goes on, and publishes it", "[tier]") {
  const FileEngine engine = engine_of(GENERATE(0, 1));
  const Durability durability = GENERATE(Durability::kNone, Durability::kGroup, Durability::kStrict);
  const TemporaryFolder folder("block-file");
  Store store(folder, engine, 16, durability);
  struct Slow : FileFaults {
    FileFault next(FileCall, int, int64_t, size_t) override { return {.kind = FileFault::kDelay, .milliseconds = 2}; }
  };
  REQUIRE(store.open().status.ok());
  const Pages data = pages(16 * kGeometry.block_bytes());
  std::atomic<int> ended{0};
  {
    const WithFaults<Slow> faults;
    for (uint64_t i = 0; i < 16; ++i) {
      std::byte* const at = data.get() + static_cast<int64_t>(i) * kGeometry.block_bytes();
      fill(at, kGeometry, key_of(i));
      store.file->write({{*store.file->take(), at, block_of(i)}}, [&](const BlockResult& result) {
        ended += result.status.ok() ? 1 : 0;  // on several threads, from which no check is made
      });
    }
    store.file.reset();
  }
  CHECK(ended == 16);
  REQUIRE(store.open().status.ok());
  CHECK(store.recovered.size() == 16);
}

TEST_CASE("A function that is called back may read, write, take and erase", "[tier]") {
  const FileEngine engine = engine_of(GENERATE(0, 1));
  const TemporaryFolder folder("block-file");
  Store store(folder, engine);
  REQUIRE(store.open().status.ok());
  const Pages data = pages(kGeometry.block_bytes());
  fill(data.get(), kGeometry, key_of(1));
  BlockFile& file = *store.file;
  testing::Waiter<int> done;
  int rounds = 0;
  std::function<void()> round = [&] {
    const int64_t slot = *file.take();
    file.write({{slot, data.get(), block_of(1)}}, [&, slot](const BlockResult& written) {
      if (!written.status.ok()) return done.set(-1);
      file.read({{slot, data.get()}}, 0, kGeometry.pieces, [&, slot](const BlockResult& read) {
        if (!read.status.ok()) return done.set(-2);
        file.erase(slot);
        if (++rounds == 100) return done.set(rounds);
        round();
      });
    });
  };
  round();
  CHECK(done.get() == 100);
  CHECK(file.counters().used == 0);
  store.file.reset();  // waits for the functions above
}

TEST_CASE("Threads that write, read and erase their own blocks do not disturb each other", "[tier]") {
  const FileEngine engine = engine_of(GENERATE(0, 1));
  const Durability durability = GENERATE(Durability::kNone, Durability::kGroup);
  const TemporaryFolder folder("block-file");
  Store store(folder, engine, 24, durability);
  REQUIRE(store.open().status.ok());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      const Pages data = pages(kGeometry.block_bytes());
      std::map<int64_t, uint64_t> mine;
      std::mt19937 random(static_cast<unsigned>(thread));
      for (uint64_t i = 0; i < 150; ++i) {
        const uint64_t number = thread * 1000 + i;
        if (const std::optional<int64_t> slot = store.file->take()) {
          fill(data.get(), kGeometry, key_of(number));
          wrong += !write_blocks(*store.file, {{*slot, data.get(), block_of(number)}}).status.ok();
          mine[*slot] = number;
        }
        if (mine.empty()) continue;
        const auto any = std::next(mine.begin(), static_cast<ptrdiff_t>(random() % mine.size()));
        const BlockResult read = read_blocks(*store.file, {{any->first, data.get()}}, 0, kGeometry.pieces);
        wrong += !read.status.ok() || !is_filled(data.get(), kGeometry, key_of(any->second), 0, kGeometry.pieces);
        if (random() % 2 == 0) {
          store.file->erase(any->first);
          mine.erase(any);
        }
      }
      for (const auto& [slot, number] : mine) store.file->erase(slot);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(store.file->counters().used == 0);
  int64_t free = 0;
  while (store.file->take().has_value()) ++free;
  CHECK(free == 24);
}

TEST_CASE("A second process is refused while the first one lives, and served after its death", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder);
  REQUIRE(store.open().status.ok());
  put(*store.file, 1);
  const testing::ChildOutcome refused = testing::run_in_child([&] {
    Store other(folder);
    return other.open().status.ok() ? 1 : other.status.message().find("in use") == std::string::npos ? 2 : 0;
  });
  CHECK(refused.exit_code == 0);
  store.file.reset();
  const testing::ChildOutcome killed = testing::run_in_child([&] {
    Store other(folder);
    if (!other.open().status.ok()) return 1;
    raise(SIGKILL);
    return 2;
  });
  CHECK(killed.signal == SIGKILL);
  REQUIRE(store.open().status.ok());
  CHECK(store.recovered.size() == 1);
}

TEST_CASE("In a forked child every call ends with a sentence, and the parent goes on", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder);
  REQUIRE(store.open().status.ok());
  const int64_t slot = put(*store.file, 1);
  const testing::ChildOutcome outcome = testing::run_in_child([&] {
    if (store.file->take().has_value()) return 1;
    const Pages data = pages(kGeometry.block_bytes());
    if (read_blocks(*store.file, {{slot, data.get()}}, 0, 1).status.ok()) return 2;
    if (store.file->sync().ok()) return 3;
    store.file->erase(slot);
    store.file.reset();
    return 0;
  });
  CHECK(outcome.exit_code == 0);
  CHECK(has(*store.file, slot, 1));
}

TEST_CASE("Without permission a folder is refused, and one that loses it goes on", "[tier]") {
  const TemporaryFolder folder("block-file");
  std::filesystem::permissions(folder.path, std::filesystem::perms::all);
  const testing::ChildOutcome outcome = testing::run_in_child([&] {
    // Root may do anything.
    if (geteuid() == 0 && setuid(65534) != 0) return 100;
    Store store(folder);
    if (!store.open().status.ok()) return 1;
    const Pages data = pages(kGeometry.block_bytes());
    fill(data.get(), kGeometry, key_of(1));
    const int64_t slot = *store.file->take();
    if (!write_blocks(*store.file, {{slot, data.get(), block_of(1)}}).status.ok()) return 2;
    if (chmod(store.options.folder.c_str(), 0500) != 0) return 3;
    // Compactions fail from now on; the log grows.
    StoredBlock large = block_of(2);
    large.tokens.resize(100000);
    for (int i = 0; i < 20; ++i) {
      const int64_t other = *store.file->take();
      if (!write_blocks(*store.file, {{other, data.get(), large}}).status.ok()) return 4;
      store.file->erase(other);
    }
    if (!read_blocks(*store.file, {{slot, data.get()}}, 0, kGeometry.pieces).status.ok()) return 5;
    if (store.file->counters().compactions != 0) return 6;
    if (store.file->counters().quarantined) return 7;
    if (!store.open().status.ok() || store.recovered.size() != 1) return 8;
    store.file.reset();
    if (chmod((store.options.folder + "/index").c_str(), 0400) != 0) return 9;
    if (store.open().status.ok()) return 10;
    if (store.status.message().find("Permission denied") == std::string::npos) return 11;
    return 0;
  });
  CHECK(outcome.exit_code == 0);
}

TEST_CASE("A limit of the file's size is a write that fails, not a signal's death", "[tier]") {
  const TemporaryFolder folder("block-file");
  Store store(folder);
  REQUIRE(store.open().status.ok());
  store.file.reset();
  const testing::ChildOutcome outcome = testing::run_in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    if (!store.open().status.ok()) return 1;
    const rlimit limit{static_cast<rlim_t>(kGeometry.block_bytes()), static_cast<rlim_t>(kGeometry.block_bytes())};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
    const Pages data = pages(kGeometry.block_bytes());
    (void)store.file->take();
    const int64_t beyond = *store.file->take();
    const BlockResult result = write_blocks(*store.file, {{beyond, data.get(), block_of(1)}});
    if (result.status.ok()) return 3;
    return store.file->counters().quarantined ? 4 : 0;
  });
  CHECK(outcome.exit_code == 0);
}

}  // namespace
}  // namespace hetero::backend
