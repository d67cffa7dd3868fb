// Products with packed weights by vector instructions, against sums in double, on every instruction set of this processor.

#include "backend/cpu/panel_gemm.h"

#include <array>
#include <vector>

#include "tests/backend/catch.h"
#include "tests/backend/matvec_case.h"

namespace hetero::backend {
namespace {

std::vector<InstructionSet> sets() {
  std::vector<InstructionSet> all;
  for (const InstructionSet set : {InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    if (set <= instruction_set()) all.push_back(set);
  }
  if (all.empty()) WARN("a test skipped: this processor has no AVX2");
  return all;
}

// Packs the weight before, or leaves that to the call.
void multiply(Matvec call, bool packed, InstructionSet set) {
  const PackedMemory memory = packed_memory(panel_weight_bytes(call.element, call.n, call.k, set));
  if (packed) {
    pack_panel_weight(call, memory.get(), set);
    call.packed = memory.get();
  }
  panel_gemm(call, set);
}

bool is_right(const Case& c, bool packed, InstructionSet set) {
  INFO(text(c) << ", packed " << packed << ", " << to_string(set));
  const bool right = product_is_right(c, [&](const Matvec& call) { multiply(call, packed, set); });
  CHECK(right);
  return right;
}

TEST_CASE("a product of panels is right with any number of rows, outputs and terms") {
  for (const InstructionSet set : sets()) {
    for (const Element element : kElements) {
      for (const bool columns : {false, true}) {
        for (const bool x_columns : {false, true}) {
          for (const bool packed : {false, true}) {
            for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{{1, 1, 1},
                                                                             {3, 33, 31},
                                                                             {13, 16, 32},
                                                                             {14, 17, 33},
                                                                             {15, 31, 64},
                                                                             {28, 32, 65},
                                                                             {29, 40, 2},
                                                                             {65, 64, 160}}) {
              for (const int64_t gap : {0, 3}) {
                REQUIRE(is_right({element, columns, m, n, k, gap, m % 2 == 1, x_columns}, packed, set));
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("every end of a panel is handled") {
  for (const InstructionSet set : sets()) {
    for (const Element element : kElements) {
      for (const bool columns : {false, true}) {
        for (int64_t length = 1; length <= 70; ++length) {
          for (const Case& c :
               {Case{element, columns, 3, 5, length, 1, true}, Case{element, columns, 2, length, 9, 1, false},
                Case{element, columns, length, 3, 7, 2, true}, Case{element, columns, length, 3, 7, 2, true, true}}) {
            REQUIRE(is_right(c, true, set));
          }
        }
      }
    }
  }
}

TEST_CASE("sums of many terms are cut, rows a page apart are copied, and blocks of many rows are right") {
  for (const InstructionSet set : sets()) {
    for (const Element element : kElements) {
      for (const bool x_columns : {false, true}) {
        REQUIRE(is_right({element, false, 20, 35, 9100, 1, true, x_columns}, true, set));
        REQUIRE(is_right({element, false, 20, 35, 2048, 0, true, x_columns}, false, set));
        REQUIRE(is_right({element, true, 700, 9, 300, 1, false, x_columns}, true, set));
      }
    }
  }
}

TEST_CASE("a product of panels without rows, outputs or terms is empty, or the bias") {
  for (const InstructionSet set : sets()) {
    for (const Element element : kElements) {
      for (const bool columns : {false, true}) {
        for (const bool packed : {false, true}) {
          REQUIRE(is_right({element, columns, 0, 5, 4, 0, false}, packed, set));
          REQUIRE(is_right({element, columns, 2, 0, 4, 1, true}, packed, set));
          REQUIRE(is_right({element, columns, 2, 5, 0, 1, false}, packed, set));
          REQUIRE(is_right({element, columns, 600, 5, 0, 1, true, true}, packed, set));
        }
      }
    }
  }
}

TEST_CASE("neither threads nor other rows nor packing before change the bits of a product of panels") {
  for (const InstructionSet set : sets()) {
    for (const Element element : kElements) {
      for (const int64_t m : {7, 600, 1600}) {
        Group group(element, false, m, 96, {130, 0, 1, 64, 200});
        std::vector<std::vector<uint8_t>> expected;
        for (const ParallelPool* pool : kPools) {
          set_parallel_pool(pool);
          for (const bool packed : {false, true}) {
            std::vector<PackedMemory> memory;
            for (Matvec& call : group.calls) {
              memory.push_back(packed_memory(panel_weight_bytes(call.element, call.n, call.k, set)));
              call.packed = nullptr;
              if (!packed) continue;
              pack_panel_weight(call, memory.back().get(), set);
              call.packed = memory.back().get();
            }
            const auto all = group.outputs([&] { panel_gemm(group.calls, set); });
            if (expected.empty()) expected = all;
            REQUIRE((all == expected));
            const auto first_rows = group.outputs([&] {
              for (Matvec call : group.calls) {
                call.m = 1;
                panel_gemm(call, set);
              }
            });
            for (size_t i = 0; i < first_rows.size(); ++i) {
              const auto bytes = static_cast<std::ptrdiff_t>(group.calls[i].n * element_bytes(element));
              REQUIRE(std::equal(first_rows[i].begin(), first_rows[i].begin() + bytes, expected[i].begin()));
            }
          }
          set_parallel_pool(nullptr);
        }
      }
    }
  }
}

}  // namespace
}  // namespace hetero::backend
