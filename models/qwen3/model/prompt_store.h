// PromptStore: the engine's way to a block store, which keeps keys and values of prompts beyond the
// engine's own pages, and beyond the process (docs/kv_store.md).
//
// A block of the store is a page: page_tokens tokens in all layers. An engine looks for a prompt,
// loads what it lacks into pages, and saves pages with what it has computed. None of these waits:
// each is a Call, which the engine asks between its steps whether it is done.
//
//   auto found = store->find(tokens);                    // until found->is_done()
//   auto load = store->load(found, first_block, pages);  // the same
//   int64_t tokens = load->tokens();                     // whose keys and values are in the pages
//
// Errors of the store are no errors of a call: less was found, loaded or saved.
//
// Thread safety: one thread, the engine's. Calls begin on a thread of the store, in their order,
// because a remote store may take a while to answer, and host memory may have to wait for room.
// Ownership: pages must stay, and stay unchanged for a save, until their call is done. The pool
// outlives the store. The destructor waits for all calls, and for what is written to the disk and
// the remote store.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "backend/base/status.h"
#include "graph/kv/page_layout.h"
#include "graph/kv/page_pool.h"
#include "graph/transfer/block_store.h"

namespace hetero::qwen3 {

struct PromptStoreOptions {
  uint64_t memory_bytes = 0;  // host memory; 0: 512 MiB if there is a disk or a remote store
  std::string disk_folder{};  // has a folder for each model; empty: no disk
  uint64_t disk_bytes = 0;
  std::string remote{};  // an address (backend/tier/remote_tier.h); empty: none
  // A prompt that has not been found and loaded after so many seconds is computed.
  double most_seconds = 10;

  bool is_on() const { return memory_bytes != 0 || !disk_folder.empty() || !remote.empty(); }
};

class PromptStore {
 public:
  class Call {
   public:
    bool is_done() const;
    // REQUIRES: done. The tokens at the beginning of the sequence that were found, are in the pages
    // now, or are in the store now.
    int64_t tokens() const;
    // It may end early, with less; until then it is not done.
    void cancel();

   private:
    friend class PromptStore;
    enum class State : uint8_t { kQueued, kBegun, kEnded };  // kBegun: request_ runs
    std::atomic<State> state_{State::kQueued};
    std::atomic<bool> cancelled_{false};
    int64_t tokens_ = 0;  // kEnded
    graph::BlockMatch match_;
    std::shared_ptr<graph::BlockRequest> request_;
  };

  // `fingerprint` tells what computes keys and values (checkpoint/fingerprint.h). Errors: kUsage
  // for pages with scales, or options that do not fit; kStorage for the disk's folder; kResource.
  static Result<std::unique_ptr<PromptStore>> open(const PromptStoreOptions& options, const std::string& fingerprint,
                                                   const graph::PageLayout& layout, const graph::PagePool& pool);
  ~PromptStore();
  PromptStore(const PromptStore&) = delete;

  // The longest known prefix, in whole blocks.
  std::shared_ptr<Call> find(std::span<const int32_t> tokens);
  // What was found, from a block on, into pages of the pool, one for each block: as many as were
  // found. REQUIRES: `found` is done, and was not loaded before.
  std::shared_ptr<Call> load(std::shared_ptr<Call> found, int64_t first_block, std::vector<int64_t> pages);
  // The tokens' blocks, which are in these pages.
  std::shared_ptr<Call> save(std::span<const int32_t> tokens, std::vector<int64_t> pages);

  // Any thread.
  graph::BlockStoreCounters counters() const { return store_->counters(); }

 private:
  using Work = std::function<void(Call&)>;

  PromptStore(std::unique_ptr<graph::BlockStore> store, std::shared_ptr<graph::DeviceBlocks> pages);
  std::shared_ptr<Call> queue(Work work);
  void run();

  const std::unique_ptr<graph::BlockStore> store_;
  const std::shared_ptr<graph::DeviceBlocks> pages_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::deque<std::pair<std::shared_ptr<Call>, Work>> queue_;
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace hetero::qwen3
