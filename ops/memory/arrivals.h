// Arrivals: storages with bytes from the host that no program has touched yet.
//
// An example is the next batch, which a loop has fetched while it waits for a value of the current
// one. A program that takes arrivals to the accelerator probably runs again with the next ones. So
// waiting arrivals of the same sizes go there while it runs, and the next program finds its inputs
// in place (double buffering).
//
// Thread safety: the executor's lock.

#pragma once

#include <vector>

#include "graph/run/run_data.h"
#include "ops/record/trace_slice.h"

namespace hetero::ops {

// Notes that a storage has got bytes from the host.
void note_arrival(HeteroStorage* storage);

// What to upload while the slice runs. Of what has arrived, it takes as many of each size as the
// slice takes to the accelerator, and no more than fit there. `holds` owns them. What the slice
// touches is no arrival any more.
void find_uploads(const TraceSlice& slice, const graph::Plan& plan, graph::Uploads& uploads,
                  std::vector<StorageHold>& holds);

}  // namespace hetero::ops
