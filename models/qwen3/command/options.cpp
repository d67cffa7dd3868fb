#include "qwen3/command/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>

#include "qwen3/command/bundle.h"

namespace hetero::qwen3 {
namespace {

Status usage(std::string message) { return Status(ErrorClass::kUsage, std::move(message)); }

using Take = std::function<Status(Options&, const std::string&)>;

template <typename T>
Status read_number(const std::string& text, T& number) {
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stopped == end ? Status() : usage("'" + text + "' is no number that fits here");
}

template <typename Field>
Take number(Field Options::*field) {
  return [field](Options& options, const std::string& text) {
    if constexpr (requires { (options.*field).has_value(); }) {
      return read_number(text, (options.*field).emplace());
    } else {
      return read_number(text, options.*field);
    }
  };
}

Take of_engine(int64_t EngineOptions::*field) {
  return [field](Options& options, const std::string& text) { return read_number(text, options.engine.*field); };
}

Take of_engine(std::string EngineOptions::*field) {
  return [field](Options& options, const std::string& text) {
    options.engine.*field = text;
    return Status();
  };
}

Take of_weights(int64_t WeightOptions::*field) {
  return
      [field](Options& options, const std::string& text) { return read_number(text, options.engine.weights.*field); };
}

Take bytes(uint64_t EngineOptions::*field) {
  return [field](Options& options, const std::string& text) {
    const Result<uint64_t> bytes = parse_bytes(text);
    if (bytes.ok()) options.engine.*field = bytes.value();
    return bytes.status();
  };
}

Take of_store(uint64_t PromptStoreOptions::*field) {
  return [field](Options& options, const std::string& text) {
    const Result<uint64_t> bytes = parse_bytes(text);
    if (bytes.ok()) options.engine.store.*field = bytes.value();
    return bytes.status();
  };
}

Take of_store(std::string PromptStoreOptions::*field) {
  return [field](Options& options, const std::string& text) {
    options.engine.store.*field = text;
    return Status();
  };
}

Take text(std::string Options::*field) {
  return [field](Options& options, const std::string& text) {
    options.*field = text;
    return Status();
  };
}

// Options that take a value.
const std::map<std::string, Take, std::less<>>& valued() {
  static const std::map<std::string, Take, std::less<>> options{
      {"--temperature", number(&Options::temperature)},
      {"--top-k", number(&Options::top_k)},
      {"--top-p", number(&Options::top_p)},
      {"--min-p", number(&Options::min_p)},
      {"--repetition-penalty", number(&Options::repetition_penalty)},
      {"--presence-penalty", number(&Options::presence_penalty)},
      {"--frequency-penalty", number(&Options::frequency_penalty)},
      {"--seed", number(&Options::seed)},
      {"--max-tokens", number(&Options::max_tokens)},
      {"--prompt-tokens", number(&Options::prompt_tokens)},
      {"--tokens", number(&Options::tokens)},
      {"--requests", number(&Options::requests)},
      {"--port", number(&Options::port)},
      {"--host", text(&Options::host)},
      {"--name", text(&Options::name)},
      {"--prompt", text(&Options::prompt)},
      {"--system", text(&Options::system)},
      {"--bits", of_weights(&WeightOptions::bits)},
      {"--group", of_weights(&WeightOptions::group)},
      {"--cache-dtype", of_engine(&EngineOptions::cache_dtype)},
      {"--page-tokens", of_engine(&EngineOptions::page_tokens)},
      {"--step-tokens", of_engine(&EngineOptions::step_tokens)},
      {"--most-sequences", of_engine(&EngineOptions::most_sequences)},
      {"--cache", bytes(&EngineOptions::cache_bytes)},
      {"--offload-cache", bytes(&EngineOptions::offload_bytes)},
      {"--budget", bytes(&EngineOptions::accelerator_bytes)},
      {"--kv-memory", of_store(&PromptStoreOptions::memory_bytes)},
      {"--kv-disk", of_store(&PromptStoreOptions::disk_folder)},
      {"--kv-disk-size", of_store(&PromptStoreOptions::disk_bytes)},
      {"--kv-remote", of_store(&PromptStoreOptions::remote)},
      {"--capacity",
       [](Options& options, const std::string& text) { return read_number(text, options.engine.capacity); }},
      {"--offload", of_engine(&EngineOptions::offload)},
      {"--stop",
       [](Options& options, const std::string& text) {
         options.stop.push_back(text);
         return Status();
       }},
  };
  return options;
}

bool take_flag(const std::string& name, Options& options) {
  bool* flag = nullptr;
  if (name == "--help" || name == "-h") flag = &options.help;
  if (name == "--no-think") flag = &options.thinks;
  if (name == "--no-report") flag = &options.report;
  if (name == "--asymmetric") flag = &options.engine.weights.symmetric;
  if (flag == nullptr) return false;
  *flag = flag == &options.help;  // the others are on by default
  return true;
}

Status check(const Options& options) {
  if (options.help) return Status();
  const auto commands = {"chat", "generate", "batch", "serve", "bench"};
  if (std::ranges::find(commands, options.command) == commands.end()) {
    return usage("the first argument is chat, generate, batch, serve or bench, not '" + options.command + "'");
  }
  if (options.folder.empty()) return usage("the second argument is the folder of the model");
  if (options.port < 0 || options.port > 65535) return usage("--port is from 0 to 65535");
  if (options.tokens < 1 || options.prompt_tokens < 1 || options.requests < 1) {
    return usage("--tokens, --prompt-tokens and --requests are at least 1");
  }
  const PromptStoreOptions& store = options.engine.store;
  if (store.disk_folder.empty() != (store.disk_bytes == 0)) return usage("--kv-disk and --kv-disk-size go together");
  return Status();
}

}  // namespace

const char* const kUsageText = R"(qwen3 chat|generate|batch|serve|bench MODEL_DIR [options]

