// Products with packed weights by vector instructions, against sums in double, on every instruction
// set of this processor.

#include "backend/cpu/kernels/panel_gemm.h"

#include <array>
#include <cmath>
#include <vector>

#include "tests/backend/cpu/kernels/limits_check.h"
#include "tests/backend/cpu/kernels/matvec_case.h"
#include "tests/catch/catch.h"

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

TEST_CASE("a product of bfloat16 is right by the processor's instructions, and as floats") {
  if (!has_bfloat16_instructions()) {
    WARN("a test skipped: this processor has no AVX512-BF16");
    return;
  }
  for (const bool preferred : {true, false}) {
    prefer_bfloat16_instructions(preferred);
    for (const bool columns : {false, true}) {
      for (int64_t rows = 1; rows <= 30; ++rows) {
        REQUIRE(is_right({Element::kBfloat16, columns, rows, 50, 31, 1, true}, true, InstructionSet::kAvx512));
      }
      REQUIRE(is_right({Element::kBfloat16, columns, 20, 35, 9100, 1, true, true}, false, InstructionSet::kAvx512));
    }
  }
  prefer_bfloat16_instructions(std::nullopt);
}

TEST_CASE("a product of panels limits what it stores") {
  for (const InstructionSet set : sets()) {
    // The last one has parts of k, whose sums are not limited.
    for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{{5, 7, 3}, {29, 48, 16}, {31, 80, 5000}}) {
      for (const Element element : kElements) {
        Matrix x(element, m, k, k), w(element, n, k, k, 8);
        x.set(0, 1, std::nanf(""));
        Matvec call{.element = element,
                    .m = m,
                    .n = n,
                    .k = k,
                    .x = x.data(),
                    .x_stride = k,
                    .w = w.data(),
                    .w_stride = k,
                    .y_stride = n};
        for (const bool packed : {false, true}) {
          const auto run = [&](float* y, const Limits& limits) {
            std::vector<std::byte> stored(static_cast<size_t>(m * n * element_bytes(element)));
            call.y = stored.data();
            call.limits = limits;
            multiply(call, packed, set);
            widen(element, stored.data(), call.m * call.n, y);
          };
          check_limits(m * n, run, element != Element::kFloat32);
        }
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
        require_same_bits(
            Group(element, false, m, 96, {130, 0, 1, 64, 200}),
            [&](Matvec& call) {
              PackedMemory memory = packed_memory(panel_weight_bytes(call.element, call.n, call.k, set));
              pack_panel_weight(call, memory.get(), set);
              call.packed = memory.get();
              return memory;
            },
            [&](std::span<const Matvec> calls) { panel_gemm(calls, set); });
      }
    }
  }
}

}  // namespace
}  // namespace hetero::backend
