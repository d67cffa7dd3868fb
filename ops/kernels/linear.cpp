#include "ops/kernels/linear.h"

#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/mm.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "backend/cpu/convolution/patches.h"
#include "backend/cpu/kernels/panel_gemm.h"
#include "backend/cpu/kernels/tile_gemm.h"
#include "ops/kernels/blas.h"
#include "ops/kernels/kernel.h"
#include "ops/kernels/measure.h"
#include "ops/kernels/own_kernel.h"
#include "ops/kernels/packed_product.h"
#include "ops/memory/packed_weights.h"
#include "ops/record/call.h"
#include "ops/settings/config.h"
#include "ops/settings/parallel.h"

namespace hetero::ops {
namespace {

using Implementation = LinearImplementation;
using backend::Element;
using backend::Matvec;

// With less weight, looking up who is fastest takes as long as a product of few rows. In programs
// with bound addresses backend::matvec computes those. Elsewhere such products are the stock
// kernel's, whatever their rows.
constexpr int64_t kSmallestWeight = 16 << 10;
// With fewer, packing the weight takes longer than multiplying it.
constexpr int64_t kFewestRowsToPack = 64;
// How much faster a product has to be for the memory of a packed weight.
constexpr double kWorthPacking = 1.05;
// What comes next can run on rows of some products as they are made. Behind others, it is a pass
// over the result, which takes as long as so many terms of a product's sums.
constexpr double kTermsOfPass = 32;
// A product is measured so often beforehand where the machine is too busy; then the guess stays.
constexpr int kMostTries = 3;

std::atomic<int64_t> measurements;
std::atomic<int64_t> stock_calls;  // of BLAS, in place of the stock kernel
std::atomic<int> forced{-1};

// ---- recognizing a product ----------------------------------------------------------------------

struct Product {
  Matvec call;
  int x, w, bias, out;  // operands; bias is -1 where there is none
  LinearShape shape;
  bool is_small = false;   // computed by matvec, whatever would be measured
  bool is_stock = false;   // computed as the stock kernel does, whatever would be measured
  bool of_pixels = false;  // x and out are images with their channels last
};

// The last two dimensions of a window, of which one before them has size 1.
struct Matrix {
  int64_t rows, columns, row_stride, column_stride, offset;
};

bool matrix_of(const graph::Window& window, bool batched, Matrix& matrix) {
  const int first = batched ? 1 : 0;
  if (window.rank != first + 2 || (batched && window.sizes()[0] != 1)) return false;
  matrix = {window.sizes()[first], window.sizes()[first + 1], window.strides()[first], window.strides()[first + 1],
            window.offset};
  return true;
}

// addmm(self, mat1, mat2, *, beta, alpha) with both numbers 1.
bool plain_addmm(const graph::Invocation& invocation) {
  Decoder decoder(invocation.attributes, invocation.node->attribute_bytes);
  for (int i = 0; i < 3; ++i) {
    if (decoder.next() != Tag::kTensor) return false;
  }
  for (int i = 0; i < 2; ++i) {
    const Tag tag = decoder.next();
    if (tag != Tag::kScalar) return false;
    const at::Scalar number = decoder.scalar(tag);
    if (number.isComplex() || number.toDouble() != 1) return false;
  }
  return true;
}

LinearShape shape_of(const Matvec& call, bool leads) {
  return {.element = call.element,
          .x_columns = call.x_columns,
          .columns = call.columns,
          .bias = call.bias != nullptr,
          .tiles = may_use_tiles(call.element),
          .m = call.m,
          .n = call.n,
          .k = call.k,
          .threads = at::get_num_threads(),
          .leads = leads && backend::may_be_followed(call)};
}

bool is_forced() { return forced.load(std::memory_order_relaxed) >= 0; }

// `prepares`: it is looked at in advance.
bool recognize(const graph::Invocation& invocation, LinearKind kind, Product& product, bool prepares = false) {
  const int inputs = kind == LinearKind::kAddmm ? 3 : 2;
  const bool has_bias = kind == LinearKind::kAddmm && invocation.part == graph::Part::kWhole;
  const graph::Node& node = *invocation.node;
  if (node.operand_count != inputs + 1 || node.output_count != 1) return false;
  product.bias = has_bias ? 0 : -1;
  product.x = inputs - 2;
  product.w = inputs - 1;
  product.out = inputs;
  if (invocation.data[product.out] == nullptr) return false;
  const auto window = [&](int i) -> const graph::Window& {
    return (*invocation.windows)[invocation.operands[i].window];
  };
  const std::optional<Element> element = element_of(window(product.x).dtype);
  if (!element) return false;
  for (int i = 0; i <= inputs; ++i) {
    if (invocation.operands[i].bits != 0 || window(i).dtype != window(product.x).dtype) return false;
  }
  Matrix x, w, out;
  const bool batched = kind == LinearKind::kBmm;
  if (!matrix_of(window(product.x), batched, x) || !matrix_of(window(product.w), batched, w) ||
      !matrix_of(window(product.out), batched, out)) {
    return false;
  }
  const int64_t m = x.rows, k = x.columns, n = w.columns;
  if (m == 0 || k * n == 0) return false;
  const bool x_columns = x.column_stride != 1 || (m > 1 && x.row_stride < k);
  if (x_columns && !(x.row_stride == 1 && x.column_stride >= m)) return false;
  if (k * n < kSmallestWeight) {
    const bool has_few_rows = m <= backend::kMaxMatvecRows && !x_columns && !is_forced();
    const bool is_known = prepares || PackedWeights::stay(invocation, product.w);
    product.is_small = has_few_rows && is_known;
    product.is_stock = !product.is_small && (batched || !is_known);
    if (product.is_stock && (batched || *element != Element::kFloat32)) return false;
  }
  if (out.column_stride != 1 || (m > 1 && out.row_stride < n)) return false;
  const bool columns = w.column_stride == 1 && w.row_stride >= n;
  if (!columns && !(w.row_stride == 1 && w.column_stride >= k)) return false;

  const int64_t item = backend::element_bytes(*element);
  const auto address = [&](int i, int64_t offset) -> std::byte* {
    return static_cast<std::byte*>(invocation.data[i]) + offset * item;
  };
  product.call = {.element = *element,
                  .columns = columns,
                  .m = m,
                  .n = n,
                  .k = k,
                  .x = address(product.x, x.offset),
                  .x_stride = x_columns ? x.column_stride : x.row_stride,
                  .x_columns = x_columns,
                  .w = address(product.w, w.offset),
                  .w_stride = columns ? w.row_stride : w.column_stride,
                  .y = address(product.out, out.offset),
                  .y_stride = out.row_stride};
  if (product.bias >= 0) {
    // [n], [1, n], or either expanded to [m, n].
    const graph::Window& bias = window(product.bias);
    if (bias.rank < 1 || bias.rank > 2 || bias.sizes()[bias.rank - 1] != n || bias.strides()[bias.rank - 1] != 1) {
      return false;
    }
    if (bias.rank == 2 && bias.sizes()[0] != 1 && bias.strides()[0] != 0) return false;
    if (!plain_addmm(invocation)) return false;
    product.call.bias = address(product.bias, bias.offset);
  }
  if (!product.is_stock) product.shape = shape_of(product.call, invocation.leads);
  return true;
}

Product product_of(const graph::Invocation& invocation, const PixelProduct& pixels) {
  const int64_t item = backend::element_bytes(pixels.element);
  const auto address = [&](int i) {
    return static_cast<std::byte*>(invocation.data[i]) +
           (*invocation.windows)[invocation.operands[i].window].offset * item;
  };
  Product product{.call = {.element = pixels.element,
                           .m = pixels.pixels,
                           .n = pixels.outputs,
                           .k = pixels.channels,
                           .x = address(pixels.input),
                           .x_stride = pixels.channels,
                           .w = address(pixels.weight),
                           .w_stride = pixels.channels,
                           .bias = pixels.bias >= 0 ? address(pixels.bias) : nullptr,
                           .y = address(pixels.output),
                           .y_stride = pixels.outputs},
                  .x = pixels.input,
                  .w = pixels.weight,
                  .bias = pixels.bias,
                  .out = pixels.output,
                  .shape = {},
                  .of_pixels = true};
  product.shape = shape_of(product.call, invocation.leads);
  return product;
}

// [pixels, channels] of an image with its channels last.
at::Tensor pixels_of(const at::Tensor& tensor) { return tensor.movedim(1, -1).flatten(0, -2); }

// ---- the implementations ------------------------------------------------------------------------

bool can_run(Implementation implementation, const Product& product) {
  switch (implementation) {
    case Implementation::kStock:
      return true;
    case Implementation::kMatvec:
      return product.call.m <= backend::kMaxMatvecRows && !product.call.x_columns;
    case Implementation::kPanels:
      return backend::has_panels();
    case Implementation::kTiles:
      return product.shape.tiles;
    case Implementation::kPackedPanels:
    case Implementation::kPackedTiles:
    case Implementation::kPackedBlas:
      return can_multiply_packed(implementation, product.call);
  }
  return false;
}

// Null where nothing can keep a packed form of the weight.
PackedWeights* packed_weights(const graph::Invocation& invocation, const Product& product) {
  if (std::ranges::none_of(kPackedImplementations, [&](Implementation one) { return can_run(one, product); })) {
    return nullptr;
  }
  return PackedWeights::of_operand(invocation, product.w);
}

// The weight in the layout of the implementation, packed now if it is not yet; undefined where
// there is no such layout of its values. Null where there is no room.
const at::Tensor* pack(Implementation implementation, const Product& product, PackedWeights& weights) {
  const Matvec& call = product.call;
  const PackedKey key{.form = form_of(implementation),
                      .element = call.element,
                      .address = call.w,
                      .n = call.n,
                      .k = call.k,
                      .stride = call.w_stride,
                      .columns = call.columns};
  const bool dense = call.w_stride == (call.columns ? call.n : call.k);
  return weights.find_or_make(key, packed_space(implementation, call), dense ? key.dense_bytes() : 0,
                              [&] { return packed_weight(implementation, call); });
}

// ---- choosing -----------------------------------------------------------------------------------

// Whether the operands have their values already, or only those that have a binding.
enum class Values : uint8_t { kAll, kBound };

// A part of a product that is large enough to speak for the whole, with memory of its own for the
// results. Operands without values are ones.
class Sample {
 public:
  Sample(const graph::Invocation& invocation, const Product& product, Values values) : call_(product.call) {
    constexpr int64_t kMostWeight = 8 << 20;
    // Multiplications: a millisecond or two, which often passes undisturbed even on a busy machine.
    constexpr int64_t kMostWork = int64_t{128} << 20;
    constexpr int64_t kManyRows = 128;
    call_.n = std::min(call_.n, std::max<int64_t>(256, kMostWeight / call_.k));
    call_.n = std::min(call_.n, std::max<int64_t>(512, kMostWork / (std::min(call_.m, kManyRows) * call_.k)));
    call_.m = std::min(call_.m, std::max<int64_t>(64, kMostWork / (call_.n * call_.k)));
    KernelTensors operands(invocation);
    const auto matrix = [&](int operand) {
      const at::Tensor& tensor = operands.operand(operand);
      if (product.of_pixels) return operand == product.w ? tensor.flatten(1).t() : pixels_of(tensor);
      return tensor.dim() == 3 ? tensor.select(0, 0) : tensor;
    };
    const auto valued = [&](int operand, at::Tensor part, const void*& address) {
      const bool has_values = values == Values::kAll || binding_of(invocation, operand) != nullptr;
      if (has_values) return part;
      part = at::empty_strided(part.sizes(), part.strides(), part.options()).fill_(1);
      address = part.const_data_ptr();
      return part;
    };
    x_ = valued(product.x, matrix(product.x).narrow(0, 0, call_.m), call_.x);
    w_ = valued(product.w, matrix(product.w).narrow(1, 0, call_.n), call_.w);
    if (product.bias >= 0) {
      const at::Tensor& bias = operands.operand(product.bias);
      bias_ = valued(product.bias, (bias.dim() == 2 ? bias.select(0, 0) : bias).narrow(0, 0, call_.n), call_.bias);
    }
    out_ = at::empty({call_.m, call_.n}, x_.options());
    call_.y = out_.mutable_data_ptr();
    call_.y_stride = call_.n;
  }

