#include "ops/record/call.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ScalarOps.h>
#include <ATen/ThreadLocalPythonObjects.h>

#include <array>
#include <memory>

#include "ops/record/windows.h"
#include "ops/settings/parallel.h"

namespace hetero::ops {

void Call::operand(const at::Tensor& value, graph::Access access, uint8_t bits) {
  operands.push_back({storage_of(value), window_of(value.unsafeGetTensorImpl()), access, bits});
}

namespace {

constinit thread_local Call* thread_call = nullptr;

[[gnu::noinline]] Call& new_call() {
  // Leaked with its thread: tensors may be recorded while a thread ends.
  thread_call = new Call;
  return *thread_call;
}

using at::impl::ThreadLocalPythonObjects;

// A placement() block is kept in state of PyTorch's that autograd's threads take over from the
// thread that called backward(), for each node that they run.
const std::string& placement_key() {
  static const auto* const key = new std::string("hetero placement");
  return *key;
}

// Stands for the preference by its address; no object of Python's is in it.
const std::shared_ptr<c10::SafePyObject>& mark_of(graph::Preference preference) {
  using Marks = std::array<std::shared_ptr<c10::SafePyObject>, backend::kMostDevices + 1>;
  static const auto* const marks = [] {
    auto* const made = new Marks;
    for (auto& mark : *made) mark = std::make_shared<c10::SafePyObject>(nullptr, nullptr);
    return made;
  }();
  return (*marks)[static_cast<size_t>(preference)];
}

}  // namespace

Call& scratch_call() {
  keep_backward_here();
  Call* call = thread_call;
  if (call == nullptr) [[unlikely]]
    call = &new_call();
  call->clear();
  if (preferences_were_used.load(std::memory_order_relaxed)) call->preference = thread_preference();
  return *call;
}

graph::Preference thread_preference() {
  if (!ThreadLocalPythonObjects::contains(placement_key())) return graph::Preference::kAuto;
  const auto& mark = ThreadLocalPythonObjects::get(placement_key());
  for (backend::DeviceIndex d = 0; d < backend::kMostDevices; ++d) {
    if (mark == mark_of(graph::prefer(d))) return graph::prefer(d);
  }
  return graph::Preference::kAuto;
}

void prefer(graph::Preference preference) {
  preferences_were_used.store(true, std::memory_order_relaxed);
  ThreadLocalPythonObjects::set(placement_key(), mark_of(preference));
}

size_t values_offset(const std::byte* attributes) {
  AttributeHeader header;
  std::memcpy(&header, attributes, sizeof(header));
  return sizeof(header) + header.structure_bytes + header.size_bytes;
}

Decoder::Decoder(const std::byte* attributes, size_t) {
  AttributeHeader header;
  std::memcpy(&header, attributes, sizeof(header));
  structure_ = attributes + sizeof(header);
  sizes_ = structure_ + header.structure_bytes;
  values_ = sizes_ + header.size_bytes;
}

at::Scalar Decoder::scalar(Tag tag) {
  using ScalarKind = Encoder<Call>::ScalarKind;
  const auto kind = get<ScalarKind>();
  const bool is_size = tag == Tag::kShapeScalar;
  const auto integer = [&] { return is_size ? get_size<int64_t>() : get_value<int64_t>(); };
  switch (kind) {
    case ScalarKind::kInteger:
      return at::Scalar(integer());
    case ScalarKind::kBoolean:
      return at::Scalar(integer() != 0);
    case ScalarKind::kUnsigned:
      return at::Scalar(static_cast<uint64_t>(integer()));
    case ScalarKind::kComplex:
      return at::Scalar(is_size ? get_size<c10::complex<double>>() : get_value<c10::complex<double>>());
    case ScalarKind::kReal:
      return at::Scalar(is_size ? get_size<double>() : get_value<double>());
  }
  return {};
}

at::Tensor Decoder::constant() {
  const auto dtype = static_cast<at::ScalarType>(get<int8_t>());
  const auto bits = get<uint8_t>();
  struct Number {
    std::byte bytes[kConstantBytes];
  };
  const auto number = get_value<Number>();
  at::Tensor tensor = at::detail::empty_cpu({}, dtype, std::nullopt, std::nullopt, std::nullopt, std::nullopt);
  std::memcpy(tensor.mutable_data_ptr(), number.bytes, tensor.element_size());
  if ((bits & graph::kWrappedNumber) != 0) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

void Decoder::find_random_states(const std::byte* attributes, size_t base, std::vector<size_t>& offsets) {
  using ScalarKind = Encoder<Call>::ScalarKind;
  AttributeHeader header;
  std::memcpy(&header, attributes, sizeof(header));
  const std::byte* at = attributes + sizeof(header);
  const std::byte* const end = at + header.structure_bytes;
  size_t values = base;  // read so far
  const auto get = [&]<typename T>(T value) {
    std::memcpy(&value, at, sizeof(T));
    at += sizeof(T);
    return value;
  };
  const auto skip = [&](size_t bytes) { at += bytes; };
  while (at < end) {
    switch (get(Tag{})) {
      case Tag::kNone:
      case Tag::kTensor:
      case Tag::kUndefined:
      case Tag::kSize:
      case Tag::kShapeReal:
      case Tag::kDevice:
        break;
      case Tag::kConstant:
        skip(sizeof(int8_t) + sizeof(uint8_t));
        values += kConstantBytes;
        break;
      case Tag::kList:
      case Tag::kSizes:
        skip(sizeof(uint32_t));
        break;
      case Tag::kInteger:
        skip(sizeof(int64_t));
        break;
      case Tag::kIntegers:
        skip(get(uint32_t{}) * sizeof(int64_t));
        break;
      case Tag::kReal:
        values += sizeof(double);
        break;
      case Tag::kReals:
        values += get(uint32_t{}) * sizeof(double);
        break;
      case Tag::kBoolean:
      case Tag::kShapeScalar:
        skip(sizeof(uint8_t));
        break;
      case Tag::kScalar:
        values += get(ScalarKind{}) == ScalarKind::kComplex ? sizeof(c10::complex<double>) : sizeof(double);
        break;
      case Tag::kString:
        skip(get(uint32_t{}));
        break;
      case Tag::kGenerator:
        offsets.push_back(values);
        values += sizeof(RandomState);
        break;
    }
  }
}

at::Generator derived_generator(RandomState state) {
  // One step of splitmix64 over both words: neighbouring offsets give unrelated generators.
  uint64_t mixed = state.seed + 0x9E3779B97F4A7C15ull * (state.offset + 1);
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ull;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBull;
  return at::detail::createCPUGenerator(mixed ^ (mixed >> 31));
}

}  // namespace hetero::ops
