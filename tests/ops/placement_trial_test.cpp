// PlacementTrial: when a placement is doubted, what is tried instead, and what stays.

#include <gtest/gtest.h>

#include "ops/plan_cache.h"

namespace hetero::ops::testing {
namespace {

using graph::Policy;
using Stage = PlacementTrial::Stage;

void run(PlacementTrial& trial, double seconds, bool uses_accelerator = true, int times = PlacementTrial::kRuns) {
  for (int i = 0; i < times; ++i) trial.note(seconds, 1.0, uses_accelerator);
}

TEST(PlacementTrialTest, WhatTakesWhatWasPredictedStays) {
  PlacementTrial trial;
  run(trial, 1.4);
  EXPECT_EQ(trial.stage, Stage::kSettled);
  EXPECT_EQ(trial.policy, Policy::kAuto);
}

TEST(PlacementTrialTest, OneSlowRunIsNoSurprise) {
  PlacementTrial trial;
  run(trial, 9, true, PlacementTrial::kRuns - 1);
  run(trial, 1, true, 1);
  EXPECT_EQ(trial.stage, Stage::kSettled);
}

TEST(PlacementTrialTest, TheOtherDeviceIsTriedAndTheFasterStays) {
  for (const bool faster : {false, true}) {
    for (const bool on_accelerator : {false, true}) {
      PlacementTrial trial;
      run(trial, 3, on_accelerator);
      EXPECT_EQ(trial.stage, Stage::kTry);
      const Policy other = on_accelerator ? Policy::kCpu : Policy::kAccelerator;
      EXPECT_EQ(trial.policy, other);
      run(trial, faster ? 2 : 4, !on_accelerator);
      EXPECT_EQ(trial.stage, Stage::kSettled);
      EXPECT_EQ(trial.policy, faster ? other : Policy::kAuto);
    }
  }
}

TEST(PlacementTrialTest, ItBeginsAnewWhenWhatStayedBecomesMuchSlower) {
  PlacementTrial trial;
  run(trial, 3);
  run(trial, 2, false);
  run(trial, 2.9, false, 10 * PlacementTrial::kRuns);
  EXPECT_EQ(trial.stage, Stage::kSettled);
  EXPECT_EQ(trial.policy, Policy::kCpu);
  run(trial, 3.1, false);
  EXPECT_EQ(trial.stage, Stage::kWatch);
  EXPECT_EQ(trial.policy, Policy::kAuto);
  run(trial, 1);
  EXPECT_EQ(trial.stage, Stage::kSettled);
}

TEST(PlacementTrialTest, LargerSizesAreNoSurprise) {
  PlacementTrial trial;
  run(trial, 3);
  run(trial, 2, false);
  for (int i = 0; i < 2 * PlacementTrial::kRuns; ++i) trial.note(16, 8, false);
  EXPECT_EQ(trial.stage, Stage::kSettled);
  EXPECT_EQ(trial.policy, Policy::kCpu);
}

}  // namespace
}  // namespace hetero::ops::testing
