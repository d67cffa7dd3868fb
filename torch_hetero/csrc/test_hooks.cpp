#include "torch_hetero/csrc/test_hooks.h"

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "backend/fault/fault_device.h"
#include "backend/memory/host_ranges.h"
#include "backend/memory/spill_file.h"
#include "backend/registry/registry.h"
#include "ops/process/accelerator.h"
#include "ops/run/overlap.h"
#include "ops/run/sync.h"

namespace py = pybind11;
namespace ops = hetero::ops;

namespace {

using hetero::backend::DeviceIndex;
using hetero::backend::FaultDevice;
using hetero::backend::FaultDuration;
using hetero::backend::FaultKind;

FaultKind kind_of(const std::string& name) {
  for (int i = 0; i < hetero::backend::kFaultKinds; ++i) {
    const auto kind = static_cast<FaultKind>(i);
    if (name == to_string(kind)) return kind;
  }
  throw std::invalid_argument("no kind of call is named '" + name + "'");
}

FaultDevice& faults_at(const std::string& device) {
  const DeviceIndex index = device == "cpu" ? hetero::backend::kCpu : hetero::backend::kAccelerator;
  FaultDevice* const faulty = hetero::backend::interpose_faults(index);
  if (faulty == nullptr) throw std::invalid_argument("there is no accelerator");
  return *faulty;
}

// Nothing runs, and the accelerator is made, when devices are exchanged.
void prepare_exchange() {
  ops::make_chosen_accelerator();
  ops::settle_everything_on_cpu();
}

void fail(const std::string& device, const std::string& kind, int64_t nth, bool for_ever) {
  faults_at(device).fail(kind_of(kind), nth, for_ever ? FaultDuration::kForEver : FaultDuration::kOnce);
}

// Per kind of call: how many there were, and how many of them failed.
py::dict fault_counts(const std::string& device) {
  const FaultDevice& faulty = faults_at(device);
  py::dict counts;
  for (int i = 0; i < hetero::backend::kFaultKinds; ++i) {
    const auto kind = static_cast<FaultKind>(i);
    counts[to_string(kind)] = std::make_pair(faulty.calls(kind), faulty.failures(kind));
  }
  return counts;
}

}  // namespace

void add_test_hooks(py::module& m) {
  using released = py::call_guard<py::gil_scoped_release>;
  m.def("force_overlap", [](int pieces) { ops::overlap().force_pieces(pieces); });
  m.def("set_spill_faults", &hetero::backend::set_spill_faults);
  m.def("spill_operations", &hetero::backend::spill_operations);
  m.def(
      "interpose_faults",
      [](const std::string& device) {
        prepare_exchange();
        faults_at(device);
      },
      released());
  m.def(
      "remove_faults",
      [] {
        prepare_exchange();
        hetero::backend::remove_faults();
      },
      released());
  m.def(
      "hide_virtual_clock",
      [] {
        prepare_exchange();
        faults_at("accelerator").hide_clock();
      },
      released());
  m.def("fail", &fail);
  m.def("heal", [](const std::string& device) { faults_at(device).heal(); });
  m.def("fault_counts", &fault_counts);
  m.def("locked_host_ranges", [] { return hetero::backend::host_ranges().locked(); });
}
