// Recorder: the pending trace, and the two locks that order everything.
//
// Recording takes a step in the trie of earlier traces (trie.h), which mostly knows what the call's
// outputs look like. The trace is the path through the trie, the numbers in which equal programs
// may differ (`values`), and for each buffer the storage that it stands for. It is written down as
// a graph::Graph only when that is needed: if the same trace was planned before, the plan has the
// graph.
//
// A storage with bytes is held strongly, because its bytes are an input. A storage born in the
// trace is held weakly until a second node uses it. A value that the program has dropped is thus
// found dead when the trace is cut.
//
//   record:  recorder lock            windows, meta cache, trace
//   run:     executor lock, and inside it the recorder lock for as long as it takes to cut the
//            trace
//   early:   the recorder lock alone; the cut waits until somebody with the executor lock runs it
//            (overlap.h)
//
// Program order is the order in which threads got the recorder lock. The executor lock is never
// taken under the recorder lock. No kernel, meta kernel or Python code runs under the recorder
// lock.
//
// Thread safety: as above.
// Ownership: one leaked instance, because tensors may die after static destructors.

#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/base/fnv.h"
#include "backend/base/spin_lock.h"
#include "graph/ir/graph.h"
#include "graph/ir/plan_options.h"
#include "ops/record/call.h"
#include "ops/record/meta_cache.h"
#include "ops/record/trace_slice.h"
#include "ops/record/trie.h"
#include "ops/record/windows.h"
#include "ops/settings/counters.h"
#include "ops/tensor/locks.h"
#include "ops/tensor/storage_hold.h"

namespace hetero::ops {

// Whether this thread captures.
bool captures_here();
// Ends the capture of this thread by raising this sentence, because of something that cannot be
// part of it. Does nothing on a thread that does not capture.
void refuse_capture(const std::string& what);

// A call that was not the one that the trie expected.
struct Misprediction {
  uint32_t position;  // in the trace
  graph::OpId expected;
  graph::OpId recorded;
  Difference difference;
};

// What computes the bytes of a storage from storages with bytes only.
struct ConstantPart {
  graph::Graph graph;
  std::vector<HeteroStorage*> storages;       // per buffer: with the bytes; null for what is made
  graph::BufferId result = graph::kNoBuffer;  // kNoBuffer: the storage itself has the bytes
};

class Match;

class Recorder {
 public:
  Recorder();

  backend::SpinLock& mutex() { return mutex_; }

  // All below: REQUIRES the recorder lock.

  MetaCache& meta_cache() { return meta_cache_; }

  // What the outputs of the call look like, as the trie predicts or the meta cache knows; null if
  // neither does.
  const MetaEntry* expect(graph::OpId op, const Call& call);
  // Appends a node with the operands of `call`, followed by `outputs` (tensors made as expect()
  // said). True when something should be flushed: call after_record() once the lock is released.
  // REQUIRES: expect() was called for this call, and nothing since.
  [[nodiscard]] bool append(graph::OpId op, const Call& call, std::span<const at::Tensor> outputs);
  // The same for a call that is the expected one; see Match::append().
  [[nodiscard]] bool append_expected(TrieNode* expected, std::span<const at::Tensor> outputs);

  // True when the trace holds nodes that touch, or write, the storage.
  bool touched(const HeteroStorage* storage) const { return storage->epoch == epoch_; }
  bool written(const HeteroStorage* storage) const { return touched(storage) && holds_[storage->buffer].written; }
  // The dtype that kernels take for untyped numbers. Nodes recorded under different ones do not
  // share a trace.
  at::ScalarType default_dtype() const { return default_dtype_; }
  // Returns false when pending nodes must be flushed before the default dtype can change.
  bool set_default_dtype(at::ScalarType dtype) {
    if (dtype != default_dtype_ && !(path_.empty() && landed_ == last_flight_)) return false;
    default_dtype_ = dtype;
    return true;
  }
  size_t pending_nodes() const { return path_.size(); }
  // Why the trace should be flushed now; kCount where it need not be.
  SyncReason pressure();

