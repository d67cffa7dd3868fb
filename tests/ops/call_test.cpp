// What a call becomes: an argument that was encoded is read back as it was, and the structure holds no values.

#include "ops/record/call.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/_conj.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/scalar_tensor.h>

#include "ops/record/recorder.h"
#include "tests/ops/fixture.h"

namespace hetero::ops::testing {
namespace {

using graph::Access;

class CallTest : public OpsTest {
 public:
  // The attributes of a node, as the recorder lays them out.
  static std::vector<std::byte> attributes_of(const Call& call) {
    const AttributeHeader header{static_cast<uint32_t>(call.structure.size()),
                                 static_cast<uint32_t>(call.sizes.size())};
    Bytes all;
    all.put(header);
    for (const Bytes* bytes : {&call.structure, &call.sizes, &call.values}) all.put_bytes(bytes->data(), bytes->size());
    return {all.data(), all.data() + all.size()};
  }

  static bool same(const Bytes& a, const Bytes& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
  }
  static bool same_structure(const Call& a, const Call& b) { return same(a.structure, b.structure); }
  static bool same_sizes(const Call& a, const Call& b) { return same(a.sizes, b.sizes); }

  template <typename Fill>
  static Call encoded(Fill fill) {
    Call call;
    Locked lock(recorder().mutex());
    fill(call);
    return call;
  }
};

bool equal(const at::Scalar& a, const at::Scalar& b) {
  if (a.type() != b.type()) return false;
  if (a.isComplex()) return a.toComplexDouble() == b.toComplexDouble();
  return a.isFloatingPoint() ? a.toDouble() == b.toDouble() : a.to<uint64_t>() == b.to<uint64_t>();
}

TEST_F(CallTest, EveryKindOfArgumentIsReadBackInOrder) {
  const at::Tensor x = on_device(numbers({2, 3}));
  const std::vector<int64_t> sizes = {4, -1, int64_t{1} << 40};
  const std::vector<double> scales = {0.5, -2.0};
  const Call call = encoded([&](Call& c) {
    c.none();
    c.tensor(x, Access::kRead);
    c.tensor(at::Tensor(), Access::kRead);
    c.list(1);
    c.tensor(x, Access::kUpdate);
    c.integer(-7);
    c.integers(sizes);
    c.size(5);
    c.size_list(sizes);
    c.real(0.1);
    c.reals(scales);
    c.boolean(true);
    c.string("floor");
    c.shape_real(0.3);
    c.device();
    c.generator({11, 12});
  });
  EXPECT_FALSE(call.foreign.defined());
  const std::vector<std::byte> bytes = attributes_of(call);
  Decoder decoder(bytes.data(), bytes.size());
  EXPECT_EQ(decoder.next(), Tag::kNone);
  EXPECT_EQ(decoder.next(), Tag::kTensor);
  EXPECT_EQ(decoder.operand(), 0);
  EXPECT_EQ(decoder.next(), Tag::kUndefined);
  EXPECT_EQ(decoder.next(), Tag::kList);
  EXPECT_EQ(decoder.get<uint32_t>(), 1u);
  EXPECT_EQ(decoder.next(), Tag::kTensor);
  EXPECT_EQ(decoder.operand(), 1);
  EXPECT_EQ(decoder.next(), Tag::kInteger);
  EXPECT_EQ(decoder.get<int64_t>(), -7);
  EXPECT_EQ(decoder.next(), Tag::kIntegers);
  ASSERT_EQ(decoder.get<uint32_t>(), sizes.size());
  for (const int64_t size : sizes) EXPECT_EQ(decoder.get<int64_t>(), size);
  const Tag one_size = decoder.next();
  EXPECT_EQ(one_size, Tag::kSize);
  EXPECT_EQ(decoder.integer(one_size), 5);
  EXPECT_EQ(decoder.next(), Tag::kSizes);
  ASSERT_EQ(decoder.get<uint32_t>(), sizes.size());
  for (const int64_t size : sizes) EXPECT_EQ(decoder.get_size<int64_t>(), size);
  const Tag real = decoder.next();
  EXPECT_EQ(real, Tag::kReal);
  EXPECT_EQ(decoder.real(real), 0.1);
  EXPECT_EQ(decoder.next(), Tag::kReals);
  ASSERT_EQ(decoder.get<uint32_t>(), scales.size());
  for (const double scale : scales) EXPECT_EQ(decoder.get_value<double>(), scale);
  EXPECT_EQ(decoder.next(), Tag::kBoolean);
  EXPECT_EQ(decoder.get<uint8_t>(), 1);
  EXPECT_EQ(decoder.next(), Tag::kString);
  ASSERT_EQ(decoder.get<uint32_t>(), 5u);
  EXPECT_EQ(std::memcmp(decoder.skip(5), "floor", 5), 0);
  const Tag shape_real = decoder.next();
  EXPECT_EQ(shape_real, Tag::kShapeReal);
  EXPECT_EQ(decoder.real(shape_real), 0.3);
  EXPECT_EQ(decoder.next(), Tag::kDevice);
  EXPECT_EQ(decoder.next(), Tag::kGenerator);
  const RandomState state = decoder.random_state();
  EXPECT_EQ(state.seed, 11u);
  EXPECT_EQ(state.offset, 12u);
}

TEST_F(CallTest, ScalarsOfEveryKindAreReadBack) {
  for (const at::Scalar& scalar :
       {at::Scalar(-3), at::Scalar(0.25), at::Scalar(true), at::Scalar(c10::complex<double>(1, -2)),
        at::Scalar(std::numeric_limits<uint64_t>::max())}) {
    for (const bool decides_shape : {false, true}) {
      const Call call = encoded([&](Call& c) { decides_shape ? c.shape_scalar(scalar) : c.scalar(scalar); });
      EXPECT_EQ(call.values.size() == 0, decides_shape);
      const std::vector<std::byte> bytes = attributes_of(call);
      Decoder decoder(bytes.data(), bytes.size());
      EXPECT_TRUE(equal(decoder.scalar(decoder.next()), scalar)) << scalar;
    }
  }
}

TEST_F(CallTest, OperandsKeepAccessWindowAndBits) {
  const at::Tensor x = on_device(numbers({2, 3}).to(at::kComplexFloat));
  const at::Tensor conjugate = at::_conj(x.select(0, 1));
  const Call call = encoded([&](Call& c) {
    c.tensor(x, Access::kUpdate);
    c.tensor(conjugate, Access::kRead);
    c.tensor(conjugate._neg_view(), Access::kRead);
  });
  ASSERT_EQ(call.operands.size(), 3u);
  EXPECT_EQ(call.operands[0].access, Access::kUpdate);
  EXPECT_EQ(call.operands[1].access, Access::kRead);
  EXPECT_EQ(call.operands[0].bits, 0);
  EXPECT_EQ(call.operands[1].bits, graph::kConjugate);
  EXPECT_EQ(call.operands[2].bits, graph::kConjugate | graph::kNegative);
  for (const CallOperand& operand : call.operands) EXPECT_EQ(operand.storage, storage_of(x));
  Locked lock(recorder().mutex());
  const graph::WindowTable& windows = window_table();
  EXPECT_EQ(graph::to_string(windows[call.operands[0].window]), "c64[2,3]");
  EXPECT_EQ(windows[call.operands[1].window].offset, 3);
}

TEST_F(CallTest, AZeroDimCpuTensorIsTakenByValue) {
  at::Tensor number = at::scalar_tensor(2.5, at::kDouble);
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  const Call call = encoded([&](Call& c) { c.tensor(number, Access::kRead); });
  number.zero_();
  EXPECT_FALSE(call.foreign.defined());
  EXPECT_TRUE(call.operands.empty());
  const std::vector<std::byte> bytes = attributes_of(call);
  Decoder decoder(bytes.data(), bytes.size());
  ASSERT_EQ(decoder.next(), Tag::kConstant);
  const at::Tensor read = decoder.constant();
  EXPECT_EQ(read.scalar_type(), at::kDouble);
  EXPECT_EQ(read.item().toDouble(), 2.5);
  EXPECT_TRUE(read.unsafeGetTensorImpl()->is_wrapped_number());
}

TEST_F(CallTest, OtherCpuTensorsAreForeign) {
  const at::Tensor vector = numbers({3});
  const at::Tensor number = at::scalar_tensor(1.0);
  EXPECT_TRUE(encoded([&](Call& c) { c.tensor(vector, Access::kRead); }).foreign.is_same(vector));
  EXPECT_TRUE(encoded([&](Call& c) { c.tensor(number, Access::kUpdate); }).foreign.is_same(number));
}

TEST_F(CallTest, NumbersThatDecideNoShapeAreNeitherStructureNorSizes) {
  const auto fill = [](double number) {
    return encoded([&](Call& c) {
      c.real(number);
      c.reals(std::vector<double>{number, number});
      c.scalar(number);
      c.tensor(at::scalar_tensor(number), Access::kRead);
      c.generator({static_cast<uint64_t>(number), 0});
    });
  };
  EXPECT_TRUE(same_structure(fill(1), fill(2)));
  EXPECT_TRUE(same_sizes(fill(1), fill(2)));
}

TEST_F(CallTest, SizesAreApartFromTheStructure) {
  const auto differ = [](auto fill) {
    const Call a = encoded([&](Call& c) { fill(c, 0); });
    const Call b = encoded([&](Call& c) { fill(c, 1); });
    EXPECT_TRUE(same_structure(a, b));
    EXPECT_FALSE(same_sizes(a, b));
  };
  differ([](Call& c, int k) { c.size(k); });
  differ([](Call& c, int k) { c.size_list({2, k}); });
  differ([](Call& c, int k) { c.shape_scalar(k); });
  differ([](Call& c, int k) { c.shape_scalar(k + 0.5); });
  differ([](Call& c, int k) { c.shape_real(k); });
}

TEST_F(CallTest, WhateverSaysWhatKindOfCallItIsIsInTheStructure) {
  const auto differ = [](auto fill) {
    EXPECT_FALSE(same_structure(encoded([&](Call& c) { fill(c, 0); }), encoded([&](Call& c) { fill(c, 1); })));
  };
  differ([](Call& c, int k) { c.size_list(std::vector<int64_t>(k)); });
  differ([](Call& c, int k) { c.integer(k); });
  differ([](Call& c, int k) { c.integers({2, k}); });
  differ([](Call& c, int k) { c.boolean(k == 1); });
  differ([](Call& c, int k) { c.string(k == 1 ? "mean" : "sums"); });
  differ([](Call& c, int k) { c.list(k); });
  differ([](Call& c, int k) { c.reals(std::vector<double>(k + 1)); });
  // The kinds of numbers decide the dtype of a result, whatever their values.
  differ([](Call& c, int k) { c.scalar(k == 1 ? at::Scalar(1) : at::Scalar(1.0)); });
  differ([](Call& c, int k) { c.tensor(at::scalar_tensor(1, k == 1 ? at::kInt : at::kLong), Access::kRead); });
}

TEST_F(CallTest, BytesGrowWithoutLosingAny) {
  Bytes bytes;
  for (int64_t i = 0; i < 1000; ++i) bytes.put(i);
  const std::vector<int64_t> block(1000, 7);
  bytes.put_bytes(block.data(), block.size() * sizeof(int64_t));
  ASSERT_EQ(bytes.size(), 2000 * sizeof(int64_t));
  for (int64_t i = 0; i < 2000; ++i) {
    int64_t value;
    std::memcpy(&value, bytes.data() + i * sizeof(int64_t), sizeof(value));
    ASSERT_EQ(value, i < 1000 ? i : 7);
  }
}

TEST_F(CallTest, TheScratchCallIsHandedOutEmpty) {
  Call& first = scratch_call();
  first.real(1);
  first.foreign = numbers({1});
  Call& second = scratch_call();
  EXPECT_EQ(&first, &second);
  EXPECT_EQ(second.structure.size() + second.values.size() + second.operands.size(), 0u);
  EXPECT_FALSE(second.foreign.defined());
}

TEST_F(CallTest, ADerivedGeneratorIsAFunctionOfSeedAndOffset) {
  const auto draw = [](RandomState state) { return at::rand({8}, derived_generator(state)); };
  EXPECT_TRUE(draw({3, 4}).equal(draw({3, 4})));
  EXPECT_FALSE(draw({3, 4}).equal(draw({3, 5})));
  EXPECT_FALSE(draw({3, 4}).equal(draw({4, 4})));
}

}  // namespace
}  // namespace hetero::ops::testing
