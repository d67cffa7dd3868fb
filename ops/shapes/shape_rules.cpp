#include "ops/shapes/shape_rules.h"

#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>

#include <algorithm>

namespace hetero::ops {
namespace {

RuledOutput row_major(c10::IntArrayRef sizes) {
  RuledOutput output;
  output.sizes.assign(sizes.begin(), sizes.end());
  output.strides.resize(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    output.strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  return output;
}

bool collect_tensors(c10::ArrayRef<c10::IValue> arguments, c10::SmallVector<at::Tensor, 4>& tensors) {
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().defined()) tensors.push_back(argument.toTensor());
    if (argument.isList() && !argument.isIntList() && !argument.isDoubleList() && !argument.isBoolList()) return false;
  }
  return !tensors.empty();
}

bool broadcast(const c10::SmallVector<at::Tensor, 4>& tensors, std::vector<RuledOutput>& outputs) {
  c10::SmallVector<int64_t, 6> sizes;
  for (const at::Tensor& tensor : tensors) {
    const auto other = tensor.sizes();
    if (other.size() > sizes.size()) sizes.insert(sizes.begin(), other.size() - sizes.size(), 1);
    const size_t shift = sizes.size() - other.size();
    for (size_t i = 0; i < other.size(); ++i) {
      int64_t& size = sizes[shift + i];
      if (size == 1) {
        size = other[i];
      } else if (other[i] != 1 && other[i] != size) {
        return false;
      }
    }
  }
  // Tensors that fill the space alike hand on their strides.
  RuledOutput output = row_major(sizes);
  const at::Tensor* model = nullptr;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.sizes() != c10::IntArrayRef(sizes)) continue;
    if (model != nullptr && tensor.strides() != model->strides()) return false;
    model = &tensor;
  }
  if (model != nullptr && !model->is_contiguous()) {
    if (!model->is_non_overlapping_and_dense()) return false;
    output.strides.assign(model->strides().begin(), model->strides().end());
  }
  outputs.push_back(std::move(output));
  return true;
}

bool matmul(const c10::SmallVector<at::Tensor, 4>& tensors, std::vector<RuledOutput>& outputs) {
  if (tensors.size() < 2) return false;
  const at::Tensor& a = tensors[tensors.size() - 2];
  const at::Tensor& b = tensors[tensors.size() - 1];
  const int64_t rank = a.dim();
  if (rank != b.dim() || (rank != 2 && rank != 3) || a.size(-1) != b.size(-2)) return false;
  if (rank == 3 && a.size(0) != b.size(0)) return false;
  c10::SmallVector<int64_t, 3> sizes(a.sizes().begin(), a.sizes().end());
  sizes.back() = b.size(-1);
  if (tensors.size() > 2 && !at::is_expandable_to(tensors[0].sizes(), sizes)) return false;
  outputs.push_back(row_major(sizes));
  return true;
}

bool reduce(c10::ArrayRef<c10::IValue> arguments, std::vector<RuledOutput>& outputs) {
  const at::Tensor input = arguments[0].toTensor();
  const int64_t rank = input.dim();
  uint64_t reduced = 0;
  bool any = false;
  bool keep = false;
  const auto mark = [&](int64_t dim) {
    if (dim < 0) dim += rank;
    if (dim < 0 || dim >= rank || dim > 63) return false;
    reduced |= uint64_t{1} << dim;
    return any = true;
  };
  for (size_t i = 1; i < arguments.size(); ++i) {
    const c10::IValue& argument = arguments[i];
    if (i == 1 && argument.isInt()) {
      if (!mark(argument.toInt())) return false;
    } else if (i == 1 && argument.isIntList()) {
      for (const int64_t dim : argument.toIntVector()) {
        if (!mark(dim)) return false;
      }
    } else if (argument.isBool()) {
      keep = argument.toBool();
    }
  }
  c10::SmallVector<int64_t, 6> sizes;
  for (int64_t d = 0; d < rank; ++d) {
    if (any && (reduced >> d & 1) == 0) {
      sizes.push_back(input.size(d));
    } else if (keep) {
      sizes.push_back(1);
    }
  }
  if (!input.is_contiguous()) return false;
  outputs.push_back(row_major(sizes));
  return true;
}

