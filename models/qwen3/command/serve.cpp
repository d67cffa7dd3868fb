#include "qwen3/command/serve.h"

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <utility>

#include "qwen3/command/connection_threads.h"
#include "qwen3/command/engine_thread.h"
#include "qwen3/command/protocol.h"

namespace hetero::qwen3 {
namespace {

using std::chrono::milliseconds;

// What the engine's thread has made for one connection, until the connection's thread takes it.
class Channel {
 public:
  struct Item {
    ApiPiece piece;
    Status status;
    bool is_token = false;
  };

  void put(Item item) {
    {
      const std::lock_guard lock(mutex_);
      items_.push_back(std::move(item));
    }
    wake_.notify_one();
  }
  // False where nothing came in that time.
  bool take(Item& item, milliseconds time) {
    std::unique_lock lock(mutex_);
    if (!wake_.wait_for(lock, time, [this] { return !items_.empty(); })) return false;
    item = std::move(items_.front());
    items_.pop_front();
    return true;
  }
  // Waits for the first item without taking it; its error, if it is one.
  Status wait_for_first() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return !items_.empty(); });
    return items_.front().status;
  }
  // The connection is gone: the requests end at their next token.
  void abandon() { abandoned_ = true; }
  bool is_abandoned() const { return abandoned_; }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Item> items_;
  std::atomic<bool> abandoned_ = false;
};

// The answer to one HTTP request, which may have several choices.
class Answer {
 public:
  Answer(const Bundle& bundle, EngineThread& thread, ApiRequest request, ApiAnswer head)
      : bundle_(bundle), thread_(thread), request_(std::move(request)), head_(std::move(head)) {
    usage_.prompt_tokens = request_.prompt_tokens;
    for (size_t i = 0; i < request_.prompts.size(); ++i) whole_.push_back({.choice = i});
    is_first_.assign(request_.prompts.size(), true);
  }
  ~Answer() { cancel(); }
  Answer(const Answer&) = delete;

  // Errors: those of submit_text. Nothing runs then.
  Status submit() {
    for (size_t i = 0; i < request_.prompts.size(); ++i) {
      TextOptions options = request_.options;
      options.request.sampling.seed += i;
      const Result<uint64_t> id =
          submit_text(thread_.engine(), bundle_.tokenizer, request_.prompts[i], std::move(options), listener(i));
      if (!id.ok()) return id.status();
      ids_.push_back(id.value());
    }
    thread_.wake();
    return channel_->wait_for_first();
  }

  bool streams() const { return request_.streams; }

  // Writes what is there to the client. False ends the connection.
  bool write(httplib::DataSink& sink) {
    Channel::Item item;
    while (!channel_->take(item, milliseconds(200))) {
      if (!sink.is_writable()) return false;
    }
    if (!item.status.ok()) {
      if (streams()) (void)send(sink, "data: " + error_json(item.status) + "\n\n");
      return false;
    }
    usage_.completion_tokens += item.is_token ? 1 : 0;
    if (item.piece.finish != Finish::kNone) ++ended_;
    const bool is_end = ended_ == request_.prompts.size();
    return streams() ? write_chunk(sink, item.piece, is_end) : collect(sink, std::move(item.piece), is_end);
  }

 private:
  TextListener listener(size_t choice) {
    // The engine may call it once more after the answer is gone.
    return [&bundle = bundle_, choice, channel = channel_,
            wants_logprobs = request_.wants_logprobs](const TextEvent& event) {
      if (channel->is_abandoned()) return false;
      ApiPiece piece{.choice = choice, .text = event.text, .finish = event.finish};
      if (event.token != nullptr && wants_logprobs) piece.logprobs.push_back(logprob_of(bundle, *event.token));
      channel->put({std::move(piece), event.status, event.token != nullptr});
      return true;
    };
  }

  static ApiLogprob logprob_of(const Bundle& bundle, const SampledToken& token) {
    const auto text = [&](int32_t id) { return bundle.tokenizer.decode(std::span(&id, 1)); };
    ApiLogprob made{.token = text(token.id), .logprob = token.logprob};
    for (const TokenLogprob& other : token.top) made.top.emplace_back(text(other.id), other.logprob);
    return made;
  }

  static bool send(httplib::DataSink& sink, const std::string& text) { return sink.write(text.data(), text.size()); }

  bool write_chunk(httplib::DataSink& sink, const ApiPiece& piece, bool is_end) {
    std::string text;
    const bool shows = !piece.text.empty() || !piece.logprobs.empty() || piece.finish != Finish::kNone;
    if (shows || is_first_[piece.choice]) {
      text = "data: " + chunk_json(head_, piece, is_first_[piece.choice]) + "\n\n";
      is_first_[piece.choice] = false;
    }
    if (is_end && request_.includes_usage) text += "data: " + usage_json(head_, usage_) + "\n\n";
    if (is_end) text += "data: [DONE]\n\n";
    if (!text.empty() && !send(sink, text)) return false;
    if (is_end) sink.done();
    return true;
  }

  bool collect(httplib::DataSink& sink, ApiPiece piece, bool is_end) {
    ApiPiece& whole = whole_[piece.choice];
    whole.text += piece.text;
    whole.finish = piece.finish;
    std::ranges::move(piece.logprobs, std::back_inserter(whole.logprobs));
    if (!is_end) return true;
    if (!send(sink, answer_json(head_, whole_, usage_))) return false;
    sink.done();
    return true;
  }

