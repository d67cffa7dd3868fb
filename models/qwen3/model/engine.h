// Engine: generates tokens for many requests with one model, step by step.
//
// Requests join and leave while it runs (continuous batching). Each step takes one token of every
// sequence that is being generated, then parts of waiting prompts up to `step_tokens` (chunked
// prefill), and runs them as one program (forward.h). Keys and values are in a KvCache: prompts
// that begin alike share pages, and if there are no more pages, the request that came last is
// preempted and resumed when there is room.
//
// With a prompt store (prompt_store.h), a prompt that begins is looked for there, and what the
// pages lack is loaded; other requests run meanwhile. What is computed is saved: a prompt when it
// is complete, an answer when it ends. Pages that are being saved stay until that is done.
//
//   auto engine = Engine::make(config, checkpoint, {});
//   auto id = engine.value()->submit(prompt, {.max_tokens = 64}, [](const Event& event) {...});
//   while (engine.value()->busy()) status = engine.value()->step();
//
// What a request generates depends on its prompt and options, and not on other requests; as far as
// sums of a batch's products have the bits of single ones (kernels choose by the number of rows).
//
// Thread safety: submit() and cancel() from any thread; step() on one thread at a time.
// Ownership: the engine shares the checkpoint while its program uses it.

#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/base/status.h"
#include "graph/kv/kv_cache.h"
#include "graph/serve/graph_executor.h"
#include "qwen3/checkpoint/checkpoint.h"
#include "qwen3/checkpoint/config.h"
#include "qwen3/checkpoint/weights.h"
#include "qwen3/model/prompt_store.h"
#include "qwen3/sampling/sampler.h"

namespace hetero::qwen3 {

struct EngineOptions {
  WeightOptions weights;
  // Of pages: "int8", "float8_e4m3" and such; empty: that of the weights.
  std::string cache_dtype;
  uint64_t cache_bytes = uint64_t{1} << 30;  // pages of keys and values
  uint64_t offload_bytes = 0;                // for pages that leave; 0: computed again
  std::string offload = "none";              // OffloadStrategy
  int64_t page_tokens = 16;
  int64_t step_tokens = 512;     // of a step; prompts are divided
  int64_t most_sequences = 256;  // that run at once
  size_t capacity = 1024;        // requests that wait
  // Of an accelerator's memory; 0: all that it has.
  uint64_t accelerator_bytes = 0;
  // For prompts beyond the pages and the process; off by default.
  PromptStoreOptions store{};
};

enum class Finish : uint8_t { kNone, kStop, kLength, kTimeout, kCancelled, kError };
const char* to_string(Finish finish);

// A token of a request, or its end.
struct Event {
  const SampledToken* token = nullptr;
  Finish finish = Finish::kNone;
  Status status{};  // of kError
};

struct RequestOptions {
  SamplingOptions sampling{.temperature = 0};
  int64_t max_tokens = 256;
  std::vector<int32_t> stop_ids{};  // end the request; the config's end tokens if empty
  bool ignore_stop = false;
  // Seconds from submit() until the request ends with what it has, and kTimeout; 0: none.
  double timeout = 0;
};

class Engine {
 public:
  // Called by step(). Returns whether the request goes on: a caller that has found a stop string
  // ends it so, with kStop.
  using Listener = std::function<bool(const Event&)>;

  struct Counters {
    int64_t steps = 0;
    int64_t prompt_tokens = 0;  // computed
    int64_t cached_tokens = 0;  // of prompts, found in pages
    int64_t loaded_tokens = 0;  // of prompts, from the store
    int64_t stored_blocks = 0;  // that the store did not have in host memory
    int64_t generated_tokens = 0;
    int64_t preempted = 0;
    int64_t pages_in_use = 0;  // after the last step
    double run_seconds = 0;    // of the program
    double host_seconds = 0;   // of everything else in steps
  };

