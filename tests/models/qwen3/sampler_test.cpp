// The sampler, against a simple one in double precision. tests/python/models compares it with
// transformers.

#include "qwen3/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "qwen3/sampling/sweep.h"
#include "tests/catch/catch.h"

namespace hetero::qwen3 {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

SamplingSequence sequence_of(SamplingOptions options, size_t vocabulary) {
  auto sequence = SamplingSequence::make(std::move(options), static_cast<int64_t>(vocabulary));
  INFO((sequence.status().ok() ? "" : sequence.status().message()));
  REQUIRE(sequence.ok());
  return std::move(sequence.value());
}

std::vector<float> probabilities_of(const SamplingSequence& sequence, const std::vector<float>& logits) {
  Sampler sampler(static_cast<int64_t>(logits.size()));
  std::vector<float> result(logits.size());
  const Status status = sampler.probabilities(sequence, logits, result);
  INFO((status.ok() ? "" : status.message()));
  REQUIRE(status.ok());
  return result;
}

std::vector<float> random_logits(std::mt19937& random, size_t count, float spread) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

// Step by step, over all tokens in the order of their scores; of equal ones the lowest id first.
std::vector<double> simple_probabilities(const SamplingOptions& options, const std::vector<float>& logits) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  const auto score = [&](size_t id) { return static_cast<double>(logits[id]) / options.temperature; };
  size_t kept = order.size();
  if (options.top_k > 0 && static_cast<size_t>(options.top_k) < kept) {
    kept = static_cast<size_t>(options.top_k);
    while (kept < order.size() && logits[order[kept]] == logits[order[kept - 1]]) ++kept;
  }
  const auto sum_of = [&] {
    double sum = 0;
    for (size_t i = 0; i < kept; ++i) sum += std::exp(score(order[i]) - score(order[0]));
    return sum;
  };
  if (options.top_p < 1) {
    const double needed = options.top_p * sum_of();
    double mass = 0;
    size_t count = 0;
    do mass += std::exp(score(order[count++]) - score(order[0]));
    while (count < kept && mass < needed);
    kept = count;
  }
  while (kept > 1 && std::exp(score(order[kept - 1]) - score(order[0])) < options.min_p) --kept;
  std::vector<double> result(logits.size());
  const double sum = sum_of();
  for (size_t i = 0; i < kept; ++i) result[order[i]] = std::exp(score(order[i]) - score(order[0])) / sum;
  return result;
}

}  // namespace

TEST_CASE("probabilities are those of the simple sampler") {
  std::mt19937 random(1);
  for (int i = 0; i < 600; ++i) {
    const size_t count = 1 + random() % (i % 10 == 0 ? 20000 : 300);
    std::vector<float> logits = random_logits(random, count, std::vector<float>{0.1F, 1, 5, 30}[random() % 4]);
    SamplingOptions options;
    options.temperature = std::vector<double>{0.3, 1, 2}[random() % 3];
    options.top_k = random() % 2 ? static_cast<int64_t>(1 + random() % (count + 5)) : 0;
    options.top_p = random() % 2 ? (1 + random() % 999) / 1000.0 : 1;
    options.min_p = random() % 2 ? (random() % 1000) / 1000.0 : 0;
    const std::vector<double> expected = simple_probabilities(options, logits);
    const std::vector<float> result = probabilities_of(sequence_of(options, count), logits);
    INFO("case " << i << ": " << count << " tokens, top_k " << options.top_k << ", top_p " << options.top_p
                 << ", min_p " << options.min_p);
    for (size_t id = 0; id < count; ++id) REQUIRE(std::abs(result[id] - expected[id]) < 1e-6);
  }
}

TEST_CASE("of equal scores all stay at top-k, and the lowest ids at top-p") {
  const std::vector<float> logits(10, 1.0F);
  CHECK(probabilities_of(sequence_of({.top_k = 3}, 10), logits)[9] == 0.1F);
  const auto half = probabilities_of(sequence_of({.top_p = 0.45}, 10), logits);
  for (size_t id = 0; id < 10; ++id) CHECK(half[id] == (id < 5 ? 0.2F : 0.0F));
}

