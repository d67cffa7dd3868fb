#include "backend/cpu/resize/bilinear.h"

#include <algorithm>

#include "backend/base/parallel.h"
#include "backend/cpu/convolution/image_kernels.h"
#include "backend/cpu/vector/scratch.h"

namespace hetero::backend {
namespace {

constexpr int64_t kElementsPerThread = 16 << 10;
constexpr int64_t kFloatsTogether = 2048;  // that a first-level cache holds until they are rounded

// Two places of the input, and their weights.
struct Source {
  int64_t first, next;
  float of_first, of_next;
};

Source source_of(int64_t place, float step, bool aligns_corners, int64_t size) {
  const auto number = static_cast<float>(place);
  const float center = aligns_corners ? step * number : step * (number + 0.5F) - 0.5F;
  // A given scale may be any number.
  const float at = std::min(std::max(0.0F, center), static_cast<float>(size - 1));
  const int64_t first = std::min(static_cast<int64_t>(at), size - 1);
  const float of_next = at - static_cast<float>(first);
  return {first, std::min(first + 1, size - 1), 1 - of_next, of_next};
}

// Rows of the input as floats. Those of 16 bits are widened, and the last two are kept: the next
// row of the output often needs them again.
class WideRows {
 public:
  WideRows(const BilinearResize& call, float* memory, InstructionSet set)
      : call_(call), set_(set), floats_(call.width * call.channels), kept_{memory, memory + floats_} {}

  // Row y of all images. What the last call of `other` gave stays.
  const float* row(int64_t y, int64_t other) {
    const void* const stored = element_at(call_.input, y * floats_, call_.element);
    if (call_.element == Element::kFloat32) return static_cast<const float*>(stored);
    for (int i = 0; i < 2; ++i) {
      if (rows_[i] == y) return kept_[i];
    }
    const int at = rows_[0] == other ? 1 : 0;
    rows_[at] = y;
    widen(call_.element, stored, floats_, kept_[at], set_);
    return kept_[at];
  }

 private:
  const BilinearResize& call_;
  const InstructionSet set_;
  const int64_t floats_;
  float* const kept_[2];
  int64_t rows_[2] = {-1, -1};
};

}  // namespace

void resize_bilinear(const BilinearResize& call, InstructionSet set) {
  static thread_local Scratch sources_memory;
  const auto blend = image_kernels(set).blend;
  const int64_t line = call.width * call.channels, out_line = call.out_width * call.channels;
  const bool is_float = call.element == Element::kFloat32;
  Source* const columns = sources_memory.get<Source>(call.out_width);
  for (int64_t x = 0; x < call.out_width; ++x) columns[x] = source_of(x, call.step_x, call.aligns_corners, call.width);
  const int64_t together = std::max<int64_t>(1, kFloatsTogether / call.channels);  // pixels
  const int64_t grain = std::max<int64_t>(1, kElementsPerThread / out_line);
  parallel_for(0, call.images * call.out_height, grain, [&](int64_t begin, int64_t end) {
    static thread_local Scratch memory;
    float* const blended = memory.get<float>(is_float ? line : 3 * line + together * call.channels);
    WideRows wide(call, blended + line, set);
    float* const made = blended + 3 * line;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t above = i / call.out_height * call.height;
      const Source row = source_of(i % call.out_height, call.step_y, call.aligns_corners, call.height);
      const float* const first = wide.row(above + row.first, above + row.next);
      blend({first, wide.row(above + row.next, above + row.first), row.of_first, row.of_next, line, blended});
      std::byte* const to = static_cast<std::byte*>(call.output) + i * out_line * element_bytes(call.element);
      for (int64_t x = 0; x < call.out_width; x += together) {
        const int64_t last = std::min(x + together, call.out_width), at = x * call.channels;
        float* const pixels = is_float ? reinterpret_cast<float*>(to) + at : made;
        for (int64_t column = x; column < last; ++column) {
          const Source& source = columns[column];
          blend({blended + source.first * call.channels, blended + source.next * call.channels, source.of_first,
                 source.of_next, call.channels, pixels + (column - x) * call.channels});
        }
        if (!is_float)
          narrow(call.element, made, (last - x) * call.channels, to + at * element_bytes(call.element), set);
      }
    }
  });
}

}  // namespace hetero::backend
