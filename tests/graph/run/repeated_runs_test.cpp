// Segments of plans that run again and again (graph/run/segments.h): what is recorded computes the
// same, wherever the bytes are, and whatever fails.

#include <memory>
#include <vector>

#include "backend/fault/fault_device.h"
#include "graph/run/segments.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"

namespace hetero::graph::testing {
namespace {

using backend::FaultDevice;
using backend::FaultDuration;
using backend::FaultKind;
using backend::kAccelerator;
using backend::kCpu;

// A plan, what its runs remember, and where earlier runs left their bytes.
class Repeated {
 public:
  Repeated(Program& program, const PlanOptions& options, const Devices& devices)
      : program_(program), plan_(program.plan(options)), devices_(devices), executor_(devices) {}

  Results run() {
    Results results;
    results.bindings = program_.bind(devices_);
    const std::vector<Binding*> bound = program_.pointers(results.bindings);
    executor_.begin(program_.graph, plan_, bound, results.counts, nullptr, nullptr, &segments_);
    executor_.go_on(nullptr);
    results.status = executor_.end();
    program_.read_values(results, devices_);
    return results;
  }
  // Until so many later runs have done the same, the bytes of this one stay where they are.
  void keep(Results results, size_t runs) {
    earlier_.push_back(std::move(results.bindings));
    if (earlier_.size() > runs) earlier_.erase(earlier_.begin(), earlier_.end() - static_cast<long>(runs));
  }
  int64_t recordings() const { return segments_ == nullptr ? 0 : segments_->recordings(); }

 private:
  Program& program_;
  const Plan plan_;
  const Devices devices_;
  std::unique_ptr<Segments> segments_;
  Executor executor_;
  std::vector<std::vector<Binding>> earlier_;
};

// y = f(f(... f(x))), `length` times.
struct Chain {
  explicit Chain(int length) {
    y = program.input(16);
    for (int i = 0; i < length; ++i) y = program.define(test_ops().pointwise, 16, {program.read(y)});
    program.escape(y);
  }
  Program program;
  BufferId y;
};

PlanOptions on_accelerator(const Devices& devices) {
  PlanOptions options = options_for(devices);
  options.policy = Policy::kAccelerator;
  return options;
}

}  // namespace

TEST_CASE("repeated runs: random programs compute what the interpreter does, before and after they are recorded") {
  std::mt19937 random(7);
  int64_t segments = 0;
  for (int i = 0; i < 40; ++i) {
    for (const Policy policy : {Policy::kAccelerator, Policy::kMixed, Policy::kAuto}) {
      Program p;
      const bool fusion = i % 2 == 1;
      if (fusion) {
        make_fusable(p, random, 2 + i);
      } else {
        make_random(p, random, 2 + i, false);
      }
      const Results expected = p.interpret();
      PlanOptions options = options_for(test_devices());
      options.policy = policy;
      options.fusion = fusion;
      Repeated repeated(p, options, test_devices());
      for (int r = 0; r < 14; ++r) {
        Results results = repeated.run();
        REQUIRE(results.status.ok());
        REQUIRE(same_values(p, results, expected));
        segments += results.counts.segments;
        if (r >= 10) repeated.keep(std::move(results), static_cast<size_t>(r) - 9);
      }
    }
  }
  CHECK(segments > 100);
}

TEST_CASE("repeated runs: a chain is one segment once its addresses have settled, with as many kernels as before") {
  Chain chain(8);
  const Results expected = chain.program.interpret();
  Repeated repeated(chain.program, on_accelerator(test_devices()), test_devices());
  const int64_t kernels = repeated.run().counts.kernels[kAccelerator];
  for (int r = 0; r < 10; ++r) repeated.run();
  const Results results = repeated.run();
  CHECK(results.counts.segments == 1);
  CHECK(results.counts.kernels[kAccelerator] == kernels);
  CHECK(results.values[chain.y] == expected.values[chain.y]);
}

TEST_CASE("repeated runs: launches whose addresses never settle are launched alone, the others as one") {
  Chain chain(8);
  const Results expected = chain.program.interpret();
  Repeated repeated(chain.program, on_accelerator(test_devices()), test_devices());
  int64_t segments = 0;
  // One, two or three earlier runs keep their bytes, so that these runs' are elsewhere.
  for (int r = 0; r < 30; ++r) {
    Results results = repeated.run();
    CHECK(results.values[chain.y] == expected.values[chain.y]);
    segments = results.counts.segments;
    repeated.keep(std::move(results), 1 + static_cast<size_t>(r) % 3);
  }
  CHECK(segments == 1);
  CHECK(repeated.recordings() == 1);
}

TEST_CASE("repeated runs: what fails is the run's own, and the next one is right") {
  FaultDevice accelerator(*test_devices()[kAccelerator]);
  const Devices devices{test_devices()[kCpu], &accelerator};
  Chain chain(8);
  const Results expected = chain.program.interpret();
  for (const FaultKind kind :
       {FaultKind::kLaunch, FaultKind::kSegmentRecord, FaultKind::kAllocation, FaultKind::kCopy}) {
    for (const FaultDuration duration : {FaultDuration::kOnce, FaultDuration::kForEver}) {
      Repeated repeated(chain.program, on_accelerator(devices), devices);
      if (kind != FaultKind::kSegmentRecord) {
        for (int r = 0; r < 10; ++r) repeated.run();
        REQUIRE(repeated.recordings() == 1);
      }
      accelerator.fail(kind, 1, duration);
      for (int r = 0; r < 10; ++r) {
        const Results results = repeated.run();
        if (results.status.ok()) CHECK(results.values[chain.y] == expected.values[chain.y]);
      }
      accelerator.heal();
      for (int r = 0; r < 10; ++r) {
        const Results results = repeated.run();
        REQUIRE(results.status.ok());
        CHECK(results.values[chain.y] == expected.values[chain.y]);
      }
    }
  }
}

TEST_CASE("repeated runs: an executor never launches what another one has recorded") {
  Chain chain(6);
  const PlanOptions options = on_accelerator(test_devices());
  const Plan plan = chain.program.plan(options);
  const Results expected = chain.program.interpret();
  std::unique_ptr<Segments> segments;
  std::vector<std::unique_ptr<Executor>> executors;
  for (int e = 0; e < 3; ++e) {
    Executor& executor = *executors.emplace_back(std::make_unique<Executor>(test_devices()));
    for (int r = 0; r < 8; ++r) {
      Results results;
      results.bindings = chain.program.bind(test_devices());
      const std::vector<Binding*> bound = chain.program.pointers(results.bindings);
      executor.begin(chain.program.graph, plan, bound, results.counts, nullptr, nullptr, &segments);
      executor.go_on(nullptr);
      REQUIRE(executor.end().ok());
      chain.program.read_values(results, test_devices());
      CHECK(results.values[chain.y] == expected.values[chain.y]);
      if (r == 0) CHECK(segments->recordings() == 0);
    }
    CHECK(segments->recordings() == 1);
  }
}

}  // namespace hetero::graph::testing
