#include "qwen3/model/engine.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <limits>
#include <thread>
#include <utility>

#include "backend/memory/page_memory.h"
#include "ops/program/static_call.h"
#include "qwen3/checkpoint/fingerprint.h"
#include "qwen3/checkpoint/rope.h"
#include "qwen3/model/forward.h"

namespace hetero::qwen3 {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

Status usage(std::string message) { return Status(ErrorClass::kUsage, std::move(message)); }

Result<backend::CacheElement> cache_element(const std::string& wanted, const std::string& dtype) {
  if (!wanted.empty()) {
    if (const auto element = backend::cache_element_of(wanted)) return *element;
    return usage("keys and values are in float32, bfloat16, float16, int8 or float8_e4m3, not in '" + wanted + "'");
  }
  if (const auto element = element_of(dtype)) return backend::cache_element(*element);
  return usage("keys and values cannot be in " + dtype);
}

template <typename T>
TensorView view_of(std::vector<T>& numbers, std::vector<int64_t> sizes = {}) {
  if (sizes.empty()) sizes = {static_cast<int64_t>(numbers.size())};
  return TensorView::row_major(numbers.data(), sizeof(T) == 8 ? "i64" : "i32", std::move(sizes));
}

// Few different widths of the block table, since the program is planned for each.
int64_t rounded_width(int64_t blocks) {
  constexpr uint64_t kLeast = 8;
  return static_cast<int64_t>(std::bit_ceil(std::max<uint64_t>(kLeast, static_cast<uint64_t>(blocks))));
}

}  // namespace

const char* to_string(Finish finish) {
  switch (finish) {
    case Finish::kNone:
      return "none";
    case Finish::kStop:
      return "stop";
    case Finish::kLength:
      return "length";
    case Finish::kTimeout:
      return "timeout";
    case Finish::kCancelled:
      return "cancelled";
    case Finish::kError:
      return "error";
  }
  return "";
}

struct Engine::Request {
  uint64_t id = 0;
  std::vector<int32_t> tokens;  // of the prompt, then those that were generated
  size_t prompt = 0;            // tokens of it
  RequestOptions options;
  SamplingSequence sequence;
  Listener listener;
  graph::SequenceId pages = -1;  // -1 before it begins
  Clock::time_point deadline = Clock::time_point::max();
  bool ended = false;
  bool is_wrong = false;  // ended with an error

  // What is known of its prompt in the store: nothing; it is looked for; it is loaded, and the
  // pages are acquired meanwhile; all.
  enum class Stage : uint8_t { kNew, kFinding, kLoading, kReady } stage = Stage::kNew;
  std::shared_ptr<PromptStore::Call> call{};  // of kFinding and kLoading
  Clock::time_point asked{};
  int64_t saved = 0;  // tokens that the store has, or was given

  int64_t count() const { return std::ssize(tokens); }
  int64_t generated() const { return count() - static_cast<int64_t>(prompt); }
};

// Tokens of a request that are in a step.
struct Engine::Part {
  Request* request;
  int64_t first;
  int64_t count;
  bool wants_logits() const { return first + count == request->count(); }
};

struct Engine::Hold {
  graph::SequenceId pages;  // acquired
  std::shared_ptr<PromptStore::Call> call;
  Clock::time_point begin = Clock::now();
};

struct Engine::Batch {
  std::vector<Part> parts;
  std::vector<int64_t> tokens, positions, slots, rows;
  std::vector<int32_t> starts, lengths, table;
  int64_t width = 0;
  std::vector<float> inverse;  // [tokens, head_dim / 2], where they depend on the length

  int64_t total() const {
    int64_t sum = 0;
    for (const Part& part : parts) sum += part.count;
    return sum;
  }
};

Engine::Engine(const Qwen3Config& config, EngineOptions options)
    : config_(config),
      options_(std::move(options)),
      context_(context_length(config)),
      end_tokens_(config.eos_token_ids.begin(), config.eos_token_ids.end()),
      mover_(std::make_unique<graph::HostMover>()),
      sampler_(config.vocab_size),
      batch_(std::make_unique<Batch>()) {}

Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::make(const Qwen3Config& config, std::shared_ptr<const Checkpoint> checkpoint,
                                             EngineOptions options) {
  if (options.page_tokens < 1 || options.step_tokens < 1 || options.most_sequences < 1) {
    return usage("page_tokens, step_tokens and most_sequences are at least 1");
  }
  options.step_tokens = std::max(options.step_tokens, options.most_sequences);
  std::unique_ptr<Engine> engine(new Engine(config, std::move(options)));
  if (Status status = engine->start(std::move(checkpoint)); !status.ok()) return status;
  return engine;
}

