// What all remote tiers do: encode, verify, count, and leave a store alone that failed.

#include "backend/tier/remote_tier.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <optional>
#include <utility>

#include "backend/tier/remote/address.h"
#include "backend/tier/remote/block_value.h"
#include "backend/tier/remote/codec.h"
#include "backend/tier/remote/value_store.h"

namespace hetero::backend {
namespace {

using std::chrono::steady_clock;

constexpr uint64_t kMostValueBytes = uint64_t{512} << 20;  // Redis's own limit
constexpr int64_t kMostPieces = 1 << 20;
constexpr int64_t kMostTokens = 1 << 24;
constexpr size_t kMostPrefix = 1024;
constexpr double kMostSeconds = 1e6;
constexpr int64_t kMostLifetime = 3'000'000'000;

steady_clock::duration seconds_of(double seconds) {
  return std::chrono::duration_cast<steady_clock::duration>(std::chrono::duration<double>(seconds));
}

// Since when calls are answered without asking the store, and with what.
class Pause {
 public:
  // REQUIRES: the caller has the lock of the tier.
  const std::string* message() const { return steady_clock::now() < end_ ? &message_ : nullptr; }
  void start(std::string message, double seconds) {
    message_ = std::move(message);
    end_ = steady_clock::now() + seconds_of(seconds);
  }

 private:
  steady_clock::time_point end_ = steady_clock::time_point::min();
  std::string message_;
};

class Receiver final : public ValueSink {
 public:
  Receiver(const RemoteOptions& options, std::span<const RemoteBlock> blocks)
      : blocks_(blocks), decoder_(options.geometry, options.fingerprint), given_(blocks.size(), false) {}

  BlockDecoder& begin(size_t position, uint64_t bytes) override {
    bytes_ = bytes;
    decoder_.begin(blocks_[position], bytes);
    return decoder_;
  }
  void end(size_t position) override {
    if (!decoder_.accepted()) {
      ++rejected;
      return;
    }
    given_[position] = true;
    ++hits;
    bytes_in += static_cast<int64_t>(bytes_);
  }
  const std::vector<bool>& given() const { return given_; }

  int64_t hits = 0, rejected = 0, bytes_in = 0;

 private:
  const std::span<const RemoteBlock> blocks_;
  BlockDecoder decoder_;
  uint64_t bytes_ = 0;
  std::vector<bool> given_;
};

class Giver final : public ValueSource {
 public:
  Giver(const RemoteOptions& options, Codec codec, std::span<const RemoteBlock> blocks)
      : blocks_(blocks),
        encoders_{BlockEncoder(options.geometry, options.fingerprint, codec),
                  BlockEncoder(options.geometry, options.fingerprint, codec)},
        bytes_(blocks.size(), 0),
        taken_(blocks.size(), false) {}

  const EncodedBlock& value(size_t position) override {
    const EncodedBlock& value = encoders_[next_].encode(blocks_[position]);
    next_ = 1 - next_;
    bytes_[position] = static_cast<int64_t>(value.bytes);
    return value;
  }
  void taken(size_t position) override {
    taken_[position] = true;
    ++puts;
    bytes_out += bytes_[position];
  }
  const std::vector<bool>& taken() const { return taken_; }

  int64_t puts = 0, bytes_out = 0;

 private:
  const std::span<const RemoteBlock> blocks_;
  std::array<BlockEncoder, 2> encoders_;
  size_t next_ = 0;
  std::vector<int64_t> bytes_;
  std::vector<bool> taken_;
};

std::vector<int64_t> all_positions(size_t count) {
  std::vector<int64_t> positions(count);
  for (size_t i = 0; i < count; ++i) positions[i] = static_cast<int64_t>(i);
  return positions;
}

std::vector<int64_t> positions_without(const std::vector<bool>& marks) {
  std::vector<int64_t> positions;
  for (size_t i = 0; i < marks.size(); ++i) {
    if (!marks[i]) positions.push_back(static_cast<int64_t>(i));
  }
  return positions;
}

std::vector<BlockKey> keys_of(std::span<const RemoteBlock> blocks) {
  std::vector<BlockKey> keys;
  keys.reserve(blocks.size());
  for (const RemoteBlock& block : blocks) keys.push_back(block.key);
  return keys;
}

class StoreTier final : public RemoteTier {
 public:
  StoreTier(std::unique_ptr<ValueStore> store, const RemoteOptions& options, Codec codec)
      : store_(std::move(store)), options_(options), codec_(codec) {}

  Result<int64_t> match(std::span<const BlockKey> keys) override {
    int64_t found = 0;
    if (keys.empty()) return found;
    if (Status status = paused(false); !status.ok()) return status;
    if (Status status = settle(store_->match(keys, deadline(), &found)); !status.ok()) return status;
    return found;
  }

  RemoteResult get(std::span<const RemoteBlock> blocks) override {
    if (blocks.empty()) return {};
    Status status = check(blocks);
    if (status.ok()) status = paused(false);
    if (!status.ok()) {
      count_gets(blocks.size(), 0, 0, 0);
      return {std::move(status), all_positions(blocks.size())};
    }
    Receiver receiver(options_, blocks);
    status = settle(store_->get(keys_of(blocks), receiver, deadline()));
    count_gets(blocks.size(), receiver.hits, receiver.rejected, receiver.bytes_in);
    return {std::move(status), positions_without(receiver.given())};
  }

