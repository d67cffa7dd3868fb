// 1. Rows of x are cut into blocks of as many entries as a kernel takes, about equally. Each row is
//    made floats, and quantized into its place in its block. Rows beyond what fits into the
//    second-level cache wait for the next turn.
// 2. Threads divide the outputs of all calls, and the rows if there are few outputs. A thread
//    multiplies each block by a group of outputs whose weight stays in its second-level cache.
// 3. Sums begin with the bias. Those of a block are rounded and stored.

#include "backend/cpu/quantized/gemm.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "backend/base/parallel.h"
#include "backend/cpu/kernels/tile_gemm.h"
#include "backend/cpu/quantized/kernel.h"
#include "backend/cpu/vector/half.h"
#include "backend/cpu/vector/scratch.h"

namespace hetero::backend {

#if !defined(__x86_64__)
const QuantizedKernels& quantized_kernels_avx2() { std::abort(); }
const QuantizedKernels& quantized_kernels_avx512() { std::abort(); }
const QuantizedKernels& quantized_kernels_vnni() { std::abort(); }
const QuantizedKernels& quantized_kernels_amx() { std::abort(); }
#endif

namespace {

// ---- the portable instruction set: loops that the compiler makes vectors of

template <typename T>
struct Sixteen {
  T v[16];
  template <typename Function>
  static Sixteen each(Function&& function) {
    Sixteen result;
    for (int i = 0; i < 16; ++i) result.v[i] = function(i);
    return result;
  }
};

struct Portable {
  struct Line {
    uint8_t v[64];
  };
  struct Four {
    int32_t v[4];
  };
  using Sums = Sixteen<int32_t>;
  using Floats = Sixteen<float>;
  static constexpr int kSums = 4;

  template <typename Function>
  static Line bytes(const uint8_t* p, Function&& function) {
    Line line;
    for (int i = 0; i < 64; ++i) line.v[i] = static_cast<uint8_t>(function(p[i]));
    return line;
  }
  static Line whole(const uint8_t* p) {
    return bytes(p, [](int byte) { return byte; });
  }
  static Line low(const uint8_t* p) {
    return bytes(p, [](int byte) { return byte & 15; });
  }
  static Line high(const uint8_t* p) {
    return bytes(p, [](int byte) { return byte >> 4; });
  }
  static Four share(const int8_t* p) { return {{p[0], p[1], p[2], p[3]}}; }
  static Sums dot(const Sums& sums, const Line& line, const Four& four) {
    return Sums::each([&](int i) {
      const uint8_t* const w = line.v + 4 * i;
      return sums.v[i] + w[0] * four.v[0] + w[1] * four.v[1] + w[2] * four.v[2] + w[3] * four.v[3];
    });
  }

  static Sums zero() { return all(0); }
  static Sums all(int value) {
    return Sums::each([&](int) { return value; });
  }
  static Sums load_bytes(const uint8_t* p) {
    return Sums::each([&](int i) { return p[i]; });
  }
  static Sums add(const Sums& a, const Sums& b) {
    return Sums::each([&](int i) { return wrap(bits(a.v[i]) + bits(b.v[i])); });
  }
  static Sums join(const Sums& high, const Sums& low) {
    return Sums::each([&](int i) { return wrap(bits(high.v[i]) * 256u + bits(low.v[i])); });
  }
  static Sums less(const Sums& sums, const Sums& zeros, int32_t number) {
    return Sums::each([&](int i) { return wrap(bits(sums.v[i]) - bits(zeros.v[i]) * bits(number)); });
  }
  static Sums less(const Sums& sums, uint32_t number) {
    return Sums::each([&](int i) { return wrap(bits(sums.v[i]) - number); });
  }
  static int32_t total(const Sums& sums) {
    uint32_t total = 0;
    for (const int32_t sum : sums.v) total += bits(sum);
    return wrap(total);
  }

  static Floats none() { return of(0); }
  static Floats of(float value) {
    return Floats::each([&](int) { return value; });
  }
  static Floats load(const float* p) {
    return Floats::each([&](int i) { return p[i]; });
  }
  static Floats load_bfloat16(const uint16_t* p) {
    return Floats::each([&](int i) { return bfloat16_to_float(p[i]); });
  }
  static Floats load_float16(const uint16_t* p) {
    return Floats::each([&](int i) { return float16_to_float(p[i]); });
  }
  static void store(const Floats& floats, float* p) { std::memcpy(p, floats.v, sizeof(floats.v)); }
  static Floats mul(const Floats& a, const Floats& b) {
    return Floats::each([&](int i) { return a.v[i] * b.v[i]; });
  }
  static Floats fma(const Floats& a, const Floats& b, const Floats& c) {
    return Floats::each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
  }
  static Floats from(const Sums& sums) {
    return Floats::each([&](int i) { return static_cast<float>(sums.v[i]); });
  }

