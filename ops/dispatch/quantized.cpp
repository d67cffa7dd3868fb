#include "ops/dispatch/quantized.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <tuple>

#include "backend/cpu/quantized/checkpoint.h"
#include "backend/cpu/quantized/gemm.h"
#include "ops/kernels/kernel.h"
#include "ops/kernels/own_kernel.h"
#include "ops/kernels/profiled.h"
#include "ops/record/call.h"
#include "ops/settings/config.h"

namespace hetero::ops {
namespace {

using at::Tensor;
using backend::ActivationBits;
using backend::Element;
using backend::QuantizedProduct;
using backend::QuantizedShape;
using OptionalTensor = std::optional<Tensor>;

// ---- what holds for all of them -----------------------------------------------------------------

std::optional<Element> element_of_tensor(at::ScalarType dtype) { return element_of(static_cast<graph::DType>(dtype)); }

Element float_element(const Tensor& tensor, const char* what) {
  const auto element = element_of_tensor(tensor.scalar_type());
  TORCH_CHECK(element, what, " is float32, float16 or bfloat16, not ", tensor.scalar_type());
  return *element;
}

bool is_given(const OptionalTensor& tensor) { return tensor && tensor->defined() && tensor->numel() > 0; }

void check_weight(const QuantizedShape& shape, const Tensor& packed, const Tensor& scales,
                  const OptionalTensor& zeros) {
  TORCH_CHECK(packed.scalar_type() == at::kByte, "a packed weight is uint8, not ", packed.scalar_type());
  TORCH_CHECK(packed.dim() == 2 && packed.size(0) == shape.panels() && packed.size(1) == shape.panel_bytes(),
              "a packed weight of ", shape.n, " x ", shape.k, " in ", shape.bits, " bits is [", shape.panels(), ", ",
              shape.panel_bytes(), "], not ", packed.sizes());
  float_element(scales, "the scale of a quantized weight");
  const auto check_groups = [&](const Tensor& tensor, const char* what) {
    TORCH_CHECK(tensor.dim() == 3 && tensor.size(0) == shape.panels() && tensor.size(1) == shape.groups() &&
                    tensor.size(2) == backend::kQuantizedPanel,
                what, " of a weight of ", shape.n, " x ", shape.k, " with groups of ", shape.group_size(), " are [",
                shape.panels(), ", ", shape.groups(), ", 16], not ", tensor.sizes());
  };
  check_groups(scales, "the scales");
  if (!is_given(zeros)) return;
  TORCH_CHECK(zeros->scalar_type() == at::kByte, "the zeros of a quantized weight are uint8, not ",
              zeros->scalar_type());
  check_groups(*zeros, "the zeros");
}

// The instructions that products use: those of the tile unit only where config().tiles allows it.
backend::IntegerSet products_set() {
  const bool tiles = config().tiles.load(std::memory_order_relaxed);
  return tiles ? backend::integer_set() : std::min(backend::integer_set(), backend::IntegerSet::kVnni);
}

// ---- quantize_weight, dequantize_weight ---------------------------------------------------------

using Packed = std::tuple<Tensor, Tensor, Tensor>;

Packed empty_packed(const Tensor& weight, int64_t bits, int64_t group, bool symmetric, QuantizedShape& shape) {
  TORCH_CHECK(weight.dim() == 2, "a weight to quantize has two dimensions, not ", weight.dim());
  float_element(weight, "a weight to quantize");
  shape = packed_shape(bits, weight.size(0), weight.size(1), group);
  const auto options = weight.options();
  const auto of_groups = [&](at::ScalarType dtype) {
    return at::empty({shape.panels(), shape.groups(), backend::kQuantizedPanel}, options.dtype(dtype));
  };
  return {at::empty({shape.panels(), shape.panel_bytes()}, options.dtype(at::kByte)), of_groups(at::kBFloat16),
          symmetric ? at::empty({0}, options.dtype(at::kByte)) : of_groups(at::kByte)};
}

Packed quantize_weight_meta(const Tensor& weight, int64_t bits, int64_t group, bool symmetric) {
  QuantizedShape shape;
  return empty_packed(weight, bits, group, symmetric, shape);
}

Packed quantize_weight(const Tensor& given, int64_t bits, int64_t group, bool symmetric) {
  QuantizedShape shape;
  Packed made = empty_packed(given, bits, group, symmetric, shape);
  const bool has_rows = given.size(1) <= 1 || given.stride(1) == 1;
  const Tensor weight = has_rows ? given : given.contiguous();
  const auto& [packed, scales, zeros] = made;
  const bool finite = backend::quantize_weight(
      shape, float_element(weight, "a weight to quantize"), weight.const_data_ptr(), weight.stride(0),
      packed.mutable_data_ptr<uint8_t>(), static_cast<uint16_t*>(scales.mutable_data_ptr()),
      symmetric ? nullptr : zeros.mutable_data_ptr<uint8_t>());
  TORCH_CHECK_VALUE(finite, "a weight to quantize has values that are not finite");
  return made;
}

Tensor empty_weight(const Tensor& packed, const Tensor& scales, const OptionalTensor& zeros,
                    const QuantizedShape& shape, std::optional<at::ScalarType> dtype) {
  check_weight(shape, packed, scales, zeros);
  const at::ScalarType made = dtype.value_or(at::kFloat);
  TORCH_CHECK(element_of_tensor(made), "a weight becomes float32, float16 or bfloat16, not ", made);
  return at::empty({shape.n, shape.k}, packed.options().dtype(made));
}

Tensor dequantize_weight_meta(const Tensor& packed, const Tensor& scales, const OptionalTensor& zeros, int64_t bits,
                              int64_t group, int64_t out_features, int64_t in_features,
                              std::optional<at::ScalarType> dtype) {
  return empty_weight(packed, scales, zeros, packed_shape(bits, out_features, in_features, group), dtype);
}

// A weight whose tensors are dense.
backend::QuantizedWeight weight_of(const QuantizedShape& shape, const Tensor& packed, const Tensor& scales,
                                   const Tensor* zeros) {
  return {shape, packed.const_data_ptr<uint8_t>(), *element_of_tensor(scales.scalar_type()), scales.const_data_ptr(),
          zeros == nullptr || zeros->numel() == 0 ? nullptr : zeros->const_data_ptr<uint8_t>()};
}

Tensor dequantize_weight(const Tensor& packed, const Tensor& scales, const OptionalTensor& zeros, int64_t bits,
                         int64_t group, int64_t out_features, int64_t in_features,
                         std::optional<at::ScalarType> dtype) {
  const QuantizedShape shape = packed_shape(bits, out_features, in_features, group);
  Tensor weight = empty_weight(packed, scales, zeros, shape, dtype);
  const Tensor dense_packed = packed.contiguous(), dense_scales = scales.contiguous();
  const Tensor dense_zeros = is_given(zeros) ? zeros->contiguous() : Tensor();
  backend::dequantize_weight(
      weight_of(shape, dense_packed, dense_scales, dense_zeros.defined() ? &dense_zeros : nullptr),
      float_element(weight, "a weight"), weight.mutable_data_ptr());
  return weight;
}

// ---- quantized_linear ---------------------------------------------------------------------------

Tensor quantized_linear_meta(const Tensor& input, const Tensor& packed, const Tensor& scales,
                             const OptionalTensor& zeros, const OptionalTensor& bias, int64_t bits, int64_t group,
                             int64_t out_features, int64_t activation_bits) {
  TORCH_CHECK(input.dim() >= 1, "the input of a quantized product has a dimension of columns, and not none");
  float_element(input, "the input of a quantized product");
  const int64_t k = input.sym_size(-1).guard_int(__FILE__, __LINE__);
  check_weight(packed_shape(bits, out_features, k, group), packed, scales, zeros);
  TORCH_CHECK_VALUE(activation_bits == 8 || activation_bits == 16,
                    "the input of a quantized product is taken in 8 or 16 bits, not in ", activation_bits);
  if (bias && bias->defined()) {
    TORCH_CHECK(bias->dim() == 1 && bias->size(0) == out_features, "the bias of a product with ", out_features,
                " outputs is [", out_features, "], not ", bias->sizes());
    TORCH_CHECK(bias->scalar_type() == input.scalar_type(), "the bias of a quantized product has the input's dtype, ",
                input.scalar_type(), ", not ", bias->scalar_type());
  }
  c10::SymDimVector sizes(input.sym_sizes().begin(), input.sym_sizes().end());
  sizes.back() = out_features;
  return at::empty_symint(sizes, input.options());
}

// Whether the rows of an input are as far from each other as a product can take them.
bool has_rows(const Tensor& input) {
  return input.is_contiguous() || (input.dim() == 2 && (input.stride(1) == 1 || input.size(1) <= 1));
}

// REQUIRES: has_rows(input); all other tensors are dense.
QuantizedProduct product_of(const Tensor& input, const backend::QuantizedWeight& weight, const Tensor* bias,
                            int64_t activation_bits, const Tensor& output) {
  const int64_t rows = weight.shape.n == 0 ? 0 : output.numel() / weight.shape.n;
  return {.element = *element_of_tensor(input.scalar_type()),
          .activation = activation_bits == 8 ? ActivationBits::kEight : ActivationBits::kSixteen,
          .m = rows,
          .x = input.const_data_ptr(),
          .x_stride = input.dim() == 2 ? input.stride(0) : weight.shape.k,
          .weight = weight,
          .bias = bias == nullptr ? nullptr : bias->const_data_ptr(),
          .y = output.mutable_data_ptr(),
          .y_stride = weight.shape.n};
}

Tensor quantized_linear(const Tensor& input, const Tensor& packed, const Tensor& scales, const OptionalTensor& zeros,
                        const OptionalTensor& bias, int64_t bits, int64_t group, int64_t out_features,
                        int64_t activation_bits) {
  // It checks everything.
  Tensor output = quantized_linear_meta(input, packed, scales, zeros, bias, bits, group, out_features, activation_bits)
                      .contiguous();
  const Tensor x = has_rows(input) ? input : input.contiguous(), dense_packed = packed.contiguous(),
               dense_scales = scales.contiguous();
  const Tensor dense_zeros = is_given(zeros) ? zeros->contiguous() : Tensor();
  const Tensor dense_bias = bias && bias->defined() ? bias->contiguous() : Tensor();
  const QuantizedShape shape = packed_shape(bits, out_features, x.size(-1), group);
  backend::quantized_gemm(
      product_of(x, weight_of(shape, dense_packed, dense_scales, dense_zeros.defined() ? &dense_zeros : nullptr),
                 dense_bias.defined() ? &dense_bias : nullptr, activation_bits, output),
      products_set());
  return output;
}

// The product of a node, or none if a tensor is not dense. The node is what the Meta kernel allows.
std::optional<QuantizedProduct> read_product(const graph::Invocation& invocation, KernelTensors& tensors) {
  Decoder decoder(invocation.attributes, invocation.node->attribute_bytes);
  const Tensor* given[5];  // input, packed, scales, zeros, bias
  for (const Tensor*& tensor : given) {
    const Tag tag = decoder.next();
    if (tag != Tag::kTensor && tag != Tag::kNone) return std::nullopt;
    tensor = tag == Tag::kTensor ? &tensors.operand(decoder.operand()) : nullptr;
  }
  const auto is_dense = [](const Tensor* tensor) { return tensor == nullptr || tensor->is_contiguous(); };
  if (!has_rows(*given[0]) || !std::all_of(given + 1, std::end(given), is_dense)) return std::nullopt;
  int64_t numbers[4];  // bits, group, out_features, activation_bits
  for (int64_t& number : numbers) number = decoder.integer(decoder.next());
  const int output = tensors.first_output();
  if (!tensors.has_memory(output) || !tensors.operand(output).is_contiguous()) return std::nullopt;
  const QuantizedShape shape{static_cast<int>(numbers[0]), numbers[2], given[0]->size(-1), numbers[1]};
  return product_of(*given[0], weight_of(shape, *given[1], *given[2], given[3]), given[4], numbers[3],
                    tensors.operand(output));
}

bool share_input(const QuantizedProduct& a, const QuantizedProduct& b) {
  return a.element == b.element && a.activation == b.activation && a.m == b.m && a.x == b.x &&
         a.x_stride == b.x_stride && a.weight.shape.k == b.weight.shape.k &&
         a.weight.shape.group_size() == b.weight.shape.group_size();
}

// ---- import_quantized ---------------------------------------------------------------------------

using Imported = std::tuple<Tensor, Tensor, Tensor, Tensor>;

backend::CheckpointLayout layout_of(c10::string_view name) {
  if (name == "gptq") return backend::CheckpointLayout::kGptq;
  if (name == "gptq_v2") return backend::CheckpointLayout::kGptqV2;
  TORCH_CHECK_VALUE(name == "awq", "a layout of quantized weights is gptq, gptq_v2 or awq, not ", name);
  return backend::CheckpointLayout::kAwq;
}

// Dense, of one dtype and shape.
Tensor checked_array(const Tensor& tensor, const char* name, at::ScalarType dtype, at::IntArrayRef sizes) {
  TORCH_CHECK(tensor.scalar_type() == dtype, name, " of a checkpoint is ", dtype, ", not ", tensor.scalar_type());
  TORCH_CHECK(tensor.sizes() == sizes, name, " of this checkpoint is ", sizes, ", not ", tensor.sizes());
  return tensor.contiguous();
}

template <typename T>
Tensor to_tensor(const std::vector<T>& values, at::ScalarType dtype, at::IntArrayRef sizes) {
  Tensor tensor = at::empty(values.empty() ? at::IntArrayRef{0} : sizes, dtype);
  std::copy(values.begin(), values.end(), static_cast<T*>(tensor.mutable_data_ptr()));
  return tensor;
}

Imported import_quantized(const Tensor& qweight, const Tensor& qzeros, const Tensor& scales,
                          const OptionalTensor& g_idx, c10::string_view layout, int64_t bits, int64_t group) {
  const backend::CheckpointLayout from = layout_of(layout);
  TORCH_CHECK(qweight.dim() == 2, "qweight of a checkpoint has two dimensions, not ", qweight.dim());
  packed_shape(bits, 0, 0, group);
  const int64_t in_word = 32 / bits;
  const bool awq = from == backend::CheckpointLayout::kAwq;
  const int64_t n = qweight.size(1) * (awq ? in_word : 1);
  const int64_t k = qweight.size(0) * (awq ? 1 : in_word);
  const int64_t groups = group == 0 ? 1 : backend::divide_up(k, group);
  const Tensor weight = checked_array(qweight, "qweight", at::kInt, qweight.sizes());
  const Tensor zeros = checked_array(qzeros, "qzeros", at::kInt, {groups, n / in_word});
  const Tensor scale = checked_array(scales, "scales", at::kHalf, {groups, n});
  const Tensor group_of = g_idx && g_idx->defined() ? checked_array(*g_idx, "g_idx", at::kInt, {k}) : Tensor();
  Result<backend::ImportedWeight> result =
      backend::import_weight({from, packed_shape(bits, n, k, group), weight.const_data_ptr<int32_t>(),
                              zeros.const_data_ptr<int32_t>(), static_cast<const uint16_t*>(scale.const_data_ptr()),
                              group_of.defined() ? group_of.const_data_ptr<int32_t>() : nullptr});
  TORCH_CHECK_VALUE(result.ok(), result.status().message());
  const backend::ImportedWeight& made = result.value();
  const QuantizedShape& shape = made.shape;
  const int64_t of_groups[] = {shape.panels(), shape.groups(), backend::kQuantizedPanel};
  return {to_tensor(made.packed, at::kByte, {shape.panels(), shape.panel_bytes()}),
          to_tensor(made.scales, at::kHalf, of_groups), to_tensor(made.zeros, at::kByte, of_groups),
          to_tensor(made.order, at::kInt, {shape.k})};
}

}  // namespace

bool run_quantized_linear(const graph::Invocation& invocation) {
  Isolated isolated;
  KernelTensors tensors(invocation);
  const std::optional<QuantizedProduct> product = read_product(invocation, tensors);
  if (!product) return false;
  run_as_operator(OwnKernel::kQuantizedProduct, invocation, [&] { backend::quantized_gemm(*product, products_set()); });
  return true;
}

void run_quantized_linears(const graph::Invocation* calls, size_t count) {
  Isolated isolated;
  c10::SmallVector<QuantizedProduct, graph::kMaxBatch> products;
  {
    std::optional<KernelTensors> tensors[graph::kMaxBatch];
    for (size_t i = 0; i < count; ++i) {
      const auto product = read_product(calls[i], tensors[i].emplace(calls[i]));
      if (product && (products.empty() || share_input(products.front(), *product))) products.push_back(*product);
    }
    // Last in, first out.
    for (size_t i = count; i-- > 0;) tensors[i].reset();
  }
  if (products.size() != count) {
    for (size_t i = 0; i < count; ++i) calls[i].traits->kernel(calls[i]);
    return;
  }
  run_profiled(calls[0].traits->name.c_str(),
               [&] { backend::quantized_gemm(std::span(products.data(), count), products_set()); });
  ops::count(counters().own_kernels[static_cast<size_t>(OwnKernel::kQuantizedProduct)], static_cast<int64_t>(count));
}

QuantizedShape packed_shape(int64_t bits, int64_t n, int64_t k, int64_t group) {
  TORCH_CHECK_VALUE(bits == 8 || bits == 4, "a quantized weight has 8 or 4 bits, not ", bits);
  TORCH_CHECK_VALUE(group >= 0 && group % backend::kQuantizedDepth == 0,
                    "a group of a quantized weight is 0 for whole rows, or a multiple of 32, not ", group);
  TORCH_CHECK_VALUE(n >= 0 && k >= 0, "a quantized weight has sizes, not ", n, " and ", k);
  return {static_cast<int>(bits), n, k, group};
}

void check_packed(const QuantizedShape& shape, const PackedWeight& weight) {
  check_weight(shape, weight.packed, weight.scales, weight.zeros);
}

std::vector<Tensor> packed_products(const Tensor& given, const QuantizedShape& shape,
                                    std::initializer_list<PackedWeight> weights) {
  const Tensor x = given.contiguous();
  std::vector<Tensor> results, dense;  // dense keeps copies alive
  std::vector<QuantizedProduct> calls;
  const auto keep = [&](const Tensor& tensor) { return &dense.emplace_back(tensor.contiguous()); };
  dense.reserve(3 * weights.size());
  for (const PackedWeight& weight : weights) {
    results.push_back(at::empty({x.size(0), shape.n}, x.options()));
    const Tensor* const packed = keep(weight.packed);
    const Tensor* const scales = keep(weight.scales);
    calls.push_back(product_of(x, weight_of(shape, *packed, *scales, keep(weight.zeros)), nullptr, 16, results.back()));
  }
  backend::quantized_gemm(calls, products_set());
  return results;
}

// Recorded by the catch-all; rows in op_table.def.
TORCH_LIBRARY_FRAGMENT(hetero, library) {
  library.def("quantize_weight(Tensor weight, int bits, int group, bool symmetric) -> (Tensor, Tensor, Tensor)");
  library.def(
      "dequantize_weight(Tensor packed, Tensor scales, Tensor? zeros, int bits, int group, int out_features, "
      "int in_features, ScalarType? dtype=None) -> Tensor");
  library.def(
      "quantized_linear(Tensor input, Tensor packed, Tensor scales, Tensor? zeros, Tensor? bias, int bits, int group, "
      "int out_features, int activation_bits=16) -> Tensor");
  library.def(
      "import_quantized(Tensor qweight, Tensor qzeros, Tensor scales, Tensor? g_idx, str layout, int bits, int group) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(hetero, CPU, library) {
  library.impl("quantize_weight", TORCH_FN(quantize_weight));
  library.impl("dequantize_weight", TORCH_FN(dequantize_weight));
  library.impl("quantized_linear", TORCH_FN(quantized_linear));
  library.impl("import_quantized", TORCH_FN(import_quantized));
}

TORCH_LIBRARY_IMPL(hetero, Meta, library) {
  library.impl("quantize_weight", TORCH_FN(quantize_weight_meta));
  library.impl("dequantize_weight", TORCH_FN(dequantize_weight_meta));
  library.impl("quantized_linear", TORCH_FN(quantized_linear_meta));
}

TORCH_LIBRARY_IMPL(hetero, Autograd, library) {
  for (const char* name : {"quantize_weight", "dequantize_weight", "quantized_linear"}) {
    library.impl(name, torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace hetero::ops
