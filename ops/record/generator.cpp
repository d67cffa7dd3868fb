#include "ops/record/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Utils.h>

#include <cstring>

#include "ops/record/recorder.h"

namespace hetero::ops {

HeteroGenerator::HeteroGenerator(uint64_t seed)
    : GeneratorImpl(c10::Device(kHetero, 0), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), seed_(seed) {}

void HeteroGenerator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

uint64_t HeteroGenerator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

void HeteroGenerator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(state.numel() == 16, "hetero: a random state has 16 bytes (seed and offset), not ", state.numel());
  const auto* bytes = static_cast<const char*>(state.data());
  std::memcpy(&seed_, bytes, 8);
  std::memcpy(&offset_, bytes + 8, 8);
}

c10::intrusive_ptr<c10::TensorImpl> HeteroGenerator::get_state() const {
  at::Tensor state = at::detail::empty_cpu({16}, at::kByte, std::nullopt, std::nullopt, std::nullopt, std::nullopt);
  auto* bytes = static_cast<char*>(state.mutable_data_ptr());
  std::memcpy(bytes, &seed_, 8);
  std::memcpy(bytes + 8, &offset_, 8);
  return state.getIntrusivePtr();
}

HeteroGenerator* HeteroGenerator::clone_impl() const {
  auto* copy = new HeteroGenerator(seed_);
  copy->offset_ = offset_;
  return copy;
}

const at::Generator& default_generator() {
  static auto* generator = new at::Generator(at::make_generator<HeteroGenerator>());
  return *generator;
}

RandomState draw_random_state(const std::optional<at::Generator>& generator) {
  if (generator.has_value() && generator->defined() && generator->device().is_cpu()) {
    TORCH_CHECK(false, "Expected a 'hetero' device type for generator but found 'cpu'");
  }
  if (captures_here()) {
    // A program draws at each call.
    const bool own = generator.has_value() && generator->defined() && *generator != default_generator();
    if (own) refuse_capture("random numbers from a generator of its own");
    return {};
  }
  const at::Generator& source = generator.has_value() && generator->defined() ? *generator : default_generator();
  std::lock_guard lock(source.unsafeGetGeneratorImpl()->mutex_);
  return static_cast<HeteroGenerator*>(source.unsafeGetGeneratorImpl())->draw();
}

SeededDefaultGenerator::SeededDefaultGenerator(bool active, RandomState state) {
  if (!active) return;
  static std::recursive_mutex turns;
  turn_ = std::unique_lock(turns);
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  at::Generator derived = derived_generator(state);
  std::lock_guard lock(generator.mutex());
  saved_ = generator.get_state();
  generator.set_state(derived.get_state());
}

SeededDefaultGenerator::~SeededDefaultGenerator() {
  if (!saved_.defined()) return;
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard lock(generator.mutex());
  generator.set_state(saved_);
}

}  // namespace hetero::ops
