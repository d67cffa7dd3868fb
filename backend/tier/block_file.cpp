// BlockFile over a queue of operations and a log.
//
// A write goes to the slot first; when all of its bytes are there, its checksums are computed and
// its record is appended to the log. So a record never comes before its bytes. A read is many
// operations in flight; the thread that ends one verifies its pieces while the others go on.
//
// One thread looks after the folder: it syncs (kGroup), publishes what must be on the disk first
// (kStrict), and compacts the log.

#include "backend/tier/block_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>

#include "backend/base/blocked_signals.h"
#include "backend/base/checksum.h"
#include "backend/file/file_transfer.h"
#include "backend/memory/range_allocator.h"
#include "backend/tier/block_log.h"
#include "backend/tier/file_queue.h"
#include "backend/tier/merge.h"

namespace hetero::backend {
namespace {

// So many calls in a row may fail, as on a full disk, before the folder is given up.
constexpr int kMostFailedWrites = 16;
constexpr int kMostFailedReads = 16;
// Operations are at most this long: longer ones are not faster, and a read waits behind them.
constexpr int64_t kMostOperationBytes = int64_t{4} << 20;
// A small read is cut, so that its first pieces are verified while the last ones are read.
constexpr int64_t kLeastOperationBytes = int64_t{1} << 20;
constexpr int64_t kOperationsOfRead = 2;

constexpr int kDamaged = -1;  // what a block's error is if its checksum is wrong
constexpr int kMissing = -2;  // if its slot has no block

std::string text_of(int error) { return std::generic_category().message(error); }

Status storage_error(const std::string& what) { return Status(ErrorClass::kStorage, what); }

Status storage_error(const std::string& what, int error) { return storage_error(what + ": " + text_of(error)); }

// The disk, or the way to it, is gone. Other errors may pass.
bool is_lasting(int error) {
  return error == EIO || error == EROFS || error == ENXIO || error == ENODEV || error == ESTALE || error == EBADF;
}

bool is_full(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

struct Descriptor {
  int file = -1;
  ~Descriptor() {
    if (file >= 0) close(file);
  }
};

// Reads and writes without the page cache, where the file system can. REQUIRES: the file has at
// least a page.
bool make_direct(int file) {
  const int flags = fcntl(file, F_GETFL);
  if (flags < 0 || fcntl(file, F_SETFL, flags | O_DIRECT) != 0) return false;
  void* const page =
      mmap(nullptr, BlockGeometry::kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool reads = page != MAP_FAILED && pread(file, page, BlockGeometry::kPageBytes, 0) == BlockGeometry::kPageBytes;
  if (page != MAP_FAILED) munmap(page, BlockGeometry::kPageBytes);
  if (!reads) fcntl(file, F_SETFL, flags);
  return reads;
}

// 0, or an errno. A process that was killed has the lock until the system has ended its last
// operation, which is a moment after its death. So the lock also keeps late writes out.
int lock_for_moment(int file) {
  constexpr auto kMoment = std::chrono::seconds(1);
  const auto until = std::chrono::steady_clock::now() + kMoment;
  while (flock(file, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EINTR && (errno != EWOULDBLOCK || std::chrono::steady_clock::now() > until)) return errno;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return 0;
}

class LocalBlockFile final : public BlockFile {
 public:
  LocalBlockFile(const BlockFileOptions& options, int file, int64_t slots, std::unique_ptr<BlockLog> log,
                 std::unique_ptr<FileQueue> queue)
      : options_(options),
        geometry_(options.geometry),
        slots_(slots),
        file_(file),
        log_(std::move(log)),
        queue_(std::move(queue)),
        states_(static_cast<size_t>(slots), State::kFree),
        free_(static_cast<uint64_t>(slots)) {}
  ~LocalBlockFile() override;

  // Tells what is in the folder, drops what is of no use, and begins. `bytes`: of the file when it
  // was opened.
  void begin(int64_t bytes, FunctionRef<void(const StoredBlock&)> recovered);

  std::optional<int64_t> take() override;
  void give(int64_t slot) override;
  void write(std::vector<BlockWrite> blocks, Done done) override;
  void read(std::vector<BlockRead> blocks, int64_t first_piece, int64_t pieces, Done done) override;
  void erase(int64_t slot) override;
  Status sync() override;
  BlockFileCounters counters() const override;

 private:
  enum class State : uint8_t { kFree, kTaken, kWriting, kPublished };

  struct ReadCall {
    std::vector<BlockRead> blocks;
    std::vector<BlockLog::Record> records;
    std::vector<std::atomic<int>> errors;  // of blocks: 0, an errno, kDamaged, kMissing
    std::vector<std::atomic<int>> left;    // operations, of pieces
    std::atomic<int64_t> operations_left{1};
    int64_t first_piece, pieces;
    Done done;
  };
  struct WriteCall {
    std::vector<BlockWrite> blocks;
    std::vector<std::vector<uint64_t>> checksums;
    std::vector<std::atomic<int>> errors;
    std::vector<std::atomic<int>> left;  // operations, of blocks
    std::atomic<int64_t> operations_left{1};
    Done done;
  };

  bool is_forked() const { return getpid() != process_; }
  bool is_slot(int64_t slot) const { return slot >= 0 && slot < slots_; }
  State& state(int64_t slot) { return states_[static_cast<size_t>(slot)]; }
  int64_t offset_of(int64_t slot) const { return slot * geometry_.block_bytes(); }
  // Refuses a call: the disk failed, or the caller's memory does not fit. A forked child has the
  // locks of a moment, so it takes none.
  template <typename Block>
  bool refuse(const std::vector<Block>& blocks, bool is_usage, const Done& done);
  // Of the caller's memory, whole or in parts (block_file.h).
  template <typename Block>
  bool fits(const std::vector<Block>& blocks) const;
  template <typename Block>
  int64_t parts_of_piece(const Block& block) const;
  template <typename Block>
  void add_piece(std::vector<FilePiece>& pieces, const Block& block, int64_t piece) const;
  template <typename Block>
  uint64_t checksum_of(const Block& block, int64_t piece) const;
  // `done` is left to the caller.
  FileOperation operation_of(FileCall call, MergedOperation& merged) const;
  void leave();

  void begin_read(const std::shared_ptr<ReadCall>& call, std::vector<size_t> blocks, std::vector<FileOperation>& all);
  void end_pieces(ReadCall& call, const std::vector<size_t>& blocks, const MergedOperation& operation, int error);
  void end_read_operation(const std::shared_ptr<ReadCall>& call);
  void end_write_operation(const std::shared_ptr<WriteCall>& call);
  void publish(const std::vector<std::shared_ptr<WriteCall>>& calls);
  void end_write(WriteCall& call);
  std::string said(int64_t slot, int error, const char* verb) const;

  void note_write(int error);
  void note_read(int error);
  void quarantine(const char* what, int error);
  Status failure() const;
  int sync_all();
  void look_after();

  const pid_t process_ = getpid();
  const BlockFileOptions options_;
  const BlockGeometry geometry_;
  const int64_t slots_;
  const int file_;
  const std::unique_ptr<BlockLog> log_;
  std::unique_ptr<FileQueue> queue_;

  mutable std::mutex mutex_;
  // Guarded by mutex_:
  std::vector<State> states_;
  RangeAllocator free_;      // slots
  uint64_t after_last_ = 0;  // the slot behind the one that was taken last
  int64_t used_ = 0;
  int64_t calls_ = 0;                                // reads and writes that have not ended
  std::vector<std::shared_ptr<WriteCall>> to_sync_;  // kStrict: written, not on the disk yet
  bool dirty_ = false, stops_ = false;
  Status failure_;
  int failed_writes_ = 0, failed_reads_ = 0;
  BlockFileCounters counted_;

  // On its own, because a forked child cannot destroy what the parent's threads wait for.
  struct Waiting {
    std::condition_variable no_calls;
    std::condition_variable caretaker;
  };
  std::unique_ptr<Waiting> waiting_ = std::make_unique<Waiting>();
  std::atomic<bool> failed_{false};
  std::thread caretaker_;
};

LocalBlockFile::~LocalBlockFile() {
  if (is_forked()) {
    // The threads are the parent's. Nothing here can be ended.
    caretaker_.detach();
    (void)queue_.release();
    (void)waiting_.release();
    close(file_);
    return;
  }
  {
    std::unique_lock lock(mutex_);
    waiting_->no_calls.wait(lock, [&] { return calls_ == 0; });
    stops_ = true;
  }
  waiting_->caretaker.notify_all();
  if (caretaker_.joinable()) caretaker_.join();
  queue_.reset();
  if (options_.durability != Durability::kNone && !failed_) (void)sync_all();
  close(file_);
}

void LocalBlockFile::begin(int64_t bytes, FunctionRef<void(const StoredBlock&)> recovered) {
  std::vector<BlockLog::Record> records = log_->live();
  std::sort(records.begin(), records.end(),
            [](const BlockLog::Record& a, const BlockLog::Record& b) { return a->generation > b->generation; });
  // Of two blocks with one key the later one stays.
  std::unordered_map<BlockKey, const LogRecord*, BlockKeyHash> by_key;
  std::unordered_multimap<BlockKey, const LogRecord*, BlockKeyHash> children;
  by_key.reserve(records.size());
  children.reserve(records.size());
  for (const BlockLog::Record& record : records) {
    const bool is_there = is_slot(record->slot) && offset_of(record->slot) + geometry_.block_bytes() <= bytes;
    if (is_there && by_key.emplace(record->key, record.get()).second) children.emplace(record->parent, record.get());
  }
  // From the first blocks of sequences on. A block that no walk reaches has lost a parent.
  std::vector<const LogRecord*> order;
  const auto add_children = [&](const BlockKey& parent) {
    const auto [first, last] = children.equal_range(parent);
    for (auto child = first; child != last; ++child) order.push_back(child->second);
    children.erase(first, last);
  };
  add_children(options_.fingerprint);
  for (size_t i = 0; i < order.size(); ++i) add_children(order[i]->key);

  for (const LogRecord* record : order) {
    state(record->slot) = State::kPublished;
    free_.take_at(static_cast<uint64_t>(record->slot), 1);
    after_last_ = std::max(after_last_, static_cast<uint64_t>(record->slot) + 1);
    recovered({.slot = record->slot, .key = record->key, .parent = record->parent, .tokens = record->tokens});
  }
  used_ = counted_.recovered = std::ssize(order);
  std::vector<int64_t> lost;
  for (const BlockLog::Record& record : records) {
    if (!is_slot(record->slot) || state(record->slot) != State::kPublished) lost.push_back(record->slot);
  }
  // If that fails, they are dropped again next time.
  (void)log_->erase(lost);

  const BlockedSignals blocked;
  caretaker_ = std::thread([this] { look_after(); });
}

std::optional<int64_t> LocalBlockFile::take() {
  if (failed_ || is_forked()) return std::nullopt;
  const std::lock_guard guard(mutex_);
  if (free_.free().empty()) return std::nullopt;
  if (!free_.take_at(after_last_, 1)) {
    const auto next = free_.free().lower_bound(after_last_);
    after_last_ = next == free_.free().end() ? free_.free().begin()->first : next->first;
    free_.take_at(after_last_, 1);
  }
  const auto slot = static_cast<int64_t>(after_last_++);
  state(slot) = State::kTaken;
  ++used_;
  return slot;
}

void LocalBlockFile::give(int64_t slot) { erase(slot); }

void LocalBlockFile::erase(int64_t slot) {
  if (is_forked()) return;
  {
    const std::lock_guard guard(mutex_);
    if (!is_slot(slot) || state(slot) == State::kFree || state(slot) == State::kWriting) return;
    if (state(slot) == State::kPublished) {
      // Where the log cannot say it, the record is older than the slot's next one, and does not fit
      // its bytes.
      const int error = failed_ ? 0 : log_->erase({slot});
      if (error != 0) ++counted_.io_errors;
    }
    state(slot) = State::kFree;
    free_.give(static_cast<uint64_t>(slot), 1);
    --used_;
  }
  if (log_->wants_compaction()) waiting_->caretaker.notify_one();
}

template <typename Block>
bool LocalBlockFile::refuse(const std::vector<Block>& blocks, bool is_usage, const Done& done) {
  BlockResult result;
  if (is_forked()) {
    result.status = storage_error(options_.folder + " belongs to the parent of this process");
  } else if (failed_) {
    result.status = failure();
  } else if (is_usage || !fits(blocks)) {
    result.status = Status(ErrorClass::kUsage, "blocks must be on page borders, and pieces be those of a block");
  } else {
    return false;
  }
  for (const Block& block : blocks) result.bad_slots.push_back(block.slot);
  done(result);
  return true;
}

template <typename Block>
bool LocalBlockFile::fits(const std::vector<Block>& blocks) const {
  const auto is_fit = [](const std::byte* data) {
    return data != nullptr && reinterpret_cast<uintptr_t>(data) % BlockGeometry::kPageBytes == 0;
  };
  for (const Block& block : blocks) {
    if (block.parts.size() != blocks.front().parts.size()) return false;
    if (block.parts.empty() ? !is_fit(block.data) : !std::ranges::all_of(block.parts, is_fit)) return false;
  }
  if (blocks.empty() || blocks.front().parts.empty()) return true;
  const int64_t parts = parts_of_piece(blocks.front());
  return std::ssize(blocks.front().parts) % geometry_.pieces == 0 &&
         geometry_.piece_bytes % (parts * BlockGeometry::kPageBytes) == 0;
}

template <typename Block>
int64_t LocalBlockFile::parts_of_piece(const Block& block) const {
  return std::max<int64_t>(1, std::ssize(block.parts) / geometry_.pieces);
}

// As many as a piece has parts.
template <typename Block>
void LocalBlockFile::add_piece(std::vector<FilePiece>& pieces, const Block& block, int64_t piece) const {
  const int64_t stride = geometry_.piece_stride(), parts = parts_of_piece(block), bytes = stride / parts;
  for (int64_t i = 0; i < parts; ++i) {
    // The queue only reads what is written to the file.
    std::byte* const memory = block.parts.empty() ? const_cast<std::byte*>(block.data) + piece * stride
                                                  : block.parts[static_cast<size_t>(piece * parts + i)];
    pieces.push_back({offset_of(block.slot) + piece * stride + i * bytes, memory, bytes});
  }
}

template <typename Block>
uint64_t LocalBlockFile::checksum_of(const Block& block, int64_t piece) const {
  if (block.parts.empty()) {
    return checksum(block.data + piece * geometry_.piece_stride(), static_cast<size_t>(geometry_.piece_bytes));
  }
  std::vector<FilePiece> parts;
  add_piece(parts, block, piece);
  Checksum sum;
  for (const FilePiece& part : parts) sum.update(part.memory, static_cast<size_t>(part.bytes));
  return sum.value();
}

FileOperation LocalBlockFile::operation_of(FileCall call, MergedOperation& merged) const {
  return {.call = call, .file = file_, .offset = merged.offset, .memory = std::move(merged.memory), .done = {}};
}

void LocalBlockFile::leave() {
  const std::lock_guard guard(mutex_);
  if (--calls_ == 0) waiting_->no_calls.notify_all();
}

void LocalBlockFile::read(std::vector<BlockRead> blocks, int64_t first_piece, int64_t pieces, Done done) {
  const bool is_usage =
      first_piece < 0 || pieces < 1 || pieces > geometry_.pieces || first_piece > geometry_.pieces - pieces;
  if (refuse(blocks, is_usage, done)) return;

  auto call = std::make_shared<ReadCall>();
  call->errors = std::vector<std::atomic<int>>(blocks.size());
  call->left = std::vector<std::atomic<int>>(blocks.size() * static_cast<size_t>(pieces));
  call->first_piece = first_piece;
  call->pieces = pieces;
  call->done = std::move(done);
  std::vector<size_t> order;
  for (size_t i = 0; i < blocks.size(); ++i) {
    call->records.push_back(is_slot(blocks[i].slot) ? log_->find(blocks[i].slot) : nullptr);
    if (call->records.back() == nullptr) {
      call->errors[i] = kMissing;
    } else {
      order.push_back(i);
    }
  }
  call->blocks = std::move(blocks);
  {
    const std::lock_guard guard(mutex_);
    ++calls_;
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return call->blocks[a].slot < call->blocks[b].slot; });
  // A slot that is asked for twice is read twice, by operations of its own.
  std::vector<FileOperation> operations;
  while (!order.empty()) {
    std::vector<size_t> once, again;
    for (size_t block : order) {
      const bool is_second = !once.empty() && call->blocks[once.back()].slot == call->blocks[block].slot;
      (is_second ? again : once).push_back(block);
    }
    begin_read(call, std::move(once), operations);
    order = std::move(again);
  }
  queue_->submit(std::move(operations));
  end_read_operation(call);
}

// Of blocks in the order of their slots.
void LocalBlockFile::begin_read(const std::shared_ptr<ReadCall>& call, std::vector<size_t> blocks,
                                std::vector<FileOperation>& all) {
  const int64_t parts = parts_of_piece(call->blocks.front());
  std::vector<FilePiece> pieces;
  pieces.reserve(blocks.size() * static_cast<size_t>(call->pieces * parts));
  for (size_t block : blocks) {
    for (int64_t piece = call->first_piece; piece < call->first_piece + call->pieces; ++piece) {
      add_piece(pieces, call->blocks[block], piece);
    }
  }
  const int64_t bytes = std::ssize(blocks) * call->pieces * geometry_.piece_stride();
  const MergeLimits limits{.bytes = std::clamp(bytes / kOperationsOfRead, kLeastOperationBytes, kMostOperationBytes) /
                                    4096 * 4096};
  std::vector<MergedOperation> operations = merge_pieces(pieces, limits);
  const auto of_blocks = std::make_shared<const std::vector<size_t>>(std::move(blocks));
  const auto per_block = static_cast<size_t>(call->pieces), per_piece = static_cast<size_t>(parts);
  for (MergedOperation& operation : operations) {
    for (size_t i = operation.first_piece; i < operation.first_piece + operation.pieces; ++i) {
      const size_t piece = i / per_piece;
      ++call->left[(*of_blocks)[piece / per_block] * per_block + piece % per_block];
    }
    FileOperation& added = all.emplace_back(operation_of(FileCall::kRead, operation));
    ++call->operations_left;
    added.done = [this, call, of_blocks, operation = std::move(operation)](int error) {
      end_pieces(*call, *of_blocks, operation, error);
      end_read_operation(call);
    };
  }
}

void LocalBlockFile::end_pieces(ReadCall& call, const std::vector<size_t>& blocks, const MergedOperation& operation,
                                int error) {
  const auto per_block = static_cast<size_t>(call.pieces);
  const auto per_piece = static_cast<size_t>(parts_of_piece(call.blocks.front()));
  for (size_t i = operation.first_piece; i < operation.first_piece + operation.pieces; ++i) {
    const size_t block = blocks[i / per_piece / per_block], of_call = i / per_piece % per_block;
    std::atomic<int>& of_block = call.errors[block];
    int none = 0;
    if (error != 0) of_block.compare_exchange_strong(none, error);
    if (--call.left[block * per_block + of_call] > 0 || of_block != 0) continue;
    const int64_t piece = call.first_piece + static_cast<int64_t>(of_call);
    if (checksum_of(call.blocks[block], piece) != call.records[block]->checksums[static_cast<size_t>(piece)]) {
      of_block.compare_exchange_strong(none, kDamaged);
    }
  }
}

void LocalBlockFile::end_read_operation(const std::shared_ptr<ReadCall>& call) {
  if (--call->operations_left > 0) return;
  BlockResult result;
  int system_error = 0;
  int64_t damaged = 0, failed = 0;
  for (size_t i = 0; i < call->blocks.size(); ++i) {
    const int64_t slot = call->blocks[i].slot;
    int error = call->errors[i];
    // Erased or written again meanwhile: the bytes may be of two blocks.
    if (error == 0 && log_->find(slot) != call->records[i]) error = kMissing;
    if (error == 0) continue;
    damaged += error == kDamaged;
    failed += error > 0;
    if (error > 0) system_error = error;
    if (result.status.ok()) result.status = storage_error(said(slot, error, "read"));
    result.bad_slots.push_back(slot);
  }
  {
    const std::lock_guard guard(mutex_);
    const int64_t good = std::ssize(call->blocks) - std::ssize(result.bad_slots);
    counted_.reads += good;
    counted_.bytes_read += good * call->pieces * geometry_.piece_stride();
    counted_.checksum_failures += damaged;
    counted_.io_errors += failed;
  }
  note_read(system_error);
  call->done(result);
  leave();
}

std::string LocalBlockFile::said(int64_t slot, int error, const char* verb) const {
  std::string text = options_.folder + ": slot ";
  text.append(std::to_string(slot));
  if (error == kDamaged) return text.append(" does not have the bytes that were written");
  if (error == kMissing) return text.append(" does not have the block");
  return text.append(" cannot be ").append(verb).append(": ").append(text_of(error));
}

void LocalBlockFile::write(std::vector<BlockWrite> blocks, Done done) {
  if (refuse(blocks, false, done)) return;

  auto call = std::make_shared<WriteCall>();
  call->errors = std::vector<std::atomic<int>>(blocks.size());
  call->left = std::vector<std::atomic<int>>(blocks.size());
  call->checksums.resize(blocks.size());
  call->done = std::move(done);
  call->blocks = std::move(blocks);
  std::vector<size_t> order;
  {
    const std::lock_guard guard(mutex_);
    ++calls_;
    for (size_t i = 0; i < call->blocks.size(); ++i) {
      const int64_t slot = call->blocks[i].slot;
      if (!is_slot(slot) || (state(slot) != State::kTaken && state(slot) != State::kPublished)) {
        call->errors[i] = kMissing;
        continue;
      }
      // The old block is gone before its bytes are.
      if (state(slot) == State::kPublished) (void)log_->erase({slot});
      state(slot) = State::kWriting;
      order.push_back(i);
    }
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return call->blocks[a].slot < call->blocks[b].slot; });
  std::vector<FilePiece> pieces;
  for (size_t block : order) {
    for (int64_t piece = 0; piece < geometry_.pieces; ++piece) add_piece(pieces, call->blocks[block], piece);
  }
  const size_t per_block = order.empty() ? 1 : pieces.size() / order.size();
  std::vector<MergedOperation> merged = merge_pieces(pieces, {.bytes = kMostOperationBytes});
  std::vector<FileOperation> operations;
  for (MergedOperation& operation : merged) {
    std::vector<size_t> of_blocks;
    const size_t end = operation.first_piece + operation.pieces;
    for (size_t i = operation.first_piece / per_block; i * per_block < end; ++i) of_blocks.push_back(order[i]);
    for (size_t block : of_blocks) ++call->left[block];
    FileOperation& added = operations.emplace_back(operation_of(FileCall::kWrite, operation));
    ++call->operations_left;
    added.done = [this, call, of_blocks = std::move(of_blocks)](int error) {
      for (size_t block : of_blocks) {
        int none = 0;
        if (error != 0) call->errors[block].compare_exchange_strong(none, error);
        if (--call->left[block] > 0 || call->errors[block] != 0) continue;
        for (int64_t piece = 0; piece < geometry_.pieces; ++piece) {
          call->checksums[block].push_back(checksum_of(call->blocks[block], piece));
        }
      }
      end_write_operation(call);
    };
  }
  queue_->submit(std::move(operations));
  end_write_operation(call);
}

void LocalBlockFile::end_write_operation(const std::shared_ptr<WriteCall>& call) {
  if (--call->operations_left > 0) return;
  if (options_.durability != Durability::kStrict) return publish({call});
  {
    const std::lock_guard guard(mutex_);
    to_sync_.push_back(call);
  }
  waiting_->caretaker.notify_one();
}

void LocalBlockFile::publish(const std::vector<std::shared_ptr<WriteCall>>& calls) {
  const bool is_strict = options_.durability == Durability::kStrict;
  std::vector<LogRecord> records;
  std::vector<std::atomic<int>*> errors;
  for (const auto& call : calls) {
    for (size_t i = 0; i < call->blocks.size(); ++i) {
      if (call->errors[i] != 0) continue;
      BlockWrite& block = call->blocks[i];
      LogRecord& record = records.emplace_back();
      record.slot = block.slot;
      record.key = block.block.key;
      record.parent = block.block.parent;
      record.tokens = std::move(block.block.tokens);
      record.checksums = std::move(call->checksums[i]);
      errors.push_back(&call->errors[i]);
    }
  }
  int error = 0;
  if (!records.empty()) {
    std::vector<int64_t> slots;
    for (const LogRecord& record : records) slots.push_back(record.slot);
    error = failed_ ? EIO : is_strict ? sync_bytes(file_) : 0;
    if (error == 0) error = log_->publish(std::move(records));
    if (error == 0 && is_strict) {
      error = log_->sync();
      if (error != 0) (void)log_->erase(slots);
    }
    // A failed sync is no more to be trusted than a failed write.
    if (error != 0 && !is_full(error)) quarantine("the log cannot be written", error);
    for (std::atomic<int>* of_block : errors) *of_block = error;
  }
  for (const auto& call : calls) end_write(*call);
  if (log_->wants_compaction()) waiting_->caretaker.notify_one();
}

void LocalBlockFile::end_write(WriteCall& call) {
  BlockResult result;
  int system_error = 0;
  {
    const std::lock_guard guard(mutex_);
    for (size_t i = 0; i < call.blocks.size(); ++i) {
      const int64_t slot = call.blocks[i].slot;
      const int error = call.errors[i];
      if (error != kMissing) state(slot) = error == 0 ? State::kPublished : State::kTaken;
      if (error == 0) {
        ++counted_.writes;
        counted_.bytes_written += geometry_.block_bytes();
        dirty_ = true;
        continue;
      }
      if (error > 0) {
        system_error = error;
        ++counted_.io_errors;
      }
      if (result.status.ok()) {
        result.status = error == kMissing
                            ? Status(ErrorClass::kUsage, said(slot, error, "written").append(": it was not taken"))
                            : storage_error(said(slot, error, "written"));
      }
      result.bad_slots.push_back(slot);
    }
  }
  note_write(system_error);
  call.done(result);
  leave();
}

void LocalBlockFile::note_write(int error) {
  if (is_lasting(error)) return quarantine("a write failed", error);
  int failed = 0;
  {
    const std::lock_guard guard(mutex_);
    failed = failed_writes_ = error == 0 ? 0 : failed_writes_ + 1;
  }
  if (failed >= kMostFailedWrites) quarantine("writes fail", error);
}

void LocalBlockFile::note_read(int error) {
  int failed = 0;
  {
    const std::lock_guard guard(mutex_);
    failed = failed_reads_ = error == 0 ? 0 : failed_reads_ + 1;
  }
  if (failed >= kMostFailedReads) quarantine("reads fail", error);
}

void LocalBlockFile::quarantine(const char* what, int error) {
  const std::lock_guard guard(mutex_);
  if (failed_) return;
  std::string text = options_.folder + " is not used any more, because ";
  failure_ = storage_error(text.append(what), error);
  counted_.quarantined = true;
  failed_ = true;
}

Status LocalBlockFile::failure() const {
  const std::lock_guard guard(mutex_);
  return failure_;
}

int LocalBlockFile::sync_all() {
  int error = sync_bytes(file_);
  if (error == 0) error = log_->sync();
  if (error != 0) quarantine("it cannot be synced", error);
  return error;
}

Status LocalBlockFile::sync() {
  if (is_forked()) return storage_error(options_.folder + " belongs to the parent of this process");
  if (!failed_ && sync_all() == 0) return Status();
  return failure();
}

void LocalBlockFile::look_after() {
  const auto period = std::chrono::duration<double>(std::clamp(options_.group_seconds, 0.001, 86400.0));
  const bool is_group = options_.durability == Durability::kGroup;
  auto next_sync = std::chrono::steady_clock::now() + period;
  std::unique_lock lock(mutex_);
  while (!stops_) {
    const auto is_due = [&] { return stops_ || !to_sync_.empty() || (!failed_ && log_->wants_compaction()); };
    if (is_group) {
      waiting_->caretaker.wait_until(lock, next_sync, is_due);
    } else {
      waiting_->caretaker.wait(lock, is_due);
    }
    const auto calls = std::exchange(to_sync_, {});
    const bool syncs = is_group && !stops_ && std::chrono::steady_clock::now() >= next_sync;
    const bool syncs_bytes = syncs && std::exchange(dirty_, false);
    lock.unlock();
    if (syncs) next_sync = std::chrono::steady_clock::now() + period;
    if (!calls.empty()) publish(calls);
    if (syncs_bytes && !failed_) (void)sync_all();
    if (!failed_ && log_->wants_compaction()) {
      // Without space the log stays as it is; it is tried again when the log has doubled.
      const int error = log_->compact();
      if (error == EIO || error == EROFS) quarantine("its log cannot be compacted", error);
    }
    lock.lock();
  }
}

BlockFileCounters LocalBlockFile::counters() const {
  const LogCounters log = log_->counters();
  const std::lock_guard guard(mutex_);
  BlockFileCounters counters = counted_;
  counters.slots = slots_;
  counters.used = used_;
  counters.operations = queue_->calls();
  counters.log_bytes = log.bytes;
  counters.compactions = log.compactions;
  counters.engine = queue_->engine();
  const RegisteredMemory registered = queue_->registered();
  counters.registered_operations = registered.calls;
  counters.registered_bytes = registered.bytes;
  if (registered.error != 0) counters.unregistered = text_of(registered.error);
  return counters;
}

}  // namespace

Result<std::unique_ptr<BlockFile>> BlockFile::open(const BlockFileOptions& options,
                                                   FunctionRef<void(const StoredBlock&)> recovered) {
  const BlockGeometry& geometry = options.geometry;
  constexpr int64_t kMostBlockBytes = int64_t{1} << 40;
  if (geometry.tokens < 1 || geometry.pieces < 1 || geometry.piece_bytes < 1 ||
      geometry.piece_bytes > kMostBlockBytes || geometry.pieces > kMostBlockBytes / geometry.piece_stride()) {
    return Status(ErrorClass::kUsage, options.folder + ": blocks need tokens, pieces and bytes");
  }
  const int64_t slots = options.most_bytes / geometry.block_bytes();
  if (slots < 1) {
    std::string text = options.folder + " may have ";
    text.append(std::to_string(options.most_bytes)).append(" bytes, but a block has ");
    return storage_error(text.append(std::to_string(geometry.block_bytes())));
  }
  if (mkdir(options.folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return storage_error(options.folder + " cannot be made", errno);
  }
  const std::string path = options.folder + "/blocks";
  Descriptor file{::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)};
  if (file.file < 0) return storage_error(path + " cannot be opened", errno);
  if (const int error = lock_for_moment(file.file)) {
    if (error != EWOULDBLOCK) return storage_error(path + " cannot be locked", error);
    return storage_error(options.folder + " is in use by another process, or by another store of this one");
  }
  struct stat status = {};
  if (fstat(file.file, &status) != 0) return storage_error(path + " cannot be read", errno);
  Result<std::unique_ptr<BlockLog>> log =
      BlockLog::open(options.folder, {options.fingerprint, geometry, options.description});
  if (!log.ok()) return log.status();
  // Holes take no space until they are written.
  if (ftruncate(file.file, slots * geometry.block_bytes()) != 0) {
    return storage_error(path + " cannot have its size", errno);
  }
  make_direct(file.file);
  FileQueueOptions queue_options{.engine = options.engine, .memory = options.memory};
  // A block lies in one part.
  const auto block_bytes = static_cast<size_t>(geometry.block_bytes());
  queue_options.part_bytes = std::max<size_t>(1, queue_options.part_bytes / block_bytes) * block_bytes;
  Result<std::unique_ptr<FileQueue>> queue = FileQueue::make(queue_options);
  if (!queue.ok()) return storage_error(options.folder + ": " + queue.status().message());
  auto made = std::make_unique<LocalBlockFile>(options, std::exchange(file.file, -1), slots, std::move(log.value()),
                                               std::move(queue.value()));
  made->begin(status.st_size, recovered);
  return std::unique_ptr<BlockFile>(std::move(made));
}

}  // namespace hetero::backend
