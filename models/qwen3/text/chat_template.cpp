#include "qwen3/text/chat_template.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <initializer_list>

#include "qwen3/checkpoint/json.h"
#include "qwen3/text/unicode.h"

namespace hetero::qwen3 {
namespace {

constexpr uint64_t kMostFileBytes = uint64_t{16} << 20;
constexpr int kMostDepth = 64;  // of tools and arguments

constexpr std::string_view kToolsBefore =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>";
constexpr std::string_view kToolsBehind =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n";

Status usage(std::string message) { return Status(ErrorClass::kUsage, std::move(message)); }

bool has_all(std::string_view text, std::initializer_list<const char*> parts) {
  return std::ranges::all_of(parts, [&](const char* part) { return text.find(part) != std::string_view::npos; });
}

bool has_any(std::string_view text, std::initializer_list<const char*> parts) {
  return std::ranges::any_of(parts, [&](const char* part) { return text.find(part) != std::string_view::npos; });
}

std::string_view without_newlines_before(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}

std::string_view without_newlines_behind(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

// What an assistant thought, and what it then said.
struct Turn {
  std::string_view reasoning;
  std::string_view content;
};

Turn turn_of(const Message& message) {
  if (message.reasoning) return {*message.reasoning, message.content};
  constexpr std::string_view kOpen = "<think>";
  constexpr std::string_view kClose = "</think>";
  const std::string_view text = message.content;
  const size_t first = text.find(kClose);
  if (first == std::string_view::npos) return {{}, text};
  const std::string_view content = text.substr(text.rfind(kClose) + kClose.size());
  std::string_view reasoning = without_newlines_behind(text.substr(0, first));
  if (const size_t open = reasoning.rfind(kOpen); open != std::string_view::npos) {
    reasoning = reasoning.substr(open + kOpen.size());
  }
  return {without_newlines_before(reasoning), without_newlines_before(content)};
}

bool is_tool_response(std::string_view content) {
  return content.starts_with("<tool_response>") && content.ends_with("</tool_response>");
}

// The last message in which the user asks something; without one, the last message.
size_t last_query(const std::vector<Message>& messages) {
  for (size_t i = messages.size(); i-- > 0;) {
    if (messages[i].role == "user" && !is_tool_response(messages[i].content)) return i;
  }
  return messages.size() - 1;
}

bool is_deeper_than(const OrderedJson& value, int depth) {
  if (!value.is_structured()) return false;
  if (depth == 0) return true;
  return std::ranges::any_of(value, [&](const OrderedJson& part) { return is_deeper_than(part, depth - 1); });
}

Status check(const std::vector<Message>& messages, const ChatOptions& options) {
  if (messages.empty()) return usage("the conversation has no message");
  for (const Message& message : messages) {
    if (message.role != "system" && message.role != "user" && message.role != "assistant" && message.role != "tool") {
      return usage("the role " + in_quotes(message.role) + " is none of system, user, assistant and tool");
    }
    for (const ToolCall& call : message.tool_calls) {
      if (is_deeper_than(call.arguments, kMostDepth)) {
        return usage("the arguments of a tool call are nested deeper than " + std::to_string(kMostDepth) + " levels");
      }
    }
  }
  for (const OrderedJson& tool : options.tools) {
    if (is_deeper_than(tool, kMostDepth)) {
      return usage("a tool is nested deeper than " + std::to_string(kMostDepth) + " levels");
    }
  }
  return Status();
}

// Writes a prompt, message by message.
class Writer {
 public:
  Writer(ChatTemplate::Kind kind, const std::vector<Message>& messages, const ChatOptions& options)
      : kind_(kind), messages_(messages), options_(options), last_query_(last_query(messages)) {}

  std::string write() && {
    if (kind_ == ChatTemplate::Kind::kChatMl) {
      for (const Message& message : messages_) begin(message.role).add(message.content).end();
    } else {
      write_head();
      for (size_t i = 0; i < messages_.size(); ++i) write_message(i);
    }
    if (options_.add_generation_prompt) write_generation_prompt();
    return std::move(prompt_);
  }

 private:
  Writer& add(std::string_view text) {
    prompt_ += text;
    return *this;
  }
  Writer& begin(std::string_view role) { return add("<|im_start|>").add(role).add("\n"); }
  void end() { add("<|im_end|>\n"); }

  // The system's message, with the tools.
  void write_head() {
    const bool has_system = messages_[0].role == "system";
    if (options_.tools.empty()) {
      if (has_system) begin("system").add(messages_[0].content).end();
      return;
    }
    begin("system");
    if (has_system) add(messages_[0].content).add("\n\n");
    add(kToolsBefore);
    for (const OrderedJson& tool : options_.tools) add("\n").add(python_json(tool));
    add(kToolsBehind);
  }

  void write_message(size_t index) {
    const Message& message = messages_[index];
    if (message.role == "assistant") {
      write_assistant(index);
    } else if (message.role == "tool") {
      // Responses that follow each other are one message of the user.
      if (index == 0 || messages_[index - 1].role != "tool") add("<|im_start|>user");
      add("\n<tool_response>\n").add(message.content).add("\n</tool_response>");
      if (index + 1 == messages_.size() || messages_[index + 1].role != "tool") end();
    } else if (message.role == "user" || index > 0) {
      begin(message.role).add(message.content).end();
    }
  }

  void write_assistant(size_t index) {
    const Message& message = messages_[index];
    const bool may_think = kind_ != ChatTemplate::Kind::kInstruct;
    const Turn turn = may_think ? turn_of(message) : Turn{{}, message.content};
    begin("assistant");
    // Thoughts are shown since the last question only.
    if (may_think && index > last_query_ && (index + 1 == messages_.size() || !turn.reasoning.empty())) {
      const std::string_view reasoning = without_newlines_before(without_newlines_behind(turn.reasoning));
      add("<think>\n").add(reasoning).add("\n</think>\n\n").add(without_newlines_before(turn.content));
    } else {
      add(turn.content);
    }
    for (size_t i = 0; i < message.tool_calls.size(); ++i) {
      const ToolCall& call = message.tool_calls[i];
      if (i > 0 || !turn.content.empty()) add("\n");
      add("<tool_call>\n{\"name\": \"").add(call.name).add("\", \"arguments\": ");
      add(call.arguments.is_string() ? call.arguments.get<std::string>() : python_json(call.arguments));
      add("}\n</tool_call>");
    }
    end();
  }

  void write_generation_prompt() {
    begin("assistant");
    if (kind_ == ChatTemplate::Kind::kThinking) add("<think>\n");
    if (kind_ == ChatTemplate::Kind::kHybrid && !options_.enable_thinking) add("<think>\n\n</think>\n\n");
  }

  ChatTemplate::Kind kind_;
  const std::vector<Message>& messages_;
  const ChatOptions& options_;
  size_t last_query_;
  std::string prompt_;
};

// As Python's repr() writes a finite float: the fewest digits, an exponent below 1e-4 and from
// 1e16.
std::string python_float(double value) {
  std::array<char, 64> text{};
  const auto scientific = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::scientific);
  const std::string shortest(text.data(), scientific.ptr);
  const int exponent = std::atoi(shortest.c_str() + shortest.find('e') + 1);
  if (exponent < -4 || exponent >= 16) return shortest;
  const auto fixed = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  std::string result(text.data(), fixed.ptr);
  if (result.find('.') == std::string::npos) result += ".0";
  return result;
}

void write_json(const OrderedJson& value, std::string& text) {
  const auto dump = [](const OrderedJson& simple) {
    return simple.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  };
  if (value.is_object()) {
    text += '{';
    for (auto entry = value.begin(); entry != value.end(); ++entry) {
      if (entry != value.begin()) text += ", ";
      text += dump(OrderedJson(entry.key())) + ": ";
      write_json(entry.value(), text);
    }
    text += '}';
  } else if (value.is_array()) {
    text += '[';
    for (size_t i = 0; i < value.size(); ++i) {
      if (i > 0) text += ", ";
      write_json(value[i], text);
    }
    text += ']';
  } else {
    text += value.is_number_float() ? python_float(value.get<double>()) : dump(value);
  }
}

// A text, or the texts of a list of parts.
Status read_content(const OrderedJson& json, std::string& content) {
  if (json.is_null()) return Status();
  if (json.is_string()) {
    content = json.get<std::string>();
    return Status();
  }
  if (!json.is_array()) return usage("the content of a message is neither a string nor a list");
  for (const OrderedJson& part : json) {
    if (!part.is_object() || part.value("type", OrderedJson()) != "text" ||
        !part.value("text", OrderedJson()).is_string()) {
      return usage("the content of a message has a part that is not text");
    }
    content += part["text"].get<std::string>();
  }
  return Status();
}

Status read_tool_calls(const OrderedJson& json, std::vector<ToolCall>& calls) {
  if (json.is_null()) return Status();
  if (!json.is_array()) return usage("tool_calls is not a list");
  for (const OrderedJson& call : json) {
    const bool is_wrapped = call.is_object() && call.contains("function");
    const OrderedJson& function = is_wrapped ? call["function"] : call;
    if (!function.is_object() || !function.value("name", OrderedJson()).is_string()) {
      return usage("a tool call has no name");
    }
    calls.push_back({function["name"].get<std::string>(), function.value("arguments", OrderedJson::object())});
  }
  return Status();
}

}  // namespace

ChatTemplate ChatTemplate::recognize(std::string_view jinja) {
  // Statements of each template that make it what it is, and some of its descendants that change
  // it.
  const bool is_qwen = has_all(jinja, {"<|im_start|>", "tool_call.arguments | tojson", "\\n<tool_response>\\n",
                                       "messages[loop.index0 - 1].role != \"tool\""}) &&
                       !has_any(jinja, {"macro", "<function=", "preserve_thinking", "vision", "developer",
                                        "You are Qwen", "You are a "});
  const bool thinks = has_all(jinja, {"loop.index0 > ns.last_query_index", "reasoning_content.strip('\\n')",
                                      "loop.last or (not loop.last and reasoning_content)"});
  const bool opens = has_any(jinja, {"assistant\\n<think>\\n'"});
  if (is_qwen && thinks && !opens && has_all(jinja, {"enable_thinking is defined and enable_thinking is false"})) {
    return ChatTemplate(Kind::kHybrid);
  }
  if (is_qwen && thinks && opens && !has_any(jinja, {"enable_thinking"})) return ChatTemplate(Kind::kThinking);
  if (is_qwen && !has_any(jinja, {"think", "reasoning"})) return ChatTemplate(Kind::kInstruct);
  ChatTemplate plain(Kind::kChatMl);
  plain.warning_ = jinja.empty() ? "the checkpoint has no chat template, so prompts are plain ChatML"
                                 : "the checkpoint's chat template is none of Qwen3's, so prompts are plain ChatML "
                                   "without tools and reasoning";
  return plain;
}

Result<ChatTemplate> ChatTemplate::read(const std::filesystem::path& folder) {
  std::error_code error;
  if (std::filesystem::exists(folder / "chat_template.jinja", error)) {
    auto text = read_text(folder / "chat_template.jinja", kMostFileBytes);
    if (!text.ok()) return text.status();
    return recognize(text.value());
  }
  if (!std::filesystem::exists(folder / "tokenizer_config.json", error)) return recognize({});
  auto json = read_json(folder / "tokenizer_config.json", kMostFileBytes);
  if (!json.ok()) return json.status();
  const JsonFields fields(json.value(), "tokenizer_config.json");
  if (!fields.status().ok()) return fields.status();
  const Json& field = fields.at("chat_template");
  if (field.is_string()) return recognize(field.get_ref<const std::string&>());
  // Several templates by name: the one that is used without a name.
  if (field.is_array()) {
    for (const Json& entry : field) {
      if (entry.is_object() && entry.value("name", Json()) == "default" &&
          entry.value("template", Json()).is_string()) {
        return recognize(entry["template"].get_ref<const std::string&>());
      }
    }
  }
  return recognize({});
}

Result<std::string> ChatTemplate::render(const std::vector<Message>& messages, const ChatOptions& options) const {
  if (Status status = check(messages, options); !status.ok()) return status;
  std::string prompt = Writer(kind_, messages, options).write();
  if (find_invalid_utf8(prompt) != std::string_view::npos) return usage("a message is not UTF-8");
  return prompt;
}

Result<std::vector<Message>> parse_messages(const OrderedJson& json) {
  if (!json.is_array()) return usage("messages is not a list");
  std::vector<Message> messages;
  for (const OrderedJson& entry : json) {
    if (!entry.is_object() || !entry.value("role", OrderedJson()).is_string()) return usage("a message has no role");
    Message message{.role = entry["role"].get<std::string>(), .content = {}};
    if (Status status = read_content(entry.value("content", OrderedJson()), message.content); !status.ok())
      return status;
    const OrderedJson reasoning = entry.value("reasoning_content", OrderedJson());
    if (reasoning.is_string()) message.reasoning = reasoning.get<std::string>();
    Status status = read_tool_calls(entry.value("tool_calls", OrderedJson()), message.tool_calls);
    if (!status.ok()) return status;
    messages.push_back(std::move(message));
  }
  return messages;
}

std::string python_json(const OrderedJson& value) {
  std::string text;
  write_json(value, text);
  return text;
}

}  // namespace hetero::qwen3
