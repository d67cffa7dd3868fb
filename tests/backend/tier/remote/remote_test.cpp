// The promises of RemoteTier, for every kind of tier and codec.

#include <atomic>
#include <functional>

#include "backend/tier/remote/codec.h"
#include "tests/backend/tier/remote/remote_fixture.h"

using namespace hetero;
using namespace hetero::backend;
using namespace hetero::backend::testing;

namespace {

// All kinds of stores at once, each empty.
class Stores {
 public:
  Stores() {
    addresses_.push_back({"memory", "memory:contract" + std::to_string(next_++)});
    addresses_.push_back({"folder", "file://" + folder_.path.string() + "/tier"});
    if (RedisServer::installed()) {
      server_ = std::make_unique<RedisServer>();
      addresses_.push_back({"redis", server_->address()});
      addresses_.push_back({"redis by a socket", server_->socket_address() + "?database=1"});
    }
  }

  using Body = std::function<void(const std::string& address)>;
  void each(const Body& body) {
    for (const auto& [name, address] : addresses_) {
      INFO("a tier in " << name);
      body(address);
    }
  }

 private:
  static inline std::atomic<int> next_{0};
  TemporaryFolder folder_{"remote"};
  std::unique_ptr<RedisServer> server_;
  std::vector<std::pair<std::string, std::string>> addresses_;
};

constexpr BlockGeometry kSmall{16, 3, 8192};

}  // namespace

TEST_CASE("remote: a block that was put comes back with all its bits, and padding is left alone", "[remote]") {
  Stores stores;
  const BlockGeometry geometries[] = {{16, 3, 8192}, {1, 1, 1}, {16, 5, 1000}, {3, 300, 4095}, {64, 28, 65536}};
  stores.each([&](const std::string& address) {
    uint64_t number = 0;
    for (const BlockGeometry& geometry : geometries) {
      for (const char* codec : {"none", "zstd", "lz4"}) {
        INFO("pieces: " << geometry.pieces << " of " << geometry.piece_bytes << ", codec: " << codec);
        RemoteOptions options = options_of(geometry, {7, ++number});
        options.codec = codec;
        auto tier = open_or_fail(address, options);
        Blocks blocks(geometry, 5, number);
        Blocks copies(blocks, nullptr);
        auto keys = blocks.keys();
        REQUIRE(tier->match(keys).value() == 0);
        REQUIRE(tier->get(copies.blocks()).missing == std::vector<int64_t>{0, 1, 2, 3, 4});
        const RemoteResult put = tier->put(blocks.blocks());
        REQUIRE(put.status.ok());
        REQUIRE(put.missing.empty());
        REQUIRE(tier->match(keys).value() == 5);
        const RemoteResult got = tier->get(copies.blocks());
        REQUIRE(got.status.ok());
        REQUIRE(got.missing.empty());
        REQUIRE(blocks.all_equal(copies));
        const RemoteCounters counters = tier->counters();
        REQUIRE(counters.gets == 10);
        REQUIRE(counters.hits == 5);
        REQUIRE(counters.puts == 5);
        REQUIRE(counters.rejected == 0);
        REQUIRE(counters.errors == 0);
        REQUIRE(counters.bytes_in == counters.bytes_out);
        REQUIRE(counters.bytes_in > 0);
        const bool packs = std::string(codec) == "zstd" && geometry.piece_bytes >= 1000;
        if (packs && has_codec(Codec::kZstd)) {
          REQUIRE(counters.bytes_in < geometry.pieces * geometry.piece_bytes * 5);
        }
      }
    }
  });
}

TEST_CASE("remote: match counts the first keys that are there, and get says which are missing", "[remote]") {
  Stores stores;
  stores.each([&](const std::string& address) {
    auto tier = open_or_fail(address, options_of(kSmall));
    Blocks blocks(kSmall, 6);
    std::vector<RemoteBlock> some = {blocks[0], blocks[1], blocks[3], blocks[5]};
    REQUIRE(tier->put(some).missing.empty());
    REQUIRE(tier->match(blocks.keys()).value() == 2);
    Blocks copies(blocks, nullptr);
    const RemoteResult got = tier->get(copies.blocks());
    REQUIRE(got.status.ok());
    REQUIRE(got.missing == std::vector<int64_t>{2, 4});
    for (const size_t present : {0, 1, 3, 5}) REQUIRE(blocks.equal(present, copies));

    const std::vector<BlockKey> removed = {blocks[1].key, blocks[2].key};
    REQUIRE(tier->remove(removed).ok());
    REQUIRE(tier->match(blocks.keys()).value() == 1);
    REQUIRE(tier->get(copies.blocks()).missing == std::vector<int64_t>{1, 2, 4});
  });
}