bool concatenate(c10::ArrayRef<c10::IValue> arguments, std::vector<RuledOutput>& outputs) {
  if (!arguments[0].isTensorList() || arguments.size() < 2 || !arguments[1].isInt()) return false;
  const c10::List<at::Tensor> tensors = arguments[0].toTensorList();
  if (tensors.empty()) return false;
  c10::SmallVector<int64_t, 6> sizes;
  int64_t dim = arguments[1].toInt();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor tensor = tensors.get(i);
    // An empty vector counts for nothing.
    if (tensor.dim() == 0 || tensor.numel() == 0 || !tensor.is_contiguous()) return false;
    if (sizes.empty()) {
      sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
      if (dim < 0) dim += tensor.dim();
      if (dim < 0 || dim >= tensor.dim()) return false;
      continue;
    }
    if (tensor.dim() != static_cast<int64_t>(sizes.size())) return false;
    for (int64_t d = 0; d < tensor.dim(); ++d) {
      if (d == dim) {
        sizes[d] += tensor.size(d);
      } else if (sizes[d] != tensor.size(d)) {
        return false;
      }
    }
  }
  outputs.push_back(row_major(sizes));
  return true;
}

bool layer_norm(c10::ArrayRef<c10::IValue> arguments, std::vector<RuledOutput>& outputs) {
  const at::Tensor input = arguments[0].toTensor();
  const auto normalized = arguments[1].toIntVector();
  const int64_t rows = input.dim() - static_cast<int64_t>(normalized.size());
  if (rows < 0 || !input.is_contiguous() || input.sizes().slice(rows) != c10::IntArrayRef(normalized)) return false;
  for (size_t i : {size_t{2}, size_t{3}}) {
    if (i >= arguments.size() || !arguments[i].isTensor() || !arguments[i].toTensor().defined()) continue;
    if (arguments[i].toTensor().sizes() != c10::IntArrayRef(normalized)) return false;
  }
  outputs.push_back(row_major(input.sizes()));
  c10::SmallVector<int64_t, 6> sizes(input.sizes().begin(), input.sizes().begin() + rows);
  sizes.resize(input.dim(), 1);
  outputs.push_back(row_major(sizes));
  outputs.push_back(row_major(sizes));
  return true;
}

// Whether query, key and value fit together, and the mask with them, where there is one.
bool attention_fits(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const c10::IValue& mask) {
  if (query.dim() != 4 || key.dim() != 4 || query.numel() == 0 || key.numel() == 0 || key.sizes() != value.sizes()) {
    return false;
  }
  // Several heads of queries may share one of keys.
  if (query.size(0) != key.size(0) || query.size(1) % key.size(1) != 0 || query.size(3) != key.size(3)) return false;
  if (mask.isNone()) return true;
  if (!mask.isTensor()) return false;
  if (!mask.toTensor().defined()) return true;
  const int64_t sizes[] = {query.size(0), query.size(1), query.size(2), key.size(2)};
  const at::Tensor& tensor = mask.toTensor();
  return (tensor.dim() == 2 || tensor.dim() == 4) && at::is_expandable_to(tensor.sizes(), sizes);
}

// [a, b, c, ...] laid out as [a, c, b, ...].
RuledOutput transposed(c10::SmallVector<int64_t, 6> sizes) {
  std::swap(sizes[1], sizes[2]);
  RuledOutput output = row_major(sizes);
  std::swap(output.sizes[1], output.sizes[2]);
  std::swap(output.strides[1], output.strides[2]);
  return output;
}

bool attention(c10::ArrayRef<c10::IValue> arguments, const c10::SmallVector<at::Tensor, 4>& tensors,
               std::vector<RuledOutput>& outputs) {
  if (tensors.size() < 3 || arguments.size() != 7) return false;
  const at::Tensor& query = tensors[0];
  if (!query.is_non_overlapping_and_dense() || !attention_fits(query, tensors[1], tensors[2], arguments[5])) {
    return false;
  }
  RuledOutput out = row_major(query.sizes());
  out.strides.assign(query.strides().begin(), query.strides().end());
  outputs.push_back(std::move(out));
  outputs.push_back(transposed({query.size(0), query.size(1), query.size(2)}));
  return true;
}

