// Arrivals: storages with bytes that came from the host and that no program has touched yet, such as the batch that a loop has already fetched while it
// waits for something of the one before.
//
// A program that takes arrivals to the accelerator is probably run again with the next ones. So those of the same sizes that wait go there while it runs:
// the next program finds its inputs where it needs them (double buffering).
//
// Thread safety: the executor's lock.

#pragma once

#include <vector>

#include "graph/run/executor.h"
#include "ops/record/recorder.h"

namespace hetero::ops {

// Notes that a storage has got bytes from the host.
void note_arrival(HeteroStorage* storage);

// What is to be uploaded while the cut runs: as many of each size as the cut takes to the accelerator of what has arrived, and no more than the accelerator
// has room for. `holds` owns them. What the cut touches is no arrival any more.
void find_uploads(const Cut& cut, const graph::Plan& plan, graph::Uploads& uploads, std::vector<StorageHold>& holds);

}  // namespace hetero::ops
