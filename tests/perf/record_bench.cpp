// What recording costs, next to the same call on CPU tensors. In inference mode, on tensors of 16 floats.
//
// The time of record_* is that of dispatch, and of making and dropping the result's handle; the recorded nodes are
// flushed with the clock stopped. record_cpp.py reads record_add and at_add.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/add.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <benchmark/benchmark.h>
#include <c10/core/InferenceMode.h>

#include "ops/config.h"
#include "ops/sync.h"
#include "tests/ops/start_device.h"

namespace hetero::ops {
namespace {

constexpr int kNodes = 1000;  // between two flushes

at::Tensor on_cpu(at::IntArrayRef sizes) { return at::randn(sizes, at::detail::createCPUGenerator(1)); }
at::Tensor on_device(at::IntArrayRef sizes) { return on_cpu(sizes).to(c10::Device(kHetero, 0)); }

template <typename Call>
void time_recording(benchmark::State& state, const Call& call) {
  int nodes = 0;
  call();
  flush_all(SyncReason::kFlush);
  for (auto _ : state) {
    benchmark::DoNotOptimize(call());
    if (++nodes == kNodes) {
      state.PauseTiming();
      flush_all(SyncReason::kFlush);
      nodes = 0;
      state.ResumeTiming();
    }
  }
  flush_all(SyncReason::kFlush);
}

template <typename Call>
void time_eager(benchmark::State& state, const Call& call) {
  for (auto _ : state) benchmark::DoNotOptimize(call());
}

void record_add(benchmark::State& state) {
  c10::InferenceMode mode;
  const at::Tensor x = on_device({16}), y = on_device({16});
  time_recording(state, [&] { return at::add(x, y); });
}

void at_add(benchmark::State& state) {
  c10::InferenceMode mode;
  const at::Tensor x = on_cpu({16}), y = on_cpu({16});
  time_eager(state, [&] { return at::add(x, y); });
}

void record_mul_scalar(benchmark::State& state) {
  c10::InferenceMode mode;
  const at::Tensor x = on_device({16});
  time_recording(state, [&] { return at::mul(x, 2.0); });
}

void record_relu_(benchmark::State& state) {
  c10::InferenceMode mode;
  at::Tensor x = on_device({16});
  time_recording(state, [&] { return at::relu_(x); });
}

void record_view(benchmark::State& state) {
  c10::InferenceMode mode;
  const at::Tensor x = on_device({16});
  time_recording(state, [&] { return x.view({4, 4}); });
}

void record_linear(benchmark::State& state) {
  c10::InferenceMode mode;
  const at::Tensor x = on_device({1, 16}), weight = on_device({16, 16}), bias = on_device({16});
  time_recording(state, [&] { return at::linear(x, weight, bias); });
}

void at_linear(benchmark::State& state) {
  c10::InferenceMode mode;
  const at::Tensor x = on_cpu({1, 16}), weight = on_cpu({16, 16}), bias = on_cpu({16});
  time_eager(state, [&] { return at::linear(x, weight, bias); });
}

// Planning and running a chain of additions, kernels included; the time is per node.
void flush_per_node(benchmark::State& state) {
  c10::InferenceMode mode;
  const at::Tensor x = on_device({16}), y = on_device({16});
  while (state.KeepRunningBatch(kNodes)) {
    state.PauseTiming();
    at::Tensor sum = x;
    for (int i = 0; i < kNodes; ++i) sum = at::add(sum, y);
    state.ResumeTiming();
    flush_all(SyncReason::kFlush);
  }
}

BENCHMARK(record_add);
BENCHMARK(at_add);
BENCHMARK(record_mul_scalar);
BENCHMARK(record_relu_);
BENCHMARK(record_view);
BENCHMARK(record_linear);
BENCHMARK(at_linear);
BENCHMARK(flush_per_node);

}  // namespace
}  // namespace hetero::ops

int main(int argc, char** argv) {
  hetero::ops::testing::start_device();
  hetero::ops::config().pending_nodes = int64_t{1} << 30;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