TEST_CASE("remote: nothing is asked of a tier for no blocks", "[remote]") {
  auto tier = open_or_fail("memory:?fail_every=1", options_of(kSmall));
  REQUIRE(tier->match({}).value() == 0);
  REQUIRE(tier->get({}).status.ok());
  REQUIRE(tier->put({}).status.ok());
  REQUIRE(tier->remove({}).ok());
  REQUIRE(tier->counters().errors == 0);
}

TEST_CASE("remote: a block that is put again replaces the former one", "[remote]") {
  Stores stores;
  stores.each([&](const std::string& address) {
    auto tier = open_or_fail(address, options_of(kSmall));
    Blocks first(kSmall, 1, 1);
    Blocks second(kSmall, 1, 2);
    second[0].key = first[0].key;
    second[0].parent = first[0].parent;
    second[0].tokens = first[0].tokens;
    REQUIRE(tier->put(first.blocks()).missing.empty());
    REQUIRE(tier->put(second.blocks()).missing.empty());
    Blocks copies(first, nullptr);
    REQUIRE(tier->get(copies.blocks()).missing.empty());
    REQUIRE(second.all_equal(copies));
  });
}

TEST_CASE("remote: two tiers see each other's blocks with the same fingerprint, and never with another one",
          "[remote]") {
  Stores stores;
  stores.each([&](const std::string& address) {
    auto writer = open_or_fail(address, options_of(kSmall, {1, 2}));
    auto reader = open_or_fail(address, options_of(kSmall, {1, 2}));
    auto stranger = open_or_fail(address, options_of(kSmall, {1, 3}));
    Blocks blocks(kSmall, 3);
    Blocks copies(blocks, nullptr);
    REQUIRE(writer->put(blocks.blocks()).missing.empty());
    REQUIRE(reader->match(blocks.keys()).value() == 3);
    REQUIRE(reader->get(copies.blocks()).missing.empty());
    REQUIRE(blocks.all_equal(copies));
    REQUIRE(stranger->match(blocks.keys()).value() == 0);
    REQUIRE(stranger->get(copies.blocks()).missing.size() == 3);
    REQUIRE(stranger->remove(blocks.keys()).ok());
    REQUIRE(reader->match(blocks.keys()).value() == 3);
  });
}

TEST_CASE("remote: prefixes separate blocks with the same fingerprint in a server", "[remote]") {
  if (!RedisServer::installed()) return;
  RedisServer server;
  RemoteOptions options = options_of(kSmall);
  auto one = open_or_fail(server.address(), options);
  options.prefix = "a prefix\r\nwith lines";
  auto other = open_or_fail(server.address(), options);
  Blocks blocks(kSmall, 1);
  REQUIRE(one->put(blocks.blocks()).missing.empty());
  REQUIRE(other->match(blocks.keys()).value() == 0);
  REQUIRE(other->put(blocks.blocks()).missing.empty());
  REQUIRE(other->match(blocks.keys()).value() == 1);
}

TEST_CASE("remote: a block with other tokens or another parent is missing where the caller gives tokens", "[remote]") {
  Stores stores;
  stores.each([&](const std::string& address) {
    auto tier = open_or_fail(address, options_of(kSmall));
    Blocks blocks(kSmall, 1);
    REQUIRE(tier->put(blocks.blocks()).missing.empty());
    Blocks copies(blocks, nullptr);
    std::vector<int32_t> tokens(copies[0].tokens.begin(), copies[0].tokens.end());
    const auto expect = [&](bool there, int64_t rejected) {
      const RemoteResult got = tier->get(copies.blocks());
      REQUIRE(got.status.ok());
      REQUIRE(got.missing.empty() == there);
      REQUIRE(tier->counters().rejected == rejected);
    };
    tokens[15] ^= 1;
    copies[0].tokens = tokens;
    expect(false, 1);
    tokens[15] ^= 1;
    copies[0].tokens = std::span(tokens).first(15);
    expect(false, 2);
    copies[0].tokens = tokens;
    copies[0].parent.low ^= 1;
    expect(false, 3);
    copies[0].tokens = {};
    expect(true, 3);
    REQUIRE(blocks.all_equal(copies));
  });
}

