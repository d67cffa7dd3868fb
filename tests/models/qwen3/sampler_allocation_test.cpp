// In the steady state, sampling takes no memory.

#include <atomic>
#include <cstdlib>
#include <new>
#include <random>
#include <vector>

#include "qwen3/sampling/sampler.h"
#include "tests/catch/catch.h"

namespace {

std::atomic<int64_t> allocations{0};

void* take(size_t bytes) {
  ++allocations;
  void* const data = std::malloc(bytes == 0 ? 1 : bytes);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace

void* operator new(size_t bytes) { return take(bytes); }
void* operator new[](size_t bytes) { return take(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return take(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return take(bytes); }
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }
void operator delete[](void* data, size_t) noexcept { std::free(data); }

namespace hetero::qwen3 {

TEST_CASE("sampling allocates nothing, whatever the options") {
  constexpr size_t kTokens = 20000;
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(kTokens);
  for (float& logit : logits) logit = normal(random);
  Sampler sampler(kTokens);
  for (SamplingOptions options : {SamplingOptions{}, SamplingOptions{.temperature = 0}, SamplingOptions{.top_k = 20},
                                  SamplingOptions{.top_k = 10000, .top_p = 0.9}, SamplingOptions{.top_p = 0.95},
                                  SamplingOptions{.min_p = 0.01}}) {
    options.repetition_penalty = 1.1;
    options.presence_penalty = 0.5;
    options.logprobs = 10;
    auto sequence = SamplingSequence::make(options, kTokens);
    REQUIRE(sequence.ok());
    const int64_t before = allocations;
    int wrong = 0;
    for (int i = 0; i < 100; ++i) wrong += sampler.sample(sequence.value(), logits).ok() ? 0 : 1;
    CHECK(allocations == before);
    CHECK(wrong == 0);
  }
}

}  // namespace hetero::qwen3