  RemoteResult put(std::span<const RemoteBlock> blocks) override {
    if (blocks.empty()) return {};
    Status status = check(blocks);
    if (status.ok()) status = paused(true);
    if (!status.ok()) return {std::move(status), all_positions(blocks.size())};
    Giver giver(options_, codec_, blocks);
    status = settle(store_->put(keys_of(blocks), giver, deadline()));
    {
      std::lock_guard lock(mutex_);
      counters_.puts += giver.puts;
      counters_.bytes_out += giver.bytes_out;
    }
    return {std::move(status), positions_without(giver.taken())};
  }

  Status remove(std::span<const BlockKey> keys) override {
    if (keys.empty()) return {};
    if (Status status = paused(false); !status.ok()) return status;
    return settle(store_->remove(keys, deadline()));
  }

  RemoteCounters counters() const override {
    std::lock_guard lock(mutex_);
    return counters_;
  }

 private:
  Deadline deadline() const { return steady_clock::now() + seconds_of(options_.timeout_seconds); }

  Status check(std::span<const RemoteBlock> blocks) const {
    for (const RemoteBlock& block : blocks) {
      if (block.data == nullptr) return Status(ErrorClass::kUsage, "a block for a remote tier has no memory");
      if (block.tokens.size() > static_cast<size_t>(options_.geometry.tokens)) {
        return Status(ErrorClass::kUsage, "a block for a remote tier has more tokens than its geometry says");
      }
    }
    return {};
  }

  Status paused(bool put) const {
    std::lock_guard lock(mutex_);
    const std::string* message = pause_.message();
    if (message == nullptr && put) message = put_pause_.message();
    return message == nullptr ? Status() : Status(ErrorClass::kStorage, *message);
  }

  // Counts a failure, and leaves the store alone from now on.
  Status settle(Outcome outcome) {
    if (outcome.ok()) return {};
    std::lock_guard lock(mutex_);
    ++counters_.errors;
    if (outcome.kind == Outcome::Kind::kTimeout) ++counters_.timeouts;
    Pause& pause = outcome.kind == Outcome::Kind::kFull ? put_pause_ : pause_;
    pause.start(outcome.message, options_.retry_seconds);
    return Status(ErrorClass::kStorage, std::move(outcome.message));
  }

  void count_gets(size_t gets, int64_t hits, int64_t rejected, int64_t bytes) {
    std::lock_guard lock(mutex_);
    counters_.gets += static_cast<int64_t>(gets);
    counters_.hits += hits;
    counters_.rejected += rejected;
    counters_.bytes_in += bytes;
  }

  const std::unique_ptr<ValueStore> store_;
  const RemoteOptions options_;
  const Codec codec_;
  mutable std::mutex mutex_;
  Pause pause_;      // of everything
  Pause put_pause_;  // of put()
  RemoteCounters counters_;
};

Status usage(std::string message) { return Status(ErrorClass::kUsage, std::move(message)); }

Status check_options(const RemoteOptions& options) {
  const BlockGeometry& geometry = options.geometry;
  if (geometry.tokens <= 0 || geometry.pieces <= 0 || geometry.piece_bytes <= 0) {
    return usage("a remote tier needs blocks with tokens, pieces and bytes");
  }
  if (geometry.tokens > kMostTokens || geometry.pieces > kMostPieces ||
      static_cast<uint64_t>(geometry.piece_bytes) > kMostValueBytes || most_value_bytes(geometry) > kMostValueBytes) {
    return usage("a remote tier takes blocks of at most 512 MiB");
  }
  const auto in_range = [](double seconds) {
    return std::isfinite(seconds) && seconds >= 0 && seconds <= kMostSeconds;
  };
  if (!in_range(options.timeout_seconds) || options.timeout_seconds == 0) {
    return usage("a remote tier's timeout_seconds must be above 0 and at most 1000000");
  }
  if (!in_range(options.retry_seconds)) {
    return usage("a remote tier's retry_seconds must be at least 0 and at most 1000000");
  }
  if (options.lifetime_seconds < 0 || options.lifetime_seconds > kMostLifetime) {
    return usage("a remote tier's lifetime_seconds must be at least 0 and at most 3000000000");
  }
  if (options.prefix.size() > kMostPrefix) return usage("a remote tier's prefix has at most 1024 bytes");
  return {};
}

}  // namespace

Result<std::unique_ptr<RemoteTier>> open_remote(const std::string& address, const RemoteOptions& options) {
  const std::optional<Codec> codec = codec_of(options.codec);
  if (!codec) {
    return usage(std::string("a remote tier's codec is \"none\", \"zstd\" or \"lz4\", not \"")
                     .append(options.codec)
                     .append("\""));
  }
  if (Status status = check_options(options); !status.ok()) return status;
  Result<RemoteAddress> parsed = parse_remote_address(address);
  if (!parsed.ok()) return parsed.status();
  std::unique_ptr<ValueStore> store;
  switch (parsed.value().kind) {
    case RemoteAddress::Kind::kRedis:
      store = open_redis_store(parsed.value(), options);
      break;
    case RemoteAddress::Kind::kFolder:
      store = open_folder_store(parsed.value(), options);
      break;
    case RemoteAddress::Kind::kMemory:
      store = open_memory_store(parsed.value(), options);
      break;
  }
  return std::unique_ptr<RemoteTier>(std::make_unique<StoreTier>(std::move(store), options, *codec));
}

}  // namespace hetero::backend
