// Captured programs in Python: what torch.compile makes, and what is called then.

#include "torch_hetero/csrc/compiled.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <vector>

#include "ops/program/compiled.h"

namespace py = pybind11;

namespace hetero::python {
namespace {

// Arguments and results of a program: tensors, numbers, None.
std::vector<c10::IValue> values_of(const py::list& objects) {
  std::vector<c10::IValue> values;
  values.reserve(objects.size());
  for (const py::handle object : objects) {
    PyObject* const raw = object.ptr();
    if (THPVariable_Check(raw)) {
      values.emplace_back(THPVariable_Unpack(raw));
    } else if (raw == Py_None) {
      values.emplace_back();
    } else if (PyBool_Check(raw)) {
      values.emplace_back(raw == Py_True);
    } else if (PyLong_Check(raw)) {
      values.emplace_back(py::cast<int64_t>(object));
    } else {
      TORCH_CHECK(PyFloat_Check(raw), "hetero: a compiled program takes and gives tensors, numbers and None, not a ",
                  Py_TYPE(raw)->tp_name);
      values.emplace_back(py::cast<double>(object));
    }
  }
  return values;
}

py::list objects_of(const std::vector<c10::IValue>& values) {
  py::list objects(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const c10::IValue& value = values[i];
    objects[i] = value.isTensor()   ? py::reinterpret_steal<py::object>(THPVariable_Wrap(value.toTensor()))
                 : value.isBool()   ? py::object(py::bool_(value.toBool()))
                 : value.isInt()    ? py::object(py::int_(value.toInt()))
                 : value.isDouble() ? py::object(py::float_(value.toDouble()))
                                    : py::object(py::none());
  }
  return objects;
}

// The list is empty while and after the program runs: what nobody else owns is released as it goes.
// It is as before where nothing ran.
py::object run_program(ops::CompiledProgram& program, py::list arguments) {
  std::vector<c10::IValue> values = values_of(arguments);
  arguments.attr("clear")();
  if (const auto results = program.run(values)) return objects_of(*results);
  arguments.attr("extend")(objects_of(values));
  return py::none();
}

}  // namespace

void add_compiled_program(py::module_& m) {
  py::class_<ops::CompiledProgram>(m, "CompiledProgram")
      .def(
          py::init([](bool plan_each_size, bool search_longer) {
            return std::make_unique<ops::CompiledProgram>(ops::CompiledProgram::Options{plan_each_size, search_longer});
          }),
          py::arg("plan_each_size") = false, py::arg("search_longer") = false)
      .def("run", &run_program)
      .def("begin_capture",
           [](ops::CompiledProgram& program, const py::list& arguments) {
             return objects_of(program.begin_capture(values_of(arguments)));
           })
      .def(
          "end_capture",
          [](ops::CompiledProgram& program, const py::list& results, const std::vector<std::string>& devices,
             std::optional<size_t> seen) {
            std::vector<c10::DeviceType> types;
            for (const std::string& device : devices) types.push_back(c10::Device(device).type());
            program.end_capture(values_of(results), types, seen.value_or(SIZE_MAX));
          },
          py::arg("results"), py::arg("devices"), py::arg("seen") = py::none())
      .def("cancel_capture", &ops::CompiledProgram::cancel_capture)
      .def("describe", &ops::CompiledProgram::describe)
      .def_property_readonly("updated_arguments", &ops::CompiledProgram::updated_arguments)
      .def_property_readonly("variants", &ops::CompiledProgram::variants);
}

}  // namespace hetero::python
