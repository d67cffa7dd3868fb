// Random operators with kernels of our own, on the counter-based generator (backend/base/random.h).
//
// An element's number depends on (seed, offset, its position in row-major order) only. Operators
// that are not here run on a CPU generator derived from (seed, offset); see call.h. Recording goes
// through the catch-all.

#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/view_as_real.h>

#include <limits>

#include "backend/base/random.h"
#include "ops/dispatch/catch_all.h"
#include "ops/dispatch/registration.h"
#include "ops/kernels/kernel.h"
#include "ops/shapes/node_check.h"

namespace hetero::ops {
namespace {

constexpr int64_t kGrain = 4096;

// The real and imaginary parts of a complex tensor; another tensor as it is.
at::Tensor parts_of(const at::Tensor& tensor) { return tensor.is_complex() ? at::view_as_real(tensor) : tensor; }

// A contiguous tensor to fill, copied to its place at the end where that is laid out otherwise.
class Filled {
 public:
  explicit Filled(at::Tensor place)
      : place_(std::move(place)),
        filled_(place_.is_contiguous() ? place_ : at::empty(place_.sizes(), place_.options())) {}
  at::Tensor& tensor() { return filled_; }
  void finish() {
    if (!filled_.is_same(place_)) place_.copy_(filled_);
  }

 private:
  at::Tensor place_;
  at::Tensor filled_;
};

// Calls make(words, first index) for each block of `per_block` elements; it returns that many
// numbers.
template <typename T, int kPerBlock, typename Make>
void fill_blocks(const at::Tensor& tensor, RandomState state, const Make& make) {
  T* data = tensor.mutable_data_ptr<T>();
  const int64_t count = tensor.numel();
  const uint64_t first = state.offset << 32;
  at::parallel_for(0, (count + kPerBlock - 1) / kPerBlock, kGrain / kPerBlock, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const auto numbers = make(backend::philox(state.seed, first + static_cast<uint64_t>(block)));
      const int64_t at = block * kPerBlock;
      for (int64_t k = 0; k < kPerBlock && at + k < count; ++k) data[at + k] = numbers[k];
    }
  });
}

// Fills with `transform(word)` of as many random bits as the words of a block have for each number:
// 64 for double tensors, 32 otherwise, at the top of the word. It returns the tensor's dtype.
template <typename T, typename Transform>
void fill_from_words(const at::Tensor& tensor, RandomState state, const Transform& transform) {
  if constexpr (std::is_same_v<T, double>) {
    fill_blocks<T, 2>(tensor, state, [&](const std::array<uint32_t, 4>& w) {
      return std::array<T, 2>{transform(static_cast<uint64_t>(w[0]) << 32 | w[1]),
                              transform(static_cast<uint64_t>(w[2]) << 32 | w[3])};
    });
  } else {
    fill_blocks<T, 4>(tensor, state, [&](const std::array<uint32_t, 4>& w) {
      std::array<T, 4> numbers;
      for (int k = 0; k < 4; ++k) numbers[k] = transform(static_cast<uint64_t>(w[k]) << 32);
      return numbers;
    });
  }
}

// The next number of a floating-point type, upwards or downwards.
template <typename T>
T neighbour(T value, bool upwards) {
  if constexpr (std::is_floating_point_v<T>) {
    const T infinity = std::numeric_limits<T>::infinity();
    return std::nextafter(value, upwards ? infinity : -infinity);
  } else {
    // Sign and magnitude: numbers of one sign are in the order of their bits.
    const bool negative = value.x >> 15 != 0;
    if ((value.x & 0x7fff) == 0) return T(upwards ? 0x0001 : 0x8001, T::from_bits());
    return T(static_cast<uint16_t>(upwards != negative ? value.x + 1 : value.x - 1), T::from_bits());
  }
}

// The numbers of a floating-point type that lie in [from, to). Where there are none, the largest
// one below `to`, or `from` if that is `to`.
template <typename T>
struct Interval {
  // `long double` holds all integers of 64 bits.
  Interval(long double from, long double to) : first(static_cast<T>(from)), last(static_cast<T>(to)) {
    if (static_cast<long double>(first) < from) first = neighbour(first, true);
    if (static_cast<long double>(last) >= to) last = neighbour(last, false);
    if (last < first) first = last = from < to ? last : static_cast<T>(from);
  }
  // A number that lies there but for its rounding.
  T hold(T number) const { return number < first ? first : number > last ? last : number; }

  T first;
  T last;
};

struct Arguments {
  explicit Arguments(const graph::Invocation& invocation)
      : tensors(invocation), decoder(invocation.attributes, invocation.node->attribute_bytes) {
    decoder.next();
    self = &tensors.operand(decoder.operand());
  }
  double real() {
    const Tag tag = decoder.next();
    return decoder.real(tag);
  }
  RandomState random() {
    decoder.next();
    return decoder.random_state();
  }

