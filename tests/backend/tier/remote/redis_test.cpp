// Redis as a remote tier: servers that lie, stall, stop and come back.

#include <fcntl.h>
#include <poll.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <optional>

#include "tests/backend/child.h"
#include "tests/backend/tier/remote/remote_fixture.h"

using namespace hetero;
using namespace hetero::backend;
using namespace hetero::backend::testing;

namespace {

constexpr BlockGeometry kSmall{16, 3, 8192};

// A server that answers each command as the test says. Each connection has a thread.
class FakeServer {
 public:
  class Client {
   public:
    Client(FakeServer& server, int socket) : server_(server), socket_(socket) {}
    // The next command; empty when the client or the test ended.
    std::vector<std::string> command() {
      std::vector<std::string> words;
      const std::string line = this->line();
      if (!line.starts_with('*')) return {};
      for (int left = std::stoi(line.substr(1)); left > 0; --left) {
        const std::string length = this->line();
        if (!length.starts_with('$')) return {};
        const auto bytes = static_cast<size_t>(std::stoul(length.substr(1)));
        while (buffer_.size() < bytes + 2) {
          if (!more()) return {};
        }
        words.push_back(buffer_.substr(0, bytes));
        buffer_.erase(0, bytes + 2);
      }
      return words;
    }
    // False if the client is gone.
    bool say(std::string_view text) {
      while (!text.empty()) {
        if (!ready(POLLOUT)) return false;
        const ssize_t sent = send(socket_, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EAGAIN) continue;
        if (sent <= 0) return false;
        text.remove_prefix(static_cast<size_t>(sent));
      }
      return true;
    }
    void hang() {
      while (more()) buffer_.clear();
    }
    // Closes with a reset instead of an end.
    void reset() {
      const linger now{1, 0};
      setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    }

   private:
    bool ready(short events) {
      while (!server_.stopped_) {
        pollfd waiting{socket_, events, 0};
        if (poll(&waiting, 1, 10) > 0) return true;
      }
      return false;
    }
    bool more() {
      char bytes[65536];
      if (!ready(POLLIN)) return false;
      const ssize_t got = recv(socket_, bytes, sizeof(bytes), 0);
      if (got <= 0) return false;
      buffer_.append(bytes, static_cast<size_t>(got));
      return true;
    }
    std::string line() {
      size_t end;
      while ((end = buffer_.find("\r\n")) == std::string::npos) {
        if (!more()) return {};
      }
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 2);
      return line;
    }

    FakeServer& server_;
    const int socket_;
    std::string buffer_;
  };
  using Script = std::function<void(Client& client)>;

  explicit FakeServer(Script script) : script_(std::move(script)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(address);
    REQUIRE(bind(listener_, reinterpret_cast<sockaddr*>(&address), bytes) == 0);
    REQUIRE(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &bytes) == 0);
    REQUIRE(listen(listener_, 64) == 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { accept_all(); });
  }
  ~FakeServer() {
    stopped_ = true;
    thread_.join();
    close(listener_);
  }
  std::string address() const { return "redis://127.0.0.1:" + std::to_string(port_); }
  int connections() const { return connections_; }

 private:
  void accept_all() {
    std::vector<std::thread> clients;
    while (!stopped_) {
      pollfd waiting{listener_, POLLIN, 0};
      if (poll(&waiting, 1, 10) <= 0) continue;
      const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (socket < 0) continue;
      ++connections_;
      clients.emplace_back([this, socket] {
        Client client(*this, socket);
        script_(client);
        close(socket);
      });
    }
    for (std::thread& client : clients) client.join();
  }

  const Script script_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stopped_{false};
  std::atomic<int> connections_{0};
  std::thread thread_;
};

