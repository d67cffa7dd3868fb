// Sampler: from logits to the next token.
//
// A SamplingSequence is what belongs to one generated sequence: its options, the tokens that
// penalties count, and its place in the stream of random numbers. A Sampler is memory to work with,
// which many sequences share in turn.
//
//   Sampler sampler(config.vocab_size);
//   auto sequence = SamplingSequence::make({.top_k = 20, .seed = 7}, config.vocab_size);
//   sequence.value().add_prompt(prompt_ids);
//   auto token = sampler.sample(sequence.value(), logits);
//
// Scores are processed in the order of transformers' generate(): logit bias, repetition penalty,
// (frequency and presence penalties, which transformers lacks,) temperature, top-k, top-p, min-p.
// Of equal scores at the bound of top-k all stay, as there. Of equal scores at the bound of top-p,
// those with the lowest ids do.
//
// The n-th token of a sequence takes the n-th number of its seed's Philox stream. So it depends on
// the seed, the options and the logits, and not on other sequences or threads.
//
// Thread safety: a sequence and a sampler belong to one thread at a time.
// Ownership: values. sample() allocates nothing.

#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "backend/base/status.h"

namespace hetero::qwen3 {

struct SamplingOptions {
  double temperature = 1;  // 0: the token with the highest score
  int64_t top_k = 0;       // 0: all
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;                        // of tokens in the prompt and the answer
  double frequency_penalty = 0;                         // for each time a token is in the answer
  double presence_penalty = 0;                          // for each token in the answer
  std::vector<std::pair<int32_t, float>> logit_bias{};  // -infinity forbids a token
  uint64_t seed = 0;
  // How many of the most probable tokens to name, with the logarithms of their probabilities. -1:
  // not even that of the token itself.
  int32_t logprobs = -1;
};

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;
};

struct SampledToken {
  int32_t id = 0;
  // With `logprobs`: of the model itself, before anything was processed.
  float logprob = 0;
  // The most probable first. Valid until the sampler is used again.
  std::span<const TokenLogprob> top{};
};

class SamplingSequence {
 public:
  // Errors: kUsage for an option out of range, which it names.
  static Result<SamplingSequence> make(SamplingOptions options, int64_t vocab_size);

  // Tokens that repetition_penalty counts. Errors: kUsage for an id that is not in the vocabulary.
  Status add_prompt(std::span<const int32_t> ids);

  const SamplingOptions& options() const { return options_; }
  // How many tokens were sampled.
  uint64_t position() const { return position_; }

 private:
  friend class Sampler;
  static constexpr uint32_t kInPrompt = uint32_t{1} << 31;

  SamplingSequence(SamplingOptions options, int64_t vocab_size);
  bool has_penalty() const;
  void note(int32_t id, uint32_t amount);
  void penalize(std::span<float> scores) const;

  SamplingOptions options_;
  int64_t vocab_size_;
  uint64_t position_ = 0;
  // With a penalty: for each token, how often it is in the answer, and kInPrompt. Those above 0 are
  // listed.
  std::vector<uint32_t> counts_;
  std::vector<int32_t> seen_;
};

class Sampler {
 public:
  explicit Sampler(int64_t vocab_size);

  // The next token of the sequence, which notes it. Errors: kUsage for another number of logits;
  // kKernel if one is NaN or infinite, or all are forbidden.
  Result<SampledToken> sample(SamplingSequence& sequence, std::span<const float> logits);

  // The probabilities with which sample() would choose, by token id; it notes nothing. With
  // temperature 0, one of them is 1.
  Status probabilities(const SamplingSequence& sequence, std::span<const float> logits, std::span<float> result);

 private:
  struct Candidate {
    float score;
    int32_t id;
    float mass;  // exp(score - max_); valid behind weigh()
  };

  Status process(const SamplingSequence& sequence, std::span<const float> logits);
  void choose_candidates(const SamplingOptions& options);
  void keep_top_k(size_t k);
  void keep_top_p(double p);
  double select_bin(double needed);
  void collect(float least);
  void weigh();
  void find_exps();
  float kth_largest(size_t k);
  int32_t best() const;
  int32_t draw(double uniform) const;
  int32_t draw_of_all(double uniform) const;
  void find_logprobs(std::span<const float> logits, int32_t count, SampledToken& token);

  std::vector<float> scores_;
  std::vector<float> exps_;            // of all scores, with has_exps_
  std::vector<float> block_max_;       // of scores_
  std::vector<float> sorted_max_;      // a copy to select in
  std::vector<double> block_sums_;     // of exps_
  std::vector<Candidate> candidates_;  // in the order of ids
  std::vector<Candidate> selection_;   // a copy to select in
  std::vector<TokenLogprob> top_;
  bool has_all_ = true;  // every token is a candidate, and candidates_ is not filled
  float max_ = 0;
  bool has_exps_ = false;
  double all_sum_ = 0;  // of exps_
  double sum_ = 0;      // of the candidates' masses
};

}  // namespace hetero::qwen3
