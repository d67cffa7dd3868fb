// The program qwen3: chat, generate, serve and bench with a published checkpoint. It needs no
// Python.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "ops/process/start.h"
#include "qwen3/command/batch.h"
#include "qwen3/command/bundle.h"
#include "qwen3/command/options.h"
#include "qwen3/command/serve.h"
#include "qwen3/model/text_request.h"

namespace hetero::qwen3 {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

// Errors end the program with their sentence.
int fail(const Status& status) {
  std::fprintf(stderr, "qwen3: %s\n", status.message().c_str());
  return status.error_class() == ErrorClass::kUsage ? 2 : 1;
}

struct Loaded {
  std::unique_ptr<Bundle> bundle;
  std::unique_ptr<Engine> engine;
};

Result<Loaded> load(const Options& options) {
  const bool shown = options.report && isatty(STDERR_FILENO) != 0;
  const auto say = [shown](const char* what) {
    if (shown) std::fprintf(stderr, "\r\033[K%s", what);
  };
  const Clock::time_point begin = Clock::now();
  say("[1/3] reading the checkpoint's index ...");
  Result<std::unique_ptr<Bundle>> bundle = Bundle::read(options.folder);
  if (!bundle.ok()) return bundle.status();
  if (!bundle.value()->chat.warning().empty()) {
    std::fprintf(stderr, "qwen3: %s\n", bundle.value()->chat.warning().c_str());
  }
  say("[2/3] building and planning the program ...");
  EngineOptions settings = options.engine;
  settings.weights.progress = [shown](double share) {
    if (shown) std::fprintf(stderr, "\r\033[K[2/3] packing weights: %3.0f %%", 100 * share);
  };
  Result<std::unique_ptr<Engine>> engine =
      Engine::make(bundle.value()->config, bundle.value()->checkpoint, std::move(settings));
  if (!engine.ok()) return engine.status();
  say("");
  if (options.report) {
    std::fprintf(stderr, "loaded %.2f GiB of weights, room for %lld tokens, in %.2f s\n",
                 static_cast<double>(engine.value()->weight_bytes()) / (1 << 30),
                 static_cast<long long>(engine.value()->cache().pages().capacity() * options.engine.page_tokens),
                 seconds_since(begin));
  }
  return Loaded{std::move(bundle.value()), std::move(engine.value())};
}

void report(const backend::Device& accelerator) {
  const backend::DeviceCounters counters = accelerator.counters();
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  std::fprintf(stderr, "%s: held %.3f MiB at most; %.3f MiB copied there, %.3f MiB back; %lld launches",
               accelerator.name().c_str(), mib(accelerator.memory_stats().peak_bytes), mib(counters.bytes_in),
               mib(counters.bytes_out), static_cast<long long>(counters.launches));
  if (accelerator.has_virtual_clock()) std::fprintf(stderr, "; %.6f s of virtual time", accelerator.host_seconds());
  std::fprintf(stderr, "\n");
}

void report(const Engine& engine, double seconds) {
  const Engine::Counters counters = engine.counters();
  const graph::PageStore& pages = engine.cache().pages();
  const double page_mib = static_cast<double>(pages.pool(0).page_bytes()) / (1 << 20);
  std::fprintf(stderr,
               "\n%lld tokens of prompts (%lld more found in pages), %lld generated, in %lld steps and %.2f s: "
               "%.1f tokens/s\nprogram %.2f s, all else in steps %.3f s (%.1f %%)\n"
               "pages: %d in use of %d, %.1f MiB; %lld requests preempted\n",
               static_cast<long long>(counters.prompt_tokens), static_cast<long long>(counters.cached_tokens),
               static_cast<long long>(counters.generated_tokens), static_cast<long long>(counters.steps), seconds,
               static_cast<double>(counters.generated_tokens) / seconds, counters.run_seconds, counters.host_seconds,
               100 * counters.host_seconds / std::max(counters.run_seconds + counters.host_seconds, 1e-9), pages.used(),
               pages.capacity(), page_mib * pages.used(), static_cast<long long>(counters.preempted));
  if (engine.has_store()) {
    std::fprintf(stderr, "store: %lld tokens of prompts loaded, %lld blocks stored\n",
                 static_cast<long long>(counters.loaded_tokens), static_cast<long long>(counters.stored_blocks));
  }
  const backend::Devices devices = process_devices();
  for (const backend::Device* const accelerator : backend::accelerators_of(devices)) report(*accelerator);
}

// Prints the answer as it comes.
Status answer(Loaded& loaded, const Options& options, const std::string& prompt, std::string& text) {
  const Result<std::vector<int32_t>> ids = loaded.bundle->tokenizer.encode(prompt);
  if (!ids.ok()) return ids.status();
  TextOptions request{
      .request = {.sampling = sampling_of(options, loaded.bundle->config), .max_tokens = options.max_tokens},
      .stop = options.stop};
  Status ended;
  const Result<uint64_t> id = submit_text(*loaded.engine, loaded.bundle->tokenizer, ids.value(), std::move(request),
                                          [&](const TextEvent& event) {
                                            std::cout << event.text << std::flush;
                                            text += event.text;
                                            if (event.finish == Finish::kError) ended = event.status;
                                            return true;
                                          });
  if (!id.ok()) return id.status();
  while (loaded.engine->busy()) {
    if (Status status = loaded.engine->step(); !status.ok()) return status;
  }
  std::cout << std::endl;
  return ended;
}

int generate(const Options& options) {
  std::string prompt = options.prompt;
  if (prompt.empty()) prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  Result<Loaded> loaded = load(options);
  if (!loaded.ok()) return fail(loaded.status());
  const Clock::time_point begin = Clock::now();
  std::string text;
  if (const Status status = answer(loaded.value(), options, prompt, text); !status.ok()) return fail(status);
  if (options.report) report(*loaded.value().engine, seconds_since(begin));
  return 0;
}

int chat(const Options& options) {
  Result<Loaded> loaded = load(options);
  if (!loaded.ok()) return fail(loaded.status());
  const Clock::time_point begin = Clock::now();
  std::vector<Message> messages;
  if (!options.system.empty()) messages.push_back({.role = "system", .content = options.system});
  std::string line;
  while (std::cerr << "> " << std::flush && std::getline(std::cin, line)) {
    if (line.empty()) continue;
    messages.push_back({.role = "user", .content = line});
    const Result<std::string> prompt =
        loaded.value().bundle->chat.render(messages, {.enable_thinking = options.thinks});
    std::string text;
    const Status status = prompt.ok() ? answer(loaded.value(), options, prompt.value(), text) : prompt.status();
    if (!status.ok()) {
      std::fprintf(stderr, "qwen3: %s\n", status.message().c_str());
      messages.pop_back();
      continue;
    }
    messages.push_back({.role = "assistant", .content = text});
  }
  if (options.report) report(*loaded.value().engine, seconds_since(begin));
  return 0;
}

// Random prompts: the time to the first token, and for each token after it.
int bench(const Options& options) {
  Result<Loaded> loaded = load(options);
  if (!loaded.ok()) return fail(loaded.status());
  Engine& engine = *loaded.value().engine;
  const int64_t vocabulary = loaded.value().bundle->config.vocab_size;
  uint64_t state = static_cast<uint64_t>(options.seed.value_or(1));
  const auto random_prompt = [&] {
    std::vector<int32_t> prompt;
    for (int64_t i = 0; i < options.prompt_tokens; ++i) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      prompt.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocabulary)));
    }
    return prompt;
  };
  // The first round measures and plans what is new.
  for (const bool measured : {false, true}) {
    int64_t first = 0;
    const Clock::time_point begin = Clock::now();
    double prefill = 0;
    std::vector<double> steps;
    for (int64_t r = 0; r < options.requests; ++r) {
      RequestOptions request{.max_tokens = options.tokens, .ignore_stop = true};
      const Result<uint64_t> id = engine.submit(random_prompt(), std::move(request), [&](const Event& event) {
        if (event.token != nullptr && ++first == options.requests) prefill = seconds_since(begin);
        return true;
      });
      if (!id.ok()) return fail(id.status());
    }
    while (engine.busy()) {
      const Clock::time_point step = Clock::now();
      const bool decodes = first >= options.requests;
      if (const Status status = engine.step(); !status.ok()) return fail(status);
      if (decodes) steps.push_back(seconds_since(step));
    }
    if (!measured) continue;
    std::ranges::sort(steps);
    const double median = steps.empty() ? 0 : steps[steps.size() / 2];
    std::printf(
        "{\"requests\": %lld, \"prompt_tokens\": %lld, \"tokens\": %lld, \"prefill_ms\": %.3f, "
        "\"step_ms\": %.3f, \"tokens_per_second\": %.2f}\n",
        static_cast<long long>(options.requests), static_cast<long long>(options.prompt_tokens),
        static_cast<long long>(options.tokens), prefill * 1e3, median * 1e3,
        median > 0 ? static_cast<double>(options.requests) / median : 0.0);
    if (options.report) report(engine, seconds_since(begin));
  }
  return 0;
}

