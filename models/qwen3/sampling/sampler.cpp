#include "qwen3/sampling/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "backend/base/random.h"
#include "qwen3/sampling/sweep.h"

namespace hetero::qwen3 {
namespace {

// A lower temperature is greedy: scores divided by it would leave the range of float.
constexpr double kLeastTemperature = 1e-5;
constexpr int32_t kMostLogprobs = 1024;

Status usage(std::string message) { return Status(ErrorClass::kUsage, std::move(message)); }

bool is_within(double value, double least, double most) { return value >= least && value <= most; }

Status check(const SamplingOptions& options, int64_t vocab_size) {
  if (!is_within(options.temperature, 0, 1e6)) return usage("temperature must be from 0 to 1000000");
  if (options.top_k < 0) return usage("top_k must not be negative");
  if (!is_within(options.top_p, 0, 1)) return usage("top_p must be from 0 to 1");
  if (!is_within(options.min_p, 0, 1)) return usage("min_p must be from 0 to 1");
  if (!is_within(options.repetition_penalty, 1e-6, 1e6)) return usage("repetition_penalty must be from 1e-6 to 1e6");
  if (!is_within(options.frequency_penalty, -1e6, 1e6)) return usage("frequency_penalty must be from -1e6 to 1e6");
  if (!is_within(options.presence_penalty, -1e6, 1e6)) return usage("presence_penalty must be from -1e6 to 1e6");
  if (options.logprobs < -1 || options.logprobs > kMostLogprobs) {
    return usage("logprobs must be from -1 to " + std::to_string(kMostLogprobs));
  }
  for (const auto& [id, bias] : options.logit_bias) {
    if (id < 0 || id >= vocab_size) {
      return usage("logit_bias has the token " + std::to_string(id) + ", and the vocabulary " +
                   std::to_string(vocab_size));
    }
    if (std::isnan(bias) || bias == std::numeric_limits<float>::infinity()) {
      return usage("the logit_bias of token " + std::to_string(id) + " is not a finite number");
    }
  }
  return Status();
}

// From so many candidates on, the exponentials of all scores are computed at once.
constexpr size_t kManyCandidates = 4096;

}  // namespace

Result<SamplingSequence> SamplingSequence::make(SamplingOptions options, int64_t vocab_size) {
  if (vocab_size < 1 || vocab_size > INT32_MAX) return usage("the vocabulary must have from 1 to 2^31 - 1 tokens");
  if (Status status = check(options, vocab_size); !status.ok()) return status;
  return SamplingSequence(std::move(options), vocab_size);
}

SamplingSequence::SamplingSequence(SamplingOptions options, int64_t vocab_size)
    : options_(std::move(options)), vocab_size_(vocab_size) {
  if (!has_penalty()) return;
  counts_.resize(static_cast<size_t>(vocab_size));
  seen_.reserve(static_cast<size_t>(vocab_size));  // pages that no token touches take no memory
}

bool SamplingSequence::has_penalty() const {
  return options_.repetition_penalty != 1 || options_.frequency_penalty != 0 || options_.presence_penalty != 0;
}

void SamplingSequence::note(int32_t id, uint32_t amount) {
  if (counts_.empty()) return;
  uint32_t& count = counts_[static_cast<size_t>(id)];
  if (count == 0) seen_.push_back(id);
  count = amount == kInPrompt ? count | kInPrompt : count + amount;
}

Status SamplingSequence::add_prompt(std::span<const int32_t> ids) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size_) {
      return usage("the prompt has the token " + std::to_string(id) + ", and the vocabulary " +
                   std::to_string(vocab_size_));
    }
  }
  for (const int32_t id : ids) note(id, kInPrompt);
  return Status();
}

void SamplingSequence::penalize(std::span<float> scores) const {
  for (const auto& [id, bias] : options_.logit_bias) scores[static_cast<size_t>(id)] += bias;
  const auto repetition = static_cast<float>(options_.repetition_penalty);
  for (const int32_t id : seen_) {
    float& score = scores[static_cast<size_t>(id)];
    if (repetition != 1) score = score < 0 ? score * repetition : score / repetition;
    if (const uint32_t count = counts_[static_cast<size_t>(id)] & ~kInPrompt; count > 0) {
      score -= static_cast<float>(count * options_.frequency_penalty + options_.presence_penalty);
    }
  }
}

