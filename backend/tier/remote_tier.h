// RemoteTier: blocks of keys and values in a store of other machines, by key.
//
// A value carries the fingerprint, the key, the parent's key, the tokens, and a checksum of each
// piece. get() verifies all of them. So a value that another program wrote, or that arrives torn,
// is a missing block. A tier that fails is left alone for a while; its blocks are missing then.
//
//   auto tier = open_remote("redis://127.0.0.1:6379", options);
//   Result<int64_t> found = tier.value()->match(keys);   // how many of the first ones are there
//   RemoteResult result = tier.value()->get(blocks);     // blocks until a deadline
//
// Thread safety: any thread; calls block. Each call takes at most options.timeout_seconds, whatever
// the other side does. One thing is not in our hands: a network file system under "file://" that
// blocks inside the system. After a fork, the child may use a tier that no call was in.

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
  int64_t lifetime_seconds = 0;  // of a value; 0: for ever
  // "none", "zstd", "lz4": lossless (remote/codec.h says when it pays). A build without the library
  // stores values as they are, and does not find those that are encoded.
  std::string codec = "none";
};

struct RemoteBlock {
  BlockKey key;
  BlockKey parent;
  // At most geometry.tokens. get() compares them and the parent with the value's, unless there are
  // none.
  std::span<const int32_t> tokens;
  // block_bytes(); put() only reads it. get() writes pieces, no padding; the pieces of a block that
  // turns out to be missing may have been written too.
  std::byte* data = nullptr;
};

struct RemoteResult {
  Status status;                 // of the tier: ok if it answered
  std::vector<int64_t> missing;  // positions of blocks that it did not give, or take
};

struct RemoteCounters {
#define REMOTE_COUNTER(field, name, text) int64_t field = 0;
#include "backend/tier/tier_counters.def"
};

class RemoteTier {
 public:
  virtual ~RemoteTier() = default;

  // Errors: kStorage, in one sentence, where the store fails or does not answer in time. Then the
  // tier is left alone: for retry_seconds, all calls answer at once with the same error. A store
  // that is only full is still asked for blocks; just put() is refused meanwhile. kUsage if a block
  // has no memory or too many tokens; then nothing is done.

  // How many of the keys are there, from the first one on. A block that is there may still be
  // rejected by get().
  virtual Result<int64_t> match(std::span<const BlockKey> keys) = 0;
  // Blocks that arrived before an error are given; `missing` has the others.
  virtual RemoteResult get(std::span<const RemoteBlock> blocks) = 0;
  // Replaces values that are there.
  virtual RemoteResult put(std::span<const RemoteBlock> blocks) = 0;
  virtual Status remove(std::span<const BlockKey> keys) = 0;
  virtual RemoteCounters counters() const = 0;
};

// Opens a tier at an address. Nothing is connected yet.
//
//   "redis://[[user]:password@]host[:port][/database]", "unix:///path"   a Redis server
//   "file:///folder"                                                     a shared folder
//   "memory:[name][?fault=N&...]"                                        this process, for tests
//
// Tiers in memory with the same name share their blocks for as long as the process lives; one
// without a name has its own. Their faults: latency_ms, and each Nth call or value: fail_every,
// hang_every (until the deadline), torn_every, drop_every. backend/tier/remote/address.h has all.
//
// Errors: kUsage, in one sentence, for an address or options that are none of these, and for blocks
// of more than 512 MiB.
Result<std::unique_ptr<RemoteTier>> open_remote(const std::string& address, const RemoteOptions& options);

}  // namespace hetero::backend
