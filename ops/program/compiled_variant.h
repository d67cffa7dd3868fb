// What CompiledProgram (compiled.h) keeps of a capture: the graph, and what each of its buffers is
// to a caller.
//
// Thread safety: the executor lock.

#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <vector>

#include "graph/ir/graph.h"
#include "ops/record/call.h"
#include "ops/record/node_note.h"
#include "ops/record/plan_cache.h"
#include "ops/tensor/storage.h"

namespace hetero::ops {

// The arguments of a call as far as they are looked at once.
struct ArgumentStorages {
  static constexpr uint32_t kNone = UINT32_MAX;

  // Per argument, in the order of first appearance; kNone for those that are no tensors.
  std::vector<uint32_t> numbers;
  std::vector<c10::StorageImpl*> storages;  // per number
  std::vector<uint32_t> table;              // scratch: a hash table of numbers
  void look(const std::vector<c10::IValue>& arguments);
};

struct CompiledVariant {
  struct Argument {
    uint32_t storage = ArgumentStorages::kNone;  // kNone: a number
    graph::WindowId window = graph::kNoWindow;
    uint8_t bits = 0;
    c10::DeviceType device = kHetero;  // where the caller has it
    c10::IValue number;
  };
  // What a buffer, or a result, is.
  struct Source {
    enum class Kind : uint8_t { kTemporary, kArgument, kConstant, kResult, kNumber };
    Kind kind = Kind::kTemporary;
    uint32_t index = 0;  // of a storage of the arguments, of `constants`, or of `result_bytes`
  };
  struct Result {
    // What it is to the tensor `relative`, which has the same storage: an argument where the source
    // is one, else an earlier result. Autograd notices by the version counter that a saved tensor
    // was written since, so tensors that share it without the program share it behind the program.
    enum class Relation : uint8_t { kNone, kView, kSame };
    Source source;
    graph::WindowId window = graph::kNoWindow;
    uint8_t bits = 0;
    c10::DeviceType device = kHetero;  // where the caller gets it
    Relation relation = Relation::kNone;
    uint32_t relative = 0;
    c10::IValue number;
  };

  bool fits(const std::vector<c10::IValue>& values, const ArgumentStorages& of,
            const graph::WindowTable& windows) const;

  std::vector<Argument> arguments;
  std::vector<Result> results;
  std::vector<uint64_t> storage_bytes;  // per storage of the arguments, when they were captured
  std::vector<uint8_t> written;         // the same: some node writes it
  std::vector<c10::Storage> constants;  // with bytes
  std::vector<uint64_t> result_bytes;   // per storage that is made for the results
  graph::Graph graph;                   // its buffers tell their size only
  std::vector<Source> sources;          // per buffer
  Bytes numbers;                        // of all nodes
  std::vector<size_t> draws;            // where in them random states stand
  at::ScalarType default_dtype = at::kFloat;
  NodeNotes notes;
  bool has_other_layouts = false;  // than the operators gave to images
  uint32_t structure = 0;          // equal for variants that differ in sizes only
  PlanSet plans{false};
};

}  // namespace hetero::ops
