#include "ops/memory/gaps.h"

#include <utility>

#include "graph/ir/layout.h"
#include "ops/memory/storage_memory.h"

namespace hetero::ops {

Result<backend::Block> without_gaps(const HeteroStorage* storage) {
  const HostPin pin(storage);
  Result<backend::Block> block = allocate_on_host(storage->nbytes());
  if (block.ok()) {
    graph::copy_rows(block.value().data(), storage->binding.blocks[backend::kCpu].data(), storage->nbytes(),
                     storage->binding.layout);
  }
  return block;
}

Status close_gaps(HeteroStorage* storage) {
  graph::Binding& binding = storage->binding;
  if (!binding.layout.has_gaps()) return Status();
  if (binding.error.ok() && binding.blocks[backend::kCpu]) {
    Result<backend::Block> block = without_gaps(storage);
    if (!block.ok()) return block.status();
    binding.blocks[backend::kCpu] = std::move(block.value());
  }
  binding.derived.reset();
  binding.layout = graph::Layout();
  return Status();
}

}  // namespace hetero::ops
