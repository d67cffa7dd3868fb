#include "graph/serve/sized_program.h"
#include "graph/plan/resize.h"
#include "graph/program/program_sizes.h"
#include "graph/program/verify_program.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace hetero {

using graph::SavedProgram;

SizedProgram::SizedProgram(std::vector<int64_t> of, std::unique_ptr<SavedProgram> for_them, const SavedProgram& own)
    : sizes(std::move(of)),
      made(std::move(for_them)),
      program(made != nullptr ? *made : own),
      inputs(program, program.inputs, "input"),
      outputs(program, program.outputs, "output") {}

Result<std::unique_ptr<SizedProgram>> SizedProgram::own(const SavedProgram& program, const graph::PlanOptions& options,
                                                        bool use_saved_plan) {
  auto sized = std::make_unique<SizedProgram>(graph::example_sizes(program), nullptr, program);
  if (Status status = graph::plan_program(program, options, use_saved_plan, sized->plan); !status.ok()) return status;
  sized->find_drawing();
  return sized;
}

Result<std::unique_ptr<SizedProgram>> SizedProgram::resized(const SavedProgram& program, std::span<const int64_t> sizes,
                                                            const graph::PlanOptions& options, const SizedProgram& own,
                                                            graph::BytesThere there) {
  Result<std::unique_ptr<SavedProgram>> made = graph::program_at(program, sizes);
  if (!made.ok()) return made.status();
  // What a file says of sizes is trusted no more than the rest of it.
  if (Status status = graph::verify_program(*made.value()); !status.ok()) {
    return Status(status.error_class(), "the program cannot have the sizes " +
                                            graph::sizes_text(program.dynamic, sizes) + ": " + status.message());
  }
  auto sized = std::make_unique<SizedProgram>(std::vector<int64_t>(sizes.begin(), sizes.end()), std::move(made.value()),
                                              program);
  if (Status status = graph::plan_resized(sized->program, options, own.plan, there, sized->plan); !status.ok())
    return status;
  sized->find_drawing();
  return sized;
}

void SizedProgram::find_drawing() {
  drawing_.assign(plan.graph.nodes.size(), 0);
  for (size_t n = 0; n < drawing_.size(); ++n) {
    const graph::Node& node = plan.graph.nodes[n];
    drawing_[n] = std::ranges::any_of(program.draws, [&](uint64_t draw) { return node.has_attribute(draw); });
  }
}

void SizedProgram::put_draw(uint64_t place, uint64_t seed, uint64_t offset) {
  std::memcpy(plan.graph.attributes.data() + place, &seed, sizeof(seed));
  std::memcpy(plan.graph.attributes.data() + place + sizeof(seed), &offset, sizeof(offset));
}

Status SizedProgram::renew() {
  if (graph::renew_numbers(plan.graph, drawing_, plan.plan)) return Status();
  return Status(ErrorClass::kInternal, "a group's numbers could not be made anew");
}

}  // namespace hetero
