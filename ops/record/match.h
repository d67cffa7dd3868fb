// Match: compares a call, argument by argument, with the one that the trie expects.
//
// This is how a repeated program is recorded. Only the numbers that may differ from run to run
// (`values`, call.h) are written, straight to the recorder. If an argument differs, the call is
// encoded again as a Call, and looked up.
//
//   Match match(recorder(), id);
//   if (match.possible()) match.tensor(x, Access::kRead), match.scalar(alpha), ...
//   if (match.complete()) match.append(outputs made as match.entry() says);
//
// Thread safety: the recorder's lock, from the constructor to the destructor.

#pragma once

#include "ops/record/recorder.h"

namespace hetero::ops {

class Match : public Encoder<Match> {
 public:
  [[gnu::always_inline]] Match(Recorder& recorder, graph::OpId op)
      : recorder_(recorder), expected_(recorder.at_->first_child()), values_before_(recorder.values_.size()) {
    equal_ =
        expected_ != nullptr && expected_->op() == op &&
        expected_->default_dtype() == static_cast<int8_t>(recorder.default_dtype_) &&
        expected_->preference() ==
            (preferences_were_used.load(std::memory_order_relaxed) ? thread_preference() : graph::Preference::kAuto);
    if (!equal_) return;
    structure_ = expected_->structure();
    sizes_ = expected_->sizes();
  }
  // Numbers of a call that was not appended are forgotten.
  ~Match() {
    if (!appended_) recorder_.values_.shrink(values_before_);
  }
  Match(const Match&) = delete;

  // No argument has differed so far.
  bool possible() const { return equal_; }
  bool complete() const {
    // Sizes and inputs are as many as the structure says.
    return equal_ && structure_ == expected_->sizes();
  }
  const MetaEntry& entry() const { return expected_->entry(); }
  // Appends the call to the trace, as Recorder::append() does. REQUIRES: complete().
  [[nodiscard]] bool append(std::span<const at::Tensor> outputs);

  template <typename T>
  void put_structure(const T& value) {
    compare(structure_, &value, sizeof(T));
  }
  void put_structure(const void* bytes, size_t count) { compare(structure_, bytes, count); }
  template <typename T>
  void put_sizes(const T& value) {
    compare(sizes_, &value, sizeof(T));
  }
  void put_sizes(const void* bytes, size_t count) { compare(sizes_, bytes, count); }
  template <typename T>
  void put_values(const T& value) {
    recorder_.values_.put(value);
  }
  void put_values(const void* bytes, size_t count) { recorder_.values_.put_bytes(bytes, count); }
  // Hides the Encoder's, for tensors of our own class.
  void tensor(const at::Tensor& value, graph::Access access);
  void operand(const at::Tensor& value, graph::Access access, uint8_t bits);
  void reject(const at::Tensor&) { equal_ = false; }

 private:
  void storage(HeteroStorage* storage, bool equal);
  // Does not look for the end: two calls of one operator are equally long as far as they are equal,
  // for tags and counts come before what they announce.
  [[gnu::always_inline]] void compare(const std::byte*& at, const void* bytes, size_t count) {
    if (!equal_) return;
    equal_ = std::memcmp(at, bytes, count) == 0;
    at += count;
  }

  Recorder& recorder_;
  TrieNode* const expected_;
  const size_t values_before_;
  const std::byte* structure_ = nullptr;
  const std::byte* sizes_ = nullptr;
  size_t inputs_ = 0;  // so many were compared; their storages are the recorder's scratch
  bool equal_ = false;
  bool appended_ = false;
};

}  // namespace hetero::ops
