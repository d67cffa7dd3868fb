// ChatTemplate: a conversation as the prompt text of a Qwen3 model.
//
// Checkpoints bring a Jinja template. Here the templates of Qwen3 are written in C++; the text of
// the checkpoint's template only tells which one it is:
//
//   kHybrid     Qwen3 (0.6B to 235B): thinks unless enable_thinking is false
//   kThinking   Qwen3-…-Thinking-2507: the prompt opens <think>
//   kInstruct   Qwen3-…-Instruct-2507: never thinks
//   kChatMl     another template: each message between <|im_start|> and <|im_end|>. warning()
//               then says so, once, in a sentence for the user
//
// Contents are put into the prompt as they are. A content with "<|im_end|>" ends its message, as
// with the Jinja templates.
//
// Thread safety: immutable once made.

#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/base/status.h"

namespace hetero::qwen3 {

// JSON that keeps the order of its keys, as the prompt shows it.
using OrderedJson = nlohmann::ordered_json;

struct ToolCall {
  std::string name;
  OrderedJson arguments;  // an object, or a string with its text
};

struct Message {
  std::string role;  // "system", "user", "assistant" or "tool"
  std::string content;
  // Of an assistant: what it thought. Absent: taken from <think>…</think> in the content.
  std::optional<std::string> reasoning{};
  std::vector<ToolCall> tool_calls{};
};

struct ChatOptions {
  std::vector<OrderedJson> tools{};
  bool add_generation_prompt = true;
  bool enable_thinking = true;  // kHybrid only
};

class ChatTemplate {
 public:
  enum class Kind { kHybrid, kThinking, kInstruct, kChatMl };

  explicit ChatTemplate(Kind kind = Kind::kHybrid) : kind_(kind) {}
  // Which template of Qwen3 this Jinja text is.
  static ChatTemplate recognize(std::string_view jinja);
  // From chat_template.jinja of a folder, else from tokenizer_config.json; kChatMl if neither has
  // one. Errors: kStorage for a file that cannot be read.
  static Result<ChatTemplate> read(const std::filesystem::path& folder);

  Kind kind() const { return kind_; }
  // Empty if the template is known.
  const std::string& warning() const { return warning_; }

  // Errors: kUsage without a message, with an unknown role, and with text that is not UTF-8.
  Result<std::string> render(const std::vector<Message>& messages, const ChatOptions& options = {}) const;

 private:
  Kind kind_;
  std::string warning_;
};

// Messages and tools from JSON in the shape of OpenAI's protocol: `content` a string, null, or a
// list of {"type": "text", "text": …}; `reasoning_content`; `tool_calls` with or without
// `function`. Errors: kUsage.
Result<std::vector<Message>> parse_messages(const OrderedJson& json);

// As Python's json.dumps(value, ensure_ascii=False) writes it.
std::string python_json(const OrderedJson& value);

}  // namespace hetero::qwen3
