// RemoteTier: blocks of keys and values in a store of other machines, by key.
//
// A value carries the fingerprint, the key, the parent's key, the tokens, and a checksum of each
// piece. get() verifies all of them, so a value that another program wrote, or that arrives torn,
// is a missing block. A tier that fails is left alone for a while; its blocks are missing meanwhile.
//
//   auto tier = open_remote("redis://127.0.0.1:6379", options);
//   Result<int64_t> found = tier->match(keys);         // how many of the first ones are there
//   BlockResult result = tier->get(blocks);            // blocks until a deadline
//
// Thread safety: any thread; calls block. Each call takes at most options.timeout_seconds, whatever
// the other side does.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/base/status.h"
#include "backend/tier/block_geometry.h"
#include "backend/tier/block_key.h"

namespace hetero::backend {

struct RemoteOptions {
  BlockGeometry geometry;
  BlockKey fingerprint;
  std::string prefix = "hetero";  // of names: "hetero:<fingerprint>:<key>"
  double timeout_seconds = 2;
  double retry_seconds = 5;      // how long a tier that failed is left alone
  int64_t lifetime_seconds = 0;  // of a value, where the store can expire it; 0: for ever
  std::string codec = "none";    // "none", "zstd", "lz4": lossless, on planes of bytes
};

struct RemoteBlock {
  BlockKey key;
  BlockKey parent;
  std::span<const int32_t> tokens;
  std::byte* data = nullptr;  // block_bytes(); put() only reads it
};

struct RemoteResult {
  Status status;                 // of the tier: ok if it answered
  std::vector<int64_t> missing;  // positions of blocks that it did not give, or take
};

struct RemoteCounters {
  int64_t gets = 0, puts = 0, hits = 0;  // blocks
  int64_t bytes_in = 0, bytes_out = 0;   // of values
  int64_t rejected = 0;                  // values that were not what was asked for
  int64_t errors = 0, timeouts = 0;
};

class RemoteTier {
 public:
  virtual ~RemoteTier() = default;

  // How many of the keys are there, from the first one on.
  virtual Result<int64_t> match(std::span<const BlockKey> keys) = 0;
  virtual RemoteResult get(std::span<const RemoteBlock> blocks) = 0;
  virtual RemoteResult put(std::span<const RemoteBlock> blocks) = 0;
  virtual Status remove(std::span<const BlockKey> keys) = 0;
  virtual RemoteCounters counters() const = 0;
};

// "redis://[:password@]host[:port][/database]", "file:///folder", "memory:" (of this process, for
// tests: "memory:name?latency_ms=5&fail_every=10&torn_every=20"). Nothing is connected yet.
// Errors: kUsage for an address that is none of these.
Result<std::unique_ptr<RemoteTier>> open_remote(const std::string& address, const RemoteOptions& options);

}  // namespace hetero::backend