  void run(Implementation implementation) {
    call_.packed = nullptr;
    switch (implementation) {
      case Implementation::kStock:
        if (bias_) {
          at::addmm_out(out_, *bias_, x_, w_);
        } else {
          at::mm_out(out_, x_, w_);
        }
        break;
      case Implementation::kMatvec:
        backend::matvec(call_);
        break;
      case Implementation::kPanels:
        backend::panel_gemm(call_);
        break;
      case Implementation::kTiles:
        backend::tile_gemm(call_, &sgemm);
        break;
      case Implementation::kPackedPanels:
      case Implementation::kPackedTiles:
      case Implementation::kPackedBlas: {
        at::Tensor& packed = packed_[static_cast<size_t>(implementation)];
        if (!packed.defined()) packed = packed_weight(implementation, call_).packed;
        if (!packed.defined()) return run(Implementation::kStock);
        call_.packed = packed.const_data_ptr();
        multiply_packed(implementation, call_, &sgemm);
        break;
      }
    }
  }

  Measured measure(const std::vector<Implementation>& candidates) {
    ++measurements;
    return ops::measure(candidates.size(), [&](size_t i) { run(candidates[i]); });
  }

 private:
  Matvec call_;
  at::Tensor x_, w_, out_;
  std::array<at::Tensor, kLinearImplementations> packed_;
  std::optional<at::Tensor> bias_;
};

LinearChoice choose(const graph::Invocation& invocation, const Product& product, Values values = Values::kAll) {
  std::vector<Implementation> candidates{Implementation::kStock};
  const auto consider = [&](Implementation implementation, int64_t fewest_rows) {
    if (product.call.m >= fewest_rows && can_run(implementation, product)) candidates.push_back(implementation);
  };
  consider(Implementation::kMatvec, 1);
  consider(Implementation::kPanels, kFewestRowsToPack);
  consider(Implementation::kTiles, kFewestRowsToPack);
  if (candidates.size() == 1) return {};
  const Measured measured = Sample(invocation, product, values).measure(candidates);
  if (measured.repeated) return {.plain = candidates[fastest(measured)]};
  // In every measurement so far, ours were the faster ones for few rows.
  return {.plain = candidates[1] == Implementation::kMatvec ? candidates[1] : candidates[0], .sure = false};
}

// With `guesses` also where the machine was too busy.
LinearChoice try_packing(const graph::Invocation& invocation, const Product& product, LinearChoice choice,
                         Values values = Values::kAll, bool guesses = false) {
  std::vector<Implementation> candidates{choice.plain};
  for (const Implementation packed : kPackedImplementations) {
    if (can_run(packed, product)) candidates.push_back(packed);
  }
  if (candidates.size() == 1) return choice;
  const Measured measured = Sample(invocation, product, values).measure(candidates);
  if (measured.repeated || guesses) {
    choice.sure = choice.sure && measured.repeated;
    const auto cost = [&](size_t i) {
      const bool of_others = candidates[i] == Implementation::kStock || candidates[i] == Implementation::kPackedBlas;
      const bool leads = needs_packing(candidates[i]) && !of_others;
      const bool has_pass = product.shape.leads && !leads;
      return measured.seconds[i] * (has_pass ? 1 + kTermsOfPass / static_cast<double>(product.call.k) : 1) *
             (of_others ? kOfOpenMp : 1);
    };
    size_t best = 1;
    for (size_t i = 2; i < candidates.size(); ++i) best = cost(i) < cost(best) ? i : best;
    choice.packed = cost(best) < cost(0) / kWorthPacking ? candidates[best] : Implementation::kStock;
  }
  return choice;
}

LinearChoice chosen(const graph::Invocation& invocation, const Product& product, PackedWeights* weights) {
  if (const int implementation = forced.load(std::memory_order_relaxed); implementation >= 0) {
    auto wanted = static_cast<Implementation>(implementation);
    if (!can_run(wanted, product)) wanted = Implementation::kStock;
    if (needs_packing(wanted)) return {.packed = wanted};
    return {.plain = wanted, .packed = Implementation::kStock};
  }
  if (product.is_small) return {.plain = Implementation::kMatvec, .packed = Implementation::kStock};
  LinearChoices& choices = linear_choices();
  std::optional<LinearChoice> choice = choices.find(product.shape);
  if (!choice) {
    choice = choose(invocation, product);
    choices.learn(product.shape, *choice);
  }
  if (!choice->packed && weights != nullptr && weights->worth_packing() &&
      config().packed_bytes.load(std::memory_order_relaxed) > 0) {
    choice = try_packing(invocation, product, *choice);
    if (choice->packed) {
      choices.learn(product.shape, *choice);
    } else {
      weights->forget_uses();  // tried again after as many uses
    }
  }
  // The file may be of a process with another library.
  if (!can_run(choice->plain, product)) choice->plain = Implementation::kStock;
  return *choice;
}

// What chosen() gives for such products from now on.
void settle(const graph::Invocation& invocation, const Product& product, const PackedWeights* weights) {
  if (is_forced()) return;
  LinearChoices& choices = linear_choices();
  std::optional<LinearChoice> choice = choices.settled(product.shape);
  for (int tries = 0; !choice || (!choice->sure && tries > 0 && tries < kMostTries); ++tries) {
    choice = choose(invocation, product, Values::kBound);
  }
  const bool packs = weights != nullptr && config().packed_bytes.load(std::memory_order_relaxed) > 0;
  for (int tries = 1; packs && !choice->packed && tries <= kMostTries; ++tries) {
    choice = try_packing(invocation, product, *choice, Values::kBound, tries == kMostTries);
  }
  choices.settle(product.shape, *choice);
}

// Where the weight is kept packed, the call gets it.
Implementation choose_now(const graph::Invocation& invocation, Product& product, PackedWeights* weights) {
  const LinearChoice choice = chosen(invocation, product, weights);
  const Implementation wanted = choice.packed.value_or(Implementation::kStock);
  if (!needs_packing(wanted) || !can_run(wanted, product)) return choice.plain;
  if (weights == nullptr || !weights->worth_packing()) return choice.plain;
  const at::Tensor* const found = pack(wanted, product, *weights);
  if (found == nullptr) return choice.plain;
  // Tiles cannot have this weight, whether it is packed now or before.
  if (!found->defined()) return choice.plain == Implementation::kTiles ? Implementation::kStock : choice.plain;
  product.call.packed = found->const_data_ptr();
  return wanted;
}

// Those of a batch that are one call.
class Products {
 public:
  // False where the call has another x than those before.
  bool add(size_t index, const Matvec& call) {
    if (count_ > 0 && !same_x(calls_[0], call)) return false;
    calls_[count_] = call;
    indices_[count_++] = index;
    return true;
  }
  bool has(size_t index) const { return std::find(indices_, indices_ + count_, index) != indices_ + count_; }
  template <typename Run>
  void run(OwnKernel kernel, const graph::Invocation* invocations, Run&& run) const {
    if (count_ == 0) return;
    count(counters().own_kernels[static_cast<size_t>(kernel)], static_cast<int64_t>(count_ - 1));
    run_as_operator(kernel, invocations[indices_[0]], [&] { run(std::span(calls_, count_)); });
  }