int serve(const Options& options) {
  Result<Loaded> loaded = load(options);
  if (!loaded.ok()) return fail(loaded.status());
  const Status status = serve_http(*loaded.value().bundle, *loaded.value().engine, options);
  return status.ok() ? 0 : fail(status);
}

int batch(const Options& options) {
  Result<Loaded> loaded = load(options);
  if (!loaded.ok()) return fail(loaded.status());
  const Clock::time_point begin = Clock::now();
  const Status status = run_batch(*loaded.value().bundle, *loaded.value().engine, std::cin, std::cout);
  if (options.report) report(*loaded.value().engine, seconds_since(begin));
  return status.ok() ? 0 : fail(status);
}

int run(const std::vector<std::string>& arguments) {
  const Result<Options> options = parse_options(arguments);
  if (!options.ok()) return fail(options.status());
  if (options.value().help || arguments.empty()) {
    std::fputs(kUsageText, stdout);
    return 0;
  }
  if (const Status status = start(); !status.ok()) return fail(status);
  if (options.value().command == "chat") return chat(options.value());
  if (options.value().command == "serve") return serve(options.value());
  if (options.value().command == "batch") return batch(options.value());
  if (options.value().command == "bench") return bench(options.value());
  return generate(options.value());
}

}  // namespace
}  // namespace hetero::qwen3

int main(int count, char** arguments) { return hetero::qwen3::run({arguments + 1, arguments + count}); }