  // Moves nodes from the trace to `cut`: all of them, or those that must run so that `storages`
  // have their final bytes. With `readers`, also those that read them. Returns false when nothing
  // has to run. `reuse`: a plan of the same trace may stand for its nodes; then all of them run,
  // too, where the rest uses temporaries of those that must, or did when the trace was seen before.
  // `fetched`, if not null: the host reads its bytes after the run, and they may be on an
  // accelerator then. REQUIRES: the executor lock as well; `cut` is clear.
  bool cut_all(bool reuse, Cut& cut, const HeteroStorage* fetched = nullptr);
  // Takes the beginning of a trace that has become too long, so that the rest begins where an
  // earlier trace began. A loop that reads nothing is then cut at the same place of its body every
  // time. Takes all of it if there is no such place.
  bool cut_some(bool reuse, Cut& cut);
  bool cut_ancestors(std::span<HeteroStorage* const> storages, bool readers, bool reuse, Cut& cut,
                     const HeteroStorage* fetched = nullptr);

  // Cuts the whole trace without the executor lock, if a piece ends here, for a flight (overlap.h)
  // that will run later. Returns the flight's number. What is cut afterwards must run after it.
  // REQUIRES: only flights change storages' bytes meanwhile.
  bool cut_early(Cut& cut, uint64_t& flight);
  // A flight has run: its storages are now as finish() foretold. Releases what it owned; what has
  // no other owner goes to `last`.
  void land(Cut& cut, uint64_t flight, std::vector<StorageHold>& last);

  // Begins a capture (compiled.h). Until end_capture(), what this thread records stays in the
  // trace, and nothing runs but copies of constant parts. `stand_ins` stand for the arguments.
  // Returns false if something is pending. REQUIRES: the executor lock, until end_capture().
  [[nodiscard]] bool begin_capture(std::span<const c10::Storage> stand_ins);
  // In a capture: what makes the bytes that the storage has at this place. None where these may be
  // others in the next run: where they depend on arguments, on states that the program writes, on
  // random numbers, or on what is outside. A storage with bytes that nothing writes needs no nodes.
  std::optional<ConstantPart> constant_part(HeteroStorage* storage);
  // In a capture: of the nodes of constant parts, and of what callers add. Captures of one model
  // for several sizes must look at the same.
  backend::Fnv& looked_at() { return looked_at_; }
  // Whether the capture writes a storage of which a constant part read the bytes.
  bool writes_what_was_read() const;
  // Moves what was recorded to `cut`. Returns false if another thread recorded meanwhile; all of it
  // then stays pending. Storages that were read go to `last`: they may have no other owner.
  [[nodiscard]] bool end_capture(Cut& cut, std::vector<StorageHold>& last);

  // Keeps the meta cache, the windows and the trie within their bounds. Returns false if that needs
  // an empty trace. REQUIRES: the executor lock as well.
  [[nodiscard]] bool trim_caches();
  // Forgets all of them. REQUIRES: the same, and nothing pending.
  void forget();
  const Trie& trie() const { return trie_; }
  // The latest ones, oldest first.
  std::vector<Misprediction> mispredictions() const;

 private:
  friend class Match;