  chat       a conversation on the terminal
  generate   continues --prompt, or what it reads
  batch      requests from the standard input, a JSON object a line; results in the same form
  serve      OpenAI's completions and chat protocol over HTTP
  bench      random prompts: tokens per second

  --max-tokens N --stop TEXT --seed N --temperature X --top-k N --top-p X --min-p X
  --repetition-penalty X --presence-penalty X --frequency-penalty X
             sampling; by default what the model's generation_config.json says
  --prompt TEXT            of generate
  --system TEXT --no-think of chat
  --host H --port N --name NAME        of serve
  --prompt-tokens N --tokens N --requests N   of bench
  --bits 8|4 --group N --asymmetric
             quantize the linear layers while loading; N columns share a scale
  --cache BYTES            keys and values; 1G is a gibibyte
  --cache-dtype int8|float8_e4m3       of keys and values; by default that of the weights
  --offload-cache BYTES --offload none|by_pressure|sliding_window|oldest_layer_first
             where pages go that have no room
  --kv-memory BYTES --kv-disk DIR --kv-disk-size BYTES --kv-remote ADDRESS
             a store of prompts that outlives pages and process: redis://, unix://, file://
  --page-tokens N --step-tokens N --most-sequences N --capacity N
  --budget BYTES           of the accelerator's memory
  --no-report              no report at the end
)";

Result<uint64_t> parse_bytes(const std::string& text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  std::string unit(stopped, end);
  if (unit.ends_with("iB"))
    unit.resize(unit.size() - 2);
  else if (unit.ends_with('B'))
    unit.pop_back();
  const std::string units = "KMGT";
  const size_t place = unit.size() == 1 ? units.find(unit[0]) : std::string::npos;
  const bool known = unit.empty() || place != std::string::npos;
  const double bytes = unit.empty() ? number : std::ldexp(number, 10 * static_cast<int>(place + 1));
  if (error != std::errc() || !known || !(bytes >= 0) || bytes > 1e18) {
    return usage("'" + text + "' is no number of bytes, such as 512M or 1.5G");
  }
  return static_cast<uint64_t>(bytes);
}

Result<Options> parse_options(std::span<const std::string> arguments) {
  Options options;
  size_t position = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (take_flag(argument, options)) continue;
    if (!argument.starts_with("--")) {
      if (position == 0) options.command = argument;
      if (position == 1) options.folder = argument;
      if (++position > 2) return usage("'" + argument + "' is one argument too many");
      continue;
    }
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const auto found = valued().find(name);
    if (found == valued().end()) return usage("there is no option " + name + "; qwen3 --help lists them");
    if (equals == std::string::npos && i + 1 == arguments.size()) return usage(name + " needs a value");
    const std::string value = equals == std::string::npos ? arguments[++i] : argument.substr(equals + 1);
    if (const Status status = found->second(options, value); !status.ok()) return usage(name + ": " + status.message());
  }
  if (Status status = check(options); !status.ok()) return status;
  return options;
}

SamplingOptions sampling_of(const Options& options, const Qwen3Config& config) {
  SamplingOptions sampling = suggested_sampling(config);
  sampling.temperature = options.temperature.value_or(sampling.temperature);
  sampling.top_k = options.top_k.value_or(sampling.top_k);
  sampling.top_p = options.top_p.value_or(sampling.top_p);
  sampling.min_p = options.min_p.value_or(sampling.min_p);
  sampling.repetition_penalty = options.repetition_penalty.value_or(sampling.repetition_penalty);
  sampling.presence_penalty = options.presence_penalty.value_or(0);
  sampling.frequency_penalty = options.frequency_penalty.value_or(0);
  sampling.seed = static_cast<uint64_t>(options.seed.value_or(0));
  return sampling;
}

}  // namespace hetero::qwen3