// Values of a fake server, by name.
class Values {
 public:
  void set(const std::string& name, std::string value) {
    std::lock_guard lock(mutex_);
    values_[name] = std::move(value);
  }
  std::optional<std::string> get(const std::string& name) {
    std::lock_guard lock(mutex_);
    const auto found = values_.find(name);
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }
  // The reply of a server that works.
  std::string answer(const std::vector<std::string>& words) {
    if (words[0] == "SET") {
      set(words[1], words[2]);
      return "+OK\r\n";
    }
    const auto value = get(words[1]);
    if (words[0] == "EXISTS") return value ? ":1\r\n" : ":0\r\n";
    if (words[0] == "DEL") return ":1\r\n";
    if (!value) return "$-1\r\n";
    return std::string("$").append(std::to_string(value->size())).append("\r\n").append(*value).append("\r\n");
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
};

RemoteOptions quick() {
  RemoteOptions options = options_of(kSmall);
  options.timeout_seconds = 0.3;
  return options;
}

}  // namespace

TEST_CASE("redis: a server that answers one byte at a time is as good as any", "[remote]") {
  Values values;
  FakeServer server([&](FakeServer::Client& client) {
    for (auto words = client.command(); !words.empty(); words = client.command()) {
      const std::string reply = values.answer(words);
      // The pieces go at once: one byte at a time is for what is parsed.
      const size_t slow = std::min<size_t>(reply.size(), 600);
      for (size_t i = 0; i < slow; ++i) client.say({&reply[i], 1});
      if (reply.size() > slow + 10) client.say({reply.data() + slow, reply.size() - slow - 10});
      for (size_t i = std::max(slow, reply.size() > slow + 10 ? reply.size() - 10 : slow); i < reply.size(); ++i) {
        client.say({&reply[i], 1});
      }
    }
  });
  RemoteOptions options = options_of(kSmall);
  auto tier = open_or_fail(server.address(), options);
  Blocks blocks(kSmall, 4);
  Blocks copies(blocks, nullptr);
  REQUIRE(tier->put(blocks.blocks()).missing.empty());
  REQUIRE(tier->match(blocks.keys()).value() == 4);
  REQUIRE(tier->get(copies.blocks()).missing.empty());
  REQUIRE(blocks.all_equal(copies));
  REQUIRE(server.connections() == 1);
}

