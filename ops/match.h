// Match: a call compared, argument by argument, with the one that the trie expects.
//
// This is how a repeated program is recorded: nothing is written down but the numbers that may differ from run to run (`values`, call.h), which go
// straight to the recorder. Where an argument differs, the call is encoded again as a Call, and looked up.
//
//   Match match(recorder(), id);
//   if (match.possible()) match.tensor(x, Access::kRead), match.scalar(alpha), ...
//   if (match.complete()) recorder().append(match, outputs made as match.entry() says);
//
// Thread safety: the recorder's lock, from the constructor to the destructor.

#pragma once

#include "ops/recorder.h"

namespace hetero::ops {

class Match : public Encoder<Match> {
 public:
  Match(Recorder& recorder, graph::OpId op)
      : recorder_(recorder), expected_(recorder.at_->first_child()), values_before_(recorder.values_.size()) {
    equal_ =
        expected_ != nullptr && expected_->op() == op &&
        expected_->default_dtype() == static_cast<int8_t>(recorder.default_dtype_) &&
        expected_->preference() ==
            (preferences_were_used.load(std::memory_order_relaxed) ? thread_preference() : graph::Preference::kAuto);
    if (!equal_) return;
    structure_ = expected_->structure();
    sizes_ = expected_->sizes();
    structure_end_ = sizes_;
    sizes_end_ = sizes_ + expected_->size_bytes();
    recorder.reserve_inputs(expected_->inputs().size());
  }
  // Numbers of a call that was not appended are forgotten.
  ~Match() {
    if (!appended_) recorder_.values_.shrink(values_before_);
  }
  Match(const Match&) = delete;

  // No argument has differed so far.
  bool possible() const { return equal_; }
  bool complete() const {
    return equal_ && structure_ == structure_end_ && sizes_ == sizes_end_ && inputs_ == expected_->inputs().size();
  }
  const MetaEntry& entry() const { return expected_->entry(); }

  template <typename T>
  void put_structure(const T& value) {
    compare(structure_, structure_end_, value);
  }
  void put_structure(const void* bytes, size_t count) { compare(structure_, structure_end_, bytes, count); }
  template <typename T>
  void put_sizes(const T& value) {
    compare(sizes_, sizes_end_, value);
  }
  void put_sizes(const void* bytes, size_t count) { compare(sizes_, sizes_end_, bytes, count); }
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
  friend class Recorder;

  void operand(HeteroStorage* storage, graph::WindowId window, graph::Access access, uint8_t bits);
  template <typename T>
  void compare(const std::byte*& at, const std::byte* end, const T& value) {
    if (end - at < static_cast<std::ptrdiff_t>(sizeof(T))) {
      equal_ = false;
      return;
    }
    equal_ = std::memcmp(at, &value, sizeof(T)) == 0 && equal_;
    at += sizeof(T);
  }
  void compare(const std::byte*& at, const std::byte* end, const void* bytes, size_t count) {
    if (static_cast<size_t>(end - at) < count) {
      equal_ = false;
      return;
    }
    equal_ = equal_ && std::memcmp(at, bytes, count) == 0;
    at += count;
  }

  Recorder& recorder_;
  TrieNode* const expected_;
  const size_t values_before_;
  const std::byte* structure_ = nullptr;
  const std::byte* structure_end_ = nullptr;
  const std::byte* sizes_ = nullptr;
  const std::byte* sizes_end_ = nullptr;
  size_t inputs_ = 0;  // so many were compared; their storages are the recorder's scratch
  bool equal_ = false;
  bool appended_ = false;
};

}  // namespace hetero::ops