 private:
  Matvec calls_[graph::kMaxBatch];
  size_t indices_[graph::kMaxBatch];
  size_t count_ = 0;
};

// By panels or tiles. With a packed weight, what follows may run on each block of rows.
void multiply(Implementation implementation, const graph::Invocation& invocation, const Product& product) {
  const bool tiles = implementation == Implementation::kTiles || implementation == Implementation::kPackedTiles;
  const auto run = [&](const Matvec& call) { tiles ? backend::tile_gemm(call, &sgemm) : backend::panel_gemm(call); };
  backend::Follower* const follower = product.call.packed != nullptr ? invocation.follower : nullptr;
  if (follower == nullptr) return run(product.call);
  if (const auto ending = follower->ending(entry_type(product.call.element))) {
    Matvec call = product.call;
    call.y = ending->result;
    call.limits = ending->limits;
    run(call);
    return follower->finish_by_limits();
  }
  if (backend::multiply_followed(product.call, run, *follower)) return follower->finish();
  run(product.call);
}

// False for the stock kernel.
bool run_by(Implementation implementation, const graph::Invocation& invocation, const Product& product) {
  switch (implementation) {
    case Implementation::kMatvec:
      run_as_operator(OwnKernel::kFewRows, invocation, [&] { backend::matvec(product.call); });
      return true;
    case Implementation::kPanels:
    case Implementation::kPackedPanels:
      run_as_operator(OwnKernel::kPanelProduct, invocation, [&] { multiply(implementation, invocation, product); });
      return true;
    case Implementation::kTiles:
    case Implementation::kPackedTiles:
      run_as_operator(OwnKernel::kTileProduct, invocation, [&] { multiply(implementation, invocation, product); });
      return true;
    case Implementation::kPackedBlas:
      run_as_operator(OwnKernel::kPackedBlasProduct, invocation,
                      [&] { multiply_packed(implementation, product.call, &sgemm); });
      return true;
    case Implementation::kStock:
      break;
  }
  return false;
}

// PyTorch's settings let oneDNN round what it multiplies.
bool stock_rounds() {
  const at::Float32Precision precision =
      at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL);
  return precision == at::Float32Precision::TF32 || precision == at::Float32Precision::BF16;
}

// Calls BLAS as the stock kernel does, without what comes before it there, which takes longer than
// a small product. The bits are the same. False where the stock kernel may do something else, or
// its bias is the work of several threads.
bool run_as_stock(Matvec call) {
  constexpr int64_t kGrain = 32768;  // at::internal::GRAIN_SIZE
  if (call.n == 1 || call.x_columns || call.x_stride < call.k || call.y_stride < call.n) return false;
  // As at::native::cpublas::gemm has them: a stride over one row or column may be any number.
  if (call.m == 1) call.x_stride = call.k, call.y_stride = call.n;
  if (call.k == 1 && call.columns) call.w_stride = call.n;
  if (call.m * call.n > kGrain || !fits_blas(call) || !has_sgemm() || stock_rounds() ||
      at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION)) {
    return false;
  }
  sgemm(gemm_over_bias(call));
  ++stock_calls;
  return true;
}

