// A stream of batches through two stages on two equal accelerators, against the whole on one of them.
//
// In real time: the simulated accelerators keep pace with their clocks, so that the stages' threads, queues and copies are those of a real run. Other work of the machine disturbs it: the least of two alternating runs counts.

#include <algorithm>
#include <chrono>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "graph/serve/stage_pipeline.h"
#include "tests/graph/fixtures/program.h"
#include "tests/graph/fixtures/saved.h"
#include "tests/perf/partition/rows.h"

namespace hetero::graph::testing {
namespace {

constexpr int kLayers = 16;
constexpr int64_t kWidth = 256;
constexpr int64_t kWeight = int64_t{1} << 20;  // floats of a layer
constexpr double kLayerSeconds = 20e-3;
constexpr int kBatches = 24;
constexpr int kRounds = 2;
constexpr size_t kDepth = 2;

void require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

// Products one after the other, whose time is that of reading their weights.
std::shared_ptr<hetero::Model> layers() {
  static const OpId product =
      op_table().add({.name = "stages::product", .op_class = OpClass::kMatmul, .kernel = [](const Invocation&) {}});
  Program program;
  std::set<BufferId> weights;
  BufferId x = program.input(kWidth);
  for (int layer = 0; layer < kLayers; ++layer) {
    const BufferId weight = program.input(kWeight);
    weights.insert(weight);
    x = program.define(product, kWidth, {program.read(x), program.read(weight)});
  }
  program.escape(x);
  Result<std::shared_ptr<hetero::Model>> model = hetero::Model::create(save(program, weights));
  require(model.status());
  return model.value();
}

// Of all batches, the first few left out, by so many stages, each on an accelerator of its own.
double seconds_of(const Machine& machine, size_t stages) {
  const double slower = machine.sim.memory_bandwidth * kLayerSeconds / (kWeight * sizeof(float));
  backend::SimOptions figures = machine.slower(slower, slower).sim;
  figures.pace = 1;
  const auto accelerators = make_simulated(figures, stages);
  StagePipeline::Options options{.stages = stages, .depth = kDepth, .devices = with_cpu(accelerators)};
  options.plans.assign(stages, options_for(options.devices));
  for (size_t s = 0; s < stages; ++s) {
    options.plans[s].policy = Policy::kAccelerator;
    options.plans[s].searched = static_cast<backend::DeviceIndex>(backend::kAccelerator + s);
  }
  Result<std::unique_ptr<StagePipeline>> pipeline = StagePipeline::create(layers(), std::move(options));
  require(pipeline.status());
  std::vector<float> in(kWidth), out(kWidth);
  const std::vector<TensorView> inputs{TensorView::row_major(in.data(), "f32", {kWidth})};
  const std::vector<TensorView> outputs{TensorView::row_major(out.data(), "f32", {kWidth})};
  std::chrono::steady_clock::time_point begin;
  for (int batch = -static_cast<int>(2 * kDepth); batch < kBatches; ++batch) {
    if (batch == 0) {
      require(pipeline.value()->wait_idle());
      begin = std::chrono::steady_clock::now();
    }
    require(pipeline.value()->submit(inputs, outputs).status());
  }
  require(pipeline.value()->wait_idle());
  for (const auto& accelerator : accelerators) {
    if (accelerator->counters().launches < kBatches) throw std::runtime_error("a stage did not use its accelerator");
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

void stage_rows(Table& table, const Machine& machine) {
  double one = 1e300;
  double two = 1e300;
  for (int round = 0; round < kRounds; ++round) {
    one = std::min(one, seconds_of(machine, 1));
    two = std::min(two, seconds_of(machine, 2));
  }
  table.at_least(text("two stages on two equal devices, depth %zu, %d batches: times as fast as one device, %s", kDepth,
                      kBatches, machine.name.c_str()),
                 text("%.2f (%.1f and %.1f ms a batch)", one / two, one / kBatches * 1e3, two / kBatches * 1e3),
                 one / two, 1.8);
}

}  // namespace hetero::graph::testing
