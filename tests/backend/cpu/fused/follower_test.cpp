// Which followers do nothing but limit values, so that a kernel may do it for them.

#include "backend/cpu/fused/follower.h"

#include <limits>
#include <optional>
#include <vector>

#include "tests/backend/cpu/fused/fused_program.h"
#include "tests/backend/cpu/fused/portable_functions.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

using testing::KernelBuilder;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kRows = 3, kRow = 5;

// A map with a formula, which is never called.
MapFunction named(MapOperation operation, EntryType type = EntryType::kFloat32, EntryType from = {}) {
  return {[](void*, const void* const*, const Number*, int64_t) {}, {operation, type, from, NumberForm::kNone}};
}

struct Case {
  KernelBuilder b;
  int64_t entry_bytes = 4;
  FusedSpace space;
  std::vector<float> memory[3];
  bool wanted = false;

  // Of the operand 0, on memory of each.
  std::optional<Follower::Ending> ending(std::vector<Number> numbers = {}, EntryType type = EntryType::kFloat32) {
    const int operands = b.kernel.operand_count;
    if (space.rank == 0) space = testing::dense_space({kRows, kRow}, 0, operands, static_cast<int>(entry_bytes));
    FusedLaunch launch;
    REQUIRE(prepare_fused(b.kernel, space, launch).ok());
    REQUIRE(Follower::can_follow(launch, 0, kRows * kRow));
    void* addresses[3];
    for (int i = 0; i < 3; ++i) {
      memory[i].resize(4 * kRows * kRow);
      addresses[i] = memory[i].data();
    }
    numbers.resize(8);
    return Follower(launch, addresses, numbers.data(), 0, wanted).ending(type);
  }
};

// operand `to` <- operation(operand 0).
Case one(MapOperation operation, uint16_t to, EntryType type = EntryType::kFloat32, EntryType from = {}) {
  Case made;
  made.b.store(to, made.b.map(named(operation, type, from), 4, {made.b.load(0, 4)}));
  return made;
}
Number number(float value) {
  Number made{};
  made.f32 = value;
  return made;
}

TEST_CASE("a follower that only limits values is known by its limits") {
  struct Expected {
    MapOperation operation;
    std::vector<Number> numbers;
    Limits limits;
  };
  for (const Expected& it : {Expected{MapOperation::kRelu, {}, {0, kInfinity}},
                             Expected{MapOperation::kClamp, {number(-1), number(6)}, {-1, 6}},
                             Expected{MapOperation::kClampMin, {number(2)}, {2, kInfinity}},
                             Expected{MapOperation::kClampMax, {number(3)}, {-kInfinity, 3}}}) {
    Case elsewhere = one(it.operation, 1), in_place = one(it.operation, 0);
    for (Case* const made : {&elsewhere, &in_place}) {
      // What it stores in the result's place is what is wanted there.
      made->wanted = made == &in_place;
      const auto ending = made->ending(it.numbers);
      REQUIRE(ending);
      REQUIRE(ending->limits == it.limits);
      REQUIRE(ending->result == made->memory[made == &in_place ? 0 : 1].data());
    }
  }
}

// Of entries of a half type, converted to floats and back.
Case half(EntryType type, EntryType back) {
  Case made;
  made.entry_bytes = 2;
  const auto converts = [](EntryType from, EntryType to) { return named(MapOperation::kConvert, to, from); };
  const uint16_t wide = made.b.map(converts(type, EntryType::kFloat32), 4, {made.b.load(0, 2)});
  const uint16_t limited = made.b.map(named(MapOperation::kClampMax), 4, {wide});
  made.b.store(1, made.b.map(converts(EntryType::kFloat32, back), 2, {limited}));
  return made;
}

TEST_CASE("limits of half types are entries of theirs") {
  for (const EntryType type : {EntryType::kFloat16, EntryType::kBFloat16}) {
    const auto ending = half(type, type).ending({number(6)}, type);
    REQUIRE(ending);
    REQUIRE(ending->limits == Limits{.high = 6});
    REQUIRE(!half(type, type).ending({number(0.1f)}, type));
    REQUIRE(!half(type, type).ending({number(std::numeric_limits<float>::quiet_NaN())}, type));
    // The kernel's own type is another, of as many bytes.
    const EntryType other = type == EntryType::kFloat16 ? EntryType::kBFloat16 : EntryType::kFloat16;
    REQUIRE(!half(type, type).ending({number(6)}, other));
  }
  REQUIRE(!half(EntryType::kFloat16, EntryType::kBFloat16).ending({number(6)}, EntryType::kFloat16));
}

TEST_CASE("a follower that does more has to run") {
  SECTION("the values without limits are wanted") {
    Case made = one(MapOperation::kRelu, 1);
    made.wanted = true;
    REQUIRE(!made.ending());
  }
  SECTION("another map") { REQUIRE(!one(MapOperation::kAbs, 1).ending()); }
  SECTION("a limit that is not a number") {
    REQUIRE(!one(MapOperation::kClampMin, 1).ending({number(std::numeric_limits<float>::quiet_NaN())}));
  }
  SECTION("other types") {
    REQUIRE(!one(MapOperation::kRelu, 1, EntryType::kInt32).ending());
    REQUIRE(!one(MapOperation::kRelu, 1, EntryType::kFloat32, EntryType::kBFloat16).ending());
  }
  SECTION("two maps") {
    Case made;
    const uint16_t x = made.b.map(named(MapOperation::kRelu), 4, {made.b.load(0, 4)});
    made.b.store(1, made.b.map(named(MapOperation::kRelu), 4, {x}));
    REQUIRE(!made.ending());
  }
  SECTION("two results") {
    Case made;
    const uint16_t x = made.b.map(named(MapOperation::kRelu), 4, {made.b.load(0, 4)});
    made.b.store(1, x);
    made.b.store(2, x);
    REQUIRE(!made.ending());
  }
  SECTION("the other operand of a sum") {
    Case made;
    made.b.store(2, made.b.map(testing::kAdd<float>, 4, {made.b.load(0, 4), made.b.load(1, 4)}));
    REQUIRE(!made.ending());
  }
  SECTION("a result with gaps between its rows, as a part of a concatenation has") {
    Case made = one(MapOperation::kRelu, 1);
    made.space = testing::dense_space({kRows, kRow}, 0, 2, 4);
    made.space.operands[1].strides[0] = 4 * 2 * kRow;
    REQUIRE(!made.ending());
  }
}

}  // namespace
}  // namespace hetero::backend
