// Placement in Python: where operators of this thread should run, and rules by name.

#include "torch_hetero/csrc/placement.h"

#include <torch/csrc/utils/pybind.h>

#include <string>
#include <utility>
#include <vector>

#include "graph/ir/text.h"
#include "ops/record/recorder.h"
#include "ops/run/placement_rules.h"
#include "ops/run/sync.h"
#include "ops/settings/config.h"

namespace py = pybind11;

namespace hetero::python {
namespace {

std::string get_placement() {
  const graph::Preference preference = ops::thread_preference();
  return preference == graph::Preference::kAuto ? "auto" : graph::device_word(device_of(preference));
}

graph::Preference preference_of(const std::string& name) {
  using graph::Preference;
  if (name == "auto") return Preference::kAuto;
  // "accelerator:1", or "sim:1" where sim:2 or more were chosen: the second of them.
  const size_t colon = name.find(':');
  const std::string chosen = ops::get_option("accelerator");
  const bool by_kind = colon != std::string::npos && name.substr(0, colon) == chosen.substr(0, chosen.find(':'));
  const std::string word = by_kind ? "accelerator" + name.substr(colon) : name;
  for (backend::DeviceIndex d = 0; d < backend::kMostDevices; ++d) {
    const bool first = d == backend::kAccelerator && word == "accelerator:0";
    if (first || word == graph::device_word(d)) return graph::prefer(d);
  }
  TORCH_CHECK_VALUE(false, "hetero: placement takes 'auto', 'cpu' or 'accelerator', not '", name, "'");
}

void set_placement_rules(const std::vector<std::pair<std::string, std::string>>& rules) {
  std::vector<ops::PlacementRules::Rule> parsed;
  for (const auto& [pattern, where] : rules) parsed.emplace_back(pattern, preference_of(where));
  ops::set_placement_rules(std::move(parsed));
}

}  // namespace

void add_placement(py::module_& m) {
  m.def("get_placement", &get_placement);
  m.def("check_placement", [](const std::string& name) { (void)preference_of(name); });
  m.def("set_placement", [](const std::string& name) { ops::prefer(preference_of(name)); });
  m.def("set_placement_rules", &set_placement_rules, py::call_guard<py::gil_scoped_release>());
}

}  // namespace hetero::python
