#include "qwen3/model/prompt_store.h"

#include <filesystem>
#include <system_error>
#include <utility>

namespace hetero::qwen3 {
namespace {

constexpr uint64_t kDefaultMemory = uint64_t{512} << 20;

Status usage(std::string message) { return Status(ErrorClass::kUsage, std::move(message)); }

graph::KvSpec spec_of(const std::string& fingerprint, const graph::PageLayout& layout) {
  graph::KvSpec spec;
  spec.model = "qwen3";
  spec.revision = fingerprint;
  spec.dtype = backend::to_string(layout.element);
  spec.element_bytes = backend::cache_element_bytes(layout.element);
  spec.layers = layout.layers;
  spec.kv_heads = layout.kv_heads;
  spec.head_size = layout.head_size;
  spec.block_tokens = layout.page_tokens;
  return spec;
}

// A page's keys of a layer are neighbours, and so are its values.
std::shared_ptr<graph::DeviceBlocks> blocks_of(const graph::PageLayout& layout, const graph::PagePool& pool) {
  auto blocks = std::make_shared<graph::DeviceBlocks>();
  for (int64_t layer = 0; layer < layout.layers; ++layer) {
    blocks->layers.push_back({pool.base() + layout.keys(layer), pool.base() + layout.values(layer)});
  }
  blocks->blocks = pool.capacity();
  blocks->block_stride = static_cast<int64_t>(pool.page_bytes());
  blocks->row_bytes = blocks->row_stride = layout.plane();
  return blocks;
}

}  // namespace

// ---- calls

bool PromptStore::Call::is_done() const {
  const State state = state_.load(std::memory_order_acquire);
  return state == State::kEnded || (state == State::kBegun && request_->is_done());
}

int64_t PromptStore::Call::tokens() const {
  return state_.load(std::memory_order_acquire) == State::kBegun ? request_->wait() : tokens_;
}

void PromptStore::Call::cancel() {
  cancelled_.store(true);
  if (state_.load() == State::kBegun) request_->cancel();
}

// ---- the store

Result<std::unique_ptr<PromptStore>> PromptStore::open(const PromptStoreOptions& options,
                                                       const std::string& fingerprint, const graph::PageLayout& layout,
                                                       const graph::PagePool& pool) {
  if (backend::has_scales(layout.element)) {
    return usage("a store of keys and values has no place for the scales of " +
                 std::string(backend::to_string(layout.element)) + "; choose another dtype of the cache");
  }
  if (options.disk_folder.empty() != (options.disk_bytes == 0)) {
    return usage("a store of keys and values on a disk needs a folder and a size");
  }
  graph::BlockStoreOptions settings;
  settings.spec = spec_of(fingerprint, layout);
  settings.host_bytes = static_cast<int64_t>(options.memory_bytes != 0 ? options.memory_bytes : kDefaultMemory);
  if (!options.disk_folder.empty()) {
    settings.disk_folder = options.disk_folder + "/" + to_string(settings.spec.fingerprint());
    std::error_code error;
    std::filesystem::create_directories(options.disk_folder, error);
    if (error) return Status(ErrorClass::kStorage, options.disk_folder + " cannot be made: " + error.message());
  }
  settings.disk_bytes = static_cast<int64_t>(options.disk_bytes);
  settings.remote = options.remote;
  Result<std::unique_ptr<graph::BlockStore>> store = graph::BlockStore::open(settings);
  if (!store.ok()) return store.status();
  std::shared_ptr<graph::DeviceBlocks> blocks = blocks_of(layout, pool);
  if (Status status = blocks->check(store.value()->geometry()); !status.ok()) return status;
  return std::unique_ptr<PromptStore>(new PromptStore(std::move(store.value()), std::move(blocks)));
}

PromptStore::PromptStore(std::unique_ptr<graph::BlockStore> store, std::shared_ptr<graph::DeviceBlocks> pages)
    : store_(std::move(store)), pages_(std::move(pages)), thread_([this] { run(); }) {}

PromptStore::~PromptStore() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  wake_.notify_all();
  thread_.join();
  store_->wait_idle();
}

std::shared_ptr<PromptStore::Call> PromptStore::find(std::span<const int32_t> tokens) {
  return queue([this, tokens = std::vector<int32_t>(tokens.begin(), tokens.end())](Call& call) {
    call.match_ = store_->match(tokens);
    call.tokens_ = call.match_.tokens();
  });
}

std::shared_ptr<PromptStore::Call> PromptStore::load(std::shared_ptr<Call> found, int64_t first_block,
                                                     std::vector<int64_t> pages) {
  return queue([this, found = std::move(found), first_block, pages = std::move(pages)](Call& call) {
    // The request holds its blocks itself.
    const graph::BlockMatch match = std::move(found->match_);
    Result<std::shared_ptr<graph::BlockRequest>> request =
        store_->get(match, pages_, pages, {.first_block = first_block});
    if (request.ok()) call.request_ = std::move(request.value());
  });
}

std::shared_ptr<PromptStore::Call> PromptStore::save(std::span<const int32_t> tokens, std::vector<int64_t> pages) {
  return queue(
      [this, tokens = std::vector<int32_t>(tokens.begin(), tokens.end()), pages = std::move(pages)](Call& call) {
        Result<std::shared_ptr<graph::BlockRequest>> request = store_->put(tokens, pages_, pages);
        if (request.ok()) call.request_ = std::move(request.value());
      });
}

std::shared_ptr<PromptStore::Call> PromptStore::queue(Work work) {
  auto call = std::make_shared<Call>();
  {
    const std::lock_guard lock(mutex_);
    queue_.emplace_back(call, std::move(work));
  }
  wake_.notify_all();
  return call;
}

void PromptStore::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stops_ || !queue_.empty(); });
    if (queue_.empty()) return;  // what was saved before the end is saved
    auto [call, work] = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    if (!call->cancelled_.load()) work(*call);
    const bool begun = call->request_ != nullptr;
    call->state_.store(begun ? Call::State::kBegun : Call::State::kEnded);
    // Cancelled meanwhile, when there was no request yet.
    if (begun && call->cancelled_.load()) call->request_->cancel();
    work = nullptr;
    call.reset();
    lock.lock();
  }
}

}  // namespace hetero::qwen3
