#include "graph/program/ports.h"

#include <utility>

#include "graph/program/program_sizes.h"

namespace hetero {
namespace {

Status usage(std::string message) { return Status(ErrorClass::kUsage, std::move(message)); }

}  // namespace

Ports::Ports(const graph::SavedProgram& program, const std::vector<graph::ProgramValue>& values, const char* kind)
    : program_(program), values_(values), kind_(kind) {
  for (const graph::ProgramValue& value : values) words_.push_back(std::string(kind) + " '" + value.name + "'");
}

Result<size_t> Ports::find(Which which) const {
  if (which.index_ < values_.size()) return which.index_;
  std::string names;
  for (size_t i = 0; i < values_.size(); ++i) {
    if (which.index_ == SIZE_MAX && values_[i].name == which.name_) return i;
    if (i > 0) names += ", ";
    names += values_[i].name;
  }
  const std::string asked =
      which.index_ == SIZE_MAX ? "called '" + std::string(which.name_) + "'" : "number " + std::to_string(which.index_);
  return usage(std::string("there is no ") + kind_ + " " + asked + "; the program has " +
               (values_.empty() ? std::string("none") : names));
}

Status Ports::check(size_t index, const TensorView& tensor) const {
  return graph::check_shape(program_.windows[values_[index].window], tensor, words_[index]);
}

Status Ports::check_request(std::span<const TensorView> tensors, std::span<const int64_t> sizes) const {
  if (tensors.size() != values_.size()) {
    return usage("the program has " + std::to_string(values_.size()) + " " + kind_ + "s, and the request brings " +
                 std::to_string(tensors.size()));
  }
  std::vector<TensorShape> shapes;
  if (!sizes.empty()) {
    const bool are_inputs = &values_ == &program_.inputs;
    auto found = are_inputs ? graph::input_shapes(program_, sizes) : graph::output_shapes(program_, sizes);
    if (!found.ok()) return found.status();
    shapes = std::move(found.value());
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    Status status = shapes.empty() ? check(i, tensors[i])
                                   : graph::check_shape(shapes[i].dtype, shapes[i].sizes, tensors[i], words_[i]);
    if (!status.ok()) return status;
    if (tensors[i].device != backend::kCpu) return usage(words_[i] + " of a request must be in the host's memory");
  }
  return Status();
}

}  // namespace hetero
