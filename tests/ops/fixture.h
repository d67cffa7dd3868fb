// The fixture of the tests of ops/: which path a call took, by the counters, and whether its values
// are the CPU's.
//
//   EXPECT_EQ(path_of([](auto& t) { return at::add(t[0], t[1]); }, {x, y}), (Counts{.typed = 1, .hits = 1}));
//
// Counts are compared as a whole: what an expectation does not name did not happen.
//
// Thread safety: none, one test at a time.

#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "ops/settings/counters.h"
#include "ops/tensor/storage.h"

namespace hetero::ops {

inline void PrintTo(SyncReason reason, std::ostream* out) { *out << to_string(reason); }

namespace testing {

using Tensors = std::vector<at::Tensor>;

inline const c10::Device kDevice(kHetero, 0);

// The counters of counters.h, or the difference of two readings. Zero entries of the maps are left
// out.
struct Counts {
  int64_t typed = 0;
  int64_t boxed = 0;
  int64_t views = 0;
  int64_t straight = 0;
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t kernels = 0;
  int64_t dead = 0;
  int64_t skipped = 0;
  std::map<SyncReason, int64_t> flushes = {};
  std::map<std::string, int64_t> fallbacks = {};

  bool operator==(const Counts&) const = default;
  // Nodes and views were made from known shapes, and nothing ran.
  bool only_recorded() const;
};
void PrintTo(const Counts& counts, std::ostream* out);

// float32 CPU tensors with numbers of both signs: the same ones for the same sizes and seed.
at::Tensor numbers(at::IntArrayRef sizes, uint64_t seed = 1);
inline at::Tensor on_device(const at::Tensor& tensor) { return tensor.to(kDevice); }

// Equal dtypes, sizes, strides and bits; `actual` may be on the device.
void expect_same(const at::Tensor& actual, const at::Tensor& expected);
void expect_same(const Tensors& actual, const Tensors& expected);

// The message of the c10::Error that `call` raises, without its backtrace; "" where it raises none.
std::string error_of(const std::function<void()>& call);

class OpsTest : public ::testing::Test {
 public:
  // All options at their defaults (plans are verified), an empty meta cache, nothing pending.
  void SetUp() override;
  void TearDown() override;

  // Counting starts here; mark() first runs what is pending.
  void mark();
  void mark_pending();
  Counts seen() const;
  static size_t pending_nodes();

  // Runs `call` on CPU copies of the arguments and twice on copies on the device. What it returns,
  // and the arguments after it, must be the same each time. Returns what the second call on the
  // device did, before its results were read.
  template <typename Call>
  Counts path_of(const Call& call, const Tensors& arguments) {
    return compare([&](Tensors& copies) { return listed(call(copies)); }, arguments);
  }

 private:
  static Tensors listed(const at::Tensor& result) { return {result}; }
  static Tensors listed(Tensors results) { return results; }
  template <typename... T>
  static Tensors listed(const std::tuple<T...>& results) {
    return std::apply([](const auto&... result) { return Tensors{result...}; }, results);
  }
  Counts compare(const std::function<Tensors(Tensors&)>& call, const Tensors& arguments);

  Counts before_;
};

}  // namespace testing
}  // namespace hetero::ops