bool attention_backward(c10::ArrayRef<c10::IValue> arguments, const c10::SmallVector<at::Tensor, 4>& tensors,
                        std::vector<RuledOutput>& outputs) {
  if (tensors.size() < 6 || arguments.size() != 10) return false;
  const at::Tensor& query = tensors[1];
  if (!attention_fits(query, tensors[2], tensors[3], arguments[8])) return false;
  if (tensors[0].sizes() != query.sizes() || tensors[4].sizes() != query.sizes() ||
      tensors[5].sizes() != query.sizes().slice(0, 3)) {
    return false;
  }
  for (size_t i = 1; i < 4; ++i) {
    const auto sizes = tensors[i].sizes();
    outputs.push_back(transposed({sizes.begin(), sizes.end()}));
  }
  return true;
}

// One number for each dimension of space, from `least` on; one alone is for all of them.
bool spatial(const c10::IValue& list, int64_t rank, int64_t least, std::vector<int64_t>& numbers) {
  constexpr int64_t kMost = int64_t{1} << 31;  // no sum of a few products of two is out of range
  numbers = list.toIntVector();
  if (numbers.size() == 1) numbers.resize(rank, numbers[0]);
  return std::ssize(numbers) == rank &&
         std::ranges::all_of(numbers, [least](int64_t number) { return number >= least && number < kMost; });
}

// Sizes of a convolution. `options` are stride, padding, dilation, transposed, output_padding and
// groups. False where they do not fit together.
bool convolve(const at::Tensor& input, const at::Tensor& weight, c10::ArrayRef<c10::IValue> options,
              c10::SmallVector<int64_t, 6>& sizes) {
  const int64_t rank = input.dim() - 2;
  const int64_t groups = options[5].toInt();
  std::vector<int64_t> stride, padding, dilation, more;
  if (rank < 1 || weight.dim() != input.dim() || groups < 1 || input.scalar_type() != weight.scalar_type() ||
      !spatial(options[0], rank, 1, stride) || !spatial(options[1], rank, 0, padding) ||
      !spatial(options[2], rank, 1, dilation) || !spatial(options[4], rank, 0, more)) {
    return false;
  }
  const bool transposed = options[3].toBool();
  if (weight.size(0) < 1 || weight.size(0) % groups != 0) return false;
  if (input.size(1) != (transposed ? weight.size(0) : weight.size(1) * groups)) return false;
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  sizes = {input.size(0), channels};
  for (int64_t d = 0; d < rank; ++d) {
    const int64_t size = input.size(d + 2);
    const int64_t reach = dilation[d] * (weight.size(d + 2) - 1) + 1;
    if (weight.size(d + 2) < 1) return false;
    const int64_t free = size + 2 * padding[d] - reach;
    const int64_t made = transposed ? (size - 1) * stride[d] - 2 * padding[d] + reach + more[d] : free / stride[d] + 1;
    if (made < 1 || (!transposed && free < 0)) return false;
    if (transposed && more[d] >= std::max(stride[d], dilation[d])) return false;
    sizes.push_back(made);
  }
  return true;
}

// In which order the CPU's kernels lay out what they make. False where that is not known: PyTorch's
// own kernels, for float64 and without oneDNN, look at more than this.
bool convolution_format(const at::Tensor& input, const at::Tensor& weight, at::MemoryFormat& format) {
  if (input.numel() == 0) return false;
  const bool rows = input.suggest_memory_format() == at::MemoryFormat::Contiguous &&
                    weight.suggest_memory_format() == at::MemoryFormat::Contiguous;
  format = rows ? at::MemoryFormat::Contiguous : at::MemoryFormat::ChannelsLast;
  if (input.dim() == 3) return weight.is_contiguous();
  return rows || (input.dim() == 4 && input.scalar_type() != at::kDouble && at::globalContext().userEnabledMkldnn());
}

