// Hard instances of memory planning: Google's, from tests/graph/plan/data/minimalloc (its README
// tells the source and the licence).
//
// The build says where that is (HETERO_TEST_DATA). Thread safety: functions without state.

#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "graph/plan/interval_packing.h"

namespace hetero::graph {

struct HardInstance {
  std::string name;
  std::vector<Interval> intervals;
};

inline HardInstance read_hard_instance(const std::filesystem::path& path) {
  HardInstance instance{path.stem().stem().string(), {}};
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  if (line != "id,lower,upper,size") throw std::runtime_error("not an instance: " + path.string());
  while (std::getline(file, line)) {
    std::replace(line.begin(), line.end(), ',', ' ');
    uint64_t id, lower, upper, size;
    if (!(std::istringstream(line) >> id >> lower >> upper >> size)) throw std::runtime_error("not a buffer: " + line);
    instance.intervals.push_back({static_cast<uint32_t>(lower), static_cast<uint32_t>(upper - 1), size});
  }
  return instance;
}

// By name.
inline std::vector<HardInstance> hard_instances() {
  std::vector<HardInstance> instances;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(HETERO_TEST_DATA) / "minimalloc")) {
    if (entry.path().extension() == ".csv") instances.push_back(read_hard_instance(entry.path()));
  }
  std::sort(instances.begin(), instances.end(),
            [](const HardInstance& a, const HardInstance& b) { return a.name < b.name; });
  return instances;
}

}  // namespace hetero::graph
