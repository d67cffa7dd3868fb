// Splits a machine into parts by what its cores share.
//
// 1. Order cores by what they share: node, socket, L3, L2, physical core. Shared units are then
//    contiguous.
// 2. Cut the order into parts of equal size, in physical cores if there are enough of them. If
//    sizes cannot be equal, it matters which parts get one more. Dynamic programming finds the cut
//    with the fewest parts that extend over several nodes, then sockets, then caches.

#include <dirent.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <string>
#include <tuple>

#include "backend/threads/core_group.h"

namespace hetero::backend {
namespace {

// Lists of cores begin with the smallest number, which names the shared unit.
int first_number(const std::string& path, int otherwise) {
  std::ifstream file(path);
  int number = 0;
  return file >> number ? number : otherwise;
}

int node_of(const std::string& folder) {
  int node = 0;
  DIR* const entries = opendir(folder.c_str());
  if (entries == nullptr) return node;
  while (const dirent* entry = readdir(entries)) {
    const std::string name = entry->d_name;
    if (name.starts_with("node") && name.size() > 4 && name.find_first_not_of("0123456789", 4) == std::string::npos) {
      node = std::stoi(name.substr(4));
    }
  }
  closedir(entries);
  return node;
}

// The name of the cache for data of this level, or 0.
int cache_of(const std::string& folder, int level) {
  for (int index = 0;; ++index) {
    const std::string cache = folder + "/cache/index" + std::to_string(index);
    std::ifstream type_file(cache + "/type");
    std::string type;
    if (!(type_file >> type)) return 0;
    if (type != "Instruction" && first_number(cache + "/level", 0) == level) {
      return first_number(cache + "/shared_cpu_list", 0);
    }
  }
}

auto locality(const CorePlace& place) {
  return std::tuple(place.node, place.package, place.l3, place.l2, place.physical, place.core);
}

bool is_same_physical(const CorePlace& a, const CorePlace& b) {
  return a.node == b.node && a.package == b.package && a.physical == b.physical;
}

// A unit that is not divided: a physical core with its hardware threads, or one of these.
using Unit = std::span<const CorePlace>;

// The cost of a part that extends over several nodes, sockets and caches; nodes count most.
int64_t spread(std::span<const Unit> part) {
  int64_t cost = 0;
  for (size_t i = 1; i < part.size(); ++i) {
    const CorePlace& before = part[i - 1].front();
    const CorePlace& here = part[i].front();
    if (before.node != here.node) cost += int64_t{1} << 45;
    if (before.package != here.package) cost += int64_t{1} << 30;
    if (before.l3 != here.l3) cost += int64_t{1} << 15;
    if (before.l2 != here.l2) cost += 1;
  }
  return cost;
}

// The sizes of the parts in units, by least spread; between equals, larger parts first.
std::vector<size_t> best_sizes(std::span<const Unit> units, size_t parts) {
  const size_t small = units.size() / parts;
  const size_t large_parts = units.size() % parts;
  constexpr int64_t kNever = INT64_MAX;
  // cost[p][l]: of the units that come after p parts, l of them large.
  std::vector<std::vector<int64_t>> cost(parts + 1, std::vector<int64_t>(large_parts + 2, kNever));
  const auto cost_with = [&](size_t part, size_t large, size_t size) {
    const size_t begin = part * small + large;
    const int64_t rest = cost[part + 1][large + (size - small)];
    return rest == kNever ? kNever : rest + spread(units.subspan(begin, size));
  };
  cost[parts][large_parts] = 0;
  for (size_t part = parts; part-- > 0;) {
    for (size_t large = 0; large <= std::min(part, large_parts); ++large) {
      const int64_t as_large = large < large_parts ? cost_with(part, large, small + 1) : kNever;
      cost[part][large] = std::min(as_large, cost_with(part, large, small));
    }
  }
  std::vector<size_t> sizes;
  size_t large = 0;
  for (size_t part = 0; part < parts; ++part) {
    const bool is_large = large < large_parts && cost_with(part, large, small + 1) == cost[part][large];
    sizes.push_back(small + is_large);
    large += is_large;
  }
  return sizes;
}

std::vector<Unit> make_units(std::span<const CorePlace> sorted, bool whole_cores) {
  std::vector<Unit> units;
  for (size_t begin = 0, end; begin < sorted.size(); begin = end) {
    end = begin + 1;
    while (whole_cores && end < sorted.size() && is_same_physical(sorted[begin], sorted[end])) ++end;
    units.push_back(sorted.subspan(begin, end - begin));
  }
  return units;
}

}  // namespace

std::vector<CorePlace> core_places(std::span<const int> cores) {
  std::vector<CorePlace> places;
  for (int core : cores) {
    const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(core);
    places.push_back({.core = core,
                      .node = node_of(folder),
                      .package = first_number(folder + "/topology/physical_package_id", 0),
                      .l3 = cache_of(folder, 3),
                      .l2 = cache_of(folder, 2),
                      .physical = first_number(folder + "/topology/thread_siblings_list", core)});
  }
  return places;
}

Result<std::vector<std::vector<int>>> split_cores(int groups) {
  return split_cores(core_places(cores_of_process()), groups);
}

Result<std::vector<std::vector<int>>> split_cores(std::span<const CorePlace> places, int groups) {
  if (groups < 1 || places.size() < static_cast<size_t>(groups)) {
    return Status(ErrorClass::kUsage, "cannot split " + std::to_string(places.size()) + " cores into " +
                                          std::to_string(groups) + " groups; ask for 1 to as many as there are cores");
  }
  const auto parts = static_cast<size_t>(groups);
  std::vector<CorePlace> sorted(places.begin(), places.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return locality(a) < locality(b); });
  std::vector<Unit> units = make_units(sorted, true);
  if (units.size() < parts) units = make_units(sorted, false);
  std::vector<std::vector<int>> result;
  size_t next = 0;
  for (size_t size : best_sizes(units, parts)) {
    std::vector<int>& part = result.emplace_back();
    for (size_t end = next + size; next < end; ++next) {
      for (const CorePlace& place : units[next]) part.push_back(place.core);
    }
    std::sort(part.begin(), part.end());
  }
  return result;
}

Status check_compute_queues(std::span<const QueueKind> queues) {
  for (auto queue = queues.begin(); queue != queues.end(); ++queue) {
    const std::string name = to_string(*queue);
    if (!is_compute(*queue)) {
      return Status(ErrorClass::kUsage, "the queue " + name + " computes nothing; name compute queues");
    }
    if (std::find(queues.begin(), queue, *queue) != queue) {
      return Status(ErrorClass::kUsage, "the queue " + name + " is named twice; name each queue once");
    }
  }
  return {};
}

std::vector<std::vector<QueueKind>> split_compute_queues(int groups) {
  std::vector<std::vector<QueueKind>> parts(static_cast<size_t>(groups));
  for (int g = 0; g < groups; ++g) {
    const int first = g * kComputeQueues / groups;
    const int end = std::max(first + 1, (g + 1) * kComputeQueues / groups);
    for (int n = first; n < end; ++n) parts[static_cast<size_t>(g)].push_back(compute_queue(n));
  }
  return parts;
}

}  // namespace hetero::backend
