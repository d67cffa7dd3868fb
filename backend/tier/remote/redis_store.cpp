// A Redis server as a store of values: "prefix:<fingerprint>:<key>", by EXISTS, GET, SET and DEL.
//
// Threads have a connection each while they are in a call, up to kMostConnections; others wait for
// one. A connection that lay idle may have been closed by the server, for instance because it was
// restarted. If that shows before the first reply, the call is made again on a new connection.

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "backend/tier/remote/redis_connection.h"
#include "backend/tier/remote/value_store.h"

namespace hetero::backend {
namespace {

constexpr size_t kMostConnections = 8;
// Replies that a server may have to keep for us: more only costs it memory, and us its caches.
constexpr uint64_t kWindowBytes = 4 << 20;
constexpr size_t kMostWindow = 256;

class RedisStore final : public ValueStore {
 public:
  RedisStore(const RemoteAddress& address, const RemoteOptions& options)
      : address_(address), name_(address.to_string()), lifetime_(options.lifetime_seconds) {
    names_ =
        std::string(options.prefix).append(":").append(hetero::backend::to_string(options.fingerprint)).append(":");
    const uint64_t fit = kWindowBytes / most_value_bytes(options.geometry);
    get_window_ = static_cast<size_t>(std::clamp<uint64_t>(fit, 2, kMostWindow));
  }

  Outcome match(std::span<const BlockKey> keys, Deadline deadline, int64_t* found) override;
  Outcome get(std::span<const BlockKey> keys, ValueSink& sink, Deadline deadline) override;
  Outcome put(std::span<const BlockKey> keys, ValueSource& source, Deadline deadline) override;
  Outcome remove(std::span<const BlockKey> keys, Deadline deadline) override;

 private:
  class Call;
  class MatchCall;
  class GetCall;
  class PutCall;
  class RemoveCall;

  std::string name_of(const BlockKey& key) const { return std::string(names_).append(hetero::backend::to_string(key)); }
  Outcome refused(const RedisReply& reply, Outcome::Kind kind) const;
  Outcome run(RedisPipeline& pipeline, Deadline deadline);
  Outcome take_connection(Deadline deadline, std::unique_ptr<RedisConnection>* connection, bool* reused);
  void give_connection(std::unique_ptr<RedisConnection> connection);

  const RemoteAddress address_;
  const std::string name_;
  const int64_t lifetime_;
  std::string names_;  // what all names begin with
  size_t get_window_ = 0;

  std::mutex mutex_;
  std::condition_variable freed_;
  std::vector<std::unique_ptr<RedisConnection>> idle_;
  size_t used_ = 0;
};

// What the calls have in common: a command for each key.
class RedisStore::Call : public RedisPipeline {
 public:
  Call(const RedisStore& store, std::span<const BlockKey> keys, size_t window)
      : store_(store), keys_(keys), window_(window) {}
  size_t count() const override { return keys_.size(); }
  size_t window() const override { return window_; }
  BlockDecoder* bulk(size_t, uint64_t) override { return nullptr; }
  void bulk_end(size_t) override { unexpected_ = true; }

 protected:
  void write_command(std::string_view command, size_t position, std::string& text) const {
    text.append("*2\r\n");
    append_argument(text, command);
    append_argument(text, store_.name_of(keys_[position]));
  }

  const RedisStore& store_;
  const std::span<const BlockKey> keys_;
  const size_t window_;
  bool unexpected_ = false;  // a bulk string where none may come
};

class RedisStore::MatchCall final : public Call {
 public:
  MatchCall(const RedisStore& store, std::span<const BlockKey> keys) : Call(store, keys, kMostWindow) {}
  const EncodedBlock* write(size_t command, std::string& text, std::string&) override {
    write_command("EXISTS", command, text);
    return nullptr;
  }
  Outcome reply(size_t command, const RedisReply& reply) override {
    if (reply.kind != RedisReply::Kind::kInteger || unexpected_) {
      return store_.refused(reply, Outcome::Kind::kFailed);
    }
    if (reply.number == 0) absent_ = true;
    if (!absent_) found_ = static_cast<int64_t>(command) + 1;
    return {};
  }
  bool enough() const override { return absent_; }
  int64_t found() const { return found_; }

 private:
  int64_t found_ = 0;
  bool absent_ = false;
};

class RedisStore::GetCall final : public Call {
 public:
  GetCall(const RedisStore& store, std::span<const BlockKey> keys, ValueSink& sink)
      : Call(store, keys, store.get_window_), sink_(sink) {}
  const EncodedBlock* write(size_t command, std::string& text, std::string&) override {
    write_command("GET", command, text);
    return nullptr;
  }
  BlockDecoder* bulk(size_t command, uint64_t bytes) override { return &sink_.begin(command, bytes); }
  void bulk_end(size_t command) override { sink_.end(command); }
  Outcome reply(size_t command, const RedisReply& reply) override {
    if (reply.kind == RedisReply::Kind::kNull) return {};
    if (reply.kind == RedisReply::Kind::kError && reply.text.starts_with("WRONGTYPE")) {
      // Another program's value has our name: an empty value, which the decoder rejects.
      sink_.begin(command, 0);
      sink_.end(command);
      return {};
    }
    return store_.refused(reply, Outcome::Kind::kFailed);
  }

