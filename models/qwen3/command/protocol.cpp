#include "qwen3/command/protocol.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

namespace hetero::qwen3 {
namespace {

using Json = OrderedJson;

// Raised inside parse_request only.
struct Wrong : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] void wrong(const std::string& field, const std::string& what) { throw Wrong("'" + field + "' " + what); }

const Json* find(const Json& json, const char* field) {
  const auto found = json.find(field);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

double number(const Json& json, const char* field, double otherwise) {
  const Json* const value = find(json, field);
  if (value == nullptr) return otherwise;
  if (!value->is_number()) wrong(field, "is a number");
  return value->get<double>();
}

int64_t integer(const Json& json, const char* field, int64_t otherwise) {
  const Json* const value = find(json, field);
  if (value == nullptr) return otherwise;
  if (!value->is_number_integer()) wrong(field, "is an integer");
  if (value->is_number_unsigned() && value->get<uint64_t>() > uint64_t(std::numeric_limits<int64_t>::max())) {
    wrong(field, "is too large");
  }
  return value->get<int64_t>();
}

bool boolean(const Json& json, const char* field, bool otherwise) {
  const Json* const value = find(json, field);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) wrong(field, "is true or false");
  return value->get<bool>();
}

std::vector<std::string> strings(const Json& json, const char* field) {
  const Json* const value = find(json, field);
  if (value == nullptr) return {};
  if (value->is_string()) return {value->get<std::string>()};
  if (!value->is_array() || !std::ranges::all_of(*value, [](const Json& one) { return one.is_string(); })) {
    wrong(field, "is a string, or a list of strings");
  }
  return value->get<std::vector<std::string>>();
}

template <typename T>
T checked(Result<T> result) {
  if (!result.ok()) throw Wrong(result.status().message());
  return std::move(result.value());
}

std::vector<int32_t> token_ids(const Json& list) {
  std::vector<int32_t> ids;
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > std::numeric_limits<int32_t>::max()) {
      wrong("prompt", "has an entry that is no token");
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

// A string, tokens, or a list of these.
std::vector<std::vector<int32_t>> prompts_of(const Json& json, const Bundle& bundle) {
  const Json* const prompt = find(json, "prompt");
  if (prompt == nullptr) wrong("prompt", "is missing");
  const auto encode = [&](const Json& text) { return checked(bundle.tokenizer.encode(text.get<std::string>())); };
  if (prompt->is_string()) return {encode(*prompt)};
  if (!prompt->is_array() || prompt->empty()) wrong("prompt", "is a string, a list of tokens, or a list of these");
  if (prompt->front().is_number()) return {token_ids(*prompt)};
  std::vector<std::vector<int32_t>> prompts;
  for (const Json& one : *prompt) {
    if (!one.is_string() && !one.is_array()) wrong("prompt", "is a string, a list of tokens, or a list of these");
    prompts.push_back(one.is_string() ? encode(one) : token_ids(one));
  }
  return prompts;
}

std::vector<int32_t> chat_prompt(const Json& json, const Bundle& bundle) {
  const Json* const messages = find(json, "messages");
  if (messages == nullptr) wrong("messages", "is missing");
  ChatOptions options;
  if (const Json* const tools = find(json, "tools")) {
    if (!tools->is_array()) wrong("tools", "is a list");
    options.tools.assign(tools->begin(), tools->end());
  }
  if (const Json* const more = find(json, "chat_template_kwargs")) {
    if (!more->is_object()) wrong("chat_template_kwargs", "is an object");
    options.enable_thinking = boolean(*more, "enable_thinking", true);
  }
  const std::string text = checked(bundle.chat.render(checked(parse_messages(*messages)), options));
  return checked(bundle.tokenizer.encode(text));
}

void read_bias(const Json& json, SamplingOptions& sampling) {
  const Json* const bias = find(json, "logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) wrong("logit_bias", "is an object of tokens and numbers");
  for (const auto& [token, value] : bias->items()) {
    char* end = nullptr;
    const long id = std::strtol(token.c_str(), &end, 10);
    if (token.empty() || *end != '\0' || id < 0 || id > std::numeric_limits<int32_t>::max() || !value.is_number()) {
      wrong("logit_bias", "is an object of tokens and numbers");
    }
    sampling.logit_bias.emplace_back(static_cast<int32_t>(id), value.get<float>());
  }
}

void read_logprobs(const Json& json, ApiRequest& request) {
  SamplingOptions& sampling = request.options.request.sampling;
  constexpr int64_t kMost = 20;
  int64_t top = 0;
  if (request.is_chat) {
    request.wants_logprobs = boolean(json, "logprobs", false);
    top = integer(json, "top_logprobs", 0);
    if (top != 0 && !request.wants_logprobs) wrong("top_logprobs", "needs logprobs");
  } else {
    request.wants_logprobs = find(json, "logprobs") != nullptr;
    top = integer(json, "logprobs", 0);
  }
  if (top < 0 || top > kMost) wrong(request.is_chat ? "top_logprobs" : "logprobs", "is from 0 to 20");
  if (request.wants_logprobs) sampling.logprobs = static_cast<int32_t>(top);
}

void read_sampling(const Json& json, const Bundle& bundle, ApiRequest& request) {
  SamplingOptions& sampling = request.options.request.sampling;
  sampling = suggested_sampling(bundle.config);
  sampling.temperature = number(json, "temperature", sampling.temperature);
  sampling.top_p = number(json, "top_p", sampling.top_p);
  sampling.top_k = integer(json, "top_k", sampling.top_k);
  sampling.min_p = number(json, "min_p", sampling.min_p);
  sampling.repetition_penalty = number(json, "repetition_penalty", sampling.repetition_penalty);
  sampling.presence_penalty = number(json, "presence_penalty", 0);
  sampling.frequency_penalty = number(json, "frequency_penalty", 0);
  sampling.seed = static_cast<uint64_t>(integer(json, "seed", 0));
  read_bias(json, sampling);
  read_logprobs(json, request);
}

ApiRequest parsed(const std::string& body, bool is_chat, const Bundle& bundle) {
  const Json json = Json::parse(body, nullptr, false);
  if (json.is_discarded() || !json.is_object()) throw Wrong("the body is no JSON object");
  ApiRequest request{.is_chat = is_chat};
  if (const Json* const model = find(json, "model"); model != nullptr && model->is_string()) {
    request.model = model->get<std::string>();
  }
  std::vector<std::vector<int32_t>> prompts;
  if (is_chat) {
    prompts.push_back(chat_prompt(json, bundle));
  } else {
    prompts = prompts_of(json, bundle);
  }
  constexpr int64_t kMostChoices = 128;
  const int64_t copies = integer(json, "n", 1);
  if (copies < 1 || copies * std::ssize(prompts) > kMostChoices) wrong("n", "is from 1 to 128, with all prompts");
  for (const auto& prompt : prompts) {
    request.prompt_tokens += std::ssize(prompt);
    request.prompts.insert(request.prompts.end(), static_cast<size_t>(copies), prompt);
  }
  read_sampling(json, bundle, request);
  constexpr int64_t kCompletionTokens = 16, kChatTokens = 4096;
  int64_t tokens = integer(json, "max_tokens", is_chat ? kChatTokens : kCompletionTokens);
  if (is_chat) tokens = integer(json, "max_completion_tokens", tokens);
  if (tokens < 1) wrong("max_tokens", "is at least 1");
  request.options.request.max_tokens = tokens;
  request.options.request.ignore_stop = boolean(json, "ignore_eos", false);
  request.options.request.timeout = number(json, "timeout", 0);
  if (!(request.options.request.timeout >= 0)) wrong("timeout", "is not negative");
  request.options.stop = strings(json, "stop");
  request.streams = boolean(json, "stream", false);
  if (const Json* const options = find(json, "stream_options")) {
    if (!options->is_object()) wrong("stream_options", "is an object");
    request.includes_usage = boolean(*options, "include_usage", false);
  }
  return request;
}

// ---- answers

const char* finish_word(Finish finish) {
  return finish == Finish::kLength ? "length" : finish == Finish::kTimeout ? "timeout" : "stop";
}

Json logprobs_json(bool is_chat, const std::vector<ApiLogprob>& logprobs) {
  if (is_chat) {
    Json content = Json::array();
    for (const ApiLogprob& one : logprobs) {
      Json top = Json::array();
      for (const auto& [token, logprob] : one.top) top.push_back({{"token", token}, {"logprob", logprob}});
      content.push_back({{"token", one.token}, {"logprob", one.logprob}, {"top_logprobs", std::move(top)}});
    }
    return {{"content", std::move(content)}};
  }
  Json tokens = Json::array(), numbers = Json::array(), tops = Json::array();
  for (const ApiLogprob& one : logprobs) {
    tokens.push_back(one.token);
    numbers.push_back(one.logprob);
    Json top = Json::object();
    for (const auto& [token, logprob] : one.top) top[token] = logprob;
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(tokens)}, {"token_logprobs", std::move(numbers)}, {"top_logprobs", std::move(tops)}};
}

Json head(const ApiAnswer& answer, bool is_chunk) {
  const char* const kind = !answer.is_chat ? "text_completion" : is_chunk ? "chat.completion.chunk" : "chat.completion";
  return {{"id", answer.id}, {"object", kind}, {"created", answer.created}, {"model", answer.model}};
}

Json usage_of(const ApiUsage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

// Text may end within a character of a damaged answer; JSON is UTF-8.
std::string dumped(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

Result<ApiRequest> parse_request(const std::string& body, bool is_chat, const Bundle& bundle) {
  try {
    return parsed(body, is_chat, bundle);
  } catch (const Wrong& error) {
    return Status(ErrorClass::kUsage, error.what());
  } catch (const nlohmann::json::exception& error) {
    return Status(ErrorClass::kUsage, std::string("the request does not fit the protocol: ") + error.what());
  }
}

std::string chunk_json(const ApiAnswer& answer, const ApiPiece& piece, bool is_first) {
  Json json = head(answer, true);
  Json choice{{"index", piece.choice}};
  if (answer.is_chat) {
    Json delta = Json::object();
    if (is_first) delta["role"] = "assistant";
    if (!piece.text.empty() || is_first) delta["content"] = piece.text;
    choice["delta"] = std::move(delta);
  } else {
    choice["text"] = piece.text;
  }
  choice["logprobs"] = piece.logprobs.empty() ? Json() : logprobs_json(answer.is_chat, piece.logprobs);
  choice["finish_reason"] = piece.finish == Finish::kNone ? Json() : Json(finish_word(piece.finish));
  json["choices"] = Json::array({std::move(choice)});
  return dumped(json);
}

std::string usage_json(const ApiAnswer& answer, const ApiUsage& usage) {
  Json json = head(answer, true);
  json["choices"] = Json::array();
  json["usage"] = usage_of(usage);
  return dumped(json);
}

std::string answer_json(const ApiAnswer& answer, const std::vector<ApiPiece>& choices, const ApiUsage& usage) {
  Json json = head(answer, false);
  json["choices"] = Json::array();
  for (const ApiPiece& piece : choices) {
    Json choice{{"index", piece.choice}};
    if (answer.is_chat) {
      choice["message"] = {{"role", "assistant"}, {"content", piece.text}};
    } else {
      choice["text"] = piece.text;
    }
    choice["logprobs"] = piece.logprobs.empty() ? Json() : logprobs_json(answer.is_chat, piece.logprobs);
    choice["finish_reason"] = finish_word(piece.finish);
    json["choices"].push_back(std::move(choice));
  }
  json["usage"] = usage_of(usage);
  return dumped(json);
}

std::string error_json(const Status& status) {
  const bool by_client = status.error_class() == ErrorClass::kUsage;
  const bool is_full = status.error_class() == ErrorClass::kResource;
  const char* const type = by_client ? "invalid_request_error" : is_full ? "overloaded_error" : "server_error";
  return dumped({{"error", {{"message", status.message()}, {"type", type}, {"param", nullptr}, {"code", nullptr}}}});
}

std::string models_json(const std::string& name) {
  const Json model{{"id", name}, {"object", "model"}, {"created", 0}, {"owned_by", "hetero"}};
  return dumped({{"object", "list"}, {"data", Json::array({model})}});
}

}  // namespace hetero::qwen3
