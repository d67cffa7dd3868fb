// Ports: the inputs or the outputs of a program for its callers, by position or by name, with a
// check of tensors.
//
// Executors, servers and stage pipelines of one Model (model.h) share its two.
//
// Thread safety: immutable. Ownership: the program outlives it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/base/status.h"
#include "graph/program/saved_program.h"
#include "graph/program/tensor_view.h"

namespace hetero {

// Which input or output: by its position or by its name.
class Which {
 public:
  Which(size_t index) : index_(index) {}
  Which(int index) : index_(static_cast<size_t>(index)) {}
  Which(const char* name) : name_(name) {}
  Which(std::string_view name) : name_(name) {}
  Which(const std::string& name) : name_(name) {}

 private:
  friend class Ports;
  size_t index_ = SIZE_MAX;
  std::string_view name_;
};

class Ports {
 public:
  // `kind` is "input" or "output".
  Ports(const graph::SavedProgram& program, const std::vector<graph::ProgramValue>& values, const char* kind);

  const graph::ProgramValue& operator[](size_t index) const { return values_[index]; }
  // "input 'x'", for messages.
  const std::string& words(size_t index) const { return words_[index]; }

  // Errors: kUsage, with the names that there are.
  Result<size_t> find(Which which) const;
  // Whether the tensor has the dtype and the shape of the program's own. Errors: kUsage, as
  // graph::check_shape.
  Status check(size_t index, const TensorView& tensor) const;
  // Whether these are one for each, all in the host's memory, for the program's dimensions `sizes`.
  // Errors: kUsage.
  Status check_request(std::span<const TensorView> tensors, std::span<const int64_t> sizes = {}) const;

 private:
  const graph::SavedProgram& program_;
  const std::vector<graph::ProgramValue>& values_;
  const char* const kind_;
  std::vector<std::string> words_;
};

}  // namespace hetero