Status Engine::start(std::shared_ptr<const Checkpoint> checkpoint) {
  const Result<std::string> dtype = compute_dtype(*checkpoint);
  if (!dtype.ok()) return dtype.status();
  if (Status status = make_cache(dtype.value()); !status.ok()) return status;
  if (options_.store.is_on()) {
    if (Status status = open_store(*checkpoint); !status.ok()) return status;
  }
  Result<std::shared_ptr<const Weights>> weights = Weights::make(config_, std::move(checkpoint), options_.weights);
  if (!weights.ok()) return weights.status();
  weight_bytes_ = weights.value()->bytes();
  ForwardOptions forward{.pages = layout_,
                         .page_count = cache_->pages().capacity(),
                         .most_tokens = options_.step_tokens,
                         .most_sequences = options_.most_sequences,
                         .plans_for_most = backend::has_accelerator(process_devices()),
                         .accelerator_bytes = options_.accelerator_bytes};
  Result<std::shared_ptr<Model>> model = build_forward(config_, std::move(weights.value()), forward);
  if (!model.ok()) return model.status();
  // As configured: fusion, placement, and the machine that is simulated.
  graph::PlanOptions plan = ops::static_plan_options();
  const bool limited = options_.accelerator_bytes != 0 && plan.machine.has_accelerator();
  if (limited) plan.machine[plan.searched].bytes = options_.accelerator_bytes;
  GraphExecutor::Options settings = ops::executor_options(std::move(plan));
  settings.slots = 1;
  if (limited) settings.accelerator_bytes = options_.accelerator_bytes;
  Result<std::unique_ptr<GraphExecutor>> executor = GraphExecutor::Init(model.value(), std::move(settings));
  if (!executor.ok()) return executor.status();
  executor_ = std::move(executor.value());
  return Status();
}

Status Engine::make_cache(const std::string& dtype) {
  const Result<backend::CacheElement> element = cache_element(options_.cache_dtype, dtype);
  if (!element.ok()) return element.status();
  layout_ = {.element = element.value(),
             .page_tokens = options_.page_tokens,
             .layers = config_.num_hidden_layers,
             .kv_heads = config_.num_key_value_heads,
             .head_size = config_.head_dim};
  graph::KvOptions options;
  options.layout = layout_;
  options.most_tokens = context_;
  options.offload = options_.offload;
  std::vector<std::unique_ptr<backend::PageMemory>> memories;
  for (const uint64_t bytes : {options_.cache_bytes, options_.offload_bytes}) {
    if (bytes == 0) continue;
    Result<std::unique_ptr<backend::PageMemory>> memory = backend::host_page_memory(bytes);
    if (!memory.ok()) return memory.status();
    memories.push_back(std::move(memory.value()));
  }
  Result<std::unique_ptr<graph::KvCache>> cache =
      graph::KvCache::make(std::move(options), std::move(memories), *mover_);
  if (!cache.ok()) return cache.status();
  cache_ = std::move(cache.value());
  return Status();
}

Status Engine::open_store(const Checkpoint& checkpoint) {
  if (depends_on_length(config_)) {
    return usage(
        "the rotary frequencies of this model depend on a prompt's length, so a store of keys and values has no use");
  }
  const WeightOptions& weights = options_.weights;
  std::string fingerprint = fingerprint_of(config_, checkpoint);
  if (weights.bits != 0) {
    fingerprint.append(" in ").append(std::to_string(weights.bits)).append(" bits, groups of ");
    fingerprint.append(std::to_string(weights.group)).append(weights.symmetric ? "" : ", asymmetric");
  }
  Result<std::unique_ptr<PromptStore>> store =
      PromptStore::open(options_.store, fingerprint, layout_, cache_->pages().pool(0));
  if (!store.ok()) return store.status();
  store_ = std::move(store.value());
  return Status();
}