  static uint32_t largest(const float* p, int64_t count) {
    uint32_t most = 0;
    for (int64_t i = 0; i < count; ++i) most = std::max(most, std::bit_cast<uint32_t>(p[i]) & 0x7fffffffu);
    return most;
  }
  template <int P>
  static Sums place(const float* p, float factor, int8_t* to) {
    return Sums::each([&](int i) {
      const float scaled = p[i] * factor;
      // A row with such values has a scale that is not a number.
      const auto number = std::isfinite(scaled) ? static_cast<int32_t>(std::nearbyintf(scaled)) : 0;
      to[i] = static_cast<int8_t>(P == 2 ? (number + 128) >> 8 : number);
      if constexpr (P == 2) to[i + 64] = static_cast<int8_t>(number);
      return number;
    });
  }

 private:
  // What does not fit wraps around, as vectors do: only differences have to fit.
  static uint32_t bits(int32_t value) { return static_cast<uint32_t>(value); }
  static int32_t wrap(uint32_t value) { return static_cast<int32_t>(value); }
};

constexpr int64_t kFewestForTiles = 8;

const QuantizedKernels& kernels_of(IntegerSet set, int64_t entries) {
  static constexpr QuantizedKernels kPortable = make_quantized_kernels<Portable>();
  switch (set) {
    case IntegerSet::kTiles:
      // Few entries leave most of a tile empty.
      if (entries >= kFewestForTiles) return quantized_kernels_amx();
      [[fallthrough]];
    case IntegerSet::kVnni:
      return quantized_kernels_vnni();
    case IntegerSet::kAvx512:
      return quantized_kernels_avx512();
    case IntegerSet::kAvx2:
      return quantized_kernels_avx2();
    case IntegerSet::kPortable:
      break;
  }
  return kPortable;
}

InstructionSet vectors_of(IntegerSet set) {
  return set == IntegerSet::kPortable ? InstructionSet::kPortable
         : set == IntegerSet::kAvx2   ? InstructionSet::kAvx2
                                      : InstructionSet::kAvx512;
}

// ---- the product

// Threads get outputs in whole groups, so the borders between threads do not change any result.
constexpr int64_t kGroup = 64;
constexpr int64_t kGroupPanels = kGroup / kQuantizedPanel;
// The bytes of a packed weight, and the elements of x, that are worth another thread.
constexpr int64_t kBytesPerThread = 48 << 10;
constexpr int64_t kElementsPerThread = 16 << 10;
// Of quantized rows at a time.
constexpr int64_t kRowBytes = 1 << 20;

int64_t group_count(const QuantizedProduct& call) { return divide_up(call.weight.shape.n, kGroup); }

// The elements of x that share a scale.
int64_t unit_of(const QuantizedShape& shape, ActivationBits bits) {
  const int64_t most = bits == ActivationBits::kSixteen ? kUnitOfSixteen : kUnitOfEight;
  const int64_t group = shape.group_size();
  if (group <= most) return std::max(group, kQuantizedDepth);
  if (shape.groups() == 1) return most;
  int64_t unit = most;
  while (group % unit != 0) unit -= kQuantizedDepth;
  return unit;
}

class Product {
 public:
  Product(std::span<const QuantizedProduct> calls, IntegerSet set)
      : calls_(calls),
        common_(calls.front()),
        shape_(common_.weight.shape),
        planes_(common_.activation == ActivationBits::kSixteen ? 2 : 1),
        kernels_(kernels_of(set, common_.m * planes_)),
        vectors_(vectors_of(set)),
        x_depth_(round_up(shape_.padded_k(), kQuantizedTile)),
        most_rows_(kernels_.most_entries / planes_),
        unit_(unit_of(shape_, common_.activation)),
        units_(divide_up(shape_.padded_k(), unit_)) {
    for (const QuantizedProduct& call : calls) groups_ += group_count(call);
  }