  Isolated isolated;
  KernelTensors tensors;
  Decoder decoder;
  const at::Tensor* self;
};

// uniform_(Tensor self, float from, float to, Generator?)
void uniform_kernel(const graph::Invocation& invocation) {
  Arguments arguments(invocation);
  const double from = arguments.real();
  const double to = arguments.real();
  const RandomState state = arguments.random();
  Filled filled(parts_of(*arguments.self));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, filled.tensor().scalar_type(), "hetero_uniform", [&] {
    const Interval<scalar_t> interval(from, to);
    // As many bits as the type holds of numbers below 1: none is rounded up to 1.
    constexpr int kBits = std::numeric_limits<scalar_t>::digits;
    fill_from_words<scalar_t>(filled.tensor(), state, [&](uint64_t word) {
      const double unit = static_cast<double>(word >> (64 - kBits)) * (1.0 / (uint64_t{1} << kBits));
      return interval.hold(static_cast<scalar_t>(unit * (to - from) + from));
    });
  });
  filled.finish();
}

// normal_(Tensor self, float mean, float std, Generator?)
void normal_kernel(const graph::Invocation& invocation) {
  Arguments arguments(invocation);
  const double mean = arguments.real();
  const double std = arguments.real();
  const RandomState state = arguments.random();
  // Half of the variance goes to each part of a complex number.
  const double spread = arguments.self->is_complex() ? std * M_SQRT1_2 : std;
  Filled filled(parts_of(*arguments.self));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, filled.tensor().scalar_type(), "hetero_normal", [&] {
    fill_blocks<scalar_t, 1>(filled.tensor(), state, [&](const std::array<uint32_t, 4>& w) {
      const double number =
          backend::standard_normal(backend::uniform_double(w[0], w[1]), backend::uniform_double(w[2], w[3]));
      return std::array<scalar_t, 1>{static_cast<scalar_t>(number * spread + mean)};
    });
  });
  filled.finish();
}

// bernoulli_.float(Tensor self, float p, Generator?)
void bernoulli_kernel(const graph::Invocation& invocation) {
  Arguments arguments(invocation);
  const double p = arguments.real();
  const RandomState state = arguments.random();
  Filled filled(*arguments.self);
  AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, arguments.self->scalar_type(), "hetero_bernoulli",
                             [&] {
                               fill_blocks<scalar_t, 4>(filled.tensor(), state, [&](const std::array<uint32_t, 4>& w) {
                                 std::array<scalar_t, 4> numbers;
                                 for (int k = 0; k < 4; ++k)
                                   numbers[k] = static_cast<scalar_t>(static_cast<double>(w[k]) * 0x1p-32 < p);
                                 return numbers;
                               });
                             });
  filled.finish();
}

// exponential_(Tensor self, float lambd, Generator?)
void exponential_kernel(const graph::Invocation& invocation) {
  Arguments arguments(invocation);
  const double lambda = arguments.real();
  const RandomState state = arguments.random();
  Filled filled(*arguments.self);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, arguments.self->scalar_type(), "hetero_exponential", [&] {
    // Programs divide by these numbers: none is 0, but for a rate of infinity.
    const double least = std::isinf(lambda) ? 0.0 : static_cast<double>(std::numeric_limits<scalar_t>::min());
    constexpr int kBits = std::is_same_v<scalar_t, double> ? 52 : 24;
    fill_from_words<scalar_t>(filled.tensor(), state, [&](uint64_t word) {
      // In the middle of its interval, so neither 0 nor 1.
      const double unit = (static_cast<double>(word >> (64 - kBits)) + 0.5) * (1.0 / (uint64_t{1} << kBits));
      return static_cast<scalar_t>(std::max(-std::log(unit) / lambda, least));
    });
  });
  filled.finish();
}

