// SizedProgram: a saved program for one set of sizes, with its plan.
//
// A program without dimensions has one. For a program with dimensions (dynamic_sizes.h), an
// executor makes one for each set of sizes that it meets. It resizes the saved program's plan if
// the sizes change nothing else, and plans again otherwise (a size that becomes 1).
//
// Thread safety: none; one owner at a time. Ownership: the saved program outlives it.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "graph/ir/plan.h"
#include "graph/ir/plan_options.h"
#include "graph/program/ports.h"
#include "graph/program/saved_program.h"
#include "graph/serve/static_plan.h"

namespace hetero {

struct SizedProgram {
  SizedProgram(std::vector<int64_t> of, std::unique_ptr<graph::SavedProgram> for_them, const graph::SavedProgram& own);
  SizedProgram(const SizedProgram&) = delete;

  // The program as it was saved. Errors: as graph::plan_program.
  static Result<std::unique_ptr<SizedProgram>> own(const graph::SavedProgram& program,
                                                   const graph::PlanOptions& options, bool use_saved_plan);
  // That of `own` for these sizes, with the weights that are `there`. Errors: kUsage for sizes that
  // the program cannot have.
  static Result<std::unique_ptr<SizedProgram>> resized(const graph::SavedProgram& program,
                                                       std::span<const int64_t> sizes,
                                                       const graph::PlanOptions& options, const SizedProgram& own,
                                                       graph::BytesThere there);

  // Draws new numbers for random operators into the plan's graph and groups: `draw()` gives a seed
  // and an offset. Errors: kInternal.
  template <typename Draw>
  Status draw_numbers(const Draw& draw);

  // Per node: it draws.
  std::span<const uint8_t> drawing() const { return drawing_; }

  const std::vector<int64_t> sizes;                 // of the dimensions
  const std::unique_ptr<graph::SavedProgram> made;  // null where the saved program has these sizes
  const graph::SavedProgram& program;
  const Ports inputs;
  const Ports outputs;
  graph::StaticPlan plan;

 private:
  void find_drawing();
  void put_draw(uint64_t place, uint64_t seed, uint64_t offset);
  Status renew();

  std::vector<uint8_t> drawing_;
};

template <typename Draw>
Status SizedProgram::draw_numbers(const Draw& draw) {
  for (const uint64_t place : program.draws) {
    const auto [seed, offset] = draw();
    put_draw(place, seed, offset);
  }
  return program.draws.empty() ? Status() : renew();
}

}  // namespace hetero