  // Rows [first, last), which fit into the cache.
  void run(int64_t first, int64_t last) {
    static thread_local Scratch x_memory, scale_memory, sum_memory;
    first_ = first;
    rows_ = last - first;
    blocks_ = divide_up(rows_, most_rows_);
    x_ = x_memory.get<int8_t>(rows_ * planes_ * x_depth_);
    scales_ = scale_memory.get<float>(rows_ * units_);
    sums_ = sum_memory.get<int32_t>(rows_ * units_);
    const int64_t row_grain = std::max<int64_t>(1, kElementsPerThread / std::max<int64_t>(1, shape_.k));
    parallel_for(0, rows_, row_grain, [&](int64_t begin, int64_t end) { quantize(begin, end); });

    const int64_t threads = thread_count();
    const int64_t row_parts = std::clamp<int64_t>(groups_ >= 4 * threads ? 1 : threads, 1, blocks_);
    const int64_t bytes = kGroupPanels * shape_.panel_bytes() * divide_up(rows_, 4 * row_parts);
    const int64_t grain = std::max<int64_t>(1, kBytesPerThread / std::max<int64_t>(1, bytes));
    parallel_for(0, row_parts * groups_, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t part = i / groups_;
        multiply_group(i % groups_, blocks_ * part / row_parts, blocks_ * (part + 1) / row_parts);
      }
    });
  }

  int64_t rows_at_once() const {
    return std::max<int64_t>(most_rows_, kRowBytes / std::max<int64_t>(1, planes_ * shape_.padded_k()));
  }

 private:
  int64_t block_begin(int64_t block) const { return rows_ * block / blocks_; }

  void quantize(int64_t begin, int64_t end) const {
    static thread_local Scratch line;
    const int64_t k = shape_.k;
    const bool in_place = common_.element == Element::kFloat32 && k == shape_.padded_k();
    float* const floats = in_place ? nullptr : line.get<float>(shape_.padded_k());
    if (!in_place) std::fill(floats + k, floats + shape_.padded_k(), 0.0f);
    // The last block that begins at the row or before.
    int64_t block = std::min(blocks_ - 1, begin * blocks_ / std::max<int64_t>(1, rows_));
    while (block_begin(block) > begin) --block;
    for (int64_t row = begin; row < end; ++row) {
      while (block + 1 < blocks_ && block_begin(block + 1) <= row) ++block;
      const int64_t start = block_begin(block);
      const int64_t rows = block_begin(block + 1) - start;
      const std::byte* const x = element_at(common_.x, (first_ + row) * common_.x_stride, common_.element);
      if (!in_place) widen(common_.element, x, k, floats, vectors_);
      kernels_.quantize[planes_ - 1]({.x = in_place ? reinterpret_cast<const float*>(x) : floats,
                                      .k = k,
                                      .padded_k = shape_.padded_k(),
                                      .unit = unit_,
                                      .to = x_ + (start * x_depth_ + (row - start) * kQuantizedTile) * planes_,
                                      .tile_bytes = rows * planes_ * kQuantizedTile,
                                      .scales = scales_ + start * units_ + (row - start),
                                      .sums = sums_ + start * units_ + (row - start),
                                      .stride = rows});
    }
  }

  // Blocks [begin, end) by a group of the outputs of all calls.
  void multiply_group(int64_t group, int64_t begin, int64_t end) const {
    const QuantizedProduct* call = calls_.data();
    while (group >= group_count(*call)) group -= group_count(*call++);
    const int64_t output = group * kGroup;
    const int64_t outputs = std::min(kGroup, call->weight.shape.n - output);
    const int64_t panels = divide_up(outputs, kQuantizedPanel);
    alignas(64) float bias[kGroup] = {};
    if (call->bias != nullptr) add_elements(call->element, call->bias, output, outputs, bias);
    // Sums go where they stay if they are whole vectors of floats.
    const bool in_place = call->element == Element::kFloat32 && outputs % kQuantizedPanel == 0;
    for (int64_t block = begin; block < end; ++block) {
      const int64_t start = block_begin(block);
      const int64_t rows = block_begin(block + 1) - start;
      std::byte* const y = static_cast<std::byte*>(call->y) +
                           ((first_ + start) * call->y_stride + output) * element_bytes(call->element);
      alignas(64) float tile[kQuantizedEntries * kGroup];
      float* const out = in_place ? reinterpret_cast<float*>(y) : tile;
      multiply_block(*call, group * kGroupPanels, panels, start, rows, bias, out, in_place ? call->y_stride : kGroup);
      if (!in_place) store(*call, tile, y, rows, outputs);
    }
  }

