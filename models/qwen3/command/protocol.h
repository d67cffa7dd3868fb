// OpenAI's completions and chat protocol: JSON of a request to what the engine takes, and what it
// generates to JSON.
//
// https://platform.openai.com/docs/api-reference. Beyond it: `top_k`, `min_p`,
// `repetition_penalty`, `ignore_eos`, and `chat_template_kwargs` with `enable_thinking`, as other
// servers have them, and `timeout` in seconds, after which a request ends with what it has and
// `finish_reason` "timeout". Fields that are not known are ignored.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/base/status.h"
#include "qwen3/command/bundle.h"
#include "qwen3/model/text_request.h"

namespace hetero::qwen3 {

struct ApiRequest {
  bool is_chat = false;
  bool streams = false;
  bool includes_usage = false;  // in a stream: a chunk with the usage at its end
  bool wants_logprobs = false;
  std::vector<std::vector<int32_t>> prompts{};  // one for each choice
  int64_t prompt_tokens = 0;                    // of all different prompts
  TextOptions options{};
  std::string model{};  // as the client calls it
};

// Errors: kUsage, one sentence that names the field.
Result<ApiRequest> parse_request(const std::string& body, bool is_chat, const Bundle& bundle);

struct ApiLogprob {
  std::string token;
  float logprob = 0;
  std::vector<std::pair<std::string, float>> top{};
};

// A part of a choice, or with `finish` its end.
struct ApiPiece {
  size_t choice = 0;
  std::string text{};
  std::vector<ApiLogprob> logprobs{};
  Finish finish = Finish::kNone;
};

struct ApiUsage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
};

struct ApiAnswer {
  std::string id;
  int64_t created = 0;  // seconds since 1970
  std::string model;
  bool is_chat = false;
};

// A chunk of a stream; `is_first` of its choice.
std::string chunk_json(const ApiAnswer& answer, const ApiPiece& piece, bool is_first);
std::string usage_json(const ApiAnswer& answer, const ApiUsage& usage);
// The whole answer: a piece for each choice.
std::string answer_json(const ApiAnswer& answer, const std::vector<ApiPiece>& choices, const ApiUsage& usage);
std::string error_json(const Status& status);
std::string models_json(const std::string& name);

}  // namespace hetero::qwen3