bool convolution(c10::ArrayRef<c10::IValue> arguments, std::vector<RuledOutput>& outputs) {
  c10::SmallVector<int64_t, 6> sizes;
  at::MemoryFormat format{};
  if (!convolution_sizes(arguments, sizes)) return false;
  if (!convolution_format(arguments[0].toTensor(), arguments[1].toTensor(), format)) return false;
  outputs.push_back(row_major(sizes));
  if (format == at::MemoryFormat::ChannelsLast) {
    const std::vector<int64_t> strides = c10::get_channels_last_strides_2d(c10::IntArrayRef(sizes));
    outputs.back().strides.assign(strides.begin(), strides.end());
  }
  return true;
}

bool convolution_backward(c10::ArrayRef<c10::IValue> arguments, std::vector<RuledOutput>& outputs) {
  // grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding,
  // groups, output_mask
  const at::Tensor& gradient = arguments[0].toTensor();
  const at::Tensor& input = arguments[1].toTensor();
  const at::Tensor& weight = arguments[2].toTensor();
  c10::SmallVector<int64_t, 6> sizes;
  at::MemoryFormat format{};
  if (!convolve(input, weight, arguments.slice(4, 6), sizes) || gradient.sizes() != c10::IntArrayRef(sizes) ||
      gradient.scalar_type() != input.scalar_type() || !convolution_format(input, weight, format) ||
      format != at::MemoryFormat::Contiguous) {
    return false;
  }
  const auto wanted = arguments[10].toBoolList();
  const int64_t channels = sizes[1];
  if (wanted[2] && !arguments[3].isNone() && arguments[3].toIntVector() != std::vector<int64_t>{channels}) return false;
  outputs.push_back(wanted[0] ? row_major(input.sizes()) : RuledOutput{.made = false});
  outputs.push_back(wanted[1] ? row_major(weight.sizes()) : RuledOutput{.made = false});
  outputs.push_back(wanted[2] ? row_major({channels}) : RuledOutput{.made = false});
  return true;
}

}  // namespace

bool convolution_sizes(c10::ArrayRef<c10::IValue> arguments, c10::SmallVector<int64_t, 6>& sizes) {
  // input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
  const at::Tensor& input = arguments[0].toTensor();
  if (!convolve(input, arguments[1].toTensor(), arguments.slice(3, 6), sizes)) return false;
  if (!arguments[2].isTensor() || !arguments[2].toTensor().defined()) return true;
  const at::Tensor& bias = arguments[2].toTensor();
  return bias.dim() == 1 && bias.size(0) == sizes[1] && bias.scalar_type() == input.scalar_type();
}

bool apply_rule(ShapeRule rule, c10::ArrayRef<c10::IValue> arguments, std::vector<RuledOutput>& outputs) {
  outputs.clear();
  if (rule == ShapeRule::kNone || arguments.empty()) return false;
  if (rule == ShapeRule::kConcatenate) return concatenate(arguments, outputs);
  c10::SmallVector<at::Tensor, 4> tensors;
  if (!collect_tensors(arguments, tensors) || !arguments[0].isTensor()) return false;
  switch (rule) {
    case ShapeRule::kBroadcast:
      return broadcast(tensors, outputs);
    case ShapeRule::kSame:
    case ShapeRule::kSameTwice:
      if (!tensors[0].is_contiguous()) return false;
      outputs.resize(rule == ShapeRule::kSame ? 1 : 2, row_major(tensors[0].sizes()));
      return true;
    case ShapeRule::kMatmul:
      return matmul(tensors, outputs);
    case ShapeRule::kReduce:
      return reduce(arguments, outputs);
    case ShapeRule::kLayerNorm:
      return layer_norm(arguments, outputs);
    case ShapeRule::kAttention:
      return attention(arguments, tensors, outputs);
    case ShapeRule::kAttentionBackward:
      return attention_backward(arguments, tensors, outputs);
    case ShapeRule::kConvolution:
      return convolution(arguments, outputs);
    case ShapeRule::kConvolutionBackward:
      return convolution_backward(arguments, outputs);
    case ShapeRule::kEmbedding: {
      if (tensors.size() < 2 || tensors[0].dim() != 2) return false;
      c10::SmallVector<int64_t, 6> sizes(tensors[1].sizes().begin(), tensors[1].sizes().end());
      sizes.push_back(tensors[0].size(1));
      outputs.push_back(row_major(sizes));
      return true;
    }
    default:
      return false;
  }
}

}  // namespace hetero::ops