TEST_CASE("redis: whatever a server sends, the answer is one status or missing blocks, in time", "[remote]") {
  Values values;
  std::string what;  // what is said in place of a reply to GET
  enum class Then { kContinue, kClose, kReset, kHang } then = Then::kContinue;
  std::mutex mutex;
  FakeServer server([&](FakeServer::Client& client) {
    for (auto words = client.command(); !words.empty(); words = client.command()) {
      std::unique_lock lock(mutex);
      const std::string text = what;
      const Then end = then;
      lock.unlock();
      if (words[0] == "SET") {
        client.say(values.answer(words));
        continue;
      }
      client.say(text);
      if (end == Then::kReset) client.reset();
      if (end == Then::kClose || end == Then::kReset) return;
      if (end == Then::kHang) return client.hang();
    }
  });
  Blocks blocks(kSmall, 2);
  auto tier = open_or_fail(server.address(), quick());
  REQUIRE(tier->put(blocks.blocks()).missing.empty());
  const std::string value = *values.get("hetero:" + to_string(BlockKey{1, 2}) + ":" + to_string(blocks[0].key));
  const std::string length = std::to_string(value.size());
  std::string flipped = value;
  flipped[value.size() / 2] = static_cast<char>(flipped[value.size() / 2] ^ 4);

  struct Case {
    std::string text;
    Then end = Then::kContinue;
    bool fails = true;  // with a status; otherwise the blocks are missing
    int64_t rejected = 0;
  };
  const std::vector<Case> cases = {
      {"", Then::kHang},
      {"", Then::kClose},
      {"", Then::kReset},
      {"$", Then::kHang},
      {"$" + length + "\r\n" + value.substr(0, 100), Then::kHang},
      {"$" + length + "\r\n" + value.substr(0, 20000), Then::kClose},
      {"$" + length + "\r\n" + value.substr(0, 20000), Then::kReset},
      {"$" + length + "\r\n" + value, Then::kClose},
      {"$" + length + "\r\n" + value + "xx", Then::kContinue},
      {"$" + length + "\r\n" + value + "\r\n+OK\r\n:1\r\n$-1\r\n", Then::kContinue},
      {"$" + std::to_string(value.size() - 5) + "\r\n" + value + "\r\n", Then::kContinue},
      {"$" + std::to_string(value.size() + 5) + "\r\n" + value + "\r\n", Then::kHang},
      {"$536870913\r\n", Then::kContinue},
      {"$536870912\r\n", Then::kHang},
      {"$99999999999999999999999\r\n", Then::kContinue},
      {"$-2\r\n", Then::kContinue},
      {"$abc\r\n", Then::kContinue},
      {"$\r\n", Then::kContinue},
      {"*1\r\n$1\r\nx\r\n", Then::kContinue},
      {":1\r\n", Then::kContinue},
      {"+OK\r\n", Then::kContinue},
      {"\r\n", Then::kContinue},
      {"\n", Then::kContinue},
      {"HTTP/1.1 400 Bad Request\r\n\r\n", Then::kClose},
      {std::string(5000, 'x'), Then::kContinue},
      {std::string(5000, '\0'), Then::kContinue},
      {"-", Then::kHang},
      {"-ERR something\r\n", Then::kContinue},
      {"-NOAUTH Authentication required.\r\n", Then::kContinue},
      {"-LOADING Redis is loading the dataset in memory\r\n", Then::kContinue},
      {"-ERR \x1b[31m" + std::string(400, 'y') + "\r\n", Then::kContinue},
      {"$-1\r\n", Then::kContinue, false},
      {"$0\r\n\r\n", Then::kContinue, false, 2},
      {"$5\r\nhello\r\n", Then::kContinue, false, 2},
      {"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n", Then::kContinue, false, 2},
      {"$" + length + "\r\n" + flipped + "\r\n", Then::kContinue, false, 2},
      {"$100000\r\n" + std::string(100000, 'z') + "\r\n", Then::kContinue, false, 2},
      {"$" + length + "\r\n" + std::string(value.size(), '\0') + "\r\n", Then::kContinue, false, 2},
  };
  for (const Case& one : cases) {
    INFO("a server that says " << one.text.substr(0, 60));
    {
      std::lock_guard lock(mutex);
      what = one.text;
      then = one.end;
    }
    auto fresh = open_or_fail(server.address(), quick());
    Blocks copies(blocks, nullptr);
    // The second block is damaged on the way to the test too.
    const auto start = steady_clock::now();
    const RemoteResult got = fresh->get(copies.blocks());
    REQUIRE(seconds_since(start) < 2);
    REQUIRE(got.status.ok() == !one.fails);
    for (size_t i = 0; i < 2; ++i) {
      const bool missing =
          std::find(got.missing.begin(), got.missing.end(), static_cast<int64_t>(i)) != got.missing.end();
      REQUIRE((missing || blocks.equal(i, copies)));
    }
    if (one.fails) {
      REQUIRE(got.status.error_class() == ErrorClass::kStorage);
      REQUIRE(got.status.message().starts_with(server.address()));
      REQUIRE(got.status.message().find_first_of("\r\n\x1b") == std::string::npos);
      REQUIRE(got.status.message().size() < 300);
      REQUIRE(fresh->counters().errors == 1);
      REQUIRE(fresh->counters().timeouts == (one.end == Then::kHang ? 1 : 0));
      REQUIRE_FALSE(got.missing.empty());
    } else {
      REQUIRE(got.missing.size() == 2);
      REQUIRE(fresh->counters().rejected == one.rejected);
      REQUIRE(fresh->counters().errors == 0);
    }
  }
}

