#include "ops/kernels/measure.h"

#include <ATen/Parallel.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>

#include "backend/base/parallel.h"
#include "ops/settings/parallel.h"

namespace hetero::ops {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// How often a thread of this process lost its processor to another.
int64_t involuntary_switches() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

class OtherMemory {
 public:
  void read() {
    constexpr int64_t kBytesPerThread = 4 << 20;
    constexpr int64_t kLine = 64;
    const int64_t threads = backend::thread_count();
    if (bytes_.empty()) bytes_.resize(static_cast<size_t>(threads * kBytesPerThread));
    // Equal parts: each thread reads into the caches of its own core.
    at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
      const volatile std::byte* const bytes = bytes_.data();
      for (int64_t i = begin * kBytesPerThread; i < end * kBytesPerThread; i += kLine) (void)bytes[i];
    });
  }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace

Measured measure(size_t count, backend::FunctionRef<void(size_t)> run) {
  constexpr int kLeastRounds = 3;
  constexpr int kMostRounds = 15;
  constexpr double kEnough = 0.02;
  constexpr double kRepeats = 1.08;
  constexpr double kNever = 1e9;
  OtherMemory other_memory;
  Measured measured{.seconds = std::vector<double>(count, kNever)};
  // Of the runs that nobody interrupted.
  std::vector<std::array<double, 2>> best(count, {kNever, kNever});
  // All on OpenMP's threads, also those that would have helpers.
  const OpenMpScope openmp;
  for (size_t i = 0; i < count; ++i) run(i);
  const auto repeats = [&] {
    return std::all_of(best.begin(), best.end(),
                       [&](const auto& times) { return times[1] < kNever && times[1] < times[0] * kRepeats; });
  };
  double spent = 0;
  for (int round = 0; round < kMostRounds && (round < kLeastRounds || (spent < kEnough && !repeats())); ++round) {
    for (size_t i = 0; i < count; ++i) {
      other_memory.read();
      begin_openmp();
      const int64_t switches = involuntary_switches();
      const double begin = seconds_now();
      run(i);
      const double seconds = seconds_now() - begin;
      spent += seconds;
      measured.seconds[i] = std::min(measured.seconds[i], seconds);
      if (involuntary_switches() != switches) continue;
      best[i][1] = std::min(best[i][1], std::max(best[i][0], seconds));
      best[i][0] = std::min(best[i][0], seconds);
    }
  }
  measured.repeated = repeats();
  return measured;
}

size_t fastest(const Measured& measured) {
  constexpr double kWorthChanging = 0.97;
  const std::vector<double>& seconds = measured.seconds;
  size_t best = 0;
  for (size_t i = 1; i < seconds.size(); ++i) {
    if (seconds[i] < seconds[best] * (best == 0 ? kWorthChanging : 1)) best = i;
  }
  return best;
}

}  // namespace hetero::ops
