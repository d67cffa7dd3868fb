// One graph on two devices: what planning, memory and running reach, as a table with bars.
//
//   hetero_partition PROFILES [SECTION...]
//
// PROFILES is the folder of the machines' figures. Sections: placement, streaming, peers, thresholds,
// stages, streams, transfers, memory, planning, prediction, running, verifier; all without any. Exit
// status: 0 where every bar is reached, 1 otherwise.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "tests/perf/partition/rows.h"

namespace {

using hetero::graph::testing::Machines;
using hetero::graph::testing::Table;

int run(const std::string& profiles, const std::vector<std::string>& sections) {
  namespace bench = hetero::graph::testing;
  Machines machines;
  for (const char* name : {"h200", "rtx4090", "pcie3-slow"}) machines.push_back(bench::read_machine(profiles, name));
  const auto wanted = [&](const char* section) {
    return sections.empty() || std::ranges::find(sections, section) != sections.end();
  };
  Table table;
  if (wanted("placement")) bench::placement_rows(table);
  if (wanted("streaming")) bench::streaming_rows(table, machines);
  if (wanted("peers")) bench::peer_rows(table, machines);
  if (wanted("thresholds")) bench::threshold_rows(table, machines);
  if (wanted("stages")) bench::stage_rows(table, machines[0]);
  if (wanted("streams")) bench::stream_rows(table, machines);
  if (wanted("transfers")) bench::transfer_rows(table, machines);
  if (wanted("memory")) bench::memory_rows(table);
  if (wanted("planning")) bench::planning_rows(table, machines[0]);
  if (wanted("prediction")) bench::prediction_rows(table, machines);
  if (wanted("running")) bench::run_rows(table, machines[0]);
  if (wanted("verifier")) bench::verifier_rows(table);
  if (table.missed() > 0) std::fprintf(stderr, "%d bars are missed\n", table.missed());
  return table.missed() > 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: hetero_partition PROFILES [SECTION...]\n");
    return 2;
  }
  try {
    return run(argv[1], {argv + 2, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "hetero_partition: %s\n", error.what());
    return 2;
  }
}
