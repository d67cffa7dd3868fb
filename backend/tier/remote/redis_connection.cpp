// RESP2 over a socket that does not block.

#include "backend/tier/remote/redis_connection.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>

namespace hetero::backend {
namespace {

using std::chrono::steady_clock;

// Of a bulk string, by Redis's own limit.
constexpr int64_t kMostBulkBytes = int64_t{512} << 20;
// Of a chunk of commands without values.
constexpr size_t kChunkBytes = 16 << 10;
constexpr size_t kSkipBytes = 64 << 10;
constexpr size_t kMostParts = 256;  // of one call of the system
constexpr size_t kMostShown = 160;  // characters of a server's message

std::string system_message(int error) { return std::generic_category().message(error); }

int milliseconds_until(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

// Waits for a socket. False: the deadline passed.
bool wait_for(int socket, short events, Deadline deadline, short* happened) {
  for (;;) {
    pollfd waiting{socket, events, 0};
    const int count = poll(&waiting, 1, milliseconds_until(deadline));
    if (count > 0) {
      *happened = waiting.revents;
      return true;
    }
    if (count < 0 && errno != EINTR && errno != EAGAIN) {
      *happened = POLLERR;
      return true;
    }
    if (steady_clock::now() >= deadline) return false;
  }
}

Outcome failed(const std::string& name, std::string_view what) {
  return {Outcome::Kind::kFailed, std::string(name).append(": ").append(what)};
}

Outcome timed_out(const std::string& name, std::string_view what) {
  return {Outcome::Kind::kTimeout, std::string(name).append(": ").append(what)};
}

struct Endpoint {
  sockaddr_storage address{};
  socklen_t bytes = 0;
};

struct Lookup {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  int error = 0;
  std::vector<Endpoint> found;
};

int look_up(const std::string& host, const std::string& port, int flags, std::vector<Endpoint>& found) {
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &wanted, &list);
  if (error != 0) return error;
  for (const addrinfo* info = list; info != nullptr; info = info->ai_next) {
    Endpoint endpoint;
    if (info->ai_addrlen > sizeof(endpoint.address)) continue;
    std::memcpy(&endpoint.address, info->ai_addr, info->ai_addrlen);
    endpoint.bytes = info->ai_addrlen;
    found.push_back(endpoint);
  }
  freeaddrinfo(list);
  return 0;
}

// The system's function for names has no deadline. So it runs on a thread that outlives the wait.
Outcome resolve(const RemoteAddress& address, const std::string& name, Deadline deadline,
                std::vector<Endpoint>* endpoints) {
  if (look_up(address.host, address.port, AI_NUMERICHOST, *endpoints) == 0) return {};
  auto lookup = std::make_shared<Lookup>();
  try {
    std::thread([lookup, host = address.host, port = address.port] {
      std::vector<Endpoint> found;
      const int error = look_up(host, port, 0, found);
      std::lock_guard lock(lookup->mutex);
      lookup->done = true;
      lookup->error = error;
      lookup->found = std::move(found);
      lookup->changed.notify_all();
    }).detach();
  } catch (const std::system_error& error) {
    return failed(name, error.what());
  }
  std::unique_lock lock(lookup->mutex);
  if (!lookup->changed.wait_until(lock, deadline, [&] { return lookup->done; })) {
    return timed_out(name, "the name of the host was not found in time");
  }
  if (lookup->error != 0) return failed(name, gai_strerror(lookup->error));
  *endpoints = std::move(lookup->found);
  return {};
}

// Returns the connected socket in `*result`.
Outcome connect_to(const Endpoint& endpoint, const std::string& name, Deadline deadline, int* result) {
  const int family = endpoint.address.ss_family;
  const int socket = ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket < 0) return failed(name, system_message(errno));
  const auto give_up = [&](Outcome outcome) {
    close(socket);
    return outcome;
  };
  while (::connect(socket, reinterpret_cast<const sockaddr*>(&endpoint.address), endpoint.bytes) != 0) {
    if (errno == EINTR) continue;
    if (errno == EISCONN) break;
    if (errno == EAGAIN) {
      // The queue of a socket in the file system is full, which poll does not show.
      if (steady_clock::now() >= deadline) return give_up(timed_out(name, "not connected in time"));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    if (errno != EINPROGRESS && errno != EALREADY) return give_up(failed(name, system_message(errno)));
    short happened = 0;
    if (!wait_for(socket, POLLOUT, deadline, &happened)) return give_up(timed_out(name, "not connected in time"));
    int error = 0;
    socklen_t bytes = sizeof(error);
    getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) return give_up(failed(name, system_message(error)));
    break;
  }
  if (family != AF_UNIX) {
    const int on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  }
  *result = socket;
  return {};
}

// AUTH and SELECT.
class Greeting final : public RedisPipeline {
 public:
  Greeting(const RemoteAddress& address, std::string name) : name_(std::move(name)) {
    if (!address.password.empty()) {
      std::string& command = commands_.emplace_back(address.user.empty() ? "*2\r\n" : "*3\r\n");
      append_argument(command, "AUTH");
      if (!address.user.empty()) append_argument(command, address.user);
      append_argument(command, address.password);
    }
    if (address.database != 0) {
      std::string& command = commands_.emplace_back("*2\r\n");
      append_argument(command, "SELECT");
      append_argument(command, std::to_string(address.database));
    }
  }
  size_t count() const override { return commands_.size(); }
  size_t window() const override { return commands_.size(); }
  const EncodedBlock* write(size_t command, std::string& text, std::string&) override {
    text.append(commands_[command]);
    return nullptr;
  }
  BlockDecoder* bulk(size_t, uint64_t) override { return nullptr; }
  void bulk_end(size_t) override {}
  Outcome reply(size_t, const RedisReply& reply) override {
    if (reply.kind == RedisReply::Kind::kStatus) return {};
    return failed(name_, std::string("refused the connection: ").append(printable(reply.text)));
  }