bool run_product(const graph::Invocation& invocation, LinearKind kind) {
  if (!last_bits_may_vary()) return false;
  Product product;
  if (!recognize(invocation, kind, product)) return false;
  Isolated isolated(Isolated::Threads::kOurs);
  if (product.is_stock) return run_as_stock(product.call);
  PackedWeights* const weights = packed_weights(invocation, product);
  if (weights != nullptr) weights->note_use();
  return run_by(choose_now(invocation, product, weights), invocation, product);
}

void prepare_product(const graph::Invocation& invocation, Product& product) {
  Isolated isolated;
  PackedWeights* const weights = packed_weights(invocation, product);
  if (weights != nullptr) weights->note_that_bytes_stay();
  settle(invocation, product, weights);
  choose_now(invocation, product, weights);
}

}  // namespace

template <LinearKind kind>
bool run_linear(const graph::Invocation& invocation) {
  if (invocation.part != graph::Part::kTail && run_product(invocation, kind)) return true;
  if (invocation.part == graph::Part::kWhole) return false;
  run_addmm_part(invocation);
  return true;
}
template bool run_linear<LinearKind::kMm>(const graph::Invocation& invocation);
template bool run_linear<LinearKind::kAddmm>(const graph::Invocation& invocation);
template bool run_linear<LinearKind::kBmm>(const graph::Invocation& invocation);

