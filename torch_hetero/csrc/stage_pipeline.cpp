#include "torch_hetero/csrc/stage_pipeline.h"

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "graph/program/program_sizes.h"
#include "graph/serve/stage_pipeline.h"
#include "ops/program/static_call.h"
#include "torch_hetero/csrc/saved.h"

namespace py = pybind11;

namespace hetero::python {
namespace {

// A request with the tensors into which its outputs go.
class StageCall {
 public:
  StageCall(std::shared_ptr<const Model> model, std::vector<at::Tensor> made, std::shared_ptr<StageRequest> request)
      : model_(std::move(model)), made_(std::move(made)), request_(std::move(request)) {}

  // The results, once. Raises what went wrong.
  py::list wait() {
    {
      const py::gil_scoped_release released;
      ops::check(request_->wait());
    }
    for (size_t o = 0; o < made_.size(); ++o) ops::mark_output(model_->program(), o, made_[o]);
    return list_of(std::exchange(made_, {}));
  }

 private:
  const std::shared_ptr<const Model> model_;
  std::vector<at::Tensor> made_;
  const std::shared_ptr<StageRequest> request_;
};

class PythonStagePipeline {
 public:
  PythonStagePipeline(std::shared_ptr<Model> model, size_t stages, size_t depth, bool waits_when_full,
                      std::optional<uint64_t> accelerator_bytes)
      : model_(std::move(model)) {
    using WhenFull = StagePipeline::WhenFull;
    Result<std::unique_ptr<StagePipeline>> pipeline =
        StagePipeline::create(model_, {.stages = stages,
                                       .depth = depth,
                                       .when_full = waits_when_full ? WhenFull::kWait : WhenFull::kRefuse,
                                       .accelerator_bytes = accelerator_bytes,
                                       .plans = std::vector<graph::PlanOptions>(stages, ops::static_plan_options()),
                                       .draw = ops::executor_options(ops::static_plan_options()).draw});
    ops::check(pipeline.status());
    pipeline_ = std::move(pipeline.value());
  }

  StagePipeline& pipeline() { return *pipeline_; }

  // Null where there was no room.
  std::shared_ptr<StageCall> submit(const py::list& inputs) {
    const std::vector<at::Tensor> given = tensors_of(inputs);
    const py::gil_scoped_release released;
    const graph::SavedProgram& program = model_->program();
    std::vector<TensorView> from, to;
    for (const at::Tensor& tensor : given) from.push_back(ops::view_of(tensor));
    const auto shapes = graph::output_shapes(program, graph::example_sizes(program));
    ops::check(shapes.status());
    std::vector<at::Tensor> made;
    for (const TensorShape& shape : shapes.value()) {
      made.push_back(ops::empty_output(shape));
      to.push_back(ops::view_of(made.back()));
    }
    Result<std::shared_ptr<StageRequest>> request = pipeline_->submit(from, to);
    if (!request.ok() && request.status().error_class() == ErrorClass::kResource) return nullptr;
    ops::check(request.status());
    return std::make_shared<StageCall>(model_, std::move(made), std::move(request.value()));
  }

 private:
  const std::shared_ptr<Model> model_;
  std::unique_ptr<StagePipeline> pipeline_;
};

py::dict counters_of(PythonStagePipeline& pipeline) {
  const StageCounts counts = pipeline.pipeline().counts();
  py::dict result;
#define X(name, text) result[#name] = counts.name;
  HETERO_STAGE_COUNTS(X)
#undef X
  return result;
}

std::vector<double> predicted_seconds_of(PythonStagePipeline& pipeline) {
  std::vector<double> seconds;
  for (size_t stage = 0; stage < pipeline.pipeline().stages(); ++stage) {
    seconds.push_back(pipeline.pipeline().predicted_seconds(stage));
  }
  return seconds;
}

}  // namespace

void add_stage_pipeline(py::module_& m) {
  using released = py::call_guard<py::gil_scoped_release>;
  py::class_<StageCall, std::shared_ptr<StageCall>>(m, "StageCall").def("wait", &StageCall::wait);
  py::class_<PythonStagePipeline>(m, "StagePipeline")
      .def(py::init<std::shared_ptr<Model>, size_t, size_t, bool, std::optional<uint64_t>>(), released())
      .def("submit", &PythonStagePipeline::submit)
      .def(
          "stop", [](PythonStagePipeline& pipeline) { pipeline.pipeline().stop(); }, released())
      .def(
          "wait_idle", [](PythonStagePipeline& pipeline) { ops::check(pipeline.pipeline().wait_idle()); }, released())
      .def(
          "set_depth",
          [](PythonStagePipeline& pipeline, size_t depth) { ops::check(pipeline.pipeline().set_depth(depth)); },
          released())
      .def_property_readonly("depth", [](PythonStagePipeline& pipeline) { return pipeline.pipeline().depth(); })
      .def_property_readonly("predicted_seconds", &predicted_seconds_of)
      .def_property_readonly("counters", &counters_of);
}

}  // namespace hetero::python