TEST_CASE("redis: random replies never give wrong bytes, and never hang", "[remote]") {
  Values values;
  std::mt19937_64 random(17);
  std::mutex mutex;
  FakeServer server([&](FakeServer::Client& client) {
    for (auto words = client.command(); !words.empty(); words = client.command()) {
      std::string reply = values.answer(words);
      if (words[0] != "SET") {
        std::lock_guard lock(mutex);
        for (uint64_t changes = random() % 3; changes > 0; --changes) {
          const size_t place = random() % (random() % 2 == 0 ? std::min<size_t>(reply.size(), 12) : reply.size());
          switch (random() % 3) {
            case 0:
              reply[place] = static_cast<char>(random());
              break;
            case 1:
              reply.erase(place, 1 + random() % 3);
              break;
            default:
              reply.insert(place, 1, static_cast<char>(random()));
          }
          if (reply.empty()) break;
        }
      }
      if (!client.say(reply)) return;
    }
  });
  RemoteOptions options = quick();
  options.timeout_seconds = 0.02;
  auto tier = open_or_fail(server.address(), options);
  Blocks blocks(kSmall, 2);
  while (!tier->put(blocks.blocks()).status.ok()) continue;
  int64_t given = 0, failed = 0;
  for (int round = 0; round < 400; ++round) {
    Blocks copies(blocks, nullptr);
    const auto start = steady_clock::now();
    const RemoteResult got = tier->get(copies.blocks());
    REQUIRE(seconds_since(start) < 2);
    failed += got.status.ok() ? 0 : 1;
    for (size_t i = 0; i < 2; ++i) {
      if (std::find(got.missing.begin(), got.missing.end(), static_cast<int64_t>(i)) != got.missing.end()) continue;
      ++given;
      REQUIRE(blocks.equal(i, copies));
    }
  }
  REQUIRE(given > 0);
  REQUIRE(failed > 0);
}

