// Mutator: random programs with sound plans, and damage to these of every kind that a planner's error may be. What damage the verifier finds, and that what it does
// not find does no harm, verify_test.cpp and `make bench-partition` show.
//
// Thread safety: one thread.

#pragma once

#include <cstdint>
#include <random>

#include "tests/graph/program.h"

namespace hetero::graph::testing {

enum class Damage : uint8_t {
  kNoWait,
  kNoRecord,
  kNoCopy,
  kOtherOffset,
  kLaterFirst,
  kEarlierLast,
  kSwapped,
  kOtherQueue,
  kNoStay,
  kOtherValidity,
  kOtherHome,
};
inline constexpr const char* kDamageNames[] = {
    "a wait gone",          "a record gone",      "a copy gone",          "another offset",
    "a lifetime later",     "a lifetime shorter", "instructions swapped", "another queue",
    "a return's stay gone", "another validity",   "another home",
};
constexpr int kDamages = static_cast<int>(std::size(kDamageNames));

// The plan without an instruction; lifetimes are of the same instructions as before.
Plan without(const Plan& plan, size_t position);

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  // A random program with a plan; within a budget or not.
  void make(bool fused, Program& program, Plan& plan, PlanOptions& options);
  // False where the plan has nothing that could be damaged so.
  bool apply(Damage damage, const Program& program, Plan& plan);

 private:
  uint64_t below(uint64_t limit) { return std::uniform_int_distribution<uint64_t>(0, limit - 1)(random_); }
  template <typename Condition>
  size_t pick(const Plan& plan, Condition condition);
  bool remove(Instruction::Kind kind, Plan& plan);
  template <typename Change>
  bool change_residence(Plan& plan, Change change);
  bool swap(Plan& plan);
  bool change_queue(Plan& plan);

  std::mt19937 random_;
};

}  // namespace hetero::graph::testing