  void hold(HeteroStorage* storage);
  // The number of the storage of a call's input i. A storage that is new to the trace gets the next
  // number. An earlier input of the call may have it too; those are in input_storages_ and
  // `earlier`.
  graph::BufferId buffer_of(const HeteroStorage* storage, size_t i, const graph::Operand* earlier) const {
    if (storage->epoch == epoch_) return storage->buffer;
    auto next = static_cast<graph::BufferId>(holds_.size());
    for (size_t k = 0; k < i; ++k) {
      if (input_storages_[k] == storage) return earlier[k].buffer;
      next = std::max(next, earlier[k].buffer + 1);
    }
    return next;
  }
  bool advance(TrieNode* node, std::span<const at::Tensor> outputs);
  [[gnu::noinline]] void take_note();
  void write_down();
  void describe_buffers();
  void select_ancestors(std::span<HeteroStorage* const> storages, bool readers);
  size_t find_beginning() const;
  void find_owned();
  bool rest_uses_temporaries();
  void drop_dead();
  void split(bool reuse, Cut& cut, const HeteroStorage* fetched = nullptr);
  void take_all(Cut& cut);
  void divide(PlanSet& plans);
  void finish(TraceSlice& slice, const HeteroStorage* fetched, uint64_t flight = 0);
  void next_epoch();
  void end_path(Cut& cut);
  void retrace(const std::vector<TrieNode*>& path);
  std::shared_ptr<const MetaEntry> entry_in_trace(size_t n, const TrieNode& step) const;
  CallView view(graph::OpId op, const Call& call);

  backend::SpinLock mutex_;  // held for a few hundred instructions
  MetaCache meta_cache_;
  Trie trie_;
  // The trace.
  std::vector<TrieNode*> path_;     // per node
  TrieNode* at_ = trie_.root();     // the end of the path
  Bytes values_;                    // of all nodes
  std::vector<StorageHold> holds_;  // per buffer
  // The latest of any node of the path; kUnlikeTrie where a node differs from the trie's.
  uint64_t version_ = 0;
  static constexpr uint64_t kUnlikeTrie = UINT64_MAX;
  // The first nodes of the trace, written down; its buffers only by describe_buffers().
  graph::Graph trace_;
  size_t written_values_ = 0;  // bytes of values_ that those nodes have
  graph::BufferId written_buffers_ = 0;
  // What expect() found: the next step on the path, or what to make one with.
  TrieNode* next_ = nullptr;
  std::shared_ptr<const MetaEntry> next_entry_;
  std::array<Misprediction, 16> mispredictions_{};
  size_t mispredicted_ = 0;
  std::vector<graph::Operand> inputs_;  // of the call that was looked at last
  // Of the call that is recorded; as many as any call has had.
  std::vector<HeteroStorage*> input_storages_;
  NodeNotes notes_;
  at::ScalarType default_dtype_ = at::kFloat;
  int64_t pending_bytes_ = 0;
  bool uses_shared_ = false;  // a storage whose bytes somebody outside sees
  bool captures_ = false;
  bool capture_spoiled_ = false;  // another thread has recorded
  std::vector<const c10::StorageImpl*> stand_ins_;
  std::vector<StorageHold> read_in_capture_;  // those with bytes, by constant parts
  backend::Fnv looked_at_;
  uint32_t epoch_ = 1;
  uint32_t sequence_ = 0;
  std::chrono::steady_clock::time_point begun_;  // when the first node was recorded
  uint64_t last_flight_ = 0;
  uint64_t landed_ = 0;  // the last one that has
  // In the middle of a divided trace: the nodes of a piece, how many pieces come before the last,
  // and where this one ends.
  static constexpr size_t kNever = SIZE_MAX;
  TrieNode* mark_ = nullptr;  // where the first piece ended
  std::chrono::steady_clock::time_point divided_begun_;
  size_t left_over_ = 0;  // nodes of an earlier trace, of which some were cut out
  size_t piece_ = 0;
  int cuts_left_ = 0;
  size_t cut_at_ = kNever;
  // Scratch of cutting. Per node: 0, 1 where it is cut, or kDead.
  static constexpr uint8_t kDead = 2;
  std::vector<graph::BufferId> wanted_;
  std::vector<uint8_t> selected_;
  std::vector<uint8_t> needed_;
  std::vector<uint8_t> live_;
};

// Whether later programs are expected to read the bytes as earlier ones did: a weight.
bool is_steady(const HeteroStorage& storage);

extern Recorder* recorder_instance;  // made when the library is loaded
inline Recorder& recorder() { return *recorder_instance; }

}  // namespace hetero::ops
