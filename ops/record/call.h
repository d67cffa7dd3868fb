// Call: one operator call, encoded as operands and bytes.
//
// Recording encodes an operator's arguments, in schema order, into four parts:
//
//   operands   one entry for each hetero tensor: storage, window, access, bits
//   structure  a tag for each argument, with everything that says what kind of call it is
//   sizes      numbers that may change from call to call and decide the shape of the outputs: what
//              a schema calls SymInt
//   values     numbers that do not: the value of a Scalar or a double, a captured 0-dim CPU tensor,
//              a random offset
//
// operands, structure and sizes are the key of the meta cache. Repeated programs are recognized by
// their structure (trie.h), so a plan serves other sizes and values. All parts but the operands
// travel with the node, and Decoder reads them when it runs. Typed recorders and the catch-all
// write the same format, so either's nodes run on either's kernel.
//
// Thread safety: a Call belongs to one thread. scratch_call() gives each thread its own, without
// allocation in steady state.

#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Scalar.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <vector>

#include "graph/ir/graph.h"
#include "ops/record/bytes.h"
#include "ops/tensor/storage.h"

namespace hetero::ops {

enum class Tag : uint8_t {
  kNone,
  kTensor,       // the next operand
  kUndefined,    // an undefined tensor
  kConstant,     // a 0-dim CPU tensor captured by value: dtype, bits; the number is a value
  kList,         // u32 count, then the elements
  kInteger,      // i64
  kIntegers,     // u32 count, i64 each
  kSize,         // the number is a size
  kSizes,        // u32 count; the numbers are sizes
  kReal,         // the number is a value
  kReals,        // u32 count; the numbers are values
  kBoolean,      // u8
  kScalar,       // u8 kind; the number is a value
  kShapeScalar,  // u8 kind; a Scalar that decides a shape: the number is a size
  kString,       // u32 length, bytes
  kShapeReal,    // it may decide a shape: the number is a size
  kDevice,       // stands for the device of the outputs
  kGenerator,    // seed and offset are values
};

inline constexpr size_t kConstantBytes = 16;  // of any dtype's number

// What a random operator draws when it is recorded: its numbers follow from these two.
struct RandomState {
  uint64_t seed = 0;
  uint64_t offset = 0;
};

// One tensor argument of a call.
struct CallOperand {
  HeteroStorage* storage;
  graph::WindowId window;
  graph::Access access;
  uint8_t bits;
};

// Turns arguments into the format above, one after the other. The Sink derives from this and
// decides what becomes of the parts: a Call keeps them, a Match (match.h) compares them. It has
// put_structure, put_sizes and put_values, each for a value and for bytes; operand(tensor, access,
// bits) for a hetero tensor; and reject(tensor) for one that is neither on hetero nor a 0-dim CPU
// tensor. REQUIRES: the recorder's lock is held, because windows are interned.
template <typename Sink>
class Encoder {
 public:
  void none() { tag(Tag::kNone); }
  void tensor(const at::Tensor& value, graph::Access access);
  void list(size_t count) {
    tag(Tag::kList);
    sink().put_structure(static_cast<uint32_t>(count));
  }
  void integer(int64_t value) {
    tag(Tag::kInteger);
    sink().put_structure(value);
  }
  void integers(c10::IntArrayRef values) {
    tag(Tag::kIntegers);
    sink().put_structure(static_cast<uint32_t>(values.size()));
    sink().put_structure(values.data(), values.size() * sizeof(int64_t));
  }
  void size(int64_t value) {
    tag(Tag::kSize);
    sink().put_sizes(value);
  }
  void size_list(c10::IntArrayRef numbers) {
    tag(Tag::kSizes);
    sink().put_structure(static_cast<uint32_t>(numbers.size()));
    sink().put_sizes(numbers.data(), numbers.size() * sizeof(int64_t));
  }
  void real(double value) {
    tag(Tag::kReal);
    sink().put_values(value);
  }
  void reals(c10::ArrayRef<double> numbers) {
    tag(Tag::kReals);
    sink().put_structure(static_cast<uint32_t>(numbers.size()));
    sink().put_values(numbers.data(), numbers.size() * sizeof(double));
  }
  void boolean(bool value) {
    tag(Tag::kBoolean);
    sink().put_structure(static_cast<uint8_t>(value));
  }
  void scalar(const at::Scalar& value);
  void shape_scalar(const at::Scalar& value);
  void string(std::string_view value) {
    tag(Tag::kString);
    sink().put_structure(static_cast<uint32_t>(value.size()));
    sink().put_structure(value.data(), value.size());
  }
  void shape_real(double value) {
    tag(Tag::kShapeReal);
    sink().put_sizes(value);
  }
  void device() { tag(Tag::kDevice); }
  void generator(RandomState state) {
    tag(Tag::kGenerator);
    sink().put_values(state.seed);
    sink().put_values(state.offset);
  }