// ---- requests

Result<uint64_t> Engine::submit(std::span<const int32_t> prompt, RequestOptions options, Listener listener) {
  if (prompt.empty()) return usage("a prompt has at least one token");
  for (const int32_t id : prompt) {
    if (id < 0 || id >= config_.vocab_size) {
      return usage("the prompt has token " + std::to_string(id) + ", and the vocabulary has " +
                   std::to_string(config_.vocab_size));
    }
  }
  if (options.max_tokens < 1) return usage("max_tokens is at least 1");
  if (!(options.timeout >= 0)) return usage("a timeout cannot be negative");
  const auto length = static_cast<int64_t>(prompt.size());
  if (length >= context_) {
    return usage("the prompt has " + std::to_string(length) + " tokens, and the context has room for " +
                 std::to_string(context_) + " with an answer");
  }
  const int64_t room = cache_->pages().capacity() * options_.page_tokens;
  if (length >= room) {
    return usage("the prompt has " + std::to_string(length) + " tokens, and all pages have room for " +
                 std::to_string(room) + "; give the cache more bytes");
  }
  Result<SamplingSequence> sequence = SamplingSequence::make(options.sampling, config_.vocab_size);
  if (!sequence.ok()) return sequence.status();
  if (Status status = sequence.value().add_prompt(prompt); !status.ok()) return status;
  if (options.stop_ids.empty() && !options.ignore_stop) options.stop_ids = end_tokens_;
  const std::lock_guard lock(mutex_);
  if (waiting_ >= options_.capacity) {
    return Status(ErrorClass::kResource,
                  "there are " + std::to_string(waiting_) + " requests already, as many as may wait; try again later");
  }
  Clock::time_point deadline = Clock::time_point::max();
  constexpr double kYear = 365.0 * 24 * 3600;
  if (options.timeout > 0 && options.timeout < kYear) {
    deadline =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.timeout));
  }
  ++waiting_;
  const uint64_t id = next_id_++;
  submitted_.push_back(std::unique_ptr<Request>(new Request{.id = id,
                                                            .tokens = {prompt.begin(), prompt.end()},
                                                            .prompt = prompt.size(),
                                                            .options = std::move(options),
                                                            .sequence = std::move(sequence.value()),
                                                            .listener = std::move(listener),
                                                            .deadline = deadline}));
  return id;
}

void Engine::cancel(uint64_t request) {
  const std::lock_guard lock(mutex_);
  cancelled_.push_back(request);
}

Engine::Counters Engine::counters() const {
  Counters counters;
  {
    const std::lock_guard lock(mutex_);
    counters = published_;
  }
  if (store_ != nullptr) counters.stored_blocks = store_->counters().stored;
  return counters;
}

bool Engine::busy() const {
  const std::lock_guard lock(mutex_);
  return waiting_ != 0;
}

// Moves what was submitted and cancelled by others to this thread, and ends what is late.
void Engine::take_submitted() {
  std::vector<uint64_t> cancelled;
  {
    const std::lock_guard lock(mutex_);
    for (auto& request : submitted_) running_.push_back(std::move(request));
    submitted_.clear();
    cancelled.swap(cancelled_);
  }
  const Clock::time_point now = Clock::now();
  for (const auto& request : running_) {
    if (std::ranges::find(cancelled, request->id) != cancelled.end()) finish(*request, Finish::kCancelled);
    if (request->deadline <= now) finish(*request, Finish::kTimeout);
  }
  remove_ended();
}

void Engine::finish(Request& request, Finish how, Status status) {
  if (request.ended) return;
  request.ended = true;
  request.is_wrong = how == Finish::kError;
  if (request.listener) (void)request.listener({.finish = how, .status = std::move(status)});
}

void Engine::remove_ended() {
  size_t ended = 0;
  std::erase_if(running_, [&](const std::unique_ptr<Request>& request) {
    if (!request->ended) return false;
    leave_pages(*request);
    ++ended;
    return true;
  });
  const std::lock_guard lock(mutex_);
  waiting_ -= ended;
}

// ---- a step

