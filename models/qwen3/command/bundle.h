// Bundle: everything that a model folder holds, loaded.
//
// Thread safety: immutable once made.

#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "backend/base/status.h"
#include "qwen3/checkpoint/checkpoint.h"
#include "qwen3/checkpoint/config.h"
#include "qwen3/model/engine.h"
#include "qwen3/text/chat_template.h"
#include "qwen3/text/tokenizer.h"

namespace hetero::qwen3 {

struct Bundle {
  Qwen3Config config;
  std::shared_ptr<const Checkpoint> checkpoint;
  Tokenizer tokenizer;
  ChatTemplate chat;

  // Errors: those of the parts; kStorage if they do not fit together.
  static Result<std::unique_ptr<Bundle>> read(const std::filesystem::path& folder);
};

// What generation_config.json suggests; greedy where it says nothing.
SamplingOptions suggested_sampling(const Qwen3Config& config);

}  // namespace hetero::qwen3
