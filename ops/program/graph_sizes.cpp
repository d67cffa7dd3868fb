#include "ops/program/graph_sizes.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>

namespace hetero::ops {
namespace {

// Primes: their products tell which of them they are made of.
constexpr std::array<int64_t, 24> kPrimes = {7,  11, 13, 17, 19, 23, 29, 31, 37, 41, 43,  47,
                                             53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103};
// fit_sizes.h needs five for sums of two products; the others confirm.
constexpr size_t kSamples = 8;

bool depends(const GraphSize& size) {
  return std::ranges::any_of(size.sum(), [](const graph::SizeTerm& term) { return !term.variables.empty(); });
}

GraphArgument argument_at(const GraphArgument& argument, std::span<const int64_t> dimensions) {
  if (const auto* size = std::get_if<GraphSize>(&argument.kind())) return size_at(*size, dimensions);
  if (const auto* sizes = std::get_if<GraphSizes>(&argument.kind())) return sizes_at(*sizes, dimensions);
  return argument;
}

}  // namespace

std::string lines_of(const std::vector<graph::SizeVariable>& dimensions) {
  graph::DynamicSizes sizes;
  sizes.variables = dimensions;
  return to_string(sizes);
}

int64_t size_at(const GraphSize& size, std::span<const int64_t> dimensions) {
  for (const graph::SizeTerm& term : size.sum()) {
    const bool known = std::ranges::all_of(term.variables, [&](uint16_t v) { return v < dimensions.size(); });
    TORCH_CHECK(known, "hetero: a size has a dimension of another graph");
  }
  const Result<int64_t> value = graph::value_of(size.sum(), dimensions);
  TORCH_CHECK(value.ok(), "hetero: ", value.ok() ? std::string() : value.status().message());
  return value.value();
}

std::vector<int64_t> sizes_at(const GraphSizes& sizes, std::span<const int64_t> dimensions) {
  std::vector<int64_t> made;
  for (const GraphSize& size : sizes.list()) made.push_back(size_at(size, dimensions));
  return made;
}

bool has_dimension(const GraphArgument& argument) {
  if (const auto* size = std::get_if<GraphSize>(&argument.kind())) return depends(*size);
  const auto* sizes = std::get_if<GraphSizes>(&argument.kind());
  return sizes != nullptr && std::ranges::any_of(sizes->list(), &depends);
}

std::vector<GraphArgument> arguments_at(const std::vector<GraphArgument>& arguments,
                                        std::span<const int64_t> dimensions) {
  std::vector<GraphArgument> made;
  for (const GraphArgument& argument : arguments) made.push_back(argument_at(argument, dimensions));
  return made;
}

GraphAttributes attributes_at(const GraphAttributes& attributes, std::span<const int64_t> dimensions) {
  GraphAttributes made;
  for (const auto& [name, argument] : attributes) made.emplace_back(name, argument_at(argument, dimensions));
  return made;
}

int64_t example_size(const graph::SizeVariable& dimension, size_t number) {
  // A size of 1 would be broadcast.
  const int64_t low = std::min(std::max<int64_t>(dimension.least, 2), dimension.most);
  const int64_t prime = kPrimes[number % kPrimes.size()];
  if (prime >= low && prime <= dimension.most) return prime;
  // As unsigned numbers: the bounds may be as far apart as the type allows.
  const uint64_t span = static_cast<uint64_t>(dimension.most) - static_cast<uint64_t>(low);
  return low + static_cast<int64_t>(span >= uint64_t(prime) ? uint64_t(prime) : uint64_t(prime) % (span + 1));
}

std::vector<std::vector<int64_t>> sizes_to_record(const GraphDimensions& dimensions) {
  const size_t count = dimensions.variables.size();
  std::vector<std::vector<int64_t>> samples;
  for (size_t s = 1; s <= kSamples; ++s) {
    std::vector<int64_t>& sizes = samples.emplace_back();
    // Steps of another length for each dimension, so that no two grow together.
    for (size_t d = 0; d < count; ++d) {
      sizes.push_back(example_size(dimensions.variables[d], count + s * (2 * d + 1) + d));
    }
  }
  return samples;
}

void SizeFactors::add(const GraphSize& size) {
  if (depends(size) && std::ranges::find(sums_, size.sum()) == sums_.end()) sums_.push_back(size.sum());
}

void SizeFactors::add(const GraphArgument& argument) {
  if (const auto* size = std::get_if<GraphSize>(&argument.kind())) add(*size);
  if (const auto* sizes = std::get_if<GraphSizes>(&argument.kind())) {
    for (const GraphSize& one : sizes->list()) add(one);
  }
}

std::vector<std::string> SizeFactors::texts() const {
  std::vector<std::string> texts;
  for (const graph::SizeVariable& dimension : dimensions_.variables) texts.push_back(dimension.name);
  for (const graph::SizeSum& sum : sums_) {
    std::string text = to_string(sum, dimensions_.variables);
    if (std::ranges::find(texts, text) == texts.end()) texts.push_back(std::move(text));
  }
  return texts;
}

}  // namespace hetero::ops
