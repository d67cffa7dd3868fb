// What a user may read in Python: counters, options, memory, the accelerator's figures and plans.

#include "torch_hetero/csrc/reports.h"

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "backend/registry/registry.h"
#include "ops/memory/storage_memory.h"
#include "ops/record/plan_cache.h"
#include "ops/record/recorder.h"
#include "ops/run/program_log.h"
#include "ops/run/sync.h"
#include "ops/settings/config.h"
#include "ops/settings/counters.h"
#include "ops/settings/fusion_counts.h"
#include "ops/settings/memory_stats.h"

namespace py = pybind11;

namespace hetero::python {
namespace {

using released = py::call_guard<py::gil_scoped_release>;

// The rows of backend/device/figures.def.
py::dict figures_of(const backend::MemoryStats& stats) {
  py::dict result;
#define MEMORY_LEVEL(field, text) result[#field] = stats.field;
#define MEMORY_COUNTER(field, text) result[#field] = stats.field;
#define MEMORY_LIMIT(field, text) result[#field] = stats.field;
#include "backend/device/figures.def"
  return result;
}

py::dict figures_of(const backend::DeviceCounters& counters) {
  py::dict result;
#define DEVICE_COUNTER(field, text) result[#field] = counters.field;
#include "backend/device/figures.def"
  return result;
}

// Null if there is no such accelerator. They are numbered from 0.
backend::Device* accelerator_at(size_t number) {
  const size_t index = backend::kAccelerator + number;
  return index < backend::kMostDevices ? backend::device_at(static_cast<backend::DeviceIndex>(index)) : nullptr;
}

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

// Of every row of ops/settings/counters.def that is counted, and an empty table of every group.
void add_rows(py::dict& figures) {
  using Kind = ops::CounterRow::Kind;
  ops::Counters& c = ops::counters();
  for (const ops::CounterRow& row : ops::counter_rows()) {
    const int64_t count = row.counter == nullptr ? 0 : (c.*row.counter).load();
    if (row.kind == Kind::kGroup || row.kind == Kind::kTable) table_of(figures, row.name);
    if (row.kind == Kind::kFigure) figures[row.name] = count;
    if (row.kind == Kind::kCounter) table_of(figures, row.group)[row.name] = count;
    if (row.kind == Kind::kSeconds) table_of(figures, row.group)[row.name] = 1e-9 * static_cast<double>(count);
  }
}

void add_recorder(py::dict& figures) {
  const RecorderFacts recorder = recorder_facts();
  table_of(figures, "meta_cache")["entries"] = recorder.meta_entries;
  table_of(figures, "plans")["trace_bytes"] = recorder.trace_bytes;
  table_of(figures, "others")["pending_nodes"] = recorder.pending_nodes;
  py::dict mispredictions = table_of(figures, "mispredictions");
  for (const ops::Misprediction& one : recorder.mispredictions) {
    const std::string text = "node " + std::to_string(one.position) + ": " + graph::op_table()[one.recorded].name +
                             " instead of " + graph::op_table()[one.expected].name + ", " +
                             ops::to_string(one.difference);
    mispredictions[text.c_str()] = py::int_(mispredictions.attr("get")(text, 0)) + py::int_(1);
  }
}

// Tables with a count for each value of an enumeration. They leave out what never happened.
void add_enumerations(py::dict& figures) {
  ops::Counters& c = ops::counters();
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
      [](size_t i) { return graph::to_string(static_cast<graph::FusionNote>(i)); });
}

py::dict counters_dict() {
  py::dict figures;
  add_rows(figures);
  add_recorder(figures);
  add_enumerations(figures);
  figures["unfused"] = ops::unfused_operators();
  figures["fallbacks"] = ops::counters().fallbacks.all();
  figures["tried"] = ops::counters().tried.all();
  figures["rescues"] = ops::counters().rescues.all();
  const backend::MemoryStats memory = ops::memory_stats();
  py::dict held = table_of(figures, "memory");
#define MEMORY_LEVEL(field, text) held[#field] = memory.field;
#define MEMORY_COUNTER(field, text) held[#field] = memory.field;
#include "backend/device/figures.def"
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

void add_settings(py::module_& m) {
  m.def("counters", &counters_dict);
  m.def("counter_rows", &counter_rows);
  m.def("reset_counters", [] {
    ops::counters().reset();
    ops::reset_fusion_counts();
  });
  m.def("config_list", &config_list);
  m.def("config_get", &ops::get_option);
  m.def("config_set", &ops::set_option, released());
}

void add_memory(py::module_& m) {
  m.def("memory_stats", [] { return figures_of(ops::memory_stats()); });
  m.def("memory_info", &ops::memory_info);
  m.def("reset_peak_memory_stats", &ops::reset_peak);
  m.def("empty_cache", &ops::empty_cache, released());
}

// Functions without a number are about the first one.
void add_accelerator(py::module_& m) {
  m.def("accelerator_name", [] {
    const auto* device = backend::accelerator();
    // Before the first use there is a choice and no device.
    return device == nullptr ? ops::get_option("accelerator") : device->name();
  });
  m.def(
      "accelerator_stats",
      [](size_t number) {
        const auto* device = accelerator_at(number);
        return figures_of(device == nullptr ? backend::MemoryStats() : device->memory_stats());
      },
      py::arg("number") = 0);
  m.def("accelerator_counters", [] {
    const auto* device = backend::accelerator();
    return figures_of(device == nullptr ? backend::DeviceCounters() : device->counters());
  });
  m.def("reset_accelerator_peak", [] {
    if (auto* device = backend::accelerator()) device->reset_peak();
  });
  m.def("virtual_seconds", [] {
    const auto* device = backend::accelerator();
    return device == nullptr ? 0.0 : device->host_seconds();
  });
}

void add_plans(py::module_& m) {
  m.def("plan_text", &ops::last_plan_text, released());
  m.def("program_log", &ops::logged_programs, released());
  m.def("clear_program_log", &ops::clear_logged_programs, released());
  py::class_<ops::ProgramLog>(m, "ProgramLog").def(py::init<>());
  m.def("exchange_program_log", &ops::exchange_program_log, released());
}

}  // namespace

void add_reports(py::module_& m) {
  add_settings(m);
  add_memory(m);
  add_accelerator(m);
  add_plans(m);
}

}  // namespace hetero::python