 private:
  const std::string name_;
  std::vector<std::string> commands_;
};

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  for (const char character : text.substr(0, kMostShown)) {
    out.push_back(character >= ' ' && character <= '~' ? character : '?');
  }
  return out;
}

void append_argument(std::string& text, std::string_view argument) {
  text.append("$").append(std::to_string(argument.size())).append("\r\n").append(argument).append("\r\n");
}

Outcome RedisConnection::connect(const RemoteAddress& address, Deadline deadline,
                                 std::unique_ptr<RedisConnection>* connection) {
  const std::string name = address.to_string();
  std::vector<Endpoint> endpoints;
  if (address.host.empty()) {
    Endpoint& endpoint = endpoints.emplace_back();
    auto* socket_address = reinterpret_cast<sockaddr_un*>(&endpoint.address);
    socket_address->sun_family = AF_UNIX;
    const size_t bytes = std::min(address.path.size(), sizeof(socket_address->sun_path) - 1);
    std::memcpy(socket_address->sun_path, address.path.data(), bytes);
    endpoint.bytes = sizeof(sockaddr_un);
  } else if (Outcome outcome = resolve(address, name, deadline, &endpoints); !outcome.ok()) {
    return outcome;
  }
  int socket = -1;
  Outcome outcome = failed(name, "the host has no address");
  for (size_t i = 0; i < endpoints.size() && socket < 0; ++i) {
    // An address that does not answer leaves time for those behind it.
    const auto now = steady_clock::now();
    const auto share = (deadline - now) / static_cast<int64_t>(endpoints.size() - i);
    outcome = connect_to(endpoints[i], name, now + share, &socket);
  }
  if (socket < 0) return outcome;
  connection->reset(new RedisConnection(socket, name));
  Greeting greeting(address, name);
  outcome = (*connection)->run(greeting, deadline);
  if (!outcome.ok()) connection->reset();
  return outcome;
}

RedisConnection::RedisConnection(int socket, std::string name)
    : socket_(socket), name_(std::move(name)), process_(getpid()) {}

RedisConnection::~RedisConnection() { close(socket_); }

bool RedisConnection::foreign() const { return process_ != getpid(); }

RedisConnection::Progress RedisConnection::fail(std::string_view what) {
  outcome_ = failed(name_, what);
  return Progress::kFailed;
}

RedisConnection::Progress RedisConnection::fail_by(int error, std::string_view what) {
  return fail(std::string(what).append(": ").append(system_message(error)));
}

