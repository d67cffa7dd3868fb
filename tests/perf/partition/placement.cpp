// Placement of small graphs over the best of all their placements, and what single methods reach.

#include <algorithm>
#include <map>
#include <string>

#include "graph/plan/passes.h"
#include "tests/graph/placement/placement_cases.h"
#include "tests/perf/partition/rows.h"

namespace hetero::graph::testing {
namespace {

constexpr double kMeanBar = 1.01;
constexpr double kWorstBar = 1.12;

std::string figures_of(const Ratios& ratios) { return text("mean %.4f, worst %.4f", ratios.mean(), ratios.worst); }

double seconds_of(const std::vector<Candidate>& candidates, const char* name) {
  const auto found = std::ranges::find(candidates, std::string(name), &Candidate::name);
  return found->seconds;
}

}  // namespace

void placement_rows(Table& table) {
  Ratios all;
  std::map<std::string, Ratios> alone;
  const char* const methods[] = {"all on the accelerator", "fastest device", "minimum cut", "earliest finish"};
  for (const Shape shape : kShapes) {
    Ratios of_shape;
    std::map<std::string, Ratios> alone_of_shape;
    for (const double ratio : kCopyRatios) {
      for (unsigned seed = 0; seed < kGraphsOfEach; ++seed) {
        std::mt19937 random(seed);
        Tasks tasks = make_tasks(shape, ratio, random);
        std::vector<Candidate> candidates;
        const double seconds = search_seconds(tasks.graph, &candidates);
        const double least = best_of_all(tasks.graph);
        all.add(seconds / least);
        of_shape.add(seconds / least);
        for (const char* method : methods) {
          alone[method].add(seconds_of(candidates, method) / least);
          alone_of_shape[method].add(seconds_of(candidates, method) / least);
        }
      }
    }
    table.note(text("placement over the best of all 2^11, %s", to_string(shape)), figures_of(of_shape));
    for (const char* method : methods) table.note(text("&nbsp; %s alone", method), figures_of(alone_of_shape[method]));
  }
  table.at_most(text("placement, all %d graphs: mean", all.count), text("%.4f", all.mean()), all.mean(), kMeanBar);
  table.at_most(text("placement, all %d graphs: worst", all.count), text("%.4f", all.worst), all.worst, kWorstBar);
  for (const char* method : methods) table.note(text("&nbsp; %s alone", method), figures_of(alone[method]));
}

}  // namespace hetero::graph::testing
