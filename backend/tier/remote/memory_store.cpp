// Memory of this process as a store of values, with faults on demand. For tests.
//
// Tiers that are opened with the same name share their values, as long as the process lives. A tier
// without a name has values of its own.

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/tier/remote/value_store.h"

namespace hetero::backend {
namespace {

using std::chrono::steady_clock;
using Value = std::vector<std::byte>;

struct StoredValue {
  std::shared_ptr<const Value> bytes;
  bool expires = false;
  Deadline end;
};

struct Space {
  std::mutex mutex;
  std::unordered_map<std::string, StoredValue> values;  // by name
};

// Leaked on purpose: tiers may be closed while the process ends.
std::shared_ptr<Space> space_of(const std::string& name) {
  static std::mutex& mutex = *new std::mutex;
  static auto& spaces = *new std::map<std::string, std::shared_ptr<Space>>;
  if (name.empty()) return std::make_shared<Space>();
  std::lock_guard lock(mutex);
  std::shared_ptr<Space>& space = spaces[name];
  if (space == nullptr) space = std::make_shared<Space>();
  return space;
}

// True for each Nth call; never for 0.
class Every {
 public:
  explicit Every(int64_t number) : number_(number) {}
  // REQUIRES: the caller has the lock of the store.
  bool next() { return number_ > 0 && ++count_ % number_ == 0; }

 private:
  const int64_t number_;
  int64_t count_ = 0;
};

class MemoryStore final : public ValueStore {
 public:
  MemoryStore(const RemoteAddress& address, const RemoteOptions& options)
      : name_(address.to_string()),
        names_(std::string(options.prefix)
                   .append(":")
                   .append(hetero::backend::to_string(options.fingerprint))
                   .append(":")),
        lifetime_(options.lifetime_seconds),
        latency_(std::chrono::duration_cast<steady_clock::duration>(
            std::chrono::duration<double, std::milli>(address.faults.latency_ms))),
        space_(space_of(address.name)),
        fail_(address.faults.fail_every),
        hang_(address.faults.hang_every),
        torn_(address.faults.torn_every),
        drop_(address.faults.drop_every) {}

  Outcome match(std::span<const BlockKey> keys, Deadline deadline, int64_t* found) override {
    if (Outcome outcome = enter(deadline); !outcome.ok()) return outcome;
    for (const BlockKey& key : keys) {
      if (find(key) == nullptr) break;
      ++*found;
    }
    return {};
  }

  Outcome get(std::span<const BlockKey> keys, ValueSink& sink, Deadline deadline) override {
    if (Outcome outcome = enter(deadline); !outcome.ok()) return outcome;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (steady_clock::now() >= deadline) return timed_out();
      if (const std::shared_ptr<const Value> value = find(keys[i])) give(i, *value, sink);
    }
    return {};
  }

  Outcome put(std::span<const BlockKey> keys, ValueSource& source, Deadline deadline) override {
    if (Outcome outcome = enter(deadline); !outcome.ok()) return outcome;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (steady_clock::now() >= deadline) return timed_out();
      const EncodedBlock& value = source.value(i);
      auto bytes = std::make_shared<Value>();
      bytes->reserve(static_cast<size_t>(value.bytes));
      for (const iovec& part : value.parts) {
        const auto* data = static_cast<const std::byte*>(part.iov_base);
        bytes->insert(bytes->end(), data, data + part.iov_len);
      }
      bool dropped = false;
      {
        std::lock_guard lock(mutex_);
        dropped = drop_.next();
      }
      if (!dropped) {
        std::lock_guard lock(space_->mutex);
        space_->values[name_of(keys[i])] = {std::move(bytes), lifetime_ > 0,
                                            steady_clock::now() + std::chrono::seconds(lifetime_)};
      }
      source.taken(i);
    }
    return {};
  }

  Outcome remove(std::span<const BlockKey> keys, Deadline deadline) override {
    if (Outcome outcome = enter(deadline); !outcome.ok()) return outcome;
    std::lock_guard lock(space_->mutex);
    for (const BlockKey& key : keys) space_->values.erase(name_of(key));
    return {};
  }

 private:
  std::string name_of(const BlockKey& key) const { return std::string(names_).append(hetero::backend::to_string(key)); }
  Outcome timed_out() const { return {Outcome::Kind::kTimeout, std::string(name_).append(": no answer in time")}; }

  // The latency and the faults of a call.
  Outcome enter(Deadline deadline) {
    bool hangs = false;
    bool fails = false;
    {
      std::lock_guard lock(mutex_);
      hangs = hang_.next();
      fails = fail_.next();
    }
    const Deadline answer = steady_clock::now() + latency_;
    if (hangs || answer >= deadline) {
      std::this_thread::sleep_until(deadline);
      return timed_out();
    }
    if (latency_.count() > 0) std::this_thread::sleep_until(answer);
    if (fails) return {Outcome::Kind::kFailed, std::string(name_).append(": this call fails on purpose")};
    return {};
  }

  std::shared_ptr<const Value> find(const BlockKey& key) {
    std::lock_guard lock(space_->mutex);
    const auto found = space_->values.find(name_of(key));
    if (found == space_->values.end()) return nullptr;
    if (found->second.expires && steady_clock::now() >= found->second.end) {
      space_->values.erase(found);
      return nullptr;
    }
    return found->second.bytes;
  }

  // Torn values take turns: one ends early, the next has a wrong bit at a place that moves on.
  void give(size_t position, const Value& value, ValueSink& sink) {
    size_t bytes = value.size();
    size_t wrong = bytes;
    {
      std::lock_guard lock(mutex_);
      if (torn_.next()) {
        if (++torn_values_ % 2 == 1) {
          bytes = bytes / 2;
        } else {
          wrong = static_cast<size_t>(torn_values_ * uint64_t{0x9E3779B97F4A7C15} % bytes);
        }
      }
    }
    BlockDecoder& decoder = sink.begin(position, value.size());
    size_t offset = 0;
    iovec part;
    while (offset < bytes && decoder.next({&part, 1}) == 1) {
      const size_t count = std::min(part.iov_len, bytes - offset);
      std::memcpy(part.iov_base, value.data() + offset, count);
      if (wrong >= offset && wrong < offset + count) {
        static_cast<std::byte*>(part.iov_base)[wrong - offset] ^= std::byte{0x10};
      }
      offset += count;
      decoder.advance(count);
    }
    sink.end(position);
  }

  const std::string name_, names_;
  const int64_t lifetime_;
  const steady_clock::duration latency_;
  const std::shared_ptr<Space> space_;
  std::mutex mutex_;  // of the faults
  Every fail_, hang_, torn_, drop_;
  uint64_t torn_values_ = 0;
};

}  // namespace

std::unique_ptr<ValueStore> open_memory_store(const RemoteAddress& address, const RemoteOptions& options) {
  return std::make_unique<MemoryStore>(address, options);
}

}  // namespace hetero::backend