// Integers in [from, from + range); range 0 stands for 2^64. A floating-point type holds the
// nearest of them that it can.
void fill_integers(const at::Tensor& place, RandomState state, int64_t from, uint64_t range) {
  Filled filled(place);
  AT_DISPATCH_V2(place.scalar_type(), "hetero_random_", AT_WRAP([&] {
                   const auto cast = [&] {
                     if constexpr (std::is_integral_v<scalar_t>) {
                       return [](int64_t number) { return static_cast<scalar_t>(number); };
                     } else {
                       const auto first = static_cast<long double>(from);
                       const long double end = first + (range == 0 ? 0x1p64L : static_cast<long double>(range));
                       return [interval = Interval<scalar_t>(first, end)](int64_t number) {
                         return interval.hold(static_cast<scalar_t>(number));
                       };
                     }
                   }();
                   fill_blocks<scalar_t, 2>(filled.tensor(), state, [&](const std::array<uint32_t, 4>& w) {
                     const auto number = [&](uint32_t high, uint32_t low) {
                       const uint64_t word = static_cast<uint64_t>(high) << 32 | low;
                       const uint64_t limited =
                           range == 0 ? word
                                      : static_cast<uint64_t>(static_cast<unsigned __int128>(word) * range >> 64);
                       return cast(static_cast<int64_t>(limited + static_cast<uint64_t>(from)));
                     };
                     return std::array<scalar_t, 2>{number(w[0], w[1]), number(w[2], w[3])};
                   });
                 }),
                 AT_EXPAND(AT_ALL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), at::kBool, at::kHalf, at::kBFloat16);
  filled.finish();
}

// The largest number of consecutive integers from 0 on that the dtype holds.
uint64_t integers_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
      return 2;
    case at::kByte:
      return 256;
    case at::kChar:
      return 128;
    case at::kShort:
      return 1u << 15;
    case at::kInt:
      return uint64_t{1} << 31;
    case at::kHalf:
      return (1u << 11) + 1;
    case at::kBFloat16:
      return (1u << 8) + 1;
    case at::kFloat:
      return (1u << 24) + 1;
    case at::kDouble:
      return (uint64_t{1} << 53) + 1;
    default:
      return uint64_t{1} << 63;
  }
}

// random_(Tensor self, Generator?)
void random_kernel(const graph::Invocation& invocation) {
  Arguments arguments(invocation);
  fill_integers(*arguments.self, arguments.random(), 0, integers_of(arguments.self->scalar_type()));
}

// random_.to(Tensor self, int to, Generator?)
void random_to_kernel(const graph::Invocation& invocation) {
  Arguments arguments(invocation);
  arguments.decoder.next();
  const auto to = arguments.decoder.get<int64_t>();
  fill_integers(*arguments.self, arguments.random(), 0, static_cast<uint64_t>(to));
}

// random_.from(Tensor self, int from, int? to, Generator?)
void random_from_kernel(const graph::Invocation& invocation) {
  Arguments arguments(invocation);
  arguments.decoder.next();
  const auto from = arguments.decoder.get<int64_t>();
  uint64_t range;
  if (arguments.decoder.next() == Tag::kNone) {
    const uint64_t count = integers_of(arguments.self->scalar_type());
    range = from == std::numeric_limits<int64_t>::min() ? 0 : count - static_cast<uint64_t>(from);
  } else {
    range = static_cast<uint64_t>(arguments.decoder.get<int64_t>()) - static_cast<uint64_t>(from);
  }
  fill_integers(*arguments.self, arguments.random(), from, range);
}

// native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)
void native_dropout_kernel(const graph::Invocation& invocation) {
  Arguments arguments(invocation);
  const double p = arguments.real();
  const bool train = arguments.decoder.next() == Tag::kNone || arguments.decoder.get<uint8_t>() != 0;
  const RandomState state = arguments.random();
  const at::Tensor& input = *arguments.self;
  at::Tensor mask = at::empty(input.sizes(), input.options().dtype(at::kBool));
  at::Tensor output;
  if (!train || input.numel() == 0) {
    mask.fill_(true);
    output = input.clone();
  } else {
    const double keep = 1.0 - p;
    fill_blocks<bool, 4>(mask, state, [&](const std::array<uint32_t, 4>& w) {
      std::array<bool, 4> numbers;
      for (int k = 0; k < 4; ++k) numbers[k] = static_cast<double>(w[k]) * 0x1p-32 < keep;
      return numbers;
    });
    output = input.mul(mask).mul_(p == 1 ? 0.0 : 1.0 / keep);
  }
  const int first = arguments.tensors.first_output();
  arguments.tensors.deliver(first, std::move(output));
  arguments.tensors.deliver(first + 1, std::move(mask));
}

}  // namespace

void add_random_rows() {
  const auto add = [](const char* name, graph::KernelFunction kernel, bool brings_memory = false) {
    graph::OpTraits traits;
    traits.name = name;
    traits.op_class = graph::OpClass::kRandom;
    traits.brings_memory = brings_memory;
    traits.kernel = kernel;
    traits.check = &check_node;
    traits.has_draw = &has_draw;
    graph::op_table().add(std::move(traits));
  };
#define HETERO_RANDOM_ROWS
#define RANDOM(name, kernel, ...) add(name, &kernel __VA_ARGS__);
#define BRINGS_MEMORY , true
#include "ops/table/op_table.def"
}

}  // namespace hetero::ops
