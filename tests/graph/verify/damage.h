// Plans that are damaged in one place, in every way in which a planner may err. What damage the
// verifier finds, and that what it does not find does no harm, verify_test.cpp and
// `make bench-partition` show.
//
// Thread safety: one thread.

#pragma once

#include <cstdint>
#include <functional>

#include "tests/graph/fixtures/program.h"

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

// Makes random programs with sound plans, within a budget or not, and gives `look` each `sound`
// plan and what one mutation has made of it; `count` times, with all kinds of damage in turn.
void for_each_mutation(
    bool fused, int count, const Devices& devices,
    const std::function<void(Damage, Program&, const Plan& sound, const Plan& damaged, const PlanOptions&)>& look);

}  // namespace hetero::graph::testing
