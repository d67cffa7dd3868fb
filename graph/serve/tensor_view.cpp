#include "graph/serve/tensor_view.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace hetero {
namespace {

// Row-major strides, which take no memory from the heap for tensors of usual rank.
class RowMajor {
 public:
  explicit RowMajor(std::span<const int64_t> sizes) : rank_(sizes.size()), many_(rank_ > few_.size() ? rank_ : 0) {
    int64_t* const strides = many_.empty() ? few_.data() : many_.data();
    int64_t stride = 1;
    for (size_t i = rank_; i-- > 0;) {
      strides[i] = stride;
      stride *= std::max<int64_t>(sizes[i], 1);
    }
  }
  std::span<const int64_t> strides() const { return {many_.empty() ? few_.data() : many_.data(), rank_}; }

 private:
  size_t rank_;
  std::array<int64_t, 8> few_;
  std::vector<int64_t> many_;
};

std::span<const int64_t> strides_of(const TensorView& view, const RowMajor& row_major) {
  return view.strides.empty() ? row_major.strides() : view.strides;
}

std::string text_of(graph::DType dtype, std::span<const int64_t> sizes) {
  std::string text = graph::dtype_name(dtype);
  text += '[';
  for (size_t i = 0; i < sizes.size(); ++i) text += (i == 0 ? "" : ",") + std::to_string(sizes[i]);
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

void copy(graph::DType dtype, std::span<const int64_t> sizes, std::span<const int64_t> to_strides,
          std::span<const int64_t> from_strides, const RowMajor& row_major, void* to, const void* from) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  if (numel == 0) return;
  const int64_t bytes = graph::dtype_bytes(dtype);
  const std::span<const int64_t> dense = row_major.strides();
  if (std::ranges::equal(dense, to_strides) && std::ranges::equal(dense, from_strides)) {
    std::memcpy(to, from, static_cast<size_t>(numel * bytes));
    return;
  }
  StridedCopy{sizes, to_strides, from_strides, bytes}.run(static_cast<char*>(to), static_cast<const char*>(from), 0);
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
  const bool fits = view.dtype == window.dtype && std::ranges::equal(view.sizes, window.sizes()) &&
                    (view.strides.empty() || view.strides.size() == view.sizes.size());
  if (!fits) {
    return Status(ErrorClass::kUsage,
                  what + " is " + text_of(window.dtype, window.sizes()) + " in this program, not " + to_string(view));
  }
  if (std::ranges::any_of(view.strides, [](int64_t stride) { return stride < 0; })) {
    return Status(ErrorClass::kUsage, what + " has a negative stride");
  }
  if (view.data == nullptr && window.numel != 0) return Status(ErrorClass::kUsage, what + " has no memory");
  return Status();
}

bool lies_like(const Window& window, const TensorView& view) {
  const RowMajor row_major(view.sizes);
  const std::span<const int64_t> strides = strides_of(view, row_major);
  for (int i = 0; i < window.rank; ++i) {
    if (window.sizes()[static_cast<size_t>(i)] > 1 &&
        strides[static_cast<size_t>(i)] != window.strides()[static_cast<size_t>(i)])
      return false;
  }
  return true;
}

void copy_in(const TensorView& from, const Window& window, void* buffer) {
  const RowMajor row_major(from.sizes);
  copy(window.dtype, window.sizes(), window.strides(), strides_of(from, row_major), row_major,
       static_cast<char*>(buffer) + window.offset * dtype_bytes(window.dtype), from.data);
}

void copy_out(const Window& window, const void* buffer, const TensorView& to) {
  const RowMajor row_major(to.sizes);
  copy(window.dtype, window.sizes(), strides_of(to, row_major), window.strides(), row_major, to.data,
       static_cast<const char*>(buffer) + window.offset * dtype_bytes(window.dtype));
}

}  // namespace graph
}  // namespace hetero