template <LinearKind kind>
void prepare_linear(const graph::Invocation& invocation) {
  if (invocation.part == graph::Part::kTail) return;
  Product product;
  if (!last_bits_may_vary() || !recognize(invocation, kind, product, true) || product.is_stock) return;
  if (product.is_small) {
    if (PackedWeights* const weights = PackedWeights::of_operand(invocation, product.w)) {
      weights->note_that_bytes_stay();
    }
    return;
  }
  prepare_product(invocation, product);
}
template void prepare_linear<LinearKind::kMm>(const graph::Invocation& invocation);
template void prepare_linear<LinearKind::kAddmm>(const graph::Invocation& invocation);
template void prepare_linear<LinearKind::kBmm>(const graph::Invocation& invocation);

bool run_pixel_product(const graph::Invocation& invocation, const PixelProduct& pixels) {
  if (invocation.data[pixels.output] == nullptr) return false;
  Product product = product_of(invocation, pixels);
  Isolated isolated(Isolated::Threads::kOurs);
  PackedWeights* const weights = packed_weights(invocation, product);
  if (weights != nullptr) weights->note_use();
  if (run_by(choose_now(invocation, product, weights), invocation, product)) return true;
  const OpenMpScope openmp;
  run_as_operator(OwnKernel::kConvolution, invocation, [&] {
    KernelTensors tensors(invocation);
    at::Tensor out = pixels_of(tensors.operand(product.out));
    const at::Tensor x = pixels_of(tensors.operand(product.x)), w = tensors.operand(product.w).flatten(1).t();
    if (product.bias >= 0) {
      at::addmm_out(out, tensors.operand(product.bias), x, w);
    } else {
      at::mm_out(out, x, w);
    }
  });
  return true;
}

