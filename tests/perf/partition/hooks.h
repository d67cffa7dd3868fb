// What a step takes with accelerate's hooks, which move the weights of a model that does not fit as
// each module is called.
//
// Re-created from accelerate's behaviour (utils/modeling.py, hooks.py), as a timeline with the
// planner's own cost model:
//   1. Where modules lie (infer_auto_device_map): decoder layers in their order on the accelerator,
//      until the next one and the largest one, for which room is kept, would exceed the budget;
//      that one and all later ones stay in host memory. Caches and temporaries are not counted,
//      which favours it.
//   2. Before a module with weights runs whose layer stayed (AlignDevicesHook.pre_forward), each of
//      its weights is copied from pageable memory, and the host waits for the copy; after it the
//      copy is dropped. Copies and kernels are on one stream, so nothing runs at the same time.
//   3. Everything runs on the accelerator. What hooks take in Python, and allocating, is left out,
//      which favours it too.
//
// Thread safety: pure functions.

#pragma once

#include "graph/cost/cost.h"
#include "tests/perf/partition/machine.h"
#include "tests/perf/partition/model.h"

namespace hetero::graph::testing {

// Of a copy from pageable memory: the driver copies to pinned memory first. At most 10e9, the upper
// end of the 6 to 10 GB/s that are reported of PCIe 4 and 5; and at most 0.46 of what pinned copies
// attain, which on PCIe 3 is the 5.9 of 12.9 GB/s that accelerate's own benchmark of OPT-30B
// attains.
double pageable_bandwidth(const Machine& machine);

double seconds_with_hooks(const Model& model, const Machine& machine, uint64_t budget);

}  // namespace hetero::graph::testing