Sampler::Sampler(int64_t vocab_size) {
  const auto count = static_cast<size_t>(vocab_size);
  scores_.resize(count);
  exps_.resize(count);
  block_max_.resize(blocks_of(count, kMaxBlock));
  sorted_max_.resize(block_max_.size());
  block_sums_.resize(blocks_of(count, kSumBlock));
  candidates_.reserve(count);
  selection_.reserve(count);
  top_.reserve(kMostLogprobs);
}

// Fills scores_ up to the temperature, block_max_ and max_.
Status Sampler::process(const SamplingSequence& sequence, std::span<const float> logits) {
  if (logits.size() != scores_.size() || sequence.vocab_size_ != static_cast<int64_t>(scores_.size())) {
    return usage("there are " + std::to_string(logits.size()) + " logits, and the sampler is for " +
                 std::to_string(scores_.size()));
  }
  std::ranges::copy(logits, scores_.begin());
  sequence.penalize(scores_);
  const double temperature = sequence.options().temperature;
  const float divisor = temperature < kLeastTemperature ? 1.0F : static_cast<float>(temperature);
  const Extreme extreme = sweep_divide(scores_, divisor, block_max_);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (extreme.has_nan) return Status(ErrorClass::kKernel, "a logit is not a number");
  if (extreme.max == kInfinity) return Status(ErrorClass::kKernel, "a logit is infinite");
  if (extreme.max == -kInfinity) return Status(ErrorClass::kKernel, "all tokens are forbidden");
  max_ = extreme.max;
  return Status();
}

// The first token with the highest score.
int32_t Sampler::best() const {
  const auto block = static_cast<size_t>(std::ranges::find(block_max_, max_) - block_max_.begin());
  const auto from = scores_.begin() + static_cast<ptrdiff_t>(block * kMaxBlock);
  return static_cast<int32_t>(std::find(from, scores_.end(), max_) - scores_.begin());
}

// Makes all tokens with at least this score candidates. Blocks below it are skipped.
void Sampler::collect(float least) {
  candidates_.clear();
  has_all_ = false;
  for (size_t block = 0; block < block_max_.size(); ++block) {
    if (block_max_[block] < least) continue;
    const size_t end = std::min((block + 1) * kMaxBlock, scores_.size());
    for (size_t i = block * kMaxBlock; i < end; ++i) {
      if (scores_[i] >= least) candidates_.push_back({scores_[i], static_cast<int32_t>(i), 0});
    }
  }
}

void Sampler::find_exps() {
  if (!has_exps_) all_sum_ = sweep_exp(scores_, max_, exps_, block_sums_);
  has_exps_ = true;
}

// Fills the masses of the candidates.
void Sampler::weigh() {
  if (candidates_.size() >= kManyCandidates) find_exps();
  for (Candidate& candidate : candidates_) {
    candidate.mass = has_exps_ ? exps_[static_cast<size_t>(candidate.id)] : std::exp(candidate.score - max_);
  }
}

// REQUIRES: 1 <= k <= the number of scores.
float Sampler::kth_largest(size_t k) {
  // k blocks have a score of at least the k-th largest maximum, so the answer is not below it.
  float least = -std::numeric_limits<float>::infinity();
  if (k <= block_max_.size()) {
    std::ranges::copy(block_max_, sorted_max_.begin());
    const auto nth = sorted_max_.begin() + static_cast<ptrdiff_t>(k - 1);
    std::ranges::nth_element(sorted_max_, nth, std::greater<>());
    least = *nth;
  }
  collect(least);
  selection_ = candidates_;
  const auto nth = selection_.begin() + static_cast<ptrdiff_t>(k - 1);
  std::ranges::nth_element(selection_, nth, std::greater<>(), &Candidate::score);
  return nth->score;
}