Status Engine::step() {
  const Clock::time_point begin = Clock::now();
  const double ran = counters_.run_seconds;
  settle_store();
  take_submitted();
  Batch& batch = *batch_;
  choose(batch);
  const bool waits = batch.parts.empty() && awaits_store();
  if (waits) wait_for_store();
  Status status;
  if (!batch.parts.empty()) {
    status = fill(batch);
    if (status.ok()) status = run(batch);
    for (const Part& part : batch.parts) (void)cache_->release(part.request->pages, 0);
    if (status.ok()) {
      deliver(batch);
    } else {
      for (const Part& part : batch.parts) finish(*part.request, Finish::kError, status);
    }
  }
  if (!waits) ++counters_.steps;
  counters_.pages_in_use = cache_->pages().used();
  counters_.host_seconds += seconds_since(begin) - (counters_.run_seconds - ran);
  {
    const std::lock_guard lock(mutex_);
    published_ = counters_;
  }
  remove_ended();
  return status;
}

// Those that generate come first, so that nobody waits for another one's prompt.
void Engine::choose(Batch& batch) {
  batch.parts.clear();
  int64_t left = options_.step_tokens;
  for (const bool generating : {true, false}) {
    for (size_t i = 0; i < running_.size() && left > 0; ++i) {
      Request& request = *running_[i];
      const bool generates = request.pages >= 0 && !cache_->preempted(request.pages) && request.generated() > 0;
      if (generates != generating || request.ended) continue;
      if (std::ssize(batch.parts) == options_.most_sequences) return;
      if (!begin(request)) return;
      if (!restore(request)) continue;
      const int64_t first = cache_->written_length(request.pages);
      const int64_t count = std::min(left, request.count() - first);
      if (!extend(request, first + count)) return;
      batch.parts.push_back({&request, first, count});
      left -= count;
    }
  }
}

// Whether the request has a sequence of pages, with at least one token that is still to be
// computed.
bool Engine::begin(Request& request) {
  if (request.pages < 0) {
    // Keys of a prompt of another length may be rotated otherwise.
    const size_t known = depends_on_length(config_) ? 0 : request.tokens.size() - 1;
    request.pages = cache_->allocate(std::span(request.tokens).first(known));
    counters_.cached_tokens += cache_->written_length(request.pages);
    return true;
  }
  if (!cache_->preempted(request.pages)) return true;
  while (true) {
    const Result<int64_t> again = cache_->resume(request.pages);
    if (again.ok()) return true;
    if (again.status().error_class() != ErrorClass::kResource || awaits_hold() || !preempt_for(request)) break;
  }
  return false;
}

// Whether the first tokens, up to `end`, have pages that are resident; others may have to leave.
bool Engine::extend(Request& request, int64_t end) {
  while (true) {
    const int64_t length = cache_->length(request.pages);
    Status status;
    if (end > length) {
      const auto more =
          std::span(request.tokens).subspan(static_cast<size_t>(length), static_cast<size_t>(end - length));
      status = cache_->extend(request.pages, more);
    }
    if (status.ok()) status = cache_->acquire(request.pages, 0);
    if (status.ok()) return true;
    const bool lacks_room = status.error_class() == ErrorClass::kResource;
    if (lacks_room && awaits_hold()) return false;
    if (lacks_room && preempt_for(request)) continue;
    // Alone it would have all pages.
    const bool alone =
        holds_.empty() && std::ranges::none_of(running_, [&](const auto& other) {
          return other.get() != &request && !other->ended && other->pages >= 0 && !cache_->preempted(other->pages);
        });
    if (alone || !lacks_room) finish(request, Finish::kError, status);
    return false;
  }
}

// Takes the pages of the last request behind this one that has any and is not in the step.
bool Engine::preempt_for(const Request& request) {
  for (size_t i = running_.size(); i-- > 0;) {
    Request& other = *running_[i];
    if (&other == &request) return false;
    if (other.ended || other.pages < 0 || other.stage == Request::Stage::kLoading || cache_->preempted(other.pages))
      continue;
    const bool in_step = std::ranges::any_of(batch_->parts, [&](const Part& part) { return part.request == &other; });
    if (in_step || !cache_->preempt(other.pages).ok()) continue;
    ++counters_.preempted;
    return true;
  }
  return false;
}

// ---- the store

