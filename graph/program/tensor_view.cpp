#include "graph/program/tensor_view.h"

#include <algorithm>
#include <cstring>

namespace hetero {
namespace {

bool is_row_major(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] != 1 && strides[i] != stride) return false;
    stride *= sizes[i];
  }
  return true;
}

std::string text_of(graph::DType dtype, std::span<const int64_t> sizes) {
  std::string text = graph::dtype_name(dtype);
  text += '[';
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (i > 0) text += ',';
    text += std::to_string(sizes[i]);
  }
  return text + ']';
}

struct StridedCopy {
  std::span<const int64_t> sizes;
  std::span<const int64_t> to_strides;
  std::span<const int64_t> from_strides;
  int64_t bytes;  // of an element

  void run(char* to, const char* from, size_t dimension) const {
    if (dimension == sizes.size()) {
      std::memcpy(to, from, static_cast<size_t>(bytes));
      return;
    }
    const int64_t size = sizes[dimension];
    if (dimension + 1 == sizes.size() && to_strides[dimension] == 1 && from_strides[dimension] == 1) {
      std::memcpy(to, from, static_cast<size_t>(size * bytes));
      return;
    }
    for (int64_t i = 0; i < size; ++i) {
      run(to + i * to_strides[dimension] * bytes, from + i * from_strides[dimension] * bytes, dimension + 1);
    }
  }
};

// Empty strides are row-major.
void copy(const graph::Window& window, std::span<const int64_t> to_strides, std::span<const int64_t> from_strides,
          void* to, const void* from) {
  if (window.numel == 0) return;
  const int64_t bytes = graph::dtype_bytes(window.dtype);
  const auto is_dense = [&](std::span<const int64_t> strides) {
    return strides.empty() || is_row_major(window.sizes(), strides);
  };
  if (is_dense(to_strides) && is_dense(from_strides)) {
    std::memcpy(to, from, static_cast<size_t>(window.numel * bytes));
    return;
  }
  std::vector<int64_t> row_major(window.sizes().size());
  graph::fill_row_major(window.sizes(), row_major.data());
  StridedCopy{window.sizes(), to_strides.empty() ? row_major : to_strides,
              from_strides.empty() ? row_major : from_strides, bytes}
      .run(static_cast<char*>(to), static_cast<const char*>(from), 0);
}

}  // namespace

TensorView TensorView::row_major(void* data, std::string_view dtype, std::vector<int64_t> sizes) {
  return {.data = data, .dtype = graph::parse_dtype(dtype), .sizes = std::move(sizes), .strides = {}};
}

std::string to_string(const TensorView& view) {
  return view.dtype < 0 ? "an unknown dtype" : text_of(view.dtype, view.sizes);
}

namespace graph {

Status check_shape(const Window& window, const TensorView& view, const std::string& what) {
  return check_shape(window.dtype, window.sizes(), view, what);
}

Status check_shape(DType dtype, std::span<const int64_t> sizes, const TensorView& view, const std::string& what) {
  if (view.dtype != dtype || !std::ranges::equal(view.sizes, sizes)) {
    return Status(ErrorClass::kUsage,
                  what + " is " + text_of(dtype, sizes) + " in this program, not " + to_string(view));
  }
  if (!view.strides.empty() && view.strides.size() != sizes.size()) {
    return Status(ErrorClass::kUsage, what + " has " + std::to_string(sizes.size()) + " dimensions, and was given " +
                                          std::to_string(view.strides.size()) + " strides");
  }
  if (std::ranges::any_of(view.strides, [](int64_t stride) { return stride < 0; })) {
    return Status(ErrorClass::kUsage, what + " has a negative stride");
  }
  const bool is_empty = std::ranges::find(sizes, 0) != sizes.end();
  if (view.data == nullptr && !is_empty) return Status(ErrorClass::kUsage, what + " has no memory");
  return Status();
}

bool lies_like(const Window& window, const TensorView& view) {
  int64_t row_major = 1;
  for (auto i = static_cast<size_t>(window.rank); i-- > 0;) {
    const int64_t size = window.sizes()[i];
    const int64_t stride = view.strides.empty() ? row_major : view.strides[i];
    if (size > 1 && stride != window.strides()[i]) return false;
    row_major *= std::max<int64_t>(size, 1);
  }
  return true;
}

void copy_in(const TensorView& from, const Window& window, void* buffer) {
  copy(window, window.strides(), from.strides, static_cast<char*>(buffer) + window.offset * dtype_bytes(window.dtype),
       from.data);
}

void copy_out(const Window& window, const void* buffer, const TensorView& to) {
  copy(window, to.strides, window.strides(), to.data,
       static_cast<const char*>(buffer) + window.offset * dtype_bytes(window.dtype));
}

}  // namespace graph
}  // namespace hetero