void prepare_pixel_product(const graph::Invocation& invocation, const PixelProduct& pixels) {
  if (invocation.data[pixels.output] == nullptr) return;
  Product product = product_of(invocation, pixels);
  prepare_product(invocation, product);
}

void run_linears(const graph::Invocation* calls, size_t count) {
  const bool allowed = last_bits_may_vary();
  Products few, panels, tiles;
  const auto products_of = [&](Implementation implementation) -> Products* {
    switch (implementation) {
      case Implementation::kMatvec:
        return &few;
      case Implementation::kPanels:
      case Implementation::kPackedPanels:
        return &panels;
      case Implementation::kTiles:
      case Implementation::kPackedTiles:
        return &tiles;
      case Implementation::kStock:
      case Implementation::kPackedBlas:
        break;  // no calls of several products
    }
    return nullptr;
  };
  {
    Isolated isolated(Isolated::Threads::kOurs);
    for (size_t i = 0; i < count; ++i) {
      Product product;
      const LinearKind kind = calls[i].node->operand_count == 4 ? LinearKind::kAddmm : LinearKind::kMm;
      if (!allowed || !recognize(calls[i], kind, product) || product.is_stock) continue;
      PackedWeights* const weights = packed_weights(calls[i], product);
      Products* const products = products_of(choose_now(calls[i], product, weights));
      if (products != nullptr && products->add(i, product.call) && weights != nullptr) weights->note_use();
    }
    few.run(OwnKernel::kFewRows, calls, [](std::span<const Matvec> all) { backend::matvec(all); });
    panels.run(OwnKernel::kPanelProduct, calls, [](std::span<const Matvec> all) { backend::panel_gemm(all); });
    tiles.run(OwnKernel::kTileProduct, calls, [](std::span<const Matvec> all) { backend::tile_gemm(all, &sgemm); });
  }
  for (size_t i = 0; i < count; ++i) {
    if (!few.has(i) && !panels.has(i) && !tiles.has(i)) calls[i].traits->kernel(calls[i]);
  }
}

