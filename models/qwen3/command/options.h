// The command line of the program qwen3.
//
// Thread safety: pure functions.

#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/base/status.h"
#include "qwen3/model/engine.h"

namespace hetero::qwen3 {

struct Options {
  std::string command;  // "chat", "generate", "batch", "serve", "bench"
  std::filesystem::path folder;
  EngineOptions engine;
  // Sampling: what is absent is what the model's generation_config.json suggests.
  std::optional<double> temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int64_t> top_k, seed;
  int64_t max_tokens = 512;
  std::vector<std::string> stop;
  std::string prompt;  // generate; read from the standard input if empty
  std::string system;  // chat
  bool thinks = true;
  bool report = true;
  std::string host = "127.0.0.1";  // serve
  int64_t port = 8000;
  std::string name;  // of the model in answers; that of the folder if empty
  // bench
  int64_t prompt_tokens = 64, tokens = 64, requests = 1;
  bool help = false;
};

extern const char* const kUsageText;

// Errors: kUsage, with the argument that is wrong.
Result<Options> parse_options(std::span<const std::string> arguments);
// "512M", "1.5GiB", "4096".
Result<uint64_t> parse_bytes(const std::string& text);

SamplingOptions sampling_of(const Options& options, const Qwen3Config& config);

}  // namespace hetero::qwen3
