// torch_hetero._C: the Python module. Glue only; what a function does is said where it is
// implemented (ops/).

#include <ATen/core/Generator.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <frameobject.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "backend/base/checksum.h"
#include "backend/cpu/fused/compile.h"
#include "backend/memory/address_space.h"
#include "ops/dispatch/prefer_cpu.h"
#include "ops/process/accelerator.h"
#include "ops/process/start.h"
#include "ops/record/generator.h"
#include "ops/run/sync.h"
#include "ops/settings/counters.h"
#include "ops/tensor/locks.h"
#include "ops/tensor/storage.h"
#include "torch_hetero/csrc/calling.h"
#include "torch_hetero/csrc/compiled.h"
#include "torch_hetero/csrc/kv.h"
#include "torch_hetero/csrc/placement.h"
#include "torch_hetero/csrc/reports.h"
#include "torch_hetero/csrc/saved.h"
#include "torch_hetero/csrc/server.h"
#include "torch_hetero/csrc/stage_pipeline.h"
#include "torch_hetero/csrc/test_hooks.h"

namespace py = pybind11;
namespace ops = hetero::ops;

namespace {

using released = py::call_guard<py::gil_scoped_release>;

// ---- the interpreter's lock, for threads that block ---------------------------------------------

void* release_interpreter() { return Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr; }

void restore_interpreter(void* state) { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); }

// "train.py:12 in step": the innermost Python frame outside of torch and this package.
std::string where() {
  if (!Py_IsInitialized()) return "";
  py::gil_scoped_acquire gil;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  std::string text;
  while (frame != nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const char* file = PyUnicode_AsUTF8(code->co_filename);
    const char* function = PyUnicode_AsUTF8(code->co_name);
    const std::string path = file != nullptr ? file : "";
    const bool inside = path.find("/torch/") != std::string::npos || path.find("/torch_hetero/") != std::string::npos;
    if (text.empty() || !inside) {
      text =
          path + ":" + std::to_string(PyFrame_GetLineNumber(frame)) + " in " + (function != nullptr ? function : "?");
    }
    Py_DECREF(code);
    PyFrameObject* outer = inside ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(frame);
    frame = outer;
  }
  PyErr_Clear();
  return text;
}

// ---- tensors and the process --------------------------------------------------------------------

// A CPU tensor of the tensor's bytes; of the very same bytes, to be read and written for as long as
// it lives, if it is shared.
at::Tensor host_view(const at::Tensor& tensor, bool shared) {
  if (!ops::is_hetero(tensor)) return tensor;
  return ops::host_alias(tensor, ops::SyncReason::kLeaveDispatcher, shared);
}

void materialize(const at::Tensor& tensor) {
  if (!ops::is_hetero(tensor)) return;
  ops::HeteroStorage* const storages[] = {ops::storage_of(tensor)};
  ops::settle(storages, ops::SyncReason::kLeaveDispatcher);
}

void add_tensors(py::module_& m) {
  m.def(
      "flush", [] { ops::flush_all(ops::SyncReason::kFlush); }, released());
  m.def(
      "synchronize", [] { ops::flush_all(ops::SyncReason::kSynchronize); }, released());
  m.def("host_view", &host_view, py::arg("tensor"), py::arg("shared") = true, released());
  m.def(
      "materialize", [](const at::Tensor& tensor, const std::string&) { materialize(tensor); }, py::arg("tensor"),
      py::arg("reason") = "", released());
  m.def(
      "checksum",
      [](uintptr_t address, size_t bytes) {
        return hetero::backend::checksum(reinterpret_cast<const void*>(address), bytes);
      },
      py::arg("address"), py::arg("bytes"), released());
  m.def("default_generator",
        [] { return py::reinterpret_steal<py::object>(THPGenerator_initDefaultGenerator(ops::default_generator())); });
}

// A kernel's registration, in the form of torch.library's: it has destroy().
struct Registration {
  std::optional<c10::RegistrationHandleRAII> handle;
};

void add_operators(py::module_& m) {
  py::class_<Registration>(m, "Registration").def("destroy", [](Registration& self) { self.handle.reset(); });
  m.def(
      "prefer_cpu_kernel",
      [](const std::string& name, const std::string& overload) -> std::unique_ptr<Registration> {
        auto handle = ops::prefer_cpu_kernel({name, overload});
        if (!handle.has_value()) return nullptr;
        return std::make_unique<Registration>(Registration{std::move(handle)});
      },
      py::arg("name"), py::arg("overload"));
}

void add_process(py::module_& m) {
  m.def("compiles", [] { return hetero::backend::compile_target() != hetero::backend::InstructionSet::kPortable; });
  m.def("prepare_fork", &ops::prepare_fork, released());
  m.def("finish_fork_in_parent", &ops::finish_fork_in_parent);
  m.def("finish_fork_in_child", &ops::finish_fork_in_child);
  m.def("in_bad_fork", &ops::in_bad_fork);
  m.def("set_sim_options", &ops::set_sim_options, released());
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "The C++ side of torch_hetero.";
  ops::interpreter_hooks() = {&release_interpreter, &restore_interpreter, &where};
  hetero::backend::address_space::install_fault_handler(nullptr);
  ops::register_process();

  add_tensors(m);
  add_operators(m);
  add_process(m);
  hetero::python::add_placement(m);
  hetero::python::add_reports(m);
  hetero::python::add_compiled_program(m);
  hetero::python::add_saved(m);
  hetero::python::add_calling(m);
  hetero::python::add_kv(m);
  hetero::python::add_server(m);
  hetero::python::add_stage_pipeline(m);
  add_test_hooks(m);
}
