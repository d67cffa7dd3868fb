// torch_hetero._C: the Python module. Glue only; what a function does is said where it is
// implemented (ops/).

#include <ATen/core/Generator.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <frameobject.h>

#include "backend/cpu/fused/compile.h"
#include "backend/memory/address_space.h"
#include "backend/registry/registry.h"
#include "graph/ir/text.h"
#include "ops/memory/storage_memory.h"
#include "ops/process/accelerator.h"
#include "ops/process/start.h"
#include "ops/program/compiled.h"
#include "ops/record/generator.h"
#include "ops/record/plan_cache.h"
#include "ops/record/recorder.h"
#include "ops/run/placement_rules.h"
#include "ops/run/program_log.h"
#include "ops/run/sync.h"
#include "ops/settings/config.h"
#include "ops/settings/counters.h"
#include "ops/settings/fusion_counts.h"
#include "ops/settings/memory_stats.h"
#include "ops/tensor/storage.h"
#include "torch_hetero/csrc/saved.h"
#include "torch_hetero/csrc/server.h"
#include "torch_hetero/csrc/stage_pipeline.h"
#include "torch_hetero/csrc/test_hooks.h"

namespace py = pybind11;
namespace ops = hetero::ops;

namespace {

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

// ---- reports ------------------------------------------------------------------------------------

struct RecorderFacts {
  size_t meta_entries;
  size_t trace_bytes;
  size_t pending_nodes;
  std::vector<ops::Misprediction> mispredictions;
};

// No Python object is made under the lock: the garbage collector may run then, and whatever it ends
// may record.
RecorderFacts recorder_facts() {
  ops::Locked lock(ops::recorder().mutex());
  ops::Recorder& recorder = ops::recorder();
  return {recorder.meta_cache().size(), recorder.trie().bytes(), recorder.pending_nodes(), recorder.mispredictions()};
}

// A table of `figures`, made where it is not there.
py::dict table_of(py::dict& figures, const char* name) { return figures.attr("setdefault")(name, py::dict()); }

// Every row of ops/settings/counters.def.
py::dict counters_dict() {
  using Kind = ops::CounterRow::Kind;
  ops::Counters& c = ops::counters();
  py::dict figures;
  for (const ops::CounterRow& row : ops::counter_rows()) {
    const int64_t count = row.counter == nullptr ? 0 : (c.*row.counter).load();
    if (row.kind == Kind::kGroup || row.kind == Kind::kTable) table_of(figures, row.name);
    if (row.kind == Kind::kFigure) figures[row.name] = count;
    if (row.kind == Kind::kCounter) table_of(figures, row.group)[row.name] = count;
    if (row.kind == Kind::kSeconds) table_of(figures, row.group)[row.name] = 1e-9 * static_cast<double>(count);
  }
  const RecorderFacts recorder = recorder_facts();
  table_of(figures, "meta_cache")["entries"] = recorder.meta_entries;
  table_of(figures, "plans")["trace_bytes"] = recorder.trace_bytes;
  table_of(figures, "others")["pending_nodes"] = recorder.pending_nodes;
  py::dict mispredictions = table_of(figures, "mispredictions");
  for (const ops::Misprediction& one : recorder.mispredictions) {
    const std::string text = "node " + std::to_string(one.position) + ": " +
                             hetero::graph::op_table()[one.recorded].name + " instead of " +
                             hetero::graph::op_table()[one.expected].name + ", " + ops::to_string(one.difference);
    mispredictions[text.c_str()] = py::int_(mispredictions.attr("get")(text, 0)) + py::int_(1);
  }
  const auto fill = [&figures](const char* name, size_t size, const auto& count_of, const auto& text_of) {
    py::dict table = table_of(figures, name);
    for (size_t i = 0; i < size; ++i) {
      if (const int64_t count = count_of(i)) table[text_of(i)] = count;
    }
  };
  fill(
      "flushes", c.flushes.size(), [&c](size_t i) { return c.flushes[i].load(); },
      [](size_t i) { return ops::to_string(static_cast<ops::SyncReason>(i)); });
  fill(
      "own_kernels", c.own_kernels.size(), [&c](size_t i) { return c.own_kernels[i].load(); },
      [](size_t i) { return ops::to_string(static_cast<ops::OwnKernel>(i)); });
  const auto notes = ops::fusion_notes();
  fill(
      "fusion", notes.size(), [&notes](size_t i) { return notes[i]; },
      [](size_t i) { return hetero::graph::to_string(static_cast<hetero::graph::FusionNote>(i)); });
  figures["unfused"] = ops::unfused_operators();
  figures["fallbacks"] = c.fallbacks();
  figures["rescues"] = c.rescues();
  const auto memory = ops::memory_stats();
  py::dict held = table_of(figures, "memory");
  held["allocated_bytes"] = memory.allocated_bytes;
  held["peak_bytes"] = memory.peak_bytes;
  held["allocations"] = memory.allocations;
  held["reused_blocks"] = memory.reused_blocks;
  held["reused_bytes"] = memory.reused_bytes;
  return figures;
}

py::list counter_rows() {
  constexpr const char* kKinds[] = {"group", "table", "counter", "seconds", "figure", "level"};
  py::list rows;
  for (const ops::CounterRow& counter : ops::counter_rows()) {
    py::dict row;
    row["kind"] = kKinds[static_cast<size_t>(counter.kind)];
    row["group"] = counter.group;
    row["name"] = counter.name;
    row["field"] = counter.field;
    row["text"] = counter.text;
    rows.append(row);
  }
  return rows;
}

py::dict memory_stats_dict(const hetero::backend::MemoryStats& stats) {
  py::dict result;
  result["allocated_bytes"] = stats.allocated_bytes;
  result["peak_bytes"] = stats.peak_bytes;
  result["reserved_bytes"] = stats.reserved_bytes;
  result["allocations"] = stats.allocations;
  result["reused_blocks"] = stats.reused_blocks;
  result["reused_bytes"] = stats.reused_bytes;
  result["limit_bytes"] = stats.limit_bytes;
  return result;
}

py::list config_list() {
  py::list rows;
  for (const ops::Option& option : ops::list_options()) {
    py::dict row;
    row["name"] = option.name;
    row["env"] = option.environment;
    row["type"] = option.type;
    row["default"] = option.default_value;
    row["value"] = option.value;
    row["doc"] = option.doc;
    rows.append(row);
  }
  return rows;
}

at::Tensor host_view(const at::Tensor& tensor) {
  if (!ops::is_hetero(tensor)) return tensor;
  at::Tensor alias = ops::host_alias(tensor, ops::SyncReason::kLeaveDispatcher, true);
  // From now on somebody outside can see the bytes change.
  ops::storage_of(tensor)->exported = true;
  return alias;
}

void materialize(const at::Tensor& tensor) {
  if (!ops::is_hetero(tensor)) return;
  ops::HeteroStorage* const storages[] = {ops::storage_of(tensor)};
  ops::settle(storages, ops::SyncReason::kLeaveDispatcher);
}

std::string get_placement() {
  const hetero::graph::Preference preference = ops::thread_preference();
  return preference == hetero::graph::Preference::kAuto ? "auto" : hetero::graph::device_word(device_of(preference));
}

hetero::graph::Preference preference_of(const std::string& name) {
  using hetero::graph::Preference;
  if (name == "auto") return Preference::kAuto;
  // "accelerator:1", or "sim:1" where sim:2 or more were chosen: the second of them.
  const size_t colon = name.find(':');
  const std::string chosen = ops::get_option("accelerator");
  const bool by_kind = colon != std::string::npos && name.substr(0, colon) == chosen.substr(0, chosen.find(':'));
  const std::string word = by_kind ? "accelerator" + name.substr(colon) : name;
  for (hetero::backend::DeviceIndex d = 0; d < hetero::backend::kMostDevices; ++d) {
    const bool first = d == 1 && word == "accelerator:0";
    if (first || word == hetero::graph::device_word(d)) return hetero::graph::prefer(d);
  }
  TORCH_CHECK_VALUE(false, "hetero: placement takes 'auto', 'cpu' or 'accelerator', not '", name, "'");
}

void set_placement_rules(const std::vector<std::pair<std::string, std::string>>& rules) {
  std::vector<ops::PlacementRules::Rule> parsed;
  for (const auto& [pattern, where] : rules) parsed.emplace_back(pattern, preference_of(where));
  ops::set_placement_rules(std::move(parsed));
}

// ---- compiled programs --------------------------------------------------------------------------

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
      .def("end_capture",
           [](ops::CompiledProgram& program, const py::list& results, const std::vector<std::string>& devices) {
             std::vector<c10::DeviceType> types;
             for (const std::string& device : devices) types.push_back(c10::Device(device).type());
             program.end_capture(values_of(results), types);
           })
      .def("cancel_capture", &ops::CompiledProgram::cancel_capture)
      .def("describe", &ops::CompiledProgram::describe)
      .def_property_readonly("updated_arguments", &ops::CompiledProgram::updated_arguments)
      .def_property_readonly("variants", &ops::CompiledProgram::variants);
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "The C++ side of torch_hetero.";
  ops::interpreter_hooks() = {&release_interpreter, &restore_interpreter, &where};
  hetero::backend::address_space::install_fault_handler(nullptr);
  ops::register_process();

