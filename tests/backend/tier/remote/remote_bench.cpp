// Measures a remote tier against a bare loop over a socket, with a redis-server of its own.
//
// The loop sends the same SET and GET commands and takes the same bytes to the same memory, with
// blocking sendmsg and readv. It neither makes nor verifies headers and checksums. Rounds of the
// tier and of the loop alternate, and the medians are compared.
//
//   hetero_remote_bench [rounds] [unix]

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backend/tier/remote_tier.h"

namespace {

using namespace hetero;
using namespace hetero::backend;
using std::chrono::steady_clock;

[[noreturn]] void give_up(const std::string& what) {
  std::fprintf(stderr, "hetero_remote_bench: %s\n", what.c_str());
  std::exit(1);
}

double seconds_since(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

class Server {
 public:
  Server() {
    std::string path = (std::filesystem::temp_directory_path() / "hetero-bench-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) give_up("no temporary folder");
    folder_ = path;
    port_ = 20000 + static_cast<int>(getpid() % 20000);
    process_ = fork();
    if (process_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const std::string port = std::to_string(port_);
      const std::string socket = this->socket();
      execlp("redis-server", "redis-server", "--port", port.c_str(), "--bind", "127.0.0.1", "--unixsocket",
             socket.c_str(), "--save", "", "--appendonly", "no", "--loglevel", "warning", "--dir", folder_.c_str(),
             nullptr);
      _exit(127);
    }
  }
  ~Server() {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
    std::error_code error;
    std::filesystem::remove_all(folder_, error);
  }
  std::string socket() const { return folder_ + "/redis"; }
  int port() const { return port_; }

 private:
  std::string folder_;
  int port_ = 0;
  pid_t process_ = 0;
};

int connect_to(const Server& server, bool by_socket) {
  sockaddr_storage address{};
  socklen_t bytes;
  if (by_socket) {
    auto* local = reinterpret_cast<sockaddr_un*>(&address);
    local->sun_family = AF_UNIX;
    std::strncpy(local->sun_path, server.socket().c_str(), sizeof(local->sun_path) - 1);
    bytes = sizeof(sockaddr_un);
  } else {
    auto* internet = reinterpret_cast<sockaddr_in*>(&address);
    internet->sin_family = AF_INET;
    internet->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    internet->sin_port = htons(static_cast<uint16_t>(server.port()));
    bytes = sizeof(sockaddr_in);
  }
  const auto start = steady_clock::now();
  for (;;) {
    const int socket = ::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(socket, reinterpret_cast<sockaddr*>(&address), bytes) == 0) {
      const int on = 1;
      if (!by_socket) setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      return socket;
    }
    close(socket);
    if (seconds_since(start) > 10) give_up("redis-server does not answer; is it installed?");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

void send_all(int socket, std::vector<iovec>& parts) {
  size_t next = 0;
  while (next < parts.size()) {
    msghdr message{};
    message.msg_iov = parts.data() + next;
    message.msg_iovlen = parts.size() - next;
    const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL);
    if (sent <= 0) give_up("the bare loop cannot send");
    auto left = static_cast<size_t>(sent);
    while (next < parts.size() && left >= parts[next].iov_len) left -= parts[next++].iov_len;
    if (next == parts.size()) break;
    parts[next].iov_base = static_cast<char*>(parts[next].iov_base) + left;
    parts[next].iov_len -= left;
  }
}

void receive_all(int socket, std::vector<iovec>& parts) {
  size_t next = 0;
  while (next < parts.size()) {
    const ssize_t got = readv(socket, parts.data() + next, static_cast<int>(parts.size() - next));
    if (got <= 0) give_up("the bare loop cannot receive");
    auto left = static_cast<size_t>(got);
    while (next < parts.size() && left >= parts[next].iov_len) left -= parts[next++].iov_len;
    if (next == parts.size()) break;
    parts[next].iov_base = static_cast<char*>(parts[next].iov_base) + left;
    parts[next].iov_len -= left;
  }
}

// The bare loop. Its values have the bytes of a block and nothing else.
class BareLoop {
 public:
  BareLoop(int socket, size_t bytes) : socket_(socket), bytes_(bytes) {}

  void put(const std::vector<RemoteBlock>& blocks) {
    const std::string length = std::string("$").append(std::to_string(bytes_)).append("\r\n");
    std::string end = "\r\n";
    for (const RemoteBlock& block : blocks) {
      std::string head = std::string("*3\r\n$3\r\nSET\r\n$36\r\nraw:").append(to_string(block.key)).append("\r\n");
      head.append(length);
      std::vector<iovec> parts = {{head.data(), head.size()}, {block.data, bytes_}, {end.data(), end.size()}};
      send_all(socket_, parts);
    }
    std::string replies(5 * blocks.size(), '\0');
    std::vector<iovec> parts = {{replies.data(), replies.size()}};
    receive_all(socket_, parts);
    if (!replies.ends_with("+OK\r\n")) give_up("the bare loop's SET failed");
  }

  // With at most `window` commands that wait for an answer.
  void get(const std::vector<RemoteBlock>& blocks, size_t window) {
    std::string head = std::string("$").append(std::to_string(bytes_)).append("\r\n");
    std::string end(2, '\0');
    size_t sent = 0;
    for (size_t i = 0; i < blocks.size(); ++i) {
      std::string commands;
      for (; sent < blocks.size() && sent < i + window; ++sent) {
        commands.append("*2\r\n$3\r\nGET\r\n$36\r\nraw:").append(to_string(blocks[sent].key)).append("\r\n");
      }
      if (!commands.empty()) {
        std::vector<iovec> parts = {{commands.data(), commands.size()}};
        send_all(socket_, parts);
      }
      std::vector<iovec> parts = {{head.data(), head.size()}, {blocks[i].data, bytes_}, {end.data(), end.size()}};
      receive_all(socket_, parts);
      if (end != "\r\n") give_up("the bare loop's GET failed");
    }
  }

 private:
  const int socket_;
  const size_t bytes_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void measure(const Server& server, bool by_socket, const BlockGeometry& geometry, int rounds) {
  constexpr size_t kBlocks = 64;
  const auto bytes = static_cast<size_t>(geometry.block_bytes());
  std::vector<std::byte*> memory;
  std::vector<RemoteBlock> blocks;
  std::vector<int32_t> tokens(static_cast<size_t>(geometry.tokens), 5);
  std::mt19937_64 random(1);
  const RemoteOptions options = [&] {
    RemoteOptions made;
    made.geometry = geometry;
    made.fingerprint = {1, static_cast<uint64_t>(bytes)};
    made.timeout_seconds = 60;
    return made;
  }();
  BlockKey parent = options.fingerprint;
  for (size_t i = 0; i < kBlocks; ++i) {
    auto* data = static_cast<std::byte*>(std::aligned_alloc(4096, bytes));
    for (size_t place = 0; place < bytes; place += 8) {
      const uint64_t word = random();
      std::memcpy(data + place, &word, 8);
    }
    tokens[0] = static_cast<int32_t>(i);
    const BlockKey key = chain_key(parent, tokens);
    blocks.push_back({key, parent, {}, data});
    parent = key;
    memory.push_back(data);
  }
  const std::string address = by_socket ? std::string("unix://").append(server.socket())
                                        : std::string("redis://127.0.0.1:").append(std::to_string(server.port()));
  auto tier = open_remote(address, options);
  if (!tier.ok()) give_up(tier.status().message());
  const int socket = connect_to(server, by_socket);
  BareLoop bare(socket, bytes);
  const size_t windows[] = {1, 2, 4, 64};

  std::vector<double> put, get, bare_put;
  std::vector<std::vector<double>> bare_get(std::size(windows));
  const auto time = [](std::vector<double>& seconds, auto body) {
    const auto start = steady_clock::now();
    body();
    seconds.push_back(seconds_since(start));
  };
  for (int round = 0; round < rounds; ++round) {
    time(bare_put, [&] { bare.put(blocks); });
    time(put, [&] {
      if (!tier.value()->put(blocks).missing.empty()) give_up("the tier's put failed");
    });
    for (size_t i = 0; i < std::size(windows); ++i) {
      time(bare_get[i], [&] { bare.get(blocks, windows[i]); });
      if (i != std::size(windows) / 2) continue;
      time(get, [&] {
        if (!tier.value()->get(blocks).missing.empty()) give_up("the tier's get failed");
      });
    }
  }
  const double total = static_cast<double>(bytes) * kBlocks / 1e9;
  std::printf("64 blocks of %.3f MiB by %s\n", static_cast<double>(bytes) / (1 << 20),
              by_socket ? "a Unix socket" : "TCP");
  std::printf("  put: %.2f GB/s; bare loop %.2f GB/s; ratio %.2f\n", total / median(put), total / median(bare_put),
              median(bare_put) / median(put));
  double best = 1e9;
  std::printf("  get: %.2f GB/s; bare loop", total / median(get));
  for (size_t i = 0; i < std::size(windows); ++i) {
    best = std::min(best, median(bare_get[i]));
    std::printf(" %.2f (window %zu)", total / median(bare_get[i]), windows[i]);
  }
  std::printf(" GB/s; ratio to the best %.2f\n", best / median(get));
  close(socket);
  for (std::byte* data : memory) free(data);
}

}  // namespace

int main(int count, char** arguments) {
  int rounds = 11;
  bool by_socket = false;
  for (int i = 1; i < count; ++i) {
    if (std::string(arguments[i]) == "unix") by_socket = true;
    if (std::atoi(arguments[i]) > 0) rounds = std::atoi(arguments[i]);
  }
  Server server;
  close(connect_to(server, by_socket));
  measure(server, by_socket, {16, 28, 65536}, rounds);
  measure(server, by_socket, {16, 2, 65536}, rounds);
  return 0;
}
