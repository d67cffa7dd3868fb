// Cutting a program into stages, and running them at the same time.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "graph/cost.h"
#include "graph/serve/cut_program.h"
#include "graph/serve/stage_pipeline.h"
#include "tests/graph/catch.h"
#include "tests/graph/static_program.h"

namespace hetero::graph::testing {
namespace {

using Floats = std::vector<std::vector<float>>;  // per input or output

std::shared_ptr<Model> model_of(std::unique_ptr<SavedProgram> program) {
  Result<std::shared_ptr<Model>> model = Model::create(std::move(program));
  INFO((model.ok() ? "" : model.status().message()));
  REQUIRE(model.ok());
  return model.value();
}

std::unique_ptr<StagePipeline> pipeline_of(std::shared_ptr<Model> model, StagePipeline::Options options,
                                           const PlanOptions& plan = cpu_options()) {
  options.devices = test_devices();
  options.plans.assign(options.stages, plan);
  Result<std::unique_ptr<StagePipeline>> pipeline = StagePipeline::create(std::move(model), std::move(options));
  INFO((pipeline.ok() ? "" : pipeline.status().message()));
  REQUIRE(pipeline.ok());
  return std::move(pipeline.value());
}

// Numbers that depend on the request.
Floats inputs_of(const SavedProgram& program, int request) {
  Floats all;
  for (const ProgramValue& input : program.inputs) {
    std::vector<float>& values = all.emplace_back(program.graph.buffers[input.buffer].bytes / sizeof(float));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] =
          static_cast<float>(request) + 0.25f * static_cast<float>(all.size()) + 0.125f * static_cast<float>(i % 31);
    }
  }
  return all;
}

Floats outputs_of(const SavedProgram& program) {
  Floats all;
  for (const ProgramValue& output : program.outputs) {
    all.emplace_back(program.graph.buffers[output.buffer].bytes / sizeof(float));
  }
  return all;
}

std::vector<TensorView> views_of(Floats& all) {
  std::vector<TensorView> views;
  for (std::vector<float>& values : all) views.push_back(view_of(values));
  return views;
}

bool same_bits(const Floats& a, const Floats& b) {
  return std::ranges::equal(a, b, [](const std::vector<float>& x, const std::vector<float>& y) {
    return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0);
  });
}

void require(const Status& status) {
  INFO((status.ok() ? "" : status.message()));
  REQUIRE(status.ok());
}

bool contains(const Status& status, const std::string& words) {
  return !status.ok() && status.message().find(words) != std::string::npos;
}

struct Sent {
  Floats outputs;
  std::shared_ptr<StageRequest> request;
};

Sent send(StagePipeline& pipeline, const SavedProgram& program, int request) {
  Sent sent{outputs_of(program), nullptr};
  Floats inputs = inputs_of(program, request);
  Result<std::shared_ptr<StageRequest>> submitted = pipeline.submit(views_of(inputs), views_of(sent.outputs));
  require(submitted.status());
  sent.request = submitted.value();
  return sent;
}

// What the program computes when it is not cut, of requests one after the other.
std::vector<Floats> run_whole(const std::shared_ptr<Model>& model, const PlanOptions& plan, int requests) {
  Result<std::unique_ptr<GraphExecutor>> made = GraphExecutor::Init(model, executor_options(plan));
  require(made.status());
  GraphExecutor& executor = *made.value();
  std::vector<Floats> results;
  for (int r = 0; r < requests; ++r) {
    Floats inputs = inputs_of(model->program(), r);
    for (size_t i = 0; i < inputs.size(); ++i) require(executor.SetInput(i, view_of(inputs[i])));
    require(executor.Run());
    Floats& outputs = results.emplace_back(outputs_of(model->program()));
    for (size_t i = 0; i < outputs.size(); ++i) require(executor.GetOutput(i, view_of(outputs[i])));
  }
  return results;
}

void check_pipeline(const std::shared_ptr<Model>& model, size_t stages, const PlanOptions& plan) {
  constexpr int kRequests = 5;
  const std::vector<Floats> expected = run_whole(model, plan, kRequests);
  auto pipeline = pipeline_of(model, {.stages = stages}, plan);
  std::vector<Sent> sent;
  for (int r = 0; r < kRequests; ++r) sent.push_back(send(*pipeline, model->program(), r));
  for (int r = 0; r < kRequests; ++r) {
    require(sent[static_cast<size_t>(r)].request->wait());
    CHECK(same_bits(sent[static_cast<size_t>(r)].outputs, expected[static_cast<size_t>(r)]));
  }
  CHECK(pipeline->counts().completed == kRequests);
  for (size_t s = 0; s < stages; ++s) CHECK(pipeline->executor(s).counts().runs == kRequests);
}

bool can_be_cut(const std::shared_ptr<Model>& model, size_t stages) {
  const std::shared_ptr<const SavedProgram> program(model, &model->program());
  return cut_program(program, std::vector<PlanOptions>(stages, cpu_options())).ok();
}

// y = x + ..., so many times.
struct Chain {
  explicit Chain(const std::vector<OpId>& ops, const std::vector<int64_t>& counts = {}) {
    BufferId last = p.input(16);
    for (size_t i = 0; i < ops.size(); ++i) {
      last = p.define(ops[i], i < counts.size() ? counts[i] : 16, {p.read(last)}, Preference::kAuto,
                      static_cast<float>(i));
    }
    p.escape(last);
  }
  std::shared_ptr<Model> model() { return model_of(save(p)); }
  Program p;
};

}  // namespace

TEST_CASE("stages compute the bits of the program that was not cut") {
  std::mt19937 random(41);
  int cut = 0;
  for (int i = 0; i < 24; ++i) {
    Program p;
    i % 2 == 0 ? make_random(p, random, 4 + i, false) : make_fusable(p, random, 4 + i);
    // Some are read only, some are states.
    const std::set<BufferId> constants = i % 3 == 0 ? std::set<BufferId>{1} : std::set<BufferId>{};
    auto model = model_of(save(p, constants));
    for (size_t stages = 1; stages <= 4; ++stages) {
      if (!can_be_cut(model, stages)) continue;
      check_pipeline(model, stages, i % 2 == 0 ? cpu_options() : fused_options());
      ++cut;
    }
  }
  CHECK(cut > 70);
}

TEST_CASE("stages may use an accelerator") {
  std::mt19937 random(42);
  for (int i = 0; i < 8; ++i) {
    Program p;
    make_random(p, random, 12, false);
    auto model = model_of(save(p));
    for (const PlanOptions& plan : {mixed_options(), remote_options()}) {
      if (can_be_cut(model, 3)) check_pipeline(model, 3, plan);
    }
  }
}

}  // namespace hetero::graph::testing
