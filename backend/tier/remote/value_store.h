// ValueStore: moves the bytes of values between a block's memory and a remote store, by key.
//
// remote_tier.cpp is the one caller. It encodes, verifies and counts, and leaves a store that
// failed alone. A store knows names, sockets and files, and nothing of what is in a value.
//
// Thread safety: any thread, several at once. Each call ends at its deadline.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "backend/base/function_ref.h"
#include "backend/base/status.h"
#include "backend/tier/block_key.h"
#include "backend/tier/remote/address.h"
#include "backend/tier/remote/block_value.h"

namespace hetero::backend {

using Deadline = std::chrono::steady_clock::time_point;

// How a call of a store ended.
struct Outcome {
  enum class Kind {
    kOk,
    kFailed,   // the store does not work
    kTimeout,  // it did not answer in time
    kFull,     // it works, but takes no values
  };
  Kind kind = Kind::kOk;
  std::string message;  // one sentence

  bool ok() const { return kind == Kind::kOk; }
};

// Takes values from a store.
class ValueSink {
 public:
  virtual ~ValueSink() = default;
  // The store has a value of so many bytes for a key. It follows, unless the decoder rejects it.
  virtual BlockDecoder& begin(size_t position, uint64_t bytes) = 0;
  // All that the store has of the value was given to the decoder.
  virtual void end(size_t position) = 0;
};

// Gives values to a store.
class ValueSource {
 public:
  virtual ~ValueSource() = default;
  // Makes the value when it is asked for. It lives until the next call but one, so that a store can
  // make a value while it waits for its way to take the one before.
  virtual const EncodedBlock& value(size_t position) = 0;
  // The store has the value.
  virtual void taken(size_t position) = 0;
};

class ValueStore {
 public:
  virtual ~ValueStore() = default;

  // How many of the keys are there, from the first one on.
  virtual Outcome match(std::span<const BlockKey> keys, Deadline deadline, int64_t* found) = 0;
  // Gives the values that are there to `sink`.
  virtual Outcome get(std::span<const BlockKey> keys, ValueSink& sink, Deadline deadline) = 0;
  virtual Outcome put(std::span<const BlockKey> keys, ValueSource& source, Deadline deadline) = 0;
  virtual Outcome remove(std::span<const BlockKey> keys, Deadline deadline) = 0;
};

std::unique_ptr<ValueStore> open_redis_store(const RemoteAddress& address, const RemoteOptions& options);
std::unique_ptr<ValueStore> open_folder_store(const RemoteAddress& address, const RemoteOptions& options);
std::unique_ptr<ValueStore> open_memory_store(const RemoteAddress& address, const RemoteOptions& options);

}  // namespace hetero::backend
