#include "backend/cpu/kernels/embedding_bags.h"

#include <algorithm>

namespace hetero::backend {

template <typename Id>
bool is_valid(const EmbeddingBags<Id>& call) {
  if (call.bags() > 0 && call.begins[0] != 0) return false;
  for (int64_t bag = 0; bag < call.bags(); ++bag) {
    if (call.begins[bag] > call.end_of(bag)) return false;
  }
  return std::ranges::all_of(call.ids, [&](Id id) { return 0 <= id && id < call.rows; });
}

template <typename Id>
void run(const EmbeddingBags<Id>& call) {
  // Rows that are asked for together: they lie far from each other.
  for (const Id id : call.ids) __builtin_prefetch(call.table + id * call.width);
  for (int64_t bag = 0; bag < call.bags(); ++bag) {
    float* const sum = call.output + bag * call.width;
    std::fill_n(sum, call.width, 0.0F);
    const Id begin = call.begins[bag], end = call.end_of(bag);
    for (Id i = begin; i < end; ++i) {
      const float* const row = call.table + call.ids[i] * call.width;
      for (int64_t x = 0; x < call.width; ++x) sum[x] += row[x];
    }
    if (!call.are_means) continue;
    const auto count = static_cast<float>(std::max<Id>(end - begin, 1));
    for (int64_t x = 0; x < call.width; ++x) sum[x] /= count;
  }
}

template bool is_valid(const EmbeddingBags<int32_t>&);
template bool is_valid(const EmbeddingBags<int64_t>&);
template void run(const EmbeddingBags<int32_t>&);
template void run(const EmbeddingBags<int64_t>&);

}  // namespace hetero::backend