  void cancel() {
    channel_->abandon();
    if (ended_ == request_.prompts.size()) return;
    for (const uint64_t id : ids_) thread_.engine().cancel(id);
    thread_.wake();
  }

  const Bundle& bundle_;
  EngineThread& thread_;
  const ApiRequest request_;
  const ApiAnswer head_;
  // The engine may outlive the answer.
  const std::shared_ptr<Channel> channel_ = std::make_shared<Channel>();
  std::vector<uint64_t> ids_;
  std::vector<ApiPiece> whole_;
  std::vector<bool> is_first_;
  ApiUsage usage_;
  size_t ended_ = 0;
};

class HttpServer {
 public:
  HttpServer(const Bundle& bundle, Engine& engine, const Options& options)
      : bundle_(bundle),
        thread_(engine),
        name_(options.name.empty() ? options.folder.filename().string() : options.name) {
    constexpr size_t kConnections = 256;
    server_.new_task_queue = [] { return new ConnectionThreads(kConnections); };
    // cpp-httplib's own choice lets two servers have one port.
    server_.set_socket_options([](int socket) {
      const int yes = 1;
      (void)setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    constexpr size_t kMostBytes = size_t{64} << 20;
    server_.set_payload_max_length(kMostBytes);
    server_.Get("/health",
                [](const httplib::Request&, httplib::Response& response) { response.set_content("ok", "text/plain"); });
    server_.Get("/v1/models", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(models_json(name_), "application/json");
    });
    server_.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(metrics(), "text/plain");
    });
    for (const bool is_chat : {false, true}) {
      server_.Post(is_chat ? "/v1/chat/completions" : "/v1/completions",
                   [this, is_chat](const httplib::Request& request, httplib::Response& response) {
                     answer(request, response, is_chat);
                   });
    }
  }

  httplib::Server& server() { return server_; }

 private:
  void answer(const httplib::Request& request, httplib::Response& response, bool is_chat) {
    Result<ApiRequest> parsed = parse_request(request.body, is_chat, bundle_);
    if (!parsed.ok()) return refuse(response, parsed.status());
    ApiAnswer head{.id = (is_chat ? "chatcmpl-" : "cmpl-") + std::to_string(++answers_),
                   .created = static_cast<int64_t>(std::time(nullptr)),
                   .model = parsed.value().model.empty() ? name_ : parsed.value().model,
                   .is_chat = is_chat};
    auto made = std::make_shared<Answer>(bundle_, thread_, std::move(parsed.value()), std::move(head));
    if (const Status status = made->submit(); !status.ok()) return refuse(response, status);
    response.set_chunked_content_provider(made->streams() ? "text/event-stream" : "application/json",
                                          [made](size_t, httplib::DataSink& sink) { return made->write(sink); });
  }

  static void refuse(httplib::Response& response, const Status& status) {
    const ErrorClass kind = status.error_class();
    response.status = kind == ErrorClass::kUsage ? 400 : kind == ErrorClass::kResource ? 429 : 500;
    response.set_content(error_json(status), "application/json");
  }

  std::string metrics() {
    const Engine::Counters counters = thread_.engine().counters();
    std::string text;
    const auto line = [&](const char* name, double value) {
      char buffer[128];
      std::snprintf(buffer, sizeof(buffer), "qwen3_%s %.17g\n", name, value);
      text += buffer;
    };
    line("steps_total", static_cast<double>(counters.steps));
    line("prompt_tokens_total", static_cast<double>(counters.prompt_tokens));
    line("cached_prompt_tokens_total", static_cast<double>(counters.cached_tokens));
    if (thread_.engine().has_store()) {
      line("loaded_prompt_tokens_total", static_cast<double>(counters.loaded_tokens));
      line("stored_blocks_total", static_cast<double>(counters.stored_blocks));
    }
    line("generated_tokens_total", static_cast<double>(counters.generated_tokens));
    line("preemptions_total", static_cast<double>(counters.preempted));
    line("pages_in_use", static_cast<double>(counters.pages_in_use));
    line("program_seconds_total", counters.run_seconds);
    line("host_seconds_total", counters.host_seconds);
    return text;
  }

  const Bundle& bundle_;
  EngineThread thread_;
  const std::string name_;
  std::atomic<uint64_t> answers_ = 0;
  httplib::Server server_;
};

std::atomic<httplib::Server*> serving = nullptr;

void stop(int) {
  if (httplib::Server* const server = serving.load()) server->stop();
}

}  // namespace

Status serve_http(const Bundle& bundle, Engine& engine, const Options& options) {
  HttpServer http(bundle, engine, options);
  httplib::Server& server = http.server();
  int port = static_cast<int>(options.port);
  if (port == 0) {
    port = server.bind_to_any_port(options.host.c_str());
  } else if (!server.bind_to_port(options.host.c_str(), port)) {
    port = -1;
  }
  if (port < 0) {
    return Status(ErrorClass::kUsage, "cannot listen at " + options.host + ":" + std::to_string(options.port) +
                                          "; give another --host or --port");
  }
  std::printf("listening at http://%s:%d/v1\n", options.host.c_str(), port);
  std::fflush(stdout);
  serving = &server;
  std::signal(SIGINT, &stop);
  std::signal(SIGTERM, &stop);
  server.listen_after_bind();
  serving = nullptr;
  return Status();
}

}  // namespace hetero::qwen3