void Sampler::keep_top_k(size_t k) {
  if (k >= scores_.size()) return;
  const float least = kth_largest(k);
  std::erase_if(candidates_, [&](const Candidate& candidate) { return candidate.score < least; });
}

// Sorts the candidates into bins of scores, and fills selection_ with those of the bin in which the
// mass `needed` is reached. Returns the mass of the bins above it.
double Sampler::select_bin(double needed) {
  constexpr size_t kBins = 1024;
  selection_.clear();
  if (candidates_.size() < kManyCandidates) {
    selection_ = candidates_;
    return 0;
  }
  float lowest = max_;
  for (const Candidate& candidate : candidates_) {
    if (candidate.mass > 0) lowest = std::min(lowest, candidate.score);
  }
  const float scale = lowest < max_ ? static_cast<float>(kBins - 1) / (max_ - lowest) : 0.0F;
  const auto bin_of = [&](float score) {
    return static_cast<size_t>(std::min((max_ - score) * scale, static_cast<float>(kBins - 1)));
  };
  std::array<double, kBins> masses{};
  for (const Candidate& candidate : candidates_) masses[bin_of(candidate.score)] += static_cast<double>(candidate.mass);
  size_t bin = 0;
  double above = 0;
  while (bin + 1 < kBins && above + masses[bin] < needed) above += masses[bin++];
  // Rounding may go beyond the last candidate.
  while (bin > 0 && masses[bin] == 0) above -= masses[--bin];
  for (const Candidate& candidate : candidates_) {
    if (bin_of(candidate.score) == bin) selection_.push_back(candidate);
  }
  return above;
}

// Keeps the candidates whose more probable ones together have less than p.
void Sampler::keep_top_p(double p) {
  if (has_all_) {
    find_exps();
    // Most of the mass is near the maximum: look there first.
    constexpr float kStep = 4;
    constexpr float kDeepest = 88;
    float depth = kStep;
    while (depth < kDeepest && sweep_mass(scores_, exps_, max_ - depth) < p * all_sum_) depth += kStep;
    collect(depth < kDeepest ? max_ - depth : -std::numeric_limits<float>::infinity());
    sum_ = all_sum_;
    weigh();
  } else {
    weigh();
    sum_ = 0;
    for (const Candidate& candidate : candidates_) sum_ += static_cast<double>(candidate.mass);
  }
  const double needed = p * sum_;
  double mass = select_bin(needed);
  // Quickselect by mass: all before `begin` stay and have `mass`, all from `end` on go.
  size_t begin = 0;
  size_t end = selection_.size();
  while (end - begin > 1) {
    const size_t middle = begin + (end - begin) / 2;
    const auto at = [&](size_t index) { return selection_.begin() + static_cast<ptrdiff_t>(index); };
    std::ranges::nth_element(at(begin), at(middle), at(end), std::greater<>(), &Candidate::score);
    double half = 0;
    for (size_t i = begin; i < middle; ++i) half += static_cast<double>(selection_[i].mass);
    if (mass + half < needed) {
      mass += half;
      begin = middle;
    } else {
      end = middle;
    }
  }
  const float least = selection_[begin].score;
  const auto is_equal = [&](const Candidate& candidate) { return candidate.score == least; };
  auto equal = std::count_if(selection_.begin(), selection_.begin() + static_cast<ptrdiff_t>(begin) + 1, is_equal);
  std::erase_if(candidates_, [&](const Candidate& candidate) {
    return candidate.score < least || (candidate.score == least && equal-- <= 0);
  });
}

// Fills candidates_, or has_all_, and sum_. REQUIRES: process().
void Sampler::choose_candidates(const SamplingOptions& options) {
  has_all_ = true;
  has_exps_ = false;
  if (options.top_k > 0) keep_top_k(static_cast<size_t>(options.top_k));
  if (options.top_p < 1) keep_top_p(options.top_p);
  if (options.min_p > 0) {
    const float least = std::min(max_ + static_cast<float>(std::log(options.min_p)), max_);
    if (has_all_) collect(least);
    std::erase_if(candidates_, [&](const Candidate& candidate) { return candidate.score < least; });
  }
  if (has_all_) {
    find_exps();
    return;
  }
  weigh();
  sum_ = 0;
  for (const Candidate& candidate : candidates_) sum_ += static_cast<double>(candidate.mass);
}

