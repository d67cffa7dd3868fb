// What the tests of remote tiers share: blocks with random bytes, folders, and a real redis-server.

#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backend/tier/remote_tier.h"
#include "tests/backend/tier/temporary_folder.h"
#include "tests/catch/catch.h"

namespace hetero::backend::testing {

using std::chrono::steady_clock;

inline double seconds_since(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

// Bytes that look like bfloat16 keys and values: products of normal numbers, from a random place
// of a table on.
inline void fill_like_keys(std::byte* data, size_t bytes, uint64_t seed) {
  constexpr size_t kNumbers = 1 << 17;
  static const std::vector<uint16_t> numbers = [] {
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> made(kNumbers);
    for (uint16_t& half : made) {
      const float number = normal(random) * normal(random);
      uint32_t bits;
      std::memcpy(&bits, &number, sizeof(bits));
      half = static_cast<uint16_t>(bits >> 16);
    }
    return made;
  }();
  const auto* table = reinterpret_cast<const std::byte*>(numbers.data());
  size_t place = static_cast<size_t>(seed % kNumbers) * 2;
  while (bytes > 0) {
    const size_t count = std::min(bytes, 2 * kNumbers - place);
    std::memcpy(data, table + place, count);
    data += count;
    bytes -= count;
    place = 0;
  }
}

// Blocks of a sequence, each with memory on a page border. The padding has a pattern.
class Blocks {
 public:
  static constexpr std::byte kPadding{0xA5};

  Blocks(const BlockGeometry& geometry, int64_t count, uint64_t seed = 1, BlockKey fingerprint = {1, 2})
      : geometry_(geometry), memory_(static_cast<size_t>(count)), tokens_(static_cast<size_t>(count)) {
    std::mt19937_64 random(seed);
    BlockKey parent = fingerprint;
    for (size_t i = 0; i < memory_.size(); ++i) {
      memory_[i].reset(static_cast<std::byte*>(std::aligned_alloc(4096, static_cast<size_t>(geometry.block_bytes()))));
      std::memset(memory_[i].get(), 0xA5, static_cast<size_t>(geometry.block_bytes()));
      for (int64_t piece = 0; piece < geometry.pieces; ++piece) {
        fill_like_keys(this->piece(i, piece), static_cast<size_t>(geometry.piece_bytes), random());
      }
      tokens_[i].resize(static_cast<size_t>(geometry.tokens));
      for (int32_t& token : tokens_[i]) token = static_cast<int32_t>(random() & 0xFFFF);
      RemoteBlock block;
      block.parent = parent;
      block.key = parent = chain_key(parent, tokens_[i]);
      block.tokens = tokens_[i];
      block.data = memory_[i].get();
      blocks_.push_back(block);
    }
  }

  // The same blocks over other memory, which is filled with the pattern.
  Blocks(const Blocks& other, std::nullptr_t) : Blocks(other.geometry_, static_cast<int64_t>(other.size())) {
    for (size_t i = 0; i < size(); ++i) {
      std::memset(memory_[i].get(), 0xA5, static_cast<size_t>(geometry_.block_bytes()));
      tokens_[i] = other.tokens_[i];
      blocks_[i] = other.blocks_[i];
      blocks_[i].tokens = tokens_[i];
      blocks_[i].data = memory_[i].get();
    }
  }

  size_t size() const { return memory_.size(); }
  std::vector<RemoteBlock>& blocks() { return blocks_; }
  RemoteBlock& operator[](size_t position) { return blocks_[position]; }
  std::byte* piece(size_t block, int64_t piece) { return memory_[block].get() + piece * geometry_.piece_stride(); }
  std::vector<BlockKey> keys() const {
    std::vector<BlockKey> keys;
    for (const RemoteBlock& block : blocks_) keys.push_back(block.key);
    return keys;
  }

  // The pieces and the padding have equal bits.
  bool equal(size_t position, const Blocks& other) const {
    return std::memcmp(memory_[position].get(), other.memory_[position].get(),
                       static_cast<size_t>(geometry_.block_bytes())) == 0;
  }
  bool all_equal(const Blocks& other) const {
    for (size_t i = 0; i < size(); ++i) {
      if (!equal(i, other)) return false;
    }
    return true;
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { free(memory); }
  };
  BlockGeometry geometry_;
  std::vector<std::unique_ptr<std::byte, Free>> memory_;
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<RemoteBlock> blocks_;
};

inline RemoteOptions options_of(const BlockGeometry& geometry, BlockKey fingerprint = {1, 2}) {
  RemoteOptions options;
  options.geometry = geometry;
  options.fingerprint = fingerprint;
  options.timeout_seconds = 10;
  options.retry_seconds = 0;
  return options;
}

inline std::unique_ptr<RemoteTier> open_or_fail(const std::string& address, const RemoteOptions& options) {
  auto tier = open_remote(address, options);
  INFO(address << ": " << (tier.ok() ? "" : tier.status().message()));
  REQUIRE(tier.ok());
  return std::move(tier.value());
}

// A port that was free a moment ago.
inline int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  REQUIRE(bind(socket, reinterpret_cast<sockaddr*>(&address), bytes) == 0);
  REQUIRE(getsockname(socket, reinterpret_cast<sockaddr*>(&address), &bytes) == 0);
  close(socket);
  return ntohs(address.sin_port);
}

// A redis-server of this test, at a port and at a socket in a folder.
class RedisServer {
 public:
  static bool installed() {
    static const bool found = system("redis-server --version >/dev/null 2>&1") == 0;
    if (!found) WARN("redis-server is not installed: the tests with a real one do nothing");
    return found;
  }

