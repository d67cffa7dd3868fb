// RedisConnection: a connection to a Redis server, in RESP2, without a copy of its own.
//
// Commands are pipelined. The bytes of values go between the socket and the blocks' memory by
// sendmsg and readv; only replies of a line, and what comes along with them, pass a small buffer.
// The socket does not block, and everything waits in poll until the deadline. After a failure the
// order of replies is unknown, so the connection is broken for good.
//
// Thread safety: one thread at a time.

#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/tier/remote/address.h"
#include "backend/tier/remote/block_value.h"
#include "backend/tier/remote/value_store.h"

namespace hetero::backend {

// Any reply but a bulk string. `text` is an error's or a status's.
struct RedisReply {
  enum class Kind { kStatus, kError, kInteger, kNull };
  Kind kind = Kind::kNull;
  std::string_view text;
  int64_t number = 0;
};

// Commands, and what takes their replies.
class RedisPipeline {
 public:
  virtual ~RedisPipeline() = default;
  virtual size_t count() const = 0;
  // Most commands that wait for a reply at once.
  virtual size_t window() const = 0;
  // Appends a command to `text`. One that has a value puts what comes behind the value into `tail`.
  virtual const EncodedBlock* write(size_t command, std::string& text, std::string& tail) = 0;
  // A reply that is a bulk string of so many bytes: what takes them, or null to skip them.
  virtual BlockDecoder* bulk(size_t command, uint64_t bytes) = 0;
  virtual void bulk_end(size_t command) = 0;
  // Any other reply. An Outcome that is not ok ends the call.
  virtual Outcome reply(size_t command, const RedisReply& reply) = 0;
  // No more commands are wanted; replies to those that were sent still come.
  virtual bool enough() const { return false; }
};

// A server's own words, fit for a message.
std::string printable(std::string_view text);
// Appends an argument of a command.
void append_argument(std::string& text, std::string_view argument);

class RedisConnection {
 public:
  // Connects, and authenticates and selects the database where the address says so.
  static Outcome connect(const RemoteAddress& address, Deadline deadline, std::unique_ptr<RedisConnection>* connection);
  ~RedisConnection();
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  // Sends all commands and takes their replies. Where the outcome is neither ok nor kFull, the
  // connection must be closed.
  Outcome run(RedisPipeline& pipeline, Deadline deadline);
  // Of the last run: it ended because the server closed the connection, before any reply.
  bool closed_unanswered() const { return closed_ && answered_ == 0; }
  // Another process made it, before a fork.
  bool foreign() const;

 private:
  enum class Progress { kSome, kWait, kFailed };
  enum class State { kLine, kBulk, kBulkEnd };
  // Bytes that go out together.
  struct Chunk {
    std::string text, tail;
    std::vector<iovec> parts;
    size_t next = 0;  // part
    size_t commands = 0;
    bool empty() const { return next == parts.size(); }
  };

  RedisConnection(int socket, std::string name);
  bool may_prepare(const RedisPipeline& pipeline) const;
  void prepare(RedisPipeline& pipeline, Chunk& chunk);
  Progress send(RedisPipeline& pipeline);
  Progress receive(RedisPipeline& pipeline);
  bool parse(RedisPipeline& pipeline);
  bool parse_line(RedisPipeline& pipeline, std::string_view line);
  void take(size_t bytes);
  Progress fail(std::string_view what);
  Progress fail_by(int error, std::string_view what);

  const int socket_;
  const std::string name_;
  const pid_t process_;

  Chunk sending_, prepared_;
  size_t written_ = 0;   // commands in chunks
  size_t answered_ = 0;  // replies that are complete
  bool output_closed_ = false;
  bool drained_ = false;  // the last read took all there was
  bool closed_ = false;
  Outcome outcome_;

  State state_ = State::kLine;
  uint64_t bulk_left_ = 0;
  BlockDecoder* decoder_ = nullptr;
  std::array<char, 1024> buffer_;
  size_t buffer_begin_ = 0, buffer_end_ = 0;
  std::vector<char> skipped_;
};

}  // namespace hetero::backend
