#include "torch_hetero/csrc/calling.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/registry/registry.h"
#include "graph/serve/graph_executor.h"
#include "ops/memory/storage_memory.h"
#include "ops/program/static_call.h"
#include "torch_hetero/csrc/saved.h"

namespace py = pybind11;

namespace hetero::python {
namespace {

// A value of torch_hetero/program/structure.py, which has checked it. Immutable.
class Structure {
 public:
  explicit Structure(const py::handle& described) {
    if (described.is_none()) return;
    py::object children = py::reinterpret_borrow<py::object>(described);
    kind_ = Kind::kList;
    if (PyDict_Check(described.ptr())) {
      const auto item = py::reinterpret_borrow<py::dict>(described).begin();
      kind_ = py::cast<std::string>(item->first) == "tuple" ? Kind::kTuple : Kind::kDictionary;
      children = py::reinterpret_borrow<py::object>(item->second);
    }
    for (const py::handle child : children) {
      if (kind_ != Kind::kDictionary) {
        children_.emplace_back(child);
        continue;
      }
      const auto pair = py::cast<py::sequence>(child);
      keys_.emplace_back(pair[0]);
      children_.emplace_back(pair[1]);
    }
  }

  // Appends the leaves of what is nested so, in the order of the structure, to `leaves`. False
  // where it is nested otherwise. Dictionaries may have their keys in any order.
  bool flatten(const py::handle& nested, std::vector<py::object>& leaves) const {
    PyObject* const at = nested.ptr();
    switch (kind_) {
      case Kind::kLeaf:
        if (PyTuple_Check(at) || PyList_Check(at) || PyDict_Check(at)) return false;
        leaves.push_back(py::reinterpret_borrow<py::object>(nested));
        return true;
      case Kind::kDictionary:
        if (!PyDict_Check(at) || py::len(nested) != keys_.size()) return false;
        for (size_t i = 0; i < keys_.size(); ++i) {
          py::object value;
          if (PyDict_CheckExact(at)) {
            value = py::reinterpret_borrow<py::object>(PyDict_GetItemWithError(at, keys_[i].ptr()));
            if (!value && PyErr_Occurred() != nullptr) throw py::error_already_set();
          } else if (nested.contains(keys_[i])) {
            value = nested[keys_[i]];  // as a class of its own finds it
          }
          if (!value || !children_[i].flatten(value, leaves)) return false;
        }
        return true;
      default:
        if (!(kind_ == Kind::kTuple ? PyTuple_CheckExact(at) : PyList_CheckExact(at))) return false;
        if (static_cast<size_t>(PySequence_Fast_GET_SIZE(at)) != children_.size()) return false;
        for (size_t i = 0; i < children_.size(); ++i) {
          if (!children_[i].flatten(PySequence_Fast_GET_ITEM(at, static_cast<Py_ssize_t>(i)), leaves)) return false;
        }
        return true;
    }
  }

  // With the next of the leaves at each place for one. REQUIRES: there are as many.
  py::object build(const py::object*& leaf) const {
    switch (kind_) {
      case Kind::kLeaf:
        return *leaf++;
      case Kind::kDictionary: {
        py::dict nested;
        for (size_t i = 0; i < keys_.size(); ++i) nested[keys_[i]] = children_[i].build(leaf);
        return nested;
      }
      case Kind::kTuple: {
        py::tuple nested(children_.size());
        for (size_t i = 0; i < children_.size(); ++i) nested[i] = children_[i].build(leaf);
        return nested;
      }
      default: {
        py::list nested(children_.size());
        for (size_t i = 0; i < children_.size(); ++i) nested[i] = children_[i].build(leaf);
        return nested;
      }
    }
  }

  size_t leaves() const {
    size_t count = kind_ == Kind::kLeaf ? 1 : 0;
    for (const Structure& child : children_) count += child.leaves();
    return count;
  }

 private:
  enum class Kind : uint8_t { kLeaf, kTuple, kList, kDictionary };
  Kind kind_ = Kind::kLeaf;
  std::vector<py::object> keys_;
  std::vector<Structure> children_;
};

// The leaves of what is nested so; None where it is nested otherwise.
py::object leaves_of(const Structure& structure, const py::object& nested) {
  std::vector<py::object> leaves;
  if (!structure.flatten(nested, leaves)) return py::none();
  return py::cast(leaves);
}

py::object build(const Structure& structure, const std::vector<py::object>& leaves) {
  TORCH_CHECK_VALUE(leaves.size() == structure.leaves(), "hetero: the structure has ", structure.leaves(),
                    " leaves, and ", leaves.size(), " were given");
  const py::object* leaf = leaves.data();
  return structure.build(leaf);
}

bool is_nan(const py::handle& value) {
  return PyFloat_Check(value.ptr()) && std::isnan(PyFloat_AS_DOUBLE(value.ptr()));
}

// A leaf of arguments or results as torch_hetero/program/convention.py has it: {"tensor": which}
// or a value.
struct Leaf {
  explicit Leaf(const py::handle& leaf) : is_tensor(PyDict_Check(leaf.ptr())) {
    value = is_tensor ? py::object(leaf["tensor"]) : py::reinterpret_borrow<py::object>(leaf);
  }
  // Whether an argument is the one of the example, of the same type.
  bool is(const py::handle& other) const {
    if (Py_TYPE(other.ptr()) != Py_TYPE(value.ptr())) return false;
    return other.equal(value) || (is_nan(other) && is_nan(value));
  }

