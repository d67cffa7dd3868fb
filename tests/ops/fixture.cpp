#include "tests/ops/fixture.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randn.h>

#include <cstring>

#include "ops/record/recorder.h"
#include "ops/run/sync.h"
#include "ops/settings/config.h"
#include "tests/ops/start_device.h"

namespace hetero::ops::testing {
namespace {

Counts read_counters() {
  Counters& c = counters();
  Counts counts{.typed = c.typed_nodes,
                .boxed = c.boxed_nodes,
                .views = c.views,
                .straight = c.straight,
                .hits = c.meta_hits + c.predicted_nodes,
                .misses = c.meta_misses,
                .kernels = c.cpu_kernels + c.accelerator_kernels,
                .dead = c.dead_nodes,
                .skipped = c.skipped};
  for (size_t i = 0; i < c.flushes.size(); ++i) {
    if (c.flushes[i] != 0) counts.flushes[static_cast<SyncReason>(i)] = c.flushes[i];
  }
  counts.fallbacks = c.fallbacks.all();
  return counts;
}

template <typename Key>
std::map<Key, int64_t> difference(std::map<Key, int64_t> after, const std::map<Key, int64_t>& before) {
  for (const auto& [key, count] : before) after[key] -= count;
  std::erase_if(after, [](const auto& entry) { return entry.second == 0; });
  return after;
}

void print(const char* name, int64_t count, std::ostream& out) {
  if (count != 0) out << " " << name << "=" << count;
}

Tensors copies(const Tensors& tensors, c10::Device device) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.clone().to(device));
  return result;
}

}  // namespace

bool Counts::only_recorded() const {
  return typed + boxed > 0 && *this == Counts{.typed = typed, .boxed = boxed, .views = views, .hits = hits};
}

void PrintTo(const Counts& counts, std::ostream* out) {
  *out << "{";
  print("typed", counts.typed, *out);
  print("boxed", counts.boxed, *out);
  print("views", counts.views, *out);
  print("straight", counts.straight, *out);
  print("hits", counts.hits, *out);
  print("misses", counts.misses, *out);
  print("kernels", counts.kernels, *out);
  print("dead", counts.dead, *out);
  print("skipped", counts.skipped, *out);
  for (const auto& [reason, count] : counts.flushes) *out << " [" << to_string(reason) << "]=" << count;
  for (const auto& [name, count] : counts.fallbacks) *out << " fallback " << name << "=" << count;
  *out << " }";
}

at::Tensor numbers(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed));
}

void expect_same(const at::Tensor& actual, const at::Tensor& expected) {
  ASSERT_EQ(actual.defined(), expected.defined());
  if (!expected.defined()) return;
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type());
  ASSERT_EQ(actual.sizes(), expected.sizes());
  EXPECT_EQ(actual.strides(), expected.strides());
  const auto plain = [](const at::Tensor& tensor) {
    return tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
  };
  const at::Tensor a = plain(actual), b = plain(expected);
  EXPECT_EQ(std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()), 0) << "other values than the CPU's";
}

void expect_same(const Tensors& actual, const Tensors& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    SCOPED_TRACE("tensor " + std::to_string(i));
    expect_same(actual[i], expected[i]);
  }
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

void OpsTest::SetUp() {
  for (const Option& option : list_options()) set_option(option.name, option.default_value);
  config().verify_plans = true;
  flush_all(SyncReason::kFlush);
  {
    Locked lock(recorder().mutex());
    recorder().forget();
  }
  mark();
}

void OpsTest::TearDown() { flush_all(SyncReason::kFlush); }

void OpsTest::mark() {
  flush_all(SyncReason::kFlush);
  mark_pending();
}

void OpsTest::mark_pending() { before_ = read_counters(); }

Counts OpsTest::seen() const {
  Counts now = read_counters();
  now.typed -= before_.typed;
  now.boxed -= before_.boxed;
  now.views -= before_.views;
  now.straight -= before_.straight;
  now.hits -= before_.hits;
  now.misses -= before_.misses;
  now.kernels -= before_.kernels;
  now.dead -= before_.dead;
  now.skipped -= before_.skipped;
  now.flushes = difference(std::move(now.flushes), before_.flushes);
  now.fallbacks = difference(std::move(now.fallbacks), before_.fallbacks);
  return now;
}

size_t OpsTest::pending_nodes() {
  Locked lock(recorder().mutex());
  return recorder().pending_nodes();
}

Counts OpsTest::compare(const std::function<Tensors(Tensors&)>& call, const Tensors& arguments) {
  Tensors oracle = copies(arguments, at::kCPU);
  const Tensors expected = call(oracle);
  Counts counts;
  for (const char* which : {"first call", "second call"}) {
    SCOPED_TRACE(which);
    Tensors copied = copies(arguments, kDevice);
    mark();
    const Tensors results = call(copied);
    counts = seen();
    for (const at::Tensor& result : results) EXPECT_TRUE(!result.defined() || is_hetero(result));
    expect_same(results, expected);
    expect_same(copied, oracle);
  }
  return counts;
}

}  // namespace hetero::ops::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  hetero::ops::testing::start_device();
  return RUN_ALL_TESTS();
}
