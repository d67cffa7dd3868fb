#include <cstring>

#include "backend/fused/kernel.h"

namespace hetero::backend {
namespace {

template <int kBytes>
struct Pick {
  struct State {
    int64_t index;
    char entry[kBytes];
  };
  static void begin(void* state, const void* index) {
    State it{};
    std::memcpy(&it.index, index, sizeof(it.index));
    std::memcpy(state, &it, sizeof(it));
  }
  static void add(void* state, const void* in, int64_t n, int64_t first) {
    const int64_t index = static_cast<State*>(state)->index - first;
    if (index < 0 || index >= n) return;
    std::memcpy(static_cast<State*>(state)->entry, static_cast<const char*>(in) + index * kBytes, kBytes);
  }
  // All but one part of the row leave zeros.
  static void merge(void* state, const void* later) {
    for (int i = 0; i < kBytes; ++i) {
      static_cast<State*>(state)->entry[i] |= static_cast<const State*>(later)->entry[i];
    }
  }
  static void finish(const void* state, void* out) {
    std::memcpy(out, static_cast<const State*>(state)->entry, kBytes);
  }
  static constexpr Reducer kReducer{sizeof(State), nullptr,         add,   merge,
                                    finish,        sizeof(int64_t), begin, {ReduceOperation::kPick, EntryType{}}};
};

}  // namespace

const Reducer& pick_reducer(int bytes) {
  switch (bytes) {
    case 1:
      return Pick<1>::kReducer;
    case 2:
      return Pick<2>::kReducer;
    case 4:
      return Pick<4>::kReducer;
    case 8:
      return Pick<8>::kReducer;
    default:
      return Pick<16>::kReducer;
  }
}

}  // namespace hetero::backend