Outcome RedisConnection::run(RedisPipeline& pipeline, Deadline deadline) {
  written_ = 0;
  answered_ = 0;
  outcome_ = {};
  sending_ = {};
  prepared_ = {};
  const auto complete = [&] {
    return answered_ == written_ && (written_ == pipeline.count() || pipeline.enough()) && sending_.empty() &&
           prepared_.empty();
  };
  while (!complete()) {
    Progress progress = Progress::kSome;
    while (progress == Progress::kSome && !output_closed_ && (!sending_.empty() || may_prepare(pipeline))) {
      progress = send(pipeline);
      if (steady_clock::now() >= deadline) return timed_out(name_, "took too long to take what was sent");
    }
    const bool blocked = progress == Progress::kWait;
    if (progress == Progress::kFailed) return outcome_;
    if (!blocked) {
      progress = receive(pipeline);
      if (progress == Progress::kFailed) return outcome_;
      if (progress == Progress::kSome) {
        if (!complete() && steady_clock::now() >= deadline) return timed_out(name_, "took too long to answer");
        // A read that got less than it asked for took all there was. Another would only say so.
        if (!drained_ || may_prepare(pipeline) || complete()) continue;
      }
    } else if (prepared_.empty() && may_prepare(pipeline)) {
      // The server is busy with what it has: the next value is made meanwhile.
      prepare(pipeline, prepared_);
    }
    short happened = 0;
    const short events = static_cast<short>(POLLIN | (blocked ? POLLOUT : 0));
    if (!wait_for(socket_, events, deadline, &happened)) return timed_out(name_, "no answer in time");
    if ((happened & ~POLLOUT) != 0 && receive(pipeline) == Progress::kFailed) return outcome_;
  }
  if (buffer_begin_ != buffer_end_) {
    fail("answered more than it was asked for");
    return outcome_;
  }
  return {};
}

bool RedisConnection::may_prepare(const RedisPipeline& pipeline) const {
  if (!prepared_.empty()) return true;
  return written_ < pipeline.count() && written_ - answered_ < pipeline.window() && !pipeline.enough();
}

void RedisConnection::prepare(RedisPipeline& pipeline, Chunk& chunk) {
  chunk.text.clear();
  chunk.tail.clear();
  chunk.parts.clear();
  chunk.next = 0;
  const EncodedBlock* value = nullptr;
  const size_t end = std::min(pipeline.count(), answered_ + pipeline.window());
  while (value == nullptr && written_ < end && chunk.text.size() < kChunkBytes) {
    value = pipeline.write(written_++, chunk.text, chunk.tail);
  }
  chunk.parts.push_back({chunk.text.data(), chunk.text.size()});
  if (value == nullptr) return;
  chunk.parts.insert(chunk.parts.end(), value->parts.begin(), value->parts.end());
  chunk.parts.push_back({chunk.tail.data(), chunk.tail.size()});
}

RedisConnection::Progress RedisConnection::send(RedisPipeline& pipeline) {
  if (sending_.empty()) {
    if (prepared_.empty()) prepare(pipeline, prepared_);
    std::swap(sending_, prepared_);
    // A short text lies inside its string, which has moved.
    sending_.parts.front().iov_base = sending_.text.data();
    if (sending_.parts.size() > 1) sending_.parts.back().iov_base = sending_.tail.data();
  }
  msghdr message{};
  message.msg_iov = sending_.parts.data() + sending_.next;
  message.msg_iovlen = std::min(sending_.parts.size() - sending_.next, kMostParts);
  ssize_t sent = sendmsg(socket_, &message, MSG_NOSIGNAL);
  if (sent < 0) {
    if (errno == EINTR) return Progress::kSome;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Progress::kWait;
    // The server may have said why before it closed the connection.
    output_closed_ = true;
    return Progress::kSome;
  }
  auto left = static_cast<size_t>(sent);
  for (; sending_.next < sending_.parts.size(); ++sending_.next) {
    iovec& part = sending_.parts[sending_.next];
    const size_t taken = std::min(left, part.iov_len);
    part.iov_base = static_cast<char*>(part.iov_base) + taken;
    part.iov_len -= taken;
    left -= taken;
    if (part.iov_len > 0) break;
  }
  return Progress::kSome;
}

// Gives bytes at the front of the buffer, or behind those that were given, to the value.
void RedisConnection::take(size_t bytes) {
  bulk_left_ -= bytes;
  if (decoder_ != nullptr && !decoder_->rejected()) decoder_->advance(bytes);
}

