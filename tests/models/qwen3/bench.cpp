// hetero_qwen3_bench: what a token costs beside the model.
//
//   hetero_qwen3_bench [FOLDER]     with a folder: also the time to read its tokenizer.json
//
// Prints microseconds to sample one of 151,936 tokens, the median of several runs, for logits as a
// language model has them (a few tokens stand out) and for flat ones.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "qwen3/sampling/sampler.h"
#include "qwen3/text/tokenizer.h"

namespace hetero::qwen3 {
namespace {

constexpr size_t kTokens = 151936;

// Of the processor, so that what runs beside counts little.
double thread_microseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

double microseconds(SamplingOptions options, const std::vector<float>& logits) {
  Sampler sampler(kTokens);
  SamplingSequence sequence = SamplingSequence::make(std::move(options), kTokens).value();
  std::vector<double> times;
  for (int i = 0; i < 101; ++i) {
    const double start = thread_microseconds();
    if (!sampler.sample(sequence, logits).ok()) return -1;
    times.push_back(thread_microseconds() - start);
  }
  std::ranges::nth_element(times, times.begin() + 50);
  return times[50];
}

std::vector<float> make_logits(bool is_flat) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, is_flat ? 1.0F : 2.5F);
  std::vector<float> logits(kTokens);
  for (float& logit : logits) logit = normal(random);
  for (size_t i = 0; !is_flat && i < 50; ++i)
    logits[random() % kTokens] = 14 + 6 * static_cast<float>(random() % 100) / 100;
  return logits;
}

int run(const std::vector<std::string>& arguments) {
  const std::vector<std::pair<const char*, SamplingOptions>> cases = {
      {"greedy", {.temperature = 0}},
      {"temperature 0.7", {.temperature = 0.7}},
      {"top-k 20, top-p 0.95", {.temperature = 0.6, .top_k = 20, .top_p = 0.95}},
      {"top-p 0.9", {.top_p = 0.9}},
      {"min-p 0.05", {.min_p = 0.05}},
      {"top-k 20, penalties", {.top_k = 20, .repetition_penalty = 1.1, .presence_penalty = 0.5}},
      {"top-k 20, 5 logprobs", {.top_k = 20, .logprobs = 5}},
  };
  const std::vector<float> peaked = make_logits(false);
  const std::vector<float> flat = make_logits(true);
  std::printf("%-24s %10s %10s\n", "us per token", "peaked", "flat");
  for (const auto& [name, options] : cases) {
    std::printf("%-24s %10.0f %10.0f\n", name, microseconds(options, peaked), microseconds(options, flat));
  }
  if (arguments.empty()) return 0;
  const auto start = std::chrono::steady_clock::now();
  const auto tokenizer = Tokenizer::read(arguments[0]);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!tokenizer.ok()) return std::printf("%s\n", tokenizer.status().message().c_str()), 1;
  std::printf("%d ids read in %.3f s\n", tokenizer.value().size(), seconds);
  return 0;
}

}  // namespace
}  // namespace hetero::qwen3

int main(int count, char** arguments) {
  return hetero::qwen3::run(std::vector<std::string>(arguments + 1, arguments + count));
}
