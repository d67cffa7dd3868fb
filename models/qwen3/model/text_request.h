// TextRequest: a request of the engine whose answer is text.
//
// It joins the parts that stand between an engine, which knows tokens, and a reader of text: pieces
// are whole characters (text_stream.h), and end before a stop string (stop.h).
//
//   auto id = submit_text(engine, tokenizer, prompt_ids, options, [](const TextEvent& event) {
//     std::cout << event.text;
//     return true;
//   });
//
// Thread safety: as Engine::submit.
// Ownership: the tokenizer outlives the request.

#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "backend/base/status.h"
#include "qwen3/model/engine.h"
#include "qwen3/text/tokenizer.h"

namespace hetero::qwen3 {

struct TextOptions {
  RequestOptions request;
  std::vector<std::string> stop{};
};

// What is new: text that can be shown, the token that was chosen if it is not the end, or the end.
struct TextEvent {
  std::string text;
  const SampledToken* token = nullptr;
  Finish finish = Finish::kNone;
  Status status{};  // of Finish::kError
};

// Returns false to end the request.
using TextListener = std::function<bool(const TextEvent&)>;

// Errors: those of Engine::submit and StopWatcher::make.
Result<uint64_t> submit_text(Engine& engine, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                             TextOptions options, TextListener listener);

}  // namespace hetero::qwen3