// The candidate at this share of the sum. Rounding may leave the last one with a little more.
int32_t Sampler::draw(double uniform) const {
  double left = uniform * sum_;
  for (const Candidate& candidate : candidates_) {
    left -= static_cast<double>(candidate.mass);
    if (left < 0) return candidate.id;
  }
  return best();
}

int32_t Sampler::draw_of_all(double uniform) const {
  double left = uniform * all_sum_;
  for (size_t block = 0; block < block_sums_.size(); ++block) {
    if (left >= block_sums_[block]) {
      left -= block_sums_[block];
      continue;
    }
    const size_t end = std::min((block + 1) * kSumBlock, scores_.size());
    for (size_t i = block * kSumBlock; i < end; ++i) {
      left -= static_cast<double>(exps_[i]);
      if (left < 0) return static_cast<int32_t>(i);
    }
    left = 0;  // the lanes of the block's sum were rounded differently
  }
  return best();
}

void Sampler::find_logprobs(std::span<const float> logits, int32_t count, SampledToken& token) {
  std::ranges::copy(logits, scores_.begin());
  const Extreme extreme = sweep_max(scores_, block_max_);
  const double log_sum = static_cast<double>(extreme.max) + std::log(sweep_sum(scores_, extreme.max));
  const auto logprob = [&](float logit) { return static_cast<float>(static_cast<double>(logit) - log_sum); };
  token.logprob = logprob(logits[static_cast<size_t>(token.id)]);
  top_.clear();
  const size_t most = std::min(static_cast<size_t>(count), scores_.size());
  if (most == 0) return;
  const float least = kth_largest(most);
  std::erase_if(candidates_, [&](const Candidate& candidate) { return candidate.score < least; });
  std::ranges::sort(candidates_, [](const Candidate& a, const Candidate& b) {
    return std::pair(b.score, a.id) < std::pair(a.score, b.id);
  });
  for (size_t i = 0; i < most; ++i) top_.push_back({candidates_[i].id, logprob(candidates_[i].score)});
  token.top = top_;
}

Result<SampledToken> Sampler::sample(SamplingSequence& sequence, std::span<const float> logits) {
  const SamplingOptions& options = sequence.options();
  if (Status status = process(sequence, logits); !status.ok()) return status;
  SampledToken token;
  if (options.temperature < kLeastTemperature) {
    token.id = best();
  } else {
    choose_candidates(options);
    const auto words = backend::philox(options.seed, sequence.position_);
    const double uniform = backend::uniform_double(words[0], words[1]);
    token.id = has_all_ ? draw_of_all(uniform) : draw(uniform);
  }
  ++sequence.position_;
  sequence.note(token.id, 1);
  if (options.logprobs >= 0) find_logprobs(logits, options.logprobs, token);
  return token;
}

Status Sampler::probabilities(const SamplingSequence& sequence, std::span<const float> logits,
                              std::span<float> result) {
  if (result.size() != scores_.size()) return usage("the probabilities need one entry for each token");
  if (Status status = process(sequence, logits); !status.ok()) return status;
  std::ranges::fill(result, 0.0F);
  if (sequence.options().temperature < kLeastTemperature) {
    result[static_cast<size_t>(best())] = 1;
    return Status();
  }
  choose_candidates(sequence.options());
  if (has_all_) {
    for (size_t i = 0; i < result.size(); ++i) result[i] = static_cast<float>(static_cast<double>(exps_[i]) / all_sum_);
    return Status();
  }
  for (const Candidate& candidate : candidates_) {
    result[static_cast<size_t>(candidate.id)] = static_cast<float>(static_cast<double>(candidate.mass) / sum_);
  }
  return Status();
}

}  // namespace hetero::qwen3
