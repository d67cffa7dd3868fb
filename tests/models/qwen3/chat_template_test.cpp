// Prompts of conversations. tests/python/models compares them with Jinja's.

#include "qwen3/text/chat_template.h"

#include <string>
#include <vector>

#include "tests/catch/catch.h"
#include "tests/models/qwen3/small_files.h"

namespace hetero::qwen3 {
namespace {

using Kind = ChatTemplate::Kind;

std::string render(Kind kind, const std::vector<Message>& messages, const ChatOptions& options = {}) {
  const auto prompt = ChatTemplate(kind).render(messages, options);
  REQUIRE(prompt.ok());
  return prompt.value();
}

const std::vector<Message> kHello = {{.role = "user", .content = "Hello"}};

}  // namespace

TEST_CASE("each kind of model gets its generation prompt") {
  const std::string user = "<|im_start|>user\nHello<|im_end|>\n";
  CHECK(render(Kind::kHybrid, kHello) == user + "<|im_start|>assistant\n");
  CHECK(render(Kind::kHybrid, kHello, {.enable_thinking = false}) ==
        user + "<|im_start|>assistant\n<think>\n\n</think>\n\n");
  CHECK(render(Kind::kThinking, kHello, {.enable_thinking = false}) == user + "<|im_start|>assistant\n<think>\n");
  CHECK(render(Kind::kInstruct, kHello, {.enable_thinking = false}) == user + "<|im_start|>assistant\n");
  CHECK(render(Kind::kChatMl, kHello) == user + "<|im_start|>assistant\n");
  CHECK(render(Kind::kHybrid, kHello, {.add_generation_prompt = false}) == user);
}

TEST_CASE("thoughts are shown since the last question only") {
  const std::vector<Message> messages = {
      {.role = "user", .content = "1"},
      {.role = "assistant", .content = "<think>\nold\n</think>\n\nA"},
      {.role = "user", .content = "2"},
      {.role = "assistant", .content = "B", .reasoning = "new"},
  };
  CHECK(render(Kind::kHybrid, messages, {.add_generation_prompt = false}) ==
        "<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\n2<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nnew\n</think>\n\nB<|im_end|>\n");
  CHECK(render(Kind::kInstruct, messages, {.add_generation_prompt = false}).find("old") != std::string::npos);
}

TEST_CASE("tools and their calls are shown in the order of their keys") {
  ChatOptions options;
  options.tools = {OrderedJson::parse(R"({"type": "function", "function": {"name": "f", "a": [1, 2.0, null]}})")};
  const std::vector<Message> messages = {
      {.role = "system", .content = "S"},
      {.role = "user", .content = "U"},
      {.role = "assistant",
       .content = "",
       .tool_calls = {{"f", OrderedJson::parse(R"({"z": 1, "a": "é"})")}, {"g", "{}"}}},
      {.role = "tool", .content = "r1"},
      {.role = "tool", .content = "r2"},
  };
  const std::string prompt = render(Kind::kHybrid, messages, options);
  CHECK(prompt.starts_with("<|im_start|>system\nS\n\n# Tools\n"));
  CHECK(prompt.find(R"({"type": "function", "function": {"name": "f", "a": [1, 2.0, null]}})") != std::string::npos);
  CHECK(
      prompt.find("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"z\": 1, \"a\": \"é\"}}\n</tool_call>\n<tool_call>\n"
                  "{\"name\": \"g\", \"arguments\": {}}\n</tool_call><|im_end|>\n") != std::string::npos);
  CHECK(prompt.find("<|im_start|>user\n<tool_response>\nr1\n</tool_response>\n<tool_response>\nr2\n</tool_response>"
                    "<|im_end|>\n") != std::string::npos);
}

TEST_CASE("conversations that cannot be shown are refused in a sentence") {
  const ChatTemplate chat;
  CHECK(!chat.render({}).ok());
  CHECK(chat.render({{.role = "critic", .content = "x"}}).status().message().find("critic") != std::string::npos);
  CHECK(chat.render({{.role = "user", .content = "\xFF"}}).status().message() == "a message is not UTF-8");
  OrderedJson deep = 1;
  for (int i = 0; i < 100; ++i) deep = OrderedJson::array({deep});
  CHECK(!chat.render(kHello, {.tools = {deep}}).ok());
}

TEST_CASE("a template that is not known gives plain ChatML and a warning") {
  CHECK(ChatTemplate::recognize("").kind() == Kind::kChatMl);
  const ChatTemplate other = ChatTemplate::recognize("{% for message in messages %}[INST]{% endfor %}");
  CHECK(other.kind() == Kind::kChatMl);
  CHECK(!other.warning().empty());
  CHECK(ChatTemplate().warning().empty());
  const TemporaryFolder folder;
  CHECK(ChatTemplate::read(folder.path()).value().kind() == Kind::kChatMl);
  folder.write("tokenizer_config.json", "[");
  CHECK(!ChatTemplate::read(folder.path()).ok());
  folder.write("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "x"}]})");
  CHECK(ChatTemplate::read(folder.path()).value().warning().find("none of Qwen3's") != std::string::npos);
}

TEST_CASE("templates of Qwen's other models are not taken for those of Qwen3") {
  // What the program looks for, and what the others have beside it.
  const std::string instruct =
      "You are provided with <function-name> <|im_start|> tool_call.arguments | tojson \\n<tool_response>\\n "
      "messages[loop.index0 - 1].role != \"tool\"";
  CHECK(ChatTemplate::recognize(instruct).kind() == Kind::kInstruct);
  for (const char* other : {"You are Qwen, created by Alibaba Cloud", "<function=", "macro render_content", "<think>",
                            "preserve_thinking", "reasoning_content"}) {
    INFO(other);
    CHECK(ChatTemplate::recognize(instruct + other).kind() == Kind::kChatMl);
  }
}

TEST_CASE("messages are read from the shapes of the protocol") {
  const auto read = [](const char* text) { return parse_messages(OrderedJson::parse(text)); };
  const auto messages =
      read(R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": null, "reasoning_content": "r",
       "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]}])");
  REQUIRE(messages.ok());
  CHECK(messages.value()[0].content == "ab");
  CHECK(messages.value()[1].reasoning == "r");
  CHECK(messages.value()[1].tool_calls[0].arguments == "{\"x\": 1}");
  for (const char* bad :
       {"{}", "[1]", R"([{"role": 1}])", R"([{"content": "x"}])", R"([{"role": "user", "content": 1}])",
        R"([{"role": "user", "content": [{"type": "image_url"}]}])", R"([{"role": "user", "tool_calls": 1}])",
        R"([{"role": "user", "tool_calls": [{}]}])"}) {
    INFO(bad);
    CHECK(!read(bad).ok());
  }
}

TEST_CASE("numbers are written as Python writes them") {
  const auto written = [](double number) { return python_json(OrderedJson(number)); };
  CHECK(written(1.0) == "1.0");
  CHECK(written(0.1) == "0.1");
  CHECK(written(1e15) == "1000000000000000.0");
  CHECK(written(1e16) == "1e+16");
  CHECK(written(1.5e300) == "1.5e+300");
  CHECK(written(1e-4) == "0.0001");
  CHECK(written(1e-5) == "1e-05");
  CHECK(written(-0.0) == "-0.0");
  CHECK(python_json(OrderedJson::parse("[18446744073709551615, -5, true, null, \"\\u0001\\n\u2028\"]")) ==
        "[18446744073709551615, -5, true, null, \"\\u0001\\n\u2028\"]");
}

}  // namespace hetero::qwen3