namespace {

// Prompts that are looked for or loaded at once; each has all its pages meanwhile.
constexpr int64_t kMostLoads = 8;
// Pages that are being saved come back soon; nobody is preempted for so long.
constexpr double kHoldSeconds = 1;
constexpr double kWaitSeconds = 2e-3;
constexpr std::chrono::microseconds kPause{50};

}  // namespace

// Ends what the store is done with, so that its pages can be used: whoever is first in the order
// may need them.
void Engine::settle_store() {
  std::erase_if(holds_, [&](const Hold& hold) {
    if (!hold.call->is_done()) return false;
    (void)cache_->release(hold.pages, 0);
    (void)cache_->free(hold.pages);
    return true;
  });
  for (const auto& request : running_) {
    if (request->stage != Request::Stage::kLoading) continue;
    if (request->call->is_done()) {
      finish_load(*request);
    } else if (is_late(*request)) {
      leave_pages(*request);
      request->stage = Request::Stage::kReady;
    }
  }
}

bool Engine::is_late(const Request& request) const {
  return seconds_since(request.asked) >= options_.store.most_seconds;
}

// Whether the request can be computed on: what the store has of its prompt is in its pages.
bool Engine::restore(Request& request) {
  using enum Request::Stage;
  if (store_ == nullptr) return true;
  if (request.stage == kNew && find_stored(request)) request.stage = kReady;
  if (request.stage != kFinding) return request.stage == kReady;
  if (is_late(request)) {
    request.call->cancel();
    request.call.reset();
    request.stage = kReady;
    return true;
  }
  return request.call->is_done() && load_stored(request);
}

// Looks for its prompt, up to the token that is computed in any case. True if there is nothing to
// look for.
bool Engine::find_stored(Request& request) {
  const int64_t page = options_.page_tokens;
  const int64_t known = request.count() - 1;
  if (known / page <= cache_->written_length(request.pages) / page) return true;
  const auto loading = std::ranges::count_if(running_, [](const auto& other) { return other->call != nullptr; });
  if (loading >= kMostLoads) return false;
  request.call = store_->find(std::span(request.tokens).first(static_cast<size_t>(known)));
  request.asked = Clock::now();
  request.stage = Request::Stage::kFinding;
  return false;
}

// Begins to load what was found. True if there is nothing to load.
bool Engine::load_stored(Request& request) {
  const int64_t found = request.call->tokens();
  const int64_t first = cache_->written_length(request.pages) / options_.page_tokens;
  request.saved = found;
  if (found / options_.page_tokens > first) {
    if (!extend(request, found)) return false;
    const Result<std::span<const int32_t>> table = cache_->table(request.pages, 0);
    if (table.ok()) {
      const std::span<const int32_t> pages = table.value().subspan(static_cast<size_t>(first));
      request.call = store_->load(std::move(request.call), first, {pages.begin(), pages.end()});
      request.stage = Request::Stage::kLoading;
      return false;
    }
    (void)cache_->release(request.pages, 0);
  }
  request.call.reset();
  request.stage = Request::Stage::kReady;
  return true;
}

void Engine::finish_load(Request& request) {
  const int64_t before = cache_->written_length(request.pages);
  const int64_t loaded = std::max(before, request.call->tokens());
  request.call.reset();
  request.stage = Request::Stage::kReady;
  request.saved = loaded;
  Status status = cache_->release(request.pages, 0);
  if (status.ok()) status = cache_->truncate(request.pages, loaded);
  if (status.ok()) status = cache_->written(request.pages, loaded);
  if (!status.ok()) return finish(request, Finish::kError, std::move(status));
  counters_.loaded_tokens += loaded - before;
}

// Gives the store the whole blocks that it lacks. A sequence of their own holds the pages
// meanwhile.
void Engine::save(Request& request) {
  if (store_ == nullptr || request.is_wrong || request.pages < 0 || cache_->preempted(request.pages)) return;
  const int64_t written = cache_->written_length(request.pages);
  const int64_t whole = written - written % options_.page_tokens;
  if (whole <= request.saved) return;
  const graph::SequenceId hold = cache_->allocate(std::span(request.tokens).first(static_cast<size_t>(whole)));
  const int64_t length = cache_->length(hold);
  if (length <= request.saved || !cache_->acquire(hold, 0).ok()) {
    (void)cache_->free(hold);
    return;
  }
  const Result<std::span<const int32_t>> table = cache_->table(hold, 0);
  holds_.push_back({hold, store_->save(std::span(request.tokens).first(static_cast<size_t>(length)),
                                       {table.value().begin(), table.value().end()})});
  request.saved = length;
}

