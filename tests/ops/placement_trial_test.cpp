// PlacementTrial: when a placement is doubted, what is tried instead, and what stays. IsolatedProfiling: when kernels that run beside others are measured alone.

#include <gtest/gtest.h>

#include "ops/record/plan_cache.h"

namespace hetero::ops::testing {
namespace {

using Stage = PlacementTrial::Stage;

graph::Plan plan_on(backend::DeviceIndex device) {
  graph::Plan plan;
  plan.placements.resize(2, {.device = device});
  return plan;
}

const graph::Plan kPlan = plan_on(backend::kAccelerator);
const graph::Plan kOther = plan_on(backend::kCpu);
const std::vector<backend::DeviceIndex> kDevices(2, backend::kAccelerator);  // of kPlan

void run(PlacementTrial& trial, double seconds, const graph::Plan& plan = kPlan, int times = PlacementTrial::kRuns) {
  for (int i = 0; i < times; ++i) trial.note(seconds, 1.0, plan);
}

TEST(PlacementTrialTest, WhatTakesWhatWasPredictedStays) {
  PlacementTrial trial;
  run(trial, 1.4);
  EXPECT_EQ(trial.stage, Stage::kSettled);
  EXPECT_TRUE(trial.instead_of.empty());
}

TEST(PlacementTrialTest, OneSlowRunIsNoSurprise) {
  PlacementTrial trial;
  run(trial, 9, kPlan, PlacementTrial::kRuns - 1);
  run(trial, 1, kPlan, 1);
  EXPECT_EQ(trial.stage, Stage::kSettled);
}

TEST(PlacementTrialTest, AnotherOneIsTriedAndTheFasterStays) {
  for (const bool faster : {false, true}) {
    PlacementTrial trial;
    run(trial, 3);
    EXPECT_EQ(trial.stage, Stage::kTry);
    EXPECT_EQ(trial.instead_of, kDevices);
    run(trial, faster ? 2 : 4, kOther);
    EXPECT_EQ(trial.stage, Stage::kSettled);
    EXPECT_EQ(trial.instead_of.empty(), !faster);
  }
}

TEST(PlacementTrialTest, ItBeginsAnewWhenWhatStayedBecomesMuchSlower) {
  PlacementTrial trial;
  run(trial, 3);
  run(trial, 2, kOther);
  run(trial, 2.9, kOther, 10 * PlacementTrial::kRuns);
  EXPECT_EQ(trial.stage, Stage::kSettled);
  EXPECT_EQ(trial.instead_of, kDevices);
  run(trial, 3.1, kOther);
  EXPECT_EQ(trial.stage, Stage::kWatch);
  EXPECT_TRUE(trial.instead_of.empty());
  run(trial, 1);
  EXPECT_EQ(trial.stage, Stage::kSettled);
}

TEST(PlacementTrialTest, ItBelongsToWhatWasConfigured) {
  const PlanSettings first{.accelerator = &kPlan, .budget = 1};
  const PlanSettings others[] = {{.accelerator = &kOther, .budget = 1},
                                 {.accelerator = &kPlan, .budget = 2},
                                 {.accelerator = &kPlan, .compute_queues = 2, .budget = 1}};
  for (const PlanSettings& other : others) {
    PlanSet plans(false);
    PlacementTrial& trial = plans.trial;
    plans.belong_to(first);
    run(trial, 3);
    run(trial, 2, kOther);
    plans.belong_to(first);
    EXPECT_EQ(trial.stage, Stage::kSettled);
    EXPECT_EQ(trial.instead_of, kDevices);
    plans.belong_to(other);
    EXPECT_EQ(trial.stage, Stage::kWatch);
    EXPECT_TRUE(trial.instead_of.empty());
    // What it finds out by itself does not make it forget whose it is.
    run(trial, 1);
    run(trial, 3);
    EXPECT_EQ(trial.stage, Stage::kWatch);
    EXPECT_EQ(trial.settings, other);
  }
}

TEST(PlacementTrialTest, LargerSizesAreNoSurprise) {
  PlacementTrial trial;
  run(trial, 3);
  run(trial, 2, kOther);
  for (int i = 0; i < 2 * PlacementTrial::kRuns; ++i) trial.note(16, 8, kOther);
  EXPECT_EQ(trial.stage, Stage::kSettled);
  EXPECT_EQ(trial.instead_of, kDevices);
}

// Returns how many of the runs tell whether the placement is right.
int run_beside(IsolatedProfiling& alone, double seconds, int times = PlacementTrial::kRuns) {
  int judged = 0;
  for (int i = 0; i < times; ++i) judged += alone.note(seconds, 1.0, true) ? 1 : 0;
  return judged;
}

TEST(IsolatedProfilingTest, KernelsThatRanBesideOthersAreMeasuredAloneWhereThePredictionIsWrong) {
  for (const double seconds : {1.05, 0.95}) {
    IsolatedProfiling alone;
    EXPECT_EQ(run_beside(alone, seconds, 40), 40);
    EXPECT_EQ(alone.stage, IsolatedProfiling::Stage::kWatch);
  }
  for (const double seconds : {0.8, 1.2, 9.0}) {
    IsolatedProfiling alone;
    EXPECT_EQ(run_beside(alone, seconds), 0);
    EXPECT_EQ(alone.stage, IsolatedProfiling::Stage::kIsolated);
    for (int i = 0; i < IsolatedProfiling::kRuns; ++i) {
      EXPECT_EQ(alone.stage, IsolatedProfiling::Stage::kIsolated);
      EXPECT_FALSE(alone.note(20, 1, false));
    }
    EXPECT_EQ(alone.stage, IsolatedProfiling::Stage::kKnown);
    // Once: what is still wrong is for the placement's trial.
    EXPECT_EQ(run_beside(alone, 3, 40), 40);
    EXPECT_EQ(alone.stage, IsolatedProfiling::Stage::kKnown);
  }
}

TEST(IsolatedProfilingTest, WhereNoneRanBesideAnotherThePlacementIsJudged) {
  IsolatedProfiling alone;
  for (int i = 0; i < 40; ++i) EXPECT_TRUE(alone.note(9, 1, false));
  EXPECT_EQ(alone.stage, IsolatedProfiling::Stage::kWatch);
}

TEST(IsolatedProfilingTest, OneSlowRunIsNoReason) {
  IsolatedProfiling alone;
  EXPECT_EQ(run_beside(alone, 9, PlacementTrial::kRuns - 1), 0);
  EXPECT_EQ(run_beside(alone, 1, 1), 1);
  EXPECT_EQ(alone.stage, IsolatedProfiling::Stage::kWatch);
}

TEST(IsolatedProfilingTest, HowMuchKernelsAreInEachOthersWayIsLearnedFromTheFirstRunsThatTell) {
  IsolatedProfiling alone;
  EXPECT_EQ(alone.slowness, 0);
  alone.learn(4);
  EXPECT_EQ(alone.slowness, 4);
  // Plans of other factors say other things.
  for (int i = 1; i < IsolatedProfiling::kFits; ++i) alone.learn(1.5);
  const double learned = alone.slowness;
  EXPECT_NEAR(learned, 1.5, 0.05);
  alone.learn(9);
  EXPECT_EQ(alone.slowness, learned);
}

TEST(IsolatedProfilingTest, KernelsAreMeasuredAloneAgainWhenTheMachineHasBecomeAnother) {
  for (const double factor : {0.5, 2.0}) {
    IsolatedProfiling alone;
    run_beside(alone, 3);
    run_beside(alone, 20, IsolatedProfiling::kRuns);
    run_beside(alone, 1.2);
    run_beside(alone, 1.2 * factor);
    EXPECT_EQ(alone.stage, IsolatedProfiling::Stage::kWatch);
    run_beside(alone, 1.2 * factor);
    EXPECT_EQ(alone.stage, IsolatedProfiling::Stage::kIsolated);
  }
}

}  // namespace
}  // namespace hetero::ops::testing
