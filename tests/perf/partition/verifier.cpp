// What of damaged plans the verifier finds; what it does not find is run, on a device that stalls
// at random and on one that does not.

#include <stdexcept>

#include "backend/sim/sim_device.h"
#include "graph/verify/verify.h"
#include "tests/graph/verify/damage.h"
#include "tests/perf/partition/rows.h"

namespace hetero::graph::testing {
namespace {

constexpr int kMutations = 200;

// Whether the damaged plan gives the right bits.
bool is_harmless(Program& program, const Plan& damaged, backend::Device& stalling) {
  const Results expected = program.interpret();
  for (const Devices& devices : {test_devices(), Devices{test_devices()[backend::kCpu], &stalling}}) {
    const Results results = program.run_plan(damaged, devices);
    if (!results.status.ok() || !same_values(program, results, expected)) return false;
  }
  return true;
}

}  // namespace

void verifier_rows(Table& table) {
  auto stalling = backend::SimDevice::create({.schedule_seed = 5});
  if (!stalling.ok()) throw std::runtime_error(stalling.status().message());
  for (const bool fused : {false, true}) {
    int found = 0;
    int harmful = 0;
    for_each_mutation(fused, kMutations, test_devices(),
                      [&](Damage, Program& program, const Plan&, const Plan& damaged, const PlanOptions& options) {
                        if (!verify_plan(program.graph, damaged, options).ok()) {
                          ++found;
                        } else if (!is_harmless(program, damaged, *stalling.value())) {
                          ++harmful;
                        }
                      });
    const double share = static_cast<double>(found) / kMutations;
    const char* const programs = fused ? "fused programs" : "random programs";
    table.at_least(text("verifier: share of %d mutations caught, %s", kMutations, programs), text("%.3f", share), share,
                   0.95);
    table.at_most("&nbsp; of the rest, those that were not harmless when they were run",
                  text("%d of %d", harmful, kMutations - found), harmful, 0);
  }
}

}  // namespace hetero::graph::testing