// Its sequence ends, at once or when the store does not write to its pages any more.
void Engine::leave_pages(Request& request) {
  if (request.call != nullptr) request.call->cancel();
  if (request.stage == Request::Stage::kLoading) {
    holds_.push_back({request.pages, std::move(request.call)});
  } else if (request.pages >= 0) {
    save(request);
    (void)cache_->free(request.pages);
  }
  request.pages = -1;
}

bool Engine::awaits_hold() const {
  return std::ranges::any_of(holds_, [](const Hold& hold) { return seconds_since(hold.begin) < kHoldSeconds; });
}

bool Engine::awaits_store() const {
  return (!holds_.empty() && !running_.empty()) ||
         std::ranges::any_of(running_, [](const auto& request) { return request->call != nullptr; });
}

// Until something is done, or for a moment: requests may come and be cancelled.
void Engine::wait_for_store() const {
  const Clock::time_point begin = Clock::now();
  const auto is_done = [](const auto& call) { return call != nullptr && call->is_done(); };
  do {
    std::this_thread::sleep_for(kPause);
    if (std::ranges::any_of(holds_, is_done, &Hold::call)) return;
    if (std::ranges::any_of(running_, [&](const auto& request) { return is_done(request->call); })) return;
  } while (seconds_since(begin) < kWaitSeconds);
}

// ---- running

Status Engine::fill(Batch& batch) {
  for (auto* list : {&batch.tokens, &batch.positions, &batch.slots, &batch.rows}) list->clear();
  batch.starts.assign(1, 0);
  batch.lengths.clear();
  batch.inverse.clear();
  std::vector<graph::SequenceId> ids;
  int64_t longest = 1;
  for (const Part& part : batch.parts) {
    const int64_t end = part.first + part.count;
    const size_t begin = batch.tokens.size();
    for (int64_t i = part.first; i < end; ++i) {
      batch.tokens.push_back(part.request->tokens[static_cast<size_t>(i)]);
      batch.positions.push_back(i);
    }
    batch.slots.resize(batch.tokens.size());
    const Status status = cache_->slots(part.request->pages, 0, part.first, std::span(batch.slots).subspan(begin));
    if (!status.ok()) return status;
    batch.starts.push_back(static_cast<int32_t>(batch.tokens.size()));
    batch.lengths.push_back(static_cast<int32_t>(end));
    if (part.wants_logits()) batch.rows.push_back(std::ssize(batch.tokens) - 1);
    if (depends_on_length(config_)) fill_frequencies(part, batch.inverse);
    // It has pages for tokens beyond this part if it was preempted, and is computed again in parts.
    longest = std::max(longest, cache_->length(part.request->pages));
    ids.push_back(part.request->pages);
  }
  // The program computes logits of one token at least.
  if (batch.rows.empty()) batch.rows.push_back(0);
  batch.width = rounded_width((longest + options_.page_tokens - 1) / options_.page_tokens);
  batch.table.resize(ids.size() * static_cast<size_t>(batch.width));
  return cache_->fill_tables(ids, 0, batch.table.data(), batch.width);
}

// Each token has those of the sequence's length when it came: all of a prompt, or up to the token.
// So they do not depend on how a prompt is divided, nor on preemption.
void Engine::fill_frequencies(const Part& part, std::vector<float>& inverse) const {
  std::vector<float> frequencies;
  int64_t last = -1;
  for (int64_t i = part.first; i < part.first + part.count; ++i) {
    const int64_t length =
        std::max({i + 1, static_cast<int64_t>(part.request->prompt), config_.max_position_embeddings});
    if (length != last) frequencies = rotary_frequencies(config_, length).inverse;
    last = length;
    inverse.insert(inverse.end(), frequencies.begin(), frequencies.end());
  }
}

