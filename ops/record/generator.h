// HeteroGenerator: the device's random state, a seed and an offset.
//
// Recording an operator draws: it takes (seed, offset) and advances the offset. So numbers depend
// on program order only, not on flushes, fusion or placement. The state tensor has 16 bytes: seed,
// then offset, little endian, as CUDA's.
//
// Thread safety: drawing locks the generator.

#pragma once

#include <ATen/core/Generator.h>

#include <mutex>
#include <optional>

#include "ops/record/call.h"

namespace hetero::ops {

class HeteroGenerator final : public c10::GeneratorImpl {
 public:
  explicit HeteroGenerator(uint64_t seed = c10::default_rng_seed_val);

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  // The draw of one recorded operator. Its numbers may use 2^32 counters from `offset << 32` on.
  RandomState draw() { return {seed_, offset_++}; }

 private:
  HeteroGenerator* clone_impl() const override;
  uint64_t seed_;
  uint64_t offset_ = 0;
};

const at::Generator& default_generator();

// Draws from the given generator, or the default one. A CPU generator is drawn from as well: it
// then determines the numbers.
RandomState draw_random_state(const std::optional<at::Generator>& generator);

// For operators that use the default CPU generator and take none: while it lives, that generator
// continues from `state`, for the calling thread: others that want it to continue from theirs wait.
class SeededDefaultGenerator {
 public:
  SeededDefaultGenerator(bool active, RandomState state);
  ~SeededDefaultGenerator();
  SeededDefaultGenerator(const SeededDefaultGenerator&) = delete;

 private:
  std::unique_lock<std::recursive_mutex> turn_;
  at::Tensor saved_;
};

}  // namespace hetero::ops