TEST_CASE("remote: a block of another geometry with the same fingerprint is missing", "[remote]") {
  Stores stores;
  stores.each([&](const std::string& address) {
    auto tier = open_or_fail(address, options_of(kSmall));
    Blocks blocks(kSmall, 1);
    REQUIRE(tier->put(blocks.blocks()).missing.empty());
    int64_t tried = 0;
    // The last one has values of the same length.
    for (const BlockGeometry& other :
         {BlockGeometry{16, 3, 8190}, BlockGeometry{16, 4, 8192}, BlockGeometry{32, 3, 8192}, BlockGeometry{1, 1, 1},
          BlockGeometry{15, 3, 8192}}) {
      auto reader = open_or_fail(address, options_of(other));
      Blocks copies(other, 1);
      copies[0].key = blocks[0].key;
      copies[0].tokens = {};
      const RemoteResult got = reader->get(copies.blocks());
      REQUIRE(got.status.ok());
      REQUIRE(got.missing.size() == 1);
      REQUIRE(reader->counters().rejected == 1);
      ++tried;
    }
    REQUIRE(tried == 5);
  });
}

TEST_CASE("remote: threads put and get at the same time", "[remote]") {
  Stores stores;
  stores.each([&](const std::string& address) {
    RemoteOptions options = options_of(kSmall);
    options.timeout_seconds = 60;
    auto tier = open_or_fail(address, options);
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (uint64_t thread = 0; thread < 12; ++thread) {
      threads.emplace_back([&, thread] {
        Blocks blocks(kSmall, 4, 100 + thread / 2);  // two threads have the same blocks
        Blocks copies(blocks, nullptr);
        for (int round = 0; round < 10; ++round) {
          const RemoteResult put = tier->put(blocks.blocks());
          const Result<int64_t> found = tier->match(blocks.keys());
          const RemoteResult got = tier->get(copies.blocks());
          if (!put.status.ok() || !put.missing.empty() || !found.ok() || found.value() != 4) ++wrong;
          if (!got.status.ok() || !got.missing.empty() || !blocks.all_equal(copies)) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    REQUIRE(wrong == 0);
    const RemoteCounters counters = tier->counters();
    REQUIRE(counters.hits == 12 * 10 * 4);
    REQUIRE(counters.errors == 0);
  });
}

TEST_CASE("remote: thousands of small blocks go in one call", "[remote]") {
  constexpr BlockGeometry kTiny{4, 2, 64};
  Stores stores;
  stores.each([&](const std::string& address) {
    auto tier = open_or_fail(address, options_of(kTiny));
    Blocks blocks(kTiny, 3000);
    Blocks copies(blocks, nullptr);
    REQUIRE(tier->put(blocks.blocks()).missing.empty());
    REQUIRE(tier->match(blocks.keys()).value() == 3000);
    REQUIRE(tier->get(copies.blocks()).missing.empty());
    REQUIRE(blocks.all_equal(copies));
    REQUIRE(tier->remove(blocks.keys()).ok());
    REQUIRE(tier->match(blocks.keys()).value() == 0);
  });
}

TEST_CASE("remote: blocks expire after their lifetime", "[remote]") {
  Stores stores;
  RemoteOptions options = options_of(kSmall);
  options.lifetime_seconds = 1;
  Blocks blocks(kSmall, 2);
  stores.each([&](const std::string& address) {
    REQUIRE(open_or_fail(address, options)->put(blocks.blocks()).missing.empty());
  });
  stores.each([&](const std::string& address) {
    auto tier = open_or_fail(address, options);
    const auto start = steady_clock::now();
    RemoteResult got = tier->get(blocks.blocks());
    // Each block expires for itself: in a folder up to a second later than the one before.
    while (got.status.ok() && got.missing.size() < 2 && seconds_since(start) < 5) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      got = tier->get(blocks.blocks());
    }
    REQUIRE(got.status.ok());
    REQUIRE(got.missing.size() == 2);
    REQUIRE(tier->match(blocks.keys()).value() == 0);
  });
}

TEST_CASE("remote: a call that breaks its contract does nothing, and says what is wrong", "[remote]") {
  auto tier = open_or_fail("memory:", options_of(kSmall));
  Blocks blocks(kSmall, 2);
  std::vector<int32_t> many(17);
  blocks[1].tokens = many;
  const RemoteResult put = tier->put(blocks.blocks());
  REQUIRE(put.status.error_class() == ErrorClass::kUsage);
  REQUIRE(put.missing.size() == 2);
  REQUIRE(tier->match(blocks.keys()).value() == 0);
  blocks[1].tokens = {};
  blocks[1].data = nullptr;
  REQUIRE(tier->put(blocks.blocks()).status.error_class() == ErrorClass::kUsage);
  REQUIRE(tier->get(blocks.blocks()).status.error_class() == ErrorClass::kUsage);
}

TEST_CASE("remote: addresses and options that are wrong are refused in one sentence", "[remote]") {
  for (const char* address : {"",
                              "redis",
                              "http://host",
                              "redis://",
                              "redis://:6379",
                              "redis://host:",
                              "redis://host:0",
                              "redis://host:99999",
                              "redis://host:1x",
                              "redis://host/x",
                              "redis://host/-1",
                              "redis://[::1",
                              "redis://[::1]x",
                              "redis://a@host",
                              "redis://:@host",
                              "redis://:secret%2@host",
                              "redis://:secret%zz@host/q",
                              "redis://:secret@host:port",
                              "unix://",
                              "unix://relative",
                              "unix:///path?x=1",
                              "unix:///path?database=",
                              "file://",
                              "file:///",
                              "file://relative",
                              "file:///a%00b",
                              "memory:x?y=1",
                              "memory:x?latency_ms=",
                              "memory:x?latency_ms=-1",
                              "memory:x?latency_ms=nan",
                              "memory:x?fail_every=1.5",
                              "memory:x?fail_every",
                              "memory:x?torn_every=99999999999999999999"}) {
    INFO(address);
    auto tier = open_remote(address, options_of(kSmall));
    const bool user_only = std::string(address) == "redis://a@host";
    if (user_only) {
      REQUIRE(tier.ok());  // a password without a user may come without a colon
      continue;
    }
    REQUIRE_FALSE(tier.ok());
    REQUIRE(tier.status().error_class() == ErrorClass::kUsage);
    REQUIRE(tier.status().message().find("secret") == std::string::npos);
    REQUIRE(tier.status().message().find('\n') == std::string::npos);
  }
  for (const char* address :
       {"redis://host", "redis://host:1", "redis://host:1/3", "redis://:p%40ss@host", "redis://[::1]:7",
        "redis://user:pass@host/", "unix:///a/b", "unix://:p@/a?database=2", "file:///a/b/", "memory:", "memory:name",
        "memory:?latency_ms=0.5&fail_every=2&hang_every=0"}) {
    INFO(address);
    REQUIRE(open_remote(address, options_of(kSmall)).ok());
  }
  const auto refused = [](auto change) {
    RemoteOptions options = options_of(kSmall);
    change(options);
    auto tier = open_remote("memory:", options);
    return !tier.ok() && tier.status().error_class() == ErrorClass::kUsage;
  };
  REQUIRE(refused([](RemoteOptions& options) { options.codec = "gzip"; }));
  REQUIRE(refused([](RemoteOptions& options) { options.codec = ""; }));
  REQUIRE(refused([](RemoteOptions& options) { options.timeout_seconds = 0; }));
  REQUIRE(refused([](RemoteOptions& options) { options.timeout_seconds = std::nan(""); }));
  REQUIRE(refused([](RemoteOptions& options) { options.retry_seconds = -1; }));
  REQUIRE(refused([](RemoteOptions& options) { options.lifetime_seconds = -1; }));
  REQUIRE(refused([](RemoteOptions& options) { options.lifetime_seconds = INT64_MAX; }));
  REQUIRE(refused([](RemoteOptions& options) { options.geometry.pieces = 0; }));
  REQUIRE(refused([](RemoteOptions& options) { options.geometry.pieces = INT64_MAX; }));
  REQUIRE(refused([](RemoteOptions& options) { options.geometry.piece_bytes = INT64_MAX; }));
  REQUIRE(refused([](RemoteOptions& options) { options.geometry.tokens = -5; }));
  REQUIRE(refused([](RemoteOptions& options) { options.geometry = {16, 2, int64_t{256} << 20}; }));
  REQUIRE(refused([](RemoteOptions& options) { options.prefix.assign(2000, 'x'); }));
}

TEST_CASE("remote: a tier of this process fails as its address says, the same way in every run", "[remote]") {
  const auto run = [](const std::string& address) {
    RemoteOptions options = options_of(kSmall);
    options.timeout_seconds = 0.1;
    auto tier = open_or_fail(address, options);
    Blocks blocks(kSmall, 4);
    std::vector<std::string> story;
    for (int round = 0; round < 12; ++round) {
      const RemoteResult put = tier->put(blocks.blocks());
      Blocks copies(blocks, nullptr);
      const RemoteResult got = tier->get(copies.blocks());
      std::string line = std::string(put.status.ok() ? "ok" : put.status.message()).append(" ");
      line.append(got.status.ok() ? "ok" : got.status.message());
      for (const int64_t missing : got.missing) line.append(" ").append(std::to_string(missing));
      story.push_back(line);
      for (size_t i = 0; i < 4; ++i) {
        if (std::find(got.missing.begin(), got.missing.end(), static_cast<int64_t>(i)) != got.missing.end()) continue;
        REQUIRE(blocks.equal(i, copies));
      }
    }
    const RemoteCounters counters = tier->counters();
    return std::make_pair(story, counters);
  };
  const auto [failing, failures] = run("memory:?fail_every=5");
  REQUIRE(failures.errors == 24 / 5);
  REQUIRE(run("memory:?fail_every=5").first == failing);
  const auto [tearing, tears] = run("memory:?torn_every=7");
  REQUIRE(tears.rejected == 48 / 7);
  REQUIRE(tears.errors == 0);
  REQUIRE(run("memory:?torn_every=7").first == tearing);
  const auto [hanging, hangs] = run("memory:?hang_every=10&latency_ms=1");
  REQUIRE(hangs.timeouts == 2);
  REQUIRE(hangs.errors == 2);
  const auto [dropping, drops] = run("memory:?drop_every=3");
  REQUIRE(drops.errors == 0);
  REQUIRE(run("memory:?drop_every=3").first == dropping);
  REQUIRE(dropping[0] == "ok ok 2");
}

TEST_CASE("remote: a tier that failed is left alone for retry_seconds", "[remote]") {
  RemoteOptions options = options_of(kSmall);
  options.timeout_seconds = 0.2;
  options.retry_seconds = 0.5;
  auto tier = open_or_fail("memory:?hang_every=2", options);
  Blocks blocks(kSmall, 1);
  REQUIRE(tier->put(blocks.blocks()).status.ok());
  auto start = steady_clock::now();
  const RemoteResult first = tier->get(blocks.blocks());
  REQUIRE(first.status.error_class() == ErrorClass::kStorage);
  REQUIRE(seconds_since(start) >= 0.19);
  start = steady_clock::now();
  for (int i = 0; i < 100; ++i) {
    const RemoteResult got = tier->get(blocks.blocks());
    if (seconds_since(start) > 0.4) break;
    REQUIRE(got.status.message() == first.status.message());
    REQUIRE(got.missing.size() == 1);
    REQUIRE(tier->put(blocks.blocks()).missing.size() == 1);
    REQUIRE_FALSE(tier->match(blocks.keys()).ok());
    REQUIRE_FALSE(tier->remove(blocks.keys()).ok());
  }
  REQUIRE(seconds_since(start) < 0.4);
  REQUIRE(tier->counters().errors == 1);
  REQUIRE(tier->counters().timeouts == 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(550));
  REQUIRE(tier->get(blocks.blocks()).missing.empty());
}
