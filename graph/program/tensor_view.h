// TensorView: the caller's memory as a tensor, in a build without torch.
//
// Thread safety: a value type.
// Ownership: none. The caller keeps the memory alive for as long as the function that takes the
// view says.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/base/status.h"
#include "backend/device/device.h"
#include "graph/ir/window.h"

namespace hetero {

struct TensorView {
  void* data = nullptr;  // of the first element
  graph::DType dtype = 0;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  // in elements; empty: row-major
  backend::DeviceIndex device = backend::kCpu;

  // Elements in row-major order. `dtype` by its short name: "f32", "i64", "bf16", "bool".
  static TensorView row_major(void* data, std::string_view dtype, std::vector<int64_t> sizes);
};

// A description of a tensor without memory.
struct TensorShape {
  graph::DType dtype = 0;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

// "f32[2,3]" and such, for messages.
std::string to_string(const TensorView& view);

namespace graph {

// Whether the tensor has the window's dtype and sizes. Errors: kUsage, in words that say what was
// expected.
Status check_shape(const Window& window, const TensorView& view, const std::string& what);
Status check_shape(DType dtype, std::span<const int64_t> sizes, const TensorView& view, const std::string& what);
// Whether the tensor lies in memory exactly as the window does, offset apart.
bool lies_like(const Window& window, const TensorView& view);
// Copies between a tensor and a buffer in host memory that the window looks at. REQUIRES:
// check_shape(); neither overlaps the other.
void copy_in(const TensorView& from, const Window& window, void* buffer);
void copy_out(const Window& window, const void* buffer, const TensorView& to);

}  // namespace graph
}  // namespace hetero