TEST_CASE("redis: a server that trickles does not get more than the deadline", "[remote]") {
  Values values;
  FakeServer server([&](FakeServer::Client& client) {
    for (auto words = client.command(); !words.empty(); words = client.command()) {
      const std::string reply = values.answer(words);
      if (words[0] == "SET") {
        client.say(reply);
        continue;
      }
      for (const char& byte : reply) {
        if (!client.say({&byte, 1})) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    }
  });
  auto tier = open_or_fail(server.address(), quick());
  Blocks blocks(kSmall, 3);
  REQUIRE(tier->put(blocks.blocks()).missing.empty());
  const auto start = steady_clock::now();
  const RemoteResult got = tier->get(blocks.blocks());
  REQUIRE(seconds_since(start) < 1);
  REQUIRE(got.missing.size() == 3);
  REQUIRE(tier->counters().timeouts == 1);
}

TEST_CASE("redis: a server that takes nothing, or is not there, does not hold a put longer than the deadline",
          "[remote]") {
  constexpr BlockGeometry kLarge{16, 8, 1 << 20};
  RemoteOptions options = options_of(kLarge);
  options.timeout_seconds = 0.3;
  Blocks blocks(kLarge, 2);
  FakeServer server([&](FakeServer::Client&) { std::this_thread::sleep_for(std::chrono::milliseconds(600)); });
  auto tier = open_or_fail(server.address(), options);
  auto start = steady_clock::now();
  REQUIRE(tier->put(blocks.blocks()).missing.size() == 2);
  REQUIRE(seconds_since(start) < 0.55);
  REQUIRE(tier->counters().timeouts == 1);

  for (const std::string& address :
       {"redis://127.0.0.1:" + std::to_string(free_port()), std::string("unix:///nowhere/socket"),
        std::string("redis://no-such-host.invalid"), std::string("redis://[::1]:1")}) {
    INFO(address);
    auto nowhere = open_or_fail(address, options);
    start = steady_clock::now();
    const RemoteResult put = nowhere->put(blocks.blocks());
    REQUIRE(seconds_since(start) < 1);
    REQUIRE(put.status.error_class() == ErrorClass::kStorage);
    REQUIRE(put.status.message().starts_with(address));
  }
}

TEST_CASE("redis: a server that is full takes no blocks for a while, and still gives them", "[remote]") {
  Values values;
  std::atomic<bool> full{false};
  std::atomic<int> sets{0};
  FakeServer server([&](FakeServer::Client& client) {
    for (auto words = client.command(); !words.empty(); words = client.command()) {
      if (words[0] == "SET") ++sets;
      const bool refuse = words[0] == "SET" && full;
      client.say(refuse ? "-OOM command not allowed when used memory > 'maxmemory'.\r\n" : values.answer(words));
    }
  });
  RemoteOptions options = options_of(kSmall);
  options.retry_seconds = 0.3;
  auto tier = open_or_fail(server.address(), options);
  Blocks blocks(kSmall, 2);
  REQUIRE(tier->put(blocks.blocks()).missing.empty());
  full = true;
  const RemoteResult put = tier->put(blocks.blocks());
  REQUIRE(put.missing.size() == 2);
  REQUIRE(put.status.message().find("OOM command not allowed") != std::string::npos);
  const int before = sets;
  REQUIRE(tier->put(blocks.blocks()).missing.size() == 2);
  REQUIRE(sets == before);
  Blocks copies(blocks, nullptr);
  REQUIRE(tier->get(copies.blocks()).missing.empty());
  REQUIRE(blocks.all_equal(copies));
  full = false;
  std::this_thread::sleep_for(std::chrono::milliseconds(350));
  REQUIRE(tier->put(blocks.blocks()).missing.empty());
  REQUIRE(server.connections() == 1);
}

TEST_CASE("redis: a real server with a limit of memory refuses blocks by one status", "[remote]") {
  if (!RedisServer::installed()) return;
  RedisServer server({"--maxmemory", "4mb", "--maxmemory-policy", "noeviction"});
  constexpr BlockGeometry kLarge{16, 4, 262144};
  auto tier = open_or_fail(server.address(), options_of(kLarge));
  Blocks blocks(kLarge, 8);
  const RemoteResult put = tier->put(blocks.blocks());
  REQUIRE_FALSE(put.status.ok());
  REQUIRE(put.status.message().find("OOM") != std::string::npos);
  REQUIRE(put.missing.size() > 0);
  REQUIRE(put.missing.size() < 8);
  Blocks copies(blocks, nullptr);
  const RemoteResult got = tier->get(copies.blocks());
  REQUIRE(got.status.ok());
  REQUIRE(got.missing == put.missing);
}

TEST_CASE("redis: values of another type, or of another program, are missing", "[remote]") {
  if (!RedisServer::installed()) return;
  RedisServer server;
  auto tier = open_or_fail(server.address(), options_of(kSmall));
  Blocks blocks(kSmall, 3);
  REQUIRE(tier->put(blocks.blocks()).missing.empty());
  const auto name = [&](size_t block) {
    return "hetero:" + to_string(BlockKey{1, 2}) + ":" + to_string(blocks[block].key);
  };
  REQUIRE(server.command("DEL " + name(0)).starts_with(":1"));
  REQUIRE(server.command("LPUSH " + name(0) + " a").starts_with(":1"));
  REQUIRE(server.command("SETRANGE " + name(1) + " 9000 x").starts_with(":"));
  Blocks copies(blocks, nullptr);
  const RemoteResult got = tier->get(copies.blocks());
  REQUIRE(got.status.ok());
  REQUIRE(got.missing == std::vector<int64_t>{0, 1});
  REQUIRE(blocks.equal(2, copies));
  REQUIRE(tier->counters().rejected == 2);
  // A put repairs them.
  REQUIRE(tier->put(blocks.blocks()).missing.empty());
  REQUIRE(tier->get(copies.blocks()).missing.empty());
  REQUIRE(blocks.all_equal(copies));
}

TEST_CASE("redis: a block under another block's name, or from another fingerprint, is missing", "[remote]") {
  if (!RedisServer::installed()) return;
  RedisServer server;
  auto tier = open_or_fail(server.address(), options_of(kSmall));
  auto other = open_or_fail(server.address(), options_of(kSmall, {8, 8}));
  Blocks blocks(kSmall, 2);
  REQUIRE(tier->put(blocks.blocks()).missing.empty());
  const auto name = [&](BlockKey fingerprint, size_t block) {
    return "hetero:" + to_string(fingerprint) + ":" + to_string(blocks[block].key);
  };
  REQUIRE(server.command("COPY " + name({1, 2}, 0) + " " + name({1, 2}, 1) + " REPLACE").starts_with(":1"));
  REQUIRE(server.command("COPY " + name({1, 2}, 0) + " " + name({8, 8}, 0)).starts_with(":1"));
  for (RemoteBlock& block : blocks.blocks()) block.tokens = {};
  REQUIRE(tier->get(blocks.blocks()).missing == std::vector<int64_t>{1});
  REQUIRE(other->match(blocks.keys()).value() == 1);
  REQUIRE(other->get(blocks.blocks()).missing == std::vector<int64_t>{0, 1});
  REQUIRE(other->counters().rejected == 1);
}

TEST_CASE("redis: the password and the database of the address are used, and never shown", "[remote]") {
  if (!RedisServer::installed()) return;
  RedisServer server({"--requirepass", "pass@word"});
  Blocks blocks(kSmall, 1);
  auto right = open_or_fail(server.authority(":pass%40word"), options_of(kSmall));
  REQUIRE(right->put(blocks.blocks()).status.ok());
  auto named = open_or_fail(server.authority("default:pass%40word") + "/3", options_of(kSmall));
  REQUIRE(named->match(blocks.keys()).value() == 0);
  REQUIRE(named->put(blocks.blocks()).status.ok());
  for (const std::string& address : {server.authority(":wrong-secret"), server.address()}) {
    auto wrong = open_or_fail(address, options_of(kSmall));
    const RemoteResult got = wrong->get(blocks.blocks());
    REQUIRE_FALSE(got.status.ok());
    REQUIRE(got.missing.size() == 1);
    REQUIRE(got.status.message().find("secret") == std::string::npos);
    REQUIRE_FALSE(wrong->put(blocks.blocks()).status.ok());
    REQUIRE_FALSE(wrong->match(blocks.keys()).ok());
  }
  auto outside = open_or_fail(server.authority(":pass%40word") + "/999", options_of(kSmall));
  REQUIRE_FALSE(outside->get(blocks.blocks()).status.ok());
}

TEST_CASE("redis: after a restart of the server, calls go on without an error", "[remote]") {
  if (!RedisServer::installed()) return;
  RedisServer server;
  for (const std::string& address : {server.address(), server.socket_address()}) {
    RemoteOptions options = options_of(kSmall);
    options.retry_seconds = 1000;
    auto tier = open_or_fail(address, options);
    Blocks blocks(kSmall, 4);
    // Several connections lie idle.
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back([&] { (void)tier->put(blocks.blocks()); });
    for (std::thread& thread : threads) thread.join();
    REQUIRE(tier->counters().errors == 0);
    server.kill();
    server.start();
    REQUIRE(tier->match(blocks.keys()).value() == 0);
    REQUIRE(tier->put(blocks.blocks()).missing.empty());
    REQUIRE(tier->match(blocks.keys()).value() == 4);
    REQUIRE(tier->counters().errors == 0);
  }
}

TEST_CASE("redis: a server that is killed at any moment costs blocks, and gives no wrong ones", "[remote]") {
  if (!RedisServer::installed()) return;
  RedisServer server;
  constexpr BlockGeometry kLarge{16, 7, 65536};
  RemoteOptions options = options_of(kLarge);
  options.timeout_seconds = 2;
  options.retry_seconds = 0.01;
  auto tier = open_or_fail(server.address(), options);
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0}, slow{0}, hits{0}, failures{0};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      Blocks blocks(kLarge, 8, thread);
      while (!stop) {
        const auto start = steady_clock::now();
        if (!tier->put(blocks.blocks()).status.ok()) ++failures;
        Blocks copies(blocks, nullptr);
        const RemoteResult got = tier->get(copies.blocks());
        if (!got.status.ok()) ++failures;
        if (seconds_since(start) > 6) ++slow;
        for (size_t i = 0; i < 8; ++i) {
          if (std::find(got.missing.begin(), got.missing.end(), static_cast<int64_t>(i)) != got.missing.end()) continue;
          ++hits;
          if (!blocks.equal(i, copies)) ++wrong;
        }
      }
    });
  }
  std::mt19937_64 random(3);
  for (int round = 0; round < 8; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + random() % 60));
    server.kill();
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 20));
    server.start();
  }
  // A server that is stopped answers nothing, and keeps its connections.
  server.signal(SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  server.signal(SIGCONT);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  stop = true;
  for (std::thread& thread : threads) thread.join();
  REQUIRE(wrong == 0);
  REQUIRE(slow == 0);
  REQUIRE(hits > 0);
  REQUIRE(failures > 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  Blocks last(kLarge, 2, 99);
  REQUIRE(tier->put(last.blocks()).missing.empty());
}

TEST_CASE("redis: a process and its child use the tier at the same time", "[remote]") {
  if (!RedisServer::installed()) return;
  RedisServer server;
  auto tier = open_or_fail(server.address(), options_of(kSmall));
  Blocks blocks(kSmall, 3);
  Blocks others(kSmall, 3, 5);
  REQUIRE(tier->put(blocks.blocks()).missing.empty());
  const ChildOutcome child = run_in_child([&] {
    for (int round = 0; round < 50; ++round) {
      Blocks copies(others, nullptr);
      if (!tier->put(others.blocks()).missing.empty()) return 1;
      if (!tier->get(copies.blocks()).missing.empty() || !others.all_equal(copies)) return 2;
    }
    return 0;
  });
  INFO(child.error_output);
  REQUIRE(child.exit_code == 0);
  Blocks copies(blocks, nullptr);
  REQUIRE(tier->get(copies.blocks()).missing.empty());
  REQUIRE(blocks.all_equal(copies));
}

TEST_CASE("redis: more threads than connections wait for one another, at most until the deadline", "[remote]") {
  std::atomic<bool> hang{false};
  Values values;
  FakeServer server([&](FakeServer::Client& client) {
    for (auto words = client.command(); !words.empty(); words = client.command()) {
      if (hang) return client.hang();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      client.say(values.answer(words));
    }
  });
  RemoteOptions options = quick();
  options.timeout_seconds = 1;
  options.retry_seconds = 0.1;
  auto tier = open_or_fail(server.address(), options);
  Blocks blocks(kSmall, 1);
  const auto run_threads = [&](auto body) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 20; ++i) threads.emplace_back(body);
    for (std::thread& thread : threads) thread.join();
  };
  std::atomic<int> wrong{0};
  run_threads([&] {
    for (int round = 0; round < 3; ++round) {
      if (!tier->match(blocks.keys()).ok()) ++wrong;
    }
  });
  REQUIRE(wrong == 0);
  REQUIRE(server.connections() <= 8);
  REQUIRE(server.connections() >= 2);
  hang = true;
  run_threads([&] {
    const auto start = steady_clock::now();
    if (tier->match(blocks.keys()).ok() || seconds_since(start) > 2.5) ++wrong;
  });
  REQUIRE(wrong == 0);
  hang = false;
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  REQUIRE(tier->put(blocks.blocks()).missing.empty());
}
