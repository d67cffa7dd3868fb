// BlockFile: blocks of keys and values in a folder of a local disk, which survive the process.
//
// The folder has one file of slots of equal size (block_geometry.h), and a log of what is in them
// (block_log.h). A block is published in the log after its bytes were written, with its key, its
// tokens, and a checksum of each piece. Every read verifies the checksums. So a crash may lose
// blocks, but never gives wrong bytes.
//
//   auto file = BlockFile::open(options, [&](const StoredBlock& block) { ... });  // what is there
//   std::optional<int64_t> slot = file->take();
//   file->write({{.slot = *slot, .data = data, .block = block}}, [](const BlockResult& result) {});
//   file->read({{.slot = *slot, .data = data}}, 0, geometry.pieces, [](const BlockResult& result)
// {});
//   file->erase(*slot);
//
// Slots are numbered by the caller's index; the file only says which are free. A slot that is
// written again gets a new generation, so an old record cannot describe new bytes.
//
// Thread safety: any thread. Functions that are called back run on a thread of the file, or before
// the call returns; they may call the file. Ownership: memory of a read or write must live until
// its function was called. The destructor waits for all of them, and publishes what is pending.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/base/function_ref.h"
#include "backend/base/status.h"
#include "backend/tier/block_geometry.h"
#include "backend/tier/block_key.h"
#include "backend/tier/file_engine.h"

namespace hetero::backend {

// What a crash may lose of blocks whose write was acknowledged. No level ever gives wrong bytes.
enum class Durability {
  kNone,    // a crash of the process loses nothing; a crash of the system, what it had not written
  kGroup,   // a crash of the system loses at most the last `group_seconds`
  kStrict,  // nothing: a write is acknowledged when the disk has the bytes and the record
};

struct StoredBlock {
  int64_t slot = 0;
  BlockKey key;
  BlockKey parent;  // the fingerprint for the first block of a sequence
  std::vector<int32_t> tokens;
};

struct BlockFileOptions {
  std::string folder;  // made with mode 0700 if it does not exist; its parent must exist
  BlockGeometry geometry;
  BlockKey fingerprint;
  std::string description;  // of the fingerprint, for those who inspect the folder
  int64_t most_bytes = 0;   // of the slots
  Durability durability = Durability::kNone;
  double group_seconds = 1;
  FileEngine engine = FileEngine::kAuto;
  // Where most blocks are read to and written from, on a page border; it must outlive the file.
  // io_uring registers it as it is used, as far as the system allows. Empty: none.
  std::span<std::byte> memory{};
};

// Where a block's bytes are in memory: at `data`, as in its slot; or scattered, in equal parts of
// each piece, in order. All are on page borders. Scattered pieces have no gaps between them in the
// slot, and their parts are whole pages.
struct BlockWrite {
  int64_t slot = 0;
  const std::byte* data = nullptr;  // block_bytes()
  StoredBlock block{};              // its slot is not looked at
  std::vector<std::byte*> parts{};  // instead of data
};

struct BlockRead {
  int64_t slot = 0;
  std::byte* data = nullptr;        // of the whole block; only pieces asked for are written
  std::vector<std::byte*> parts{};  // instead of data
};

struct BlockResult {
  Status status;  // of the first block that failed
  // not read, or not published: those must be erased (or given back)
  std::vector<int64_t> bad_slots;
};

struct BlockFileCounters {
#define FILE_COUNTER(field, name, text) int64_t field = 0;
#include "backend/tier/tier_counters.def"

  bool quarantined = false;  // the disk failed; nothing is read or written any more
  const char* engine = "";
  std::string unregistered;  // why memory is not registered; empty if nothing was refused
};

class BlockFile {
 public:
  using Done = std::function<void(const BlockResult& result)>;

  // Opens a folder, or makes it. `recovered` is called for each block that is there, parents before
  // their children; blocks whose parent is lost are dropped, and of two with one key the older.
  // Errors: kStorage, in one sentence: another process has the folder, another version or another
  // fingerprint or geometry, no permission, no space. A damaged log loses its damaged end only.
  static Result<std::unique_ptr<BlockFile>> open(const BlockFileOptions& options,
                                                 FunctionRef<void(const StoredBlock&)> recovered);
  virtual ~BlockFile() = default;

  // A free slot: the next one behind the last that was taken, so that blocks of one sequence lie
  // together. None if all are taken, or the disk failed.
  virtual std::optional<int64_t> take() = 0;
  // Gives a slot back that was taken and not written.
  virtual void give(int64_t slot) = 0;
  // Writes blocks to slots that were taken, and publishes them; a block that was in such a slot is
  // gone at once. Neighbouring slots share operations of the system. Blocks that fail are not
  // published; their slots stay taken. All blocks of a call have as many parts; so for read().
  virtual void write(std::vector<BlockWrite> blocks, Done done) = 0;
  // Reads pieces [first_piece, first_piece + pieces) of blocks, and verifies them.
  virtual void read(std::vector<BlockRead> blocks, int64_t first_piece, int64_t pieces, Done done) = 0;
  // Forgets a published block, or gives back a slot that was taken; it is free. REQUIRES: no read
  // of it is going on. A write that goes on makes it do nothing.
  virtual void erase(int64_t slot) = 0;
  // Until everything published so far is on the disk. Errors: kStorage.
  virtual Status sync() = 0;
  virtual BlockFileCounters counters() const = 0;
};

}  // namespace hetero::backend
