// The plans of the sizes that came last: which is found, in which order, and which leaves.

#include "graph/plan/sized_plans.h"

#include <memory>
#include <vector>

#include "tests/catch/catch.h"

namespace hetero::graph::testing {
namespace {

using Sizes = SizedPlans<int>;

void add(Sizes& plans, int size) { plans.add(std::make_unique<int>(size)); }
int* find(Sizes& plans, int size) {
  return plans.find([size](int it) { return it == size; });
}
std::vector<int> order(const Sizes& plans) {
  std::vector<int> sizes;
  for (const auto& entry : plans.entries()) sizes.push_back(*entry);
  return sizes;
}

}  // namespace

TEST_CASE("sized plans: the one used last comes first, and stays where it is in memory") {
  Sizes plans;
  for (const int size : {1, 2, 3}) add(plans, size);
  CHECK(order(plans) == std::vector{3, 2, 1});
  int* const first = find(plans, 1);
  REQUIRE(first != nullptr);
  CHECK(order(plans) == std::vector{1, 3, 2});
  CHECK(find(plans, 3) != nullptr);
  CHECK(find(plans, 1) == first);
  CHECK(find(plans, 4) == nullptr);
  CHECK(order(plans) == std::vector{1, 3, 2});
  plans.erase(first);
  CHECK(order(plans) == std::vector{3, 2});
}

TEST_CASE("sized plans: the one used longest ago leaves where there are too many") {
  Sizes plans;
  for (int size = 0; size < static_cast<int>(Sizes::kMost); ++size) {
    add(plans, size);
    CHECK(plans.take_oldest() == nullptr);
  }
  find(plans, 0);
  CHECK(*plans.take_oldest(Sizes::kMost - 1) == 1);
  add(plans, 100);
  add(plans, 101);
  CHECK(*plans.take_oldest() == 2);
  CHECK(find(plans, 0) != nullptr);
}

TEST_CASE("sized plans: what is kept stays first and never leaves") {
  Sizes plans(1);
  for (int size = 0; size < static_cast<int>(Sizes::kMost); ++size) {
    add(plans, size);
    CHECK(plans.take_oldest() == nullptr);
  }
  CHECK(find(plans, 0) != nullptr);
  CHECK(find(plans, 3) != nullptr);
  CHECK(*plans.entries()[0] == 0);
  CHECK(*plans.entries()[1] == 3);
  add(plans, 100);
  CHECK(*plans.take_oldest() == 1);
  CHECK(*plans.entries()[0] == 0);
  CHECK(*plans.entries()[1] == 100);
}

}  // namespace hetero::graph::testing
