#include "qwen3/command/bundle.h"

#include <utility>

namespace hetero::qwen3 {

Result<std::unique_ptr<Bundle>> Bundle::read(const std::filesystem::path& folder) {
  Result<Qwen3Config> config = Qwen3Config::read(folder);
  if (!config.ok()) return config.status();
  Result<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::open(folder);
  if (!checkpoint.ok()) return checkpoint.status();
  if (Status status = check_tensors(*checkpoint.value(), config.value()); !status.ok()) return status;
  Result<Tokenizer> tokenizer = Tokenizer::read(folder);
  if (!tokenizer.ok()) return tokenizer.status();
  if (Status status = tokenizer.value().check_fits(config.value().vocab_size); !status.ok()) return status;
  Result<ChatTemplate> chat = ChatTemplate::read(folder);
  if (!chat.ok()) return chat.status();
  return std::unique_ptr<Bundle>(new Bundle{.config = std::move(config.value()),
                                            .checkpoint = std::move(checkpoint.value()),
                                            .tokenizer = std::move(tokenizer.value()),
                                            .chat = std::move(chat.value())});
}

SamplingOptions suggested_sampling(const Qwen3Config& config) {
  const GenerationDefaults& defaults = config.generation;
  SamplingOptions options;
  options.temperature = defaults.do_sample.value_or(false) ? defaults.temperature.value_or(1) : 0;
  options.top_k = defaults.top_k.value_or(0);
  options.top_p = defaults.top_p.value_or(1);
  options.min_p = defaults.min_p.value_or(0);
  options.repetition_penalty = defaults.repetition_penalty.value_or(1);
  return options;
}

}  // namespace hetero::qwen3