 private:
  enum class ScalarKind : uint8_t { kInteger, kReal, kComplex, kBoolean, kUnsigned };
  friend class Decoder;

  Sink& sink() { return static_cast<Sink&>(*this); }
  void tag(Tag value) { sink().put_structure(static_cast<uint8_t>(value)); }
  void constant(const at::Tensor& value);
  template <typename Put>
  void number(const at::Scalar& value, Put put);
};

class Call : public Encoder<Call> {
 public:
  void clear() {
    operands.clear();
    structure.clear();
    sizes.clear();
    values.clear();
    foreign = at::Tensor();
  }

  std::vector<CallOperand> operands;
  Bytes structure;
  Bytes sizes;
  Bytes values;
  // Where the thread wants its nodes to run; stays.
  graph::Preference preference = graph::Preference::kAuto;
  // A tensor that was rejected: the call cannot be recorded as it is.
  at::Tensor foreign;

  template <typename T>
  void put_structure(const T& value) {
    structure.put(value);
  }
  void put_structure(const void* bytes, size_t count) { structure.put_bytes(bytes, count); }
  template <typename T>
  void put_sizes(const T& value) {
    sizes.put(value);
  }
  void put_sizes(const void* bytes, size_t count) { sizes.put_bytes(bytes, count); }
  template <typename T>
  void put_values(const T& value) {
    values.put(value);
  }
  void put_values(const void* bytes, size_t count) { values.put_bytes(bytes, count); }
  void operand(const at::Tensor& value, graph::Access access, uint8_t bits);
  void reject(const at::Tensor& value) { foreign = value; }
};

// Some thread of this process has said where its nodes shall run.
inline constinit std::atomic<bool> preferences_were_used{false};

// The calling thread's Call, cleared.
Call& scratch_call();
// Where the calling thread wants its nodes to run.
graph::Preference thread_preference();
void prefer(graph::Preference preference);

// Reads back what Call wrote. `operand` gives the tensor for the i-th operand.
class Decoder {
 public:
  Decoder(const std::byte* attributes, size_t bytes);

  Tag next() { return static_cast<Tag>(get<uint8_t>()); }
  template <typename T>
  T get() {
    T value;
    std::memcpy(&value, structure_, sizeof(T));
    structure_ += sizeof(T);
    return value;
  }
  template <typename T>
  T get_size() {
    T value;
    std::memcpy(&value, sizes_, sizeof(T));
    sizes_ += sizeof(T);
    return value;
  }
  template <typename T>
  T get_value() {
    T value;
    std::memcpy(&value, values_, sizeof(T));
    values_ += sizeof(T);
    return value;
  }
  // A list of integers or sizes.
  void skip_list() {
    const Tag tag = next();
    for (auto left = get<uint32_t>(); left > 0; --left) {
      (void)(tag == Tag::kSizes ? get_size<int64_t>() : get<int64_t>());
    }
  }
  double real(Tag tag) { return tag == Tag::kShapeReal ? get_size<double>() : get_value<double>(); }
  // An integer, whichever way it was written.
  int64_t integer(Tag tag) { return tag == Tag::kSize ? get_size<int64_t>() : get<int64_t>(); }
  // Unaligned bytes of the structure, in place.
  const std::byte* skip(size_t bytes) {
    const std::byte* here = structure_;
    structure_ += bytes;
    return here;
  }
  at::Scalar scalar(Tag tag);
  at::Tensor constant();
  RandomState random_state() {
    const auto seed = get_value<uint64_t>();
    return {seed, get_value<uint64_t>()};
  }
  // Appends to `offsets` where in the values of a node its random states are: in bytes, each plus
  // `base`.
  static void find_random_states(const std::byte* attributes, size_t base, std::vector<size_t>& offsets);
  // The next unread operand.
  int operand() { return next_operand_++; }

 private:
  const std::byte* structure_;
  const std::byte* sizes_;
  const std::byte* values_;
  int next_operand_ = 0;
};

// Attributes of a node: this header, structure, sizes, values.
struct AttributeHeader {
  uint32_t structure_bytes;
  uint32_t size_bytes;
};
// Where among a node's attributes its values begin.
size_t values_offset(const std::byte* attributes);

// A CPU generator whose numbers are determined by (seed, offset).
at::Generator derived_generator(RandomState state);

}  // namespace hetero::ops
