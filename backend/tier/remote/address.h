// RemoteAddress: what the address of a remote tier says.
//
//   redis://[[user]:password@]host[:port][/database]       host: a name, IPv4, or [IPv6]
//   unix://[[user]:password@]/path[?database=N]            a Redis server's socket
//   file:///folder
//   memory:[name][?fault=N&...]                            see MemoryFaults
//
// Users, passwords and paths may have %XX for any byte.
//
// Thread safety: a value.

#pragma once

#include <cstdint>
#include <string>

#include "backend/base/status.h"

namespace hetero::backend {

// What a tier of this process imitates. Each counts by itself, from when it was opened, so a
// single-threaded test sees the same faults in every run. 0: never.
struct MemoryFaults {
  double latency_ms = 0;   // of each call
  int64_t fail_every = 0;  // each Nth call fails
  int64_t hang_every = 0;  // each Nth call gives no answer until its deadline
  int64_t torn_every = 0;  // each Nth value that is given is damaged: shorter, or with a wrong bit
  int64_t drop_every = 0;  // each Nth value that is taken is lost
};

struct RemoteAddress {
  enum class Kind { kRedis, kFolder, kMemory };
  Kind kind = Kind::kMemory;
  std::string host;  // of Redis; empty: `path` is a socket
  std::string port;
  std::string user, password;
  int64_t database = 0;
  std::string path;  // a folder or a socket
  std::string name;  // in this process
  MemoryFaults faults;

  // For messages: without user and password.
  std::string to_string() const;
};

// Errors: kUsage, in one sentence, without the password.
Result<RemoteAddress> parse_remote_address(const std::string& text);

}  // namespace hetero::backend