  // Errors: those of Weights::make, build_forward and PromptStore::open; kUsage for a store of a
  // model whose rotary frequencies depend on the length; kResource if the memory does not suffice
  // for pages of a step.
  static Result<std::unique_ptr<Engine>> make(const Qwen3Config& config, std::shared_ptr<const Checkpoint> checkpoint,
                                              EngineOptions options);
  ~Engine();
  Engine(const Engine&) = delete;

  // Queues a request. Errors: kUsage for an empty prompt, an id that is not in the vocabulary, one
  // over the context or over all pages, or options out of range; kResource if `capacity` requests
  // wait.
  Result<uint64_t> submit(std::span<const int32_t> prompt, RequestOptions options, Listener listener);
  // Ends the request with kCancelled at the next step. Does nothing for one that has ended.
  void cancel(uint64_t request);

  // Whether there is anything to do.
  bool busy() const;
  // Runs one step. An error of the program ends all requests that were in it, with kError, and is
  // returned; the engine can be used on.
  Status step();

  // Of the config.
  const std::vector<int32_t>& end_tokens() const { return end_tokens_; }
  // As of the last step; any thread.
  Counters counters() const;
  // Whether there is a prompt store.
  bool has_store() const { return store_ != nullptr; }
  const graph::KvCache& cache() const { return *cache_; }
  const GraphExecutor& executor() const { return *executor_; }
  uint64_t weight_bytes() const { return weight_bytes_; }
  // Tokens that a sequence may have.
  int64_t context() const { return context_; }

 private:
  struct Request;
  struct Part;
  struct Batch;
  // A sequence whose pages the store reads or writes. No request has it.
  struct Hold;

  Engine(const Qwen3Config& config, EngineOptions options);
  Status start(std::shared_ptr<const Checkpoint> checkpoint);
  Status make_cache(const std::string& dtype);
  Status open_store(const Checkpoint& checkpoint);
  TensorView pages() const;
  void take_submitted();
  void choose(Batch& batch);
  bool begin(Request& request);
  bool extend(Request& request, int64_t tokens);
  bool preempt_for(const Request& request);
  bool restore(Request& request);
  bool find_stored(Request& request);
  bool load_stored(Request& request);
  void finish_load(Request& request);
  bool is_late(const Request& request) const;
  void save(Request& request);
  void leave_pages(Request& request);
  void settle_store();
  bool awaits_hold() const;
  bool awaits_store() const;
  void wait_for_store() const;
  Status fill(Batch& batch);
  void fill_frequencies(const Part& part, std::vector<float>& inverse) const;
  std::vector<int64_t> sizes_of(const Batch& batch) const;
  Status offer_logits(int64_t rows);
  Status run(Batch& batch);
  void deliver(Batch& batch);
  void finish(Request& request, Finish how, Status status = {});
  void remove_ended();

  const Qwen3Config config_;
  const EngineOptions options_;
  const int64_t context_;
  const std::vector<int32_t> end_tokens_;
  graph::PageLayout layout_;
  uint64_t weight_bytes_ = 0;
  std::unique_ptr<graph::PageMover> mover_;
  std::unique_ptr<graph::KvCache> cache_;
  std::unique_ptr<GraphExecutor> executor_;
  Sampler sampler_;
  std::unique_ptr<PromptStore> store_;  // null: none
  std::vector<Hold> holds_;
  std::vector<std::unique_ptr<Request>> running_;  // in the order of submission
  std::unique_ptr<Batch> batch_;                   // its memory is used again
  Counters counters_;
  bool has_pages_ = false;  // the executor was given the pages
  std::vector<float> logits_;
  TensorView logits_view_;
  bool logits_lent_ = false;

  mutable std::mutex mutex_;  // guards what follows
  std::deque<std::unique_ptr<Request>> submitted_;
  std::vector<uint64_t> cancelled_;
  size_t waiting_ = 0;  // requests that have not ended
  Counters published_;
  uint64_t next_id_ = 1;
};

}  // namespace hetero::qwen3