TEST_CASE("the token with the highest score is chosen at temperature 0, the first of equal ones") {
  std::mt19937 random(2);
  for (int i = 0; i < 200; ++i) {
    std::vector<float> logits = random_logits(random, 1 + random() % 1000, 1);
    for (float& logit : logits) logit = std::round(logit * 4);
    Sampler sampler(static_cast<int64_t>(logits.size()));
    SamplingSequence sequence = sequence_of({.temperature = 0}, logits.size());
    const auto best = std::ranges::max_element(logits) - logits.begin();
    CHECK(sampler.sample(sequence, logits).value().id == best);
  }
}

TEST_CASE("sampled frequencies are the probabilities") {
  std::mt19937 random(3);
  for (const SamplingOptions& options : {SamplingOptions{}, SamplingOptions{.top_k = 20}, SamplingOptions{.top_p = 0.9},
                                         SamplingOptions{.min_p = 0.05}}) {
    const std::vector<float> logits = random_logits(random, 3000, 3);
    SamplingSequence sequence = sequence_of(options, logits.size());
    const std::vector<float> expected = probabilities_of(sequence, logits);
    Sampler sampler(static_cast<int64_t>(logits.size()));
    constexpr int kDraws = 200000;
    std::map<int32_t, int> counts;
    for (int i = 0; i < kDraws; ++i) ++counts[sampler.sample(sequence, logits).value().id];
    // Chi-squared over the tokens that are expected at least ten times; its mean is their number.
    double chi = 0;
    int degrees = 0;
    for (size_t id = 0; id < logits.size(); ++id) {
      const double mean = static_cast<double>(expected[id]) * kDraws;
      if (expected[id] == 0) CHECK(!counts.contains(static_cast<int32_t>(id)));
      if (mean < 10) continue;
      chi += std::pow(counts[static_cast<int32_t>(id)] - mean, 2) / mean;
      ++degrees;
    }
    CHECK(chi < degrees + 5 * std::sqrt(2.0 * degrees));
  }
}

TEST_CASE("a sequence's tokens depend on its seed, and not on what is sampled beside it") {
  std::mt19937 random(4);
  const std::vector<float> logits = random_logits(random, 500, 2);
  const auto tokens = [&](uint64_t seed, int others) {
    Sampler sampler(500);
    SamplingSequence sequence = sequence_of({.seed = seed}, 500);
    SamplingSequence other = sequence_of({.top_p = 0.5, .seed = 99}, 500);
    std::vector<int32_t> ids;
    for (int i = 0; i < 50; ++i) {
      for (int j = 0; j < others; ++j) CHECK(sampler.sample(other, logits).ok());
      ids.push_back(sampler.sample(sequence, logits).value().id);
    }
    CHECK(sequence.position() == 50);
    return ids;
  };
  CHECK(tokens(7, 0) == tokens(7, 3));
  CHECK(tokens(7, 0) != tokens(8, 0));
}

TEST_CASE("penalties change the scores of the tokens that were seen") {
  const std::vector<float> logits = {2, -2, 1, 0};
  SamplingSequence sequence = sequence_of({.repetition_penalty = 2}, 4);
  REQUIRE(sequence.add_prompt(std::vector<int32_t>{0, 1, 1}).ok());
  const auto result = probabilities_of(sequence, logits);
  const auto expected = simple_probabilities({}, {1, -4, 1, 0});
  for (size_t id = 0; id < 4; ++id) CHECK(std::abs(result[id] - expected[id]) < 1e-6);
  // Frequency and presence count the answer only.
  SamplingSequence answer = sequence_of({.temperature = 0, .frequency_penalty = 0.25, .presence_penalty = 0.5}, 4);
  REQUIRE(answer.add_prompt(std::vector<int32_t>{0, 0, 0, 0, 0, 0, 0, 0}).ok());
  Sampler sampler(4);
  std::vector<int32_t> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(sampler.sample(answer, logits).value().id);
  // Its scores are 2, 1.25, 1, then 0.75 and 0.5; those of token 2 are 1 and 0.25.
  CHECK(ids == std::vector<int32_t>{0, 0, 0, 2, 0, 0});
}

