// The rows of the bench, by what they are about. Everything is virtual time but for stages, which
// are real time, what says "ms", and the host's time of a run, which are the processor's time of
// one thread.
//
// Thread safety: one thread.

#pragma once

#include <vector>

#include "tests/perf/partition/machine.h"
#include "tests/perf/partition/table.h"

namespace hetero::graph::testing {

using Machines = std::vector<Machine>;

void placement_rows(Table& table);
void streaming_rows(Table& table, const Machines& machines);
// Against accelerate's hooks, all on the accelerator, the CPU alone.
void peer_rows(Table& table, const Machines& machines);
// Against offloading by fixed thresholds.
void threshold_rows(Table& table, const Machines& machines);
// Stages on accelerators of their own.
void stage_rows(Table& table, const Machine& machine);
// Independent branches on several compute queues.
void stream_rows(Table& table, const Machines& machines);
// Small copies that are one transfer.
void transfer_rows(Table& table, const Machines& machines);
void memory_rows(Table& table);
void planning_rows(Table& table, const Machine& machine);
void prediction_rows(Table& table, const Machines& machines);
void run_rows(Table& table, const Machine& machine);
void verifier_rows(Table& table);

}  // namespace hetero::graph::testing