 private:
  ValueSink& sink_;
};

class RedisStore::PutCall final : public Call {
 public:
  PutCall(const RedisStore& store, std::span<const BlockKey> keys, ValueSource& source)
      : Call(store, keys, keys.size()), source_(source) {}
  const EncodedBlock* write(size_t command, std::string& text, std::string& tail) override {
    const EncodedBlock& value = source_.value(command);
    const bool expires = store_.lifetime_ > 0;
    text.append(expires ? "*5\r\n" : "*3\r\n");
    append_argument(text, "SET");
    append_argument(text, store_.name_of(keys_[command]));
    text.append("$").append(std::to_string(value.bytes)).append("\r\n");
    tail.append("\r\n");
    if (expires) {
      append_argument(tail, "EX");
      append_argument(tail, std::to_string(store_.lifetime_));
    }
    return &value;
  }
  Outcome reply(size_t command, const RedisReply& reply) override {
    if (reply.kind == RedisReply::Kind::kStatus && reply.text == "OK" && !unexpected_) {
      source_.taken(command);
      return {};
    }
    if (reply.kind == RedisReply::Kind::kError) {
      for (const char* full : {"OOM ", "READONLY ", "MISCONF ", "NOREPLICAS "}) {
        if (reply.text.starts_with(full)) {
          full_ = store_.refused(reply, Outcome::Kind::kFull);
          return {};
        }
      }
    }
    return store_.refused(reply, Outcome::Kind::kFailed);
  }
  bool enough() const override { return !full_.ok(); }
  const Outcome& full() const { return full_; }

 private:
  ValueSource& source_;
  Outcome full_;
};

class RedisStore::RemoveCall final : public Call {
 public:
  RemoveCall(const RedisStore& store, std::span<const BlockKey> keys) : Call(store, keys, kMostWindow) {}
  const EncodedBlock* write(size_t command, std::string& text, std::string&) override {
    write_command("DEL", command, text);
    return nullptr;
  }
  Outcome reply(size_t, const RedisReply& reply) override {
    if (reply.kind == RedisReply::Kind::kInteger && !unexpected_) return {};
    const bool read_only = reply.kind == RedisReply::Kind::kError && reply.text.starts_with("READONLY ");
    return store_.refused(reply, read_only ? Outcome::Kind::kFull : Outcome::Kind::kFailed);
  }
};

Outcome RedisStore::refused(const RedisReply& reply, Outcome::Kind kind) const {
  std::string message = name_;
  if (reply.kind == RedisReply::Kind::kError) {
    message.append(" answered: ").append(printable(reply.text));
  } else {
    message.append(": sent a reply of another kind than was asked for");
  }
  return {kind, std::move(message)};
}

Outcome RedisStore::take_connection(Deadline deadline, std::unique_ptr<RedisConnection>* connection, bool* reused) {
  std::unique_lock lock(mutex_);
  if (!freed_.wait_until(lock, deadline, [&] { return used_ < kMostConnections; })) {
    return {Outcome::Kind::kTimeout, std::string(name_).append(": all connections are in use")};
  }
  ++used_;
  while (!idle_.empty()) {
    std::unique_ptr<RedisConnection> last = std::move(idle_.back());
    idle_.pop_back();
    if (last->foreign()) continue;
    *connection = std::move(last);
    *reused = true;
    return {};
  }
  *reused = false;
  lock.unlock();
  Outcome outcome = RedisConnection::connect(address_, deadline, connection);
  if (!outcome.ok()) give_connection(nullptr);
  return outcome;
}

void RedisStore::give_connection(std::unique_ptr<RedisConnection> connection) {
  std::lock_guard lock(mutex_);
  --used_;
  if (connection != nullptr) idle_.push_back(std::move(connection));
  freed_.notify_one();
}

Outcome RedisStore::run(RedisPipeline& pipeline, Deadline deadline) {
  for (;;) {
    std::unique_ptr<RedisConnection> connection;
    bool reused = false;
    if (Outcome outcome = take_connection(deadline, &connection, &reused); !outcome.ok()) return outcome;
    Outcome outcome = connection->run(pipeline, deadline);
    const bool again = !outcome.ok() && reused && connection->closed_unanswered();
    if (!outcome.ok()) connection.reset();
    give_connection(std::move(connection));
    if (!again) return outcome;
    // The others that lay idle were closed too.
    std::vector<std::unique_ptr<RedisConnection>> closed;
    std::lock_guard lock(mutex_);
    closed.swap(idle_);
  }
}

Outcome RedisStore::match(std::span<const BlockKey> keys, Deadline deadline, int64_t* found) {
  MatchCall call(*this, keys);
  Outcome outcome = run(call, deadline);
  *found = call.found();
  return outcome;
}

Outcome RedisStore::get(std::span<const BlockKey> keys, ValueSink& sink, Deadline deadline) {
  GetCall call(*this, keys, sink);
  return run(call, deadline);
}

Outcome RedisStore::put(std::span<const BlockKey> keys, ValueSource& source, Deadline deadline) {
  PutCall call(*this, keys, source);
  Outcome outcome = run(call, deadline);
  return outcome.ok() ? call.full() : outcome;
}

Outcome RedisStore::remove(std::span<const BlockKey> keys, Deadline deadline) {
  RemoveCall call(*this, keys);
  return run(call, deadline);
}

}  // namespace

std::unique_ptr<ValueStore> open_redis_store(const RemoteAddress& address, const RemoteOptions& options) {
  return std::make_unique<RedisStore>(address, options);
}

}  // namespace hetero::backend