void run_addmm_part(const graph::Invocation& invocation) {
  Isolated isolated;
  KernelTensors tensors(invocation);
  at::Tensor out = tensors.operand(3);
  if (invocation.part == graph::Part::kBody) {
    at::mm_out(out, tensors.operand(1), tensors.operand(2));
  } else {
    out.add_(tensors.operand(0));
  }
}

LinearCounts linear_counts() {
  LinearCounts counts;
  const auto take = [&](Implementation implementation, OwnKernel kernel) {
    counts.runs[static_cast<int>(implementation)] = counters().own_kernels[static_cast<size_t>(kernel)];
  };
  take(Implementation::kMatvec, OwnKernel::kFewRows);
  // With a weight that is kept packed or without.
  take(Implementation::kPanels, OwnKernel::kPanelProduct);
  take(Implementation::kTiles, OwnKernel::kTileProduct);
  take(Implementation::kPackedBlas, OwnKernel::kPackedBlasProduct);
  counts.measurements = measurements;
  counts.stock_calls = stock_calls;
  counts.packed_bytes = packed_weight_bytes();
  return counts;
}

void force_linear_implementation(std::optional<LinearImplementation> implementation) {
  forced = implementation ? static_cast<int>(*implementation) : -1;
}

}  // namespace hetero::ops