  explicit RedisServer(std::vector<std::string> arguments = {})
      : arguments_(std::move(arguments)), port_(free_port()), socket_(folder_.path.string() + "/redis") {
    start();
  }
  ~RedisServer() { kill(); }

  void start() {
    std::vector<std::string> words = {"redis-server",
                                      "--bind",
                                      "127.0.0.1",
                                      "--port",
                                      std::to_string(port_),
                                      "--unixsocket",
                                      socket_,
                                      "--save",
                                      "",
                                      "--appendonly",
                                      "no",
                                      "--dir",
                                      folder_.path.string(),
                                      "--loglevel",
                                      "warning",
                                      "--logfile",
                                      folder_.path.string() + "/log"};
    words.insert(words.end(), arguments_.begin(), arguments_.end());
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    process_ = fork();
    if (process_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      execvp(pointers[0], pointers.data());
      _exit(127);
    }
    REQUIRE(process_ > 0);
    const auto start = steady_clock::now();
    while (!answers() && seconds_since(start) < 20) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    REQUIRE(answers());
  }
  void kill(int signal = SIGKILL) {
    if (process_ <= 0) return;
    ::kill(process_, signal);
    waitpid(process_, nullptr, 0);
    process_ = 0;
  }
  void signal(int number) { ::kill(process_, number); }

  std::string address() const { return "redis://127.0.0.1:" + std::to_string(port_); }
  std::string authority(const std::string& user) const {
    return "redis://" + user + "@127.0.0.1:" + std::to_string(port_);
  }
  std::string socket_address() const { return "unix://" + socket_; }

  // Sends a command in a line, and returns the first bytes of the reply.
  std::string command(const std::string& line) {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port_));
    std::string reply;
    if (connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
      const std::string text = line + "\r\n";
      char buffer[4096];
      if (send(socket, text.data(), text.size(), MSG_NOSIGNAL) > 0) {
        const ssize_t got = recv(socket, buffer, sizeof(buffer), 0);
        if (got > 0) reply.assign(buffer, static_cast<size_t>(got));
      }
    }
    close(socket);
    return reply;
  }

 private:
  bool answers() {
    const std::string reply = command("PING");
    return reply.starts_with("+PONG") || reply.starts_with("-NOAUTH");
  }

  TemporaryFolder folder_{"redis"};
  const std::vector<std::string> arguments_;
  const int port_;
  const std::string socket_;
  pid_t process_ = 0;
};

}  // namespace hetero::backend::testing
