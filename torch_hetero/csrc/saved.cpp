// Saved programs in Python: making them of what was captured, their files, and executors.

#include "torch_hetero/csrc/saved.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "backend/threads/core_group.h"
#include "graph/program/archive.h"
#include "graph/program/program_sizes.h"
#include "graph/serve/graph_executor.h"
#include "graph/serve/inspect.h"
#include "graph/serve/static_plan.h"
#include "ops/program/compiled.h"
#include "ops/program/dynamic_program.h"
#include "ops/program/fold_norms.h"
#include "ops/program/static_call.h"

namespace py = pybind11;

namespace hetero::python {
namespace {

using Strings = std::vector<std::string>;

at::Tensor tensor_of(const py::handle& object) {
  TORCH_CHECK_TYPE(THPVariable_Check(object.ptr()), "hetero: a program takes tensors, not a ",
                   Py_TYPE(object.ptr())->tp_name);
  return THPVariable_Unpack(object.ptr());
}

ops::ProgramNames names_of(const Strings& inputs, const Strings& outputs, const py::dict& constants) {
  ops::ProgramNames names{.inputs = inputs, .outputs = outputs, .constants = {}};
  for (const auto& [name, tensor] : constants)
    names.constants.emplace_back(py::cast<std::string>(name), tensor_of(tensor));
  return names;
}

// Folded and merged, and planned for this process.
std::shared_ptr<Model> finish_model(std::unique_ptr<graph::SavedProgram> saved,
                                    const std::map<std::string, std::string>& metadata) {
  saved->metadata = metadata;
  ops::check(ops::optimize_program(*saved));
  const graph::PlanOptions options = ops::static_plan_options();
  graph::StaticPlan plan;
  ops::check(graph::plan_program(*saved, options, false, plan));
  graph::keep_plan(plan, options, *saved);
  Result<std::shared_ptr<Model>> model = Model::create(std::move(saved));
  ops::check(model.status());
  return model.value();
}

std::shared_ptr<Model> make_model(ops::CompiledProgram& program, const Strings& inputs, const Strings& outputs,
                                  const py::dict& constants, const std::map<std::string, std::string>& metadata) {
  const ops::ProgramNames names = names_of(inputs, outputs, constants);
  const py::gil_scoped_release released;
  return finish_model(program.save(names), metadata);
}

using Captures = std::vector<std::pair<ops::CompiledProgram*, std::vector<int64_t>>>;

std::vector<ops::SizedCapture> saved_captures(const Captures& captures, const ops::ProgramNames& names) {
  std::vector<ops::SizedCapture> saved;
  for (const auto& [program, sizes] : captures) {
    saved.push_back({program != nullptr ? program->save(names) : nullptr, sizes});
  }
  return saved;
}

std::shared_ptr<Model> make_dynamic_model(const Captures& samples, const Captures& least, const std::string& variables,
                                          const Strings& factors, const Strings& inputs, const Strings& outputs,
                                          const py::dict& constants,
                                          const std::map<std::string, std::string>& metadata) {
  const ops::ProgramNames names = names_of(inputs, outputs, constants);
  const py::gil_scoped_release released;
  return finish_model(ops::dynamic_program({.variables = variables,
                                            .factors = factors,
                                            .samples = saved_captures(samples, names),
                                            .least = saved_captures(least, names)}),
                      metadata);
}

py::list dimensions_of(const Model& model) {
  py::list list;
  for (const graph::SizeVariable& dimension : model.program().dynamic.dimensions()) {
    const bool open = dimension.most == std::numeric_limits<int64_t>::max();
    list.append(
        py::make_tuple(dimension.name, dimension.least, open ? py::none() : py::object(py::int_(dimension.most))));
  }
  return list;
}

py::list values_of(const graph::SavedProgram& program, const std::vector<graph::ProgramValue>& values) {
  py::list list;
  for (size_t i = 0; i < values.size(); ++i) {
    list.append(py::make_tuple(values[i].name, graph::shape_text(program, values, i)));
  }
  return list;
}

}  // namespace

bool changes_state(const Model& model) {
  return std::ranges::any_of(model.program().constants,
                             [&](const auto& constant) { return model.is_written(constant.buffer); });
}

std::shared_ptr<GraphExecutor> make_executor(const std::shared_ptr<Model>& model, size_t slots) {
  GraphExecutor::Options options = ops::executor_options(ops::static_plan_options());
  options.slots = slots;
  Result<std::unique_ptr<GraphExecutor>> executor = GraphExecutor::Init(model, std::move(options));
  ops::check(executor.status());
  return std::move(executor.value());
}

std::vector<at::Tensor> tensors_of(const py::list& objects) {
  std::vector<at::Tensor> tensors;
  for (const py::handle object : objects) tensors.push_back(tensor_of(object));
  return tensors;
}

py::list list_of(const std::vector<at::Tensor>& tensors) {
  py::list objects(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    objects[i] = py::reinterpret_steal<py::object>(THPVariable_Wrap(tensors[i]));
  }
  return objects;
}

void add_saved(py::module_& m) {
  using released = py::call_guard<py::gil_scoped_release>;
  py::class_<Model, std::shared_ptr<Model>>(m, "Model")
      .def_static("make", &make_model)
      .def_static("make_dynamic", &make_dynamic_model)
      .def_property_readonly("dimensions", &dimensions_of)
      .def_static(
          "load",
          [](const std::string& path) {
            Result<std::shared_ptr<Model>> model = Model::load(path);
            ops::check(model.status());
            return model.value();
          },
          released())
      .def(
          "save",
          [](const Model& model, const std::string& path) { ops::check(graph::save_program(model.program(), path)); },
          released())
      .def_property_readonly("metadata", [](const Model& model) { return model.program().metadata; })
      .def_property_readonly("inputs",
                             [](const Model& model) { return values_of(model.program(), model.program().inputs); })
      .def_property_readonly("outputs",
                             [](const Model& model) { return values_of(model.program(), model.program().outputs); });
  py::class_<GraphExecutor, std::shared_ptr<GraphExecutor>>(m, "GraphExecutor")
      .def(py::init(&make_executor), released())
      .def(
          "describe", [](const GraphExecutor& executor) { return graph::inspect(executor); }, released())
      .def_property_readonly("sizes", &GraphExecutor::sizes)
      .def_property_readonly("plan_origin", [](const GraphExecutor& executor) { return executor.plan().origin; })
      .def_property_readonly("counts", [](const GraphExecutor& executor) {
        const graph::BoundCounts counts = executor.counts();
        py::dict result;
#define X(name, text) result[#name] = counts.name;
        HETERO_BOUND_COUNTS(X)
#undef X
        return result;
      });
}

}  // namespace hetero::python