RedisConnection::Progress RedisConnection::receive(RedisPipeline& pipeline) {
  std::array<iovec, kMostParts + 1> parts;
  size_t count = 0;
  size_t direct = 0;  // bytes that go to the value's place
  if (state_ == State::kBulk) {
    // parse() took what was in the buffer.
    buffer_begin_ = buffer_end_ = 0;
    if (decoder_ != nullptr && !decoder_->rejected()) {
      count = decoder_->next(std::span(parts).first(kMostParts));
    }
    if (count == 0) {
      skipped_.resize(kSkipBytes);
      parts[count++] = {skipped_.data(), static_cast<size_t>(std::min<uint64_t>(bulk_left_, kSkipBytes))};
    }
    for (size_t i = 0; i < count; ++i) direct += parts[i].iov_len;
  } else if (buffer_begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + buffer_begin_, buffer_end_ - buffer_begin_);
    buffer_end_ -= buffer_begin_;
    buffer_begin_ = 0;
  }
  // What follows the value comes along.
  if (direct == bulk_left_ || state_ != State::kBulk) {
    parts[count++] = {buffer_.data() + buffer_end_, buffer_.size() - buffer_end_};
  }
  size_t asked = 0;
  for (size_t i = 0; i < count; ++i) asked += parts[i].iov_len;
  const ssize_t got = readv(socket_, parts.data(), static_cast<int>(count));
  drained_ = got < static_cast<ssize_t>(asked);
  if (got < 0) {
    if (errno == EINTR) return Progress::kSome;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Progress::kWait;
    closed_ = errno == ECONNRESET || errno == EPIPE;
    return fail_by(errno, "the connection failed");
  }
  if (got == 0) {
    closed_ = true;
    return fail("closed the connection");
  }
  auto bytes = static_cast<size_t>(got);
  if (direct > 0) {
    const size_t taken = std::min(bytes, direct);
    take(taken);
    bytes -= taken;
  }
  buffer_end_ += bytes;
  return parse(pipeline) ? Progress::kSome : Progress::kFailed;
}

// Takes complete replies, and the beginning of a value, from the buffer.
bool RedisConnection::parse(RedisPipeline& pipeline) {
  for (;;) {
    const std::string_view rest(buffer_.data() + buffer_begin_, buffer_end_ - buffer_begin_);
    if (state_ == State::kBulk) {
      if (bulk_left_ == 0) {
        state_ = State::kBulkEnd;
        continue;
      }
      if (rest.empty()) return true;
      size_t bytes = static_cast<size_t>(std::min<uint64_t>(rest.size(), bulk_left_));
      iovec part;
      if (decoder_ != nullptr && !decoder_->rejected() && decoder_->next({&part, 1}) == 1) {
        bytes = std::min(bytes, part.iov_len);
        std::memcpy(part.iov_base, rest.data(), bytes);
      }
      buffer_begin_ += bytes;
      take(bytes);
      continue;
    }
    if (state_ == State::kBulkEnd) {
      if (rest.size() < 2) return true;
      if (!rest.starts_with("\r\n")) {
        fail("sent a value of another length than it said");
        return false;
      }
      buffer_begin_ += 2;
      state_ = State::kLine;
      decoder_ = nullptr;
      pipeline.bulk_end(answered_++);
      continue;
    }
    const size_t end = rest.find('\n');
    if (end == std::string_view::npos) {
      if (rest.size() < buffer_.size()) return true;
      fail("sent a line that is no reply of a Redis server");
      return false;
    }
    buffer_begin_ += end + 1;
    if (end == 0 || rest[end - 1] != '\r') {
      fail("sent a line that is no reply of a Redis server");
      return false;
    }
    if (!parse_line(pipeline, rest.substr(0, end - 1))) return false;
  }
}

bool RedisConnection::parse_line(RedisPipeline& pipeline, std::string_view line) {
  const auto refuse = [this] {
    fail("sent a line that is no reply of a Redis server");
    return false;
  };
  if (line.empty()) return refuse();
  RedisReply reply;
  reply.text = line.substr(1);
  if (line[0] == ':' || line[0] == '$') {
    const char* const last = line.data() + line.size();
    const auto [end, error] = std::from_chars(line.data() + 1, last, reply.number);
    if (error != std::errc() || end != last) return refuse();
  }
  if (answered_ == written_ && line[0] != '-') {
    fail("answered more than it was asked for");
    return false;
  }
  switch (line[0]) {
    case '+':
      reply.kind = RedisReply::Kind::kStatus;
      break;
    case '-':
      reply.kind = RedisReply::Kind::kError;
      if (answered_ == written_) {
        fail(printable(reply.text));
        return false;
      }
      break;
    case ':':
      reply.kind = RedisReply::Kind::kInteger;
      break;
    case '$':
      if (reply.number == -1) break;
      if (reply.number < 0 || reply.number > kMostBulkBytes) return refuse();
      bulk_left_ = static_cast<uint64_t>(reply.number);
      state_ = State::kBulk;
      decoder_ = pipeline.bulk(answered_, bulk_left_);
      return true;
    default:
      return refuse();
  }
  Outcome outcome = pipeline.reply(answered_, reply);
  ++answered_;
  if (outcome.ok()) return true;
  outcome_ = std::move(outcome);
  return false;
}

}  // namespace hetero::backend