TEST_CASE("a bias is added first, and minus infinity forbids") {
  const auto result = probabilities_of(sequence_of({.logit_bias = {{0, -kInfinity}, {3, 1.0F}}}, 4), {5, 0, 0, 0});
  CHECK(result[0] == 0);
  CHECK(std::abs(result[3] / result[1] - std::exp(1.0F)) < 1e-5);
}

TEST_CASE("logarithms of probabilities are the model's own, the highest first") {
  std::mt19937 random(5);
  const std::vector<float> logits = random_logits(random, 2000, 3);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  SamplingSequence sequence =
      sequence_of({.temperature = 0.5, .top_k = 3, .repetition_penalty = 3, .logprobs = 5}, 2000);
  Sampler sampler(2000);
  for (int i = 0; i < 20; ++i) {
    const auto token = sampler.sample(sequence, logits);
    REQUIRE(token.ok());
    CHECK(std::abs(token.value().logprob - (logits[static_cast<size_t>(token.value().id)] - std::log(sum))) < 1e-4);
    REQUIRE(token.value().top.size() == 5);
    CHECK(token.value().top[0].id == std::ranges::max_element(logits) - logits.begin());
    for (size_t j = 1; j < 5; ++j) CHECK(token.value().top[j - 1].logprob >= token.value().top[j].logprob);
  }
}

TEST_CASE("logits and options that mean nothing are refused in a sentence") {
  Sampler sampler(4);
  SamplingSequence sequence = sequence_of({}, 4);
  const auto error = [&](const std::vector<float>& logits) { return sampler.sample(sequence, logits).status(); };
  CHECK(error({0, 0, 0}).error_class() == ErrorClass::kUsage);
  CHECK(error({0, std::nanf(""), 0, 0}).error_class() == ErrorClass::kKernel);
  CHECK(error({0, kInfinity, 0, 0}).error_class() == ErrorClass::kKernel);
  CHECK(error({-kInfinity, -kInfinity, -kInfinity, -kInfinity}).message() == "all tokens are forbidden");
  CHECK(sequence.position() == 0);
  CHECK(error({0, -kInfinity, 0, 0}).ok());
  for (const SamplingOptions& options :
       {SamplingOptions{.temperature = -1}, SamplingOptions{.temperature = std::nan("")}, SamplingOptions{.top_k = -1},
        SamplingOptions{.top_p = 1.5}, SamplingOptions{.min_p = -0.1}, SamplingOptions{.repetition_penalty = 0},
        SamplingOptions{.frequency_penalty = std::nan("")}, SamplingOptions{.presence_penalty = 1e9},
        SamplingOptions{.logit_bias = {{4, 1.0F}}}, SamplingOptions{.logit_bias = {{0, kInfinity}}},
        SamplingOptions{.logprobs = 5000}}) {
    CHECK(!SamplingSequence::make(options, 4).ok());
  }
  CHECK(!sequence.add_prompt(std::vector<int32_t>{4}).ok());
  CHECK(!sequence.add_prompt(std::vector<int32_t>{-1}).ok());
  CHECK(probabilities_of(sequence_of({.top_p = 0}, 4), {1, 2, 3, 0})[2] == 1);
}

TEST_CASE("exponentials are within 2 ulp, and their sums within a millionth") {
  std::mt19937 random(6);
  std::uniform_real_distribution<float> uniform(-95, 0);
  std::vector<float> values(5000);
  for (float& value : values) value = uniform(random);
  values[17] = -kInfinity;
  values[18] = -200;
  values[19] = 0;
  std::vector<float> exps(values.size());
  std::vector<double> sums(blocks_of(values.size(), kSumBlock));
  const double total = sweep_exp(values, 0, exps, sums);
  double expected = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double exact = std::exp(static_cast<double>(values[i]));
    expected += exact;
    if (values[i] < -87) {
      CHECK(exps[i] == 0);
    } else {
      CHECK(std::abs(exps[i] - exact) <= 2.5e-7 * exact);
    }
  }
  CHECK(std::abs(total - expected) < 1e-6 * expected);
  CHECK(sweep_sum(values, 0) == total);
  CHECK(std::accumulate(sums.begin(), sums.end(), 0.0) == total);
}

}  // namespace hetero::qwen3