  void multiply_block(const QuantizedProduct& call, int64_t panel, int64_t panels, int64_t start, int64_t rows,
                      const float* bias, float* out, int64_t out_stride) const {
    const QuantizedWeight& weight = call.weight;
    const QuantizedShape& shape = weight.shape;
    const int entries = static_cast<int>(rows * planes_);
    const int at_once = kernels_.panels(entries);
    const int64_t elements_of_line = shape.bits == 8 ? 4 : 8;
    QuantizedPart part{.x = x_ + start * planes_ * x_depth_,
                       .x_scales = scales_ + start * units_,
                       .x_sums = sums_ + start * units_,
                       .w = nullptr,
                       .w_stride = shape.panel_bytes(),
                       .scale_element = static_cast<int>(weight.scale_element),
                       .middle = shape.middle(),
                       .groups = shape.groups(),
                       .units = units_,
                       .units_of_group = shape.groups() == 1 ? units_ : shape.group_size() / unit_,
                       .unit_lines = unit_ / elements_of_line,
                       .lines = shape.padded_k() / elements_of_line,
                       .entries = entries,
                       .out_stride = out_stride};
    for (int64_t i = 0; i < panels; i += at_once) {
      const int64_t index = (panel + i) * shape.groups() * kQuantizedPanel;
      part.w = weight.packed + (panel + i) * part.w_stride;
      part.scales = element_at(weight.scales, index, weight.scale_element);
      part.zeros = weight.zeros == nullptr ? nullptr : weight.zeros + index;
      part.panels = std::min<int64_t>(at_once, panels - i);
      part.bias = call.bias == nullptr ? nullptr : bias + i * kQuantizedPanel;
      part.out = out + i * kQuantizedPanel;
      kernels_.multiply[shape.bits == 8][planes_ - 1][entries - 1](part);
    }
  }

  void store(const QuantizedProduct& call, const float* tile, std::byte* y, int64_t rows, int64_t outputs) const {
    for (int64_t i = 0; i < rows; ++i) {
      narrow(call.element, tile + i * kGroup, outputs, y + i * call.y_stride * element_bytes(call.element), vectors_);
    }
  }

  const std::span<const QuantizedProduct> calls_;
  const QuantizedProduct& common_;
  const QuantizedShape& shape_;
  const int64_t planes_;
  const QuantizedKernels& kernels_;
  const InstructionSet vectors_;
  const int64_t x_depth_;    // bytes of an entry
  const int64_t most_rows_;  // of a block
  const int64_t unit_;
  const int64_t units_;
  int64_t groups_ = 0;  // of outputs, of all calls

  int64_t first_ = 0;
  int64_t rows_ = 0;
  int64_t blocks_ = 0;
  int8_t* x_ = nullptr;
  float* scales_ = nullptr;
  int32_t* sums_ = nullptr;
};

}  // namespace

const char* to_string(IntegerSet set) {
  switch (set) {
    case IntegerSet::kPortable:
      return "portable";
    case IntegerSet::kAvx2:
      return "avx2";
    case IntegerSet::kAvx512:
      return "avx512";
    case IntegerSet::kVnni:
      return "vnni";
    case IntegerSet::kTiles:
      return "tiles";
  }
  return "?";
}

bool has_integer_set(IntegerSet set) {
#if defined(__x86_64__)
  if (set == IntegerSet::kTiles) {
    return has_tiles() && __builtin_cpu_supports("amx-int8") && has_integer_set(IntegerSet::kVnni);
  }
  if (set == IntegerSet::kVnni) {
    return instruction_set() == InstructionSet::kAvx512 && __builtin_cpu_supports("avx512vnni");
  }
#endif
  return vectors_of(set) <= instruction_set();
}

IntegerSet integer_set() {
  static const IntegerSet best = [] {
    IntegerSet set = IntegerSet::kTiles;
    while (!has_integer_set(set)) set = static_cast<IntegerSet>(static_cast<int>(set) - 1);
    return set;
  }();
  return best;
}

void quantized_gemm(std::span<const QuantizedProduct> calls, IntegerSet set) {
  if (calls.empty() || calls.front().m <= 0) return;
  assert(has_integer_set(set));
  Product product(calls, set);
  const int64_t rows = product.rows_at_once();
  for (int64_t first = 0; first < calls.front().m; first += rows) {
    product.run(first, std::min(calls.front().m, first + rows));
  }
}

}  // namespace hetero::backend
