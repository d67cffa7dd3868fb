// CostHistory: measured times of nodes on this machine, by operator, windows and device.
//
// A roofline does not know how good a kernel is; measurements do. An entry counts once it has been
// measured often enough. A measurement far from the others is ignored, because another process may
// have had the processor. If several in a row are far off, the machine has changed, and the entry
// starts again.
// Source: StarPU's history models; C. Augonnet et al., 2009.
//
//   history.add(cost_key(graph, node, device), seconds);
//   history.find(key);   // 0: not known well enough
//   history.save(file);  // read back by load() of the same machine and version
//
// Thread safety: any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

#include "backend/base/status.h"
#include "backend/device/device.h"
#include "backend/file/cache_file.h"
#include "graph/ir/graph.h"
#include "graph/ir/plan.h"

namespace hetero::graph {

// The same in every process: of names, sizes and strides, not of ids.
uint64_t cost_key(const Graph& graph, const Node& node, backend::DeviceIndex device, Part part = Part::kWhole);
// Of a fused group: of its members and of what it loads and stores.
uint64_t cost_key(const Graph& graph, const FusedGroup& group, backend::DeviceIndex device);

// Of a call or a fused group.
uint64_t cost_key(const Graph& graph, const Plan& plan, const Instruction& task, backend::DeviceIndex device);

// Copies of about the same size from one device to another have one entry: what one of `bytes`
// takes.
struct CopyClass {
  CopyClass(double bytes, backend::DeviceIndex from, backend::DeviceIndex to);
  uint64_t key;
  double bytes;
};

class CostHistory {
 public:
  static constexpr uint32_t kEnough = 3;    // measurements until an entry counts
  static constexpr uint32_t kOutliers = 3;  // in a row, until it begins anew with the last of them
  static constexpr uint32_t kToRelearn = kOutliers + kEnough - 1;
  static constexpr size_t kMost = 1u << 16;  // entries; new ones are not taken beyond

  void add(uint64_t key, double seconds);
  // Mean seconds; 0 where too little is known.
  double find(uint64_t key) const;
  size_t size() const;
  // Changes when something that counts differs by a quarter from what it was when the number last
  // changed.
  uint64_t version() const;

  static constexpr const char* kKind = "costs 2";  // of files, with the version of their lines

  // An entry a line. Errors: kStorage.
  Status save(const backend::CacheFile& file) const;
  // Adds what the file holds, or nothing. Errors: kStorage.
  Status load(const backend::CacheFile& file);

 private:
  struct Entry {
    uint32_t count = 0;
    uint32_t outliers = 0;  // in a row
    double mean = 0;
    double squares = 0;   // of the differences from the mean, summed (Welford 1962)
    double reported = 0;  // the mean when version_ last changed for it
  };

  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, Entry> entries_;
  uint64_t version_ = 0;
};

}  // namespace hetero::graph
