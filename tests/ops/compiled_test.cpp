// CompiledProgram: what is captured once runs any number of times, without recording, on whatever
// storages it is given.

#include "ops/program/compiled.h"

#include <ATen/ops/add.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/relu.h>

#include <thread>

#include "ops/record/generator.h"
#include "ops/run/sync.h"
#include "tests/ops/fixture.h"

namespace hetero::ops::testing {
namespace {

using Values = std::vector<c10::IValue>;

class CompiledTest : public OpsTest {
 public:
  // Captures what `call` does to tensors like the arguments, for results that stay on the device.
  template <typename Call>
  static void capture(CompiledProgram& program, const Values& arguments, const Call& call) {
    Values results = call(program.begin_capture(arguments));
    const std::vector<c10::DeviceType> devices(results.size(), kHetero);
    program.end_capture(std::move(results), devices);
  }
  static Values run(CompiledProgram& program, Values arguments) {
    auto results = program.run(arguments);
    EXPECT_TRUE(results.has_value());
    return results.has_value() ? std::move(*results) : Values();
  }
  static Values add_and_clip(const Values& inputs) {
    return {at::relu(at::add(inputs[0].toTensor(), inputs[1].toTensor()))};
  }
};

TEST_F(CompiledTest, AProgramRunsOnOtherStoragesAndRecordsNothing) {
  CompiledProgram program({});
  capture(program, {on_device(numbers({3, 4})), on_device(numbers({3, 4}, 2))}, &add_and_clip);
  for (uint64_t seed = 3; seed < 6; ++seed) {
    const at::Tensor x = numbers({3, 4}, seed);
    const at::Tensor y = numbers({3, 4}, seed + 10);
    const Values arguments = {on_device(x), on_device(y)};
    mark();
    const Values results = run(program, arguments);
    EXPECT_EQ(seen().typed + seen().boxed, 0);
    EXPECT_EQ(seen().flushes, (std::map<SyncReason, int64_t>{{SyncReason::kCompiled, 1}}));
    expect_same(results[0].toTensor(), at::relu(at::add(x, y)));
  }
}

TEST_F(CompiledTest, ArgumentsThatLookOtherwiseAreNotTheProgramsAndStayWithTheCaller) {
  CompiledProgram program({});
  const at::Tensor x = on_device(numbers({3, 4}));
  const at::Tensor y = on_device(numbers({3, 4}, 2));
  capture(program, {x, y}, &add_and_clip);
  const at::Tensor cases[] = {on_device(numbers({4, 3})),
                              on_device(numbers({4, 3})).t(),
                              on_device(numbers({4, 4})).slice(0, 1),
                              on_device(numbers({3, 4})).to(at::kDouble),
                              numbers({3, 4}),
                              x};
  for (const at::Tensor& other : cases) {
    Values arguments = {x, other};
    EXPECT_FALSE(program.run(arguments).has_value()) << other.sizes() << other.strides();
    ASSERT_EQ(arguments.size(), 2u);
    EXPECT_TRUE(arguments[1].toTensor().is_same(other));
  }
}

TEST_F(CompiledTest, OtherSizesAreCapturedAndNotPlanned) {
  CompiledProgram program({});
  for (const int64_t rows : {3, 5, 8}) {
    const at::Tensor x = numbers({rows, 4});
    const at::Tensor y = numbers({rows, 4}, 2);
    const Values arguments = {on_device(x), on_device(y)};
    capture(program, arguments, &add_and_clip);
    const int64_t made = counters().plans_made;
    expect_same(run(program, arguments)[0].toTensor(), at::relu(at::add(x, y)));
    EXPECT_EQ(counters().plans_made - made, rows == 3 ? 1 : 0);
  }
  EXPECT_EQ(program.variants(), 3u);
}

TEST_F(CompiledTest, CpuArgumentsAreReadAndWrittenWhereTheyLie) {
  CompiledProgram program({});
  at::Tensor x = numbers({3, 4});
  const at::Tensor expected = at::mul(at::add(x, 1), 2);
  const auto update = [](const Values& inputs) -> Values {
    inputs[0].toTensor().add_(1);
    return {at::mul(inputs[0].toTensor(), 2), inputs[0]};
  };
  const Values arguments = {x};
  Values results = update(program.begin_capture(arguments));
  program.end_capture(std::move(results), {c10::kCPU, c10::kCPU});
  const void* const address = x.data_ptr();
  const Values made = run(program, arguments);
  EXPECT_TRUE(made[0].toTensor().device().is_cpu());
  expect_same(made[0].toTensor(), expected);
  EXPECT_EQ(x.data_ptr(), address);
  EXPECT_EQ(made[1].toTensor().data_ptr(), address);
  expect_same(at::mul(x, 2), expected);
}

TEST_F(CompiledTest, RandomNumbersAreThoseOfTheSamePlaceOfTheProgram) {
  CompiledProgram program({});
  const auto draw = [](const Values&) -> Values {
    const auto options = at::TensorOptions(kDevice);
    return {at::rand({6}, options), at::rand({6}, options)};
  };
  auto* const generator = default_generator().unsafeGetGeneratorImpl();
  generator->set_current_seed(5);
  capture(program, {}, draw);
  Tensors lazy;
  for (int i = 0; i < 2; ++i) {
    for (const c10::IValue& value : draw({})) lazy.push_back(value.toTensor());
  }
  const uint64_t offset = generator->get_offset();
  generator->set_current_seed(5);
  for (size_t i = 0; i < 4; i += 2) {
    const Values results = run(program, {});
    expect_same(results[0].toTensor(), lazy[i].cpu());
    expect_same(results[1].toTensor(), lazy[i + 1].cpu());
  }
  EXPECT_EQ(generator->get_offset(), offset);
}

TEST_F(CompiledTest, WhatDependsOnValuesEndsACaptureAndLeavesNothingPending) {
  CompiledProgram program({});
  const at::Tensor x = on_device(numbers({3}));
  const Values stand_ins = program.begin_capture({x});
  const at::Tensor doubled = at::mul(stand_ins[0].toTensor(), 2);
  EXPECT_NE(error_of([&] { (void)doubled.sum().item(); }).find("read scalar"), std::string::npos);
  program.cancel_capture();
  EXPECT_EQ(pending_nodes(), 0u);
  EXPECT_EQ(program.variants(), 0u);
  expect_same(at::mul(x, 2), at::mul(numbers({3}), 2));
}

TEST_F(CompiledTest, ACaptureIntoWhichAnotherThreadRecordsIsRefusedAndThatThreadsWorkIsNotLost) {
  CompiledProgram program({});
  const at::Tensor x = on_device(numbers({3}));
  Values stand_ins = program.begin_capture({x});
  Values results = {at::mul(stand_ins[0].toTensor(), 2)};
  at::Tensor other;
  std::thread([&] { other = at::add(x, 1); }).join();
  EXPECT_NE(error_of([&] { program.end_capture(std::move(results), {kHetero}); }).find("another thread"),
            std::string::npos);
  stand_ins.clear();
  expect_same(other, at::add(numbers({3}), 1));
}

TEST_F(CompiledTest, WhatIsMadeEmptyAndFilledIsEachCallsOwn) {
  CompiledProgram program({});
  const auto fill = [](const Values& inputs) -> Values {
    at::Tensor made = at::empty({3}, at::TensorOptions(kDevice));
    made.copy_(inputs[0].toTensor());
    return {made, at::add(made, 1)};
  };
  capture(program, {on_device(numbers({3}))}, fill);
  const Values first = run(program, {on_device(numbers({3}, 1))});
  const Values second = run(program, {on_device(numbers({3}, 2))});
  expect_same(first[0].toTensor(), numbers({3}, 1));
  expect_same(second[0].toTensor(), numbers({3}, 2));
}

TEST_F(CompiledTest, KernelsSeeTheShapesOfTheProgramThatRunsThem) {
  CompiledProgram wide({});
  CompiledProgram tall({});
  const auto sums = [](const Values& inputs) { return Values{at::cumsum(inputs[0].toTensor(), 1)}; };
  const at::Tensor x = numbers({2, 6});
  const at::Tensor y = numbers({3, 4});
  capture(wide, {on_device(x)}, sums);
  capture(tall, {on_device(y)}, sums);
  for (int i = 0; i < 3; ++i) {
    expect_same(run(wide, {on_device(x)})[0].toTensor(), at::cumsum(x, 1));
    expect_same(run(tall, {on_device(y)})[0].toTensor(), at::cumsum(y, 1));
  }
}

TEST_F(CompiledTest, ProgramsOutliveWhatTheRecorderRemembers) {
  CompiledProgram program({});
  const Values arguments = {on_device(numbers({3, 4})), on_device(numbers({3, 4}, 2))};
  capture(program, arguments, &add_and_clip);
  run(program, arguments);
  flush_all(SyncReason::kFlush);
  {
    Locked lock(recorder().mutex());
    recorder().forget();
  }
  expect_same(run(program, arguments)[0].toTensor(), at::relu(at::add(numbers({3, 4}), numbers({3, 4}, 2))));
}

}  // namespace
}  // namespace hetero::ops::testing
