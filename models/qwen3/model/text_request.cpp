#include "qwen3/model/text_request.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "qwen3/text/stop.h"
#include "qwen3/text/text_stream.h"

namespace hetero::qwen3 {
namespace {

class TextRequest {
 public:
  TextRequest(const Tokenizer& tokenizer, StopWatcher watcher, std::vector<int32_t> stop_ids, TextListener listener)
      : stream_(tokenizer),
        watcher_(std::move(watcher)),
        stop_ids_(std::move(stop_ids)),
        listener_(std::move(listener)) {}

  bool on(const Event& event) {
    if (event.finish != Finish::kNone) return end(event);
    const int32_t id = event.token->id;
    if (std::ranges::find(stop_ids_, id) != stop_ids_.end()) return true;  // the end follows
    const bool goes_on = listener_({.text = watcher_.add(stream_.add(id)), .token = event.token});
    return goes_on && !watcher_.is_stopped();
  }

 private:
  bool end(const Event& event) {
    std::string text;
    if (!watcher_.is_stopped()) {
      text = watcher_.add(stream_.finish());
      text += watcher_.finish();
    }
    return listener_({.text = std::move(text), .finish = event.finish, .status = event.status});
  }

  TextStream stream_;
  StopWatcher watcher_;
  const std::vector<int32_t> stop_ids_;
  const TextListener listener_;
};

}  // namespace

Result<uint64_t> submit_text(Engine& engine, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                             TextOptions options, TextListener listener) {
  if (options.request.stop_ids.empty() && !options.request.ignore_stop) options.request.stop_ids = engine.end_tokens();
  Result<StopWatcher> watcher = StopWatcher::make({}, std::move(options.stop));
  if (!watcher.ok()) return watcher.status();
  auto request = std::make_shared<TextRequest>(tokenizer, std::move(watcher.value()), options.request.stop_ids,
                                               std::move(listener));
  return engine.submit(prompt, std::move(options.request),
                       [request](const Event& event) { return request->on(event); });
}

}  // namespace hetero::qwen3