// In the order of the program's dimensions; those with one size only are none.
std::vector<int64_t> Engine::sizes_of(const Batch& batch) const {
  std::vector<int64_t> sizes;
  for (const graph::SizeVariable& dimension : executor_->dimensions()) {
    if (dimension.name == "tokens") sizes.push_back(std::ssize(batch.tokens));
    if (dimension.name == "sequences") sizes.push_back(std::ssize(batch.parts));
    if (dimension.name == "width") sizes.push_back(batch.width);
    if (dimension.name == "rows") sizes.push_back(std::ssize(batch.rows));
  }
  return sizes;
}

// As build_forward declares them.
TensorView Engine::pages() const {
  const int64_t count = cache_->pages().capacity();
  std::vector<int64_t> sizes{count, 2 * layout_.layers, layout_.kv_heads, layout_.page_tokens, layout_.head_size};
  if (backend::has_scales(layout_.element)) sizes = {count, static_cast<int64_t>(layout_.bytes())};
  return TensorView::row_major(cache_->pages().pool(0).base(), page_dtype(layout_.element), std::move(sizes));
}

// The program writes logits here itself where it makes them on the host.
Status Engine::offer_logits(int64_t rows) {
  logits_.resize(static_cast<size_t>(rows * config_.vocab_size));
  logits_view_ = TensorView::row_major(logits_.data(), "f32", {rows, config_.vocab_size});
  const Result<bool> lent = executor_->OfferOutput("logits", logits_view_);
  logits_lent_ = lent.ok() && lent.value();
  return lent.status();
}

Status Engine::run(Batch& batch) {
  const Clock::time_point begin = Clock::now();
  GraphExecutor& executor = *executor_;
  const auto sequences = static_cast<int64_t>(batch.parts.size());
  const std::vector<int64_t> sizes = sizes_of(batch);
  Status status;
  if (executor.sizes() != sizes || !has_pages_) {
    status = executor.SetSizes(sizes);
    has_pages_ = true;
    if (status.ok()) status = executor.SetStateZeroCopy("pages", pages());
    if (status.ok()) status = offer_logits(std::ssize(batch.rows));
  }
  const auto set = [&](const char* name, const TensorView& view) {
    if (status.ok()) status = executor.SetInput(name, view);
  };
  set("tokens", view_of(batch.tokens));
  set("positions", view_of(batch.positions));
  set("slots", view_of(batch.slots));
  set("starts", view_of(batch.starts));
  set("lengths", view_of(batch.lengths));
  set("table", view_of(batch.table, {sequences, batch.width}));
  set("rows", view_of(batch.rows));
  if (!batch.inverse.empty()) {
    set("inverse",
        TensorView::row_major(batch.inverse.data(), "f32", {std::ssize(batch.tokens), config_.head_dim / 2}));
  }
  if (status.ok()) status = executor.Run();
  if (status.ok()) status = executor.Wait();
  if (status.ok() && !logits_lent_) status = executor.GetOutput("logits", logits_view_);
  counters_.run_seconds += seconds_since(begin);
  return status;
}

// Chooses a token for each sequence whose tokens were all computed.
void Engine::deliver(Batch& batch) {
  const float* row = logits_.data();
  for (const Part& part : batch.parts) {
    Request& request = *part.request;
    Status status = cache_->written(request.pages, part.first + part.count);
    const bool was_prompt = part.first < static_cast<int64_t>(request.prompt);
    if (was_prompt) counters_.prompt_tokens += part.count;
    if (!status.ok()) {
      finish(request, Finish::kError, std::move(status));
      continue;
    }
    if (!part.wants_logits()) continue;
    if (was_prompt) save(request);
    const Result<SampledToken> token =
        sampler_.sample(request.sequence, std::span(row, static_cast<size_t>(config_.vocab_size)));
    row += config_.vocab_size;
    if (!token.ok()) {
      finish(request, Finish::kError, token.status());
      continue;
    }
    ++counters_.generated_tokens;
    request.tokens.push_back(token.value().id);
    const bool stops = std::ranges::find(request.options.stop_ids, token.value().id) != request.options.stop_ids.end();
    const bool full = request.generated() == request.options.max_tokens || request.count() == context_;
    const bool goes_on = !request.listener || request.listener({.token = &token.value()});
    if (stops || !goes_on) {
      finish(request, Finish::kStop);
    } else if (full) {
      finish(request, Finish::kLength);
    }
  }
}

}  // namespace hetero::qwen3
