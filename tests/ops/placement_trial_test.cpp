// PlacementTrial: when a placement is doubted, what is tried instead, and what stays.

#include <gtest/gtest.h>

#include "ops/plan_cache.h"

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
  for (int i = 0; i < times; ++i) trial.note(seconds, 1.0, plan, false);
}

// Some of its kernels ran beside others.
void run_beside(PlacementTrial& trial, double seconds, int times = PlacementTrial::kRuns) {
  for (int i = 0; i < times; ++i) trial.note(seconds, 1.0, kPlan, true);
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
    PlacementTrial trial;
    trial.belong_to(first);
    run(trial, 3);
    run(trial, 2, kOther);
    trial.belong_to(first);
    EXPECT_EQ(trial.stage, Stage::kSettled);
    EXPECT_EQ(trial.instead_of, kDevices);
    trial.belong_to(other);
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
  for (int i = 0; i < 2 * PlacementTrial::kRuns; ++i) trial.note(16, 8, kOther, false);
  EXPECT_EQ(trial.stage, Stage::kSettled);
  EXPECT_EQ(trial.instead_of, kDevices);
}

TEST(PlacementTrialTest, KernelsThatRanBesideOthersAreMeasuredAloneWhereThePredictionIsWrong) {
  for (const double seconds : {1.05, 0.95}) {
    PlacementTrial trial;
    run_beside(trial, seconds);
    EXPECT_EQ(trial.stage, Stage::kSettled);
  }
  for (const double seconds : {0.8, 1.2, 9.0}) {
    PlacementTrial trial;
    run_beside(trial, seconds);
    EXPECT_EQ(trial.stage, Stage::kAlone);
    EXPECT_TRUE(trial.instead_of.empty());
    run(trial, 20, kPlan, PlacementTrial::kAloneRuns - 1);
    EXPECT_EQ(trial.stage, Stage::kAlone);
    run(trial, 20, kPlan, 1);
    EXPECT_EQ(trial.stage, Stage::kWatch);
    // What was predicted is right now.
    run_beside(trial, 1);
    EXPECT_EQ(trial.stage, Stage::kSettled);
  }
}

TEST(PlacementTrialTest, AnotherPlacementIsTriedWhereThatDidNotHelp) {
  PlacementTrial trial;
  run_beside(trial, 9);
  run(trial, 20, kPlan, PlacementTrial::kAloneRuns);
  run_beside(trial, 3);
  EXPECT_EQ(trial.stage, Stage::kTry);
  EXPECT_EQ(trial.instead_of, kDevices);
  run(trial, 5, kOther);  // no faster than the 3, however slow it was before
  EXPECT_EQ(trial.stage, Stage::kSettled);
  EXPECT_TRUE(trial.instead_of.empty());
}

TEST(PlacementTrialTest, KernelsAreMeasuredAloneAgainWhenAllHasBecomeMuchFaster) {
  PlacementTrial trial;
  run_beside(trial, 1);
  run_beside(trial, 0.5);
  EXPECT_EQ(trial.stage, Stage::kWatch);
  run_beside(trial, 0.5);
  EXPECT_EQ(trial.stage, Stage::kAlone);
}

}  // namespace
}  // namespace hetero::ops::testing
