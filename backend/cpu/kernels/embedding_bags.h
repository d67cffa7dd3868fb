// Sums and means of a table's rows, a few bags of ids at a time.
//
// ATen's kernel takes 7 µs for a bag of ten ids, and hardly less for one, which is most of a
// recommender's time for one user's ids. Many bags are left to it: it has several threads.
//
// Thread safety: any thread. Works on the calling thread.

#pragma once

#include <cstdint>
#include <span>

namespace hetero::backend {

template <typename Id>
struct EmbeddingBags {
  const float* table = nullptr;  // [rows, width]
  int64_t rows = 0;
  int64_t width = 0;
  std::span<const Id> ids;
  std::span<const Id> begins;  // per bag: its first id; a bag ends where the next one begins
  bool are_means = false;
  float* output = nullptr;  // [bags, width]

  int64_t bags() const { return std::ssize(begins); }
  Id end_of(int64_t bag) const { return bag + 1 < bags() ? begins[bag + 1] : static_cast<Id>(ids.size()); }
};

// Whether ids are rows of the table, and bags lie one behind the other.
template <typename Id>
bool is_valid(const EmbeddingBags<Id>& call);

// Adds rows in the order of the ids, from zero; a mean is the sum divided once. A bag without ids
// is zero. REQUIRES: is_valid(call).
template <typename Id>
void run(const EmbeddingBags<Id>& call);

extern template bool is_valid(const EmbeddingBags<int32_t>&);
extern template bool is_valid(const EmbeddingBags<int64_t>&);
extern template void run(const EmbeddingBags<int32_t>&);
extern template void run(const EmbeddingBags<int64_t>&);

}  // namespace hetero::backend
