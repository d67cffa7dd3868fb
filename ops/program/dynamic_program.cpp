#include "ops/program/dynamic_program.h"

#include <algorithm>

#include "graph/optimize/fit_sizes.h"
#include "graph/program/program_sizes.h"
#include "ops/program/static_call.h"
#include "ops/record/call.h"

namespace hetero::ops {
namespace {

// Sizes and values, which are of eight bytes each, follow the structure (call.h).
void find_numbers(const graph::Graph& graph, const graph::Node& node, std::vector<uint32_t>& places) {
  const std::byte* const attributes = graph.attributes.data() + node.attribute_offset;
  AttributeHeader header;
  std::memcpy(&header, attributes, sizeof(header));
  for (uint32_t place = sizeof(header) + header.structure_bytes; place + 8 <= node.attribute_bytes; place += 8) {
    places.push_back(place);
  }
}

}  // namespace

std::unique_ptr<graph::SavedProgram> dynamic_program(SizesOfModel model) {
  Result<graph::DynamicSizes> parsed = graph::parse_sizes(model.variables);
  check(parsed.status());
  std::vector<graph::SizeVariable> variables = std::move(parsed.value().variables);
  std::vector<graph::SizeSum> factors;
  for (const std::string& text : model.factors) {
    Result<graph::SizeSum> sum = graph::parse_sum(text, variables);
    check(sum.status());
    factors.push_back(std::move(sum.value()));
  }
  TORCH_CHECK(!model.samples.empty(), "hetero: a program with dimensions is made of captures");
  std::unique_ptr<graph::SavedProgram> program = std::move(model.samples.front().program);
  std::vector<graph::SizeSample> samples;
  for (size_t s = 1; s < model.samples.size(); ++s) {
    samples.push_back({model.samples[s].sizes, model.samples[s].program.get()});
  }
  const Status status =
      graph::fit_sizes(*program, variables, model.samples.front().sizes, samples, factors, &find_numbers);
  TORCH_CHECK_VALUE(status.ok(), "hetero: the model is another program for other sizes: ", status.message(),
                    "; compile it for each, or say which dimensions are not dynamic");
  program->dynamic.requirements = std::move(parsed.value().requirements);
  check(graph::verify_sizes(*program));
  for (size_t d = 0; d < model.least.size(); ++d) {
    const SizedCapture& capture = model.least[d];
    graph::SizeVariable& dimension = program->dynamic.variables[d];
    const bool same =
        capture.program != nullptr && graph::compare_at(*program, {capture.sizes, capture.program.get()}).ok();
    if (!same) dimension.least = std::max<int64_t>(dimension.least, 2);
  }
  return program;
}

}  // namespace hetero::ops