  bool is_tensor;
  py::object value;  // of a tensor: the name of an input, or the index of an output
};

std::vector<Leaf> leaves_in(const py::list& described) {
  std::vector<Leaf> leaves;
  for (const py::handle leaf : described) leaves.emplace_back(leaf);
  return leaves;
}

bool is_plain_host(const at::Tensor& tensor) { return tensor.is_cpu() && !tensor.is_conj() && !tensor.is_neg(); }

// A program with its executor, which is made when it is needed, so that a program that is only
// served takes no memory for it.
//
// Thread safety: any thread that holds the interpreter's lock. Calls come one after the other.
class Caller {
 public:
  Caller(std::shared_ptr<Model> model, const Structure& arguments, const py::list& given, const Structure& results,
         const py::list& made)
      : model_(std::move(model)),
        changes_state_(changes_state(*model_)),
        arguments_(arguments),
        given_(leaves_in(given)),
        results_(results),
        made_(leaves_in(made)) {
    for (const Leaf& leaf : made_) outputs_.push_back(leaf.is_tensor ? py::cast<size_t>(leaf.value) : 0);
  }

  // Runs the program if all is as in the example, and tensors are of PyTorch's own classes and on
  // the CPU with bytes that are their values; NotImplemented otherwise.
  py::object operator()(const py::tuple& args, const py::dict& kwargs) {
    const py::object other = py::reinterpret_borrow<py::object>(Py_NotImplemented);
    std::vector<py::object> leaves;
    if (!arguments_.flatten(py::make_tuple(args, kwargs), leaves)) return other;
    std::vector<at::Tensor> tensors;
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (!given_[i].is_tensor) {
        if (!given_[i].is(leaves[i])) return other;
        continue;
      }
      if (!THPVariable_CheckExact(leaves[i].ptr())) return other;
      const at::Tensor& tensor = THPVariable_Unpack(leaves[i].ptr());
      if (!is_plain_host(tensor)) return other;
      tensors.push_back(tensor);
    }
    return nest(list_of(call(tensors)));
  }

  // The tensors among the leaves of arguments, when all else is as in the example.
  py::list tensors_of(const py::list& leaves) const {
    TORCH_CHECK_VALUE(leaves.size() == given_.size(), "hetero: the program takes ", given_.size(), " arguments, and ",
                      leaves.size(), " were given");
    py::list tensors;
    for (size_t i = 0; i < given_.size(); ++i) {
      const py::object leaf = leaves[i];
      const auto shown = [](const py::handle& value) { return py::cast<std::string>(py::repr(value)); };
      if (given_[i].is_tensor) {
        TORCH_CHECK_VALUE(THPVariable_Check(leaf.ptr()), "input ", shown(given_[i].value), " is a tensor, not a ",
                          py::cast<std::string>(py::type::of(leaf).attr("__name__")));
        tensors.append(leaf);
      } else {
        TORCH_CHECK_VALUE(given_[i].is(leaf), "the program was made for ", shown(given_[i].value), " and was given ",
                          shown(leaf), ": compile the model again with that value");
      }
    }
    return tensors;
  }

  // REQUIRES: tensors on the CPU, with bytes that are their values.
  py::list run(const py::list& tensors) { return list_of(call(python::tensors_of(tensors))); }

  // What the program's results are to the caller.
  py::object nest(const py::list& results) const {
    std::vector<py::object> leaves;
    for (size_t i = 0; i < made_.size(); ++i) {
      leaves.push_back(made_[i].is_tensor ? py::object(results[outputs_[i]]) : made_[i].value);
    }
    const py::object* leaf = leaves.data();
    return results_.build(leaf);
  }

  // That of calls.
  std::shared_ptr<GraphExecutor> executor() {
    const py::gil_scoped_release released;
    const std::lock_guard lock(making_);
    if (executor_ == nullptr) make_executor();
    return executor_;
  }

 private:
  // What the executor was planned for.
  struct Settings {
    const backend::Device* accelerator = backend::accelerator();
    uint64_t budget = ops::accelerator_budget();
    bool operator==(const Settings&) const = default;
  };

  void make_executor() {
    executor_.reset();  // its memory may be what the new one takes
    planned_for_.emplace();
    executor_ = python::make_executor(model_, 1);
  }

  // The executor, made anew where it was planned for another accelerator or budget, but not where
  // it has a state of its own, which would be lost.
  std::shared_ptr<GraphExecutor> executor_for_call() {
    const std::lock_guard lock(making_);
    if (executor_ == nullptr || (!changes_state_ && *planned_for_ != Settings())) make_executor();
    return executor_;
  }

  std::vector<at::Tensor> call(const std::vector<at::Tensor>& tensors) {
    const py::gil_scoped_release released;
    const std::lock_guard lock(calls_);
    return ops::call(*executor_for_call(), tensors, 0);
  }

  const std::shared_ptr<Model> model_;
  const bool changes_state_;
  const Structure arguments_;
  const std::vector<Leaf> given_;
  const Structure results_;
  const std::vector<Leaf> made_;
  std::vector<size_t> outputs_;  // of each that is a tensor
  std::mutex calls_;
  std::mutex making_;  // guards the rest
  std::shared_ptr<GraphExecutor> executor_;
  std::optional<Settings> planned_for_;
};

}  // namespace

void add_calling(py::module_& m) {
  py::class_<Structure>(m, "Structure")
      .def(py::init<const py::object&>())
      .def("leaves", &leaves_of)
      .def("build", &build);
  py::class_<Caller>(m, "Caller")
      .def(py::init<std::shared_ptr<Model>, const Structure&, const py::list&, const Structure&, const py::list&>())
      .def("__call__", &Caller::operator())
      .def("tensors_of", &Caller::tensors_of)
      .def("run", &Caller::run)
      .def("nest", &Caller::nest)
      .def_property_readonly("executor", &Caller::executor);
}

}  // namespace hetero::python