  using released = py::call_guard<py::gil_scoped_release>;
  m.def("compiles", [] { return hetero::backend::compile_target() != hetero::backend::InstructionSet::kPortable; });
  m.def(
      "flush", [] { ops::flush_all(ops::SyncReason::kFlush); }, released());
  m.def(
      "synchronize", [] { ops::flush_all(ops::SyncReason::kSynchronize); }, released());
  m.def("counters", &counters_dict);
  m.def("counter_rows", &counter_rows);
  m.def("reset_counters", [] {
    ops::counters().reset();
    ops::reset_fusion_counts();
  });
  m.def("config_list", &config_list);
  m.def("config_get", &ops::get_option);
  m.def("config_set", &ops::set_option, released());
  m.def("memory_stats", [] { return memory_stats_dict(ops::memory_stats()); });
  m.def("accelerator_stats", [] {
    const auto* device = hetero::backend::accelerator();
    return memory_stats_dict(device == nullptr ? hetero::backend::MemoryStats() : device->memory_stats());
  });
  m.def("accelerator_copies", [] {
    const auto* device = hetero::backend::accelerator();
    const auto counted = device == nullptr ? hetero::backend::DeviceCounters() : device->counters();
    py::dict result;
    result["bytes_to_accelerator"] = counted.bytes_in;
    result["bytes_to_cpu"] = counted.bytes_out;
    return result;
  });
  m.def("reset_accelerator_peak", [] {
    if (auto* device = hetero::backend::accelerator()) device->reset_peak();
  });
  // Which accelerator there is, and its budget: what was planned beforehand is right while they
  // stay.
  m.def("accelerator_settings", [] {
    return std::pair(reinterpret_cast<uintptr_t>(hetero::backend::accelerator()), ops::accelerator_budget());
  });
  m.def("virtual_seconds", [] {
    const auto* device = hetero::backend::accelerator();
    return device == nullptr ? 0.0 : device->host_seconds();
  });
  m.def("memory_info", &ops::memory_info);
  m.def("reset_peak_memory_stats", &ops::reset_peak);
  m.def("empty_cache", &ops::empty_cache, released());
  m.def(
      "host_view", [](const at::Tensor& tensor, const std::string&) { return host_view(tensor); }, py::arg("tensor"),
      py::arg("reason") = "", released());
  m.def(
      "materialize", [](const at::Tensor& tensor, const std::string&) { materialize(tensor); }, py::arg("tensor"),
      py::arg("reason") = "", released());
  m.def("prepare_fork", &ops::prepare_fork, released());
  m.def("finish_fork_in_parent", &ops::finish_fork_in_parent);
  m.def("finish_fork_in_child", &ops::finish_fork_in_child);
  m.def("in_bad_fork", &ops::in_bad_fork);
  m.def("default_generator",
        [] { return py::reinterpret_steal<py::object>(THPGenerator_initDefaultGenerator(ops::default_generator())); });
  m.def("get_placement", &get_placement);
  m.def("check_placement", [](const std::string& name) { (void)preference_of(name); });
  m.def("set_placement", [](const std::string& name) { ops::prefer(preference_of(name)); });
  m.def("set_placement_rules", &set_placement_rules, released());
  m.def("accelerator_name", [] {
    const auto* device = hetero::backend::accelerator();
    // Before the first use there is a choice and no device.
    return device == nullptr ? ops::get_option("accelerator") : device->name();
  });
  m.def("plan_text", &ops::last_plan_text, released());
  m.def("program_log", &ops::logged_programs, released());
  m.def("clear_program_log", &ops::clear_logged_programs, released());
  py::class_<ops::ProgramLog>(m, "ProgramLog").def(py::init<>());
  m.def("exchange_program_log", &ops::exchange_program_log, released());
  add_compiled_program(m);
  hetero::python::add_saved(m);
  hetero::python::add_server(m);
  hetero::python::add_stage_pipeline(m);
  m.def("set_sim_options", &ops::set_sim_options, released());
  add_test_hooks(m);
}
