// What recording costs, next to the same call on CPU tensors. In inference mode, on tensors of 16
// floats.
//
// The time of record_* is that of dispatch, and of making and dropping the result's handle; the
// recorded nodes are flushed with the clock stopped. run_tiny_adds records, runs and reads a chain;
// flush_until_first_kernel is the time from a flush to the first kernel of its plan. record_cpp.py
// reads these, at_add and at_tiny_adds.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <benchmark/benchmark.h>
#include <c10/core/InferenceMode.h>
#include <torch/library.h>

#include <algorithm>
#include <chrono>

#include "ops/run/sync.h"
#include "ops/settings/config.h"
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

at::Tensor add_chain(const at::Tensor& first, const at::Tensor& y) {
  at::Tensor sum = first;
  for (int i = 0; i < kNodes; ++i) sum = at::add(sum, y);
  return sum;
}

// The last value is read, so everything has run. The time is that of the whole chain.
void run_tiny_adds(benchmark::State& state) {
  c10::InferenceMode mode;
  const at::Tensor x = on_device({16}), y = on_device({16});
  for (auto _ : state) benchmark::DoNotOptimize(*add_chain(x, y).cpu().const_data_ptr<float>());
}

void at_tiny_adds(benchmark::State& state) {
  c10::InferenceMode mode;
  const at::Tensor x = on_cpu({16}), y = on_cpu({16});
  for (auto _ : state) benchmark::DoNotOptimize(*add_chain(x, y).cpu().const_data_ptr<float>());
}

using Clock = std::chrono::steady_clock;
Clock::time_point stamped;

// The identity, as an operator whose kernel notes when it was called.
at::Tensor stamp(const at::Tensor& x) {
  stamped = Clock::now();
  return x.clone();
}
at::Tensor stamp_meta(const at::Tensor& x) { return at::empty_like(x); }

// The chain hangs on `stamp`, so its kernel is the first of the plan; the other nodes are as many
// as in run_tiny_adds.
void flush_until_first_kernel(benchmark::State& state) {
  c10::InferenceMode mode;
  const auto record_stamp =
      c10::Dispatcher::singleton().findSchemaOrThrow("hetero_bench::stamp", "").typed<at::Tensor(const at::Tensor&)>();
  const at::Tensor x = on_device({16}), y = on_device({16});
  const auto once = [&] {
    const at::Tensor sum = add_chain(record_stamp.call(x), y);
    const Clock::time_point start = Clock::now();
    flush_all(SyncReason::kFlush);
    // Work that ran while it was recorded has no time left to wait for.
    return std::max(0.0, std::chrono::duration<double>(stamped - start).count());
  };
  for (int i = 0; i < 4; ++i) once();  // until it is predicted
  for (auto _ : state) state.SetIterationTime(once());
}

BENCHMARK(record_add);
BENCHMARK(at_add);
BENCHMARK(record_mul_scalar);
BENCHMARK(record_relu_);
BENCHMARK(record_view);
BENCHMARK(record_linear);
BENCHMARK(at_linear);
BENCHMARK(flush_per_node);
BENCHMARK(run_tiny_adds);
BENCHMARK(at_tiny_adds);
BENCHMARK(flush_until_first_kernel)->UseManualTime();

TORCH_LIBRARY(hetero_bench, m) { m.def("stamp(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(hetero_bench, CPU, m) { m.impl("stamp", &stamp); }
TORCH_LIBRARY_IMPL(hetero_bench, Meta, m) { m.impl("stamp", &stamp_meta); }

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
